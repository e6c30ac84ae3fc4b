//! `csv`: a body is a line of fields, in the order of the declared columns.
//!
//! Arrow's CSV decoder reads whole batches. A body is fed without its line end and then given one: the decoder's
//! remaining capacity must not move before that and must fall by exactly one after it, otherwise the body was not one
//! record. There is no header line, and nothing is guessed from the data. An empty field is null, quoted or not.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::csv::ReaderBuilder;
use arrow::csv::reader::Decoder;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use regex::Regex;
use schemars::{JsonSchema, schema_for};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::bodies::{self, Bodies, BodyTranslator, Format, MANY, Reader, Records};
use super::columns::Column;
use super::shape::{Base, Shape, Shaper};
use super::{ColumnType, OnError, Ordered, configured};
use crate::flow::registry::{ConfigError, Kind, Planned, TranslatorKind};
use crate::flow::{Translator, TranslatorFactory};

/// Gives the message columns id, sent and received, then the declared columns. There is no header line, and nothing is
/// guessed from the data.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct CsvConfig {
    /// The fields of a line, in order: name and type. All are nullable. A type is an Arrow name or an SQL alias, like
    /// int64, utf8, boolean, timestamp, date or "decimal(10,2)"; a date or timestamp may have a format of its own:
    /// `{ type: date, format: "%d.%m.%Y" }`.
    pub columns: Ordered<ColumnType>,
    /// One character between fields.
    #[serde(default = "comma")]
    pub delimiter: String,
    /// One character around fields; twice inside of one it stands for itself.
    #[serde(default = "double_quote")]
    pub quote: String,
    /// One character that takes the meaning from a quote inside of quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escape: Option<String>,
    /// Fields that are null, like `["", "NULL"]`. Without it, the empty field. A line with nothing in it is no record;
    /// where there is one column, a null is written as `""`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub null: Option<Vec<String>>,
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

fn comma() -> String {
    ",".to_owned()
}

fn double_quote() -> String {
    "\"".to_owned()
}

/// The kind `csv`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Csv;

impl Kind for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn about(&self) -> &'static str {
        "the body as a line of separated fields, into declared columns"
    }

    fn example(&self) -> &'static str {
        r#"columns: { generator_id: utf8, row_num: int64, animal: utf8, color: utf8, count: int32, datetime: timestamp }
keep: [properties]
derive: { sent_dt: to_date(sent) }
"#
    }

    fn schema(&self) -> schemars::Schema {
        schema_for!(CsvConfig)
    }
}

impl TranslatorKind for Csv {
    fn plan(&self, config: &Value, input: &SchemaRef) -> Planned<dyn TranslatorFactory> {
        let config: CsvConfig = configured(config)?;
        let value = Bodies::column(input)?;
        let columns: Arc<[Column]> = Column::all(&config.columns)?.into();
        let mut errors = unreadable(&columns);
        let options = Options::of(&config, &mut errors);
        let fields = bodies::fields(&columns, config.records);
        let shaper = config.shape.plan(input, &fields, Base::Identity, config.on_error);
        let shaper = shaper.map_err(|more| errors.extend(more));
        match shaper {
            Ok(shaper) if errors.is_empty() => Ok(Arc::new(Factory { config, value, columns, options, shaper })),
            _ => Err(errors),
        }
    }
}

/// Columns of types that a field of a line cannot have: the decoder is asked itself.
fn unreadable(columns: &[Column]) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    for column in columns {
        let field = column.decoded();
        let mut decoder = ReaderBuilder::new(Arc::new(Schema::new(vec![Arc::clone(&field)]))).build_decoder();
        if decoder.decode(b"\"\"\n").and_then(|_| decoder.flush()).is_err() {
            let message = format!("a csv field cannot be read as {}: declare utf8, or use json", field.data_type());
            errors.push(ConfigError::below(&["columns", field.name()], message));
        }
    }
    errors
}

/// What Arrow's decoder is told of the format.
#[derive(Clone)]
struct Options {
    delimiter: u8,
    quote: u8,
    escape: Option<u8>,
    null: Option<Regex>,
}

