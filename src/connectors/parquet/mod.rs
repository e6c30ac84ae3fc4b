//! A directory of Parquet files, each epoch in it exactly once.
//!
//! ```text
//! path/column=value/orders-0-00000012-part-00000-<uuid>.zstd.parquet    what readers see
//! path/_distributary/staged/<app id>/<attempt>/…                        epochs that are prepared or being written
//! path/_distributary/marks/<app id>                                     the last epoch of each partition
//! ```
//!
//! *prepare* closes the staged files and makes them durable; their final names are fixed in what goes to the checkpoint
//! log. *commit* moves them there, which can be repeated, and then replaces the mark. The mark alone says which epoch is
//! in the directory: a crash between two moves is mended by moving the rest. Readers may see some files of an epoch a
//! moment before the others; who needs epochs to appear at once wants a Delta table.
//!
//! What dead attempts have staged is deleted when it is proven that no entry names it: when a later attempt of the same
//! partition has committed an epoch of its own. There is no fence against another checkpoint log's late commit: moves on
//! a local file system do not outlive their process, and a log may be emptied only after its last process has ended.
//!
//! How rows become files is shared with the Delta sink: `encoder`, and below it
//! `columns`, `partition` and `files`.

pub(super) mod columns;
pub(super) mod encoder;
pub(super) mod files;
mod mark;
mod options;
pub(super) mod partition;
mod sink;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::columns::{Columns, Mapped, in_parquet};
pub use self::options::{Codec, FileOptions};
use crate::flow::registry::{ConfigError, Guarantee, Kind, SinkKind};
use crate::flow::{SinkContext, SinkFactory, StageError};
use crate::objects::local_path;

/// Every file in the directory is whole, and each message is in the files once. Names that begin with an underscore are
/// the sink's own.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Config {
    /// The directory: a path, or a `file://` URL. It is created if it is absent.
    pub path: String,
    /// Columns by whose values the files are put into directories, `column=value`. They are in the names, not in the files.
    /// An empty text counts as null (`__HIVE_DEFAULT_PARTITION__`), and a row whose value is too long for a name (255
    /// bytes, percent-encoded) is rejected.
    #[serde(default)]
    pub partition_by: Vec<String>,
    /// Keep nanoseconds of timestamps. Otherwise they are cut to microseconds, which every reader knows.
    #[serde(default)]
    pub keep_nanoseconds: bool,
    /// How the files are written.
    #[serde(flatten)]
    pub files: FileOptions,
}

/// The kind `parquet`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parquet;

impl Kind for Parquet {
    fn name(&self) -> &'static str {
        "parquet"
    }

    fn about(&self) -> &'static str {
        "a directory of whole Parquet files"
    }

    fn example(&self) -> &'static str {
        "path: ./data/orders\n"
    }

    fn schema(&self) -> schemars::Schema {
        schemars::schema_for!(Config)
    }
}

impl SinkKind for Parquet {
    fn guarantee(&self) -> Guarantee {
        Guarantee::ExactlyOnce
    }

    fn place(&self, config: &Value) -> Option<PathBuf> {
        local_path(config["path"].as_str()?).ok()
    }

    fn whereabouts(&self, config: &Value) -> Option<String> {
        let path = config["path"].as_str()?;
        Some(format!("the Parquet files are below {path}; names that start with _ are the sink's own"))
    }

    fn check(&self, config: &Value, input: &SchemaRef) -> Vec<ConfigError> {
        let config = match Config::deserialize(config) {
            Ok(config) => config,
            Err(error) => return vec![ConfigError::here(error.to_string())],
        };
        let mut problems = check_path("path", &config.path);
        problems.extend(check_files(&config.files));
        problems.extend(mapped(input, |kind| in_parquet(kind, config.keep_nanoseconds)).err().unwrap_or_default());
        problems.extend(check_partitions(&config.partition_by, input));
        problems
    }

