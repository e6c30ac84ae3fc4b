//! Declared columns: what a topology writes under `columns:`, as Arrow types.
//!
//! A type is an Arrow name (`int64`, `Timestamp(ms, "UTC")`) or an SQL alias (`bigint`), in any case. Every declared
//! column is nullable, and a `timestamp` is in microseconds and UTC, as Delta tables keep it. A date or timestamp may
//! have a `format`; its text is then read by that format alone.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Date32Array, PrimitiveArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit, TimestampMicrosecondType};
use chrono::format::{Fixed, Item, StrftimeItems};
use chrono::{DateTime, NaiveDate, NaiveDateTime};
use schemars::{JsonSchema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::Ordered;
use crate::expr::suggestion;
use crate::flow::registry::ConfigError;

/// The type of a declared column.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ColumnType {
    /// `int64`, `utf8`, `decimal(10,2)`, `timestamp`, `list<int32>`, …
    Name(#[schemars(with = "TypeName")] String),
    /// A type with a format.
    Formatted(Formatted),
}

/// A date or timestamp whose text is in a format of its own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Formatted {
    /// `date` or one of the timestamps.
    #[serde(rename = "type")]
    pub type_name: String,
    /// How it is written, like `%d.%m.%Y` or `%Y-%m-%d %H:%M:%S%z`; without a zone it is UTC.
    pub format: Option<String>,
}

/// A column to be read from the body of a message.
#[derive(Clone, Debug)]
pub(super) struct Column {
    /// What the table gets.
    pub(super) field: FieldRef,
    format: Option<String>,
}

/// The names that an error message offers; each has aliases in [`SCALARS`].
const NAMES: [&str; 21] = [
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "float64",
    "float32",
    "boolean",
    "utf8",
    "binary",
    "date",
    "time",
    "timestamp",
    "timestamp_ms",
    "timestamp_ntz",
    "decimal(p,s)",
    "list<t>",
    "struct<name: t>",
];

/// The names of a type in lower case, the first of them ours, and the type.
type Scalar = (&'static [&'static str], fn() -> DataType);

/// Every scalar type.
const SCALARS: [Scalar; 21] = [
    (&["int64", "bigint", "long"], || DataType::Int64),
    (&["int32", "int", "integer"], || DataType::Int32),
    (&["int16", "smallint", "short"], || DataType::Int16),
    (&["int8", "tinyint"], || DataType::Int8),
    (&["uint64"], || DataType::UInt64),
    (&["uint32"], || DataType::UInt32),
    (&["uint16"], || DataType::UInt16),
    (&["uint8"], || DataType::UInt8),
    (&["float64", "double", "double precision"], || DataType::Float64),
    (&["float32", "float", "real"], || DataType::Float32),
    (&["boolean", "bool"], || DataType::Boolean),
    (&["utf8", "string", "text", "varchar", "char"], || DataType::Utf8),
    (&["binary", "bytes", "varbinary"], || DataType::Binary),
    (&["date", "date32"], || DataType::Date32),
    (&["time", "time64"], || DataType::Time64(TimeUnit::Microsecond)),
    (&["timestamp", "timestamp_us", "timestamptz", "timestamp with time zone", "datetime"], || {
        utc(TimeUnit::Microsecond)
    }),
    (&["timestamp_s"], || utc(TimeUnit::Second)),
    (&["timestamp_ms"], || utc(TimeUnit::Millisecond)),
    (&["timestamp_ns"], || utc(TimeUnit::Nanosecond)),
    (&["timestamp_ntz", "timestamp without time zone"], || DataType::Timestamp(TimeUnit::Microsecond, None)),
    (&["decimal", "numeric"], || DataType::Decimal128(38, 10)),
];

fn utc(unit: TimeUnit) -> DataType {
    DataType::Timestamp(unit, Some("UTC".into()))
}

fn scalar(name: &str) -> Option<DataType> {
    SCALARS.iter().find(|(names, _)| names.contains(&name)).map(|(_, of)| of())
}

/// The schema of a type's name. An editor flags a word that is no type; what has brackets or capitals in it is left to
/// the check, which also names the nearest type.
struct TypeName;

