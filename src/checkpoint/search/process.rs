//! A living process: facts go into its real ledger, and what the ledger decides is carried out on the model.

use std::collections::VecDeque;
use std::sync::Arc;

use super::explore::Violation;
use super::scope::{self, Model, identity, message};
use super::shared::Shared;
use super::tables;
use super::world::{Commit, Create, Delete, Life, LinkId, Partition, Pending, Phase, Process, World};
use crate::checkpoint::{Action, Begun, Entry, Event, Ledger, Log, Now, Seens, load_seen};
use crate::flow::mutation::{Rule, removed};
use crate::flow::{Epoch, Generation, PartitionId, Tick, Verdict, invariants};

type Result<T = ()> = std::result::Result<T, Violation>;

pub const NOW: Now = Now { tick: Tick(0), wall: 0 };

/// The numbers in a process's ids are far apart, so that an attempt never looks like another's.
fn session(process: u8) -> uuid::Uuid {
    uuid::Uuid::from_u128(u128::from(process) << 64)
}

fn store_id(store: u8) -> crate::flow::StoreId {
    crate::flow::StoreId(uuid::Uuid::from_u128(u128::from(store) + 1))
}

/// Under which name a partition's epochs are recorded in a target (R7).
pub fn app(store: u8, partition: u8) -> (u8, u8) {
    if removed(Rule::OwnTxn) { (0, 0) } else { (store, partition) }
}

pub fn is_quiet(process: &Process, model: &Model) -> bool {
    let mut seen = process.seen.get().clone();
    let seens: Seens<'_> = [(model.receiver.clone(), &mut seen)].into();
    process.ledger.get().is_quiet(&seens)
}

impl World {
    /// The entries of a store, oldest first, from the newest one's floor on.
    pub fn entries(&self, store: u8) -> Result<Vec<Entry>> {
        let entries = &self.stores[usize::from(store)].entries;
        let Some((&last, newest)) = entries.last_key_value() else { return Ok(Vec::new()) };
        let read = |number| {
            let entry = entries.get(&number).map(|entry| entry.get().clone());
            entry.ok_or_else(|| Violation(format!("the log has no entry {number}, though it goes on after it")))
        };
        let floor = newest.get().floor;
        let mut all: Vec<_> = (floor..=last).map(read).collect::<Result<_>>()?;
        if removed(Rule::NothingBelowFloor) {
            all.splice(0..0, entries.range(..floor).map(|(_, entry)| entry.get().clone()));
        }
        Ok(all)
    }

    /// A process takes the log over (R1), and fills its `Seen` (R3).
    pub fn start(&mut self, model: &Model, partitions: u8) -> Result {
        let store = if model.own_stores {
            let free = |store: &u8| self.processes.iter().all(|process| process.store != *store);
            (0u8..).find(free).expect("a store that nobody has")
        } else {
            self.store
        };
        if self.stores.len() <= usize::from(store) {
            self.stores.resize_with(usize::from(store) + 1, Default::default);
        }
        self.started += 1;
        let id = self.started;
        let newest = self.stores[usize::from(store)].entries.last_key_value().map(|(_, entry)| entry.get().clone());
        let sinks = model.tables.iter().cloned().collect();
        let entry = Entry::session(newest.as_ref(), &model.config.topology, session(id), false, &sinks, NOW.wall);
        let mut entry = entry.map_err(|error| Violation(error.to_string()))?;
        if newest.is_none() {
            entry.store = store_id(store);
        }
        let number = entry.number;
        self.stores[usize::from(store)].entries.insert(number, Shared::new(entry));
        let entries = self.entries(store)?;
        let log = Log::read(&entries);
        let mut entries = entries;
        if removed(Rule::RetiredAreRecovered) {
            let configured = |part: &crate::checkpoint::Part| part.partition.index < u32::from(partitions);
            entries.iter_mut().for_each(|entry| entry.parts.retain(configured));
        }
        let seen = load_seen(&model.receiver, &entries, &log);
        let begun = Begun { session: session(id), store: store_id(store), log, entries };
        let configured = model.partitions[..usize::from(partitions)].iter().cloned();
        let ledger = Ledger::new(model.config.clone(), &begun, configured, NOW);
        let members = ledger.partitions().map(|partition| {
            let index = partition.index as u8;
            (index, Partition { configured: index < partitions, generation: 0, phase: Phase::MayOpen })
        });
        let members = members.collect();
        self.processes.push(Process {
            id,
            store,
            ledger: Shared::new(ledger),
            seen: Shared::new(seen),
            partitions: members,
            draining: false,
            ended: false,
        });
        Ok(())
    }

