//! What the protocol says frame by frame: windows, drain, refusals, time.

use std::sync::Arc;
use std::time::Duration;

use fe2o3_amqp_types::definitions::{AmqpError, ConnectionError, ErrorCondition, LinkError, Role, SessionError};
use fe2o3_amqp_types::messaging::{Accepted, DeliveryState, Modified, Outcome};
use fe2o3_amqp_types::performatives::{Attach, Close, Detach, Disposition, Flow, Performative};

use super::peer::{BODY, Got, Peer, attach, begin, credit, open, transfer, window};
use crate::broker::store::Store;

fn transfers(heard: &[Got]) -> usize {
    heard.iter().filter(|got| matches!(got.performative, Performative::Transfer(_))).count()
}

fn last_flow(heard: &[Got]) -> &Flow {
    match &heard.last().expect("an answer").performative {
        Performative::Flow(flow) => flow,
        other => panic!("a flow was expected: {other:?}"),
    }
}

fn disposition(first: u32, last: u32, settled: bool, state: Option<DeliveryState>) -> Disposition {
    Disposition { role: Role::Receiver, first, last: Some(last), settled, state, batchable: false }
}

fn consumer(window: u32) -> Peer {
    let mut peer = Peer::begun(window);
    peer.tell(&attach(0, Role::Receiver, "q"));
    assert_eq!(peer.heard().len(), 1);
    peer
}

fn condition(heard: &[Got]) -> ErrorCondition {
    let error = match &heard.last().expect("an answer").performative {
        Performative::Close(close) => &close.error,
        Performative::End(end) => &end.error,
        Performative::Detach(detach) => &detach.error,
        other => panic!("an error was expected: {other:?}"),
    };
    error.as_ref().expect("an error").condition.clone()
}

#[test]
fn the_window_counts_frames_and_not_what_is_unsettled() {
    let mut peer = consumer(3);
    peer.publish("q", 10);
    peer.tell(&credit(0, 0, 10, window(0, 3)));
    assert_eq!(transfers(&peer.heard()), 3);
    assert_eq!(peer.store.declare("q").stats().ready, 7, "they wait in the queue, not on the link");
    peer.tell(&window(2, 3));
    assert_eq!(transfers(&peer.heard()), 2, "one is still on the way");
    peer.tell(&window(5, 100));
    assert_eq!(transfers(&peer.heard()), 5, "none was settled");
}

#[test]
fn credit_is_counted_from_what_the_peer_has_seen() {
    let mut peer = consumer(100);
    peer.publish("q", 20);
    peer.tell(&credit(0, 0, 5, window(0, 100)));
    assert_eq!(transfers(&peer.heard()), 5);
    // Sent when the peer had seen three of five: two of these six are spent.
    peer.tell(&credit(0, 3, 6, window(3, 100)));
    assert_eq!(transfers(&peer.heard()), 4);
    // Credit can be taken back.
    peer.tell(&credit(0, 9, 4, window(9, 0)));
    peer.tell(&credit(0, 9, 0, window(9, 100)));
    assert_eq!(transfers(&peer.heard()), 0);
}

#[test]
fn drain_uses_up_the_credit_after_what_is_there() {
    let mut peer = consumer(100);
    peer.publish("q", 2);
    peer.tell(&Flow { drain: true, ..credit(0, 0, 10, window(0, 100)) });
    let heard = peer.heard();
    assert_eq!(transfers(&heard), 2);
    let flow = last_flow(&heard);
    assert_eq!((flow.drain, flow.delivery_count, flow.link_credit), (true, Some(10), Some(0)));
    peer.publish("q", 1);
    assert_eq!(peer.heard(), [], "the credit is used up");
    peer.tell(&Flow { drain: true, ..credit(0, 10, 0, window(2, 100)) });
    assert_eq!(last_flow(&peer.heard()).delivery_count, Some(10), "a drain without credit is answered as well");
}

