//! What may happen next in a state, and how that reads.

use super::scope::{Fault, Model};
use super::world::{At, LinkId, Msg, Phase, Process, World};
use crate::flow::mutation::{Rule, removed};

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Start { partitions: u8 },
    Second,
    Empty,
    Reset { partition: u8, dropped: bool },
    Open { process: u8, partition: u8 },
    Park { process: u8, partition: u8 },
    Deliver { process: u8, partition: u8, msg: Msg },
    TakeUp { process: u8, partition: u8 },
    Row { process: u8, partition: u8, msg: Msg },
    Report { process: u8, partition: u8, table: u8 },
    Wanted { process: u8 },
    Deadline { process: u8 },
    Received { link: LinkId },
    Expire { process: u8, partition: u8 },
    Noticed { process: u8, partition: u8 },
    Released { process: u8, partition: u8 },
    LandCreate { at: u8 },
    AnswerCreate { at: u8 },
    LoseCreate { at: u8 },
    LandCommit { at: u8, heard: bool },
    LoseCommit { at: u8 },
    Delete { at: u8 },
    Die { process: u8, partition: u8 },
    Crash { process: u8 },
    LinkDies { link: LinkId },
    DropShare { process: u8, partition: u8, msg: Msg, table: u8 },
    Drain { process: u8 },
    Close { process: u8 },
}

impl Step {
    /// Whether it counts as a fault.
    pub fn is_fault(self, model: &Model) -> bool {
        match self {
            Self::Start { partitions } => partitions != model.partitions.len() as u8,
            Self::Second
            | Self::Empty
            | Self::Reset { .. }
            | Self::Park { .. }
            | Self::LoseCreate { .. }
            | Self::LoseCommit { .. }
            | Self::Die { .. }
            | Self::Crash { .. }
            | Self::LinkDies { .. }
            | Self::DropShare { .. }
            | Self::Drain { .. } => true,
            _ => false,
        }
    }

    /// In the words of the protocol. Processes and generations are counted from 1; a fault begins with `!`.
    pub fn describe(self, world: &World, model: &Model) -> String {
        let of = |process: u8, partition: u8| format!("{process}:p{partition}");
        let create = |at: u8| {
            let create = &world.creates[usize::from(at)];
            let entry = create.entry.get();
            let parts: Vec<_> = entry
                .parts
                .iter()
                .map(|part| {
                    let ids: Vec<_> =
                        part.ids.iter().map(|(id, _)| format!("m{}", super::scope::message(*id))).collect();
                    format!("p{} e{} {{{}}}", part.partition.index, part.epoch, ids.join(" "))
                })
                .collect();
            let late = if create.awaited { "" } else { "late " };
            format!("the {late}create of entry {} of {} [{}]", entry.number, create.process, parts.join(", "))
        };
        let commit = |at: u8| {
            let commit = &world.commits[usize::from(at)];
            let late = if commit.awaited { "" } else { "late " };
            let table = model.tables[usize::from(commit.table)].as_str();
            format!("the {late}commit of {}:p{} e{} to {table}", commit.process, commit.partition, commit.epoch)
        };
        let link = |link: LinkId| format!("the link of {}:p{}", link.process, link.partition);
        let what = match self {
            Self::Start { partitions } => match partitions {
                1 if model.partitions.len() > 1 => "a process starts with p0 alone".into(),
                _ => "a process starts".into(),
            },
            Self::Second => "a second process starts".into(),
            Self::Empty => "the store is emptied".into(),
            Self::Reset { partition, dropped } => {
                format!("p{partition} is reset{}", if dropped { ", its newest part dropped" } else { "" })
            }
            Self::Open { process, partition } => {
                let generation = world.process(process).partitions[&partition].generation + 1;
                format!("{} opens generation {generation}", of(process, partition))
            }
            Self::Park { process, partition } => format!("{} is given up", of(process, partition)),
            Self::Deliver { process, partition, msg } => format!("m{msg} goes to {}", of(process, partition)),
            Self::TakeUp { process, partition } => format!("{} takes a held delivery up", of(process, partition)),
            Self::Row { process, partition, msg } => {
                format!("{} sends the next row of m{msg}", of(process, partition))
            }
            Self::Report { process, partition, table } => {
                format!("{} prepares {}", of(process, partition), model.tables[usize::from(table)])
            }
            Self::Wanted { process } => format!("{process}: a checkpoint is wanted"),
            Self::Deadline { process } => format!("{process}: the round's deadline passes"),
            Self::Received { link: id } => format!("the broker receives the next accept over {}", link(id)),
            Self::Expire { process, partition } => format!("the horizon passes at {}", of(process, partition)),
            Self::Noticed { process, partition } => {
                format!("{} notices that its link is dead", of(process, partition))
            }
            Self::Released { process, partition } => {
                format!("{} notices that a receipt was released", of(process, partition))
            }
            Self::LandCreate { at } => format!("{} lands", create(at)),
            Self::AnswerCreate { at } => format!("{} is answered", create(at)),
            Self::LoseCreate { at } => format!("{} has no answer and is repeated", create(at)),
            Self::LandCommit { at, heard } => {
                let late = !world.commits[usize::from(at)].awaited;
                format!("{} lands{}", commit(at), if late && heard { ", and its process hears of it" } else { "" })
            }
            Self::LoseCommit { at } => format!("{} has no answer and is repeated", commit(at)),
            Self::Delete { at } => format!("entry {} is deleted", world.deletes[usize::from(at)].from),
            Self::Die { process, partition } => format!("{} dies", of(process, partition)),
            Self::Crash { process } => format!("process {process} crashes"),
            Self::LinkDies { link: id } => format!("{} dies at the broker", link(id)),
            Self::DropShare { process, partition, msg, table } => format!(
                "the share of m{msg} on the way to {} is dropped at {}",
                model.tables[usize::from(table)],
                of(process, partition)
            ),
            Self::Drain { process } => format!("process {process} drains"),
            Self::Close { process } => format!("process {process} closes its links"),
        };
        if self.is_fault(model) { format!("! {what}") } else { what }
    }
}

