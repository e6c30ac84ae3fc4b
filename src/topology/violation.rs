//! What a schema violation means to somebody who wrote the file: what is allowed, what was found, the nearest name.
//!
//! Invariant: a value that is a secret, or that came from outside the file, is never shown; its type is.

use jsonschema::error::{TypeKind, ValidationErrorKind as Violated};
use jsonschema::paths::{Location, LocationSegment};
use jsonschema::{JsonType, ValidationError};
use serde_json::Value;

use super::node::{Content, Node};
use super::problem::{Path, Report, Step, nearest, shown, suggestion};
use super::words;

/// Reports one violation below the node at `path`.
pub(super) fn tell(error: &ValidationError<'_>, schema: &Value, node: &Node, path: &Path, report: &mut Report) {
    Telling { schema, root: node, base: path, report }.tell(error);
}

/// Where the error would go away if the value were of one of these types.
pub(super) fn wanted_types(error: &ValidationError<'_>) -> Vec<(Vec<String>, Vec<&'static str>)> {
    match error.kind() {
        Violated::Type { kind } => {
            let steps = error.instance_path().segments().map(|segment| match segment {
                LocationSegment::Property(key) => key.into_owned(),
                LocationSegment::Index(index) => index.to_string(),
            });
            vec![(steps.collect(), types(kind).into_iter().map(JsonType::as_str).collect())]
        }
        Violated::AnyOf { context } | Violated::OneOfNotValid { context } => {
            context.iter().flatten().flat_map(wanted_types).collect()
        }
        _ => Vec::new(),
    }
}

fn types(kind: &TypeKind) -> Vec<JsonType> {
    match kind {
        TypeKind::Single(one) => vec![*one],
        TypeKind::Multiple(several) => several.into_iter().collect(),
    }
}

struct Telling<'a, 'r> {
    schema: &'a Value,
    root: &'a Node,
    base: &'a Path,
    report: &'r mut Report,
}

impl<'a> Telling<'a, '_> {
    fn tell(&mut self, error: &ValidationError<'_>) {
        let (path, node) = self.find(error.instance_path());
        let branches = match error.kind() {
            Violated::AnyOf { context } | Violated::OneOfNotValid { context } => Some(context),
            _ => None,
        };
        let scalar = matches!(node.content, Content::Scalar(_));
        if node.is_broken() && (scalar || branches.is_some()) {
            return;
        }
        match error.kind() {
            Violated::AdditionalProperties { unexpected } | Violated::UnevaluatedProperties { unexpected } => {
                let known = self.known_keys(error);
                for key in unexpected {
                    let end = suggestion(key, known.iter().copied(), "known keys");
                    self.report.key_problem(&path.key(key), format!("unknown key {}; {end}", shown(key)));
                }
            }
            Violated::Required { property } => {
                let missing = property.as_str().unwrap_or_default();
                let known = self.known_keys(error);
                let mut unknown = node.entries().iter().map(|entry| &*entry.key).filter(|key| !known.contains(key));
                match unknown.find(|key| nearest(key, known.iter().copied()) == Some(missing)) {
                    None => self.report.problem(&path, format!("missing key '{missing}'")),
                    // The key is there, misspelt. That is said of every unknown key, but where any may stand: a stage without
                    // a kind has fields that nobody knows.
                    Some(key) if self.schema_of(error)["additionalProperties"] == true => {
                        let end = suggestion(key, [missing], "known keys");
                        self.report.key_problem(&path.key(key), format!("unknown key {}; {end}", shown(key)));
                    }
                    Some(_) => {}
                }
            }
            _ if branches.is_some() && self.expectation(error).is_none() => {
                self.tell_branches(branches.into_iter().flatten(), &path, node);
            }
            _ => {
                let message = match self.expectation(error) {
                    Some(expected) => mismatch(&expected, node),
                    None => error.masked().to_string(),
                };
                self.report.problem(&path, message);
            }
        }
    }

    /// None of several forms fits: says what the one form needs that is meant, or names them all.
    fn tell_branches<'e>(
        &mut self,
        branches: impl Iterator<Item = &'e Vec<ValidationError<'static>>> + Clone,
        path: &Path,
        node: &Node,
    ) {
        let here = |error: &&ValidationError<'_>| self.find(error.instance_path()).0 == *path;
        let wrong_type = |branch: &Vec<ValidationError<'_>>| {
            branch.iter().filter(here).any(|error| matches!(error.kind(), Violated::Type { .. }))
        };
        let of_this_type: Vec<_> = branches.clone().filter(|branch| !wrong_type(branch)).collect();
        let options: Vec<String> = of_this_type.iter().copied().flatten().flat_map(options_of).collect();
        if !options.is_empty()
            && of_this_type.iter().all(|branch| branch.iter().any(|error| !options_of(error).is_empty()))
        {
            let message = mismatch(&Expected::OneOf(options), node);
            return self.report.problem(path, message);
        }
        if let Some(closest) = of_this_type.into_iter().min_by_key(|branch| branch.len()) {
            return closest.iter().for_each(|error| self.tell(error));
        }
        let mut forms: Vec<String> = Vec::new();
        for error in branches.flatten() {
            let expected = match error.kind() {
                Violated::AnyOf { context } | Violated::OneOfNotValid { context } => {
                    context.iter().flatten().filter_map(|error| self.expectation(error)).collect()
                }
                _ => Vec::from_iter(self.expectation(error)),
            };
            for form in expected.into_iter().map(|expected| expected.to_string()) {
                if form != "nothing" && !forms.contains(&form) {
                    forms.push(form);
                }
            }
        }
        let message = mismatch(&Expected::Phrase(forms.join(" or ")), node);
        self.report.problem(path, message);
    }

    /// What would have been right.
    fn expectation(&self, error: &ValidationError<'_>) -> Option<Expected> {
        let here = self.schema_of(error);
        let format = here.get("format").and_then(Value::as_str).and_then(words::of_format);
        let plain = |text: String| Some(Expected::Phrase(text));
        match error.kind() {
            Violated::Type { .. } | Violated::Pattern { .. } | Violated::AnyOf { .. } if format.is_some() => {
                plain(format?.to_owned())
            }
            Violated::Format { format } => {
                plain(words::of_format(format).map_or_else(|| format!("a valid {format}"), str::to_owned))
            }
            Violated::Type { kind } => {
                let names = types(kind)
                    .into_iter()
                    .filter(|name| *name != JsonType::Null)
                    .map(|name| words::of_type(name.as_str()));
                plain(Vec::from_iter(names).join(" or ")).filter(|_| types(kind) != [JsonType::Null])
            }
            Violated::Pattern { pattern } => plain(format!("text that matches {pattern}")),
            Violated::Enum { .. } | Violated::Constant { .. } => Some(Expected::OneOf(options_of(error))),
            Violated::Minimum { limit } => plain(format!("{limit} or more")),
            Violated::Maximum { limit } => plain(format!("{limit} or less")),
            Violated::ExclusiveMinimum { limit } => plain(format!("more than {limit}")),
            Violated::ExclusiveMaximum { limit } => plain(format!("less than {limit}")),
            Violated::MinLength { limit: 1 } => plain("text that is not empty".to_owned()),
            Violated::MinItems { limit: 1 } => plain("a list that is not empty".to_owned()),
            Violated::MinProperties { limit: 1 } => plain("a map that is not empty".to_owned()),
            _ => None,
        }
    }

    /// The subschema that was violated.
    fn schema_of(&self, error: &ValidationError<'_>) -> &'a Value {
        let keyword = error.schema_path().as_str();
        let parent = keyword.rsplit_once('/').map_or("", |(parent, _)| parent);
        self.schema.pointer(parent).unwrap_or(&Value::Null)
    }

    /// Every key that the violated subschema knows.
    fn known_keys(&self, error: &ValidationError<'_>) -> Vec<&'a str> {
        fn collect<'s>(schema: &'s Value, root: &'s Value, depth: usize, keys: &mut Vec<&'s str>) {
            const DEEPEST: usize = 16;
            if depth > DEEPEST {
                return;
            }
            keys.extend(schema["properties"].as_object().into_iter().flatten().map(|(key, _)| &**key));
            let target = schema["$ref"].as_str().and_then(|to| root.pointer(to.strip_prefix('#')?));
            let branches = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten();
            for part in target.into_iter().chain(branches) {
                collect(part, root, depth + 1, keys);
            }
        }
        let mut keys = Vec::new();
        collect(self.schema_of(error), self.schema, 0, &mut keys);
        keys
    }

    /// The node below the root that the validator means.
    fn find(&self, location: &Location) -> (Path, &'a Node) {
        let (mut path, mut node) = (self.base.clone(), self.root);
        for segment in location.segments() {
            let key = match segment {
                LocationSegment::Property(key) => key.into_owned(),
                LocationSegment::Index(index) => index.to_string(),
            };
            let (step, next) = match &node.content {
                Content::List(items) => {
                    let index = key.parse().unwrap_or(usize::MAX);
                    (Step::Index(index), items.get(index))
                }
                _ => (Step::Key(key.clone()), node.get(&key)),
            };
            let Some(next) = next else { break };
            (path, node) = (path.step(step), next);
        }
        (path, node)
    }
}