#[test]
fn echo_is_answered_for_sessions_and_links() {
    let mut peer = consumer(100);
    peer.publish("q", 4);
    peer.tell(&Flow { echo: true, ..window(0, 100) });
    assert_eq!(last_flow(&peer.heard()).handle, None);
    peer.tell(&Flow { echo: true, ..credit(0, 0, 0, window(0, 100)) });
    let heard = peer.heard();
    let flow = last_flow(&heard);
    assert_eq!((flow.link_credit, flow.available), (Some(0), Some(4)));
}

#[test]
fn a_large_message_pauses_at_the_window_and_goes_on() {
    let mut peer = consumer(2);
    peer.tell(&attach(1, Role::Sender, "q"));
    let body: Vec<u8> = (0..3_000u32).map(|n| n as u8).collect();
    let mut sections = vec![0x00, 0x53, 0x75, 0xb0];
    sections.extend_from_slice(&3_000u32.to_be_bytes());
    sections.extend_from_slice(&body);
    peer.heard();
    peer.tell_with(&transfer(1, Some(0), true), &sections[..1_000]);
    peer.tell_with(&transfer(1, None, true), &sections[1_000..2_000]);
    assert_eq!(peer.store.declare("q").stats().ready, 0, "not whole yet");
    peer.tell_with(&transfer(1, None, false), &sections[2_000..]);
    let heard = peer.heard();
    assert!(matches!(&heard[..], [Got { performative: Performative::Disposition(d), .. }] if d.settled), "{heard:?}");

    peer.tell(&credit(0, 0, 5, window(0, 2)));
    let mut frames = peer.heard();
    assert_eq!(transfers(&frames), 2, "the window");
    peer.tell(&window(2, 100));
    frames.extend(peer.heard());
    let more: Vec<_> = frames
        .iter()
        .filter_map(|got| match &got.performative {
            Performative::Transfer(transfer) => Some(transfer.more),
            _ => None,
        })
        .collect();
    assert!(more.len() > 5 && more.iter().rev().skip(1).all(|more| *more) && more.last() == Some(&false));
    assert!(frames.iter().all(|got| got.payload.len() < 512));
    let payload: Vec<u8> = frames.into_iter().flat_map(|got| got.payload).collect();
    assert!(payload.ends_with(&sections));
}

#[test]
fn an_aborted_message_never_was() {
    let mut peer = Peer::begun(10);
    peer.tell(&attach(0, Role::Sender, "q"));
    peer.tell_with(&transfer(0, Some(0), true), BODY);
    let aborted = fe2o3_amqp_types::performatives::Transfer { aborted: true, ..transfer(0, None, false) };
    peer.tell(&aborted);
    peer.tell_with(&transfer(0, Some(1), false), BODY);
    assert_eq!(peer.store.declare("q").stats().ready, 1);
}

#[test]
fn producers_get_credit_again_and_one_answer_for_many() {
    let mut peer = Peer::begun(10);
    peer.tell(&attach(0, Role::Sender, "q"));
    let granted = last_flow(&peer.heard()).link_credit.expect("credit");
    let mut frames = Vec::new();
    for n in 0..granted {
        peer.tell_with(&transfer(0, Some(n), false), BODY);
        frames.extend(peer.heard());
    }
    assert!(
        frames.iter().any(|got| matches!(&got.performative, Performative::Flow(f) if f.link_credit == Some(granted)))
    );
    assert_eq!(peer.store.declare("q").stats().ready, u64::from(granted));
}

