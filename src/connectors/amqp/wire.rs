//! The socket below fe2o3-amqp, for the three things the library does not give:
//!
//! - **the peer's first frames**: which SASL mechanisms it offers and what product it is, for errors and for how its
//!   headers are to be read;
//! - **when the peer last sent something**, so that a link on a dead cable stops counting as attached;
//! - **a cut**: the socket closes at once, whatever the library still waits for, and one can await that it did.
//!
//! It is also where frames can be listened to, both ways ([`Frames`]).
//!
//! It never changes what passes.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fe2o3_amqp_types::performatives::Open;
use fe2o3_amqp_types::sasl::SaslMechanisms;
use futures::task::AtomicWaker;
use serde_amqp::Value;
use serde_amqp::primitives::Symbol;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::frames::{Frames, Way};
use crate::clock;

/// A stream that is watched, and can be cut.
pub(super) struct Wire<S> {
    stream: S,
    line: Arc<Line>,
    /// Inbound bytes up to the peer's open frame; `None` once it has passed.
    opening: Option<Vec<u8>>,
    /// Whoever listens to the frames.
    frames: Option<Frames>,
}

/// What is known of a wire from outside, and the way to cut it.
#[derive(Default)]
pub(super) struct Line {
    cut: AtomicBool,
    closed: AtomicBool,
    gone: Notify,
    waker: AtomicWaker,
    heard: AtomicU64,
    peer: Mutex<Peer>,
}

/// What the peer said of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Peer {
    /// SASL mechanisms it offers.
    pub mechanisms: Vec<String>,
    /// `product` and `version` of its open frame's properties, or empty.
    pub product: String,
    /// See `product`.
    pub version: String,
}

impl Line {
    /// Closes the socket; reads and writes fail from now on.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Waits until the socket is closed.
    pub async fn closed(&self) {
        while !self.closed.load(Ordering::Acquire) {
            self.gone.notified().await;
        }
    }

    /// How long ago the peer last sent anything.
    pub fn silent_for(&self) -> Duration {
        Duration::from_millis(clock::tick().0.saturating_sub(self.heard.load(Ordering::Relaxed)))
    }

    /// What the peer has said of itself so far.
    pub fn peer(&self) -> Peer {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ended(&self) -> Option<io::Error> {
        self.cut.load(Ordering::Acquire).then(|| io::Error::new(io::ErrorKind::ConnectionAborted, "cut by this side"))
    }
}

impl<S> Wire<S> {
    /// Watches `stream`, and lets `frames` listen.
    pub fn new(stream: S, frames: Option<Frames>) -> (Self, Arc<Line>) {
        let line = Arc::new(Line { heard: clock::tick().0.into(), ..Line::default() });
        (Self { stream, line: line.clone(), opening: Some(Vec::new()), frames }, line)
    }

    /// Looks at inbound bytes until the peer's open frame has passed.
    fn watch(&mut self, bytes: &[u8]) {
        /// An open frame is far below this; what is longer is not understood and left alone.
        const LIMIT: usize = 64 << 10;
        let Some(seen) = &mut self.opening else { return };
        seen.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(unit) = Unit::first(&seen[at..]) {
            at += unit.len;
            let mut peer = self.line.peer.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(open) = unit.body.and_then(|body| peer.learn(unit.kind, body)) {
                peer.product = text_of(&open, "product");
                peer.version = text_of(&open, "version");
                drop(peer);
                self.opening = None;
                return;
            }
        }
        seen.drain(..at);
        if seen.len() > LIMIT {
            self.opening = None;
        }
    }
}

impl Peer {
    /// RabbitMQ before 4.0, whose AMQP 1.0 is a translation to AMQP 0.9.1 and differs in places.
    pub fn is_old_rabbitmq(&self) -> bool {
        self.is_rabbitmq() && self.version.starts_with("3.")
    }

    /// Any RabbitMQ.
    pub fn is_rabbitmq(&self) -> bool {
        self.product.eq_ignore_ascii_case("rabbitmq")
    }

    /// Takes in SASL mechanisms; returns an open frame.
    fn learn(&mut self, kind: u8, body: &[u8]) -> Option<Open> {
        const SASL: u8 = 1;
        if kind == SASL {
            if let Ok(offered) = serde_amqp::from_slice::<SaslMechanisms>(body) {
                self.mechanisms = offered.sasl_server_mechanisms.0.iter().map(|m| m.as_str().to_owned()).collect();
            }
            return None;
        }
        serde_amqp::from_slice(body).ok()
    }
}

fn text_of(open: &Open, key: &str) -> String {
    match open.properties.as_ref().and_then(|properties| properties.get(&Symbol::from(key))) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Symbol(text)) => text.as_str().to_owned(),
        _ => String::new(),
    }
}

/// How a protocol header begins.
const MAGIC: &[u8] = b"AMQP";

/// A protocol header (no body) or a frame at the start of a buffer.
pub(super) struct Unit<'a> {
    /// All of it.
    pub len: usize,
    /// 0: AMQP; 1: SASL.
    pub kind: u8,
    /// A frame's channel.
    pub channel: u16,
    /// What is in a frame, if anything is.
    pub body: Option<&'a [u8]>,
    head: [u8; 8],
}

