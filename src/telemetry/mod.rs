//! What an operator sees: metrics, HTTP endpoints and logs.
//!
//! The stages count into handles of [`metrics`]; [`http`] shows what they counted, and whether the program is well;
//! [`log`] sets up what it says. Nothing here is global except the log, so that several runs fit into one process.

pub mod http;
mod instrument;
pub mod log;
pub mod metrics;

pub use instrument::{Age, Counter, Gauge, Histogram, Rejections};
pub use metrics::{PartitionMetrics, ReceiverMetrics, Tally, Telemetry};
