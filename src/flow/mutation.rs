//! Rules of the protocol that a test can switch off, one at a time, to see that the search or the simulation notices.
//!
//! In every other build the switches are constants, and the compiler removes them.

/// A rule, named for what is missing when it is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, dead_code)]
pub enum Rule {
    /// R1: only one process writes; a create overwrites what is there.
    CreateIfAbsent,
    /// R1: a foreign entry ends the process.
    ForeignEndsProcess,
    /// R2: ids of a dead generation stay in flight while a create names them.
    FateBeforeFree,
    /// R2: a partition recovers only when no create names it.
    FateBeforeRecovery,
    /// R3: the index is whole before the first receive.
    IndexBeforeReceive,
    /// R3: partitions that are no longer configured are recovered.
    RetiredAreRecovered,
    /// R4: what an entry frees is named again.
    CopyBeforeFloor,
    /// R4: recovery ignores what is below the floor.
    NothingBelowFloor,
    /// R4: after a create the log is listed once more.
    ListAfterCreate,
    /// R5: recovery asks each sink.
    AskEachSink,
    /// R5: the entry's base is used where there is no part.
    BaseInEntries,
    /// R5: epoch e+1 is stored only after every sink committed e.
    OneEpochAtATime,
    /// R5: a reset repeats the part that is not committed everywhere.
    ResetRepeatsPart,
    /// R5: what a reset ends is in doubt, not free.
    ResetKeepsIds,
    /// R6: the receipts must add up.
    ReceiptsAddUp,
    /// R6: a dropped receipt ends the generation.
    DropReleases,
    /// R7: another store's epochs are looked for.
    LookForForeign,
    /// R7: every partition has a txn of its own in a target.
    OwnTxn,
    /// R8: a commit is conditional on the epoch the target shows.
    ConditionalCommit,
    /// R9: the dead letter is part of the epoch.
    DeadLetterInEpoch,
    /// R10: a held delivery costs no permit.
    HeldCostsNothing,
    /// R10: barriers do not wait for held deliveries.
    HeldNotInBarrier,
    /// R11: what was accepted over a dead link is in doubt.
    InDoubt,
    /// R11: a drained entry ends only what the peer has answered.
    DrainedOnlyAnswered,
    /// R12: merge replays through the merge.
    MergeByIds,
    /// Accept at commit, not at prepare.
    AcceptAfterCommit,
    /// What was stored is committed again after a crash.
    Replay,
    /// Every operation has a time limit.
    TimeLimit,
    /// The cursor of a delivery opens only when its rows are committed.
    CursorAfterCommit,
}

/// Whether `rule` is switched off.
#[cfg(not(test))]
#[inline(always)]
pub const fn removed(_: Rule) -> bool {
    false
}

#[cfg(test)]
pub use switch::{removed, without};

#[cfg(test)]
mod switch {
    use std::cell::Cell;

    use super::Rule;

    thread_local! {
        static REMOVED: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Whether `rule` is switched off on this thread.
    pub fn removed(rule: Rule) -> bool {
        REMOVED.get() == Some(rule)
    }

    /// Runs `f` on this thread with `rule` switched off.
    pub fn without<T>(rule: Rule, f: impl FnOnce() -> T) -> T {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                REMOVED.set(None);
            }
        }
        REMOVED.set(Some(rule));
        let _restore = Restore;
        f()
    }
}
