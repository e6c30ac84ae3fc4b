//! The validated topology, the only form that the rest of the program sees.
//!
//! A file goes through three forms: text, a tree in which every value knows its place (`document`), and the
//! [`Topology`] that the runtime builds from. [`load`] parses, then checks; building is the runtime's. Checking is pure:
//! variables and files come from an [`Environment`], kinds from a [`Registry`]. Invariant: the answer is a topology in
//! which every rule holds, or every problem that was found, each with its place; never a part of each.
//!
//! Deliberately absent: I/O of its own, any knowledge of a particular connector, and defaults that depend on the machine.
//!
//! | file | idea |
//! |---|---|
//! | `document` | YAML into a tree |
//! | `node` | the tree: values that know their place |
//! | `substitution` | `${…}` in its scalars |
//! | `schema`, `violation` | the JSON Schema of a stage, and what a violation of it means |
//! | `tree` | what takes from what |
//! | `columns` | columns down the tree, kinds planned on the way |
//! | `rules` | what spans several fields or sections |
//! | `check` | all of them, in order |
//! | `settings` | the sections that are no stages |
//! | `problem`, `words` | paths, places, sentences |
//! | `editor` | the JSON Schema of the whole file, for editors |
//! | `describe`, `starter` | the same schemas as documentation, and as a file to start from |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use serde_json::Value;

use crate::flow::registry::{Guarantee, Registry, SinkKind};
use crate::flow::{SinkContext, SinkFactory, SourceFactory, StageError, StageName, StoreId, TranslatorFactory};

mod check;
mod columns;
mod describe;
mod document;
mod editor;
mod node;
mod problem;
mod rules;
mod schema;
mod settings;
mod starter;
mod substitution;
mod tree;
mod violation;
mod words;

pub use describe::{Description, FieldDoc, Summary, describe, summaries};
pub use document::fragment;
pub use editor::json_schema;
pub use problem::{Problem, Problems};
pub use settings::{
    BackoffRange, BrokerConfig, Checkpoint, GiveUp, IdentityPolicy, MissingId, OnCollision, StoreConfig, Supervision,
    TelemetryConfig,
};
pub use starter::{Parts, starter};
pub use substitution::{Environment, ProcessEnvironment};
pub(crate) use words::filled;

/// A topology in which every rule holds.
pub struct Topology {
    /// Its name.
    pub name: Arc<str>,
    /// The receivers, each with the tree below it.
    pub receivers: BTreeMap<StageName, Receiver>,
    /// The sinks; a tree names them ([`Stage::Sink`]), because several receivers may feed one.
    pub sinks: BTreeMap<StageName, SinkSpec>,
    /// Where rejected messages go. Its name is `dead_letter`, which no other stage has.
    pub dead_letter: Option<SinkSpec>,
    /// When epochs end, and where their log is kept.
    pub checkpoint: Checkpoint,
    /// What makes two messages the same.
    pub identity: IdentityPolicy,
    /// What happens after a failure.
    pub supervision: Supervision,
    /// What is served over HTTP.
    pub telemetry: TelemetryConfig,
    /// The embedded broker, if there is to be one.
    pub broker: Option<BrokerConfig>,
    /// What `check` prints: each sink's guarantee, what the identities may cost, warnings.
    pub notes: Vec<String>,
}

impl Topology {
    /// The sinks below a receiver; none below one that it does not have.
    pub fn sinks_below(&self, receiver: &StageName) -> BTreeSet<&StageName> {
        self.receivers.get(receiver).iter().flat_map(|receiver| &receiver.stages).flat_map(Stage::sinks).collect()
    }

    /// The sinks of a receiver that take part in checkpoints: those below it that are exactly once, and the dead letter if
    /// it is. With one of them the receiver makes entries and remembers ids.
    pub fn exactly_once(&self, receiver: &StageName) -> impl Iterator<Item = &SinkSpec> {
        let sinks = self.sinks_below(receiver).into_iter().filter_map(|name| self.sinks.get(name));
        sinks.chain(&self.dead_letter).filter(|sink| sink.guarantee == Guarantee::ExactlyOnce)
    }
}

/// A receiver and what is below it.
pub struct Receiver {
    /// The word after `type:`.
    pub kind: String,
    /// What its partitions' consumers are built from.
    pub factory: Arc<dyn SourceFactory>,
    /// How many consumers, each with a tree of its own.
    pub partitions: u32,
    /// How many deliveries of one partition may be unsettled.
    pub max_unsettled: u64,
    /// How many bytes of one partition may be unsettled.
    pub max_unsettled_bytes: u64,
    /// The run ends when the receiver as a whole has committed this many.
    pub max_messages: Option<u64>,
    /// The run ends after this time.
    pub max_time: Option<Duration>,
    /// What takes from it. Every path ends in a sink, with one batcher before it.
    pub stages: Vec<Stage>,
}

