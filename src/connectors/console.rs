//! The connector.
