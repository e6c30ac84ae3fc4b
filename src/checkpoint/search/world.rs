//! A state: the broker, the stores, the tables, what is in the air, and the living processes with their real cores.

use std::collections::BTreeMap;

use super::scope::Model;
use super::shared::Shared;
use super::tables::Table;
use crate::checkpoint::{Entry, Ledger};
use crate::flow::{Seen, Tick};

pub type Msg = u8;

/// A link belongs to one generation of one partition of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId {
    pub process: u8,
    pub partition: u8,
    pub generation: u8,
}

/// Where a message is at the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum At {
    Queued,
    Delivered(LinkId),
    Settled,
}

/// A queue with several consumers. It hands a message out until it has received the settlement.
#[derive(Clone, Debug, Hash)]
pub struct Broker {
    pub messages: Vec<At>,
    /// The links that are alive, and the accepts that were sent over each and not received yet, in order.
    pub links: BTreeMap<LinkId, Vec<Msg>>,
    /// Messages that were delivered once.
    pub touched: u8,
}

impl Broker {
    /// The link is gone: what was sent and not received is lost, what was not settled waits again.
    pub fn end(&mut self, link: LinkId) {
        self.links.remove(&link);
        for at in self.messages.iter_mut().filter(|at| **at == At::Delivered(link)) {
            *at = At::Queued;
        }
    }
}

/// A log. Emptying a store begins the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Store {
    pub entries: BTreeMap<u64, Shared<Entry>>,
}

/// A create on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Create {
    pub process: u8,
    pub store: u8,
    pub entry: Shared<Entry>,
    /// The process waits for the answer.
    pub awaited: bool,
    /// It has landed (`Some(true)`: it is there), and the answer is on its way.
    pub landed: Option<bool>,
}

/// A commit on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Commit {
    pub process: u8,
    pub store: u8,
    pub partition: u8,
    pub generation: u8,
    pub table: u8,
    pub epoch: u64,
    pub base: u64,
    pub rows: Vec<(Msg, u8)>,
    /// The generation lives and waits for the answer.
    pub awaited: bool,
    /// Nobody reads the table again for it: it was made against this version.
    pub version: Option<u64>,
}

/// Deletes on their way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Delete {
    pub store: u8,
    pub from: u64,
    pub below: u64,
}

/// A triggered epoch whose reports are not all in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pending {
    pub epoch: u64,
    pub rows: Vec<(Msg, u8)>,
    pub cursors: Vec<(Msg, u8)>,
    /// Shares that were dropped: message and sink.
    pub dropped: Vec<(Msg, u8)>,
    /// Bit per table.
    pub reported: u8,
    /// The dead letter was asked.
    pub asked: bool,
}

/// A living generation: receiver, stages and sinks of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Life {
    /// Its link was opened.
    pub receiving: bool,
    pub filling: u64,
    /// Rows sent since the last barrier.
    pub open: Vec<(Msg, u8)>,
    /// Deliveries with rows left to send: the next one.
    pub unfinished: Vec<(Msg, u8)>,
    pub dropped: Vec<(Msg, u8)>,
    pub pending: Option<Pending>,
    /// Deliveries that wait for their epoch's commit: the epoch of the last row.
    pub unsettled: Vec<(Msg, u64)>,
    /// Deliveries whose identity somebody else has.
    pub held: Vec<Msg>,
    /// Held no more, to be offered again.
    pub freed: Vec<Msg>,
    /// A receipt was released, and nobody has noticed yet.
    pub released: bool,
}

impl Life {
    pub fn in_flight(&self) -> usize {
        self.unsettled.len() + self.unfinished.len()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Dead; it may not recover yet.
    Down,
    MayOpen,
    Alive(Life),
    Parked,
}

#[derive(Clone, Debug, Hash)]
pub struct Partition {
    /// It has a receiver: it is in the topology.
    pub configured: bool,
    pub generation: u8,
    pub phase: Phase,
}

impl Partition {
    pub fn life(&self) -> Option<&Life> {
        match &self.phase {
            Phase::Alive(life) => Some(life),
            _ => None,
        }
    }

    pub fn life_mut(&mut self) -> Option<&mut Life> {
        match &mut self.phase {
            Phase::Alive(life) => Some(life),
            _ => None,
        }
    }
}

/// A living process.
#[derive(Clone, Debug, Hash)]
pub struct Process {
    pub id: u8,
    pub store: u8,
    pub ledger: Shared<Ledger>,
    pub seen: Shared<Seen>,
    pub partitions: BTreeMap<u8, Partition>,
    pub draining: bool,
    /// The links are closed; the ledger has been told.
    pub ended: bool,
}

impl Process {
    pub fn link(&self, partition: u8) -> LinkId {
        LinkId { process: self.id, partition, generation: self.partitions[&partition].generation }
    }

    /// Whether a round waits for its deadline.
    pub fn round_is_open(&self) -> bool {
        self.ledger.get().wake_at() < Tick(super::scope::TIMEOUT)
    }
}

/// A state.
#[derive(Clone, Debug, Hash)]
pub struct World {
    pub broker: Broker,
    pub stores: Vec<Store>,
    /// The one that a new process is given.
    pub store: u8,
    pub tables: Vec<Shared<Table>>,
    pub creates: Vec<Create>,
    pub commits: Vec<Commit>,
    pub deletes: Vec<Delete>,
    pub processes: Vec<Process>,
    /// Processes so far.
    pub started: u8,
    /// Faults that may still happen.
    pub faults: u8,
    /// Messages whose rows an operator gave up by `reset --drop`: bit per message.
    pub given_up: u8,
    /// The store was emptied or a partition reset: log and target may contradict each other, so that to park is right.
    pub contradicted: bool,
}

impl World {
    pub fn new(model: &Model) -> Self {
        Self {
            broker: Broker { messages: vec![At::Queued; model.messages.len()], links: BTreeMap::new(), touched: 0 },
            stores: vec![Store::default()],
            store: 0,
            tables: model.tables.iter().map(|_| Shared::new(Table::default())).collect(),
            creates: Vec::new(),
            commits: Vec::new(),
            deletes: Vec::new(),
            processes: Vec::new(),
            started: 0,
            faults: model.faults,
            given_up: 0,
            contradicted: model.contradicted,
        }
    }

    pub fn process(&self, id: u8) -> &Process {
        self.processes.iter().find(|process| process.id == id).expect("a living process")
    }

    pub fn process_mut(&mut self, id: u8) -> &mut Process {
        self.processes.iter_mut().find(|process| process.id == id).expect("a living process")
    }

    pub fn lives(&self, id: u8) -> bool {
        self.processes.iter().any(|process| process.id == id)
    }
}