impl<'a> Unit<'a> {
    /// `None`: not whole yet, or not AMQP.
    pub fn first(bytes: &'a [u8]) -> Option<Self> {
        const HEADER: usize = 8;
        let head = *bytes.first_chunk::<HEADER>()?;
        if head.starts_with(MAGIC) {
            return Some(Self { len: HEADER, kind: 0, channel: 0, body: None, head });
        }
        let [a, b, c, d, offset, kind, high, low] = head;
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        let offset = usize::from(offset) * 4;
        let body = bytes.get(..len)?.get(offset..).filter(|_| offset >= HEADER)?;
        let channel = u16::from_be_bytes([high, low]);
        Some(Self { len, kind, channel, body: (!body.is_empty()).then_some(body), head })
    }

    /// Whether this is a protocol header, and no frame.
    pub fn is_header(&self) -> bool {
        self.head.starts_with(MAGIC)
    }

    /// The protocol and its version, as numbers with dots.
    pub fn header(&self) -> String {
        let [.., id, major, minor, revision] = self.head;
        format!("{id}.{major}.{minor}.{revision}")
    }
}

impl<S> fmt::Debug for Wire<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

impl<S> Drop for Wire<S> {
    fn drop(&mut self) {
        self.line.closed.store(true, Ordering::Release);
        self.line.gone.notify_one();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.line.waker.register(cx.waker());
        if let Some(error) = self.line.ended() {
            return Poll::Ready(Err(error));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            self.line.heard.store(clock::tick().0, Ordering::Relaxed);
            if self.opening.is_some() {
                self.watch(&buf.filled()[before..]);
            }
            if let Some(frames) = &mut self.frames {
                frames.passed(Way::Received, &buf.filled()[before..]);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.line.waker.register(cx.waker());
        if let Some(error) = self.line.ended() {
            return Poll::Ready(Err(error));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        if let Some(frames) = &mut self.frames {
            frames.passed(Way::Sent, &buf[..written]);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.line.ended() {
            Some(error) => Poll::Ready(Err(error)),
            None => Pin::new(&mut self.stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.line.ended() {
            Some(_) => Poll::Ready(Ok(())),
            None => Pin::new(&mut self.stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use fe2o3_amqp_types::definitions::Fields;
    use fe2o3_amqp_types::performatives::{ChannelMax, MaxFrameSize};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn open() -> Vec<u8> {
        let mut properties = Fields::new();
        properties.insert(Symbol::from("product"), Value::String("RabbitMQ".into()));
        properties.insert(Symbol::from("version"), Value::String("3.10.8".into()));
        let open = Open {
            container_id: "c".into(),
            hostname: None,
            max_frame_size: MaxFrameSize(1024),
            channel_max: ChannelMax(7),
            idle_time_out: None,
            outgoing_locales: None,
            incoming_locales: None,
            offered_capabilities: None,
            desired_capabilities: None,
            properties: Some(properties),
        };
        frame(0, serde_amqp::to_vec(&open).expect("encodes"))
    }

    fn frame(kind: u8, body: Vec<u8>) -> Vec<u8> {
        let mut frame = u32::try_from(body.len() + 8).expect("small").to_be_bytes().to_vec();
        frame.extend([2, kind, 0, 0]);
        frame.extend(body);
        frame
    }

    #[tokio::test]
    async fn learns_who_the_peer_is_however_the_bytes_fall() {
        let mut bytes = b"AMQP\x03\x01\x00\x00".to_vec();
        let offered =
            SaslMechanisms { sasl_server_mechanisms: vec![Symbol::from("PLAIN"), Symbol::from("EXTERNAL")].into() };
        bytes.extend(frame(1, serde_amqp::to_vec(&offered).expect("encodes")));
        bytes.extend(b"AMQP\x00\x01\x00\x00");
        bytes.extend(open());
        bytes.extend([9; 100]);
        for piece in [1, 7, 1000] {
            let (near, mut far) = tokio::io::duplex(bytes.len());
            let (mut wire, line) = Wire::new(near, None);
            far.write_all(&bytes).await.expect("room");
            let mut read: Vec<u8> = Vec::new();
            while read.len() < bytes.len() {
                let mut buffer = vec![0; piece];
                let n = wire.read(&mut buffer).await.expect("reads");
                read.extend(&buffer[..n]);
            }
            assert_eq!(read, bytes, "nothing is changed on the way in");
            let peer = line.peer();
            assert_eq!((peer.product.as_str(), peer.version.as_str()), ("RabbitMQ", "3.10.8"));
            assert_eq!(peer.mechanisms, ["PLAIN", "EXTERNAL"]);
        }
    }

    #[tokio::test]
    async fn a_cut_ends_a_read_that_waits_and_is_seen_from_outside() {
        let (near, _far) = tokio::io::duplex(16);
        let (mut wire, line) = Wire::new(near, None);
        let reader = tokio::spawn(async move { wire.read_u8().await });
        tokio::task::yield_now().await;
        line.cut();
        line.closed().await;
        assert!(reader.await.expect("no panic").is_err());
    }

    #[test]
    fn garbage_is_not_a_frame() {
        for bytes in
            [&[0u8; 8][..], &[0, 0, 0, 9, 0, 0, 0, 0, 1], &[0, 0, 0, 4, 2, 0, 0, 0], &[255; 20], b"HTTP/1.1 400"]
        {
            assert!(Unit::first(bytes).is_none_or(|unit| unit.len >= 8), "{bytes:?}");
        }
    }
}