/// What a value should have been.
enum Expected {
    Phrase(String),
    OneOf(Vec<String>),
}

impl std::fmt::Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Phrase(phrase) => f.write_str(phrase),
            Self::OneOf(options) if options.len() == 1 => f.write_str(&options[0]),
            Self::OneOf(options) => write!(f, "one of {}", options.join(", ")),
        }
    }
}

/// The values that an enumeration allows.
fn options_of(error: &ValidationError<'_>) -> Vec<String> {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match error.kind() {
        Violated::Enum { options } => options.as_array().into_iter().flatten().map(plain).collect(),
        Violated::Constant { expected_value } => vec![plain(expected_value)],
        _ => Vec::new(),
    }
}

fn mismatch(expected: &Expected, node: &Node) -> String {
    let found = found(node);
    let mut message = format!("expected {expected}, found {found}");
    match (expected, node.text()) {
        (Expected::OneOf(options), Some(text)) if !node.is_private() => {
            if let Some(near) = nearest(text, options.iter().map(String::as_str)) {
                message.push_str(&format!("; did you mean '{near}'?"));
            }
        }
        (Expected::Phrase(phrase), None) if phrase == "text" => {
            if let Content::Scalar(Value::Bool(_) | Value::Number(_)) = node.content {
                message.push_str("; put it in quotes");
            }
        }
        _ => {}
    }
    message
}

/// What there is, in a word; of what is private only the type.
pub(super) fn found(node: &Node) -> String {
    match &node.content {
        Content::List(_) => "a list".to_owned(),
        Content::Map(_) => "a map".to_owned(),
        Content::Scalar(Value::Null) => "nothing".to_owned(),
        Content::Scalar(Value::Bool(_)) if node.is_private() => "true or false".to_owned(),
        Content::Scalar(Value::Number(_)) if node.is_private() => "another number".to_owned(),
        Content::Scalar(_) if node.is_private() => "other text".to_owned(),
        Content::Scalar(Value::String(text)) => shown(text),
        Content::Scalar(value) => value.to_string(),
    }
}
