//! A queue: messages in order, consumers that wait, and what became of the rest.
//!
//! Invariants: a message is ready, unsettled on one link, or gone (accepted, or rejected and on the dead list). It
//! leaves `ready` only when a link has credit and a window for it, inside [`Queue::take`]. What comes back returns to
//! its old place, so ahead of everything that was never taken. A consumer is registered as waiting only while no message
//! is ready for it, or the rest is left to others that were woken too; and whoever makes one ready wakes somebody. A wake
//! is never lost, because a woken consumer that cannot take passes it on.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::Notify;

use super::message::Message;
use super::store::Memory;

/// How many rejected messages a queue keeps for inspection; beyond it the oldest goes, and only the count tells of it.
const KEPT_REJECTED: usize = 10_000;

/// What a queue holds and has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct QueueStats {
    /// Messages that wait for a consumer with credit.
    pub ready: u64,
    /// Messages that were delivered and not settled yet.
    pub unsettled: u64,
    /// Messages that came in, over the life of the broker.
    pub received: u64,
    /// Messages that a consumer accepted, those delivered settled included.
    pub accepted: u64,
    /// Messages that a consumer rejected.
    pub rejected: u64,
    /// Deliveries of a message that had been delivered before.
    pub redelivered: u64,
    /// Links that consume from the queue now.
    pub consumers: u64,
}

/// A message that a consumer rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// What the consumer said about it.
    pub reason: Option<String>,
    /// The encoded message, without its header section.
    pub message: Bytes,
}

/// How a message comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Return {
    /// The attempt counts as failed.
    pub(super) failed: bool,
    /// Not again to this consumer.
    pub(super) exclude: Option<u64>,
}

/// The waiting place of one consumer.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) consumer: u64,
    state: AtomicU8,
    connection: Arc<Notify>,
}

const RUNNING: u8 = 0;
const WAITING: u8 = 1;
const WOKEN: u8 = 2;

impl Waiter {
    pub(super) fn new(connection: Arc<Notify>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let consumer = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { consumer, state: AtomicU8::new(RUNNING), connection })
    }

    /// Nothing is ready for this consumer; it will be woken.
    pub(super) fn is_waiting(&self) -> bool {
        self.state.load(Ordering::Acquire) == WAITING
    }

    fn is_woken(&self) -> bool {
        self.state.load(Ordering::Acquire) == WOKEN
    }
}

/// One queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: String,
    pub(super) memory: Arc<Memory>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct Waiting {
    waiter: Arc<Waiter>,
    /// It left messages to the others that were woken.
    modest: bool,
}

#[derive(Debug, Default)]
struct State {
    next_place: u64,
    fresh: VecDeque<Message>,
    returned: BTreeMap<u64, Message>,
    waiters: VecDeque<Waiting>,
    /// Consumers that were woken and have not looked yet.
    woken: u32,
    rejected: VecDeque<Rejected>,
    stats: QueueStats,
}

impl State {
    fn pop_for(&mut self, consumer: u64) -> Option<Message> {
        // The usual case first: nothing came back.
        if self.returned.is_empty() {
            return self.fresh.pop_front();
        }
        let place = self.returned.iter().find(|(_, message)| message.may_go_to(consumer)).map(|(place, _)| *place);
        match place {
            Some(place) => self.returned.remove(&place),
            None => self.fresh.pop_front(),
        }
    }

    fn wake(&mut self, most: usize) {
        for _ in 0..most {
            let Some(waiting) = self.waiters.pop_front() else { return };
            self.wake_one(&waiting.waiter);
        }
    }

    fn wake_one(&mut self, waiter: &Waiter) {
        waiter.state.store(WOKEN, Ordering::Release);
        waiter.connection.notify_one();
        self.woken += 1;
    }

    /// The consumer is not woken, or not any more.
    fn stop_waiting(&mut self, waiter: &Waiter) {
        if waiter.state.swap(RUNNING, Ordering::AcqRel) == WOKEN {
            self.woken -= 1;
            self.looked();
        }
    }

    /// A woken consumer has looked, or never will. If it was the last one and there is more, somebody else is to look.
    fn looked(&mut self) {
        if self.woken == 0 && self.ready() > 0 {
            self.wake(1);
        }
    }

    /// What is left is not for this consumer. Those who left messages to it must look again.
    fn nothing_for(&mut self, waiter: &Arc<Waiter>) {
        if self.ready() > 0 {
            let (modest, others) = std::mem::take(&mut self.waiters).into_iter().partition(|waiting| waiting.modest);
            self.waiters = others;
            let modest: VecDeque<_> = modest;
            modest.iter().for_each(|waiting| self.wake_one(&waiting.waiter));
        }
        self.wait(waiter, false);
    }

    fn wait(&mut self, waiter: &Arc<Waiter>, modest: bool) {
        waiter.state.store(WAITING, Ordering::Release);
        self.waiters.push_back(Waiting { waiter: waiter.clone(), modest });
    }

    fn ready(&self) -> usize {
        self.fresh.len() + self.returned.len()
    }
}

