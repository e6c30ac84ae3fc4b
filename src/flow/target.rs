//! A sink of your own without the ceremony: its configuration, and what it opens.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use schemars::{JsonSchema, Schema, schema_for};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::registry::{ConfigError, Guarantee, Kind, SinkKind};
use super::{PartitionId, Probed, Result, SinkContext, SinkFactory, SinkInstance, StageError};

/// Somewhere rows go, as a topology file configures it; [`SinkOf`] makes a kind of it that a topology can name.
///
/// The type itself is the configuration: its fields are what the topology file says beside `from`, `type` and `delivery`,
/// and its doc comments are their documentation. Each partition gets a writer of its own, made anew after a failure. What
/// partitions are to share (a client, a pool) this trait has no place for: implement [`SinkKind`] for that.
pub trait Target: DeserializeOwned + JsonSchema + Send + Sync + 'static {
    /// The word after `type:`.
    const NAME: &'static str;

    /// One sentence: lower case, no full stop.
    const ABOUT: &'static str;

    /// A stage in YAML, as it would stand under its name: one key a line, without `from` and `type`.
    const EXAMPLE: &'static str;

    /// What it can promise at best; what [`sink`](Self::sink) returns must be of that sort.
    const GUARANTEE: Guarantee;

    /// What is wrong with writing rows of these columns, in a sentence. Pure.
    fn check(&self, _input: &SchemaRef) -> Result<(), String> {
        Ok(())
    }

    /// As [`SinkFactory::probe`].
    fn probe(&self, _context: &SinkContext, _adopted: bool) -> impl Future<Output = Result<Probed>> + Send {
        std::future::ready(Ok(Probed::nothing()))
    }

    /// A writer for one partition: a [`Write`](super::Write), or a [`Sink`](super::Sink) that takes part in checkpoints.
    /// Does no I/O.
    fn sink(&self, context: &SinkContext, partition: &PartitionId) -> SinkInstance;
}

/// The kind of sink that a [`Target`] is.
pub struct SinkOf<T>(PhantomData<fn() -> T>);

impl<T> Default for SinkOf<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Target> fmt::Debug for SinkOf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SinkOf({})", T::NAME)
    }
}

impl<T: Target> Kind for SinkOf<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn about(&self) -> &'static str {
        T::ABOUT
    }

    fn example(&self) -> &'static str {
        T::EXAMPLE
    }

    fn schema(&self) -> Schema {
        schema_for!(T)
    }
}

fn configured<T: Target>(config: &Value) -> Result<T, String> {
    T::deserialize(config).map_err(|error| error.to_string())
}

impl<T: Target> SinkKind for SinkOf<T> {
    fn guarantee(&self) -> Guarantee {
        T::GUARANTEE
    }

    fn check(&self, config: &Value, input: &SchemaRef) -> Vec<ConfigError> {
        let checked = configured::<T>(config).and_then(|target| target.check(input));
        checked.err().map(ConfigError::here).into_iter().collect()
    }

    fn build(&self, config: &Value, context: SinkContext) -> Result<Arc<dyn SinkFactory>> {
        let target = configured::<T>(config).map_err(StageError::park)?;
        Ok(Arc::new(Factory { target, context }))
    }
}

struct Factory<T> {
    target: T,
    context: SinkContext,
}

#[async_trait]
impl<T: Target> SinkFactory for Factory<T> {
    fn sink(&self, partition: &PartitionId) -> SinkInstance {
        self.target.sink(&self.context, partition)
    }

    async fn probe(&self, adopted: bool) -> Result<Probed> {
        self.target.probe(&self.context, adopted).await
    }
}