/// Everything that may happen in this state.
pub fn steps(world: &World, model: &Model) -> Vec<Step> {
    let mut steps = Vec::new();
    let fault = |fault| world.faults > 0 && model.allows(fault);
    for process in &world.processes {
        of_process(world, model, process, &fault, &mut steps);
    }
    for (&link, sent) in &world.broker.links {
        if !sent.is_empty() {
            steps.push(Step::Received { link });
        }
        if fault(Fault::Link) {
            steps.push(Step::LinkDies { link });
        }
    }
    let index = |at: usize| u8::try_from(at).expect("few things are in the air");
    for (at, create) in world.creates.iter().enumerate() {
        let at = index(at);
        match create.landed {
            None => {
                steps.push(Step::LandCreate { at });
                if create.awaited && fault(Fault::CreateAnswer) {
                    steps.push(Step::LoseCreate { at });
                }
            }
            Some(_) => steps.push(Step::AnswerCreate { at }),
        }
    }
    for (at, commit) in world.commits.iter().enumerate() {
        let at = index(at);
        let hears = !commit.awaited
            && world.processes.iter().any(|process| {
                let partition = process.partitions.get(&commit.partition);
                process.id == commit.process && partition.is_some_and(|p| p.generation == commit.generation)
            });
        steps.push(Step::LandCommit { at, heard: commit.awaited });
        if hears {
            steps.push(Step::LandCommit { at, heard: true });
        }
        if commit.awaited && fault(Fault::CommitAnswer) {
            steps.push(Step::LoseCommit { at });
        }
    }
    steps.extend((0..world.deletes.len()).map(|at| Step::Delete { at: index(at) }));
    outside(world, model, &fault, &mut steps);
    steps
}

fn outside(world: &World, model: &Model, fault: &impl Fn(Fault) -> bool, steps: &mut Vec<Step>) {
    let all = model.partitions.len() as u8;
    let living = world.processes.len();
    if living == 0 || model.own_stores && living < 2 {
        steps.push(Step::Start { partitions: all });
    }
    if living == 1 && fault(Fault::Second) {
        steps.push(Step::Second);
    }
    if living > 0 || world.started == 0 {
        return;
    }
    if fault(Fault::Repartition) && all > 1 {
        steps.push(Step::Start { partitions: 1 });
    }
    // What was sent to the store by a dead process has arrived or is lost before anybody empties it.
    let store_is_quiet = world.creates.iter().all(|create| create.store != world.store);
    if fault(Fault::Empty) && store_is_quiet && !world.stores[usize::from(world.store)].entries.is_empty() {
        steps.push(Step::Empty);
    }
    for partition in 0..all {
        for (dropped, which) in [(false, Fault::Reset), (true, Fault::ResetDrop)] {
            if fault(which) {
                steps.push(Step::Reset { partition, dropped });
            }
        }
    }
}

