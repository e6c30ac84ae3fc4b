//! Takes the place of `crate::payload` until that is merged: the same interface, one kind of body.

use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

/// What generated messages hold.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// Lines of `generator_id,row_num,animal,color,count,datetime`.
    AnimalsCsv,
}

/// Makes the bodies of one run.
pub struct Generator {
    run: Uuid,
    now_ms: i64,
}

impl Generator {
    pub fn new(_: &Payload, run: Uuid, _seed: u64, now_ms: i64) -> Self {
        Self { run, now_ms }
    }

    pub fn body(&self, n: u64) -> String {
        format!("{},{n},cat,black,1,{}", self.run, self.now_ms)
    }
}
