//! A Delta Lake table, each epoch in it exactly once, in the same atomic version as its number.
//!
//! *prepare* writes data files where they belong and makes them durable; they are invisible as long as the table's log does
//! not name them. *commit* adds one version to the log with the files and, per partition, a `txn` action whose version is
//! the epoch: either both are there or neither. All partitions of a process commit through one `committer`, which has
//! the rules.
//!
//! Deliberately without snapshots on the commit path: the log is read once and then followed (`log`), so a commit costs
//! the same however long the table's history is. Nothing is deleted: files of epochs that were never committed are left
//! to the table's vacuum, which must spare files younger than seven days.

mod actions;
mod checkpoint;
mod committer;
mod log;
mod protocol;
mod schema;
mod sink;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::committer::{Committer, Plan};
use self::log::Log;
use self::protocol::{LEAST_RETENTION, PROPERTIES, SET_TRANSACTION_RETENTION, interval};
use self::sink::TableSink;
use super::parquet::{FileOptions, check_files, check_partitions, check_path, unchecked};
use crate::flow::registry::{ConfigError, Guarantee, Kind, SinkKind};
use crate::flow::{SinkContext, SinkFactory, StageError};
use crate::objects::local_path;

/// Rows are appended to the table, each message once. All partitions that commit at the same time make one version of it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Config {
    /// The table: a path, or a `file://` URL. It is created if it is absent.
    pub table: String,
    /// What is done with rows.
    #[serde(default)]
    pub mode: Mode,
    /// The partition columns of the table. Left out: those it has, or none if it is created. An empty text counts as null,
    /// as the format has it, and a row whose value is too long for a directory's name (255 bytes, percent-encoded) is rejected.
    #[serde(default)]
    pub partition_by: Vec<String>,
    /// Properties of the table, if it is created: your own, and those of `delta.` that need no table feature.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// How the data files are written.
    #[serde(flatten)]
    pub files: FileOptions,
}

/// What is done with rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// They are added.
    #[default]
    Append,
    /// They are added or updated by key (not yet).
    Merge,
}

/// The kind `delta`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delta;

impl Kind for Delta {
    fn name(&self) -> &'static str {
        "delta"
    }

    fn about(&self) -> &'static str {
        "a Delta Lake table on a local path, one version per checkpoint"
    }

    fn example(&self) -> &'static str {
        "table: ./data/orders\n"
    }

    fn schema(&self) -> schemars::Schema {
        schemars::schema_for!(Config)
    }
}

impl SinkKind for Delta {
    fn guarantee(&self) -> Guarantee {
        Guarantee::ExactlyOnce
    }

    fn place(&self, config: &Value) -> Option<PathBuf> {
        local_path(config["table"].as_str()?).ok()
    }

    fn whereabouts(&self, config: &Value) -> Option<String> {
        let table = config["table"].as_str()?;
        let look = format!("python -c \"from deltalake import DeltaTable; print(DeltaTable('{table}').to_pandas())\"");
        Some(format!(
            "the Delta table is at {table}; with `pip install 'deltalake[pyarrow]' pandas`, look at it by: {look}"
        ))
    }

    fn check(&self, config: &Value, input: &SchemaRef) -> Vec<ConfigError> {
        let config = match Config::deserialize(config) {
            Ok(config) => config,
            Err(error) => return vec![ConfigError::here(error.to_string())],
        };
        let mut problems = check_path("table", &config.table);
        if config.mode == Mode::Merge {
            problems.push(ConfigError::at("mode", "'merge' comes later: this version only has 'append'"));
        }
        problems.extend(check_files(&config.files));
        problems.extend(check_properties(&config.properties));
        problems.extend(schema::columns(input).err().unwrap_or_default());
        problems.extend(check_partitions(&config.partition_by, input));
        problems
    }

    fn build(&self, config: &Value, context: SinkContext) -> Result<Arc<dyn SinkFactory>, StageError> {
        Ok(Arc::new(planned(config, context)?))
    }
}

fn planned(config: &Value, context: SinkContext) -> Result<TableSink, StageError> {
    let config = Config::deserialize(config).map_err(|e| StageError::park("not a delta sink").because(e))?;
    let root = local_path(&config.table).map_err(|e| StageError::park(format!("table: {e}")))?;
    let log = Log::of(&root, config.files.durability);
    let mut properties = config.properties;
    properties.entry(SET_TRANSACTION_RETENTION.to_owned()).or_insert_with(|| "interval 30 days".to_owned());
    let plan = Plan {
        columns: schema::columns(&context.schema).map_err(unchecked)?,
        partition_by: config.partition_by,
        properties: properties.into_iter().collect(),
        root,
    };
    Ok(TableSink { context, committer: Arc::new(Committer::new(plan, log)), options: config.files })
}

fn check_properties(properties: &BTreeMap<String, String>) -> Vec<ConfigError> {
    let mut problems = Vec::new();
    for (name, value) in properties {
        let here = |message: String| ConfigError::below(&["properties", name], message);
        if name.starts_with("delta.") && !PROPERTIES.contains(&name.as_str()) {
            let nearest = PROPERTIES.iter().min_by_key(|known| strsim::damerau_levenshtein(name, known));
            let nearest = nearest.filter(|known| strsim::damerau_levenshtein(name, known) < 6);
            let hint = nearest.map_or_else(String::new, |known| format!("; did you mean '{known}'?"));
            problems.push(here(format!("'{name}' is not a property this sink can set on a table{hint}")));
        } else if name.ends_with("Duration") && name.starts_with("delta.") && interval(value).is_none() {
            problems.push(here(format!("'{value}' is not a duration: write it like 'interval 30 days'")));
        } else if name == SET_TRANSACTION_RETENTION && interval(value).is_some_and(|span| span < LEAST_RETENTION) {
            problems.push(here("must be at least 'interval 30 days': the table's memory of what it has".to_owned()));
        }
    }
    problems
}
