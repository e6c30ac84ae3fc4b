//! The counterexamples of the protocol, as schedules on the real cores.
//!
//! Each is played twice. Without the rule that it is behind, the schedule runs to its bad end. With the rule some of its
//! steps are no longer possible or do nothing; whatever is left of it breaks nothing, and from where it leads everything
//! can still be settled.

use super::apply::apply;
use super::explore::{Counterexample, Violation, explore_from};
use super::scope::Fault::*;
use super::scope::{Fault, Message, Model, PLAIN, Poison, Scope};
use super::step::steps;
use super::world::World;
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
    Scope { late_deletes: true, ..Scope::new("", 9, all) }
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

#[test]
fn c1_late_entry_two_partitions_doubled() {
    // The undischarged m0 keeps the floor where it is.
    prevents(
        Rule::CreateIfAbsent,
        "I3",
        scope(),
        "a process starts
         1:p0 opens generation 1
         1:p1 opens generation 1
         m0 goes to 1:p1
         1: a checkpoint is wanted
         1:p1 prepares a
         the create of entry 2 of 1 [p1 e1 {m0}] lands
         the commit of 1:p1 e1 to a lands
         m1 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         ! process 1 crashes
         a process starts
         2:p1 opens generation 1
         m1 goes to 2:p1
         2: a checkpoint is wanted
         2:p1 prepares a
         the create of entry 4 of 2 [p1 e2 {m1}] lands
         the commit of 2:p1 e2 to a lands
         the late create of entry 3 of 1 [p0 e1 {m1}] lands
         ! process 2 crashes
         a process starts
         3:p0 opens generation 1
         the commit of 3:p0 e1 to a lands",
    );
}

#[test]
fn c2_seen_freed_at_death_doubled() {
    prevents(
        Rule::FateBeforeFree,
        "I3",
        one(),
        "a process starts
         1:p0 opens generation 1
         1:p1 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         ! 1:p0 dies
         m0 goes to 1:p1
         1: a checkpoint is wanted
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         1:p1 prepares a
         1:p0 opens generation 2
         the commit of 1:p0 e1 to a lands
         the create of entry 3 of 1 [p1 e1 {m0}] lands
         the commit of 1:p1 e1 to a lands",
    );
}

#[test]
fn c3_receivers_before_the_index_is_whole_doubled() {
    prevents(
        Rule::IndexBeforeReceive,
        "I3",
        one(),
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         the commit of 1:p0 e1 to a lands
         ! process 1 crashes
         a process starts
         2:p1 opens generation 1
         m0 goes to 2:p1
         2: a checkpoint is wanted
         2:p1 prepares a
         the create of entry 4 of 2 [p1 e1 {m0}] lands
         the commit of 2:p1 e1 to a lands",
    );
}

#[test]
fn c4_fewer_partitions_after_a_restart_doubled() {
    prevents(
        Rule::RetiredAreRecovered,
        "I3",
        one(),
        "a process starts
         1:p0 opens generation 1
         1:p1 opens generation 1
         m0 goes to 1:p1
         1: a checkpoint is wanted
         1:p1 prepares a
         the create of entry 2 of 1 [p1 e1 {m0}] lands
         the commit of 1:p1 e1 to a lands
         ! process 1 crashes
         ! a process starts with p0 alone
         2:p0 opens generation 1
         m0 goes to 2:p0
         2: a checkpoint is wanted
         2:p0 prepares a
         the create of entry 4 of 2 [p0 e1 {m0}] lands
         the commit of 2:p0 e1 to a lands",
    );
}

