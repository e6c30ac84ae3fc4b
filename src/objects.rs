//! Where data files live, and how they are made durable.
//!
//! A place is a local path or a `file://` URL; other object stores will be opened here too. Invariant: what an operation
//! of [`Durability`] reports as done has its whole content under its name, or (on an error) is either not there or whole,
//! never torn. With [`Durability::Fsync`] it also survives the machine. Names that are put together from values are one
//! path segment each, by [`encode_segment`].
//!
//! Everything here blocks; connectors call it through [`blocking`]. It knows no formats.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::flow::{Result, StageError};

/// Whether files are forced to the disk before anything is settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Files and directories are flushed to the disk: nothing that was settled is lost when the machine dies.
    #[default]
    Fsync,
    /// The operating system flushes when it likes: nothing is lost when the process dies, something may be when the
    /// machine does.
    Os,
}

impl Durability {
    /// Creates `path` with this content, whole, or fails with [`ErrorKind::AlreadyExists`] if it is there. Exclusive
    /// between processes too, on a file system with hard links.
    pub fn create(self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.put(path, content, |draft| fs::hard_link(draft, path).and_then(|()| fs::remove_file(draft)))
    }

    /// Puts this content under `path`, whole, in place of what was there.
    pub fn replace(self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.put(path, content, |draft| fs::rename(draft, path))
    }

    /// Writes a hidden file beside `path`, then lets `publish` give it its name.
    fn put(self, path: &Path, content: &[u8], publish: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        let directory = path.parent().unwrap_or(Path::new("."));
        let draft = directory.join(format!(".{}.tmp", Uuid::new_v4()));
        let write = || {
            let mut file = File::create_new(&draft)?;
            file.write_all(content)?;
            self.sync(&file)
        };
        let done = write().and_then(|()| publish(&draft));
        if done.is_err() {
            let _ = fs::remove_file(&draft);
        }
        done?;
        self.sync_directory(directory)
    }

    /// Flushes a file that was written.
    pub fn sync(self, file: &File) -> io::Result<()> {
        match self {
            Self::Fsync => file.sync_all(),
            Self::Os => Ok(()),
        }
    }

    /// Flushes the names in a directory.
    pub fn sync_directory(self, directory: &Path) -> io::Result<()> {
        match self {
            Self::Fsync => File::open(directory)?.sync_all(),
            Self::Os => Ok(()),
        }
    }

    /// Creates a directory and those above it that are missing.
    pub fn create_directories(self, directory: &Path) -> io::Result<()> {
        if directory.is_dir() {
            return Ok(());
        }
        let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent {
            self.create_directories(parent)?;
        }
        match fs::create_dir(directory) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists && directory.is_dir() => Ok(()),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Err(ErrorKind::NotADirectory.into()),
            created => created,
        }?;
        self.sync_directory(parent.unwrap_or(Path::new(".")))
    }
}

/// Makes sure that files can be made in `directory`, or, where that is absent, that it could be made: in the nearest
/// directory above it that is there. Nothing is left behind.
pub fn writable(directory: &Path) -> Result<()> {
    let mut above = directory.ancestors().map(|above| if above == Path::new("") { Path::new(".") } else { above });
    // Where none can be looked at, the draft says why.
    let there = above.find(|above| above.exists()).unwrap_or(directory);
    let draft = there.join(format!(".{}.tmp", Uuid::new_v4()));
    File::create_new(&draft).and_then(|_| fs::remove_file(&draft)).map_err(|e| failure("write into", there, e))
}

/// The local path that `text` names.
///
/// # Errors
/// A sentence, when it names none.
pub fn local_path(text: &str) -> Result<PathBuf, String> {
    let path = match text.split_once("://") {
        None => text.to_owned(),
        Some(("file", rest)) => {
            let path = rest.strip_prefix("localhost").unwrap_or(rest);
            if !path.starts_with('/') {
                return Err(format!("'{text}' names a host: write file:///path/to/it"));
            }
            decode_segment(path).ok_or_else(|| format!("'{text}' is not a URL: a % stands before two hex digits"))?
        }
        Some((scheme, _)) => {
            return Err(format!("'{scheme}://' is not a place for tables yet: object stores come later, write a path"));
        }
    };
    if path.is_empty() {
        return Err("must not be empty".into());
    }
    Ok(PathBuf::from(path))
}

/// `text` as one path segment: what is neither a letter, a digit, `-`, `_` nor `.` of ASCII is percent-encoded, once.
pub fn encode_segment(text: &str) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => segment.push(byte as char),
            _ => segment.push_str(&format!("%{byte:02X}")),
        }
    }
    segment
}

