//! Why the process is not ready, in sentences, for `/ready` and for the end of a run. Clones share it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::flow::PartitionId;

/// What keeps partitions from working.
#[derive(Clone, Default)]
pub struct Status(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    started: bool,
    draining: bool,
    waiting: BTreeMap<PartitionId, String>,
    parked: BTreeMap<PartitionId, String>,
    notes: BTreeMap<&'static str, String>,
}

impl Status {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log is read and the partitions are being built.
    pub(super) fn started(&self) {
        self.state().started = true;
    }

    /// No more is received.
    pub(super) fn draining(&self) {
        self.state().draining = true;
    }

    /// The partition does not work now, and will be tried again.
    pub(super) fn not_ready(&self, partition: &PartitionId, reason: String) {
        self.state().waiting.insert(partition.clone(), reason);
    }

    /// The partition works.
    pub(super) fn clear(&self, partition: &PartitionId) {
        self.state().waiting.remove(partition);
    }

    /// The partition has been given up.
    pub(super) fn parked(&self, partition: &PartitionId, reason: String) {
        let mut state = self.state();
        state.waiting.remove(partition);
        state.parked.insert(partition.clone(), reason);
    }

    /// Something about the whole process, by what it is about; `None`: it is well again.
    pub(super) fn note(&self, about: &'static str, reason: Option<String>) {
        let mut state = self.state();
        match reason {
            Some(reason) => state.notes.insert(about, reason),
            None => state.notes.remove(about),
        };
    }

    /// The partitions that were given up, and why.
    pub fn parked_partitions(&self) -> BTreeMap<PartitionId, String> {
        self.state().parked.clone()
    }

    /// Every reason why the process is not ready, with the way out. Empty: it is.
    pub fn reasons(&self) -> Vec<String> {
        let state = self.state();
        let mut reasons = Vec::new();
        if !state.started {
            reasons.push("the checkpoint log is being read".to_owned());
        }
        if state.draining {
            reasons.push("draining".to_owned());
        }
        reasons.extend(state.notes.values().cloned());
        let partitions = state.waiting.iter().map(|(p, reason)| format!("partition {p}: {reason}"));
        let parked = state
            .parked
            .iter()
            .map(|(p, reason)| format!("partition {p} is parked: {reason}; then restart the process"));
        reasons.extend(partitions.chain(parked));
        reasons
    }
}
