//! From memory into a Delta table, with one partition, beside a bare loop that decodes the same bodies with Arrow's CSV
//! decoder, writes the same rows with the parquet crate and commits as often.
//!
//! `MESSAGES`, `RUNS` and `ROWS` (rows per commit, of both) change it.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringArray, TimestampMillisecondArray};
use arrow::csv::ReaderBuilder;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use async_trait::async_trait;
use distributary::flow::registry::{Kind, Planned, Registry, SourceKind};
use distributary::flow::{
    Closed, Delivery, DeliveryId, Identity, Intake, Link, Outcome, Received, Result, Room, Rows, Settled, Settler,
    Source, SourceContext, SourceFactory,
};
use distributary::payload::{Generator, Payload};
use distributary::runtime::{self, End, Options, Placement};
use distributary::telemetry::Telemetry;
use distributary::{connectors, topology, translators};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde_json::Value;

const BATCH: usize = 4_096;

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}

fn millis() -> DataType {
    DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()))
}

fn message_columns() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Utf8, true),
        Field::new("sent", millis(), true),
        Field::new("received", millis(), true),
        Field::new("value", DataType::Utf8, true),
    ]))
}

/// All messages, in batches, made beforehand.
fn messages(count: usize) -> Vec<RecordBatch> {
    let mut generator = Generator::new(&Payload::default(), uuid::Uuid::new_v4(), 1, 1_700_000_000_000);
    let numbers: Vec<u64> = (0..count as u64).collect();
    let batch = |numbers: &[u64]| {
        let ids: StringArray = numbers.iter().map(|n| Some(format!("ID:bench-{n}"))).collect();
        let times = TimestampMillisecondArray::from(vec![1_700_000_000_000; numbers.len()]).with_timezone("UTC");
        let bodies: StringArray = numbers.iter().map(|n| Some(generator.body(*n))).collect();
        let columns: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(times.clone()), Arc::new(times), Arc::new(bodies)];
        RecordBatch::try_new(message_columns(), columns).expect("a batch")
    };
    numbers.chunks(BATCH).map(batch).collect()
}

/// A source that has everything in memory.
#[derive(Clone)]
struct Stock(Arc<Vec<RecordBatch>>);

impl Kind for Stock {
    fn name(&self) -> &'static str {
        "stock"
    }

    fn about(&self) -> &'static str {
        "Messages made beforehand."
    }

    fn example(&self) -> &'static str {
        ""
    }

    fn schema(&self) -> schemars::Schema {
        schemars::json_schema!({ "type": "object" })
    }
}

impl SourceKind for Stock {
    fn plan(&self, _: &Value) -> Planned<dyn SourceFactory> {
        Ok(Arc::new(self.clone()))
    }
}

impl SourceFactory for Stock {
    fn columns(&self) -> SchemaRef {
        message_columns()
    }

    fn source(&self, _: SourceContext) -> Box<dyn Source> {
        Box::new(self.clone())
    }
}

#[async_trait]
impl Source for Stock {
    async fn connect(&mut self) -> Result<Link> {
        let intake = Shelf { stock: self.clone(), next: (0, 0), number: 0 };
        Ok(Link { intake: Box::new(intake), settler: Box::new(Till) })
    }
}

struct Shelf {
    stock: Stock,
    /// The next batch, and its first row that was not taken.
    next: (usize, usize),
    number: u64,
}

#[async_trait]
impl Intake for Shelf {
    async fn receive(&mut self, room: Room) -> Result<Received> {
        let (at, first) = self.next;
        let Some(batch) = self.stock.0.get(at) else { return Ok(Received::End) };
        let batch = batch.slice(first, room.deliveries.min(batch.num_rows() - first));
        self.next = match first + batch.num_rows() {
            taken if taken < self.stock.0[at].num_rows() => (at, taken),
            _ => (at + 1, 0),
        };
        let (ids, bodies) = (batch.column(0).as_string::<i32>(), batch.column(3).as_string::<i32>());
        let deliveries = (0..batch.num_rows()).map(|row| {
            self.number += 1;
            let identity = Identity::of(ids.value(row).as_bytes(), bodies.value(row).as_bytes());
            Delivery { id: DeliveryId(self.number), identity, bytes: 200, anonymous: false }
        });
        let deliveries = deliveries.collect();
        Ok(Received::Batch { raw: Rows::one_per_delivery(batch), deliveries, rejects: Vec::new() })
    }
}

struct Till;

#[async_trait]
impl Settler for Till {
    async fn settle(&mut self, _: &[DeliveryId], _: Outcome) -> Result<Settled> {
        Ok(Settled::Received)
    }

    fn attached(&self) -> bool {
        true
    }

    async fn close(self: Box<Self>) -> Closed {
        Closed::Answered
    }
}

