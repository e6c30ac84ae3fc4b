//! What a step does to a state, and whether the state after it is right.

use super::explore::Violation;
use super::process::{NOW, app, messages_of};
use super::scope::{Model, ROUND_OVER};
use super::shared::Shared;
use super::step::Step;
use super::tables::Landed;
use super::world::{At, Msg, Phase, World};
use crate::checkpoint::{Entry, Event, Log, Now, recover};
use crate::flow::mutation::{Rule, removed};
use crate::flow::{Committed, Epoch, Generation, Tick, invariants};

type Result<T = ()> = std::result::Result<T, Violation>;

/// The state after `step`.
pub fn apply(world: &World, model: &Model, step: Step) -> Result<World> {
    let mut next = world.clone();
    if step.is_fault(model) {
        next.faults -= 1;
    }
    next.take(model, step)?;
    next.tidy(model);
    next.is_right(world, model)?;
    Ok(next)
}

impl World {
    fn take(&mut self, model: &Model, step: Step) -> Result {
        match step {
            Step::Start { partitions } => self.start(model, partitions),
            Step::Second => self.start(model, model.partitions.len() as u8),
            Step::Empty => {
                self.contradicted = true;
                self.store = self.stores.len() as u8;
                self.stores.push(Default::default());
                Ok(())
            }
            Step::Reset { partition, dropped } => self.reset(model, partition, dropped),
            Step::Open { process, partition } => {
                let dead = self.process(process).partitions[&partition].generation;
                self.open(model, process, partition)?;
                if dead > 0 { self.hears_nothing_stale(model, process, partition, dead) } else { Ok(()) }
            }
            Step::Park { process, partition } => self.give_up(model, process, partition),
            Step::Deliver { process, partition, msg } => {
                let link = self.process(process).link(partition);
                self.broker.messages[usize::from(msg)] = At::Delivered(link);
                self.broker.touched |= 1 << msg;
                self.offer(model, process, partition, msg)
            }
            Step::TakeUp { process, partition } => {
                let life = self.process_mut(process).partitions.get_mut(&partition).and_then(|p| p.life_mut());
                let msg = life.expect("a receiver").freed.remove(0);
                self.offer(model, process, partition, msg)
            }
            Step::Row { process, partition, msg } => self.send_row(model, process, partition, msg),
            Step::Report { process, partition, table } => self.report(model, process, partition, table),
            Step::Wanted { process } => self.feed(model, process, Event::Wanted { urgent: true }, NOW),
            Step::Deadline { process } => {
                self.feed(model, process, Event::Timer, Now { tick: Tick(ROUND_OVER), ..NOW })
            }
            Step::Received { link } => {
                let msg = self.broker.links.get_mut(&link).expect("a link").remove(0);
                let at = &mut self.broker.messages[usize::from(msg)];
                if *at != At::Delivered(link) {
                    return Err(Violation(format!("I2: m{msg} was settled over a link that does not have it")));
                }
                *at = At::Settled;
                Ok(())
            }
            Step::Expire { process, partition } => {
                let seen = &mut self.process_mut(process).seen;
                seen.change(|seen| seen.expire(u32::from(partition), NOW.tick, 0));
                Ok(())
            }
            Step::Noticed { process, partition } | Step::Die { process, partition } => {
                self.die(model, process, partition)
            }
            Step::Released { process, partition } => self.released(model, process, partition),
            Step::LandCreate { at } => self.land_create(model, at),
            Step::AnswerCreate { at } => self.answer_create(model, at),
            Step::LoseCreate { at } => {
                let mut late = self.creates[usize::from(at)].clone();
                late.awaited = false;
                self.creates.push(late);
                Ok(())
            }
            Step::LandCommit { at, heard } => self.land_commit(model, at, heard),
            Step::LoseCommit { at } => {
                let mut late = self.commits[usize::from(at)].clone();
                late.awaited = false;
                late.version = Some(self.tables[usize::from(late.table)].get().version);
                self.commits.push(late);
                Ok(())
            }
            Step::Delete { at } => {
                let delete = &mut self.deletes[usize::from(at)];
                self.stores[usize::from(delete.store)].entries.remove(&delete.from);
                delete.from += 1;
                Ok(())
            }
            Step::Crash { process } => {
                self.end_process(process);
                Ok(())
            }
            Step::LinkDies { link } => {
                self.broker.end(link);
                Ok(())
            }
            Step::DropShare { process, partition, msg, table } => {
                let life = self.process_mut(process).partitions.get_mut(&partition).and_then(|p| p.life_mut());
                let life = life.expect("a receiver");
                life.dropped.push((msg, table));
                life.released = true;
                Ok(())
            }
            Step::Drain { process } => {
                self.process_mut(process).draining = true;
                self.feed(model, process, Event::Drain, NOW)
            }
            Step::Close { process } => self.close(model, process),
        }
    }

