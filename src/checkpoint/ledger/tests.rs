//! Rounds and reports, one step at a time. What must hold over all schedules is searched and simulated elsewhere.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::*;

use crate::flow::{Committed, DeliveryId, Digest, Holder, Identity, Offer, Prepared, Seen, StoreId};

struct Lab {
    ledger: Ledger,
    seen: Seen,
    now: u64,
}

fn partition(index: u32) -> PartitionId {
    PartitionId::new("r", index)
}

const G: Generation = Generation(1);

impl Lab {
    /// Two partitions of receiver `r`, feeding sink `s`, recovered and living.
    fn new() -> Self {
        let tree = Tree { sinks: ["s".into()].into(), exactly_once: ["s".into()].into(), dead_letter: None };
        let config = LedgerConfig {
            topology: "t".into(),
            trees: [("r".into(), tree)].into(),
            interval: 10_000,
            timeout: 60_000,
            round_gap: 500,
            copy_limit: 4096,
            entry_limit: 256,
        };
        let session =
            Entry::session(None, &"t".into(), Uuid::from_u128(7), false, &BTreeSet::new(), 0).expect("a session");
        let log = Log::read([&session]);
        let begun = Begun { session: session.session, store: StoreId(Uuid::nil()), log, entries: vec![session] };
        let now = Now { tick: Tick(0), wall: 0 };
        let ledger = Ledger::new(config, &begun, [partition(0), partition(1)], now);
        let mut lab = Self { ledger, seen: Seen::new(), now: 0 };
        for index in 0..2 {
            let shown = [("s".into(), Committed::At(Epoch(0)))].into();
            let actions = lab.on(Event::Opened { partition: partition(index), generation: G, shown });
            assert!(matches!(&actions[..], [Action::Resume { next: Epoch(1), .. }]), "{actions:?}");
            lab.seen.link_up(index, G);
        }
        lab
    }

    fn on(&mut self, event: Event) -> Vec<Action> {
        let now = Now { tick: Tick(self.now), wall: 0 };
        let mut seens: Seens<'_> = [("r".into(), &mut self.seen)].into();
        self.ledger.on(event, now, &mut seens)
    }

    fn send(&mut self, index: u32, message: u64, epoch: u64) -> Digest {
        let identity = Identity::of(&message.to_be_bytes(), b"");
        let holder = Holder { partition: index, generation: G, delivery: DeliveryId(message) };
        assert_eq!(self.seen.offer(identity, holder, Epoch(epoch)), Offer::New { resume: 0 });
        Digest::of([&identity])
    }

    fn prepared(&mut self, index: u32, epoch: u64, digest: Digest) -> Vec<Action> {
        let prepared = Some(Prepared { rows: 1, payload: String::new() });
        let report = SinkReport { sent: digest, held: digest, prepared, ..SinkReport::default() };
        let (partition, epoch) = (partition(index), Epoch(epoch));
        self.on(Event::Prepared { partition, generation: G, epoch, sink: "s".into(), report })
    }

    fn committed(&mut self, index: u32, epoch: u64) -> Vec<Action> {
        let (partition, epoch) = (partition(index), Epoch(epoch));
        self.on(Event::Committed { partition, generation: G, epoch, sink: "s".into() })
    }
}

fn triggered(actions: &[Action]) -> Vec<u32> {
    let index = |action: &Action| match action {
        Action::Trigger { partition, .. } => Some(partition.index),
        _ => None,
    };
    actions.iter().filter_map(index).collect()
}

fn created(actions: &[Action]) -> Option<&Entry> {
    actions.iter().find_map(|action| match action {
        Action::Create(entry) => Some(&**entry),
        _ => None,
    })
}

fn parts(actions: &[Action]) -> Vec<u32> {
    created(actions).map_or_else(Vec::new, |entry| entry.parts.iter().map(|part| part.partition.index).collect())
}

#[test]
fn a_round_takes_all_that_were_triggered_into_one_entry() {
    let mut lab = Lab::new();
    let (a, b) = (lab.send(0, 1, 1), lab.send(1, 2, 1));
    let actions = lab.on(Event::Wanted { urgent: false });
    assert_eq!(triggered(&actions), [0, 1]);
    assert_eq!(parts(&lab.prepared(0, 1, a)), [0; 0], "it waits for the other");
    assert_eq!(parts(&lab.prepared(1, 1, b)), [0, 1]);
    let actions = lab.on(Event::Stored { number: 2, newest: 2 });
    let commits: Vec<_> = actions.iter().filter(|action| matches!(action, Action::Commit { .. })).collect();
    assert_eq!(commits.len(), 2);
    let actions = lab.committed(0, 1);
    assert!(matches!(&actions[..], [Action::Complete { messages: 1, .. }]), "{actions:?}");
}

