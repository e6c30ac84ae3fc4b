//! `max_messages`: how many deliveries a receiver may still take, over all its partitions.
//!
//! Credit is reserved before it is granted, so no more is ever committed than was asked for; what a generation reserved and
//! did not commit comes back when it ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// The bound of one receiver in one run. Clones share it.
#[derive(Clone)]
pub(super) struct Quota(Option<Arc<State>>);

struct State {
    max: u64,
    reserved: Mutex<u64>,
    done: AtomicU64,
    /// Wakes intakes that found nothing left.
    freed: Notify,
}

impl Quota {
    /// `None`: without bound.
    pub fn new(max: Option<u64>) -> Self {
        Self(max.map(|max| Arc::new(State { max, reserved: 0.into(), done: 0.into(), freed: Notify::new() })))
    }

    /// What one generation of one partition has of it.
    pub fn allotment(&self) -> Allotment {
        Allotment { quota: self.clone(), held: 0, granted: 0 }
    }

    /// Whether everything asked for is committed or dead-lettered.
    pub fn is_done(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.done.load(Ordering::Relaxed) >= state.max)
    }

    /// Whether there is a bound that has not been reached.
    pub fn is_missing(&self) -> bool {
        self.0.is_some() && !self.is_done()
    }

    /// Waits until something comes back; for ever if nothing can.
    pub async fn freed(&self) {
        match &self.0 {
            Some(state) => state.freed.notified().await,
            None => std::future::pending().await,
        }
    }
}

/// A generation's part of a [`Quota`].
pub(super) struct Allotment {
    quota: Quota,
    /// Reserved in all: granted as credit, or in flight.
    held: u64,
    /// Of that, granted as credit and not received.
    granted: u64,
}

impl Allotment {
    /// How much credit there may be, at most `wanted`; reserves what is missing.
    pub fn grant(&mut self, wanted: usize) -> usize {
        let Some(state) = &self.quota.0 else { return wanted };
        let more = (wanted as u64).saturating_sub(self.granted);
        let mut reserved = state.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let more = more.min(state.max - *reserved);
        *reserved += more;
        self.held += more;
        self.granted += more;
        usize::try_from(self.granted).unwrap_or(usize::MAX).min(wanted)
    }

    /// So many have arrived on the credit.
    pub fn received(&mut self, n: u64) {
        self.granted = self.granted.saturating_sub(n);
    }

    /// So many that arrived do not count: duplicates, or held.
    pub fn give_back(&mut self, n: u64) {
        let Some(state) = &self.quota.0 else { return };
        let n = n.min(self.held);
        self.held -= n;
        *state.reserved.lock().unwrap_or_else(PoisonError::into_inner) -= n;
        state.freed.notify_waiters();
    }

    /// Reserves one for a held delivery that is taken up after all.
    pub fn reserve_one(&mut self) -> bool {
        let Some(state) = &self.quota.0 else { return true };
        let mut reserved = state.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let free = *reserved < state.max;
        if free {
            *reserved += 1;
            self.held += 1;
        }
        free
    }

    /// So many are committed or dead-lettered, and settled: they are used up.
    pub fn done(&mut self, n: u64) {
        if let Some(state) = &self.quota.0 {
            self.held = self.held.saturating_sub(n);
            state.done.fetch_add(n, Ordering::Relaxed);
        }
    }
}

impl Drop for Allotment {
    fn drop(&mut self) {
        self.give_back(self.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_asked_for_over_all_partitions() {
        let quota = Quota::new(Some(10));
        let (mut a, mut b) = (quota.allotment(), quota.allotment());
        assert_eq!((a.grant(6), b.grant(6)), (6, 4));
        a.received(6);
        assert_eq!(a.grant(6), 0);
        a.give_back(2);
        assert_eq!(b.grant(6), 6, "what a gave back");
        a.done(4);
        drop(b);
        assert_eq!(a.grant(100), 6, "what b had");
        assert!(quota.is_missing());
        a.received(6);
        a.done(6);
        assert!(quota.is_done());
    }

    #[test]
    fn without_a_bound_everything_is_granted() {
        let quota = Quota::new(None);
        let mut a = quota.allotment();
        assert_eq!((a.grant(7), a.reserve_one(), quota.is_missing()), (7, true, false));
    }
}