    fn build(&self, config: &Value, context: SinkContext) -> Result<Arc<dyn SinkFactory>, StageError> {
        let config = Config::deserialize(config).map_err(|e| StageError::park("not a parquet sink").because(e))?;
        let root = local_path(&config.path).map_err(|e| StageError::park(format!("path: {e}")))?;
        let target = mapped(&context.schema, |kind| in_parquet(kind, config.keep_nanoseconds)).map_err(unchecked)?;
        let columns = Arc::new(Columns::new(&context.schema, target));
        let (partition_by, options) = (config.partition_by, config.files);
        Ok(Arc::new(sink::Directory { root, context, columns, partition_by, options }))
    }
}

/// The columns of `input` as `map` makes them, or which of them have no place in the target.
pub(super) fn mapped(
    input: &Schema,
    map: impl Fn(&arrow::datatypes::DataType) -> Mapped,
) -> Result<SchemaRef, Vec<ConfigError>> {
    let (mut fields, mut problems) = (Vec::new(), Vec::new());
    for field in input.fields() {
        match map(field.data_type()) {
            Ok(kind) => fields.push(Field::new(field.name(), kind, true)),
            Err(why) => problems.push(ConfigError::here(format!("column '{}': {why}", field.name()))),
        }
    }
    if problems.is_empty() { Ok(Arc::new(Schema::new(fields))) } else { Err(problems) }
}

/// For what the check should have found.
pub(super) fn unchecked(problems: Vec<ConfigError>) -> StageError {
    let all: Vec<String> = problems.into_iter().map(|problem| problem.message).collect();
    StageError::park(all.join("; "))
}

/// What is wrong with a place.
pub(super) fn check_path(key: &str, path: &str) -> Vec<ConfigError> {
    local_path(path).err().map(|why| ConfigError::at(key, why)).into_iter().collect()
}

/// What is wrong with how files are to be written.
pub(super) fn check_files(options: &FileOptions) -> Vec<ConfigError> {
    let mut problems = Vec::new();
    if options.max_open_files == 0 {
        problems.push(ConfigError::at("max_open_files", "must be at least 1"));
    }
    if options.target_file_size.0 == 0 {
        problems.push(ConfigError::at("target_file_size", "must be at least 1B"));
    }
    problems
}

/// What is wrong with these partition columns for rows of `input`.
pub(super) fn check_partitions(by: &[String], input: &Schema) -> Vec<ConfigError> {
    let mut problems = Vec::new();
    for (at, name) in by.iter().enumerate() {
        let place = at.to_string();
        let here = |message: String| ConfigError::below(&["partition_by", &place], message);
        match input.field_with_name(name) {
            Err(_) => problems.push(here(format!("there is no column '{name}'{}", nearest(name, input)))),
            Ok(_) if by[..at].contains(name) => problems.push(here(format!("'{name}' is named twice"))),
            Ok(field) => {
                let kind = in_parquet(field.data_type(), true).unwrap_or_else(|_| field.data_type().clone());
                if !partition::can_partition(&kind) {
                    problems.push(here(format!(
                        "'{name}' is {kind}: only text, whole numbers, booleans, decimals, dates and timestamps can \
                         partition a table"
                    )));
                }
            }
        }
    }
    if problems.is_empty() && !by.is_empty() && by.len() >= input.fields().len() {
        problems.push(ConfigError::at("partition_by", "names every column: at least one must be left for the files"));
    }
    problems
}

fn nearest(name: &str, input: &Schema) -> String {
    let distance =
        |field: &&Arc<Field>| strsim::damerau_levenshtein(&name.to_lowercase(), &field.name().to_lowercase());
    match input.fields().iter().min_by_key(distance).filter(|field| distance(field) <= name.len().div_ceil(3)) {
        Some(field) => format!("; did you mean '{}'?", field.name()),
        None => {
            let names: Vec<&str> = input.fields().iter().map(|field| field.name().as_str()).collect();
            format!(" among {}", names.join(", "))
        }
    }
}
