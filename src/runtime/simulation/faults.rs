//! What can go wrong, by name, and how often it did.

use std::collections::BTreeMap;
use std::fmt;

/// An operation at the boundary between a process and the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Op {
    Connect,
    Receive,
    Settle,
    Close,
    Open,
    Write,
    Prepare,
    Commit,
    List,
    Read,
    Create,
    Delete,
}

impl Op {
    const ALL: [Self; 12] = [
        Self::Connect,
        Self::Receive,
        Self::Settle,
        Self::Close,
        Self::Open,
        Self::Write,
        Self::Prepare,
        Self::Commit,
        Self::List,
        Self::Read,
        Self::Create,
        Self::Delete,
    ];

    /// Out of a thousand calls, how many go wrong while there is an appetite for it. Rare operations fail more often.
    pub fn per_mille(self) -> u32 {
        match self {
            Self::Close => 250,
            Self::Delete | Self::Create | Self::Settle => 80,
            Self::Connect | Self::Commit | Self::Prepare => 50,
            Self::Open | Self::List | Self::Write | Self::Receive => 25,
            Self::Read => 10,
        }
    }
}

/// How an operation goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Manner {
    /// It fails, and nothing of it happens.
    Error,
    /// It never returns.
    Hang,
    Panic,
    /// It takes seconds.
    Delay,
    /// It happens, and the caller is told that it failed.
    AnswerLost,
    /// The caller is told that it failed; it happens seconds later.
    Late,
}

impl Manner {
    const ANY: [Self; 4] = [Self::Error, Self::Hang, Self::Panic, Self::Delay];
    const WRITES: [Self; 6] = [Self::Error, Self::Hang, Self::Panic, Self::Delay, Self::AnswerLost, Self::Late];

    /// How `op` may go wrong.
    pub fn of(op: Op) -> &'static [Self] {
        if matches!(op, Op::Create | Op::Commit) { &Self::WRITES } else { &Self::ANY }
    }
}

/// Something that happened to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// At an operation.
    At(Op, Manner),
    /// A process dies, and what it had under way dies or lands later.
    Crash,
    CreateAfterItsGeneration,
    CreateAfterItsProcess,
    /// Somebody has looked, and then it lands.
    CommitAfterTheLook,
    CommitAfterItsProcess,
    OtherPartitionCount,
    TwoStartedTogether,
    SecondBesideTheFirst,
    PausedBeyondTheHorizon,
    /// The floor of the log has risen.
    Pruned,
    ShareOfOneBranchDropped,
    ParkedInReplayWithBudgetOne,
    RedeliveredToTheSamePartition,
    ResetThenCrash,
    DrainedThenCrash,
    EmptiedStore,
    DiedInARound,
    LinkDied,
    /// The process has given up a link that the broker takes for alive.
    BrokerKeepsADeadLink,
    /// Of what was accepted, the end never arrived.
    AcceptsLost,
}

impl Fault {
    /// Every one that a long simulation must have seen.
    pub fn all() -> Vec<Self> {
        let at = Op::ALL.iter().flat_map(|op| Manner::of(*op).iter().map(|manner| Self::At(*op, *manner)));
        let others = [
            Self::Crash,
            Self::CreateAfterItsGeneration,
            Self::CreateAfterItsProcess,
            Self::CommitAfterTheLook,
            Self::CommitAfterItsProcess,
            Self::OtherPartitionCount,
            Self::TwoStartedTogether,
            Self::SecondBesideTheFirst,
            Self::PausedBeyondTheHorizon,
            Self::Pruned,
            Self::ShareOfOneBranchDropped,
            Self::ParkedInReplayWithBudgetOne,
            Self::RedeliveredToTheSamePartition,
            Self::ResetThenCrash,
            Self::DrainedThenCrash,
            Self::EmptiedStore,
            Self::DiedInARound,
            Self::LinkDied,
            Self::BrokerKeepsADeadLink,
            Self::AcceptsLost,
        ];
        at.chain(others).collect()
    }
}

/// How often each fault fired.
#[derive(Clone, Debug, Default)]
pub(super) struct Fired(BTreeMap<Fault, u64>);

impl Fired {
    pub fn count(&mut self, fault: Fault) {
        *self.0.entry(fault).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (fault, n) in &other.0 {
            *self.0.entry(*fault).or_default() += n;
        }
    }

    pub fn of(&self, fault: Fault) -> u64 {
        self.0.get(&fault).copied().unwrap_or_default()
    }
}

impl fmt::Display for Fired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [Manner::Error, Manner::Hang, Manner::Panic, Manner::Delay, Manner::AnswerLost, Manner::Late];
        write!(f, "{:10}", "")?;
        all.iter().try_for_each(|manner| write!(f, "{:>12}", format!("{manner:?}")))?;
        for op in Op::ALL {
            write!(f, "\n{:10}", format!("{op:?}"))?;
            for manner in all {
                match Manner::of(op).contains(&manner) {
                    true => write!(f, "{:>12}", self.of(Fault::At(op, manner)))?,
                    false => write!(f, "{:>12}", "")?,
                }
            }
        }
        for fault in Fault::all().into_iter().filter(|fault| !matches!(fault, Fault::At(..))) {
            write!(f, "\n{:34}{:>6}", format!("{fault:?}"), self.of(fault))?;
        }
        Ok(())
    }
}
