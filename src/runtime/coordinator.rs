//! The checkpoint coordinator: lends the [`Ledger`] its hands. It turns messages into events and actions into messages, and
//! is the only one that writes to the checkpoint log (protocol R1).
//!
//! It decides nothing itself, but for one thing: a sink that finds another log's epochs in its target parks (R7). It never
//! waits: creates, listings and deletions run beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::prelude::*;

use super::message::{
    Built, CommitCheckpoint, CompleteCheckpoint, Decide, Notice, OpenSink, PrepareDeadLetter, Report, Resume,
    StageEvent, Tell, TriggerCheckpoint,
};
use super::partition::{Handles, Plan};
use super::receiver::lock;
use crate::checkpoint::{Action, CheckpointStore, Created, Entry, Event, Ledger, Now, create};
use crate::clock;
use crate::flow::{Committed, Generation, PartitionId, Seen, StageError, StageName, Verdict, foreign_epochs};

/// One per process.
pub(super) struct CoordinatorActor {
    pub ledger: Ledger,
    pub store: Arc<dyn CheckpointStore>,
    /// What every entry of this process is marked with.
    pub session: uuid::Uuid,
    pub plan: Arc<Plan>,
    pub supervisor: Recipient<Notice>,
    pub handles: BTreeMap<PartitionId, Handles>,
    pub opening: BTreeMap<PartitionId, Opening>,
    pub timer: Option<SpawnHandle>,
}

/// A generation whose sinks are being opened.
#[derive(Default)]
pub(super) struct Opening {
    waiting: BTreeSet<StageName>,
    shown: BTreeMap<StageName, Committed>,
}

impl Actor for CoordinatorActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.set_timer(ctx);
        ctx.run_interval(Duration::from_secs(60), |coordinator, _| coordinator.sweep());
    }
}

/// A panic of the coordinator ends the process (protocol R14): it holds the ledger.
impl Drop for CoordinatorActor {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.supervisor.try_send(Notice::CoordinatorPanicked);
        }
    }
}

impl CoordinatorActor {
    fn on(&mut self, event: Event, ctx: &mut Context<Self>) {
        let now = Now { tick: clock::tick(), wall: clock::wall_millis() };
        let actions = with_seens(&self.plan.seens, |seens| self.ledger.on(event, now, seens));
        for action in actions {
            self.act(action, ctx);
        }
        self.set_timer(ctx);
    }

    /// The ledger says when it wants to be asked again.
    fn set_timer(&mut self, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let delay = self.ledger.wake_at().0.saturating_sub(clock::tick().0).max(1);
        self.timer = Some(ctx.run_later(Duration::from_millis(delay), |coordinator, ctx| {
            coordinator.timer = None;
            coordinator.on(Event::Timer, ctx);
        }));
    }

    fn act(&mut self, action: Action, ctx: &mut Context<Self>) {
        match action {
            Action::Trigger { partition, generation, epoch } => {
                if let Some(receiver) = self.living(&partition, generation).and_then(|h| h.receiver.as_ref()) {
                    let _ = receiver.try_send(TriggerCheckpoint { epoch });
                }
            }
            Action::PrepareDeadLetter { partition, generation, epoch, rejected } => {
                if let Some(handles) = self.living(&partition, generation) {
                    let _ = handles.dead_letter.try_send(PrepareDeadLetter { epoch, rejected });
                }
            }
            Action::Create(entry) => self.create(entry, ctx),
            Action::Commit { partition, generation, epoch, commits } => {
                let Some(handles) = self.living(&partition, generation) else { return };
                for (sink, commit) in commits {
                    // A sink that is gone has its generation's end reported, and the partition recovers.
                    if let Some(sink) = handles.sinks.get(&sink) {
                        let _ = sink.try_send(CommitCheckpoint { epoch, commit });
                    }
                }
            }
            Action::Complete { partition, generation, epoch, messages } => {
                tracing::debug!(%partition, %epoch, messages, "epoch committed");
                let metrics = self.plan.telemetry.partition(&partition.receiver, partition.index);
                metrics.checkpoints.add(1);
                metrics.checkpoint_age.since(clock::tick());
                if let Some(handles) = self.living(&partition, generation) {
                    for sink in handles.sinks.values() {
                        let _ = sink.try_send(CompleteCheckpoint { epoch });
                    }
                }
                self.notify(Notice::EpochCompleted { partition });
            }
            Action::Resume { partition, generation, next } => {
                tracing::debug!(%partition, %generation, %next, "recovered");
                if let Some(receiver) = self.living(&partition, generation).and_then(|h| h.receiver.as_ref()) {
                    let _ = receiver.try_send(Resume { next });
                }
            }
            Action::Restart { partition, generation, reason } => {
                self.notify(Notice::Restart { partition, generation, error: StageError::retry(reason) });
            }
            Action::Park { partition, generation, reason } => {
                let notice = Notice::Restart { partition, generation, error: StageError::park(reason) };
                self.unless_lost(notice, ctx);
            }
            // It may have ended because a sink's conditional commit failed (R8): in a process that has lost the log that
            // is the successor's doing, and nothing to be parked for.
            Action::MayRecover { partition } => self.unless_lost(Notice::MayRecover { partition }, ctx),
            Action::Tell { receiver, verdict } => self.tell(receiver, verdict),
            Action::Delete { from, below } => {
                let store = self.store.clone();
                actix::spawn(async move {
                    for number in from..below {
                        // What is left below the floor is never read; the next start deletes it.
                        if let Err(error) = store.delete(number).await {
                            tracing::warn!(number, %error, "cannot delete an old checkpoint entry");
                        }
                    }
                });
            }
            Action::LostLog { number } => self.notify(Notice::LostLog { number }),
            Action::Drained { .. } => self.notify(Notice::Drained),
        }
    }

