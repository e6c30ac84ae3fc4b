//! What goes wrong in the hands of an operator: each a clear line and an exit code, nothing lost, no secret shown.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use arrow::array::AsArray;
use distributary::broker::{Broker, BrokerConfig, Feed};
use distributary::flow::Secret;
use fe2o3_amqp::{Connection, Sender, Session};
use fe2o3_amqp_types::messaging::{Message, Properties};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::run::{Ended, Lab, files_below, until};
use super::table;

fn broker(count: u64) -> Broker {
    let feed: Feed = serde_json::from_value(serde_json::json!({ "queue": "animals", "count": count })).expect("a feed");
    Broker::start_on_thread(BrokerConfig { feed: vec![feed], ..BrokerConfig::default() }).expect("a broker")
}

/// A topology from `animals` into the Delta table `lake`, ending after `messages`; `more` goes into the receiver.
fn topology(lab: &Lab, broker: &Broker, messages: u64, more: &str) {
    let text = format!(
        "topology: wrong
receivers:
  animals: {{ type: amqp, url: \"{}\", queue: animals, max_messages: {messages}{more} }}
translators:
  plain: {{ from: animals, type: text, select: [id, sent, value] }}
sinks:
  lake: {{ from: plain, type: delta, table: lake }}
dead_letter: {{ type: parquet, path: rejected }}
checkpoint: {{ interval: 200ms, store: state }}
",
        broker.url()
    );
    lab.write("topology.yaml", &text);
}

#[track_caller]
fn ends(ended: &Ended, code: i32, sentence: &str) {
    assert_eq!(ended.code, Some(code), "{}", ended.text);
    let last = ended.text.lines().last().unwrap_or_default();
    assert!(last.contains(sentence), "{last}\n(not: {sentence})\n{}", ended.text);
    assert!(!ended.text.contains("panicked"), "{}", ended.text);
}

#[test]
fn a_file_that_is_not_there_or_not_valid() {
    let lab = Lab::new();
    ends(&lab.run(&["start", "nowhere.yaml"]), 2, "cannot read the topology file nowhere.yaml");
    lab.write("bad.yaml", "topology: bad\nreceivers: { a: { type: amqb } }\n");
    let ended = lab.run(&["check", "bad.yaml"]);
    ends(&ended, 78, "problem");
    assert!(ended.text.contains("bad.yaml:2:") && ended.text.contains("'amqp'"), "{}", ended.text);
    assert_eq!(lab.run(&["frobnicate"]).code, Some(2));
}

#[test]
fn a_wrong_password_and_a_queue_that_is_not_there() {
    let lab = Lab::new();
    let config = BrokerConfig {
        user: Some("app".into()),
        password: Some(Secret::new("right-one")),
        auto_create: false,
        queues: vec!["other".into()],
        ..BrokerConfig::default()
    };
    let broker = Broker::start_on_thread(config).expect("a broker");
    topology(&lab, &broker, 1, ", user: app, password: wrong-one");
    let ended = lab.run(&["start", "topology.yaml"]);
    ends(&ended, 1, "wrong user or password for amqp://");
    assert!(!ended.text.contains("wrong-one"), "a secret was printed");
    topology(&lab, &broker, 1, ", user: app, password: right-one");
    ends(&lab.run(&["start", "topology.yaml"]), 1, "has no queue 'animals'");
}

#[test]
fn a_store_used_by_two_processes() {
    let lab = Lab::new();
    let broker = broker(10);
    topology(&lab, &broker, 1_000, "");
    let first = lab.start(&["start", "topology.yaml"]);
    until(Duration::from_secs(60), "the first to work", || (broker.queue("animals").accepted == 10).then_some(()));
    ends(&lab.run(&["start", "topology.yaml"]), 3, &format!("in use by process {}", first.id()));
    ends(&lab.run(&["state", "topology.yaml", "reset", "animals/0"]), 3, "in use by process");
    first.signal("INT");
    assert_eq!(first.wait(Duration::from_secs(60)).code, Some(0));
    assert_eq!(table::delta_ids(&lab.path("lake")).len(), 10);
}

#[test]
fn an_emptied_store_beside_an_old_table() {
    let lab = Lab::new();
    let broker = broker(30);
    topology(&lab, &broker, 10, "");
    assert_eq!(lab.run(&["start", "topology.yaml"]).code, Some(0));
    fs::remove_dir_all(lab.path("state")).expect("emptied");
    for _ in 0..2 {
        ends(&lab.run(&["start", "topology.yaml"]), 1, "start with --new-store");
    }
    let ended = lab.run(&["start", "topology.yaml", "--new-store"]);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    ends(&lab.run(&["start", "topology.yaml", "--new-store"]), 1, "start without it");
    assert_eq!(lab.run(&["start", "topology.yaml"]).code, Some(0));
    assert_eq!(table::delta_ids(&lab.path("lake")).len(), 30);
}

#[test]
fn a_table_that_somebody_else_has_changed() {
    let lab = Lab::new();
    let broker = broker(20);
    topology(&lab, &broker, 10, "");
    assert_eq!(lab.run(&["start", "topology.yaml"]).code, Some(0));
    let log = lab.path("lake/_delta_log");
    let actions = table::delta_log(&lab.path("lake"));
    let metadata = actions.iter().find(|action| !action["metaData"].is_null()).expect("metadata");
    let next = files_below(&log).iter().filter(|path| path.extension().is_some_and(|e| e == "json")).count();
    let version = log.join(format!("{next:020}.json"));
    fs::write(&version, metadata.to_string().replace("value", "body")).expect("a version");
    ends(&lab.run(&["start", "topology.yaml"]), 1, "the table has no column 'value'");
    fs::write(&version, r#"{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["fromTheFuture"],"writerFeatures":["fromTheFuture"]}}"#)
        .expect("a version");
    ends(&lab.run(&["start", "topology.yaml"]), 1, "fromTheFuture");
    fs::remove_file(&version).expect("as it was");
    assert_eq!(lab.run(&["start", "topology.yaml"]).code, Some(0));
    assert_eq!(table::delta_ids(&lab.path("lake")).len(), 20, "nothing was lost");
}

/// Two messages with one id, the same message twice, one without an id.
#[test]
fn ids_that_collide_or_are_missing_are_in_the_dead_letter() {
    let lab = Lab::new();
    let broker = Broker::start_on_thread(BrokerConfig::default()).expect("a broker");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut connection = Connection::open("sender", broker.url().as_str()).await.expect("a connection");
        let mut session = Session::begin(&mut connection).await.expect("a session");
        let mut sender = Sender::attach(&mut session, "sender", "animals").await.expect("a link");
        for (id, body) in
            [(Some("m1"), "one"), (Some("m1"), "another"), (Some("m2"), "two"), (Some("m2"), "two"), (None, "nameless")]
        {
            let mut properties = Properties::builder();
            if let Some(id) = id {
                properties = properties.message_id(id.to_owned());
            }
            let message = Message::builder().properties(properties.build()).value(body.to_owned()).build();
            sender.send(message).await.expect("accepted");
        }
        let _ = sender.close().await;
        let _ = session.end().await;
        let _ = connection.close().await;
    });
    topology(&lab, &broker, 4, "");
    let process = lab.start(&["start", "topology.yaml"]);
    let ended = process.wait(Duration::from_secs(60));
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert!(ended.text.contains("rejected 2"), "{}", ended.text);
    let rows = table::delta_ids(&lab.path("lake"));
    assert_eq!(rows, [("m1".to_owned(), 1), ("m2".to_owned(), 1)].into());
    assert_eq!(
        dead_letters(&lab),
        [("id_collision".to_owned(), "another".to_owned()), ("missing_id".to_owned(), "nameless".to_owned())].into()
    );
}

/// Reason and original body of what is in the dead letter.
fn dead_letters(lab: &Lab) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut files = files_below(&lab.path("rejected"));
    files.retain(|path| path.extension().is_some_and(|e| e == "parquet"));
    for file in files {
        let file = fs::File::open(file).expect("a file");
        let reader =
            ParquetRecordBatchReaderBuilder::try_new(file).and_then(|builder| builder.build()).expect("Parquet");
        for batch in reader {
            let batch = batch.expect("rows");
            let reasons = batch.column_by_name("reason").expect("a reason").as_string::<i32>();
            let values = batch.column_by_name("value").expect("a body").as_binary::<i32>();
            for (reason, value) in reasons.iter().zip(values) {
                let value = String::from_utf8_lossy(value.expect("a body")).into_owned();
                found.insert(reason.expect("a reason").to_owned(), value);
            }
        }
    }
    found
}

#[test]
fn the_quickstart_is_valid_and_so_are_all_examples() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies");
    let files = files_below(&folder);
    assert!(files.len() >= 5);
    let lab = Lab::new();
    for file in files {
        let ended = lab.run(&["check", &file.display().to_string()]);
        assert_eq!(ended.code, Some(0), "{}", ended.text);
    }
}
