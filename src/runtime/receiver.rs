//! The receiver actor: takes messages from a link while the budget has room, asks `Seen` what each of them is, sends new
//! ones on with a receipt, and tells the source what became of them.
//!
//! It owns both halves of the link and lends each to one operation at a time, so waiting for messages never delays
//! settling. When the actor goes, the link goes.

mod arrival;
mod settling;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::Notify;

use super::exclusive::within;
use super::message::{Decide, Drain, Reject, Resume, Settle, StageEvent, TriggerCheckpoint};
use super::quota::{Allotment, Quota};
use super::stage::{Outlets, Stage};
use super::status::Status;
use crate::backoff::Backoff;
use crate::clock;
use crate::flow::{
    Barrier, Budget, Delivery, DeliveryId, Digest, Epoch, Identity, Intake, Link, Outcome, Outcomes, Raw, Reaction,
    Received, Result, Room, Seen, Settler, Source, StageError, Tick, Verdict,
};
use crate::telemetry::metrics::{PartitionMetrics, ReceiverMetrics};

/// What a receiver goes by.
#[derive(Clone)]
pub(super) struct ReceiverPolicy {
    /// Messages without an id are rejected.
    pub reject_missing_id: bool,
    /// A collision parks the partition instead of going to the dead letter.
    pub park_on_collision: bool,
    /// After this the broker has a settlement (protocol R11).
    pub horizon: Duration,
    /// Intake waits while so many identities are known.
    pub max_ids: u64,
    /// How long connecting, settling and closing may take.
    pub operation_limit: Duration,
    /// The source promises that an answered end of a link is for good.
    pub answered_end_is_durable: bool,
}

/// One partition's receiver.
pub(super) struct ReceiverActor {
    pub stage: Stage,
    pub source: Option<Box<dyn Source>>,
    /// Without an exactly-once sink below there is none.
    pub seen: Option<Arc<Mutex<Seen>>>,
    pub policy: ReceiverPolicy,
    pub budget: Budget,
    pub quota: Quota,
    pub allotment: Allotment,
    pub outlets: Outlets,
    pub dead_letter: Recipient<Reject>,
    pub metrics: PartitionMetrics,
    pub receiver_metrics: ReceiverMetrics,
    pub status: Status,
    /// Whether this process had a link before: then this one is a reconnect.
    pub reconnect: bool,
    pub link: LinkState,
    pub epoch: EpochState,
}

/// The link, and what hangs on it.
#[derive(Default)]
pub(super) struct LinkState {
    intake: Option<Box<dyn Intake>>,
    settler: Option<Box<dyn Settler>>,
    /// Wakes an intake that waits for room, or must stop.
    room: Arc<Notify>,
    draining: bool,
    connected: bool,
    /// The source has handed out all it has, as far as it is known.
    exhausted: bool,
    intake_ended: bool,
    closed: bool,
    /// What is to be settled next.
    unsent: settling::Unsent,
    /// Deliveries whose identity is in flight elsewhere, with their message.
    held: BTreeMap<DeliveryId, (Delivery, Raw)>,
    /// Held deliveries that are free and wait for a permit.
    retry: VecDeque<DeliveryId>,
}

/// What the current epoch has, and what earlier ones are waiting for.
#[derive(Default)]
pub(super) struct EpochState {
    pub number: Epoch,
    sent: Digest,
    /// Rejected by the receiver itself.
    rejected: Vec<Identity>,
    wanted: bool,
    /// Epochs that have ended and are not settled, and how many of their deliveries are not.
    unsettled: VecDeque<(Epoch, u64)>,
    /// When what is unsettled arrived, oldest first.
    arrived: VecDeque<(Tick, u64)>,
}

impl Actor for ReceiverActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.stage.stop_when_killed(self, ctx);
    }
}

impl Handler<Resume> for ReceiverActor {
    type Result = ();

    fn handle(&mut self, Resume { next }: Resume, ctx: &mut Self::Context) {
        self.epoch.number = next;
        if self.link.draining {
            return self.close_if_drained(ctx);
        }
        let Some(source) = self.source.take() else { return };
        let (status, partition) = (self.status.clone(), self.stage.guard.partition.clone());
        let limit = self.policy.operation_limit;
        let connecting = async move { connect(source, limit, &status, &partition).await };
        ctx.spawn(connecting.into_actor(self).map(|connected, receiver, ctx| match connected {
            Ok(link) => receiver.connected(link, ctx),
            Err(error) => receiver.stage.fail(error, ctx),
        }));
    }
}

