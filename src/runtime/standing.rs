//! Where each partition stands, over all its generations: the supervisor's notes.

use std::collections::{BTreeSet, VecDeque};

use actix::Addr;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::message::Drain;
use super::receiver::ReceiverActor;
use crate::backoff::Backoff;
use crate::clock;
use crate::flow::{Generation, StageError, StageName};

/// One partition over all its generations.
pub(super) struct Partition {
    /// Its place among all of them, for the arbiter.
    pub place: usize,
    pub configured: bool,
    /// For one that only the log knows: the sinks its newest part names.
    pub named: BTreeSet<StageName>,
    pub generation: Generation,
    /// The living generation's.
    pub receiver: Option<Addr<ReceiverActor>>,
    pub standing: Standing,
    pub backoff: Backoff,
    /// Restarts since it last committed an epoch.
    pub restarts: VecDeque<Instant>,
    pub input_ended: bool,
    pub link_closed: bool,
    /// What was received when somebody last looked, for the end of runs that cannot go on.
    pub progress: (u64, Instant),
}

/// Where a partition is.
pub(super) enum Standing {
    /// A generation is there, perhaps on its way out.
    Living { kill: CancellationToken, cause: Option<StageError> },
    /// It is dead; why, and nothing may be built before the coordinator says so.
    Dead { cause: StageError },
    /// It will be built when its delay is over.
    Waiting,
    /// It was given up.
    Parked,
    /// The run ends.
    Ended,
}

impl Partition {
    pub fn new(place: usize, configured: bool, named: BTreeSet<StageName>, backoff: Backoff) -> Self {
        Self {
            place,
            configured,
            named,
            generation: Generation(0),
            receiver: None,
            standing: Standing::Waiting,
            backoff,
            restarts: VecDeque::new(),
            input_ended: false,
            link_closed: false,
            progress: (0, clock::now()),
        }
    }

    /// Tells its receiver, if it has one by now.
    pub fn drain(&self) {
        if let Some(receiver) = &self.receiver {
            let _ = receiver.try_send(Drain);
        }
    }
}
