//! The verbs that help: what they print, what they leave alone, and how they end.

use std::fs::File;
use std::net::TcpListener;
use std::time::Duration;

use distributary::broker::{Broker, BrokerConfig, Feed};
use distributary::flow::Secret;

use super::run::{Lab, files_below, now, until};

/// What a verb printed.
#[derive(Debug)]
pub struct Printed {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Printed {
    #[track_caller]
    pub fn ends(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.out, self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }
}

/// Runs `runtime` to its end, in the lab, and keeps what it prints outside of it.
pub fn runtime(lab: &Lab, arguments: &[&str]) -> Printed {
    let aside = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| File::create(aside.path().join(name)).expect("a file");
    let mut command = lab.command(arguments);
    let mut child = command.stdout(file("out")).stderr(file("err")).spawn().expect("start the binary");
    let status = until(Duration::from_secs(60), "the verb to end", || child.try_wait().expect("ask for the end"));
    let text = |name: &str| std::fs::read_to_string(aside.path().join(name)).expect("text");
    Printed { code: status.code(), out: text("out"), err: text("err") }
}

fn broker(config: BrokerConfig) -> Broker {
    let feed: Feed = serde_json::from_value(serde_json::json!({ "queue": "orders", "count": 10 })).expect("a feed");
    let broker = Broker::start_on_thread(BrokerConfig { feed: vec![feed], ..config }).expect("a broker");
    until(Duration::from_secs(30), "the feed", || (broker.queue("orders").ready == 10).then_some(()));
    broker
}

fn topology(url: &str, more: &str) -> String {
    format!(
        "topology: orders
receivers:
  orders: {{ type: amqp, url: \"{url}\", queue: orders{more} }}
translators:
  plain: {{ from: orders, type: text, select: [id, sent, value] }}
sinks:
  lake: {{ from: plain, type: delta, table: data/lake }}
  shown: {{ from: plain, type: console, delivery: at_least_once }}
dead_letter: {{ type: parquet, path: data/rejected }}
checkpoint: {{ interval: 200ms, store: data/state }}
"
    )
}

#[test]
fn every_verb_has_help_with_an_example_and_a_line_in_the_readme() {
    let lab = Lab::new();
    let readme = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(readme).expect("the README");
    let help = runtime(&lab, &["--help"]).ends(0).out;
    let verbs = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let verbs: Vec<&str> =
        verbs.map_while(|line| line.split_whitespace().next()).filter(|verb| *verb != "help").collect();
    assert!(verbs.len() >= 9, "{help}");
    for verb in verbs {
        let help = runtime(&lab, &[verb, "--help"]).ends(0).out;
        assert!(help.contains("Example") && help.contains(&format!("  runtime {verb}")), "{help}");
        assert!(readme.contains(&format!("`{verb}")), "README.md does not have the verb {verb}");
    }
}

#[test]
fn list_describe_and_schema_say_what_there_is() {
    let lab = Lab::new();
    let list = runtime(&lab, &["list"]).ends(0).out;
    for line in ["  amqp       a queue of an AMQP 1.0 broker", "exactly once   a Delta Lake table", "  checkpoint "] {
        assert!(list.contains(line), "{line}\n{list}");
    }
    let amqp = runtime(&lab, &["describe", "receivers.amqp"]).ends(0).out;
    for line in [
        "  queue: text; required",
        "  idle_timeout: duration like 250ms, 10s, 2m or 7d; default 30s",
        "  partitions: whole number of consumers, 1 to 1024; default 1",
        "  password: text that is never printed; optional",
        "      - text: ",
        "receivers:\n    orders:\n      type: amqp",
    ] {
        assert!(amqp.contains(line), "{line}\n{amqp}");
    }
    assert!(amqp.lines().all(|line| line.chars().count() <= 120), "{amqp}");
    assert!(runtime(&lab, &["describe", "supervision"]).ends(0).out.contains("  backoff.min: duration"));
    let nearest = runtime(&lab, &["describe", "sinks.detla"]).ends(2);
    assert_eq!(nearest.err, "runtime: there is no 'sinks.detla'; did you mean 'sinks.delta'?\n");
    let schema: serde_json::Value =
        serde_json::from_str(&runtime(&lab, &["schema"]).ends(0).out).expect("the schema is JSON");
    assert!(schema["$defs"]["receivers.amqp"]["properties"]["queue"]["description"].is_string());
}

#[test]
fn init_writes_a_topology_that_passes_the_check_and_overwrites_nothing() {
    let lab = Lab::new();
    let arguments = ["init", "--receiver", "generator", "--translator", "json", "--sink", "parquet", "mine.yaml"];
    let wrote = runtime(&lab, &arguments).ends(0);
    assert_eq!(wrote.out, "");
    let valid = runtime(&lab, &["check", "mine.yaml"]).ends(0);
    assert!(valid.out.contains("topology 'orders' is valid"), "{}", valid.out);
    std::fs::write(lab.path("mine.yaml"), "mine").expect("mine");
    let refused = runtime(&lab, &arguments).ends(2);
    assert!(refused.err.contains("mine.yaml is there already") && refused.err.contains("--force"), "{}", refused.err);
    assert_eq!(std::fs::read_to_string(lab.path("mine.yaml")).expect("still there"), "mine");
    let forced: Vec<&str> = arguments.into_iter().chain(["--force"]).collect();
    runtime(&lab, &forced).ends(0);
    runtime(&lab, &["check", "mine.yaml"]).ends(0);
    let shown = runtime(&lab, &["init", "-"]).ends(0).out;
    assert!(
        shown.contains("    type: amqp\n") && shown.contains("    type: csv\n") && shown.contains("    type: delta\n")
    );
    let nearest = runtime(&lab, &["init", "--sink", "parket", "-"]).ends(2);
    assert!(nearest.err.contains("there is no sink 'parket'; did you mean 'parquet'?"), "{}", nearest.err);
    assert_eq!(files_below(&lab.path(".")).len(), 1, "nothing but the file that was asked for");
}

#[test]
fn a_topology_that_init_wrote_carries_messages() {
    let lab = Lab::new();
    for (at, translator) in ["binary", "csv", "json", "text"].into_iter().enumerate() {
        let file = format!("{translator}.yaml");
        let arguments = ["init", "--receiver", "memory", "--translator", translator, "--sink", "delta", &file];
        runtime(&lab, &arguments).ends(0);
        let yaml = std::fs::read_to_string(lab.path(&file)).expect("written");
        // Side by side with others, and with a table of its own.
        let yaml = yaml
            .replace("127.0.0.1:9464", "127.0.0.1:0")
            .replace("interval: 10s", "interval: 200ms")
            .replace("./data/", &format!("./data{at}/"));
        lab.write(&file, &yaml);
        let run = runtime(&lab, &["start", &file]).ends(0);
        assert!(run.err.contains("rejected 0,") && !run.err.contains("committed 0,"), "{}", run.err);
    }
}

#[test]
fn connect_finds_everything_there_and_takes_and_makes_nothing() {
    let lab = Lab::new();
    let broker = broker(BrokerConfig::default());
    lab.write("t.yaml", &topology(&broker.url(), ""));
    let fine = runtime(&lab, &["check", "t.yaml", "--connect"]).ends(0);
    for line in [
        &format!(
            "ok    receivers.orders (amqp): {}, without a user: attached to queue 'orders', nothing taken",
            broker.url()
        ),
        "ok    sinks.lake (delta): the table 'data/lake' will be created",
        "ok    sinks.shown (console): ",
        "ok    dead_letter (parquet): the directory 'data/rejected' will be created",
        "ok    checkpoint.store: 'data/state' will be created",
    ] {
        assert!(fine.out.contains(line), "{line}\n{}", fine.out);
    }
    let queue = broker.queue("orders");
    assert_eq!((queue.ready, queue.unsettled, queue.accepted, queue.redelivered), (10, 0, 0, 0));
    until(Duration::from_secs(10), "the link to go", || (broker.queue("orders").consumers == 0).then_some(()));
    assert_eq!(files_below(&lab.path(".")).len(), 1, "nothing but the topology");
    assert!(!lab.path("data").exists());

    // The same after a run, with everything there.
    let bounded = topology(&broker.url(), ", max_messages: 10");
    lab.write("t.yaml", &bounded);
    let run = lab.run(&["start", "t.yaml"]);
    assert_eq!(run.code, Some(0), "{}", run.text);
    let before = files_below(&lab.path("data"));
    let fine = runtime(&lab, &["check", "t.yaml", "--connect"]).ends(0);
    for line in ["the table 'data/lake' at version ", "'data/rejected' can be written", "its log is whole up to entry "]
    {
        assert!(fine.out.contains(line), "{line}\n{}", fine.out);
    }
    let names = |mut files: Vec<std::path::PathBuf>| {
        files.sort();
        files
    };
    assert_eq!(names(files_below(&lab.path("data"))), names(before));
}

#[test]
fn connect_tells_everything_that_is_wrong_at_once() {
    let lab = Lab::new();
    let config = BrokerConfig {
        user: Some("app".into()),
        password: Some(Secret::new("right-one")),
        auto_create: false,
        ..BrokerConfig::default()
    };
    let started = Broker::start_on_thread(config).expect("a broker");
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    lab.write(
        "t.yaml",
        &format!(
            "topology: orders
receivers:
  login: {{ type: amqp, url: \"{url}\", queue: orders, user: app, password: wrong-one }}
  queue: {{ type: amqp, url: \"{url}\", queue: nowhere, user: app, password: right-one }}
  away: {{ type: amqp, url: \"amqp://{closed}\", queue: orders }}
translators:
  plain: {{ from: [login, queue, away], type: text, select: [id, value] }}
sinks:
  lake: {{ from: plain, type: delta, table: lake }}
  files: {{ from: plain, type: parquet, path: file/below }}
dead_letter: {{ type: parquet, path: rejected }}
checkpoint: {{ store: state }}
",
            url = started.url()
        ),
    );
    std::fs::create_dir_all(lab.path("lake/_delta_log")).expect("a folder");
    std::fs::write(lab.path("file"), "no folder").expect("a file");
    let schema =
        r#"{\"type\":\"struct\",\"fields\":[{\"name\":\"id\",\"type\":\"long\",\"nullable\":true,\"metadata\":{}}]}"#;
    let version = format!(
        "{{\"protocol\":{{\"minReaderVersion\":1,\"minWriterVersion\":2}}}}\n{{\"metaData\":{{\"id\":\"t\",\"format\":{{\"provider\":\"parquet\",\"options\":{{}}}},\"schemaString\":\"{schema}\",\"partitionColumns\":[],\"configuration\":{{}}}}}}\n"
    );
    std::fs::write(lab.path("lake/_delta_log/00000000000000000000.json"), version).expect("a version");
    let log = lab.path("state/entry");
    std::fs::create_dir_all(&log).expect("a folder");
    std::fs::write(log.join("00000001"), "torn").expect("an entry");
    let wrong = runtime(&lab, &["check", "t.yaml", "--connect"]).ends(1);
    for line in [
        "FAIL  receivers.login (amqp): wrong user or password for amqp://",
        "has no queue 'nowhere'",
        &format!("FAIL  receivers.away (amqp): cannot reach amqp://{closed}"),
        "FAIL  sinks.lake (delta): cannot append to the table at 'lake': column 'id' is long in the table",
        "FAIL  sinks.files (parquet): cannot write into 'file': a file stands where a directory is needed",
        "ok    dead_letter (parquet): the directory 'rejected' will be created",
        "FAIL  checkpoint.store: checkpoint store state: cannot read entry 1",
    ] {
        assert!(wrong.out.contains(line), "{line}\n{}", wrong.out);
    }
    assert!(wrong.err.contains("6 of 7 checks failed"), "{}", wrong.err);
    assert!(!wrong.out.contains("wrong-one") && !wrong.out.contains("right-one"), "a secret was printed");
    assert_eq!(wrong.out.lines().filter(|line| line.starts_with("FAIL")).count(), 6, "a line each\n{}", wrong.out);

    lab.write("t.yaml", "topology: orders\n");
    runtime(&lab, &["check", "t.yaml", "--connect"]).ends(78);
}

#[test]
fn connect_sees_a_store_in_use_and_a_table_of_another_log() {
    let lab = Lab::new();
    let broker = broker(BrokerConfig::default());
    lab.write("t.yaml", &topology(&broker.url(), ""));
    let process = lab.start(&["start", "t.yaml"]);
    until(Duration::from_secs(60), "a commit", || (broker.queue("orders").accepted == 10).then_some(()));
    let used = runtime(&lab, &["check", "t.yaml", "--connect"]).ends(1);
    assert!(used.out.contains(&format!("in use by process {}", process.id())), "{}", used.out);
    process.signal("TERM");
    assert_eq!(process.wait(Duration::from_secs(60)).code, Some(0));
    runtime(&lab, &["check", "t.yaml", "--connect"]).ends(0);

    std::fs::rename(lab.path("data/state"), lab.path("data/old")).expect("the store is gone");
    let foreign = runtime(&lab, &["check", "t.yaml", "--connect"]).ends(1);
    assert!(foreign.out.contains("from another checkpoint store"), "{}", foreign.out);
    assert!(foreign.out.contains("start with --new-store"), "{}", foreign.out);
    std::fs::rename(lab.path("data/old"), lab.path("data/state")).expect("it is back");
    let other = topology(&broker.url(), "").replace("topology: orders", "topology: others");
    lab.write("t.yaml", &other);
    let other = runtime(&lab, &["check", "t.yaml", "--connect"]).ends(1);
    assert!(other.out.contains("belongs to topology 'orders', not to 'others'"), "{}", other.out);
}

#[test]
fn connect_waits_no_longer_than_it_may() {
    let lab = Lab::new();
    // Takes connections and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    lab.write("t.yaml", &topology(&format!("amqp://{}", silent.local_addr().expect("bound")), ""));
    let started = now();
    let late = runtime(&lab, &["check", "t.yaml", "--connect", "--timeout", "300ms"]).ends(1);
    assert!(late.out.contains("FAIL  receivers.orders (amqp): no answer within 300ms"), "{}", late.out);
    assert!(late.out.contains("ok    sinks.lake"), "the others are told all the same: {}", late.out);
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    let connect_timeout =
        topology(&format!("amqp://{}", silent.local_addr().expect("bound")), ", connect_timeout: 200ms");
    lab.write("t.yaml", &connect_timeout);
    let late = runtime(&lab, &["check", "t.yaml", "--connect"]).ends(1);
    assert!(late.out.contains("within 200ms while opening the connection"), "{}", late.out);
}

#[test]
fn connect_tries_a_topology_with_a_broker_of_its_own() {
    let lab = Lab::new();
    let mut yaml = topology("embedded", "");
    yaml.push_str("broker: { listen: 127.0.0.1:0, feed: [{ queue: orders, count: 1000000 }] }\n");
    yaml.push_str("telemetry: { listen: 127.0.0.1:0 }\n");
    lab.write("t.yaml", &yaml);
    let fine = runtime(&lab, &["check", "t.yaml", "--connect"]).ends(0);
    assert!(fine.out.contains("ok    broker: listens on 127.0.0.1:"), "{}", fine.out);
    assert!(fine.out.contains("attached to queue 'orders'"), "{}", fine.out);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound");
    lab.write(
        "t.yaml",
        &yaml.replace("telemetry: { listen: 127.0.0.1:0 }", &format!("telemetry: {{ listen: {address} }}")),
    );
    let wrong = runtime(&lab, &["check", "t.yaml", "--connect"]).ends(1);
    assert!(wrong.out.contains(&format!("FAIL  telemetry.listen: cannot listen on {address}")), "{}", wrong.out);
}

#[test]
fn health_tells_a_probe_and_a_person() {
    let lab = Lab::new();
    let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let url = format!("http://{free}");
    let nobody = runtime(&lab, &["health", "--url", &url]).ends(1);
    assert!(nobody.err.contains("refused") && nobody.err.contains(&format!("listen: {free}")), "{}", nobody.err);
    runtime(&lab, &["health", "--url", "https://127.0.0.1"]).ends(2);

    let broker = broker(BrokerConfig::default());
    lab.write("t.yaml", &topology(&broker.url(), ""));
    // In place of what the file says, or, as here, does not say.
    let process = lab.start(&["start", "t.yaml", "--telemetry", &free.to_string()]);
    until(Duration::from_secs(60), "ready", || {
        (runtime(&lab, &["health", "--url", &url]).code == Some(0)).then_some(())
    });
    assert_eq!(runtime(&lab, &["health", "--url", &url]).ends(0).out, "ready\n");
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(broker.stop());
    let reasons = until(Duration::from_secs(60), "not ready", || {
        let asked = runtime(&lab, &["health", "--url", &url]);
        (asked.code == Some(1)).then_some(asked)
    });
    assert!(reasons.out.starts_with("not ready\n  partition orders/0: "), "{reasons:?}");
    assert_eq!(runtime(&lab, &["health", "--url", &url, "--live"]).ends(0).out, "live\n");
    process.signal("TERM");
    process.wait(Duration::from_secs(60));

    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("bound"));
    let late = runtime(&lab, &["health", "--url", &url, "--timeout", "200ms"]).ends(1);
    assert!(late.err.contains("no answer within 200ms"), "{}", late.err);
}
