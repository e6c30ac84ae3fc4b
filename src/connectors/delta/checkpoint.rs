//! Checkpoints of the table's log, off the commit path.
//!
//! Readers need them so that they do not read thousands of entries; commits do not. One is made at a time per process, on
//! a thread of its own; what fails is a warning, and the next interval tries again. (Not to be confused with this
//! runtime's own checkpoints.)

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use deltalake::checkpoints::{cleanup_metadata, create_checkpoint};
use deltalake::{DeltaTableBuilder, ensure_table_uri};

use super::log::{Log, Metadata};

/// Every so many versions, unless the table's `delta.checkpointInterval` says otherwise.
const INTERVAL: u64 = 100;

/// Makes log checkpoints of one table.
#[derive(Debug, Default)]
pub struct Checkpoints {
    running: Mutex<Option<JoinHandle<()>>>,
}

impl Checkpoints {
    /// Starts one if `version` is due and none is being made.
    pub fn due(&self, root: &Path, log: &Log, version: u64, metadata: &Metadata) {
        let interval = metadata.property("delta.checkpointInterval").and_then(|text| text.parse().ok());
        if version == 0 || !version.is_multiple_of(interval.filter(|n| *n > 0).unwrap_or(INTERVAL)) {
            return;
        }
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let (root, log) = (root.to_path_buf(), log.clone());
        let cleans = metadata.property("delta.enableExpiredLogCleanup") != Some("false");
        let started = std::thread::Builder::new().name("delta-checkpoint".into()).spawn(move || {
            if let Err(error) = make(&root, &log, version, cleans) {
                let table = root.display();
                tracing::warn!(%table, version, %error, "a checkpoint of the table's log failed; commits go on without it");
            }
        });
        *running =
            started.map_err(|error| tracing::warn!(%error, "no thread for a checkpoint of the table's log")).ok();
    }

    /// Waits for the one that is being made.
    #[cfg(test)]
    pub fn wait(&self) {
        let thread = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        thread.into_iter().for_each(|thread| thread.join().expect("checkpoint"));
    }
}

type Broken = Box<dyn std::error::Error + Send + Sync>;

fn make(root: &Path, log: &Log, version: u64, cleans: bool) -> Result<(), Broken> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let root = fs::canonicalize(root)?;
        let url = ensure_table_uri(root.to_str().ok_or("the table's path is not text")?)?;
        let table = DeltaTableBuilder::from_url(url)?.with_version(version).load().await?;
        create_checkpoint(&table, None).await?;
        flush(log, version)?;
        if cleans {
            // Only what the table's own retention gives up, and only below a checkpoint that is durable.
            cleanup_metadata(&table, None).await?;
        }
        Ok(())
    })
}

/// The library does not flush what it writes.
fn flush(log: &Log, version: u64) -> Result<(), Broken> {
    let prefix = format!("{version:020}.checkpoint");
    let of_this = |path: &PathBuf| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with(&prefix) || name == "_last_checkpoint")
    };
    for entry in fs::read_dir(&log.directory)? {
        let path = entry?.path();
        if of_this(&path) {
            log.durability.sync(&fs::File::open(&path)?)?;
        }
    }
    Ok(log.durability.sync_directory(&log.directory)?)
}
