//! What there is, and what each of it takes: the same schemas that the check and the editors use, for people.
//!
//! Values in, values out; the command line does the printing. Invariant: every field of a description is a field of the
//! schema, with the schema's own words.

use serde_json::Value;

use super::dead_letter_schema;
use super::editor::component;
use super::problem::{nearest, suggestion};
use super::schema::{Section, properties, stage};
use super::settings::{self, Settings};
use super::words;
use crate::flow::registry::{Guarantee, Kind, Registry};

/// One line of a list of all there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The section it belongs to, or is.
    pub section: &'static str,
    /// The word after `type:`; `None` for the section itself.
    pub kind: Option<&'static str>,
    /// What it is, in a sentence.
    pub about: String,
    /// What it promises, if it is a sink.
    pub guarantee: Option<Guarantee>,
}

/// What is known of a component or a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// `receivers.amqp`, `checkpoint`, …
    pub name: String,
    /// What it is, a paragraph each.
    pub about: Vec<String>,
    /// What it promises, if it is a sink.
    pub guarantee: Option<Guarantee>,
    /// What may stand after `type:`, if there is a choice, as names to ask for.
    pub kinds: Vec<String>,
    /// Everything that may be written.
    pub fields: Vec<FieldDoc>,
    /// It, in a topology.
    pub example: String,
}

/// One field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldDoc {
    /// `max_age`; `backoff.min` within a map, `feed[].queue` within a list, `columns.NAME` under names of your own.
    pub path: String,
    /// What may be written: type, unit, range.
    pub form: String,
    /// The words it may be, with what each means.
    pub options: Vec<(String, String)>,
    /// Whether it must be there.
    pub required: bool,
    /// What stands for it where it is left out, as it would be written.
    pub default: Option<String>,
    /// What it is for.
    pub about: String,
}

/// Everything there is, in the order of the flow.
pub fn summaries(registry: &Registry) -> Vec<Summary> {
    let mut all = Vec::new();
    for section in Section::NAMED.into_iter().filter(|section| section.has_kinds()) {
        for (name, kind) in section.kinds(registry) {
            let (about, guarantee) = (kind.about().to_owned(), guarantee(registry, section, name));
            all.push(Summary { section: section.key(), kind: Some(name), about, guarantee });
        }
    }
    for section in [Section::Batchers, Section::DeadLetter] {
        all.push(Summary { section: section.key(), kind: None, about: section.about().to_owned(), guarantee: None });
    }
    for Settings { key, schema, .. } in settings::all() {
        let about = schema["description"].as_str().map(|text| small(&first_sentence(text))).unwrap_or_default();
        all.push(Summary { section: key, kind: None, about, guarantee: None });
    }
    all
}

/// The description of `name`: a section, a kind with its section before it (`sinks.delta`), or a kind alone if only one
/// section has it.
///
/// # Errors
/// A sentence, with the nearest name, if there is nothing of this name.
pub fn describe(registry: &Registry, name: &str) -> Result<Description, String> {
    let sections = || Section::NAMED.into_iter().chain([Section::DeadLetter]);
    if let Some(section) = sections().find(|section| section.key() == name) {
        return Ok(of_section(registry, section));
    }
    if let Some(settings) = settings::all().into_iter().find(|settings| settings.key == name) {
        return Ok(of_settings(&settings));
    }
    let mut kinds = Vec::new();
    for section in Section::NAMED {
        for (word, kind) in section.kinds(registry) {
            kinds.push((section, word, kind, format!("{}.{word}", section.key())));
        }
    }
    let meant: Vec<_> = kinds.iter().filter(|(_, word, _, path)| path == name || *word == name).collect();
    match meant[..] {
        [(section, _, kind, _)] => return Ok(of_kind(registry, *section, *kind)),
        [] => {}
        _ => {
            let paths: Vec<&str> = meant.iter().map(|(.., path)| path.as_str()).collect();
            return Err(format!("'{name}' is {}: say which", paths.join(" and ")));
        }
    }
    let keys = sections().map(Section::key).chain(settings::all().map(|settings| settings.key));
    let known: Vec<String> = kinds.iter().map(|(.., path)| path.clone()).chain(keys.map(str::to_owned)).collect();
    let words = kinds.iter().map(|(_, word, ..)| *word);
    let near = nearest(name, known.iter().map(String::as_str)).or_else(|| nearest(name, words));
    Err(match near {
        Some(near) => format!("there is no '{name}'; did you mean '{near}'?"),
        None => format!("there is no '{name}'; {}", suggestion(name, known.iter().map(String::as_str), "there are")),
    })
}

