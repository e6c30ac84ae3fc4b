//! Types, partition values and statistics, as they come out again.

use std::collections::BTreeSet;

use arrow::array::{
    BinaryArray, Date32Array, Decimal128Array, DictionaryArray, Float64Array, Int32Array, MapBuilder, StringBuilder,
    TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray, UInt8Array, UInt64Array,
};
use arrow::datatypes::{DataType, Decimal128Type, Int32Type, TimeUnit, TimestampMicrosecondType};

use super::*;

fn of(columns: Vec<(&str, Arc<dyn Array>)>) -> Rows {
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    Rows::one_per_delivery(RecordBatch::try_from_iter_with_nullable(columns).expect("batch"))
}

fn everything() -> Rows {
    let nanos = TimestampNanosecondArray::from(vec![1_704_067_200_123_456_789, -1_000_000_001]);
    let words: DictionaryArray<Int32Type> = ["a", "b"].into_iter().collect();
    let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    for _ in 0..2 {
        map.keys().append_value("k");
        map.values().append_option(None::<&str>);
        map.append(true).expect("map");
    }
    of(vec![
        ("instant", Arc::new(nanos.clone().with_timezone("+02:00"))),
        ("received", Arc::new(TimestampMillisecondArray::from(vec![1, 2]).with_timezone("UTC"))),
        ("wall", Arc::new(nanos)),
        ("small", Arc::new(UInt8Array::from(vec![133, 255]))),
        ("large", Arc::new(UInt64Array::from(vec![u64::MAX, 0]))),
        ("word", Arc::new(words)),
        ("original", Arc::new(BinaryArray::from_vec(vec![b"\xff\x00", b""]))),
        ("properties", Arc::new(map.finish())),
    ])
}

#[tokio::test]
async fn two_writes_of_every_type_come_out_as_delta_has_them() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let factory = plan(root, json!({}), STORE, everything().columns.schema());
    let mut one = opened(&factory, 0).await;
    for epoch in 1..=2 {
        commit(&mut one, epoch, &everything()).await;
    }
    let mut again = opened(&plan(root, json!({}), STORE, everything().columns.schema()), 0).await;
    commit(&mut again, 3, &everything()).await;

    let table = table(root).await;
    let snapshot = table.snapshot().expect("snapshot");
    let schema = snapshot.schema();
    let types: Vec<String> = schema.fields().map(|field| field.data_type().to_string()).collect();
    let expected = [
        "timestamp",
        "timestamp",
        "timestamp_ntz",
        "short",
        "decimal(20,0)",
        "string",
        "binary",
        "map<string, string>",
    ];
    assert_eq!(types, expected);
    assert!(schema.fields().all(|field| field.is_nullable()));
    assert_eq!(snapshot.protocol().min_writer_version(), 7, "timestamp_ntz is a feature");

    let files: Vec<String> = table.get_file_uris().expect("files").collect();
    assert_eq!(files.len(), 3);
    let batch = batches(&files[0]).remove(0);
    assert_eq!(batch.column(0).data_type(), &DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())));
    assert_eq!(batch.column(2).data_type(), &DataType::Timestamp(TimeUnit::Microsecond, None));
    let times = batch.column(0).as_primitive::<TimestampMicrosecondType>().values().to_vec();
    assert_eq!(times, [1_704_067_200_123_456, -1_000_000]);
    assert_eq!(batch.column(4).as_primitive::<Decimal128Type>().value(0), i128::from(u64::MAX));
}

#[tokio::test]
async fn odd_partition_values_are_exact_in_the_log_and_their_files_are_found() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let odd =
        ["A/A", "B B", "a:b", "50%", "%2F", "k=v", "1+1", "what?", "#1", "é", "/x/", "..", "日本", "a\"b'c", "\\"];
    let mut values: Vec<Option<&str>> = odd.iter().copied().map(Some).collect();
    values.extend([None, Some("")]);
    let n = Int64Array::from_iter_values(0..values.len() as i64);
    let rows = of(vec![("p q", Arc::new(StringArray::from(values))), ("n", Arc::new(n))]);
    let factory = plan(root, json!({ "partition_by": ["p q"] }), STORE, rows.columns.schema());
    let mut one = opened(&factory, 0).await;
    commit(&mut one, 1, &rows).await;

    let adds: Vec<Value> = entry(root, 1).into_iter().filter_map(|line| line.get("add").cloned()).collect();
    let logged: BTreeSet<Option<String>> =
        adds.iter().map(|add| add["partitionValues"]["p q"].as_str().map(str::to_owned)).collect();
    let expected: BTreeSet<Option<String>> = odd.iter().map(|v| Some((*v).to_owned())).chain([None]).collect();
    assert_eq!(logged, expected, "an empty text is a null, as the format has it");
    assert!(adds.iter().all(|add| add["partitionValues"]["p q"] != ""));
    assert_eq!(numbers(root).await, (0..odd.len() as i64 + 2).collect::<Vec<_>>(), "another reader finds every file");
    let log = table(root).await;
    let read: BTreeSet<Option<String>> = log
        .snapshot()
        .expect("snapshot")
        .log_data()
        .into_iter()
        .map(|file| file.partition_values_map().remove("p q").flatten())
        .collect();
    assert_eq!(read, expected);
}