impl Options {
    fn of(config: &CsvConfig, errors: &mut Vec<ConfigError>) -> Self {
        let mut character = |key: &str, text: &str| match text {
            "\\t" => b'\t',
            // Only ASCII cuts UTF-8 between characters, and a line end is the decoder's own.
            _ => match text.as_bytes() {
                [byte] if byte.is_ascii() && !b"\r\n\0".contains(byte) => *byte,
                _ => {
                    errors.push(ConfigError::at(key, format!("'{text}' is not one ASCII character")));
                    0
                }
            },
        };
        let delimiter = character("delimiter", &config.delimiter);
        let quote = character("quote", &config.quote);
        let escape = config.escape.as_deref().map(|escape| character("escape", escape));
        if delimiter == quote && delimiter != 0 {
            errors.push(ConfigError::at("quote", "the quote is the delimiter, too"));
        }
        let null = config.null.as_ref().and_then(|nulls| {
            let nulls: Vec<_> = nulls.iter().map(|null| regex::escape(null)).collect();
            // With none, nothing is null: a class that is empty matches no field.
            let pattern =
                if nulls.is_empty() { r"[^\s\S]".to_owned() } else { format!(r"\A(?:{})\z", nulls.join("|")) };
            Regex::new(&pattern).map_err(|_| errors.push(ConfigError::at("null", "these are too long"))).ok()
        });
        Self { delimiter, quote, escape, null }
    }

    fn decoder(&self, schema: &SchemaRef, records: usize, short: bool) -> Decoder {
        let mut builder = ReaderBuilder::new(Arc::clone(schema))
            .with_delimiter(self.delimiter)
            .with_quote(self.quote)
            .with_truncated_rows(short)
            .with_batch_size(records);
        if let Some(escape) = self.escape {
            builder = builder.with_escape(escape);
        }
        if let Some(null) = &self.null {
            builder = builder.with_null_regex(null.clone());
        }
        let mut decoder = builder.build_decoder();
        // The decoder would take a byte order mark from its first body only, and the reader has taken it from every one.
        // A first empty line makes the first body like the others.
        let _blank = decoder.decode(b"\n");
        decoder
    }
}

struct Factory {
    config: CsvConfig,
    value: usize,
    columns: Arc<[Column]>,
    options: Options,
    shaper: Shaper,
}

impl TranslatorFactory for Factory {
    fn output(&self) -> SchemaRef {
        Arc::clone(self.shaper.output())
    }

    fn translator(&self) -> Box<dyn Translator> {
        let (records, on_error) = (self.config.records, self.config.on_error);
        let format = CsvFormat::new(&self.columns, self.options.clone(), records);
        let reader = Reader::new(format, records, on_error, Arc::clone(&self.columns));
        Box::new(BodyTranslator { value: self.value, reader, shaper: self.shaper.clone() })
    }
}

struct CsvFormat {
    schema: SchemaRef,
    options: Options,
    records: Records,
    decoder: Decoder,
    /// One more than it is to be filled with, so that a second record in a body has a place to be seen in.
    room: usize,
}

impl CsvFormat {
    fn new(columns: &[Column], options: Options, records: Records) -> Self {
        let schema = bodies::decoded(columns);
        let decoder = options.decoder(&schema, MANY, false);
        Self { schema, options, records, decoder, room: MANY }
    }

    fn take(&mut self, full: &mut Vec<RecordBatch>) -> std::result::Result<(), String> {
        full.extend(self.decoder.flush().map_err(|error| error.to_string())?);
        Ok(())
    }

    /// A body of any number of records; the last one is without its line end. Answers how many ended in it.
    fn feed_many(&mut self, mut body: &[u8], full: &mut Vec<RecordBatch>) -> std::result::Result<usize, String> {
        let mut count = 0;
        while !body.is_empty() {
            let before = self.decoder.capacity();
            let taken = self.decoder.decode(body).map_err(|error| error.to_string())?;
            count += before - self.decoder.capacity();
            body = &body[taken..];
            if self.decoder.capacity() == 0 {
                self.take(full)?;
            }
        }
        Ok(count)
    }

    /// Every field of a body as text; short records are filled up with null.
    fn texts(&self, body: &[u8]) -> std::result::Result<RecordBatch, String> {
        let names = self.schema.fields().iter().map(|field| Field::new(field.name(), DataType::Utf8, true));
        let schema = Arc::new(Schema::new(names.collect::<Vec<_>>()));
        let decoder = self.options.decoder(&schema, MANY, true);
        let mut texts = Self { decoder, schema, options: self.options.clone(), records: self.records, room: MANY };
        let mut parts = Vec::new();
        texts.feed(body, &mut parts)?;
        texts.finish(&mut parts)?;
        arrow::compute::concat_batches(&texts.schema, &parts).map_err(|error| error.to_string())
    }
}