impl JsonSchema for TypeName {
    fn schema_name() -> Cow<'static, str> {
        "TypeName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> schemars::Schema {
        let names: Vec<&str> = SCALARS.iter().flat_map(|(names, _)| names.iter().copied()).collect();
        let pattern = format!("^ *({}) *$|[^a-z0-9_ ]", names.join("|"));
        json_schema!({ "type": "string", "x-editor": { "pattern": pattern } })
    }

    fn inline_schema() -> bool {
        true
    }
}

/// How deep types may be nested in one another.
const MAX_DEPTH: usize = 16;

/// The type that `text` names.
pub(super) fn parse_type(text: &str) -> Result<DataType, String> {
    parse_nested(text.trim(), MAX_DEPTH)
}

fn parse_nested(text: &str, depth: usize) -> Result<DataType, String> {
    if depth == 0 {
        return Err(format!("types are nested deeper than {MAX_DEPTH}"));
    }
    let lower = text.to_lowercase();
    if let Some(data_type) = scalar(&lower) {
        return Ok(data_type);
    }
    if let Some(inner) = enclosed(text, &lower, &["decimal(", "numeric("], ')') {
        return decimal(text, inner);
    }
    if enclosed(text, &lower, &["varchar(", "char("], ')').is_some_and(|n| n.trim().parse::<u32>().is_ok()) {
        return Ok(DataType::Utf8);
    }
    if let Some(inner) = enclosed(text, &lower, &["list<", "array<"], '>') {
        return Ok(DataType::List(Arc::new(Field::new("item", parse_nested(inner.trim(), depth - 1)?, true))));
    }
    if let Some(inner) = enclosed(text, &lower, &["struct<", "row<"], '>') {
        let fields: Result<Vec<_>, String> = split(inner)
            .into_iter()
            .map(|field| {
                let (name, data_type) =
                    field.split_once(':').ok_or_else(|| format!("'{field}' is not a field: write name: type"))?;
                Ok(Field::new(name.trim(), parse_nested(data_type.trim(), depth - 1)?, true))
            })
            .collect();
        return Ok(DataType::Struct(fields?.into()));
    }
    if (1..=MAX_DEPTH).contains(&text.matches('(').count())
        && let Ok(data_type) = text.parse::<DataType>()
    {
        return Ok(data_type);
    }
    Err(format!("'{text}' is not a type{}", suggestion(&lower, NAMES)))
}

/// What stands between one of the `openings` and the closing character at the very end.
fn enclosed<'a>(text: &'a str, lower: &str, openings: &[&str], close: char) -> Option<&'a str> {
    // Lower case may be of another length than the text; then the openings, which are ASCII, do not help either.
    let opening = openings.iter().find(|opening| lower.starts_with(**opening))?;
    text.get(opening.len()..)?.strip_suffix(close)
}

