//! What is behind the rules of the sinks: shares, txns, conditional commits, the dead letter, merges, cursors, other logs.

use super::*;

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
    let mut table = crate::checkpoint::search::tables::Table::default();
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
