//! Lends a resource to one async operation at a time, under a kill switch and a time limit.
//!
//! An actor cannot hold `&mut self` across an await. It takes the resource out, the operation runs with it, and puts it
//! back. An operation that fails, panics, hangs or is killed never gives the resource back: its generation is over.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::pool::{Pool, Weight};
use crate::flow::mutation::{Rule, removed};
use crate::flow::{Result, StageError};

/// A resource, while nobody has it.
pub(super) struct Exclusive<T>(Option<T>);

/// Where and how long operations run.
#[derive(Clone)]
pub(super) struct Terms {
    pub pool: Pool,
    pub kill: CancellationToken,
    pub limit: Duration,
}

/// An operation of a source, under the time limit that all operations have. Who gives up here has nothing to take back:
/// the generation ends, or the operation is tried again.
pub(super) async fn within<T>(limit: Duration, what: &str, operation: impl Future<Output = T>) -> Result<T> {
    if removed(Rule::TimeLimit) {
        return Ok(operation.await);
    }
    let answer = tokio::time::timeout(limit, operation).await;
    answer.map_err(|_| StageError::away(format!("{what} took longer than {} s", limit.as_secs())))
}

impl<T: Send + 'static> Exclusive<T> {
    pub fn new(resource: T) -> Self {
        Self(Some(resource))
    }

    /// Whether nobody has it.
    pub fn is_free(&self) -> bool {
        self.0.is_some()
    }

    /// Takes the resource. `None`: an operation has it, or had it and did not give it back.
    pub fn take(&mut self) -> Option<T> {
        self.0.take()
    }

    /// Puts it back.
    pub fn put(&mut self, resource: T) {
        self.0 = Some(resource);
    }
}

impl Terms {
    /// Runs one operation with `resource`. `Ok(None)`: killed.
    pub async fn run<T, R>(
        self,
        weight: Weight,
        what: String,
        mut resource: T,
        operation: impl for<'a> FnOnce(&'a mut T) -> BoxFuture<'a, Result<R>> + Send + 'static,
    ) -> Result<Option<(T, R)>>
    where
        T: Send + 'static,
        R: Send + 'static,
    {
        let Self { pool, kill, limit } = self;
        let killed = kill.clone();
        let work = async move {
            let result = tokio::select! {
                biased;
                () = killed.cancelled() => return None,
                result = operation(&mut resource) => result,
            };
            Some(result.map(|value| (resource, value)))
        };
        // The limit is kept here too: an operation that does not return to its executor cannot be stopped there.
        let answer = tokio::select! {
            biased;
            () = kill.cancelled() => return Ok(None),
            answer = pool.run(weight, Box::pin(work)) => answer,
            () = tokio::time::sleep(limit), if !removed(Rule::TimeLimit) => {
                return Err(StageError::retry(format!("{what} took longer than {} s", limit.as_secs())));
            }
        };
        match answer {
            None => Err(StageError::retry(format!("{what} panicked"))),
            Some(None) => Ok(None),
            Some(Some(result)) => result.map(Some),
        }
    }
}
