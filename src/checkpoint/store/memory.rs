//! A store that lives as long as the process, or as its clones: for `store: memory` and for simulated processes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::{CheckpointStore, Created, StoreError};
use crate::checkpoint::Entry;
use crate::flow::mutation::{Rule, removed};

/// Clones share the entries.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<BTreeMap<u64, Vec<u8>>>>);

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<u64, Vec<u8>>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn decode(number: u64, bytes: &[u8]) -> Result<Entry, StoreError> {
    Entry::decode(bytes).map_err(|cause| StoreError::Unreadable { place: "memory".into(), number, cause })
}

#[async_trait]
impl CheckpointStore for MemoryStore {
    async fn list(&self) -> Result<Vec<u64>, StoreError> {
        Ok(self.with(|entries| entries.keys().copied().collect()))
    }

    async fn read(&self, number: u64) -> Result<Option<Entry>, StoreError> {
        self.with(|entries| entries.get(&number).cloned()).map(|bytes| decode(number, &bytes)).transpose()
    }

    async fn create(&self, entry: &Entry) -> Result<Created, StoreError> {
        let existing = self.with(|entries| match entries.get(&entry.number) {
            Some(bytes) if !removed(Rule::CreateIfAbsent) => Some(bytes.clone()),
            _ => {
                entries.insert(entry.number, entry.encode());
                None
            }
        });
        match existing {
            None => Ok(Created::Created),
            Some(bytes) => Ok(Created::AlreadyExists(Box::new(decode(entry.number, &bytes)?))),
        }
    }

    async fn delete(&self, number: u64) -> Result<(), StoreError> {
        self.with(|entries| entries.remove(&number));
        Ok(())
    }
}
