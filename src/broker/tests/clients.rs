//! Outcomes, credit, order and refusals, as a client sees them.

use fe2o3_amqp::connection::OpenError;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::{Receiver, Sender, Session};
use fe2o3_amqp_types::messaging::{Modified, Outcome};

use super::*;
use crate::flow::Secret;

#[tokio::test]
async fn no_message_waits_on_a_link_without_credit() {
    within!({
        let broker = broker();
        fill(&broker, "q", 0..10).await;
        let mut client = Client::new(&broker).await;
        let mut without = client.receiver("q", 0).await;
        let mut three = client.receiver("q", 3).await;
        assert_eq!(numbers(&take(&mut three, 3).await), [0, 1, 2]);
        let stats = broker.queue("q");
        assert_eq!((stats.ready, stats.unsettled, stats.consumers), (7, 3, 2));
        without.set_credit(9).await.expect("credit");
        assert_eq!(numbers(&take(&mut without, 7).await), [3, 4, 5, 6, 7, 8, 9]);
        // Two of nine are left, and serve what comes later.
        fill(&broker, "q", 10..13).await;
        assert_eq!(numbers(&take(&mut without, 2).await), [10, 11]);
        let stats = broker.queue("q");
        assert_eq!((stats.ready, stats.unsettled), (1, 12));
    });
}

#[tokio::test]
async fn each_outcome_does_what_it_says() {
    within!({
        let broker = broker();
        fill(&broker, "q", 0..5).await;
        let mut client = Client::new(&broker).await;
        let mut receiver = client.receiver("q", 5).await;
        let first = take(&mut receiver, 5).await;
        assert!(first.iter().all(|delivery| attempt(delivery) == (0, true)));
        receiver.accept(&first[0]).await.expect("accepts");
        receiver.reject(&first[1], None).await.expect("rejects");
        receiver.release(&first[2]).await.expect("releases");
        let failed = Modified { delivery_failed: Some(true), undeliverable_here: None, message_annotations: None };
        receiver.modify(&first[3], failed.clone()).await.expect("modifies");
        let elsewhere = Modified { undeliverable_here: Some(true), ..failed };
        receiver.modify(&first[4], elsewhere).await.expect("modifies");

        receiver.set_credit(9).await.expect("credit");
        let again = take(&mut receiver, 2).await;
        assert_eq!(numbers(&again), [2, 3]);
        assert_eq!(again.iter().map(attempt).collect::<Vec<_>>(), [(0, false), (1, false)]);
        let mut other = client.receiver("q", 1).await;
        let last = take(&mut other, 1).await;
        assert_eq!((numbers(&last), attempt(&last[0])), (vec![4], (1, false)));

        let stats = broker.queue("q");
        assert_eq!((stats.ready, stats.unsettled, stats.accepted, stats.rejected), (0, 3, 1, 1));
        assert_eq!((stats.received, stats.redelivered), (5, 3));
        assert_eq!(broker.rejected("q").len(), 1);
    });
}

#[tokio::test]
async fn what_a_link_a_session_or_a_connection_held_comes_back_in_order() {
    within!({
        let broker = broker();
        fill(&broker, "q", 0..30).await;
        let mut survivor = Client::new(&broker).await;
        let mut dying = Client::new(&broker).await;

        let mut link = dying.receiver("q", 4).await;
        take(&mut link, 4).await;
        link.close().await.expect("detaches");
        let back = broker.queue("q");
        assert_eq!((back.ready, back.unsettled), (30, 0), "before the detach was answered");

        let mut link = dying.receiver("q", 4).await;
        take(&mut link, 4).await;
        dying.session.end().await.expect("ends");
        assert_eq!(broker.queue("q").unsettled, 0, "before the end was answered");
        dying.session = Session::begin(&mut dying.connection).await.expect("begins");

        let mut link = dying.receiver("q", 10).await;
        let held = take(&mut link, 10).await;
        link.accept_all(held.iter().filter(|delivery| number(delivery) % 2 == 1)).await.expect("accepts");
        let mut other = survivor.receiver("q", 5).await;
        assert_eq!(numbers(&take(&mut other, 5).await), [10, 11, 12, 13, 14]);
        drop(link);
        dying.close().await;
        let stats = broker.queue("q");
        assert_eq!((stats.accepted, stats.unsettled, stats.ready), (5, 5, 20));

        other.set_credit(20).await.expect("credit");
        let rest = take(&mut other, 20).await;
        let expected: Vec<_> = (0..10).step_by(2).chain(15..30).collect();
        assert_eq!(numbers(&rest), expected);
        assert_eq!(attempt(&rest[0]), (0, false));
        assert_eq!(attempt(&rest[19]), (0, true));
    });
}

