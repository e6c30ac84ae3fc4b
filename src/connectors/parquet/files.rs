//! Parquet files as they grow: one open per partition, closed when large enough, durable at the end of an epoch.
//!
//! Invariant: a file that was not handed out by [`Files::finish`] is deleted when this is dropped. Giving up is not closing:
//! no footer is written, so nothing half-written can be taken for a file. Who may see a file, and when, is the sink's
//! business.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use uuid::Uuid;

use super::options::FileOptions;
use super::partition::{Slice, Values, directory};
use crate::flow::{Result, StageError};
use crate::objects::failure;

/// Where files grow.
#[derive(Clone, Debug)]
pub enum Place {
    /// Where they will be read: `root/column=value/…`. For formats whose log says which files count.
    Final,
    /// In this directory, without an ending that readers look for, until they are moved.
    Staged(PathBuf),
}

/// A file that is whole and durable.
#[derive(Debug)]
pub struct Finished {
    /// The values of the partition columns.
    pub values: Values,
    /// Where it is.
    pub path: PathBuf,
    /// Where it belongs, below the root; for [`Place::Final`] that is where it is.
    pub relative: PathBuf,
    /// Rows in it.
    pub rows: u64,
    /// Bytes.
    pub size: u64,
    /// What its footer says.
    pub metadata: ParquetMetaData,
}

/// Deletes its file when it is dropped, unless told to keep it.
#[derive(Debug)]
struct Draft {
    path: PathBuf,
    keep: bool,
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_file(&self.path);
        }
    }
}

struct Open {
    /// Before the draft, so that it is closed before it is deleted.
    writer: ArrowWriter<File>,
    draft: Draft,
    values: Values,
    relative: PathBuf,
    used: u64,
}

/// The files of one partition's current epoch.
pub struct Files {
    root: PathBuf,
    place: Place,
    names: Vec<String>,
    schema: SchemaRef,
    options: FileOptions,
    /// Part of every file's name: no two epochs, generations or processes ever write the same file.
    attempt: Uuid,
    count: u32,
    clock: u64,
    open: HashMap<Box<[u8]>, Open>,
    closed: Vec<(Draft, Finished)>,
}

impl Files {
    /// Files below `root`, of rows with the columns of `schema`, by the partition columns `names`.
    pub fn new(root: PathBuf, place: Place, names: Vec<String>, schema: SchemaRef, options: FileOptions) -> Self {
        Self {
            root,
            place,
            names,
            schema,
            options,
            attempt: Uuid::new_v4(),
            count: 0,
            clock: 0,
            open: HashMap::new(),
            closed: Vec::new(),
        }
    }

    /// Whether nothing was written since the last [`finish`](Self::finish).
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.closed.is_empty()
    }

    /// Writes the rows of one partition.
    pub fn write(&mut self, slice: Slice) -> Result<()> {
        if slice.rows.num_rows() == 0 {
            return Ok(());
        }
        if !self.open.contains_key(&slice.key) {
            while self.open.len() >= self.options.max_open_files.max(1) {
                let oldest = self.open.iter().min_by_key(|(_, open)| open.used).map(|(key, _)| key.clone());
                self.close(&oldest.unwrap_or_default())?;
            }
            let open = self.create(slice.values)?;
            self.open.insert(slice.key.clone(), open);
        }
        self.clock += 1;
        let Some(open) = self.open.get_mut(&slice.key) else { return Ok(()) };
        open.used = self.clock;
        let size = open.append(&slice.rows)?;
        if size >= self.options.target_file_size.0 {
            self.close(&slice.key)?;
        }
        Ok(())
    }

    /// Closes all files, makes them and their names durable, and gives them away. Blocks.
    pub fn finish(&mut self) -> Result<Vec<Finished>> {
        let keys: Vec<_> = self.open.keys().cloned().collect();
        for key in keys {
            self.close(&key)?;
        }
        let durability = self.options.durability;
        let mut directories = BTreeSet::new();
        for (_, file) in &self.closed {
            let opened = File::open(&file.path).map_err(|e| failure("open", &file.path, e))?;
            durability.sync(&opened).map_err(|e| failure("flush", &file.path, e))?;
            let size = opened.metadata().map_err(|e| failure("look at", &file.path, e))?.len();
            if size != file.size {
                let path = file.path.display();
                return Err(StageError::retry(format!("'{path}' has {size} bytes, but {} were written", file.size)));
            }
            directories.extend(directories_above(&file.path, &self.root));
        }
        for directory in directories {
            durability.sync_directory(&directory).map_err(|e| failure("flush", &directory, e))?;
        }
        self.attempt = Uuid::new_v4();
        self.count = 0;
        let closed = std::mem::take(&mut self.closed);
        Ok(closed
            .into_iter()
            .map(|(mut draft, file)| {
                draft.keep = true;
                file
            })
            .collect())
    }

    fn create(&mut self, values: Values) -> Result<Open> {
        let Self { attempt, count, .. } = *self;
        let name = format!("part-{count:05}-{attempt}.{}", self.options.extension());
        self.count += 1;
        let relative = directory(&self.names, &values).join(name);
        let path = match &self.place {
            Place::Final => self.root.join(&relative),
            Place::Staged(staging) => staging.join(format!("{count:05}-{attempt}")),
        };
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).map_err(|e| failure("create", parent, e))?;
        let file = File::create_new(&path).map_err(|e| failure("create", &path, e))?;
        let draft = Draft { path, keep: false };
        let writer = ArrowWriter::try_new_with_options(file, self.schema.clone(), self.options.writer())
            .map_err(|e| broken(&draft.path, e))?;
        Ok(Open { writer, draft, values, relative, used: 0 })
    }

    fn close(&mut self, key: &[u8]) -> Result<()> {
        let Some(mut open) = self.open.remove(key) else { return Ok(()) };
        let metadata = open.writer.finish().map_err(|e| broken(&open.draft.path, e))?;
        let finished = Finished {
            values: open.values,
            path: open.draft.path.clone(),
            relative: open.relative,
            rows: u64::try_from(metadata.file_metadata().num_rows()).unwrap_or_default(),
            size: open.writer.bytes_written() as u64,
            metadata,
        };
        self.closed.push((open.draft, finished));
        Ok(())
    }
}

