//! The counterexamples of the protocol, as schedules on the real cores.
//!
//! Each is played twice. Without the rule that it is behind, the schedule runs to its bad end. With the rule some of its
//! steps are no longer possible or do nothing; whatever is left of it breaks nothing, and from where it leads everything
//! can still be settled.

mod deliveries;
mod log;
mod sinks;

use crate::checkpoint::search::apply::apply;
use crate::checkpoint::search::explore::{Counterexample, Violation, explore_from};
use crate::checkpoint::search::scope::Fault::*;
use crate::checkpoint::search::scope::{Fault, Message, Model, PLAIN, Poison, Scope};
use crate::checkpoint::search::step::steps;
use crate::checkpoint::search::world::World;
use crate::flow::mutation::{Rule, without};

/// Two messages, two partitions, one sink, late creates and deletes, and as many faults as the schedule has.
fn scope() -> Scope {
    let all: [Fault; 13] = [
        Die,
        Crash,
        Link,
        CreateAnswer,
        CommitAnswer,
        Park,
        Repartition,
        Second,
        Empty,
        DropShare,
        Drain,
        Reset,
        ResetDrop,
    ];
    Scope { late_deletes: true, ..Scope::new(9, all) }
}

/// Where a schedule leads.
struct Played {
    world: World,
    violation: Option<Violation>,
    /// The steps that were not possible.
    prevented: Vec<&'static str>,
}

/// A schedule: one step per line.
fn play(model: &Model, schedule: &'static str) -> Played {
    let mut world = World::new(model);
    let mut prevented = Vec::new();
    for line in schedule.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let Some(step) = steps(&world, model).into_iter().find(|step| step.describe(&world, model) == line) else {
            prevented.push(line);
            continue;
        };
        match apply(&world, model, step) {
            Ok(next) => world = next,
            Err(violation) => return Played { world, violation: Some(violation), prevented },
        }
    }
    Played { world, violation: None, prevented }
}

/// What is reachable from there without a further fault.
fn goes_on(model: &Model, mut world: World) -> Result<(), Box<Counterexample>> {
    world.faults = 0;
    explore_from(model, world, &[]).map(|_| ())
}

/// `rule` prevents that `schedule` ends in `bad`.
#[track_caller]
fn prevents(rule: Rule, bad: &str, scope: Scope, schedule: &'static str) {
    let model = Model::new(scope);
    let (prevented, found) = without(rule, || {
        let played = play(&model, schedule);
        let found = played.violation.or_else(|| goes_on(&model, played.world).err().map(|found| found.violation));
        (played.prevented, found)
    });
    assert_eq!(prevented, [""; 0], "without {rule:?} every step is possible");
    let found = found.unwrap_or_else(|| panic!("without {rule:?} the schedule does no harm"));
    assert!(found.0.starts_with(bad), "without {rule:?} it ends in: {}", found.0);

    let played = play(&model, schedule);
    assert_eq!(played.violation, None, "with {rule:?}");
    if let Err(found) = goes_on(&model, played.world) {
        panic!("with {rule:?} the schedule leads to: {found}");
    }
}

fn one() -> Scope {
    Scope { messages: vec![PLAIN], ..scope() }
}

fn fan_out() -> Scope {
    Scope { sinks: 2, ..one() }
}

fn poison() -> Message {
    Message { rows: 1, poison: Poison::Sink(0) }
}
