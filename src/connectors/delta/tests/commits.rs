//! Once, also when it is tried twice, by another process, together, or against others.

use std::collections::BTreeMap;
use std::task::{Context, Waker};

use super::*;
use crate::flow::{Committed, Reaction};

#[tokio::test]
async fn nothing_is_visible_before_commit_and_everything_once_after() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let factory = factory(root, STORE);
    let mut one = writer(&factory, 0);
    assert_eq!(open(&mut one).await, Opened { committed: Committed::At(Epoch(0)), foreign: false });
    assert_eq!(one.prepare(Epoch(1)).await.expect("prepared"), None, "nothing was written");
    let first = prepared(&mut one, 1, &rows(0..10)).await;
    assert_eq!((first.rows, numbers(root).await), (10, vec![]));
    for _ in 0..2 {
        one.commit(Epoch(1), Epoch(0), &first, 1).await.expect("committed");
        assert_eq!((numbers(root).await, versions(root)), ((0..10).collect(), 2));
    }
    commit(&mut one, 2, &rows(10..15)).await;
    one.commit(Epoch(1), Epoch(0), &first, 1).await.expect("an old commit once more is success");
    assert_eq!((numbers(root).await, versions(root)), ((0..15).collect(), 3));

    let lines = entry(root, 2);
    let info = &lines[0]["commitInfo"];
    assert_eq!((&info["operation"], &info["isBlindAppend"]), (&json!("WRITE"), &json!(true)));
    assert_eq!(lines[1]["txn"]["appId"], format!("t/orders/lake/{STORE}/0"));
    assert_eq!(lines[1]["txn"]["version"], 2);
}

#[tokio::test]
async fn another_process_commits_what_was_prepared_and_skips_what_was_committed() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let mut dead = opened(&factory(root, STORE), 0).await;
    let stored = prepared(&mut dead, 1, &rows(0..10)).await;
    drop(dead);
    // Twice: the second process finds it committed, as after a crash between commit and settling.
    for shown in [0, 1] {
        let factory = factory(root, STORE);
        let mut next = writer(&factory, 0);
        assert_eq!(open(&mut next).await.committed, Committed::At(Epoch(shown)));
        next.commit(Epoch(1), Epoch(0), &stored, 1).await.expect("committed");
        assert_eq!((numbers(root).await, versions(root)), ((0..10).collect(), 2));
    }
}

#[tokio::test]
async fn an_epoch_that_does_not_follow_parks() {
    let folder = tempfile::tempdir().expect("folder");
    let factory = factory(folder.path(), STORE);
    let mut one = opened(&factory, 0).await;
    let stored = prepared(&mut one, 5, &rows(0..3)).await;
    let error = one.commit(Epoch(5), Epoch(4), &stored, 1).await.expect_err("inconsistent");
    assert_eq!(error.reaction, Reaction::Park);
    assert!(error.to_string().contains("shows epoch 0 of orders/0, the checkpoint log expects 4 before 5"), "{error}");
    assert_eq!(versions(folder.path()), 1);
}

#[tokio::test]
async fn files_that_are_gone_park_and_name_the_way_out() {
    let folder = tempfile::tempdir().expect("folder");
    let factory = factory(folder.path(), STORE);
    let mut one = opened(&factory, 0).await;
    let stored = prepared(&mut one, 1, &rows(0..3)).await;
    let payload: Value = serde_json::from_str(&stored.payload).expect("json");
    std::fs::remove_file(folder.path().join(payload["files"][0]["path"].as_str().expect("path"))).expect("removed");
    let error = one.commit(Epoch(1), Epoch(0), &stored, 1).await.expect_err("gone");
    assert_eq!(error.reaction, Reaction::Park);
    assert!(error.to_string().contains("runtime state FILE reset orders/0 --drop"), "{error}");
}

#[tokio::test]
async fn a_dropped_writer_leaves_no_file() {
    let folder = tempfile::tempdir().expect("folder");
    let factory = factory(folder.path(), STORE);
    let mut one = opened(&factory, 0).await;
    one.write(&rows(0..1000)).await.expect("written");
    drop(one);
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("list").map(|e| e.expect("entry").file_name()).collect();
    assert_eq!(left, ["_delta_log"]);
}

