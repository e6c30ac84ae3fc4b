//! A table that others change, forbid or delete.

use super::*;
use crate::flow::{Committed, Reaction, StageError};

fn parks(error: &StageError, says: &str) {
    assert_eq!(error.reaction, Reaction::Park, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

/// A schema string with these fields.
fn schema(fields: &[(&str, Value, bool)]) -> Value {
    let fields: Vec<Value> = fields
        .iter()
        .map(|(name, kind, nullable)| json!({ "name": name, "type": kind, "nullable": nullable, "metadata": {} }))
        .collect();
    json!(json!({ "type": "struct", "fields": fields }).to_string())
}

fn with_schema(root: &Path, fields: &[(&str, Value, bool)]) -> Value {
    changed_metadata(root, |metadata| metadata["schemaString"] = schema(fields))
}

#[tokio::test]
async fn a_path_that_cannot_be_written_parks_with_the_path_in_the_sentence() {
    let folder = tempfile::tempdir().expect("folder");
    std::fs::write(folder.path().join("file"), "").expect("written");
    let error =
        writer(&factory(&folder.path().join("file/table"), STORE), 0).open(true).await.expect_err("no directory");
    parks(&error, "file/table");
}

#[tokio::test]
async fn a_new_nullable_column_of_others_is_no_hindrance() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let mut one = opened(&factory(root, STORE), 0).await;
    let stored = prepared(&mut one, 1, &rows(0..10)).await;
    let fields = [("n", json!("long"), true), ("animal", json!("string"), true), ("note", json!("string"), true)];
    add_entry(root, &[with_schema(root, &fields)]);
    one.commit(Epoch(1), Epoch(0), &stored, 1).await.expect("committed");
    // A writer that opens now fills it with nulls.
    let mut two = opened(&factory(root, STORE), 1).await;
    commit(&mut two, 1, &rows(10..20)).await;
    assert_eq!(numbers(root).await, (0..20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_change_that_our_rows_do_not_fit_parks_with_the_column() {
    for (fields, says) in [
        (vec![("n", json!("string"), true), ("animal", json!("string"), true)], "column 'n' is string in the table"),
        (vec![("n", json!("long"), true)], "the table has no column 'animal'"),
        (
            vec![("n", json!("long"), true), ("Animal", json!("string"), true)],
            "column 'animal' is called 'Animal' in the table",
        ),
        (
            vec![("n", json!("long"), true), ("animal", json!("string"), true), ("must", json!("long"), false)],
            "column 'must' must not be null in the table",
        ),
    ] {
        let folder = tempfile::tempdir().expect("folder");
        let root = folder.path();
        let mut one = opened(&factory(root, STORE), 0).await;
        let stored = prepared(&mut one, 1, &rows(0..10)).await;
        add_entry(root, &[with_schema(root, &fields)]);
        parks(&one.commit(Epoch(1), Epoch(0), &stored, 1).await.expect_err(says), says);
        parks(&writer(&factory(root, STORE), 0).open(true).await.expect_err(says), says);
        assert_eq!(versions(root), 2);
    }
}

#[tokio::test]
async fn other_partition_columns_park() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let mut one = opened(&factory(root, STORE), 0).await;
    let stored = prepared(&mut one, 1, &rows(0..10)).await;
    add_entry(root, &[changed_metadata(root, |metadata| metadata["partitionColumns"] = json!(["animal"]))]);
    parks(&one.commit(Epoch(1), Epoch(0), &stored, 1).await.expect_err("other partitions"), "partition columns");
    // Left out, the table's own are taken; said otherwise, that is a clash.
    let mut two = opened(&factory(root, STORE), 1).await;
    commit(&mut two, 1, &rows(0..4)).await;
    let other = plan(root, json!({ "partition_by": ["n"] }), STORE, rows(0..1).columns.schema());
    let says = "partitioned by [animal], and 'partition_by' says [n]";
    parks(&writer(&other, 2).open(true).await.expect_err(says), says);
}

#[tokio::test]
async fn a_protocol_we_do_not_know_parks() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let mut one = opened(&factory(root, STORE), 0).await;
    let stored = prepared(&mut one, 1, &rows(0..10)).await;
    add_entry(
        root,
        &[json!({ "protocol": { "minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": ["fromTheFuture"], "writerFeatures": ["fromTheFuture"] } })],
    );
    parks(&one.commit(Epoch(1), Epoch(0), &stored, 1).await.expect_err("unknown"), "'fromTheFuture'");
}

#[tokio::test]
async fn a_deleted_table_parks_and_so_does_one_made_anew() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path().join("table");
    let factory_of = || factory(&root, STORE);
    let factory = factory_of();
    let mut one = opened(&factory, 0).await;
    commit(&mut one, 1, &rows(0..10)).await;
    let stored = prepared(&mut one, 2, &rows(10..20)).await;
    std::fs::remove_dir_all(&root).expect("deleted");
    parks(&one.commit(Epoch(2), Epoch(1), &stored, 1).await.expect_err("deleted"), "deleted or made anew");
    assert!(!root.exists(), "nothing is written where the table was");

    let mut other = opened(&factory_of(), 9).await;
    for epoch in 1..=3 {
        commit(&mut other, epoch, &rows(0..1)).await;
    }
    parks(&one.commit(Epoch(2), Epoch(1), &stored, 1).await.expect_err("another table"), "deleted or made anew");
    parks(&writer(&factory, 0).open(true).await.expect_err("another table"), "deleted or made anew");
    assert_eq!(versions(&root), 4);
}

#[tokio::test]
async fn versions_of_others_between_ours_are_read_and_kept() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let mut one = opened(&factory(root, STORE), 0).await;
    let stored = prepared(&mut one, 1, &rows(0..10)).await;
    for n in 0..3 {
        add_entry(root, &[json!({ "txn": { "appId": format!("other-{n}"), "version": n } })]);
    }
    one.commit(Epoch(1), Epoch(0), &stored, 1).await.expect("committed");
    assert_eq!((numbers(root).await, versions(root)), ((0..10).collect(), 5));
}

