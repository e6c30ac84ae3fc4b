//! One connection as a state machine without a socket: bytes in, bytes out, and the time is told.
//!
//! A peer that breaks the protocol is told so by close, end or detach, whichever is the smallest that fits, and never
//! takes anything down that is not its own.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use fe2o3_amqp_types::definitions::{AmqpError, ConnectionError, Error};
use fe2o3_amqp_types::performatives::{Begin, Close, End, Open};
use fe2o3_amqp_types::sasl::{SaslCode, SaslInit, SaslOutcome};
use serde_amqp::Value;
use serde_amqp::primitives::{OrderedMap, Symbol};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::fault::{Fault, error, framing};
use super::login::Login;
use super::session::Session;
use super::store::Store;
use super::wire::{self, AMQP, Frame, Malformed, Reader, SASL, code, put_frame, put_performative, split_frame};

/// No peer may ask for smaller frames.
pub(super) const MIN_FRAME: u32 = 512;

const AMQP_HEADER: [u8; 8] = *b"AMQP\x00\x01\x00\x00";
const SASL_HEADER: [u8; 8] = *b"AMQP\x03\x01\x00\x00";

/// How long a peer may take to answer a close.
const PARTING: Duration = Duration::from_secs(1);

/// What all connections of a broker are told.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) login: Login,
    pub(super) max_frame_size: u32,
    pub(super) channel_max: u16,
    /// How long a connection may be silent.
    pub(super) idle_timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A protocol header is expected; the login is done or not needed.
    Greeting {
        authenticated: bool,
    },
    /// The mechanisms are offered.
    Login,
    /// Open is expected.
    Opening,
    Open,
    /// The last word is said; what the peer still sends is ignored until it goes, or until this moment.
    Parting(Instant),
    /// Both have said it; what is left to write is written until this moment.
    Closed(Instant),
}

enum Slot {
    Live(Box<Session>),
    /// Ended from here; the peer's end is still to come.
    Ended,
}

/// The state of one connection.
pub(super) struct Connection {
    terms: Arc<Terms>,
    store: Arc<Store>,
    /// Wakes the task that drives this connection.
    pub(super) wake: Arc<Notify>,
    /// What is to be written.
    pub(super) out: BytesMut,
    stage: Stage,
    sessions: Vec<Option<Slot>>,
    frame_size: usize,
    /// The longest silence that the peer accepts.
    peer_patience: Option<Duration>,
    last_read: Instant,
    last_write: Instant,
}

impl Connection {
    pub(super) fn new(terms: Arc<Terms>, store: Arc<Store>, now: Instant) -> Self {
        Self {
            terms,
            store,
            wake: Arc::default(),
            out: BytesMut::new(),
            stage: Stage::Greeting { authenticated: false },
            sessions: Vec::new(),
            frame_size: MIN_FRAME as usize,
            peer_patience: None,
            last_read: now,
            last_write: now,
        }
    }

    /// The last word is said, and only the rest of the buffer is to be written.
    pub(super) fn is_parting(&self) -> bool {
        matches!(self.stage, Stage::Parting(_) | Stage::Closed(_))
    }