#[test]
fn partitions_on_threads_of_their_own_commit_as_one_version() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let factory = Arc::new(factory(root, STORE));
    let threads: Vec<_> = (0..4)
        .map(|partition| {
            let factory = factory.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
                runtime.block_on(async {
                    let mut sink = opened(&factory, partition).await;
                    let from = i64::from(partition) * 10;
                    let stored = prepared(&mut sink, 1, &rows(from..from + 10)).await;
                    sink.commit(Epoch(1), Epoch(0), &stored, 4).await.expect("committed");
                });
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("thread"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    assert_eq!(runtime.block_on(numbers(root)), (0..40).collect::<Vec<_>>());
    let txns = (1..versions(root)).flat_map(|version| entry(root, version)).filter(|line| line.get("txn").is_some());
    assert_eq!(txns.count(), 4, "one transaction per partition");
}

#[tokio::test]
async fn a_group_is_one_version_even_if_one_of_it_gives_up_waiting() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let factory = factory(root, STORE);
    let (mut one, mut two) = (opened(&factory, 0).await, opened(&factory, 1).await);
    let first = prepared(&mut one, 1, &rows(0..10)).await;
    let second = prepared(&mut two, 1, &rows(10..20)).await;
    {
        let mut given_up = one.commit(Epoch(1), Epoch(0), &first, 2);
        assert!(given_up.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    two.commit(Epoch(1), Epoch(0), &second, 2).await.expect("committed");
    assert_eq!((numbers(root).await, versions(root)), ((0..20).collect(), 2));
    assert_eq!(entry(root, 1).iter().filter(|line| line.get("txn").is_some()).count(), 2);
    let mut again = opened(&factory, 0).await;
    again.commit(Epoch(1), Epoch(0), &first, 1).await.expect("it is there");
    assert_eq!(versions(root), 2);
}

#[tokio::test]
async fn a_part_that_is_refused_does_not_take_its_group_with_it() {
    let folder = tempfile::tempdir().expect("folder");
    let factory = factory(folder.path(), STORE);
    let (mut one, mut two) = (opened(&factory, 0).await, opened(&factory, 1).await);
    let bad = prepared(&mut one, 7, &rows(0..10)).await;
    let good = prepared(&mut two, 1, &rows(10..20)).await;
    let (refused, committed) =
        tokio::join!(one.commit(Epoch(7), Epoch(6), &bad, 2), two.commit(Epoch(1), Epoch(0), &good, 2));
    assert_eq!(refused.expect_err("refused").reaction, Reaction::Park);
    committed.expect("committed");
    assert_eq!(numbers(folder.path()).await, (10..20).collect::<Vec<_>>());
}

#[test]
fn two_writers_that_know_nothing_of_each_other_lose_and_double_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let threads: Vec<_> = [STORE, OTHER_STORE]
        .into_iter()
        .zip([0, 1000])
        .map(|(store, from)| {
            let root = root.to_path_buf();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
                runtime.block_on(async {
                    let mut sink = opened(&factory(&root, store), 0).await;
                    for epoch in 1..=40 {
                        let n = from + epoch as i64 * 2;
                        commit(&mut sink, epoch, &rows(n..n + 2)).await;
                    }
                });
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("thread"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    assert_eq!(runtime.block_on(numbers(root)), (2..82).chain(1002..1082).collect::<Vec<_>>());
    assert_eq!(versions(root), 81);
}

#[tokio::test]
async fn a_probe_says_what_is_there_and_changes_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path().join("a/table");
    let absent = factory(&root, STORE).probe(false).await.expect("it could be made");
    assert!(absent.found.ends_with("will be created") && !absent.foreign, "{absent:?}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 0);
    let mut one = opened(&factory(&root, STORE), 0).await;
    commit(&mut one, 1, &rows(0..3)).await;
    let before = versions(&root);
    let ours = factory(&root, STORE).probe(false).await.expect("it is there");
    assert!(ours.found.contains(&format!("at version {}", before - 1)) && !ours.foreign, "{ours:?}");
    assert!(factory(&root, OTHER_STORE).probe(false).await.expect("it is there").foreign);
    assert!(!factory(&root, OTHER_STORE).probe(true).await.expect("it is there").foreign);
    let other = rows(0..1).columns.project(&[0]).expect("a column").schema();
    assert!(plan(&root, json!({}), STORE, other).probe(false).await.is_ok(), "what the table has more may be null");
    let more =
        RecordBatch::try_from_iter([("m", Arc::new(Int64Array::from(vec![1])) as Arc<dyn Array>)]).expect("batch");
    let error = plan(&root, json!({}), STORE, more.schema()).probe(false).await.expect_err("it does not fit");
    assert!(error.to_string().contains("the table has no column 'm'"), "{error}");
    assert_eq!(versions(&root), before);
}

#[tokio::test]
async fn epochs_of_another_log_are_foreign_until_adopted() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let mut old = opened(&factory(root, OTHER_STORE), 3).await;
    commit(&mut old, 1, &rows(0..10)).await;
    let mut new = writer(&factory(root, STORE), 0);
    let found = new.open(false).await.expect("opened");
    assert_eq!(found, Opened { committed: Committed::At(Epoch(0)), foreign: true });
    assert_eq!(versions(root), 2, "looking changes nothing where something was found");
    assert!(!new.open(true).await.expect("opened").foreign);
}

#[tokio::test]
async fn a_look_that_finds_nothing_fences_what_an_older_log_has_under_way() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    // An older process made the table and died with the put of version 1 under way.
    let mut old = opened(&factory(root, OTHER_STORE), 0).await;
    prepared(&mut old, 1, &rows(0..10)).await;
    drop(old);
    let new = factory(root, STORE);
    for partition in [0, 1] {
        let found = writer(&new, partition).open(false).await.expect("opened");
        assert_eq!(found, Opened { committed: Committed::At(Epoch(0)), foreign: false });
        assert_eq!(versions(root), 2, "one fence is enough for all partitions");
    }
    let txn = entry(root, 1).into_iter().find_map(|line| line.get("txn").cloned()).expect("a transaction");
    assert_eq!((txn["appId"].clone(), txn["version"].clone()), (json!(format!("t/orders/lake/{STORE}/0")), json!(0)));
    let late = log::Log::of(root, crate::objects::Durability::Os).put(1, b"{}\n").expect_err("too late");
    assert_eq!(late.kind(), std::io::ErrorKind::AlreadyExists);
}

#[tokio::test]
async fn a_table_made_by_this_process_needs_no_fence() {
    let folder = tempfile::tempdir().expect("folder");
    let factory = factory(folder.path(), STORE);
    for partition in 0..3 {
        assert!(!writer(&factory, partition).open(false).await.expect("opened").foreign);
    }
    assert_eq!(versions(folder.path()), 1);
}

#[tokio::test]
async fn a_table_that_may_have_forgotten_says_so() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    open(&mut writer(&factory(root, STORE), 0)).await;
    let line = changed_metadata(root, |metadata| {
        metadata["configuration"]["delta.setTransactionRetentionDuration"] = json!("interval 1 second");
        metadata["createdTime"] = json!(0);
    });
    add_entry(root, &[line]);
    let fresh = factory(root, STORE);
    let mut one = writer(&fresh, 0);
    assert_eq!(open(&mut one).await.committed, Committed::Unknown);
    // The log's base stands then, and from its first commit on the table knows the partition.
    let stored = prepared(&mut one, 5, &rows(0..3)).await;
    one.commit(Epoch(5), Epoch(4), &stored, 1).await.expect("committed");
    assert_eq!(open(&mut writer(&fresh, 0)).await.committed, Committed::At(Epoch(5)));
}

#[tokio::test]
async fn log_checkpoints_are_made_off_the_commit_path_and_opened_from() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let more = json!({ "properties": { "delta.checkpointInterval": "5" } });
    let factory_of = || plan(root, more.clone(), STORE, rows(0..1).columns.schema());
    let first = factory_of();
    let (mut one, mut two) = (opened(&first, 0).await, opened(&first, 1).await);
    commit(&mut two, 1, &rows(500..501)).await;
    for epoch in 1..=11 {
        commit(&mut one, epoch, &rows(epoch as i64..epoch as i64 + 1)).await;
        first.committer.wait_for_checkpoint();
    }
    let checkpoint = |version: u64| root.join(format!("_delta_log/{version:020}.checkpoint.parquet"));
    assert!(checkpoint(5).exists() && checkpoint(10).exists());
    for version in 0..8 {
        std::fs::remove_file(root.join(format!("_delta_log/{version:020}.json"))).expect("removed");
    }
    let shown = async || {
        let factory = factory_of();
        let mut shown = BTreeMap::new();
        for partition in [0, 1] {
            shown.insert(partition, open(&mut writer(&factory, partition)).await.committed);
        }
        shown
    };
    let expected = BTreeMap::from([(0, Committed::At(Epoch(11))), (1, Committed::At(Epoch(1)))]);
    assert_eq!(shown().await, expected);
    assert_eq!(numbers(root).await, (1..=11).chain([500]).collect::<Vec<_>>());

    std::fs::write(checkpoint(10), "PAR1 torn").expect("written");
    std::fs::remove_file(root.join("_delta_log/_last_checkpoint")).expect("removed");
    let error = writer(&factory_of(), 0).open(true).await.expect_err("a gap between 5 and 8");
    assert!(error.to_string().contains("no version 6"), "{error}");
}

#[tokio::test]
async fn a_damaged_log_checkpoint_is_passed_over_for_an_older_one() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let mut one = opened(&factory(root, STORE), 0).await;
    for epoch in 1..=3 {
        commit(&mut one, epoch, &rows(0..1)).await;
    }
    std::fs::write(root.join("_delta_log/00000000000000000002.checkpoint.parquet"), "torn").expect("written");
    assert_eq!(open(&mut writer(&factory(root, STORE), 0)).await.committed, Committed::At(Epoch(3)));
}

#[tokio::test]
async fn a_log_checkpoint_that_fails_is_no_failed_commit() {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    let more = json!({ "properties": { "delta.checkpointInterval": "2" } });
    let factory = plan(root, more, STORE, rows(0..1).columns.schema());
    let mut one = opened(&factory, 0).await;
    std::fs::create_dir(root.join("_delta_log/00000000000000000002.checkpoint.parquet")).expect("in the way");
    for epoch in 1..=4 {
        commit(&mut one, epoch, &rows(epoch as i64..epoch as i64 + 1)).await;
        factory.committer.wait_for_checkpoint();
    }
    assert_eq!(versions(root), 5);
}
