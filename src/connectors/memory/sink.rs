//! The sink `memory`: commits to a table of its space as a real sink does to a real one, conditionally and by epoch.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use async_trait::async_trait;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::Space;
use super::table::{KeyIndex, Snapshot, Table, Version};
use crate::flow::mutation::{Rule, removed};
use crate::flow::registry::{ConfigError, Guarantee, Kind, SinkKind};
use crate::flow::{
    AppId, Committed, Epoch, Opened, PartitionId, Prepared, Rejected, Result, Rows, Sink, SinkContext, SinkFactory,
    SinkInstance, StageError,
};

/// The table is gone with the process.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Config {
    /// The table, shared by its name within the process.
    pub table: String,
    /// Whether rows are added, or only those whose keys are not there yet.
    #[serde(default)]
    pub mode: Mode,
    /// For `mode: merge`: the columns that make two rows the same.
    #[serde(default)]
    pub keys: Vec<String>,
}

/// What becomes of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// All are added.
    #[default]
    Append,
    /// Those are added whose keys are not there: several topologies may fill one table.
    Merge,
}

/// What a commit is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Look at the table.
    Look,
    /// Put a version.
    Put,
    /// Hear the answer to that.
    Answer,
}

/// What a commit waits for at each moment, so that a table within the process can be as slow as one far away.
pub type Pace = Arc<dyn Fn(Moment) -> BoxFuture<'static, ()> + Send + Sync>;

/// The kind `memory` of sinks.
#[derive(Clone)]
pub struct MemorySink {
    space: Space,
    pace: Option<Pace>,
}

impl MemorySink {
    /// A sink into this space's tables.
    pub fn new(space: Space) -> Self {
        Self { space, pace: None }
    }

    /// One whose commits take their time.
    #[must_use]
    pub fn paced(self, pace: Pace) -> Self {
        Self { pace: Some(pace), ..self }
    }
}

impl Default for MemorySink {
    fn default() -> Self {
        Self::new(Space::process())
    }
}

impl Kind for MemorySink {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn about(&self) -> &'static str {
        "a table within this process, for tests and embedding programs"
    }

    fn example(&self) -> &'static str {
        "table: animals\n"
    }

    fn schema(&self) -> schemars::Schema {
        schemars::schema_for!(Config)
    }
}

fn parse(config: &Value) -> std::result::Result<Config, ConfigError> {
    Config::deserialize(config).map_err(|e| ConfigError::here(e.to_string()))
}

impl SinkKind for MemorySink {
    fn guarantee(&self) -> Guarantee {
        Guarantee::ExactlyOnce
    }

    fn check(&self, config: &Value, input: &SchemaRef) -> Vec<ConfigError> {
        let config = match parse(config) {
            Ok(config) => config,
            Err(problem) => return vec![problem],
        };
        let mut problems = Vec::new();
        match config.mode {
            Mode::Append if !config.keys.is_empty() => {
                problems.push(ConfigError::at("keys", "are for mode: merge; mode: append adds every row"));
            }
            Mode::Merge if config.keys.is_empty() => {
                problems.push(ConfigError::at("keys", "mode: merge needs the columns that make two rows the same"));
            }
            Mode::Append | Mode::Merge => {}
        }
        for (at, key) in config.keys.iter().enumerate() {
            if input.column_with_name(key).is_none() {
                let known: Vec<_> = input.fields().iter().map(|field| field.name().as_str()).collect();
                let what = format!("there is no column '{key}' here; there are {}", known.join(", "));
                problems.push(ConfigError::below(&["keys", &at.to_string()], what));
            }
        }
        problems
    }

    fn build(&self, config: &Value, context: SinkContext) -> Result<Arc<dyn SinkFactory>> {
        let config = parse(config).map_err(|problem| StageError::park(problem.message))?;
        let table = self.space.table(&config.table);
        Ok(Arc::new(Factory { config, context, table, pace: self.pace.clone() }))
    }
}

struct Factory {
    config: Config,
    context: SinkContext,
    table: Table,
    pace: Option<Pace>,
}

impl SinkFactory for Factory {
    fn sink(&self, partition: &PartitionId) -> SinkInstance {
        SinkInstance::ExactlyOnce(Box::new(Writer {
            app_id: AppId::new(&self.context, partition),
            config: self.config.clone(),
            table: self.table.clone(),
            pace: self.pace.clone(),
            buffer: Vec::new(),
            index: KeyIndex::default(),
        }))
    }
}

/// A prepared epoch, as it stands in the checkpoint log: its rows wait in the table's staging area.
#[derive(Serialize, Deserialize)]
struct Payload {
    staged: Uuid,
}

struct Writer {
    app_id: AppId,
    config: Config,
    table: Table,
    pace: Option<Pace>,
    buffer: Vec<RecordBatch>,
    index: KeyIndex,
}