fn guarantee(registry: &Registry, section: Section, kind: &str) -> Option<Guarantee> {
    registry.sinks().get(kind).filter(|_| section == Section::Sinks).map(|sink| sink.guarantee())
}

/// A kind in its section.
pub(super) fn of_kind(registry: &Registry, section: Section, kind: &dyn Kind) -> Description {
    let schema = component(registry, section, kind);
    Description {
        name: format!("{}.{}", section.key(), kind.name()),
        about: paragraphs(&schema),
        guarantee: guarantee(registry, section, kind.name()),
        kinds: Vec::new(),
        fields: fields(&schema),
        example: placed(section, &example(kind)),
    }
}

fn of_section(registry: &Registry, section: Section) -> Description {
    let kinds = section.kinds(registry);
    let mut about = vec![format!("{}.", capital(section.about()))];
    if section == Section::DeadLetter {
        let columns = dead_letter_schema();
        let names: Vec<&str> = columns.fields().iter().map(|field| field.name().as_str()).collect();
        about.push(format!("Its columns: {}.", names.join(", ")));
    }
    let of = if section == Section::DeadLetter { Section::Sinks.key() } else { section.key() };
    let first = || kinds.first().map(|(_, kind)| example(*kind)).unwrap_or_default();
    let example = section.example().map_or_else(first, str::to_owned);
    Description {
        name: section.key().to_owned(),
        about,
        guarantee: None,
        kinds: kinds.into_iter().map(|(name, _)| format!("{of}.{name}")).collect(),
        fields: fields(&stage(section, None)),
        example: placed(section, &example),
    }
}

fn of_settings(settings: &Settings) -> Description {
    let Settings { key, example, schema } = settings;
    Description {
        name: (*key).to_owned(),
        about: paragraphs(schema),
        guarantee: None,
        kinds: Vec::new(),
        fields: fields(schema),
        example: format!("{key}:\n{}", indented(example, 2)),
    }
}

/// A stage of this kind, but for where it takes from.
pub(super) fn example(kind: &(impl Kind + ?Sized)) -> String {
    with_type(kind, kind.example())
}

/// The same with other fields.
pub(super) fn with_type(kind: &(impl Kind + ?Sized), fields: &str) -> String {
    format!("type: {}\n{fields}", kind.name())
}

/// An example as it stands in a topology.
fn placed(section: Section, example: &str) -> String {
    if section == Section::DeadLetter {
        return format!("{}:\n{}", section.key(), indented(example, 2));
    }
    let (name, from) = section.example_names();
    let from = from.map(|from| format!("    from: {from}\n")).unwrap_or_default();
    format!("{}:\n  {name}:\n{from}{}", section.key(), indented(example, 4))
}

/// Every line so far to the right.
fn indented(text: &str, by: usize) -> String {
    text.lines().map(|line| format!("{:by$}{line}\n", "")).collect()
}

/// What a schema says of itself, each paragraph on one line.
fn paragraphs(schema: &Value) -> Vec<String> {
    let text = schema["description"].as_str().unwrap_or_default();
    let one_line = |text: &str| {
        let text = capital(&Vec::from_iter(text.split_whitespace()).join(" "));
        if text.is_empty() || text.ends_with(['.', '…', ':']) { text } else { format!("{text}.") }
    };
    text.split("\n\n").map(one_line).filter(|text| !text.is_empty()).collect()
}

/// With a capital letter.
pub(super) fn capital(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}

/// Without one.
fn small(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map(|first| first.to_lowercase().chain(rest).collect()).unwrap_or_default()
}