    /// Nothing is to be read any more.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.stage, Stage::Closed(_))
    }

    /// Takes the whole frames off `input`.
    pub(super) fn on_input(&mut self, input: &mut BytesMut, now: Instant) {
        self.last_read = now;
        if let Err(fault) = self.read_all(input, now) {
            self.fail(fault, now);
        }
        let finished = self.for_each_session(Session::finish_input);
        self.check(finished, now);
    }

    /// Something that links or producers waited for may be there.
    pub(super) fn on_wake(&mut self, now: Instant) {
        let finished = self.for_each_session(Session::finish_input);
        self.check(finished, now);
    }

    pub(super) fn on_written(&mut self, now: Instant) {
        self.last_write = now;
    }

    /// Writes messages for whoever has credit, as far as the buffer goes.
    pub(super) fn deliver(&mut self, now: Instant) {
        if self.stage == Stage::Open {
            let delivered = self.for_each_session(Session::deliver);
            self.check(delivered, now);
        }
    }

    /// Closes with an error, because the broker stops.
    pub(super) fn shut_down(&mut self, now: Instant) {
        self.fail(Fault::Connection(error(ConnectionError::ConnectionForced, "the embedded broker stops")), now);
    }

    /// When [`on_time`](Self::on_time) has something to do at the earliest.
    pub(super) fn deadline(&self) -> Instant {
        match self.stage {
            Stage::Parting(until) | Stage::Closed(until) => until,
            _ => {
                let silence = self.last_read + self.terms.idle_timeout;
                self.heartbeat().map_or(silence, |heartbeat| silence.min(heartbeat))
            }
        }
    }

    fn heartbeat(&self) -> Option<Instant> {
        self.peer_patience.map(|patience| self.last_write + patience / 2)
    }

    pub(super) fn on_time(&mut self, now: Instant) {
        match self.stage {
            Stage::Parting(until) | Stage::Closed(until) if until > now => (),
            Stage::Parting(_) | Stage::Closed(_) => {
                // The peer does not read either: what is left to write goes with the connection.
                self.stage = Stage::Closed(now);
                self.out.clear();
            }
            _ if self.last_read + self.terms.idle_timeout <= now => {
                let silent = format!("nothing came for {} ms", self.terms.idle_timeout.as_millis());
                self.fail(Fault::Connection(error(AmqpError::ResourceLimitExceeded, silent)), now);
            }
            _ => {
                if self.heartbeat().is_some_and(|heartbeat| heartbeat <= now) {
                    // With more to write than the socket takes, an empty frame would tell nothing.
                    if self.out.is_empty() {
                        put_frame(&mut self.out, AMQP, 0, |_| ());
                    }
                    self.last_write = now;
                }
            }
        }
    }

    fn for_each_session(
        &mut self,
        mut act: impl FnMut(&mut Session, &mut BytesMut) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        for slot in self.sessions.iter_mut().flatten() {
            if let Slot::Live(session) = slot {
                act(session, &mut self.out)?;
            }
        }
        Ok(())
    }

    fn check(&mut self, result: Result<(), Malformed>, now: Instant) {
        if let Err(malformed) = result {
            self.fail(malformed.into(), now);
        }
    }

    fn fail(&mut self, fault: Fault, now: Instant) {
        let error = match fault {
            Fault::Connection(error) | Fault::Session(error) | Fault::Link(_, error) => error,
        };
        tracing::debug!(%error, "the embedded broker closes a connection");
        self.sessions.clear();
        let opened = match self.stage {
            Stage::Open => Ok(()),
            Stage::Opening => self.put_open(),
            // No frame may be sent yet: the socket is closed without a word.
            _ => {
                self.stage = Stage::Parting(now + PARTING);
                return;
            }
        };
        self.stage = Stage::Parting(now + PARTING);
        let closed = put_performative(&mut self.out, AMQP, 0, &Close::new(Some(error)));
        if opened.and(closed).is_err() {
            self.stage = Stage::Closed(now);
        }
    }

    fn read_all(&mut self, input: &mut BytesMut, now: Instant) -> Result<(), Fault> {
        let mut read = 0;
        let result = loop {
            match self.read_one(&input[read..], now) {
                Ok(0) => break Ok(()),
                Ok(size) => read += size,
                Err(fault) => {
                    read = input.len();
                    break Err(fault);
                }
            }
        };
        input.advance(read);
        result
    }

    /// Takes one header or frame; says how many bytes it had, 0 while it is not whole.
    fn read_one(&mut self, input: &[u8], now: Instant) -> Result<usize, Fault> {
        match self.stage {
            Stage::Parting(until) => {
                // Only the peer's own close is of interest.
                match split_frame(input, self.terms.max_frame_size as usize) {
                    Ok(Some((frame, size))) => {
                        if Reader::new(frame.body).descriptor() == Ok(code::CLOSE) {
                            self.stage = Stage::Closed(until);
                        }
                        Ok(size)
                    }
                    Ok(None) => Ok(0),
                    Err(_) => Ok(input.len()),
                }
            }
            Stage::Closed(_) => Ok(input.len()),
            Stage::Greeting { authenticated } => match input.first_chunk::<8>() {
                None => Ok(0),
                Some(header) => {
                    self.greet(*header, authenticated, now)?;
                    Ok(header.len())
                }
            },
            Stage::Login | Stage::Opening | Stage::Open => {
                let max = self.terms.max_frame_size as usize;
                let Some((frame, size)) = split_frame(input, max).map_err(|Malformed(what)| framing(what))? else {
                    return Ok(0);
                };
                match (frame.kind, self.stage) {
                    (SASL, Stage::Login) => self.on_login(frame.body, now)?,
                    (AMQP, Stage::Opening | Stage::Open) => self.on_frame(frame, now)?,
                    _ => return Err(framing("a frame of the wrong type")),
                }
                Ok(size)
            }
        }
    }

    fn greet(&mut self, header: [u8; 8], authenticated: bool, now: Instant) -> Result<(), Fault> {
        let plain_is_enough = authenticated || matches!(self.terms.login, Login::Anyone);
        if header == AMQP_HEADER && plain_is_enough {
            self.out.extend_from_slice(&AMQP_HEADER);
            self.stage = Stage::Opening;
        } else if header == SASL_HEADER && !authenticated {
            self.out.extend_from_slice(&SASL_HEADER);
            put_performative(&mut self.out, SASL, 0, &self.terms.login.mechanisms())?;
            self.stage = Stage::Login;
        } else {
            // By the specification: answer with the header that would do, and close.
            self.out.extend_from_slice(if plain_is_enough { &AMQP_HEADER } else { &SASL_HEADER });
            self.stage = Stage::Parting(now + PARTING);
        }
        Ok(())
    }

    fn on_login(&mut self, body: &[u8], now: Instant) -> Result<(), Fault> {
        if Reader::new(body).descriptor()? != code::SASL_INIT {
            return Err(framing("sasl-init was expected"));
        }
        let init: SaslInit = wire::read(body)?;
        let code = self.terms.login.check(&init);
        self.stage = match code {
            SaslCode::Ok => Stage::Greeting { authenticated: true },
            _ => Stage::Parting(now + PARTING),
        };
        Ok(put_performative(&mut self.out, SASL, 0, &SaslOutcome { code, additional_data: None })?)
    }

    fn put_open(&mut self) -> Result<(), Malformed> {
        let properties = [("product", "distributary embedded broker"), ("version", env!("CARGO_PKG_VERSION"))];
        let mut fields = OrderedMap::new();
        for (key, value) in properties {
            fields.insert(Symbol::from(key), Value::String(value.to_owned()));
        }
        let open = Open {
            container_id: "distributary-embedded-broker".to_owned(),
            hostname: None,
            max_frame_size: self.terms.max_frame_size.into(),
            channel_max: self.terms.channel_max.into(),
            // Half of what is tolerated, as the specification advises.
            idle_time_out: u32::try_from(self.terms.idle_timeout.as_millis() / 2).ok(),
            outgoing_locales: None,
            incoming_locales: None,
            offered_capabilities: None,
            desired_capabilities: None,
            properties: Some(fields),
        };
        put_performative(&mut self.out, AMQP, 0, &open)
    }

    fn on_frame(&mut self, frame: Frame<'_>, now: Instant) -> Result<(), Fault> {
        if frame.body.is_empty() {
            return Ok(()); // a heartbeat
        }
        let code = Reader::new(frame.body).descriptor()?;
        match (code, self.stage) {
            (code::OPEN, Stage::Opening) => self.on_open(&wire::read(frame.body)?),
            (code::CLOSE, Stage::Open) => {
                // What the peer held goes back before its close is answered.
                self.sessions.clear();
                self.stage = Stage::Closed(now + PARTING);
                Ok(put_performative(&mut self.out, AMQP, 0, &Close::new(None))?)
            }
            (_, Stage::Opening) => Err(framing("open was expected")),
            (code::OPEN, _) => Err(framing("a second open")),
            (code::BEGIN, _) => self.on_begin(frame.channel, &wire::read(frame.body)?),
            (code::END, _) => {
                match self.sessions.get_mut(usize::from(frame.channel)).and_then(Option::take) {
                    None => Err(framing(format!("there is no session on channel {}", frame.channel))),
                    Some(Slot::Ended) => Ok(()),
                    Some(Slot::Live(session)) => {
                        // As above: first return, then answer.
                        drop(session);
                        Ok(put_performative(&mut self.out, AMQP, frame.channel, &End { error: None })?)
                    }
                }
            }
            _ => self.on_session_frame(code, frame),
        }
    }

    fn on_open(&mut self, open: &Open) -> Result<(), Fault> {
        let peer_frame = open.max_frame_size.0;
        self.frame_size = peer_frame.clamp(MIN_FRAME, self.terms.max_frame_size) as usize;
        self.peer_patience =
            open.idle_time_out.filter(|millis| *millis > 0).map(|millis| Duration::from_millis(millis.into()));
        self.put_open()?;
        if peer_frame < MIN_FRAME {
            return Err(framing(format!("a max-frame-size below {MIN_FRAME}")));
        }
        self.stage = Stage::Open;
        Ok(())
    }

    fn on_begin(&mut self, channel: u16, begin: &Begin) -> Result<(), Fault> {
        if channel > self.terms.channel_max {
            return Err(framing(format!("channel {channel} is beyond channel-max {}", self.terms.channel_max)));
        }
        let at = usize::from(channel);
        if at >= self.sessions.len() {
            self.sessions.resize_with(at + 1, || None);
        }
        if self.sessions[at].is_some() {
            return Err(framing(format!("channel {channel} has a session already")));
        }
        let session = Session::new(channel, begin, self.frame_size, self.store.clone(), self.wake.clone());
        put_performative(&mut self.out, AMQP, channel, &session.begin())?;
        self.sessions[at] = Some(Slot::Live(Box::new(session)));
        Ok(())
    }

    fn on_session_frame(&mut self, code: u64, frame: Frame<'_>) -> Result<(), Fault> {
        let slot = self.sessions.get_mut(usize::from(frame.channel)).and_then(Option::as_mut);
        let session = match slot {
            None => return Err(framing(format!("there is no session on channel {}", frame.channel))),
            Some(Slot::Ended) => return Ok(()),
            Some(Slot::Live(session)) => session,
        };
        match session.on_frame(code, frame.body, &mut self.out) {
            Err(Fault::Link(handle, error)) => Ok(session.refuse_link(handle, error, &mut self.out)?),
            Err(Fault::Session(error)) => self.end_session(frame.channel, error),
            other => other,
        }
    }

    fn end_session(&mut self, channel: u16, error: Error) -> Result<(), Fault> {
        self.sessions[usize::from(channel)] = Some(Slot::Ended);
        Ok(put_performative(&mut self.out, AMQP, channel, &End { error: Some(error) })?)
    }
}