impl Writer {
    async fn pace(&self, moment: Moment) {
        if let Some(pace) = &self.pace {
            pace(moment).await;
        }
    }

    async fn look(&self) -> Snapshot {
        self.pace(Moment::Look).await;
        self.table.look()
    }

    async fn put(&self, after: usize, version: Version) -> bool {
        self.pace(Moment::Put).await;
        let put = self.table.put_if_absent(after, version);
        self.pace(Moment::Answer).await;
        put
    }

    /// Which epoch of ours the table shows.
    fn shown(&self, snapshot: &Snapshot) -> Epoch {
        snapshot.txns.get(&self.app_id.to_string()).copied().unwrap_or_default()
    }

    /// The rows that are to be added to what `version` versions hold.
    fn missing_rows(
        &mut self,
        rows: Vec<RecordBatch>,
        version: usize,
    ) -> std::result::Result<Vec<RecordBatch>, ArrowError> {
        if self.config.mode == Mode::Append || removed(Rule::MergeByIds) {
            return Ok(rows);
        }
        let keys = &self.config.keys;
        self.index.catch_up(&self.table, version, keys)?;
        let mut own = BTreeSet::new();
        rows.iter().map(|batch| self.index.missing(batch, keys, &mut own)).collect()
    }
}

#[async_trait]
impl Sink for Writer {
    async fn open(&mut self, adopted: bool) -> Result<Opened> {
        loop {
            let snapshot = self.look().await;
            let ours = |id: &String| id.split('/').nth(3) == Some(&*self.app_id.store.to_string());
            let committed = Committed::At(self.shown(&snapshot));
            if adopted || removed(Rule::LookForForeign) {
                return Ok(Opened { committed, foreign: false });
            }
            let foreign = snapshot.txns.keys().any(|id| self.app_id.is_foreign(id));
            if self.config.mode == Mode::Merge {
                if foreign {
                    let table = &self.config.table;
                    tracing::warn!(
                        table,
                        "the table has epochs from another checkpoint store; its keys decide what is new"
                    );
                }
                return Ok(Opened { committed, foreign: false });
            }
            // With a version of this log in the table, whatever an older log had under way can land no more: it was to be
            // put after a version before that one.
            if foreign || snapshot.txns.keys().any(ours) {
                return Ok(Opened { committed, foreign });
            }
            let fence = Version { txn: (self.app_id.to_string(), Epoch(0)), staged: None, rows: Vec::new() };
            self.put(snapshot.version, fence).await;
        }
    }

    async fn write(&mut self, rows: &Rows) -> Result<Vec<Rejected>> {
        self.buffer.push(rows.columns.clone());
        Ok(Vec::new())
    }

    async fn prepare(&mut self, _epoch: Epoch) -> Result<Option<Prepared>> {
        let rows: Vec<_> = std::mem::take(&mut self.buffer).into_iter().filter(|batch| batch.num_rows() > 0).collect();
        if rows.is_empty() {
            return Ok(None);
        }
        let count = rows.iter().map(|batch| batch.num_rows() as u64).sum();
        let payload = serde_json::json!(Payload { staged: self.table.stage(rows) }).to_string();
        Ok(Some(Prepared { rows: count, payload }))
    }

    async fn commit(&mut self, epoch: Epoch, base: Epoch, prepared: &Prepared, _group: usize) -> Result<()> {
        let Payload { staged } = serde_json::from_str(&prepared.payload).map_err(|e| {
            StageError::park(format!("epoch {epoch} in the checkpoint log was not prepared by a memory sink"))
                .because(e)
        })?;
        let (partition, table) = (self.app_id.partition.clone(), self.config.table.clone());
        loop {
            let snapshot = self.look().await;
            let shown = self.shown(&snapshot);
            if !removed(Rule::ConditionalCommit) {
                if shown >= epoch {
                    self.table.unstage(staged);
                    return Ok(());
                }
                if shown != base {
                    return Err(StageError::park(format!(
                        "inconsistent: table '{table}' shows epoch {shown} of {partition}, the checkpoint log expects {base} \
                         before {epoch}; run 'runtime state FILE reset {partition}'"
                    )));
                }
            }
            let Some(rows) = self.table.staged(staged) else {
                return Err(StageError::park(format!(
                    "the rows of epoch {epoch} of {partition} are no longer staged for table '{table}'; run 'runtime state \
                     FILE reset {partition} --drop' to give them up"
                )));
            };
            let rows = self.missing_rows(rows, snapshot.version).map_err(|e| {
                StageError::park(format!("cannot compare keys with those of table '{table}'")).because(e)
            })?;
            let rows = rows.into_iter().filter(|batch| batch.num_rows() > 0).collect();
            let version = Version { txn: (self.app_id.to_string(), epoch), staged: Some(staged), rows };
            if self.put(snapshot.version, version).await {
                if !removed(Rule::ConditionalCommit) {
                    self.table.unstage(staged);
                }
                return Ok(());
            }
        }
    }
}
