//! The integration tests: one binary, because each more would link the whole program again.

mod brokers;
mod draining;
mod embedding;
mod layout;
mod process;
mod readme;
mod topology;