#[test]
fn a_round_closes_by_its_deadline_and_a_late_report_has_its_own() {
    let mut lab = Lab::new();
    let (a, b) = (lab.send(0, 1, 1), lab.send(1, 2, 1));
    lab.on(Event::Wanted { urgent: false });
    lab.prepared(0, 1, a);
    lab.now = 250;
    assert_eq!(lab.ledger.wake_at(), Tick(250));
    assert_eq!(parts(&lab.on(Event::Timer)), [0]);
    assert_eq!(parts(&lab.prepared(1, 1, b)), [0; 0], "one create at a time");
    assert_eq!(parts(&lab.on(Event::Stored { number: 2, newest: 2 })), [1]);
}

#[test]
fn the_next_epoch_waits_until_the_last_is_committed() {
    let mut lab = Lab::new();
    let a = lab.send(0, 1, 1);
    lab.on(Event::Wanted { urgent: true });
    assert_eq!(parts(&lab.prepared(0, 1, a)), [0]);
    lab.on(Event::Stored { number: 2, newest: 2 });
    let b = lab.send(0, 2, 2);
    assert_eq!(triggered(&lab.on(Event::Wanted { urgent: true })), [0], "it may prepare meanwhile");
    assert_eq!(parts(&lab.prepared(0, 2, b)), [0; 0]);
    assert_eq!(parts(&lab.committed(0, 1)), [0]);
}

#[test]
fn a_want_that_comes_while_a_partition_is_busy_is_not_forgotten() {
    let mut lab = Lab::new();
    let a = lab.send(0, 1, 1);
    lab.on(Event::Wanted { urgent: true });
    let b = lab.send(0, 2, 2);
    assert_eq!(triggered(&lab.on(Event::Wanted { urgent: true })), [0; 0], "its report is awaited");
    lab.prepared(0, 1, a);
    lab.now = 500;
    let actions = lab.on(Event::Stored { number: 2, newest: 2 });
    assert_eq!(triggered(&actions), [0]);
    lab.prepared(0, 2, b);
}

#[test]
fn what_does_not_add_up_ends_the_generation_and_nothing_of_it_is_stored() {
    let mut lab = Lab::new();
    let a = lab.send(0, 1, 1);
    lab.send(0, 2, 1);
    lab.on(Event::Wanted { urgent: true });
    let mut sent = a;
    sent.add(Identity::of(&2u64.to_be_bytes(), b""));
    let report = SinkReport { sent, held: a, ..SinkReport::default() };
    let actions =
        lab.on(Event::Prepared { partition: partition(0), generation: G, epoch: Epoch(1), sink: "s".into(), report });
    assert!(matches!(&actions[..], [Action::Restart { .. }]), "{actions:?}");
    lab.send(0, 3, 2);
    assert_eq!(triggered(&lab.on(Event::Wanted { urgent: true })), [0; 0], "it is on its way out");
    let actions = lab.on(Event::Down { partition: partition(0), generation: G });
    assert!(matches!(&actions[..], [Action::MayRecover { .. }]), "{actions:?}");
    assert!(lab.seen.is_empty(), "what it had in flight is free");
}

#[test]
fn nobody_recovers_while_a_create_names_it() {
    let mut lab = Lab::new();
    let a = lab.send(0, 1, 1);
    lab.on(Event::Wanted { urgent: true });
    lab.prepared(0, 1, a);
    assert_eq!(lab.on(Event::Down { partition: partition(0), generation: G }), []);
    assert_eq!(lab.seen.len(), 1, "still in flight");
    let actions = lab.on(Event::Stored { number: 2, newest: 2 });
    assert!(matches!(actions.last(), Some(Action::MayRecover { .. })), "{actions:?}");
    let shown: BTreeMap<_, _> = [("s".into(), Committed::At(Epoch(0)))].into();
    let actions = lab.on(Event::Opened { partition: partition(0), generation: Generation(2), shown });
    assert!(matches!(&actions[..], [Action::Commit { epoch: Epoch(1), .. }]), "{actions:?}");
}

#[test]
fn a_report_that_takes_too_long_ends_the_generation() {
    let mut lab = Lab::new();
    lab.send(0, 1, 1);
    lab.on(Event::Wanted { urgent: true });
    lab.now = 60_000;
    let actions = lab.on(Event::Timer);
    assert!(actions.iter().any(|action| matches!(action, Action::Restart { .. })), "{actions:?}");
}

#[test]
fn a_foreign_or_higher_entry_ends_everything() {
    for event in [Event::Foreign { number: 2 }, Event::Stored { number: 2, newest: 3 }] {
        let mut lab = Lab::new();
        let a = lab.send(0, 1, 1);
        lab.on(Event::Wanted { urgent: true });
        lab.prepared(0, 1, a);
        let actions = lab.on(event);
        assert!(matches!(&actions[..], [Action::LostLog { .. }]), "{actions:?}");
        assert_eq!(lab.on(Event::Wanted { urgent: true }), []);
    }
}
