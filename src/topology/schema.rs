//! The JSON Schema of a stage, composed from what its kind says of itself, and a node held against it.
//!
//! One source: an editor (`editor`), `describe` and the check read the same schemas. Invariant: a node that passes can be
//! deserialised by the type that its schema was derived from, but for what a schema cannot say (that is a problem too).

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::node::{Content, Node, Origin};
use super::problem::{Path, Report};
use super::settings::{BatcherFields, ReceiverFields, SinkFields, StoreConfig};
use super::substitution::{Environment, read_file};
use super::violation;
use crate::flow::registry::{Kind, Registry};
use crate::units::{Size, Span};

/// A part of the file that holds stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Section {
    Receivers,
    Translators,
    Batchers,
    Sinks,
    DeadLetter,
}

impl Section {
    /// Those whose stages have names, in the order of the flow.
    pub const NAMED: [Self; 4] = [Self::Receivers, Self::Translators, Self::Batchers, Self::Sinks];

    pub fn key(self) -> &'static str {
        match self {
            Self::Receivers => "receivers",
            Self::Translators => "translators",
            Self::Batchers => "batchers",
            Self::Sinks => "sinks",
            Self::DeadLetter => "dead_letter",
        }
    }

    /// One of its stages.
    pub fn one(self) -> &'static str {
        match self {
            Self::Receivers => "receiver",
            Self::Translators => "translator",
            Self::Batchers => "batcher",
            Self::Sinks | Self::DeadLetter => "sink",
        }
    }

    /// What it is for, in one sentence.
    pub fn about(self) -> &'static str {
        match self {
            Self::Receivers => "where messages come from, by name; each runs as one or more partitions",
            Self::Translators => "message columns into declared columns, by name",
            Self::Batchers => "small batches into large ones, by name; a sink without one gets one with these defaults",
            Self::Sinks => "where rows go, by name",
            Self::DeadLetter => {
                "the sink of what is rejected; without it the first rejected message parks its partition"
            }
        }
    }

    /// A stage of it, if it has no kinds whose examples would do.
    pub fn example(self) -> Option<&'static str> {
        match self {
            Self::Batchers => Some("max_rows: 20000\nmax_age: 1s\n"),
            Self::DeadLetter => Some("type: parquet\npath: ./data/orders-rejected\n"),
            Self::Receivers | Self::Translators | Self::Sinks => None,
        }
    }

    /// The name that examples give one of its stages, and what that takes from.
    pub fn example_names(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Receivers => ("orders", None),
            Self::Translators => ("parsed", Some("orders")),
            Self::Batchers => ("bulk", Some("parsed")),
            Self::Sinks => ("lake", Some("bulk")),
            Self::DeadLetter => ("dead_letter", None),
        }
    }

    /// The kinds its stages may be of.
    pub fn kinds(self, registry: &Registry) -> Vec<(&'static str, &dyn Kind)> {
        match self {
            Self::Receivers => registry.sources().iter().map(|(&name, kind)| (name, &**kind as &dyn Kind)).collect(),
            Self::Translators => {
                registry.translators().iter().map(|(&name, kind)| (name, &**kind as &dyn Kind)).collect()
            }
            Self::Sinks | Self::DeadLetter => {
                registry.sinks().iter().map(|(&name, kind)| (name, &**kind as &dyn Kind)).collect()
            }
            Self::Batchers => Vec::new(),
        }
    }

    pub fn has_kinds(self) -> bool {
        self != Self::Batchers
    }

    pub fn has_from(self) -> bool {
        !matches!(self, Self::Receivers | Self::DeadLetter)
    }
}

/// The schema that a type's own documentation makes.
pub(super) fn schema_of<T: JsonSchema + ?Sized>() -> Value {
    SchemaGenerator::new(SchemaSettings::draft2020_12()).into_root_schema_for::<T>().to_value()
}

/// The keys of a stage that are the topology's and not its kind's.
pub(super) fn common_keys(section: Section) -> Vec<String> {
    properties(&stage(section, None)).map(|(key, _)| key.clone()).collect()
}

