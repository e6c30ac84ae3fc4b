//! Rows apart by the values of the partition columns, and the names of the directories they go to.
//!
//! A partition's values are texts, as Delta Lake and Hive write them. There is one level of encoding: a directory is
//! `column=value`, name and value percent-encoded to a single path segment. A null is `__HIVE_DEFAULT_PARTITION__`. Neither
//! format can tell an empty text from a null in a partition column, so an empty text *is* a null there.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, SortField};
use arrow::util::display::array_value_to_string;
use chrono::DateTime;

use crate::objects::encode_segment;

/// The directory of rows without a value.
pub const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// The longest name a directory may have on the file systems we know.
const LONGEST_SEGMENT: usize = 255;

/// One value per partition column; `None` is null.
pub type Values = Vec<Option<String>>;

/// Whether a column of this type can be a partition column.
pub fn can_partition(kind: &DataType) -> bool {
    kind.is_integer()
        || matches!(
            kind,
            DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
                | DataType::Boolean
                | DataType::Date32
                | DataType::Timestamp(..)
                | DataType::Decimal128(..)
        )
}

/// `column=value` for each partition column.
pub fn directory(names: &[String], values: &[Option<String>]) -> PathBuf {
    names.iter().zip(values).map(|(name, value)| segment(name, value.as_deref())).collect()
}

fn segment(name: &str, value: Option<&str>) -> String {
    let value = value.map_or_else(|| NULL.to_owned(), encode_segment);
    format!("{}={value}", encode_segment(name))
}

/// The rows of one partition.
#[derive(Debug)]
pub struct Slice {
    /// The same for the same values in every batch.
    pub key: Box<[u8]>,
    /// Its values.
    pub values: Values,
    /// Its rows, without the partition columns.
    pub rows: RecordBatch,
}

/// Rows whose values no directory can be named after, and why.
pub type Refused = Vec<(u32, String)>;

/// Takes batches of one schema apart.
pub struct Partitioner {
    by: Vec<FieldRef>,
    columns: Vec<usize>,
    others: Vec<usize>,
    rest: SchemaRef,
    converter: RowConverter,
}

impl Partitioner {
    /// By the columns `by` of `schema`, which has them.
    pub fn new(schema: &Schema, by: &[String]) -> Result<Self, ArrowError> {
        let columns = by.iter().map(|name| schema.index_of(name)).collect::<Result<Vec<_>, _>>()?;
        let others: Vec<usize> = (0..schema.fields().len()).filter(|at| !columns.contains(at)).collect();
        let rest = Arc::new(schema.project(&others)?);
        let by: Vec<FieldRef> = columns.iter().map(|&at| schema.fields()[at].clone()).collect();
        let sorts = by.iter().map(|field| SortField::new(field.data_type().clone())).collect();
        Ok(Self { by, columns, others, rest, converter: RowConverter::new(sorts)? })
    }

    /// The columns of the rows in a [`Slice`].
    pub fn rest(&self) -> &SchemaRef {
        &self.rest
    }

    /// The rows by partition, and those whose values no directory can be named after, with the reason.
    pub fn split(&self, batch: &RecordBatch) -> Result<(Vec<Slice>, Refused), ArrowError> {
        let rest = batch.project(&self.others)?;
        if self.columns.is_empty() {
            return Ok((vec![Slice { key: Box::default(), values: Vec::new(), rows: rest }], Vec::new()));
        }
        let by: Vec<ArrayRef> = self.columns.iter().map(|&at| batch.column(at).clone()).collect();
        let keys = self.converter.convert_columns(&by)?;
        let mut order = Vec::new();
        let mut groups: HashMap<&[u8], usize> = HashMap::new();
        let mut last: Option<(&[u8], usize)> = None;
        for row in 0..batch.num_rows() {
            let key = keys.row(row).data();
            let group = match last {
                // Neighbours mostly share a partition.
                Some((before, group)) if before == key => group,
                _ => *groups.entry(key).or_insert_with(|| {
                    order.push((key, Vec::new()));
                    order.len() - 1
                }),
            };
            last = Some((key, group));
            order[group].1.push(row as u32);
        }
        let (mut slices, mut refused) = (Vec::with_capacity(order.len()), Vec::new());
        for (key, rows) in order {
            let values: Result<Values, String> =
                by.iter().zip(&self.by).map(|(column, field)| value(field, column, rows[0] as usize)).collect();
            match values {
                Ok(values) => {
                    let rows = match rows.len() == batch.num_rows() {
                        true => rest.clone(),
                        false => take_record_batch(&rest, &UInt32Array::from(rows))?,
                    };
                    slices.push(Slice { key: key.into(), values, rows });
                }
                Err(why) => refused.extend(rows.into_iter().map(|row| (row, why.clone()))),
            }
        }
        Ok((slices, refused))
    }
}