    /// A fact for the ledger of process `id`, and all that follows at once.
    pub fn feed(&mut self, model: &Model, id: u8, event: Event, now: Now) -> Result {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            if !self.lives(id) {
                return Ok(());
            }
            let Process { ledger, seen, .. } = self.process_mut(id);
            let actions = ledger.change(|ledger| {
                seen.change(|seen| ledger.on(event, now, &mut [(model.receiver.clone(), seen)].into()))
            });
            for action in actions {
                if !self.lives(id) {
                    return Ok(());
                }
                self.act(model, id, action, &mut events)?;
            }
        }
        Ok(())
    }

    fn act(&mut self, model: &Model, id: u8, action: Action, events: &mut VecDeque<Event>) -> Result {
        match action {
            Action::Trigger { partition, generation, epoch } => {
                let index = partition.index as u8;
                let Some(life) = self.life_of(id, index, generation) else { return Ok(()) };
                if life.pending.is_some() || life.filling != epoch.0 {
                    return Err(Violation(format!(
                        "p{index} was triggered for epoch {epoch} while it could not end it"
                    )));
                }
                let pending = Pending {
                    epoch: epoch.0,
                    rows: std::mem::take(&mut life.open),
                    cursors: life.unfinished.clone(),
                    dropped: std::mem::take(&mut life.dropped),
                    reported: 0,
                    asked: false,
                };
                life.filling = epoch.0 + 1;
                let unfinished: Vec<_> = pending.cursors.iter().map(|(msg, _)| identity(*msg)).collect();
                life.pending = Some(pending);
                if !unfinished.is_empty() {
                    let seen = &mut self.process_mut(id).seen;
                    seen.change(|seen| seen.carry(&unfinished, partition.index, generation));
                }
            }
            Action::PrepareDeadLetter { partition, generation, epoch, .. } => {
                if let Some(life) = self.life_of(id, partition.index as u8, generation) {
                    let pending = life.pending.as_mut().filter(|pending| pending.epoch == epoch.0);
                    pending.ok_or_else(|| Violation("the dead letter was asked for another epoch".into()))?.asked =
                        true;
                }
            }
            Action::Create(entry) => {
                let store = self.process(id).store;
                let entry = Shared::new(Arc::unwrap_or_clone(entry));
                self.creates.push(Create { process: id, store, entry, awaited: true, landed: None });
            }
            Action::Commit { partition, generation, epoch, commits } => {
                let (index, store) = (partition.index as u8, self.process(id).store);
                if self.life_of(id, index, generation).is_none() {
                    return Ok(());
                }
                for (sink, commit) in commits {
                    self.commits.push(Commit {
                        process: id,
                        store,
                        partition: index,
                        generation: generation.0 as u8,
                        table: model.table_index(&sink),
                        epoch: epoch.0,
                        base: commit.base.0,
                        rows: tables::rows(&commit.prepared),
                        awaited: true,
                        version: None,
                    });
                }
            }
            Action::Complete { partition, generation, epoch, .. } => {
                self.accept_epoch(model, id, partition.index as u8, generation, epoch)?;
            }
            Action::Resume { partition, generation, next } => {
                let index = partition.index as u8;
                let process = self.process_mut(id);
                let receives = process.partitions[&index].configured && !process.draining;
                let link = process.link(index);
                let Some(life) = self.life_of(id, index, generation) else { return Ok(()) };
                life.filling = next.0;
                life.receiving = receives;
                if receives {
                    self.broker.links.insert(link, Vec::new());
                    self.process_mut(id).seen.change(|seen| seen.link_up(partition.index, generation));
                }
            }
            Action::Restart { partition, generation, .. } => {
                let index = partition.index as u8;
                if self.life_of(id, index, generation).is_some() {
                    events.push_back(self.end_generation(id, index));
                }
            }
            Action::Park { partition, reason, .. } => {
                if self.has_moved_on(id) {
                    self.end_process(id);
                    return Ok(());
                }
                if !self.contradicted {
                    return Err(Violation(format!("a partition parks though nothing was lost: {reason}")));
                }
                let member = self.process_mut(id).partitions.get_mut(&(partition.index as u8));
                member.expect("a partition").phase = Phase::Parked;
                events.push_back(Event::Parked { partition });
            }
            Action::MayRecover { partition } => {
                let member = self.process_mut(id).partitions.get_mut(&(partition.index as u8)).expect("a partition");
                if member.phase == Phase::Down {
                    member.phase = Phase::MayOpen;
                }
            }
            Action::Tell { verdict, .. } => self.tell(model, id, verdict)?,
            Action::Delete { from, below } => {
                let store = self.process(id).store;
                if model.late_deletes {
                    // From the front, so one after the other.
                    match self.deletes.iter_mut().find(|delete| delete.store == store && delete.below == from) {
                        Some(delete) => delete.below = below,
                        None => self.deletes.push(Delete { store, from, below }),
                    }
                } else {
                    self.stores[usize::from(store)].entries.retain(|number, _| !(from..below).contains(number));
                }
            }
            Action::LostLog { .. } => self.end_process(id),
            Action::Drained { .. } => {
                let process = self.process(id);
                let unsettled = process.partitions.values().filter_map(Partition::life).map(|life| {
                    // What was held or unfinished goes back to the broker.
                    life.unsettled.len() as u64
                });
                let links = self.broker.links.keys().filter(|link| link.process == id).count() as u64;
                let outcome = invariants::quiet_after_drain(unsettled.sum(), links);
                self.end_process(id);
                outcome?;
            }
        }
        Ok(())
    }

    pub fn life_of(&mut self, id: u8, partition: u8, generation: Generation) -> Option<&mut Life> {
        let member = self.process_mut(id).partitions.get_mut(&partition)?;
        let current = u64::from(member.generation) == generation.0;
        member.life_mut().filter(|_| current)
    }

    /// Accepts what had its last row in this epoch, over the generation's link.
    pub fn accept_epoch(
        &mut self,
        model: &Model,
        id: u8,
        partition: u8,
        generation: Generation,
        epoch: Epoch,
    ) -> Result {
        let link = LinkId { process: id, partition, generation: generation.0 as u8 };
        let Some(life) = self.life_of(id, partition, generation) else { return Ok(()) };
        let (done, left) = life.unsettled.iter().partition(|(_, last)| *last == epoch.0);
        life.unsettled = left;
        let done: Vec<(u8, u64)> = done;
        for (msg, _) in done {
            self.accept(model, link, msg)?;
        }
        let seen = &mut self.process_mut(id).seen;
        seen.change(|seen| seen.settled_epoch(u32::from(partition), generation, epoch, NOW.tick, false));
        Ok(())
    }

    /// An accept leaves for the broker.
    fn accept(&mut self, model: &Model, link: LinkId, msg: u8) -> Result {
        self.is_settled_rightly(model, msg)?;
        if let Some(sent) = self.broker.links.get_mut(&link) {
            invariants::settled_once(1 + sent.iter().filter(|other| **other == msg).count() as u64)?;
            sent.push(msg);
        }
        Ok(())
    }

    fn settle(&mut self, model: &Model, link: LinkId, msg: u8) -> Result {
        self.accept(model, link, msg)?;
        let (partition, generation) = (u32::from(link.partition), Generation(u64::from(link.generation)));
        let seen = &mut self.process_mut(link.process).seen;
        seen.change(|seen| seen.settled(&[identity(msg)], partition, generation, NOW.tick, false));
        Ok(())
    }

    fn tell(&mut self, model: &Model, id: u8, verdict: Verdict) -> Result {
        let (holder, msg) = (verdict.holder(), verdict.holder().delivery.0 as u8);
        let partition = holder.partition as u8;
        let link = LinkId { process: id, partition, generation: holder.generation.0 as u8 };
        let Some(life) = self.life_of(id, partition, holder.generation) else { return Ok(()) };
        let Some(at) = life.held.iter().position(|held| *held == msg) else { return Ok(()) };
        life.held.remove(at);
        match verdict {
            Verdict::Accept(..) => self.settle(model, link, msg),
            Verdict::Free(..) => {
                life.freed.push(msg);
                Ok(())
            }
        }
    }

    /// A delivery is offered to `Seen`, for the first time or again.
    pub fn offer(&mut self, model: &Model, id: u8, partition: u8, msg: u8) -> Result {
        use crate::flow::{DeliveryId, Holder, Offer};
        let process = self.process_mut(id);
        let link = process.link(partition);
        let generation = Generation(u64::from(link.generation));
        let filling = process.partitions[&partition].life().expect("a receiver").filling;
        let holder = Holder { partition: u32::from(partition), generation, delivery: DeliveryId(u64::from(msg)) };
        let offer = process.seen.change(|seen| seen.offer(identity(msg), holder, Epoch(filling)));
        let life = self.life_of(id, partition, generation).expect("a receiver");
        match offer {
            Offer::New { resume } => {
                life.unfinished.push((msg, resume as u8));
                self.send_row(model, id, partition, msg)
            }
            Offer::Done => self.settle(model, link, msg),
            Offer::Held { .. } => {
                life.held.push(msg);
                Ok(())
            }
            Offer::Collision => Err(Violation("a message collided with itself".into())),
        }
    }

    /// The next row of a delivery goes to the sinks.
    pub fn send_row(&mut self, model: &Model, id: u8, partition: u8, msg: u8) -> Result {
        let rows = model.messages[usize::from(msg)].rows;
        let member = self.process_mut(id).partitions.get_mut(&partition).expect("a partition");
        let generation = Generation(u64::from(member.generation));
        let life = member.life_mut().expect("a receiver");
        let at = life.unfinished.iter().position(|(other, _)| *other == msg).expect("an unfinished delivery");
        let row = life.unfinished[at].1;
        if row >= rows {
            return Err(Violation(format!("m{msg} is resumed at row {row}, beyond its end")));
        }
        life.open.push((msg, row));
        let filling = life.filling;
        if row + 1 == rows {
            life.unfinished.remove(at);
            life.unsettled.push((msg, filling));
        } else {
            life.unfinished[at].1 = row + 1;
        }
        let in_flight = life.in_flight() as u64;
        if rows > 1 {
            let seen = &mut self.process_mut(id).seen;
            seen.change(|seen| seen.continued(&[identity(msg)], u32::from(partition), generation, Epoch(filling)));
        }
        if model.is_rejected(msg) && removed(Rule::DeadLetterInEpoch) {
            let dead_letter = &mut self.tables[usize::from(model.sinks)];
            dead_letter.change(|table| *table.rows.entry((msg, row)).or_insert(0) += 1);
        }
        Ok(invariants::within_budget(in_flight, model.budget as u64)?)
    }

    /// The end of a generation: its link is closed, and what it had in the air nobody waits for. What is to be fed.
    pub fn end_generation(&mut self, id: u8, partition: u8) -> Event {
        let process = self.process_mut(id);
        let link = process.link(partition);
        let member = process.partitions.get_mut(&partition).expect("a partition");
        member.phase = Phase::Down;
        let generation = Generation(u64::from(member.generation));
        self.broker.end(link);
        self.abandon_commits(|commit| (commit.process, commit.partition) == (id, partition));
        Event::Down { partition: PartitionId::new(scope::RECEIVER, u32::from(partition)), generation }
    }

    /// The end of a process, whatever the reason.
    pub fn end_process(&mut self, id: u8) {
        let links: Vec<_> = self.broker.links.keys().filter(|link| link.process == id).copied().collect();
        links.into_iter().for_each(|link| self.broker.end(link));
        // A message may be out over a link that the broker has lost already.
        self.processes.retain(|process| process.id != id);
        self.abandon_commits(|commit| commit.process == id);
        self.creates.retain(|create| create.process != id || create.landed.is_none());
        for create in self.creates.iter_mut().filter(|create| create.process == id) {
            create.awaited = false;
        }
    }

    fn abandon_commits(&mut self, whose: impl Fn(&Commit) -> bool) {
        let tables = &self.tables;
        for commit in self.commits.iter_mut().filter(|commit| commit.awaited && whose(commit)) {
            commit.awaited = false;
            commit.version = Some(tables[usize::from(commit.table)].get().version);
        }
    }
}

/// The messages in a part: those with their last row in it, and those that go on after it.
pub fn messages_of(part: &crate::checkpoint::Part) -> Vec<u8> {
    let ids = part.ids.iter().map(|(identity, _)| *identity);
    ids.chain(part.cursors.iter().map(|(identity, _)| *identity)).map(message).collect()
}
