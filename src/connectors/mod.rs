//! The connectors: one file or one folder per system.

pub mod amqp;
pub mod console;
pub mod delta;
pub mod generator;
pub mod memory;
pub mod parquet;