#[tokio::test]
async fn an_answer_that_was_lost_is_looked_for_before_it_is_repeated() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let mut one = opened(&factory(root, STORE), 0).await;
    let stored = prepared(&mut one, 1, &rows(0..10)).await;
    // The version landed, and the process that sent it never heard of it.
    let payload: Value = serde_json::from_str(&stored.payload).expect("json");
    let txn = json!({ "txn": { "appId": format!("t/orders/lake/{STORE}/0"), "version": 1 } });
    add_entry(root, &[txn, json!({ "add": payload["files"][0] })]);
    one.commit(Epoch(1), Epoch(0), &stored, 1).await.expect("it is there");
    assert_eq!((numbers(root).await, versions(root)), ((0..10).collect(), 2));
}

#[tokio::test]
async fn a_commit_that_landed_and_was_reported_as_failed_is_one_commit_and_loses_no_file() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let factory = factory(root, STORE);
    let (mut one, mut two) = (opened(&factory, 0).await, opened(&factory, 1).await);
    let (first, second) = (prepared(&mut one, 1, &rows(0..10)).await, prepared(&mut two, 1, &rows(10..20)).await);
    let files = data_files(root);
    lose_the_next_answer(root);
    let (a, b) = tokio::join!(one.commit(Epoch(1), Epoch(0), &first, 2), two.commit(Epoch(1), Epoch(0), &second, 2));
    a.and(b).expect("it looks before it fails");
    // Tried again, by this process and by the next.
    one.commit(Epoch(1), Epoch(0), &first, 1).await.expect("it is there");
    drop((one, two));
    opened(&super::factory(root, STORE), 0).await.commit(Epoch(1), Epoch(0), &first, 1).await.expect("it is there");
    assert_eq!((numbers(root).await, versions(root)), ((0..20).collect(), 2));
    assert_eq!(data_files(root), files, "every file is still there");
}

#[tokio::test]
async fn a_commit_that_is_refused_keeps_its_files_for_the_next_attempt() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let mut one = opened(&factory(root, STORE), 0).await;
    let stored = prepared(&mut one, 1, &rows(0..10)).await;
    let files = data_files(root);
    let changed = [("n", json!("string"), true), ("animal", json!("string"), true)];
    add_entry(root, &[with_schema(root, &changed)]);
    parks(&one.commit(Epoch(1), Epoch(0), &stored, 1).await.expect_err("refused"), "column 'n'");
    drop(one);
    assert_eq!(data_files(root), files, "the checkpoint log still names them");
    let as_it_was = [("n", json!("long"), true), ("animal", json!("string"), true)];
    add_entry(root, &[with_schema(root, &as_it_was)]);
    let mut next = opened(&factory(root, STORE), 0).await;
    next.commit(Epoch(1), Epoch(0), &stored, 1).await.expect("committed");
    assert_eq!(numbers(root).await, (0..10).collect::<Vec<_>>());
}

#[tokio::test]
async fn commits_keep_the_tables_own_time_where_it_has_one() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    open(&mut writer(&factory(root, STORE), 0)).await;
    let future = 4_000_000_000_000_i64;
    add_entry(
        root,
        &[
            json!({ "commitInfo": { "inCommitTimestamp": future } }),
            json!({ "protocol": { "minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"] } }),
            changed_metadata(root, |metadata| {
                metadata["configuration"]["delta.enableInCommitTimestamps"] = json!("true");
            }),
        ],
    );
    let mut one = opened(&factory(root, STORE), 0).await;
    for epoch in 1..=2 {
        commit(&mut one, epoch, &rows(0..1)).await;
        let line = &entry(root, 1 + epoch)[0];
        assert_eq!(line["commitInfo"]["inCommitTimestamp"], json!(future + epoch as i64), "later than the one before");
    }
}

#[tokio::test]
async fn a_null_where_the_table_takes_none_is_rejected_alone() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    open(&mut writer(&factory(root, STORE), 0)).await;
    add_entry(root, &[with_schema(root, &[("n", json!("long"), false), ("animal", json!("string"), true)])]);
    let mut one = opened(&factory(root, STORE), 0).await;
    let batch = RecordBatch::try_new(
        rows(0..1).columns.schema(),
        vec![
            Arc::new(Int64Array::from(vec![Some(1), None, Some(3)])),
            Arc::new(StringArray::from(vec!["a", "b", "c"])),
        ],
    );
    let rejected = one.write(&Rows::one_per_delivery(batch.expect("batch"))).await.expect("written");
    assert_eq!(rejected.len(), 1);
    assert_eq!((rejected[0].row, rejected[0].detail.as_str()), (1, "'n' is null, and the table takes none there"));
    let stored = one.prepare(Epoch(1)).await.expect("prepared").expect("something");
    one.commit(Epoch(1), Epoch(0), &stored, 1).await.expect("committed");
    assert_eq!(numbers(root).await, [1, 3]);
    assert_eq!(open(&mut writer(&factory(root, STORE), 0)).await.committed, Committed::At(Epoch(1)));
}
