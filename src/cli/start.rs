//! `runtime start FILE`: run a topology until it ends, is drained, or cannot go on.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::progress::Progress;
use super::{Exit, block_on, fail, load};
use crate::broker::{Broker, BrokerConfig, Feed};
use crate::checkpoint::{SessionError, StoreError};
use crate::flow::registry::Registry;
use crate::runtime::{self, End, LogLimits, Options, Placement, Running, StartError, Status};
use crate::telemetry::{Telemetry, http};
use crate::topology::{self, Topology};

#[derive(Args)]
pub(super) struct Arguments {
    /// The topology file.
    file: PathBuf,
    /// Accept targets that have epochs from another checkpoint store: after a store was emptied. Messages which that store
    /// had committed but not settled may then come twice. Refused on a store that has epochs in it.
    #[arg(long)]
    new_store: bool,
    /// Serve /metrics, /live, /ready and /version here, in place of the file's `telemetry.listen`.
    #[arg(long, env = "RUNTIME_TELEMETRY", value_name = "ADDRESS:PORT")]
    telemetry: Option<SocketAddr>,
}

pub(super) const EXAMPLE: &str = "Examples:
  runtime start topology.yaml
  runtime start topology.yaml --telemetry 0.0.0.0:9464    for a container
  runtime start topology.yaml --log amqp=debug

SIGTERM or Ctrl-C drains: what was received is committed and settled. A second Ctrl-C stops at once, and nothing is lost.";

pub(super) fn run(arguments: Arguments, registry: &Registry) -> Exit {
    let (mut topology, text) = match load(&arguments.file, registry) {
        Ok(loaded) => loaded,
        Err(exit) => return exit,
    };
    for note in topology.notes.iter().filter(|note| note.contains("warning")) {
        tracing::warn!("{note}");
    }
    topology.telemetry.listen = arguments.telemetry.or(topology.telemetry.listen);
    let hash = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes()));
    match block_on(start(topology, hash, arguments.new_store)) {
        Ok(exit) => exit,
        Err(error) => fail(Exit::Failed, format!("cannot start: {error}")),
    }
}

async fn start(topology: Topology, hash: String, new_store: bool) -> Exit {
    let telemetry = Telemetry::new(topology.name.to_string());
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => return fail(Exit::Failed, format!("cannot listen for signals: {error}")),
    };
    let broker = match topology.broker.as_ref().map(|section| embedded(section, section.feed.clone())).transpose() {
        Ok(broker) => broker,
        Err(why) => return fail(Exit::Failed, why),
    };
    let whereabouts = whereabouts(&topology);
    let listen = topology.telemetry.listen;
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
    let mut running = match runtime::start(topology, options).await {
        Ok(running) => running,
        Err(error) => return fail(refused(&error), error),
    };
    let shutdown = CancellationToken::new();
    if let Some(listen) = listen
        && let Err(why) = serve(listen, &telemetry, &running.status, hash, &shutdown)
    {
        running.kill();
        running.end().await;
        return fail(Exit::Failed, why);
    }
    let progress = Progress::new(telemetry.clone());
    let (end, elapsed) = watch(&mut running, &mut signals, progress).await;
    shutdown.cancel();
    if let Some(broker) = broker {
        broker.stop().await;
    }
    summary(&telemetry, elapsed);
    match end {
        End::Drained => {
            whereabouts.iter().for_each(|place| eprintln!("{place}"));
            Exit::Done
        }
        End::Killed => fail(Exit::Failed, "stopped at once; what was not settled is delivered again"),
        End::Failed(why) => fail(Exit::Failed, why),
        End::LostLog(entry) => {
            let why = "another process has taken over the checkpoint log";
            fail(Exit::LogLost, format!("{why} (entry {entry}): let only one process use a store"))
        }
    }
}

/// Waits for the end; the first signal drains, a second interrupt ends at once.
async fn watch(running: &mut Running, signals: &mut Signals, mut progress: Progress) -> (End, Duration) {
    let mut ticks = tokio::time::interval(progress.period());
    ticks.tick().await;
    let mut interrupted = false;
    loop {
        tokio::select! {
            end = running.end() => return (end, progress.elapsed()),
            interrupt = signals.next() => {
                if interrupt && interrupted {
                    running.kill();
                } else {
                    running.drain();
                }
                interrupted |= interrupt;
            }
            _ = ticks.tick() => progress.show(),
        }
    }
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next one; whether it was SIGINT.
    async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.interrupt.recv() => true,
            _ = self.terminate.recv() => false,
        }
    }
}

/// Waits for SIGINT or SIGTERM.
pub(super) async fn signalled() {
    match Signals::new() {
        Ok(mut signals) => {
            signals.next().await;
        }
        // Without signals there is nothing to wait for but the end of the process.
        Err(_) => std::future::pending().await,
    }
}

/// Starts a topology's own broker, on a thread of its own.
pub(super) fn embedded(section: &topology::BrokerConfig, feed: Vec<Feed>) -> Result<Broker, String> {
    let listen = section.listen;
    Broker::start_on_thread(BrokerConfig { listen, feed, ..BrokerConfig::default() }).map_err(|error| {
        format!(
            "the embedded broker cannot listen on {listen}: {error}; stop what listens there, or choose another port"
        )
    })
}

/// Where the rows are, and how to look at them.
fn whereabouts(topology: &Topology) -> Vec<String> {
    let sinks = topology.sinks.values().filter_map(|spec| Some((&spec.name, spec.kind.whereabouts(&spec.config)?)));
    sinks.map(|(name, place)| format!("{name}: {place}")).collect()
}

struct Probe(Status);

impl http::Health for Probe {
    /// Asked by a server on the main arbiter: that it answers is the sign of life.
    fn live(&self) -> bool {
        true
    }

    fn not_ready(&self) -> Vec<String> {
        self.0.reasons()
    }
}

fn serve(
    listen: SocketAddr,
    telemetry: &Telemetry,
    status: &Status,
    hash: String,
    shutdown: &CancellationToken,
) -> Result<(), String> {
    let health = Arc::new(Probe(status.clone()));
    let (address, server) = http::serve(listen, telemetry.clone(), health, hash, shutdown.clone())
        .map_err(|error| format!("telemetry.listen: cannot listen on {listen}: {error}"))?;
    tracing::info!(%address, "serving /metrics, /live, /ready and /version");
    actix::spawn(async move {
        if let Err(error) = server.await {
            tracing::error!(%error, "the telemetry server stopped");
        }
    });
    Ok(())
}

fn refused(error: &StartError) -> Exit {
    match error {
        StartError::Session(SessionError::Lost(_) | SessionError::Store(StoreError::Locked { .. })) => Exit::LogLost,
        _ => Exit::Failed,
    }
}

fn summary(telemetry: &Telemetry, elapsed: Duration) {
    for (receiver, tally) in telemetry.tallies() {
        let seconds = elapsed.as_secs_f64();
        let rate = if seconds > 0.0 { tally.committed as f64 / seconds } else { 0.0 };
        eprintln!(
            "{receiver}: received {}, committed {}, rejected {}, duplicates dropped {}, restarts {}, checkpoints {}, \
             {seconds:.1} s, {rate:.0}/s",
            tally.received, tally.committed, tally.rejected, tally.duplicates, tally.restarts, tally.checkpoints,
        );
    }
}
