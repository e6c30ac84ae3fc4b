//! The integration tests: one binary, because each would link everything again.

mod topology;
