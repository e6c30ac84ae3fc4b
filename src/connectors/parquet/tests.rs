use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use arrow::array::{
    Array, AsArray, Int64Array, MapBuilder, RecordBatch, StringArray, StringBuilder, TimestampNanosecondArray,
};
use arrow::datatypes::{DataType, Int64Type, TimeUnit};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::LogicalType;
use uuid::Uuid;

use super::*;
use crate::flow::{
    Committed, Epoch, Opened, PartitionId, Prepared, Reaction, Rows, Sink, SinkInstance, StageName, StoreId,
};

const STORE: StoreId = StoreId(Uuid::from_u128(1));
const OTHER_STORE: StoreId = StoreId(Uuid::from_u128(2));

fn rows(numbers: std::ops::Range<i64>) -> Rows {
    let animals = ["cat", "dog/wolf", "é?"];
    let animal = StringArray::from_iter(numbers.clone().map(|n| (n % 4 < 3).then(|| animals[(n % 4) as usize])));
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("n", Arc::new(Int64Array::from_iter_values(numbers)) as Arc<dyn Array>, true),
        ("animal", Arc::new(animal) as Arc<dyn Array>, true),
    ]);
    Rows::one_per_delivery(batch.expect("batch"))
}

fn factory_of(root: &Path, more: Value, store: StoreId, schema: SchemaRef) -> Arc<dyn SinkFactory> {
    let mut config = serde_json::json!({ "path": root.to_str().expect("utf-8"), "durability": "os" });
    config.as_object_mut().expect("object").extend(more.as_object().cloned().unwrap_or_default());
    assert_eq!(Parquet.check(&config, &schema), vec![]);
    let context = SinkContext { topology: "t".into(), sink: StageName::from("files"), store, schema };
    Parquet.build(&config, context).expect("built")
}

fn sink(root: &Path, store: StoreId) -> Box<dyn Sink> {
    let factory = factory_of(root, serde_json::json!({}), store, rows(0..1).columns.schema());
    writer(&*factory, 0)
}

fn writer(factory: &dyn SinkFactory, partition: u32) -> Box<dyn Sink> {
    match factory.sink(&PartitionId::new("orders", partition)) {
        SinkInstance::ExactlyOnce(sink) => sink,
        SinkInstance::AtLeastOnce(_) => panic!("exactly once"),
    }
}

