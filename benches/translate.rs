//! What a translator costs beside the decoder that it stands on: the same bytes through Arrow's CSV and JSON decoders
//! alone, as one stream, and through the whole translator, message by message. Batches alternate; the fastest of each
//! counts, because a busy machine only ever adds to a time.
//!
//! `cargo bench --bench translate [-- ROUNDS]`. Ends with exit code 1 if a ratio is below the goal.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, RecordBatch, StringArray, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use distributary::clock;
use distributary::flow::registry::Registry;
use distributary::flow::{Raw, Rows};
use distributary::payload::{Generator, Payload, Template};
use distributary::translators::register;
use serde_json::{Value, json};
use uuid::Uuid;

/// Rows of a batch.
const ROWS: usize = 8192;
/// A translator must reach this part of the decoder's rate.
const GOAL: f64 = 0.8;

fn main() -> ExitCode {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(300);
    let template = |template: &str| Payload::Template(Template { template: template.to_owned() });
    let csv = template("{run},{n},{random:20},{random:10},42,{time},{random:104}");
    let json = template(
        r#"{"generator_id":"{run}","row_num":{n},"animal":"{random:20}","color":"{random:8}","count":42,"datetime":"{time}","note":"{random:26}"}"#,
    );
    let ratios = [compare("csv", &csv, rounds), compare("json", &json, rounds)];
    if ratios.iter().all(|ratio| *ratio >= GOAL) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints and returns the translator's part of the decoder's rate.
fn compare(name: &str, payload: &Payload, rounds: u32) -> f64 {
    let mut generator = Generator::new(payload, Uuid::from_u128(1), 1, 1_700_000_000_000);
    let bodies: Vec<String> = (0..ROWS as u64).map(|n| generator.body(n)).collect();
    let bytes: usize = bodies.iter().map(String::len).sum();
    let raw = messages(&bodies);
    let stream = bodies.join("\n") + "\n";

    let registry = register(Registry::default());
    let factory = registry.translators()[name].plan(&config(), &raw.columns.schema());
    let mut translator = factory.unwrap_or_else(|errors| panic!("{errors:?}")).translator();
    let mut alone = decoder(name);

    let (mut decoding, mut translating) = (Duration::MAX, Duration::MAX);
    for _ in 0..rounds {
        decoding = decoding.min(timed(|| assert_eq!(alone(stream.as_bytes()).num_rows(), ROWS)));
        translating = translating.min(timed(|| {
            let translated = translator.translate(&raw).expect("translated");
            assert_eq!((translated.rows.len(), translated.rejects.len()), (ROWS, 0));
        }));
    }
    let rate = |time: Duration| ROWS as f64 / time.as_secs_f64();
    let ratio = rate(translating) / rate(decoding);
    println!(
        "translate {name}: {:.0} rows/s, arrow's decoder alone {:.0} rows/s, ratio {ratio:.3} (goal {GOAL}), {} bytes a message",
        rate(translating),
        rate(decoding),
        bytes / ROWS,
    );
    ratio
}

fn timed(run: impl FnOnce()) -> Duration {
    let start = clock::now();
    run();
    clock::now() - start
}

fn messages(bodies: &[String]) -> Raw {
    let rows = bodies.len();
    let times = || TimestampMillisecondArray::from(vec![1_700_000_000_000; rows]).with_timezone("UTC");
    let columns = RecordBatch::try_from_iter([
        ("id", Arc::new(StringArray::from_iter_values((0..rows).map(|n| format!("run-{n}")))) as ArrayRef),
        ("sent", Arc::new(times())),
        ("received", Arc::new(times())),
        ("value", Arc::new(StringArray::from_iter_values(bodies))),
    ]);
    Rows::one_per_delivery(columns.expect("message columns"))
}

fn config() -> Value {
    json!({ "columns": {
        "generator_id": "utf8", "row_num": "int64", "animal": "utf8", "color": "utf8", "count": "int32",
        "datetime": "timestamp_ntz", "note": "utf8",
    }})
}

fn schema() -> SchemaRef {
    let field = |name: &str, data_type| Field::new(name, data_type, true);
    Arc::new(Schema::new(vec![
        field("generator_id", DataType::Utf8),
        field("row_num", DataType::Int64),
        field("animal", DataType::Utf8),
        field("color", DataType::Utf8),
        field("count", DataType::Int32),
        field("datetime", DataType::Timestamp(TimeUnit::Microsecond, None)),
        field("note", DataType::Utf8),
    ]))
}

type Decode = dyn FnMut(&[u8]) -> RecordBatch;

/// Arrow's decoder of this format, as its documentation uses it.
fn decoder(name: &str) -> Box<Decode> {
    if name == "csv" {
        let mut decoder = arrow::csv::ReaderBuilder::new(schema()).with_batch_size(ROWS).build_decoder();
        return Box::new(move |bytes| {
            decoder.decode(bytes).expect("decoded");
            decoder.flush().expect("flushed").expect("rows")
        });
    }
    let mut decoder =
        arrow::json::ReaderBuilder::new(schema()).with_batch_size(ROWS).build_decoder().expect("a decoder");
    Box::new(move |bytes| {
        decoder.decode(bytes).expect("decoded");
        decoder.flush().expect("flushed").expect("rows")
    })
}