    /// Says something that is true only while the log is ours: to a process that has lost it without knowing, the sinks
    /// show what its successor has committed, and no reset would mend that.
    fn unless_lost(&self, notice: Notice, ctx: &mut Context<Self>) {
        let (store, session, ours) = (self.store.clone(), self.session, self.ledger.log().last);
        let newest = async move {
            // Nothing is read if there is nothing new: an entry may name millions of identities.
            let number = store.list().await.ok()?.last().copied().filter(|newest| *newest > ours)?;
            let foreign = store.read(number).await.ok()??.session != session;
            foreign.then_some(number)
        };
        ctx.spawn(newest.into_actor(self).map(|foreign, coordinator, _| {
            coordinator.notify(match foreign {
                Some(number) => Notice::LostLog { number },
                None => notice,
            });
        }));
    }

    /// Creates until there is an answer (protocol R2), then lists once more (R4).
    fn create(&self, entry: Arc<Entry>, ctx: &mut Context<Self>) {
        let (store, status) = (self.store.clone(), self.plan.status.clone());
        let work = async move {
            let number = entry.number;
            let waiting = "the checkpoint log does not answer; its entry is tried again until it does".to_owned();
            let told = async {
                tokio::time::sleep(Duration::from_secs(5)).await;
                status.note("log", Some(waiting));
                std::future::pending::<()>().await;
            };
            let stored = async {
                match create(store.as_ref(), &entry).await {
                    Created::AlreadyExists(other) if other.attempt != entry.attempt => {
                        return Event::Foreign { number };
                    }
                    Created::Created | Created::AlreadyExists(_) => {}
                }
                loop {
                    match store.list().await {
                        Ok(numbers) => {
                            let newest = numbers.last().copied().unwrap_or(number);
                            return Event::Stored { number, newest };
                        }
                        Err(error) => tracing::warn!(%error, "cannot list the checkpoint log, trying again"),
                    }
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            };
            let event = tokio::select! {
                event = stored => event,
                () = told => unreachable!("it never ends"),
            };
            status.note("log", None);
            event
        };
        ctx.spawn(work.into_actor(self).map(|event, coordinator, ctx| coordinator.on(event, ctx)));
    }

    fn tell(&self, receiver: StageName, verdict: Verdict) {
        let holder = verdict.holder();
        let partition = PartitionId { receiver, index: holder.partition };
        let receiver = self.living(&partition, holder.generation).and_then(|h| h.receiver.as_ref());
        if let Some(receiver) = receiver {
            let _ = receiver.try_send(Decide(verdict));
        }
    }

    fn living(&self, partition: &PartitionId, generation: Generation) -> Option<&Handles> {
        self.handles.get(partition).filter(|handles| handles.generation == generation)
    }

    fn notify(&self, notice: Notice) {
        // Without a supervisor the process is ending.
        let _ = self.supervisor.try_send(notice);
    }

    /// All sinks of a new generation have been asked: R7, then R5.
    fn opened(&mut self, partition: PartitionId, generation: Generation, ctx: &mut Context<Self>) {
        let Some(opening) = self.opening.remove(&partition) else { return };
        self.on(Event::Opened { partition, generation, shown: opening.shown }, ctx);
    }

    fn sink_opened(
        &mut self,
        partition: PartitionId,
        generation: Generation,
        sink: StageName,
        opened: Option<crate::flow::Opened>,
        ctx: &mut Context<Self>,
    ) {
        if opened.is_some_and(|opened| opened.foreign) && !self.ledger.is_adopted(&sink) {
            let error = StageError::park(foreign_epochs(&sink));
            return self.notify(Notice::Restart { partition, generation, error });
        }
        let Some(opening) = self.opening.get_mut(&partition) else { return };
        if let Some(opened) = opened {
            opening.shown.insert(sink.clone(), opened.committed);
        }
        opening.waiting.remove(&sink);
        if opening.waiting.is_empty() {
            self.opened(partition, generation, ctx);
        }
    }

    /// Forgets what has been in doubt for too long, and says when doubts take too much room.
    fn sweep(&self) {
        let identity = &self.plan.topology.identity;
        let age = i64::try_from(identity.in_doubt.as_millis()).unwrap_or(i64::MAX);
        let oldest = clock::wall_millis().saturating_sub(age);
        let mut note = None;
        for (receiver, seen) in &self.plan.seens {
            let mut seen = lock(seen);
            seen.sweep(oldest);
            let in_doubt = seen.in_doubt();
            if in_doubt as u64 * 2 >= identity.max_ids {
                note = Some(format!(
                    "receiver '{receiver}': {in_doubt} message ids are in doubt, half of what may be known: raise \
                     identity.max_ids or lower identity.in_doubt"
                ));
            }
        }
        self.plan.status.note("in doubt", note);
    }
}

/// Lends the identities of every receiver out for one event.
pub(super) fn with_seens<T>(
    seens: &BTreeMap<StageName, Arc<Mutex<Seen>>>,
    f: impl FnOnce(&mut crate::checkpoint::Seens<'_>) -> T,
) -> T {
    let mut guards: Vec<_> = seens.iter().map(|(receiver, seen)| (receiver.clone(), lock(seen))).collect();
    let mut lent = guards.iter_mut().map(|(receiver, guard)| (receiver.clone(), &mut **guard)).collect();
    f(&mut lent)
}

impl Handler<Built> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, Built(handles): Built, ctx: &mut Self::Context) {
        let (partition, generation) = (handles.partition.clone(), handles.generation);
        let waiting = handles.sinks.keys().cloned().collect();
        self.opening.insert(partition.clone(), Opening { waiting, shown: BTreeMap::new() });
        for (name, sink) in &handles.sinks {
            let _ = sink.try_send(OpenSink { adopted: self.ledger.is_adopted(name) });
        }
        let none = handles.sinks.is_empty();
        self.handles.insert(partition.clone(), handles);
        if none {
            self.opened(partition, generation, ctx);
        }
    }
}

