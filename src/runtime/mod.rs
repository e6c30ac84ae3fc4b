//! The actors, and how a partition's tree of them is built, supervised and drained.
