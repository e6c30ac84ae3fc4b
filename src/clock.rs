//! The one place that reads a clock. Everything else is given the time, or asks here, so that tests can stand it still.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::flow::Tick;

static START: OnceLock<Instant> = OnceLock::new();

/// Monotonic time; under tokio's paused clock it stands still with it.
#[allow(clippy::disallowed_methods)]
pub fn now() -> Instant {
    Instant::now()
}

/// Milliseconds of [`now`] since the first call of this function.
pub fn tick() -> Tick {
    let now = now();
    #[cfg(test)]
    let start = virtually::started().unwrap_or_else(|| *START.get_or_init(|| now));
    #[cfg(not(test))]
    let start = *START.get_or_init(|| now);
    Tick(u64::try_from(now.saturating_duration_since(start).as_millis()).unwrap_or(u64::MAX))
}

/// Milliseconds since the Unix epoch, UTC.
#[allow(clippy::disallowed_methods)]
pub fn wall_millis() -> i64 {
    #[cfg(test)]
    if virtually::started().is_some() {
        return virtually::EPOCH + i64::try_from(tick().0).unwrap_or(i64::MAX);
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Time that starts when a test says so, on its thread: ticks from 0, and a wall clock that goes with them, so that the
/// same test sees the same times.
#[cfg(test)]
pub mod virtually {
    use std::cell::Cell;

    use tokio::time::Instant;

    thread_local! {
        static STARTED: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// The wall clock at tick 0: the year 2033.
    pub const EPOCH: i64 = 2_000_000_000_000;

    /// Starts it at the current time of this thread's runtime.
    pub fn start() {
        STARTED.set(Some(super::now()));
    }

    /// Back to the real clocks.
    pub fn end() {
        STARTED.set(None);
    }

    pub(super) fn started() -> Option<Instant> {
        STARTED.get()
    }
}
