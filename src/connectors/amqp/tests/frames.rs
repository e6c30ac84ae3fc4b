//! Against bare frames: what the acceptor does not let a peer do or see.

use std::ops::RangeInclusive;

use arrow::array::AsArray;
use fe2o3_amqp_types::definitions::{
    AmqpError, Error as PeerError, Fields, Handle, ReceiverSettleMode, Role, SenderSettleMode,
};
use fe2o3_amqp_types::messaging::{AmqpValue, DeliveryState, Header, Properties, TargetArchetype};
use fe2o3_amqp_types::performatives::{Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Transfer};
use fe2o3_amqp_types::sasl::{SaslCode, SaslMechanisms, SaslOutcome};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_amqp::Value;
use serde_amqp::primitives::Symbol;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::flow::{Closed, Link, Outcome, Reaction, StageError};

const BEGIN: u8 = 0x11;
const ATTACH: u8 = 0x12;
const FLOW: u8 = 0x13;
const DISPOSITION: u8 = 0x15;
const DETACH: u8 = 0x16;
const END: u8 = 0x17;
const CLOSE: u8 = 0x18;

/// A peer that speaks frames.
pub(super) struct Bare {
    socket: TcpStream,
    pub open: Option<Open>,
    pub attach: Option<Attach>,
    sent: u32,
}

impl Bare {
    /// Takes a connection as far as the receiver's attach, which is left unanswered.
    pub async fn accept(listener: &TcpListener, product: (&str, &str)) -> Self {
        let (socket, _) = listener.accept().await.expect("a connection");
        let mut bare = Self { socket, open: None, attach: None, sent: 0 };
        assert_eq!(bare.header().await, *b"AMQP\x03\x01\x00\x00");
        bare.socket.write_all(b"AMQP\x03\x01\x00\x00").await.expect("writes");
        bare.frame(1, &SaslMechanisms::default(), &[]).await;
        bare.body().await;
        bare.frame(1, &SaslOutcome { code: SaslCode::Ok, additional_data: None }, &[]).await;
        assert_eq!(bare.header().await, *b"AMQP\x00\x01\x00\x00");
        bare.socket.write_all(b"AMQP\x00\x01\x00\x00").await.expect("writes");
        let mut open: Open = serde_amqp::from_slice(&bare.body().await).expect("an open");
        bare.open = Some(open.clone());
        let mut properties = Fields::new();
        properties.insert(Symbol::from("product"), Value::String(product.0.into()));
        properties.insert(Symbol::from("version"), Value::String(product.1.into()));
        open.properties = Some(properties);
        open.idle_time_out = None;
        bare.say(&open).await;
        let mut begin: Begin = bare.hear(BEGIN).await;
        begin.remote_channel = Some(0);
        bare.say(&begin).await;
        bare.attach = Some(bare.hear(ATTACH).await);
        bare
    }

    /// Answers the attach.
    pub async fn attached(mut self) -> Self {
        let mut attach = self.attach.clone().expect("attached");
        attach.role = Role::Sender;
        attach.initial_delivery_count = Some(0);
        self.say(&attach).await;
        self
    }

    async fn header(&mut self) -> [u8; 8] {
        let mut header = [0; 8];
        self.socket.read_exact(&mut header).await.expect("a header");
        header
    }

    async fn body(&mut self) -> Vec<u8> {
        let head = self.header().await;
        let len = u32::from_be_bytes(head[..4].try_into().expect("four")) as usize;
        let mut body = vec![0; len - 8];
        self.socket.read_exact(&mut body).await.expect("a frame");
        body
    }

    async fn frame(&mut self, kind: u8, performative: &impl Serialize, payload: &[u8]) {
        let body = serde_amqp::to_vec(performative).expect("encodes");
        let mut frame = u32::try_from(8 + body.len() + payload.len()).expect("small").to_be_bytes().to_vec();
        frame.extend([2, kind, 0, 0]);
        frame.extend(body);
        frame.extend(payload);
        self.socket.write_all(&frame).await.expect("writes");
    }

    pub async fn say(&mut self, performative: &impl Serialize) {
        self.frame(0, performative, &[]).await;
    }

    /// The next frame of this kind; frames of other kinds are passed over.
    pub async fn hear<T: DeserializeOwned>(&mut self, code: u8) -> T {
        soon(async {
            loop {
                let body = self.body().await;
                if body.get(2) == Some(&code) {
                    return serde_amqp::from_slice(&body).expect("decodes");
                }
            }
        })
        .await
    }

