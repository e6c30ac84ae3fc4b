//! Our columns as columns of a Delta table, and whether a table that is there takes them.
//!
//! Delta knows signed numbers, microseconds and plain values: unsigned numbers become the next larger signed type (64 bits:
//! a decimal), finer and coarser times microseconds, dictionaries what they stand for. An instant is a `timestamp`, a
//! wall-clock time a `timestamp_ntz`; which of them a column is is fixed when the table is made and never guessed again.
//! Tables we make have only columns that may be null.

use std::sync::Arc;

use arrow::datatypes::{DataType as ArrowType, Field, Schema, SchemaRef, TimeUnit};
use deltalake::kernel::engine::arrow_conversion::{TryIntoArrow as _, TryIntoKernel as _};
use deltalake::kernel::{DataType, PrimitiveType, StructType};

use super::super::parquet::columns::{Mapped, map_nested};
use super::super::parquet::mapped;
use super::log::Metadata;
use crate::flow::registry::ConfigError;

/// What a column becomes in a Delta table.
pub fn in_delta(of: &ArrowType) -> Mapped {
    if let Some(mapped) = map_nested(of, &in_delta) {
        return mapped;
    }
    let kind = match of {
        ArrowType::UInt8 => ArrowType::Int16,
        ArrowType::UInt16 => ArrowType::Int32,
        ArrowType::UInt32 => ArrowType::Int64,
        ArrowType::UInt64 => ArrowType::Decimal128(20, 0),
        ArrowType::Float16 => ArrowType::Float32,
        ArrowType::Decimal32(precision, scale)
        | ArrowType::Decimal64(precision, scale)
        | ArrowType::Decimal128(precision, scale)
        | ArrowType::Decimal256(precision, scale) => {
            if *precision > 38 || *scale < 0 {
                return Err(format!("{of} is not a decimal of a delta table (at most 38 digits, no negative scale)"));
            }
            ArrowType::Decimal128(*precision, *scale)
        }
        ArrowType::Timestamp(_, zone) => {
            ArrowType::Timestamp(TimeUnit::Microsecond, zone.as_ref().map(|_| "UTC".into()))
        }
        ArrowType::Date64 => ArrowType::Date32,
        ArrowType::LargeUtf8 | ArrowType::Utf8View => ArrowType::Utf8,
        ArrowType::LargeBinary | ArrowType::BinaryView | ArrowType::FixedSizeBinary(_) => ArrowType::Binary,
        ArrowType::Null => return Err("it holds only nulls and has no type: cast it to one".into()),
        ArrowType::Int8
        | ArrowType::Int16
        | ArrowType::Int32
        | ArrowType::Int64
        | ArrowType::Float32
        | ArrowType::Float64
        | ArrowType::Boolean
        | ArrowType::Date32
        | ArrowType::Utf8
        | ArrowType::Binary => of.clone(),
        other => return Err(format!("{other} has no counterpart in a delta table: cast it to a number or a text")),
    };
    Ok(kind)
}

