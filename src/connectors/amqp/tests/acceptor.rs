//! Against fe2o3-amqp's acceptor.

use std::task::Poll;

use arrow::array::AsArray;
use fe2o3_amqp::acceptor::{
    ConnectionAcceptor, LinkAcceptor, LinkEndpoint, ListenerConnectionHandle, ListenerSessionHandle,
    SaslAnonymousMechanism, SaslPlainMechanism, SessionAcceptor,
};
use fe2o3_amqp::{Sendable, Sender};
use fe2o3_amqp_types::definitions::{AmqpError, ConnectionError, Error as PeerError};
use fe2o3_amqp_types::messaging::{AmqpSequence, AmqpValue, Body, Data, Message, Outcome as Settlement, Properties};
use serde_amqp::Value;
use serde_amqp::primitives::Binary;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::flow::{Closed, Link, Outcome, Reaction, Reason, Result, Settled};

/// The far end of one link.
struct Peer {
    connection: ListenerConnectionHandle,
    _session: ListenerSessionHandle,
    sender: Sender,
}

async fn accept(listener: &TcpListener) -> Peer {
    let (socket, _) = listener.accept().await.expect("a connection");
    let acceptor =
        ConnectionAcceptor::builder().container_id("peer").sasl_acceptor(SaslAnonymousMechanism::new()).build();
    let mut connection = acceptor.accept(socket).await.expect("opens");
    let mut session = SessionAcceptor::new().accept(&mut connection).await.expect("begins");
    let link = LinkAcceptor::new().accept(&mut session).await.expect("attaches");
    let LinkEndpoint::Sender(sender) = link else { panic!("we receive") };
    Peer { connection, _session: session, sender }
}

async fn linked(more: serde_json::Value) -> (Link, Peer) {
    let (listener, url) = listener().await;
    let mut consumer = consumer(&url, more, 0);
    let (link, peer) = tokio::join!(soon(consumer.connect()), soon(accept(&listener)));
    (link.expect("attached"), peer)
}

fn message(id: usize, body: impl Into<Body<Value>>) -> Message<Body<Value>> {
    Message::builder().properties(Properties::builder().message_id(format!("m-{id}")).build()).body(body.into()).build()
}

fn text(text: impl Into<String>) -> Body<Value> {
    Body::Value(AmqpValue(Value::String(text.into())))
}

/// Sends messages in the background, as fast as credit allows; resolves to what became of each.
fn sending(
    mut peer: Peer,
    messages: Vec<Message<Body<Value>>>,
) -> tokio::task::JoinHandle<(Peer, Vec<Option<Settlement>>)> {
    tokio::spawn(async move {
        let mut futures = Vec::new();
        for message in messages {
            let sendable = Sendable { message, message_format: 0, settled: None };
            futures.push(peer.sender.send_batchable(sendable).await.expect("sends"));
        }
        let mut outcomes = Vec::new();
        for future in futures {
            outcomes.push(future.await.ok());
        }
        (peer, outcomes)
    })
}

fn accepted(outcomes: &[Option<Settlement>]) -> usize {
    outcomes.iter().filter(|outcome| matches!(outcome, Some(Settlement::Accepted(_)))).count()
}

