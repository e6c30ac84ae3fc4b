//! A program with a translator and a sink of its own: the one that the README shows, run from YAML by their names.

use std::fs;
use std::path::Path;
use std::time::Duration;

use arrow::datatypes::{DataType, SchemaRef};
use distributary::broker::{Broker, BrokerConfig};
use distributary::cli::{self, Exit};
use distributary::embed::{self, End, Refused};
use distributary::flow::registry::{Guarantee, Kind, SinkKind, TranslatorKind};
use distributary::flow::{PartitionId, Probed, SinkContext, SinkInstance, SinkOf, StageError, Target, message_columns};
use distributary::topology::{ProcessEnvironment, json_schema, load};
use fe2o3_amqp::{Connection, Sender, Session};
use fe2o3_amqp_types::messaging::{ApplicationProperties, Message, Properties};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::process::until;

#[allow(dead_code, reason = "its main is the program's, and not called here")]
mod program {
    include!("program.rs");

    pub fn kinds() -> Registry {
        registry()
    }

    pub fn run_to_the_end(yaml: &str) -> Result<embed::End, embed::Refused> {
        run(yaml)
    }
}

const PROGRAM: &str = include_str!("program.rs");
const README: &str = include_str!("../../../README.md");

/// The code block of this language in the README's section on embedding.
fn shown(language: &str) -> &'static str {
    let section = README.split_once("\n## Embedding\n").expect("a section 'Embedding'").1;
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let (_, block) = section.split_once(&format!("```{language}\n")).expect("a code block");
    block.split_once("```").expect("its end").0
}

/// The README's topology, with its broker and its files where the test has them.
fn topology(broker: &Broker, folder: &Path) -> String {
    let yaml = shown("yaml");
    for part in ["amqp://localhost:5672", "queue: orders }", "./data/"] {
        assert!(yaml.contains(part), "the README's topology names {part}");
    }
    let yaml = yaml.replace("queue: orders }", "queue: orders, max_messages: 4 }");
    yaml.replace("amqp://localhost:5672", &broker.url()).replace("./data/", &format!("{}/", folder.display()))
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Sends texts with the property `tenant` to the queue `orders`.
fn send(broker: &Broker, messages: &[(&str, &str, Option<&str>)]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut connection = Connection::open("sender", broker.url().as_str()).await.expect("a connection");
        let mut session = Session::begin(&mut connection).await.expect("a session");
        let mut sender = Sender::attach(&mut session, "sender", "orders").await.expect("a link");
        for (id, text, tenant) in messages {
            let mut properties = ApplicationProperties::builder().insert("priority", 7);
            if let Some(tenant) = tenant {
                properties = properties.insert("tenant", (*tenant).to_owned());
            }
            let message = Message::builder()
                .properties(Properties::builder().message_id((*id).to_owned()).build())
                .application_properties(properties.build())
                .value((*text).to_owned())
                .build();
            sender.send(message).await.expect("accepted");
        }
        let _ = sender.close().await;
        let _ = session.end().await;
        let _ = connection.close().await;
    });
}

fn broker() -> Broker {
    Broker::start_on_thread(BrokerConfig::default()).expect("a broker")
}

#[test]
fn the_readme_shows_the_program_that_runs_here() {
    assert_eq!(shown("rust"), PROGRAM, "copy tests/it/embedding/program.rs into the README's section 'Embedding'");
    for (of, begins, ends) in [("translator", "/// A translator", "/// A sink"), ("sink", "/// A sink", "fn registry")]
    {
        let (_, rest) = PROGRAM.split_once(begins).expect(begins);
        let code = rest.split_once(ends).expect(ends).0.lines().filter(|line| !line.trim().is_empty()).count();
        assert!(code <= 36, "a {of} takes {code} lines");
    }
}

