//! One partition's writer into a directory of Parquet files.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::columns::Columns;
use super::encoder::Encoder;
use super::files::{Finished, Place, directories_above};
use super::mark;
use super::options::FileOptions;
use crate::flow::{
    AppId, Committed, Epoch, Opened, PartitionId, Prepared, Probed, Rejected, Result, Rows, Sink, SinkContext,
    SinkFactory, SinkInstance, StageError,
};
use crate::objects::{blocking, encode_segment, failure, writable};

/// Everything of ours that is not data lies below this directory. Readers skip what begins with an underscore.
const OURS: &str = "_distributary";

/// A directory of Parquet files.
pub(super) struct Directory {
    pub(super) root: PathBuf,
    pub(super) context: SinkContext,
    pub(super) columns: Arc<Columns>,
    pub(super) partition_by: Vec<String>,
    pub(super) options: FileOptions,
}

impl Directory {
    /// The last epochs of all partitions.
    fn marks(&self) -> PathBuf {
        self.root.join(OURS).join("marks")
    }
}

#[async_trait]
impl SinkFactory for Directory {
    fn sink(&self, partition: &PartitionId) -> SinkInstance {
        let app_id = AppId::new(&self.context, partition);
        let ours = self.root.join(OURS);
        let place = Arc::new(Where {
            marks: self.marks(),
            staged: ours.join("staged").join(encode_segment(&app_id.to_string())),
            root: self.root.clone(),
            options: self.options.clone(),
            app_id,
        });
        let attempt = place.staged.join(Uuid::new_v4().to_string());
        SinkInstance::ExactlyOnce(Box::new(Writer {
            columns: self.columns.clone(),
            partition_by: self.partition_by.clone(),
            place,
            attempt,
            encoder: None,
            wrote: None,
            leftovers: Vec::new(),
        }))
    }

    async fn probe(&self, adopted: bool) -> Result<Probed> {
        let (root, marks) = (self.root.clone(), self.marks());
        let app_id = AppId::new(&self.context, &PartitionId::new("", 0));
        blocking(move || {
            writable(&root)?;
            let is = if root.is_dir() { "can be written" } else { "will be created" };
            let foreign = !adopted && marks.is_dir() && mark::any_foreign(&marks, &app_id)?;
            Ok(Probed { found: format!("the directory '{}' {is}", root.display()), foreign })
        })
        .await
    }
}

/// Where one partition's things are.
struct Where {
    root: PathBuf,
    marks: PathBuf,
    /// Of this partition, over all generations and processes.
    staged: PathBuf,
    options: FileOptions,
    app_id: AppId,
}

/// A prepared epoch, as it stands in the checkpoint log.
#[derive(Serialize, Deserialize)]
struct Payload {
    files: Vec<Staged>,
}

/// One file of it; both paths are below the directory.
#[derive(Serialize, Deserialize)]
struct Staged {
    staged: PathBuf,
    path: PathBuf,
    rows: u64,
    size: u64,
}

struct Writer {
    place: Arc<Where>,
    columns: Arc<Columns>,
    partition_by: Vec<String>,
    /// Where this instance stages.
    attempt: PathBuf,
    /// Made with the first row; away while an epoch is made durable.
    encoder: Option<Encoder>,
    /// The last epoch this instance prepared.
    wrote: Option<Epoch>,
    /// Directories of attempts that were there before this instance.
    leftovers: Vec<PathBuf>,
}

#[async_trait]
impl Sink for Writer {
    async fn open(&mut self, adopted: bool) -> Result<Opened> {
        let (place, attempt) = (self.place.clone(), self.attempt.clone());
        let (opened, leftovers) = blocking(move || {
            place.create(&attempt)?;
            let opened = Opened {
                committed: Committed::At(mark::read(&place.marks, &place.app_id)?),
                foreign: !adopted && mark::any_foreign(&place.marks, &place.app_id)?,
            };
            Ok((opened, place.others(&attempt)?))
        })
        .await?;
        self.leftovers = leftovers;
        Ok(opened)
    }

