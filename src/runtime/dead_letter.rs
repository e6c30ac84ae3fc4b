//! The dead letter writer of one partition: keeps rejected messages until the coordinator says which of them belong to an
//! epoch, and has an ordinary sink make exactly those durable (protocol R9).
//!
//! It never triggers a checkpoint of its own. Without a `dead_letter` section the first reject parks the partition, before
//! anything of it is settled.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use actix::prelude::*;
use arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, Int32Array, Int32Builder, RecordBatch, StringArray,
    TimestampMillisecondArray, new_null_array,
};
use arrow::compute::{cast, concat_batches, take};
use arrow::datatypes::{DataType, SchemaRef};

use super::message::{PrepareDeadLetter, Reject, Store};
use super::stage::Stage;
use crate::clock;
use crate::flow::{Barrier, Bulk, Digest, Element, Identity, Reason, Receipt, Share, StageError, StageName};
use crate::telemetry::metrics::PartitionMetrics;

/// One partition's.
pub(super) struct DeadLetterActor {
    pub stage: Stage,
    pub topology: Arc<str>,
    pub schema: SchemaRef,
    /// `None`: the topology has no dead letter.
    pub sink: Option<Recipient<Store>>,
    /// Rejected and not yet part of an epoch.
    pub waiting: BTreeMap<Identity, Vec<Waiting>>,
    pub metrics: PartitionMetrics,
}

/// One branch's reject of one message.
pub(super) struct Waiting {
    stage: StageName,
    receipt: Receipt,
    origin: u32,
    reason: Reason,
    detail: String,
}

impl Actor for DeadLetterActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.stage.stop_when_killed(self, ctx);
    }
}

impl Handler<Reject> for DeadLetterActor {
    type Result = ();

    fn handle(&mut self, reject: Reject, ctx: &mut Self::Context) {
        let Reject { stage, mut receipt, why } = reject;
        if self.sink.is_none() {
            let Some((origin, reason, detail)) = why.first() else { return };
            let id = text(receipt.messages(), "id", *origin as usize).unwrap_or_else(|| "(none)".into());
            let context = format!(
                "stage '{stage}' rejected message {id} ({}: {detail}), and the topology has no `dead_letter` to keep it: add one \
                 and start again; nothing is lost, the broker still has the message",
                reason.as_str()
            );
            return self.stage.fail(StageError::park(context), ctx);
        }
        for (origin, reason, detail) in why {
            let one = receipt.split(&[origin]);
            // A row that was named twice has one receipt.
            let identity = one.deliveries().next().map(|delivery| delivery.identity);
            if let Some(identity) = identity {
                let waiting = Waiting { stage: stage.clone(), receipt: one, origin, reason, detail };
                self.waiting.entry(identity).or_default().push(waiting);
            }
        }
    }
}

impl Handler<PrepareDeadLetter> for DeadLetterActor {
    type Result = ();

    fn handle(&mut self, PrepareDeadLetter { epoch, rejected }: PrepareDeadLetter, _: &mut Self::Context) {
        let Some(sink) = &self.sink else { return };
        let now = clock::wall_millis();
        let (mut rows, mut shares, mut extra) = (Vec::new(), Vec::new(), Vec::new());
        for identity in rejected.iter().collect::<BTreeSet<_>>() {
            // What is missing the sink's report will lack, and the coordinator will notice.
            let mut branches = self.waiting.remove(identity).unwrap_or_default().into_iter();
            let Some(first) = branches.next() else { continue };
            self.metrics.rejected.add(first.reason, 1);
            rows.push(self.row(&first, now));
            shares.push(Share { origin: vec![first.origin], receipt: first.receipt });
            extra.extend(branches.map(|other| Share { origin: Vec::new(), receipt: other.receipt }));
        }
        shares.append(&mut extra);
        let columns = concat_batches(&self.schema, &rows).expect("rows of one schema");
        let _ = sink.try_send(Store(Element::Rows(Bulk { columns, shares })));
        let sent = Digest::of(&rejected);
        let barrier = Barrier { epoch, sent, cursors: Vec::new(), rejected: Vec::new() };
        let _ = sink.try_send(Store(Element::Barrier(barrier)));
    }
}

impl DeadLetterActor {
    /// The dead letter's row for one rejected message: its own metadata and body as received, and why.
    fn row(&self, rejected: &Waiting, now: i64) -> RecordBatch {
        let messages = rejected.receipt.messages();
        let at = rejected.origin as usize;
        let partition = &self.stage.guard.partition;
        let string = |text: &str| Arc::new(StringArray::from(vec![text.to_owned()])) as ArrayRef;
        let columns = self.schema.fields().iter().map(|field| match field.name().as_str() {
            "topology" => string(&self.topology),
            "receiver" => string(partition.receiver.as_str()),
            "partition" => Arc::new(Int32Array::from(vec![i32::try_from(partition.index).unwrap_or(i32::MAX)])),
            "stage" => string(rejected.stage.as_str()),
            "reason" => string(rejected.reason.as_str()),
            "detail" => string(&rejected.detail),
            "rejected_at" => Arc::new(TimestampMillisecondArray::from(vec![now]).with_timezone("UTC")),
            "attempt" => attempt(messages, at),
            "value" => body(messages, at),
            name => original(messages, name, at, field.data_type()),
        });
        RecordBatch::try_new(self.schema.clone(), columns.collect()).expect("the dead letter's own columns")
    }
}

/// A message column as it was received, or null where the receiver has none or another type.
fn original(messages: &RecordBatch, name: &str, at: usize, wanted: &DataType) -> ArrayRef {
    let column = messages.column_by_name(name).map(|column| {
        let index = arrow::array::UInt32Array::from(vec![u32::try_from(at).expect("fewer than 2^32 rows")]);
        take(column, &index, None).and_then(|one| if one.data_type() == wanted { Ok(one) } else { cast(&one, wanted) })
    });
    column.and_then(Result::ok).unwrap_or_else(|| new_null_array(wanted, 1))
}

/// The body's bytes.
fn body(messages: &RecordBatch, at: usize) -> ArrayRef {
    let mut builder = BinaryBuilder::new();
    match messages.column_by_name("value") {
        Some(column) if column.is_valid(at) => match column.data_type() {
            DataType::Utf8 => builder.append_value(column.as_string::<i32>().value(at)),
            DataType::Binary => builder.append_value(column.as_binary::<i32>().value(at)),
            _ => builder.append_null(),
        },
        _ => builder.append_null(),
    }
    Arc::new(builder.finish())
}

/// Which delivery this was, counted from 1, where the broker counts.
fn attempt(messages: &RecordBatch, at: usize) -> ArrayRef {
    let mut builder = Int32Builder::new();
    let count = messages.column_by_name("delivery_count").and_then(|column| {
        let column = column.as_any().downcast_ref::<Int32Array>()?;
        column.is_valid(at).then(|| column.value(at))
    });
    builder.append_option(count.map(|count| count.saturating_add(1)));
    Arc::new(builder.finish())
}

fn text(messages: &RecordBatch, name: &str, at: usize) -> Option<String> {
    let column = messages.column_by_name(name)?.as_any().downcast_ref::<StringArray>()?.clone();
    column.is_valid(at).then(|| column.value(at).to_owned())
}
