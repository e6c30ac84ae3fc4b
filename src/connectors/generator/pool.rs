//! Which numbers of a run are on their way, settled, or to be given out again. Pure: it is told the time.
//!
//! Invariant: a number below `next` is in exactly one place: out on one link, returned, or settled.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use crate::flow::Outcome;

/// One number, given out once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Counted from 0 over the whole run.
    pub number: u64,
    /// When it was given out for the first time, so that a redelivery is the same message in every column that counts.
    pub sent: i64,
    /// How often it was given out before.
    pub earlier: i32,
}

/// A link of one partition to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LinkId(u64);

/// What there is for a link.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// At least one message.
    Messages(Vec<Message>),
    /// Nothing before this instant; `None`: nothing unless a number comes back or the last one is settled.
    Nothing(Option<Instant>),
    /// Every number is settled.
    End,
    /// The link has been closed.
    Closed,
}

/// The one sequence that all partitions of a receiver share.
#[derive(Debug)]
pub(super) struct Pool {
    count: Option<u64>,
    /// Messages per 1000 seconds: whole, so that a deadline that has passed is passed exactly.
    rate: Option<u128>,
    next: u64,
    settled: u64,
    started: Option<Instant>,
    returned: BTreeMap<u64, Message>,
    links: HashMap<LinkId, HashMap<u64, Message>>,
    next_link: u64,
}

/// Nanoseconds in the time unit of `rate`.
const KILOSECOND: u128 = 1_000_000_000_000;

impl Pool {
    /// A run of `count` numbers, or an endless one; `rate` new numbers per second, or as many as are asked for.
    pub fn new(count: Option<u64>, rate: Option<f64>) -> Self {
        // A float cast saturates, so no configured rate is out of range.
        let rate = rate.map(|per_second| ((per_second * 1000.0).round() as u128).clamp(1, u128::from(u64::MAX)));
        Self {
            count,
            rate,
            next: 0,
            settled: 0,
            started: None,
            returned: BTreeMap::new(),
            links: HashMap::new(),
            next_link: 0,
        }
    }

    /// A new link with nothing out.
    pub fn attach(&mut self) -> LinkId {
        let link = LinkId(self.next_link);
        self.next_link += 1;
        self.links.insert(link, HashMap::new());
        link
    }

    /// Gives `link` up to `max` numbers: first those that came back, then new ones that are due.
    pub fn take(&mut self, link: LinkId, max: usize, now: Instant, wall_millis: i64) -> Taken {
        let Some(out) = self.links.get_mut(&link) else { return Taken::Closed };
        if self.count == Some(self.settled) {
            return Taken::End;
        }
        let mut messages = Vec::new();
        while messages.len() < max
            && let Some((_, message)) = self.returned.pop_first()
        {
            messages.push(message);
        }
        let started = *self.started.get_or_insert(now);
        let due = self.rate.map_or(u64::MAX, |rate| {
            let elapsed = now.saturating_duration_since(started).as_nanos();
            u64::try_from(elapsed * rate / KILOSECOND + 1).unwrap_or(u64::MAX)
        });
        let end = due.min(self.count.unwrap_or(u64::MAX));
        while messages.len() < max && self.next < end {
            messages.push(Message { number: self.next, sent: wall_millis, earlier: 0 });
            self.next += 1;
        }
        if messages.is_empty() {
            let more = self.count.is_none_or(|count| self.next < count);
            return Taken::Nothing(self.rate.filter(|_| more).map(|rate| {
                let nanos = (u128::from(self.next) * KILOSECOND).div_ceil(rate);
                started + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }));
        }
        out.extend(messages.iter().map(|message| (message.number, *message)));
        Taken::Messages(messages)
    }

    /// Takes back what was not delivered after all.
    pub fn untake(&mut self, link: LinkId, messages: &[Message]) {
        let Some(out) = self.links.get_mut(&link) else { return };
        for message in messages {
            if let Some(message) = out.remove(&message.number) {
                self.returned.insert(message.number, message);
            }
        }
    }

    /// Notes what became of numbers that are out on `link`; others are passed over.
    pub fn settle(&mut self, link: LinkId, numbers: impl IntoIterator<Item = u64>, outcome: Outcome) {
        let Some(out) = self.links.get_mut(&link) else { return };
        for message in numbers.into_iter().filter_map(|number| out.remove(&number)) {
            match outcome {
                Outcome::Accepted | Outcome::Rejected => self.settled += 1,
                Outcome::Released => give_back(&mut self.returned, message),
            }
        }
    }

    /// Ends `link`: what is out on it comes back. Ending it twice changes nothing.
    pub fn detach(&mut self, link: LinkId) {
        for message in self.links.remove(&link).into_iter().flatten() {
            give_back(&mut self.returned, message.1);
        }
    }
}

