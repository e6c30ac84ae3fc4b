//! The embedded AMQP 1.0 broker: for first runs, demonstrations and tests, when no broker is at hand.
//!
//! It keeps every message **in memory** and is gone with its process; it listens on loopback, speaks no TLS, and says
//! both in its log. For work that must outlive a process take a real broker: the receivers do not know the difference.
//!
//! What it keeps to, because tests of exactly-once stand on it:
//! - *True credit*: a message leaves its queue only for a link that has credit, and is written at once.
//! - *Nothing is lost between consumers*: a message is ready, unsettled on one link, or answered for. Whatever a link, a
//!   session or a connection held when it ended goes back to its old place in the queue, before the end is answered. So
//!   an answered close says that all settlements before it have arrived.
//! - *Windows count frames*, not unsettled deliveries.
//!
//! Outcomes: accepted is done; released comes back; modified comes back and counts in the header's `delivery-count` if it
//! says *delivery-failed*, and goes to other links only if it says *undeliverable-here*; rejected goes to the queue's
//! dead list. A delivery that is settled without outcome, or whose link ends, gets the default outcome of the link's
//! source, otherwise it is released. Every message that was given out before says `first-acquirer: false`.
//!
//! Deliberately absent: persistence, topics, transactions, browsing, selectors, priorities, time to live, dynamic
//! queues, resuming links. What is asked for and absent is refused by name, except priority and time to live, which are
//! carried and not acted upon, and selectors, which are answered by an attach without filter.
//!
//! Memory: producers get credit while all messages together take less than [`BrokerConfig::max_memory`]; beyond it only
//! what was already granted comes in. A queue keeps its newest 10,000 rejected messages. A connection buffers at most
//! 256 KiB of deliveries (and one frame), and one message of up to 128 MiB that is still arriving per link.
//!
//! | file | what |
//! |---|---|
//! | `server.rs` | sockets and tasks; the only I/O |
//! | `connection.rs` `session.rs` `link.rs` | the protocol as state machines: bytes in, bytes out |
//! | `queue.rs` `store.rs` `unsettled.rs` `message.rs` | where messages are |
//! | `login.rs` `wire.rs` `fault.rs` | SASL, bytes, errors |
//! | `feed.rs` | a client that fills a queue |

mod connection;
mod fault;
pub mod feed;
mod link;
mod login;
mod message;
mod queue;
mod server;
mod session;
mod store;
#[cfg(test)]
mod tests;
mod unsettled;
mod wire;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::queue::{QueueStats, Rejected};
pub use crate::payload::Feed;

use self::connection::Terms;
use self::login::Login;
use self::server::Server;
use self::store::Store;
use crate::flow::Secret;
use crate::units::{Size, Span};

/// The embedded broker: in memory, for first runs and tests.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BrokerConfig {
    /// Address and port to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The only user who may connect, by SASL PLAIN. Without it everybody may.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<Secret>,
    /// Create a queue when it is first used. Otherwise a queue that is not listed is refused with `amqp:not-found`.
    pub auto_create: bool,
    /// Queues that exist from the start; those of `feed` do in any case.
    pub queues: Vec<String>,
    /// Messages to send when the broker has started.
    pub feed: Vec<Feed>,
    /// The largest frame that is taken, and that is sent if the peer takes it.
    pub max_frame_size: u32,
    /// The highest channel, so the number of sessions on a connection less one.
    pub channel_max: u16,
    /// How long a connection may be silent.
    pub idle_timeout: Span,
    /// How much memory messages may take before producers have to wait.
    pub max_memory: Size,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            user: None,
            password: None,
            auto_create: true,
            queues: Vec::new(),
            feed: Vec::new(),
            max_frame_size: 256 * 1024,
            channel_max: 1023,
            idle_timeout: Span(Duration::from_secs(60)),
            max_memory: Size(1 << 30),
        }
    }
}

/// A running broker. Dropping it stops it, without waiting for the end.
#[derive(Debug)]
pub struct Broker {
    address: SocketAddr,
    store: Arc<Store>,
    kill: watch::Sender<u64>,
    stop: CancellationToken,
    finished: CancellationToken,
}

impl Broker {
    /// Listens, and works as tasks of the current tokio runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime, as [`tokio::spawn`] does.
    pub fn start(config: BrokerConfig) -> io::Result<Self> {
        let (broker, work) = Self::prepare(config)?;
        tokio::spawn(work.run());
        Ok(broker)
    }

