//! What goes over the wire, for people: `--log amqp.frames=trace` prints each frame of each connection in a line.
//!
//! A line has the direction, the channel, the performative and the fields that explain a conversation: handles, delivery
//! numbers, credit, windows, states, errors. It never has what a frame carries for others: the secrets of a login, the
//! payload of a transfer (only its size), the properties of a connection or a link, filters, delivery tags.
//!
//! Bytes are looked at in a copy, and only if somebody listens when the connection is made.

use std::fmt::{self, Write as _};

use fe2o3_amqp_types::definitions::{Error, Handle, Role};
use fe2o3_amqp_types::messaging::{DeliveryState, TargetArchetype};
use fe2o3_amqp_types::performatives::Performative;
use fe2o3_amqp_types::sasl::{SaslInit, SaslMechanisms, SaslOutcome};

use super::reaction::said;
use super::wire::Unit;

/// More than this without a whole frame in it is no AMQP, and not looked at any further.
const LIMIT: usize = 64 << 20;

/// Which way a frame goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// To the broker.
    Sent,
    /// From the broker.
    Received,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sent => "sent",
            Self::Received => "received",
        })
    }
}

/// Prints the frames of one connection.
pub(super) struct Frames {
    partition: String,
    broker: String,
    /// What of the next frame has come by; `None` once it is known not to be AMQP.
    sent: Option<Vec<u8>>,
    received: Option<Vec<u8>>,
}

impl Frames {
    /// `None` if nobody listens.
    pub fn listened_to(partition: impl fmt::Display, broker: impl fmt::Display) -> Option<Self> {
        let listens = tracing::enabled!(tracing::Level::TRACE);
        listens.then(|| Self {
            partition: partition.to_string(),
            broker: broker.to_string(),
            sent: Some(Vec::new()),
            received: Some(Vec::new()),
        })
    }

    /// Takes a copy of what passed, and prints the frames that are whole.
    pub fn passed(&mut self, way: Way, bytes: &[u8]) {
        let Self { partition, broker, sent, received } = self;
        let side = match way {
            Way::Sent => sent,
            Way::Received => received,
        };
        let Some(seen) = side else { return };
        seen.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(unit) = Unit::first(&seen[at..]) {
            let frame = told(&unit);
            tracing::trace!(%partition, %broker, "{way} {frame}");
            at += unit.len;
        }
        seen.drain(..at);
        if seen.len() > LIMIT {
            tracing::trace!(%partition, %broker, "{way} what is not AMQP; it is not looked at any further");
            *side = None;
        }
    }
}

/// A protocol header or a frame, in words.
fn told(unit: &Unit<'_>) -> String {
    const SASL: u8 = 1;
    match unit.body {
        None if unit.is_header() => format!("protocol header {}", unit.header()),
        None => "heartbeat".to_owned(),
        Some(body) if unit.kind == SASL => sasl(body),
        Some(body) => {
            let mut line = Line(format!("channel={} ", unit.channel));
            match serde_amqp::from_slice(body) {
                Ok(performative) => line.performative(&performative, body),
                Err(_) => _ = write!(line.0, "what cannot be read, bytes={}", body.len()),
            }
            line.0
        }
    }
}

/// Of a login only which step it is, and by which mechanism.
fn sasl(body: &[u8]) -> String {
    if let Ok(offered) = serde_amqp::from_slice::<SaslMechanisms>(body) {
        let names: Vec<_> = offered.sasl_server_mechanisms.0.iter().map(|name| name.as_str()).collect();
        format!("sasl-mechanisms offered={}", names.join(","))
    } else if let Ok(init) = serde_amqp::from_slice::<SaslInit>(body) {
        format!("sasl-init mechanism={}", init.mechanism.as_str())
    } else if let Ok(outcome) = serde_amqp::from_slice::<SaslOutcome>(body) {
        format!("sasl-outcome code={:?}", outcome.code)
    } else {
        "sasl step".to_owned()
    }
}

