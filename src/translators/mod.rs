//! The translators: message columns in, declared columns out.
//!
//! One body is one record, and every row carries the id of its own message; a body that cannot be read is rejected by
//! itself, and the rest of its batch goes on. `text` and `binary` give all message columns. `csv` and `json` give `id`,
//! `sent` and `received` (those that the receiver has), then the declared columns, then what `keep` names, then what is
//! derived; `select` replaces that list. The output is known when the topology is planned.
//!
//! A translator of your own is a [`MessageMapper`], or a [`TranslatorKind`] in full, in a [`Registry`]; [`Shape`] gives it
//! `keep`, `where`, `derive` and `select`.
//!
//! What is deliberately not here: reading a schema out of the data, header lines, and state between batches.
//!
//! [`TranslatorKind`]: crate::flow::registry::TranslatorKind

mod bodies;
mod columns;
mod csv;
mod json;
mod json_check;
mod mapped;
mod ordered;
mod shape;
mod text;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::flow::registry::{ConfigError, Registry};

pub use bodies::Records;
pub use columns::{ColumnType, Formatted};
pub use csv::{Csv, CsvConfig};
pub use json::{Json, JsonConfig};
pub use mapped::{Message, MessageMapper, TranslatorOf};
pub use ordered::Ordered;
pub use shape::{Base, IDENTITY, Read, Shape, Shaper};
pub use text::{Binary, PlainConfig, Text};

/// The translators that a topology may name.
#[must_use]
pub fn register(registry: Registry) -> Registry {
    registry.with_translator(Text).with_translator(Binary).with_translator(Csv).with_translator(Json)
}

/// What becomes of a message that cannot be translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// It goes to the dead letter, with the reason; the others go on.
    #[default]
    DeadLetter,
    /// What cannot be read is null: a field, or every column if the body has no fields to speak of.
    Null,
    /// The partition parks: nothing goes on before a person has looked.
    Fail,
}

/// A translator's own configuration.
fn configured<T: DeserializeOwned>(config: &Value) -> Result<T, Vec<ConfigError>> {
    serde_json::from_value(config.clone()).map_err(|error| vec![ConfigError::here(error.to_string())])
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
