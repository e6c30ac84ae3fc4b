//! The state machine of all partitions' checkpoints: facts in, decisions out, no I/O, no clock.
//!
//! Partitions checkpoint in *rounds*, so that those that write to one table can be committed as one version of it; but no
//! partition waits for a sick one. A report that comes too late for its round has a round of its own (protocol C22).
//! At most one create is outstanding (R1), and nobody recovers while one names it (R2).

mod collect;
mod entry;
mod lifecycle;
#[cfg(test)]
mod tests;
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Begun, Entry, Kind, Log, Newest};
use crate::flow::mutation::{Rule, removed};
use crate::flow::{Epoch, Generation, PartitionId, StageName, Tick, Verdict};

use collect::{Collecting, Report, Tallied};
pub use types::{Action, Commit, Event, LedgerConfig, Now, Seens, SinkReport, Tree};

/// Everything the coordinator knows.
#[derive(Clone, Debug, Hash)]
pub struct Ledger {
    config: LedgerConfig,
    begun: Origin,
    log: Log,
    members: BTreeMap<PartitionId, Member>,
    round: Option<Round>,
    /// When the next round starts by itself, and when the last one started.
    timer: Tick,
    last_round: Option<Tick>,
    wanted: bool,
    /// A checkpoint was wanted of a partition that could not be triggered then.
    deferred: bool,
    draining: bool,
    /// The create that has no answer yet.
    outstanding: Option<Arc<Entry>>,
    lost: bool,
}

/// What this process writes into every entry.
#[derive(Clone, Debug, Hash)]
struct Origin {
    session: uuid::Uuid,
    store: crate::flow::StoreId,
}

#[derive(Clone, Debug, Hash)]
struct Round {
    awaited: BTreeSet<PartitionId>,
    deadline: Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// No generation. `free`: nothing outstanding names it, so it may recover.
    Down { free: bool },
    /// Its newest part is being committed where it lacks.
    Replaying,
    /// A generation is at work.
    Living,
    /// Its end was asked for: nothing that it says counts any more.
    Failing,
    /// Given up until the process restarts.
    Parked,
}

#[derive(Clone, Debug, Hash)]
struct Member {
    phase: Phase,
    generation: Generation,
    /// The epoch that its receiver fills.
    filling: Epoch,
    /// Triggered; not all have reported.
    collecting: Option<Collecting>,
    /// All have reported; it waits for an entry.
    report: Option<Report>,
    /// Stored; not all sinks have committed.
    committing: Option<Committing>,
}

impl Member {
    /// Whether a checkpoint may be triggered.
    fn is_ready(&self) -> bool {
        self.phase == Phase::Living && self.collecting.is_none() && self.report.is_none()
    }
}

#[derive(Clone, Debug, Hash)]
struct Committing {
    epoch: Epoch,
    left: BTreeSet<StageName>,
}

impl Ledger {
    /// The ledger of a process that has taken the log over. `partitions` are those that the topology has; those that only
    /// the log knows are recovered too (protocol R3). Every partition starts as down.
    pub fn new(
        config: LedgerConfig,
        begun: &Begun,
        partitions: impl IntoIterator<Item = PartitionId>,
        now: Now,
    ) -> Self {
        let known = begun.log.base.keys().chain(begun.log.newest.keys());
        let known = known.filter(|_| !removed(Rule::RetiredAreRecovered)).cloned();
        let members = partitions.into_iter().chain(known).map(|partition| {
            // Until its sinks have been asked, the newest part counts as not committed by any of them.
            let committing = begun.log.newest.get(&partition).map(|newest| Committing {
                epoch: newest.part.epoch,
                left: newest.part.sinks.keys().cloned().collect(),
            });
            let member = Member {
                phase: Phase::Down { free: true },
                generation: Generation(0),
                filling: Epoch(0),
                collecting: None,
                report: None,
                committing,
            };
            (partition, member)
        });
        Self {
            begun: Origin { session: begun.session, store: begun.store },
            log: begun.log.clone(),
            members: members.collect(),
            round: None,
            timer: Tick(now.tick.0 + config.interval),
            last_round: None,
            wanted: false,
            deferred: false,
            draining: false,
            outstanding: None,
            lost: false,
            config,
        }
    }

