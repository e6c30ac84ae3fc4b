//! The sink as others see it: tables are read back by the delta library, from nothing.

mod changed;
mod commits;
mod values;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use arrow::array::{Array, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Int64Type, SchemaRef};
use deltalake::DeltaTable;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::flow::{Epoch, Opened, PartitionId, Prepared, Rows, Sink, SinkInstance, StageName, StoreId};

/// Logs whose next answer is lost: the entry is there, and whoever put it hears of a failure.
static LOST_ANSWERS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Whether the answer about this log's newest entry is lost; asked once.
pub(super) fn answer_is_lost(log: &Path) -> bool {
    LOST_ANSWERS.lock().expect("the lost answers").remove(log)
}

fn lose_the_next_answer(root: &Path) {
    LOST_ANSWERS.lock().expect("the lost answers").insert(root.join("_delta_log"));
}

/// The data files there are, whether or not they are in the table.
fn data_files(root: &Path) -> BTreeSet<std::ffi::OsString> {
    let names = std::fs::read_dir(root).expect("list").map(|entry| entry.expect("entry").file_name());
    names.filter(|name| name != "_delta_log").collect()
}

const STORE: StoreId = StoreId(Uuid::from_u128(1));
const OTHER_STORE: StoreId = StoreId(Uuid::from_u128(2));

fn rows(numbers: std::ops::Range<i64>) -> Rows {
    let animal = StringArray::from_iter_values(numbers.clone().map(|n| ["cat", "dog"][(n % 2) as usize]));
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("n", Arc::new(Int64Array::from_iter_values(numbers)) as Arc<dyn Array>, true),
        ("animal", Arc::new(animal) as Arc<dyn Array>, true),
    ]);
    Rows::one_per_delivery(batch.expect("batch"))
}

fn plan(root: &Path, more: Value, store: StoreId, schema: SchemaRef) -> sink::TableSink {
    let mut config = json!({ "table": root.to_str().expect("utf-8"), "durability": "os" });
    config.as_object_mut().expect("object").extend(more.as_object().cloned().unwrap_or_default());
    assert_eq!(Delta.check(&config, &schema), vec![]);
    let context = SinkContext { topology: "t".into(), sink: StageName::from("lake"), store, schema };
    planned(&config, context).expect("planned")
}

fn factory(root: &Path, store: StoreId) -> sink::TableSink {
    plan(root, json!({}), store, rows(0..1).columns.schema())
}

fn writer(factory: &sink::TableSink, partition: u32) -> Box<dyn Sink> {
    match factory.sink(&PartitionId::new("orders", partition)) {
        SinkInstance::ExactlyOnce(sink) => sink,
        SinkInstance::AtLeastOnce(_) => panic!("exactly once"),
    }
}

async fn open(sink: &mut Box<dyn Sink>) -> Opened {
    sink.open(true).await.expect("opened")
}

async fn opened(factory: &sink::TableSink, partition: u32) -> Box<dyn Sink> {
    let mut sink = writer(factory, partition);
    open(&mut sink).await;
    sink
}

async fn prepared(sink: &mut Box<dyn Sink>, epoch: u64, rows: &Rows) -> Prepared {
    assert_eq!(sink.write(rows).await.expect("written"), vec![]);
    sink.prepare(Epoch(epoch)).await.expect("prepared").expect("something")
}

/// Writes and commits one epoch.
async fn commit(sink: &mut Box<dyn Sink>, epoch: u64, rows: &Rows) {
    let prepared = prepared(sink, epoch, rows).await;
    sink.commit(Epoch(epoch), Epoch(epoch - 1), &prepared, 1).await.expect("committed");
}

async fn table(root: &Path) -> DeltaTable {
    let url = deltalake::ensure_table_uri(root.to_str().expect("utf-8")).expect("url");
    deltalake::open_table(url).await.expect("a table")
}

fn batches(path: &str) -> Vec<RecordBatch> {
    let file = std::fs::File::open(path).expect(path);
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("parquet").build().expect("reader");
    reader.map(|batch| batch.expect("batch")).collect()
}

/// The column `n`, sorted.
async fn numbers(root: &Path) -> Vec<i64> {
    let table = table(root).await;
    let mut all = Vec::new();
    for uri in table.get_file_uris().expect("files") {
        for batch in batches(&uri) {
            all.extend(batch.column_by_name("n").expect("n").as_primitive::<Int64Type>().values());
        }
    }
    all.sort_unstable();
    all
}

/// The lines of one entry of the log.
fn entry(root: &Path, version: u64) -> Vec<Value> {
    let text = std::fs::read_to_string(root.join(format!("_delta_log/{version:020}.json"))).expect("an entry");
    text.lines().map(|line| serde_json::from_str(line).expect("json")).collect()
}

fn versions(root: &Path) -> u64 {
    (0..).find(|version| !root.join(format!("_delta_log/{version:020}.json")).exists()).expect("an end")
}

/// Adds an entry as another program would.
fn add_entry(root: &Path, lines: &[Value]) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(root.join(format!("_delta_log/{:020}.json", versions(root))), text).expect("written");
}

/// The table's metadata, changed.
fn changed_metadata(root: &Path, change: impl FnOnce(&mut Value)) -> Value {
    let mut line = entry(root, 0).into_iter().find(|line| line.get("metaData").is_some()).expect("metadata");
    change(&mut line["metaData"]);
    line
}

#[test]
fn the_check_names_every_problem() {
    let schema = rows(0..1).columns.schema();
    let check = |config: Value| -> Vec<String> {
        Delta.check(&config, &schema).into_iter().map(|e| format!("{}: {}", e.path.join("."), e.message)).collect()
    };
    assert_eq!(
        check(json!({
            "table": "s3://b/t", "mode": "merge", "partition_by": ["anmal"],
            "properties": { "delta.enableChangeDataFeed": "true", "delta.logRetentionDuration": "3 days", "mine": "x",
                            "delta.setTransactionRetentionDuration": "interval 1 day" },
        })),
        [
            "table: 's3://' is not a place for tables yet: object stores come later, write a path",
            "mode: 'merge' comes later: this version only has 'append'",
            "properties.delta.enableChangeDataFeed: 'delta.enableChangeDataFeed' is not a property this sink can set on a table",
            "properties.delta.logRetentionDuration: '3 days' is not a duration: write it like 'interval 30 days'",
            "properties.delta.setTransactionRetentionDuration: must be at least 'interval 30 days': the table's memory of what it has",
            "partition_by.0: there is no column 'anmal'; did you mean 'animal'?",
        ]
    );
    let yaml: Value = serde_yaml::from_str(Delta.example()).expect("yaml");
    assert_eq!(Delta.check(&yaml, &schema), vec![]);
    assert!(serde_json::to_string(&Delta.schema()).expect("json").contains("target_file_size"));
}
