//! `json`: a body is an object; the declared columns are keys of it.
//!
//! Arrow's JSON decoder reads whole batches. After each body it must have exactly one record more and no rest of one.
//! Keys that are not declared are skipped, missing ones are null, and of a repeated key the last one counts. Types are
//! strict (see `json_check`): the string `"42"` is no integer, and neither is `5.7`.
//!
//! Nested columns are declared as `list<…>` and `struct<name: …>`. `binary` is a string of hexadecimal digits.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::json::ReaderBuilder;
use arrow::json::reader::Decoder;
use schemars::{JsonSchema, schema_for};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::bodies::{self, Bodies, BodyTranslator, Format, MANY, Reader, Records};
use super::columns::{Column, shortened};
use super::json_check::{Expected, Fault, scan};
use super::shape::{Base, Shape, Shaper};
use super::{ColumnType, OnError, Ordered, configured};
use crate::flow::registry::{ConfigError, Kind, Planned, TranslatorKind};
use crate::flow::{Translator, TranslatorFactory};

/// Gives the message columns id, sent and received, then the declared columns. Keys that are not declared are skipped,
/// missing ones are null, and types are strict: the string "42" is no integer.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct JsonConfig {
    /// The keys to read, with their types. All are nullable. A type is an Arrow name or an SQL alias, like int64, utf8,
    /// boolean, timestamp, date or "decimal(10,2)", or nested: `list<int32>`, `struct<name: utf8>`; a date or timestamp
    /// may have a format of its own: `{ type: date, format: "%d.%m.%Y" }`.
    pub columns: Ordered<ColumnType>,
    /// How many records a body holds.
    #[serde(default)]
    pub records: Records,
    /// What becomes of a message that cannot be translated.
    #[serde(default)]
    pub on_error: OnError,
    /// What comes out.
    #[serde(flatten)]
    pub shape: Shape,
}

/// The kind `json`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

impl Kind for Json {
    fn name(&self) -> &'static str {
        "json"
    }

    fn about(&self) -> &'static str {
        "the body as a JSON object, into declared columns"
    }

    fn example(&self) -> &'static str {
        r#"columns: { row_num: bigint, animal: string, tags: list<string>, owner: "struct<name: utf8, age: int32>" }
on_error: dead_letter
derive: { sent_dt: to_date(sent), owner_name: "owner['name']" }
"#
    }

    fn schema(&self) -> schemars::Schema {
        schema_for!(JsonConfig)
    }
}

impl TranslatorKind for Json {
    fn sample(&self) -> Option<&'static str> {
        Some(r#"{ "row_num": 1, "animal": "cat", "tags": ["small"], "owner": { "name": "Ann", "age": 41 } }"#)
    }

    fn plan(&self, config: &Value, input: &SchemaRef) -> Planned<dyn TranslatorFactory> {
        let config: JsonConfig = configured(config)?;
        let value = Bodies::column(input)?;
        let columns: Arc<[Column]> = Column::all(&config.columns)?.into();
        let mut errors = unreadable(&columns);
        let fields = bodies::fields(&columns, config.records);
        let shaper = config.shape.plan(input, &fields, Base::Identity, config.on_error);
        match shaper.map_err(|more| errors.extend(more)) {
            Ok(shaper) if errors.is_empty() => Ok(Arc::new(Factory { config, value, columns, shaper })),
            _ => Err(errors),
        }
    }
}

/// Columns of types that the decoder does not know.
pub(super) fn unreadable(columns: &[Column]) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    for column in columns {
        if let Err(error) = ReaderBuilder::new_with_field(column.decoded()).build_decoder() {
            errors.push(ConfigError::below(&["columns", column.field.name()], plainly(&error.to_string())));
        }
    }
    errors
}

struct Factory {
    config: JsonConfig,
    value: usize,
    columns: Arc<[Column]>,
    shaper: Shaper,
}

impl TranslatorFactory for Factory {
    fn output(&self) -> SchemaRef {
        Arc::clone(self.shaper.output())
    }

    fn translator(&self) -> Box<dyn Translator> {
        let (records, on_error) = (self.config.records, self.config.on_error);
        let format = JsonFormat::new(&self.columns, records);
        let reader = Reader::new(format, records, on_error, Arc::clone(&self.columns));
        Box::new(BodyTranslator { value: self.value, reader, shaper: self.shaper.clone() })
    }
}

pub(super) struct JsonFormat {
    schema: SchemaRef,
    expected: Expected,
    records: Records,
    /// Built when it is first needed, because building may fail and a new one need not be.
    decoder: Option<Decoder>,
    room: usize,
    faults: Vec<Fault>,
}

impl JsonFormat {
    pub(super) fn new(columns: &[Column], records: Records) -> Self {
        let schema = bodies::decoded(columns);
        let expected = Expected::object(schema.fields());
        Self { schema, expected, records, decoder: None, room: 0, faults: Vec::new() }
    }

    #[inline]
    fn decoder(&mut self) -> std::result::Result<&mut Decoder, String> {
        if self.decoder.is_none() {
            let builder = ReaderBuilder::new(Arc::clone(&self.schema)).with_batch_size(self.room.max(2));
            self.decoder = Some(builder.build_decoder().map_err(|error| error.to_string())?);
        }
        self.decoder.as_mut().ok_or_else(|| "no decoder".to_owned())
    }
}

