//! The moments of a checkpoint, as far as they can be seen from outside, to strike at.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use super::run::{Lab, files_below, now, until};

/// What a blow hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Nothing,
    BeforePrepare,
    BeforeEntry,
    BetweenEntryAndCommit,
    BetweenCommitAndSettle,
}

/// The phases with work in hand.
pub const PHASES: [Phase; 4] =
    [Phase::BeforePrepare, Phase::BetweenEntryAndCommit, Phase::BetweenCommitAndSettle, Phase::BeforeEntry];

/// A number from the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Files that sinks have written and not, or not necessarily, shown.
pub fn prepared(lab: &Lab) -> BTreeSet<PathBuf> {
    let mut files = files_below(&lab.path("lake"));
    files.retain(|path| path.extension().is_some_and(|e| e == "parquet"));
    files.into_iter().chain(files_below(&lab.path("files/_distributary/staged"))).collect()
}

/// Waits until work is in hand and what begins the wanted phase was seen, or a random moment for those that nothing
/// begins. `None`: it was `over` before.
pub fn moment(
    lab: &Lab,
    wanted: Phase,
    rng: &mut SmallRng,
    unsettled: impl Fn() -> usize,
    mut over: impl FnMut() -> bool,
) -> Option<()> {
    until(Duration::from_secs(60), "work in hand", || {
        let over = over();
        (over || unsettled() > 0).then_some(!over)
    })
    .then_some(())?;
    let count = |folder: &str, ending: &str| {
        files_below(&lab.path(folder)).iter().filter(|p| p.to_string_lossy().ends_with(ending)).count()
    };
    let look: Option<Box<dyn Fn() -> usize>> = match wanted {
        Phase::BeforeEntry => Some(Box::new(|| prepared(lab).len())),
        Phase::BetweenEntryAndCommit => {
            Some(Box::new(|| files_below(&lab.path("state/entry")).len().max(1) + newest_entry(lab)))
        }
        Phase::BetweenCommitAndSettle => Some(Box::new(|| count("lake/_delta_log", ".json") + marks_changed(lab))),
        Phase::Nothing | Phase::BeforePrepare => None,
    };
    let before = look.as_ref().map(|look| look());
    let started = now();
    let delay = Duration::from_millis(rng.random_range(50..600));
    until(delay + Duration::from_secs(15), &format!("a moment of {wanted:?}"), || {
        let come = look.as_ref().map_or_else(|| started.elapsed() >= delay, |look| Some(look()) != before);
        (come && unsettled() > 0).then_some(true).or_else(|| over().then_some(false))
    })
    .then_some(())
}

fn newest_entry(lab: &Lab) -> usize {
    let names = files_below(&lab.path("state/entry")).into_iter();
    names.filter_map(|path| path.file_name()?.to_str()?.parse::<usize>().ok()).max().unwrap_or_default()
}

fn marks_changed(lab: &Lab) -> usize {
    let marks = files_below(&lab.path("files/_distributary/marks")).into_iter();
    marks
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .map(|text| text.bytes().map(usize::from).sum::<usize>())
        .sum()
}