/// Connects; what is merely away is tried again, at most a second apart for the first five minutes, then slower.
async fn connect(
    mut source: Box<dyn Source>,
    limit: Duration,
    status: &Status,
    partition: &crate::flow::PartitionId,
) -> Result<Link> {
    const PATIENCE: Duration = Duration::from_secs(300);
    /// It is said again after so long.
    const REMINDER: Duration = Duration::from_secs(60);
    let started = clock::now();
    let seed = u64::from(partition.index);
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1), seed);
    let mut patient = true;
    let mut told = None;
    loop {
        let connected = within(limit, "connecting", source.connect()).await;
        let error = match connected.and_then(|connected| connected) {
            Ok(link) => {
                status.clear(partition);
                return Ok(link);
            }
            Err(error) if error.reaction == Reaction::Away => error,
            Err(error) => return Err(error),
        };
        status.not_ready(partition, format!("{error}; trying again"));
        let now = clock::now();
        if told.is_none_or(|told| now.saturating_duration_since(told) >= REMINDER) {
            tracing::warn!(%partition, %error, "not connected, trying again until it is");
            told = Some(now);
        } else {
            tracing::debug!(%partition, %error, "still not connected");
        }
        if patient && now.saturating_duration_since(started) > PATIENCE {
            patient = false;
            backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30), seed);
        }
        tokio::time::sleep(backoff.next()).await;
    }
}

impl ReceiverActor {
    fn connected(&mut self, link: Link, ctx: &mut Context<Self>) {
        let (partition, generation) = (self.stage.guard.partition.index, self.stage.guard.generation);
        if let Some(seen) = &self.seen {
            lock(seen).link_up(partition, generation);
        }
        if self.reconnect {
            self.metrics.reconnects.add(1);
        }
        self.link.connected = true;
        self.link.intake = Some(link.intake);
        self.link.settler = Some(link.settler);
        tracing::info!(partition = %self.stage.guard.partition, "receiving");
        ctx.run_interval(Duration::from_secs(1), Self::look_at_link);
        if self.link.draining {
            return self.close_if_drained(ctx);
        }
        self.receive(ctx);
    }

    /// Lends the intake out until something has arrived, the input has ended, or the receiver drains.
    fn receive(&mut self, ctx: &mut Context<Self>) {
        let Some(mut intake) = self.link.intake.take() else { return };
        let stopped = self.link.room.clone();
        let quota = self.quota.clone();
        let room = self.room();
        if room.is_none() {
            self.want_checkpoint(true);
        }
        let waiting = async move {
            // A source that always has something would fill the budget before anything of it is translated.
            tokio::task::yield_now().await;
            let changed = stopped.notified();
            let received = match room {
                Some(room) => tokio::select! {
                    biased;
                    received = intake.receive(room) => Some(received),
                    () = changed => None,
                    () = quota.freed() => None,
                },
                None => {
                    tokio::select! {
                        () = changed => {}
                        () = quota.freed() => {}
                        // `max_ids` is freed by time alone.
                        () = tokio::time::sleep(Duration::from_secs(1)) => {}
                    }
                    None
                }
            };
            (intake, received)
        };
        ctx.spawn(waiting.into_actor(self).map(|(intake, received), receiver, ctx| {
            receiver.link.intake = Some(intake);
            match received {
                Some(Ok(Received::Batch { raw, deliveries, rejects })) => {
                    receiver.link.exhausted = false;
                    receiver.arrived(raw, deliveries, rejects, ctx);
                }
                Some(Ok(Received::Exhausted)) => {
                    receiver.link.exhausted = true;
                    receiver.want_checkpoint(true);
                }
                Some(Ok(Received::End)) => {
                    receiver.link.intake_ended = true;
                    receiver.stage.report(StageEvent::InputEnded);
                }
                Some(Err(error)) => return receiver.stage.fail(error, ctx),
                None => {}
            }
            if receiver.link.draining {
                receiver.drain_on(ctx);
            } else if !receiver.link.intake_ended {
                receiver.receive(ctx);
            }
        }));
    }

