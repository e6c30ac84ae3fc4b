//! A tree into a [`Topology`] or all its problems: every check, in order. Pure.
//!
//! A stage that is wrong in itself is not planned, and what is below it is not told so again: one mistake is one problem.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::columns::{self, Flow};
use super::node::{Content, Node};
use super::problem::{Path, Report, shown, suggestion};
use super::schema::{self, Section};
use super::settings::{self, BatcherFields, ReceiverFields, Settings};
use super::substitution::Environment;
use super::tree::{self, From, Vertex};
use super::violation::found;
use super::{Topology, rules};
use crate::flow::StageName;
use crate::flow::registry::{Registry, SinkKind};

/// A stage as the file has it.
pub(super) struct Declared {
    pub section: Section,
    pub name: StageName,
    pub path: Path,
    /// The word after `type:`, if there is such a kind.
    pub kind: Option<String>,
    /// Its kind's own fields, if they fit the schema.
    pub config: Option<Value>,
    /// What every receiver has, if this is one and it fits.
    pub receiver: Option<ReceiverFields>,
    /// What every batcher has, if this is one and it fits, and whether the file says `max_rows`.
    pub batcher: Option<(BatcherFields, bool)>,
    /// What the file says after `delivery:`.
    pub delivery: Option<String>,
}

/// Checks everything. `None` only with a problem in `report`.
pub(super) fn check(
    root: &mut Node,
    environment: &dyn Environment,
    registry: &Registry,
    report: &mut Report,
) -> Option<Topology> {
    Check { environment, registry, report }.topology(root)
}

/// serde would name the value, which may be private.
const OUT_OF_RANGE: &str = "a number in it is larger than any that can be meant";

struct Check<'a> {
    environment: &'a dyn Environment,
    registry: &'a Registry,
    report: &'a mut Report,
}

