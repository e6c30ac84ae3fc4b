//! Many commits into one Delta table: 2,000 of 1,000 rows each. What a commit costs must not grow with the table.
//!
//! `COMMITS` changes how many.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use distributary::connectors::delta::Delta;
use distributary::flow::registry::SinkKind;
use distributary::flow::{Epoch, PartitionId, Rows, SinkContext, SinkInstance, StoreId};

const ROWS: i64 = 1_000;

#[allow(clippy::disallowed_methods)]
fn main() {
    let commits: u64 = std::env::var("COMMITS").ok().and_then(|n| n.parse().ok()).unwrap_or(2_000);
    let folder = tempfile::tempdir().expect("a folder");
    let schema =
        Arc::new(Schema::new(vec![Field::new("id", DataType::Utf8, true), Field::new("n", DataType::Int64, true)]));
    let context = SinkContext {
        topology: "bench".into(),
        sink: "lake".into(),
        store: StoreId(uuid::Uuid::new_v4()),
        schema: schema.clone(),
    };
    let config = serde_json::json!({ "table": folder.path().join("lake") });
    let factory = Delta.build(&config, context).expect("a sink");
    let SinkInstance::ExactlyOnce(mut sink) = factory.sink(&PartitionId::new("bench", 0)) else {
        unreachable!("delta is exactly once")
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let millis: Vec<f64> = runtime.block_on(async {
        sink.open(true).await.expect("opened");
        let mut millis = Vec::new();
        for epoch in 1..=commits {
            let first = i64::try_from(epoch).expect("small") * ROWS;
            let ids: StringArray = (first..first + ROWS).map(|n| Some(format!("ID:{n}"))).collect();
            let numbers = Int64Array::from_iter_values(first..first + ROWS);
            let batch = RecordBatch::try_new(schema.clone(), vec![Arc::new(ids), Arc::new(numbers)]).expect("a batch");
            sink.write(&Rows::one_per_delivery(batch)).await.expect("written");
            let started = Instant::now();
            let prepared = sink.prepare(Epoch(epoch)).await.expect("prepared").expect("rows");
            sink.commit(Epoch(epoch), Epoch(epoch - 1), &prepared, 1).await.expect("committed");
            millis.push(started.elapsed().as_secs_f64() * 1e3);
        }
        millis
    });
    let tenth = millis.len() / 20;
    let median = |part: &[f64]| {
        let mut part = part.to_vec();
        part.sort_by(f64::total_cmp);
        part[part.len() / 2]
    };
    let (first, last) = (median(&millis[..tenth]), median(&millis[millis.len() - tenth..]));
    println!(
        "{commits} commits of {ROWS} rows: prepare and commit {first:.2} ms (first {tenth}), {last:.2} ms (last {tenth}), ratio {:.2}",
        last / first
    );
}
