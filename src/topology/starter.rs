//! A commented topology to start from, made of the examples of its kinds and the documentation of their fields.
//!
//! What is optional stands in it as a comment with its default. Invariant: it passes the check, as it is and with every
//! such line uncommented.

use std::fmt::Write;

use super::describe::{self, FieldDoc, capital, describe, first_sentence, of_kind, with_type};
use super::problem::suggestion;
use super::schema::Section;
use super::words;
use crate::flow::registry::{Kind, Registry};

/// Comments are no wider than this.
const WIDTH: usize = 110;

/// What the topology is made of: a word after `type:` for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// Where messages come from.
    pub receiver: &'a str,
    /// How bodies become columns.
    pub translator: &'a str,
    /// Where rows go.
    pub sink: &'a str,
}

/// A topology of these parts.
///
/// # Errors
/// A sentence for each part that there is not.
pub fn starter(registry: &Registry, parts: &Parts<'_>) -> Result<String, Vec<String>> {
    let mut problems = Vec::new();
    let mut text = String::from("topology: orders\n");
    for (section, wanted) in [
        (Section::Receivers, parts.receiver),
        (Section::Translators, parts.translator),
        (Section::Batchers, ""),
        (Section::Sinks, parts.sink),
    ] {
        let kinds = section.kinds(registry);
        let kind = kinds.iter().find(|(name, _)| *name == wanted).map(|(_, kind)| *kind);
        if kind.is_none() && section.has_kinds() {
            let names = kinds.into_iter().map(|(name, _)| name);
            problems.push(format!(
                "there is no {} '{wanted}'; {}",
                section.one(),
                suggestion(wanted, names, "there are")
            ));
        } else {
            let sample = registry.translators().get(parts.translator).and_then(|kind| kind.sample());
            let receiver = registry.sources().get(parts.receiver).filter(|_| section == Section::Receivers);
            let quoted = sample.map(|body| format!("'{}'", body.replace('\'', "''")));
            let of_sample = receiver.zip(quoted).and_then(|(kind, body)| kind.example_of(&body));
            stage(&mut text, registry, section, kind, of_sample.as_deref());
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    dead_letter(&mut text, registry, parts.sink);
    for key in ["checkpoint", "telemetry"] {
        if let Ok(described) = describe(registry, key) {
            comment(&mut text, 0, &sentences(&described.about));
            let own: String = described.example.lines().skip(1).map(|line| format!("{}\n", &line[2..])).collect();
            let _ = writeln!(text, "{key}:");
            block(&mut text, 2, &own, &described.fields);
        }
    }
    Ok(text)
}

/// A section with one stage in it, with these fields or those of its kind's example.
fn stage(text: &mut String, registry: &Registry, section: Section, kind: Option<&dyn Kind>, own: Option<&str>) {
    let (name, from) = section.example_names();
    let (about, fields) = match (kind, describe(registry, section.key())) {
        (Some(kind), _) => (kind.about(), of_kind(registry, section, kind).fields),
        (None, Ok(described)) => (section.about(), described.fields),
        (None, Err(_)) => return,
    };
    let example = match kind {
        Some(kind) => with_type(kind, own.unwrap_or(kind.example())),
        None => section.example().unwrap_or_default().to_owned(),
    };
    let _ = write!(text, "\n{}:\n  # {}\n  {name}:\n", section.key(), sentences(&[about.to_owned()]));
    if let Some(from) = from {
        let _ = writeln!(text, "    from: {from}");
    }
    block(text, 4, &example, &fields);
}

/// The section of rejected messages: as its example has it, or like the sink, where there is no such kind.
fn dead_letter(text: &mut String, registry: &Registry, sink: &str) {
    let section = Section::DeadLetter;
    let example = section.example().unwrap_or_default();
    let word = example.lines().find_map(|line| line.strip_prefix("type: ")).unwrap_or_default();
    let sinks = registry.sinks();
    let example = match sinks.get(sink) {
        Some(kind) if !sinks.contains_key(word) => describe::example(kind.as_ref()),
        _ => example.to_owned(),
    };
    comment(text, 0, &sentences(&[section.about().to_owned()]));
    let _ = writeln!(text, "{}:", section.key());
    block(text, 2, &example, &[]);
}

/// A stage's fields: those of the example, each below what it is for, then the others as comments.
fn block(text: &mut String, indent: usize, example: &str, fields: &[FieldDoc]) {
    let mut written = vec!["from"];
    for line in example.lines() {
        let key = line.split(':').next().filter(|key| !key.is_empty() && !key.starts_with([' ', '-']));
        if let Some(key) = key {
            written.push(key);
            if let Some(field) = fields.iter().find(|field| field.path == key) {
                prose(text, indent, &sentences(std::slice::from_ref(&field.about)));
            }
        }
        let _ = writeln!(text, "{:indent$}{line}", "");
    }
    let others = fields.iter().filter(|field| !field.path.contains(['.', '[']) && !written.contains(&&*field.path));
    for FieldDoc { path, default, about, .. } in others {
        // One of them is called null.
        let path = words::written(&path.as_str().into());
        let value = default.as_ref().map(|default| format!(" {default}")).unwrap_or_default();
        let about = sentences(std::slice::from_ref(about));
        if path.chars().count() + value.chars().count() + about.chars().count() > WIDTH - 10 {
            prose(text, indent, &about);
            let _ = writeln!(text, "{:indent$}# {path}:{value}", "");
        } else {
            let _ = writeln!(text, "{:indent$}# {path}:{value} # {about}", "");
        }
    }
}

/// The first sentence of the first paragraph, with its full stop.
fn sentences(paragraphs: &[String]) -> String {
    let first = paragraphs.first().map(|text| first_sentence(text)).unwrap_or_default();
    format!("{}.", capital(&first))
}

/// A comment after an empty line.
fn comment(text: &mut String, indent: usize, sentence: &str) {
    text.push('\n');
    prose(text, indent, sentence);
}

/// A comment, on as many lines as it takes.
fn prose(text: &mut String, indent: usize, sentence: &str) {
    for line in words::filled(sentence, WIDTH - indent - 3) {
        let _ = writeln!(text, "{:indent$}# {line}", "");
    }
}
