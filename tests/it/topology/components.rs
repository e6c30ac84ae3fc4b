//! What the standard registry says of itself, in all the places where it says it: examples, `describe`, `init`, the
//! schema for editors, the README. One source, so none of them can say anything else than the check does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use distributary::topology::{Parts, describe, fragment, json_schema, load, starter, summaries};
use jsonschema::Validator;
use serde_json::Value;

use super::{Given, standard};

fn check(yaml: &str) -> Result<(), String> {
    load(yaml, "t.yaml", &Given::default(), &standard()).map(|_| ()).map_err(|problems| problems.to_string())
}

#[track_caller]
fn accepted(yaml: &str) {
    check(yaml).unwrap_or_else(|problems| panic!("{yaml}\n{problems}"));
}

fn editor() -> Validator {
    jsonschema::validator_for(&json_schema(&standard())).expect("a valid schema")
}

/// What an editor would flag.
fn flagged(validator: &Validator, yaml: &str) -> Vec<String> {
    let value: Value = fragment(yaml).unwrap_or_else(|error| panic!("{yaml}\n{error}"));
    validator.iter_errors(&value).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// Every line that is a commented field, without its comment sign.
fn uncommented(yaml: &str) -> (String, usize) {
    let mut count = 0;
    let lines = yaml.lines().map(|line| {
        let field = line.trim_start().strip_prefix("# ");
        let key = field.and_then(|field| field.split_once(':')).map(|(key, _)| key);
        let is_key = key.is_some_and(|key| {
            key.trim_matches('"').chars().all(|c| c.is_ascii_lowercase() || c == '_') && !key.is_empty()
        });
        if is_key {
            count += 1
        }
        if is_key { line.replacen("# ", "", 1) } else { line.to_owned() }
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    (text, count)
}

fn starters() -> Vec<String> {
    let registry = standard();
    let mut all = Vec::new();
    for receiver in registry.sources().keys() {
        for translator in registry.translators().keys() {
            for sink in registry.sinks().keys() {
                all.push(starter(&registry, &Parts { receiver, translator, sink }).expect("parts that there are"));
            }
        }
    }
    all
}

#[test]
fn every_starter_is_accepted_and_so_is_every_optional_line_in_it() {
    let editor = editor();
    let all = starters();
    assert!(all.len() >= 48, "{}", all.len());
    for yaml in all {
        accepted(&yaml);
        assert_eq!(flagged(&editor, &yaml), [""; 0], "{yaml}");
        let (whole, count) = uncommented(&yaml);
        assert!(count >= 5, "{yaml}");
        accepted(&whole);
        assert_eq!(flagged(&editor, &whole), [""; 0], "{whole}");
        assert!(yaml.lines().all(|line| line.chars().count() <= 120), "{yaml}");
    }
}

#[test]
fn a_starter_of_what_there_is_not_names_the_nearest() {
    let parts = Parts { receiver: "ampq", translator: "csv", sink: "delat" };
    let problems = starter(&standard(), &parts).expect_err("misspelt");
    assert_eq!(
        problems,
        ["there is no receiver 'ampq'; did you mean 'amqp'?", "there is no sink 'delat'; did you mean 'delta'?"]
    );
}

/// The name of everything that can be described.
fn names() -> Vec<String> {
    let all = summaries(&standard());
    let kinds = all.iter().filter_map(|summary| Some(format!("{}.{}", summary.section, summary.kind?)));
    let sections: BTreeSet<&str> = all.iter().map(|summary| summary.section).collect();
    kinds.chain(sections.into_iter().map(str::to_owned)).collect()
}

#[test]
fn every_example_is_accepted_in_a_topology() {
    let registry = standard();
    let example = |name: &str| describe(&registry, name).expect(name).example;
    let base: BTreeMap<&str, String> = [
        ("receivers", "receivers.generator"),
        ("translators", "translators.text"),
        ("batchers", "batchers"),
        ("sinks", "sinks.delta"),
        ("checkpoint", "checkpoint"),
    ]
    .map(|(section, name)| (section, example(name)))
    .into();
    let names = names();
    assert!(names.len() >= 21, "{names:?}");
    for name in names {
        let mut sections = base.clone();
        sections.insert(name.split('.').next().expect("a section"), example(&name));
        accepted(&format!("topology: t\n{}", sections.into_values().collect::<String>()));
    }
}

#[test]
fn a_description_has_every_field_of_the_schema_and_no_other() {
    let registry = standard();
    let schema = json_schema(&registry);
    for name in names() {
        let description = describe(&registry, &name).expect("there is one");
        assert!(!description.about.is_empty() && !description.example.is_empty(), "{name}");
        let described: BTreeSet<_> = description.fields.iter().map(|field| field.path.clone()).collect();
        assert_eq!(described.len(), description.fields.len(), "{name}: a field is there twice");
        let of_schema = match name.split_once('.') {
            Some(_) => &schema["$defs"][&name],
            None => match &schema["properties"][&name] {
                section if section["additionalProperties"].is_object() => &section["additionalProperties"],
                section => section,
            },
        };
        let mut paths = BTreeSet::new();
        collect(of_schema, &schema, "", &mut paths);
        // The word of a kind is in its name. A section of kinds knows what all of them have.
        if name.contains('.') {
            paths.remove("type");
            assert_eq!(described, paths, "{name}");
        } else {
            assert!(paths.is_subset(&described), "{name}: {paths:?}");
            let whole = serde_json::to_string(&schema).expect("json");
            assert!(described.iter().all(|path| whole.contains(&format!("\"{}\"", last(path)))), "{name}");
        }
    }
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path).trim_end_matches("[]")
}

fn collect(schema: &Value, root: &Value, path: &str, paths: &mut BTreeSet<String>) {
    if let Some(target) = schema["$ref"].as_str().and_then(|to| root.pointer(to.strip_prefix('#')?)) {
        collect(target, root, path, paths);
    }
    for (key, field) in schema["properties"].as_object().into_iter().flatten() {
        let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        paths.insert(below.clone());
        collect(field, root, &below, paths);
    }
    collect_in(&schema["items"], root, &format!("{path}[]"), paths);
    collect_in(&schema["additionalProperties"], root, &format!("{path}.NAME"), paths);
    for branch in ["anyOf", "oneOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten() {
        collect(branch, root, path, paths);
    }
}

fn collect_in(schema: &Value, root: &Value, path: &str, paths: &mut BTreeSet<String>) {
    if schema.is_object() {
        collect(schema, root, path, paths);
    }
}

#[test]
fn every_field_says_what_it_is_for_what_it_counts_and_what_it_is_without() {
    let registry = standard();
    for name in names() {
        for field in describe(&registry, &name).expect("there is one").fields {
            let at = format!("{name}: {}", field.path);
            assert!(field.about.chars().count() > 8 && field.about.ends_with('.'), "{at}: {}", field.about);
            assert!(!field.about.contains("[`") && !field.about.contains("crate::"), "{at}: {}", field.about);
            assert!(!field.form.is_empty() && field.form != "nothing", "{at}");
            if field.form.contains("whole number") || field.form.starts_with("number") {
                assert!(field.form.contains(" of "), "{at}: {} of what?", field.form);
            }
            if !field.options.is_empty() && !field.required && field.path != "delivery" {
                assert!(field.default.is_some(), "{at} has no default");
            }
        }
    }
    let amqp = describe(&registry, "amqp").expect("only receivers have it");
    let field = |path: &str| amqp.fields.iter().find(|field| field.path == path).expect(path).clone();
    assert_eq!(field("partitions").form, "whole number of consumers, 1 to 1024");
    assert_eq!(field("partitions").default.as_deref(), Some("1"));
    assert_eq!(field("idle_timeout").form, "duration like 250ms, 10s, 2m or 7d");
    assert_eq!(field("idle_timeout").default.as_deref(), Some("30s"));
    assert_eq!(field("max_unsettled_bytes").default.as_deref(), Some("64MiB"));
    assert_eq!((field("password").form.as_str(), field("password").required), ("text that is never printed", false));
    assert!(amqp.fields[..2].iter().all(|field| field.required), "what must be there comes first");
    let format = field("format");
    assert_eq!((format.form.as_str(), format.default.as_deref()), ("one of text, binary", Some("text")));
    assert_eq!(format.options.len(), 2);
    let console = describe(&registry, "sinks.console").expect("there is one");
    let delivery = console.fields.iter().find(|field| field.path == "delivery").expect("delivery");
    assert_eq!((delivery.form.as_str(), delivery.required), ("at_least_once", true));
}

#[test]
fn a_name_that_is_unknown_or_not_enough_is_answered_with_others() {
    let registry = standard();
    for (name, says) in [
        ("receivers.ampq", "did you mean 'receivers.amqp'?"),
        ("receiver.amqp", "did you mean 'receivers.amqp'?"),
        ("ampq", "did you mean 'amqp'?"),
        ("chekpoint", "did you mean 'checkpoint'?"),
        ("memory", "'memory' is receivers.memory and sinks.memory: say which"),
        ("flux capacitor", "there are receivers.amqp, receivers.generator"),
    ] {
        let why = describe(&registry, name).expect_err(name);
        assert!(why.replace("there are: ", "there are ").contains(says), "{name}: {why}");
    }
}

/// A topology in which there is something to get wrong.
const ORDERS: &str = r#"topology: orders
receivers:
  orders:
    type: amqp
    url: amqp://localhost
    queue: orders
    partitions: 1
  more:
    type: generator
translators:
  parsed:
    from: orders
    type: csv
    columns: { animal: utf8 }
batchers:
  bulk:
    from: parsed
sinks:
  lake:
    from: bulk
    type: delta
    table: ./data
  shown:
    from: more
    type: console
    delivery: at_least_once
checkpoint:
  interval: 10s
  store: ./state
"#;

#[test]
fn an_editor_finds_seven_of_ten_mistakes_and_the_check_all() {
    let editor = editor();
    accepted(ORDERS);
    assert_eq!(flagged(&editor, ORDERS), [""; 0]);
    let mistakes = [
        // A variable that is not set, a name that is not there, a key that is there twice: no schema says that.
        (false, "url: amqp://localhost", "url: ${AMQP_URL}"),
        (true, "partitions: 1", "partitions: 0"),
        (true, "type: generator", "type: genrator"),
        (false, "from: orders", "from: ordres"),
        (true, "animal: utf8", "animal: utf9"),
        (true, "bulk:\n    from: parsed", "bulk/all:\n    from: parsed"),
        (true, "table: ./data", "tabel: ./data"),
        (true, "    delivery: at_least_once\n", ""),
        (true, "interval: 10s", "interval: 10"),
        (false, "interval: 10s", "interval: 10\n  interval: 10s"),
    ];
    let mut found = 0;
    for (by_schema, right, wrong) in mistakes {
        let yaml = ORDERS
            .replacen(right, wrong, 1)
            .replace("from: bulk", if wrong.starts_with("bulk/") { "from: bulk/all" } else { "from: bulk" });
        assert_ne!(yaml, ORDERS);
        check(&yaml).expect_err(wrong);
        // What is there twice is not even a value.
        let flags = fragment::<Value>(&yaml).map_or(Vec::new(), |_| flagged(&editor, &yaml));
        assert_eq!(!flags.is_empty(), by_schema, "{wrong}: {flags:?}");
        found += usize::from(!flags.is_empty());
    }
    assert_eq!(found, 7);
}

#[test]
fn an_editor_flags_what_the_check_flags_and_lets_references_stand() {
    let editor = editor();
    for (right, reference) in [
        ("partitions: 1", "partitions: ${PARTITIONS:-2}"),
        ("partitions: 1", "max_unsettled_bytes: ${BYTES:-1MiB}"),
        ("partitions: 1", "format: ${FORMAT:-text}"),
        ("interval: 10s", "interval: ${INTERVAL:-10s}"),
        ("store: ./state", "store: ${STATE:-./state}"),
        ("animal: utf8", "animal: \"${TYPE:-utf8}\""),
        ("topology: orders", "topology: ${NAME:-orders}"),
        ("checkpoint:", "telemetry: { listen: \"${LISTEN:-127.0.0.1:0}\" }\ncheckpoint:"),
        ("checkpoint:", "telemetry:\nidentity:\ncheckpoint:"),
        (
            "animal: utf8",
            "a: \"decimal(10,2)\", b: BIGINT, c: \"varchar(5)\", d: { type: date, format: \"%d\" }, e: double precision",
        ),
        ("columns:", "records: ${RECORDS:-many}\n    columns:"),
    ] {
        let yaml = ORDERS.replacen(right, reference, 1);
        accepted(&yaml);
        assert_eq!(flagged(&editor, &yaml), [""; 0], "{yaml}");
    }
    for (right, wrong) in [
        ("topology: orders", "topology: a b"),
        ("topology: orders\n", ""),
        ("sinks:", "sink:"),
        ("queue: orders", "queue: 5"),
        ("    queue: orders\n", ""),
        ("partitions: 1", "partitions: 1025"),
        ("partitions: 1", "partitions: many"),
        ("partitions: 1", "format: txt"),
        ("partitions: 1", "max_unsettled_bytes: 5 apples"),
        ("partitions: 1", "capabilities: queue"),
        ("type: csv", "type: delta"),
        ("from: bulk", "from: 5"),
        ("from: bulk\n    type: delta", "from: []\n    type: delta"),
        ("type: delta", "type: delta\n    delivery: at_least_once"),
        ("type: delta", "type: delta\n    max_open_files: 0"),
        ("store: ./state", "store: s3://bucket/x"),
        ("checkpoint:", "telemetry: { listen: here }\ncheckpoint:"),
        ("checkpoint:", "supervision: { backof: {} }\ncheckpoint:"),
        ("checkpoint:", "supervision: { backoff: { min: 1 } }\ncheckpoint:"),
        ("checkpoint:", "broker: { feed: [{ queue: a, count: -1 }] }\ncheckpoint:"),
        ("checkpoint:", "dead_letter: { type: console }\ncheckpoint:"),
        ("checkpoint:", "dead_letter:\ncheckpoint:"),
    ] {
        let yaml = ORDERS.replacen(right, wrong, 1);
        check(&yaml).expect_err(wrong);
        assert!(!flagged(&editor, &yaml).is_empty(), "{wrong}");
    }
}

#[test]
fn every_topology_that_comes_with_the_program_passes_the_schema() {
    let editor = editor();
    let mut count = 0;
    for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies")).expect("the folder") {
        let path = file.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("its text");
        assert_eq!(flagged(&editor, &text), [""; 0], "{}", path.display());
        count += 1;
    }
    assert!(count >= 5);
}

#[test]
fn the_tables_of_the_readme_are_those_of_the_registry() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(readme).expect("the README");
    let all = summaries(&standard());
    for section in ["receivers", "translators", "sinks"] {
        let mut table = match section {
            "sinks" => "| sinks | guarantee | |\n|---|---|---|\n".to_owned(),
            _ => format!("| {section} | |\n|---|---|\n"),
        };
        for summary in all.iter().filter(|summary| summary.section == section) {
            let promise = summary.guarantee.map(|promise| format!(" {} |", promise.as_str().replace('_', " ")));
            let (kind, promise) = (summary.kind.unwrap_or_default(), promise.unwrap_or_default());
            table.push_str(&format!("| `{kind}` |{promise} {} |\n", summary.about));
        }
        assert!(readme.contains(&format!("\n{table}\n")), "README.md should have:\n\n{table}");
    }
}

