//! Columns down each receiver's tree: every kind planned with the columns that really reach it.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;

use super::check::{Declared, sink_kind};
use super::problem::{Path, Report, Step};
use super::schema::Section;
use super::settings::{BatcherFields, ReceiverFields};
use super::tree::Branch;
use super::{BatcherStage, Receiver, SinkSpec, Stage, TranslatorStage, dead_letter_schema};
use crate::flow::StageName;
use crate::flow::registry::{ConfigError, Guarantee, Registry, SinkKind};

/// What flows where, as far as it is known.
pub(super) struct Flow<'a> {
    stages: &'a [Declared],
    registry: &'a Registry,
    report: &'a mut Report,
    /// What reaches each sink, and from which receiver it was first.
    reaching: BTreeMap<usize, (SchemaRef, StageName)>,
}

impl<'a> Flow<'a> {
    pub fn new(stages: &'a [Declared], registry: &'a Registry, report: &'a mut Report) -> Self {
        Self { stages, registry, report, reaching: BTreeMap::new() }
    }

    /// Plans a receiver and everything below it. `None` with a problem.
    pub fn receiver(&mut self, tree: &Branch) -> Option<(StageName, Receiver)> {
        let stages = self.stages;
        let stage = &stages[tree.stage];
        let planned = stage.config.as_ref().and_then(|config| {
            let kind = self.registry.sources().get(stage.kind.as_deref()?)?;
            kind.plan(config).map_err(|errors| foreign(errors, &stage.path, self.report)).ok()
        });
        let columns = planned.as_ref().map(|factory| factory.columns());
        let fields = stage.receiver.clone();
        let below = Below { name: &stage.name, path: &stage.path, fields: fields.as_ref() };
        let next = self.next(tree, columns.as_ref(), &below, false);
        let ReceiverFields { partitions, max_unsettled, max_unsettled_bytes, max_messages, max_time } = fields?;
        let receiver = Receiver {
            kind: stage.kind.clone()?,
            factory: planned?,
            partitions,
            max_unsettled,
            max_unsettled_bytes: max_unsettled_bytes.0,
            max_messages,
            max_time: max_time.map(|span| span.0),
            stages: next,
        };
        Some((stage.name.clone(), receiver))
    }

    /// The sinks, after all receivers: each checked with the columns that reach it.
    pub fn sinks(self) -> BTreeMap<StageName, SinkSpec> {
        let Self { stages, registry, report, mut reaching } = self;
        let sinks = stages.iter().enumerate().filter(|(_, stage)| stage.section == Section::Sinks);
        let specs = sinks.filter_map(|(index, stage)| {
            let columns = reaching.remove(&index).map(|(columns, _)| columns);
            Some((stage.name.clone(), spec(stage, columns, registry, report)?))
        });
        specs.collect()
    }

    fn next(&mut self, branch: &Branch, columns: Option<&SchemaRef>, below: &Below<'_>, batched: bool) -> Vec<Stage> {
        branch.next.iter().filter_map(|next| self.stage(next, columns, below, batched)).collect()
    }

    fn stage(
        &mut self,
        branch: &Branch,
        columns: Option<&SchemaRef>,
        below: &Below<'_>,
        batched: bool,
    ) -> Option<Stage> {
        let stages = self.stages;
        let stage = &stages[branch.stage];
        match stage.section {
            Section::Translators => {
                let planned = stage.config.as_ref().zip(columns).and_then(|(config, columns)| {
                    let kind = self.registry.translators().get(stage.kind.as_deref()?)?;
                    kind.plan(config, columns).map_err(|errors| foreign(errors, &stage.path, self.report)).ok()
                });
                let output = planned.as_ref().map(|factory| factory.output());
                let next = self.next(branch, output.as_ref(), below, batched);
                Some(Stage::Translator(TranslatorStage { name: stage.name.clone(), factory: planned?, next }))
            }
            Section::Batchers => {
                let next = self.next(branch, columns, below, true);
                let (fields, rows_given) = stage.batcher.clone()?;
                if rows_given && below.fields.is_some_and(|receiver| fields.max_rows > receiver.max_unsettled) {
                    let message = format!(
                        "more rows than max_unsettled of {} allows to be in flight: the batch could never fill; \
                         lower it, or raise max_unsettled",
                        below.path
                    );
                    self.report.problem(&stage.path.key("max_rows"), message);
                }
                Some(Stage::Batcher(below.batcher(stage.name.clone(), fields, next)))
            }
            Section::Sinks => {
                if let Some(columns) = columns {
                    self.reaches(branch.stage, columns, below.name);
                }
                let sink = Stage::Sink(stage.name.clone());
                if batched {
                    return Some(sink);
                }
                let name = StageName::from(&*format!("{}.batcher", stage.name));
                Some(Stage::Batcher(below.batcher(name, BatcherFields::default(), vec![sink])))
            }
            Section::Receivers | Section::DeadLetter => None,
        }
    }