/// The inverse of [`encode_segment`]; `None` if `segment` is not percent-encoded text.
pub fn decode_segment(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

/// What an I/O error means: `doing` is what could not be done, like "write".
pub fn failure(doing: &str, path: &Path, error: io::Error) -> StageError {
    let what = format!("cannot {doing} '{}'", path.display());
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            StageError::away(format!("{what}: the disk is full; free some space and it goes on"))
        }
        ErrorKind::ReadOnlyFilesystem => {
            StageError::away(format!("{what}: the file system is read-only; once it can be written it goes on"))
        }
        ErrorKind::StaleNetworkFileHandle
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::NetworkDown
        | ErrorKind::NotConnected
        | ErrorKind::TimedOut => StageError::away(format!("{what}: its file system does not answer")),
        ErrorKind::PermissionDenied => {
            StageError::park(format!("{what}: the user of this process may not; grant it, then start again"))
        }
        ErrorKind::NotADirectory | ErrorKind::IsADirectory => {
            StageError::park(format!("{what}: a file stands where a directory is needed, or the other way round"))
        }
        ErrorKind::InvalidFilename => StageError::park(format!("{what}: the name is too long for this file system")),
        _ => StageError::retry(what),
    }
    .because(error)
}

/// Runs something that blocks away from the caller's thread. It goes on to its end if the caller gives up waiting.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(StageError::retry("file work was broken off").because(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Reaction;

    #[test]
    fn creates_exclusively_and_replaces() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a");
        for durability in [Durability::Fsync, Durability::Os] {
            let _ = fs::remove_file(&path);
            durability.create(&path, b"one").expect("created");
            assert_eq!(durability.create(&path, b"two").expect_err("there").kind(), ErrorKind::AlreadyExists);
            assert_eq!(fs::read(&path).expect("read"), b"one");
            durability.replace(&path, b"three").expect("replaced");
            assert_eq!(fs::read(&path).expect("read"), b"three");
        }
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1, "no drafts are left");
        Durability::Fsync.create_directories(&folder.path().join("b/c/d")).expect("created");
        assert!(folder.path().join("b/c/d").is_dir());
    }

    #[test]
    fn what_can_be_written_is_found_out_without_a_trace() {
        let folder = tempfile::tempdir().expect("temp folder");
        writable(folder.path()).expect("a folder that is there");
        writable(&folder.path().join("a/b/c")).expect("one that could be made");
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 0);
        fs::write(folder.path().join("file"), "").expect("a file");
        let error = writable(&folder.path().join("file/a")).expect_err("below a file");
        assert!(error.to_string().contains("a file stands where a directory is needed"), "{error}");
        writable(Path::new("surely-not-there/below")).expect("in the working directory");
    }

    #[test]
    fn segments_are_one_segment_and_read_back() {
        for text in ["a/b", "50%", "a b+c", "é", "", "..", "x?y#z=:\\\"'&", "%2F"] {
            let segment = encode_segment(text);
            assert!(!segment.contains(['/', ' ', '?', '#']), "{segment}");
            assert_eq!(decode_segment(&segment).as_deref(), Some(text));
        }
        assert_eq!(encode_segment("a/b"), "a%2Fb");
        assert_eq!(decode_segment("%zz"), None);
        assert_eq!(decode_segment("%4"), None);
        assert_eq!(decode_segment("%FF"), None);
    }

    #[test]
    fn places_are_local() {
        assert_eq!(local_path("./data/x"), Ok(PathBuf::from("./data/x")));
        assert_eq!(local_path("file:///data/a%20b"), Ok(PathBuf::from("/data/a b")));
        for (text, says) in [("s3://b/k", "object stores come later"), ("file://host/x", "names a host"), ("", "empty")]
        {
            let problem = local_path(text).expect_err(text);
            assert!(problem.contains(says), "{problem}");
        }
    }

    #[test]
    fn errors_become_reactions() {
        for (kind, reaction) in [
            (ErrorKind::StorageFull, Reaction::Away),
            (ErrorKind::ReadOnlyFilesystem, Reaction::Away),
            (ErrorKind::PermissionDenied, Reaction::Park),
            (ErrorKind::NotADirectory, Reaction::Park),
            (ErrorKind::Other, Reaction::Retry),
        ] {
            let error = failure("write", Path::new("/t/x"), io::Error::from(kind));
            assert_eq!(error.reaction, reaction);
            assert!(error.to_string().starts_with("cannot write '/t/x'"), "{error}");
        }
    }
}