fn of_process(world: &World, model: &Model, process: &Process, fault: &impl Fn(Fault) -> bool, steps: &mut Vec<Step>) {
    let id = process.id;
    let mut wanted = false;
    for (&index, partition) in &process.partitions {
        match &partition.phase {
            Phase::Down | Phase::Parked => {}
            Phase::MayOpen => {
                // Partitions that never did anything are alike: the first of them may go first.
                let twin = |(other, p): (&u8, &super::world::Partition)| {
                    *other < index && p.generation == 0 && p.phase == Phase::MayOpen
                };
                let first = world.started == 1 && !model.own_stores;
                if !(first && partition.generation == 0 && process.partitions.iter().any(twin)) {
                    steps.push(Step::Open { process: id, partition: index });
                }
                if fault(Fault::Park) {
                    steps.push(Step::Park { process: id, partition: index });
                }
            }
            Phase::Alive(life) => {
                of_life(world, model, process, index, life, fault, steps);
                wanted |= !life.open.is_empty() && !process.draining;
            }
        }
    }
    if wanted {
        steps.push(Step::Wanted { process: id });
    }
    if process.round_is_open() {
        steps.push(Step::Deadline { process: id });
    }
    if process.draining && !process.ended && super::process::is_quiet(process, model) {
        steps.push(Step::Close { process: id });
    }
    if fault(Fault::Crash) {
        steps.push(Step::Crash { process: id });
    }
    if fault(Fault::Drain) && !process.draining {
        steps.push(Step::Drain { process: id });
    }
}

fn of_life(
    world: &World,
    model: &Model,
    process: &Process,
    partition: u8,
    life: &super::world::Life,
    fault: &impl Fn(Fault) -> bool,
    steps: &mut Vec<Step>,
) {
    let id = process.id;
    let link = process.link(partition);
    let sent = world.broker.links.get(&link);
    if fault(Fault::Die) && !process.ended {
        steps.push(Step::Die { process: id, partition });
    }
    if life.released {
        steps.push(Step::Released { process: id, partition });
    }
    if let Some(pending) = &life.pending {
        let waits = removed(Rule::HeldNotInBarrier) && !life.held.is_empty();
        for table in 0..model.tables.len() as u8 {
            let dead_letter = table >= model.sinks;
            if pending.reported & (1 << table) == 0 && !waits && (!dead_letter || pending.asked) {
                steps.push(Step::Report { process: id, partition, table });
            }
        }
    }
    if !life.receiving || process.ended {
        return;
    }
    match sent {
        None => steps.push(Step::Noticed { process: id, partition }),
        Some(sent) => {
            // The horizon is at least twice the idle timeout (R11): a dead link is noticed before it passes at another, so
            // nothing that came over the dead one is still waiting to be taken up.
            let all_attached = process.partitions.iter().all(|(other, partition)| {
                let receiving = partition.life().is_some_and(|life| life.receiving);
                !receiving || world.broker.links.contains_key(&process.link(*other))
            });
            if sent.is_empty() && all_attached && !process.seen.get().is_empty() {
                steps.push(Step::Expire { process: id, partition });
            }
        }
    }
    if process.draining {
        return;
    }
    for &(msg, _) in &life.unfinished {
        steps.push(Step::Row { process: id, partition, msg });
    }
    if fault(Fault::DropShare) {
        for &(msg, _) in &life.open {
            for table in (0..model.sinks).filter(|table| model.takes(*table, msg)) {
                if !life.dropped.contains(&(msg, table)) {
                    steps.push(Step::DropShare { process: id, partition, msg, table });
                }
            }
        }
    }
    let held = if removed(Rule::HeldCostsNothing) { life.held.len() + life.freed.len() } else { 0 };
    if life.in_flight() + held >= model.budget {
        // A delivery that has a permit of its own needs no other.
        if held > 0 && !life.freed.is_empty() {
            steps.push(Step::TakeUp { process: id, partition });
        }
        return;
    }
    if !life.freed.is_empty() {
        steps.push(Step::TakeUp { process: id, partition });
        return;
    }
    if sent.is_none() {
        return;
    }
    for (msg, at) in world.broker.messages.iter().enumerate() {
        let alike =
            |other: usize| model.messages[other] == model.messages[msg] && world.broker.touched & (1 << other) == 0;
        // Messages that were never delivered and look the same are alike: the first of them may go first.
        let twin = world.broker.touched & (1 << msg) == 0 && (0..msg).any(alike);
        if *at == At::Queued && !twin {
            steps.push(Step::Deliver { process: id, partition, msg: msg as Msg });
        }
    }
}
