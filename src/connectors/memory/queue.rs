//! A queue with what makes a broker a broker: a message is out on one link at a time, and comes back when that link dies.
//!
//! Invariant: every message that was put is in exactly one place: waiting, out on one link, or settled.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::lock;
use crate::flow::{DeliveryId, Outcome};

/// What is put into a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// What makes it the same message when it is put again.
    pub id: Option<String>,
    /// The body.
    pub value: Vec<u8>,
    /// Application properties.
    pub properties: Vec<(String, String)>,
    /// When it was sent, in ms since the epoch.
    pub sent: Option<i64>,
}

/// A queue. Clones are the same queue.
#[derive(Clone, Default)]
pub struct Queue(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Taken>,
    links: BTreeMap<u64, BTreeMap<DeliveryId, Taken>>,
    next_link: u64,
    next_delivery: u64,
    settled: u64,
    /// No more will be put.
    finished: bool,
}

/// A message on its way, and how often it was on its way before.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub message: Arc<Message>,
    pub earlier: i32,
}

impl Queue {
    /// Adds a message at the end.
    pub fn put(&self, message: Message) {
        lock(&self.0.state).waiting.push_back(Taken { message: Arc::new(message), earlier: 0 });
        self.0.changed.notify_waiters();
    }

    /// No more will be put: receivers end when everything is settled.
    pub fn finish(&self) {
        lock(&self.0.state).finished = true;
        self.0.changed.notify_waiters();
    }

    /// Whether no more will be put and all there is is out on links, or settled.
    pub(super) fn is_exhausted(&self) -> bool {
        let state = lock(&self.0.state);
        state.finished && state.waiting.is_empty()
    }

    /// Messages that are out on no link.
    pub fn waiting(&self) -> usize {
        lock(&self.0.state).waiting.len()
    }

    /// Messages that are out on links.
    pub fn unsettled(&self) -> usize {
        lock(&self.0.state).links.values().map(BTreeMap::len).sum()
    }

    /// Messages that were accepted or rejected.
    pub fn settled(&self) -> u64 {
        lock(&self.0.state).settled
    }

    /// The numbers of the links that are up, oldest first.
    pub fn links(&self) -> Vec<u64> {
        lock(&self.0.state).links.keys().copied().collect()
    }

    /// A link dies on this side: what is out on it comes back, and its consumer hears nothing more.
    pub fn cut(&self, link: u64) {
        let mut state = lock(&self.0.state);
        let out = state.links.remove(&link).unwrap_or_default();
        give_back(&mut state, out.into_values().collect());
        drop(state);
        self.0.changed.notify_waiters();
    }

    pub(super) fn attach(&self) -> Attachment {
        let mut state = lock(&self.0.state);
        let link = state.next_link;
        state.next_link += 1;
        state.links.insert(link, BTreeMap::new());
        Attachment { queue: self.clone(), link }
    }

    /// Resolves when something was put, came back or was settled after this call.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.0.changed.notified()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waiting, unsettled, settled) = (self.waiting(), self.unsettled(), self.settled());
        write!(f, "Queue({waiting} waiting, {unsettled} unsettled, {settled} settled)")
    }
}

/// One link to a queue. What is out on it goes back, in its old order and before everything else, when it is dropped.
pub(super) struct Attachment {
    pub queue: Queue,
    link: u64,
}

impl Attachment {
    /// Takes the first `max` messages, as long as `fits` says so of each.
    pub fn take(&self, max: usize, mut fits: impl FnMut(&Message) -> bool) -> Vec<(DeliveryId, Taken)> {
        let mut state = lock(&self.queue.0.state);
        let mut all = Vec::new();
        if !state.links.contains_key(&self.link) {
            return all;
        }
        while all.len() < max && state.waiting.front().is_some_and(|first| fits(&first.message)) {
            let Some(taken) = state.waiting.pop_front() else { break };
            let delivery = DeliveryId(state.next_delivery);
            state.next_delivery += 1;
            if let Some(out) = state.links.get_mut(&self.link) {
                out.insert(delivery, taken.clone());
            }
            all.push((delivery, taken));
        }
        all
    }

    /// Whether nothing will ever come: no more is put, and everything is settled.
    pub fn is_at_end(&self) -> bool {
        let state = lock(&self.queue.0.state);
        state.finished && state.waiting.is_empty() && state.links.values().all(BTreeMap::is_empty)
    }

    /// What became of deliveries that are out on this link; others are passed over.
    pub fn settle(&self, deliveries: &[DeliveryId], outcome: Outcome) {
        let mut state = lock(&self.queue.0.state);
        let Some(out) = state.links.get_mut(&self.link) else { return };
        let known: Vec<_> = deliveries.iter().filter_map(|delivery| out.remove(delivery)).collect();
        match outcome {
            Outcome::Accepted | Outcome::Rejected => state.settled += known.len() as u64,
            Outcome::Released => give_back(&mut state, known),
        }
        drop(state);
        self.queue.0.changed.notify_waiters();
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.queue.cut(self.link);
    }
}

fn give_back(state: &mut State, all: Vec<Taken>) {
    for taken in all.into_iter().rev() {
        state.waiting.push_front(Taken { earlier: taken.earlier.saturating_add(1), ..taken });
    }
}