#[test]
fn own_kinds_run_from_yaml_by_their_names() {
    let (broker, folder) = (broker(), tempfile::tempdir().expect("a folder"));
    send(
        &broker,
        &[("a", "12.50 USD", Some("blue")), ("b", "7", Some("red")), ("c", "1 EUR", None), ("d", "x", Some("red"))],
    );
    let end = program::run_to_the_end(&topology(&broker, folder.path())).expect("started");
    assert_eq!(end, End::Drained);
    let rows: Vec<_> = lines(&folder.path().join("orders.jsonl"))
        .iter()
        .map(|row| json!([row["id"], row["tenant"], row["amount"], row["currency"]]))
        .collect();
    assert_eq!(rows, [json!(["a", "blue", 12.5, "USD"]), json!(["b", "red", 7.0, "EUR"])]);
    let rejected = lines(&folder.path().join("rejected.jsonl"));
    let mut why: Vec<_> =
        rejected.iter().map(|row| (row["id"].as_str(), row["detail"].as_str().unwrap_or_default())).collect();
    why.sort_unstable();
    assert_eq!(why[0], (Some("c"), "the property 'tenant' is missing"));
    assert_eq!(why[1].0, Some("d"));
    assert!(why[1].1.starts_with("column 'amount'"), "{why:?}");
    assert_eq!(broker.queue("orders").accepted, 4);
}

#[test]
fn own_kinds_are_kinds_of_the_command_line() {
    let (broker, folder) = (broker(), tempfile::tempdir().expect("a folder"));
    let file = folder.path().join("orders.yaml");
    fs::write(&file, topology(&broker, folder.path())).expect("written");
    let file = file.to_str().expect("utf-8");
    let run = |words: &[&str]| cli::run(["orders", "--log", "off"].iter().chain(words), &program::kinds());
    assert_eq!(run(&["check", file]), Exit::Done);
    send(&broker, &[("a", "1", Some("t")), ("b", "2", Some("t")), ("c", "3", Some("t")), ("d", "4", Some("t"))]);
    assert_eq!(run(&["start", file]), Exit::Done);
    assert_eq!(lines(&folder.path().join("orders.jsonl")).len(), 4);

    let misspelt = topology(&broker, folder.path()).replace("currency: EUR", "curency: EUR");
    fs::write(file, &misspelt).expect("written");
    assert_eq!(run(&["start", file]), Exit::NotValid);
    let problems =
        load(&misspelt, "orders.yaml", &ProcessEnvironment, &program::kinds()).expect_err("misspelt").to_string();
    assert!(problems.contains("'curency'") && problems.contains("currency"), "{problems}");
    let schema = json_schema(&program::kinds()).to_string();
    assert!(schema.contains("The currency of amounts that name none."), "the schema documents it");

    let own = folder.path().join("own.yaml");
    let own = own.to_str().expect("utf-8");
    assert_eq!(run(&["init", "--translator", "orders", "--sink", "lines", own]), Exit::Done);
    assert_eq!(run(&["check", own]), Exit::Done, "{}", fs::read_to_string(own).expect("written"));
    for name in ["translators.orders", "sinks.lines"] {
        assert_eq!(run(&["describe", name]), Exit::Done, "{name}");
    }
}

#[test]
fn the_examples_of_own_kinds_pass_their_own_check() {
    let registry = program::kinds();
    let input: SchemaRef = message_columns(DataType::Utf8);
    let translator: &dyn TranslatorKind = registry.translators()["orders"].as_ref();
    let planned = translator.plan(&example(translator), &input).unwrap_or_else(|errors| panic!("{errors:?}"));
    assert!(planned.output().field_with_name("amount").is_ok());
    let sink: &dyn SinkKind = registry.sinks()["lines"].as_ref();
    assert_eq!(sink.check(&example(sink), &planned.output()), []);
    assert_eq!(sink.check(&json!({}), &planned.output()).len(), 1, "a path is needed");
}

fn example(kind: &(impl Kind + ?Sized)) -> Value {
    distributary::topology::fragment(kind.example()).unwrap_or_else(|error| panic!("{}: {error}", kind.name()))
}

/// A sink that never gets done, and says so.
#[derive(Clone, Deserialize, JsonSchema)]
struct Stuck {}

impl Target for Stuck {
    const NAME: &str = "stuck";
    const ABOUT: &str = "never gets done";
    const EXAMPLE: &str = "delivery: at_least_once";
    const GUARANTEE: Guarantee = Guarantee::AtLeastOnce;

    fn check(&self, input: &SchemaRef) -> Result<(), String> {
        if input.fields().len() > 20 { Err("too many columns".to_owned()) } else { Ok(()) }
    }

    async fn probe(&self, context: &SinkContext, _: bool) -> distributary::flow::Result<Probed> {
        Err(StageError::away(format!("'{}' is stuck", context.sink)))
    }

    fn sink(&self, _: &SinkContext, _: &PartitionId) -> SinkInstance {
        SinkInstance::AtLeastOnce(Box::new(self.clone()))
    }
}