#[test]
fn dispositions_are_ranges_and_the_second_settlement_is_answered() {
    let mut peer = consumer(100);
    peer.publish("q", 10);
    peer.tell(&credit(0, 0, 10, window(0, 100)));
    peer.heard();
    let accepted = || Some(DeliveryState::Accepted(Accepted {}));
    peer.tell(&disposition(0, 3, true, accepted()));
    assert_eq!(peer.heard(), []);
    peer.tell(&disposition(4, 4, false, accepted()));
    let heard = peer.heard();
    let Performative::Disposition(answer) = &heard[0].performative else { panic!("{heard:?}") };
    assert_eq!((&answer.role, answer.first, answer.settled, &answer.state), (&Role::Sender, 4, true, &accepted()));
    // Settled twice, settled before it was sent, and backwards: nothing happens.
    for (first, last) in [(0, 4), (500, 600), (7, 5)] {
        peer.tell(&disposition(first, last, true, accepted()));
    }
    let stats = peer.store.declare("q").stats();
    assert_eq!((stats.accepted, stats.unsettled), (5, 5));
    // Settled without outcome: released.
    peer.tell(&disposition(5, 99, true, None));
    let stats = peer.store.declare("q").stats();
    assert_eq!((stats.accepted, stats.unsettled, stats.ready), (5, 0, 5));
}

#[test]
fn a_lost_link_gives_the_default_outcome_that_it_asked_for() {
    let mut peer = Peer::begun(100);
    let failed = Modified { delivery_failed: Some(true), undeliverable_here: None, message_annotations: None };
    let mut with_default: Attach = attach(0, Role::Receiver, "q");
    if let Some(source) = &mut with_default.source {
        source.default_outcome = Some(Outcome::Modified(failed));
    }
    peer.tell(&with_default);
    peer.publish("q", 1);
    peer.tell(&credit(0, 0, 1, window(0, 100)));
    peer.heard();
    peer.tell(&Detach { handle: 0.into(), closed: true, error: None });
    assert!(matches!(peer.heard()[0].performative, Performative::Detach(_)));
    peer.tell(&attach(0, Role::Receiver, "q"));
    peer.tell(&credit(0, 0, 1, window(1, 100)));
    let heard = peer.heard();
    let header: fe2o3_amqp_types::messaging::Header =
        serde_amqp::from_slice(&heard.last().expect("a transfer").payload).expect("a header");
    assert_eq!((header.delivery_count, header.first_acquirer), (1, false));
}

#[test]
fn a_refused_link_leaves_its_session_and_its_handle_usable() {
    let mut peer = Peer::begun_on(Store::new(1 << 20, false), 10);
    peer.store.declare("known");
    for role in [Role::Receiver, Role::Sender] {
        peer.tell(&attach(0, role.clone(), "unknown"));
        let heard = peer.heard();
        let Performative::Attach(answer) = &heard[0].performative else { panic!("{heard:?}") };
        assert_eq!((answer.source.is_none(), answer.target.is_none()), (role == Role::Receiver, role == Role::Sender));
        assert_eq!(condition(&heard), AmqpError::NotFound.into());
        // Some clients answer twice.
        for _ in 0..2 {
            peer.tell(&Detach { handle: 0.into(), closed: true, error: None });
        }
        assert_eq!(peer.heard(), []);
    }
    peer.tell(&attach(0, Role::Receiver, "known"));
    peer.publish("known", 1);
    peer.tell(&credit(0, 0, 1, window(0, 10)));
    assert_eq!(transfers(&peer.heard()), 1);
}