/// How many bytes the performative at the start of a frame's body takes.
fn size(body: &[u8]) -> Option<usize> {
    let narrow = |at: usize| body.get(at).map(|size| usize::from(*size));
    let wide = |at: usize| Some(u32::from_be_bytes(*body.get(at..)?.first_chunk()?) as usize);
    let descriptor = match body.get(1)? {
        0x53 => 3,
        0x80 => 10,
        0xa3 => 3 + narrow(2)?,
        0xb3 => 6 + wide(2)?,
        _ => return None,
    };
    Some(match body.get(descriptor)? {
        0x45 => descriptor + 1,
        0xc0 => descriptor + 2 + narrow(descriptor + 1)?,
        0xd0 => descriptor + 5 + wide(descriptor + 1)?,
        _ => return None,
    })
}

/// A line in the making. Writing to a string does not fail.
struct Line(String);

impl Line {
    fn field(&mut self, name: &str, value: impl fmt::Display) {
        let _ = write!(self.0, " {name}={value}");
    }

    fn maybe(&mut self, name: &str, value: Option<impl fmt::Display>) {
        if let Some(value) = value {
            self.field(name, value);
        }
    }

    /// Only what is set.
    fn flag(&mut self, name: &str, value: bool) {
        if value {
            self.field(name, value);
        }
    }

    fn handle(&mut self, handle: &Handle) {
        self.field("handle", handle.0);
    }

    fn role(&mut self, role: &Role) {
        self.field("role", if matches!(role, Role::Sender) { "sender" } else { "receiver" });
    }

    fn error(&mut self, error: Option<&Error>) {
        self.maybe("error", error.map(said));
    }

    fn performative(&mut self, performative: &Performative, body: &[u8]) {
        match performative {
            Performative::Open(open) => {
                self.0.push_str("open");
                self.field("container-id", &open.container_id);
                self.maybe("hostname", open.hostname.as_ref());
                self.field("max-frame-size", open.max_frame_size.0);
                self.field("channel-max", open.channel_max.0);
                self.maybe("idle-time-out", open.idle_time_out);
            }
            Performative::Begin(begin) => {
                self.0.push_str("begin");
                self.maybe("remote-channel", begin.remote_channel);
                self.field("next-outgoing-id", begin.next_outgoing_id);
                self.field("incoming-window", begin.incoming_window);
                self.field("outgoing-window", begin.outgoing_window);
                self.field("handle-max", begin.handle_max.0);
            }
            Performative::Attach(attach) => {
                self.0.push_str("attach");
                self.field("name", &attach.name);
                self.handle(&attach.handle);
                self.role(&attach.role);
                self.field("snd-settle-mode", format_args!("{:?}", attach.snd_settle_mode));
                self.field("rcv-settle-mode", format_args!("{:?}", attach.rcv_settle_mode));
                match attach.source.as_deref() {
                    Some(source) => self.maybe("source", source.address.as_ref()),
                    None => self.field("source", "none"),
                }
                if let Some(TargetArchetype::Target(target)) = attach.target.as_deref() {
                    self.maybe("target", target.address.as_ref());
                }
                self.maybe("initial-delivery-count", attach.initial_delivery_count);
                self.maybe("max-message-size", attach.max_message_size);
            }
            Performative::Flow(flow) => {
                self.0.push_str("flow");
                self.maybe("handle", flow.handle.as_ref().map(|handle| handle.0));
                self.maybe("delivery-count", flow.delivery_count);
                self.maybe("link-credit", flow.link_credit);
                self.maybe("available", flow.available);
                self.maybe("next-incoming-id", flow.next_incoming_id);
                self.field("incoming-window", flow.incoming_window);
                self.field("next-outgoing-id", flow.next_outgoing_id);
                self.field("outgoing-window", flow.outgoing_window);
                self.flag("drain", flow.drain);
                self.flag("echo", flow.echo);
            }
            Performative::Transfer(transfer) => {
                self.0.push_str("transfer");
                self.handle(&transfer.handle);
                self.maybe("delivery-id", transfer.delivery_id);
                self.flag("settled", transfer.settled == Some(true));
                self.flag("more", transfer.more);
                self.flag("resume", transfer.resume);
                self.flag("aborted", transfer.aborted);
                self.maybe("payload-bytes", size(body).and_then(|size| body.len().checked_sub(size)));
            }
            Performative::Disposition(disposition) => {
                self.0.push_str("disposition");
                self.role(&disposition.role);
                self.field("first", disposition.first);
                self.maybe("last", disposition.last);
                self.flag("settled", disposition.settled);
                self.maybe("state", disposition.state.as_ref().map(state));
            }
            Performative::Detach(detach) => {
                self.0.push_str("detach");
                self.handle(&detach.handle);
                self.flag("closed", detach.closed);
                self.error(detach.error.as_ref());
            }
            Performative::End(end) => {
                self.0.push_str("end");
                self.error(end.error.as_ref());
            }
            Performative::Close(close) => {
                self.0.push_str("close");
                self.error(close.error.as_ref());
            }
        }
    }
}

