//! The order of a good end: not ready, nothing more received, flushed, settled, closed.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use arrow::array::{RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema as Columns, SchemaRef};
use async_trait::async_trait;
use distributary::connectors::memory::{Message, Space};
use distributary::embed::{self, End};
use distributary::flow::registry::{ConfigError, Guarantee, Kind, Planned, SinkKind, SourceKind};
use distributary::flow::{
    Closed, Delivery, DeliveryId, Identity, Intake, Link, Outcome, PartitionId, Received, Rejected, Result, Room, Rows,
    Settled, Settler, SinkContext, SinkFactory, SinkInstance, Source, SourceContext, SourceFactory, StageError, Write,
};
use schemars::Schema;
use serde_json::Value;
use tokio::sync::Notify;

use crate::process::until;

/// A sink whose flush begins, and ends when the test says so.
#[derive(Clone, Default)]
struct Gate {
    rows: Arc<Mutex<usize>>,
    flushes: Arc<Mutex<usize>>,
    open: Arc<Notify>,
}

impl Kind for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn about(&self) -> &'static str {
        "waits before it is done"
    }

    fn example(&self) -> &'static str {
        "{ from: queue, type: gate, delivery: at_least_once }"
    }

    fn schema(&self) -> Schema {
        schemars::json_schema!({ "type": "object" })
    }
}

impl SinkKind for Gate {
    fn guarantee(&self) -> Guarantee {
        Guarantee::AtLeastOnce
    }

    fn check(&self, _: &Value, _: &SchemaRef) -> Vec<ConfigError> {
        Vec::new()
    }

    fn build(&self, _: &Value, _: SinkContext) -> std::result::Result<Arc<dyn SinkFactory>, StageError> {
        Ok(Arc::new(self.clone()))
    }
}

impl SinkFactory for Gate {
    fn sink(&self, _: &PartitionId) -> SinkInstance {
        SinkInstance::AtLeastOnce(Box::new(self.clone()))
    }
}

#[async_trait]
impl Write for Gate {
    async fn open(&mut self) -> Result<()> {
        Ok(())
    }

    async fn write(&mut self, rows: &Rows) -> Result<Vec<Rejected>> {
        *self.rows.lock().expect("rows") += rows.len();
        Ok(Vec::new())
    }

    async fn flush(&mut self) -> Result<()> {
        if *self.rows.lock().expect("rows") > 0 {
            *self.flushes.lock().expect("flushes") += 1;
            self.open.notified().await;
        }
        Ok(())
    }
}

#[test]
fn a_drain_is_not_ready_first_then_flushes_then_settles_then_closes() {
    let (gate, queue) = (Gate::default(), Space::process().queue("draining"));
    let put = |n: u32| {
        queue.put(Message { id: Some(format!("m-{n}")), value: b"x".to_vec(), ..Message::default() });
    };
    (0..3).for_each(put);
    let yaml = "topology: draining
receivers:
  queue: { type: memory, queue: draining }
batchers:
  slow: { from: queue, max_age: 1h }
sinks:
  out: { from: slow, type: gate, delivery: at_least_once }
checkpoint: { interval: 1h, store: memory }
";
    let run = embed::start(yaml, &embed::standard().with_sink(gate.clone())).expect("started");
    let soon = Duration::from_secs(60);
    until(soon, "all in hand", || (queue.unsettled() == 3).then_some(()));
    until(soon, "ready", || run.reasons().is_empty().then_some(()));
    assert_eq!(*gate.rows.lock().expect("rows"), 0, "an hour has not passed");

    run.drain();
    until(soon, "the flush", || (*gate.flushes.lock().expect("flushes") == 1).then_some(()));
    assert_eq!(*gate.rows.lock().expect("rows"), 3, "what was received is written, whatever the batcher waits for");
    assert_eq!(run.reasons(), ["draining"]);
    assert!(run.telemetry().render(run.reasons().is_empty()).contains("distributary_ready{topology=\"draining\"} 0"));
    put(3);
    assert_eq!((queue.settled(), queue.unsettled(), queue.waiting()), (0, 3, 1), "nothing settled, nothing received");
    assert_eq!(queue.links().len(), 1, "a link is needed to settle");

    gate.open.notify_one();
    assert_eq!(run.wait(), End::Drained);
    assert_eq!((queue.settled(), queue.unsettled(), queue.waiting(), queue.links().len()), (3, 0, 1, 0));
}

