//! Statistics of a file for the log, from its footer: rows, and per column the least and greatest value and the nulls.
//!
//! A bound that is not certain is left out: readers skip files by them. Timestamps are cut down to milliseconds, as the
//! format has it; decimals with more digits than a JSON number can carry have no bounds.

use std::collections::HashSet;

use chrono::{DateTime, Days, NaiveDate};
use parquet::basic::LogicalType;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::statistics::Statistics;
use serde_json::{Map, Value, json};

/// The statistics of a file, of its first `indexed` columns.
pub fn of(file: &ParquetMetaData, indexed: Option<usize>) -> Value {
    let schema = file.file_metadata().schema_descr();
    let (mut least, mut greatest, mut nulls) = (Map::new(), Map::new(), Map::new());
    let mut tops = HashSet::new();
    for (at, column) in schema.columns().iter().enumerate() {
        let path = column.path().parts();
        tops.insert(&path[0]);
        if indexed.is_some_and(|indexed| tops.len() > indexed) {
            break;
        }
        if column.max_rep_level() > 0 {
            continue;
        }
        let Some(summary) = summary(file, at, column.logical_type_ref()) else { continue };
        put(&mut nulls, path, summary.nulls.into());
        if let Some((low, high)) = summary.bounds {
            for (bounds, bound) in [(&mut least, low), (&mut greatest, high)] {
                if let Some(value) = bound.written() {
                    put(bounds, path, value);
                }
            }
        }
    }
    let rows = file.file_metadata().num_rows();
    json!({ "numRecords": rows, "minValues": least, "maxValues": greatest, "nullCount": nulls })
}

fn put(into: &mut Map<String, Value>, path: &[String], value: Value) {
    let [name, rest @ ..] = path else { return };
    if rest.is_empty() {
        into.insert(name.clone(), value);
    } else if let Value::Object(inner) = into.entry(name.clone()).or_insert_with(|| json!({})) {
        put(inner, rest, value);
    }
}

struct Summary {
    nulls: u64,
    bounds: Option<(Bound, Bound)>,
}

/// What all row groups together say of a column; `None` if one of them says nothing.
fn summary(file: &ParquetMetaData, column: usize, logical: Option<&LogicalType>) -> Option<Summary> {
    let (mut nulls, mut bounds, mut certain) = (0, None, true);
    for group in file.row_groups() {
        let chunk = group.column(column);
        let statistics = chunk.statistics()?;
        let null = statistics.null_count_opt()?;
        nulls += null;
        if i64::try_from(null).is_ok_and(|null| null == chunk.num_values()) {
            continue;
        }
        match (Bound::of(statistics, logical, true), Bound::of(statistics, logical, false)) {
            (Some(low), Some(high)) => {
                bounds = Some(match bounds {
                    None => (low, high),
                    Some((least, greatest)) => {
                        (if low < least { low } else { least }, if high > greatest { high } else { greatest })
                    }
                });
            }
            _ => certain = false,
        }
    }
    Some(Summary { nulls, bounds: bounds.filter(|_| certain) })
}

/// A value in the order of its column.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
enum Bound {
    Integer(i64),
    Float(f64),
    /// Unscaled, and the scale.
    Decimal(i64, i32),
    /// Days.
    Date(i32),
    /// Microseconds, and whether it is an instant.
    Time(i64, bool),
    Text(String),
}

impl Bound {
    fn of(statistics: &Statistics, logical: Option<&LogicalType>, low: bool) -> Option<Self> {
        fn pick<T: Clone>(low: bool, min: Option<&T>, max: Option<&T>) -> Option<T> {
            if low { min.cloned() } else { max.cloned() }
        }
        let decimal = |value: i64| match logical {
            Some(LogicalType::Decimal(decimal)) if decimal.precision <= 15 => Some(Self::Decimal(value, decimal.scale)),
            _ => None,
        };
        match statistics {
            Statistics::Int32(s) => {
                let value = pick(low, s.min_opt(), s.max_opt())?;
                match logical {
                    Some(LogicalType::Date) => Some(Self::Date(value)),
                    Some(LogicalType::Decimal(_)) => decimal(value.into()),
                    _ => Some(Self::Integer(value.into())),
                }
            }
            Statistics::Int64(s) => {
                let value = pick(low, s.min_opt(), s.max_opt())?;
                match logical {
                    // Every timestamp of a delta table is written in microseconds.
                    Some(LogicalType::Timestamp(time)) => Some(Self::Time(value, time.is_adjusted_to_u_t_c)),
                    Some(LogicalType::Decimal(_)) => decimal(value),
                    _ => Some(Self::Integer(value)),
                }
            }
            Statistics::Float(s) => Some(Self::Float(pick(low, s.min_opt(), s.max_opt())?.into())),
            Statistics::Double(s) => Some(Self::Float(pick(low, s.min_opt(), s.max_opt())?)),
            Statistics::ByteArray(s) if matches!(logical, Some(LogicalType::String)) => {
                let bytes = if low { s.min_bytes_opt() } else { s.max_bytes_opt() };
                Some(Self::Text(String::from_utf8(bytes?.to_vec()).ok()?))
            }
            _ => None,
        }
    }

    fn written(self) -> Option<Value> {
        match self {
            Self::Integer(value) => Some(value.into()),
            Self::Float(value) => serde_json::Number::from_f64(value).map(Value::Number),
            Self::Decimal(value, 0) => Some(value.into()),
            Self::Decimal(value, scale) => {
                serde_json::Number::from_f64(value as f64 / 10_f64.powi(scale)).map(Value::Number)
            }
            Self::Date(days) => {
                let epoch = NaiveDate::default();
                let step = Days::new(days.unsigned_abs().into());
                let date = if days < 0 { epoch.checked_sub_days(step) } else { epoch.checked_add_days(step) };
                Some(date?.format("%Y-%m-%d").to_string().into())
            }
            Self::Time(micros, instant) => {
                let time = DateTime::from_timestamp_millis(micros.div_euclid(1000))?;
                let format = if instant { "%Y-%m-%dT%H:%M:%S%.3fZ" } else { "%Y-%m-%dT%H:%M:%S%.3f" };
                Some(time.format(format).to_string().into())
            }
            Self::Text(text) => Some(text.into()),
        }
    }
}
