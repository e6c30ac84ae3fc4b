//! `runtime schema`: the JSON Schema of a topology file, for editors.

use super::{Exit, fail, print};
use crate::flow::registry::Registry;
use crate::topology::json_schema;

pub(super) const EXAMPLE: &str = "Example:
  runtime schema > topology.schema.json

An editor with the YAML language server then completes and checks a topology whose first line is
  # yaml-language-server: $schema=topology.schema.json";

pub(super) fn run(registry: &Registry) -> Exit {
    match serde_json::to_string_pretty(&json_schema(registry)) {
        Ok(text) => print(&format!("{text}\n")),
        Err(error) => fail(Exit::Failed, error),
    }
}
