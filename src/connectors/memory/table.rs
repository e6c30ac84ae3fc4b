//! A table with what makes exactly once possible: versions that are put if absent, and the epochs that each carries.
//!
//! Invariant: a version never changes, and there is no gap between versions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use arrow::array::{Array, RecordBatch};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use uuid::Uuid;

use super::lock;
use crate::flow::Epoch;

/// What one commit has added.
#[derive(Clone, Debug)]
pub struct Version {
    /// The epoch that it shows, by app id (protocol R7). At 0: a fence.
    pub txn: (String, Epoch),
    /// The prepared rows that it is of.
    pub staged: Option<Uuid>,
    /// Its rows.
    pub rows: Vec<RecordBatch>,
}

/// A table. Clones are the same table.
#[derive(Clone, Debug, Default)]
pub struct Table(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    versions: Vec<Version>,
    txns: BTreeMap<String, Epoch>,
    /// Rows that are durable and invisible.
    staged: BTreeMap<Uuid, Vec<RecordBatch>>,
}

/// What somebody saw who looked.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    /// How many versions there were.
    pub version: usize,
    /// The last epoch of each app id.
    pub txns: BTreeMap<String, Epoch>,
}

impl Table {
    /// The versions, oldest first.
    pub fn versions(&self) -> Vec<Version> {
        self.versions_from(0)
    }

    /// The versions without the `from` oldest.
    pub fn versions_from(&self, from: usize) -> Vec<Version> {
        lock(&self.0).versions.get(from..).unwrap_or_default().to_vec()
    }

    /// All rows that can be seen.
    pub fn rows(&self) -> Vec<RecordBatch> {
        lock(&self.0).versions.iter().flat_map(|version| version.rows.iter().cloned()).collect()
    }

    /// The last epoch that it shows of an app id.
    pub fn shows(&self, app_id: &str) -> Epoch {
        lock(&self.0).txns.get(app_id).copied().unwrap_or_default()
    }

    pub(super) fn look(&self) -> Snapshot {
        let state = lock(&self.0);
        Snapshot { version: state.versions.len(), txns: state.txns.clone() }
    }

    /// Puts a version after the `after` first; `false`: there is one already.
    pub(super) fn put_if_absent(&self, after: usize, version: Version) -> bool {
        let mut state = lock(&self.0);
        if state.versions.len() != after {
            return false;
        }
        let (app_id, epoch) = version.txn.clone();
        state.txns.insert(app_id, epoch);
        state.versions.push(version);
        true
    }

    pub(super) fn stage(&self, rows: Vec<RecordBatch>) -> Uuid {
        let handle = Uuid::new_v4();
        lock(&self.0).staged.insert(handle, rows);
        handle
    }

    pub(super) fn staged(&self, handle: Uuid) -> Option<Vec<RecordBatch>> {
        lock(&self.0).staged.get(&handle).cloned()
    }

    pub(super) fn unstage(&self, handle: Uuid) {
        lock(&self.0).staged.remove(&handle);
    }
}

/// The keys of the rows of `batch`, as text; `None` where one of them is null: such a row is like no other.
pub(super) fn keys(batch: &RecordBatch, columns: &[String]) -> Result<Vec<Option<Vec<String>>>, ArrowError> {
    let options = FormatOptions::default();
    let columns: Vec<_> = columns.iter().filter_map(|name| batch.column_by_name(name)).collect();
    let formatters: Vec<_> =
        columns.iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options)).collect::<Result<_, _>>()?;
    let key = |row| {
        let parts = columns.iter().zip(&formatters);
        parts.map(|(column, text)| column.is_valid(row).then(|| text.value(row).to_string())).collect()
    };
    Ok((0..batch.num_rows()).map(key).collect())
}

/// The keys of a table as far as they were read.
#[derive(Debug, Default)]
pub(super) struct KeyIndex {
    read: usize,
    keys: BTreeSet<Vec<String>>,
}

impl KeyIndex {
    /// Reads what was added up to `version`.
    pub fn catch_up(&mut self, table: &Table, version: usize, columns: &[String]) -> Result<(), ArrowError> {
        let added = table.versions_from(self.read);
        for version in added.iter().take(version.saturating_sub(self.read)) {
            for batch in &version.rows {
                self.keys.extend(keys(batch, columns)?.into_iter().flatten());
            }
        }
        self.read = self.read.max(version);
        Ok(())
    }

    /// The rows of `batch` whose keys are neither in the table nor in `also`, which learns them.
    pub fn missing(
        &self,
        batch: &RecordBatch,
        columns: &[String],
        also: &mut BTreeSet<Vec<String>>,
    ) -> Result<RecordBatch, ArrowError> {
        let mut new = |key: Option<Vec<String>>| key.is_none_or(|key| !self.keys.contains(&key) && also.insert(key));
        let mask: arrow::array::BooleanArray = keys(batch, columns)?.into_iter().map(|key| Some(new(key))).collect();
        arrow::compute::filter_record_batch(batch, &mask)
    }
}