/// The first sentence of a paragraph, without its full stop.
pub(super) fn first_sentence(text: &str) -> String {
    let mut ends = text.match_indices(". ").filter(|(at, _)| text[at + 2..].starts_with(|c: char| !c.is_lowercase()));
    let end = ends.next().map_or(text.len(), |(at, _)| at);
    text[..end].trim_end_matches('.').to_owned()
}

/// Every field of an object's schema, with those within it; what must be there comes first.
fn fields(schema: &Value) -> Vec<FieldDoc> {
    let mut reading = Reading { root: schema, fields: Vec::new() };
    reading.object(schema, "", 0);
    reading.fields
}

/// Schemas may name themselves.
const DEEPEST: usize = 6;

struct Reading<'a> {
    root: &'a Value,
    fields: Vec<FieldDoc>,
}

impl Reading<'_> {
    fn object(&mut self, schema: &Value, above: &str, depth: usize) {
        let required = schema["required"].as_array();
        let is_required = |key: &str| required.is_some_and(|names| names.iter().any(|name| name == key));
        let mut all: Vec<_> = properties(schema).collect();
        for branch in branches(schema) {
            all.extend(properties(branch).filter(|(key, _)| schema["properties"].get(key).is_none()));
        }
        all.sort_by_key(|(key, _)| !is_required(key));
        for (key, field) in all {
            // The kind's own name is in the title.
            if depth == 0 && key == "type" && field.get("const").is_some() {
                continue;
            }
            let field = self.resolved(field);
            let path = format!("{above}{key}");
            self.fields.push(FieldDoc {
                form: self.form(&field),
                options: options(&field),
                required: is_required(key),
                default: default(&field),
                about: paragraphs(&field).join(" "),
                path: path.clone(),
            });
            self.within(&field, &path, depth);
        }
    }

    /// The fields below a field.
    fn within(&mut self, schema: &Value, path: &str, depth: usize) {
        if depth > DEEPEST {
            return;
        }
        if schema["properties"].is_object() {
            self.object(schema, &format!("{path}."), depth + 1);
        }
        for (key, step) in [("items", "[]"), ("additionalProperties", ".NAME")] {
            if schema[key].is_object() {
                let below = self.resolved(&schema[key]);
                self.within(&below, &format!("{path}{step}"), depth + 1);
            }
        }
        for branch in branches(schema) {
            let branch = self.resolved(branch);
            self.within(&branch, path, depth + 1);
        }
    }

    /// A schema that is a reference, as what it names; what stands beside the reference counts more.
    fn resolved(&self, schema: &Value) -> Value {
        let target = schema["$ref"].as_str().and_then(|to| self.root.pointer(to.strip_prefix('#')?));
        let (Some(Value::Object(target)), Some(beside)) = (target, schema.as_object()) else { return schema.clone() };
        let mut whole = target.clone();
        whole.extend(beside.iter().filter(|(key, _)| *key != "$ref").map(|(key, value)| (key.clone(), value.clone())));
        Value::Object(whole)
    }

    /// What may be written.
    fn form(&self, schema: &Value) -> String {
        if schema["format"] == "secret" {
            return "text that is never printed".to_owned();
        }
        if let Some(phrase) = schema["format"].as_str().and_then(words::of_format) {
            return bare(phrase).to_owned();
        }
        let options = options(schema);
        if !options.is_empty() {
            let words: Vec<&str> = options.iter().map(|(word, _)| word.as_str()).collect();
            return if words.len() == 1 { words[0].to_owned() } else { format!("one of {}", words.join(", ")) };
        }
        let mut forms: Vec<String> = Vec::new();
        for branch in branches(schema) {
            let form = self.form(&self.resolved(branch));
            if form != "nothing" && !forms.contains(&form) {
                forms.push(form);
            }
        }
        for name in types(schema).into_iter().filter(|name| *name != "null" && forms.is_empty()).collect::<Vec<_>>() {
            forms.push(self.typed(name, schema));
        }
        if forms.is_empty() { "nothing".to_owned() } else { forms.join(" or ") }
    }

    fn typed(&self, name: &str, schema: &Value) -> String {
        let below = |key: &str| schema[key].is_object().then(|| self.form(&self.resolved(&schema[key])));
        let mut form = bare(words::of_type(name)).to_owned();
        match name {
            "integer" | "number" => {
                if let Some(unit) = schema["x-unit"].as_str() {
                    form = format!("{form} of {unit}");
                }
                if let Some(range) = range(schema) {
                    form = format!("{form}, {range}");
                }
            }
            "array" => form = below("items").map_or(form, |item| format!("list of {item}")),
            "object" => {
                form = below("additionalProperties").map_or(form, |value| format!("map of names to {value}"));
            }
            _ => {}
        }
        form
    }
}

