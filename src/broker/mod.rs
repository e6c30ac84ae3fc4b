//! The embedded AMQP 1.0 broker for first runs, demos and tests: in memory, on loopback.