/// The files that readers see: they skip what begins with an underscore or a dot.
fn visible(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).expect("list") {
        let path = entry.expect("entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("utf-8");
        if name.starts_with(['_', '.']) {
            continue;
        }
        if path.is_dir() { found.extend(visible(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn staged(root: &Path) -> usize {
    fn count(directory: &Path) -> usize {
        let entries = fs::read_dir(directory).into_iter().flatten().map(|entry| entry.expect("entry").path());
        entries.map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
    }
    count(&root.join("_distributary/staged"))
}

fn numbers(root: &Path) -> Vec<i64> {
    let mut all = Vec::new();
    for path in visible(root) {
        let file = fs::File::open(&path).expect("open");
        for batch in ParquetRecordBatchReaderBuilder::try_new(file).expect("parquet").build().expect("reader") {
            let batch = batch.expect("batch");
            all.extend(batch.column_by_name("n").expect("n").as_primitive::<Int64Type>().values());
        }
    }
    all.sort_unstable();
    all
}

async fn open(sink: &mut Box<dyn Sink>) -> Opened {
    sink.open(true).await.expect("opened")
}

async fn prepared(sink: &mut Box<dyn Sink>, epoch: u64, numbers: std::ops::Range<i64>) -> Prepared {
    assert_eq!(sink.write(&rows(numbers)).await.expect("written"), vec![]);
    sink.prepare(Epoch(epoch)).await.expect("prepared").expect("something")
}

#[tokio::test]
async fn nothing_is_visible_before_commit_and_everything_once_after() {
    let folder = tempfile::tempdir().expect("folder");
    let mut one = sink(folder.path(), STORE);
    assert_eq!(open(&mut one).await, Opened { committed: Committed::At(Epoch(0)), foreign: false });
    assert_eq!(one.prepare(Epoch(1)).await.expect("prepared"), None, "nothing was written");
    let first = prepared(&mut one, 1, 0..10).await;
    assert_eq!(first.rows, 10);
    assert!(visible(folder.path()).is_empty());
    for _ in 0..2 {
        one.commit(Epoch(1), Epoch(0), &first, 1).await.expect("committed");
        assert_eq!(numbers(folder.path()), (0..10).collect::<Vec<_>>());
    }
    let second = prepared(&mut one, 2, 10..15).await;
    one.commit(Epoch(2), Epoch(1), &second, 1).await.expect("committed");
    one.commit(Epoch(1), Epoch(0), &first, 1).await.expect("an old commit once more is success");
    assert_eq!(numbers(folder.path()), (0..15).collect::<Vec<_>>());
    assert_eq!(staged(folder.path()), 0);
    assert_eq!(open(&mut sink(folder.path(), STORE)).await.committed, Committed::At(Epoch(2)));
}

#[tokio::test]
async fn another_process_commits_what_was_prepared_and_what_was_half_moved() {
    let folder = tempfile::tempdir().expect("folder");
    let partitioned = || {
        let schema = rows(0..1).columns.schema();
        let factory = factory_of(folder.path(), serde_json::json!({ "partition_by": ["animal"] }), STORE, schema);
        writer(&*factory, 0)
    };
    let mut one = partitioned();
    open(&mut one).await;
    let prepared = prepared(&mut one, 1, 0..8).await;
    drop(one);
    assert_eq!(staged(folder.path()), 4, "a prepared epoch outlives its writer");
    let payload: Value = serde_json::from_str(&prepared.payload).expect("json");
    let file = &payload["files"][0];
    let to = folder.path().join(file["path"].as_str().expect("path"));
    fs::create_dir_all(to.parent().expect("parent")).expect("directory");
    fs::rename(folder.path().join(file["staged"].as_str().expect("path")), to).expect("moved");

    let mut two = partitioned();
    assert_eq!(open(&mut two).await.committed, Committed::At(Epoch(0)));
    two.commit(Epoch(1), Epoch(0), &prepared, 1).await.expect("committed");
    assert_eq!(numbers(folder.path()), (0..8).collect::<Vec<_>>());
    let names: Vec<_> = fs::read_dir(folder.path()).expect("list").map(|e| e.expect("entry").file_name()).collect();
    for name in ["animal=cat", "animal=dog%2Fwolf", "animal=%C3%A9%3F", "animal=__HIVE_DEFAULT_PARTITION__"] {
        assert!(names.iter().any(|found| found == name), "{name} in {names:?}");
    }
}

#[tokio::test]
async fn a_mark_that_is_neither_here_nor_there_parks() {
    let folder = tempfile::tempdir().expect("folder");
    let mut one = sink(folder.path(), STORE);
    open(&mut one).await;
    let prepared = prepared(&mut one, 5, 0..3).await;
    let error = one.commit(Epoch(5), Epoch(4), &prepared, 1).await.expect_err("inconsistent");
    assert_eq!(error.reaction, Reaction::Park);
    assert!(error.to_string().starts_with("inconsistent"), "{error}");
    assert!(visible(folder.path()).is_empty());
}

#[tokio::test]
async fn files_that_are_gone_park_and_name_the_way_out() {
    let folder = tempfile::tempdir().expect("folder");
    let mut one = sink(folder.path(), STORE);
    open(&mut one).await;
    let prepared = prepared(&mut one, 1, 0..3).await;
    fs::remove_dir_all(folder.path().join("_distributary/staged")).expect("removed");
    let error = one.commit(Epoch(1), Epoch(0), &prepared, 1).await.expect_err("gone");
    assert_eq!(error.reaction, Reaction::Park);
    assert!(error.to_string().contains("runtime state FILE reset orders/0 --drop"), "{error}");
}

#[tokio::test]
async fn a_probe_says_what_is_there_and_makes_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path().join("files");
    let probe = |store| {
        let factory = factory_of(&root, serde_json::json!({}), store, rows(0..1).columns.schema());
        async move { factory.probe(false).await.expect("it can be used") }
    };
    assert!(probe(STORE).await.found.ends_with("will be created"));
    assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 0);
    let mut one = sink(&root, STORE);
    open(&mut one).await;
    let first = prepared(&mut one, 1, 0..3).await;
    one.commit(Epoch(1), Epoch(0), &first, 1).await.expect("committed");
    let there = probe(STORE).await;
    assert!(there.found.ends_with("can be written") && !there.foreign, "{there:?}");
    assert!(probe(OTHER_STORE).await.foreign);
    assert_eq!(staged(&root), 0);
}

#[tokio::test]
async fn marks_of_another_log_are_foreign_until_adopted() {
    let folder = tempfile::tempdir().expect("folder");
    let mut old = sink(folder.path(), OTHER_STORE);
    assert!(!old.open(false).await.expect("opened").foreign);
    let prepared = prepared(&mut old, 1, 0..3).await;
    old.commit(Epoch(1), Epoch(0), &prepared, 1).await.expect("committed");
    let mut new = sink(folder.path(), STORE);
    let opened = new.open(false).await.expect("opened");
    assert_eq!(opened, Opened { committed: Committed::At(Epoch(0)), foreign: true });
    assert!(!new.open(true).await.expect("opened").foreign);
}

#[tokio::test]
async fn dead_attempts_are_removed_when_no_entry_can_name_them() {
    let folder = tempfile::tempdir().expect("folder");
    let mut dead = sink(folder.path(), STORE);
    open(&mut dead).await;
    let stored = prepared(&mut dead, 1, 0..3).await;
    prepared(&mut dead, 2, 3..6).await;
    drop(dead);
    let mut two = sink(folder.path(), STORE);
    open(&mut two).await;
    two.commit(Epoch(1), Epoch(0), &stored, 1).await.expect("replayed");
    assert_eq!(staged(folder.path()), 1, "a replay alone proves nothing of the rest");
    let own = prepared(&mut two, 2, 3..6).await;
    two.commit(Epoch(2), Epoch(1), &own, 1).await.expect("committed");
    assert_eq!(staged(folder.path()), 0);
    assert_eq!(numbers(folder.path()), (0..6).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_dropped_writer_leaves_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let mut one = sink(folder.path(), STORE);
    open(&mut one).await;
    one.write(&rows(0..1000)).await.expect("written");
    assert_eq!(staged(folder.path()), 1);
    drop(one);
    assert_eq!(staged(folder.path()), 0);
    assert!(visible(folder.path()).is_empty());
}

#[tokio::test]
async fn a_path_through_a_file_parks_with_the_path_in_the_sentence() {
    let folder = tempfile::tempdir().expect("folder");
    fs::write(folder.path().join("file"), "").expect("written");
    let error = sink(&folder.path().join("file/below"), STORE).open(true).await.expect_err("not a directory");
    assert_eq!(error.reaction, Reaction::Park);
    assert!(error.to_string().contains("file/below"), "{error}");
}

#[tokio::test]
async fn a_damaged_mark_parks() {
    let folder = tempfile::tempdir().expect("folder");
    open(&mut sink(folder.path(), STORE)).await;
    let mark = folder.path().join(format!("_distributary/marks/t%2Forders%2Ffiles%2F{STORE}%2F0"));
    fs::write(mark, "{").expect("written");
    let error = sink(folder.path(), STORE).open(true).await.expect_err("damaged");
    assert_eq!(error.reaction, Reaction::Park);
    assert!(error.to_string().contains("damaged"), "{error}");
}

#[tokio::test]
async fn footers_say_utc_for_instants_and_not_for_wall_clocks() {
    let folder = tempfile::tempdir().expect("folder");
    let time = TimestampNanosecondArray::from(vec![1_704_067_200_123_456_789]);
    let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    map.keys().append_value("k");
    map.values().append_value("v");
    map.append(true).expect("map");
    let columns: [(&str, Arc<dyn Array>, bool); 4] = [
        ("instant", Arc::new(time.clone().with_timezone("+05:30")), true),
        ("wall", Arc::new(time), true),
        ("bytes", Arc::new(arrow::array::BinaryArray::from_vec(vec![b"\xff\x00"])), true),
        ("properties", Arc::new(map.finish()), true),
    ];
    let rows = Rows::one_per_delivery(RecordBatch::try_from_iter_with_nullable(columns).expect("batch"));
    let factory = factory_of(folder.path(), serde_json::json!({}), STORE, rows.columns.schema());
    let mut one = writer(&*factory, 0);
    open(&mut one).await;
    assert_eq!(one.write(&rows).await.expect("written"), vec![]);
    let prepared = one.prepare(Epoch(1)).await.expect("prepared").expect("something");
    one.commit(Epoch(1), Epoch(0), &prepared, 1).await.expect("committed");

    let path = visible(folder.path()).pop().expect("a file");
    let builder = ParquetRecordBatchReaderBuilder::try_new(fs::File::open(path).expect("open")).expect("parquet");
    let utc: BTreeMap<String, bool> = builder
        .parquet_schema()
        .columns()
        .iter()
        .filter_map(|column| match column.logical_type_ref() {
            Some(LogicalType::Timestamp(time)) => Some((column.name().to_owned(), time.is_adjusted_to_u_t_c)),
            _ => None,
        })
        .collect();
    assert_eq!(utc, BTreeMap::from([("instant".into(), true), ("wall".into(), false)]));
    assert_eq!(
        builder.schema().field(0).data_type(),
        &DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        "never INT96, and nanoseconds only where they are asked for"
    );
    let batch = builder.build().expect("reader").next().expect("a batch").expect("batch");
    assert_eq!(batch.num_rows(), 1);
    assert_eq!(batch.column(2).as_binary::<i32>().value(0), b"\xff\x00");
}

#[test]
fn the_check_names_every_problem_and_the_nearest_column() {
    let schema = rows(0..1).columns.schema();
    let check = |config: Value| -> Vec<String> {
        Parquet.check(&config, &schema).into_iter().map(|e| format!("{}: {}", e.path.join("."), e.message)).collect()
    };
    assert_eq!(
        check(serde_json::json!({ "path": "s3://b/x", "partition_by": ["animl", "n", "n"], "max_open_files": 0 })),
        [
            "path: 's3://' is not a place for tables yet: object stores come later, write a path",
            "max_open_files: must be at least 1",
            "partition_by.0: there is no column 'animl'; did you mean 'animal'?",
            "partition_by.2: 'n' is named twice",
        ]
    );
    assert_eq!(
        check(serde_json::json!({ "path": "x", "partition_by": ["n", "animal"] })),
        ["partition_by: names every column: at least one must be left for the files"]
    );
    let yaml: Value = serde_yaml::from_str(Parquet.example()).expect("yaml");
    assert_eq!(Parquet.check(&yaml, &schema), vec![]);
    assert!(serde_json::to_string(&Parquet.schema()).expect("json").contains("max_open_files"));
}