    /// `columns` reach a sink: they must be those that reach it from every other receiver.
    fn reaches(&mut self, sink: usize, columns: &SchemaRef, receiver: &StageName) {
        let Some((first, from)) = self.reaching.get(&sink) else {
            self.reaching.insert(sink, (columns.clone(), receiver.clone()));
            return;
        };
        if let Some(difference) = difference(first, columns) {
            let message = format!(
                "the columns from receivers '{from}' and '{receiver}' differ: {difference}; \
                 give each a sink of its own, or make the columns alike"
            );
            self.report.problem(&self.stages[sink].path.key("from"), message);
        }
    }
}

/// The receiver at the root of the tree that is being planned.
struct Below<'a> {
    name: &'a StageName,
    path: &'a Path,
    fields: Option<&'a ReceiverFields>,
}

impl Below<'_> {
    /// A batcher that never waits for more rows than may be in flight.
    fn batcher(&self, name: StageName, fields: BatcherFields, next: Vec<Stage>) -> BatcherStage {
        let most = self.fields.map_or(u64::MAX, |receiver| receiver.max_unsettled);
        BatcherStage {
            name,
            max_rows: fields.max_rows.min(most),
            max_bytes: fields.max_bytes.0,
            max_age: fields.max_age.0,
            next,
        }
    }
}

/// The dead letter, checked with its columns, which are always the same.
pub(super) fn dead_letter(stage: &Declared, registry: &Registry, report: &mut Report) -> Option<SinkSpec> {
    spec(stage, Some(dead_letter_schema()), registry, report)
}

fn spec(stage: &Declared, columns: Option<SchemaRef>, registry: &Registry, report: &mut Report) -> Option<SinkSpec> {
    let kind = sink_kind(registry, stage)?;
    let guarantee = guarantee(stage, &*kind, report);
    let (config, schema) = (stage.config.clone()?, columns?);
    let errors = kind.check(&config, &schema);
    if !errors.is_empty() {
        foreign(errors, &stage.path, report);
        return None;
    }
    Some(SinkSpec { name: stage.name.clone(), kind, config, guarantee: guarantee?, schema })
}

/// What the sink promises, if the file and the kind agree.
fn guarantee(stage: &Declared, kind: &dyn SinkKind, report: &mut Report) -> Option<Guarantee> {
    let name = kind.name();
    let at = stage.path.key("delivery");
    match (kind.guarantee(), stage.delivery.as_deref()) {
        (Guarantee::ExactlyOnce, None | Some("exactly_once")) => Some(Guarantee::ExactlyOnce),
        (Guarantee::AtLeastOnce, Some("at_least_once")) => Some(Guarantee::AtLeastOnce),
        (Guarantee::ExactlyOnce, Some("at_least_once")) => {
            let message = format!("pointless: {name} is exactly once at no cost; leave 'delivery' out");
            report.problem(&at, message);
            None
        }
        (Guarantee::AtLeastOnce, None | Some("exactly_once")) => {
            let message = format!(
                "{name} cannot look whether a commit landed, so rows may come twice after a failure; \
                 write 'delivery: at_least_once' to accept that"
            );
            let given = stage.delivery.is_some();
            report.problem(if given { &at } else { &stage.path }, message);
            None
        }
        _ => None, // no such word, which the schema said
    }
}

/// Problems that a kind found in a stage.
fn foreign(errors: Vec<ConfigError>, stage: &Path, report: &mut Report) {
    for ConfigError { path, message } in errors {
        let path = path.into_iter().fold(stage.clone(), |path, step| match step.parse() {
            Ok(index) => path.step(Step::Index(index)),
            Err(_) => path.step(Step::Key(step)),
        });
        report.foreign_problem(&path, &message);
    }
}

/// The first difference between two lists of columns.
fn difference(one: &SchemaRef, other: &SchemaRef) -> Option<String> {
    if Arc::ptr_eq(one, other) || one.fields() == other.fields() {
        return None;
    }
    let nulls = |nullable: bool| if nullable { "may be null" } else { "is never null" };
    for field in one.fields() {
        let name = field.name();
        let Ok(twin) = other.field_with_name(name) else {
            return Some(format!("only the first has '{name}'"));
        };
        if field.data_type() != twin.data_type() {
            return Some(format!("'{name}' is {} and {}", field.data_type(), twin.data_type()));
        }
        if field.is_nullable() != twin.is_nullable() {
            return Some(format!("'{name}' {} and {}", nulls(field.is_nullable()), nulls(twin.is_nullable())));
        }
    }
    let more = other.fields().iter().find(|field| one.field_with_name(field.name()).is_err());
    Some(more.map_or_else(|| "their order".to_owned(), |field| format!("only the second has '{}'", field.name())))
}