#[test]
fn faults_take_down_no_more_than_they_must() {
    let mut peer = Peer::begun(10);
    peer.tell(&attach(0, Role::Sender, "q"));
    let granted = last_flow(&peer.heard()).link_credit.expect("credit");
    let over = fe2o3_amqp_types::performatives::Transfer { settled: Some(true), ..transfer(0, None, false) };
    peer.tell_with(&over, BODY);
    assert_eq!(condition(&peer.heard()), AmqpError::InvalidField.into(), "the link: no delivery-id");
    peer.tell_with(&transfer(0, Some(1), false), BODY);
    assert_eq!(peer.heard(), [], "what was on the way is ignored");
    peer.tell(&Detach { handle: 0.into(), closed: true, error: None });
    peer.tell(&attach(0, Role::Sender, "q"));
    peer.heard();
    // All in one read, so that no credit is renewed in between.
    let mut burst = bytes::BytesMut::new();
    for n in 0..=granted {
        crate::broker::wire::put_frame(&mut burst, 0, 0, |out| {
            out.extend_from_slice(&serde_amqp::to_vec(&transfer(0, Some(n), false)).expect("encodes"));
            out.extend_from_slice(BODY);
        });
    }
    peer.bytes(&burst);
    assert_eq!(condition(&peer.heard()), LinkError::TransferLimitExceeded.into());
    assert_eq!(peer.store.declare("q").stats().ready, u64::from(granted), "what had credit is kept");

    peer.tell(&credit(7, 0, 1, window(0, 10)));
    assert_eq!(condition(&peer.heard()), SessionError::UnattachedHandle.into(), "the session");
    peer.on_channel(1).tell(&begin(10));
    assert!(
        matches!(&peer.heard()[..], [Got { channel: 1, performative: Performative::Begin(_), .. }]),
        "not the other"
    );
    peer.on_channel(4).tell(&begin(10));
    assert_eq!(condition(&peer.heard()), ConnectionError::FramingError.into(), "beyond channel-max");
    assert!(peer.connection.is_parting());
    peer.on_channel(0).tell(&Close::new(None));
    assert!(peer.connection.is_closed());
}

#[test]
fn an_unreadable_message_is_rejected_and_what_is_no_frame_ends_the_connection() {
    let mut peer = Peer::begun(10);
    peer.tell(&attach(0, Role::Sender, "q"));
    peer.heard();
    peer.tell_with(&transfer(0, Some(0), false), b"not a message");
    let heard = peer.heard();
    assert!(
        matches!(&heard[0].performative, Performative::Disposition(d) if matches!(d.state, Some(DeliveryState::Rejected(_)))),
        "{heard:?}"
    );
    peer.bytes(&[0xff; 64]);
    assert_eq!(condition(&peer.heard()), ConnectionError::FramingError.into());
}

#[test]
fn silence_is_noticed_and_heartbeats_are_sent() {
    let mut peer = Peer::new(Arc::new(Store::new(1, true)));
    peer.bytes(b"AMQP\x00\x01\x00\x00");
    peer.connection.out.clear();
    peer.tell(&open(512, Some(10_000)));
    assert!(matches!(&peer.heard()[0].performative, Performative::Open(open) if open.idle_time_out == Some(30_000)));
    peer.now += Duration::from_secs(4);
    assert!(peer.connection.deadline() > peer.now);
    peer.now += Duration::from_secs(1);
    assert_eq!(peer.connection.deadline(), peer.now);
    peer.connection.on_time(peer.now);
    assert_eq!(&peer.connection.out[..], [0, 0, 0, 8, 2, 0, 0, 0], "an empty frame");
    peer.connection.out.clear();
    peer.now += Duration::from_secs(54);
    peer.connection.on_time(peer.now);
    assert!(!peer.connection.is_parting());
    peer.now += Duration::from_secs(1);
    peer.connection.on_time(peer.now);
    assert_eq!(condition(&peer.heard()), AmqpError::ResourceLimitExceeded.into());
    peer.now += Duration::from_secs(1);
    peer.connection.on_time(peer.now);
    assert!(peer.connection.is_closed(), "it waits no longer for the answer");
}

#[test]
fn an_unknown_protocol_is_told_the_right_one() {
    for header in [*b"AMQP\x02\x01\x00\x00", *b"GET / HT"] {
        let mut peer = Peer::new(Arc::new(Store::new(1, true)));
        peer.bytes(&header);
        assert_eq!(&peer.connection.out[..], b"AMQP\x00\x01\x00\x00");
        assert!(peer.connection.is_parting());
    }
}
