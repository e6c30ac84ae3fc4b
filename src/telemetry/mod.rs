//! What an operator sees: metrics, HTTP endpoints and logs.
