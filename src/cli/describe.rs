//! `runtime describe NAME`: every field of a component or section, and an example that works.

use clap::Args;

use super::text::wrapped;
use super::{Exit, fail, print};
use crate::flow::registry::Registry;
use crate::topology::{Description, FieldDoc, describe};

pub(super) const EXAMPLE: &str = "Examples:
  runtime describe receivers.amqp
  runtime describe sinks.delta
  runtime describe csv              enough where only one section has it
  runtime describe checkpoint";

#[derive(Args)]
pub(super) struct Arguments {
    /// A component like `receivers.amqp`, `translators.csv` or `sinks.delta`, or a section like `checkpoint`, `batchers`,
    /// `dead_letter` or `telemetry`. `runtime list` shows all of them.
    name: String,
}

pub(super) fn run(arguments: &Arguments, registry: &Registry) -> Exit {
    match describe(registry, &arguments.name) {
        Ok(description) => print(&shown(&description)),
        Err(why) => fail(Exit::Usage, why),
    }
}

fn shown(description: &Description) -> String {
    let Description { name, about, guarantee, kinds, fields, example } = description;
    let mut text = format!("{name}\n\n");
    for paragraph in about {
        text.push_str(&wrapped(paragraph, 2));
        text.push('\n');
    }
    if let Some(guarantee) = guarantee {
        text.push_str(&format!("  Delivery: {}.\n\n", guarantee.as_str().replace('_', " ")));
    }
    if !kinds.is_empty() {
        let types = format!("What its type adds is said by `runtime describe` of {}.", kinds.join(", "));
        text.push_str(&format!("{}\n", wrapped(&types, 2)));
    }
    if !fields.is_empty() {
        text.push_str("Fields\n\n");
    }
    for field in fields {
        text.push_str(&shown_field(field));
        text.push('\n');
    }
    text.push_str("Example\n\n");
    text.extend(example.lines().map(|line| format!("  {line}\n")));
    text
}

fn shown_field(field: &FieldDoc) -> String {
    let FieldDoc { path, form, options, required, default, about } = field;
    let mut text = format!("  {path}: {form}");
    if *required {
        text.push_str("; required");
    } else if let Some(default) = default {
        text.push_str(&format!("; default {default}"));
    } else {
        text.push_str("; optional");
    }
    text.push('\n');
    text.push_str(&wrapped(about, 6));
    for (word, meaning) in options.iter().filter(|(_, meaning)| !meaning.is_empty()) {
        text.push_str(&wrapped(&format!("- {word}: {meaning}"), 6));
    }
    text
}
