//! The moments of a checkpoint, as far as they can be seen from outside, to strike at.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use distributary::checkpoint::{CheckpointStore, Entry, LocalStore};
use distributary::flow::{Prepared, StageName};
use rand::Rng;
use rand::rngs::SmallRng;

use super::run::{Lab, files_below, now, until};
use super::table;

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

/// The log from this entry on.
pub fn entries(lab: &Lab, first: u64) -> Vec<Entry> {
    let store = LocalStore::read_only(lab.path("state"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut entries = Vec::new();
        for number in store.list().await.unwrap_or_default().into_iter().filter(|number| *number >= first) {
            entries.extend(store.read(number).await.expect("an entry"));
        }
        entries
    })
}

/// Partition, sink, epoch, and what was prepared.
pub fn parts(entries: &[Entry]) -> impl Iterator<Item = (u32, &StageName, u64, &Prepared)> {
    let parts = entries.iter().flat_map(|entry| &entry.parts);
    parts
        .flat_map(|part| part.sinks.iter().map(|(sink, prepared)| (part.partition.index, sink, part.epoch.0, prepared)))
}

/// Whether these entries name an epoch that a sink does not show.
pub fn is_behind(lab: &Lab, entries: &[Entry]) -> bool {
    let shown = shown(lab);
    parts(entries).any(|(partition, sink, epoch, _)| {
        shown.get(&(partition, sink.to_string())).copied().unwrap_or_default() < epoch
    })
}

/// The epoch that each sink shows, by partition and sink.
fn shown(lab: &Lab) -> BTreeMap<(u32, String), u64> {
    let mut shown = BTreeMap::new();
    let mut add = |app: &str, epoch: u64| {
        let parts: Vec<_> = app.split('/').collect();
        if let [_, _, sink, _, partition] = parts[..] {
            shown.insert((partition.parse().expect("a number"), sink.to_owned()), epoch);
        }
    };
    for (app, epoch) in table::delta_txns(&lab.path("lake")) {
        add(&app, epoch);
    }
    for folder in ["files", "rejected"] {
        for mark in files_below(&lab.path(folder).join("_distributary/marks")) {
            // A draft that was left behind shows nothing.
            if mark.extension().is_some_and(|extension| extension == "tmp") {
                continue;
            }
            let text = std::fs::read(&mark).unwrap_or_default();
            let mark: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
            if let (Some(app), Some(epoch)) = (mark["app_id"].as_str(), mark["epoch"].as_u64()) {
                add(app, epoch);
            }
        }
    }
    shown
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
    let first = newest_entry(lab);
    let look: Option<Box<dyn Fn() -> usize>> = match wanted {
        Phase::BeforeEntry => Some(Box::new(|| prepared(lab).len())),
        Phase::BetweenEntryAndCommit => Some(Box::new(|| newest_entry(lab))),
        Phase::BetweenCommitAndSettle => Some(Box::new(move || {
            let newest = newest_entry(lab);
            usize::from(newest > first && !is_behind(lab, &entries(lab, newest as u64)))
        })),
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

/// Drafts have no number yet.
fn newest_entry(lab: &Lab) -> usize {
    let names = files_below(&lab.path("state/entry")).into_iter();
    names.filter_map(|path| path.file_name()?.to_str()?.parse::<usize>().ok()).max().unwrap_or_default()
}