/// The schema of a stage; without a kind, of the fields that all stages of the section have.
pub(super) fn stage(section: Section, kind: Option<&dyn Kind>) -> Value {
    let common = match section {
        Section::Receivers => schema_of::<ReceiverFields>(),
        Section::Batchers => schema_of::<BatcherFields>(),
        Section::Sinks | Section::DeadLetter => schema_of::<SinkFields>(),
        Section::Translators => json!({}),
    };
    let own = kind.map_or_else(|| json!({}), |kind| unwrapped(kind.schema().to_value()));
    let mut fields = Map::new();
    let mut required = Vec::new();
    if section.has_from() {
        required.push(json!("from"));
        fields.insert(
            "from".into(),
            json!({
                "description": "The stage, or the list of stages, that this one takes from.",
                "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" }, "minItems": 1 }],
            }),
        );
    }
    if section.has_kinds() {
        required.push(json!("type"));
        let of_kind = kind.map_or_else(
            || json!({ "type": "string", "description": "Which kind it is." }),
            |kind| json!({ "const": kind.name() }),
        );
        fields.insert("type".into(), of_kind);
    }
    fields.extend(properties(&common).map(|(key, schema)| (key.clone(), schema.clone())));
    for (key, schema) in properties(&own) {
        fields.entry(key.clone()).or_insert_with(|| schema.clone());
    }
    let own_required = own.get("required").and_then(Value::as_array).into_iter().flatten();
    required.extend(own_required.filter(|&key| !required.contains(key)).cloned().collect::<Vec<_>>());

    let mut schema = match own {
        Value::Object(own) => own,
        _ => Map::new(),
    };
    let definitions = common.get("$defs").and_then(Value::as_object).cloned().unwrap_or_default();
    if !definitions.is_empty() {
        let all = schema.entry("$defs").or_insert_with(|| json!({}));
        if let Value::Object(all) = all {
            all.extend(definitions);
        }
    }
    let mut closed = "additionalProperties";
    for alternatives in ["oneOf", "anyOf", "allOf"] {
        let branches = schema.get_mut(alternatives).and_then(Value::as_array_mut);
        for branch in branches.into_iter().flatten().filter_map(Value::as_object_mut) {
            // A branch that closed itself would refuse the fields that are not its own.
            branch.remove("additionalProperties");
            closed = "unevaluatedProperties";
        }
    }
    let open = schema.remove("additionalProperties").filter(Value::is_object);
    let others = match section.has_kinds() && kind.is_none() {
        true => json!(true),
        false => open.unwrap_or(json!(false)),
    };
    if let Some(kind) = kind {
        let own = schema.get("description").and_then(Value::as_str).unwrap_or_default();
        let about = format!("{}\n\n{own}", kind.about());
        schema.insert("description".into(), about.trim().into());
    }
    for (key, value) in
        [("type", json!("object")), ("properties", fields.into()), ("required", required.into()), (closed, others)]
    {
        schema.insert(key.into(), value);
    }
    Value::Object(schema)
}

/// A schema that is only a reference to one of its own definitions, as that definition.
fn unwrapped(mut schema: Value) -> Value {
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|to| schema.pointer(to.strip_prefix('#')?));
    let Some(Value::Object(target)) = target.cloned() else { return schema };
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("$ref");
        schema.extend(target);
    }
    schema
}

/// The fields of an object's schema.
pub(super) fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

/// Holds `node` against `schema` and reports what does not fit; `true`: it fits. Files are read, and text that came from
/// a variable becomes the number or the bool that the schema asks for.
pub(super) fn examine(
    schema: &Value,
    node: &mut Node,
    path: &Path,
    environment: &dyn Environment,
    report: &mut Report,
) -> bool {
    let before = report.count();
    apply(schema, schema, node, 0);
    settle_files(node, path, environment, report);
    let validator = jsonschema::options()
        .should_validate_formats(true)
        .with_format("span", |text: &str| text.parse::<Span>().is_ok())
        .with_format("size", |text: &str| text.parse::<Size>().is_ok())
        .with_format("listen", |text: &str| text.parse::<std::net::SocketAddr>().is_ok())
        .with_format("store", |text: &str| StoreConfig::read(text).is_some())
        .build(schema);
    let validator = match validator {
        Ok(validator) => validator,
        Err(error) => {
            report.foreign_problem(path, &format!("the schema of this kind is broken: {error}"));
            return false;
        }
    };
    let mut value = node.json();
    let wanted: Vec<_> = validator.iter_errors(&value).flat_map(|error| violation::wanted_types(&error)).collect();
    if wanted.into_iter().filter(|(steps, types)| become_wanted(node, steps, types)).count() > 0 {
        value = node.json();
    }
    for error in validator.iter_errors(&value) {
        violation::tell(&error, schema, node, path, report);
    }
    report.count() == before && !node.is_broken()
}

