//! `runtime list`: every receiver, translator and sink there is, and the sections of a topology.

use super::text::columns;
use super::{Exit, print};
use crate::flow::registry::Registry;
use crate::topology::{Summary, summaries};

pub(super) const EXAMPLE: &str = "Example:
  runtime list
  runtime describe receivers.amqp    what one of them takes";

pub(super) fn run(registry: &Registry) -> Exit {
    print(&listed(registry))
}

fn listed(registry: &Registry) -> String {
    let all = summaries(registry);
    let mut text = String::new();
    for section in ["receivers", "translators", "sinks"] {
        let kinds = all.iter().filter(|summary| summary.section == section);
        let rows: Vec<_> = kinds.filter_map(|summary| summary.kind.map(|kind| row(kind, summary))).collect();
        text.push_str(&format!("{section}\n{}\n", columns(&rows, 2)));
    }
    let sections: Vec<_> =
        all.iter().filter(|summary| summary.kind.is_none()).map(|summary| row(summary.section, summary)).collect();
    text.push_str(&format!("other sections of a topology\n{}\n", columns(&sections, 2)));
    text.push_str("`runtime describe NAME` says more of each: receivers.amqp, sinks.delta, checkpoint, …\n");
    text
}

fn row(name: &str, summary: &Summary) -> Vec<String> {
    let promise = summary.guarantee.map(|guarantee| guarantee.as_str().replace('_', " "));
    [Some(name.to_owned()), promise, Some(summary.about.clone())].into_iter().flatten().collect()
}
