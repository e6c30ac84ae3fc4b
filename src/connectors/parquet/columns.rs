//! Rows as they come from a stage, made into the columns that a target has.
//!
//! Columns are matched by name. A value that the target's type cannot hold, and a null where it takes none, cost their own
//! row only: it is rejected with the column and the value in the sentence, its neighbours go on. Nothing is ever turned into a null
//! or cut off silently, except that nanoseconds become microseconds where the target knows no finer unit.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::compute::{CastOptions, cast_with_options, filter_record_batch};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use arrow::util::display::array_value_to_string;

use crate::flow::{Reason, Rejected, Result, StageError};

/// A type that a target cannot hold as it is: what it becomes there, or why it has no place there.
pub type Mapped = Result<DataType, String>;

/// The same type with `map` applied to everything nested in it, and every nested value nullable. `None`: it has nothing
/// nested.
pub fn map_nested(of: &DataType, map: &dyn Fn(&DataType) -> Mapped) -> Option<Mapped> {
    let field = |field: &FieldRef, nullable: bool| -> Result<FieldRef, String> {
        let kind = map(field.data_type()).map_err(|why| format!("{}: {why}", field.name()))?;
        Ok(Arc::new(Field::new(field.name(), kind, nullable)))
    };
    let mapped = match of {
        DataType::Dictionary(_, value) => map(value),
        DataType::RunEndEncoded(_, values) => map(values.data_type()),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            field(item, true).map(DataType::List)
        }
        DataType::Struct(fields) => {
            fields.iter().map(|f| field(f, true)).collect::<Result<Vec<_>, _>>().map(|f| DataType::Struct(f.into()))
        }
        DataType::Map(entries, _) => {
            let DataType::Struct(pair) = entries.data_type() else { return Some(Err("a map without entries".into())) };
            let pair = pair.iter().zip([false, true]).map(|(f, nullable)| field(f, nullable));
            pair.collect::<Result<Vec<_>, _>>().map(|pair| {
                let entries = Field::new(entries.name(), DataType::Struct(pair.into()), false);
                DataType::Map(Arc::new(entries), false)
            })
        }
        _ => return None,
    };
    Some(mapped)
}

/// What a column becomes in a Parquet file. Parquet has all of Arrow's types but a few; instants are normalised to UTC and
/// said to be (the flag in the footer), wall-clock times are said not to be, and INT96 is never written.
pub fn in_parquet(of: &DataType, keep_nanoseconds: bool) -> Mapped {
    if let Some(mapped) = map_nested(of, &|inner| in_parquet(inner, keep_nanoseconds)) {
        return mapped;
    }
    match of {
        DataType::Timestamp(unit, zone) => {
            let unit = match unit {
                TimeUnit::Second => TimeUnit::Millisecond,
                TimeUnit::Nanosecond if !keep_nanoseconds => TimeUnit::Microsecond,
                unit => *unit,
            };
            Ok(DataType::Timestamp(unit, zone.as_ref().map(|_| "UTC".into())))
        }
        DataType::Date64 => Ok(DataType::Date32),
        DataType::Null => Err("it holds only nulls and has no type: cast it to one".into()),
        DataType::Duration(_) | DataType::Interval(_) | DataType::Union(..) => {
            Err(format!("{of} has no counterpart in parquet: cast it to a number or a text"))
        }
        other => Ok(other.clone()),
    }
}

/// How rows with the columns of one schema become rows with those of another.
#[derive(Clone, Debug)]
pub struct Columns {
    target: SchemaRef,
    /// For each target column the input's, or none: it is filled with nulls.
    from: Vec<Option<usize>>,
}

/// Rows that fit, and those that do not.
#[derive(Debug)]
pub struct Converted {
    /// The rows that fit, in order.
    pub batch: RecordBatch,
    /// Which rows of the input they are; `None`: all of them.
    pub rows: Option<Vec<u32>>,
    /// The others.
    pub rejected: Vec<Rejected>,
}

impl Converted {
    /// The row of the input that row `row` of the batch was.
    pub fn origin(&self, row: u32) -> u32 {
        self.rows.as_ref().map_or(row, |rows| rows[row as usize])
    }
}

impl Columns {
    /// From `input` to `target`.
    pub fn new(input: &Schema, target: SchemaRef) -> Self {
        let from = target.fields().iter().map(|field| input.index_of(field.name()).ok()).collect();
        Self { target, from }
    }

    /// The columns of what comes out.
    pub fn target(&self) -> &SchemaRef {
        &self.target
    }

    /// Converts what can be converted.
    pub fn convert(&self, input: &RecordBatch) -> Result<Converted> {
        let mut bad = BTreeMap::new();
        let columns = self.cast(input, &mut bad)?;
        if bad.is_empty() {
            return Ok(Converted { batch: self.batch(columns, input.num_rows())?, rows: None, rejected: Vec::new() });
        }
        let fits = |row: &u32| !bad.contains_key(row);
        let all = 0..u32::try_from(input.num_rows()).map_err(|e| StageError::park("too many rows").because(e))?;
        let keep: BooleanArray = all.clone().map(|row| Some(fits(&row))).collect();
        let kept = filter_record_batch(input, &keep).map_err(unexpected)?;
        let columns = self.cast(&kept, &mut BTreeMap::new())?;
        let batch = self.batch(columns, kept.num_rows())?;
        let rows = all.filter(fits).collect();
        let rejected = bad.into_iter().map(|(row, detail)| Rejected { row, reason: Reason::Sink, detail }).collect();
        Ok(Converted { batch, rows: Some(rows), rejected })
    }