#[async_trait::async_trait]
impl distributary::flow::Write for Stuck {
    async fn open(&mut self) -> distributary::flow::Result<()> {
        Ok(())
    }

    async fn write(
        &mut self,
        _: &distributary::flow::Rows,
    ) -> distributary::flow::Result<Vec<distributary::flow::Rejected>> {
        Ok(Vec::new())
    }

    async fn flush(&mut self) -> distributary::flow::Result<()> {
        std::future::pending().await
    }
}

fn stuck_topology(broker: &Broker) -> String {
    format!(
        "topology: stuck
receivers:
  queue: {{ type: amqp, url: \"{}\", queue: orders }}
batchers:
  bulk: {{ from: queue, max_age: 10ms }}
sinks:
  out: {{ from: bulk, type: stuck, delivery: at_least_once }}
checkpoint: {{ interval: 100ms, store: memory }}
supervision: {{ drain_timeout: 300ms }}
",
        broker.url()
    )
}

fn stuck(broker: &Broker) -> embed::Run {
    let run = embed::start(&stuck_topology(broker), &embed::standard().with_sink(SinkOf::<Stuck>::default()))
        .expect("started");
    let in_hand = || run.telemetry().tallies().get(&"queue".into()).is_some_and(|tally| tally.unsettled == 2);
    until(Duration::from_secs(60), "the messages", || in_hand().then_some(()));
    run
}

#[test]
fn a_check_asks_an_own_sink_how_it_is() {
    let (broker, folder) = (broker(), tempfile::tempdir().expect("a folder"));
    let file = folder.path().join("stuck.yaml");
    fs::write(&file, stuck_topology(&broker)).expect("written");
    let file = file.to_str().expect("utf-8");
    let check = |words: &[&str]| {
        let registry = embed::standard().with_sink(SinkOf::<Stuck>::default());
        cli::run(["stuck", "--log", "off", "check"].iter().chain(words), &registry)
    };
    assert_eq!(check(&[file]), Exit::Done);
    assert_eq!(check(&[file, "--connect"]), Exit::Failed);
}

/// Not ready at once, nothing accepted, and not taken for a good end.
#[test]
fn a_drain_that_does_not_get_done_is_a_failure() {
    let broker = broker();
    send(&broker, &[("a", "1", None), ("b", "2", None)]);
    let run = stuck(&broker);
    until(Duration::from_secs(60), "ready", || run.reasons().is_empty().then_some(()));
    run.drain();
    until(Duration::from_secs(60), "not ready", || run.reasons().contains(&"draining".to_owned()).then_some(()));
    let end = run.wait();
    let End::Failed(why) = &end else { panic!("the drain overran, and not {end:?}") };
    assert!(why.contains("supervision.drain_timeout"), "{why}");
    let queue = until(Duration::from_secs(60), "the messages back", || {
        Some(broker.queue("orders")).filter(|queue| queue.unsettled == 0)
    });
    assert_eq!((queue.ready, queue.accepted), (2, 0));
}

#[test]
fn a_run_is_killed_by_a_word_and_by_being_dropped() {
    let broker = broker();
    send(&broker, &[("a", "1", None), ("b", "2", None)]);
    let run = stuck(&broker);
    assert_eq!(run.telemetry().topology(), "stuck");
    run.kill();
    assert_eq!(run.wait(), End::Killed);
    drop(stuck(&broker));
    until(Duration::from_secs(60), "the messages back", || (broker.queue("orders").unsettled == 0).then_some(()));
    assert_eq!(broker.queue("orders").accepted, 0);
}

#[test]
fn what_cannot_run_is_refused_with_every_reason() {
    let Err(Refused::NotValid(problems)) = embed::start("topology: a b\nreceivers: {}\n", &embed::standard()) else {
        panic!("not valid")
    };
    assert!(problems.iter().count() >= 3, "{problems}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("state");
    let yaml = format!(
        "topology: t\nreceivers: {{ q: {{ type: memory, rows: [a] }} }}\nsinks: {{ s: {{ from: q, type: memory, table: t }} }}
checkpoint: {{ store: {} }}\ntelemetry: {{ listen: {} }}\n",
        store.display(),
        taken.local_addr().expect("bound")
    );
    let refused = embed::start(&yaml, &embed::standard()).expect_err("the port is taken");
    assert!(refused.to_string().contains("telemetry.listen"), "{refused}");
    assert!(!store.exists(), "nothing has begun");
}