impl Queue {
    pub(super) fn new(name: &str, memory: Arc<Memory>) -> Self {
        Self { name: name.to_owned(), memory, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stats(&self) -> QueueStats {
        let state = self.state();
        QueueStats { ready: state.ready() as u64, ..state.stats }
    }

    pub(super) fn rejected(&self) -> Vec<Rejected> {
        self.state().rejected.iter().cloned().collect()
    }

    pub(super) fn open_consumer(&self) {
        self.state().stats.consumers += 1;
    }

    pub(super) fn close_consumer(&self, waiter: &Arc<Waiter>) {
        let mut state = self.state();
        state.stats.consumers -= 1;
        state.waiters.retain(|waiting| !Arc::ptr_eq(&waiting.waiter, waiter));
        state.stop_waiting(waiter);
    }

    /// Adds messages at the end, in order.
    pub(super) fn push(&self, messages: &mut Vec<Message>) {
        self.memory.add(messages.iter().map(Message::cost).sum());
        let count = messages.len();
        let mut state = self.state();
        state.stats.received += count as u64;
        for mut message in messages.drain(..) {
            message.place = state.next_place;
            state.next_place += 1;
            state.fresh.push_back(message);
        }
        state.wake(count);
    }

    /// Hands messages to `give` until it answers false, `most` were given, or none is left for this consumer: then it is
    /// waiting. Of few messages it takes its share, and leaves theirs to others that were woken as well. Says whether any
    /// was given. `give` runs under the queue's lock and must be quick.
    pub(super) fn take(&self, waiter: &Arc<Waiter>, most: u32, mut give: impl FnMut(Message) -> bool) -> bool {
        let mut state = self.state();
        if waiter.state.swap(RUNNING, Ordering::AcqRel) == WOKEN {
            state.woken -= 1;
        }
        let share = state.ready().div_ceil(state.woken as usize + 1);
        let mut given = 0;
        while given < most {
            if given as usize == share && state.woken > 0 {
                state.wait(waiter, true);
                return given > 0;
            }
            let Some(message) = state.pop_for(waiter.consumer) else {
                state.nothing_for(waiter);
                return given > 0;
            };
            given += 1;
            state.stats.unsettled += 1;
            state.stats.redelivered += u64::from(message.acquired);
            if !give(message) {
                break;
            }
        }
        state.looked();
        given > 0
    }

    /// A consumer that cannot take passes it on if it was woken.
    pub(super) fn pass_on(&self, waiter: &Waiter) {
        if waiter.is_woken() {
            self.state().stop_waiting(waiter);
        }
    }

    /// Messages come back to their old places.
    pub(super) fn give_back(&self, messages: Vec<Message>, how: Return) {
        let count = messages.len();
        let mut choosy = false;
        let mut state = self.state();
        state.stats.unsettled -= count as u64;
        for mut message in messages {
            message.acquired = true;
            message.delivery_count = message.delivery_count.saturating_add(u32::from(how.failed));
            if let Some(consumer) = how.exclude {
                message.excluded.push(consumer);
            }
            choosy |= !message.excluded.is_empty();
            state.returned.insert(message.place, message);
        }
        // With an exclusion the one that is woken might be the excluded one.
        let waiters = state.waiters.len();
        state.wake(if choosy { waiters } else { count });
    }

    /// Delivered messages are done; `cost` is the sum of their costs.
    pub(super) fn accept(&self, count: u64, cost: u64) {
        let mut state = self.state();
        state.stats.unsettled -= count;
        state.stats.accepted += count;
        drop(state);
        self.memory.free(cost);
    }

    /// Delivered messages go to the dead list.
    pub(super) fn reject(&self, messages: Vec<Message>, reason: Option<&str>) {
        let mut freed = 0;
        let mut state = self.state();
        state.stats.unsettled -= messages.len() as u64;
        state.stats.rejected += messages.len() as u64;
        for message in messages {
            // Its bytes stay counted until it leaves the list; what it cost beside them does not.
            freed += message.cost() - message.body.len() as u64;
            state.rejected.push_back(Rejected { reason: reason.map(str::to_owned), message: message.body });
            if state.rejected.len() > KEPT_REJECTED
                && let Some(oldest) = state.rejected.pop_front()
            {
                freed += oldest.message.len() as u64;
            }
        }
        drop(state);
        self.memory.free(freed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn queue() -> Queue {
        Queue::new("orders", Arc::new(Memory::new(u64::MAX)))
    }

    fn waiter() -> Arc<Waiter> {
        Waiter::new(Arc::default())
    }

    fn push(queue: &Queue, bodies: std::ops::Range<u8>) {
        let mut messages: Vec<_> = bodies
            .map(|n| Message::parse(Bytes::copy_from_slice(&[0x00, 0x53, 0x75, 0xa0, 1, n]), 0).expect("parses"))
            .collect();
        queue.push(&mut messages);
    }

    fn take(queue: &Queue, waiter: &Arc<Waiter>, most: u32) -> Vec<Message> {
        let mut taken = Vec::new();
        queue.take(waiter, most, |message| {
            taken.push(message);
            true
        });
        taken
    }

    fn names(messages: &[Message]) -> Vec<u8> {
        messages.iter().filter_map(|message| message.body.last().copied()).collect()
    }

    #[test]
    fn what_comes_back_returns_to_its_place() {
        let (queue, one, two) = (queue(), waiter(), waiter());
        push(&queue, 0..6);
        let (a, b) = (take(&queue, &one, 2), take(&queue, &two, 2));
        queue.give_back(b, Return::default());
        queue.give_back(a, Return { failed: true, exclude: None });
        let again = take(&queue, &one, 9);
        assert_eq!(names(&again), [0, 1, 2, 3, 4, 5]);
        assert_eq!(again.iter().map(|m| m.delivery_count).collect::<Vec<_>>(), [1, 1, 0, 0, 0, 0]);
        assert_eq!(again.iter().map(|m| m.acquired).collect::<Vec<_>>(), [true, true, true, true, false, false]);
        assert_eq!(queue.stats().redelivered, 4);
    }

    #[test]
    fn undeliverable_here_goes_elsewhere() {
        let (queue, one, two) = (queue(), waiter(), waiter());
        push(&queue, 0..2);
        let taken = take(&queue, &one, 1);
        assert!(take(&queue, &two, 9).len() == 1 && two.is_waiting());
        queue.give_back(taken, Return { failed: false, exclude: Some(one.consumer) });
        assert!(take(&queue, &one, 9).is_empty() && one.is_waiting());
        assert!(two.is_woken());
        assert_eq!(names(&take(&queue, &two, 9)), [0]);
    }

    #[test]
    fn each_message_wakes_one_and_a_wake_is_passed_on() {
        let (queue, one, two) = (queue(), waiter(), waiter());
        assert!(take(&queue, &one, 1).is_empty() && take(&queue, &two, 1).is_empty());
        push(&queue, 0..1);
        assert!(one.is_woken() && two.is_waiting(), "the one that waited longest");
        queue.pass_on(&one);
        assert!(two.is_woken());
        assert_eq!(take(&queue, &two, 1).len(), 1);

        assert!(take(&queue, &one, 1).is_empty() && take(&queue, &two, 1).is_empty());
        push(&queue, 1..2);
        queue.open_consumer();
        queue.close_consumer(&one);
        assert!(two.is_woken(), "a closing consumer passes it on as well");
    }

    proptest! {
        /// Three consumers do what links do, in any order; some have no credit when they are woken.
        #[test]
        fn no_wake_is_lost(steps in proptest::collection::vec((0u8..10, 0usize..3, 1u8..9), 1..120)) {
            let queue = queue();
            let waiters = [waiter(), waiter(), waiter()];
            let mut held: [Vec<Message>; 3] = Default::default();
            let stuck = |queue: &Queue| {
                let state = queue.state();
                let awake = waiters.iter().any(|waiter| waiter.is_woken());
                let all = || state.fresh.iter().chain(state.returned.values());
                !awake && waiters.iter().any(|w| w.is_waiting() && all().any(|message| message.may_go_to(w.consumer)))
            };
            for (what, who, many) in steps {
                match what {
                    0..=2 => push(&queue, 0..many),
                    3..=5 if !waiters[who].is_waiting() => held[who].extend(take(&queue, &waiters[who], many.into())),
                    6 => queue.pass_on(&waiters[who]),
                    7 => queue.give_back(std::mem::take(&mut held[who]), Return::default()),
                    8 => {
                        let exclude = Some(waiters[who].consumer);
                        queue.give_back(std::mem::take(&mut held[who]), Return { failed: false, exclude });
                    }
                    9 => held[who].clear(),
                    _ => (),
                }
                prop_assert!(!stuck(&queue), "after {what} by {who}: {:?}", queue.state());
            }
            // Whoever is woken takes; that ends, and leaves nothing that a waiting consumer could have.
            for round in 0.. {
                prop_assert!(round < 10_000, "wakes go round in circles");
                let Some(waiter) = waiters.iter().find(|w| w.is_woken()) else { break };
                take(&queue, waiter, 4);
            }
            prop_assert!(!stuck(&queue));
        }
    }

    #[test]
    fn memory_is_given_back() {
        let (queue, one) = (queue(), waiter());
        push(&queue, 0..4);
        let taken = take(&queue, &one, 4);
        let cost: u64 = taken.iter().map(Message::cost).sum();
        assert_eq!(queue.memory.used(), cost);
        let (accepted, rejected) = taken.split_at(3);
        queue.accept(3, accepted.iter().map(Message::cost).sum());
        queue.reject(rejected.to_vec(), Some("no"));
        assert_eq!(queue.memory.used(), 6, "the rejected body");
        let stats = queue.stats();
        assert_eq!((stats.ready, stats.unsettled, stats.accepted, stats.rejected), (0, 0, 3, 1));
        assert_eq!(queue.rejected()[0].reason.as_deref(), Some("no"));
    }
}