#[test]
fn c5_two_starting_processes_split_the_partitions_doubled() {
    prevents(
        Rule::ForeignEndsProcess,
        "I3",
        one(),
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         ! a second process starts
         2:p1 opens generation 1
         ! the link of 1:p0 dies at the broker
         m0 goes to 2:p1
         2: a checkpoint is wanted
         2:p1 prepares a
         the create of entry 3 of 2 [p1 e1 {m0}] lands
         the create of entry 3 of 2 [p1 e1 {m0}] is answered
         the commit of 2:p1 e1 to a lands
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         the create of entry 2 of 1 [p0 e1 {m0}] is answered
         the create of entry 3 of 1 [p0 e1 {m0}] lands
         the create of entry 3 of 1 [p0 e1 {m0}] is answered
         the create of entry 4 of 1 [p0 e1 {m0}] lands
         the create of entry 4 of 1 [p0 e1 {m0}] is answered
         the commit of 1:p0 e1 to a lands",
    );
}

#[test]
fn c6a_late_create_in_a_pruned_slot_lost() {
    prevents(
        Rule::NothingBelowFloor,
        "I1",
        Scope { messages: vec![PLAIN; 3], ..scope() },
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         ! process 1 crashes
         a process starts
         2:p0 opens generation 1
         m1 goes to 2:p0
         2: a checkpoint is wanted
         2:p0 prepares a
         the create of entry 3 of 2 [p0 e1 {m1}] lands
         entry 1 is deleted
         entry 2 is deleted
         the commit of 2:p0 e1 to a lands
         the broker receives the next accept over the link of 2:p0
         the horizon passes at 2:p0
         m2 goes to 2:p0
         2: a checkpoint is wanted
         2:p0 prepares a
         the create of entry 4 of 2 [p0 e2 {m2}] lands
         entry 3 is deleted
         the late create of entry 2 of 1 [p0 e1 {m0}] lands
         ! process 2 crashes
         a process starts
         3:p1 opens generation 1
         m0 goes to 3:p1",
    );
}

#[test]
fn c6b_a_paused_process_creates_in_a_pruned_slot_doubled() {
    prevents(
        Rule::ListAfterCreate,
        "I",
        Scope { copy_limit: 9, ..one() },
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         ! a second process starts
         2:p1 opens generation 1
         ! the link of 1:p0 dies at the broker
         m0 goes to 2:p1
         2: a checkpoint is wanted
         2:p1 prepares a
         the create of entry 3 of 2 [p1 e1 {m0}] lands
         the create of entry 3 of 2 [p1 e1 {m0}] is answered
         the commit of 2:p1 e1 to a lands
         the broker receives the next accept over the link of 2:p1
         the horizon passes at 2:p1
         entry 1 is deleted
         entry 2 is deleted
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         the create of entry 2 of 1 [p0 e1 {m0}] is answered
         the commit of 1:p0 e1 to a lands",
    );
}

#[test]
fn c7_everything_pruned_parked() {
    prevents(
        Rule::BaseInEntries,
        "I5",
        scope(),
        "a process starts
         1:p0 opens generation 1
         1:p1 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         the commit of 1:p0 e1 to a lands
         the broker receives the next accept over the link of 1:p0
         the horizon passes at 1:p0
         m1 goes to 1:p1
         1: a checkpoint is wanted
         1:p1 prepares a
         the create of entry 3 of 1 [p1 e1 {m1}] lands
         ! 1:p0 dies
         1:p0 opens generation 2",
    );
}

#[test]
fn c8_one_committed_number_for_several_sinks_lost() {
    prevents(
        Rule::AskEachSink,
        "I1",
        fan_out(),
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         1:p0 prepares b
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         the commit of 1:p0 e1 to a lands
         ! 1:p0 dies
         1:p0 opens generation 2
         m0 goes to 1:p0",
    );
}

#[test]
fn c9_a_share_lost_in_a_living_generation() {
    prevents(
        Rule::ReceiptsAddUp,
        "I1",
        fan_out(),
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         ! the share of m0 on the way to b is dropped at 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         1:p0 prepares b
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         the commit of 1:p0 e1 to a lands",
    );
}