fn state(state: &DeliveryState) -> String {
    match state {
        DeliveryState::Accepted(_) => "accepted".to_owned(),
        DeliveryState::Released(_) => "released".to_owned(),
        DeliveryState::Rejected(rejected) => match &rejected.error {
            Some(error) => format!("rejected({})", said(error)),
            None => "rejected".to_owned(),
        },
        DeliveryState::Modified(modified) => format!(
            "modified(delivery-failed={}, undeliverable-here={})",
            modified.delivery_failed.unwrap_or_default(),
            modified.undeliverable_here.unwrap_or_default()
        ),
        DeliveryState::Received(received) => {
            format!("received(section={}, offset={})", received.section_number, received.section_offset)
        }
        #[allow(unreachable_patterns, reason = "states that exist with fe2o3-amqp's transactions only")]
        _ => "transactional".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use fe2o3_amqp_types::definitions::{AmqpError, Fields};
    use fe2o3_amqp_types::messaging::{Accepted, Modified, Rejected, Source};
    use fe2o3_amqp_types::performatives::{Attach, Close, Detach, Disposition, End, Flow, Open, Transfer};
    use fe2o3_amqp_types::sasl::SaslCode;
    use serde::Serialize;
    use serde_amqp::Value;
    use serde_amqp::primitives::Symbol;

    use super::*;

    const SECRET: &str = "hunter2";

    /// A frame on channel 3 with this payload, as it is told.
    fn line(kind: u8, performative: &impl Serialize, payload: &[u8]) -> String {
        let mut body = serde_amqp::to_vec(performative).expect("encodes");
        body.extend(payload);
        let mut frame = u32::try_from(body.len() + 8).expect("small").to_be_bytes().to_vec();
        frame.extend([2, kind, 0, 3]);
        frame.extend(body);
        let unit = Unit::first(&frame).expect("a frame");
        assert_eq!(unit.len, frame.len());
        let line = told(&unit);
        assert!(!line.contains(SECRET), "{line}");
        line
    }

    fn amqp(performative: &impl Serialize) -> String {
        line(0, performative, &[])
    }

    fn private() -> Fields {
        let mut fields = Fields::new();
        fields.insert(Symbol::from("token"), Value::String(SECRET.into()));
        fields
    }

    fn transfer(more: bool) -> Transfer {
        Transfer {
            handle: Handle(2),
            delivery_id: Some(70_000),
            delivery_tag: Some(SECRET.as_bytes().to_vec().into()),
            message_format: Some(0),
            settled: Some(false),
            more,
            rcv_settle_mode: None,
            state: None,
            resume: false,
            aborted: false,
            batchable: false,
        }
    }

    #[test]
    fn each_performative_shows_what_matters_and_nothing_private() {
        let error = || Some(Error::new(AmqpError::NotFound, "no queue".to_owned(), Some(private())));
        let open = Open {
            container_id: "me".into(),
            hostname: Some("host".into()),
            max_frame_size: 1024.into(),
            channel_max: 7.into(),
            idle_time_out: Some(4000),
            outgoing_locales: None,
            incoming_locales: None,
            offered_capabilities: None,
            desired_capabilities: None,
            properties: Some(private()),
        };
        let expected =
            "channel=3 open container-id=me hostname=host max-frame-size=1024 channel-max=7 idle-time-out=4000";
        assert_eq!(amqp(&open), expected);
        let attach = Attach {
            name: "orders/0".into(),
            handle: Handle(2),
            role: Role::Receiver,
            snd_settle_mode: Default::default(),
            rcv_settle_mode: Default::default(),
            source: Some(Box::new(Source::from("q"))),
            target: None,
            unsettled: None,
            incomplete_unsettled: false,
            initial_delivery_count: None,
            max_message_size: None,
            offered_capabilities: None,
            desired_capabilities: None,
            properties: Some(private()),
        };
        assert!(amqp(&attach).starts_with("channel=3 attach name=orders/0 handle=2 role=receiver snd-settle-mode="));
        assert!(amqp(&attach).ends_with("source=q"));
        assert!(amqp(&Attach { source: None, ..attach }).ends_with("source=none"), "how a refusal begins");
        let flow = Flow {
            next_incoming_id: Some(5),
            incoming_window: 2048,
            next_outgoing_id: 0,
            outgoing_window: 100,
            handle: Some(Handle(2)),
            delivery_count: Some(5),
            link_credit: Some(500),
            available: None,
            drain: false,
            echo: true,
            properties: Some(private()),
        };
        assert_eq!(
            amqp(&flow),
            "channel=3 flow handle=2 delivery-count=5 link-credit=500 next-incoming-id=5 incoming-window=2048 \
             next-outgoing-id=0 outgoing-window=100 echo=true"
        );
        let disposition = |state| Disposition {
            role: Role::Receiver,
            first: 1,
            last: Some(9),
            settled: true,
            state: Some(state),
            batchable: false,
        };
        for (state, words) in [
            (DeliveryState::Accepted(Accepted {}), "accepted"),
            (DeliveryState::Rejected(Rejected { error: error() }), "rejected(amqp:not-found: no queue)"),
            (
                DeliveryState::Modified(Modified {
                    delivery_failed: Some(true),
                    undeliverable_here: None,
                    message_annotations: Some(private()),
                }),
                "modified(delivery-failed=true, undeliverable-here=false)",
            ),
        ] {
            let expected = format!("channel=3 disposition role=receiver first=1 last=9 settled=true state={words}");
            assert_eq!(amqp(&disposition(state)), expected);
        }
        let detach = Detach { handle: Handle(2), closed: true, error: error() };
        assert_eq!(amqp(&detach), "channel=3 detach handle=2 closed=true error=amqp:not-found: no queue");
        assert_eq!(amqp(&End { error: None }), "channel=3 end");
        assert_eq!(amqp(&Close { error: error() }), "channel=3 close error=amqp:not-found: no queue");
    }

    #[test]
    fn of_a_message_only_its_size() {
        for payload in [&b""[..], SECRET.as_bytes()] {
            let expected = format!("channel=3 transfer handle=2 delivery-id=70000 payload-bytes={}", payload.len());
            assert_eq!(line(0, &transfer(false), payload), expected);
        }
        assert!(line(0, &transfer(true), b"x").ends_with("delivery-id=70000 more=true payload-bytes=1"));
    }

    #[test]
    fn of_a_login_only_the_mechanism() {
        let offered = SaslMechanisms { sasl_server_mechanisms: vec![Symbol::from("PLAIN")].into() };
        assert_eq!(line(1, &offered, &[]), "sasl-mechanisms offered=PLAIN");
        let init = SaslInit {
            mechanism: Symbol::from("PLAIN"),
            initial_response: Some(format!("\0me\0{SECRET}").into_bytes().into()),
            hostname: None,
        };
        assert_eq!(line(1, &init, &[]), "sasl-init mechanism=PLAIN");
        let outcome = SaslOutcome { code: SaslCode::Auth, additional_data: Some(SECRET.as_bytes().to_vec().into()) };
        assert_eq!(line(1, &outcome, &[]), "sasl-outcome code=Auth");
    }

    #[test]
    fn headers_heartbeats_and_what_cannot_be_read() {
        let told = |bytes: &[u8]| told(&Unit::first(bytes).expect("a unit"));
        assert_eq!(told(b"AMQP\x03\x01\x00\x00"), "protocol header 3.1.0.0");
        assert_eq!(told(&[0, 0, 0, 8, 2, 0, 0, 0]), "heartbeat");
        assert_eq!(told(b"\x00\x00\x00\x0f\x02\x00\x00\x01hunter2"), "channel=1 what cannot be read, bytes=7");
    }
}
