//! Each rule left out: the search must find what it is for.

use super::explore::explore;
use super::scope::Fault::{self, *};
use super::scope::{Message, PLAIN, Poison, Scope};
use crate::flow::mutation::{Rule, without};

fn scope(faults: u8, allowed: &[Fault]) -> Scope {
    Scope::new("", faults, allowed.iter().copied())
}

/// Rule, what is missing, where the search finds it, and which counterexample of the protocol it is.
fn cases() -> Vec<(&'static str, Rule, Scope, &'static str)> {
    let one = |scope: Scope| Scope { messages: vec![PLAIN], ..scope };
    let fan = |scope: Scope| Scope { sinks: 2, ..one(scope) };
    let dead =
        |scope| Scope { dead_letter: true, messages: vec![Message { rows: 1, poison: Poison::Sink(0) }], ..scope };
    let prune = |scope| Scope { late_deletes: true, copy_limit: 9, ..scope };
    let file = |scope| Scope { messages: vec![Message { rows: 2, poison: Poison::No }], ..scope };
    vec![
        ("R1", Rule::CreateIfAbsent, one(scope(2, &[Second, Crash, CreateAnswer])), "C1"),
        ("R1", Rule::ForeignEndsProcess, one(scope(2, &[Second, Link, Die])), "C5"),
        ("R2", Rule::FateBeforeFree, one(scope(2, &[Die, Link])), "C2"),
        ("R2", Rule::FateBeforeRecovery, scope(2, &[Die]), "C1, C17"),
        ("R3", Rule::IndexBeforeReceive, one(scope(1, &[Crash])), "C3"),
        ("R3", Rule::RetiredAreRecovered, one(scope(2, &[Crash, Repartition])), "C4"),
        ("R4", Rule::CopyBeforeFloor, Scope { late_deletes: false, ..prune(scope(1, &[Crash])) }, "C6"),
        ("R4", Rule::ListAfterCreate, prune(scope(1, &[Second])), "C6"),
        ("R5", Rule::BaseInEntries, one(scope(1, &[Drain])), "C7"),
        ("R5", Rule::AskEachSink, fan(scope(1, &[Die])), "C8"),
        ("R5", Rule::Replay, one(scope(1, &[Die])), "C8"),
        ("R5", Rule::OneEpochAtATime, scope(1, &[Die]), "C17"),
        ("R6", Rule::ReceiptsAddUp, fan(scope(1, &[DropShare])), "C9"),
        ("R6", Rule::CursorAfterCommit, file(scope(1, &[Die])), "C19"),
        ("R7", Rule::OwnTxn, scope(0, &[]), "C10"),
        ("R7", Rule::LookForForeign, Scope { versioned: true, ..one(scope(2, &[Crash, Empty])) }, "C20"),
        ("R8", Rule::ConditionalCommit, one(scope(1, &[CommitAnswer])), "C11"),
        ("R9", Rule::DeadLetterInEpoch, dead(scope(1, &[Crash])), "C12"),
        ("R10", Rule::HeldCostsNothing, Scope { budget: 1, ..scope(2, &[Die, Park]) }, "C13"),
        ("R10", Rule::HeldNotInBarrier, scope(2, &[Die, Park]), "C14"),
        ("R11", Rule::InDoubt, one(scope(2, &[Die, Link])), "C15"),
        ("R11", Rule::DrainedOnlyAnswered, one(scope(2, &[Link, Drain])), "C21"),
        (
            "R12",
            Rule::MergeByIds,
            Scope { merge: true, own_stores: true, partitions: 1, ..one(scope(1, &[Link])) },
            "C16",
        ),
        ("I1", Rule::AcceptAfterCommit, one(scope(0, &[])), "settled before it is committed"),
    ]
}

#[test]
fn each_rule_left_out_is_found() {
    for (name, rule, scope, matches) in cases() {
        match without(rule, || explore(&scope)) {
            Err(found) => println!("{name} without {rule:?}: {matches}, found after {} states: {found}", found.states),
            Ok(explored) => {
                panic!("{name} without {rule:?}: nothing is found in {explored:?}, but {matches} should be")
            }
        }
    }
}

/// A receipt that is dropped ends its generation at once. If that were missed, the digests of the next barrier would not
/// add up, and end it then: each of the two rules of R6 covers the other but for the time between.
#[test]
fn a_dropped_receipt_that_nobody_notices_does_not_add_up() {
    let scope = Scope { sinks: 2, messages: vec![PLAIN], ..scope(2, &[DropShare, Die]) };
    without(Rule::DropReleases, || explore(&scope)).expect("the digests find it");
}
