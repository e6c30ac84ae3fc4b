use super::*;

fn identity(id: u128) -> Identity {
    Identity { id, content: 1 }
}

fn holder(partition: u32, generation: u64, delivery: u64) -> Holder {
    Holder { partition, generation: Generation(generation), delivery: DeliveryId(delivery) }
}

const E1: Epoch = Epoch(1);
const G1: Generation = Generation(1);

/// m1 sent by partition 0 in epoch 1, stored in entry 5, committed; the link is up.
fn committed() -> Seen {
    let mut seen = Seen::new();
    seen.link_up(0, G1);
    assert_eq!(seen.offer(identity(1), holder(0, 1, 0), E1), Offer::New { resume: 0 });
    seen.committing(0, E1, 5, &[], &[]);
    assert_eq!(seen.committed(0, E1, 1000), []);
    seen
}

#[test]
fn a_redelivery_is_held_until_the_fate_is_known() {
    let mut seen = Seen::new();
    seen.link_up(0, G1);
    seen.link_up(1, G1);
    seen.offer(identity(1), holder(0, 1, 0), E1);
    assert_eq!(seen.offer(identity(1), holder(1, 1, 7), E1), Offer::Held { owner: 0 });
    assert_eq!(seen.offer(identity(1), holder(1, 1, 8), E1), Offer::Held { owner: 0 });
    seen.committing(0, E1, 5, &[], &[]);
    let verdicts = seen.committed(0, E1, 1000);
    assert_eq!(
        verdicts,
        [Verdict::Accept(holder(1, 1, 7), identity(1)), Verdict::Accept(holder(1, 1, 8), identity(1))]
    );
    assert_eq!(seen.offer(identity(1), holder(1, 1, 9), E1), Offer::Done);
}

#[test]
fn a_freed_identity_is_offered_again() {
    let mut seen = Seen::new();
    seen.link_up(0, G1);
    seen.offer(identity(1), holder(0, 1, 0), E1);
    seen.offer(identity(1), holder(1, 1, 7), E1);
    seen.link_down(0, G1, 1000);
    assert_eq!(seen.free(0), [Verdict::Free(holder(1, 1, 7), identity(1))]);
    assert_eq!(seen.offer(identity(1), holder(1, 1, 7), E1), Offer::New { resume: 0 });
}

#[test]
fn the_horizon_counts_from_the_accept_on_the_same_link() {
    let mut seen = committed();
    assert_eq!(seen.expire(0, Tick(999_999), 100), 0, "the accept is owed");
    seen.settled_epoch(0, G1, E1, Tick(50), false);
    assert_eq!(seen.expire(0, Tick(149), 100), 0);
    assert_eq!(seen.expire(0, Tick(150), 100), 1);
    assert_eq!(seen.offer(identity(1), holder(0, 1, 3), Epoch(2)), Offer::New { resume: 0 });
}

#[test]
fn a_dead_link_puts_in_doubt_until_settled_anew() {
    let mut seen = committed();
    seen.settled_epoch(0, G1, E1, Tick(50), false);
    seen.link_down(0, G1, 1000);
    assert_eq!((seen.in_doubt(), seen.expire(0, Tick(999), 100)), (1, 0));
    seen.link_up(1, G1);
    assert_eq!(seen.offer(identity(1), holder(1, 1, 3), E1), Offer::Done);
    assert_eq!(seen.undischarged_below(6), [(identity(1), Some(1000))]);
    seen.settled(&[identity(1)], 1, G1, Tick(200), false);
    assert_eq!((seen.in_doubt(), seen.undischarged_at(5)), (0, 1), "still named by entry 5 alone");
    assert_eq!(seen.expire(1, Tick(300), 100), 1);
}

#[test]
fn an_accept_before_the_last_commit_still_starts_the_clock() {
    let mut seen = Seen::new();
    seen.link_up(0, G1);
    seen.offer(identity(1), holder(0, 1, 0), E1);
    seen.committing(0, E1, 5, &[], &[]);
    seen.settled_epoch(0, G1, E1, Tick(50), false);
    seen.committed(0, E1, 1000);
    assert_eq!(seen.expire(0, Tick(150), 100), 1);
}

#[test]
fn a_source_that_answers_needs_no_horizon() {
    let mut seen = committed();
    seen.settled_epoch(0, G1, E1, Tick(50), true);
    seen.link_down(0, G1, 1000);
    assert!(seen.is_empty());
}

