//! What is behind the rules of the log: one writer, the fate of creates, the whole index, pruning, recovery, reset.

use super::*;

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