impl Check<'_> {
    fn topology(mut self, root: &mut Node) -> Option<Topology> {
        let Content::Map(_) = root.content else {
            let message = format!("expected a map that starts with 'topology: NAME', found {}", found(root));
            self.report.problem(&Path::root(), message);
            return None;
        };
        let settings = settings::all();
        self.sections(root, &settings);
        let name = self.name(root);
        let mut stages = Vec::new();
        let mut vertices = Vec::new();
        for section in Section::NAMED {
            self.stages(root, section, &mut stages, &mut vertices);
        }
        let dead_letter = self.dead_letter(root);

        let [checkpoint, identity, supervision, telemetry, broker] = settings;
        let is_given = |section: &str, key| root.get(section).is_some_and(|section| section.get(key).is_some());
        let given = rules::Given { store: is_given("checkpoint", "store"), horizon: is_given("identity", "horizon") };
        let checkpoint = self.settings(root, checkpoint);
        let identity = self.settings(root, identity);
        let supervision = self.settings(root, supervision);
        let telemetry = self.settings(root, telemetry);
        let has_broker = root.get(broker.key).is_some();
        let broker = self.settings(root, broker);

        let trees = tree::plant(&vertices, self.report);
        let mut flow = Flow::new(&stages, self.registry, self.report);
        let receivers: BTreeMap<_, _> = trees.iter().filter_map(|tree| flow.receiver(tree)).collect();
        let sinks = flow.sinks();
        let dead_letter_spec =
            dead_letter.as_ref().and_then(|stage| columns::dead_letter(stage, self.registry, self.report));

        rules::embedded_broker(&stages, has_broker, self.report);
        let named = name.is_some();
        let topology = Topology {
            name: name.unwrap_or_default(),
            receivers,
            sinks,
            dead_letter: dead_letter_spec,
            checkpoint: checkpoint?,
            identity: identity?,
            supervision: supervision?,
            telemetry: telemetry?,
            broker: broker.filter(|_| has_broker),
            notes: Vec::new(),
        };
        rules::settings(&topology, given, self.report);
        rules::places(&topology, self.report);
        if self.report.count() > 0 || !named {
            return None;
        }
        let built = stages.iter().chain(&dead_letter).all(|stage| stage.config.is_some());
        debug_assert!(built, "a stage that is left out has a problem");
        rules::notes(&topology, self.report);
        Some(topology)
    }

    /// Every key at the top is a section, and those that must be are there.
    fn sections(&mut self, root: &Node, settings: &[Settings]) {
        let stages = [Section::DeadLetter].into_iter().chain(Section::NAMED).map(Section::key);
        let known: Vec<&str> =
            ["topology"].into_iter().chain(stages).chain(settings.iter().map(|section| section.key)).collect();
        let mut meant = Vec::new();
        for entry in root.entries().iter().filter(|entry| !known.contains(&&*entry.key)) {
            let end = suggestion(&entry.key, known.iter().copied(), "sections");
            meant.extend(super::problem::nearest(&entry.key, known.iter().copied()));
            let path = Path::root().key(&entry.key);
            self.report.key_problem(&path, format!("unknown section {}; {end}", shown(&entry.key)));
        }
        for (key, example) in [("topology", "topology: NAME"), ("receivers", "receivers:"), ("sinks", "sinks:")] {
            if root.get(key).is_none() && !meant.contains(&key) {
                self.report.problem(&Path::root(), format!("missing section '{key}'; write '{example}'"));
            }
        }
        for section in [Section::Receivers, Section::Sinks] {
            if root.get(section.key()).is_some_and(|node| node.is_null() || is_empty_map(node)) {
                let message = format!("there is no {} in it; a topology has at least one", section.one());
                self.report.key_problem(&Path::root().key(section.key()), message);
            }
        }
    }

    fn name(&mut self, root: &mut Node) -> Option<Arc<str>> {
        let node = root.get_mut("topology")?;
        let path = Path::root().key("topology");
        let schema = json!({ "type": "string" });
        if !schema::examine(&schema, node, &path, self.environment, self.report) {
            return None;
        }
        let name = node.text()?;
        if is_name(name) {
            return Some(name.into());
        }
        self.report.problem(&path, format!("expected a name of letters, digits, '_' and '-', found {}", found(node)));
        None
    }

    fn stages(&mut self, root: &mut Node, section: Section, stages: &mut Vec<Declared>, vertices: &mut Vec<Vertex>) {
        let path = Path::root().key(section.key());
        let Some(node) = root.get_mut(section.key()) else { return };
        let Content::Map(entries) = &mut node.content else {
            if !node.is_null() {
                let message = format!("expected a map from names to {}s, found {}", section.one(), found(node));
                self.report.problem(&path, message);
            }
            return;
        };
        for entry in entries {
            let path = path.key(&entry.key);
            if !is_name(&entry.key) {
                self.report.key_problem(&path, "a name is letters, digits, '_' and '-'");
            } else if entry.key == Section::DeadLetter.key() {
                self.report.key_problem(&path, "the name 'dead_letter' belongs to the section of that name");
            }
            stages.push(self.stage(&mut entry.value, section, &path));
            let from = takes_from(&entry.value, &path.key("from"));
            vertices.push(Vertex { section, name: entry.key.clone(), path, from });
        }
    }

    fn dead_letter(&mut self, root: &mut Node) -> Option<Declared> {
        let node = root.get_mut(Section::DeadLetter.key())?;
        Some(self.stage(node, Section::DeadLetter, &Path::root().key(Section::DeadLetter.key())))
    }

    /// A stage by itself: its kind, and its fields against their schema.
    fn stage(&mut self, node: &mut Node, section: Section, path: &Path) -> Declared {
        if node.is_null() {
            // `name:` with nothing after it is a map with nothing in it: the schema says what is missing.
            node.content = Content::Map(Vec::new());
        }
        let kinds = section.kinds(self.registry);
        let mut kind = None;
        if let (Some(node), true) = (node.get("type"), section.has_kinds()) {
            let named = node.text().unwrap_or_default();
            kind = kinds.iter().find(|(name, _)| *name == named).map(|(_, kind)| *kind);
            if let (None, Some(named)) = (kind, node.text()) {
                self.unknown_kind(named, node.is_private(), section, &path.key("type"));
            }
        }
        let schema = schema::stage(section, kind);
        let fits = schema::examine(&schema, node, path, self.environment, self.report);
        let known = kind.is_some() || !section.has_kinds();
        let value = node.json();
        let config = (fits && known).then(|| {
            let common = schema::common_keys(section);
            let own = value.as_object().into_iter().flatten().filter(|(key, _)| !common.contains(key));
            Value::Object(own.map(|(key, value)| (key.clone(), value.clone())).collect())
        });
        Declared {
            section,
            name: path.last_key().unwrap_or_default().into(),
            path: path.clone(),
            kind: kind.map(|kind| kind.name().to_owned()),
            config,
            receiver: (section == Section::Receivers).then(|| self.fields(&value, fits, path)).flatten(),
            batcher: (section == Section::Batchers)
                .then(|| self.fields(&value, fits, path).map(|batcher| (batcher, node.get("max_rows").is_some())))
                .flatten(),
            delivery: node.get("delivery").and_then(Node::text).map(str::to_owned),
        }
    }

    /// What all stages of the section have. If it `fits` the schema and cannot be read all the same, that is a problem.
    fn fields<T: DeserializeOwned>(&mut self, stage: &Value, fits: bool, path: &Path) -> Option<T> {
        let fields = serde_json::from_value(stage.clone()).ok();
        if fits && fields.is_none() {
            self.report.problem(path, OUT_OF_RANGE);
        }
        fields
    }

    fn unknown_kind(&mut self, named: &str, private: bool, section: Section, path: &Path) {
        let one = section.one();
        let names: Vec<&str> = section.kinds(self.registry).into_iter().map(|(name, _)| name).collect();
        let elsewhere = [Section::Receivers, Section::Translators, Section::Sinks]
            .into_iter()
            .find(|other| other.kinds(self.registry).iter().any(|(name, _)| *name == named));
        let message = match elsewhere {
            _ if private => format!("there is no {one} of this type; types: {}", names.join(", ")),
            Some(other) => format!("'{named}' is a {}, not a {one}; types: {}", other.one(), names.join(", ")),
            None => format!("there is no {one} of type {}; {}", shown(named), suggestion(named, names, "types")),
        };
        self.report.problem(path, message);
    }

    /// A section of settings; its defaults if it is left out. `None` with a problem.
    fn settings<T: DeserializeOwned + Default>(&mut self, root: &mut Node, section: Settings) -> Option<T> {
        let Settings { key, schema, .. } = section;
        let Some(node) = root.get_mut(key).filter(|node| !node.is_null()) else { return Some(T::default()) };
        let path = Path::root().key(key);
        if !schema::examine(&schema, node, &path, self.environment, self.report) {
            return None;
        }
        let settings = serde_json::from_value(node.json()).ok();
        if settings.is_none() {
            self.report.problem(&path, OUT_OF_RANGE);
        }
        settings
    }
}

/// The names after `from:`, whatever else is wrong with the stage.
fn takes_from(stage: &Node, path: &Path) -> Vec<From> {
    let Some(node) = stage.get("from") else { return Vec::new() };
    let one = |node: &Node, path: Path| {
        node.text().map(|name| From { name: name.to_owned(), path, private: node.is_private() })
    };
    match &node.content {
        Content::List(items) => {
            items.iter().enumerate().filter_map(|(index, item)| one(item, path.index(index))).collect()
        }
        _ => one(node, path.clone()).into_iter().collect(),
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

fn is_empty_map(node: &Node) -> bool {
    matches!(&node.content, Content::Map(entries) if entries.is_empty())
}

/// The kind of a sink by its name.
pub(super) fn sink_kind(registry: &Registry, stage: &Declared) -> Option<Arc<dyn SinkKind>> {
    registry.sinks().get(stage.kind.as_deref()?).cloned()
}
