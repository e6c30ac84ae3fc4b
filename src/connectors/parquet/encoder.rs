//! From rows to files: columns, then partitions, then files.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::RecordBatch;

use super::columns::Columns;
use super::files::{Files, Finished, Place};
use super::options::FileOptions;
use super::partition::Partitioner;
use crate::flow::{Reason, Rejected, Result, StageError};

/// One partition's rows on their way into files.
pub struct Encoder {
    columns: Arc<Columns>,
    partitioner: Partitioner,
    files: Files,
}

impl Encoder {
    /// Files below `root`, of what `columns` makes of the rows, partitioned by `partition_by`.
    pub fn new(
        root: PathBuf,
        place: Place,
        columns: Arc<Columns>,
        partition_by: &[String],
        options: FileOptions,
    ) -> Result<Self> {
        let partitioner = Partitioner::new(columns.target(), partition_by)
            .map_err(|e| StageError::park("the partition columns are not among the rows' columns").because(e))?;
        let files = Files::new(root, place, partition_by.to_vec(), partitioner.rest().clone(), options);
        Ok(Self { columns, partitioner, files })
    }

    /// Encodes what fits and returns the rest.
    pub fn write(&mut self, rows: &RecordBatch) -> Result<Vec<Rejected>> {
        let mut converted = self.columns.convert(rows)?;
        let (slices, refused) = self
            .partitioner
            .split(&converted.batch)
            .map_err(|e| StageError::park("rows cannot be split into partitions").because(e))?;
        for slice in slices {
            self.files.write(slice)?;
        }
        let mut rejected = std::mem::take(&mut converted.rejected);
        rejected.extend(refused.into_iter().map(|(row, detail)| Rejected {
            row: converted.origin(row),
            reason: Reason::Sink,
            detail,
        }));
        Ok(rejected)
    }

    /// Whether nothing was written since the last [`finish`](Self::finish).
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// See [`Files::finish`].
    pub fn finish(&mut self) -> Result<Vec<Finished>> {
        self.files.finish()
    }
}
