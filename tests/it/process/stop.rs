//! SIGTERM with work in hand: what was received is committed at once, whatever the batchers wait for, and a drain that does
//! not get done is not taken for one that did.

use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use distributary::broker::{Broker, BrokerConfig, Feed};
use serde_json::{Value, json};

use super::run::{Lab, get, metric, now, until};
use super::table;

fn broker(count: u64, payload: Value) -> Broker {
    let feed: Feed =
        serde_json::from_value(json!({ "queue": "animals", "count": count, "payload": payload })).expect("a feed");
    Broker::start_on_thread(BrokerConfig { feed: vec![feed], ..BrokerConfig::default() }).expect("a broker")
}

/// Batches of an hour, checkpoints of an hour: nothing but the end of the run can commit anything.
fn topology(lab: &Lab, broker: &Broker, sink: &str) {
    let text = format!(
        "topology: stops
receivers:
  animals: {{ type: amqp, url: \"{}\", queue: animals, partitions: 2 }}
translators:
  plain: {{ from: animals, type: text, select: [id, sent, value] }}
batchers:
  slow: {{ from: plain, max_rows: 20000, max_bytes: 1GiB, max_age: 1h }}
sinks:
  out: {{ from: slow, {sink} }}
checkpoint: {{ interval: 1h, store: state }}
telemetry: {{ listen: 127.0.0.1:0 }}
",
        broker.url()
    );
    lab.write("topology.yaml", &text);
}

/// How many messages a process has received and not settled.
fn in_hand(endpoint: &str) -> u64 {
    metric(endpoint, "distributary_unsettled")
}

#[test]
fn a_half_full_batch_is_committed_at_once_and_once() {
    for sink in ["type: delta, table: table", "type: parquet, path: table"] {
        let messages = 501;
        let (lab, broker) = (Lab::new(), broker(messages, json!("animals_csv")));
        topology(&lab, &broker, sink);
        let queue = || broker.queue("animals");
        let process = lab.start(&["start", "topology.yaml"]);
        // As the process counts them: what the broker has sent may not have arrived.
        let metrics = process.endpoint();
        until(Duration::from_secs(60), "all in hand", || (in_hand(&metrics) == messages).then_some(()));
        assert_eq!(queue().accepted, 0, "{sink}: nothing commits by itself");
        process.signal("TERM");
        let told = now();
        let ended = process.wait(Duration::from_secs(60));
        assert_eq!(ended.code, Some(0), "{}", ended.text);
        assert!(told.elapsed() < Duration::from_secs(20), "{sink}: it waited for its batcher: {:?}", told.elapsed());
        assert_eq!((queue().accepted, queue().unsettled), (messages, 0), "{sink}");

        // Nothing comes twice, and an idle run adds nothing.
        let process = lab.start(&["start", "topology.yaml"]);
        process.said("receiving");
        process.signal("TERM");
        let ended = process.wait(Duration::from_secs(60));
        assert_eq!(ended.code, Some(0), "{}", ended.text);
        let delta = sink.contains("delta");
        let ids = if delta { table::delta_ids(&lab.path("table")) } else { table::parquet_ids(&lab.path("table")) };
        assert_eq!(ids.len() as u64, messages, "{sink}");
        assert!(ids.values().all(|times| *times == 1), "{sink}: doubled");
        if delta {
            let (there, named) = (table::data_files(&lab.path("table")), table::delta_files(&lab.path("table")));
            assert_eq!(there, named, "every file that was written is in the table");
        }
    }
}

/// The end of a bounded input, and of a run that was told how much to take: what was written after the last checkpoint is
/// in the table too, at once.
#[test]
fn the_end_of_the_input_commits_at_once_and_leaves_no_file_outside_of_the_table() {
    let (messages, lab) = (3_000, Lab::new());
    let broker = broker(messages + 10, json!("animals_csv"));
    for receiver in [
        format!("type: generator, payload: animals_csv, count: {messages}"),
        format!("type: amqp, url: \"{}\", queue: animals, max_messages: {messages}", broker.url()),
    ] {
        let table = lab.path("table");
        lab.write(
            "topology.yaml",
            &format!(
                "topology: bounded
receivers:
  numbers: {{ {receiver}, partitions: 2 }}
translators:
  plain: {{ from: numbers, type: text, select: [id, value] }}
batchers:
  slow: {{ from: plain, max_rows: 700, max_age: 1h }}
sinks:
  out: {{ from: slow, type: delta, table: table }}
checkpoint: {{ interval: 1h, store: state }}
"
            ),
        );
        let ended = lab.run(&["start", "topology.yaml"]);
        assert_eq!(ended.code, Some(0), "{receiver}: {}", ended.text);
        assert_eq!(table::delta_ids(&table).len() as u64, messages, "{receiver}");
        assert_eq!(table::data_files(&table), table::delta_files(&table), "{receiver}");
        for folder in ["table", "state"] {
            std::fs::remove_dir_all(lab.path(folder)).expect("removed");
        }
    }
}

#[test]
fn a_drain_that_overruns_says_so_and_fails() {
    let (lab, broker) = (Lab::new(), broker(2_000, json!({ "template": "{random:1000}" })));
    let text = format!(
        "topology: overruns
receivers:
  animals: {{ type: amqp, url: \"{}\", queue: animals }}
batchers:
  bulk: {{ from: animals, max_age: 10ms }}
sinks:
  out: {{ from: bulk, type: console, delivery: at_least_once, format: json_lines }}
checkpoint: {{ interval: 100ms, store: memory }}
supervision: {{ drain_timeout: 3s }}
telemetry: {{ listen: 127.0.0.1:0 }}
",
        broker.url()
    );
    lab.write("topology.yaml", &text);
    let mut process = lab.start_with(&["start", "topology.yaml"], |command| command.stdout(Stdio::piped()));
    let mut unread = process.stdout();
    // Two megabytes do not go into a pipe that nobody reads.
    let queue = || broker.queue("animals");
    let endpoint = process.endpoint();
    until(Duration::from_secs(60), "all in hand", || (queue().accepted + in_hand(&endpoint) == 2_000).then_some(()));
    process.signal("TERM");
    let ready = until(Duration::from_secs(60), "a word", || {
        Some(get(&endpoint, "/ready")).filter(|ready| ready.contains("draining"))
    });
    assert!(ready.contains("503") && ready.contains("\"ready\":false"), "{ready}");
    let ended = process.wait(Duration::from_secs(60));
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    let last = ended.text.lines().last().unwrap_or_default();
    assert!(last.contains("the drain took longer than supervision.drain_timeout"), "{}", ended.text);
    assert!(ended.text.contains("draining"), "{}", ended.text);
    until(Duration::from_secs(60), "the rest to be given back", || (queue().unsettled == 0).then_some(()));
    assert!(queue().ready > 0, "what was not written is delivered again: {:?}", queue());
    let mut written = Vec::new();
    unread.read_to_end(&mut written).expect("the pipe");
}
