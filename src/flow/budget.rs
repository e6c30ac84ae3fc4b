//! How many deliveries and bytes of one partition may be unsettled: the one bound of everything in flight.
//!
//! Mailboxes need no capacity because nothing enters the tree without a permit, and a permit comes back only when its
//! delivery is settled (invariant I4).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What an intake may still take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Deliveries, at least 1.
    pub deliveries: usize,
    /// Bytes, at least 1. What the granted credit brings beyond it is taken all the same.
    pub bytes: usize,
}

/// The bound of one partition. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<State>);

#[derive(Debug)]
struct State {
    max_deliveries: u64,
    max_bytes: u64,
    deliveries: AtomicU64,
    bytes: AtomicU64,
}

impl Budget {
    /// At most this many unsettled deliveries and bytes.
    pub fn new(max_deliveries: u64, max_bytes: u64) -> Self {
        Self(Arc::new(State { max_deliveries, max_bytes, deliveries: 0.into(), bytes: 0.into() }))
    }

    /// What is left, or `None`. A message larger than the whole byte budget is taken when nothing else is in flight.
    pub fn room(&self) -> Option<Room> {
        let deliveries = self.deliveries_left();
        let bytes = self.0.max_bytes.saturating_sub(self.unsettled_bytes());
        (deliveries > 0 && bytes > 0).then(|| Room {
            deliveries: usize::try_from(deliveries).unwrap_or(usize::MAX),
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
        })
    }

    /// How many deliveries may still be taken.
    pub fn deliveries_left(&self) -> u64 {
        self.0.max_deliveries.saturating_sub(self.unsettled())
    }

    /// Takes what has arrived. The caller has asked [`room`](Self::room) first.
    pub fn take(&self, deliveries: u64, bytes: u64) {
        self.0.deliveries.fetch_add(deliveries, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives back what is settled, or was not to be sent on.
    pub fn give_back(&self, deliveries: u64, bytes: u64) {
        self.0.deliveries.fetch_sub(deliveries, Ordering::Relaxed);
        self.0.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Unsettled deliveries.
    pub fn unsettled(&self) -> u64 {
        self.0.deliveries.load(Ordering::Relaxed)
    }

    /// Their bytes.
    pub fn unsettled_bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Whether so many deliveries are half of it.
    pub fn is_half(&self, deliveries: u64) -> bool {
        deliveries * 2 >= self.0.max_deliveries
    }

    /// Whether half of it is used: time for a checkpoint, so that intake goes on during prepare and commit.
    pub fn half_used(&self) -> bool {
        self.is_half(self.unsettled()) || self.unsettled_bytes() * 2 >= self.0.max_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_room_again() {
        let budget = Budget::new(2, 100);
        assert_eq!(budget.room(), Some(Room { deliveries: 2, bytes: 100 }));
        budget.take(1, 30);
        assert!(budget.half_used());
        budget.take(1, 30);
        assert_eq!(budget.room(), None, "no delivery left");
        budget.give_back(1, 30);
        assert_eq!(budget.room(), Some(Room { deliveries: 1, bytes: 70 }));
        budget.give_back(1, 30);
        assert_eq!((budget.unsettled(), budget.unsettled_bytes()), (0, 0));
    }

    #[test]
    fn a_message_larger_than_the_budget_is_taken_alone() {
        let budget = Budget::new(10, 100);
        budget.take(1, 1000);
        assert_eq!(budget.room(), None);
        budget.give_back(1, 1000);
        assert!(budget.room().is_some());
    }
}
