//! What a checkpoint is, and the log it is recorded in.
//!
//! An *epoch* is what a partition sent between two barriers. When all its sinks have made it durable (*prepared*), the
//! coordinator writes an *entry* into the log; that is the point of no return. Then the sinks show it (*commit*), and only
//! then is the broker told. After a crash the log says which epochs were past that point: they are shown again, which
//! changes nothing where it had happened; everything else the broker redelivers.
//!
//! [`Entry`] is the record, [`CheckpointStore`] keeps it, [`Log`] is what the entries add up to, [`recover`] compares that
//! with what the sinks show, and [`Ledger`] is the state machine that decides all of it while the process runs. `Ledger`,
//! `Log` and `recover` are pure: facts in, decisions out. The rules are those of the exactly-once protocol, R1 to R14;
//! this module imports nothing but the vocabulary, and never touches a sink or a source.

mod entry;
mod ledger;
mod log;
mod recovery;
mod reset;
#[cfg(test)]
mod search;
mod session;
pub mod store;

pub use entry::{CursorCopy, Doubt, Entry, EntryError, Kind, Part};
pub use ledger::{Action, Commit, Event, Ledger, LedgerConfig, Now, Seens, SinkReport, Tree};
pub use log::{Base, Log, Newest};
pub use recovery::{Inconsistent, Recovery, recover};
pub use session::{Begun, Found, SessionError, begin, create, load_seen, look};
pub use store::{CheckpointStore, Created, Limited, LocalStore, MemoryStore, StoreError};
