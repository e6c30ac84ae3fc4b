//! Where the log is kept: numbered entries, created if absent, deleted from the front.

mod limited;
mod local;
mod memory;

use async_trait::async_trait;

use super::{Entry, EntryError};

pub use limited::Limited;
pub use local::LocalStore;
pub use memory::MemoryStore;

/// What became of an attempt to create an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// It is there now, durably.
    Created,
    /// Something was there. It may be the same attempt: an earlier try whose answer was lost.
    AlreadyExists(Box<Entry>),
}

/// Why a store did not answer as it should.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It is away, full or read-only: worth trying again.
    #[error("checkpoint store {place}: {cause}")]
    Away {
        /// Where it is.
        place: String,
        /// What the system says.
        cause: std::io::Error,
    },
    /// An entry is torn, damaged or not ours. Nothing is guessed over it.
    #[error(
        "checkpoint store {place}: cannot read entry {number}: {cause}; restore it from a copy, or empty the store while \
             nothing runs and start with --new-store (see `runtime start --help`)"
    )]
    Unreadable {
        /// Where it is.
        place: String,
        /// Which entry.
        number: u64,
        /// Why.
        cause: EntryError,
    },
    /// Another process has it.
    #[error(
        "checkpoint store {place} is in use by process {pid}: two processes must not share a store; stop that one, or give \
             this topology a store of its own"
    )]
    Locked {
        /// Where it is.
        place: String,
        /// Whose it is, as far as known.
        pid: String,
    },
}

/// A numbered log. Only the coordinator of the process that owns the log writes to it.
#[async_trait]
pub trait CheckpointStore: Send + Sync {
    /// The numbers that are there, ascending. Cheap: asked after every create (protocol R4).
    async fn list(&self) -> Result<Vec<u64>, StoreError>;

    /// One entry, or `None` where there is none.
    async fn read(&self, number: u64) -> Result<Option<Entry>, StoreError>;

    /// Creates `entry` at its number if nothing is there. Durable when it answers `Created`. An error says nothing about
    /// whether it landed: try the same again.
    async fn create(&self, entry: &Entry) -> Result<Created, StoreError>;

    /// Deletes one entry; fine if it is gone.
    async fn delete(&self, number: u64) -> Result<(), StoreError>;
}