    async fn write(&mut self, rows: &Rows) -> Result<Vec<Rejected>> {
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            none => none.insert(Encoder::new(
                self.place.root.clone(),
                Place::Staged(self.attempt.clone()),
                self.columns.clone(),
                &self.partition_by,
                self.place.options.clone(),
            )?),
        };
        encoder.write(&rows.columns)
    }

    async fn prepare(&mut self, epoch: Epoch) -> Result<Option<Prepared>> {
        let Some(mut encoder) = self.encoder.take_if(|encoder| !encoder.is_empty()) else { return Ok(None) };
        let (encoder, finished) = blocking(move || encoder.finish().map(|finished| (encoder, finished))).await?;
        self.encoder = Some(encoder);
        self.wrote = Some(epoch);
        let files: Vec<Staged> = finished.into_iter().map(|file| self.place.staged(epoch, file)).collect();
        let rows = files.iter().map(|file| file.rows).sum();
        Ok(Some(Prepared { rows, payload: serde_json::json!(Payload { files }).to_string() }))
    }

    async fn commit(&mut self, epoch: Epoch, base: Epoch, prepared: &Prepared, _group: usize) -> Result<()> {
        let payload: Payload = serde_json::from_str(&prepared.payload).map_err(|e| {
            StageError::park(format!("epoch {epoch} in the checkpoint log was not prepared by a parquet sink"))
                .because(e)
        })?;
        let place = self.place.clone();
        // When an epoch that this instance prepared itself is committed, recovery is over: what earlier instances had
        // prepared is committed, and what they had only staged is in no entry.
        let dead = if self.wrote == Some(epoch) { std::mem::take(&mut self.leftovers) } else { Vec::new() };
        blocking(move || {
            place.commit(epoch, base, &payload)?;
            for directory in dead {
                if let Err(error) = fs::remove_dir_all(&directory) {
                    tracing::warn!(directory = %directory.display(), %error, "cannot remove what a dead attempt staged");
                }
            }
            Ok(())
        })
        .await
    }
}

impl Where {
    fn create(&self, attempt: &Path) -> Result<()> {
        for directory in [&self.marks, attempt] {
            let create = self.options.durability.create_directories(directory);
            create.map_err(|e| failure("create", directory, e))?;
        }
        Ok(())
    }

    /// What other attempts have left.
    fn others(&self, attempt: &Path) -> Result<Vec<PathBuf>> {
        let list = || fs::read_dir(&self.staged)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
        let mut all = list().map_err(|e| failure("list", &self.staged, e))?;
        all.retain(|path| path != attempt);
        Ok(all)
    }

    /// Fixes where a file belongs. The epoch is in its name for people who look for it.
    fn staged(&self, epoch: Epoch, file: Finished) -> Staged {
        let PartitionId { receiver, index } = &self.app_id.partition;
        let name = file.relative.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let name = format!("{}-{index}-{epoch:08}-{name}", encode_segment(receiver.as_str()), epoch = epoch.0);
        let below = |path: &Path| path.strip_prefix(&self.root).unwrap_or(path).to_path_buf();
        Staged { staged: below(&file.path), path: file.relative.with_file_name(name), rows: file.rows, size: file.size }
    }

    fn commit(&self, epoch: Epoch, base: Epoch, payload: &Payload) -> Result<()> {
        let shown = mark::read(&self.marks, &self.app_id)?;
        if shown >= epoch {
            return Ok(());
        }
        let Self { app_id, root, .. } = self;
        if shown != base {
            return Err(StageError::park(format!(
                "inconsistent: '{}' shows epoch {shown} of {}, the checkpoint log expects {base} before {epoch}; run \
                 'runtime state FILE reset {}'",
                root.display(),
                app_id.partition,
                app_id.partition
            )));
        }
        let mut directories = BTreeSet::new();
        for file in &payload.files {
            let (from, to) = (root.join(&file.staged), root.join(&file.path));
            let parent = to.parent().unwrap_or(root);
            fs::create_dir_all(parent).map_err(|e| failure("create", parent, e))?;
            match fs::rename(&from, &to) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::NotFound && self.is_there(&to, file.size) => {}
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    return Err(StageError::park(format!(
                        "epoch {epoch} of {} cannot be committed: neither '{}' nor '{}' is there, whole; put it back, or \
                         run 'runtime state FILE reset {} --drop' to give its rows up",
                        app_id.partition,
                        from.display(),
                        to.display(),
                        app_id.partition
                    )));
                }
                Err(e) => return Err(failure("move", &from, e)),
            }
            directories.extend(directories_above(&to, root));
        }
        for directory in directories {
            let sync = self.options.durability.sync_directory(&directory);
            sync.map_err(|e| failure("flush", &directory, e))?;
        }
        mark::write(&self.marks, app_id, epoch, self.options.durability)
    }

    fn is_there(&self, path: &Path, size: u64) -> bool {
        fs::metadata(path).is_ok_and(|found| found.len() == size)
    }
}

impl Drop for Writer {
    /// An attempt that has nothing staged leaves no directory.
    fn drop(&mut self) {
        self.encoder = None;
        let _ = fs::remove_dir(&self.attempt);
    }
}
