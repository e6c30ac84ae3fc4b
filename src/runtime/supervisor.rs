//! The supervisor: builds generations, notices how they end, and decides what follows (restart, park, end of the run).
//!
//! The first exit of a generation is its cause; the later ones are consequences. When the last stage is gone the
//! coordinator hears of it, and when nothing names the partition any more (protocol R2) it may be built anew: the whole
//! tree, from the log. Other partitions go on working. Nothing here knows what a stage does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::End;
use super::exit_guard::Life;
use super::message::{Built, Control, Exit, GenerationEnded, Notice, Report, StageEvent, StageExited, Tell};
use super::partition::{Build, Handles, Plan};
use super::placement::Arbiters;
use super::standing::{Partition, Standing};
use crate::clock;
use crate::flow::{Generation, PartitionId, Reaction, StageError, StageName};

/// One per process.
pub(super) struct SupervisorActor {
    pub plan: Arc<Plan>,
    pub arbiters: Arbiters,
    pub coordinator: Option<Coordinator>,
    pub partitions: BTreeMap<PartitionId, Partition>,
    pub run: Run,
}

/// How to reach the coordinator.
pub(super) struct Coordinator {
    pub tell: Recipient<Tell>,
    pub built: Recipient<Built>,
    pub report: Recipient<Report>,
}

/// Where the run as a whole is.
pub(super) struct Run {
    pub done: Option<oneshot::Sender<End>>,
    pub draining: bool,
    /// Why the run ends, once it does; it is over when the last generation is gone.
    pub ending: Option<End>,
    /// Receivers that have reached their bound.
    pub bounded_out: BTreeSet<StageName>,
    /// In a drain: the coordinator has been told that every link is closed.
    pub all_closed: bool,
    /// What went wrong in the drain.
    pub drain_failure: Option<String>,
}

/// How long the stages of a generation may take to go before the process gives up on itself.
const LAST_BREATH: Duration = Duration::from_secs(60);

impl Actor for SupervisorActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(Duration::from_secs(1), |supervisor, ctx| supervisor.look(ctx));
        for (name, receiver) in &self.plan.topology.receivers {
            if let Some(limit) = receiver.max_time {
                let name = name.clone();
                ctx.run_later(limit, |supervisor, ctx| supervisor.bound_reached(name, ctx));
            }
        }
        let all: Vec<_> = self.partitions.keys().cloned().collect();
        for partition in all {
            self.build(&partition, ctx);
        }
    }
}

impl SupervisorActor {
    fn tell(&self, tell: Tell) {
        if let Some(coordinator) = &self.coordinator {
            // Its panic is noticed by its own last message.
            let _ = coordinator.tell.try_send(tell);
        }
    }

    fn build(&mut self, id: &PartitionId, ctx: &mut Context<Self>) {
        if self.run.ending.is_some() || self.run.draining {
            return;
        }
        let Some(coordinator) = &self.coordinator else { return };
        let Some(partition) = self.partitions.get_mut(id) else { return };
        partition.generation = partition.generation.next();
        let kill = CancellationToken::new();
        let life = Life::new(id.clone(), partition.generation, ctx.address().recipient(), ctx.address().recipient());
        let build = Build {
            plan: self.plan.clone(),
            partition: id.clone(),
            generation: partition.generation,
            life,
            kill: kill.clone(),
            coordinator: coordinator.report.clone(),
            named: partition.named.clone(),
        };
        partition.standing = Standing::Living { kill, cause: None };
        let built = coordinator.built.clone();
        let supervisor = ctx.address();
        let spawned = self.arbiters.of(partition.place).spawn_fn(move || {
            let handles = build.start();
            let _ = supervisor.try_send(Living(handles.clone()));
            let _ = built.try_send(Built(handles));
        });
        if !spawned {
            self.finish(End::Failed(format!("the thread of partition {id} is gone")), ctx);
        }
    }

