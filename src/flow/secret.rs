//! A value that will not print.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use super::{Result, StageError};

/// A password or a token. `Debug` and `Display` print stars; it is never serialised.
///
/// A scalar that is wholly `${file:/path}` stays a reference and is read at each [`reveal`](Self::reveal), so a secret
/// can be rotated without a restart.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Kept);

#[derive(Clone, PartialEq, Eq)]
enum Kept {
    Value(String),
    File(PathBuf),
}

impl Secret {
    /// Keeps `value`.
    pub fn new(value: impl Into<String>) -> Self {
        Self(Kept::Value(value.into()))
    }

    /// Keeps a reference to a file that is read at each use; one trailing newline is cut.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Kept::File(path.into()))
    }

    /// The value itself. An unreadable file is [`Reaction::Away`](super::Reaction::Away): a mount may be late.
    pub fn reveal(&self) -> Result<Cow<'_, str>> {
        match &self.0 {
            Kept::Value(value) => Ok(value.into()),
            Kept::File(path) => {
                let mut text = std::fs::read_to_string(path).map_err(|e| {
                    StageError::away(format!(
                        "cannot read the secret file {}: {e}; see that it is mounted",
                        path.display()
                    ))
                })?;
                if text.ends_with('\n') {
                    text.pop();
                    if text.ends_with('\r') {
                        text.pop();
                    }
                }
                Ok(text.into())
            }
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// What the topology's substitution leaves for a scalar that is wholly `${file:/path}` at a place the schema marks as a
/// secret: the reference itself.
const FILE: &str = "${file:";

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(match text.strip_prefix(FILE).and_then(|rest| rest.strip_suffix('}')) {
            Some(path) => Self::file(path),
            None => Self::new(text),
        })
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "secret", "writeOnly": true })
    }

    fn inline_schema() -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_stars_and_reveals() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret} {secret:?}"), "*** ***");
        assert_eq!(secret.reveal().expect("a value"), "hunter2");
    }

    #[test]
    fn a_file_is_read_at_each_use_and_loses_one_newline() {
        let folder = tempfile::tempdir().expect("temp folder");
        let path = folder.path().join("password");
        let secret: Secret = serde_json::from_value(format!("${{file:{}}}", path.display()).into()).expect("secret");
        assert!(secret.reveal().is_err(), "not there yet");
        std::fs::write(&path, "one\n").expect("write");
        assert_eq!(secret.reveal().expect("read"), "one");
        std::fs::write(&path, "two\n\n").expect("write");
        assert_eq!(secret.reveal().expect("read"), "two\n");
    }
}
