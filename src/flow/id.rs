//! The newtypes: what a thing is called, and what makes two messages the same.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// The name of a stage or a receiver, as the topology file has it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StageName(Arc<str>);

impl StageName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for StageName {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Debug for StageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for StageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One partition of one receiver: a consumer and the whole tree of stages below it. Written `orders/0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PartitionId {
    /// The receiver's name.
    pub receiver: StageName,
    /// Counted from 0.
    pub index: u32,
}

impl PartitionId {
    /// The `index`-th partition of `receiver`.
    pub fn new(receiver: impl Into<StageName>, index: u32) -> Self {
        Self { receiver: receiver.into(), index }
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.receiver, self.index)
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The one after this.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// What lies between two barriers of one partition; counted from 1 over the life of the checkpoint log. 0 is "none yet".
    Epoch
}
number! {
    /// One life of a partition's stages within a process; a restart builds the next.
    Generation
}
number! {
    /// The source's own handle for a delivery, valid for one [`Link`](super::Link).
    DeliveryId
}
number! {
    /// Milliseconds of monotonic time since the process started.
    Tick
}

/// The identity of a checkpoint log: made with the log, so that two logs never share a sink's numbers (protocol R7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoreId(pub uuid::Uuid);

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What makes two deliveries the same message: a hash of the message id (128 bits) and one of the content (64 bits).
///
/// Same id and same content is the same message; same id and other content is a collision, never a silent loss.
/// What counts as content the source says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// XXH3-128 of the message id.
    pub id: u128,
    /// XXH3-64 of the content.
    pub content: u64,
}

impl Identity {
    /// The identity of a message with this id and content.
    pub fn of(id: &[u8], content: &[u8]) -> Self {
        Self { id: xxh3_128(id), content: xxh3_64(content) }
    }

    /// An identity no other delivery has: for messages without an id.
    pub fn random() -> Self {
        Self { id: uuid::Uuid::new_v4().as_u128(), content: 0 }
    }

    /// Big-endian id, then content: 24 bytes.
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.id.to_be_bytes());
        bytes[16..].copy_from_slice(&self.content.to_be_bytes());
        bytes
    }

    /// The inverse of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8; 24]) -> Self {
        let (id, content) = bytes.split_at(16);
        Self {
            id: u128::from_be_bytes(id.try_into().expect("16 bytes")),
            content: u64::from_be_bytes(content.try_into().expect("8 bytes")),
        }
    }
}

/// One delivery of one message over one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The source's handle, for settling.
    pub id: DeliveryId,
    /// What the message is. A message without an id has [`Identity::random`] and `anonymous` set.
    pub identity: Identity,
    /// What it takes of the byte budget: body and metadata as received.
    pub bytes: u32,
    /// The message brought no id of its own; `identity.missing_id` says what happens to it.
    pub anonymous: bool,
}
