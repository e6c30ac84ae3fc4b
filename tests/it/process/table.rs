//! Reads what the sinks wrote, by the plainest means: the Delta log as JSON lines, Parquet files by the parquet crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::array::AsArray;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

use super::run::files_below;

/// How often each message id is in these files.
fn ids_in(files: impl IntoIterator<Item = PathBuf>) -> BTreeMap<String, usize> {
    let mut ids = BTreeMap::new();
    for file in files {
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&file).expect("a file of the table"))
            .and_then(|builder| builder.build())
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        for batch in reader {
            let batch = batch.expect("rows");
            let column = batch.column_by_name("id").expect("an id column");
            for id in column.as_string::<i32>().iter().flatten() {
                *ids.entry(id.to_owned()).or_default() += 1;
            }
        }
    }
    ids
}

/// The actions of a Delta log, in the order of its versions.
pub fn delta_log(table: &Path) -> Vec<Value> {
    let mut versions: Vec<_> = files_below(&table.join("_delta_log"));
    versions.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    versions.sort();
    let texts = versions.iter().map(|path| std::fs::read_to_string(path).expect("a version"));
    texts
        .flat_map(|text| text.lines().map(|line| serde_json::from_str(line).expect("an action")).collect::<Vec<_>>())
        .collect()
}

/// The files that are in a Delta table now.
pub fn delta_files(table: &Path) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    for action in delta_log(table) {
        if let Some(path) = action["add"]["path"].as_str() {
            assert!(files.insert(table.join(decoded(path))), "{path} was added twice");
        }
        assert!(action["remove"].is_null(), "an append removes nothing");
    }
    files
}

/// The data files in a Delta table's folder, whether or not they are in the table.
pub fn data_files(table: &Path) -> BTreeSet<PathBuf> {
    let log = table.join("_delta_log");
    files_below(table).into_iter().filter(|path| !path.starts_with(&log)).collect()
}

/// Percent-decoding, as the Delta protocol has it for paths.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let hex: Vec<u8> = rest.by_ref().take(2).collect();
            let hex = std::str::from_utf8(&hex).expect("hexadecimal digits");
            bytes.push(u8::from_str_radix(hex, 16).expect("hexadecimal digits"));
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).expect("a path")
}

/// How often each id is in a Delta table.
pub fn delta_ids(table: &Path) -> BTreeMap<String, usize> {
    ids_in(delta_files(table))
}

/// The greatest epoch that each transaction of a Delta table shows.
pub fn delta_txns(table: &Path) -> BTreeMap<String, u64> {
    let mut txns = BTreeMap::new();
    for action in delta_log(table) {
        if let (Some(app), Some(version)) = (action["txn"]["appId"].as_str(), action["txn"]["version"].as_u64()) {
            txns.insert(app.to_owned(), version);
        }
    }
    txns
}

/// The files of a Parquet folder that a reader sees.
fn parquet_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = files_below(folder);
    files.retain(|path| {
        let hidden = path.strip_prefix(folder).is_ok_and(|path| path.starts_with("_distributary"));
        !hidden && path.extension().is_some_and(|extension| extension == "parquet")
    });
    files
}

/// How often each id is in a Parquet folder.
pub fn parquet_ids(folder: &Path) -> BTreeMap<String, usize> {
    ids_in(parquet_files(folder))
}
