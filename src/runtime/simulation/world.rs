//! What outlives a simulated process: the queue, the tables, the stores, the dice, and what was seen.
//!
//! A process reaches all of it through its [`Hands`]. To crash it they are cut: none of its operations begins or ends any
//! more, but what it had sent may still land.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;

use super::checks::Evidence;
use super::faults::{Fault, Fired, Manner, Op};
use super::source::LinkShared;
use crate::checkpoint::MemoryStore;
use crate::clock;
use crate::connectors::memory::{Queue, Space};

/// Clones are the same world.
#[derive(Clone)]
pub(super) struct World {
    pub space: Space,
    state: Arc<Mutex<State>>,
}

/// What is behind the world's lock. Never held across an await.
pub(super) struct State {
    pub rng: StdRng,
    /// Nothing goes wrong any more.
    pub calm: bool,
    /// How many operations may still go wrong.
    pub appetite: u32,
    pub fired: Fired,
    pub evidence: Evidence,
    pub stores: Vec<MemoryStore>,
    /// Links that are up at the broker, by their number there.
    pub links: BTreeMap<u64, std::sync::Weak<LinkShared>>,
    /// How many things of each process and partition exist: connectors and factories.
    pub tokens: BTreeMap<(usize, Option<u32>), u64>,
    /// How often a partition's sink was looked at.
    pub looks: BTreeMap<(u32, String), u64>,
    violation: Option<String>,
    trace: VecDeque<String>,
    steps: u64,
    /// Of all that happened.
    digest: u64,
}

/// How a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pulse {
    Running,
    Paused,
    Cut,
}

const TRACE: usize = 300;

impl World {
    pub fn new(seed: u64, appetite: u32, stores: usize) -> Self {
        let state = State {
            rng: StdRng::seed_from_u64(seed),
            calm: false,
            appetite,
            fired: Fired::default(),
            evidence: Evidence::default(),
            stores: (0..stores).map(|_| MemoryStore::new()).collect(),
            links: BTreeMap::new(),
            tokens: BTreeMap::new(),
            looks: BTreeMap::new(),
            violation: None,
            trace: VecDeque::new(),
            steps: 0,
            digest: 0,
        };
        Self { space: Space::default(), state: Arc::new(Mutex::new(state)) }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn queue(&self) -> Queue {
        self.space.queue("queue")
    }

    pub fn count(&self, fault: Fault) {
        let mut state = self.state();
        state.fired.count(fault);
        state.note(format!("! {fault:?}"));
    }

    pub fn note(&self, what: impl Into<String>) {
        self.state().note(what.into());
    }

    /// A random number below `n`.
    pub fn roll(&self, n: u64) -> u64 {
        self.state().rng.random_range(0..n.max(1))
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&self, percent: u32) -> bool {
        self.state().rng.random_range(0..100) < percent
    }

    /// A random time between two.
    pub fn millis(&self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.state().rng.random_range(from..=to))
    }

    /// Looks at what the tables show; the first contradiction counts.
    pub fn check(&self) {
        let mut state = self.state();
        let found = state.evidence.scan(&self.space);
        if let Err(broken) = found {
            state.violated(broken);
        }
    }

    pub fn violation(&self) -> Option<String> {
        self.state().violation.clone()
    }

    /// What happened last.
    pub fn story(&self) -> Vec<String> {
        self.state().trace.iter().cloned().collect()
    }

    /// How much happened, and a digest of all of it.
    pub fn digest(&self) -> (u64, u64) {
        let state = self.state();
        (state.steps, state.digest)
    }
}

impl State {
    pub fn note(&mut self, what: String) {
        self.steps += 1;
        if self.trace.len() == TRACE {
            self.trace.pop_front();
        }
        let line = format!("{:>7} ms  {what}", clock::tick().0);
        self.digest = xxhash_rust::xxh3::xxh3_64_with_seed(line.as_bytes(), self.digest);
        self.trace.push_back(line);
    }

    pub fn violated(&mut self, what: impl std::fmt::Display) {
        if self.violation.is_none() {
            self.note(format!("VIOLATION {what}"));
            self.violation = Some(what.to_string());
        }
    }