    /// Every partition: those of the topology, and those that only the log knows.
    pub fn partitions(&self) -> impl Iterator<Item = &PartitionId> {
        self.members.keys()
    }

    /// The log as far as this process knows it.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Whether `sink` has a part in this log, or was adopted (protocol R7).
    pub fn is_adopted(&self, sink: &StageName) -> bool {
        self.log.adopted.contains(sink)
    }

    /// When [`Event::Timer`] is due at the latest.
    pub fn wake_at(&self) -> Tick {
        let round = self.round.as_ref().map(|round| round.deadline);
        let wanted = (self.wanted && self.round.is_none()).then(|| self.earliest_round());
        let timeouts = self.members.values().filter_map(|m| m.collecting.as_ref());
        let timeouts = timeouts.map(|c| Tick(c.since.0 + self.config.timeout));
        timeouts.chain(round).chain(wanted).chain([self.timer]).min().expect("the timer")
    }

    /// A fact; what follows from it.
    pub fn on(&mut self, event: Event, now: Now, seens: &mut Seens<'_>) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.lost {
            return actions;
        }
        match event {
            Event::Timer => {}
            Event::Wanted { urgent } => {
                self.wanted = true;
                if urgent {
                    self.last_round = None;
                }
            }
            Event::Drain => self.draining = true,
            Event::Prepared { partition, generation, epoch, sink, report } => {
                self.prepared(&partition, generation, epoch, sink, report, &mut actions);
            }
            Event::Stored { number, newest } => self.stored(number, newest, seens, now, &mut actions),
            Event::Foreign { number } => {
                if let Some(entry) = self.outstanding.take_if(|entry| entry.number == number) {
                    if removed(Rule::ForeignEndsProcess) {
                        return vec![self.write_after(number, entry)];
                    }
                    self.lost = true;
                    return vec![Action::LostLog { number }];
                }
            }
            Event::Committed { partition, generation, epoch, sink } => {
                let Some(member) = self.members.get_mut(&partition) else { return actions };
                let committing = member.committing.as_mut().filter(|c| c.epoch == epoch);
                if let Some(committing) = committing.filter(|_| member.generation == generation) {
                    committing.left.remove(&sink);
                    self.complete_if_done(&partition, seens, now, &mut actions);
                }
            }
            Event::Down { partition, generation } => self.down(&partition, generation, seens, now, &mut actions),
            Event::Opened { partition, generation, shown } => {
                self.opened(&partition, generation, &shown, seens, now, &mut actions);
            }
            Event::Parked { partition } => {
                if let Some(member) = self.members.get_mut(&partition) {
                    member.phase = Phase::Parked;
                }
            }
            Event::Ended => self.ended(seens, now, &mut actions),
        }
        self.advance(seens, now, &mut actions);
        actions
    }

    /// What R1 forbids: to write the entry after somebody else's.
    fn write_after(&mut self, number: u64, mut entry: Arc<Entry>) -> Action {
        self.log.last = number;
        Arc::make_mut(&mut entry).number = number + 1;
        self.outstanding = Some(entry.clone());
        Action::Create(entry)
    }

    /// Whether nothing is on its way that a drain must wait for.
    pub fn is_quiet(&self, seens: &Seens<'_>) -> bool {
        self.outstanding.is_none()
            && self.members.iter().all(|(partition, m)| {
                m.phase != Phase::Living
                    || (m.collecting.is_none() && m.report.is_none() && m.committing.is_none())
                        && !has_open(seens, partition, m.filling)
            })
    }

    /// Rounds, timeouts, and the next entry.
    fn advance(&mut self, seens: &mut Seens<'_>, now: Now, actions: &mut Vec<Action>) {
        for (partition, member) in &mut self.members {
            let late = member.collecting.as_ref().is_some_and(|c| now.tick.0 >= c.since.0 + self.config.timeout);
            if late && member.phase == Phase::Living {
                member.collecting = None;
                member.phase = Phase::Failing;
                let reason = format!("no report of the checkpoint within {} ms", self.config.timeout);
                actions.push(Action::Restart { partition: partition.clone(), generation: member.generation, reason });
            }
        }
        if now.tick >= self.timer {
            self.timer = Tick(now.tick.0 + self.config.interval);
            self.trigger(seens, now, actions);
        }
        if self.deferred {
            self.wanted |= self.members.iter().any(|(id, m)| m.is_ready() && has_open(seens, id, m.filling));
        }
        // A want joins the open round; without one it waits until rounds are far enough apart.
        if self.wanted && (self.round.is_some() || now.tick >= self.earliest_round()) || self.draining {
            self.wanted = false;
            let busy = |(id, m): (&PartitionId, &Member)| !m.is_ready() && has_open(seens, id, m.filling);
            self.deferred = self.members.iter().any(busy);
            self.trigger(seens, now, actions);
        }
        if let Some(round) = &mut self.round {
            round.awaited.retain(|partition| self.members[partition].collecting.is_some());
            if round.awaited.is_empty() || now.tick >= round.deadline {
                self.round = None;
            }
        }
        if self.round.is_none() && self.outstanding.is_none() {
            self.create_epochs(seens, now, actions);
        }
    }

    fn earliest_round(&self) -> Tick {
        self.last_round.map_or(Tick(0), |last| Tick(last.0 + self.config.round_gap))
    }

    /// Triggers every living partition that has something open and no report waiting.
    fn trigger(&mut self, seens: &Seens<'_>, now: Now, actions: &mut Vec<Action>) {
        let mut triggered = BTreeSet::new();
        for (partition, member) in &mut self.members {
            if !member.is_ready() {
                continue;
            }
            // Without an exactly-once sink there are no identities, so whether something is open is not known here.
            let tree = self.config.trees.get(&partition.receiver);
            let unknown = tree.is_some_and(|tree| tree.exactly_once.is_empty());
            if !unknown && !has_open(seens, partition, member.filling) {
                continue;
            }
            let epoch = member.filling;
            member.filling = epoch.next();
            member.collecting = Some(Collecting { epoch, since: now.tick, reports: BTreeMap::new(), rejected: None });
            let (partition, generation) = (partition.clone(), member.generation);
            actions.push(Action::Trigger { partition: partition.clone(), generation, epoch });
            triggered.insert(partition);
        }
        if triggered.is_empty() {
            return;
        }
        self.last_round = Some(now.tick);
        let deadline = Tick(now.tick.0 + self.config.round_limit());
        let round = self.round.get_or_insert(Round { awaited: BTreeSet::new(), deadline });
        round.awaited.append(&mut triggered);
    }

    fn prepared(
        &mut self,
        partition: &PartitionId,
        generation: Generation,
        epoch: Epoch,
        sink: StageName,
        report: SinkReport,
        actions: &mut Vec<Action>,
    ) {
        let Some(tree) = self.config.trees.get(&partition.receiver) else { return };
        let Some(member) = self.members.get_mut(partition) else { return };
        if member.generation != generation || member.phase != Phase::Living {
            return;
        }
        let Some(collecting) = member.collecting.as_mut().filter(|c| c.epoch == epoch) else { return };
        collecting.reports.insert(sink, report);

        let verdict = collecting.verdict(tree, partition, generation);
        match verdict {
            Tallied::Incomplete => {}
            Tallied::AskDeadLetter(action) => actions.push(action),
            Tallied::Mismatch(reason) => {
                member.collecting = None;
                member.phase = Phase::Failing;
                actions.push(Action::Restart { partition: partition.clone(), generation, reason });
            }
            Tallied::Complete(report) => {
                member.collecting = None;
                // Without an exactly-once sink nothing is stored: the sinks have accepted what they flushed.
                if !tree.exactly_once.is_empty() {
                    member.report = Some(report);
                }
            }
        }
    }

    fn stored(&mut self, number: u64, newest: u64, seens: &mut Seens<'_>, now: Now, actions: &mut Vec<Action>) {
        let Some(entry) = self.outstanding.take_if(|entry| entry.number == number) else { return };
        if newest > number && !removed(Rule::ListAfterCreate) {
            self.lost = true;
            actions.push(Action::LostLog { number: newest });
            return;
        }
        let old_floor = self.log.floor;
        self.log.apply(&entry);
        for (receiver, seen) in seens.iter_mut() {
            for part in entry.parts.iter().filter(|part| part.partition.receiver == *receiver) {
                let rejected: Vec<_> = part.ids.iter().filter(|(_, rejected)| *rejected).map(|(id, _)| *id).collect();
                seen.committing(part.partition.index, part.epoch, number, &rejected, &part.cursors);
            }
            seen.copied(entry.floor, number);
        }
        if entry.floor > old_floor {
            actions.push(Action::Delete { from: old_floor, below: entry.floor });
        }
        if entry.kind == Kind::Drained {
            actions.push(Action::Drained { written: true });
            return;
        }
        let mut group: BTreeMap<StageName, usize> = BTreeMap::new();
        let living = |ledger: &Self, part: &super::Part| {
            ledger
                .members
                .get(&part.partition)
                .is_some_and(|m| m.phase == Phase::Living && m.generation == part.generation)
        };
        for part in entry.parts.iter().filter(|part| living(self, part)) {
            for sink in part.sinks.keys() {
                *group.entry(sink.clone()).or_default() += 1;
            }
        }
        for part in &entry.parts {
            let alive = living(self, part);
            let member = self.members.get_mut(&part.partition).expect("a member whose report was stored");
            member.committing = Some(Committing { epoch: part.epoch, left: part.sinks.keys().cloned().collect() });
            if alive {
                actions.push(self.commit(&part.partition, part.sinks.keys().cloned().collect(), &group));
                self.complete_if_done(&part.partition, seens, now, actions);
            } else if member.phase == (Phase::Down { free: false }) {
                self.release(&part.partition, seens, actions);
            }
        }
    }

    /// The commit of a partition's newest part, in these sinks.
    fn commit(
        &self,
        partition: &PartitionId,
        sinks: BTreeSet<StageName>,
        group: &BTreeMap<StageName, usize>,
    ) -> Action {
        let Newest { part, base, .. } = &self.log.newest[partition];
        let commits = part.sinks.iter().filter(|(sink, _)| sinks.contains(*sink));
        let commits = commits.map(|(sink, prepared)| {
            let group = group.get(sink).copied().unwrap_or(1);
            (sink.clone(), Commit { base: base.shown(sink), prepared: prepared.clone(), group })
        });
        let generation = self.members[partition].generation;
        Action::Commit { partition: partition.clone(), generation, epoch: part.epoch, commits: commits.collect() }
    }

    fn complete_if_done(
        &mut self,
        partition: &PartitionId,
        seens: &mut Seens<'_>,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let Some(member) = self.members.get_mut(partition) else { return };
        let Some(done) = member.committing.take_if(|c| c.left.is_empty()) else { return };
        if let Some(seen) = seens.get_mut(&partition.receiver) {
            let verdicts = seen.committed(partition.index, done.epoch, now.wall);
            actions.extend(tell(&partition.receiver, verdicts));
        }
        match member.phase {
            Phase::Living => {
                let (partition, generation) = (partition.clone(), member.generation);
                let messages = self.log.newest.get(&partition).map_or(0, |newest| newest.part.messages);
                actions.push(Action::Complete { partition, generation, epoch: done.epoch, messages });
            }
            Phase::Replaying => {
                member.phase = Phase::Living;
                let (partition, generation, next) = (partition.clone(), member.generation, member.filling);
                actions.push(Action::Resume { partition, generation, next });
            }
            Phase::Down { .. } | Phase::Failing | Phase::Parked => {}
        }
    }
}

fn tell(receiver: &StageName, verdicts: Vec<Verdict>) -> impl Iterator<Item = Action> + '_ {
    verdicts.into_iter().map(|verdict| Action::Tell { receiver: receiver.clone(), verdict })
}

fn has_open(seens: &Seens<'_>, partition: &PartitionId, epoch: Epoch) -> bool {
    seens.get(&partition.receiver).is_some_and(|seen| seen.has_open(partition.index, epoch))
}
