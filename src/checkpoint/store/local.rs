//! A store in a local directory: `entry/00000042`, written whole, fsynced, and put in place by a hard link, which is
//! exclusive. A lock on `lock` refuses a second process while the first lives; death frees it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use uuid::Uuid;

use super::{CheckpointStore, Created, StoreError};
use crate::checkpoint::Entry;
use crate::objects::writable;

/// A directory. Holds its lock until dropped.
#[derive(Debug)]
pub struct LocalStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    /// Held for its lock; without one nothing may be written.
    _lock: Option<File>,
}

impl LocalStore {
    /// Opens the store in `root`, which is created if absent, and takes its lock.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        let away = |cause| StoreError::Away { place: root.display().to_string(), cause };
        fs::create_dir_all(root.join("entry")).map_err(away)?;
        let path = root.join("lock");
        let mut lock =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(away)?;
        take(&root, &mut lock)?;
        lock.set_len(0).and_then(|()| write!(lock, "{}", std::process::id())).map_err(away)?;
        for leftover in fs::read_dir(root.join("entry")).map_err(away)?.flatten() {
            if leftover.file_name().to_string_lossy().starts_with(TEMPORARY) {
                let _ = fs::remove_file(leftover.path());
            }
        }
        Ok(Self(Arc::new(Inner { root, _lock: Some(lock) })))
    }

    /// The store in `root`, to look at only, if no other process has it: makes and changes nothing, and keeps no lock.
    /// `None` if there is no store, and it could be made.
    pub fn open_existing(root: impl Into<PathBuf>) -> Result<Option<Self>, StoreError> {
        let root = root.into();
        let folder = root.join("entry");
        let away = |cause| StoreError::Away { place: root.display().to_string(), cause };
        match OpenOptions::new().read(true).write(true).open(root.join("lock")) {
            Ok(mut lock) => take(&root, &mut lock)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(away(error)),
        }
        writable(&folder).map_err(|error| away(io::Error::other(error)))?;
        Ok(folder.is_dir().then(|| Self::read_only(root)))
    }

    /// The store in `root`, to look at only: without its lock, so also while a process has it.
    pub fn read_only(root: impl Into<PathBuf>) -> Self {
        Self(Arc::new(Inner { root: root.into(), _lock: None }))
    }

    async fn run<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = self.0.clone();
        match tokio::task::spawn_blocking(move || f(&inner)).await {
            Ok(result) => result,
            Err(error) => {
                Err(StoreError::Away { place: self.0.root.display().to_string(), cause: io::Error::other(error) })
            }
        }
    }
}

/// Names of files that are being written.
const TEMPORARY: &str = ".tmp-";

impl Inner {
    fn path(&self, number: u64) -> PathBuf {
        self.root.join("entry").join(format!("{number:08}"))
    }

    fn away(&self, cause: io::Error) -> StoreError {
        StoreError::Away { place: self.root.display().to_string(), cause }
    }

    fn list(&self) -> Result<Vec<u64>, StoreError> {
        let mut numbers = Vec::new();
        for file in fs::read_dir(self.root.join("entry")).map_err(|e| self.away(e))? {
            let name = file.map_err(|e| self.away(e))?.file_name();
            if let Some(number) = name.to_str().and_then(|name| name.parse().ok()) {
                numbers.push(number);
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn read(&self, number: u64) -> Result<Option<Entry>, StoreError> {
        let bytes = match fs::read(self.path(number)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.away(error)),
        };
        let place = || self.root.display().to_string();
        Entry::decode(&bytes).map(Some).map_err(|cause| StoreError::Unreadable { place: place(), number, cause })
    }

    fn create(&self, number: u64, attempt: Uuid, bytes: &[u8]) -> Result<Created, StoreError> {
        let folder = self.root.join("entry");
        let temporary = folder.join(format!("{TEMPORARY}{attempt}"));
        let landed = write_whole(&temporary, bytes).and_then(|()| match fs::hard_link(&temporary, self.path(number)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        });
        let _ = fs::remove_file(&temporary);
        let landed = landed.map_err(|e| self.away(e))?;
        File::open(&folder).and_then(|folder| folder.sync_all()).map_err(|e| self.away(e))?;
        if landed {
            return Ok(Created::Created);
        }
        match self.read(number)? {
            Some(entry) => Ok(Created::AlreadyExists(Box::new(entry))),
            // Deleted meanwhile: whoever deletes has the log.
            None => Err(self.away(io::Error::other(format!("entry {number} was there and is gone")))),
        }
    }
}

/// Takes the lock of the store in `root`, or says who has it.
fn take(root: &Path, lock: &mut File) -> Result<(), StoreError> {
    let place = root.display().to_string();
    match lock.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // The owner writes its pid right after locking; an unreadable one is merely not named.
            let _ = lock.read_to_string(&mut pid);
            let pid = if pid.trim().is_empty() { "(unknown)".to_owned() } else { pid.trim().to_owned() };
            Err(StoreError::Locked { place, pid })
        }
        Err(TryLockError::Error(cause)) => Err(StoreError::Away { place, cause }),
    }
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[async_trait]
impl CheckpointStore for LocalStore {
    async fn list(&self) -> Result<Vec<u64>, StoreError> {
        self.run(Inner::list).await
    }

    async fn read(&self, number: u64) -> Result<Option<Entry>, StoreError> {
        self.run(move |inner| inner.read(number)).await
    }

    async fn create(&self, entry: &Entry) -> Result<Created, StoreError> {
        // An entry may name millions of identities: it is encoded where it is, not copied to where files are written.
        let (number, attempt, bytes) = (entry.number, entry.attempt, entry.encode());
        self.run(move |inner| inner.create(number, attempt, &bytes)).await
    }

    async fn delete(&self, number: u64) -> Result<(), StoreError> {
        self.run(move |inner| match fs::remove_file(inner.path(number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(inner.away(error)),
            _ => Ok(()),
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_makes_and_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("state");
        assert!(LocalStore::open_existing(&root).expect("it could be made").is_none());
        assert!(!root.exists());

        drop(LocalStore::open(&root).expect("made"));
        let (lock, leftover) = (root.join("lock"), root.join("entry").join(format!("{TEMPORARY}x")));
        fs::write(&lock, "17").and_then(|()| fs::write(&leftover, "")).expect("written");
        let looking = LocalStore::open_existing(&root).expect("free").expect("there");
        assert_eq!((fs::read_to_string(&lock).expect("read").as_str(), leftover.exists()), ("17", true));

        let held = LocalStore::open(&root).expect("a look holds no lock");
        let refused = LocalStore::open_existing(&root).expect_err("held");
        assert!(
            matches!(&refused, StoreError::Locked { pid, .. } if *pid == std::process::id().to_string()),
            "{refused}"
        );
        drop((looking, held));
    }
}