    /// The generation ends; the first to say so is the cause.
    /// `by`: the stage that said so.
    fn fail(
        &mut self,
        id: &PartitionId,
        generation: Generation,
        by: Option<&StageName>,
        error: StageError,
        ctx: &mut Context<Self>,
    ) {
        let ending = self.run.ending.is_some();
        let Some(partition) = self.partitions.get_mut(id).filter(|p| p.generation == generation) else { return };
        let Standing::Living { kill, cause } = &mut partition.standing else { return };
        if cause.is_some() {
            return;
        }
        kill.cancel();
        partition.link_broke = by == Some(&id.receiver) && error.reaction == Reaction::Away;
        if !ending {
            self.plan.status.not_ready(id, error.to_string());
            match error.reaction {
                Reaction::Away => tracing::warn!(partition = %id, %generation, %error, "partition stopped, restarting"),
                Reaction::Retry => {
                    tracing::error!(partition = %id, %generation, %error, "partition failed, restarting")
                }
                // Said when it is parked.
                Reaction::Park => {}
            }
            let id = id.clone();
            ctx.run_later(LAST_BREATH, move |supervisor, _| {
                let stuck = supervisor
                    .partitions
                    .get(&id)
                    .is_some_and(|p| p.generation == generation && matches!(p.standing, Standing::Living { .. }));
                if stuck {
                    let why =
                        format!("a stage of partition {id} does not stop; ending the process, which loses nothing");
                    supervisor.over(End::Failed(why));
                }
            });
        }
        *cause = Some(error);
    }

    fn park(&mut self, id: &PartitionId, reason: String, ctx: &mut Context<Self>) {
        let Some(partition) = self.partitions.get_mut(id) else { return };
        partition.standing = Standing::Parked;
        tracing::error!(partition = %id, reason, "partition parked");
        self.plan.status.parked(id, reason.clone());
        self.plan.telemetry.partition(&id.receiver, id.index).parked.set(1);
        self.tell(Tell::PartitionParked { partition: id.clone() });
        let configured: Vec<_> = self.partitions.values().filter(|p| p.configured).collect();
        if configured.iter().all(|p| matches!(p.standing, Standing::Parked)) {
            let all = if configured.len() > 1 { "all partitions are parked; the last one, " } else { "parked: " };
            self.finish(End::Failed(format!("{all}{id}: {reason}")), ctx);
        }
        self.drain_if_all_ended(ctx);
        self.drained_or_not();
    }

    /// Whether a restart that committed nothing was one too many.
    fn given_up(&mut self, id: &PartitionId) -> bool {
        let give_up = &self.plan.topology.supervision.give_up;
        let (limit, within) = (give_up.restarts as usize, give_up.within);
        let Some(partition) = self.partitions.get_mut(id) else { return false };
        let now = clock::now();
        partition.restarts.push_back(now);
        while partition.restarts.front().is_some_and(|at| now.saturating_duration_since(*at) > within) {
            partition.restarts.pop_front();
        }
        partition.restarts.len() > limit
    }

    /// A receiver takes no more: it drains by itself, and when all have ended so does the run.
    fn bound_reached(&mut self, receiver: StageName, ctx: &mut Context<Self>) {
        if !self.run.bounded_out.insert(receiver.clone()) {
            return;
        }
        tracing::info!(%receiver, "reached its bound");
        let mine = self.partitions.iter().filter(|(id, _)| id.receiver == receiver);
        mine.for_each(|(_, partition)| partition.drain());
        self.drain_if_all_ended(ctx);
    }

    fn drain_if_all_ended(&mut self, ctx: &mut Context<Self>) {
        let ended = |(id, p): (&PartitionId, &Partition)| {
            !p.configured
                || p.input_ended
                || matches!(p.standing, Standing::Parked)
                || self.run.bounded_out.contains(&id.receiver)
        };
        if self.partitions.iter().all(ended) {
            self.drain(ctx);
        }
    }

    fn drain(&mut self, ctx: &mut Context<Self>) {
        if self.run.draining || self.run.ending.is_some() {
            return;
        }
        self.run.draining = true;
        self.plan.status.draining();
        tracing::info!("draining: receiving no more, committing what was received");
        self.tell(Tell::Drain);
        for partition in self.partitions.values_mut() {
            if matches!(partition.standing, Standing::Waiting) {
                partition.standing = Standing::Ended;
            }
        }
        ctx.notify(DrainReceivers);
        let limit = self.plan.topology.supervision.drain_timeout;
        ctx.run_later(limit, move |supervisor, ctx| {
            let why = format!(
                "the drain took longer than supervision.drain_timeout ({} s); what was not committed the broker delivers again",
                limit.as_secs()
            );
            supervisor.finish(End::Failed(why), ctx);
        });
        self.drained_or_not();
    }

