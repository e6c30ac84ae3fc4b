//! What travels back: the promise to the source about some deliveries.
//!
//! Ownership is the acknowledgement. A receipt is consumed by [`accept`](Receipt::accept) or [`reject`](Receipt::reject);
//! one that is dropped (a panic, a stopped stage, a forgotten branch) says *released*, and that ends the generation
//! (protocol R6). A delivery is resolved when all its shares are, and the worst share wins.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use arrow::array::RecordBatch;

use super::Delivery;
use super::mutation::{Rule, removed};

/// What became of a delivery; of several shares the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Its rows are committed.
    Accepted,
    /// It is in the dead letter, and that is committed. The broker hears *accepted*.
    Rejected,
    /// Nobody vouches for it: the broker must keep it.
    Released,
}

/// Resolved deliveries of one receipt group, with the same outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Which.
    pub deliveries: Vec<Delivery>,
    /// What became of them.
    pub outcome: Outcome,
}

/// Where outcomes go: to the receiver of the generation. Called from whatever thread resolves the last share; must not block.
pub type Outcomes = Arc<dyn Fn(Resolved) + Send + Sync>;

struct Group {
    deliveries: Box<[Delivery]>,
    /// The messages as they were received, for the dead letter.
    origin: RecordBatch,
    open: Box<[AtomicU32]>,
    worst: Box<[AtomicU8]>,
    outcomes: Outcomes,
}

/// A share of a promise about some deliveries.
#[must_use = "a dropped receipt releases its deliveries and ends the generation"]
pub struct Receipt {
    group: Arc<Group>,
    /// Indices into the group; `None`: all of them. (The common case costs no memory.)
    rows: Option<Vec<u32>>,
    resolved: bool,
}

impl Receipt {
    /// The one promise about `deliveries`, whose messages are the rows of `origin`.
    pub fn new(deliveries: Vec<Delivery>, origin: RecordBatch, outcomes: Outcomes) -> Self {
        assert_eq!(deliveries.len(), origin.num_rows(), "one message per delivery");
        let open = deliveries.iter().map(|_| AtomicU32::new(1)).collect();
        let worst = deliveries.iter().map(|_| AtomicU8::new(Outcome::Accepted as u8)).collect();
        let group = Group { deliveries: deliveries.into(), origin, open, worst, outcomes };
        Self { group: Arc::new(group), rows: None, resolved: false }
    }

    fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        let all = self.rows.is_none().then(|| 0..u32::try_from(self.group.deliveries.len()).expect("fewer than 2^32"));
        all.into_iter().flatten().chain(self.rows.iter().flatten().copied())
    }

    /// How many deliveries it is about.
    pub fn len(&self) -> usize {
        self.rows.as_ref().map_or(self.group.deliveries.len(), Vec::len)
    }

    /// Whether it is about none (all were split off).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The deliveries it is about. Their positions are what [`Rows::origin`](super::Rows::origin) of the batch counts
    /// only as long as nothing was split off; `split` takes group indices, which never change.
    pub fn deliveries(&self) -> impl Iterator<Item = &Delivery> + '_ {
        self.indices().map(|row| &self.group.deliveries[row as usize])
    }

    /// The delivery that a row's `origin` names.
    pub fn delivery(&self, origin: u32) -> &Delivery {
        &self.group.deliveries[origin as usize]
    }

    /// The messages as received; row `origin` is the message of delivery `origin`.
    pub fn messages(&self) -> &RecordBatch {
        &self.group.origin
    }

    /// The group indices of its deliveries, in order.
    pub fn origins(&self) -> Vec<u32> {
        self.indices().collect()
    }

    /// Another share of the same promise, for another branch: every share must be accepted.
    pub fn share(&self) -> Self {
        for row in self.indices() {
            self.group.open[row as usize].fetch_add(1, Ordering::Relaxed);
        }
        Self { group: self.group.clone(), rows: self.rows.clone(), resolved: false }
    }

    /// Takes some deliveries out into a receipt of their own. `origins` are as in [`Rows::origin`](super::Rows::origin);
    /// those that this share is not about are passed over.
    pub fn split(&mut self, origins: &[u32]) -> Self {
        let mut leaving: Vec<u32> = origins.to_vec();
        leaving.sort_unstable();
        leaving.dedup();
        let (out, stay) = self.indices().partition(|row| leaving.binary_search(row).is_ok());
        self.rows = Some(stay);
        Self { group: self.group.clone(), rows: Some(out), resolved: false }
    }

    /// Its rows are committed.
    pub fn accept(mut self) {
        self.resolve(Outcome::Accepted);
    }

    /// Its messages are in the dead letter, committed.
    pub fn reject(mut self) {
        self.resolve(Outcome::Rejected);
    }

    fn resolve(&mut self, outcome: Outcome) {
        self.resolved = true;
        let mut done: [Vec<Delivery>; 3] = Default::default();
        for row in self.indices() {
            let row = row as usize;
            self.group.worst[row].fetch_max(outcome as u8, Ordering::AcqRel);
            if self.group.open[row].fetch_sub(1, Ordering::AcqRel) == 1 {
                done[usize::from(self.group.worst[row].load(Ordering::Acquire))].push(self.group.deliveries[row]);
            }
        }
        for (deliveries, outcome) in done.into_iter().zip([Outcome::Accepted, Outcome::Rejected, Outcome::Released]) {
            if !deliveries.is_empty() {
                (self.group.outcomes)(Resolved { deliveries, outcome });
            }
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if !self.resolved && !self.is_empty() {
            self.resolve(if removed(Rule::DropReleases) { Outcome::Accepted } else { Outcome::Released });
        }
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receipt({} of {})", self.len(), self.group.deliveries.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use arrow::array::{Int32Array, RecordBatchOptions};
    use arrow::datatypes::{DataType, Field, Schema};
    use proptest::prelude::*;

    use super::*;
    use crate::flow::{DeliveryId, Identity};

    type Log = Arc<Mutex<Vec<(u64, Outcome)>>>;

    fn receipt(n: u64) -> (Receipt, Log) {
        let log = Log::default();
        let seen = log.clone();
        let outcomes: Outcomes = Arc::new(move |resolved: Resolved| {
            let mut log = seen.lock().expect("log");
            log.extend(resolved.deliveries.iter().map(|d| (d.id.0, resolved.outcome)));
        });
        let deliveries: Vec<_> = (0..n)
            .map(|i| Delivery {
                id: DeliveryId(i),
                identity: Identity::of(&i.to_be_bytes(), b""),
                bytes: 1,
                anonymous: false,
            })
            .collect();
        let schema = Arc::new(Schema::new(vec![Field::new("value", DataType::Int32, false)]));
        let column = Arc::new((0..i32::try_from(n).expect("small")).collect::<Int32Array>());
        let origin =
            RecordBatch::try_new_with_options(schema, vec![column], &RecordBatchOptions::new()).expect("batch");
        (Receipt::new(deliveries, origin, outcomes), log)
    }

    fn sorted(log: &Log) -> Vec<(u64, Outcome)> {
        let mut log = log.lock().expect("log").clone();
        log.sort();
        log
    }

    #[test]
    fn a_dropped_receipt_releases() {
        let (receipt, log) = receipt(2);
        drop(receipt);
        assert_eq!(sorted(&log), [(0, Outcome::Released), (1, Outcome::Released)]);
    }

    #[test]
    fn every_share_must_be_accepted_and_the_worst_wins() {
        let (a, log) = receipt(1);
        let b = a.share();
        let c = a.share();
        a.accept();
        c.accept();
        assert_eq!(sorted(&log), []);
        b.reject();
        assert_eq!(sorted(&log), [(0, Outcome::Rejected)]);
    }

    #[test]
    fn an_emptied_receipt_says_nothing() {
        let (mut all, log) = receipt(2);
        let out = all.split(&[0, 1, 1]);
        assert!(all.is_empty());
        drop(all);
        assert_eq!(sorted(&log), []);
        assert_eq!(out.len(), 2);
        out.accept();
        assert_eq!(sorted(&log), [(0, Outcome::Accepted), (1, Outcome::Accepted)]);
    }

    proptest! {
        /// Whatever is shared, split, accepted, rejected and dropped, in whatever order: each delivery is resolved once,
        /// by the worst of its shares (I2).
        #[test]
        fn each_delivery_is_resolved_once_by_its_worst_share(steps in proptest::collection::vec((0usize..8, 0u8..5, any::<u8>()), 0..40)) {
            const N: u64 = 6;
            let (first, log) = receipt(N);
            let mut live = vec![first];
            let mut worst = [Outcome::Accepted; N as usize];
            let mut note = |receipt: &Receipt, outcome: Outcome| {
                for d in receipt.deliveries() {
                    let slot = &mut worst[usize::try_from(d.id.0).expect("small")];
                    *slot = (*slot).max(outcome);
                }
            };
            for (at, what, bits) in steps {
                if live.is_empty() { break; }
                let at = at % live.len();
                match what {
                    0 => { let share = live[at].share(); live.push(share); }
                    1 => {
                        let rows: Vec<u32> = (0..6).filter(|bit| bits & (1 << bit) != 0).collect();
                        let out = live[at].split(&rows);
                        live.push(out);
                    }
                    2 => { let r = live.swap_remove(at); note(&r, Outcome::Accepted); r.accept(); }
                    3 => { let r = live.swap_remove(at); note(&r, Outcome::Rejected); r.reject(); }
                    _ => { let r = live.swap_remove(at); note(&r, Outcome::Released); drop(r); }
                }
            }
            for r in live { note(&r, Outcome::Released); drop(r); }
            let want: Vec<_> = (0..N).zip(worst).collect();
            prop_assert_eq!(sorted(&log), want);
        }
    }
}
