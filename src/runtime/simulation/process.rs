//! One simulated process: the real runtime, from its start to its end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::scenario::Scenario;
use super::store::FaultyStore;
use super::world::{Hands, Pulse, World};
use crate::flow::StageName;
use crate::runtime::{self, End, LogLimits, Options, Placement, Status};
use crate::telemetry::metrics::Telemetry;

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It did not start.
    Refused(String),
    Crashed,
    Panicked,
    Regularly(End),
}

enum Command {
    Crash,
    Drain,
}

/// What can be seen of a process from outside.
#[derive(Default)]
struct Window {
    inside: Option<(Status, Telemetry)>,
    ended: Option<Ended>,
}

/// A process that was started.
pub(super) struct Process {
    pub hands: Hands,
    pub slot: usize,
    /// When it is to crash.
    pub crash_at: Option<Instant>,
    pub resume_at: Option<Instant>,
    /// The operator has seen how it ended.
    pub looked_after: bool,
    commands: mpsc::UnboundedSender<Command>,
    window: Arc<Mutex<Window>>,
    _task: JoinHandle<()>,
}

impl Process {
    pub fn start(hands: Hands, slot: usize, new_store: bool, scenario: &Scenario) -> Self {
        let (commands, received) = mpsc::unbounded_channel();
        let window = Arc::new(Mutex::new(Window::default()));
        hands.world.note(format!("process {} starts with {} partitions", hands.process, hands.partitions));
        let life = live(hands.clone(), slot, new_store, scenario.clone(), received, window.clone());
        let (watched, seen) = (hands.clone(), window.clone());
        let task = actix::spawn(async move {
            let ended = actix::spawn(life).await.unwrap_or(Ended::Panicked);
            watched.world.note(format!("process {} ended: {ended:?}", watched.process));
            // What it still does is nobody's any more.
            watched.set(Pulse::Cut);
            lock(&seen).ended = Some(ended);
            // The deadlines of a process that ends are seconds; after that nothing of it may be left (I7).
            tokio::time::sleep(Duration::from_secs(10)).await;
            let left = watched.tokens();
            if left > 0 {
                let what = format!("I7: process {} has ended and {left} of its parts live on", watched.process);
                watched.world.state().violated(what);
            }
        });
        Self { hands, slot, crash_at: None, resume_at: None, looked_after: false, commands, window, _task: task }
    }

    pub fn ended(&self) -> Option<Ended> {
        lock(&self.window).ended.clone()
    }

    /// Whether it is at work: neither ended nor standing still.
    pub fn is_up(&self) -> bool {
        self.ended().is_none() && self.hands.pulse() == Pulse::Running
    }

    /// Whether it has read its log: only then a signal drains it.
    pub fn has_started(&self) -> bool {
        let window = lock(&self.window);
        window.inside.is_some() || window.ended.is_some()
    }

    /// Its hands are cut first; then its actors go. Its links die at the broker some time later.
    pub fn crash(&self) {
        self.hands.set(Pulse::Cut);
        let world = &self.hands.world;
        let links: Vec<_> = world.state().links.values().filter_map(std::sync::Weak::upgrade).collect();
        for link in links.into_iter().filter(|link| link.process() == self.hands.process) {
            let delay = world.millis(0, 3000);
            actix::spawn(async move {
                tokio::time::sleep(delay).await;
                link.die(Duration::ZERO);
            });
        }
        let _ = self.commands.send(Command::Crash);
    }

    pub fn drain(&self) {
        let _ = self.commands.send(Command::Drain);
    }

    /// Why partitions of it are parked.
    pub fn parked(&self) -> Vec<(u32, String)> {
        let window = lock(&self.window);
        let parked = window.inside.iter().flat_map(|(status, _)| status.parked_partitions());
        parked.map(|(partition, why)| (partition.index, why)).collect()
    }

    /// The most that a partition of it has unsettled.
    pub fn unsettled(&self) -> u64 {
        let window = lock(&self.window);
        let Some((_, telemetry)) = &window.inside else { return 0 };
        let partitions = 0..self.hands.partitions;
        let queue = StageName::from("queue");
        partitions.map(|index| telemetry.partition(&queue, index).tally().unsettled).max().unwrap_or_default()
    }

    /// Why it is not ready, for the story of a failure.
    pub fn reasons(&self) -> Vec<String> {
        lock(&self.window).inside.iter().flat_map(|(status, _)| status.reasons()).collect()
    }
}

fn lock(window: &Mutex<Window>) -> std::sync::MutexGuard<'_, Window> {
    window.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn live(
    hands: Hands,
    slot: usize,
    new_store: bool,
    scenario: Scenario,
    mut commands: mpsc::UnboundedReceiver<Command>,
    window: Arc<Mutex<Window>>,
) -> Ended {
    let topology = scenario.topology(&hands);
    let telemetry = Telemetry::new("simulated");
    let store = hands.world.state().stores[slot].clone();
    let options = Options {
        new_store,
        placement: Placement::Current,
        store: Some(Arc::new(FaultyStore { hands: hands.clone(), store })),
        embedded_broker: None,
        telemetry: telemetry.clone(),
        log_limits: LogLimits { copies: scenario.copy_limit, entries: scenario.entry_limit },
    };
    let started = tokio::select! {
        biased;
        // A signal before it has started ends a process.
        _ = commands.recv() => return Ended::Crashed,
        started = runtime::start(topology, options) => started,
    };
    let mut running = match started {
        Ok(running) => running,
        Err(error) => return Ended::Refused(error.to_string()),
    };
    lock(&window).inside = Some((running.status.clone(), telemetry.clone()));
    let mut crashed = false;
    loop {
        tokio::select! {
            biased;
            end = running.end() => {
                if end == End::Drained && !crashed {
                    check_drained(&hands.world, &telemetry, hands.partitions);
                }
                return if crashed { Ended::Crashed } else { Ended::Regularly(end) };
            }
            command = commands.recv() => match command {
                Some(Command::Drain) => running.drain(),
                Some(Command::Crash) | None => {
                    crashed = true;
                    running.kill();
                }
            },
        }
    }
}

/// After a drain nothing is unsettled (I7).
fn check_drained(world: &World, telemetry: &Telemetry, partitions: u32) {
    let queue = StageName::from("queue");
    let unsettled = (0..partitions).map(|index| telemetry.partition(&queue, index).tally().unsettled).sum();
    if let Err(broken) = crate::flow::invariants::quiet_after_drain(unsettled, 0) {
        world.state().violated(broken);
    }
}
