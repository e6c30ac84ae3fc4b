//! The scopes that are searched, and their sizes.
//!
//! Each has a small number of faults for every run of the tests, and a larger one for `DISTRIBUTARY_SEARCH=full` (in a
//! release build). With `--nocapture` each prints how many states it has. `DISTRIBUTARY_SEARCH=<number>` sets the number
//! of faults for all.

use super::explore::explore;
use super::scope::Fault::{self, *};
use super::scope::{Message, PLAIN, Poison, Scope};

/// Searches `scope` with as many faults as this run wants: `small` or `full`.
#[track_caller]
fn search(name: &'static str, small: u8, full: u8, allowed: &[Fault], with: impl FnOnce(Scope) -> Scope) {
    let faults = match std::env::var("DISTRIBUTARY_SEARCH") {
        Ok(number) => number.parse().unwrap_or(full),
        Err(_) => small,
    };
    let scope = with(Scope::new(name, faults, allowed.iter().copied()));
    let started = crate::clock::now();
    match explore(&scope) {
        Ok(explored) => {
            let took = started.elapsed().as_secs_f64();
            println!("search {name}, {faults} faults: {explored}, {took:.1} s");
            assert!(explored.done > 0);
        }
        Err(found) => panic!("search {name}, {faults} faults: after {} states: {found}", found.states),
    }
}

const FILE: Message = Message { rows: 2, poison: Poison::No };

fn poison(poison: Poison) -> Vec<Message> {
    vec![PLAIN, Message { rows: 1, poison }]
}

/// One message where there is one fault: the small form of a scope that is too large for every run.
fn as_many_as_faults(scope: &Scope) -> Vec<Message> {
    vec![PLAIN; usize::from(scope.faults.clamp(1, 2))]
}

#[test]
fn plain() {
    search("plain", 2, 3, &[Die, Crash, Link, CreateAnswer, CommitAnswer, Park], |scope| scope);
}

#[test]
fn budget_of_one() {
    search("budget of one", 1, 3, &[Die, Crash, Link, CreateAnswer, CommitAnswer, Park], |scope| Scope {
        budget: 1,
        ..scope
    });
}

#[test]
fn dead_letter_of_a_sink() {
    search("dead letter of a sink", 1, 2, &[Die, Crash, Link, CreateAnswer, CommitAnswer, Park], |scope| Scope {
        dead_letter: true,
        messages: poison(Poison::Sink(0)),
        ..scope
    });
}

#[test]
fn dead_letter_of_a_stage() {
    search("dead letter of a stage", 1, 2, &[Die, Crash, Link, CreateAnswer, CommitAnswer, Park], |scope| Scope {
        dead_letter: true,
        messages: poison(Poison::Stage),
        ..scope
    });
}

#[test]
fn fan_out() {
    search("fan-out", 1, 2, &[Die, Crash, Link, CommitAnswer, DropShare, Park], |scope| Scope { sinks: 2, ..scope });
}

#[test]
fn fan_out_with_dead_letter() {
    search("fan-out with dead letter", 1, 2, &[Die, Crash, Link, DropShare], |scope| Scope {
        sinks: 2,
        dead_letter: true,
        messages: poison(Poison::Sink(0)),
        ..scope
    });
}

#[test]
fn pruning_by_copies() {
    search("pruning by copies", 1, 2, &[Die, Crash, Link, CreateAnswer], |scope| Scope {
        late_deletes: true,
        copy_limit: 9,
        ..scope
    });
}

#[test]
fn pruning_by_entries() {
    search("pruning by entries", 1, 2, &[Die, Crash, Link, CreateAnswer], |scope| Scope {
        late_deletes: true,
        entry_limit: 2,
        ..scope
    });
}

#[test]
fn fewer_partitions() {
    search("fewer partitions", 2, 3, &[Crash, Repartition], |scope| scope);
}

#[test]
fn fewer_partitions_and_pruning() {
    search("fewer partitions and pruning", 1, 2, &[Die, Crash, Link, Repartition], |scope| Scope {
        messages: as_many_as_faults(&scope),
        late_deletes: true,
        copy_limit: 9,
        ..scope
    });
}

#[test]
fn two_processes_on_one_store() {
    search("two processes on one store", 1, 2, &[Second, Link, Die, CreateAnswer, Drain], |scope| scope);
}

#[test]
fn two_processes_on_one_store_and_pruning() {
    search("two processes on one store and pruning", 1, 2, &[Second, Link, Die, CreateAnswer], |scope| Scope {
        late_deletes: true,
        copy_limit: 9,
        ..scope
    });
}

#[test]
fn two_processes_with_stores_of_their_own_merge() {
    search("two processes with stores of their own", 0, 2, &[Die, Crash, Link], |scope| Scope {
        merge: true,
        own_stores: true,
        partitions: 1,
        ..scope
    });
}

#[test]
fn drained() {
    search("drained", 1, 3, &[Die, Crash, Link, Drain, CreateAnswer], |scope| scope);
}

#[test]
fn drained_and_pruned() {
    search("drained and pruned", 1, 2, &[Crash, Link, Drain], |scope| Scope {
        late_deletes: true,
        copy_limit: 9,
        ..scope
    });
}

#[test]
fn reset() {
    search("reset", 2, 3, &[Crash, Reset, ResetDrop], |scope| scope);
}

#[test]
fn reset_of_a_fan_out() {
    search("reset of a fan-out", 1, 2, &[Die, Crash, Reset, ResetDrop], |scope| Scope { sinks: 2, ..scope });
}

#[test]
fn reset_and_pruned() {
    search("reset and pruned", 1, 2, &[Crash, Reset, ResetDrop], |scope| Scope {
        late_deletes: true,
        copy_limit: 9,
        ..scope
    });
}

#[test]
fn emptied_store() {
    search("emptied store", 2, 3, &[Crash, Empty], |scope| Scope { versioned: true, ..scope });
}

#[test]
fn emptied_store_of_a_fan_out() {
    search("emptied store of a fan-out", 1, 2, &[Crash, Die, Empty], |scope| Scope {
        messages: as_many_as_faults(&scope),
        sinks: 2,
        versioned: true,
        ..scope
    });
}

#[test]
fn cursor() {
    search("cursor", 1, 2, &[Die, Crash, Link, CreateAnswer, Drain], |scope| Scope { messages: vec![FILE], ..scope });
}

#[test]
fn cursor_beside_a_message() {
    search("cursor beside a message", 0, 2, &[Die, Crash, Link, CreateAnswer], |scope| Scope {
        messages: vec![FILE, PLAIN],
        ..scope
    });
}

#[test]
fn cursor_and_pruning() {
    search("cursor and pruning", 1, 2, &[Crash, Link, Drain], |scope| Scope {
        messages: vec![FILE],
        late_deletes: true,
        copy_limit: 9,
        ..scope
    });
}

#[test]
fn cursor_beside_a_message_and_pruning() {
    search("cursor beside a message, and pruning", 0, 1, &[Die, Crash, Link, Drain], |scope| Scope {
        messages: vec![FILE, PLAIN],
        late_deletes: true,
        copy_limit: 9,
        ..scope
    });
}

#[test]
fn cursor_and_reset() {
    search("cursor and reset", 1, 2, &[Die, Crash, Reset, ResetDrop], |scope| Scope { messages: vec![FILE], ..scope });
}
