//! What the README says of metrics is what there is.

use std::collections::BTreeSet;

use distributary::telemetry::Telemetry;
use distributary::telemetry::metrics::{Behaviour, METRICS};
use serde_json::Value;

const README: &str = include_str!("../../README.md");

fn section() -> &'static str {
    let section = README.split_once("\n## Watching it\n").expect("a section").1;
    section.split_once("\n## ").expect("a section after it").0
}

/// The YAML blocks of the section.
fn blocks() -> Vec<&'static str> {
    section().split("```yaml\n").skip(1).map(|block| block.split_once("```").expect("its end").0).collect()
}

/// The names in `text` that look like those of our series.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("distributary_")).collect()
}

/// What one partition's registry exports: the text of `/metrics`.
fn exported() -> String {
    let telemetry = Telemetry::new("t");
    telemetry.partition(&"r".into(), 0);
    telemetry.render(true)
}

#[test]
fn the_table_of_metrics_is_what_is_exported() {
    let rows = section().lines().filter(|line| line.starts_with("| `")).collect::<Vec<_>>();
    let expected: Vec<_> = METRICS
        .iter()
        .map(|metric| {
            let behaviour = match metric.behaviour {
                Behaviour::Counter => "counter",
                Behaviour::Gauge => "gauge",
                Behaviour::Histogram => "histogram",
            };
            let labels = metric.about.labels().join(", ");
            format!("| `{}` | {behaviour} | {labels} | {} | {} |", metric.name, metric.unit, metric.help)
        })
        .collect();
    assert_eq!(rows, expected, "the table in the README should be\n{}", expected.join("\n"));

    let text = exported();
    let types: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert_eq!(types.len(), rows.len(), "{types:?}");
    for row in rows {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let (name, behaviour) = (cells.next().expect("a name").trim_matches('`'), cells.next().expect("a type"));
        assert!(types.contains(&&*format!("{name} {behaviour}")), "{name} is not exported as {behaviour}: {types:?}");
        let total = (behaviour == "counter") == name.ends_with("_total");
        assert!(total, "a counter, and nothing else, ends with _total: {name}");
    }
}

#[test]
fn alerts_and_scrapes_name_only_what_exists() {
    let blocks = blocks();
    let parsed: Vec<Value> =
        blocks.iter().map(|block| distributary::topology::fragment(block).expect("valid YAML")).collect();
    let scrape = parsed.iter().find_map(|block| block["scrape_configs"].as_array()).expect("a prometheus.yml");
    assert_eq!(scrape[0]["static_configs"][0]["targets"][0], "127.0.0.1:9464");
    let rules = parsed.iter().find_map(|block| block["groups"][0]["rules"].as_array()).expect("alert rules");
    let text = exported();
    let series: BTreeSet<_> =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(['{', ' ']).next()).collect();
    let mut used = BTreeSet::new();
    for rule in rules {
        let expression = rule["expr"].as_str().expect("an expression");
        assert!(rule["alert"].is_string() && rule["annotations"]["summary"].is_string(), "{rule}");
        let named = names(expression);
        assert!(!named.is_empty() && named.is_subset(&series), "{expression}: {named:?}");
        used.extend(named);
    }
    for wanted in [
        "distributary_parked",
        "distributary_ready",
        "distributary_oldest_unsettled_seconds",
        "distributary_checkpoint_age_seconds",
        "distributary_rejected_total",
        "distributary_restarts_total",
        "distributary_reconnects_total",
    ] {
        assert!(used.contains(wanted), "no alert looks at {wanted}");
    }
    let labels: BTreeSet<_> = blocks
        .concat()
        .split("$labels.")
        .skip(1)
        .map(|rest| rest.split(' ').next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(Vec::from_iter(labels), ["component", "partition", "reason", "topology"]);
}