fn product(folder: &Path, stock: &Stock, rows_per_commit: usize) -> f64 {
    let text = format!(
        "topology: bench
receivers:
  stock: {{ type: stock, max_unsettled: {unsettled} }}
translators:
  parsed:
    from: stock
    type: csv
    columns: {{ generator_id: utf8, row_num: int64, animal: utf8, color: utf8, count: int32, datetime: timestamp }}
sinks:
  lake: {{ from: parsed, type: delta, table: {folder}/lake }}
dead_letter: {{ type: parquet, path: {folder}/rejected }}
checkpoint: {{ interval: 10s, store: {folder}/state }}
",
        folder = folder.display(),
        unsettled = 2 * rows_per_commit,
    );
    let registry = translators::register(connectors::register(Registry::default())).with_source(stock.clone());
    let topology = topology::load(&text, "bench.yaml", &topology::ProcessEnvironment, &registry)
        .unwrap_or_else(|problems| panic!("{problems}"));
    let options =
        Options { placement: Placement::Threads(1), telemetry: Telemetry::new("bench"), ..Options::default() };
    let started = now();
    let end =
        actix::System::new().block_on(async { runtime::start(topology, options).await.expect("started").end().await });
    assert_eq!(end, End::Drained);
    started.elapsed().as_secs_f64()
}

fn bare(folder: &Path, stock: &Stock, rows_per_commit: usize) -> f64 {
    let declared = Arc::new(Schema::new(vec![
        Field::new("generator_id", DataType::Utf8, true),
        Field::new("row_num", DataType::Int64, true),
        Field::new("animal", DataType::Utf8, true),
        Field::new("color", DataType::Utf8, true),
        Field::new("count", DataType::Int32, true),
        Field::new("datetime", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
    ]));
    let mut fields = message_columns().fields()[..3].to_vec();
    fields.extend(declared.fields().iter().cloned());
    let schema = Arc::new(Schema::new(fields));
    let started = now();
    let mut decoder = ReaderBuilder::new(declared).with_batch_size(BATCH).build_decoder();
    let mut writer: Option<(ArrowWriter<File>, usize, usize)> = None;
    let mut commits = 0;
    for batch in stock.0.iter() {
        let bodies = batch.column(3).as_any().downcast_ref::<StringArray>().expect("text");
        for body in bodies.iter().flatten() {
            decoder.decode(body.as_bytes()).expect("decoded");
            decoder.decode(b"\n").expect("decoded");
        }
        let rows = decoder.flush().expect("rows").expect("some");
        let mut columns = batch.columns()[..3].to_vec();
        columns.extend(rows.columns().iter().cloned());
        let rows = RecordBatch::try_new(schema.clone(), columns).expect("rows");
        let (file, written, _) = writer.get_or_insert_with(|| {
            let file = File::create(folder.join(format!("{commits}.parquet"))).expect("a file");
            let compression = Compression::ZSTD(ZstdLevel::try_new(1).expect("a level"));
            let properties = WriterProperties::builder().set_compression(compression).build();
            (ArrowWriter::try_new(file, schema.clone(), Some(properties)).expect("a writer"), 0, commits)
        });
        file.write(&rows).expect("written");
        *written += rows.num_rows();
        if *written >= rows_per_commit {
            commit(folder, writer.take(), &mut commits);
        }
    }
    commit(folder, writer.take(), &mut commits);
    started.elapsed().as_secs_f64()
}

fn commit(folder: &Path, writer: Option<(ArrowWriter<File>, usize, usize)>, commits: &mut usize) {
    let Some((writer, ..)) = writer else { return };
    let file = writer.into_inner().expect("closed");
    file.sync_all().expect("synced");
    let mut log = File::create(folder.join(format!("{commits}.json"))).expect("a version");
    log.write_all(b"{}").expect("written");
    log.sync_all().expect("synced");
    File::open(folder).and_then(|folder| folder.sync_all()).expect("synced");
    *commits += 1;
}

fn main() {
    let (count, runs, rows) = (setting("MESSAGES", 1_000_000), setting("RUNS", 3), setting("ROWS", 50_000));
    let stock = Stock(Arc::new(messages(count)));
    let mut seconds: [Vec<f64>; 2] = Default::default();
    for _ in 0..runs {
        let folder = tempfile::tempdir().expect("a folder");
        seconds[0].push(bare(folder.path(), &stock, rows));
        let folder = tempfile::tempdir().expect("a folder");
        seconds[1].push(product(folder.path(), &stock, rows));
    }
    let [bare, product] = seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        count as f64 / seconds[seconds.len() / 2]
    });
    println!(
        "memory to Delta, {rows} rows a commit: bare loop {bare:.0}/s, runtime {product:.0}/s, ratio {:.2} (medians of {runs} runs)",
        product / bare
    );
}
