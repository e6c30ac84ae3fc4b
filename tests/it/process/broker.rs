//! `runtime broker` and SIGTERM: it ends within about a second, whoever is connected and whatever they do.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use fe2o3_amqp_types::definitions::{Handle, Role};
use fe2o3_amqp_types::messaging::{Body, Source, Target, TargetArchetype};
use fe2o3_amqp_types::performatives::{Attach, Begin, Close, Flow, Open};
use serde::Serialize;
use serde_amqp::Value;
use tokio::runtime::Runtime;

use super::run::{Lab, Process, now, until};

/// A second for the peers to answer, and time for a busy machine.
const SOON: Duration = Duration::from_secs(3);

/// Ten megabytes in a queue: more than a socket takes that nobody reads.
const FEED: &str = "{ queue: q, payload: { template: \"{random:1000}\" }, count: 10000 }";

fn start(lab: &Lab, feeds: &[&str]) -> (Process, SocketAddr) {
    let mut words = vec!["broker", "--listen", "127.0.0.1:0"];
    words.extend(feeds.iter().flat_map(|feed| ["--feed", feed]));
    let process = lab.start(&words);
    let line = process.said("the embedded broker listens");
    let (_, address) = line.split_once("address=").expect("an address");
    let address = address.split_whitespace().next().expect("an address").parse().expect("an address");
    (process, address)
}

fn fed(lab: &Lab) -> (Process, SocketAddr) {
    let (process, address) = start(lab, &[FEED]);
    process.said("the feed has ended");
    (process, address)
}

