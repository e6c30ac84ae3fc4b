//! What a failure of the broker's means, and the sentence a person reads about it.
//!
//! [`explain`] is the one place that knows the errors of fe2o3-amqp. What a person must put right (credentials, a queue
//! that is not there) parks; what heals by itself (a broker that restarts, a cut cable) is merely away.

use std::io;
use std::time::Duration;

use fe2o3_amqp::connection::{self, ConnectionStopReason, OpenError};
use fe2o3_amqp::link::{LinkStateError, ReceiverAttachError, RecvError, SessionStopReason};
use fe2o3_amqp::session::BeginError;
use fe2o3_amqp::transport;
use fe2o3_amqp_types::definitions::{AmqpError, Error as PeerError, ErrorCondition};
use fe2o3_amqp_types::sasl::SaslCode;
use serde_amqp::primitives::Symbol;

use super::config::Place;
use crate::flow::{Reaction, StageError};

/// Where on the way it failed.
pub(super) enum Failure {
    /// No socket.
    Dial(io::Error),
    /// No answer in time.
    Silence(&'static str, Duration),
    /// The connection was refused; with the SASL mechanisms the broker offered.
    Open(OpenError, Vec<String>),
    /// The session was refused.
    Begin(BeginError),
    /// The link was refused.
    Attach(ReceiverAttachError),
    /// The link ended; with what the connection says of its end, if it ended.
    Receive(RecvError, Option<connection::Error>),
}

/// The way out where nobody answers.
const LOOK: &str = "see that it is up, and that the address is right";

/// What is to be done about it, and what to tell: address, queue, user, the peer's own words, the way out.
pub(super) fn explain(failure: Failure, place: &Place) -> StageError {
    match failure {
        Failure::Dial(error) => StageError::away(format!("cannot reach {place}: {error}; {LOOK}")),
        Failure::Silence(what, limit) => {
            StageError::away(format!("no answer from {place} within {limit:?} while {what}; {LOOK}"))
        }
        Failure::Open(error, offered) => open(error, &offered, place),
        Failure::Begin(error) => match error {
            BeginError::RemoteEndedWithError(error) => refused(&error, "a session", place),
            BeginError::ConnectionStopped(reason) => stopped(&reason, place),
            error => StageError::away(format!("{place} did not begin a session")).because(error),
        },
        Failure::Attach(error) => attach(error, place),
        Failure::Receive(error, connection) => receive(error, connection, place),
    }
}

fn open(error: OpenError, offered: &[String], place: &Place) -> StageError {
    let chosen = if place.user.is_some() { "PLAIN" } else { "ANONYMOUS" };
    match error {
        OpenError::SaslError { code: SaslCode::Auth, .. } => StageError::park(match &place.user {
            Some(user) => {
                format!("wrong user or password for {place} as '{user}'; correct 'user' and 'password' of the receiver")
            }
            None => format!("{place} does not let anyone in without a user; give the receiver 'user' and 'password'"),
        }),
        OpenError::SaslError { code, .. } => {
            StageError::away(format!("{place} could not check the login {} (SASL {code:?})", place.whom()))
        }
        OpenError::NotImplemented(_) if !offered.is_empty() => StageError::park(format!(
            "{place} does not offer the login mechanism {chosen}, only {}; {}",
            offered.join(", "),
            if place.user.is_some() {
                "use a user it knows by another listener, or none"
            } else {
                "give the receiver 'user' and 'password'"
            }
        )),
        OpenError::ProtocolHeaderMismatch(header) => StageError::park(format!(
            "{place} does not speak AMQP 1.0 (it answered {:?}); check the port, and for RabbitMQ before 4.0 enable the plugin rabbitmq_amqp1_0",
            String::from_utf8_lossy(&header)
        )),
        OpenError::RemoteClosedWithError(error) => refused(&error, "the connection", place),
        OpenError::Io(error) => {
            StageError::away(format!("{place} hung up while the connection was opened")).because(error)
        }
        error => StageError::away(format!("{place} did not open the connection")).because(error),
    }
}

fn attach(error: ReceiverAttachError, place: &Place) -> StageError {
    let queue = &place.queue;
    match error {
        ReceiverAttachError::RemoteClosedWithError(error) => {
            refused(&error, &format!("a receiver on queue '{queue}'"), place)
        }
        ReceiverAttachError::IncomingSourceIsNone => {
            StageError::park(format!("{place} has no queue '{queue}'; create it, or correct 'queue' of the receiver"))
        }
        ReceiverAttachError::DesiredFilterNotSupported(_) => StageError::park(format!(
            "{place} does not filter messages of queue '{queue}' by a selector; take 'selector' away and use 'where' on the translator"
        )),
        ReceiverAttachError::SessionStopped(reason) => session_stopped(&reason, place),
        error => StageError::away(format!("{place} did not attach a receiver to queue '{queue}'")).because(error),
    }
}

fn receive(error: RecvError, connection: Option<connection::Error>, place: &Place) -> StageError {
    let queue = &place.queue;
    let link = format!("the link to queue '{queue}'");
    match (error, connection) {
        (RecvError::LinkStateError(LinkStateError::SessionStopped(_)), Some(error)) => lost(error, place),
        (RecvError::LinkStateError(error), _) => match error {
            LinkStateError::SessionStopped(reason) => session_stopped(&reason, place),
            LinkStateError::RemoteDetachedWithError(error) | LinkStateError::RemoteClosedWithError(error) => {
                ended(&error, &link, place)
            }
            LinkStateError::RemoteDetached | LinkStateError::RemoteClosed => {
                StageError::away(format!("{place} ended {link} without a reason"))
            }
            error => StageError::away(format!("{link} at {place} broke")).because(error),
        },
        // Everything else is a peer that breaks the rules; a new link may do better, but not for ever.
        (error, _) => StageError::retry(format!("{place} broke the protocol on {link}")).because(error),
    }
}

/// The connection is gone: this is where its reason is found.
fn lost(error: connection::Error, place: &Place) -> StageError {
    match error {
        connection::Error::RemoteClosedWithError(error) => ended(&error, "the connection", place),
        connection::Error::RemoteClosed => StageError::away(format!("{place} closed the connection without a reason")),
        connection::Error::TransportError(transport::Error::IdleTimeoutElapsed) => StageError::away(format!(
            "{place} has sent nothing for longer than 'idle_timeout'; the connection counts as lost"
        )),
        connection::Error::TransportError(error) => {
            StageError::away(format!("the connection to {place} was cut")).because(error)
        }
        // A socket that the peer closes without a word is an illegal state to fe2o3-amqp.
        connection::Error::IllegalState => {
            StageError::away(format!("the connection to {place} was cut: the peer closed the socket without a word"))
        }
        error => StageError::away(format!("the connection to {place} was lost")).because(error),
    }
}

fn session_stopped(reason: &SessionStopReason, place: &Place) -> StageError {
    match reason {
        SessionStopReason::RemoteEndedWithError(error) | SessionStopReason::EndedWithError(error) => {
            ended(error, "the session", place)
        }
        SessionStopReason::ConnectionStopped(reason) => stopped(reason, place),
        SessionStopReason::RemoteEnded | SessionStopReason::Ended => {
            StageError::away(format!("{place} ended the session without a reason"))
        }
    }
}

fn stopped(reason: &ConnectionStopReason, place: &Place) -> StageError {
    match reason {
        ConnectionStopReason::RemoteClosedWithError(error) | ConnectionStopReason::ClosedWithError(error) => {
            ended(error, "the connection", place)
        }
        ConnectionStopReason::RemoteClosed => {
            StageError::away(format!("{place} closed the connection without a reason"))
        }
        ConnectionStopReason::Closed => StageError::away(format!("the connection to {place} was lost")),
    }
}

/// The peer says no at the start: some of it only a person can mend.
fn refused(error: &PeerError, what: &str, place: &Place) -> StageError {
    let said = said(error);
    let queue = &place.queue;
    match reaction(error) {
        Reaction::Park => StageError::park(match &error.condition {
            ErrorCondition::AmqpError(AmqpError::NotFound) => {
                format!("{place} has no queue '{queue}' ({said}); create it, or correct 'queue' of the receiver")
            }
            ErrorCondition::AmqpError(AmqpError::UnauthorizedAccess) => format!(
                "{place} refuses {what} {} ({said}); give the receiver a 'user' that may read queue '{queue}'",
                place.whom()
            ),
            // RabbitMQ's other forms of an address declare the queue, as one that does not last.
            ErrorCondition::AmqpError(AmqpError::PreconditionFailed) if said.contains("inequivalent arg") => {
                let name = queue.strip_prefix("/queue/").unwrap_or(queue);
                format!(
                    "{place} has queue '{queue}' with other properties than this form of its address declares ({said}); write 'queue: /amq/queue/{name}', which takes it as it is"
                )
            }
            _ => format!(
                "{place} refuses {what} ({said}); the receiver of queue '{queue}' and the broker must agree first"
            ),
        }),
        reaction => StageError {
            reaction,
            context: format!("{place} refuses {what} of queue '{queue}' for now ({said})"),
            source: None,
        },
    }
}

/// The peer ends what was up.
fn ended(error: &PeerError, what: &str, place: &Place) -> StageError {
    let said = said(error);
    match reaction(error) {
        Reaction::Park => refused(error, what, place),
        _ => StageError::away(format!("{place} ended {what} ({said})")),
    }
}

/// What a condition means, wherever it comes.
fn reaction(error: &PeerError) -> Reaction {
    use AmqpError as E;
    match &error.condition {
        ErrorCondition::AmqpError(
            E::NotFound
            | E::UnauthorizedAccess
            | E::NotAllowed
            | E::NotImplemented
            | E::InvalidField
            | E::PreconditionFailed
            | E::FrameSizeTooSmall,
        ) => Reaction::Park,
        _ => Reaction::Away,
    }
}

/// The condition as the specification writes it, and the peer's text.
pub(super) fn said(error: &PeerError) -> String {
    let condition = match &error.condition {
        ErrorCondition::AmqpError(e) => Symbol::from(e),
        ErrorCondition::ConnectionError(e) => Symbol::from(e),
        ErrorCondition::SessionError(e) => Symbol::from(e),
        ErrorCondition::LinkError(e) => Symbol::from(e),
        ErrorCondition::Custom(symbol) => symbol.clone(),
        #[allow(unreachable_patterns, reason = "a variant that exists with fe2o3-amqp's transactions only")]
        _ => Symbol::from("amqp:transaction"),
    };
    match error.description.as_deref() {
        Some(text) if !text.is_empty() => format!("{}: {text}", condition.as_str()),
        _ => condition.as_str().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use fe2o3_amqp_types::definitions::ConnectionError;

    use super::*;

    fn place(user: Option<&str>) -> Place {
        Place { host: ("host".into(), 5672), queue: "orders".into(), user: user.map(Into::into) }
    }

    fn peer(condition: impl Into<ErrorCondition>, text: &str) -> PeerError {
        PeerError::new(condition, text.to_owned(), None)
    }

    #[test]
    fn every_refusal_has_a_reaction_and_a_way_out() {
        let denied = |code| OpenError::SaslError { code, additional_data: None };
        let gone = || LinkStateError::RemoteClosedWithError(peer(AmqpError::ResourceDeleted, "queue deleted"));
        for (failure, reaction, words) in [
            (
                Failure::Open(denied(SaslCode::Auth), vec![]),
                Reaction::Park,
                "wrong user or password for amqp://host:5672 as 'me'",
            ),
            (
                Failure::Open(denied(SaslCode::SysTemp), vec![]),
                Reaction::Away,
                "could not check the login as user 'me'",
            ),
            (
                Failure::Open(OpenError::NotImplemented(None), vec!["EXTERNAL".into()]),
                Reaction::Park,
                "PLAIN, only EXTERNAL",
            ),
            (
                Failure::Attach(ReceiverAttachError::RemoteClosedWithError(peer(AmqpError::NotFound, "AMQ119010"))),
                Reaction::Park,
                "no queue 'orders' (amqp:not-found: AMQ119010); create it",
            ),
            (
                Failure::Begin(BeginError::RemoteEndedWithError(peer(AmqpError::UnauthorizedAccess, "AMQ229031"))),
                Reaction::Park,
                "a 'user' that may read",
            ),
            (
                Failure::Attach(ReceiverAttachError::RemoteClosedWithError(peer(
                    AmqpError::PreconditionFailed,
                    "inequivalent arg 'durable'",
                ))),
                Reaction::Park,
                "write 'queue: /amq/queue/orders'",
            ),
            (
                Failure::Attach(ReceiverAttachError::RemoteClosedWithError(peer(AmqpError::ResourceLocked, ""))),
                Reaction::Away,
                "(amqp:resource-locked)",
            ),
            (
                Failure::Receive(RecvError::LinkStateError(gone()), None),
                Reaction::Away,
                "ended the link to queue 'orders' (amqp:resource-deleted: queue deleted)",
            ),
            (
                Failure::Receive(
                    RecvError::LinkStateError(LinkStateError::SessionStopped(SessionStopReason::Ended)),
                    Some(connection::Error::RemoteClosedWithError(peer(ConnectionError::ConnectionForced, "shutdown"))),
                ),
                Reaction::Away,
                "ended the connection (amqp:connection:forced: shutdown)",
            ),
            (Failure::Receive(RecvError::TransferLimitExceeded, None), Reaction::Retry, "broke the protocol"),
        ] {
            let error = explain(failure, &place(Some("me")));
            assert_eq!(error.reaction, reaction, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
        let error = explain(Failure::Open(denied(SaslCode::Auth), vec![]), &place(None));
        assert!(error.to_string().contains("without a user"), "{error}");
    }
}
