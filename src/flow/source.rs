//! The contract of a receiver's connector.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;

use super::{Delivery, DeliveryId, Outcome, PartitionId, Raw, Rejected, Result, Room};

/// What a receiver's partitions are built from: configuration that was checked, and what they share.
pub trait SourceFactory: Send + Sync {
    /// The message columns of everything its intakes return; `value` is the body.
    fn columns(&self) -> SchemaRef;

    /// A consumer of its own for one partition. Called once per generation; does no I/O.
    fn source(&self, context: SourceContext) -> Box<dyn Source>;

    /// Whether a settlement that went over a link whose end the peer answered survives a restart of the broker
    /// (protocol R11, drained entries).
    fn answered_end_is_durable(&self) -> bool {
        false
    }

    /// How long a link may be silent and still count as attached, where the far end can fall silent: its field
    /// `idle_timeout`. The horizon of identities must be twice as long (protocol R11).
    fn idle_timeout(&self) -> Option<Duration> {
        None
    }
}

/// Where a source is.
#[derive(Clone, Debug)]
pub struct SourceContext {
    /// The topology's name.
    pub topology: Arc<str>,
    /// Which partition it serves.
    pub partition: PartitionId,
    /// Where the topology's embedded broker listens, if it has one (`url: embedded`).
    pub embedded_broker: Option<std::net::SocketAddr>,
}

/// Something that delivers messages and wants to hear what became of them.
#[async_trait]
pub trait Source: Send {
    /// Connects once. The caller tries again, with backoff, while the error says `Away`.
    async fn connect(&mut self) -> Result<Link>;

    /// Looks whether it can connect, takes nothing, and says in a few words what it found (`check --connect`). Without
    /// credit a link receives nothing.
    async fn probe(&mut self) -> Result<String> {
        self.connect().await?.close().await;
        Ok("connects".to_owned())
    }
}

/// A connection, in two halves, so that waiting for messages never blocks settling them.
pub struct Link {
    /// The half that receives.
    pub intake: Box<dyn Intake>,
    /// The half that settles.
    pub settler: Box<dyn Settler>,
}

impl Link {
    /// Ends a link that nothing was received on.
    pub async fn close(self) -> Closed {
        let Self { intake, settler } = self;
        drop(intake);
        settler.close().await
    }
}

/// What an intake has to say.
pub enum Received {
    /// At least one message: one row per delivery.
    Batch {
        /// The message columns.
        raw: Raw,
        /// One per row.
        deliveries: Vec<Delivery>,
        /// Rows the source itself cannot carry on (a body of a type it does not know), in order. They stay in `raw` and
        /// `deliveries`, so that the dead letter has the message; nothing else is done with them.
        rejects: Vec<Rejected>,
    },
    /// A bounded input has handed out all it has; more comes only if some of it comes back. Said once, until more came.
    /// What is in hand is then committed without waiting for the next checkpoint.
    Exhausted,
    /// There will be no more: a bounded input is at its end.
    End,
}

/// The half of a link that receives.
#[async_trait]
pub trait Intake: Send {
    /// Waits for messages. `room` is the whole of what may be on its way or be returned: credit granted before counts
    /// towards it. Never returns more deliveries than that. Cancel-safe: a message is returned or kept, never lost.
    ///
    /// An error ends the link; nothing of the link is used afterwards.
    async fn receive(&mut self, room: Room) -> Result<Received>;
}

/// Whether a settlement is known to have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It was sent; whether it arrives is not known (protocol R11).
    Sent,
    /// The peer has answered, and keeps it: the source will not deliver these again.
    Received,
}

/// How a link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The peer answered: every settlement sent before arrived.
    Answered,
    /// It did not.
    Unanswered,
}

/// The half of a link that settles.
#[async_trait]
pub trait Settler: Send {
    /// Tells the source what became of these deliveries. Settling one twice changes nothing.
    async fn settle(&mut self, deliveries: &[DeliveryId], outcome: Outcome) -> Result<Settled>;

    /// Whether the link is up and the peer's frames have been arriving. Once `false`, for ever `false`.
    fn attached(&self) -> bool;

    /// Extends locks or visibility of deliveries that wait longer than usual; nothing to do where there are none.
    async fn extend(&mut self, _deliveries: &[DeliveryId]) -> Result<()> {
        Ok(())
    }

    /// Ends the link in good order: what was prefetched is released, settlements are flushed, the end is awaited.
    async fn close(self: Box<Self>) -> Closed;
}
