//! Every actor message of the program, on one page.
//!
//! Commands are imperatives, events participles. Between stages travel [`Forward`] and [`Store`]; everything else goes to
//! or comes from the coordinator and the supervisor. Nothing here is ever awaited: an answer is a message of its own.

use actix::prelude::*;

use super::partition::Handles;
use crate::checkpoint::{Commit, SinkReport};
use crate::flow::{
    Batch, Bulk, Element, Epoch, Generation, Identity, Opened, PartitionId, Reason, Receipt, Resolved, StageError,
    StageName, Verdict,
};

/// To a translator or a batcher: the next element.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Forward(pub Element<Batch>);

/// To a sink: the next element.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Store(pub Element<Bulk>);

/// To the dead letter writer of the partition: messages that a stage could not take.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Reject {
    pub stage: StageName,
    pub receipt: Receipt,
    /// For every delivery of the receipt: its origin, and why.
    pub why: Vec<(u32, Reason, String)>,
}

/// To the receiver: a receipt was resolved.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Settle(pub Resolved);

/// From the coordinator to a receiver: the partition has recovered; connect, and fill this epoch.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Resume {
    pub next: Epoch,
}

/// From the coordinator to a receiver: end this epoch with a barrier.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct TriggerCheckpoint {
    pub epoch: Epoch,
}

/// From the coordinator to a receiver: the fate of a delivery it holds.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Decide(pub Verdict);

/// From the supervisor to a receiver: receive no more; close the link when everything is settled.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
pub(super) struct Drain;

/// From the coordinator to a sink: look what the target shows.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct OpenSink {
    pub adopted: bool,
}

/// From the coordinator to the dead letter writer: make these durable as part of this epoch.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct PrepareDeadLetter {
    pub epoch: Epoch,
    pub rejected: Vec<Identity>,
}

/// From the coordinator to a sink: show this epoch.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct CommitCheckpoint {
    pub epoch: Epoch,
    pub commit: Commit,
}

/// From the coordinator to sinks: every sink shows this epoch; accept its receipts.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
pub(super) struct CompleteCheckpoint {
    pub epoch: Epoch,
}

/// To the coordinator: something happened in a living generation.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Report {
    pub partition: PartitionId,
    pub generation: Generation,
    pub event: StageEvent,
}

/// What a stage has to say.
pub(super) enum StageEvent {
    /// A sink was opened.
    SinkOpened { sink: StageName, opened: Option<Opened> },
    /// A sink, or the dead letter, has made an epoch durable.
    CheckpointPrepared { sink: StageName, epoch: Epoch, report: SinkReport },
    /// A sink shows an epoch.
    CheckpointCommitted { sink: StageName, epoch: Epoch },
    /// Half the budget is used (`urgent`: all of it), or a delivery is held.
    CheckpointWanted { urgent: bool },
    /// The partition's bounded input is at its end.
    InputEnded,
    /// The receiver has committed as many messages as it was to.
    LimitReached,
    /// The receiver has drained and closed its link; `ended`: and the peer answered, for good.
    LinkClosed { ended: bool },
}

/// To the supervisor: a stage is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct StageExited {
    pub partition: PartitionId,
    pub generation: Generation,
    pub stage: StageName,
    pub cause: Exit,
}

/// How a stage ended.
#[derive(Debug)]
pub(super) enum Exit {
    /// It was told to.
    Stopped,
    /// It failed.
    Failed(StageError),
    /// It panicked.
    Panicked,
}

/// To the supervisor: no stage of this generation is left.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct GenerationEnded {
    pub partition: PartitionId,
    pub generation: Generation,
}

/// From a generation that has just been built to the coordinator.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Built(pub Handles);

/// From the supervisor to the coordinator.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) enum Tell {
    /// A generation is dead, and its link with it.
    PartitionDown { partition: PartitionId, generation: Generation },
    /// A partition has been given up.
    PartitionParked { partition: PartitionId },
    /// Checkpoint whatever is open, at once.
    Drain,
    /// Every link is closed.
    AllClosed,
    /// The process ends: forget every address.
    Stop,
}

/// From the coordinator to the supervisor.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) enum Notice {
    /// A dead partition may be built anew.
    MayRecover { partition: PartitionId },
    /// End this generation.
    Restart { partition: PartitionId, generation: Generation, error: StageError },
    /// An epoch is committed by all its sinks.
    EpochCompleted { partition: PartitionId },
    /// What a stage said that concerns the supervisor: `InputEnded`, `LimitReached`, `LinkClosed`.
    Stage { partition: PartitionId, generation: Generation, event: StageEvent },
    /// Another process has the log.
    LostLog { number: u64 },
    /// The drain is over.
    Drained,
    /// The coordinator panicked.
    CoordinatorPanicked,
}

/// To the supervisor, from outside.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "()")]
pub(super) enum Control {
    /// End in good order.
    Drain,
    /// End at once, as a crash would.
    Kill,
}