    /// In a drain: when every link is closed, the log may be ended.
    fn drained_or_not(&mut self) {
        if !self.run.draining || self.run.ending.is_some() {
            return;
        }
        let open = |p: &Partition| p.configured && !p.link_closed && matches!(p.standing, Standing::Living { .. });
        if !self.run.all_closed && !self.partitions.values().any(open) {
            self.run.all_closed = true;
            self.tell(Tell::AllClosed);
        }
    }

    /// Kills what is left; the run is over when the last generation is gone.
    fn finish(&mut self, end: End, ctx: &mut Context<Self>) {
        if self.run.ending.is_some() {
            return;
        }
        self.run.ending = Some(end);
        for partition in self.partitions.values_mut() {
            match &mut partition.standing {
                Standing::Living { kill, .. } => kill.cancel(),
                standing => *standing = Standing::Ended,
            }
        }
        ctx.run_later(Duration::from_secs(5), |supervisor, _| {
            if let Some(end) = supervisor.run.ending.take() {
                tracing::warn!("some stages did not stop in time");
                supervisor.over(end);
            }
        });
        self.over_if_gone(ctx);
    }

    fn over_if_gone(&mut self, ctx: &mut Context<Self>) {
        let gone = self.partitions.values().all(|p| matches!(p.standing, Standing::Ended));
        if gone && let Some(end) = self.run.ending.take() {
            self.over(end);
            ctx.stop();
        }
    }

    fn over(&mut self, end: End) {
        self.tell(Tell::Stop);
        self.coordinator = None;
        if let Some(done) = self.run.done.take() {
            let _ = done.send(end);
        }
    }

    /// A bounded run whose missing messages only a parked partition could commit never ends by itself.
    fn look(&mut self, ctx: &mut Context<Self>) {
        const PATIENCE: Duration = Duration::from_secs(15);
        let bounded = |receiver: &StageName| {
            self.plan.quotas.get(receiver).is_some_and(super::quota::Quota::is_missing)
                && !self.run.bounded_out.contains(receiver)
        };
        let parked =
            |(id, p): &(&PartitionId, &Partition)| matches!(p.standing, Standing::Parked) && bounded(&id.receiver);
        let Some(parked) = self.partitions.iter().find(parked).map(|(id, _)| id.clone()) else { return };
        let now = clock::now();
        let mut stuck = true;
        for (id, partition) in
            self.partitions.iter_mut().filter(|(id, p)| p.configured && id.receiver == parked.receiver)
        {
            let tally = self.plan.telemetry.partition(&id.receiver, id.index).tally();
            if partition.progress.0 != tally.received || tally.unsettled > 0 {
                partition.progress = (tally.received, now);
            }
            stuck &= now.saturating_duration_since(partition.progress.1) > PATIENCE;
        }
        if stuck {
            let reason = self.plan.status.parked_partitions().get(&parked).cloned().unwrap_or_default();
            let why = format!("messages that are still missing belong to the parked partition {parked}: {reason}");
            self.finish(End::Failed(why), ctx);
        }
    }
}

/// To the supervisor itself, when a generation is built.
#[derive(Message)]
#[rtype(result = "()")]
struct Living(Handles);

/// To the supervisor itself.
#[derive(Message)]
#[rtype(result = "()")]
struct DrainReceivers;

impl Handler<Living> for SupervisorActor {
    type Result = ();

    fn handle(&mut self, Living(handles): Living, _: &mut Self::Context) {
        let Some(partition) = self.partitions.get_mut(&handles.partition) else { return };
        if partition.generation == handles.generation {
            partition.receiver = handles.receiver;
            if self.run.draining || self.run.bounded_out.contains(&handles.partition.receiver) {
                partition.drain();
            }
        }
    }
}

impl Handler<DrainReceivers> for SupervisorActor {
    type Result = ();

    fn handle(&mut self, _: DrainReceivers, _: &mut Self::Context) {
        self.partitions.values().for_each(Partition::drain);
    }
}

impl Handler<StageExited> for SupervisorActor {
    type Result = ();

    fn handle(&mut self, exited: StageExited, ctx: &mut Self::Context) {
        let StageExited { partition, generation, stage, cause } = exited;
        let error = match cause {
            Exit::Failed(error) => error,
            Exit::Panicked => StageError::retry(format!("stage '{stage}' panicked")),
            Exit::Stopped => StageError::retry(format!("stage '{stage}' stopped")),
        };
        self.fail(&partition, generation, Some(&stage), error, ctx);
    }
}