    /// Sends one message with this payload.
    pub async fn send(&mut self, payload: &[u8]) {
        let transfer = Transfer {
            handle: Handle(0),
            delivery_id: Some(self.sent),
            delivery_tag: Some(self.sent.to_be_bytes().to_vec().into()),
            message_format: Some(0),
            settled: Some(false),
            more: false,
            rcv_settle_mode: None,
            state: None,
            resume: false,
            aborted: false,
            batchable: false,
        };
        self.sent += 1;
        self.frame(0, &transfer, payload).await;
    }

    /// Waits until the other side has closed the socket.
    pub async fn hung_up(mut self) {
        // A reset is an end as well.
        let _ = self.socket.read_to_end(&mut Vec::new()).await;
    }

    /// Answers detach, end and close, as a broker does; one that never says that a link is `closed` as well. The most
    /// credit that was given before.
    pub async fn part(mut self, closed: bool) -> u32 {
        let mut most = 0;
        loop {
            let body = self.body().await;
            match body.get(2) {
                Some(&FLOW) => {
                    let flow: Flow = serde_amqp::from_slice(&body).expect("decodes");
                    most = most.max(flow.link_credit.unwrap_or(0));
                }
                Some(&DETACH) => break,
                _ => {}
            }
        }
        self.say(&Detach { handle: Handle(0), closed, error: None }).await;
        self.hear::<End>(END).await;
        self.say(&End { error: None }).await;
        self.hear::<Close>(CLOSE).await;
        self.say(&Close { error: None }).await;
        most
    }
}

fn text(id: u32) -> Vec<u8> {
    let mut payload =
        serde_amqp::to_vec(&Properties::builder().message_id(format!("m-{id}")).build()).expect("encodes");
    payload.extend(serde_amqp::to_vec(&AmqpValue(Value::String("x".into()))).expect("encodes"));
    payload
}

async fn linked(more: serde_json::Value, product: (&str, &str)) -> (Link, Bare) {
    let (listener, url) = listener().await;
    let mut consumer = consumer(&url, more, 0);
    let peer = async { Bare::accept(&listener, product).await.attached().await };
    let (link, peer) = tokio::join!(soon(consumer.connect()), soon(peer));
    (link.expect("attached"), peer)
}

async fn refused(answer: impl AsyncFnOnce(Bare)) -> StageError {
    let (listener, url) = listener().await;
    let mut consumer = consumer(&url, json!({}), 0);
    let peer = async { answer(Bare::accept(&listener, ("broker", "1")).await).await };
    let (link, ()) = tokio::join!(soon(consumer.connect()), soon(peer));
    link.err().expect("refused")
}

#[tokio::test]
async fn the_attach_says_what_the_configuration_says() {
    let more = json!({ "capabilities": ["queue"], "selector": "colour = 'red'", "queue": "späße/a%2Fb", "idle_timeout": "8s", "container_id": "me" });
    let (listener, url) = listener().await;
    let mut consumer = consumer(&url, more, 3);
    let peer = async { Bare::accept(&listener, ("broker", "1")).await.attached().await };
    let (link, mut peer) = tokio::join!(soon(consumer.connect()), soon(peer));
    let _link = link.expect("attached");
    let open = peer.open.take().expect("opened");
    assert_eq!((open.container_id.as_str(), open.idle_time_out), ("me-3", Some(4000)), "half the timeout is told");
    let attach = peer.attach.take().expect("attached");
    assert_eq!(
        (attach.snd_settle_mode, attach.rcv_settle_mode),
        (SenderSettleMode::Unsettled, ReceiverSettleMode::First)
    );
    assert!(attach.target.is_some_and(|target| matches!(*target, TargetArchetype::Target(_))));
    let source = *attach.source.expect("a source");
    assert_eq!(source.address.as_deref(), Some("späße/a%2Fb"), "verbatim");
    assert_eq!(source.capabilities.expect("one").0, [Symbol::from("queue")]);
    let filter = source.filter.expect("a filter");
    let Some(Value::Described(selector)) = filter.get(&Symbol::from("apache.org:selector-filter:string")) else {
        panic!("a described value: {filter:?}")
    };
    assert_eq!(selector.value, Value::String("colour = 'red'".into()));
}

