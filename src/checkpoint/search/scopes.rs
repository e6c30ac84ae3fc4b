//! The scopes that are searched, and their sizes.

use super::explore::explore;
use super::scope::Fault::*;
use super::scope::{Message, PLAIN, Poison, Scope};

fn search(scope: Scope) {
    let started = crate::clock::now();
    match explore(&scope) {
        Ok(explored) => println!("{}: {explored:?} in {:.1?}", scope.name, started.elapsed()),
        Err(counterexample) => panic!("{} after {} states: {counterexample}", scope.name, counterexample.states),
    }
}

#[test]
fn one() {
    let faults = std::env::var("FAULTS").map_or(0, |f| f.parse().unwrap());
    let which = std::env::var("SCOPE").unwrap_or_default();
    let basic = [Die, Crash, Link, CreateAnswer, CommitAnswer, Park];
    let scope = Scope::new("plain", faults, basic);
    let m = |rows, poison| Message { rows, poison };
    search(match &*which {
        "dead" => Scope { name: "dead", dead_letter: true, messages: vec![PLAIN, m(1, Poison::Sink(0))], ..scope },
        "stage" => Scope { name: "stage", dead_letter: true, messages: vec![PLAIN, m(1, Poison::Stage)], ..scope },
        "fan" => {
            Scope { name: "fan", sinks: 2, ..Scope::new("", faults, [Die, Crash, Link, CommitAnswer, DropShare, Park]) }
        }
        "fandead" => Scope {
            name: "fandead",
            sinks: 2,
            dead_letter: true,
            messages: vec![PLAIN, m(1, Poison::Sink(0))],
            ..scope
        },
        "prune" => Scope { name: "prune", late_deletes: true, copy_limit: 9, ..scope },
        "prune2" => Scope {
            name: "prune2",
            late_deletes: true,
            entry_limit: 2,
            ..Scope::new("", faults, [Die, Crash, Link, CreateAnswer, Second])
        },
        "second" => Scope { name: "second", ..Scope::new("", faults, [Second, Link, Die, CreateAnswer]) },
        "secondprune" => Scope {
            name: "secondprune",
            late_deletes: true,
            copy_limit: 9,
            ..Scope::new("", faults, [Second, Link, Die, CreateAnswer])
        },
        "budget" => Scope { name: "budget", budget: 1, ..scope },
        "repart" => Scope { name: "repart", ..Scope::new("", faults, [Die, Crash, Link, Repartition]) },
        "repartprune" => Scope {
            name: "repartprune",
            late_deletes: true,
            copy_limit: 9,
            ..Scope::new("", faults, [Die, Crash, Link, Repartition])
        },
        "reset" => Scope { name: "reset", may_park: true, ..Scope::new("", faults, [Die, Crash, Link, Reset]) },
        "drop" => {
            Scope { name: "drop", may_park: true, ..Scope::new("", faults, [Die, Crash, Link, ResetDrop, Reset]) }
        }
        "fanreset" => Scope {
            name: "fanreset",
            sinks: 2,
            may_park: true,
            ..Scope::new("", faults, [Die, Crash, Reset, ResetDrop])
        },
        "drain" => Scope { name: "drain", ..Scope::new("", faults, [Die, Crash, Link, Drain, CreateAnswer]) },
        "cursor" => Scope {
            name: "cursor",
            messages: vec![m(2, Poison::No), PLAIN],
            ..Scope::new("", faults, [Die, Crash, Link, CreateAnswer])
        },
        "cursorprune" => Scope {
            name: "cursorprune",
            late_deletes: true,
            copy_limit: 9,
            messages: vec![m(2, Poison::No), PLAIN],
            ..Scope::new("", faults, [Die, Crash, Link, Drain])
        },
        "cursorreset" => Scope {
            name: "cursorreset",
            may_park: true,
            messages: vec![m(2, Poison::No), PLAIN],
            ..Scope::new("", faults, [Die, Crash, Reset, ResetDrop])
        },
        "empty" => Scope {
            name: "empty",
            versioned: true,
            may_park: true,
            ..Scope::new("", faults, [Die, Crash, Link, Empty])
        },
        "fanempty" => Scope {
            name: "fanempty",
            sinks: 2,
            versioned: true,
            may_park: true,
            messages: vec![PLAIN],
            ..Scope::new("", faults, [Die, Crash, Empty])
        },
        "merge" => Scope {
            name: "merge",
            partitions: 1,
            merge: true,
            own_stores: true,
            ..Scope::new("", faults, [Die, Crash, Link])
        },
        _ => scope,
    });
}