impl Format for CsvFormat {
    fn is_empty(body: &[u8]) -> bool {
        without_line_end(body).is_empty()
    }

    fn check(&mut self, _: &[u8]) -> std::result::Result<(), String> {
        Ok(())
    }

    fn feed(&mut self, body: &[u8], full: &mut Vec<RecordBatch>) -> std::result::Result<usize, String> {
        let body = without_line_end(body);
        let ended = match self.records {
            Records::Many => self.feed_many(body, full)?,
            Records::One => {
                let before = self.decoder.capacity();
                let taken = self.decoder.decode(body).map_err(|error| error.to_string())?;
                if taken != body.len() || self.decoder.capacity() != before {
                    return Err("the body has more than one record; records: many would take it".to_owned());
                }
                0
            }
        };
        let before = self.decoder.capacity();
        self.decoder.decode(b"\n").map_err(|error| error.to_string())?;
        if self.decoder.capacity() + 1 != before {
            return Err("a quote is not closed".to_owned());
        }
        if self.decoder.capacity() == 0 {
            self.take(full)?;
        }
        Ok(ended + 1)
    }

    fn finish(&mut self, full: &mut Vec<RecordBatch>) -> std::result::Result<(), String> {
        self.take(full)
    }

    fn reset(&mut self, bodies: usize, forget: bool) {
        let room = if self.records == Records::Many { MANY } else { bodies + 1 };
        if forget || room > self.room {
            self.room = room.next_power_of_two();
            self.decoder = self.options.decoder(&self.schema, self.room, false);
        }
    }

    fn complaint(&mut self, body: &[u8]) -> Option<String> {
        let texts = match self.texts(body) {
            Err(message) => return Some(plainly(&message)),
            Ok(texts) => texts,
        };
        let mut decoder = self.options.decoder(&self.schema, MANY, false);
        let whole = decoder.decode(without_line_end(body)).and_then(|_| decoder.decode(b"\n"));
        if let Err(error) = whole {
            return Some(plainly(&error.to_string()));
        }
        self.schema.fields().iter().zip(texts.columns()).find_map(|(field, texts)| {
            let values = read_texts(texts, field.data_type());
            let bad = (0..texts.len()).find(|row| texts.is_valid(*row) && values.is_null(*row))?;
            let text = super::columns::shortened(texts.as_string::<i32>().value(bad));
            Some(format!("column '{}' wants {}, not '{text}'", field.name(), field.data_type()))
        })
    }

    fn repaired(&mut self, body: &[u8]) -> Option<RecordBatch> {
        let texts = self.texts(body).ok()?;
        let columns = self.schema.fields().iter().zip(texts.columns());
        let columns = columns.map(|(field, texts)| read_texts(texts, field.data_type())).collect();
        RecordBatch::try_new(Arc::clone(&self.schema), columns).ok()
    }
}

/// Line ends are the decoder's business only between records.
fn without_line_end(mut body: &[u8]) -> &[u8] {
    while let [rest @ .., b'\n' | b'\r'] = body {
        body = rest;
    }
    body
}

/// Texts as values, null where they are none.
fn read_texts(texts: &ArrayRef, data_type: &DataType) -> ArrayRef {
    if data_type == &DataType::Boolean {
        // The cast would take `yes`, `on` and `1`, which the decoder does not.
        let read = |text: &str| match text {
            _ if text.eq_ignore_ascii_case("true") => Some(true),
            _ if text.eq_ignore_ascii_case("false") => Some(false),
            _ => None,
        };
        return Arc::new(BooleanArray::from_iter(texts.as_string::<i32>().iter().map(|text| text.and_then(read))));
    }
    cast_with_options(texts, data_type, &CastOptions { safe: true, ..CastOptions::default() })
        .unwrap_or_else(|_| arrow::array::new_null_array(data_type, texts.len()))
}

/// The decoder's message without its prefix, and without its line numbers, which count the batch.
fn plainly(message: &str) -> String {
    let message = message.strip_prefix("Csv error: ").unwrap_or(message);
    match message.split_once(" for line ").and_then(|(start, rest)| Some((start, rest.split_once(", ")?.1))) {
        Some((start, rest)) => format!("{start}: {rest}"),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests;
