//! Distributary carries messages from queues into lakehouse tables, exactly once, in one process.

pub mod backoff;
pub mod broker;
pub mod checkpoint;
pub mod cli;
pub mod clock;
pub mod connectors;
pub mod expr;
pub mod flow;
pub mod objects;
pub mod payload;
pub mod runtime;
pub mod telemetry;
pub mod topology;
pub mod translators;
pub mod units;
