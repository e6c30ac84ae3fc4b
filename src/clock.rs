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
    let start = *START.get_or_init(|| now);
    Tick(u64::try_from(now.saturating_duration_since(start).as_millis()).unwrap_or(u64::MAX))
}

/// Milliseconds since the Unix epoch, UTC.
#[allow(clippy::disallowed_methods)]
pub fn wall_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