#[tokio::test]
async fn cut_sockets_lose_nothing() {
    within!({
        let broker = broker();
        fill(&broker, "q", 0..20).await;
        let mut client = Client::new(&broker).await;
        let mut receiver = client.receiver("q", 20).await;
        let held = take(&mut receiver, 20).await;
        receiver.accept_all(&held[..5]).await.expect("accepts");
        until(&broker, "q", |stats| stats.accepted == 5).await;
        broker.kill_connections();
        until(&broker, "q", |stats| stats.ready == 15).await;
        assert!(receiver.recv::<Body<Value>>().await.is_err());
        let mut client = Client::new(&broker).await;
        let mut receiver = client.receiver("q", 20).await;
        assert_eq!(numbers(&take(&mut receiver, 15).await), (5..20).collect::<Vec<_>>());
    });
}

#[tokio::test]
async fn an_unknown_queue_is_refused_by_name() {
    within!({
        let config = BrokerConfig { auto_create: false, queues: vec!["known".into()], ..BrokerConfig::default() };
        let broker = Broker::start(config).expect("starts");
        // A session each: this client mixes up a refused link with the next one of its session.
        let mut client = Client::new(&broker).await;
        let error = Receiver::attach(&mut client.session, "r", "unknown").await.expect_err("refused");
        assert!(format!("{error:?}").contains("NotFound"), "{error:?}");
        client.session = Session::begin(&mut client.connection).await.expect("begins");
        let error = Sender::attach(&mut client.session, "s", "unknown").await.expect_err("refused");
        assert!(format!("{error:?}").contains("NotFound"), "{error:?}");
        client.session = Session::begin(&mut client.connection).await.expect("begins");
        fill(&broker, "known", 0..1).await;
        let mut receiver = client.receiver("known", 1).await;
        assert_eq!(take(&mut receiver, 1).await.len(), 1);
        assert_eq!(broker.stats().keys().collect::<Vec<_>>(), ["known"]);
    });
}

#[tokio::test]
async fn a_user_needs_the_password() {
    within!({
        let config = BrokerConfig {
            user: Some("ann".into()),
            password: Some(Secret::new("s:3/ret")),
            ..BrokerConfig::default()
        };
        let broker = Broker::start(config).expect("starts");
        let plain = |password: &str| SaslProfile::Plain { username: "ann".to_owned(), password: password.to_owned() };
        let mut connection = open(&broker, Some(plain("s:3/ret"))).await.expect("opens");
        connection.close().await.expect("closes");
        let error = open(&broker, Some(plain("wrong"))).await.expect_err("refused");
        assert!(matches!(&error, OpenError::SaslError { code, .. } if format!("{code:?}") == "Auth"), "{error:?}");
        assert!(open(&broker, Some(SaslProfile::Anonymous)).await.is_err());
        assert!(open(&broker, None).await.is_err(), "without SASL");
    });
}

#[tokio::test]
async fn without_a_user_everybody_may_connect() {
    within!({
        let broker = broker();
        for profile in [None, Some(SaslProfile::Anonymous), Some(("any", "thing").into())] {
            let mut connection = open(&broker, profile).await.expect("opens");
            connection.close().await.expect("closes");
        }
    });
}

#[tokio::test]
async fn settled_deliveries_are_done_when_they_are_sent() {
    within!({
        let broker = broker();
        let mut client = Client::new(&broker).await;
        let mut sender = Sender::builder()
            .name("s")
            .target("q")
            .sender_settle_mode(fe2o3_amqp_types::definitions::SenderSettleMode::Settled)
            .attach(&mut client.session)
            .await
            .expect("attaches");
        for number in 0..3 {
            sender.send(number.to_string()).await.expect("sends");
        }
        let mut receiver = Receiver::builder()
            .name("r")
            .source("q")
            .sender_settle_mode(fe2o3_amqp_types::definitions::SenderSettleMode::Settled)
            .attach(&mut client.session)
            .await
            .expect("attaches");
        assert_eq!(numbers(&take(&mut receiver, 3).await), [0, 1, 2]);
        let stats = broker.queue("q");
        assert_eq!((stats.accepted, stats.unsettled), (3, 0));
    });
}

