//! The log of a Delta table: what it says, what is added to it, and adding to it if nobody else did.
//!
//! The whole log is read once; afterwards each new entry is read as it appears, so that a commit costs the same at the first
//! version and at the ten thousandth. Of what is read only the protocol, the metadata and the transactions are kept, never
//! the files. A checkpoint of the log is read as if it were a very long entry: its three columns that matter here become
//! the same lines of JSON. Entries are created exclusively, also between processes, and are durable when they are there.
//!
//! Deliberately not here: reconciling files, which only readers need; deltalake writes the checkpoints.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::{filter_record_batch, is_not_null, or_kleene};
use arrow::json::LineDelimitedWriter;
use deltalake::kernel::StructType;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::{Deserialize, Serialize};

use crate::flow::{Result, StageError};
use crate::objects::{Durability, failure};

/// How many the versions of readers and writers must be, and which features they need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Protocol {
    /// For reading.
    pub min_reader_version: u32,
    /// For writing.
    pub min_writer_version: u32,
    /// From reader version 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reader_features: Option<Vec<String>>,
    /// From writer version 7.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer_features: Option<Vec<String>>,
}

/// What the table is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Which table it is, for as long as it lives.
    pub id: String,
    /// Its columns, in JSON.
    pub schema_string: String,
    /// Its partition columns.
    #[serde(default)]
    pub partition_columns: Vec<String>,
    /// Its properties.
    #[serde(default)]
    pub configuration: HashMap<String, String>,
    /// When it was made, in milliseconds since the epoch.
    #[serde(default)]
    pub created_time: Option<i64>,
}

impl Metadata {
    /// Its columns.
    pub fn schema(&self) -> Result<StructType, String> {
        serde_json::from_str(&self.schema_string).map_err(|e| format!("its schema cannot be read: {e}"))
    }

    /// One of its properties.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.configuration.get(name).map(String::as_str)
    }
}

/// The last version that an application has put into the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Txn {
    /// Which application.
    pub app_id: String,
    /// Its own number.
    pub version: i64,
    /// Milliseconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CommitInfo {
    in_commit_timestamp: Option<i64>,
}

/// One line of an entry; of actions that are none of our business nothing is kept.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    protocol: Option<Protocol>,
    meta_data: Option<Metadata>,
    txn: Option<Txn>,
    commit_info: Option<CommitInfo>,
}

/// What distinguishes the file of one entry from another under the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tip {
    size: u64,
    modified: (i64, i64),
    inode: u64,
}

/// What the log says up to a version.
#[derive(Clone, Debug)]
pub struct Table {
    /// The version.
    pub version: u64,
    /// Who may read and write.
    pub protocol: Protocol,
    /// What the table is.
    pub metadata: Metadata,
    /// The last transaction of each application.
    pub txns: HashMap<String, i64>,
    /// The last commit's own time, where the table keeps it.
    pub in_commit_timestamp: Option<i64>,
    tip: Option<Tip>,
}

/// What was new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Nothing, or only what others appended.
    Nothing,
    /// The protocol or the metadata.
    Changed,
    /// The table is not the one it was: deleted, made anew, or its log was cut behind our back.
    Lost,
}

/// The log of one table.
#[derive(Clone, Debug)]
pub struct Log {
    /// Where the entries are.
    pub directory: PathBuf,
    /// How durable they are.
    pub durability: Durability,
}

impl Log {
    /// The log of the table at `root`.
    pub fn of(root: &Path, durability: Durability) -> Self {
        Self { directory: root.join("_delta_log"), durability }
    }

    fn entry(&self, version: u64) -> PathBuf {
        self.directory.join(format!("{version:020}.json"))
    }

    /// Adds an entry if there is none of that version yet; otherwise [`ErrorKind::AlreadyExists`].
    pub fn put(&self, version: u64, lines: &[u8]) -> io::Result<()> {
        let put = self.durability.create(&self.entry(version), lines);
        #[cfg(test)]
        if put.is_ok() && super::tests::answer_is_lost(&self.directory) {
            return Err(ErrorKind::TimedOut.into());
        }
        put
    }