impl Handler<Report> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, Report { partition, generation, event }: Report, ctx: &mut Self::Context) {
        // A dead generation changes nothing (I6).
        if self.living(&partition, generation).is_none() {
            return;
        }
        match event {
            StageEvent::SinkOpened { sink, opened } => self.sink_opened(partition, generation, sink, opened, ctx),
            StageEvent::CheckpointPrepared { sink, epoch, report } => {
                self.on(Event::Prepared { partition, generation, epoch, sink, report }, ctx);
            }
            StageEvent::CheckpointCommitted { sink, epoch } => {
                self.on(Event::Committed { partition, generation, epoch, sink }, ctx);
            }
            StageEvent::CheckpointWanted { urgent } => self.on(Event::Wanted { urgent }, ctx),
            event @ (StageEvent::InputEnded | StageEvent::LimitReached | StageEvent::LinkClosed { .. }) => {
                if let StageEvent::LinkClosed { ended: true } = event
                    && let Some(seen) = self.plan.seens.get(&partition.receiver)
                {
                    lock(seen).link_answered(partition.index, generation);
                }
                self.notify(Notice::Stage { partition, generation, event });
            }
        }
    }
}

impl Handler<Tell> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, tell: Tell, ctx: &mut Self::Context) {
        match tell {
            Tell::PartitionDown { partition, generation } => {
                if self.living(&partition, generation).is_some() {
                    self.handles.remove(&partition);
                    self.opening.remove(&partition);
                }
                self.on(Event::Down { partition, generation }, ctx);
            }
            Tell::PartitionParked { partition } => self.on(Event::Parked { partition }, ctx),
            Tell::Drain => self.on(Event::Drain, ctx),
            Tell::AllClosed => self.on(Event::Ended, ctx),
            Tell::Stop => {
                self.handles.clear();
                ctx.stop();
            }
        }
    }
}