#[tokio::test]
async fn credit_is_the_room_and_never_more() {
    let (Link { mut intake, settler: _settler }, mut peer) = linked(json!({}), ("broker", "1")).await;
    let (mut unsettled, mut flows) = (0, 0);
    while unsettled < 10 {
        let room = room(10 - unsettled);
        let receiving = receive(&mut intake, room);
        let sending = async {
            if flows == 0 {
                let flow: Flow = peer.hear(FLOW).await;
                flows += 1;
                let limit = flow.delivery_count.expect("known") + flow.link_credit.expect("given");
                assert!(limit <= 10, "ten may be unsettled, and {limit} could be");
                // All of it is used at once.
                while peer.sent < limit {
                    let n = peer.sent;
                    peer.send(&text(n)).await;
                }
            }
        };
        let ((_, deliveries, _), ()) = tokio::join!(receiving, sending);
        assert!(deliveries.len() <= room.deliveries);
        unsettled += deliveries.len();
    }
    assert_eq!((unsettled, peer.sent), (10, 10));
}

#[tokio::test]
async fn settlements_go_out_in_ranges_and_each_once() {
    let (Link { mut intake, mut settler }, mut peer) = linked(json!({}), ("broker", "1")).await;
    let receiving = receive_all(&mut intake, 12);
    let sending = async {
        peer.hear::<Flow>(FLOW).await;
        for n in 0..12 {
            peer.send(&text(n)).await;
        }
    };
    let (ids, ()) = tokio::join!(receiving, sending);
    let range = async |peer: &mut Bare| -> (RangeInclusive<u32>, bool, Option<DeliveryState>) {
        let said: Disposition = peer.hear(DISPOSITION).await;
        (said.first..=said.last.unwrap_or(said.first), said.settled, said.state)
    };
    // Out of order, with a gap.
    let some: Vec<DeliveryId> = [7, 3, 2, 4, 8].map(|n| ids[n]).to_vec();
    settler.settle(&some, Outcome::Accepted).await.expect("sent");
    assert!(matches!(range(&mut peer).await, (r, true, Some(DeliveryState::Accepted(_))) if r == (2..=4)));
    assert!(matches!(range(&mut peer).await, (r, true, Some(DeliveryState::Accepted(_))) if r == (7..=8)));
    settler.settle(&some, Outcome::Released).await.expect("nothing to say");
    settler.settle(&[DeliveryId(99)], Outcome::Released).await.expect("nothing to say");
    settler.settle(&ids[..2], Outcome::Rejected).await.expect("sent");
    assert!(
        matches!(range(&mut peer).await, (r, true, Some(DeliveryState::Accepted(_))) if r == (0..=1)),
        "the dead letter has it"
    );
    settler.settle(&ids, Outcome::Released).await.expect("sent");
    assert!(matches!(range(&mut peer).await, (r, true, Some(DeliveryState::Released(_))) if r == (5..=6)));
    assert!(matches!(range(&mut peer).await, (r, true, Some(DeliveryState::Released(_))) if r == (9..=11)));
}

#[tokio::test]
async fn what_cannot_be_decoded_stays_with_the_broker_as_a_failed_attempt() {
    let (Link { mut intake, settler }, mut peer) = linked(json!({}), ("broker", "1")).await;
    let receiving = async {
        let mut ids = Vec::new();
        while ids.len() < 2 {
            ids.extend(receive(&mut intake, room(10)).await.1.iter().map(|delivery| delivery.id));
        }
        ids
    };
    let sending = async {
        peer.hear::<Flow>(FLOW).await;
        peer.send(&text(0)).await;
        peer.send(&[0, 0x53, 0x77, 0xa1, 200, b'x']).await;
        peer.send(&[0xde, 0xad]).await;
        peer.send(&text(3)).await;
    };
    let (ids, ()) = tokio::join!(receiving, sending);
    assert_eq!(ids, [DeliveryId(0), DeliveryId(1)], "the link lives on");
    let ending = tokio::spawn(settler.close());
    let said: Disposition = peer.hear(DISPOSITION).await;
    assert_eq!((said.first, said.last), (1, Some(2)));
    let Some(DeliveryState::Modified(modified)) = said.state else { panic!("{:?}", said.state) };
    assert_eq!(modified.delivery_failed, Some(true), "counted, so that the broker's own limit can act");
    soon(peer.part(true)).await;
    assert_eq!(soon(ending).await.expect("no panic"), Closed::Answered);
}