    /// Makes sure of what is in the log.
    pub fn flush(&self) -> Result<()> {
        self.durability.sync_directory(&self.directory).map_err(|e| failure("flush", &self.directory, e))
    }

    /// Reads the whole log. `None`: there is no table.
    pub fn load(&self) -> Result<Option<Table>> {
        let Some((last, checkpoints)) = self.list()? else { return Ok(None) };
        let mut reading = Reading::default();
        let mut next = 0;
        for (version, files) in checkpoints.iter().rev() {
            match files.iter().try_fold(Reading::default(), |reading, file| reading.checkpoint(file)) {
                Ok(read) => {
                    (reading, next) = (read, version + 1);
                    break;
                }
                Err(error) => {
                    tracing::warn!(table = %self.directory.display(), version, %error, "a checkpoint of the table's log cannot be read, trying an older one");
                }
            }
        }
        let from = next;
        while let Some(entry) = self.read(next)? {
            reading.entry(&entry).map_err(|e| self.damaged(next, e))?;
            next += 1;
        }
        if next <= last {
            return Err(StageError::park(format!(
                "the log of the table at '{}' has no version {next}, but version {last}: it is damaged, restore it",
                self.directory.display()
            )));
        }
        let version = next.saturating_sub(1);
        if next == from {
            // The last version is the checkpoint's own; its entry still says when it was.
            if let Some(entry) = self.read(version)? {
                reading.entry(&entry).map_err(|e| self.damaged(version, e))?;
            }
        }
        let (Some(protocol), Some(metadata)) = (reading.protocol, reading.metadata) else {
            let directory = self.directory.display();
            return Err(StageError::park(format!("the log at '{directory}' lacks the table's protocol or metadata")));
        };
        Ok(Some(Table {
            version,
            protocol,
            metadata,
            txns: reading.txns,
            in_commit_timestamp: reading.in_commit_timestamp,
            tip: self.tip(version),
        }))
    }

    /// Reads what was added since `table`.
    pub fn follow(&self, table: &mut Table) -> Result<News> {
        if table.tip.is_none() || table.tip != self.tip(table.version) {
            return Ok(News::Lost);
        }
        let mut news = News::Nothing;
        while let Some(entry) = self.read(table.version + 1)? {
            let mut reading = Reading::default();
            reading.entry(&entry).map_err(|e| self.damaged(table.version + 1, e))?;
            if reading.protocol.is_some() || reading.metadata.is_some() {
                news = News::Changed;
            }
            table.protocol = reading.protocol.unwrap_or_else(|| table.protocol.clone());
            table.metadata = reading.metadata.unwrap_or_else(|| table.metadata.clone());
            self.added(table, reading.txns, reading.in_commit_timestamp);
        }
        Ok(news)
    }

    /// Takes over what the entry after `table`, which is there, says of applications and time.
    pub fn added(&self, table: &mut Table, txns: HashMap<String, i64>, in_commit_timestamp: Option<i64>) {
        table.txns.extend(txns);
        table.in_commit_timestamp = in_commit_timestamp.or(table.in_commit_timestamp);
        table.version += 1;
        table.tip = self.tip(table.version);
    }

    fn tip(&self, version: u64) -> Option<Tip> {
        let file = fs::metadata(self.entry(version)).ok()?;
        Some(Tip { size: file.len(), modified: (file.mtime(), file.mtime_nsec()), inode: file.ino() })
    }