    fn die(&mut self, model: &Model, process: u8, partition: u8) -> Result {
        let down = self.end_generation(process, partition);
        let (index, generation) = (partition, self.process(process).partitions[&partition].generation);
        self.feed(model, process, down, NOW)?;
        self.hears_nothing_stale(model, process, index, generation)
    }

    /// I6: whatever else a dead generation says, the ledger and `Seen` are as if only time had passed.
    fn hears_nothing_stale(&self, model: &Model, process: u8, partition: u8, generation: u8) -> Result {
        if !self.lives(process) {
            return Ok(());
        }
        // What a sink committed is true whoever says so, as long as nobody else was told to commit it again.
        let is_replaced = self.process(process).partitions[&partition].generation > generation;
        let mut quiet = self.clone();
        quiet.feed(model, process, Event::Timer, NOW)?;
        let mut other = self.clone();
        let id = model.partition(partition).clone();
        let generation = Generation(u64::from(generation));
        for table in &model.tables {
            for epoch in 1..=3 {
                let report = Default::default();
                let (partition, sink, epoch) = (id.clone(), table.clone(), Epoch(epoch));
                if is_replaced {
                    let (partition, sink) = (partition.clone(), sink.clone());
                    other.feed(model, process, Event::Committed { partition, generation, epoch, sink }, NOW)?;
                }
                other.feed(model, process, Event::Prepared { partition, generation, epoch, sink, report }, NOW)?;
            }
        }
        let (before, after) = (quiet.process(process), other.process(process));
        Ok(invariants::unmoved(&(&before.ledger, &before.seen), &(&after.ledger, &after.seen))?)
    }

    /// A released receipt ends the generation (R6); without that rule the source just gives the delivery back.
    fn released(&mut self, model: &Model, process: u8, partition: u8) -> Result {
        if !removed(Rule::DropReleases) {
            return self.die(model, process, partition);
        }
        let member = self.process_mut(process).partitions.get_mut(&partition).expect("a partition");
        let life = member.life_mut().expect("a receiver");
        life.released = false;
        let pending = life.pending.iter().flat_map(|pending| &pending.dropped);
        let msgs: Vec<Msg> = life.dropped.iter().chain(pending).map(|(msg, _)| *msg).collect();
        life.unsettled.retain(|(msg, _)| !msgs.contains(msg));
        life.unfinished.retain(|(msg, _)| !msgs.contains(msg));
        let own = At::Delivered(self.process(process).link(partition));
        for msg in msgs {
            let at = &mut self.broker.messages[usize::from(msg)];
            if *at == own {
                *at = At::Queued;
            }
        }
        Ok(())
    }

    fn land_create(&mut self, model: &Model, at: u8) -> Result {
        let at = usize::from(at);
        let create = self.creates[at].clone();
        let number = create.entry.get().number;
        let entries = &mut self.stores[usize::from(create.store)].entries;
        let there = entries.get(&number).map(|entry| entry.get().attempt);
        let is_mine = there.is_none_or(|attempt| attempt == create.entry.get().attempt);
        if there.is_none() || removed(Rule::CreateIfAbsent) {
            entries.insert(number, create.entry.clone());
        }
        if !create.awaited {
            self.creates.remove(at);
            return Ok(());
        }
        self.creates[at].landed = Some(is_mine || removed(Rule::CreateIfAbsent));
        // With one process nobody can look between the landing and the answer.
        if self.processes.len() == 1 { self.answer_create(model, at as u8) } else { Ok(()) }
    }

    fn answer_create(&mut self, model: &Model, at: u8) -> Result {
        let create = self.creates.remove(usize::from(at));
        let (id, entry) = (create.process, create.entry.get());
        let number = entry.number;
        if create.landed != Some(true) {
            return self.feed(model, id, Event::Foreign { number }, NOW);
        }
        for part in &entry.parts {
            let base = entry.base.get(&part.partition).map_or(Epoch(0), |base| base.epoch);
            invariants::contiguous(base, part.epoch)?;
        }
        if removed(Rule::AcceptAfterCommit) {
            for part in &entry.parts {
                self.accept_epoch(model, id, part.partition.index as u8, part.generation, part.epoch)?;
            }
        }
        let newest = self.stores[usize::from(create.store)].entries.last_key_value();
        let newest = newest.map_or(number, |(newest, _)| *newest);
        self.feed(model, id, Event::Stored { number, newest }, NOW)
    }