#[tokio::test]
async fn stopping_closes_connections_with_a_reason() {
    within!({
        let broker = Broker::start_on_thread(BrokerConfig::default()).expect("starts");
        fill(&broker, "q", 0..1).await;
        let mut client = Client::new(&broker).await;
        broker.stop().await;
        let error = client.connection.on_close().await.expect_err("closed by the broker");
        assert!(format!("{error:?}").contains("ConnectionForced"), "{error:?}");
    });
}

/// Neither a feed that waits for room, nor one that waits for its next message, nor one whose answers are still to come.
#[tokio::test]
async fn a_feed_under_way_does_not_hold_up_the_end() {
    within!({
        let feeds = [
            serde_json::json!({ "queue": "q", "payload": { "template": "{random:1000}" } }),
            serde_json::json!({ "queue": "q", "rate": 0.01 }),
            serde_json::json!({ "queue": "q", "count": 100_000 }),
        ];
        for feed in feeds {
            let feed = serde_json::from_value(feed).expect("a feed");
            let max_memory = crate::units::Size(1_000_000);
            let config = BrokerConfig { feed: vec![feed], max_memory, ..BrokerConfig::default() };
            let broker = Broker::start(config).expect("starts");
            let mut before = until(&broker, "q", |stats| stats.ready > 0).await.ready;
            // Until it stands still, in one of these ways.
            loop {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                let now = broker.queue("q").ready;
                if now == before {
                    break;
                }
                before = now;
            }
            tokio::time::timeout(std::time::Duration::from_secs(3), broker.stop()).await.expect("ends soon");
        }
    });
}

#[tokio::test]
async fn a_full_memory_holds_producers_until_consumers_make_room() {
    within!({
        let config = BrokerConfig { max_memory: crate::units::Size(100_000), ..BrokerConfig::default() };
        let broker = Broker::start(config).expect("starts");
        let mut producer = Client::new(&broker).await;
        let mut sender = producer.sender("q").await;
        let sending = tokio::spawn(async move {
            for _ in 0..200 {
                let outcome = sender.send("x".repeat(5_000)).await.expect("sends");
                assert!(matches!(outcome, Outcome::Accepted(_)));
            }
            drop(producer);
        });
        let held = until(&broker, "q", |stats| stats.ready >= 19).await;
        assert!(held.ready < 200, "{held:?}");
        let mut client = Client::new(&broker).await;
        let mut receiver = client.receiver("q", 200).await;
        for _ in 0..200 {
            let delivery = take(&mut receiver, 1).await;
            receiver.accept(&delivery[0]).await.expect("accepts");
        }
        sending.await.expect("all sent");
    });
}

#[test]
fn the_configuration_reads_as_a_topology_writes_it() {
    let config: BrokerConfig = serde_json::from_value(serde_json::json!({
        "listen": "127.0.0.1:0",
        "feed": [{ "queue": "animals", "payload": "animals_csv", "format": "text", "count": 100_000 }],
        "idle_timeout": "30s",
        "max_memory": "64MiB",
    }))
    .expect("reads");
    assert_eq!(
        (config.feed[0].queue.as_str(), config.feed[0].count, config.auto_create),
        ("animals", Some(100_000), true)
    );
    let unknown = serde_json::from_value::<BrokerConfig>(serde_json::json!({ "lisen": "127.0.0.1:0" }));
    assert!(unknown.expect_err("refused").to_string().contains("lisen"));
}

#[tokio::test]
async fn a_broker_feeds_itself_and_serves_until_it_is_told_to_stop() {
    within!({
        let feed =
            serde_json::json!([{ "queue": "animals", "payload": "animals_csv", "count": 50, "rate": 100_000.0 }]);
        let config =
            || BrokerConfig { feed: serde_json::from_value(feed.clone()).expect("a feed"), ..Default::default() };
        let broker = Broker::start(config()).expect("starts");
        until(&broker, "animals", |stats| stats.ready == 50).await;
        let mut client = Client::new(&broker).await;
        let mut receiver = client.receiver("animals", 50).await;
        let deliveries = take(&mut receiver, 50).await;
        let ids: std::collections::HashSet<_> = deliveries
            .iter()
            .map(|delivery| {
                let message = delivery.message();
                assert!(message.header.as_ref().is_some_and(|header| header.durable));
                let properties = message.properties.as_ref().expect("properties");
                assert!(properties.creation_time.is_some());
                format!("{:?}", properties.message_id)
            })
            .collect();
        assert_eq!(ids.len(), 50);

        let shutdown = tokio_util::sync::CancellationToken::new();
        let serving = tokio::spawn(crate::broker::serve(config(), shutdown.clone()));
        shutdown.cancel();
        serving.await.expect("no panic").expect("ends well");
    });
}