#[tokio::test]
async fn an_old_rabbitmq_never_says_that_a_link_is_closed() {
    let (link, peer) = linked(json!({}), ("RabbitMQ", "3.10.8")).await;
    let ending = tokio::spawn(link.settler.close());
    soon(peer.part(false)).await;
    assert_eq!(soon(ending).await.expect("no panic"), Closed::Answered);
}

#[tokio::test]
async fn an_end_that_nobody_answers_is_no_receipt() {
    let (link, peer) = linked(json!({}), ("broker", "1")).await;
    let ending = tokio::spawn(link.settler.close());
    // The peer hangs up instead of answering.
    let mut peer = peer;
    peer.hear::<Detach>(DETACH).await;
    drop(peer);
    assert_eq!(soon(ending).await.expect("no panic"), Closed::Unanswered);
}

#[tokio::test]
async fn a_refused_queue_is_read_to_the_end_for_its_reason() {
    let refuse = async |mut peer: Bare, error: PeerError| {
        // As brokers do: an attach without a source, and the reason in the detach that follows.
        let mut attach = peer.attach.clone().expect("attached");
        attach.role = Role::Sender;
        attach.initial_delivery_count = Some(0);
        attach.source = None;
        attach.snd_settle_mode = SenderSettleMode::Mixed;
        peer.say(&attach).await;
        peer.say(&Detach { handle: Handle(0), closed: true, error: Some(error) }).await;
        peer.hear::<Detach>(DETACH).await;
        // The socket stays open until the other side hangs up.
        let _ = peer.socket.read_to_end(&mut Vec::new()).await;
    };
    let missing = PeerError::new(AmqpError::NotFound, "AMQ119010: source address does not exist".to_owned(), None);
    let error = refused(async |peer| refuse(peer, missing).await).await;
    assert_eq!(error.reaction, Reaction::Park);
    assert!(
        error
            .to_string()
            .contains("has no queue 'q' (amqp:not-found: AMQ119010: source address does not exist); create it"),
        "{error}"
    );
    let locked = PeerError::new(AmqpError::ResourceLocked, "exclusive".to_owned(), None);
    assert_eq!(refused(async |peer| refuse(peer, locked).await).await.reaction, Reaction::Away);
}

#[tokio::test]
async fn anonymous_where_a_user_is_needed() {
    let error = refused(async |mut peer: Bare| {
        let denied = PeerError::new(AmqpError::UnauthorizedAccess, "AMQ229031: cannot login".to_owned(), None);
        peer.say(&End { error: Some(denied) }).await;
        let _ = peer.socket.read_to_end(&mut Vec::new()).await;
    })
    .await;
    assert_eq!(error.reaction, Reaction::Park);
    assert!(error.to_string().contains("AMQ229031"), "{error}");
}

#[tokio::test]
async fn a_peer_that_falls_silent_is_away_and_no_longer_attached() {
    let (mut link, _peer) = linked(json!({ "idle_timeout": "1s" }), ("broker", "1")).await;
    assert!(link.settler.attached());
    let error = soon(link.intake.receive(room(1))).await.err().expect("nothing comes, not even a heartbeat");
    assert_eq!(error.reaction, Reaction::Away);
    assert!(error.to_string().contains("idle_timeout"), "{error}");
    assert!(!link.settler.attached());
}

#[tokio::test]
async fn rabbitmq_says_redelivered_in_its_own_way() {
    for (product, redelivered) in [(("RabbitMQ", "3.10.8"), true), (("other", "1"), false)] {
        let (Link { mut intake, settler: _settler }, mut peer) = linked(json!({}), product).await;
        let sending = async {
            peer.hear::<Flow>(FLOW).await;
            let mut payload =
                serde_amqp::to_vec(&Header { first_acquirer: false, ..Header::default() }).expect("encodes");
            payload.extend(text(0));
            peer.send(&payload).await;
        };
        let ((raw, ..), ()) = tokio::join!(receive(&mut intake, room(1)), sending);
        assert_eq!(raw.columns["redelivered"].as_boolean().value(0), redelivered, "{product:?}");
    }
}

#[tokio::test]
async fn a_socket_that_is_cut_says_so() {
    let (mut link, peer) = linked(json!({}), ("broker", "1")).await;
    drop(peer);
    let error = soon(link.intake.receive(room(1))).await.err().expect("cut");
    assert_eq!(error.reaction, Reaction::Away);
    assert!(error.to_string().contains("was cut"), "{error}");
}