    fn land_commit(&mut self, model: &Model, at: u8, heard: bool) -> Result {
        let commit = self.commits.remove(usize::from(at));
        let table = &mut self.tables[usize::from(commit.table)];
        let conflict = model.versioned && commit.version.is_some_and(|version| version != table.get().version);
        let landed = if conflict && !removed(Rule::ConditionalCommit) {
            Landed::Inconsistent
        } else {
            let app = app(commit.store, commit.partition);
            table.change(|table| table.commit(app, commit.epoch, commit.base, &commit.rows, model.merge))
        };
        let event = Event::Committed {
            partition: model.partition(commit.partition).clone(),
            generation: Generation(u64::from(commit.generation)),
            epoch: Epoch(commit.epoch),
            sink: model.tables[usize::from(commit.table)].clone(),
        };
        match landed {
            Landed::Shown if heard => self.feed(model, commit.process, event, NOW),
            Landed::Inconsistent if commit.awaited => {
                self.park(model, commit.process, commit.partition, "its sink is at another epoch (R8)")
            }
            _ => Ok(()),
        }
    }

    /// A drain has nothing left to wait for: links are closed. A peer whose link is alive has received everything before
    /// it answers.
    fn close(&mut self, model: &Model, process: u8) -> Result {
        let receives = |(index, partition): (&u8, &super::world::Partition)| {
            partition.life().filter(|life| life.receiving).map(|_| *index)
        };
        let living: Vec<_> = self.process(process).partitions.iter().filter_map(receives).collect();
        for index in living {
            let link = self.process(process).link(index);
            let answered = self.broker.links.contains_key(&link);
            while self.broker.links.get(&link).is_some_and(|sent| !sent.is_empty()) {
                self.take(model, Step::Received { link })?;
            }
            self.broker.end(link);
            let member = self.process_mut(process);
            let generation = Generation(u64::from(link.generation));
            member.seen.change(|seen| {
                if answered || removed(Rule::DrainedOnlyAnswered) {
                    seen.link_answered(u32::from(index), generation);
                }
                seen.link_down(u32::from(index), generation, NOW.wall);
            });
        }
        self.process_mut(process).ended = true;
        self.feed(model, process, Event::Ended, NOW)
    }

    /// `runtime state FILE reset`, while no process lives.
    fn reset(&mut self, model: &Model, partition: u8, dropped: bool) -> Result {
        self.contradicted = true;
        let entries = self.entries(self.store)?;
        let id = model.partition(partition);
        let shown = self.shown(model, self.store, partition);
        let at = |committed: &Committed| match committed {
            Committed::At(epoch) => *epoch,
            Committed::Unknown => Epoch(0),
        };
        let shown = shown.iter().map(|(sink, committed)| (sink.clone(), at(committed))).collect();
        let Some(mut entry) = Entry::reset(&entries, id, &shown, dropped, NOW.wall) else { return Ok(()) };
        entry.session = uuid::Uuid::from_u128(u128::from(entry.number) << 96);
        entry.attempt = entry.session;
        if dropped {
            let parts = entries.iter().rev().flat_map(|entry| &entry.parts);
            if let Some(part) = parts.into_iter().find(|part| part.partition == *id) {
                messages_of(part).into_iter().for_each(|msg| self.given_up |= 1 << msg);
            }
        }
        self.stores[usize::from(self.store)].entries.insert(entry.number, Shared::new(entry));
        Ok(())
    }

    fn shown(
        &self,
        model: &Model,
        store: u8,
        partition: u8,
    ) -> std::collections::BTreeMap<crate::flow::StageName, Committed> {
        let tables = model.tables.iter().zip(&self.tables);
        tables
            .map(|(sink, table)| (sink.clone(), Committed::At(Epoch(table.get().shown(app(store, partition))))))
            .collect()
    }