    fn read(&self, version: u64) -> Result<Option<Vec<u8>>> {
        let path = self.entry(version);
        match fs::read(&path) {
            Ok(entry) => Ok(Some(entry)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(failure("read", &path, e)),
        }
    }

    /// The greatest version of an entry or checkpoint, and the files of the checkpoints that are complete.
    fn list(&self) -> Result<Option<(u64, Checkpoints)>> {
        let broken = |e| failure("list", &self.directory, e);
        let entries = match fs::read_dir(&self.directory) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            entries => entries.map_err(broken)?,
        };
        let mut last = None;
        let mut parts: BTreeMap<(u64, u32), Vec<PathBuf>> = BTreeMap::new();
        for entry in entries {
            let path = entry.map_err(broken)?.path();
            let Some((version, part)) = path.file_name().and_then(|name| name.to_str()).and_then(parse) else {
                continue;
            };
            last = last.max(Some(version));
            if let Part::Checkpoint { of } = part {
                parts.entry((version, of)).or_default().push(path);
            }
        }
        let complete = parts.into_iter().filter(|((_, of), files)| files.len() >= *of as usize);
        let checkpoints = complete.map(|((version, of), mut files)| {
            // Several whole ones of the same version say the same.
            files.truncate(of as usize);
            (version, files)
        });
        Ok(last.map(|last| (last, checkpoints.collect())))
    }

    fn damaged(&self, version: u64, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StageError {
        let directory = self.directory.display();
        StageError::park(format!("version {version} of the log at '{directory}' cannot be read: restore it"))
            .because(error)
    }
}

/// The files of each checkpoint, by version.
type Checkpoints = BTreeMap<u64, Vec<PathBuf>>;

enum Part {
    Entry,
    /// One of so many files.
    Checkpoint {
        of: u32,
    },
}

fn parse(name: &str) -> Option<(u64, Part)> {
    let (version, rest) = name.split_at_checked(20)?;
    let version = version.parse().ok()?;
    let parts: Vec<&str> = rest.strip_prefix('.')?.split('.').collect();
    let part = match parts[..] {
        ["json"] => Part::Entry,
        ["checkpoint", "parquet"] | ["checkpoint", _, "parquet" | "json"] => Part::Checkpoint { of: 1 },
        ["checkpoint", _, of, "parquet"] => Part::Checkpoint { of: of.parse().ok()? },
        _ => return None,
    };
    Some((version, part))
}

/// What was read so far, later lines over earlier ones.
#[derive(Default)]
struct Reading {
    protocol: Option<Protocol>,
    metadata: Option<Metadata>,
    txns: HashMap<String, i64>,
    in_commit_timestamp: Option<i64>,
}

impl Reading {
    fn entry(&mut self, lines: &[u8]) -> Result<(), serde_json::Error> {
        for line in serde_json::Deserializer::from_slice(lines).into_iter::<Line>() {
            let line = line?;
            self.protocol = line.protocol.or(self.protocol.take());
            self.metadata = line.meta_data.or(self.metadata.take());
            self.txns.extend(line.txn.map(|txn| (txn.app_id, txn.version)));
            self.in_commit_timestamp =
                line.commit_info.and_then(|info| info.in_commit_timestamp).or(self.in_commit_timestamp);
        }
        Ok(())
    }

    fn checkpoint(mut self, path: &Path) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        if path.extension().is_some_and(|extension| extension == "json") {
            self.entry(&fs::read(path)?)?;
            return Ok(self);
        }
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?;
        let fields = reader.parquet_schema().root_schema().get_fields();
        let wanted = ["protocol", "metaData", "txn"];
        let roots = (0..fields.len()).filter(|&at| wanted.contains(&fields[at].name()));
        let mask = ProjectionMask::roots(reader.parquet_schema(), roots.collect::<Vec<_>>());
        for batch in reader.with_projection(mask).build()? {
            let batch = batch?;
            let mut keep = BooleanArray::from(vec![false; batch.num_rows()]);
            for column in batch.columns() {
                keep = or_kleene(&keep, &is_not_null(column)?)?;
            }
            self.entry(&as_lines(&filter_record_batch(&batch, &keep)?)?)?;
        }
        Ok(self)
    }
}

fn as_lines(batch: &RecordBatch) -> Result<Vec<u8>, arrow::error::ArrowError> {
    let mut lines = LineDelimitedWriter::new(Vec::new());
    lines.write(batch)?;
    lines.finish()?;
    Ok(lines.into_inner())
}
