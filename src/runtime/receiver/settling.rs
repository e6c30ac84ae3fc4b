//! Telling the source what became of its deliveries, and what follows from having told it.

use actix::prelude::*;

use super::{EpochState, ReceiverActor, lock};
use crate::clock;
use crate::flow::{Closed, Delivery, DeliveryId, Identity, Outcome, Settled, StageError};
use crate::runtime::exclusive::within;
use crate::runtime::message::StageEvent;

/// What is to be accepted with the next operation. (Rejected messages are accepted too: the dead letter has them.)
#[derive(Default)]
pub(super) struct Unsent {
    deliveries: Vec<DeliveryId>,
    /// Of those, how many have permits, and their bytes.
    permits: (u64, u64),
    /// Of those, what was known before: their clock starts anew.
    known: Vec<Identity>,
}

impl Unsent {
    /// Deliveries of an epoch that are committed or dead-lettered.
    pub fn resolved(&mut self, deliveries: &[Delivery]) {
        self.deliveries.extend(deliveries.iter().map(|delivery| delivery.id));
        self.permits.0 += deliveries.len() as u64;
        self.permits.1 += deliveries.iter().map(|delivery| u64::from(delivery.bytes)).sum::<u64>();
    }

    /// A delivery of a message that is committed already.
    pub fn known(&mut self, delivery: DeliveryId, identity: Identity) {
        self.deliveries.push(delivery);
        self.known.push(identity);
    }
}

impl ReceiverActor {
    /// Lends the settler out with everything that waits, in one operation.
    pub(super) fn settle(&mut self, ctx: &mut Context<Self>) {
        if self.link.unsent.deliveries.is_empty() {
            return;
        }
        let Some(mut settler) = self.link.settler.take() else { return };
        let unsent = std::mem::take(&mut self.link.unsent);
        let limit = self.policy.operation_limit;
        let operation = async move {
            let settling = settler.settle(&unsent.deliveries, Outcome::Accepted);
            let result = within(limit, "settling", settling).await.and_then(|settled| settled);
            (settler, unsent, result)
        };
        ctx.spawn(operation.into_actor(self).map(|(settler, unsent, result), receiver, ctx| {
            receiver.link.settler = Some(settler);
            match result {
                Ok(settled) => receiver.settled(unsent, settled, ctx),
                Err(error) => receiver.stage.fail(error, ctx),
            }
        }));
    }

    fn settled(&mut self, unsent: Unsent, settled: Settled, ctx: &mut Context<Self>) {
        let now = clock::tick();
        let received = settled == Settled::Received;
        let (partition, generation) = (self.stage.guard.partition.index, self.stage.guard.generation);
        let (n, bytes) = unsent.permits;
        let epochs = self.epoch.settled(n);
        if let Some(seen) = &self.seen {
            let mut seen = lock(seen);
            seen.settled(&unsent.known, partition, generation, now, received);
            for epoch in epochs {
                seen.settled_epoch(partition, generation, epoch, now, received);
            }
        }
        for (arrived, n) in self.epoch.age(n) {
            let waited = std::time::Duration::from_millis(now.0.saturating_sub(arrived.0));
            self.metrics.end_to_end.observe_many(waited, usize::try_from(n).unwrap_or(usize::MAX));
        }
        self.budget.give_back(n, bytes);
        self.allotment.done(n);
        self.measure();
        if self.quota.is_done() {
            self.stage.report(StageEvent::LimitReached);
        }
        self.link.room.notify_one();
        self.take_up(ctx);
        self.settle(ctx);
        self.close_if_drained(ctx);
    }

    /// In a drain: closes the link when nothing is unsettled. What is held the broker gets back.
    pub(super) fn close_if_drained(&mut self, ctx: &mut Context<Self>) {
        let link = &mut self.link;
        if !link.draining || link.closed {
            return;
        }
        if !link.connected {
            link.closed = true;
            return self.stage.report(StageEvent::LinkClosed { ended: false });
        }
        let idle = link.intake.is_some() && link.settler.is_some() && link.unsent.deliveries.is_empty();
        if !idle || self.budget.unsettled() > 0 {
            return;
        }
        let Some(settler) = link.settler.take() else { return };
        link.closed = true;
        // The intake is kept until the end is answered: dropping it first would cut the link.
        let intake = link.intake.take();
        let limit = self.policy.operation_limit;
        let closing = async move {
            let closed = within(limit, "closing the link", settler.close()).await.unwrap_or(Closed::Unanswered);
            drop(intake);
            closed
        };
        ctx.spawn(closing.into_actor(self).map(|closed, receiver, _| {
            let ended = closed == Closed::Answered && receiver.policy.answered_end_is_durable;
            receiver.stage.report(StageEvent::LinkClosed { ended });
        }));
    }

    /// While the link shows that it lives, forgets what is past the horizon. A link that no longer does is over, even if
    /// neither half of it has said so: messages may be waiting at the broker that it will never bring.
    pub(super) fn look_at_link(&mut self, ctx: &mut Context<Self>) {
        let attached = self.link.settler.as_ref().map(|settler| settler.attached());
        if let Some(seen) = &self.seen {
            let mut seen = lock(seen);
            if attached == Some(true) {
                let horizon = u64::try_from(self.policy.horizon.as_millis()).unwrap_or(u64::MAX);
                seen.expire(self.stage.guard.partition.index, clock::tick(), horizon);
            }
            self.receiver_metrics.known_ids.set(seen.len() as u64);
        }
        if attached == Some(false) {
            self.stage.fail(StageError::away("the source is silent, and its link counts as gone"), ctx);
        }
    }

    /// Shows what is unsettled.
    pub(super) fn measure(&self) {
        self.metrics.unsettled.set(self.budget.unsettled());
        self.metrics.unsettled_bytes.set(self.budget.unsettled_bytes());
        match self.epoch.arrived.front() {
            Some((oldest, _)) => self.metrics.oldest_unsettled.since(*oldest),
            None => self.metrics.oldest_unsettled.clear(),
        }
    }
}

impl EpochState {
    /// `n` deliveries were settled, in the order of their epochs; the epochs that are settled with that.
    fn settled(&mut self, mut n: u64) -> Vec<crate::flow::Epoch> {
        let mut epochs = Vec::new();
        while n > 0 {
            let Some((epoch, left)) = self.unsettled.front_mut() else { break };
            let now = n.min(*left);
            *left -= now;
            n -= now;
            if *left == 0 {
                epochs.push(*epoch);
                self.unsettled.pop_front();
            }
        }
        epochs
    }

    /// The `n` oldest arrivals leave.
    fn age(&mut self, mut n: u64) -> Vec<(crate::flow::Tick, u64)> {
        let mut left = Vec::new();
        while n > 0 {
            let Some((tick, waiting)) = self.arrived.front_mut() else { break };
            let now = n.min(*waiting);
            left.push((*tick, now));
            *waiting -= now;
            n -= now;
            if *waiting == 0 {
                self.arrived.pop_front();
            }
        }
        left
    }

    /// `n` of the newest arrivals were not sent on.
    pub(super) fn forget_newest(&mut self, mut n: u64) {
        while n > 0 {
            let Some((_, waiting)) = self.arrived.back_mut() else { break };
            let now = n.min(*waiting);
            *waiting -= now;
            n -= now;
            if *waiting == 0 {
                self.arrived.pop_back();
            }
        }
    }
}
