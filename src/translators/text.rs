//! `text` and `binary`: the body as it is, beside all message columns.
//!
//! They differ only in the type of the column `value`. Bytes that are not UTF-8 have no text and are rejected; a text
//! always has bytes. A message without a body has a null there.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::{cast, is_not_null};
use arrow::datatypes::{DataType, Field, SchemaRef};
use schemars::{JsonSchema, Schema, schema_for};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::bodies::Bodies;
use super::shape::{Base, Read, Shape, Shaper, broken, stop};
use super::{OnError, configured};
use crate::flow::registry::{Kind, Planned, TranslatorKind};
use crate::flow::{Raw, Reason, Rejected, Result, Translated, Translator, TranslatorFactory};

/// The column `value` is the body. Expressions are SQL.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct PlainConfig {
    /// What becomes of a message that cannot be translated.
    #[serde(default)]
    pub on_error: OnError,
    /// What comes out. All message columns are kept anyway.
    #[serde(flatten)]
    pub shape: Shape,
}

/// The kind `text`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Text;

/// The kind `binary`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Binary;

impl Kind for Text {
    fn name(&self) -> &'static str {
        "text"
    }

    fn about(&self) -> &'static str {
        "the body as text, with all message columns"
    }

    fn example(&self) -> &'static str {
        "derive: { sent_dt: to_date(sent) }\n"
    }

    fn schema(&self) -> Schema {
        schema_for!(PlainConfig)
    }
}

impl Kind for Binary {
    fn name(&self) -> &'static str {
        "binary"
    }

    fn about(&self) -> &'static str {
        "the body as bytes, with all message columns"
    }

    fn example(&self) -> &'static str {
        "select: [id, sent, \"encode(value, 'hex') AS hex\"]\n"
    }

    fn schema(&self) -> Schema {
        schema_for!(PlainConfig)
    }
}

impl TranslatorKind for Text {
    fn plan(&self, config: &Value, input: &SchemaRef) -> Planned<dyn TranslatorFactory> {
        plan(config, input, DataType::Utf8)
    }
}

impl TranslatorKind for Binary {
    fn plan(&self, config: &Value, input: &SchemaRef) -> Planned<dyn TranslatorFactory> {
        plan(config, input, DataType::Binary)
    }
}

fn plan(config: &Value, input: &SchemaRef, data_type: DataType) -> Planned<dyn TranslatorFactory> {
    let config: PlainConfig = configured(config)?;
    let value = Bodies::column(input)?;
    let declared = [Arc::new(Field::new("value", data_type.clone(), true))];
    let shaper = config.shape.plan(input, &declared, Base::Message, config.on_error)?;
    Ok(Arc::new(Plain { value, data_type, on_error: config.on_error, shaper }))
}

#[derive(Clone)]
struct Plain {
    value: usize,
    data_type: DataType,
    on_error: OnError,
    shaper: Shaper,
}

impl TranslatorFactory for Plain {
    fn output(&self) -> SchemaRef {
        Arc::clone(self.shaper.output())
    }

    fn translator(&self) -> Box<dyn Translator> {
        Box::new(self.clone())
    }
}

impl Translator for Plain {
    fn translate(&mut self, raw: &Raw) -> Result<Translated> {
        let bodies = raw.columns.column(self.value);
        // Bytes that are no text become null.
        let values = cast(bodies, &self.data_type).map_err(broken)?;
        if values.null_count() == bodies.null_count() {
            let read = Read { columns: vec![values], from: None, rejects: Vec::new(), nulled: Vec::new() };
            return self.shaper.shape(raw, read);
        }
        self.with_broken(raw, bodies, values)
    }
}

impl Plain {
    /// Some bodies are no text: they are null, or rejected, or the end, as `on_error` says.
    fn with_broken(&self, raw: &Raw, bodies: &ArrayRef, values: ArrayRef) -> Result<Translated> {
        let detail = || "the body is not UTF-8".to_owned();
        let (mut from, mut rejects, mut nulled) = (Vec::new(), Vec::new(), Vec::new());
        let (had, has) = (is_not_null(bodies).map_err(broken)?, is_not_null(&values).map_err(broken)?);
        for (row, (had, has)) in (0_u32..).zip(had.values().iter().zip(has.values())) {
            match had && !has {
                false => from.push(row),
                true if self.on_error == OnError::Fail => return Err(stop(row, &detail())),
                true if self.on_error == OnError::Null => nulled.push(row),
                true => rejects.push(Rejected { row, reason: Reason::Decode, detail: detail() }),
            }
        }
        if self.on_error == OnError::Null {
            return self.shaper.shape(raw, Read { columns: vec![values], from: None, rejects, nulled });
        }
        let rows = arrow::array::UInt32Array::from(from.clone());
        let values = arrow::compute::take(&values, &rows, None).map_err(broken)?;
        self.shaper.shape(raw, Read { columns: vec![values], from: Some(from), rejects, nulled })
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, BinaryArray, StringArray};
    use serde_json::json;

    use super::super::testing::{messages, names, translated};
    use super::*;

    #[test]
    fn text_passes_all_message_columns() {
        let raw = messages(Arc::new(StringArray::from(vec![Some("a"), None, Some("")])));
        let out = translated(&Text, json!({}), &raw);
        assert_eq!(out.rows.columns, raw.columns);
        assert_eq!(out.rows.origin, raw.origin);
    }

    #[test]
    fn bytes_that_are_no_text_are_rejected() {
        let bodies: ArrayRef =
            Arc::new(BinaryArray::from(vec![Some(b"a".as_slice()), Some(b"\xff"), None, Some(b"\xc3\xa9")]));
        let raw = messages(bodies);
        let out = translated(&Text, json!({}), &raw);
        assert_eq!(
            out.rows.columns["value"].as_string::<i32>().iter().collect::<Vec<_>>(),
            [Some("a"), None, Some("é")]
        );
        assert_eq!(out.rows.origin, [100, 102, 103]);
        assert_eq!(out.rejects.iter().map(|r| (r.row, r.reason)).collect::<Vec<_>>(), [(1, Reason::Decode)]);

        let out = translated(&Text, json!({ "on_error": "null" }), &raw);
        assert_eq!((out.rows.len(), out.rejects.len(), out.nulled), (4, 0, 1));

        let out = translated(&Binary, json!({}), &raw);
        assert_eq!(out.rows.columns, raw.columns);
    }

    #[test]
    fn text_as_bytes_and_a_shape_around_it() {
        let raw = messages(Arc::new(StringArray::from(vec!["a", "bc"])));
        let config = json!({ "where": "encode(value, 'hex') <> '61'", "select": ["id", "value"] });
        let out = translated(&Binary, config, &raw);
        assert_eq!(names(&out), ["id", "value"]);
        assert_eq!(out.rows.columns["value"].as_binary::<i32>().value(0), b"bc");
        assert_eq!(out.rows.origin, [101]);
    }
}
