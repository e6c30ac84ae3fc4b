//! From an address to an attached link: socket, login, connection, session, receiver, within one time limit.
//!
//! Every link has a connection of its own: delivery numbers then run without gaps, one unsettled delivery never stops
//! another partition's window, and an error says whose it is.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fe2o3_amqp::Receiver;
use fe2o3_amqp::connection::Connection;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::Session;
use fe2o3_amqp_types::definitions::SenderSettleMode;
use fe2o3_amqp_types::messaging::Source as Terminus;
use serde_amqp::Value;
use serde_amqp::described::Described;
use serde_amqp::descriptor::Descriptor;
use serde_amqp::primitives::Symbol;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Plan;
use super::config::Place;
use super::credit::Credit;
use super::frames::Frames;
use super::link::{Attached, Cutting, Inbox, start};
use super::reaction::{Failure, explain};
use super::rows::{Headers, Rows};
use super::wire::{Line, Wire};
use crate::flow::{Link, Result, Source, SourceContext};

/// How long the socket of the link before may take to close.
const HANG_UP_LIMIT: Duration = Duration::from_secs(1);

/// The receiver's name and code for a JMS selector among the filters of a source.
const SELECTOR: (&str, u64) = ("apache.org:selector-filter:string", 0x0000_468C_0000_0004);

/// One partition's consumer.
pub(super) struct Consumer {
    plan: Arc<Plan>,
    context: SourceContext,
    /// The socket of the link before.
    before: Option<Arc<Line>>,
}

impl Consumer {
    pub fn new(plan: Arc<Plan>, context: SourceContext) -> Self {
        Self { plan, context, before: None }
    }
}

#[async_trait]
impl Source for Consumer {
    async fn connect(&mut self) -> Result<Link> {
        // One connection per partition at the broker, however often it reconnects.
        if let Some(line) = self.before.take() {
            line.cut();
            let _ = timeout(HANG_UP_LIMIT, line.closed()).await;
        }
        let (place, login) = self.place()?;
        let limit = self.plan.config.connect_timeout.0;
        let mut step = "connecting";
        let opened = timeout(limit, self.open(&place, login, &mut step)).await;
        let attached = opened.unwrap_or_else(|_| Err(Failure::Silence(step, limit))).map_err(|e| explain(e, &place))?;
        self.before = Some(attached.line.0.clone());
        if attached.receiver.source().as_ref().is_none_or(|source| source.address.is_none()) {
            tracing::warn!(broker = %place, queue = place.queue, "the broker attached the receiver without naming its source; if nothing arrives, try 'capabilities: [queue]'");
        }
        let peer = attached.line.0.peer();
        let inbox = Inbox { rows: Rows::new(self.plan.config.format, Headers::of(&peer)), credit: Credit::new(&peer) };
        Ok(start(attached, inbox, place, self.plan.config.idle_timeout.0))
    }

    async fn probe(&mut self) -> Result<String> {
        let (place, _) = self.place()?;
        self.connect().await?.close().await;
        Ok(format!("{place}, {}: attached to queue '{}', nothing taken", place.whom(), place.queue))
    }
}

impl Consumer {
    /// Where it connects and as whom, read now: user and password for the wire, the place for people.
    fn place(&self) -> Result<(Place, Option<(String, String)>)> {
        let login = self.plan.address.login()?;
        let place = Place {
            host: self.plan.address.host(&self.context)?,
            queue: self.plan.config.queue.clone(),
            user: login.as_ref().map(|(user, _)| user.clone()),
        };
        Ok((place, login))
    }

    async fn open(
        &self,
        place: &Place,
        login: Option<(String, String)>,
        step: &mut &'static str,
    ) -> Result<Attached, Failure> {
        let (host, port) = &place.host;
        let socket = TcpStream::connect((host.as_str(), *port)).await.map_err(Failure::Dial)?;
        // An accept followed by another small frame would wait 40 ms for the acknowledgement of the first.
        socket.set_nodelay(true).map_err(Failure::Dial)?;
        self.attach(socket, place, login, step).await
    }

    /// All of it but the socket.
    async fn attach<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        stream: S,
        place: &Place,
        login: Option<(String, String)>,
        step: &mut &'static str,
    ) -> Result<Attached, Failure> {
        let config = &self.plan.config;
        let (wire, line) = Wire::new(stream, Frames::listened_to(&self.context.partition, place));
        let line = Cutting(line);
        *step = "opening the connection";
        let profile = match login {
            Some((username, password)) => SaslProfile::Plain { username, password },
            None => SaslProfile::Anonymous,
        };
        let idle = u32::try_from(config.idle_timeout.0.as_millis()).unwrap_or(u32::MAX);
        let frame = u32::try_from(config.max_frame_size.0).unwrap_or(u32::MAX);
        let mut connection = Connection::builder()
            .container_id(self.container_id())
            .hostname(Some(place.host.0.as_str()))
            .sasl_profile(profile)
            .idle_time_out(idle)
            .max_frame_size(frame)
            .open_with_stream(wire)
            .await
            .map_err(|e| Failure::Open(e, line.0.peer().mechanisms))?;
        *step = "beginning a session";
        let mut session = Session::begin(&mut connection).await.map_err(Failure::Begin)?;
        *step = "attaching the receiver";
        let receiver = Receiver::builder()
            .name(self.link_name())
            .source(self.terminus())
            .sender_settle_mode(SenderSettleMode::Unsettled)
            .credit_mode(CreditMode::Manual)
            .attach(&mut session)
            .await
            .map_err(Failure::Attach)?;
        Ok(Attached { receiver, session, connection, line })
    }

    fn container_id(&self) -> String {
        let partition = &self.context.partition;
        match &self.plan.config.container_id {
            Some(id) => format!("{id}-{}", partition.index),
            None => format!("{}/{partition}/{}", self.context.topology, uuid::Uuid::new_v4().simple()),
        }
    }

    /// Never the same twice: a name that is still attached somewhere would be taken over, or refused.
    fn link_name(&self) -> String {
        format!("{}/{}", self.context.partition, uuid::Uuid::new_v4().simple())
    }

    fn terminus(&self) -> Terminus {
        let config = &self.plan.config;
        let mut source = Terminus::builder().address(config.queue.as_str());
        if !config.capabilities.is_empty() {
            let capabilities: Vec<Symbol> = config.capabilities.iter().map(|c| Symbol::from(c.as_str())).collect();
            source = source.capabilities(capabilities);
        }
        if let Some(selector) = &config.selector {
            let (name, code) = SELECTOR;
            let value = Described { descriptor: Descriptor::Code(code), value: Value::String(selector.clone()) };
            source = source.add_to_filter(name, value);
        }
        source.build()
    }
}