/// Marks every place below `node` that `schema` marks as a secret, in whichever branch, and writes whole numbers whole:
/// to JSON Schema 5.0 is an integer, to serde it is not.
fn apply(schema: &Value, root: &Value, node: &mut Node, depth: usize) {
    const DEEPEST: usize = 100;
    if depth > DEEPEST || !schema.is_object() {
        return;
    }
    if schema["format"] == "secret" {
        node.secret = true;
    }
    if let (true, Content::Scalar(Value::Number(number))) = (may_be_integer(schema), &mut node.content) {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if let Some(whole) = number.as_f64().filter(|n| number.is_f64() && n.fract() == 0.0 && n.abs() < EXACT) {
            *number = (whole as i64).into();
        }
    }
    if let Some(target) = schema["$ref"].as_str().and_then(|to| root.pointer(to.strip_prefix('#')?)) {
        apply(target, root, node, depth + 1);
    }
    for branch in ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten() {
        apply(branch, root, node, depth + 1);
    }
    match &mut node.content {
        Content::Scalar(_) => {}
        Content::List(items) => items.iter_mut().for_each(|item| apply(&schema["items"], root, item, depth + 1)),
        Content::Map(entries) => {
            for entry in entries {
                let field = schema["properties"].get(&entry.key).unwrap_or(&schema["additionalProperties"]);
                apply(field, root, &mut entry.value, depth + 1);
            }
        }
    }
}

fn may_be_integer(schema: &Value) -> bool {
    let types = &schema["type"];
    types == "integer" || types.as_array().is_some_and(|types| types.iter().any(|name| name == "integer"))
}

/// Reads the files of all but secrets, which keep their reference and are read at each use; notes what is private.
fn settle_files(node: &mut Node, path: &Path, environment: &dyn Environment, report: &mut Report) {
    if !node.secret {
        read_file(node, path, environment, report);
    }
    match &mut node.content {
        Content::Scalar(Value::String(text))
            if node.secret && !matches!(node.origin, Origin::File(_) | Origin::Broken) =>
        {
            report.keep_private(text);
            if text.starts_with("${file:") && text.ends_with('}') {
                report.problem(path, "a secret that reads like ${file:…} would be taken for that file; choose another");
            }
        }
        Content::Scalar(_) => {}
        Content::List(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                settle_files(item, &path.index(index), environment, report);
            }
        }
        Content::Map(entries) => {
            for entry in entries {
                settle_files(&mut entry.value, &path.key(&entry.key), environment, report);
            }
        }
    }
}

/// Turns text that is wholly a `${NAME}` into a number or a bool where one of `types` is that.
fn become_wanted(node: &mut Node, steps: &[String], types: &[&str]) -> bool {
    let node = steps.iter().try_fold(node, |node, step| match &mut node.content {
        Content::Map(entries) => entries.iter_mut().find(|entry| entry.key == *step).map(|entry| &mut entry.value),
        Content::List(items) => items.get_mut(step.parse::<usize>().ok()?),
        Content::Scalar(_) => None,
    });
    let Some(node) = node else { return false };
    let (Some(text), Origin::Default | Origin::Outside { whole: true }) = (node.text(), &node.origin) else {
        return false;
    };
    let value = match text.trim() {
        "true" if types.contains(&"boolean") => Value::Bool(true),
        "false" if types.contains(&"boolean") => Value::Bool(false),
        text if types.iter().any(|name| matches!(*name, "integer" | "number")) => match super::document::number(text) {
            Some(number) => Value::Number(number),
            None => return false,
        },
        _ => return false,
    };
    node.content = Content::Scalar(value);
    true
}