/// At the commas that are not inside of brackets.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut open) = (Vec::new(), 0, 0_i32);
    for (at, c) in text.char_indices() {
        match c {
            '<' | '(' => open += 1,
            '>' | ')' => open -= 1,
            ',' if open == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}

fn decimal(text: &str, inner: &str) -> Result<DataType, String> {
    let mut numbers = inner.splitn(2, ',').map(str::trim);
    let precision = numbers.next().and_then(|p| p.parse::<u8>().ok());
    let scale = numbers.next().map_or(Some(0), |s| s.parse::<i8>().ok());
    match (precision, scale) {
        (Some(p @ 1..=38), Some(s)) if s >= 0 && u8::try_from(s).is_ok_and(|s| s <= p) => {
            Ok(DataType::Decimal128(p, s))
        }
        _ => Err(format!("'{text}' is not a decimal: its precision is 1 to 38, its scale 0 to the precision")),
    }
}

impl Column {
    /// All columns of a topology, or everything that is wrong with them.
    pub(super) fn all(declared: &Ordered<ColumnType>) -> Result<Vec<Self>, Vec<ConfigError>> {
        if declared.is_empty() {
            return Err(vec![ConfigError::at("columns", "declare at least one column")]);
        }
        let mut columns = Vec::new();
        let mut errors = Vec::new();
        for (name, column_type) in declared.iter() {
            match Self::new(name, column_type) {
                Ok(column) => columns.push(column),
                Err(message) => errors.push(ConfigError::below(&["columns", name], message)),
            }
        }
        if errors.is_empty() { Ok(columns) } else { Err(errors) }
    }

    fn new(name: &str, column_type: &ColumnType) -> Result<Self, String> {
        let (type_name, format) = match column_type {
            ColumnType::Name(name) => (name, None),
            ColumnType::Formatted(formatted) => (&formatted.type_name, formatted.format.clone()),
        };
        let data_type = parse_type(type_name)?;
        if let Some(format) = &format {
            if !matches!(data_type, DataType::Date32 | DataType::Timestamp(..)) {
                return Err(format!("a format is for a date or a timestamp, not for {type_name}"));
            }
            if format.is_empty() || StrftimeItems::new(format).any(|item| item == Item::Error) {
                return Err(format!("'{format}' is not a date format: write one like %d.%m.%Y or %Y-%m-%d %H:%M:%S"));
            }
        }
        Ok(Self { field: Arc::new(Field::new(name, data_type, true)), format })
    }

    /// The field as the decoder is to read it: text, if the column has a format.
    pub(super) fn decoded(&self) -> FieldRef {
        match self.format {
            Some(_) => Arc::new(Field::new(self.field.name(), DataType::Utf8, true)),
            None => Arc::clone(&self.field),
        }
    }

    /// Brings what the decoder read to the column's type. Text that does not have the column's format is null, and
    /// `failed` is told of it.
    pub(super) fn converted(&self, decoded: ArrayRef, mut failed: impl FnMut(&str)) -> ArrayRef {
        let Some(format) = &self.format else { return decoded };
        let texts = decoded.as_string::<i32>().iter();
        if self.field.data_type() == &DataType::Date32 {
            let dates = texts.map(|text| {
                let days = NaiveDate::parse_from_str(text?, format).ok().map(|date| date.to_epoch_days());
                days.or_else(|| {
                    failed(text?);
                    None
                })
            });
            return Arc::new(Date32Array::from_iter(dates));
        }
        let zoned = StrftimeItems::new(format).any(|item| is_zone(&item));
        let micros = texts.map(|text| {
            let micros = micros(text?, format, zoned);
            micros.or_else(|| {
                failed(text?);
                None
            })
        });
        let micros = PrimitiveArray::<TimestampMicrosecondType>::from_iter(micros);
        let zone = match self.field.data_type() {
            DataType::Timestamp(_, zone) => zone.clone(),
            _ => None,
        };
        let micros: ArrayRef = Arc::new(micros.with_timezone_opt(zone));
        let cast = cast(&micros, self.field.data_type());
        cast.unwrap_or_else(|_| arrow::array::new_null_array(self.field.data_type(), micros.len()))
    }

    /// What to say of `text`, which is not what the column wants.
    pub(super) fn complaint(&self, text: &str) -> String {
        let name = self.field.name();
        match &self.format {
            Some(format) => format!("column '{name}' wants a date like {format}, not '{}'", shortened(text)),
            None => format!("column '{name}' wants {}, not '{}'", self.field.data_type(), shortened(text)),
        }
    }
}

fn is_zone(item: &Item<'_>) -> bool {
    matches!(
        item,
        Item::Fixed(
            Fixed::TimezoneOffset
                | Fixed::TimezoneOffsetColon
                | Fixed::TimezoneOffsetColonZ
                | Fixed::TimezoneOffsetZ
                | Fixed::RFC2822
                | Fixed::RFC3339
        ) | Item::Numeric(chrono::format::Numeric::Timestamp, _)
    )
}

fn micros(text: &str, format: &str, zoned: bool) -> Option<i64> {
    if zoned {
        return DateTime::parse_from_str(text, format).ok().map(|time| time.timestamp_micros());
    }
    let time = NaiveDateTime::parse_from_str(text, format).ok();
    let time = time.or_else(|| NaiveDate::parse_from_str(text, format).ok()?.and_hms_opt(0, 0, 0));
    time.map(|time| time.and_utc().timestamp_micros())
}

/// The beginning of a text that a person is to recognise.
pub(super) fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::StringArray;
    use arrow::datatypes::Date32Type;

    use super::*;

    #[test]
    fn types_have_arrow_names_and_sql_aliases() {
        let utc = |unit| DataType::Timestamp(unit, Some("UTC".into()));
        let item = |data_type| Arc::new(Field::new("item", data_type, true));
        for (text, expected) in [
            ("int64", DataType::Int64),
            ("Int64", DataType::Int64),
            ("BIGINT", DataType::Int64),
            ("varchar(20)", DataType::Utf8),
            ("date", DataType::Date32),
            ("timestamp", utc(TimeUnit::Microsecond)),
            ("timestamp_ms", utc(TimeUnit::Millisecond)),
            ("timestamp_ntz", DataType::Timestamp(TimeUnit::Microsecond, None)),
            ("Timestamp(ns, \"UTC\")", utc(TimeUnit::Nanosecond)),
            ("decimal(10,2)", DataType::Decimal128(10, 2)),
            ("NUMERIC( 5 )", DataType::Decimal128(5, 0)),
            ("list<decimal(10, 2)>", DataType::List(item(DataType::Decimal128(10, 2)))),
            (
                "struct<Name: utf8, tags: list<int32>>",
                DataType::Struct(
                    vec![
                        Field::new("Name", DataType::Utf8, true),
                        Field::new("tags", DataType::List(item(DataType::Int32)), true),
                    ]
                    .into(),
                ),
            ),
        ] {
            assert_eq!(parse_type(text), Ok(expected), "{text}");
        }
        for name in NAMES.iter().filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_')) {
            assert!(parse_type(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_wrong_type_is_answered_with_the_nearest() {
        assert_eq!(parse_type("int46"), Err("'int46' is not a type; did you mean 'int64'?".to_owned()));
        let deep = "list<".repeat(100_000) + &">".repeat(100_000);
        for text in
            ["", "decimal(39,1)", "decimal(2,3)", "decimal(x)", "list<", "list<>", "struct<a>", "geometry", &deep]
        {
            assert!(parse_type(text).is_err(), "{}", shortened(text));
        }
    }

    fn column(type_name: &str, format: &str) -> Result<Column, String> {
        let format = Some(format.to_owned());
        Column::new("day", &ColumnType::Formatted(Formatted { type_name: type_name.to_owned(), format }))
    }

    #[test]
    fn dates_and_timestamps_in_a_format_of_their_own() {
        let read = |column: &Column, texts: Vec<Option<&str>>| {
            let mut failed = Vec::new();
            let read = column.converted(Arc::new(StringArray::from(texts)), |text| failed.push(text.to_owned()));
            assert_eq!(read.data_type(), column.field.data_type());
            (read, failed)
        };
        let date = column("date", "%d.%m.%Y").expect("a date");
        let (dates, failed) = read(&date, vec![Some("02.01.1970"), None, Some("1970-01-02"), Some("31.02.1970")]);
        assert_eq!(dates.as_primitive::<Date32Type>().iter().collect::<Vec<_>>(), [Some(1), None, None, None]);
        assert_eq!(failed, ["1970-01-02", "31.02.1970"]);

        for (format, text) in [
            ("%Y/%m/%d %H:%M:%S", "1970/01/01 00:00:01"),
            ("%Y/%m/%d %H:%M:%S %z", "1970/01/01 02:00:01 +0200"),
            ("%s", "1"),
        ] {
            let (times, failed) = read(&column("timestamp", format).expect(format), vec![Some(text)]);
            assert!(failed.is_empty(), "{format}: {failed:?}");
            assert_eq!(times.as_primitive::<TimestampMicrosecondType>().value(0), 1_000_000, "{format}");
        }
        let (days, failed) =
            read(&column("timestamp_ms", "%d.%m.%Y").expect("no time of day"), vec![Some("02.01.1970")]);
        assert!(failed.is_empty() && days.len() == 1);
    }

    #[test]
    fn a_format_needs_a_date_and_to_be_one() {
        assert!(column("int64", "%d").expect_err("an integer").contains("not for int64"));
        assert!(column("date", "%Q").expect_err("nonsense").contains("is not a date format"));
    }
}