#[test]
fn a_horizon_must_outlast_the_idle_timeout_twice() {
    let yaml = |idle: &str, more: &str| {
        format!(
            "topology: t
receivers:
  orders:
    type: amqp
    url: amqp://localhost
    queue: orders{idle}
sinks:
  lake: {{ from: orders, type: delta, table: ./data }}
checkpoint: {{ store: ./state }}
{more}"
        )
    };
    let why = "a message whose settlement went over a dead link would be forgotten before the link is known to be dead, \
               and could come twice";
    for (idle, more, problem) in [
        (
            "",
            "identity: { horizon: 59s }",
            format!(
                "t.yaml:10:22: identity.horizon: shorter than twice the 30s of receivers.orders.idle_timeout: {why}; write 1m or more"
            ),
        ),
        (
            "\n    idle_timeout: 61s",
            "",
            format!(
                "t.yaml:7:19: receivers.orders.idle_timeout: longer than half of identity.horizon (2m): {why}; lower it, or write 'horizon: 122s'"
            ),
        ),
        (
            "\n    idle_timeout: 61s",
            "identity: { horizon: 2m }",
            format!(
                "t.yaml:11:22: identity.horizon: shorter than twice the 61s of receivers.orders.idle_timeout: {why}; write 122s or more"
            ),
        ),
    ] {
        assert_eq!(check(&yaml(idle, more)), Err(problem));
    }
    accepted(&yaml("", "identity: { horizon: 1m }"));
    accepted(&yaml("\n    idle_timeout: 61s", "identity: { horizon: 122s }"));
    let only_shown = yaml("", "identity: { horizon: 5s }")
        .replace("type: delta, table: ./data", "type: console, delivery: at_least_once");
    accepted(&only_shown);
}
