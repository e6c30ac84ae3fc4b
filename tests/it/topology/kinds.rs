//! Kinds that plan like real ones and run nothing: what a check needs of a registry.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema as Columns, SchemaRef};
use distributary::flow::registry::{
    ConfigError, Guarantee, Kind, Planned, Registry, SinkKind, SourceKind, TranslatorKind,
};
use distributary::flow::{
    Secret, SinkContext, SinkFactory, Source, SourceContext, SourceFactory, StageError, Translator, TranslatorFactory,
};
use distributary::units::Size;
use schemars::{JsonSchema, Schema, schema_for};
use serde::Deserialize;
use serde_json::Value;

/// A `queue`, a `text` and a `csv` translator, a `lake` that is exactly once and a `console` that is not.
pub fn registry() -> Registry {
    Registry::default().with_source(Queue).with_translator(Text).with_translator(Csv).with_sink(Lake).with_sink(Console)
}

/// The configuration, as a kind reads it; it has passed the schema.
fn config<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, Vec<ConfigError>> {
    serde_json::from_value(value.clone()).map_err(|error| vec![ConfigError::here(error.to_string())])
}

struct Plan(SchemaRef);

impl SourceFactory for Plan {
    fn columns(&self) -> SchemaRef {
        self.0.clone()
    }

    fn source(&self, _: SourceContext) -> Box<dyn Source> {
        unreachable!("a check builds nothing")
    }
}

impl TranslatorFactory for Plan {
    fn output(&self) -> SchemaRef {
        self.0.clone()
    }

    fn translator(&self) -> Box<dyn Translator> {
        unreachable!("a check builds nothing")
    }
}

/// A receiver.
struct Queue;

/// Where its messages are.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "of some fields only the schema matters")]
struct QueueConfig {
    /// The broker.
    url: Secret,
    /// The queue.
    queue: String,
    /// The kind of body.
    #[serde(default)]
    format: Format,
    /// Who asks.
    #[serde(default)]
    login: Option<Login>,
    /// How many bytes one message may have.
    #[serde(default)]
    max_message: Option<Size>,
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
enum Format {
    /// A string.
    #[default]
    Text,
    /// Bytes.
    Binary,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Login {
    /// The name.
    user: String,
    /// The password.
    password: Secret,
}

impl Kind for Queue {
    fn name(&self) -> &'static str {
        "queue"
    }

    fn about(&self) -> &'static str {
        "Messages of a queue."
    }

    fn example(&self) -> &'static str {
        "{ type: queue, url: embedded, queue: orders }"
    }

    fn schema(&self) -> Schema {
        schema_for!(QueueConfig)
    }
}

impl SourceKind for Queue {
    fn plan(&self, value: &Value) -> Planned<dyn SourceFactory> {
        let QueueConfig { url, queue, format, login, .. } = config(value)?;
        let mut errors = Vec::new();
        let url = url.reveal().map_err(|error| vec![ConfigError::at("url", error.to_string())])?;
        if !(url.starts_with("amqp:") || url == "embedded") {
            errors.push(ConfigError::at("url", format!("'{url}' does not begin with amqp:")));
        }
        if queue.contains(' ') {
            errors.push(ConfigError::at("queue", format!("the queue '{queue}' has a space in it")));
        }
        if let Some(Login { user, password }) = login {
            let length = password.reveal().map_or(0, |password| password.len());
            if user.is_empty() || length > 1000 {
                errors.push(ConfigError::below(&["login", "user"], "a login has a user"));
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let body = match format {
            Format::Text => DataType::Utf8,
            Format::Binary => DataType::Binary,
        };
        Ok(Arc::new(Plan(Arc::new(Columns::new(vec![
            Field::new("id", DataType::Utf8, true),
            Field::new("value", body, true),
        ])))))
    }
}

/// A translator that changes nothing.
struct Text;

impl Kind for Text {
    fn name(&self) -> &'static str {
        "text"
    }

    fn about(&self) -> &'static str {
        "The message as it is."
    }

    fn example(&self) -> &'static str {
        "{ from: orders, type: text }"
    }

    fn schema(&self) -> Schema {
        schemars::json_schema!({ "type": "object" })
    }
}

impl TranslatorKind for Text {
    fn plan(&self, _: &Value, input: &SchemaRef) -> Planned<dyn TranslatorFactory> {
        Ok(Arc::new(Plan(input.clone())))
    }
}

/// A translator that declares columns.
struct Csv;

