//! `receivers.amqp`: a queue over AMQP 1.0.
//!
//! Each partition is a consumer with a connection, a session and a link of its own. A task owns the link; the two halves
//! that the runtime holds are its channel ends. What the contract of [`crate::flow::Intake`] asks for is kept by
//! counting credit ourselves, what protocol R11 asks for by never taking the library's `Ok` for a receipt.
//!
//! What it deliberately does not do: reconnect by itself (the runtime does, with backoff), resume a link with its
//! unsettled map (brokers differ; redelivery is found by identity), or reject towards the broker (what is rejected is in
//! the dead letter, and the broker hears *accepted*).

mod config;
mod connect;
mod content;
mod credit;
mod frames;
mod link;
mod reaction;
mod rows;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use serde_json::Value;

pub use self::config::{Config, Format};

use self::config::Address;
use self::connect::Consumer;
use crate::flow::registry::{ConfigError, Kind, Planned, SourceKind};
use crate::flow::{Source, SourceContext, SourceFactory};

/// The kind `amqp`.
#[derive(Clone, Copy, Debug)]
pub struct Amqp;

impl Kind for Amqp {
    fn name(&self) -> &'static str {
        "amqp"
    }

    fn about(&self) -> &'static str {
        "a queue of an AMQP 1.0 broker"
    }

    fn example(&self) -> &'static str {
        r#"url: "${AMQP_URL:-amqp://127.0.0.1:5672}"
queue: orders
user: "${AMQP_USER:-guest}"
password: "${AMQP_PASSWORD:-guest}"
partitions: 2
"#
    }

    fn schema(&self) -> schemars::Schema {
        schemars::schema_for!(Config)
    }
}

impl SourceKind for Amqp {
    fn plan(&self, config: &Value) -> Planned<dyn SourceFactory> {
        let config: Config =
            serde_json::from_value(config.clone()).map_err(|e| vec![ConfigError::here(e.to_string())])?;
        let mut problems = checked(&config);
        match Address::of(&config) {
            Ok(address) if problems.is_empty() => Ok(Arc::new(Factory(Arc::new(Plan { config, address })))),
            Ok(_) => Err(problems),
            Err(more) => {
                problems.extend(more);
                Err(problems)
            }
        }
    }
}

/// What a receiver's partitions share.
struct Plan {
    config: Config,
    address: Address,
}

struct Factory(Arc<Plan>);

impl SourceFactory for Factory {
    fn columns(&self) -> SchemaRef {
        rows::columns(self.0.config.format)
    }

    fn source(&self, context: SourceContext) -> Box<dyn Source> {
        Box::new(Consumer::new(self.0.clone(), context))
    }

    fn idle_timeout(&self) -> Option<Duration> {
        Some(self.0.config.idle_timeout.0)
    }
}

/// What the schema cannot say.
fn checked(config: &Config) -> Vec<ConfigError> {
    /// Below this, a broker that is merely busy counts as gone.
    const IDLE_AT_LEAST: u128 = 1000;
    /// What AMQP 1.0 allows.
    const FRAME: std::ops::RangeInclusive<u64> = 512..=u32::MAX as u64;
    let mut problems = Vec::new();
    if config.queue.is_empty() {
        problems.push(ConfigError::at("queue", "the queue has no name"));
    }
    if config.idle_timeout.0.as_millis() < IDLE_AT_LEAST {
        problems.push(ConfigError::at("idle_timeout", "at least 1s, or a busy broker counts as gone"));
    }
    if config.connect_timeout.0.is_zero() {
        problems.push(ConfigError::at("connect_timeout", "more than nothing"));
    }
    if !FRAME.contains(&config.max_frame_size.0) {
        problems.push(ConfigError::at("max_frame_size", "between 512 and 4294967295 bytes"));
    }
    problems
}
