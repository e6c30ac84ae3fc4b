//! The protocol, against two peers that are not ours: fe2o3-amqp's acceptor, and bare frames where the acceptor cannot
//! do what brokers do. Sockets on the loopback interface, on free ports.

mod acceptor;
mod frames;
mod life;
mod planning;

use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::Amqp;
use crate::flow::registry::SourceKind;
use crate::flow::{Delivery, DeliveryId, Intake, PartitionId, Raw, Received, Rejected, Room, Source, SourceContext};

/// Longer than anything here takes; who waits longer has failed.
const SOON: Duration = Duration::from_secs(20);

/// Fails the test where it would hang.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(SOON, what).await.expect("in time")
}

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("amqp://{}", listener.local_addr().expect("bound"));
    (listener, url)
}

/// A consumer of queue `q` by this configuration, as its `index`-th partition.
fn consumer(url: &str, more: Json, index: u32) -> Box<dyn Source> {
    let mut config = json!({ "url": url, "queue": "q" });
    let fields = config.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    let factory = Amqp.plan(&config).unwrap_or_else(|problems| panic!("{problems:?}"));
    factory.source(SourceContext {
        topology: "t".into(),
        partition: PartitionId::new("in", index),
        embedded_broker: None,
    })
}

fn room(deliveries: usize) -> Room {
    Room { deliveries, bytes: 1 << 30 }
}

/// One batch.
async fn receive(intake: &mut Box<dyn Intake>, room: Room) -> (Raw, Vec<Delivery>, Vec<Rejected>) {
    match soon(intake.receive(room)).await.expect("a batch") {
        Received::Batch { raw, deliveries, rejects } => (raw, deliveries, rejects),
        Received::Exhausted | Received::End => panic!("a queue has no end"),
    }
}

/// `n` deliveries, while nothing is settled.
async fn receive_all(intake: &mut Box<dyn Intake>, n: usize) -> Vec<DeliveryId> {
    let mut ids = Vec::new();
    while ids.len() < n {
        let (_, deliveries, _) = receive(intake, room(n - ids.len())).await;
        ids.extend(deliveries.iter().map(|delivery| delivery.id));
    }
    ids
}
