//! The generator by the contract of a receiver.

use std::collections::BTreeSet;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::{Int32Type, TimestampMillisecondType};
use futures::FutureExt;
use serde_json::json;

use super::*;
use crate::flow::PartitionId;

fn factory(config: serde_json::Value) -> Arc<dyn SourceFactory> {
    GeneratorReceiver.plan(&config).unwrap_or_else(|problems| panic!("{problems:?}"))
}

async fn link(factory: &Arc<dyn SourceFactory>, partition: u32) -> Link {
    let context = SourceContext {
        topology: "test".into(),
        partition: PartitionId::new("animals", partition),
        embedded_broker: None,
    };
    factory.source(context).connect().await.expect("a link")
}

fn room(deliveries: usize) -> Room {
    Room { deliveries, bytes: usize::MAX }
}

async fn some(link: &mut Link, deliveries: usize) -> (RecordBatch, Vec<Delivery>) {
    loop {
        match link.intake.receive(room(deliveries)).await.expect("no error") {
            Received::Batch { raw, deliveries, .. } => return (raw.columns, deliveries),
            Received::Exhausted => {}
            Received::End => panic!("ended early"),
        }
    }
}

fn handles(deliveries: &[Delivery]) -> Vec<DeliveryId> {
    deliveries.iter().map(|delivery| delivery.id).collect()
}

#[tokio::test]
async fn partitions_share_one_sequence_and_end_together() {
    let factory = factory(json!({ "payload": "animals_csv", "count": 10 }));
    let (mut a, mut b) = (link(&factory, 0).await, link(&factory, 1).await);
    let (batch, first) = some(&mut a, 4).await;
    assert_eq!(batch.schema(), factory.columns());
    let (_, rest) = some(&mut b, 100).await;
    assert_eq!((first.len(), rest.len()), (4, 6));
    let ids: BTreeSet<_> = first.iter().chain(&rest).map(|delivery| delivery.identity.id).collect();
    assert_eq!(ids.len(), 10);

    assert_eq!(b.settler.settle(&handles(&rest), Outcome::Accepted).await.expect("settled"), Settled::Received);
    assert!(matches!(b.intake.receive(room(1)).await, Ok(Received::Exhausted)), "said as soon as it is so");
    assert!(b.intake.receive(room(1)).now_or_never().is_none(), "the others may come back");
    let waiting = tokio::spawn(async move { b.intake.receive(room(1)).await });
    tokio::task::yield_now().await;
    a.settler.settle(&handles(&first), Outcome::Rejected).await.expect("settled");
    assert!(matches!(waiting.await.expect("no panic"), Ok(Received::End)));
    assert!(matches!(a.intake.receive(room(1)).await, Ok(Received::End)));
}

#[tokio::test]
async fn a_link_that_ends_gives_back_the_same_messages() {
    let factory = factory(json!({ "payload": "animals_csv", "count": 3, "format": "binary" }));
    let (mut a, mut b) = (link(&factory, 0).await, link(&factory, 1).await);
    let (before, first) = some(&mut a, 3).await;
    a.settler.settle(&handles(&first[..1]), Outcome::Accepted).await.expect("settled");
    let waiting = tokio::spawn(async move {
        let got = some(&mut b, 10).await;
        (got, b)
    });
    tokio::task::yield_now().await;
    drop(a.intake);
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished(), "the settler may still settle them");
    drop(a.settler);
    let ((after, again), mut b) = waiting.await.expect("no panic");
    assert_eq!(again, first[1..], "same handles, same identities");
    for column in ["id", "sent", "value", "properties"] {
        assert_eq!(after[column].to_data(), before[column].slice(1, 2).to_data(), "{column}");
    }
    assert_eq!(before["delivery_count"].as_primitive::<Int32Type>().values(), &[0, 0, 0]);
    assert_eq!(after["delivery_count"].as_primitive::<Int32Type>().values(), &[1, 1]);
    assert!(!before["redelivered"].as_boolean().value(1) && after["redelivered"].as_boolean().value(0));

    b.settler.settle(&handles(&again[..1]), Outcome::Released).await.expect("settled");
    let (_, third) = some(&mut b, 10).await;
    assert_eq!(third, again[..1]);
    assert_eq!(b.settler.close().await, Closed::Answered);
    assert!(b.intake.receive(room(1)).await.is_err(), "nothing comes over a closed link");
    let mut c = link(&factory, 1).await;
    assert_eq!(some(&mut c, 10).await.1.len(), 2);
}

