//! A peer without a socket: it tells the state machine of a connection frames, and reads the frames of the answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use fe2o3_amqp_types::definitions::{Handle, Role, SequenceNo};
use fe2o3_amqp_types::messaging::{Source, Target, TargetArchetype};
use fe2o3_amqp_types::performatives::{Attach, Begin, Flow, Open, Performative, Transfer};
use serde::Serialize;
use tokio::time::Instant;

use crate::broker::connection::{Connection, Terms};
use crate::broker::login::Login;
use crate::broker::store::Store;
use crate::broker::wire::{AMQP, Reader, put_frame, split_frame};
use crate::clock;

pub(super) const BODY: &[u8] = &[0x00, 0x53, 0x77, 0xa1, 2, b'h', b'i'];

pub(super) struct Peer {
    pub(super) connection: Connection,
    pub(super) store: Arc<Store>,
    pub(super) now: Instant,
    channel: u16,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Got {
    pub(super) channel: u16,
    pub(super) performative: Performative,
    pub(super) payload: Vec<u8>,
}

impl Peer {
    pub(super) fn new(store: Arc<Store>) -> Self {
        let terms =
            Terms { login: Login::Anyone, max_frame_size: 4096, channel_max: 3, idle_timeout: Duration::from_secs(60) };
        let now = clock::now();
        Self { connection: Connection::new(Arc::new(terms), store.clone(), now), store, now, channel: 0 }
    }

    /// A peer with an open connection and one session, whose window takes `window` transfers.
    pub(super) fn begun(window: u32) -> Self {
        Self::begun_on(Store::new(1 << 20, true), window)
    }

    pub(super) fn begun_on(store: Store, window: u32) -> Self {
        let mut peer = Self::new(Arc::new(store));
        peer.bytes(b"AMQP\x00\x01\x00\x00");
        assert_eq!(&peer.connection.out.split_to(8)[..], b"AMQP\x00\x01\x00\x00");
        peer.tell(&open(512, None));
        peer.tell(&begin(window));
        assert_eq!(peer.heard().len(), 2);
        peer
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        let mut input = BytesMut::from(bytes);
        self.connection.on_input(&mut input, self.now);
        assert!(input.is_empty(), "whole frames are taken");
    }

    pub(super) fn on_channel(&mut self, channel: u16) -> &mut Self {
        self.channel = channel;
        self
    }

    pub(super) fn tell<T: Serialize>(&mut self, performative: &T) {
        self.tell_with(performative, &[]);
    }

    pub(super) fn tell_with<T: Serialize>(&mut self, performative: &T, payload: &[u8]) {
        let mut frame = BytesMut::new();
        put_frame(&mut frame, AMQP, self.channel, |out| {
            out.extend_from_slice(&serde_amqp::to_vec(performative).expect("encodes"));
            out.extend_from_slice(payload);
        });
        self.bytes(&frame);
    }

    /// All frames that the broker has written since, heartbeats left out.
    pub(super) fn heard(&mut self) -> Vec<Got> {
        self.connection.deliver(self.now);
        let out = self.connection.out.split();
        let mut rest = &out[..];
        let mut frames = Vec::new();
        while let Some((frame, size)) = split_frame(rest, usize::MAX).expect("well formed") {
            if !frame.body.is_empty() {
                let mut reader = Reader::new(frame.body);
                let performative = serde_amqp::from_slice(reader.value().expect("a value")).expect("a performative");
                frames.push(Got { channel: frame.channel, performative, payload: reader.rest().to_vec() });
            }
            rest = &rest[size..];
        }
        assert!(rest.is_empty());
        frames
    }

    /// Puts messages into a queue as a producer does.
    pub(super) fn publish(&mut self, queue: &str, count: usize) {
        let queue = self.store.declare(queue);
        let mut messages: Vec<_> =
            (0..count).map(|_| crate::broker::message::Message::parse(BODY.into(), 0).expect("a message")).collect();
        queue.push(&mut messages);
        self.connection.on_wake(self.now);
    }
}

pub(super) fn open(max_frame_size: u32, idle_time_out: Option<u32>) -> Open {
    Open {
        container_id: "peer".into(),
        hostname: None,
        max_frame_size: max_frame_size.into(),
        channel_max: 10.into(),
        idle_time_out,
        outgoing_locales: None,
        incoming_locales: None,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    }
}

pub(super) fn begin(incoming_window: u32) -> Begin {
    Begin {
        remote_channel: None,
        next_outgoing_id: 0,
        incoming_window,
        outgoing_window: 1_000,
        handle_max: Handle(10),
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    }
}

pub(super) fn attach(handle: u32, role: Role, queue: &str) -> Attach {
    Attach {
        name: format!("link-{handle}"),
        handle: Handle(handle),
        initial_delivery_count: (role == Role::Sender).then_some(0),
        role,
        snd_settle_mode: Default::default(),
        rcv_settle_mode: Default::default(),
        source: Some(Box::new(Source::from(queue))),
        target: Some(Box::new(TargetArchetype::Target(Target::from(queue)))),
        unsettled: None,
        incomplete_unsettled: false,
        max_message_size: None,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    }
}

/// A flow of the session, whose peer has seen `seen` transfers.
pub(super) fn window(seen: u32, incoming_window: u32) -> Flow {
    Flow {
        next_incoming_id: Some(seen),
        incoming_window,
        next_outgoing_id: 0,
        outgoing_window: 1_000,
        handle: None,
        delivery_count: None,
        link_credit: None,
        available: None,
        drain: false,
        echo: false,
        properties: None,
    }
}

/// A flow of a link.
pub(super) fn credit(handle: u32, delivery_count: SequenceNo, link_credit: u32, session: Flow) -> Flow {
    Flow {
        handle: Some(Handle(handle)),
        delivery_count: Some(delivery_count),
        link_credit: Some(link_credit),
        ..session
    }
}

pub(super) fn transfer(handle: u32, delivery: Option<u32>, more: bool) -> Transfer {
    Transfer {
        handle: Handle(handle),
        delivery_id: delivery,
        delivery_tag: delivery.map(|id| id.to_be_bytes().to_vec().into()),
        message_format: Some(0),
        settled: None,
        more,
        rcv_settle_mode: None,
        state: None,
        resume: false,
        aborted: false,
        batchable: false,
    }
}
