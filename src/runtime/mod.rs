//! The actors, and how a partition's tree of them is built, supervised and drained.
//!
//! [`start`] takes the log over, fills the index of identities, and starts a coordinator and a supervisor; the supervisor
//! builds every partition (`partition`, the one list of stages). This is the only user of actix besides the command line.
//! It never imports a connector: what it runs comes with the [`Topology`].

mod accumulator;
mod batcher;
mod coordinator;
mod dead_letter;
mod exclusive;
mod exit_guard;
mod message;
mod partition;
mod placement;
mod pool;
mod quota;
mod receiver;
#[cfg(test)]
mod simulation;
mod sink;
mod stage;
mod standing;
mod status;
mod supervisor;
mod translator;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::oneshot;

use crate::backoff::Backoff;
use crate::checkpoint::{
    Begun, CheckpointStore, Ledger, LedgerConfig, Limited, LocalStore, MemoryStore, Now, SessionError, StoreError,
    begin, load_seen,
};
use crate::clock;
use crate::flow::registry::Guarantee;
use crate::flow::{PartitionId, StageError, StageName};
use crate::telemetry::metrics::Telemetry;
use crate::topology::{StoreConfig, Topology};

use coordinator::CoordinatorActor;
use message::Control;
use partition::Plan;
use placement::Arbiters;
use pool::Pool;
use quota::Quota;
use standing::Partition;
use supervisor::{Coordinator, Run, SupervisorActor};

pub use placement::Placement;
pub use status::Status;

/// How a topology is run.
pub struct Options {
    /// Accept a target that has epochs from another checkpoint store (protocol R7).
    pub new_store: bool,
    /// Which threads.
    pub placement: Placement,
    /// Instead of the store that the topology names.
    pub store: Option<Arc<dyn CheckpointStore>>,
    /// Where the embedded broker listens, if there is one.
    pub embedded_broker: Option<SocketAddr>,
    /// What counts.
    pub telemetry: Telemetry,
    /// How long the checkpoint log may get.
    pub log_limits: LogLimits,
}

/// How long the checkpoint log may get (protocol R4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimits {
    /// Entries are dropped from its front only if no more than this many identities must be named again for that...
    pub copies: usize,
    /// ... or if there are this many entries.
    pub entries: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { copies: 4096, entries: 256 }
    }
}

impl Default for Options {
    /// In place, with the topology's own store.
    fn default() -> Self {
        Self {
            new_store: false,
            placement: Placement::Current,
            store: None,
            embedded_broker: None,
            telemetry: Telemetry::new(""),
            log_limits: LogLimits::default(),
        }
    }
}

/// Why a topology could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The checkpoint log could not be had.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A sink could not be built.
    #[error("sink '{0}': {1}")]
    Sink(StageName, StageError),
    /// Threads could not be had.
    #[error("cannot start the worker threads: {0}")]
    Threads(#[from] std::io::Error),
}

impl From<StoreError> for StartError {
    fn from(error: StoreError) -> Self {
        Self::Session(error.into())
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything that was received is committed and settled.
    Drained,
    /// It was told to end at once.
    Killed,
    /// It could not go on; why, and what to do.
    Failed(String),
    /// Another process has the checkpoint log, as this entry shows.
    LostLog(u64),
}

/// A topology at work.
pub struct Running {
    control: Recipient<Control>,
    done: oneshot::Receiver<End>,
    /// Why it is not ready, if it is not.
    pub status: Status,
}

impl Running {
    /// Ends in good order: receives no more, commits and settles what was received.
    pub fn drain(&self) {
        let _ = self.control.try_send(Control::Drain);
    }

    /// Ends at once, as a crash would. Nothing is lost: what was not settled is delivered again.
    pub fn kill(&self) {
        let _ = self.control.try_send(Control::Kill);
    }

