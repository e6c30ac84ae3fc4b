//! Reading the bodies of a batch with one of Arrow's decoders, so that every row keeps the id of its own message.
//!
//! The decoders are made for streams: they join and split what they are fed. Here each body is fed by itself, and the
//! [`Format`] answers how many records it was, before the next one is fed. A body that is not whole (an open quote, a
//! second record, half an object) therefore never touches its neighbour.
//!
//! The common case is one pass over the batch. If something is wrong, the batch is read again in parts: halves until the
//! bad row stands alone, then parts that double for as long as they are good. One bad row among 10,000 costs about two
//! more passes; a batch of nothing but bad rows costs a few times its own size, never its square.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, new_null_array};
use arrow::buffer::NullBuffer;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::OnError;
use super::columns::Column;
use super::shape::{Read, Shaper, broken, stop};
use crate::flow::registry::ConfigError;
use crate::flow::{Raw, Reason, Rejected, Result, StageError, Translated, Translator};

/// How many records a body holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Records {
    /// One body is one record; anything else is rejected.
    #[default]
    One,
    /// Any number. A column `row_number` counts them from 1 within each body; an empty body has none. A body with a bad
    /// record is rejected as a whole.
    Many,
}

/// The column of [`Records::Many`].
pub(super) const ROW_NUMBER: &str = "row_number";

/// A format of bodies, over one of Arrow's decoders.
pub(super) trait Format: Send {
    /// Whether there is nothing in a body but what may stand between records.
    fn is_empty(body: &[u8]) -> bool;

    /// Says what is wrong with a body before the decoder sees it. Cheap, and need not find everything.
    fn check(&mut self, body: &[u8]) -> std::result::Result<(), String>;

    /// Feeds one body; answers how many records it was. Records that the decoder has no room for are put into `full`
    /// on the way. After an error the decoder is good for nothing before it is [`reset`](Self::reset).
    fn feed(&mut self, body: &[u8], full: &mut Vec<RecordBatch>) -> std::result::Result<usize, String>;

    /// Takes out what was fed since the last time.
    fn finish(&mut self, full: &mut Vec<RecordBatch>) -> std::result::Result<(), String>;

    /// Starts anew, with room for so many bodies of one record. With room enough, and nothing to forget, it does nothing.
    fn reset(&mut self, bodies: usize, forget: bool);

    /// What a person should read about a body that the decoder did not take; `None` if it said it well enough.
    fn complaint(&mut self, body: &[u8]) -> Option<String>;

    /// The records of a body that was not taken, with null for what cannot be read. `None`: nothing of it can.
    fn repaired(&mut self, body: &[u8]) -> Option<RecordBatch>;
}

/// The value column of a batch: texts or bytes.
#[derive(Clone, Copy)]
pub(super) struct Bodies<'a> {
    offsets: &'a [i32],
    data: &'a [u8],
    nulls: Option<&'a NullBuffer>,
    /// Whether the bytes are known to be UTF-8.
    text: bool,
}

impl<'a> Bodies<'a> {
    /// Finds the value column of the message columns at plan time.
    pub(super) fn column(input: &SchemaRef) -> std::result::Result<usize, Vec<ConfigError>> {
        match input.column_with_name("value") {
            Some((at, field)) if matches!(field.data_type(), DataType::Utf8 | DataType::Binary) => Ok(at),
            Some((_, field)) => Err(vec![ConfigError::here(format!(
                "bodies are text or binary, but the messages' column 'value' is {}",
                field.data_type()
            ))]),
            None => Err(vec![ConfigError::here("the messages have no column 'value' to read")]),
        }
    }

    pub(super) fn of(column: &'a ArrayRef) -> Self {
        if let Some(texts) = column.as_string_opt::<i32>() {
            let (offsets, data) = (texts.value_offsets(), texts.value_data());
            return Self { offsets, data, nulls: texts.nulls(), text: true };
        }
        let bytes = column.as_binary::<i32>();
        Self { offsets: bytes.value_offsets(), data: bytes.value_data(), nulls: bytes.nulls(), text: false }
    }

    fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The body of a row without its byte order mark; `None` if the message has none.
    #[inline]
    fn get(&self, row: usize) -> Option<&'a [u8]> {
        if self.nulls.is_some_and(|nulls| nulls.is_null(row)) {
            return None;
        }
        let body = &self.data[self.offsets[row] as usize..self.offsets[row + 1] as usize];
        Some(body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body))
    }
}

/// Reads batches of bodies of one format.
pub(super) struct Reader<F> {
    format: F,
    records: Records,
    on_error: OnError,
    columns: Arc<[Column]>,
}

