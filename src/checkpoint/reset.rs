//! The way out of an inconsistent partition (protocol R5): an entry that says anew where it is. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use super::{Base, Entry, Kind, Log};
use crate::flow::mutation::{Rule, removed};
use crate::flow::{Epoch, PartitionId, StageName};

impl Entry {
    /// The reset entry to write after `entries` (all from the floor on, in order), given what the partition's sinks show
    /// now. With `dropped` its newest part is given up; its identities, and those of older parts, are then in doubt.
    /// `None`: the log does not know the partition.
    pub fn reset(
        entries: &[Self],
        partition: &PartitionId,
        shown: &BTreeMap<StageName, Epoch>,
        dropped: bool,
        wall: i64,
    ) -> Option<Self> {
        let dropped = dropped || removed(Rule::ResetRepeatsPart);
        let log = Log::read(entries);
        let last = entries.iter().max_by_key(|entry| entry.number)?;
        let old = log.base.get(partition)?;
        let newest = log.newest.get(partition);
        let parts = newest.filter(|_| !dropped).and_then(|newest| {
            let entry = entries.iter().find(|entry| entry.number == newest.number)?;
            entry.parts.iter().find(|part| part.partition == *partition).cloned()
        });
        let greatest = shown.values().copied().max().unwrap_or_default();
        let mut base = log.base.clone();
        base.insert(partition.clone(), Base { epoch: old.epoch.max(greatest), sinks: shown.clone() });
        let session = Uuid::new_v4();
        Some(Self {
            number: log.last + 1,
            attempt: session,
            session,
            topology: Arc::clone(&last.topology),
            store: last.store,
            written: wall,
            floor: log.floor,
            kind: Kind::Reset { partition: partition.clone(), dropped },
            parts: parts.into_iter().collect(),
            base,
            adopted: log.adopted,
            in_doubt: BTreeMap::new(),
            cursors: Vec::new(),
        })
    }
}
