//! SQL expressions over record batches.
