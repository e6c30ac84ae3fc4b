//! Delays between attempts.
