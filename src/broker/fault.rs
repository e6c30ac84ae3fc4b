//! What goes wrong between two peers, by how much of the connection it takes down.

use fe2o3_amqp_types::definitions::{AmqpError, ConnectionError, Error, ErrorCondition};

use super::wire::Malformed;

/// An error to tell the peer, and what ends with it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fault {
    Connection(Error),
    Session(Error),
    Link(u32, Error),
}

impl From<Malformed> for Fault {
    fn from(Malformed(what): Malformed) -> Self {
        Self::Connection(error(AmqpError::DecodeError, what))
    }
}

/// An error with a sentence.
pub(super) fn error(condition: impl Into<ErrorCondition>, description: impl Into<String>) -> Error {
    Error::new(condition, description.into(), None)
}

/// The frames themselves are broken, or come in an order that they must not.
pub(super) fn framing(description: impl Into<String>) -> Fault {
    Fault::Connection(error(ConnectionError::FramingError, description))
}