impl Format for JsonFormat {
    fn is_empty(body: &[u8]) -> bool {
        body.trim_ascii().is_empty()
    }

    fn check(&mut self, body: &[u8]) -> std::result::Result<(), String> {
        self.faults.clear();
        let count = scan(body, &self.expected, &mut self.faults);
        match self.faults.first() {
            Some(fault) => Err(said(body, fault)),
            None if count > 1 && self.records == Records::One => Err(SEVERAL.to_owned()),
            None => Ok(()),
        }
    }

    fn feed(&mut self, mut body: &[u8], full: &mut Vec<RecordBatch>) -> std::result::Result<usize, String> {
        let (room, records) = (self.room, self.records);
        let decoder = self.decoder()?;
        let (before, mut flushed) = (decoder.len(), 0);
        loop {
            let taken = decoder.decode(body).map_err(|error| plainly(&error.to_string()))?;
            body = &body[taken..];
            if decoder.has_partial_record() {
                return Err("the body ends too early".to_owned());
            }
            if decoder.len() >= room {
                flushed += decoder.len();
                full.extend(decoder.flush().map_err(|error| plainly(&error.to_string()))?);
            }
            if body.is_empty() {
                break;
            }
        }
        match flushed + decoder.len() - before {
            count if count != 1 && records == Records::One => Err(SEVERAL.to_owned()),
            count => Ok(count),
        }
    }

    fn finish(&mut self, full: &mut Vec<RecordBatch>) -> std::result::Result<(), String> {
        if let Some(decoder) = &mut self.decoder {
            full.extend(decoder.flush().map_err(|error| plainly(&error.to_string()))?);
        }
        Ok(())
    }

    fn reset(&mut self, bodies: usize, forget: bool) {
        // One more than it is to be filled with, so that a second record in a body has a place to be seen in.
        let room = if self.records == Records::Many { MANY } else { bodies + 1 };
        if forget || room > self.room {
            self.room = room.next_power_of_two();
            self.decoder = None;
        }
    }

    fn complaint(&mut self, body: &[u8]) -> Option<String> {
        // Not every message of the decoder names the column, so each column is asked by itself.
        self.schema.fields().iter().find_map(|field| {
            let schema = Arc::new(Schema::new(vec![Arc::clone(field)]));
            let mut decoder = ReaderBuilder::new(schema).with_batch_size(2).build_decoder().ok()?;
            let error = decoder.decode(body).and_then(|_| decoder.flush()).err()?;
            let message = plainly(&error.to_string());
            let named = message.starts_with("column '") || decoder.has_partial_record();
            Some(if named { message } else { format!("column '{}': {message}", field.name()) })
        })
    }

    fn repaired(&mut self, body: &[u8]) -> Option<RecordBatch> {
        let mut faults = Vec::new();
        let count = scan(body, &self.expected, &mut faults);
        let mut mended = Vec::with_capacity(body.len());
        let mut end = 0;
        faults.sort_by_key(|fault| match fault {
            Fault::Syntax(at, _) => *at,
            Fault::Value(range, _) => range.start,
        });
        for fault in &faults {
            match fault {
                Fault::Value(range, _) if range.start >= end => {
                    mended.extend_from_slice(&body[end..range.start]);
                    mended.extend_from_slice(b"null");
                    end = range.end;
                }
                // Inside of a value that is null already.
                Fault::Value(..) => {}
                Fault::Syntax(..) => return None,
            }
        }
        if self.records == Records::One && count != 1 {
            return None;
        }
        mended.extend_from_slice(&body[end..]);
        let builder = ReaderBuilder::new(Arc::clone(&self.schema)).with_ignore_type_conflicts(true);
        let decoder = builder.with_batch_size(MANY).build_decoder().ok()?;
        let (schema, expected) = (Arc::clone(&self.schema), self.expected.clone());
        let mut lenient = Self { schema, expected, decoder: Some(decoder), room: MANY, records: self.records, faults };
        let mut parts = Vec::new();
        lenient.feed(&mended, &mut parts).ok()?;
        lenient.finish(&mut parts).ok()?;
        concat_batches(&self.schema, &parts).ok()
    }
}

const SEVERAL: &str = "the body has more than one record; records: many would take it";

/// A fault in a sentence.
fn said(body: &[u8], fault: &Fault) -> String {
    match fault {
        Fault::Syntax(at, what) => format!("not JSON at byte {at}: {what}"),
        Fault::Value(range, problem) => {
            format!("{problem}: {}", shortened(&String::from_utf8_lossy(&body[range.clone()])))
        }
    }
}

/// The decoder's message in our words.
fn plainly(message: &str) -> String {
    let message = ["Json error: ", "Parser error: ", "Not yet implemented: "]
        .iter()
        .fold(message, |message, prefix| message.strip_prefix(prefix).unwrap_or(message));
    let field = message.strip_prefix("whilst decoding field '").and_then(|rest| rest.split_once("': "));
    let Some((name, problem)) = field else { return message.to_owned() };
    match problem.strip_prefix("failed to parse ").and_then(|rest| rest.split_once(" as ")) {
        Some((value, wanted)) if value.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit()) => {
            format!("column '{name}': {} is out of the range of {wanted}", shortened(value))
        }
        Some((value, wanted)) => format!("column '{name}' wants {wanted}, not {}", shortened(value)),
        None => format!("column '{name}': {problem}"),
    }
}

#[cfg(test)]
mod tests;
