//! The queue and the table by the contracts of a receiver and a sink.

use std::sync::Arc;

use arrow::array::{AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Int32Type, SchemaRef};
use futures::FutureExt;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::flow::registry::{SinkKind, SourceKind};
use crate::flow::{
    Committed, Delivery, DeliveryId, Epoch, Link, Outcome, PartitionId, Reaction, Received, Room, Rows, Sink,
    SinkContext, SinkInstance, SourceContext, SourceFactory, StoreId,
};

fn message(id: &str) -> Message {
    Message { id: Some(id.into()), value: format!("body of {id}").into_bytes(), ..Message::default() }
}

fn factory(space: &Space, config: serde_json::Value) -> Arc<dyn SourceFactory> {
    MemoryReceiver::new(space.clone()).plan(&config).unwrap_or_else(|problems| panic!("{problems:?}"))
}

async fn link(factory: &Arc<dyn SourceFactory>) -> Link {
    let partition = PartitionId::new("animals", 0);
    let context = SourceContext { topology: "test".into(), partition, embedded_broker: None };
    factory.source(context).connect().await.expect("a link")
}

async fn some(link: &mut Link, deliveries: usize) -> (RecordBatch, Vec<Delivery>) {
    loop {
        match link.intake.receive(Room { deliveries, bytes: usize::MAX }).await.expect("no error") {
            Received::Batch { raw, deliveries, .. } => return (raw.columns, deliveries),
            Received::Exhausted => {}
            Received::End => panic!("ended early"),
        }
    }
}

fn handles(deliveries: &[Delivery]) -> Vec<DeliveryId> {
    deliveries.iter().map(|delivery| delivery.id).collect()
}

fn ids(batch: &RecordBatch) -> Vec<&str> {
    batch["id"].as_string::<i32>().iter().map(Option::unwrap_or_default).collect()
}

#[tokio::test]
async fn a_message_is_out_once_and_comes_back_when_its_link_dies() {
    let space = Space::default();
    let queue = space.queue("q");
    ["a", "b", "c"].into_iter().for_each(|id| queue.put(message(id)));
    let factory = factory(&space, json!({ "queue": "q" }));
    let (mut first, mut second) = (link(&factory).await, link(&factory).await);
    let (batch, taken) = some(&mut first, 2).await;
    assert_eq!((batch.schema(), ids(&batch)), (factory.columns(), vec!["a", "b"]));
    let (batch, _) = some(&mut second, 9).await;
    assert_eq!(ids(&batch), ["c"]);
    assert!(second.intake.receive(Room { deliveries: 1, bytes: 1 }).now_or_never().is_none(), "nothing is left");

    first.settler.settle(&handles(&taken[..1]), Outcome::Accepted).await.expect("settled");
    first.settler.settle(&handles(&taken), Outcome::Released).await.expect("settled");
    let (batch, again) = some(&mut second, 9).await;
    assert_eq!((ids(&batch), batch["delivery_count"].as_primitive::<Int32Type>().value(0)), (vec!["b"], 1));
    assert_eq!(again[0].identity, taken[1].identity, "the same message");

    drop(second);
    let (batch, _) = some(&mut first, 9).await;
    assert_eq!(ids(&batch), ["c", "b"], "in the order in which they were out");
    assert_eq!((queue.waiting(), queue.unsettled(), queue.settled()), (0, 2, 1));
}

#[tokio::test]
async fn rows_of_the_topology_end_when_all_are_settled() {
    let rows = json!({ "rows": ["x", { "id": "i", "value": "y", "properties": { "k": "v" } }, { "value": "z" }] });
    let factory = factory(&Space::default(), rows);
    let (mut a, mut b) = (link(&factory).await, link(&factory).await);
    let (batch, all) = some(&mut a, 9).await;
    assert_eq!(ids(&batch), ["0", "i", ""]);
    assert_eq!(all.iter().map(|delivery| delivery.anonymous).collect::<Vec<_>>(), [false, false, true]);
    let one = || Room { deliveries: 1, bytes: 1 };
    assert!(matches!(b.intake.receive(one()).await, Ok(Received::Exhausted)), "said as soon as it is so");
    assert!(b.intake.receive(one()).now_or_never().is_none(), "it may come back");
    let waiting = tokio::spawn(async move { b.intake.receive(Room { deliveries: 1, bytes: 1 }).await });
    tokio::task::yield_now().await;
    a.settler.settle(&handles(&all), Outcome::Accepted).await.expect("settled");
    assert!(matches!(waiting.await.expect("no panic"), Ok(Received::End)));
}

#[tokio::test]
async fn a_link_that_dies_at_the_queue_hears_nothing() {
    let space = Space::default();
    let queue = space.queue("q");
    queue.put(message("a"));
    let factory = factory(&space, json!({ "queue": "q" }));
    let mut dead = link(&factory).await;
    let number = queue.links()[0];
    let (_, taken) = some(&mut dead, 1).await;
    queue.cut(number);
    assert_eq!((queue.waiting(), queue.links()), (1, Vec::new()));
    dead.settler.settle(&handles(&taken), Outcome::Accepted).await.expect("sent");
    assert!(dead.intake.receive(Room { deliveries: 1, bytes: 1 }).now_or_never().is_none());
    assert_eq!((queue.waiting(), queue.settled()), (1, 0));
}

#[test]
fn the_byte_budget_holds_back_what_does_not_fit() {
    let queue = Queue::default();
    ["a", "b"].into_iter().for_each(|id| queue.put(message(id)));
    let attachment = queue.attach();
    assert_eq!(attachment.take(9, |message| message.id.as_deref() == Some("a")).len(), 1);
    assert_eq!(queue.waiting(), 1);
}

fn schema() -> SchemaRef {
    rows(&[]).columns.schema()
}

