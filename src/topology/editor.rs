//! The JSON Schema of a whole topology file, for editors.
//!
//! It is put together from the schemas that the check uses. An editor sees a file before `${…}` is substituted, so every
//! place that wants something else than text also takes a reference; and an editor knows only the schema, so what the
//! check says in better words (`x-editor`) is written out here as far as a schema can. Invariant: what the check accepts
//! passes, but for a `type` that is itself a reference.

use serde_json::{Map, Value, json};

use super::schema::{self, Section};
use super::settings::{self, Settings};
use crate::flow::registry::{Guarantee, Kind, Registry};

/// Keywords of ours; the first is merged into the schema it stands in, both are for nobody else.
const EDITOR: &str = "x-editor";
const UNIT: &str = "x-unit";

/// A reference somewhere in a text.
const REFERENCE: &str = r"\$\{";

/// The schema of a stage of this kind, and what else of it a schema can say: which `delivery` the kind allows.
pub(super) fn component(registry: &Registry, section: Section, kind: &dyn Kind) -> Value {
    let mut schema = schema::stage(section, Some(kind));
    if !matches!(section, Section::Sinks | Section::DeadLetter) {
        return schema;
    }
    let guarantee = registry.sinks().get(kind.name()).map(|kind| kind.guarantee());
    if let Some(delivery) = schema.pointer_mut("/properties/delivery").and_then(Value::as_object_mut)
        && let Some(guarantee) = guarantee
    {
        let promise = match guarantee {
            Guarantee::ExactlyOnce => "Each message is in it once, whatever fails.",
            Guarantee::AtLeastOnce => "After a failure rows may come twice, which is to be said here.",
        };
        let words = json!([guarantee.as_str()]);
        *delivery = Map::from_iter([("description".into(), promise.into()), ("enum".into(), words)]);
        if guarantee == Guarantee::ExactlyOnce {
            delivery.insert("default".into(), guarantee.as_str().into());
        } else if let Some(required) = schema["required"].as_array_mut() {
            required.push("delivery".into());
        }
    }
    schema
}

/// The JSON Schema of every topology that `registry` allows, for editors.
pub fn json_schema(registry: &Registry) -> Value {
    let mut definitions = Map::new();
    let mut sections = Map::new();
    let name = json!({ "type": "string", "pattern": "^[A-Za-z0-9_-]+$" });
    sections.insert(
        "topology".into(),
        json!({ "description": "The topology's name.", "type": "string", "pattern": format!("^[A-Za-z0-9_-]+$|{REFERENCE}") }),
    );
    for section in Section::NAMED.into_iter().chain([Section::DeadLetter]) {
        let stage = stages(registry, section, &mut definitions);
        let mut schema = match section {
            Section::DeadLetter => stage,
            Section::Receivers | Section::Sinks => {
                json!({ "type": "object", "propertyNames": name, "minProperties": 1, "additionalProperties": stage })
            }
            Section::Translators | Section::Batchers => {
                json!({ "type": ["object", "null"], "propertyNames": name, "additionalProperties": stage })
            }
        };
        schema["description"] = section.about().into();
        sections.insert(section.key().into(), schema);
    }
    for Settings { key, schema, .. } in settings::all() {
        let mut schema = hoisted(schema, key, &mut definitions);
        // Nothing after the colon stands for the defaults.
        schema["type"] = json!(["object", "null"]);
        sections.insert(key.into(), schema);
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Distributary topology",
        "description": "Messages from queues into tables: receiver -> translator -> batcher -> sink.",
        "type": "object",
        "properties": sections,
        "required": ["topology", "receivers", "sinks"],
        "additionalProperties": false,
        "$defs": definitions,
    })
}

