//! `kill -9` at random moments with work in hand, and SIGTERM: each message is in each sink once.
//!
//! The broker lives in the test, so that it says what was unsettled when the process died. What a kill hit is worked out
//! afterwards from what is on disk:
//!
//! | phase | what is there |
//! |---|---|
//! | before prepare | unsettled messages |
//! | before the entry | files of the sinks that no entry names |
//! | between entry and commit | an entry with an epoch that a sink does not show |
//! | between commit and settle | everything in the log is shown, and some of it is not accepted |
//!
//! The short form runs always; `DISTRIBUTARY_KILLS=20 DISTRIBUTARY_MESSAGES=200000` is the long one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use distributary::broker::{Broker, BrokerConfig, Feed};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::moment::{PHASES, Phase, entries, is_behind, moment, parts, prepared, setting};
use super::run::{Lab, Process, now, until};
use super::table;

/// Which sinks a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sinks {
    Delta,
    Parquet,
    Both,
}

fn topology(lab: &Lab, broker: &Broker, sinks: Sinks, messages: u64) {
    let delta = "  lake: { from: parsed, type: delta, table: lake, partition_by: [sent_dt] }\n";
    let parquet = "  files: { from: parsed, type: parquet, path: files, partition_by: [sent_dt] }\n";
    let sinks = match sinks {
        Sinks::Delta => delta.to_owned(),
        Sinks::Parquet => parquet.to_owned(),
        Sinks::Both => format!("{delta}{parquet}"),
    };
    lab.write(
        "topology.yaml",
        &format!(
            "topology: kills
receivers:
  animals: {{ type: amqp, url: \"{}\", queue: animals, partitions: 4, max_messages: {messages}, max_unsettled: 2000 }}
translators:
  parsed:
    from: animals
    type: csv
    columns: {{ generator_id: utf8, row_num: int64, animal: utf8, color: utf8, count: int32, datetime: timestamp }}
    derive: {{ sent_dt: to_date(sent) }}
batchers: {{}}
sinks:
{sinks}dead_letter: {{ type: parquet, path: rejected }}
checkpoint: {{ interval: 300ms, store: state }}
",
            broker.url()
        )
        .replace("batchers: {}\n", ""),
    );
}

/// What the log, the sinks and the broker say after a death.
/// `old`: what the dead of before had left.
fn phase(lab: &Lab, broker: &Broker, sinks: Sinks, unsettled: usize, old: &BTreeSet<PathBuf>) -> Phase {
    let entries = entries(lab, 0);
    if is_behind(lab, &entries) {
        return Phase::BetweenEntryAndCommit;
    }
    if unsettled == 0 {
        return Phase::Nothing;
    }
    let rows = rows(lab, sinks).keys().len() as u64;
    if rows > broker.queue("animals").accepted {
        return Phase::BetweenCommitAndSettle;
    }
    let named: String = parts(&entries).map(|(.., prepared)| prepared.payload.as_str()).collect();
    let orphan = prepared(lab).into_iter().filter(|path| !old.contains(path)).any(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        !named.contains(&name) && !is_committed(lab, &name)
    });
    if orphan { Phase::BeforeEntry } else { Phase::BeforePrepare }
}

fn is_committed(lab: &Lab, name: &str) -> bool {
    table::delta_log(&lab.path("lake"))
        .iter()
        .any(|action| action["add"]["path"].as_str().is_some_and(|p| p.ends_with(name)))
}

fn rows(lab: &Lab, sinks: Sinks) -> BTreeMap<String, usize> {
    match sinks {
        Sinks::Delta | Sinks::Both => table::delta_ids(&lab.path("lake")),
        Sinks::Parquet => table::parquet_ids(&lab.path("files")),
    }
}

/// Waits for a moment of the wanted kind and kills; returns what was unsettled then.
fn kill_at(
    lab: &Lab,
    broker: &Broker,
    process: &mut Process,
    (wanted, messages): (Phase, u64),
    rng: &mut SmallRng,
) -> Option<usize> {
    let unsettled = || broker.queue("animals").unsettled as usize;
    // All accepted, or ended by itself: there is nothing left to hit.
    let over = || process.has_ended() || broker.queue("animals").accepted >= messages;
    moment(lab, wanted, rng, unsettled, over)?;
    let unsettled = unsettled();
    process.kill();
    Some(unsettled)
}

fn kills(sinks: Sinks, seed: u64) {
    let (kills, messages) = (setting("DISTRIBUTARY_KILLS", 6), setting("DISTRIBUTARY_MESSAGES", 6_000));
    let lab = Lab::new();
    let rate = (messages as f64 / (kills as f64 * 1.2)).max(1_000.0);
    let feed: Feed = serde_json::from_value(serde_json::json!({ "queue": "animals", "count": messages, "rate": rate }))
        .expect("a feed");
    let broker =
        Broker::start_on_thread(BrokerConfig { feed: vec![feed], ..BrokerConfig::default() }).expect("a broker");
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut hit: BTreeMap<Phase, u64> = BTreeMap::new();
    for n in 0..kills {
        let left = messages - broker.queue("animals").accepted;
        topology(&lab, &broker, sinks, left.max(1));
        let old = prepared(&lab);
        let mut process = lab.start(&["start", "topology.yaml"]);
        let wanted = PHASES[n as usize % PHASES.len()];
        let Some(unsettled) = kill_at(&lab, &broker, &mut process, (wanted, messages), &mut rng) else { break };
        let phase = phase(&lab, &broker, sinks, unsettled, &old);
        *hit.entry(phase).or_default() += 1;
    }
    println!("{sinks:?}: kills by phase: {hit:?}");
    // The rest, to its end.
    let started = now();
    while broker.queue("animals").accepted < messages {
        assert!(started.elapsed() < Duration::from_secs(300), "the rest did not end: {:?}", broker.queue("animals"));
        let left = messages - broker.queue("animals").accepted;
        topology(&lab, &broker, sinks, left);
        let mut process = lab.start(&["start", "topology.yaml"]);
        let done = until(Duration::from_secs(120), "the last messages", || {
            let accepted = broker.queue("animals").accepted >= messages;
            (accepted || process.has_ended()).then_some(accepted)
        });
        if done {
            process.signal("TERM");
        }
        let ended = process.wait(Duration::from_secs(60));
        assert_eq!(ended.code, Some(0), "{}", ended.text);
    }
    check(&lab, sinks, messages);
    let useful: u64 = hit.iter().filter(|(phase, _)| **phase != Phase::Nothing).map(|(_, n)| n).sum();
    let all: u64 = hit.values().sum();
    assert!(useful * 4 >= all * 3, "three quarters of the kills must hit work in hand: {hit:?}");
    let missed: Vec<_> = PHASES.iter().filter(|phase| !hit.contains_key(phase)).collect();
    assert!(all < 20 || missed.is_empty(), "so many kills must hit every phase, not only {hit:?}");
}

fn check(lab: &Lab, sinks: Sinks, messages: u64) {
    let mut tables = Vec::new();
    if sinks != Sinks::Parquet {
        tables.push(("delta", table::delta_ids(&lab.path("lake"))));
    }
    if sinks != Sinks::Delta {
        tables.push(("parquet", table::parquet_ids(&lab.path("files"))));
    }
    for (name, ids) in &tables {
        let doubled: BTreeSet<_> = ids.iter().filter(|(_, n)| **n > 1).map(|(id, _)| id).take(5).collect();
        assert!(doubled.is_empty(), "{name}: doubled {doubled:?}");
        assert_eq!(ids.len() as u64, messages, "{name}: messages in the table");
    }
    assert_eq!(table::parquet_ids(&lab.path("rejected")).len(), 0, "nothing was rejected");
}

#[test]
fn killed_with_delta() {
    kills(Sinks::Delta, 1);
}

#[test]
fn killed_with_parquet() {
    kills(Sinks::Parquet, 2);
}

#[test]
fn killed_with_both_by_fan_out() {
    kills(Sinks::Both, 3);
}

/// SIGTERM in the middle: exit 0 within the drain timeout, and the next start takes the rest.
#[test]
fn terminated_in_the_middle() {
    let messages = 3_000;
    let lab = Lab::new();
    let feed: Feed = serde_json::from_value(serde_json::json!({ "queue": "animals", "count": messages, "rate": 2000 }))
        .expect("a feed");
    let broker = Arc::new(
        Broker::start_on_thread(BrokerConfig { feed: vec![feed], ..BrokerConfig::default() }).expect("a broker"),
    );
    topology(&lab, &broker, Sinks::Both, messages);
    let process = lab.start(&["start", "topology.yaml"]);
    until(Duration::from_secs(60), "work in hand", || (broker.queue("animals").unsettled > 100).then_some(()));
    process.signal("TERM");
    let ended = process.wait(Duration::from_secs(30));
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert_eq!(broker.queue("animals").unsettled, 0, "what was prefetched is released");
    let accepted = broker.queue("animals").accepted;
    assert_eq!(rows(&lab, Sinks::Both).len() as u64, accepted, "rows are what was accepted, after a drain");
    let (there, named) = (table::data_files(&lab.path("lake")), table::delta_files(&lab.path("lake")));
    assert_eq!(there, named, "every file that was written is in the table");
    if accepted < messages {
        topology(&lab, &broker, Sinks::Both, messages - accepted);
        let ended = lab.start(&["start", "topology.yaml"]).wait(Duration::from_secs(60));
        assert_eq!(ended.code, Some(0), "{}", ended.text);
    }
    check(&lab, Sinks::Both, messages);
    assert!(Path::new(&lab.path("lake/_delta_log")).exists());
}

/// Connections cut again and again while messages are unsettled: the process goes on by itself, and nothing is lost,
/// doubled or rejected.
#[test]
fn connections_cut_in_the_middle() {
    let (cuts, messages) = (8, 8_000);
    let lab = Lab::new();
    let feed: Feed =
        serde_json::from_value(serde_json::json!({ "queue": "animals", "count": messages })).expect("a feed");
    let broker =
        Broker::start_on_thread(BrokerConfig { feed: vec![feed], ..BrokerConfig::default() }).expect("a broker");
    let queue = || broker.queue("animals");
    // The feed is a client too: a cut would end it.
    until(Duration::from_secs(120), "all messages in the queue", || (queue().received == messages).then_some(()));
    topology(&lab, &broker, Sinks::Both, messages);
    let mut process = lab.start(&["start", "topology.yaml"]);
    for _ in 0..cuts {
        let working = until(Duration::from_secs(60), "work in hand", || {
            (queue().unsettled > 0 || process.has_ended() || queue().accepted == messages)
                .then(|| queue().unsettled > 0)
        });
        if working {
            broker.kill_connections();
            until(Duration::from_secs(60), "the cut", || (queue().unsettled == 0).then_some(()));
        }
    }
    until(Duration::from_secs(120), "the rest", || (queue().accepted >= messages || process.has_ended()).then_some(()));
    process.signal("TERM");
    let ended = process.wait(Duration::from_secs(60));
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    check(&lab, Sinks::Both, messages);
}
