//! Batching policy as a value: what is waiting, and whether it is enough. Pure.

use std::time::Duration;

use arrow::array::{Array, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use tokio::time::Instant;

use crate::flow::{Batch, Bulk, Share};

/// When a batch is large or old enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub rows: usize,
    pub bytes: usize,
    pub age: Duration,
}

/// Batches that wait to become a bulk.
pub(super) struct Accumulator {
    limits: Limits,
    schema: SchemaRef,
    waiting: Vec<RecordBatch>,
    shares: Vec<Share>,
    rows: usize,
    bytes: usize,
    oldest: Option<Instant>,
}

impl Accumulator {
    pub fn new(limits: Limits, schema: SchemaRef) -> Self {
        Self { limits, schema, waiting: Vec::new(), shares: Vec::new(), rows: 0, bytes: 0, oldest: None }
    }

    /// Adds a batch; a bulk if that is enough.
    pub fn push(&mut self, batch: Batch, now: Instant) -> Option<Bulk> {
        let Batch { rows, receipt } = batch;
        self.rows += rows.len();
        self.bytes += rows.columns.columns().iter().map(|column| slice_bytes(column.as_ref())).sum::<usize>();
        self.waiting.push(rows.columns);
        self.shares.push(Share { origin: rows.origin, receipt });
        self.oldest.get_or_insert(now);
        (self.rows >= self.limits.rows || self.bytes >= self.limits.bytes).then(|| self.flush()).flatten()
    }

    /// When what waits is old enough.
    pub fn deadline(&self) -> Option<Instant> {
        self.oldest.map(|oldest| oldest + self.limits.age)
    }

    /// Everything that waits.
    pub fn flush(&mut self) -> Option<Bulk> {
        if self.shares.is_empty() {
            return None;
        }
        (self.rows, self.bytes, self.oldest) = (0, 0, None);
        let shares = std::mem::take(&mut self.shares);
        let mut waiting = std::mem::take(&mut self.waiting);
        let columns = match waiting.len() {
            1 => waiting.remove(0),
            _ => concat_batches(&self.schema, &waiting).expect("batches of one stage have one schema"),
        };
        Some(Bulk { columns, shares })
    }
}

/// The bytes that this slice stands for; shared buffers count only as far as they are used.
fn slice_bytes(array: &dyn Array) -> usize {
    array.to_data().get_slice_memory_size().unwrap_or_else(|_| array.get_array_memory_size())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::Int64Array;
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;
    use crate::flow::{Delivery, DeliveryId, Identity, Receipt, Rows};

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]))
    }

    fn batch(values: &[i64]) -> Batch {
        let columns = RecordBatch::try_new(schema(), vec![Arc::new(Int64Array::from(values.to_vec()))]).expect("batch");
        let delivery = |n: &i64| Delivery {
            id: DeliveryId(u64::try_from(*n).expect("positive")),
            identity: Identity::of(&n.to_be_bytes(), b""),
            bytes: 1,
            anonymous: false,
        };
        let receipt = Receipt::new(values.iter().map(delivery).collect(), columns.clone(), Arc::new(|_| {}));
        Batch { rows: Rows::one_per_delivery(columns), receipt }
    }

    #[test]
    fn rows_bytes_or_age_make_a_bulk() {
        let now = crate::clock::now();
        let limits = Limits { rows: 4, bytes: 1 << 20, age: Duration::from_secs(1) };
        let mut accumulator = Accumulator::new(limits, schema());
        assert!(accumulator.push(batch(&[1, 2, 3]), now).is_none());
        assert_eq!(accumulator.deadline(), Some(now + limits.age));
        let bulk = accumulator.push(batch(&[4, 5]), now).expect("five rows");
        assert_eq!(bulk.columns.num_rows(), 5);
        assert_eq!(bulk.shares.iter().map(|share| share.receipt.len()).collect::<Vec<_>>(), [3, 2]);
        assert_eq!((accumulator.deadline(), accumulator.flush().is_none()), (None, true));

        let mut accumulator = Accumulator::new(Limits { rows: 100, bytes: 16, ..limits }, schema());
        assert!(accumulator.push(batch(&[1, 2]), now).is_some(), "two numbers of eight bytes");
    }
}