impl Stage {
    fn sinks(&self) -> Vec<&StageName> {
        match self {
            Self::Sink(name) => vec![name],
            Self::Translator(stage) => stage.next.iter().flat_map(Self::sinks).collect(),
            Self::Batcher(stage) => stage.next.iter().flat_map(Self::sinks).collect(),
        }
    }
}

/// A stage below a receiver.
pub enum Stage {
    /// Message columns into declared columns.
    Translator(TranslatorStage),
    /// Small batches into large ones.
    Batcher(BatcherStage),
    /// The end: one of the topology's [`sinks`](Topology::sinks).
    Sink(StageName),
}

/// A translator below one receiver, planned for that receiver's columns.
pub struct TranslatorStage {
    /// Its name.
    pub name: StageName,
    /// What its partitions' translators are built from.
    pub factory: Arc<dyn TranslatorFactory>,
    /// What takes from it.
    pub next: Vec<Stage>,
}

/// A batcher below one receiver. One that the file does not have is named after its sink, `SINK.batcher`.
pub struct BatcherStage {
    /// Its name.
    pub name: StageName,
    /// As many rows make a batch; never more than the receiver's `max_unsettled`.
    pub max_rows: u64,
    /// As many bytes make a batch.
    pub max_bytes: u64,
    /// After this time what there is makes a batch.
    pub max_age: Duration,
    /// The sinks that take from it.
    pub next: Vec<Stage>,
}

/// A sink, checked but not yet built.
pub struct SinkSpec {
    /// Its name.
    pub name: StageName,
    /// Its kind.
    pub kind: Arc<dyn SinkKind>,
    /// Its kind's own fields. May hold secrets: not to be printed.
    pub config: Value,
    /// What is promised.
    pub guarantee: Guarantee,
    /// The columns of everything that will be written.
    pub schema: SchemaRef,
}

impl SinkSpec {
    /// Builds what the sink's partitions share, for the topology of this name and the checkpoint log of this identity.
    pub fn build(&self, topology: &Arc<str>, store: StoreId) -> Result<Arc<dyn SinkFactory>, StageError> {
        let context =
            SinkContext { topology: topology.clone(), sink: self.name.clone(), store, schema: self.schema.clone() };
        self.kind.build(&self.config, context)
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let receivers = Vec::from_iter(self.receivers.keys());
        let sinks = Vec::from_iter(self.sinks.values());
        let Self { name, dead_letter, .. } = self;
        f.debug_struct("Topology")
            .field("name", name)
            .field("receivers", &receivers)
            .field("sinks", &sinks)
            .field("dead_letter", dead_letter)
            .finish_non_exhaustive()
    }
}

/// Without the configuration, which may hold secrets.
impl fmt::Debug for SinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind, guarantee, .. } = self;
        f.debug_struct("SinkSpec")
            .field("name", name)
            .field("kind", &kind.name())
            .field("guarantee", guarantee)
            .finish_non_exhaustive()
    }
}

/// The topology in `text`, or everything that is wrong with it. `file` is what the problems call it.
pub fn load(text: &str, file: &str, environment: &dyn Environment, registry: &Registry) -> Result<Topology, Problems> {
    let mut report = problem::Report::default();
    let mut root = document::read(text, &mut report);
    let topology = root.as_mut().and_then(|root| {
        substitution::substitute(root, &problem::Path::root(), environment, &mut report);
        check::check(root, environment, registry, &mut report)
    });
    if topology.is_none() && report.count() == 0 {
        // Should a check ever fail without a word, the caller still gets a problem and not half a topology.
        report.problem(&problem::Path::root(), "this topology cannot be used, and no check says why; please report it");
    }
    let notes = report.finish(file, root.as_ref())?;
    let topology = topology.map(|topology| Topology { notes, ..topology });
    Ok(topology.expect("without a topology there is a problem"))
}

/// The columns of the dead letter: one row per rejected message.
pub fn dead_letter_schema() -> SchemaRef {
    let millis = || DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    let entry = vec![Field::new("keys", DataType::Utf8, false), Field::new("values", DataType::Utf8, true)];
    let entries = Field::new("entries", DataType::Struct(entry.into()), false);
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Utf8, true),
        Field::new("sent", millis(), true),
        Field::new("received", millis(), true),
        Field::new("topology", DataType::Utf8, false),
        Field::new("receiver", DataType::Utf8, false),
        Field::new("partition", DataType::Int32, false),
        Field::new("stage", DataType::Utf8, false),
        Field::new("reason", DataType::Utf8, false),
        Field::new("detail", DataType::Utf8, false),
        Field::new("attempt", DataType::Int32, true),
        Field::new("rejected_at", millis(), false),
        Field::new("value", DataType::Binary, true),
        Field::new("properties", DataType::Map(Arc::new(entries), false), true),
    ]))
}