#[test]
fn c10_one_txn_for_two_chains_lost() {
    prevents(
        Rule::OwnTxn,
        "I1",
        // That nobody could recover would be found earlier: of interest is what becomes of the message.
        Scope { contradicted: true, ..scope() },
        "a process starts
         1:p0 opens generation 1
         1:p1 opens generation 1
         m0 goes to 1:p0
         m1 goes to 1:p1
         1: a checkpoint is wanted
         1:p0 prepares a
         1:p1 prepares a
         the create of entry 2 of 1 [p0 e1 {m0}, p1 e1 {m1}] lands
         the commit of 1:p0 e1 to a lands
         the commit of 1:p1 e1 to a lands",
    );
}

#[test]
fn c11_commit_repeated_without_a_conditional_check_doubled() {
    prevents(
        Rule::ConditionalCommit,
        "I3",
        one(),
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         ! the commit of 1:p0 e1 to a has no answer and is repeated
         the late commit of 1:p0 e1 to a lands
         the commit of 1:p0 e1 to a lands",
    );
}

#[test]
fn c12_dead_letter_outside_the_epoch_twice() {
    prevents(
        Rule::DeadLetterInEpoch,
        "I8",
        Scope { dead_letter: true, messages: vec![poison()], ..scope() },
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         ! process 1 crashes
         a process starts
         2:p0 opens generation 1
         m0 goes to 2:p0",
    );
}

#[test]
fn c13_held_deliveries_eat_the_budget_stuck() {
    prevents(
        Rule::HeldCostsNothing,
        "stuck",
        Scope { budget: 1, ..scope() },
        "a process starts
         1:p0 opens generation 1
         1:p1 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         ! 1:p0 dies
         m0 goes to 1:p1
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         ! 1:p0 is given up",
    );
}

#[test]
fn c14_barrier_waits_for_held_deliveries_deadlock() {
    prevents(
        Rule::HeldNotInBarrier,
        "stuck",
        scope(),
        "a process starts
         1:p0 opens generation 1
         1:p1 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         ! 1:p0 dies
         m0 goes to 1:p1
         m1 goes to 1:p1
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         ! 1:p0 is given up",
    );
}

#[test]
fn c15_horizon_from_settled_is_sent_doubled() {
    prevents(
        Rule::InDoubt,
        "I3",
        one(),
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         the commit of 1:p0 e1 to a lands
         ! the link of 1:p0 dies at the broker
         1:p0 notices that its link is dead
         1:p0 opens generation 2
         the horizon passes at 1:p0
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         the create of entry 3 of 1 [p0 e2 {m0}] lands
         the commit of 1:p0 e2 to a lands",
    );
}

/// (a) and (d): two processes, each with a log of its own, write what the other has; of rows, and of rejects.
#[test]
fn c16a_c16d_merge_without_ids_twice() {
    for (message, bad) in [(PLAIN, "I3"), (poison(), "I8")] {
        let (dead_letter, messages) = (message != PLAIN, vec![message]);
        let dead_letter_or = |table: &'static str| if dead_letter { "dead" } else { table };
        let scope = Scope { merge: true, own_stores: true, partitions: 1, dead_letter, messages, ..scope() };
        let epoch = |process: u8| {
            let dead = if dead_letter { format!("{process}:p0 prepares dead\n") } else { String::new() };
            let table = dead_letter_or("a");
            format!(
                "{process}: a checkpoint is wanted
                 {process}:p0 prepares a
                 {dead}the create of entry 2 of {process} [p0 e1 {{m0}}] lands
                 the create of entry 2 of {process} [p0 e1 {{m0}}] is answered
                 the commit of {process}:p0 e1 to {table} lands\n"
            )
        };
        let schedule = format!(
            "a process starts
             a process starts
             1:p0 opens generation 1
             2:p0 opens generation 1
             m0 goes to 1:p0
             {}! the link of 1:p0 dies at the broker
             m0 goes to 2:p0
             {}",
            epoch(1),
            epoch(2)
        );
        prevents(Rule::MergeByIds, bad, scope, schedule.leak());
    }
}

