//! The contract of a translator: message columns in, declared columns out.

use arrow::datatypes::SchemaRef;

use super::{Raw, Rejected, Result, Rows};

/// What a topology's translator was planned to: it knows its output before the first message.
pub trait TranslatorFactory: Send + Sync {
    /// The columns of everything its translators return.
    fn output(&self) -> SchemaRef;

    /// One for a partition's own use.
    fn translator(&self) -> Box<dyn Translator>;
}

/// A pure function with a state of its own: no I/O, no clock.
pub trait Translator: Send {
    /// Translates one batch. A row that cannot be translated is among the rejects and has no row in the output; an `Err`
    /// ends the generation (`on_error: fail`). May panic: the message that makes it panic is found and rejected.
    fn translate(&mut self, raw: &Raw) -> Result<Translated>;
}

/// The rows that came out, and those that did not.
pub struct Translated {
    /// Translated rows; `origin` as in the input, of the row each came from.
    pub rows: Rows,
    /// Rejected input rows: `row` counts rows of the input.
    pub rejects: Vec<Rejected>,
    /// How many messages went on with null for something that could not be read or computed (`on_error: null`).
    pub nulled: u64,
}