#[tokio::test]
async fn the_byte_budget_cuts_a_batch_but_never_to_nothing() {
    let factory = factory(json!({ "payload": "animals_csv", "count": 5 }));
    let mut link = link(&factory, 0).await;
    let Ok(Received::Batch { deliveries, .. }) = link.intake.receive(Room { deliveries: 5, bytes: 1 }).await else {
        panic!("a batch")
    };
    assert_eq!(deliveries.len(), 1);
    let bytes = deliveries[0].bytes as usize * 5 / 2;
    let Ok(Received::Batch { deliveries, .. }) = link.intake.receive(Room { deliveries: 5, bytes }).await else {
        panic!("a batch")
    };
    assert_eq!(deliveries.len(), 2);
    assert_eq!(some(&mut link, 5).await.1.len(), 2, "the rest was not lost");
}

#[tokio::test(start_paused = true)]
async fn a_rate_holds_over_all_partitions() {
    let factory = factory(json!({ "payload": "animals_csv", "rate": 100 }));
    let mut links = [link(&factory, 0).await, link(&factory, 1).await];
    let start = clock::now();
    let mut received = 0;
    while received < 501 {
        let [a, b] = &mut links;
        let (_, deliveries) = tokio::select! {
            some = some(a, 7) => some,
            some = some(b, 7) => some,
        };
        received += deliveries.len();
    }
    let took = start.elapsed();
    assert_eq!(received, 501);
    assert!((Duration::from_secs(5)..Duration::from_millis(5_010)).contains(&took), "{took:?}");
}

#[tokio::test]
async fn a_new_plan_is_a_new_run_and_times_are_now() {
    let config = json!({ "payload": "animals_csv" });
    let (mut one, mut two) = (link(&factory(config.clone()), 0).await, link(&factory(config), 0).await);
    let before = clock::wall_millis();
    let ((a, from_one), (_, from_two)) = (some(&mut one, 1).await, some(&mut two, 1).await);
    assert_ne!(from_one[0].identity, from_two[0].identity);
    let sent = a["sent"].as_primitive::<TimestampMillisecondType>().value(0);
    assert!((before..=clock::wall_millis()).contains(&sent));
    assert!(a["id"].as_string::<i32>().value(0).ends_with("-0"));
}

/// A topology that was tried out on made-up messages must run on a queue as it is.
#[test]
fn columns_are_those_of_a_queue() {
    for format in ["text", "binary"] {
        let queue = json!({ "url": "amqp://localhost", "queue": "animals", "format": format });
        let queue = crate::connectors::amqp::Amqp.plan(&queue).unwrap_or_else(|problems| panic!("{problems:?}"));
        assert_eq!(factory(json!({ "format": format })).columns(), queue.columns());
    }
}

#[tokio::test]
async fn a_template_may_be_sent() {
    let factory = factory(json!({ "payload": { "template": "{\"n\":{n}}" }, "count": 2 }));
    let (batch, _) = some(&mut link(&factory, 0).await, 5).await;
    let bodies: Vec<_> = batch["value"].as_string::<i32>().iter().flatten().collect();
    assert_eq!(bodies, ["{\"n\":0}", "{\"n\":1}"]);
}

#[test]
fn problems_are_placed() {
    let problems = |config| GeneratorReceiver.plan(&config).err().expect("problems");
    let found = problems(json!({ "payload": "animals_csv", "rate": 0, "count": 0 }));
    assert_eq!(found.iter().map(|problem| problem.path.join(".")).collect::<Vec<_>>(), ["rate", "count"]);
    assert_eq!(problems(json!({ "payload": "minerals_csv" })).len(), 1);
}