    /// Waits for the end. Cancel-safe.
    pub async fn end(&mut self) -> End {
        let panicked = || End::Failed("the supervisor panicked; restart the process, nothing is lost".to_owned());
        (&mut self.done).await.unwrap_or_else(|_| panicked())
    }
}

/// Starts a topology on the current actix system.
pub async fn start(topology: Topology, options: Options) -> Result<Running, StartError> {
    let status = Status::default();
    let specs = topology.sinks.values().chain(&topology.dead_letter);
    let exactly_once: BTreeSet<_> =
        specs.filter(|spec| spec.guarantee == Guarantee::ExactlyOnce).map(|spec| spec.name.clone()).collect();
    let store = match options.store {
        Some(store) => store,
        // Without an exactly-once sink there is nothing to record.
        None if exactly_once.is_empty() => Arc::new(MemoryStore::new()),
        None => open_store(&topology.checkpoint.store)?,
    };
    let store: Arc<dyn CheckpointStore> = Arc::new(Limited::new(store, topology.checkpoint.timeout));
    let log_limits = options.log_limits;
    let begun = begin(store.as_ref(), &topology.name, options.new_store, &exactly_once, clock::wall_millis()).await?;
    let pool = Pool::new(options.placement)?;
    let plan = Arc::new(plan(topology, &begun, pool, &status, options.embedded_broker, options.telemetry)?);
    status.started();
    let arbiters = Arbiters::new(options.placement);
    let (done, ended) = oneshot::channel();
    let supervisor = SupervisorActor::create(|ctx| {
        let address = ctx.address();
        ctx.set_mailbox_capacity(0);
        let ledger = ledger(&plan, &begun, log_limits);
        let partitions = partitions(&plan, &ledger);
        let coordinator = CoordinatorActor::create(|ctx| {
            ctx.set_mailbox_capacity(0);
            CoordinatorActor {
                ledger,
                store,
                session: begun.session,
                plan: plan.clone(),
                supervisor: address.recipient(),
                handles: BTreeMap::new(),
                opening: BTreeMap::new(),
                timer: None,
            }
        });
        let coordinator = Coordinator {
            tell: coordinator.clone().recipient(),
            built: coordinator.clone().recipient(),
            report: coordinator.recipient(),
        };
        let run = Run {
            done: Some(done),
            draining: false,
            ending: None,
            bounded_out: BTreeSet::new(),
            all_closed: false,
            drain_failure: None,
        };
        SupervisorActor { plan: plan.clone(), arbiters, coordinator: Some(coordinator), partitions, run }
    });
    Ok(Running { control: supervisor.recipient(), done: ended, status })
}

/// Opens the store that a topology names.
pub fn open_store(config: &StoreConfig) -> Result<Arc<dyn CheckpointStore>, StoreError> {
    Ok(match config {
        StoreConfig::Memory => Arc::new(MemoryStore::new()),
        StoreConfig::Local(root) => Arc::new(LocalStore::open(root)?),
    })
}

fn plan(
    topology: Topology,
    begun: &Begun,
    pool: Pool,
    status: &Status,
    embedded_broker: Option<SocketAddr>,
    telemetry: Telemetry,
) -> Result<Plan, StartError> {
    let mut sinks = BTreeMap::new();
    for spec in topology.sinks.values().chain(&topology.dead_letter) {
        let factory = spec.build(&topology.name, begun.store).map_err(|e| StartError::Sink(spec.name.clone(), e))?;
        sinks.insert(spec.name.clone(), factory);
    }
    // Receivers that only the log knows have identities too: the floor must not rise over them unnamed.
    let logged = begun.log.base.keys().map(|partition| &partition.receiver);
    let doubted = begun.entries.iter().flat_map(|entry| entry.in_doubt.keys());
    let receivers: BTreeSet<_> = topology.receivers.keys().chain(logged).chain(doubted).cloned().collect();
    let seens = receivers.into_iter().map(|receiver| {
        let seen = load_seen(&receiver, &begun.entries, &begun.log);
        (receiver, Arc::new(Mutex::new(seen)))
    });
    let quotas = topology.receivers.iter().map(|(name, receiver)| (name.clone(), Quota::new(receiver.max_messages)));
    Ok(Plan {
        sinks,
        seens: seens.collect(),
        quotas: quotas.collect(),
        embedded_broker,
        pool,
        status: status.clone(),
        telemetry,
        operation_limit: topology.checkpoint.timeout,
        topology,
    })
}

fn ledger(plan: &Plan, begun: &Begun, limits: LogLimits) -> Ledger {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let receivers = plan.topology.receivers.keys();
    let config = LedgerConfig {
        topology: plan.topology.name.clone(),
        trees: receivers.map(|receiver| (receiver.clone(), plan.tree(receiver))).collect(),
        interval: millis(plan.topology.checkpoint.interval),
        timeout: millis(plan.topology.checkpoint.timeout),
        round_gap: 500,
        copy_limit: limits.copies,
        entry_limit: limits.entries,
    };
    let configured = plan.topology.receivers.iter().flat_map(|(name, receiver)| {
        (0..receiver.partitions).map(|index| PartitionId { receiver: name.clone(), index })
    });
    let now = Now { tick: clock::tick(), wall: clock::wall_millis() };
    Ledger::new(config, begun, configured, now)
}

fn partitions(plan: &Plan, ledger: &Ledger) -> BTreeMap<PartitionId, Partition> {
    let delays = plan.topology.supervision.backoff;
    let all = ledger.partitions().enumerate().map(|(place, id)| {
        let configured = plan.is_configured(id);
        let newest = ledger.log().newest.get(id).into_iter().flat_map(|newest| newest.part.sinks.keys());
        let based = ledger.log().base.get(id).into_iter().flat_map(|base| base.sinks.keys());
        let named = if configured { BTreeSet::new() } else { newest.chain(based).cloned().collect() };
        let backoff = Backoff::new(delays.min, delays.max, place as u64);
        plan.telemetry.partition(&id.receiver, id.index);
        (id.clone(), Partition::new(place, configured, named, backoff))
    });
    all.collect()
}
