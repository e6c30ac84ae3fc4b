//! The integration tests: one binary, because each more would link the whole program again.

mod brokers;
mod layout;
mod process;
mod topology;