    /// Listens, and works on a thread of its own, so that it neither starves nor is starved by what else the process does.
    pub fn start_on_thread(config: BrokerConfig) -> io::Result<Self> {
        let (broker, work) = Self::prepare(config)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("broker".to_owned()).spawn(move || runtime.block_on(work.run()))?;
        Ok(broker)
    }

    fn prepare(config: BrokerConfig) -> io::Result<(Self, Work)> {
        let login = match (config.user, config.password) {
            (None, None) => Login::Anyone,
            (Some(user), password) => Login::User(user, password.unwrap_or_else(|| Secret::new(""))),
            (None, Some(_)) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the broker has a password but no user: add one",
                ));
            }
        };
        let listener = std::net::TcpListener::bind(config.listen).map_err(|e| {
            io::Error::new(e.kind(), format!("the broker cannot listen on {}: {e}; choose another port", config.listen))
        })?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;

        let store = Arc::new(Store::new(config.max_memory.0, config.auto_create));
        let fed = config.feed.iter().map(|feed| &feed.queue);
        for queue in config.queues.iter().chain(fed) {
            store.declare(queue);
        }
        let terms = Terms {
            login: login.clone(),
            max_frame_size: config.max_frame_size.max(connection::MIN_FRAME),
            channel_max: config.channel_max,
            idle_timeout: config.idle_timeout.0,
        };
        let (kill, killed) = watch::channel(0);
        let broker = Self {
            address,
            store: store.clone(),
            kill,
            stop: CancellationToken::new(),
            finished: CancellationToken::new(),
        };
        let server = Server { terms: Arc::new(terms), store, kill: killed, stop: broker.stop.clone() };
        tracing::info!(%address, "the embedded broker listens; its messages are in memory only and end with it");
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "the embedded broker has no TLS and is meant for loopback: others may reach it");
        }
        let finished = broker.finished.clone();
        Ok((broker, Work { server, listener, feeds: config.feed, login, address, finished }))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What a client connects to, without user and password.
    pub fn url(&self) -> String {
        format!("amqp://{}", self.address)
    }

    /// Creates a queue, if it is not there yet.
    pub fn declare(&self, queue: &str) {
        self.store.declare(queue);
    }

    /// Numbers of all queues, by name.
    pub fn stats(&self) -> BTreeMap<String, QueueStats> {
        self.store.all().iter().map(|queue| (queue.name.clone(), queue.stats())).collect()
    }

    /// Numbers of one queue; zeros if there is none.
    pub fn queue(&self, name: &str) -> QueueStats {
        self.store.get(name).map(|queue| queue.stats()).unwrap_or_default()
    }

    /// The newest messages of a queue that consumers rejected, oldest first.
    pub fn rejected(&self, name: &str) -> Vec<Rejected> {
        self.store.get(name).map(|queue| queue.rejected()).unwrap_or_default()
    }

    /// Cuts the sockets of all connections that are open now, without a word, as a network or a dying broker does.
    pub fn kill_connections(&self) {
        self.kill.send_modify(|cuts| *cuts += 1);
    }

    /// Closes all connections in good order and waits until everything has ended. The messages are gone then.
    pub async fn stop(self) {
        self.stop.cancel();
        self.finished.cancelled().await;
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What runs behind a [`Broker`].
struct Work {
    server: Server,
    listener: std::net::TcpListener,
    feeds: Vec<Feed>,
    login: Login,
    address: SocketAddr,
    finished: CancellationToken,
}

impl Work {
    async fn run(self) {
        // Also when this panics or its runtime ends: nobody waits for ever.
        let _finished = self.finished.drop_guard();
        let listener = match tokio::net::TcpListener::from_std(self.listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "the embedded broker cannot listen"),
        };
        let stop = self.server.stop.clone();
        let feeds = self.feeds.into_iter().map(|feed| feed::run(feed, self.address, &self.login, stop.clone()));
        tokio::join!(self.server.run(listener), futures::future::join_all(feeds));
    }
}

/// Runs a broker until `shutdown`: all that `runtime broker` does.
pub async fn serve(config: BrokerConfig, shutdown: CancellationToken) -> io::Result<()> {
    let broker = Broker::start(config)?;
    shutdown.cancelled().await;
    for (queue, stats) in broker.stats() {
        tracing::info!(
            queue,
            ready = stats.ready,
            unsettled = stats.unsettled,
            accepted = stats.accepted,
            rejected = stats.rejected,
            redelivered = stats.redelivered,
            "the embedded broker stops"
        );
    }
    broker.stop().await;
    Ok(())
}