/// (b) A commit that is repeated without looking: in a merge ids decide, not the txn.
#[test]
fn c16b_append_rebased_in_merge_mode_twice() {
    let app = (0, 0);
    let mut table = super::tables::Table::default();
    without(Rule::ConditionalCommit, || {
        table.commit(app, 1, 0, &[(0, 0)], true);
        table.commit(app, 1, 0, &[(0, 0)], true);
        assert_eq!(table.rows[&(0, 0)], 1, "the rows that are there are dropped");
        table.commit(app, 1, 0, &[(0, 0)], false);
        assert_eq!(table.rows[&(0, 0)], 2, "an append has nothing but the condition");
    });
}

/// (c) A new log that goes by the old one's txn: its first epoch looks as if it were there.
#[test]
fn c16c_a_new_incarnation_meets_old_numbers_lost() {
    prevents(
        Rule::OwnTxn,
        "I1",
        Scope { merge: true, ..scope() },
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         ! process 1 crashes
         ! the store is emptied
         a process starts
         2:p0 opens generation 1
         m1 goes to 2:p0
         2: a checkpoint is wanted
         2:p0 prepares a
         the create of entry 2 of 2 [p0 e1 {m1}] lands
         the late commit of 1:p0 e1 to a lands
         the commit of 2:p0 e1 to a lands",
    );
}

#[test]
fn c17_recovery_does_not_wait_for_the_outstanding_create() {
    prevents(
        Rule::FateBeforeRecovery,
        "I",
        scope(),
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         ! 1:p0 dies
         1:p0 opens generation 2
         m1 goes to 1:p0
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         ! 1:p0 dies
         1:p0 opens generation 3
         the commit of 1:p0 e1 to a lands
         m1 goes to 1:p0",
    );
}

/// (a) A reset that only says where the sinks are.
#[test]
fn c18a_reset_without_the_part_lost() {
    prevents(
        Rule::ResetRepeatsPart,
        "I1",
        fan_out(),
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         1:p0 prepares b
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         the commit of 1:p0 e1 to b lands
         ! process 1 crashes
         ! p0 is reset
         a process starts
         2:p1 opens generation 1
         m0 goes to 2:p1",
    );
}

/// (b) A reset that frees what it ends, while the commit is under way.
#[test]
fn c18b_reset_frees_ids_doubled() {
    prevents(
        Rule::ResetKeepsIds,
        "I3",
        one(),
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         ! process 1 crashes
         ! p0 is reset, its newest part dropped
         a process starts
         2:p1 opens generation 1
         m0 goes to 2:p1
         2: a checkpoint is wanted
         2:p1 prepares a
         the create of entry 5 of 2 [p1 e1 {m0}] lands
         the commit of 2:p1 e1 to a lands
         the late commit of 1:p0 e1 to a lands",
    );
}

#[test]
fn c19_cursor_open_too_early() {
    prevents(
        Rule::CursorAfterCommit,
        "I1",
        Scope { messages: vec![Message { rows: 2, poison: Poison::No }], ..scope() },
        "a process starts
         1:p0 opens generation 1
         1:p1 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         the create of entry 2 of 1 [p0 e1 {}] lands
         ! 1:p0 dies
         m0 goes to 1:p1
         1: a checkpoint is wanted
         1:p1 prepares a
         the create of entry 3 of 1 [p1 e1 {m0}] lands
         the commit of 1:p1 e1 to a lands",
    );
}

/// The target shows nothing when it is looked at, and then a commit of the old log lands.
#[test]
fn c20_an_old_commit_lands_after_the_look_doubled() {
    prevents(
        Rule::LookForForeign,
        "I3",
        Scope { versioned: true, ..one() },
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         ! process 1 crashes
         ! the store is emptied
         a process starts
         2:p0 opens generation 1
         the late commit of 1:p0 e1 to a lands
         m0 goes to 2:p0
         2: a checkpoint is wanted
         2:p0 prepares a
         the create of entry 2 of 2 [p0 e1 {m0}] lands
         the commit of 2:p0 e1 to a lands",
    );
}

