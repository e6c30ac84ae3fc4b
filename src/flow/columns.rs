//! The message columns that receivers of messages have in common, whatever their system.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

/// `id`, `sent`, `received`, `value`, `properties`, `redelivered` and `delivery_count`; `value` is the type of the body.
/// The map's fields have the names that Arrow's map builder gives them.
pub fn message_columns(value: DataType) -> SchemaRef {
    let time = || DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    let (key, text) = (Field::new("keys", DataType::Utf8, false), Field::new("values", DataType::Utf8, true));
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Utf8, true),
        Field::new("sent", time(), true),
        Field::new("received", time(), false),
        Field::new("value", value, true),
        Field::new_map("properties", "entries", key, text, false, true),
        Field::new("redelivered", DataType::Boolean, false),
        Field::new("delivery_count", DataType::Int32, true),
    ]))
}