    /// What the intake may take now.
    fn room(&mut self) -> Option<Room> {
        if self.seen.as_ref().is_some_and(|seen| lock(seen).len() as u64 >= self.policy.max_ids) {
            return None;
        }
        let room = self.budget.room()?;
        let deliveries = self.allotment.grant(room.deliveries);
        (deliveries > 0).then_some(Room { deliveries, ..room })
    }

    /// Asks for a checkpoint of what is in hand, once per epoch: when half the budget is used, or when nothing more comes
    /// before it is committed (`dry`), which need not wait for the timer that may be an hour away. Urgently when the epoch
    /// alone has half the budget, so that the next one fills while this one is committed, or when all of it is used.
    fn want_checkpoint(&mut self, dry: bool) {
        if self.epoch.sent.count == 0 {
            return;
        }
        let urgent = self.budget.room().is_none() || self.budget.is_half(self.epoch.sent.count);
        if urgent || !self.epoch.wanted && (dry || self.budget.half_used()) {
            self.epoch.wanted = true;
            self.stage.report(StageEvent::CheckpointWanted { urgent });
        }
    }

    /// In a drain: asks for what is in hand to be committed, also what arrived in the moment of the drain, or closes.
    fn drain_on(&mut self, ctx: &mut Context<Self>) {
        if self.budget.unsettled() > 0 {
            self.stage.report(StageEvent::CheckpointWanted { urgent: true });
        }
        self.close_if_drained(ctx);
    }

    fn outcomes(&self, ctx: &Context<Self>) -> Outcomes {
        let address = ctx.address().recipient::<Settle>();
        // A closed mailbox means that the generation is gone, and the broker keeps the message.
        Arc::new(move |resolved| drop(address.try_send(Settle(resolved))))
    }
}

impl Handler<TriggerCheckpoint> for ReceiverActor {
    type Result = ();

    fn handle(&mut self, TriggerCheckpoint { epoch }: TriggerCheckpoint, _: &mut Self::Context) {
        if epoch != self.epoch.number {
            return;
        }
        let sent = std::mem::take(&mut self.epoch.sent);
        let rejected = std::mem::take(&mut self.epoch.rejected);
        if sent.count > 0 {
            self.epoch.unsettled.push_back((epoch, sent.count));
        }
        self.epoch.number = epoch.next();
        self.epoch.wanted = false;
        self.outlets.end_epoch(&Barrier { epoch, sent, cursors: Vec::new(), rejected });
    }
}

impl Handler<Settle> for ReceiverActor {
    type Result = ();

    fn handle(&mut self, Settle(resolved): Settle, ctx: &mut Self::Context) {
        match resolved.outcome {
            Outcome::Accepted => self.metrics.committed.add(resolved.deliveries.len() as u64),
            Outcome::Rejected => {}
            Outcome::Released => {
                let context = format!("{} messages were released by a stage", resolved.deliveries.len());
                return self.stage.fail(StageError::retry(context), ctx);
            }
        }
        self.link.unsent.resolved(&resolved.deliveries);
        self.settle(ctx);
    }
}

impl Handler<Decide> for ReceiverActor {
    type Result = ();

    fn handle(&mut self, Decide(verdict): Decide, ctx: &mut Self::Context) {
        let delivery = verdict.holder().delivery;
        match verdict {
            Verdict::Accept(_, identity) => {
                if self.link.held.remove(&delivery).is_some() {
                    self.metrics.duplicates.add(1);
                    self.link.unsent.known(delivery, identity);
                    self.settle(ctx);
                }
            }
            Verdict::Free(..) => {
                self.link.retry.push_back(delivery);
                self.take_up(ctx);
            }
        }
    }
}

impl Handler<Drain> for ReceiverActor {
    type Result = ();

    fn handle(&mut self, _: Drain, ctx: &mut Self::Context) {
        self.link.draining = true;
        self.link.room.notify_one();
        self.drain_on(ctx);
    }
}

/// A panic elsewhere leaves the identities as they are: each change to them is complete in itself.
pub(super) fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