/// Adopted is kept per sink: a part with rows in `b` alone adopts `b` alone, for this process and the next.
#[test]
fn c20_adopted_per_sink() {
    let model = Model::new(Scope { sinks: 2, dead_letter: true, messages: vec![poison()], ..scope() });
    let played = play(
        &model,
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         1:p0 prepares b
         1:p0 prepares dead
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         ! process 1 crashes
         a process starts",
    );
    assert_eq!((played.violation, &*played.prevented), (None, &[][..]));
    let adopted = |sink: &str| played.world.process(2).ledger.get().is_adopted(&sink.into());
    assert_eq!([adopted("a"), adopted("b"), adopted("dead")], [false, true, true]);
}

#[test]
fn c21_drained_taken_too_widely_doubled() {
    prevents(
        Rule::DrainedOnlyAnswered,
        "I3",
        one(),
        "a process starts
         1:p0 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         the commit of 1:p0 e1 to a lands
         ! process 1 drains
         ! the link of 1:p0 dies at the broker
         process 1 closes its links
         the create of entry 3 of 1 [] lands
         a process starts
         2:p0 opens generation 1
         m0 goes to 2:p0
         2: a checkpoint is wanted
         2:p0 prepares a
         the create of entry 5 of 2 [p0 e2 {m0}] lands
         the commit of 2:p0 e2 to a lands",
    );
}

/// What can happen next, as far as it is about entries.
fn creates(world: &World, model: &Model) -> Vec<String> {
    let all = steps(world, model).into_iter().map(|step| step.describe(world, model));
    all.filter(|words| words.starts_with("the create") && words.ends_with("lands")).collect()
}

#[test]
fn c22_a_partition_that_dies_leaves_the_round() {
    let model = Model::new(scope());
    let played = play(
        &model,
        "a process starts
         1:p0 opens generation 1
         1:p1 opens generation 1
         m0 goes to 1:p0
         m1 goes to 1:p1
         1: a checkpoint is wanted
         1:p0 prepares a
         ! 1:p1 dies",
    );
    assert_eq!(creates(&played.world, &model), ["the create of entry 2 of 1 [p0 e1 {m0}] lands"]);
    goes_on(&model, played.world).expect("everything is settled in the end");
}

#[test]
fn c22_a_round_waits_for_no_report_that_may_not_be_stored_yet() {
    let model = Model::new(scope());
    // The commit of p0's epoch 1 hangs, its epoch 2 is prepared.
    let played = play(
        &model,
        "a process starts
         1:p0 opens generation 1
         1:p1 opens generation 1
         m0 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a
         the create of entry 2 of 1 [p0 e1 {m0}] lands
         m1 goes to 1:p0
         1: a checkpoint is wanted
         1:p0 prepares a",
    );
    assert_eq!((played.violation, &*played.prevented), (None, &[][..]));
    assert_eq!(creates(&played.world, &model), [""; 0]);
    assert!(!played.world.process(1).round_is_open(), "nobody waits for it");
    goes_on(&model, played.world).expect("everything is settled in the end");
}

#[test]
fn c22_a_report_of_a_dead_generation_is_not_kept() {
    let model = Model::new(scope());
    let played = play(
        &model,
        "a process starts
         1:p0 opens generation 1
         1:p1 opens generation 1
         m0 goes to 1:p0
         m1 goes to 1:p1
         1: a checkpoint is wanted
         1:p0 prepares a
         ! 1:p0 dies
         1:p1 prepares a",
    );
    assert_eq!(creates(&played.world, &model), ["the create of entry 2 of 1 [p1 e1 {m1}] lands"]);
    goes_on(&model, played.world).expect("everything is settled in the end");
}
