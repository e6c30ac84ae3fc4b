//! What a checkpoint is, and the log it is recorded in.
