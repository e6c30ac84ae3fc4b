//! Where each partition stands, over all its generations: the supervisor's notes.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

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
    backoff: Backoff,
    reconnect: Backoff,
    /// Whether it was the link alone that ended the generation before.
    pub link_broke: bool,
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

/// The longest wait after a link broke: whether the broker is back only a new link shows, and while it is away the
/// receiver itself waits for it.
const RECONNECT: Duration = Duration::from_secs(1);

impl Partition {
    pub fn new(place: usize, configured: bool, named: BTreeSet<StageName>, backoff: Backoff) -> Self {
        Self {
            place,
            configured,
            named,
            generation: Generation(0),
            receiver: None,
            standing: Standing::Waiting,
            reconnect: backoff.clone().at_most(RECONNECT),
            backoff,
            link_broke: false,
            restarts: VecDeque::new(),
            input_ended: false,
            link_closed: false,
            progress: (0, clock::now()),
        }
    }

    /// How long to wait before the next generation is built.
    pub fn delay(&mut self) -> Duration {
        if self.link_broke { self.reconnect.next() } else { self.backoff.next() }
    }

    /// It has committed an epoch: what failed before does not count any more.
    pub fn has_committed(&mut self) {
        self.restarts.clear();
        self.backoff.reset();
        self.reconnect.reset();
    }

    /// Tells its receiver, if it has one by now.
    pub fn drain(&self) {
        if let Some(receiver) = &self.receiver {
            let _ = receiver.try_send(Drain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_breaks_again_and_again_comes_back_within_a_second() {
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30), 1);
        let mut partition = Partition::new(0, true, BTreeSet::new(), backoff);
        partition.link_broke = true;
        assert!((0..50).all(|_| partition.delay() <= RECONNECT));
        partition.link_broke = false;
        assert!(partition.delay() <= Duration::from_millis(400), "other failures have a count of their own");
        assert!((0..10).any(|_| partition.delay() > Duration::from_secs(10)));
    }
}
