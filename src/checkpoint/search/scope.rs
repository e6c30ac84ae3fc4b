//! What a search looks at: how many messages, partitions, sinks and faults, and which faults.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use super::world::Msg;
use crate::checkpoint::{LedgerConfig, Tree};
use crate::flow::{Identity, PartitionId, StageName};

/// Where a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    No,
    /// A stage before the sinks refuses it.
    Stage,
    /// Only this sink refuses it; other branches take it.
    Sink(u8),
}

/// A message that waits at the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub rows: u8,
    pub poison: Poison,
}

pub const PLAIN: Message = Message { rows: 1, poison: Poison::No };

/// The faults that may happen, each of which counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A generation dies.
    Die,
    /// The process dies, with everything it knows.
    Crash,
    /// A link dies at the broker, and the process does not notice at once.
    Link,
    /// A create is given up without an answer and repeated; the first one lands at any later time.
    CreateAnswer,
    /// The same of a commit.
    CommitAnswer,
    /// A partition is given up.
    Park,
    /// The next process is started with one partition.
    Repartition,
    /// A process is started while another lives.
    Second,
    /// The store is emptied.
    Empty,
    /// One branch's share of a delivery is dropped, and its rows with it.
    DropShare,
    /// The process drains.
    Drain,
    /// An operator resets a partition.
    Reset,
    /// An operator resets a partition with `--drop`.
    ResetDrop,
}

/// What one search looks at.
#[derive(Clone, Debug)]
pub struct Scope {
    pub name: &'static str,
    pub messages: Vec<Message>,
    pub partitions: u8,
    /// Without the dead letter.
    pub sinks: u8,
    pub dead_letter: bool,
    /// Deliveries that a partition may have in flight.
    pub budget: usize,
    /// How many of them.
    pub faults: u8,
    /// Which.
    pub allowed: BTreeSet<Fault>,
    /// Deletes of entries take effect one by one, at any later time; otherwise at once. Creates that nobody waits for may
    /// land in slots that were freed.
    pub late_deletes: bool,
    pub copy_limit: usize,
    pub entry_limit: usize,
    /// Sinks merge by id.
    pub merge: bool,
    /// A commit of the dead is a request for one version of the table: it fails when that version is there.
    pub versioned: bool,
    /// A second process has a store of its own, as with several processes on one queue (R13).
    pub own_stores: bool,
    /// From the start log and target may contradict each other, so that to park is right.
    pub contradicted: bool,
}

pub const SINKS: [&str; 2] = ["a", "b"];
pub const DEAD_LETTER: &str = "dead";
pub const RECEIVER: &str = "r";

/// Beyond any deadline of a round, and before any other.
pub const ROUND_OVER: u64 = 250;

/// How long reports may take.
pub const TIMEOUT: u64 = 1_000;

impl Scope {
    pub fn new(name: &'static str, faults: u8, allowed: impl IntoIterator<Item = Fault>) -> Self {
        Self {
            name,
            messages: vec![PLAIN; 2],
            partitions: 2,
            sinks: 1,
            dead_letter: false,
            budget: 2,
            faults,
            allowed: allowed.into_iter().collect(),
            late_deletes: false,
            copy_limit: 0,
            entry_limit: usize::MAX,
            merge: false,
            versioned: false,
            own_stores: false,
            contradicted: false,
        }
    }

    pub fn allows(&self, fault: Fault) -> bool {
        self.allowed.contains(&fault)
    }

    /// Whether this message is rejected by some branch.
    pub fn is_rejected(&self, msg: Msg) -> bool {
        self.messages[usize::from(msg)].poison != Poison::No
    }

    /// Whether `sink` (not the dead letter) shows this message's rows.
    pub fn takes(&self, sink: u8, msg: Msg) -> bool {
        match self.messages[usize::from(msg)].poison {
            Poison::No => true,
            Poison::Stage => false,
            Poison::Sink(refuses) => refuses != sink,
        }
    }

    /// How many rows of this message the table at `index` has in the end.
    pub fn rows_in(&self, index: u8, msg: Msg) -> u8 {
        let here = if index < self.sinks { self.takes(index, msg) } else { self.is_rejected(msg) };
        if here { self.messages[usize::from(msg)].rows } else { 0 }
    }
}

/// A scope, and what is made of it once.
pub struct Model {
    pub scope: Scope,
    pub receiver: StageName,
    /// The sinks in the order of the tables: the dead letter is the last.
    pub tables: Vec<StageName>,
    pub partitions: Vec<PartitionId>,
    pub config: LedgerConfig,
}

impl Deref for Model {
    type Target = Scope;

    fn deref(&self) -> &Scope {
        &self.scope
    }
}

impl Model {
    pub fn new(scope: Scope) -> Self {
        let receiver = StageName::from(RECEIVER);
        let sinks: Vec<StageName> = SINKS[..usize::from(scope.sinks)].iter().copied().map(StageName::from).collect();
        let dead_letter: Option<StageName> = scope.dead_letter.then(|| DEAD_LETTER.into());
        let tables: Vec<_> = sinks.iter().chain(&dead_letter).cloned().collect();
        let tree =
            Tree { sinks: sinks.into_iter().collect(), exactly_once: tables.iter().cloned().collect(), dead_letter };
        let config = LedgerConfig {
            topology: Arc::from("search"),
            trees: [(receiver.clone(), tree)].into(),
            // Time stands still but for the deadline of a round: checkpoints are wanted, never due.
            interval: 1_000_000,
            timeout: TIMEOUT,
            round_gap: 0,
            copy_limit: scope.copy_limit,
            entry_limit: scope.entry_limit,
        };
        let partitions = (0..u32::from(scope.partitions)).map(|index| PartitionId::new(RECEIVER, index)).collect();
        Self { scope, receiver, tables, partitions, config }
    }

    pub fn partition(&self, index: u8) -> &PartitionId {
        &self.partitions[usize::from(index)]
    }

    pub fn table_index(&self, sink: &StageName) -> u8 {
        let at = self.tables.iter().position(|name| name == sink).expect("a sink of the tree");
        u8::try_from(at).expect("three sinks at most")
    }
}

/// The identity of a message.
pub fn identity(msg: Msg) -> Identity {
    Identity { id: 1 << msg, content: 0 }
}

/// The message with this identity.
pub fn message(identity: Identity) -> Msg {
    Msg::try_from(identity.id.trailing_zeros()).expect("an identity of a message")
}
