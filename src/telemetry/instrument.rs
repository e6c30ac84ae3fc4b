//! The instruments that the stages hold: each shows its number to the exporter and can be read back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;

use crate::clock;
use crate::flow::{Reason, Tick};

/// A number that only rises. Clones count together.
#[derive(Clone)]
pub struct Counter {
    shown: metrics::Counter,
    total: Arc<AtomicU64>,
}

impl Counter {
    pub(super) fn new(shown: metrics::Counter) -> Self {
        Self { shown, total: Arc::default() }
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.total.fetch_add(n, Ordering::Relaxed);
        self.shown.increment(n);
    }

    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

/// A number that rises and falls. Clones show the same one.
#[derive(Clone)]
pub struct Gauge {
    shown: metrics::Gauge,
    value: Arc<AtomicU64>,
}

impl Gauge {
    pub(super) fn new(shown: metrics::Gauge) -> Self {
        Self { shown, value: Arc::default() }
    }

    /// From now on it is `n`.
    pub fn set(&self, n: u64) {
        self.value.store(n, Ordering::Relaxed);
        // Counts of messages and bytes are far below 2^53, where a float would begin to round.
        self.shown.set(n as f64);
    }

    /// What it is.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// How long ago something was, worked out anew each time it is looked at: it ages while nobody sets it, which is when it
/// matters most. Clones show the same one.
#[derive(Clone)]
pub struct Age {
    shown: metrics::Gauge,
    /// The tick plus 1, or 0: no age.
    since: Arc<AtomicU64>,
}

impl Age {
    pub(super) fn new(shown: metrics::Gauge) -> Self {
        Self { shown, since: Arc::default() }
    }

    /// It was at `tick`.
    pub fn since(&self, tick: Tick) {
        self.since.store(tick.0.saturating_add(1), Ordering::Relaxed);
    }

    /// There is nothing that ages: 0.
    pub fn clear(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// How long ago it is; `None`: nothing ages.
    pub fn get(&self) -> Option<Duration> {
        let since = self.since.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(clock::tick().0.saturating_sub(since)))
    }

    /// Tells the exporter how old it is by now.
    pub(super) fn show(&self) {
        self.shown.set(self.get().unwrap_or_default().as_secs_f64());
    }
}

/// Observations of a duration. Clones observe together.
#[derive(Clone)]
pub struct Histogram {
    shown: metrics::Histogram,
    upkeep: Arc<Upkeep>,
}

impl Histogram {
    pub(super) fn new(shown: metrics::Histogram, upkeep: Arc<Upkeep>) -> Self {
        Self { shown, upkeep }
    }

    /// One observation.
    pub fn observe(&self, duration: Duration) {
        self.observe_many(duration, 1);
    }

    /// `n` observations of the same.
    pub fn observe_many(&self, duration: Duration, n: usize) {
        self.shown.record_many(duration.as_secs_f64(), n);
        self.upkeep.noted(n);
    }
}

/// The exporter keeps single observations until it is asked to sort them into buckets. Where nobody scrapes, nobody asks,
/// so it is asked every so many observations.
pub(super) struct Upkeep {
    handle: PrometheusHandle,
    waiting: AtomicU64,
}

impl Upkeep {
    const EVERY: u64 = 1 << 16;

    pub fn new(handle: PrometheusHandle) -> Self {
        Self { handle, waiting: AtomicU64::new(0) }
    }

    fn noted(&self, n: usize) {
        let waiting = self.waiting.fetch_add(n as u64, Ordering::Relaxed) + n as u64;
        if waiting >= Self::EVERY {
            self.waiting.store(0, Ordering::Relaxed);
            self.handle.run_upkeep();
        }
    }
}

/// Rejected messages, by reason.
#[derive(Clone)]
pub struct Rejections([Counter; Reason::ALL.len()]);

impl Rejections {
    pub(super) fn new(counter: impl FnMut(Reason) -> Counter) -> Self {
        Self(Reason::ALL.map(counter))
    }

    /// `n` messages were rejected for `reason`.
    pub fn add(&self, reason: Reason, n: u64) {
        self.of(reason).add(n);
    }

    /// How many for `reason`.
    pub fn get(&self, reason: Reason) -> u64 {
        self.of(reason).get()
    }

    /// How many in all.
    pub fn total(&self) -> u64 {
        self.0.iter().map(Counter::get).sum()
    }

    fn of(&self, reason: Reason) -> &Counter {
        let at = Reason::ALL.iter().position(|&known| known == reason).expect("Reason::ALL has every reason");
        &self.0[at]
    }
}
