//! `runtime start FILE`: run a topology until it ends, is drained, or cannot go on.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::progress::Progress;
use super::{Exit, fail, load};
use crate::checkpoint::{SessionError, StoreError};
use crate::embed::{End, Hosted, Refused, StartError, block_on, config_hash};
use crate::flow::registry::Registry;
use crate::runtime::Running;
use crate::telemetry::Telemetry;
use crate::topology::Topology;

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
    match block_on(start(topology, config_hash(&text), arguments.new_store)) {
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
    let whereabouts = whereabouts(&topology);
    let mut hosted = match Hosted::start(topology, telemetry.clone(), hash, new_store).await {
        Ok(hosted) => hosted,
        Err(error) => return fail(refused(&error), error),
    };
    let progress = Progress::new(telemetry.clone());
    let (end, elapsed) = watch(&mut hosted.running, &mut signals, progress).await;
    hosted.stop().await;
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

/// Where the rows are, and how to look at them.
fn whereabouts(topology: &Topology) -> Vec<String> {
    let sinks = topology.sinks.values().filter_map(|spec| Some((&spec.name, spec.kind.whereabouts(&spec.config)?)));
    sinks.map(|(name, place)| format!("{name}: {place}")).collect()
}

fn refused(error: &Refused) -> Exit {
    match error {
        Refused::Start(StartError::Session(SessionError::Lost(_) | SessionError::Store(StoreError::Locked { .. }))) => {
            Exit::LogLost
        }
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
