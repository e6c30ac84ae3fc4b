//! A topology within a process: what a program of your own starts, and what `runtime start` stands on.
//!
//! A program adds its translators and sinks to the [`standard`] registry. Then it either hands that to
//! [`cli::main`](crate::cli::main), and is the command line with its own kinds in it, or calls [`start`], and goes on with
//! its own work while the topology runs on threads of its own.
//!
//! Invariant: a [`Run`] that was started ends by itself, drained, killed or failed, whether or not anybody waits for it.
//! What it does not do: signals, a log and a progress line, which belong to the process; the command line has them.

use std::fmt;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::broker::{Broker, BrokerConfig, Feed};
use crate::clock;
use crate::flow::registry::Registry;
use crate::runtime::{self, LogLimits, Options, Placement, Running, Status};
use crate::telemetry::{Telemetry, http};
use crate::topology::{self, Problems, ProcessEnvironment, Topology};
use crate::{connectors, translators};

pub use crate::runtime::{End, StartError};

/// The kinds that come with this crate, for a program to add its own to.
#[must_use]
pub fn standard() -> Registry {
    translators::register(connectors::register(Registry::default()))
}

/// Why a topology does not run.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// There is something wrong in its text: every problem, with its place.
    #[error("{0}")]
    NotValid(#[from] Problems),
    /// The checkpoint log or a sink cannot be had.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A port or a thread cannot be had.
    #[error("{0}")]
    Process(String),
}

/// A topology at work on threads of its own. Dropping it ends it as a crash would: nothing is lost, and what was not
/// settled is delivered again.
pub struct Run {
    orders: mpsc::UnboundedSender<Order>,
    ended: oneshot::Receiver<End>,
    /// How it ended, once somebody has waited for it.
    end: Option<End>,
    thread: Option<JoinHandle<()>>,
    telemetry: Telemetry,
    status: Status,
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Drain,
    Kill,
}

/// Starts the topology in `yaml`, whose kinds are those of `registry`. Variables come from the environment of this process.
/// Returns when its checkpoint log is read and its partitions are being built.
///
/// # Errors
/// Every problem of the text with its place; or what the topology needs and cannot have.
pub fn start(yaml: &str, registry: &Registry) -> Result<Run, Refused> {
    let topology = topology::load(yaml, "topology", &ProcessEnvironment, registry)?;
    let hash = config_hash(yaml);
    let telemetry = Telemetry::new(topology.name.to_string());
    let counted = telemetry.clone();
    let (orders, mut inbox) = mpsc::unbounded_channel();
    let (tell_end, ended) = oneshot::channel();
    let (tell_start, started) = std::sync::mpsc::sync_channel(1);
    let work = move || async move {
        let mut hosted = match Hosted::start(topology, counted, hash, false).await {
            Ok(hosted) => hosted,
            Err(refused) => return drop(tell_start.send(Err(refused))),
        };
        // Whoever started it waits for this; if not, it is killed by its orders being gone.
        let _ = tell_start.send(Ok(hosted.running.status.clone()));
        let end = loop {
            tokio::select! {
                end = hosted.running.end() => break end,
                order = inbox.recv() => match order {
                    Some(Order::Drain) => hosted.running.drain(),
                    Some(Order::Kill) => hosted.running.kill(),
                    None => {
                        hosted.running.kill();
                        break hosted.running.end().await;
                    }
                },
            }
        };
        hosted.stop().await;
        let _ = tell_end.send(end);
    };
    let named = std::thread::Builder::new().name("topology".to_owned());
    let thread = named.spawn(move || block_on(work()).unwrap_or_default()).map_err(no_thread)?;
    let no_answer = |_| Refused::Process("the topology's thread ended before it started".to_owned());
    let status = started.recv().map_err(no_answer)??;
    Ok(Run { orders, ended, end: None, thread: Some(thread), telemetry, status })
}

fn no_thread(error: std::io::Error) -> Refused {
    Refused::Process(format!("cannot start the topology's thread: {error}"))
}

impl Run {
    /// Ends in good order: receives no more, commits and settles what was received.
    pub fn drain(&self) {
        // Without its thread it has ended.
        let _ = self.orders.send(Order::Drain);
    }

    /// Ends at once, as a crash would. Nothing is lost: what was not settled is delivered again.
    pub fn kill(&self) {
        let _ = self.orders.send(Order::Kill);
    }

    /// Waits for the end. Cancel-safe, and answers the same each time.
    pub async fn ended(&mut self) -> End {
        match &self.end {
            Some(end) => end.clone(),
            None => {
                let end = (&mut self.ended).await.unwrap_or_else(|_| broken());
                self.end.insert(end).clone()
            }
        }
    }

