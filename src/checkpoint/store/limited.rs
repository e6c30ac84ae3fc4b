//! A time limit on every operation of a store: one that does not answer is tried again, and does not hold everything up.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{CheckpointStore, Created, StoreError};
use crate::checkpoint::Entry;
use crate::flow::mutation::{Rule, removed};

/// A store whose operations fail when they take too long. An operation that was given up may still happen, as after any
/// error.
pub struct Limited {
    store: Arc<dyn CheckpointStore>,
    limit: Duration,
}

impl Limited {
    /// `store`, with this limit for each operation.
    pub fn new(store: Arc<dyn CheckpointStore>, limit: Duration) -> Self {
        Self { store, limit }
    }

    async fn within<T>(&self, operation: impl Future<Output = Result<T, StoreError>> + Send) -> Result<T, StoreError> {
        if removed(Rule::TimeLimit) {
            return operation.await;
        }
        tokio::time::timeout(self.limit, operation).await.unwrap_or_else(|_| {
            let what = format!("no answer within {} s", self.limit.as_secs());
            let cause = std::io::Error::new(std::io::ErrorKind::TimedOut, what);
            Err(StoreError::Away { place: "of this topology".into(), cause })
        })
    }
}

#[async_trait]
impl CheckpointStore for Limited {
    async fn list(&self) -> Result<Vec<u64>, StoreError> {
        self.within(self.store.list()).await
    }

    async fn read(&self, number: u64) -> Result<Option<Entry>, StoreError> {
        self.within(self.store.read(number)).await
    }

    async fn create(&self, entry: &Entry) -> Result<Created, StoreError> {
        self.within(self.store.create(entry)).await
    }

    async fn delete(&self, number: u64) -> Result<(), StoreError> {
        self.within(self.store.delete(number)).await
    }
}
