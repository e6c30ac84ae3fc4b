//! The sinks of one partition: what they show when they are opened, and what they say at a barrier.

use super::explore::Violation;
use super::process::{NOW, app};
use super::scope::{Model, Poison, identity};
use super::tables;
use super::world::{Pending, Phase, World};
use crate::checkpoint::{Event, SinkReport};
use crate::flow::mutation::{Rule, removed};
use crate::flow::{Committed, Digest, Epoch, Generation, Identity, StageName};

type Result<T = ()> = std::result::Result<T, Violation>;

impl World {
    /// A new generation asks its sinks what they show, and looks for another log's epochs (R7).
    pub fn open(&mut self, model: &Model, id: u8, partition: u8) -> Result {
        let process = self.process_mut(id);
        let store = process.store;
        let adopted: Vec<_> = model.tables.iter().map(|sink| process.ledger.get().is_adopted(sink)).collect();
        let member = process.partitions.get_mut(&partition).expect("a partition");
        member.generation += 1;
        member.phase = Phase::Alive(Box::default());
        let generation = Generation(u64::from(member.generation));
        let mut shown = std::collections::BTreeMap::new();
        for (at, sink) in model.tables.iter().enumerate() {
            if !adopted[at] && !model.merge && !removed(Rule::LookForForeign) {
                if self.tables[at].get().has_foreign(store) {
                    return self.park(model, id, partition, "its target has epochs of another log");
                }
                if model.versioned {
                    self.tables[at].change(|table| table.fence(app(store, partition)));
                }
            }
            shown.insert(sink.clone(), Committed::At(Epoch(self.tables[at].get().shown(app(store, partition)))));
        }
        let opened = Event::Opened { partition: model.partition(partition).clone(), generation, shown };
        self.feed(model, id, opened, NOW)
    }

    /// A living generation's sink says that to go on could lose or double.
    pub fn park(&mut self, model: &Model, id: u8, partition: u8, why: &str) -> Result {
        if self.has_moved_on(id) {
            self.end_process(id);
            return Ok(());
        }
        if !self.contradicted {
            return Err(Violation(format!("p{partition} parks though nothing was lost: {why}")));
        }
        let down = self.end_generation(id, partition);
        self.feed(model, id, down, NOW)?;
        self.give_up(model, id, partition)
    }

    /// Whether the log belongs to another process already. Before a partition is parked the log is listed once more: what
    /// looks as if the target had changed may be what the next process has committed.
    pub fn has_moved_on(&self, id: u8) -> bool {
        let process = self.process(id);
        let own = self.creates.iter().filter(|create| create.process == id && create.awaited);
        let own = own.map(|create| create.entry.get().number).max().unwrap_or(0).max(process.ledger.get().log().last);
        let entries = &self.stores[usize::from(process.store)].entries;
        entries.last_key_value().is_some_and(|(last, _)| *last > own)
    }

    pub fn give_up(&mut self, model: &Model, id: u8, partition: u8) -> Result {
        self.process_mut(id).partitions.get_mut(&partition).expect("a partition").phase = Phase::Parked;
        self.feed(model, id, Event::Parked { partition: model.partition(partition).clone() }, NOW)
    }

    /// What a sink, or the dead letter writer, says at the barrier.
    pub fn report(&mut self, model: &Model, id: u8, partition: u8, table: u8) -> Result {
        let member = self.process_mut(id).partitions.get_mut(&partition).expect("a partition");
        let generation = Generation(u64::from(member.generation));
        let pending = member.life_mut().and_then(|life| life.pending.as_mut()).expect("an epoch to prepare");
        pending.reported |= 1 << table;
        let (epoch, report) = (pending.epoch, sink_report(model, pending, table));
        let event = Event::Prepared {
            partition: model.partition(partition).clone(),
            generation,
            epoch: Epoch(epoch),
            sink: StageName::clone(&model.tables[usize::from(table)]),
            report,
        };
        self.feed(model, id, event, NOW)?;
        // Once all have reported the barrier has passed.
        if let Some(life) = self.life_of(id, partition, generation) {
            let all = (1u8 << model.sinks) - 1;
            if life.pending.as_ref().is_some_and(|pending| {
                let waits = pending.asked && pending.reported & (1 << model.sinks) == 0;
                pending.reported & all == all && !waits
            }) {
                life.pending = None;
            }
        }
        Ok(())
    }
}

fn sink_report(model: &Model, pending: &Pending, table: u8) -> SinkReport {
    let mut msgs: Vec<u8> = pending.rows.iter().map(|(msg, _)| *msg).collect();
    msgs.sort_unstable();
    msgs.dedup();
    let identities = |which: &dyn Fn(u8) -> bool| -> Vec<Identity> {
        msgs.iter().copied().filter(|msg| which(*msg)).map(identity).collect()
    };
    let poison = |msg: u8| model.messages[usize::from(msg)].poison;
    let rows = |which: &dyn Fn(u8) -> bool| {
        let rows: Vec<_> = pending.rows.iter().filter(|(msg, _)| which(*msg)).copied().collect();
        (!rows.is_empty()).then(|| tables::prepared(&rows))
    };
    if table >= model.sinks {
        let rejected = |msg| model.is_rejected(msg);
        let written = if removed(Rule::DeadLetterInEpoch) { None } else { rows(&rejected) };
        return SinkReport { held: Digest::of(&identities(&rejected)), prepared: written, ..Default::default() };
    }
    let holds = |msg: u8| model.takes(table, msg) && !pending.dropped.contains(&(msg, table));
    SinkReport {
        sent: Digest::of(&identities(&|_| true)),
        rejected_before: identities(&|msg| poison(msg) == Poison::Stage),
        held: Digest::of(&identities(&holds)),
        rejected: identities(&|msg| poison(msg) == Poison::Sink(table)),
        cursors: pending.cursors.iter().map(|(msg, row)| (identity(*msg), u64::from(*row))).collect(),
        prepared: rows(&holds),
    }
}