impl Handler<GenerationEnded> for SupervisorActor {
    type Result = ();

    fn handle(&mut self, GenerationEnded { partition: id, generation }: GenerationEnded, ctx: &mut Self::Context) {
        let Some(partition) = self.partitions.get_mut(&id).filter(|p| p.generation == generation) else { return };
        let Standing::Living { cause, .. } = &mut partition.standing else { return };
        let cause = cause.take().unwrap_or_else(|| StageError::retry("every stage stopped"));
        partition.receiver = None;
        // What it had is the broker's again, and the next generation finds out by itself whether there is more.
        (partition.input_ended, partition.link_closed) = (false, false);
        let metrics = self.plan.telemetry.partition(&id.receiver, id.index);
        metrics.unsettled.set(0);
        metrics.unsettled_bytes.set(0);
        metrics.oldest_unsettled.clear();
        if self.run.ending.is_some() {
            partition.standing = Standing::Ended;
            return self.over_if_gone(ctx);
        }
        if self.run.draining {
            partition.standing = Standing::Ended;
            if partition.configured {
                self.run.drain_failure.get_or_insert(format!("partition {id} failed while draining: {cause}"));
            }
        } else {
            partition.standing = Standing::Dead { cause };
        }
        self.tell(Tell::PartitionDown { partition: id, generation });
        self.drained_or_not();
    }
}

impl Handler<Notice> for SupervisorActor {
    type Result = ();

    fn handle(&mut self, notice: Notice, ctx: &mut Self::Context) {
        match notice {
            Notice::MayRecover { partition } => self.may_recover(partition, ctx),
            Notice::Restart { partition, generation, error } => self.fail(&partition, generation, None, error, ctx),
            Notice::EpochCompleted { partition } => {
                if let Some(partition) = self.partitions.get_mut(&partition) {
                    partition.has_committed();
                }
            }
            Notice::Stage { partition: id, generation, event } => {
                let Some(partition) = self.partitions.get_mut(&id).filter(|p| p.generation == generation) else {
                    return;
                };
                match event {
                    StageEvent::InputEnded => {
                        partition.input_ended = true;
                        self.drain_if_all_ended(ctx);
                    }
                    StageEvent::LimitReached => self.bound_reached(id.receiver, ctx),
                    StageEvent::LinkClosed { .. } => {
                        partition.link_closed = true;
                        self.drained_or_not();
                    }
                    _ => {}
                }
            }
            Notice::LostLog { number } => self.finish(End::LostLog(number), ctx),
            Notice::Drained => {
                let end = self.run.drain_failure.take().map_or(End::Drained, End::Failed);
                self.finish(end, ctx);
            }
            Notice::CoordinatorPanicked => {
                let why = "the checkpoint coordinator panicked; restart the process, nothing is lost".to_owned();
                self.finish(End::Failed(why), ctx);
            }
        }
    }
}

impl Handler<Control> for SupervisorActor {
    type Result = ();

    fn handle(&mut self, control: Control, ctx: &mut Self::Context) {
        match control {
            Control::Drain => self.drain(ctx),
            Control::Kill => self.finish(End::Killed, ctx),
        }
    }
}

impl SupervisorActor {
    /// Nothing names the dead partition any more: build it again, later, or give it up.
    fn may_recover(&mut self, id: PartitionId, ctx: &mut Context<Self>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let Standing::Dead { cause } = &partition.standing else { return };
        let (reaction, reason) = (cause.reaction, cause.to_string());
        match reaction {
            Reaction::Park => return self.park(&id, reason, ctx),
            Reaction::Retry if self.given_up(&id) => {
                let limit = self.plan.topology.supervision.give_up.restarts;
                return self.park(&id, format!("it failed {limit} times without committing anything: {reason}"), ctx);
            }
            Reaction::Retry | Reaction::Away => {}
        }
        self.plan.telemetry.partition(&id.receiver, id.index).restarts.add(1);
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        partition.standing = Standing::Waiting;
        let delay = partition.delay();
        ctx.run_later(delay, move |supervisor, ctx| {
            let waiting = supervisor.partitions.get(&id).is_some_and(|p| matches!(p.standing, Standing::Waiting));
            if waiting {
                supervisor.build(&id, ctx);
            }
        });
    }
}