fn rows(all: &[(&str, i64)]) -> Rows {
    let ids = StringArray::from_iter_values(all.iter().map(|(id, _)| *id));
    let values = Int64Array::from_iter_values(all.iter().map(|(_, value)| *value));
    let columns = RecordBatch::try_from_iter([("id", Arc::new(ids) as _), ("value", Arc::new(values) as _)]);
    Rows::one_per_delivery(columns.expect("a batch"))
}

fn sink(kind: &MemorySink, config: serde_json::Value, store: u128) -> Box<dyn Sink> {
    assert_eq!(kind.check(&config, &schema()), []);
    let store = StoreId(Uuid::from_u128(store));
    let context = SinkContext { topology: "test".into(), sink: "out".into(), store, schema: schema() };
    match kind.build(&config, context).expect("built").sink(&PartitionId::new("animals", 0)) {
        SinkInstance::ExactlyOnce(sink) => sink,
        SinkInstance::AtLeastOnce(_) => panic!("a memory sink promises more"),
    }
}

fn count(space: &Space) -> usize {
    space.table("t").rows().iter().map(RecordBatch::num_rows).sum()
}

#[tokio::test]
async fn a_commit_is_conditional_and_outlives_its_writer() {
    let space = Space::default();
    let (kind, config) = (MemorySink::new(space.clone()), json!({ "table": "t" }));
    let mut first = sink(&kind, config.clone(), 1);
    assert_eq!(first.open(true).await.expect("open").committed, Committed::At(Epoch(0)));
    assert_eq!(first.prepare(Epoch(1)).await.expect("nothing"), None);
    first.write(&rows(&[("a", 1), ("b", 2)])).await.expect("written");
    let prepared = first.prepare(Epoch(2)).await.expect("durable").expect("two rows");
    assert_eq!((prepared.rows, count(&space)), (2, 0), "and invisible");
    drop(first);

    let mut second = sink(&kind, config.clone(), 1);
    let wrong = second.commit(Epoch(2), Epoch(1), &prepared, 1).await.expect_err("the table is at 0");
    assert_eq!(wrong.reaction, Reaction::Park);
    for _ in 0..2 {
        second.commit(Epoch(2), Epoch(0), &prepared, 1).await.expect("committed");
    }
    assert_eq!((count(&space), space.table("t").versions().len()), (2, 1));
    let mut third = sink(&kind, config, 1);
    assert_eq!(third.open(true).await.expect("open").committed, Committed::At(Epoch(2)));
}

#[tokio::test]
async fn another_log_is_found_and_its_late_commits_are_fenced() {
    let space = Space::default();
    let (kind, config) = (MemorySink::new(space.clone()), json!({ "table": "t" }));
    let mut old = sink(&kind, config.clone(), 1);
    assert!(!old.open(false).await.expect("open").foreign);
    assert_eq!(space.table("t").versions()[0].txn.1, Epoch(0), "a fence");
    assert!(!old.open(false).await.expect("open").foreign);
    assert_eq!(space.table("t").versions().len(), 1, "one is enough");
    let late = space.table("t").look();
    let mut new = sink(&kind, config.clone(), 2);
    assert!(new.open(false).await.expect("open").foreign);
    let mut other_topology = sink(&kind, json!({ "table": "u" }), 2);
    assert!(!other_topology.open(false).await.expect("open").foreign);

    space.table("t").put_if_absent(1, Version { txn: ("x".into(), Epoch(1)), staged: None, rows: Vec::new() });
    let version = Version { txn: ("y".into(), Epoch(1)), staged: None, rows: Vec::new() };
    assert!(!space.table("t").put_if_absent(late.version, version), "it had looked before");
}

#[tokio::test]
async fn a_merge_adds_what_is_not_there_whoever_put_it() {
    let space = Space::default();
    let kind = MemorySink::new(space.clone());
    let config = json!({ "table": "t", "mode": "merge", "keys": ["id"] });
    let (mut a, mut b) = (sink(&kind, config.clone(), 1), sink(&kind, config, 2));
    assert!(!a.open(false).await.expect("open").foreign && !b.open(false).await.expect("open").foreign);
    a.write(&rows(&[("x", 1), ("y", 2), ("x", 3)])).await.expect("written");
    let of_a = a.prepare(Epoch(1)).await.expect("durable").expect("rows");
    b.write(&rows(&[("y", 2), ("z", 4)])).await.expect("written");
    let of_b = b.prepare(Epoch(1)).await.expect("durable").expect("rows");
    a.commit(Epoch(1), Epoch(0), &of_a, 1).await.expect("committed");
    b.commit(Epoch(1), Epoch(0), &of_b, 1).await.expect("committed");
    assert_eq!(count(&space), 3);
    b.write(&rows(&[("x", 9)])).await.expect("written");
    let nothing_new = b.prepare(Epoch(2)).await.expect("durable").expect("rows");
    b.commit(Epoch(2), Epoch(1), &nothing_new, 1).await.expect("committed");
    assert_eq!((count(&space), b.open(true).await.expect("open").committed), (3, Committed::At(Epoch(2))));
}

#[test]
fn problems_are_placed() {
    let sink = MemorySink::new(Space::default());
    for (config, path) in [
        (json!({ "table": "t", "keys": ["id"] }), "keys"),
        (json!({ "table": "t", "mode": "merge" }), "keys"),
        (json!({ "table": "t", "mode": "merge", "keys": ["id", "nix"] }), "keys.1"),
        (json!({}), ""),
    ] {
        let problems = sink.check(&config, &schema());
        assert_eq!(problems.iter().map(|p| p.path.join(".")).collect::<Vec<_>>(), [path], "{problems:?}");
    }
    assert!(MemoryReceiver::new(Space::default()).plan(&json!({})).is_err());
}
