//! What goes into the ledger and what comes out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::checkpoint::Entry;
use crate::flow::{
    Committed, Digest, Epoch, Generation, Identity, PartitionId, Prepared, Seen, StageName, Tick, Verdict,
};

/// The identities of each receiver, lent for one event.
pub type Seens<'a> = BTreeMap<StageName, &'a mut Seen>;

/// The time, both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Now {
    /// For intervals and horizons.
    pub tick: Tick,
    /// ms since the epoch, for what outlives the process.
    pub wall: i64,
}

/// The sinks below one receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tree {
    /// All of them but the dead letter: each reports every epoch.
    pub sinks: BTreeSet<StageName>,
    /// Those that take part in entries, the dead letter included if it does. Empty: the receiver makes no entries.
    pub exactly_once: BTreeSet<StageName>,
    /// The dead letter, if the topology has one.
    pub dead_letter: Option<StageName>,
}

/// What the ledger goes by. Times in ms.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LedgerConfig {
    /// The topology's name.
    pub topology: Arc<str>,
    /// By receiver.
    pub trees: BTreeMap<StageName, Tree>,
    /// Between rounds.
    pub interval: u64,
    /// How long an epoch's reports may take before its generation is restarted.
    pub timeout: u64,
    /// At least this long between the starts of rounds, unless a budget is used up.
    pub round_gap: u64,
    /// The floor rises over an entry only if no more than this many identities must be named again for it...
    pub copy_limit: usize,
    /// ... or if this many entries have piled up.
    pub entry_limit: usize,
}

impl LedgerConfig {
    /// How long a round waits for those it triggered: a quarter of the interval, at most 250 ms.
    pub fn round_limit(&self) -> u64 {
        (self.interval / 4).clamp(1, 250)
    }
}

/// What one sink says about an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SinkReport {
    /// From the barrier: what the receiver sent.
    pub sent: Digest,
    /// From the barrier: what stages before the sink rejected.
    pub rejected_before: Vec<Identity>,
    /// What the sink holds. Of the dead letter: what it has.
    pub held: Digest,
    /// What the sink itself rejected.
    pub rejected: Vec<Identity>,
    /// From the barrier: unfinished deliveries, and how many of their rows were sent.
    pub cursors: Vec<(Identity, u64)>,
    /// What it needs to commit; `None` if it has no rows, or takes no part.
    pub prepared: Option<Prepared>,
}

/// A fact.
#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed.
    Timer,
    /// Somebody wants a checkpoint soon: half the budget is used, or a delivery is held. `urgent`: at once.
    Wanted {
        /// The budget is used up, or a partition drains.
        urgent: bool,
    },
    /// From now on whatever is open is checkpointed at once.
    Drain,
    /// A sink, or the dead letter writer, has made an epoch durable.
    Prepared {
        /// Whose epoch.
        partition: PartitionId,
        /// Of which generation.
        generation: Generation,
        /// Which epoch.
        epoch: Epoch,
        /// The sink.
        sink: StageName,
        /// What it says.
        report: SinkReport,
    },
    /// The outstanding create has landed; `newest` is the highest number that a listing after it shows (R4).
    Stored {
        /// The entry.
        number: u64,
        /// The highest number.
        newest: u64,
    },
    /// Where the outstanding create wanted to write there is somebody else's entry.
    Foreign {
        /// The entry.
        number: u64,
    },
    /// A sink shows an epoch.
    Committed {
        /// Whose epoch.
        partition: PartitionId,
        /// The generation that committed it.
        generation: Generation,
        /// Which epoch.
        epoch: Epoch,
        /// The sink.
        sink: StageName,
    },
    /// A generation is dead: its link is closed or will be before the next one's.
    Down {
        /// Whose.
        partition: PartitionId,
        /// Which.
        generation: Generation,
    },
    /// A new generation has asked its sinks what they show.
    Opened {
        /// Whose.
        partition: PartitionId,
        /// Which.
        generation: Generation,
        /// Every exactly-once sink of its tree.
        shown: BTreeMap<StageName, Committed>,
    },
    /// The supervisor has given a partition up.
    Parked {
        /// Which.
        partition: PartitionId,
    },
    /// All links of a drain are closed: end with a drained entry if that is true (R11).
    Ended,
}

/// What one sink is to commit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Commit {
    /// What it must show before.
    pub base: Epoch,
    /// What it prepared.
    pub prepared: Prepared,
    /// How many partitions commit to it at the same time.
    pub group: usize,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The receiver ends its epoch with a barrier.
    Trigger {
        /// Whose.
        partition: PartitionId,
        /// Of which generation.
        generation: Generation,
        /// The epoch that ends.
        epoch: Epoch,
    },
    /// The dead letter writer makes the epoch's rejects durable.
    PrepareDeadLetter {
        /// Whose.
        partition: PartitionId,
        /// Of which generation.
        generation: Generation,
        /// The epoch.
        epoch: Epoch,
        /// Exactly these.
        rejected: Vec<Identity>,
    },
    /// Create this entry, repeat until it answers, list, and say `Stored` or `Foreign`.
    Create(Arc<Entry>),
    /// Sinks show a stored epoch. Sinks that are not named have nothing to show.
    Commit {
        /// Whose.
        partition: PartitionId,
        /// Of which generation.
        generation: Generation,
        /// The epoch.
        epoch: Epoch,
        /// By sink.
        commits: BTreeMap<StageName, Commit>,
    },
    /// All sinks show the epoch: its receipts are accepted.
    Complete {
        /// Whose.
        partition: PartitionId,
        /// Of which generation.
        generation: Generation,
        /// The epoch.
        epoch: Epoch,
        /// Messages in it, rejected ones included.
        messages: u64,
    },
    /// A recovered partition may receive.
    Resume {
        /// Whose.
        partition: PartitionId,
        /// Of which generation.
        generation: Generation,
        /// The first epoch it fills.
        next: Epoch,
    },
    /// End this generation: it has contradicted itself or is stuck.
    Restart {
        /// Whose.
        partition: PartitionId,
        /// Which.
        generation: Generation,
        /// Why.
        reason: String,
    },
    /// Park: going on could lose or double.
    Park {
        /// Whose.
        partition: PartitionId,
        /// Of which generation.
        generation: Generation,
        /// Why, and the way out.
        reason: String,
    },
    /// A dead partition may be built anew (R2).
    MayRecover {
        /// Which.
        partition: PartitionId,
    },
    /// A held delivery's fate.
    Tell {
        /// Whose.
        receiver: StageName,
        /// What.
        verdict: Verdict,
    },
    /// Entries that count no more (R4).
    Delete {
        /// From this number on...
        from: u64,
        /// ... up to, and without, this one.
        below: u64,
    },
    /// The log belongs to another process: this one ends.
    LostLog {
        /// The entry that shows it.
        number: u64,
    },
    /// The drain is over.
    Drained {
        /// Whether a drained entry could be written.
        written: bool,
    },
}
