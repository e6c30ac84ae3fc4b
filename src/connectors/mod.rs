//! The connectors: one file or one folder per system. A connector knows the vocabulary and its own system, and nothing of
//! the engine or of another connector.

pub mod amqp;
pub mod console;
pub mod delta;
pub mod generator;
pub mod memory;
pub mod parquet;

use crate::flow::registry::Registry;

/// The receivers and sinks that a topology may name.
#[must_use]
pub fn register(registry: Registry) -> Registry {
    registry
        .with_source(amqp::Amqp)
        .with_source(generator::GeneratorReceiver)
        .with_source(memory::MemoryReceiver::default())
        .with_sink(console::ConsoleSink::default())
        .with_sink(delta::Delta)
        .with_sink(memory::MemorySink::default())
        .with_sink(parquet::Parquet)
}
