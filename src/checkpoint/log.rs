//! What the entries of a log add up to: where every partition is, and which part must be asked about.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Entry, Kind, Part};
use crate::flow::mutation::{Rule, removed};
use crate::flow::{Epoch, PartitionId, StageName};

/// Where a partition is: its last epoch, and the epoch that each of its sinks shows once all of that is committed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Base {
    /// The last epoch. 0: none.
    pub epoch: Epoch,
    /// By sink; one that is not named shows 0.
    pub sinks: BTreeMap<StageName, Epoch>,
}

impl Base {
    /// What `sink` shows.
    pub fn shown(&self, sink: &StageName) -> Epoch {
        self.sinks.get(sink).copied().unwrap_or_default()
    }
}

/// The newest part of a partition, and its partition's base in the same entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Newest {
    /// The entry's number.
    pub number: u64,
    /// When the entry was written, in ms since the epoch.
    pub written: i64,
    /// The part, without its identities: [`Seen`](crate::flow::Seen) has them.
    pub part: Part,
    /// Where the partition was before it.
    pub base: Base,
}

/// The log, read to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Log {
    /// The newest entry's number; 0 for an empty log.
    pub last: u64,
    /// Its floor.
    pub floor: u64,
    /// Sinks that are adopted.
    pub adopted: BTreeSet<StageName>,
    /// Where each partition is once everything in the log is committed: the `base` of the next entry.
    pub base: BTreeMap<PartitionId, Base>,
    /// The newest part of each partition, unless it was dropped.
    pub newest: BTreeMap<PartitionId, Newest>,
    /// The newest drained entry: all parts before it are committed by all their sinks.
    pub drained: u64,
    /// The numbers at or above the floor.
    pub numbers: BTreeSet<u64>,
    /// Whether any part was ever written to it.
    pub has_parts: bool,
}

impl Log {
    /// Adds the entries at or above the newest one's floor, in order. Entries below it are ignored (R4).
    pub fn read<'a>(entries: impl IntoIterator<Item = &'a Entry> + Clone) -> Self {
        let newest = entries.clone().into_iter().max_by_key(|entry| entry.number);
        let floor = newest.map_or(0, |entry| entry.floor);
        let counts = |entry: &&Entry| entry.number >= floor || removed(Rule::NothingBelowFloor);
        let mut sorted: Vec<_> = entries.into_iter().filter(counts).collect();
        sorted.sort_by_key(|entry| entry.number);
        let mut log = Self::default();
        for entry in sorted {
            log.apply(entry);
        }
        log
    }

    /// Adds the next entry.
    pub fn apply(&mut self, entry: &Entry) {
        self.last = entry.number;
        self.floor = entry.floor;
        self.adopted = entry.adopted.clone();
        self.base = entry.base.clone();
        self.has_parts |= !entry.parts.is_empty() || entry.base.values().any(|base| base.epoch > Epoch(0));
        self.numbers.insert(entry.number);
        self.numbers = self.numbers.split_off(&entry.floor);
        match &entry.kind {
            Kind::Drained => self.drained = entry.number,
            Kind::Reset { partition, dropped: true } => {
                self.newest.remove(partition);
            }
            Kind::Session { .. } | Kind::Epochs | Kind::Reset { .. } => {}
        }
        for part in &entry.parts {
            let base = entry.base.get(&part.partition).cloned().unwrap_or_default();
            let next = self.base.entry(part.partition.clone()).or_default();
            next.epoch = next.epoch.max(part.epoch);
            for sink in part.sinks.keys() {
                // After a reset a sink may show more than this part: it keeps that (R8 takes the part for done).
                let shown = next.sinks.entry(sink.clone()).or_default();
                *shown = part.epoch.max(*shown);
            }
            let bare = Part { ids: Vec::new(), cursors: Vec::new(), ..part.clone() };
            let newest = Newest { number: entry.number, written: entry.written, part: bare, base };
            self.newest.insert(part.partition.clone(), newest);
        }
        let floor = self.floor;
        self.newest.retain(|_, newest| newest.number >= floor || removed(Rule::NothingBelowFloor));
    }

    /// Where `partition` is.
    pub fn base_of(&self, partition: &PartitionId) -> Base {
        self.base.get(partition).cloned().unwrap_or_default()
    }
}
