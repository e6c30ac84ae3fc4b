//! The contract of a sink's connector: what it must make durable, and when it may show it.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Epoch, PartitionId, Reason, Result, Rows, StageName, StoreId};

/// Where a sink is, and what it is fed.
#[derive(Clone, Debug)]
pub struct SinkContext {
    /// The topology's name.
    pub topology: Arc<str>,
    /// The sink's name in the topology.
    pub sink: StageName,
    /// The checkpoint log its epochs belong to.
    pub store: StoreId,
    /// The columns of everything that will be written.
    pub schema: SchemaRef,
}

/// What all partitions of one sink share: a committer, a client, a table handle.
#[async_trait]
pub trait SinkFactory: Send + Sync {
    /// A writer of its own for one partition. Called once per generation; does no I/O.
    fn sink(&self, partition: &PartitionId) -> SinkInstance;

    /// Looks whether the target can be opened and written as things are now, changes nothing, and says what it found
    /// (`check --connect`). `adopted` as in [`Sink::open`]. A kind that does not say how is not looked at: to open a target
    /// may be to make it.
    async fn probe(&self, _adopted: bool) -> Result<Probed> {
        Ok(Probed::nothing())
    }
}

/// What a look at a target found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// In a few words.
    pub found: String,
    /// As in [`Opened::foreign`].
    pub foreign: bool,
}

impl Probed {
    /// Nobody looked.
    pub fn nothing() -> Self {
        Self { found: "opened when it starts".to_owned(), foreign: false }
    }
}

/// Why a sink whose target has epochs of another checkpoint log is refused, and the way out.
pub fn foreign_epochs(sink: &StageName) -> String {
    format!(
        "sink '{sink}': its target has epochs of this topology from another checkpoint store, and messages that were \
         committed but not settled then could come twice; restore that store, or accept this and start with --new-store"
    )
}

/// One partition's writer, by what it can promise.
pub enum SinkInstance {
    /// Takes part in checkpoints.
    ExactlyOnce(Box<dyn Sink>),
    /// Is flushed at each barrier, and takes no other part.
    AtLeastOnce(Box<dyn Write>),
}

/// The name under which one partition's epochs are recorded in a target (protocol R7).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AppId {
    /// The topology's name.
    pub topology: Arc<str>,
    /// The receiver and the partition.
    pub partition: PartitionId,
    /// The sink's name.
    pub sink: StageName,
    /// The checkpoint log.
    pub store: StoreId,
}

impl AppId {
    /// The app id of `partition` in the sink of `context`.
    pub fn new(context: &SinkContext, partition: &PartitionId) -> Self {
        Self {
            topology: context.topology.clone(),
            partition: partition.clone(),
            sink: context.sink.clone(),
            store: context.store,
        }
    }

    /// Whether `other` is an app id of this topology and sink, of any receiver and partition, from another log.
    pub fn is_foreign(&self, other: &str) -> bool {
        let mut parts = other.split('/');
        let (topology, _receiver, sink, store, partition) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next());
        topology == Some(&*self.topology)
            && sink == Some(self.sink.as_str())
            && partition.is_some()
            && parts.next().is_none()
            && store.and_then(|s| s.parse().ok()).is_some_and(|s: uuid::Uuid| s != self.store.0)
    }
}

/// `topology/receiver/sink/store id/partition`; stage and topology names hold no slash.
impl fmt::Display for AppId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topology, partition, sink, store } = self;
        write!(f, "{topology}/{}/{sink}/{store}/{}", partition.receiver, partition.index)
    }
}

/// What a target shows of a partition's epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Committed {
    /// The last epoch it has. `Epoch(0)`: none.
    At(Epoch),
    /// It cannot tell whether a record ever existed: records this old may have been cleaned away.
    Unknown,
}

/// What opening a sink found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The epoch it shows.
    pub committed: Committed,
    /// Only when asked (`adopted: false`): the target has epochs of this topology and sink from another checkpoint log.
    pub foreign: bool,
}

/// An epoch that is durable and invisible: all that is needed to show it, also after a crash and in another process.
/// Only [`Sink::prepare`] makes one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Prepared {
    /// Rows in it, for people.
    pub rows: u64,
    /// The sink's own words (JSON by convention: `runtime state` shows it).
    pub payload: String,
}

/// A row that did not get through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Which row of the batch that was handed over.
    pub row: u32,
    /// One word.
    pub reason: Reason,
    /// A sentence for a person: which column, which value, what was expected.
    pub detail: String,
}

/// A target that can make an epoch durable without showing it, and show it later, once.
///
/// Calls come one at a time, from one partition's sink actor. After an `Err` only [`open`](Self::open) of a new instance is called.
#[async_trait]
pub trait Sink: Send {
    /// Looks what the target shows of this partition, and creates what is absent. With `adopted: false` also looks for
    /// epochs of the same topology and sink from another log, and, where a late commit of that log could still land,
    /// fences it before answering (protocol R7).
    async fn open(&mut self, adopted: bool) -> Result<Opened>;

    /// Takes rows of the current epoch. May buffer. Rows it can never hold it returns, and drops.
    async fn write(&mut self, rows: &Rows) -> Result<Vec<Rejected>>;

    /// Makes everything written since the last prepare durable, and shows nothing of it. `None`: there was nothing.
    /// Nothing is rejected later than this.
    async fn prepare(&mut self, epoch: Epoch) -> Result<Option<Prepared>>;

    /// Shows a prepared epoch. Idempotent and conditional (protocol R8): a target at `epoch` or beyond is success, one at
    /// exactly `base` takes it, anything else parks. Also called for epochs prepared by another process, before any write.
    /// `group`: how many partitions commit to this sink at the same time, so that they can go as one.
    async fn commit(&mut self, epoch: Epoch, base: Epoch, prepared: &Prepared, group: usize) -> Result<()>;
}

/// A target that cannot look whether a commit landed: a console, a queue. After a failure rows may be written again.
#[async_trait]
pub trait Write: Send {
    /// Connects.
    async fn open(&mut self) -> Result<()>;

    /// Takes rows. May buffer. Rows it can never hold it returns, and drops.
    async fn write(&mut self, rows: &Rows) -> Result<Vec<Rejected>>;

    /// Returns when everything written is where it belongs; only then are the messages accepted.
    async fn flush(&mut self) -> Result<()>;
}