/// The rows that a decoder for bodies of many records has room for.
pub(super) const MANY: usize = 8192;

/// A translator whose bodies are of one format.
pub(super) struct BodyTranslator<F> {
    /// Which message column has the bodies.
    pub value: usize,
    pub reader: Reader<F>,
    pub shaper: Shaper,
}

impl<F: Format + Send> Translator for BodyTranslator<F> {
    fn translate(&mut self, raw: &Raw) -> Result<Translated> {
        let read = self.reader.read(Bodies::of(raw.columns.column(self.value)))?;
        self.shaper.shape(raw, read)
    }
}

/// The declared fields as a translator hands them to its shape.
pub(super) fn fields(columns: &[Column], records: Records) -> Vec<FieldRef> {
    let number = (records == Records::Many).then(|| Arc::new(Field::new(ROW_NUMBER, DataType::Int64, false)));
    number.into_iter().chain(columns.iter().map(|column| Arc::clone(&column.field))).collect()
}

/// The schema for Arrow's decoder.
pub(super) fn decoded(columns: &[Column]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(Column::decoded).collect::<Vec<_>>()))
}

/// How far reading a part of a batch came.
enum Step {
    /// To its end.
    Done,
    /// To this row, which is bad; what was before it is read.
    Until(usize, String),
    /// Nothing of it is read. The bad row, if it is known.
    Spoilt(Option<usize>, String),
}

/// What was read so far.
#[derive(Default)]
struct Progress {
    parts: Vec<RecordBatch>,
    /// For each row read, the input row.
    from: Vec<u32>,
    rejects: Vec<Rejected>,
    /// Input rows of which something is null because it could not be read.
    nulled: Vec<u32>,
}

impl<F: Format> Reader<F> {
    pub(super) fn new(format: F, records: Records, on_error: OnError, columns: Arc<[Column]>) -> Self {
        Self { format, records, on_error, columns }
    }

    /// Reads every body, or says of which rows it could not.
    pub(super) fn read(&mut self, bodies: Bodies<'_>) -> Result<Read> {
        let rows = bodies.len();
        let mut progress = Progress { from: Vec::with_capacity(rows), ..Progress::default() };
        let (mut at, mut step) = (0, rows);
        let mut known: Option<(usize, String)> = None;
        while at < rows {
            if let Some((_, detail)) = known.take_if(|(bad, _)| *bad == at) {
                let detail = bodies.get(at).and_then(|body| self.format.complaint(body)).unwrap_or(detail);
                self.bad(bodies, at, detail, &mut progress)?;
                (at, step) = (at + 1, 1);
                continue;
            }
            let end = rows.min(at + step);
            match self.step(bodies, at, end, &mut progress) {
                Step::Done => (at, step) = (end, step.saturating_mul(2)),
                Step::Until(bad, detail) => {
                    self.bad(bodies, bad, detail, &mut progress)?;
                    at = bad + 1;
                }
                Step::Spoilt(Some(bad), detail) => {
                    step = (bad - at).max(1);
                    known = Some((bad, detail));
                }
                Step::Spoilt(None, detail) if end == at + 1 => known = Some((at, detail)),
                Step::Spoilt(None, _) => step = (end - at) / 2,
            }
        }
        self.done(rows, progress)
    }

    /// Reads the rows from `at` to `end`, all or those before the first bad one, or nothing.
    fn step(&mut self, bodies: Bodies<'_>, at: usize, end: usize, progress: &mut Progress) -> Step {
        self.format.reset(end - at, false);
        let (parts, rows) = (progress.parts.len(), progress.from.len());
        let mut step = Step::Done;
        for row in at..end {
            let body = match self.checked(bodies, row) {
                Ok(body) => body,
                Err(detail) => {
                    step = Step::Until(row, detail);
                    break;
                }
            };
            let fed = match body {
                [] => Ok(0),
                body => self.format.feed(body, &mut progress.parts),
            };
            match fed {
                Ok(1) => progress.from.push(u32::try_from(row).unwrap_or(u32::MAX)),
                Ok(count) => progress.from.extend(std::iter::repeat_n(u32::try_from(row).unwrap_or(u32::MAX), count)),
                Err(detail) => {
                    step = Step::Spoilt(Some(row), detail);
                    break;
                }
            }
        }
        if !matches!(step, Step::Spoilt(..)) {
            match self.format.finish(&mut progress.parts).and_then(|()| self.convert(&mut progress.parts[parts..])) {
                Ok(()) => return step,
                // Of a part that ends before a bad row it is unknown which of the rows before that is bad, too.
                Err(detail) => {
                    let single = matches!(step, Step::Until(bad, _) if bad == at + 1);
                    step = Step::Spoilt(single.then_some(at), detail);
                }
            }
        }
        self.format.reset(end - at, true);
        progress.parts.truncate(parts);
        progress.from.truncate(rows);
        step
    }

