//! Coming and going: no socket and no task is left behind, and a broker that is away is merely away.

use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::frames::Bare;
use super::*;
use crate::flow::Reaction;

#[tokio::test]
async fn dropping_both_halves_closes_the_socket_at_once() {
    let (listener, url) = listener().await;
    let mut consumer = consumer(&url, json!({}), 0);
    let peer = async { Bare::accept(&listener, ("broker", "1")).await.attached().await };
    let (link, peer) = tokio::join!(soon(consumer.connect()), soon(peer));
    let link = link.expect("attached");
    drop(link.intake);
    assert!(link.settler.attached(), "one half is enough to live");
    drop(link.settler);
    soon(peer.hung_up()).await;
}

#[tokio::test]
async fn a_hundred_reconnects_never_hold_two_connections() {
    let (listener, url) = listener().await;
    let mut consumer = consumer(&url, json!({}), 0);
    let mut before: Option<Bare> = None;
    let mut links = Vec::new();
    for _ in 0..100 {
        let peer = async {
            let peer = Bare::accept(&listener, ("broker", "1")).await;
            // The socket before is closed by the time the new one speaks.
            if let Some(before) = before.take() {
                before.hung_up().await;
            }
            peer.attached().await
        };
        let (link, peer) = tokio::join!(soon(consumer.connect()), soon(peer));
        // Whoever still holds the old link gets no second connection by it.
        links.push(link.expect("attached"));
        before = Some(peer);
        if links.len() > 2 {
            links.remove(0);
        }
    }
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks() / 10, 0, "tasks do not pile up");
}

#[tokio::test]
async fn a_probe_asks_for_nothing_and_parts_in_good_order() {
    let (listener, url) = listener().await;
    let mut consumer = consumer(&url, json!({}), 0);
    let peer = async { Bare::accept(&listener, ("broker", "1")).await.attached().await.part(true).await };
    let (found, credit) = tokio::join!(soon(consumer.probe()), soon(peer));
    assert_eq!(found.expect("attached"), format!("{url}, without a user: attached to queue 'q', nothing taken"));
    assert_eq!(credit, 0);
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_away() {
    let (listener, url) = listener().await;
    drop(listener);
    let error = soon(consumer(&url, json!({}), 0).probe()).await.expect_err("refused");
    assert!(error.to_string().contains(&format!("cannot reach {url}")), "{error}");
    let error = soon(consumer(&url, json!({}), 0).connect()).await.err().expect("refused");
    assert_eq!(error.reaction, Reaction::Away);
    assert!(error.to_string().contains(&format!("cannot reach {url}")), "{error}");
}

#[tokio::test]
async fn a_peer_that_says_nothing_runs_into_the_time_limit() {
    let (_listener, url) = listener().await;
    let error = soon(consumer(&url, json!({ "connect_timeout": "50ms" }), 0).connect()).await.err().expect("no answer");
    assert_eq!(error.reaction, Reaction::Away);
    assert!(error.to_string().contains("within 50ms while opening the connection"), "{error}");
}

#[tokio::test]
async fn a_port_that_speaks_something_else_parks() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("amqp://{}", listener.local_addr().expect("bound"));
    let peer = async {
        let (mut socket, _) = listener.accept().await.expect("a connection");
        socket.read_exact(&mut [0; 8]).await.expect("a header");
        tokio::io::AsyncWriteExt::write_all(&mut socket, b"AMQP\x00\x00\x09\x01").await.expect("writes");
        let _ = socket.read_to_end(&mut Vec::new()).await;
    };
    let mut consumer = consumer(&url, json!({}), 0);
    let (link, ()) = tokio::join!(soon(consumer.connect()), soon(peer));
    let error = link.err().expect("not understood");
    assert_eq!(error.reaction, Reaction::Park);
    assert!(error.to_string().contains("rabbitmq_amqp1_0"), "{error}");
}
