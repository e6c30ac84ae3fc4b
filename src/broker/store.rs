//! All queues of the broker, and the memory they may take together.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::queue::Queue;

/// Counts the bytes of all messages. At the limit senders get no more credit, until consumers have made room: what is
/// on the way under credit given before still comes in.
#[derive(Debug)]
pub(super) struct Memory {
    used: AtomicU64,
    limit: u64,
    parked: Mutex<Vec<Arc<Notify>>>,
}

impl Memory {
    pub(super) fn new(limit: u64) -> Self {
        Self { used: AtomicU64::new(0), limit, parked: Mutex::default() }
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    pub(super) fn add(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::SeqCst);
    }

    pub(super) fn free(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::SeqCst);
        if before >= self.limit && self.has_room() {
            for connection in self.parked().drain(..) {
                connection.notify_one();
            }
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.used() < self.limit
    }

    /// Bytes below the limit.
    pub(super) fn room(&self) -> u64 {
        self.limit.saturating_sub(self.used())
    }

    /// Is there room? If not, `connection` is woken when there is.
    pub(super) fn has_room_or_park(&self, connection: &Arc<Notify>) -> bool {
        if self.has_room() {
            return true;
        }
        let mut parked = self.parked();
        if !parked.iter().any(|other| Arc::ptr_eq(other, connection)) {
            parked.push(connection.clone());
        }
        drop(parked);
        // Room made between the look and the parking would wake nobody.
        self.has_room()
    }

    fn parked(&self) -> MutexGuard<'_, Vec<Arc<Notify>>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All queues by name.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) memory: Arc<Memory>,
    auto_create: bool,
    queues: Mutex<BTreeMap<String, Arc<Queue>>>,
}

impl Store {
    pub(super) fn new(memory: u64, auto_create: bool) -> Self {
        Self { memory: Arc::new(Memory::new(memory)), auto_create, queues: Mutex::default() }
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Queue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue, created if that is allowed.
    pub(super) fn open(&self, name: &str) -> Option<Arc<Queue>> {
        match self.auto_create {
            true => Some(self.declare(name)),
            false => self.get(name),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<Queue>> {
        self.queues().get(name).cloned()
    }

    pub(super) fn declare(&self, name: &str) -> Arc<Queue> {
        let mut queues = self.queues();
        if let Some(queue) = queues.get(name) {
            return queue.clone();
        }
        let queue = Arc::new(Queue::new(name, self.memory.clone()));
        queues.insert(name.to_owned(), queue.clone());
        queue
    }

    pub(super) fn all(&self) -> Vec<Arc<Queue>> {
        self.queues().values().cloned().collect()
    }
}