    /// Waits for the end, on this thread; not for async code, which has [`ended`](Self::ended).
    #[must_use = "it may have failed"]
    pub fn wait(mut self) -> End {
        if let Some(thread) = self.thread.take() {
            // A panic shows in what it left unsaid.
            let _ = thread.join();
        }
        self.end.take().unwrap_or_else(|| self.ended.try_recv().unwrap_or_else(|_| broken()))
    }

    /// Why it is not doing all of its work now, as `/ready` says it: a sentence each. Empty: it is.
    pub fn reasons(&self) -> Vec<String> {
        self.status.reasons()
    }

    /// What it counts.
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({})", self.telemetry.topology())
    }
}

fn broken() -> End {
    End::Failed("the topology's thread panicked; start it again, nothing is lost".to_owned())
}

/// A running topology and what is around it in its process: the broker it brings along, and its HTTP endpoints.
pub(crate) struct Hosted {
    pub running: Running,
    broker: Option<Broker>,
    shutdown: CancellationToken,
}

impl Hosted {
    /// Starts all of it on the current actix system.
    pub async fn start(
        topology: Topology,
        telemetry: Telemetry,
        config_hash: String,
        new_store: bool,
    ) -> Result<Self, Refused> {
        let listener = topology.telemetry.listen.map(http::bind).transpose().map_err(refused)?;
        let broker = topology.broker.as_ref().map(|section| embedded(section, section.feed.clone())).transpose()?;
        let threads = topology.receivers.values().map(|receiver| receiver.partitions as usize).sum::<usize>();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let options = Options {
            new_store,
            placement: Placement::Threads(threads.clamp(1, cores)),
            store: None,
            embedded_broker: broker.as_ref().map(Broker::address),
            telemetry: telemetry.clone(),
            log_limits: LogLimits::default(),
        };
        let mut running = runtime::start(topology, options).await?;
        let shutdown = CancellationToken::new();
        if let Some(listener) = listener
            && let Err(error) = serve(listener, telemetry, &running.status, config_hash, &shutdown)
        {
            running.kill();
            running.end().await;
            return Err(refused(error));
        }
        Ok(Self { running, broker, shutdown })
    }

    /// Stops what is around it, once it has ended.
    pub async fn stop(self) {
        self.shutdown.cancel();
        if let Some(broker) = self.broker {
            broker.stop().await;
        }
    }
}

fn refused(error: std::io::Error) -> Refused {
    Refused::Process(error.to_string())
}

/// Starts a topology's own broker, on a thread of its own.
pub(crate) fn embedded(section: &topology::BrokerConfig, feed: Vec<Feed>) -> Result<Broker, Refused> {
    let config = BrokerConfig { listen: section.listen, feed, ..BrokerConfig::default() };
    Broker::start_on_thread(config).map_err(|error| Refused::Process(format!("the embedded broker: {error}")))
}

/// What the endpoints ask. They answer on a thread of their own.
struct Probe {
    status: Status,
    /// When the main arbiter, where coordinator and supervisor are, last had its turn.
    turned: Arc<AtomicU64>,
}

impl Probe {
    /// So long the main arbiter may be without a turn: far beyond everything that it does.
    const STUCK: Duration = Duration::from_secs(30);

    /// On the main arbiter, for as long as `shutdown` has not come.
    fn new(status: Status, shutdown: CancellationToken) -> Self {
        let turned = Arc::new(AtomicU64::new(clock::tick().0));
        let turning = turned.clone();
        actix::spawn(shutdown.run_until_cancelled_owned(async move {
            loop {
                turning.store(clock::tick().0, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }));
        Self { status, turned }
    }
}

impl http::Health for Probe {
    fn live(&self) -> bool {
        let since = clock::tick().0.saturating_sub(self.turned.load(Ordering::Relaxed));
        Duration::from_millis(since) < Self::STUCK
    }

    fn not_ready(&self) -> Vec<String> {
        self.status.reasons()
    }
}

fn serve(
    listener: TcpListener,
    telemetry: Telemetry,
    status: &Status,
    hash: String,
    shutdown: &CancellationToken,
) -> std::io::Result<()> {
    let health = Arc::new(Probe::new(status.clone(), shutdown.clone()));
    let address = listener.local_addr()?;
    let server = http::serve(listener, telemetry, health, hash, shutdown.clone())?;
    tracing::info!(%address, "serving /metrics, /live, /ready and /version");
    actix::spawn(async move {
        if let Err(error) = server.await {
            tracing::error!(%error, "the telemetry server stopped");
        }
    });
    Ok(())
}

/// Tells whether two processes run the same text.
pub(crate) fn config_hash(yaml: &str) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(yaml.as_bytes()))
}

/// Runs `work` on an actix system of its own.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> std::io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut runtime = Some(runtime);
    // The system takes the one runtime; it asks once.
    let system = actix::System::with_tokio_rt(move || runtime.take().expect("asked once"));
    Ok(system.block_on(work))
}