    /// What can have no effect any more is taken out of the air, and what is in the air is put into an order.
    fn tidy(&mut self, model: &Model) {
        let Self { commits, tables, creates, stores, deletes, .. } = self;
        deletes.retain(|delete| delete.from < delete.below);
        if !removed(Rule::ConditionalCommit) {
            // A target never shows less than before (R8): such a commit does nothing whenever it lands.
            commits.retain(|commit| {
                let table = tables[usize::from(commit.table)].get();
                let missed = model.versioned && commit.version.is_some_and(|version| version != table.version);
                commit.awaited || !missed && table.shown(app(commit.store, commit.partition)) < commit.epoch
            });
        }
        if !model.late_deletes && !removed(Rule::CreateIfAbsent) {
            // The slot is taken, or it was freed below the floor, where nobody reads.
            creates.retain(|create| {
                let newest = stores[usize::from(create.store)].entries.last_key_value();
                create.awaited || newest.is_none_or(|(newest, _)| *newest < create.entry.get().number)
            });
        }
        commits.sort();
        creates.sort_by_key(|create| (create.process, create.entry.get().number, create.awaited));
    }

    /// I1 and I8 for a message for which an accept leaves.
    pub fn is_settled_rightly(&self, model: &Model, msg: Msg) -> Result {
        if self.given_up & (1 << msg) != 0 {
            return Ok(());
        }
        for (at, table) in self.tables.iter().enumerate() {
            let expected = u64::from(model.rows_in(at as u8, msg));
            let rows = &table.get().rows;
            let committed = rows.iter().filter(|((m, _), times)| *m == msg && **times > 0).count() as u64;
            if at < usize::from(model.sinks) {
                invariants::settled_after_commit(expected, committed)?;
            } else {
                invariants::rejected_once(true, expected, committed, 0)?;
            }
        }
        Ok(())
    }

    /// What must hold in every state; `before` it did.
    fn is_right(&self, before: &Self, model: &Model) -> Result {
        for (at, table) in self.tables.iter().enumerate() {
            if *table == before.tables[at] {
                continue;
            }
            for times in table.get().rows.values() {
                if at < usize::from(model.sinks) {
                    invariants::row_once(u64::from(*times))?;
                } else {
                    invariants::rejected_once(false, 0, 0, u64::from(*times))?;
                }
            }
        }
        let same = self.tables == before.tables && self.stores == before.stores;
        if !self.contradicted && !same {
            self.can_recover(model)?;
        }
        Ok(())
    }

    /// I5: if everything stopped now, every partition in the log could recover from what its sinks show.
    fn can_recover(&self, model: &Model) -> Result {
        for store in 0..self.stores.len() as u8 {
            let log = Log::read(self.stores[usize::from(store)].entries.values().map(Shared::get));
            for index in 0..model.partitions.len() as u8 {
                if let Err(error) = recover(&log, model.partition(index), &self.shown(model, store, index), 0) {
                    return Err(Violation(format!("I5: {error}")));
                }
            }
        }
        Ok(())
    }

    /// Everything is settled and nothing is on its way; or the rest waits for a partition that was given up.
    pub fn is_done(&self, model: &Model) -> bool {
        let waits = self.creates.iter().any(|create| create.awaited) || self.commits.iter().any(|c| c.awaited);
        if waits {
            return false;
        }
        let parked = |process: &super::world::Process| {
            let mut configured = process.partitions.values().filter(|partition| partition.configured);
            configured.all(|partition| partition.phase == Phase::Parked)
        };
        if !self.processes.is_empty() && self.processes.iter().all(parked) {
            return true;
        }
        let unsettled = (0..self.broker.messages.len()).filter(|msg| self.broker.messages[*msg] != At::Settled);
        unsettled.into_iter().all(|msg| self.waits_for_parked(model, msg as Msg))
    }

    /// Whether the message is in the newest part of a partition that was given up before all its sinks had it.
    fn waits_for_parked(&self, model: &Model, msg: Msg) -> bool {
        self.processes.iter().any(|process| {
            let log = process.ledger.get().log();
            process.partitions.iter().filter(|(_, p)| p.phase == Phase::Parked).any(|(index, _)| {
                let Some(newest) = log.newest.get(model.partition(*index)) else { return false };
                let entry = self.stores[usize::from(process.store)].entries.get(&newest.number);
                let parts = entry.into_iter().flat_map(|entry| &entry.get().parts);
                parts
                    .into_iter()
                    .any(|part| part.partition == *model.partition(*index) && messages_of(part).contains(&msg))
            })
        })
    }
}