    /// A body that is worth feeding; an empty one has no records.
    #[inline]
    fn checked<'a>(&mut self, bodies: Bodies<'a>, row: usize) -> std::result::Result<&'a [u8], String> {
        let body = bodies.get(row).ok_or("the message has no body")?;
        if F::is_empty(body) {
            return match self.records {
                Records::One => Err("the body is empty".to_owned()),
                Records::Many => Ok(&[]),
            };
        }
        if !bodies.text && std::str::from_utf8(body).is_err() {
            return Err("the body is not UTF-8".to_owned());
        }
        self.format.check(body)?;
        Ok(body)
    }

    /// Brings decoded columns to the declared types.
    fn convert(&self, parts: &mut [RecordBatch]) -> std::result::Result<(), String> {
        for part in parts {
            let mut complaint = None;
            *part = self.converted(part, |column, text| {
                complaint.get_or_insert_with(|| column.complaint(text));
            })?;
            if let Some(complaint) = complaint {
                return Err(complaint);
            }
        }
        Ok(())
    }

    fn converted(
        &self,
        part: &RecordBatch,
        mut failed: impl FnMut(&Column, &str),
    ) -> std::result::Result<RecordBatch, String> {
        let columns = self.columns.iter().zip(part.columns());
        let columns = columns.map(|(column, values)| column.converted(Arc::clone(values), |text| failed(column, text)));
        RecordBatch::try_new(self.schema(), columns.collect()).map_err(|error| error.to_string())
    }

    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(self.columns.iter().map(|column| Arc::clone(&column.field)).collect::<Vec<_>>()))
    }

    /// Rejects a row, mends it or gives up, as `on_error` says.
    fn bad(&mut self, bodies: Bodies<'_>, row: usize, detail: String, progress: &mut Progress) -> Result<()> {
        let number = u32::try_from(row).unwrap_or(u32::MAX);
        if self.on_error == OnError::Null {
            let body = bodies.get(row).filter(|body| std::str::from_utf8(body).is_ok());
            let part = match body.and_then(|body| self.format.repaired(body)) {
                Some(part) => self.converted(&part, |_, _| {}).map_err(StageError::retry)?,
                None => self.nothing(),
            };
            progress.from.extend(std::iter::repeat_n(number, part.num_rows()));
            progress.parts.push(part);
            progress.nulled.push(number);
            return Ok(());
        }
        if self.on_error == OnError::Fail {
            return Err(stop(number, &detail));
        }
        progress.rejects.push(Rejected { row: number, reason: Reason::Decode, detail });
        Ok(())
    }

    /// One record of nulls.
    fn nothing(&self) -> RecordBatch {
        let columns = self.columns.iter().map(|column| new_null_array(column.field.data_type(), 1)).collect();
        RecordBatch::try_new(self.schema(), columns).unwrap_or_else(|_| RecordBatch::new_empty(self.schema()))
    }

    fn done(&self, rows: usize, progress: Progress) -> Result<Read> {
        let Progress { parts, from, rejects, nulled } = progress;
        let read = match parts.as_slice() {
            [part] => part.clone(),
            parts => concat_batches(&self.schema(), parts).map_err(broken)?,
        };
        if read.num_rows() != from.len() {
            // Not a fault of the messages, and the one that must never pass: rows would carry another message's id.
            let (read, from) = (read.num_rows(), from.len());
            return Err(StageError::park(format!(
                "a decoder gave {read} rows for {from} records; this is a bug, report it"
            )));
        }
        let mut columns = read.columns().to_vec();
        if self.records == Records::Many {
            columns.insert(0, numbers(&from));
            return Ok(Read { columns, from: Some(from), rejects, nulled });
        }
        Ok(Read { columns, from: (from.len() != rows).then_some(from), rejects, nulled })
    }
}

/// Counts the records of each body from 1.
fn numbers(from: &[u32]) -> ArrayRef {
    let (mut last, mut number) = (None, 0);
    let numbers = from.iter().map(|row| {
        number = if last == Some(*row) { number + 1 } else { 1 };
        last = Some(*row);
        number
    });
    Arc::new(Int64Array::from_iter_values(numbers))
}
