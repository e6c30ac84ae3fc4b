//! What a run shows while it runs: on a terminal one live line per receiver, elsewhere a log line every ten seconds.
//!
//! The cursor always rests above the live lines, so a log line clears them first and they are drawn again below it.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;
use crate::flow::StageName;
use crate::telemetry::{Tally, Telemetry, log};

/// Whether live lines are below the cursor.
static LIVE: AtomicBool = AtomicBool::new(false);

/// Sets the log up so that it gets along with the live lines.
pub(super) fn init_log(filter: &log::Filter, format: log::Format) {
    log::init(filter, format, || AboveLive);
}

/// Standard error; clears the live lines before it writes.
struct AboveLive;

impl Write for AboveLive {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        if LIVE.swap(false, Ordering::Relaxed) {
            stderr.write_all(CLEAR)?;
        }
        stderr.write_all(buffer)?;
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Erases from the cursor to the end of the screen.
const CLEAR: &[u8] = b"\x1b[J";

/// Shows the progress of a run until dropped.
pub(super) struct Progress {
    telemetry: Telemetry,
    started: Instant,
    last: Instant,
    committed: std::collections::BTreeMap<StageName, u64>,
    live: bool,
}

impl Progress {
    pub fn new(telemetry: Telemetry) -> Self {
        let now = clock::now();
        let live = io::stderr().is_terminal();
        Self { telemetry, started: now, last: now, committed: Default::default(), live }
    }

    /// How often [`show`](Self::show) is to be called.
    pub fn period(&self) -> Duration {
        if self.live { Duration::from_millis(500) } else { Duration::from_secs(10) }
    }

    /// Shows where the run is.
    pub fn show(&mut self) {
        let now = clock::now();
        let seconds = now.saturating_duration_since(self.last).as_secs_f64();
        self.last = now;
        let mut lines = String::new();
        let tallies = self.telemetry.tallies();
        let count = tallies.len();
        for (receiver, tally) in tallies {
            let before = self.committed.insert(receiver.clone(), tally.committed).unwrap_or_default();
            let rate = if seconds > 0.0 { (tally.committed - before) as f64 / seconds } else { 0.0 };
            if self.live {
                lines.push_str(&live_line(&receiver, &tally, rate));
                lines.push('\n');
            } else {
                tracing::info!(
                    %receiver,
                    received = tally.received,
                    committed = tally.committed,
                    rate = rate.round(),
                    unsettled = tally.unsettled,
                    last_checkpoint = age(&tally),
                    "progress"
                );
            }
        }
        if self.live && count > 0 {
            let mut stderr = io::stderr().lock();
            // A terminal that does not take the progress is no reason to stop the run.
            let _ = stderr.write_all(CLEAR);
            let _ = write!(stderr, "{lines}\x1b[{count}A\r");
            let _ = stderr.flush();
            LIVE.store(true, Ordering::Relaxed);
        }
    }

    /// How long it has been running.
    pub fn elapsed(&self) -> Duration {
        clock::now().saturating_duration_since(self.started)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if LIVE.swap(false, Ordering::Relaxed) {
            let _ = io::stderr().lock().write_all(CLEAR);
        }
    }
}

fn live_line(receiver: &StageName, tally: &Tally, rate: f64) -> String {
    format!(
        "{receiver}: received {}, committed {}, {rate:.0}/s, unsettled {}, last checkpoint {}",
        tally.received,
        tally.committed,
        tally.unsettled,
        age(tally)
    )
}

fn age(tally: &Tally) -> String {
    tally.checkpoint_age.map_or_else(|| "none yet".to_owned(), |age| format!("{:.0} s ago", age.as_secs_f64()))
}
