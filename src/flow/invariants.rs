//! The invariants I1 to I8 as predicates, so that the search, the simulation and the counters of a running process mean
//! the same by them.
//!
//! Each takes the evidence and answers with what it contradicts. They know nothing of how the evidence is found, and do
//! not act on it.

use std::fmt;

use super::Epoch;

/// What was contradicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Invariant {
    /// Nothing is settled before its rows are committed, in every sink whose branch took it.
    I1,
    /// Every delivery is settled at most once over its link.
    I2,
    /// Every row is at most once in every sink; an accepted message has all its rows there.
    I3,
    /// What is in flight fits into the budget.
    I4,
    /// The committed epochs of a partition are contiguous.
    I5,
    /// A stale generation or process changes nothing.
    I6,
    /// After a drain the budget is full and nothing lives.
    I7,
    /// Every rejected message is in the dead letter once, before it is settled.
    I8,
}

/// A contradiction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Of what.
    pub invariant: Invariant,
    /// In figures.
    pub evidence: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.evidence)
    }
}

fn demand(holds: bool, invariant: Invariant, evidence: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { invariant, evidence: evidence() }) }
}

/// I1, for one sink: an accept was sent for a message that has `expected` rows there, of which `committed` can be seen.
pub fn settled_after_commit(expected: u64, committed: u64) -> Result<(), Broken> {
    demand(committed >= expected, Invariant::I1, || {
        format!("a message was accepted with {committed} of {expected} rows committed")
    })
}

/// I2: how often one delivery was settled over its link.
pub fn settled_once(times: u64) -> Result<(), Broken> {
    demand(times <= 1, Invariant::I2, || format!("a delivery was settled {times} times"))
}

/// I3: how often one row is in one sink.
pub fn row_once(times: u64) -> Result<(), Broken> {
    demand(times <= 1, Invariant::I3, || format!("a row was committed {times} times"))
}

/// I4: deliveries, or bytes, in flight against the budget.
pub fn within_budget(in_flight: u64, budget: u64) -> Result<(), Broken> {
    demand(in_flight <= budget, Invariant::I4, || format!("{in_flight} in flight with a budget of {budget}"))
}

/// I5: an epoch is stored after another of the same partition. After a reset `last` is the reset's `base.epoch`.
pub fn contiguous(last: Epoch, stored: Epoch) -> Result<(), Broken> {
    demand(stored == last.next(), Invariant::I5, || format!("epoch {stored} was stored after epoch {last}"))
}

/// I5, for one sink: it shows what it showed before the newest stored epoch, or that epoch if it has rows in it.
pub fn shown_as_stored(shown: Epoch, before: Epoch, newest: Option<Epoch>) -> Result<(), Broken> {
    demand(shown == before || Some(shown) == newest, Invariant::I5, || match newest {
        Some(newest) => format!("a sink shows epoch {shown}, where {before} or {newest} was stored"),
        None => format!("a sink shows epoch {shown}, where {before} was stored"),
    })
}

/// I6: what was there before and after something of a dead generation or process was heard.
pub fn unmoved<T: PartialEq>(before: &T, after: &T) -> Result<(), Broken> {
    demand(before == after, Invariant::I6, || "a stale generation or process changed something".into())
}

/// I7: what is left after a drain.
pub fn quiet_after_drain(in_flight: u64, alive: u64) -> Result<(), Broken> {
    demand(in_flight == 0 && alive == 0, Invariant::I7, || {
        format!("after a drain {in_flight} deliveries are in flight and {alive} stages live")
    })
}

/// I8: a rejected message of which `committed` of `expected` rows are in the dead letter; `times`: how often the row that
/// is there most often is there. `settled`: the broker was told.
pub fn rejected_once(settled: bool, expected: u64, committed: u64, times: u64) -> Result<(), Broken> {
    demand(times <= 1, Invariant::I8, || format!("a rejected message is in the dead letter {times} times"))?;
    demand(!settled || committed >= expected, Invariant::I8, || {
        "a rejected message was settled and is not in the dead letter".into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_says_what_it_contradicts() {
        let broken = [
            settled_after_commit(2, 1),
            settled_once(2),
            row_once(2),
            within_budget(3, 2),
            contiguous(Epoch(4), Epoch(6)),
            unmoved(&1, &2),
            quiet_after_drain(1, 0),
            rejected_once(true, 1, 0, 0),
        ];
        let named: Vec<_> = broken.into_iter().map(|broken| broken.expect_err("it is broken").invariant).collect();
        use Invariant::*;
        assert_eq!(named, [I1, I2, I3, I4, I5, I6, I7, I8]);
    }

    #[test]
    fn what_is_right_is_let_through() {
        assert!(settled_after_commit(2, 2).is_ok() && settled_once(1).is_ok() && row_once(0).is_ok());
        assert!(within_budget(2, 2).is_ok() && contiguous(Epoch(4), Epoch(5)).is_ok() && unmoved(&1, &1).is_ok());
        assert!(quiet_after_drain(0, 0).is_ok() && rejected_once(true, 1, 1, 1).is_ok());
        assert!(shown_as_stored(Epoch(3), Epoch(3), None).is_ok());
        assert!(shown_as_stored(Epoch(5), Epoch(3), Some(Epoch(5))).is_ok());
        assert!(shown_as_stored(Epoch(4), Epoch(3), Some(Epoch(5))).is_err());
    }
}
