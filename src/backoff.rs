//! How long to wait before the next attempt.
//!
//! Delays double from `min` to `max`. Each is drawn from the upper half of its step, so that many partitions that lost
//! the same broker do not come back in the same millisecond, and none comes back sooner than `min` or later than `max`.
//! Pure: it waits for nothing and reads no clock; the same seed gives the same delays.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The delays of one thing that is tried again and again.
#[derive(Clone, Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    /// The longest the next delay may be; the shortest is half of it.
    step: Duration,
    rng: StdRng,
}

impl Backoff {
    /// Delays from `min` to `max`. A `max` below `min` counts as `min`.
    pub fn new(min: Duration, max: Duration, seed: u64) -> Self {
        let max = max.max(min);
        Self { min, max, step: first_step(min, max), rng: StdRng::seed_from_u64(seed) }
    }

    /// The same, but no delay is longer than this.
    pub fn at_most(mut self, longest: Duration) -> Self {
        (self.min, self.max) = (self.min.min(longest), self.max.min(longest));
        self.reset();
        self
    }

    /// How long to wait now.
    #[expect(clippy::should_implement_trait, reason = "it never ends, so an Option would have to be unwrapped")]
    pub fn next(&mut self) -> Duration {
        let step = self.step;
        self.step = step.saturating_mul(2).min(self.max);
        self.rng.random_range((step / 2).max(self.min)..=step)
    }

    /// It worked: the next delay is a short one again.
    pub fn reset(&mut self) {
        self.step = first_step(self.min, self.max);
    }
}

fn first_step(min: Duration, max: Duration) -> Duration {
    min.saturating_mul(2).min(max)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn delays_double_and_reset() {
        let mut backoff = Backoff::new(200 * MS, 30_000 * MS, 7);
        for (low, high) in [(200, 400), (400, 800), (800, 1_600), (1_600, 3_200)] {
            let delay = backoff.next();
            assert!(low * MS <= delay && delay <= high * MS, "{delay:?} is not from {low} to {high} ms");
        }
        backoff.reset();
        assert!(backoff.next() <= 400 * MS);
    }

    #[test]
    fn at_most_bounds_every_delay() {
        let mut backoff = Backoff::new(200 * MS, 30_000 * MS, 7).at_most(1_000 * MS);
        assert!((0..20).all(|_| backoff.next() <= 1_000 * MS));
        let mut backoff = Backoff::new(5_000 * MS, 30_000 * MS, 7).at_most(1_000 * MS);
        assert_eq!(backoff.next(), 1_000 * MS);
    }

    #[test]
    fn seeds_spread_and_repeat() {
        let delays = |seed| {
            let mut backoff = Backoff::new(200 * MS, 30_000 * MS, seed);
            [backoff.next(), backoff.next(), backoff.next()]
        };
        assert_eq!(delays(1), delays(1));
        assert_ne!(delays(1), delays(2));
    }

    proptest! {
        #[test]
        fn never_below_min_nor_above_max(min in 0u64..=u64::MAX, max in 0u64..=u64::MAX, seed: u64) {
            let (min, max) = (Duration::from_millis(min), Duration::from_millis(max));
            let mut backoff = Backoff::new(min, max, seed);
            for _ in 0..80 {
                let delay = backoff.next();
                prop_assert!(min <= delay && delay <= max.max(min));
            }
        }
    }
}