    fn batch(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.target.clone(), columns, &options).map_err(unexpected)
    }

    fn cast(&self, input: &RecordBatch, bad: &mut BTreeMap<u32, String>) -> Result<Vec<ArrayRef>> {
        let mut columns = Vec::with_capacity(self.from.len());
        for (field, from) in self.target.fields().iter().zip(&self.from) {
            let Some(from) = from else {
                columns.push(new_null_array(field.data_type(), input.num_rows()));
                continue;
            };
            let column = input.column(*from);
            if !field.is_nullable() && column.null_count() > 0 {
                for row in (0..column.len()).filter(|&row| column.is_null(row)) {
                    note(bad, row, || format!("'{}' is null, and the table takes none there", field.name()));
                }
            }
            if column.data_type() == field.data_type() {
                columns.push(column.clone());
                continue;
            }
            match exactly(column, field.data_type()) {
                Ok(column) => columns.push(column),
                Err(error) => {
                    let before = bad.len();
                    for row in 0..column.len() {
                        if exactly(&column.slice(row, 1), field.data_type()).is_err() {
                            note(bad, row, || misfit(field, column, row));
                        }
                    }
                    if bad.len() == before {
                        return Err(unexpected(error));
                    }
                    // Only the shape matters now: the caller drops the bad rows and casts again.
                    columns.push(new_null_array(field.data_type(), column.len()));
                }
            }
        }
        Ok(columns)
    }
}

fn note(bad: &mut BTreeMap<u32, String>, row: usize, detail: impl FnOnce() -> String) {
    bad.entry(row as u32).or_insert_with(detail);
}

/// A cast that fails where it would have to make a null.
fn exactly(column: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    cast_with_options(column, to, &CastOptions { safe: false, ..CastOptions::default() })
}

fn misfit(field: &Field, column: &ArrayRef, row: usize) -> String {
    let mut value = array_value_to_string(column, row).unwrap_or_else(|_| "a value".into());
    if let Some((at, _)) = value.char_indices().nth(100) {
        value.truncate(at);
        value.push('…');
    }
    format!("'{}' is {value}, out of the range of {}", field.name(), field.data_type())
}

fn unexpected(error: ArrowError) -> StageError {
    StageError::park("rows do not fit the columns they were planned with").because(error)
}

#[cfg(test)]
mod tests {
    use arrow::array::{DictionaryArray, Int64Array, StringArray, TimestampSecondArray, UInt64Array};
    use arrow::datatypes::Int32Type;

    use super::*;

    fn one(name: &str, column: impl Array + 'static) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable([(name, Arc::new(column) as ArrayRef, true)]).expect("batch")
    }

    #[test]
    fn a_value_out_of_range_costs_its_own_row() {
        let batch = one("n", UInt64Array::from(vec![Some(1), Some(u64::MAX), None, Some(3)]));
        let target = Arc::new(Schema::new(vec![
            Field::new("n", DataType::Int64, true),
            Field::new("absent", DataType::Utf8, true),
        ]));
        let done = Columns::new(&batch.schema(), target).convert(&batch).expect("converted");
        let n = done.batch.column(0).as_any().downcast_ref::<Int64Array>().expect("int64").clone();
        assert_eq!(n, Int64Array::from(vec![Some(1), None, Some(3)]));
        assert_eq!((done.rows.clone(), done.origin(1)), (Some(vec![0, 2, 3]), 2));
        assert_eq!(done.rejected.len(), 1);
        assert_eq!(done.rejected[0].row, 1);
        assert_eq!(done.rejected[0].detail, "'n' is 18446744073709551615, out of the range of Int64");
        assert_eq!(done.batch.column(1).null_count(), 3);
    }

    #[test]
    fn a_null_where_none_may_be_costs_its_own_row() {
        let batch = one("s", StringArray::from(vec![Some("a"), None]));
        let target = Arc::new(Schema::new(vec![Field::new("s", DataType::Utf8, false)]));
        let done = Columns::new(&batch.schema(), target).convert(&batch).expect("converted");
        assert_eq!(done.batch.num_rows(), 1);
        assert_eq!(done.rejected[0].detail, "'s' is null, and the table takes none there");
    }

    #[test]
    fn seconds_that_leave_the_range_of_milliseconds_are_rejected_not_wrapped() {
        let batch = one("t", TimestampSecondArray::from(vec![1, i64::MAX]));
        let target = in_parquet(batch.schema().field(0).data_type(), false).expect("type");
        assert_eq!(target, DataType::Timestamp(TimeUnit::Millisecond, None));
        let target = Arc::new(Schema::new(vec![Field::new("t", target, true)]));
        let done = Columns::new(&batch.schema(), target).convert(&batch).expect("converted");
        assert_eq!((done.batch.num_rows(), done.rejected.len()), (1, 1));
    }

    #[test]
    fn dictionaries_are_unpacked_and_zones_become_utc() {
        let words: DictionaryArray<Int32Type> = ["a", "b", "a"].into_iter().collect();
        let batch = one("w", words);
        let target = in_parquet(batch.schema().field(0).data_type(), false).expect("type");
        assert_eq!(target, DataType::Utf8);
        let target = Arc::new(Schema::new(vec![Field::new("w", target, true)]));
        let done = Columns::new(&batch.schema(), target).convert(&batch).expect("converted");
        assert_eq!(done.batch.column(0).as_ref(), &StringArray::from(vec!["a", "b", "a"]) as &dyn Array);

        let berlin = DataType::Timestamp(TimeUnit::Nanosecond, Some("+02:00".into()));
        assert_eq!(
            in_parquet(&DataType::new_list(berlin.clone(), true), false),
            Ok(DataType::new_list(DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true))
        );
        assert_eq!(in_parquet(&berlin, true), Ok(DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))));
        assert!(in_parquet(&DataType::Null, false).is_err());
    }
}