fn give_back(returned: &mut BTreeMap<u64, Message>, message: Message) {
    returned.insert(message.number, Message { earlier: message.earlier.saturating_add(1), ..message });
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::clock;

    fn numbers(taken: Taken) -> Vec<(u64, i32)> {
        match taken {
            Taken::Messages(messages) => messages.iter().map(|m| (m.number, m.earlier)).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_link_leaves_behind_is_given_out_again_as_the_same_message() {
        let now = clock::now();
        let mut pool = Pool::new(Some(3), None);
        let (a, b) = (pool.attach(), pool.attach());
        assert_eq!(numbers(pool.take(a, 2, now, 1)), [(0, 0), (1, 0)]);
        pool.settle(a, [0, 0, 7], Outcome::Accepted);
        pool.detach(a);
        assert_eq!(pool.take(a, 2, now, 1), Taken::Closed);
        assert_eq!(
            pool.take(b, 9, now, 5),
            Taken::Messages(vec![
                Message { number: 1, sent: 1, earlier: 1 },
                Message { number: 2, sent: 5, earlier: 0 }
            ])
        );
        assert_eq!(pool.take(b, 9, now, 5), Taken::Nothing(None), "they may come back");
        pool.settle(a, [1], Outcome::Accepted);
        assert_eq!(pool.take(b, 9, now, 5), Taken::Nothing(None), "a dead link settles nothing");
        pool.settle(b, [1], Outcome::Released);
        assert_eq!(numbers(pool.take(b, 9, now, 5)), [(1, 2)]);
        pool.settle(b, [1], Outcome::Accepted);
        pool.settle(b, [2], Outcome::Rejected);
        assert_eq!(pool.take(b, 9, now, 5), Taken::End);
    }

    #[test]
    fn untaken_numbers_do_not_count_as_delivered() {
        let now = clock::now();
        let mut pool = Pool::new(None, None);
        let link = pool.attach();
        let Taken::Messages(messages) = pool.take(link, 3, now, 0) else { panic!("three messages") };
        pool.untake(link, &messages[1..]);
        assert_eq!(numbers(pool.take(link, 2, now, 0)), [(1, 0), (2, 0)]);
    }

    #[test]
    fn new_numbers_fall_due_at_the_rate_and_held_up_ones_at_once() {
        let start = clock::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut pool = Pool::new(Some(10), Some(3.0));
        let link = pool.attach();
        assert_eq!(numbers(pool.take(link, 9, start, 0)), [(0, 0)]);
        let Taken::Nothing(Some(next)) = pool.take(link, 9, at(1), 0) else { panic!("a deadline") };
        assert_eq!(next - start, Duration::from_nanos(333_333_334));
        assert_eq!(numbers(pool.take(link, 9, next, 0)), [(1, 0)], "due exactly at its deadline");
        assert_eq!(numbers(pool.take(link, 99, at(60_000), 0)).len(), 8, "what fell due meanwhile");
        assert_eq!(pool.take(link, 9, at(60_000), 0), Taken::Nothing(None), "no number is left to wait for");
    }

    #[test]
    fn the_strangest_rates_neither_panic_nor_spin() {
        let now = clock::now();
        for rate in [1e-12, 0.001, 1e30, f64::INFINITY] {
            let mut pool = Pool::new(None, Some(rate));
            let link = pool.attach();
            for _ in 0..3 {
                if let Taken::Nothing(until) = pool.take(link, 2, now, 0) {
                    assert!(until.is_some_and(|until| until > now), "rate {rate}");
                }
            }
        }
    }

    proptest! {
        /// Whatever links do: no number is out twice, and every number of a bounded run is settled exactly once.
        #[test]
        fn every_number_is_settled_once(steps in proptest::collection::vec((0usize..3, 0u8..4, 1usize..6), 0..60)) {
            const COUNT: u64 = 20;
            let now = clock::now();
            let mut pool = Pool::new(Some(COUNT), None);
            let mut links: Vec<_> = (0..3).map(|_| (pool.attach(), HashSet::new())).collect();
            let mut settled = HashSet::new();
            for (at, what, n) in steps {
                if what == 0 {
                    if let Taken::Messages(messages) = pool.take(links[at].0, n, now, 0) {
                        for message in messages {
                            prop_assert!(!settled.contains(&message.number));
                            prop_assert!(links.iter().all(|(_, out)| !out.contains(&message.number)));
                            links[at].1.insert(message.number);
                        }
                    }
                    continue;
                }
                let (link, out) = &mut links[at];
                let some: Vec<u64> = out.iter().copied().take(n).collect();
                match what {
                    1 => {
                        pool.settle(*link, some.iter().copied(), Outcome::Accepted);
                        for number in some { out.remove(&number); prop_assert!(settled.insert(number)); }
                    }
                    2 => {
                        pool.settle(*link, some.iter().copied(), Outcome::Released);
                        for number in some { out.remove(&number); }
                    }
                    _ => { pool.detach(*link); links[at] = (pool.attach(), HashSet::new()); }
                }
            }
            for (link, _) in &links { pool.detach(*link); }
            let last = pool.attach();
            while let Taken::Messages(messages) = pool.take(last, 7, now, 0) {
                for message in &messages { prop_assert!(settled.insert(message.number)); }
                pool.settle(last, messages.iter().map(|m| m.number), Outcome::Rejected);
            }
            prop_assert_eq!(pool.take(last, 7, now, 0), Taken::End);
            prop_assert_eq!(settled.len() as u64, COUNT);
        }
    }
}
