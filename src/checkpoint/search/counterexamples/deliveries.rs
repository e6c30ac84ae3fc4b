//! What is behind the rules of deliveries: held ones, the horizon, the end of a drain, rounds.

use super::*;

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