/// Rows with the columns of `input`, as columns of a Delta table.
pub fn columns(input: &Schema) -> Result<StructType, Vec<ConfigError>> {
    let mapped = mapped(input, in_delta)?;
    let mut problems = Vec::new();
    for (at, field) in mapped.fields().iter().enumerate() {
        let name = field.name();
        if let Some(other) = mapped.fields()[..at].iter().find(|other| other.name().eq_ignore_ascii_case(name)) {
            let message =
                format!("columns '{}' and '{name}' differ only in case, which delta tables ignore", other.name());
            problems.push(ConfigError::here(message));
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    mapped.as_ref().try_into_kernel().map_err(|e| vec![ConfigError::here(e.to_string())])
}

/// Whether a wall-clock time is in it anywhere.
pub fn has_wall_clock(schema: &StructType) -> bool {
    fn within(kind: &DataType) -> bool {
        match kind {
            DataType::Primitive(primitive) => *primitive == PrimitiveType::TimestampNtz,
            DataType::Array(array) => within(array.element_type()),
            DataType::Map(map) => within(map.key_type()) || within(map.value_type()),
            DataType::Struct(fields) => has_wall_clock(fields),
            DataType::Variant(_) => false,
        }
    }
    schema.fields().any(|field| within(field.data_type()))
}

/// How our rows fit into a table that is there.
#[derive(Clone, Debug)]
pub struct Fit {
    /// Its columns, as Arrow has them.
    pub columns: SchemaRef,
    /// Its partition columns.
    pub partition_by: Vec<String>,
    /// For how many columns it wants statistics; `None`: all.
    pub indexed: Option<usize>,
}

/// Fits our columns into the table that `metadata` describes, or says why they do not fit. `partition_by` is what the
/// topology asks for; empty takes what the table has.
pub fn fit(ours: &StructType, partition_by: &[String], metadata: &Metadata) -> Result<Fit, String> {
    let table = metadata.schema()?;
    for field in ours.fields() {
        let name = field.name();
        let Some(there) = table.field(name) else {
            let alike = table.fields().find(|there| there.name().eq_ignore_ascii_case(name));
            return Err(match alike {
                Some(there) => format!("column '{name}' is called '{}' in the table: give it that name", there.name()),
                None => format!("the table has no column '{name}': add it to the table, or leave it out with 'select'"),
            });
        };
        if !same_type(field.data_type(), there.data_type()) {
            let (here, there) = (field.data_type(), there.data_type());
            return Err(format!(
                "column '{name}' is {there} in the table and {here} in the topology: cast it with 'select'"
            ));
        }
    }
    for there in table.fields() {
        if !there.is_nullable() && ours.field(there.name()).is_none() {
            return Err(format!("column '{}' must not be null in the table, and the topology has none", there.name()));
        }
    }
    if !partition_by.is_empty() && partition_by != metadata.partition_columns {
        let (here, there) = (partition_by.join(", "), metadata.partition_columns.join(", "));
        return Err(format!("the table is partitioned by [{there}], and 'partition_by' says [{here}]"));
    }
    let columns: Schema = (&table).try_into_arrow().map_err(|e| format!("its schema has no counterpart here: {e}"))?;
    let plain = |field: &Arc<Field>| field.as_ref().clone().with_metadata(Default::default());
    Ok(Fit {
        columns: Arc::new(Schema::new(columns.fields().iter().map(plain).collect::<Vec<_>>())),
        partition_by: metadata.partition_columns.clone(),
        indexed: match metadata.property("delta.dataSkippingNumIndexedCols").map(str::parse::<i64>) {
            Some(Ok(-1)) => None,
            Some(Ok(n)) => usize::try_from(n).ok().or(Some(32)),
            _ => Some(32),
        },
    })
}

/// Equal, where nothing nested may be forbidden to be null.
fn same_type(ours: &DataType, theirs: &DataType) -> bool {
    match (ours, theirs) {
        (DataType::Array(ours), DataType::Array(theirs)) => {
            theirs.contains_null() && same_type(ours.element_type(), theirs.element_type())
        }
        (DataType::Map(ours), DataType::Map(theirs)) => {
            theirs.value_contains_null()
                && same_type(ours.key_type(), theirs.key_type())
                && same_type(ours.value_type(), theirs.value_type())
        }
        (DataType::Struct(ours), DataType::Struct(theirs)) => {
            ours.fields().len() == theirs.fields().len()
                && ours.fields().zip(theirs.fields()).all(|(ours, theirs)| {
                    theirs.is_nullable()
                        && ours.name() == theirs.name()
                        && same_type(ours.data_type(), theirs.data_type())
                })
        }
        (ours, theirs) => ours == theirs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_become_what_delta_knows() {
        let utc = |unit| ArrowType::Timestamp(unit, Some("UTC".into()));
        let dictionary = ArrowType::Dictionary(Box::new(ArrowType::Int32), Box::new(ArrowType::Utf8));
        for (here, there) in [
            (ArrowType::UInt8, ArrowType::Int16),
            (ArrowType::UInt64, ArrowType::Decimal128(20, 0)),
            (utc(TimeUnit::Nanosecond), utc(TimeUnit::Microsecond)),
            (utc(TimeUnit::Second), utc(TimeUnit::Microsecond)),
            (ArrowType::Timestamp(TimeUnit::Millisecond, Some("Europe/Berlin".into())), utc(TimeUnit::Microsecond)),
            (ArrowType::Timestamp(TimeUnit::Nanosecond, None), ArrowType::Timestamp(TimeUnit::Microsecond, None)),
            (dictionary.clone(), ArrowType::Utf8),
            (ArrowType::new_list(dictionary, false), ArrowType::new_list(ArrowType::Utf8, true)),
        ] {
            assert_eq!(in_delta(&here), Ok(there));
        }
        for none in [ArrowType::Null, ArrowType::Time32(TimeUnit::Second), ArrowType::Decimal256(76, 2)] {
            assert!(in_delta(&none).is_err(), "{none}");
        }
    }

    #[test]
    fn names_that_differ_only_in_case_are_one_name() {
        let two = Schema::new(vec![Field::new("Id", ArrowType::Utf8, true), Field::new("id", ArrowType::Utf8, true)]);
        let problems = columns(&two).expect_err("a problem");
        assert!(problems[0].message.contains("'Id' and 'id'"), "{problems:?}");
    }
}