    /// Whether a call of `op` goes wrong, and how.
    fn draw(&mut self, op: Op, partitions: u32) -> Option<Manner> {
        if self.calm || self.appetite == 0 || self.rng.random_range(0..1000) >= op.per_mille() {
            return None;
        }
        self.appetite -= 1;
        let manners = Manner::of(op);
        let manner = manners[self.rng.random_range(0..manners.len())];
        self.fired.count(Fault::At(op, manner));
        if op == Op::Prepare && manner != Manner::Delay && partitions > 1 {
            self.fired.count(Fault::DiedInARound);
        }
        Some(manner)
    }
}

/// How one simulated process reaches the world.
#[derive(Clone)]
pub(super) struct Hands {
    pub world: World,
    pub process: usize,
    pub partitions: u32,
    heart: Arc<Heart>,
}

/// Whether a process is alive. (A watch channel would wake those who wait in an order of its own.)
struct Heart {
    pulse: Mutex<Pulse>,
    changed: Notify,
}

/// What an operation is to do, once its time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Do,
    Fail,
    Hang,
    DoAndFail,
    FailAndDoLater(Duration),
}

impl Hands {
    pub fn new(world: World, process: usize, partitions: u32) -> Self {
        let heart = Heart { pulse: Mutex::new(Pulse::Running), changed: Notify::new() };
        Self { world, process, partitions, heart: Arc::new(heart) }
    }

    pub fn pulse(&self) -> Pulse {
        *self.heart.pulse.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, pulse: Pulse) {
        // Who is cut stays so.
        if self.pulse() != Pulse::Cut {
            *self.heart.pulse.lock().unwrap_or_else(PoisonError::into_inner) = pulse;
            self.heart.changed.notify_waiters();
        }
    }

    /// Returns when the process may act; never if it is cut.
    pub async fn alive(&self) {
        loop {
            let mut changed = std::pin::pin!(self.heart.changed.notified());
            changed.as_mut().enable();
            if self.pulse() == Pulse::Running {
                return;
            }
            changed.await;
        }
    }

    /// Whether what is under way lands: of a process that is gone, one half does not.
    pub fn lands(&self) -> bool {
        self.pulse() != Pulse::Cut || self.world.chance(50)
    }

    /// What every operation begins with: the time it takes, and what goes wrong.
    pub async fn begin(&self, op: Op, of: &str) -> Verdict {
        self.alive().await;
        let (latency, manner) = {
            let mut state = self.world.state();
            let latency = match state.rng.random_range(0..10) {
                0..5 => 0,
                5..9 => state.rng.random_range(1..10),
                _ => state.rng.random_range(10..300),
            };
            let manner = state.draw(op, self.partitions);
            if let Some(manner) = manner {
                state.note(format!("! process {} {of}: {op:?} {manner:?}", self.process));
            }
            (Duration::from_millis(latency), manner)
        };
        tokio::time::sleep(latency).await;
        match manner {
            None => {}
            Some(Manner::Error) => return Verdict::Fail,
            Some(Manner::Hang) => return Verdict::Hang,
            Some(Manner::Panic) => panic!("simulated panic in {op:?}"),
            Some(Manner::Delay) => tokio::time::sleep(self.world.millis(300, 12_000)).await,
            Some(Manner::AnswerLost) => return Verdict::DoAndFail,
            Some(Manner::Late) => return Verdict::FailAndDoLater(self.world.millis(100, 30_000)),
        }
        self.alive().await;
        Verdict::Do
    }

    /// Exists as long as the thing that owns it.
    pub fn token(&self, partition: Option<u32>) -> Token {
        let key = (self.process, partition);
        *self.world.state().tokens.entry(key).or_default() += 1;
        Token { world: self.world.clone(), key }
    }

    /// How many things of this process exist.
    pub fn tokens(&self) -> u64 {
        self.world.state().tokens.iter().filter(|((process, _), _)| *process == self.process).map(|(_, n)| n).sum()
    }
}

/// See [`Hands::token`].
pub(super) struct Token {
    world: World,
    key: (usize, Option<u32>),
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(n) = self.world.state().tokens.get_mut(&self.key) {
            *n -= 1;
        }
    }
}