#[track_caller]
fn ends_soon(process: Process) {
    process.signal("TERM");
    let told = now();
    let ended = process.wait(Duration::from_secs(20));
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert!(told.elapsed() < SOON, "it took {:?}\n{}", told.elapsed(), ended.text);
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

#[test]
fn a_user_needs_a_password_and_a_feed_its_fields() {
    let lab = Lab::new();
    let ended = lab.run(&["broker", "--listen", "127.0.0.1:0", "--user", "someone"]);
    assert_eq!(ended.code, Some(2), "{}", ended.text);
    assert!(ended.text.contains("RUNTIME_BROKER_PASSWORD"), "{}", ended.text);
    let ended = lab.run(&["broker", "--feed", "{ queue: q, payloadd: animals_csv }"]);
    assert_eq!(ended.code, Some(2), "{}", ended.text);
    assert_eq!(ended.text.matches("payloadd`").count(), 1, "said once: {}", ended.text);
}

#[test]
fn it_ends_with_nobody_connected() {
    let lab = Lab::new();
    ends_soon(start(&lab, &[]).0);
}

#[test]
fn it_ends_while_clients_are_idle() {
    let lab = Lab::new();
    let (process, address) = fed(&lab);
    let runtime = runtime();
    // One that has said nothing yet, one with a connection and nothing else, and one with a link.
    let _silent = TcpStream::connect(address).expect("a socket");
    let url = format!("amqp://{address}");
    let _clients = runtime.block_on(async {
        let bare = Connection::open("bare", url.as_str()).await.expect("a connection");
        let mut connection = Connection::open("linked", url.as_str()).await.expect("a connection");
        let mut session = Session::begin(&mut connection).await.expect("a session");
        let builder = Receiver::builder().name("r").source("q").credit_mode(CreditMode::Manual);
        let receiver = builder.attach(&mut session).await.expect("a link");
        (bare, connection, session, receiver)
    });
    ends_soon(process);
}

#[test]
fn it_ends_while_messages_are_unsettled_and_credit_is_left() {
    let lab = Lab::new();
    let (process, address) = fed(&lab);
    let runtime = runtime();
    let _client = runtime.block_on(async {
        let url = format!("amqp://{address}");
        let mut connection = Connection::open("c", url.as_str()).await.expect("a connection");
        let mut session = Session::begin(&mut connection).await.expect("a session");
        let builder = Receiver::builder().name("r").source("q").credit_mode(CreditMode::Manual);
        let mut receiver = builder.attach(&mut session).await.expect("a link");
        receiver.set_credit(20_000).await.expect("credit");
        let mut held = Vec::new();
        while held.len() < 500 {
            held.push(receiver.recv::<Body<Value>>().await.expect("a message"));
        }
        (connection, session, receiver, held)
    });
    ends_soon(process);
}

#[test]
fn it_ends_while_producers_send_and_a_feed_is_under_way() {
    let lab = Lab::new();
    let endless =
        ["{ queue: a, payload: animals_csv, log_every: 10ms }", "{ queue: b, payload: animals_csv, rate: 3 }"];
    // With answers to come, however far it is.
    for times in [0, 1, 5, 40] {
        let (process, _) = start(&lab, &endless);
        let told = || process.text().matches("feeding").count();
        until(Duration::from_secs(60), "the feed", || (told() >= times).then_some(()));
        ends_soon(process);
    }
    let (process, address) = start(&lab, &endless);
    let runtime = runtime();
    let (told, started) = std::sync::mpsc::channel();
    let sending = runtime.spawn(async move {
        let url = format!("amqp://{address}");
        let mut connection = Connection::open("c", url.as_str()).await.expect("a connection");
        let mut session = Session::begin(&mut connection).await.expect("a session");
        let mut sender = Sender::attach(&mut session, "s", "q").await.expect("a link");
        // To the broker's end.
        while sender.send("x".repeat(500)).await.is_ok() {
            let _ = told.send(());
        }
    });
    started.recv_timeout(Duration::from_secs(60)).expect("it takes messages");
    ends_soon(process);
    sending.abort();
}

/// Takes frames apart from any library: what a broken client may do.
struct Bare(TcpStream);

impl Bare {
    /// As far as an attached receiver with much credit, without reading a single byte.
    fn unreading(address: SocketAddr) -> Self {
        let mut bare = Self(TcpStream::connect(address).expect("a socket"));
        bare.0.write_all(b"AMQP\x00\x01\x00\x00").expect("written");
        bare.say(&Open {
            container_id: "unreading".into(),
            hostname: None,
            max_frame_size: 65_536.into(),
            channel_max: 1.into(),
            idle_time_out: None,
            outgoing_locales: None,
            incoming_locales: None,
            offered_capabilities: None,
            desired_capabilities: None,
            properties: None,
        });
        bare.say(&Begin {
            remote_channel: None,
            next_outgoing_id: 0,
            incoming_window: 1_000_000,
            outgoing_window: 1_000,
            handle_max: Handle(10),
            offered_capabilities: None,
            desired_capabilities: None,
            properties: None,
        });
        bare.say(&Attach {
            name: "r".into(),
            handle: Handle(0),
            role: Role::Receiver,
            snd_settle_mode: Default::default(),
            rcv_settle_mode: Default::default(),
            source: Some(Box::new(Source::from("q"))),
            target: Some(Box::new(TargetArchetype::Target(Target::from("q")))),
            unsettled: None,
            incomplete_unsettled: false,
            initial_delivery_count: None,
            max_message_size: None,
            offered_capabilities: None,
            desired_capabilities: None,
            properties: None,
        });
        bare.say(&Flow {
            next_incoming_id: Some(0),
            incoming_window: 1_000_000,
            next_outgoing_id: 0,
            outgoing_window: 1_000,
            handle: Some(Handle(0)),
            delivery_count: Some(0),
            link_credit: Some(1_000_000),
            available: None,
            drain: false,
            echo: false,
            properties: None,
        });
        bare
    }

    fn say(&mut self, performative: &impl Serialize) {
        let body = serde_amqp::to_vec(performative).expect("encodes");
        let mut frame = u32::try_from(8 + body.len()).expect("small").to_be_bytes().to_vec();
        frame.extend([2, 0, 0, 0]);
        frame.extend(body);
        self.0.write_all(&frame).expect("written");
    }
}

/// Waits until what the broker has sent to this socket no longer grows: it is full.
fn is_full(socket: &TcpStream) {
    let mut buffer = vec![0; 16 << 20];
    let (mut last, mut same) = (0, 0);
    until(Duration::from_secs(60), "a full socket", || {
        let waiting = socket.peek(&mut buffer).expect("a socket");
        same = if waiting == last && waiting > 100_000 { same + 1 } else { 0 };
        last = waiting;
        (same > 200).then_some(())
    });
}

#[test]
fn it_ends_while_a_client_does_not_read() {
    let lab = Lab::new();
    let (process, address) = fed(&lab);
    let bare = Bare::unreading(address);
    is_full(&bare.0);
    ends_soon(process);
}

#[test]
fn it_ends_while_a_client_that_has_closed_goes_on_talking() {
    let lab = Lab::new();
    let (process, address) = fed(&lab);
    let mut bare = Bare::unreading(address);
    is_full(&bare.0);
    bare.say(&Close { error: None });
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let mut socket = bare.0.try_clone().expect("a socket");
    let talking = std::thread::spawn(move || {
        // A heartbeat now and then, to the end of the socket or the test.
        while stopped
            .recv_timeout(Duration::from_millis(50))
            .is_err_and(|e| e == std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            if socket.write_all(&[0, 0, 0, 8, 2, 0, 0, 0]).is_err() {
                break;
            }
        }
    });
    ends_soon(process);
    drop(stop);
    talking.join().expect("no panic");
}