fn value(field: &Field, column: &ArrayRef, row: usize) -> Result<Option<String>, String> {
    let name = field.name();
    let text = text(column, row).ok_or_else(|| format!("'{name}' is out of the range of dates that can be written"))?;
    if text.is_none() && !field.is_nullable() {
        return Err(format!(
            "'{name}' is empty, which is a null in a partition column, and the table takes none there"
        ));
    }
    if segment(name, text.as_deref()).len() > LONGEST_SEGMENT {
        return Err(format!("'{name}' is too long to name a partition after it"));
    }
    Ok(text)
}

/// The value as both formats write it. Outer `None`: it cannot be written.
fn text(column: &ArrayRef, row: usize) -> Option<Option<String>> {
    if column.is_null(row) {
        return Some(None);
    }
    let text = match column.data_type() {
        DataType::Timestamp(unit, _) => {
            let ticks = cast(&column.slice(row, 1), &DataType::Int64).ok()?.as_primitive::<Int64Type>().value(0);
            let time = match unit {
                TimeUnit::Second => DateTime::from_timestamp(ticks, 0),
                TimeUnit::Millisecond => DateTime::from_timestamp_millis(ticks),
                TimeUnit::Microsecond => DateTime::from_timestamp_micros(ticks),
                TimeUnit::Nanosecond => Some(DateTime::from_timestamp_nanos(ticks)),
            };
            time?.format("%Y-%m-%d %H:%M:%S%.6f").to_string()
        }
        _ => array_value_to_string(column, row).ok()?,
    };
    Some(Some(text).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        BooleanArray, Date32Array, Decimal128Array, Int32Array, StringArray, TimestampMicrosecondArray,
    };

    use super::*;

    fn split(column: impl Array + 'static) -> (Vec<(Values, usize)>, Refused) {
        let n = Int32Array::from_iter_values(0..column.len() as i32);
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("p", Arc::new(column) as ArrayRef, true),
            ("n", Arc::new(n) as ArrayRef, true),
        ])
        .expect("batch");
        let by = Partitioner::new(&batch.schema(), &["p".into()]).expect("partitioner");
        let (slices, refused) = by.split(&batch).expect("split");
        (slices.into_iter().map(|slice| (slice.values, slice.rows.num_rows())).collect(), refused)
    }

    #[test]
    fn values_stay_exact_and_an_empty_text_is_a_null() {
        let texts = ["A/A", "B B", "é?", "/x/", "a=b%2F:+#", "A/A"];
        let mut column: Vec<Option<&str>> = texts.iter().copied().map(Some).collect();
        column.extend([None, Some("")]);
        let (slices, refused) = split(StringArray::from(column));
        let values: Vec<_> = slices.iter().map(|(values, rows)| (values[0].as_deref(), *rows)).collect();
        let expected = [
            (Some("A/A"), 2),
            (Some("B B"), 1),
            (Some("é?"), 1),
            (Some("/x/"), 1),
            (Some("a=b%2F:+#"), 1),
            (None, 1),
            (None, 1),
        ];
        assert_eq!(values, expected);
        assert_eq!(refused, vec![]);
    }

    #[test]
    fn values_are_written_as_the_formats_want_them() {
        let one = |(slices, _): (Vec<(Values, usize)>, _)| slices[0].0[0].clone().expect("a value");
        assert_eq!(one(split(Date32Array::from(vec![19_723]))), "2024-01-01");
        assert_eq!(one(split(BooleanArray::from(vec![true]))), "true");
        let decimal = Decimal128Array::from(vec![-105]).with_precision_and_scale(10, 2).expect("decimal");
        assert_eq!(one(split(decimal)), "-1.05");
        let time = TimestampMicrosecondArray::from(vec![1_704_067_200_000_001]);
        assert_eq!(one(split(time.clone())), "2024-01-01 00:00:00.000001");
        assert_eq!(one(split(time.with_timezone("UTC"))), "2024-01-01 00:00:00.000001");
    }

    #[test]
    fn what_no_directory_can_be_named_after_is_refused_alone() {
        let (slices, refused) = split(TimestampMicrosecondArray::from(vec![0, i64::MAX]));
        assert_eq!((slices.len(), refused.len(), refused[0].0), (1, 1, 1));
        let long = "x".repeat(300);
        let (slices, refused) = split(StringArray::from(vec![long.as_str(), "y"]));
        assert_eq!((slices.len(), refused[0].0), (1, 0));
        assert_eq!(refused[0].1, "'p' is too long to name a partition after it");
    }

    #[test]
    fn directories_are_one_segment_per_column() {
        let names = ["a b".to_owned(), "p".to_owned()];
        assert_eq!(directory(&names, &[Some("x/y".into()), None]), PathBuf::from(format!("a%20b=x%2Fy/p={NULL}")));
    }
}