/// A source with one message, which is there when the flag is up and somebody looks.
#[derive(Clone, Default)]
struct Late {
    flag: Arc<AtomicBool>,
    looks: Arc<AtomicUsize>,
    settled: Arc<AtomicUsize>,
}

impl Kind for Late {
    fn name(&self) -> &'static str {
        "late"
    }

    fn about(&self) -> &'static str {
        "has a message at the last moment"
    }

    fn example(&self) -> &'static str {
        "{ type: late }"
    }

    fn schema(&self) -> Schema {
        schemars::json_schema!({ "type": "object" })
    }
}

impl SourceKind for Late {
    fn plan(&self, _: &Value) -> Planned<dyn SourceFactory> {
        Ok(Arc::new(self.clone()))
    }
}

impl SourceFactory for Late {
    fn columns(&self) -> SchemaRef {
        Arc::new(Columns::new(vec![Field::new("id", DataType::Utf8, true), Field::new("value", DataType::Utf8, true)]))
    }

    fn source(&self, _: SourceContext) -> Box<dyn Source> {
        Box::new(self.clone())
    }
}

#[async_trait]
impl Source for Late {
    async fn connect(&mut self) -> Result<Link> {
        Ok(Link { intake: Box::new(self.clone()), settler: Box::new(self.clone()) })
    }
}

#[async_trait]
impl Intake for Late {
    async fn receive(&mut self, _: Room) -> Result<Received> {
        // Wakes nobody: it is seen only by whoever looks for another reason.
        poll_fn(|_| {
            self.looks.fetch_add(1, Ordering::SeqCst);
            if self.flag.swap(false, Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let text = || Arc::new(StringArray::from(vec!["late"]));
        let columns = RecordBatch::try_new(self.columns(), vec![text(), text()]).expect("a batch");
        let identity = Identity::of(b"late", b"late");
        let deliveries = vec![Delivery { id: DeliveryId(0), identity, bytes: 4, anonymous: false }];
        Ok(Received::Batch { raw: Rows::one_per_delivery(columns), deliveries, rejects: Vec::new() })
    }
}

#[async_trait]
impl Settler for Late {
    async fn settle(&mut self, deliveries: &[DeliveryId], _: Outcome) -> Result<Settled> {
        self.settled.fetch_add(deliveries.len(), Ordering::SeqCst);
        Ok(Settled::Received)
    }

    fn attached(&self) -> bool {
        true
    }

    async fn close(self: Box<Self>) -> Closed {
        Closed::Answered
    }
}

#[test]
fn what_arrives_in_the_moment_of_the_drain_is_committed_at_once() {
    let late = Late::default();
    let yaml = "topology: late
receivers:
  queue: { type: late }
batchers:
  slow: { from: queue, max_age: 1h }
sinks:
  out: { from: slow, type: memory, table: late }
checkpoint: { interval: 1h, store: memory }
";
    let run = embed::start(yaml, &embed::standard().with_source(late.clone())).expect("started");
    until(Duration::from_secs(60), "a look", || (late.looks.load(Ordering::SeqCst) > 0).then_some(()));
    late.flag.store(true, Ordering::SeqCst);
    run.drain();
    assert_eq!(run.wait(), End::Drained);
    assert_eq!(late.settled.load(Ordering::SeqCst), 1);
    assert_eq!(Space::process().table("late").rows().iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
}
