//! What a directory of files says of the epochs in it: one small file per partition of a topology, replaced as a whole.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::flow::{AppId, Epoch, Result, StageError};
use crate::objects::{Durability, decode_segment, encode_segment, failure};

#[derive(Serialize, Deserialize)]
struct Mark {
    app_id: String,
    epoch: Epoch,
}

fn path(marks: &Path, app_id: &AppId) -> PathBuf {
    marks.join(encode_segment(&app_id.to_string()))
}

/// The epoch that the mark shows; 0 without one.
pub fn read(marks: &Path, app_id: &AppId) -> Result<Epoch> {
    let path = path(marks, app_id);
    let text = match fs::read(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Epoch(0)),
        read => read.map_err(|e| failure("read", &path, e))?,
    };
    let damaged = || {
        let path = path.display();
        StageError::park(format!(
            "the mark '{path}' is damaged: it should hold the last committed epoch; restore it, or delete it and run \
             'runtime state FILE reset {}'",
            app_id.partition
        ))
    };
    let mark: Mark = serde_json::from_slice(&text).map_err(|e| damaged().because(e))?;
    if mark.app_id == app_id.to_string() { Ok(mark.epoch) } else { Err(damaged()) }
}

/// Replaces the mark.
pub fn write(marks: &Path, app_id: &AppId, epoch: Epoch, durability: Durability) -> Result<()> {
    let path = path(marks, app_id);
    let mark = serde_json::json!(Mark { app_id: app_id.to_string(), epoch }).to_string();
    durability.replace(&path, mark.as_bytes()).map_err(|e| failure("write", &path, e))
}

/// Whether some mark is of the same topology and sink, from another checkpoint log.
pub fn any_foreign(marks: &Path, app_id: &AppId) -> Result<bool> {
    for entry in fs::read_dir(marks).map_err(|e| failure("list", marks, e))? {
        let name = entry.map_err(|e| failure("list", marks, e))?.file_name();
        let other = name.to_str().and_then(decode_segment);
        if other.is_some_and(|other| app_id.is_foreign(&other)) {
            return Ok(true);
        }
    }
    Ok(false)
}
