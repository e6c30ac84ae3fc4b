//! Runs that end by themselves, with a bound per receiver.

use super::run::Lab;
use super::table;

#[test]
fn a_receiver_at_its_time_limit_takes_no_more_while_others_go_on() {
    let lab = Lab::new();
    lab.write(
        "topology.yaml",
        "topology: bounds
receivers:
  short: { type: generator, rate: 1000, max_time: 1s }
  long: { type: generator, rate: 1000, max_time: 5s }
translators:
  short_rows: { from: short, type: text }
  long_rows: { from: long, type: text }
sinks:
  a: { from: short_rows, type: parquet, path: a }
  b: { from: long_rows, type: parquet, path: b }
checkpoint: { interval: 200ms, store: state }
",
    );
    let ended = lab.run(&["start", "topology.yaml"]);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    let rows = |path| table::parquet_ids(&lab.path(path)).len();
    let (short, long) = (rows("a"), rows("b"));
    assert!(short > 0 && short < long * 3 / 4, "{short} and {long} rows\n{}", ended.text);
}

#[test]
fn a_bounded_run_does_not_wait_for_its_interval() {
    let lab = Lab::new();
    lab.write(
        "topology.yaml",
        "topology: bounds
broker: { listen: \"127.0.0.1:0\", feed: [{ queue: q, count: 1000 }] }
receivers:
  q: { type: amqp, url: embedded, queue: q, partitions: 3, max_messages: 1000 }
translators:
  rows: { from: q, type: text }
sinks:
  a: { from: rows, type: parquet, path: a }
checkpoint: { interval: 10m, store: state }
",
    );
    let ended = lab.run(&["start", "topology.yaml"]);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert_eq!(table::parquet_ids(&lab.path("a")).len(), 1000, "{}", ended.text);
}
