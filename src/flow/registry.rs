//! What a topology may name: the kinds of receiver, translator and sink, each with its documentation.
//!
//! A program that embeds the runtime adds its own kinds to a [`Registry`]; the binary uses the standard one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use serde_json::Value;

use super::{SinkContext, SinkFactory, SourceFactory, StageError, TranslatorFactory};

/// Something wrong in a stage's configuration, found without any I/O.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where below the stage: keys and list indices, outermost first. Empty: the stage as a whole.
    pub path: Vec<String>,
    /// What is wrong and what is allowed, lower case, no full stop.
    pub message: String,
}

impl ConfigError {
    /// At the key `key` of the stage.
    pub fn at(key: &str, message: impl Into<String>) -> Self {
        Self { path: vec![key.to_owned()], message: message.into() }
    }

    /// Below the stage, at `path`.
    pub fn below(path: &[&str], message: impl Into<String>) -> Self {
        Self { path: path.iter().map(|&key| key.to_owned()).collect(), message: message.into() }
    }

    /// The stage as a whole.
    pub fn here(message: impl Into<String>) -> Self {
        Self { path: Vec::new(), message: message.into() }
    }
}

/// Everything wrong at once, or what the configuration stands for.
pub type Planned<T> = std::result::Result<Arc<T>, Vec<ConfigError>>;

/// What every kind says of itself. One source for `describe`, the schema, the check and the README's tables.
pub trait Kind: Send + Sync {
    /// The word after `type:`.
    fn name(&self) -> &'static str;

    /// What it is, in a phrase: lower case, no full stop.
    fn about(&self) -> &'static str;

    /// A stage of this kind in YAML, as it would stand under its name: one key a line, without `from` and `type`. It must
    /// pass the check, with the examples of other kinds before and behind it.
    fn example(&self) -> &'static str;

    /// JSON Schema of the stage's own fields (an object; the common ones, `type`, `from`, …, are added by the topology).
    /// Two keywords of ours: `x-unit` says what a number counts, and what `x-editor` holds is for editors alone, because
    /// the kind itself checks it with better words.
    fn schema(&self) -> schemars::Schema;
}

/// A kind of receiver.
pub trait SourceKind: Kind {
    /// Plans a receiver from a configuration that has passed the schema. Pure.
    fn plan(&self, config: &Value) -> Planned<dyn SourceFactory>;

    /// Its example with messages of this body (in quotes, as YAML), if it is the topology that says what is in them.
    fn example_of(&self, _body: &str) -> Option<String> {
        None
    }
}

/// A kind of translator.
pub trait TranslatorKind: Kind {
    /// Plans a translator for messages with these columns, from a configuration that has passed the schema. Pure.
    fn plan(&self, config: &Value, input: &SchemaRef) -> Planned<dyn TranslatorFactory>;

    /// A body that its example reads, if the messages of receivers' examples are not.
    fn sample(&self) -> Option<&'static str> {
        None
    }
}

/// What a sink can promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guarantee {
    /// It can look whether a commit landed.
    ExactlyOnce,
    /// It cannot.
    AtLeastOnce,
}

impl Guarantee {
    /// As the topology file writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ExactlyOnce => "exactly_once",
            Self::AtLeastOnce => "at_least_once",
        }
    }
}

/// A kind of sink.
pub trait SinkKind: Kind {
    /// What it can promise at best.
    fn guarantee(&self) -> Guarantee;

    /// What is wrong with writing rows of these columns by this configuration, which has passed the schema. Pure.
    fn check(&self, config: &Value, input: &SchemaRef) -> Vec<ConfigError>;

    /// The folder that it must have to itself, if it needs one.
    fn place(&self, _config: &Value) -> Option<PathBuf> {
        None
    }

    /// Where its rows are, and how to look at them, for the end of a run; `None` where there is nothing to say.
    fn whereabouts(&self, _config: &Value) -> Option<String> {
        None
    }

    /// Builds what the sink's partitions share. Called once per process, after the check; may look at the file system,
    /// but connects nowhere.
    fn build(&self, config: &Value, context: SinkContext) -> Result<Arc<dyn SinkFactory>, StageError>;
}

/// Every kind a topology may name.
#[derive(Clone, Default)]
pub struct Registry {
    sources: BTreeMap<&'static str, Arc<dyn SourceKind>>,
    translators: BTreeMap<&'static str, Arc<dyn TranslatorKind>>,
    sinks: BTreeMap<&'static str, Arc<dyn SinkKind>>,
}

impl Registry {
    /// Adds a kind of receiver; one of the same name is replaced.
    #[must_use]
    pub fn with_source(mut self, kind: impl SourceKind + 'static) -> Self {
        self.sources.insert(kind.name(), Arc::new(kind));
        self
    }

    /// Adds a kind of translator; one of the same name is replaced.
    #[must_use]
    pub fn with_translator(mut self, kind: impl TranslatorKind + 'static) -> Self {
        self.translators.insert(kind.name(), Arc::new(kind));
        self
    }

    /// Adds a kind of sink; one of the same name is replaced.
    #[must_use]
    pub fn with_sink(mut self, kind: impl SinkKind + 'static) -> Self {
        self.sinks.insert(kind.name(), Arc::new(kind));
        self
    }

    /// The kinds of receiver, by name.
    pub fn sources(&self) -> &BTreeMap<&'static str, Arc<dyn SourceKind>> {
        &self.sources
    }

    /// The kinds of translator, by name.
    pub fn translators(&self) -> &BTreeMap<&'static str, Arc<dyn TranslatorKind>> {
        &self.translators
    }

    /// The kinds of sink, by name.
    pub fn sinks(&self) -> &BTreeMap<&'static str, Arc<dyn SinkKind>> {
        &self.sinks
    }
}
