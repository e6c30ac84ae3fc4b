//! The vocabulary: what travels between the stages, and the contracts of the parts that can be plugged in.
//!
//! Everything here is values and traits. It imports nothing else of this crate and knows no actors, so that a
//! connector, a translator or a test can be written against it alone.

mod budget;
mod columns;
mod element;
mod error;
mod id;
pub mod invariants;
pub(crate) mod mutation;
mod receipt;
pub mod registry;
mod secret;
mod seen;
mod sink;
mod source;
mod target;
mod translator;

pub use budget::{Budget, Room};
pub use columns::message_columns;
pub use element::{Barrier, Batch, Bulk, Digest, Element, Raw, Rows, Share};
pub use error::{Reaction, Reason, Result, StageError};
pub use id::{Delivery, DeliveryId, Epoch, Generation, Identity, PartitionId, StageName, StoreId, Tick};
pub use receipt::{Outcome, Outcomes, Receipt, Resolved};
pub use secret::Secret;
pub use seen::{Holder, Offer, Seen, Undischarged, Verdict};
pub use sink::{
    AppId, Committed, Opened, Prepared, Probed, Rejected, Sink, SinkContext, SinkFactory, SinkInstance, Write,
    foreign_epochs,
};
pub use source::{Closed, Intake, Link, Received, Settled, Settler, Source, SourceContext, SourceFactory};
pub use target::{SinkOf, Target};
pub use translator::{Translated, Translator, TranslatorFactory};