#[test]
fn in_doubt_ends_by_age() {
    let mut seen = committed();
    seen.link_down(0, G1, 1000);
    assert_eq!(seen.sweep(1000), 0);
    assert_eq!(seen.sweep(1001), 1);
}

#[test]
fn other_content_under_a_known_id_collides_unless_that_was_rejected() {
    let mut seen = Seen::new();
    let other = |content| Identity { id: 1, content };
    seen.offer(other(1), holder(0, 1, 0), E1);
    assert_eq!(seen.offer(other(2), holder(0, 1, 1), E1), Offer::Collision);
    assert_eq!(seen.offer(other(2), holder(1, 1, 2), E1), Offer::Held { owner: 0 }, "the same collision again");
    let mut seen = Seen::new();
    seen.offer(other(1), holder(0, 1, 0), E1);
    seen.committing(0, E1, 5, &[other(1)], &[]);
    assert_eq!(seen.offer(other(2), holder(0, 1, 1), Epoch(2)), Offer::New { resume: 0 });
}

#[test]
fn a_cursor_opens_only_when_its_rows_are_committed() {
    let mut seen = Seen::new();
    seen.link_up(0, G1);
    seen.offer(identity(1), holder(0, 1, 0), E1);
    seen.carry(&[identity(1)], 0, G1);
    seen.committing(0, E1, 5, &[], &[(identity(1), 2)]);
    seen.link_down(0, G1, 1000);
    assert_eq!(seen.free(0), []);
    assert_eq!(seen.offer(identity(1), holder(1, 1, 7), E1), Offer::Held { owner: 0 });
    assert_eq!(seen.committed(0, E1, 1000), [Verdict::Free(holder(1, 1, 7), identity(1))]);
    assert_eq!(seen.offer(identity(1), holder(1, 1, 7), E1), Offer::New { resume: 2 });
}

#[test]
fn an_unfinished_delivery_that_waits_for_rows_opens_no_epoch() {
    let mut seen = Seen::new();
    seen.offer(identity(1), holder(0, 1, 0), E1);
    assert!(seen.has_open(0, E1));
    seen.carry(&[identity(1)], 0, G1);
    assert!(!seen.has_open(0, E1) && !seen.has_open(0, Epoch(2)), "nothing of it was sent in epoch 2");
    assert_eq!(seen.sent(0, E1), []);
    seen.continued(&[identity(1)], 0, G1, Epoch(3));
    assert_eq!(seen.sent(0, Epoch(3)), [identity(1)]);
    seen.carry(&[identity(1)], 0, G1);
    assert_eq!(seen.offer(identity(1), holder(1, 1, 7), E1), Offer::Held { owner: 0 });
    assert_eq!(seen.free(0), [Verdict::Free(holder(1, 1, 7), identity(1))]);
}

#[test]
fn what_is_loaded_is_committing_or_in_doubt_and_the_highest_cursor_counts() {
    let mut seen = Seen::new();
    seen.load((0, E1), &[(identity(1), false)], 3, false, 500);
    seen.load((0, Epoch(2)), &[(identity(2), true)], 4, true, 600);
    seen.load_in_doubt(&[(identity(3), 100), (identity(2), 100)], 4);
    seen.load_cursor(identity(4), 7, (0, Epoch(2)), 4, true);
    seen.load_cursor(identity(4), 3, (1, E1), 3, false);
    seen.load_cursor(identity(1), 3, (1, E1), 3, false);
    assert_eq!(seen.offer(identity(1), holder(0, 1, 0), Epoch(3)), Offer::Done);
    assert_eq!(seen.offer(identity(2), holder(0, 1, 1), Epoch(3)), Offer::Held { owner: 0 });
    assert_eq!(seen.offer(identity(3), holder(0, 1, 2), Epoch(3)), Offer::Done);
    assert_eq!(seen.offer(identity(4), holder(0, 1, 3), Epoch(3)), Offer::Held { owner: 0 });
    assert_eq!(seen.undischarged_below(4), [(identity(1), Some(500))]);
    seen.copied(4, 9);
    assert_eq!(seen.undischarged_below(4), []);
    assert_eq!(seen.undischarged_at(9), 1);
}