/// The columns.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "of some fields only the schema matters")]
struct CsvConfig {
    /// Names and types.
    columns: BTreeMap<String, Type>,
    /// Message columns that stay.
    #[serde(default)]
    keep: Vec<String>,
    /// Between the fields.
    #[serde(default = "comma")]
    #[schemars(length(min = 1))]
    delimiter: String,
    /// Whether the first line is none.
    #[serde(default)]
    header: bool,
}

fn comma() -> String {
    ",".to_owned()
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Type {
    Int64,
    Utf8,
}

impl Kind for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn about(&self) -> &'static str {
        "One line of separated values."
    }

    fn example(&self) -> &'static str {
        "{ from: orders, type: csv, columns: { animal: utf8 } }"
    }

    fn schema(&self) -> Schema {
        schema_for!(CsvConfig)
    }
}

impl TranslatorKind for Csv {
    fn plan(&self, value: &Value, input: &SchemaRef) -> Planned<dyn TranslatorFactory> {
        let CsvConfig { columns, keep, .. } = config(value)?;
        let mut fields: Vec<Field> = Vec::new();
        let mut errors = Vec::new();
        for (index, name) in keep.iter().enumerate() {
            match input.field_with_name(name) {
                Ok(field) => fields.push(field.clone()),
                Err(_) => {
                    let message = format!("the message has no column '{name}'");
                    errors.push(ConfigError::below(&["keep", &index.to_string()], message));
                }
            }
        }
        fields.extend(columns.iter().map(|(name, of)| {
            let of = if matches!(of, Type::Int64) { DataType::Int64 } else { DataType::Utf8 };
            Field::new(name, of, true)
        }));
        if errors.is_empty() { Ok(Arc::new(Plan(Arc::new(Columns::new(fields))))) } else { Err(errors) }
    }
}

/// A sink that is exactly once.
struct Lake;

/// The table.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "of some fields only the schema matters")]
struct LakeConfig {
    /// Its folder.
    table: String,
    /// Columns that make its partitions.
    #[serde(default)]
    partition_by: Vec<String>,
    /// How rows are written.
    #[serde(default)]
    mode: Mode,
}

/// How rows are written.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// Behind those that are there.
    #[default]
    Append,
    /// Over those that are there.
    Merge,
}

impl Kind for Lake {
    fn name(&self) -> &'static str {
        "lake"
    }

    fn about(&self) -> &'static str {
        "A table."
    }

    fn example(&self) -> &'static str {
        "{ from: parsed, type: lake, table: ./data }"
    }

    fn schema(&self) -> Schema {
        schema_for!(LakeConfig)
    }
}

impl SinkKind for Lake {
    fn guarantee(&self) -> Guarantee {
        Guarantee::ExactlyOnce
    }

    fn place(&self, value: &Value) -> Option<PathBuf> {
        Some(config::<LakeConfig>(value).ok()?.table.into())
    }

    fn check(&self, value: &Value, input: &SchemaRef) -> Vec<ConfigError> {
        let LakeConfig { partition_by, .. } = match config(value) {
            Ok(config) => config,
            Err(errors) => return errors,
        };
        let unknown = partition_by.iter().enumerate().filter(|(_, name)| input.field_with_name(name).is_err());
        unknown
            .map(|(index, name)| {
                ConfigError::below(&["partition_by", &index.to_string()], format!("there is no column '{name}'"))
            })
            .collect()
    }

    fn build(&self, _: &Value, _: SinkContext) -> Result<Arc<dyn SinkFactory>, StageError> {
        unreachable!("a check builds nothing")
    }
}

/// A sink that is not.
struct Console;

impl Kind for Console {
    fn name(&self) -> &'static str {
        "console"
    }

    fn about(&self) -> &'static str {
        "Rows for a person to read."
    }

    fn example(&self) -> &'static str {
        "{ from: parsed, type: console, delivery: at_least_once }"
    }

    fn schema(&self) -> Schema {
        schemars::json_schema!({ "type": "object" })
    }
}

impl SinkKind for Console {
    fn guarantee(&self) -> Guarantee {
        Guarantee::AtLeastOnce
    }

    fn check(&self, _: &Value, _: &SchemaRef) -> Vec<ConfigError> {
        Vec::new()
    }

    fn build(&self, _: &Value, _: SinkContext) -> Result<Arc<dyn SinkFactory>, StageError> {
        unreachable!("a check builds nothing")
    }
}