impl Open {
    /// Appends rows and returns how large the file is about to be.
    fn append(&mut self, rows: &RecordBatch) -> Result<u64> {
        self.writer.write(rows).map_err(|e| broken(&self.draft.path, e))?;
        Ok((self.writer.bytes_written() + self.writer.in_progress_size()) as u64)
    }
}

/// The directory of `path` and those above it, down to `root`.
pub fn directories_above<'a>(path: &'a Path, root: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
    path.ancestors().skip(1).take_while(move |directory| directory.starts_with(root)).map(Path::to_path_buf)
}

fn broken(path: &Path, error: ParquetError) -> StageError {
    match error {
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => failure("write", path, *error),
            Err(error) => StageError::retry(format!("cannot write '{}'", path.display())).because(error),
        },
        error => StageError::retry(format!("cannot write '{}'", path.display())).because(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int32Array};

    use super::*;
    use crate::units::Size;

    fn slice(partition: &str, from: i32, to: i32) -> Slice {
        let n = Arc::new(Int32Array::from_iter_values(from..to)) as ArrayRef;
        Slice {
            key: partition.as_bytes().into(),
            values: vec![Some(partition.into())],
            rows: RecordBatch::try_from_iter([("n", n)]).expect("batch"),
        }
    }

    fn files(root: &Path, options: FileOptions) -> Files {
        Files::new(root.into(), Place::Final, vec!["p".into()], slice("a", 0, 1).rows.schema(), options)
    }

    fn on_disk(root: &Path) -> usize {
        let directories = fs::read_dir(root).expect("list").map(|d| d.expect("entry").path());
        directories.map(|d| fs::read_dir(d).expect("list").count()).sum()
    }

    #[test]
    fn rows_that_come_in_turns_make_one_file_per_partition() {
        let folder = tempfile::tempdir().expect("folder");
        let mut files = files(folder.path(), FileOptions::default());
        for turn in 0..50 {
            files.write(slice(["a", "b", "c"][turn as usize % 3], turn, turn + 1)).expect("written");
        }
        let finished = files.finish().expect("finished");
        assert_eq!(finished.len(), 3);
        assert_eq!(finished.iter().map(|f| f.rows).sum::<u64>(), 50);
        assert!(finished.iter().all(|f| fs::metadata(&f.path).expect("there").len() == f.size));
        assert!(files.is_empty());
        drop(files);
        assert_eq!(on_disk(folder.path()), 3, "what was handed out stays");
    }

    #[test]
    fn the_least_recent_file_is_closed_when_too_many_are_open() {
        let folder = tempfile::tempdir().expect("folder");
        let options = FileOptions { max_open_files: 2, ..FileOptions::default() };
        let mut files = files(folder.path(), options);
        for partition in ["a", "b", "a", "c", "a"] {
            files.write(slice(partition, 0, 1)).expect("written");
        }
        assert_eq!(files.finish().expect("finished").len(), 3, "b was closed for c, a stayed open");
    }

    #[test]
    fn a_large_file_is_closed_and_another_begun() {
        let folder = tempfile::tempdir().expect("folder");
        let options = FileOptions { target_file_size: Size(4096), ..FileOptions::default() };
        let mut files = files(folder.path(), options);
        for turn in 0..4 {
            files.write(slice("a", turn * 5000, (turn + 1) * 5000)).expect("written");
        }
        let finished = files.finish().expect("finished");
        assert_eq!((finished.len(), finished.iter().map(|f| f.rows).sum::<u64>()), (4, 20_000));
    }

    #[test]
    fn giving_up_leaves_no_file() {
        let folder = tempfile::tempdir().expect("folder");
        let mut files = files(folder.path(), FileOptions { target_file_size: Size(1), ..FileOptions::default() });
        files.write(slice("a", 0, 10)).expect("written");
        files.options.target_file_size = Size(1 << 20);
        files.write(slice("b", 0, 10)).expect("written");
        assert_eq!(on_disk(folder.path()), 2);
        drop(files);
        assert_eq!(on_disk(folder.path()), 0);
    }
}
