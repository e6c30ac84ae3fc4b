//! Many messages, large messages, many connections.

use std::collections::HashSet;

use fe2o3_amqp::Session;
use fe2o3_amqp_types::messaging::{Data, Message};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::*;
use crate::broker::feed;
use crate::payload::{BodyFormat, Feed};
use crate::payload::{Named, Payload};

fn feed_of(count: u64) -> Feed {
    Feed {
        queue: "q".into(),
        payload: Payload::Named(Named::AnimalsCsv),
        format: BodyFormat::Text,
        count: Some(count),
        rate: None,
        log_every: None,
    }
}

async fn feed(broker: &Broker, count: u64) {
    let feed = feed_of(count);
    let body = |n: u64| n.to_string();
    let sent = feed::send(&feed, broker.address(), None, Uuid::new_v4(), body, CancellationToken::new()).await;
    assert_eq!(sent.expect("fed"), count);
}

#[tokio::test]
async fn one_big_credit_carries_more_than_65536_transfers_past_one_old_delivery() {
    within!({
        let broker = Broker::start_on_thread(BrokerConfig::default()).expect("starts");
        feed(&broker, 70_000).await;
        let mut client = Client::new(&broker).await;
        let mut receiver = client.receiver("q", 100_000).await;
        let first = take(&mut receiver, 1).await;
        let mut seen = 1;
        while seen < 70_000 {
            let some = take(&mut receiver, 1_000.min(70_000 - seen)).await;
            assert_eq!(number(&some[0]) as usize, seen);
            seen += some.len();
            receiver.accept_all(&some).await.expect("accepts");
        }
        until(&broker, "q", |stats| stats.accepted == 69_999).await;
        receiver.accept(&first[0]).await.expect("accepts");
        until(&broker, "q", |stats| stats.accepted == 70_000).await;
    });
}

#[tokio::test]
async fn large_messages_pass_both_ways_in_frames_that_fit() {
    within!({
        let config = BrokerConfig { max_frame_size: 64 * 1024, ..BrokerConfig::default() };
        let broker = Broker::start_on_thread(config).expect("starts");
        let stream = TcpStream::connect(broker.address()).await.expect("connects");
        let connection = Connection::builder().container_id("large").scheme("amqp").max_frame_size(4096);
        let mut connection = connection.open_with_stream(stream).await.expect("opens");
        let mut session = Session::begin(&mut connection).await.expect("begins");
        let mut sender = Sender::attach(&mut session, "s", "q").await.expect("attaches");
        let mut receiver = Receiver::attach(&mut session, "r", "q").await.expect("attaches");
        for fill in [b'a', b'b'] {
            let body = vec![fill; 10_000_000];
            sender.send(Message::builder().data(Data(body.clone().into())).build()).await.expect("sends");
            let delivery = receiver.recv::<Body<Value>>().await.expect("receives");
            let Body::Data(sections) = delivery.body() else { panic!("a data section") };
            let received: Vec<u8> = sections.iter().flat_map(|data| data.0.iter().copied()).collect();
            assert!(received == body, "the same ten million bytes");
            receiver.accept(&delivery).await.expect("accepts");
        }
        until(&broker, "q", |stats| stats.accepted == 2).await;
    });
}

#[tokio::test]
async fn many_connections_share_a_queue() {
    within!({
        let broker = broker();
        let mut consumers = Vec::new();
        for _ in 0..40 {
            let mut client = Client::new(&broker).await;
            let receiver = client.receiver("q", 5).await;
            consumers.push((client, receiver));
        }
        // One message each, because the one that waited longest is served first.
        fill(&broker, "q", 0..40).await;
        let mut seen = HashSet::new();
        for (_, receiver) in &mut consumers {
            seen.extend(numbers(&take(receiver, 1).await));
        }
        assert_eq!(seen.len(), 40);
    });
}

/// Not a benchmark: it shows that nothing is lost or doubled, and prints how long it took.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "some seconds; run it by name"]
async fn two_hundred_thousand_messages_drain_over_four_consumers() {
    let broker = Broker::start_on_thread(BrokerConfig::default()).expect("starts");
    let started = crate::clock::now();
    let message = "x".repeat(190);
    let body = |n: u64| format!("{n:010}{message}");
    let feed = feed_of(200_000);
    feed::send(&feed, broker.address(), None, Uuid::new_v4(), body, CancellationToken::new()).await.expect("fed");
    println!("fed in {:?}", started.elapsed());
    let started = crate::clock::now();
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let address = broker.address();
            tokio::spawn(async move {
                let stream = TcpStream::connect(address).await.expect("connects");
                let mut connection = Connection::builder()
                    .container_id("drain")
                    .scheme("amqp")
                    .open_with_stream(stream)
                    .await
                    .expect("opens");
                let mut session = Session::begin(&mut connection).await.expect("begins");
                let mut receiver = Receiver::builder()
                    .name("r")
                    .source("q")
                    .credit_mode(CreditMode::Manual)
                    .attach(&mut session)
                    .await
                    .expect("attaches");
                receiver.set_credit(50_000).await.expect("credit");
                let (mut seen, mut batch, mut last) = (Vec::new(), Vec::new(), crate::clock::now());
                while let Ok(delivery) =
                    tokio::time::timeout(std::time::Duration::from_secs(2), receiver.recv::<Body<Value>>()).await
                {
                    let delivery = delivery.expect("receives");
                    let Body::Value(AmqpValue(Value::String(text))) = delivery.body() else { panic!("text") };
                    seen.push(text[..10].parse::<u64>().expect("a number"));
                    batch.push(delivery);
                    last = crate::clock::now();
                    if batch.len() == 1_000 {
                        receiver.accept_all(&batch).await.expect("accepts");
                        batch.clear();
                        receiver.set_credit(50_000).await.expect("credit");
                    }
                }
                receiver.accept_all(&batch).await.expect("accepts");
                receiver.close().await.expect("detaches");
                session.end().await.expect("ends");
                connection.close().await.expect("closes");
                (seen, last)
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        let (seen, last) = task.await.expect("consumer");
        println!("{} messages in {:?}", seen.len(), last - started);
        assert!(seen.is_sorted());
        all.extend(seen);
    }
    all.sort_unstable();
    assert_eq!(all, (0..200_000).collect::<Vec<_>>());
    let stats = broker.queue("q");
    assert_eq!((stats.ready, stats.unsettled, stats.accepted, stats.redelivered), (0, 0, 200_000, 0));
}