#[tokio::test]
async fn every_body_arrives_or_is_rejected_by_name() {
    let (Link { mut intake, mut settler }, peer) = linked(json!({})).await;
    let data = |parts: &[&str]| Body::Data(parts.iter().map(|p| Data(Binary::from(p.as_bytes()))).collect());
    let bodies = vec![
        text("value"),
        data(&["one"]),
        data(&["one,", "two"]),
        Body::Value(AmqpValue(Value::Null)),
        Body::Value(AmqpValue(Value::Binary(Binary::from("bytes".as_bytes())))),
        Body::Value(AmqpValue(Value::List(vec![Value::Int(1)]))),
        Body::Sequence(vec![AmqpSequence(vec![Value::Int(2)])].into()),
    ];
    let sent = sending(peer, bodies.into_iter().enumerate().map(|(n, body)| message(n, body)).collect());
    let (mut values, mut ids, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
    while ids.len() < 7 {
        let (raw, deliveries, rejects) = receive(&mut intake, room(100)).await;
        values.extend(raw.columns["value"].as_string::<i32>().iter().map(|v| v.map(str::to_owned)));
        reasons.extend(rejects.iter().map(|r| (ids.len() + r.row as usize, r.reason, r.detail.clone())));
        ids.extend(deliveries.iter().map(|d| d.id));
    }
    let expected = [Some("value"), Some("one"), Some("one,two"), None, Some("bytes"), Some("[1]"), Some("[2]")];
    assert_eq!(values.iter().map(Option::as_deref).collect::<Vec<_>>(), expected);
    assert_eq!(reasons.iter().map(|r| (r.0, r.1)).collect::<Vec<_>>(), [(5, Reason::BodyType), (6, Reason::BodyType)]);
    assert!(reasons[0].2.contains("list") && reasons[1].2.contains("amqp-sequence"), "{reasons:?}");
    assert_eq!(settler.settle(&ids[..5], Outcome::Accepted).await.expect("sent"), Settled::Sent);
    settler.settle(&ids[5..], Outcome::Rejected).await.expect("sent");
    let (_, outcomes) = soon(sent).await.expect("no panic");
    assert_eq!(accepted(&outcomes), 7, "the dead letter has the rejected ones: {outcomes:?}");
}

#[tokio::test]
async fn more_small_messages_than_any_window_holds() {
    const MANY: usize = 70_000;
    let (Link { mut intake, mut settler }, peer) = linked(json!({})).await;
    let sent = sending(peer, (0..MANY).map(|n| message(n, text("x"))).collect());
    // Nothing is settled until all are here: one unsettled delivery must not pin a window.
    let ids = receive_all(&mut intake, MANY).await;
    assert!(ids.iter().map(|id| id.0).eq(0..MANY as u64));
    settler.settle(&ids, Outcome::Accepted).await.expect("sent");
    let (_, outcomes) = soon(sent).await.expect("no panic");
    assert_eq!(accepted(&outcomes), MANY);
}

/// An old delivery that stays unsettled pins no window, in whichever order the others are settled.
#[tokio::test]
async fn one_old_delivery_holds_up_nothing() {
    const MANY: usize = 70_000;
    for reversed in [false, true] {
        let (Link { mut intake, mut settler }, peer) = linked(json!({})).await;
        let sent = sending(peer, (0..MANY).map(|n| message(n, text("x"))).collect());
        let old = receive_all(&mut intake, 1).await;
        let mut others: Vec<DeliveryId> = Vec::new();
        while others.len() < MANY - 1 {
            let left = MANY - 1 - others.len();
            let mut some = receive_all(&mut intake, left.min(3_000)).await;
            others.extend(&some);
            if reversed {
                some.reverse();
            }
            settler.settle(&some, Outcome::Accepted).await.expect("sent");
        }
        assert!(others.iter().map(|id| id.0).eq(1..MANY as u64));
        settler.settle(&old, Outcome::Released).await.expect("sent");
        let (_, outcomes) = soon(sent).await.expect("no panic");
        assert_eq!(accepted(&outcomes), MANY - 1);
        assert!(matches!(outcomes[0], Some(Settlement::Released(_))), "{:?}", outcomes[0]);
    }
}

/// Windows count frames: one message may need more of them than any window holds.
#[tokio::test]
async fn a_message_of_more_frames_than_a_window_holds() {
    let (Link { mut intake, mut settler }, peer) =
        linked(json!({ "format": "binary", "max_frame_size": "1KiB" })).await;
    let body = |byte: u8| Body::Data(vec![Data(Binary::from(vec![byte; 5 << 20]))].into());
    let sent = sending(peer, vec![message(0, body(1)), message(1, body(2)), message(2, text("small"))]);
    let (mut ids, mut sizes) = (Vec::new(), Vec::new());
    while ids.len() < 3 {
        let (raw, deliveries, _) = receive(&mut intake, room(10)).await;
        sizes.extend(raw.columns["value"].as_binary::<i32>().iter().flatten().map(<[u8]>::len));
        ids.extend(deliveries.iter().map(|d| d.id));
    }
    assert_eq!(sizes, [5 << 20, 5 << 20, 5]);
    settler.settle(&ids, Outcome::Accepted).await.expect("sent");
    assert_eq!(accepted(&soon(sent).await.expect("no panic").1), 3);
}

#[tokio::test]
async fn ten_megabytes_twice_in_a_row() {
    let (Link { mut intake, mut settler }, peer) =
        linked(json!({ "format": "binary", "max_frame_size": "64KiB" })).await;
    let body = |byte: u8| Body::Data(vec![Data(Binary::from(vec![byte; 10 << 20]))].into());
    let sent = sending(peer, vec![message(0, body(1)), message(1, body(2)), message(2, text("small"))]);
    let mut ids = Vec::new();
    while ids.len() < 3 {
        let (raw, deliveries, _) = receive(&mut intake, room(10)).await;
        for (n, value) in raw.columns["value"].as_binary::<i32>().iter().enumerate() {
            let value = value.expect("a body");
            if ids.len() + n < 2 {
                assert_eq!(value.len(), 10 << 20);
                assert!(deliveries[n].bytes >= 10 << 20);
            }
        }
        ids.extend(deliveries.iter().map(|d| d.id));
    }
    settler.settle(&ids, Outcome::Accepted).await.expect("sent");
    assert_eq!(accepted(&soon(sent).await.expect("no panic").1), 3);
}

#[tokio::test]
async fn a_receive_that_is_dropped_loses_nothing() {
    const MANY: usize = 2000;
    let (Link { mut intake, mut settler }, peer) = linked(json!({})).await;
    let sent = sending(peer, (0..MANY).map(|n| message(n, text(n.to_string()))).collect());
    let mut values = Vec::new();
    let mut dropped = 0;
    while values.len() < MANY {
        let mut polls = values.len() % 5;
        let received = {
            let mut receiving = intake.receive(room(MANY - values.len()));
            let some_polls = std::future::poll_fn(|cx| match receiving.as_mut().poll(cx) {
                Poll::Ready(received) => Poll::Ready(Some(received)),
                Poll::Pending if polls == 0 => Poll::Ready(None),
                Poll::Pending => {
                    polls -= 1;
                    Poll::Pending
                }
            });
            soon(some_polls).await
        };
        match received {
            Some(received) => {
                let Received::Batch { raw, deliveries, .. } = received.expect("a batch") else { panic!("no end") };
                values.extend(
                    raw.columns["value"]
                        .as_string::<i32>()
                        .iter()
                        .flatten()
                        .map(|v| v.parse::<usize>().expect("a number")),
                );
                let ids: Vec<DeliveryId> = deliveries.iter().map(|d| d.id).collect();
                settler.settle(&ids, Outcome::Accepted).await.expect("sent");
            }
            None => {
                dropped += 1;
                tokio::task::yield_now().await;
            }
        }
    }
    assert!(dropped > 0, "some receives were dropped while they waited");
    assert!(values.into_iter().eq(0..MANY), "each once, in order");
    assert_eq!(accepted(&soon(sent).await.expect("no panic").1), MANY);
}

#[tokio::test]
async fn an_orderly_end_gives_back_what_nobody_took() {
    let (Link { mut intake, mut settler }, peer) = linked(json!({})).await;
    let sent = sending(peer, (0..16).map(|n| message(n, text("x"))).collect());
    // Credit for sixteen, and five of them are taken.
    let mut taken = Vec::new();
    while taken.len() < 5 {
        let (_, deliveries, _) = receive(&mut intake, Room { deliveries: 16 - taken.len(), bytes: 1 << 30 }).await;
        taken.extend(deliveries);
        if taken.len() < 5 {
            continue;
        }
    }
    let ids: Vec<DeliveryId> = taken.iter().take(3).map(|d| d.id).collect();
    settler.settle(&ids, Outcome::Accepted).await.expect("sent");
    let released: Vec<DeliveryId> = taken[3..4].iter().map(|d| d.id).collect();
    settler.settle(&released, Outcome::Released).await.expect("sent");
    // The acceptor answers a detach when its sender's user closes it too.
    let ending = tokio::spawn(settler.close());
    let (peer, outcomes) = soon(sent).await.expect("no panic");
    let Peer { connection: _connection, _session, sender } = peer;
    let _ = sender.close().await;
    assert_eq!(soon(ending).await.expect("no panic"), Closed::Answered);
    assert_eq!(accepted(&outcomes), 3, "{outcomes:?}");
    let given_back = outcomes.iter().filter(|outcome| matches!(outcome, Some(Settlement::Released(_)))).count();
    assert_eq!(given_back, 1 + (16 - taken.len()), "released, or never taken: {outcomes:?}");
    let error = intake.receive(room(1)).await.err().expect("closed");
    assert!(error.to_string().contains("was closed"), "{error}");
}

async fn failure(
    listener: TcpListener,
    url: &str,
    more: serde_json::Value,
    acceptor: SaslPlainMechanism,
) -> crate::flow::StageError {
    let mut consumer = consumer(url, more, 0);
    let peer = async {
        let (socket, _) = listener.accept().await.expect("a connection");
        ConnectionAcceptor::builder().container_id("peer").sasl_acceptor(acceptor).build().accept(socket).await
    };
    let (link, _) = tokio::join!(soon(consumer.connect()), soon(peer));
    link.err().expect("not let in")
}

#[tokio::test]
async fn a_wrong_password_parks_and_is_not_told() {
    let (listener, url) = listener().await;
    let config = json!({ "user": "me", "password": "wr0ng" });
    let error = failure(listener, &url, config, SaslPlainMechanism::new("me", "right")).await;
    assert_eq!(error.reaction, Reaction::Park);
    assert!(error.to_string().contains(&format!("wrong user or password for {url} as 'me'")), "{error}");
    assert!(!error.to_string().contains("wr0ng"));
}

#[tokio::test]
async fn a_mechanism_that_is_not_offered_is_named_beside_those_that_are() {
    let (listener, url) = listener().await;
    let error = failure(listener, &url, json!({}), SaslPlainMechanism::new("me", "right")).await;
    assert_eq!(error.reaction, Reaction::Park);
    assert!(error.to_string().contains("ANONYMOUS, only PLAIN"), "{error}");
}

#[tokio::test]
async fn the_right_password_gets_in_with_reserved_characters_in_the_url() {
    let (listener, url) = listener().await;
    let url = url.replace("amqp://", "amqp://me:p%40%2F%3A@");
    let mut consumer = consumer(&url, json!({}), 0);
    let peer = async {
        let (socket, _) = listener.accept().await.expect("a connection");
        let sasl = SaslPlainMechanism::new("me", "p@/:");
        let mut connection = ConnectionAcceptor::builder()
            .container_id("peer")
            .sasl_acceptor(sasl)
            .build()
            .accept(socket)
            .await
            .expect("let in");
        let mut session = SessionAcceptor::new().accept(&mut connection).await.expect("begins");
        let link = LinkAcceptor::new().accept(&mut session).await.expect("attaches");
        (connection, session, link)
    };
    let (link, _peer) = tokio::join!(soon(consumer.connect()), soon(peer));
    link.expect("attached");
}

async fn end_of(link: &mut Link) -> crate::flow::StageError {
    soon(link.intake.receive(room(10))).await.err().expect("the link has ended")
}

#[tokio::test]
async fn the_peers_own_words_reach_the_user() {
    let (mut link, mut peer) = linked(json!({})).await;
    let error = PeerError::new(ConnectionError::ConnectionForced, "broker shuts down".to_owned(), None);
    let (_, error) = tokio::join!(peer.connection.close_with_error(error), end_of(&mut link));
    assert_eq!(error.reaction, Reaction::Away);
    assert!(error.to_string().contains("(amqp:connection:forced: broker shuts down)"), "{error}");
    assert!(!link.settler.attached());
    let late =
        link.settler.settle(&[DeliveryId(0)], Outcome::Accepted).await.expect_err("nothing can be settled any more");
    assert_eq!(late.to_string(), error.to_string());

    for (condition, reaction, words) in [
        (AmqpError::ResourceDeleted, Reaction::Away, "ended the link to queue 'q' (amqp:resource-deleted: gone)"),
        (AmqpError::NotFound, Reaction::Park, "has no queue 'q' (amqp:not-found: gone)"),
        (AmqpError::UnauthorizedAccess, Reaction::Park, "may read queue 'q'"),
    ] {
        let (mut link, peer) = linked(json!({})).await;
        let error = PeerError::new(condition, "gone".to_owned(), None);
        let (_, error) = tokio::join!(peer.sender.close_with_error(error), end_of(&mut link));
        assert_eq!(error.reaction, reaction, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[tokio::test]
async fn two_partitions_share_a_queue_on_connections_of_their_own() -> Result<()> {
    let (listener, url) = listener().await;
    let (mut one, mut two) = (consumer(&url, json!({}), 0), consumer(&url, json!({}), 1));
    let peers = async { (accept(&listener).await, accept(&listener).await) };
    let (first, second, (left, right)) = tokio::join!(soon(one.connect()), soon(two.connect()), soon(peers));
    let (mut first, mut second) = (first?, second?);
    assert_ne!(left.sender.name(), right.sender.name(), "link names are unique");
    let (left, right) = (sending(left, vec![message(1, text("a"))]), sending(right, vec![message(2, text("b"))]));
    // One is slow; the other goes on, and settles.
    for link in [&mut first, &mut second] {
        let ids = receive_all(&mut link.intake, 1).await;
        link.settler.settle(&ids, Outcome::Accepted).await?;
    }
    for sent in [left, right] {
        assert_eq!(accepted(&soon(sent).await.expect("no panic").1), 1);
    }
    Ok(())
}
