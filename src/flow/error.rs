//! How a stage fails: what happened, and what is to be done about it.

use std::fmt;

/// The result of everything that can be plugged in.
pub type Result<T, E = StageError> = std::result::Result<T, E>;

/// What the supervisor does about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reaction {
    /// Something went wrong that a new generation may mend. Counts towards `supervision.give_up`.
    Retry,
    /// A broker, store or target is merely away (unreachable, disk full, read-only): retried for ever, `/ready` red.
    Away,
    /// Trying again is pointless until a person has acted (credentials, schema clash): the partition parks.
    Park,
}

/// Why a stage failed. `context` is one lower-case sentence with what, where and what to do; `source` the cause below it.
pub struct StageError {
    /// What to do about it.
    pub reaction: Reaction,
    /// What failed, with its address, and the way out.
    pub context: String,
    /// The error of the library below, if there is one.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl StageError {
    /// See [`Reaction::Retry`].
    pub fn retry(context: impl Into<String>) -> Self {
        Self { reaction: Reaction::Retry, context: context.into(), source: None }
    }

    /// See [`Reaction::Away`].
    pub fn away(context: impl Into<String>) -> Self {
        Self { reaction: Reaction::Away, context: context.into(), source: None }
    }

    /// See [`Reaction::Park`].
    pub fn park(context: impl Into<String>) -> Self {
        Self { reaction: Reaction::Park, context: context.into(), source: None }
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for StageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        let mut source = self.source.as_deref().map(|e| e as &dyn std::error::Error);
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for StageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.reaction)
    }
}

impl std::error::Error for StageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}

/// Why a message went to the dead letter: one word for the metric label and the dead letter's `reason` column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The translator could not read the body as what the topology declares.
    Decode,
    /// The body is of a type this receiver does not carry.
    BodyType,
    /// The message brought no id, and `identity.missing_id` says `dead_letter`.
    MissingId,
    /// Another message with the same id and other content is known.
    IdCollision,
    /// An expression failed on this row.
    Expression,
    /// The sink cannot hold this row (out of range, null in a key).
    Sink,
    /// The translator panicked on this message.
    Panic,
}

impl Reason {
    /// Every reason: the metric has a series for each from the start.
    pub const ALL: [Self; 7] =
        [Self::Decode, Self::BodyType, Self::MissingId, Self::IdCollision, Self::Expression, Self::Sink, Self::Panic];

    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::BodyType => "body_type",
            Self::MissingId => "missing_id",
            Self::IdCollision => "id_collision",
            Self::Expression => "expression",
            Self::Sink => "sink",
            Self::Panic => "panic",
        }
    }
}