/// Without its article.
fn bare(phrase: &str) -> &str {
    phrase.strip_prefix("a ").or_else(|| phrase.strip_prefix("an ")).unwrap_or(phrase)
}

fn branches(schema: &Value) -> impl Iterator<Item = &Value> {
    ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten()
}

fn types(schema: &Value) -> Vec<&str> {
    match &schema["type"] {
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        name => name.as_str().into_iter().collect(),
    }
}

/// The words of an enumeration, with what each means.
fn options(schema: &Value) -> Vec<(String, String)> {
    let mut options = Vec::new();
    for word in schema["enum"].as_array().into_iter().flatten().filter(|word| !word.is_null()) {
        options.push((words::written(word), String::new()));
    }
    for one in [schema].into_iter().chain(branches(schema)) {
        let about = if std::ptr::eq(one, schema) { String::new() } else { paragraphs(one).join(" ") };
        options.extend(one.get("const").map(|word| (words::written(word), about)));
    }
    options
}

fn range(schema: &Value) -> Option<String> {
    let limit = |key: &str| schema[key].as_f64();
    match (limit("minimum"), limit("exclusiveMinimum"), limit("maximum")) {
        (Some(least), _, Some(most)) => Some(format!("{least} to {most}")),
        (Some(least), _, None) => Some(format!("{least} or more")),
        (None, Some(above), Some(most)) => Some(format!("more than {above}, at most {most}")),
        (None, Some(above), None) => Some(format!("more than {above}")),
        (None, None, Some(most)) => Some(format!("at most {most}")),
        (None, None, None) => None,
    }
}

fn default(schema: &Value) -> Option<String> {
    // The fields of a map of ours have defaults of their own.
    if schema["properties"].is_object() {
        return None;
    }
    match &schema["default"] {
        Value::Null => match types(schema)[..] {
            ["array"] => Some("[]".to_owned()),
            ["object"] => Some("{}".to_owned()),
            _ => None,
        },
        value => Some(words::written(value)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_sentence_ends_where_the_next_begins() {
        assert_eq!(first_sentence("A path, i.e. a folder. It is made."), "A path, i.e. a folder");
        assert_eq!(first_sentence("One."), "One");
        assert_eq!(first_sentence(""), "");
    }

    #[test]
    fn schemas_read_like_sentences() {
        let schema = json!({
            "properties": {
                "size": { "$ref": "#/$defs/Size", "description": "how\nlarge" },
                "map": { "type": "object", "additionalProperties": { "$ref": "#/$defs/Inner" } },
                "share": { "type": "number", "exclusiveMinimum": 0, "maximum": 1, "x-unit": "the whole" },
                "none": { "type": "null" },
            },
            "required": ["share"],
            "$defs": {
                "Size": { "anyOf": [{ "type": "integer", "minimum": 2 }, { "type": ["string", "null"] }], "default": 7 },
                "Inner": { "type": "object", "properties": { "again": { "$ref": "#/$defs/Inner" }, "on": { "type": "boolean" } } },
            },
        });
        let all = fields(&schema);
        let field = |path: &str| all.iter().find(|field| field.path == path).expect(path);
        assert_eq!(all[0].path, "share", "what must be there comes first");
        assert_eq!(field("share").form, "number of the whole, more than 0, at most 1");
        assert_eq!(field("size").form, "whole number, 2 or more or text");
        assert_eq!((field("size").about.as_str(), field("size").default.as_deref()), ("How large.", Some("7")));
        assert_eq!(field("map").form, "map of names to map");
        assert_eq!(field("map.NAME.on").form, "true or false");
        assert_eq!(field("none").form, "nothing");
        assert!(all.len() < 30, "a schema that names itself ends");
    }
}