#[tokio::test]
async fn a_dictionary_may_partition_and_so_may_dates_and_times() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let words: DictionaryArray<Int32Type> = ["a", "b", "a"].into_iter().collect();
    let rows = of(vec![
        ("word", Arc::new(words)),
        ("day", Arc::new(Date32Array::from(vec![19_723, 19_723, 19_723]))),
        ("at", Arc::new(TimestampMicrosecondArray::from(vec![0, 0, 0]).with_timezone("UTC"))),
        ("n", Arc::new(Int64Array::from(vec![1, 2, 3]))),
    ]);
    let factory = plan(root, json!({ "partition_by": ["word", "day", "at"] }), STORE, rows.columns.schema());
    let mut one = opened(&factory, 0).await;
    commit(&mut one, 1, &rows).await;
    assert_eq!(numbers(root).await, [1, 2, 3]);
    let add = entry(root, 1).into_iter().find_map(|line| line.get("add").cloned()).expect("a file");
    assert_eq!(add["partitionValues"]["day"], "2024-01-01");
    assert_eq!(add["partitionValues"]["at"], "1970-01-01 00:00:00.000000");
}

#[tokio::test]
async fn statistics_are_certain_or_absent() {
    let folder = tempfile::tempdir().expect("folder");
    let rows = of(vec![
        ("n", Arc::new(Int32Array::from(vec![Some(3), None, Some(-1)]))),
        ("x", Arc::new(Float64Array::from(vec![0.5, 1.5, f64::INFINITY]))),
        ("s", Arc::new(StringArray::from(vec!["b", "a", "é"]))),
        ("day", Arc::new(Date32Array::from(vec![-1, 0, 19_723]))),
        ("t", Arc::new(TimestampMicrosecondArray::from(vec![1999, 1, -1]).with_timezone("UTC"))),
        ("w", Arc::new(TimestampMicrosecondArray::from(vec![1999, 1, -1]))),
        ("d", Arc::new(Decimal128Array::from(vec![150, -5, 0]).with_precision_and_scale(9, 2).expect("decimal"))),
        ("long", Arc::new(Decimal128Array::from(vec![1, 2, 3]).with_precision_and_scale(38, 0).expect("decimal"))),
        ("bytes", Arc::new(BinaryArray::from_vec(vec![b"1", b"2", b"3"]))),
        ("none", Arc::new(StringArray::from(vec![None::<&str>; 3]))),
    ]);
    let factory = plan(folder.path(), json!({}), STORE, rows.columns.schema());
    let mut one = opened(&factory, 0).await;
    commit(&mut one, 1, &rows).await;
    let add = entry(folder.path(), 1).into_iter().find_map(|line| line.get("add").cloned()).expect("a file");
    let stats: Value = serde_json::from_str(add["stats"].as_str().expect("text")).expect("json");
    assert_eq!(
        stats,
        json!({
            "numRecords": 3,
            "minValues": { "n": -1, "x": 0.5, "s": "a", "day": "1969-12-31", "t": "1969-12-31T23:59:59.999Z",
                           "w": "1969-12-31T23:59:59.999", "d": -0.05 },
            "maxValues": { "n": 3, "s": "é", "day": "2024-01-01", "t": "1970-01-01T00:00:00.001Z",
                           "w": "1970-01-01T00:00:00.001", "d": 1.5 },
            "nullCount": { "n": 1, "x": 0, "s": 0, "day": 0, "t": 0, "w": 0, "d": 0, "long": 0, "bytes": 0, "none": 3 },
        })
    );
    let table = table(folder.path()).await;
    let file = table.snapshot().expect("snapshot").log_data().into_iter().next().expect("a file").num_records();
    assert_eq!(file, Some(3));
}