/// The schema of one stage of a section: by its `type` one of the definitions.
fn stages(registry: &Registry, section: Section, definitions: &mut Map<String, Value>) -> Value {
    if !section.has_kinds() {
        return hoisted(schema::stage(section, None), section.key(), definitions);
    }
    let (mut names, mut abouts, mut cases) = (Vec::new(), Vec::new(), Vec::new());
    for (name, kind) in section.kinds(registry) {
        let key = format!("{}.{name}", section.key());
        let schema = hoisted(component(registry, section, kind), &key, definitions);
        definitions.insert(key.clone(), schema);
        names.push(name);
        abouts.push(kind.about());
        cases.push(json!({
            "if": { "properties": { "type": { "const": name } }, "required": ["type"] },
            "then": { "$ref": format!("#/$defs/{key}") },
        }));
    }
    let of_type = json!({ "description": "What it is.", "enum": names, "enumDescriptions": abouts });
    json!({ "type": "object", "required": ["type"], "properties": { "type": of_type }, "allOf": cases })
}

/// As an editor needs it, with its own definitions moved to `definitions`, under names that start with `owner`.
fn hoisted(mut schema: Value, owner: &str, definitions: &mut Map<String, Value>) -> Value {
    fn rename(schema: &mut Value, owner: &str) {
        match schema {
            Value::Object(fields) => {
                for (key, value) in fields {
                    match value {
                        Value::String(to) if key == "$ref" => {
                            if let Some(name) = to.strip_prefix("#/$defs/") {
                                *to = format!("#/$defs/{owner}.{name}");
                            }
                        }
                        value => rename(value, owner),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| rename(item, owner)),
            _ => {}
        }
    }
    loosen(&mut schema);
    rename(&mut schema, owner);
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("$schema");
        fields.remove("title");
        if let Some(Value::Object(own)) = fields.remove("$defs") {
            definitions.extend(own.into_iter().map(|(name, schema)| (format!("{owner}.{name}"), schema)));
        }
    }
    schema
}

/// Lets a reference stand where something else than text is wanted, here and below, and turns keywords and formats of
/// ours into what every editor knows.
fn loosen(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    for (key, value) in fields.iter_mut() {
        match key.as_str() {
            "properties" | "$defs" => {
                let each = value.as_object_mut().into_iter().flatten();
                // The word after `type:` chooses the schema, so it must be there.
                each.filter(|(key, field)| *key != "type" || field.get("const").is_none()).for_each(|(_, v)| loosen(v));
            }
            "items" | "additionalProperties" | "unevaluatedProperties" => loosen(value),
            "allOf" | "anyOf" | "oneOf" => {
                let branches = value.as_array_mut().into_iter().flatten();
                branches.filter(|branch| branch.get("const").is_none()).for_each(loosen);
            }
            _ => {}
        }
    }
    fields.remove(UNIT);
    fields.remove("format");
    if let Some(Value::Object(more)) = fields.remove(EDITOR) {
        fields.extend(more);
    }
    let reference = json!({ "type": "string", "pattern": REFERENCE });
    if let Some(Value::Array(branches)) = fields.get_mut("oneOf")
        && branches.iter().any(|branch| branch.get("const").is_some())
    {
        branches.push(reference);
    } else if let Some(options) = fields.remove("enum") {
        fields.remove("type");
        fields.insert("anyOf".into(), json!([{ "enum": options }, reference]));
    } else if let Some(pattern) = fields.get("pattern").and_then(Value::as_str) {
        let pattern = format!("{pattern}|{REFERENCE}");
        fields.insert("pattern".into(), pattern.into());
    } else if let Some(types) = fields.get("type") {
        let mut types: Vec<Value> = types.as_array().cloned().unwrap_or_else(|| vec![types.clone()]);
        let is = |types: &[Value], wanted: &str| types.iter().any(|name| name == wanted);
        let scalar = ["integer", "number", "boolean"].into_iter().any(|wanted| is(&types, wanted));
        if scalar && !is(&types, "string") {
            types.push("string".into());
            fields.insert("type".into(), types.into());
            fields.insert("pattern".into(), REFERENCE.into());
        }
    }
}
