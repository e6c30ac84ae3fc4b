//! The lines that we add to a table's log.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::committer::Plan;
use super::log::Txn;
use super::schema::has_wall_clock;
use crate::clock;
use crate::objects::decode_segment;

/// A data file as the log has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Add {
    /// Below the table, percent-encoded as a URL.
    pub path: String,
    /// The values of the partition columns.
    pub partition_values: BTreeMap<String, Option<String>>,
    /// Bytes.
    pub size: u64,
    /// Milliseconds since the epoch.
    pub modification_time: i64,
    /// Always: these rows are new.
    pub data_change: bool,
    /// Statistics, in JSON.
    pub stats: String,
}

impl Add {
    /// Whether the file is there as it was written.
    pub fn whole(&self, root: &Path) -> Result<(), String> {
        let path = root.join(decode_segment(&self.path).unwrap_or_else(|| self.path.clone()));
        match fs::metadata(&path) {
            Ok(found) if found.len() == self.size => Ok(()),
            Ok(found) => Err(format!("'{}' has {} bytes instead of {}", path.display(), found.len(), self.size)),
            Err(error) => Err(format!("'{}' cannot be found ({error})", path.display())),
        }
    }
}

/// The first version of a table.
pub fn creation(plan: &Plan) -> Vec<u8> {
    let now = clock::wall_millis();
    lines([
        json!({ "commitInfo": commit_info("CREATE TABLE", &plan.partition_by, &json!({}), now, None) }),
        json!({ "protocol": protocol(plan) }),
        json!({ "metaData": {
            "id": uuid::Uuid::new_v4().to_string(),
            "format": { "provider": "parquet", "options": {} },
            "schemaString": json!(plan.columns).to_string(),
            "partitionColumns": plan.partition_by,
            "configuration": plan.properties,
            "createdTime": now,
        } }),
    ])
}

fn protocol(plan: &Plan) -> Value {
    if !has_wall_clock(&plan.columns) {
        return json!({ "minReaderVersion": 1, "minWriterVersion": 2 });
    }
    let mut writer = vec!["timestampNtz"];
    if plan.properties.contains_key("delta.appendOnly") {
        writer.push("appendOnly");
    }
    json!({ "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["timestampNtz"], "writerFeatures": writer })
}

/// A version that adds files, and says of each application how far it is.
pub fn append(
    txns: &HashMap<String, i64>,
    adds: &[&Add],
    partition_by: &[String],
    now: i64,
    in_commit_timestamp: Option<i64>,
) -> Vec<u8> {
    let metrics = json!({
        "numFiles": adds.len().to_string(),
        "numOutputBytes": adds.iter().map(|file| file.size).sum::<u64>().to_string(),
    });
    // The format wants the commit's own time in the first line.
    let info = json!({ "commitInfo": commit_info("WRITE", partition_by, &metrics, now, in_commit_timestamp) });
    let txns = txns.iter().map(|(app_id, version)| {
        json!({ "txn": Txn { app_id: app_id.clone(), version: *version, last_updated: Some(now) } })
    });
    lines([info].into_iter().chain(txns).chain(adds.iter().map(|add| json!({ "add": add }))))
}

fn commit_info(
    operation: &str,
    partition_by: &[String],
    metrics: &Value,
    now: i64,
    in_commit_timestamp: Option<i64>,
) -> Value {
    let mut info = json!({
        "timestamp": now,
        "operation": operation,
        "operationParameters": { "mode": "Append", "partitionBy": json!(partition_by).to_string() },
        "operationMetrics": metrics,
        "isBlindAppend": true,
        "engineInfo": concat!("distributary/", env!("CARGO_PKG_VERSION")),
    });
    if let (Some(time), Some(info)) = (in_commit_timestamp, info.as_object_mut()) {
        info.insert("inCommitTimestamp".into(), time.into());
    }
    info
}

fn lines(actions: impl IntoIterator<Item = Value>) -> Vec<u8> {
    let mut lines = Vec::new();
    for action in actions {
        lines.extend_from_slice(action.to_string().as_bytes());
        lines.push(b'\n');
    }
    lines
}
