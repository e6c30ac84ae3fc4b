//! What travels forward: batches of rows with their receipts, and the barriers between epochs.

use arrow::array::RecordBatch;

use super::{Epoch, Identity, Receipt};

/// Rows, and for each the delivery of the batch's receipt that it came from.
///
/// Before the translator there is one row per message, with the receiver's message columns (`id`, `sent`, `received`,
/// `value`, …); after it, the columns that the translator declares.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The columns.
    pub columns: RecordBatch,
    /// For each row, the index of its delivery in the receipt's [`deliveries`](Receipt::deliveries).
    pub origin: Vec<u32>,
}

impl Rows {
    /// How many.
    pub fn len(&self) -> usize {
        self.origin.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.origin.is_empty()
    }

    /// One row per delivery, in order.
    pub fn one_per_delivery(columns: RecordBatch) -> Self {
        let origin = (0..u32::try_from(columns.num_rows()).expect("fewer than 2^32 rows")).collect();
        Self { columns, origin }
    }
}

/// Messages as the receiver hands them on: [`Rows`] with its message columns.
pub type Raw = Rows;

/// Rows and the promise that belongs to them: what translators and batchers take. May have no rows (all filtered out),
/// never no deliveries.
#[derive(Debug)]
pub struct Batch {
    /// The rows.
    pub rows: Rows,
    /// One receipt for everything in the batch.
    pub receipt: Receipt,
}

/// What a batcher made of several batches: what sinks take.
#[derive(Debug)]
pub struct Bulk {
    /// All rows.
    pub columns: RecordBatch,
    /// Whose they are: the rows of a share follow those of the share before it.
    pub shares: Vec<Share>,
}

/// One batch within a [`Bulk`].
#[derive(Debug)]
pub struct Share {
    /// As in [`Rows::origin`].
    pub origin: Vec<u32>,
    /// The promise.
    pub receipt: Receipt,
}

/// Count and xor of a set of identities: enough to notice that one was lost on the way (protocol R6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest {
    /// How many.
    pub count: u64,
    /// The xor of their ids and contents.
    pub xor: u128,
}

impl Digest {
    /// Adds one identity.
    pub fn add(&mut self, identity: Identity) {
        self.count += 1;
        self.xor ^= identity.id ^ u128::from(identity.content).rotate_left(64);
    }

    /// The digest of these identities.
    pub fn of<'a>(identities: impl IntoIterator<Item = &'a Identity>) -> Self {
        let mut digest = Self::default();
        for identity in identities {
            digest.add(*identity);
        }
        digest
    }
}

/// The end of an epoch. It passes every stage behind the epoch's last row.
#[derive(Clone, Debug)]
pub struct Barrier {
    /// The epoch that ends here.
    pub epoch: Epoch,
    /// What the receiver sent in it.
    pub sent: Digest,
    /// Unfinished deliveries: rows sent so far, up to the end of this epoch (protocol R6).
    pub cursors: Vec<(Identity, u64)>,
    /// Identities that a stage on the way rejected: none of their rows go on.
    pub rejected: Vec<Identity>,
}

/// What a stage's mailbox carries, in order: `P` is [`Batch`] up to the batcher, and [`Bulk`] after it.
#[derive(Debug)]
pub enum Element<P> {
    /// Rows.
    Rows(P),
    /// The end of an epoch.
    Barrier(Barrier),
}
