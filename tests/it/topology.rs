//! Whole topology files against a registry of small kinds: what is accepted, what is refused, and in which words.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use arrow::datatypes::DataType;
use distributary::flow::StageName;
use distributary::flow::registry::{Guarantee, Registry};
use distributary::topology::{
    BatcherStage, Environment, MissingId, OnCollision, Stage, StoreConfig, Topology, dead_letter_schema, json_schema,
    load,
};

mod components;
mod kinds;
mod random;
mod substitution;

/// Variables, and files by their path.
#[derive(Clone, Default)]
struct Given(HashMap<String, String>);

impl Environment for Given {
    fn variable(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    fn file(&self, path: &Path) -> io::Result<String> {
        let text = path.to_str().and_then(|path| self.0.get(path));
        text.cloned().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such file"))
    }
}

fn given<const N: usize>(values: [(&str, &str); N]) -> Given {
    Given(values.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
}

fn checked(yaml: &str, given: &Given) -> Result<Topology, String> {
    load(yaml, "topology.yaml", given, &kinds::registry()).map_err(|problems| problems.to_string())
}

fn accepted(yaml: &str) -> Topology {
    checked(yaml, &Given::default()).unwrap_or_else(|problems| panic!("{yaml}\n{problems}"))
}

/// The problems, without the file's name.
fn refused(yaml: &str) -> String {
    let problems = checked(yaml, &Given::default()).map(|topology| format!("{topology:?}"));
    problems.expect_err(yaml).replace("topology.yaml:", "")
}

const ORDERS: &str = r#"
topology: orders
receivers:
  orders:   { type: queue, url: "amqp://broker", queue: orders, partitions: 4, max_unsettled: 50000, max_unsettled_bytes: 64MiB }
translators:
  parsed:   { from: orders, type: csv, columns: { row_num: int64, animal: utf8 }, keep: [id] }
batchers:
  bulk:     { from: parsed, max_rows: 10000, max_bytes: 8MiB, max_age: 500ms }
sinks:
  lake:     { from: bulk, type: lake, table: ./data/orders, partition_by: [animal], mode: merge }
  shown:    { from: parsed, type: console, delivery: at_least_once }
dead_letter: { type: lake, table: ./data/rejected }
checkpoint:  { interval: 10s, timeout: 60s, store: ./state }
identity:    { horizon: 2m, in_doubt: 7d, max_ids: 20000000, missing_id: dead_letter, on_collision: park }
supervision: { backoff: { min: 200ms, max: 30s }, give_up: { restarts: 10, within: 10m }, drain_timeout: 30s }
telemetry:   { listen: 127.0.0.1:9464 }
broker:      { listen: 127.0.0.1:0, feed: [ { queue: orders, payload: animals_csv, format: text, count: 100, log_every: 1s } ] }
"#;

/// The smallest topology there is, with more in it.
fn small(more: &str) -> String {
    format!(
        "topology: t\nreceivers:\n  orders: {{ type: queue, url: 'amqp:', queue: q }}\nsinks:\n  lake: {{ from: orders, type: lake, table: t }}\ncheckpoint: {{ store: memory }}\n{more}"
    )
}

#[test]
fn a_whole_topology_becomes_what_the_runtime_builds_from() {
    let topology = accepted(ORDERS);
    assert_eq!(&*topology.name, "orders");
    let receiver = &topology.receivers[&StageName::from("orders")];
    assert_eq!((receiver.partitions, receiver.max_unsettled, receiver.max_unsettled_bytes), (4, 50_000, 64 << 20));
    let [Stage::Translator(parsed)] = &receiver.stages[..] else { panic!("one translator") };
    assert_eq!(parsed.factory.output().fields().len(), 3);
    let [Stage::Batcher(bulk), Stage::Batcher(made)] = &parsed.next[..] else { panic!("two batchers") };
    let sizes = |b: &BatcherStage| (b.name.to_string(), b.max_rows, b.max_bytes, b.max_age, b.next.len());
    assert_eq!(sizes(bulk), ("bulk".to_owned(), 10_000, 8 << 20, Duration::from_millis(500), 1));
    assert_eq!(sizes(made), ("shown.batcher".to_owned(), 20_000, 16 << 20, Duration::from_secs(1), 1));
    assert!(matches!(&made.next[..], [Stage::Sink(name)] if name.as_str() == "shown"));

    let lake = &topology.sinks[&StageName::from("lake")];
    assert_eq!((lake.guarantee, lake.schema.fields().len()), (Guarantee::ExactlyOnce, 3));
    let own = serde_json::json!({ "table": "./data/orders", "partition_by": ["animal"], "mode": "merge" });
    assert_eq!(lake.config, own, "only the kind's own fields");
    let dead_letter = topology.dead_letter.as_ref().expect("a dead letter");
    assert_eq!((dead_letter.name.as_str(), &dead_letter.schema), ("dead_letter", &dead_letter_schema()));

    assert_eq!(topology.checkpoint.store, StoreConfig::Local("./state".into()));
    assert_eq!(topology.identity.on_collision, OnCollision::Park);
    assert_eq!(topology.supervision.give_up.within, Duration::from_secs(600));
    assert_eq!(topology.telemetry.listen, Some(([127, 0, 0, 1], 9464).into()));
    let broker = topology.broker.as_ref().expect("a broker");
    assert_eq!((&*broker.feed[0].queue, broker.feed[0].count), ("orders", Some(100)));
    assert_eq!(
        topology.notes,
        [
            "sinks.lake (lake): exactly once",
            "sinks.shown (console): at least once",
            "dead_letter (lake): exactly once",
            "identity: at most 20000000 known ids per receiver (max_ids), up to 66 bytes each: 1259 MiB",
        ]
    );
}

#[test]
fn what_is_left_out_has_its_default() {
    let topology = accepted(&small("telemetry:\nidentity: { max_ids: 2e7 }\n"));
    let receiver = &topology.receivers[&StageName::from("orders")];
    assert_eq!((receiver.partitions, receiver.max_unsettled, receiver.max_unsettled_bytes), (1, 25_000, 64 << 20));
    assert_eq!((receiver.max_messages, receiver.max_time), (None, None));
    assert_eq!(topology.checkpoint.interval, Duration::from_secs(10));
    assert_eq!(topology.identity.missing_id, MissingId::DeadLetter);
    assert_eq!(topology.identity.max_ids, 20_000_000);
    assert_eq!(topology.supervision.drain_timeout, Duration::from_secs(30));
    assert!(topology.dead_letter.is_none() && topology.broker.is_none() && topology.telemetry.listen.is_none());
    assert!(
        topology.notes.iter().any(|n| n == "warning: no dead_letter section: a rejected message parks its partition")
    );
    assert!(topology.notes.iter().any(|n| n.starts_with("warning: checkpoint.store is memory")));
}

#[test]
fn two_receivers_may_feed_one_sink_and_two_sinks_one_batcher() {
    let topology = accepted(
        "topology: t
receivers:
  a: { type: queue, url: 'amqp:', queue: a }
  b: { type: queue, url: 'amqp:', queue: b, max_unsettled: 50 }
batchers:
  all: { from: [a, b] }
sinks:
  one: { from: all, type: console, delivery: at_least_once }
  two: { from: [all], type: console, delivery: at_least_once }
",
    );
    for (name, rows) in [("a", 20_000), ("b", 50)] {
        let [Stage::Batcher(all)] = &topology.receivers[&StageName::from(name)].stages[..] else { panic!("a batcher") };
        assert_eq!((all.next.len(), all.max_rows), (2, rows), "a batcher never waits for more than may be in flight");
    }
    assert!(topology.notes.iter().any(|n| n.starts_with("receivers.a (queue): none of its sinks is exactly once")));
    assert!(!topology.notes.iter().any(|n| n.starts_with("identity")), "{:?}", topology.notes);
}

#[test]
fn ten_mistakes_of_ten_kinds_are_ten_placed_problems() {
    let yaml = r#"topology: orders
receivers:
  orders:
    type: queue
    url: ${AMQP_URL}
    queue: orders
    partitions: 0
  more:
    type: qeue
translators:
  parsed:
    from: ordres
    type: csv
    columns: { animal: utf9 }
batchers:
  bulk/all:
    from: parsed
sinks:
  lake:
    from: bulk/all
    type: lake
    tabel: ./data
  shown:
    from: more
    type: console
checkpoint:
  interval: 10
  interval: 10s
"#;
    assert_eq!(
        refused(yaml),
        "\
5:10: receivers.orders.url: the variable AMQP_URL is not set, and ${AMQP_URL} gives no default; set it, or write ${AMQP_URL:-default}
7:17: receivers.orders.partitions: expected 1 or more, found 0
9:11: receivers.more.type: there is no receiver of type 'qeue'; did you mean 'queue'?
12:11: translators.parsed.from: there is no stage 'ordres'; did you mean 'orders'?
14:24: translators.parsed.columns.animal: expected one of int64, utf8, found 'utf9'; did you mean 'utf8'?
16:3: batchers.\"bulk/all\": a name is letters, digits, '_' and '-'
22:5: sinks.lake.tabel: unknown key 'tabel'; did you mean 'table'?
23:3: sinks.shown: console cannot look whether a commit landed, so rows may come twice after a failure; write 'delivery: at_least_once' to accept that
27:13: checkpoint.interval: expected a duration like 250ms, 10s, 2m or 7d, found 10
28:3: checkpoint.interval: this key is here twice; the first is on line 27"
    );
}

#[test]
fn every_rule_has_its_sentence() {
    let mut wrong = Vec::new();
    for (yaml, problem) in [
        ("a: 1", "1:1: a: unknown section 'a'; sections: topology, "),
        ("- a", "1:1: expected a map that starts with 'topology: NAME', found a list"),
        (
            "topology: a b\nreceivers: {}\nsinks:\n",
            "1:11: topology: expected a name of letters, digits, '_' and '-', found 'a b'\n2:1: receivers: there is no receiver in it; a topology has at least one\n3:1: sinks: there is no sink in it; a topology has at least one",
        ),
        (
            "topology: 5\nreceiver: {}\nsinks: 3",
            "1:11: topology: expected text, found 5; put it in quotes\n2:1: receiver: unknown section 'receiver'; did you mean 'receivers'?\n3:8: sinks: expected a map from names to sinks, found 3",
        ),
        (
            &small("").replace("queue: q }", "queue: q, max_unsettled: 1e30 }"),
            "3:3: receivers.orders: a number in it is larger than any that can be meant",
        ),
        (
            &small("").replace("queue: q }", "queue: q, max_unsettled: 1.5 }"),
            "3:65: receivers.orders.max_unsettled: expected a whole number, found 1.5",
        ),
        (&small("dead_letter:"), "7:1: dead_letter: missing key 'type'"),
        (&small("dead_letter: { type: console }"), "7:1: dead_letter: console cannot look"),
        (
            &small("dead_letter: { type: lake, table: t, delivery: at_least_once }"),
            "7:48: dead_letter.delivery: pointless: lake is exactly once at no cost; leave 'delivery' out",
        ),
        (
            &small("dead_letter: { type: console, delivery: exactly_once }"),
            "7:41: dead_letter.delivery: console cannot look",
        ),
        (
            &small("dead_letter: { type: console, delivery: twice }"),
            "7:41: dead_letter.delivery: expected one of exactly_once, at_least_once, found 'twice'",
        ),
        (
            &small("dead_letter: { type: lake, table: t, partition_by: [reason, raeson] }"),
            "7:61: dead_letter.partition_by[1]: there is no column 'raeson'",
        ),
        (
            &small("dead_letter: { type: csv }"),
            "7:22: dead_letter.type: 'csv' is a translator, not a sink; types: console, lake",
        ),
        (
            &small("dead_letter: { type: lake, table: ./u/../t }"),
            "7:1: dead_letter: its folder is that of sinks.lake; give each a folder of its own",
        ),
        (
            &small("dead_letter: { type: lake, table: t/rejected }"),
            "7:1: dead_letter: its folder and that of sinks.lake lie one in the other; give each a folder of its own",
        ),
        (
            &small("").replace("store: memory", "store: t/state"),
            "6:22: checkpoint.store: lies in the folder of sinks.lake: a tool that cleans up there would delete it",
        ),
        (
            &small("broker: { listen: '0.0.0.0:5672' }"),
            "7:19: broker.listen: a topology's own broker knows no passwords",
        ),
        (
            &small("broker: { feed: [{ queue: a, payload: animals_csv, count: -1 }] }"),
            "7:59: broker.feed[0].count: expected 0 or more, found -1",
        ),
        (
            &small("telemetry: { listen: here }"),
            "7:22: telemetry.listen: expected an address with a port like 127.0.0.1:9464, found 'here'",
        ),
        (&small("identity: { in_doubt: 1m }"), "7:23: identity.in_doubt: shorter than 'horizon'"),
        (
            &small("identity: { in_doubt: 1m, horizon: 1m }"),
            "7:23: identity.in_doubt: shorter than checkpoint.interval and checkpoint.timeout together",
        ),
        (
            &small("identity: { max_ids: 10 }"),
            "7:22: identity.max_ids: fewer than the partitions of receivers.orders may have unsettled together",
        ),
        (&small("identity: { max_ids: many }"), "7:22: identity.max_ids: expected a whole number, found 'many'"),
        (
            &small("supervision: { backoff: { min: 1m }, give_up: { within: 0s } }"),
            "7:32: supervision.backoff.min: longer than the longest wait",
        ),
        (
            &small("supervision: { backof: {} }"),
            "7:16: supervision.backof: unknown key 'backof'; did you mean 'backoff'?",
        ),
        (
            &small("batchers: { b: { from: orders, max_rows: 50001 } }").replace("from: orders, type", "from: b, type"),
            "7:42: batchers.b.max_rows: more rows than max_unsettled of receivers.orders allows",
        ),
        (
            &small("batchers: { b: { from: orders, max_age: 1 } }").replace("from: orders, type", "from: b, type"),
            "7:41: batchers.b.max_age: expected a duration like 250ms, 10s, 2m or 7d, found 1",
        ),
        (
            &small("").replace("queue: q }", "queue: q, max_unsettled_bytes: 5 apples }"),
            "3:71: receivers.orders.max_unsettled_bytes: expected a size like 64MiB, 16KB or 1000, found '5 apples'",
        ),
        (
            &small("").replace("queue: q }", "queue: q, max_message: x }"),
            "3:63: receivers.orders.max_message: expected a size like 64MiB, 16KB or 1000, found 'x'",
        ),
        (
            &small("").replace("queue: q }", "queue: 5 }"),
            "3:47: receivers.orders.queue: expected text, found 5; put it in quotes",
        ),
        (
            &small("").replace("queue: q }", "queue: q, format: txt }"),
            "3:58: receivers.orders.format: expected one of text, binary, found 'txt'; did you mean 'text'?",
        ),
        (
            &small("").replace("queue: q }", "queue: q, login: { user: u } }"),
            "3:50: receivers.orders.login: missing key 'password'",
        ),
        (
            &small("").replace("queue: q }", "queue: q, login: 5 }"),
            "3:57: receivers.orders.login: expected a map, found 5",
        ),
        (
            &small("").replace("'amqp:'", "embedded"),
            "3:31: receivers.orders.url: there is no embedded broker in this topology",
        ),
        (
            &small("").replace("from: orders", "from: [orders, []]"),
            "5:26: sinks.lake.from[1]: expected text, found a list",
        ),
        (
            &small("").replace("from: orders", "from: []"),
            "5:11: sinks.lake.from: expected a list that is not empty, found a list\n",
        ),
        (&small("").replace("from: orders", "from: 5"), "5:17: sinks.lake.from: expected text or a list, found 5"),
        (
            &small("").replace("store: memory", "store: 's3://bucket/x'"),
            "6:22: checkpoint.store: expected a folder like ./state, or memory, found 's3://bucket/x'",
        ),
        (
            &small("").replace("store: memory", "interval: 0s"),
            "6:1: checkpoint.store: exactly once needs a checkpoint log that outlives the process",
        ),
        (
            &small("").replace("lake:", "dead_letter:"),
            "5:3: sinks.dead_letter: the name 'dead_letter' belongs to the section of that name",
        ),
        (&small("").replace("lake:", "orders:"), "5:3: sinks.orders: the name 'orders' is taken by receivers.orders"),
        (
            &small("").replace("{ type: queue, url: 'amqp:', queue: q }", ""),
            "3:3: receivers.orders: missing key 'type'",
        ),
        (
            &small("").replace("{ type: queue", "{ typ: queue"),
            "3:13: receivers.orders.typ: unknown key 'typ'; did you mean 'type'?",
        ),
        (
            &small("").replace("type: lake", "tipe: lake"),
            "5:25: sinks.lake.tipe: unknown key 'tipe'; did you mean 'type'?",
        ),
        (
            &small("").replace("lake, table: t }", "lake, table: t }\ndead_letter: { tpye: lake, table: u }"),
            "6:16: dead_letter.tpye: unknown key 'tpye'; did you mean 'type'?",
        ),
    ] {
        let problems = refused(yaml);
        if !format!("{problems}\n").starts_with(problem) {
            wrong.push(format!("{yaml}\n{problems}\n!= {problem}\n"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn columns_flow_down_and_kinds_complain_at_their_place() {
    let feeding = |columns: &str, keep: &str| {
        format!(
            "topology: t
receivers:
  a: {{ type: queue, url: 'amqp:', queue: a }}
  b: {{ type: queue, url: 'amqp:', queue: b }}
translators:
  x: {{ from: a, type: csv, columns: {{ n: int64 }} }}
  y: {{ from: b, type: csv, columns: {{ {columns} }}, keep: [{keep}] }}
sinks:
  lake: {{ from: [x, y], type: lake, table: t, partition_by: [n] }}
checkpoint: {{ store: memory }}
"
        )
    };
    accepted(&feeding("n: int64", ""));
    for (yaml, problem) in [
        (
            feeding("n: utf8", ""),
            "9:11: sinks.lake.from: the columns from receivers 'a' and 'b' differ: 'n' is Int64 and Utf8; give each a sink of its own, or make the columns alike",
        ),
        (
            feeding("n: int64, m: utf8", ""),
            "9:11: sinks.lake.from: the columns from receivers 'a' and 'b' differ: only the second has 'm'; give each a sink of its own, or make the columns alike",
        ),
        (feeding("n: int64", "id, nothing"), "7:62: translators.y.keep[1]: the message has no column 'nothing'"),
    ] {
        let problems = refused(&yaml);
        assert_eq!(problems, problem, "{yaml}");
    }
}

#[test]
fn the_schema_of_all_kinds_agrees_with_the_check() {
    let schema = json_schema(&kinds::registry());
    let validator = jsonschema::validator_for(&schema).expect("a valid schema");
    let good = serde_json::json!({
        "topology": "t",
        "receivers": { "a": { "type": "queue", "url": "amqp:", "queue": "q", "partitions": 2, "login": { "user": "u", "password": "p" } } },
        "translators": { "p": { "from": ["a"], "type": "csv", "columns": { "n": "int64" } } },
        "batchers": { "b": { "from": "p", "max_bytes": "1MiB", "max_age": "1s" } },
        "sinks": { "l": { "from": "b", "type": "lake", "table": "t" } },
        "dead_letter": { "type": "console", "delivery": "at_least_once" },
        "supervision": { "backoff": { "min": "1s" } },
    });
    let errors =
        |value: &serde_json::Value| Vec::from_iter(validator.iter_errors(value).map(|error| error.to_string()));
    assert_eq!(errors(&good), [""; 0]);
    for (pointer, bad) in [
        ("/receivers/a/queue", serde_json::json!(5)),
        ("/receivers/a/login/password", serde_json::json!(5)),
        ("/translators/p/columns/n", serde_json::json!("int65")),
        ("/batchers/b/max_age", serde_json::json!("soon")),
        ("/sinks/l/type", serde_json::json!("lage")),
        ("/supervision/backoff/min", serde_json::json!(1)),
        ("/dead_letter/delivery", serde_json::json!("twice")),
    ] {
        let mut value = good.clone();
        *value.pointer_mut(pointer).expect(pointer) = bad;
        assert!(!errors(&value).is_empty(), "{pointer}");
    }
}

#[test]
fn the_dead_letter_holds_what_an_arrow_map_builder_makes() {
    use arrow::array::{Array, MapBuilder, StringBuilder};
    let mut builder = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    builder.append(false).expect("a null map");
    let schema = dead_letter_schema();
    assert_eq!(builder.finish().data_type(), schema.field_with_name("properties").expect("there").data_type());
    assert_eq!(schema.field_with_name("value").expect("there").data_type(), &DataType::Binary);
}

fn standard() -> Registry {
    distributary::translators::register(distributary::connectors::register(Registry::default()))
}

#[test]
fn every_topology_that_comes_with_the_program_is_accepted() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies");
    let mut count = 0;
    for file in std::fs::read_dir(folder).expect("the folder") {
        let path = file.expect("a file").path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            count += 1;
            let text = std::fs::read_to_string(&path).expect("its text");
            if let Err(problems) = load(&text, &path.display().to_string(), &Given::default(), &standard()) {
                panic!("{problems}");
            }
        }
    }
    assert!(count >= 5);
}
