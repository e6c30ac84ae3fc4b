//! A translator of your own: a message in, a row out.
//!
//! What a program writes is a [`MessageMapper`]; [`TranslatorOf`] makes a kind of it that a topology can name, with `keep`,
//! `where`, `derive`, `select` and `on_error` like every other. A row is whatever serialises to a JSON object, and is read
//! into the declared columns by the same rules, as strictly, as a body of the translator `json`.
//!
//! What it does not do: several rows from one message, and rows without a look at each message. Whoever needs that
//! implements [`TranslatorKind`] itself.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, MapArray, PrimitiveArray, StringBuilder};
use arrow::datatypes::{ArrowPrimitiveType, Int32Type, SchemaRef, TimestampMillisecondType};
use schemars::{JsonSchema, Schema, schema_for};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::bodies::{self, Bodies, Reader, Records};
use super::columns::Column;
use super::json::{JsonFormat, unreadable};
use super::shape::{Base, Read, Shape, Shaper, stop};
use super::{ColumnType, OnError, Ordered, configured};
use crate::flow::registry::{ConfigError, Kind, Planned, TranslatorKind};
use crate::flow::{Raw, Reason, Rejected, Result, Translated, Translator, TranslatorFactory};

/// Makes a row of each message.
///
/// The type itself is the configuration: its fields are what the topology file says beside `from`, `type`, `on_error` and
/// the rest that every translator has, and its doc comments are their documentation. Each partition has a clone of it.
/// What it keeps between messages is a field with `#[serde(skip)]`.
pub trait MessageMapper: Clone + DeserializeOwned + JsonSchema + Send + Sync + 'static {
    /// The word after `type:`.
    const NAME: &'static str;

    /// One sentence: lower case, no full stop.
    const ABOUT: &'static str;

    /// A stage in YAML, as it would stand under its name: one key a line, without `from` and `type`.
    const EXAMPLE: &'static str;

    /// The columns of a row, in order: name and type, in the words of the translators `csv` and `json`. All are nullable.
    const COLUMNS: &'static [(&'static str, &'static str)];

    /// What a message becomes: serialises to an object with the columns' names as keys. A key that is missing is null.
    type Row: Serialize;

    /// What is wrong with the configuration, in a sentence. Pure.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Maps one message. What it cannot map it answers with a sentence for a person; the message goes to the dead letter
    /// with it, or does what else `on_error` says. May panic: then that message alone is rejected.
    fn map(&mut self, message: &Message<'_>) -> Result<Self::Row, String>;
}

/// The kind of translator that a [`MessageMapper`] is.
pub struct TranslatorOf<M>(PhantomData<fn() -> M>);

impl<M> Default for TranslatorOf<M> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<M: MessageMapper> fmt::Debug for TranslatorOf<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TranslatorOf({})", M::NAME)
    }
}

/// A message as a [`MessageMapper`] sees it: its headers, its properties and its body.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    columns: &'a Columns<'a>,
    row: usize,
}

impl<'a> Message<'a> {
    /// Its id.
    pub fn id(&self) -> Option<&'a str> {
        self.text_of("id")
    }

    /// When it was sent, in ms since the epoch.
    pub fn sent(&self) -> Option<i64> {
        self.number::<TimestampMillisecondType>("sent")
    }

    /// When it arrived, in ms since the epoch.
    pub fn received(&self) -> Option<i64> {
        self.number::<TimestampMillisecondType>("received")
    }

    /// Whether it was delivered before, as far as the source says.
    pub fn redelivered(&self) -> bool {
        let column = self.columns.column("redelivered").and_then(|column| column.as_boolean_opt());
        column.is_some_and(|column| column.is_valid(self.row) && column.value(self.row))
    }

    /// How often its delivery failed before, as far as the source says.
    pub fn delivery_count(&self) -> Option<i32> {
        self.number::<Int32Type>("delivery_count")
    }

    /// Its body, if it has one.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        let column = self.columns.column("value").filter(|column| column.is_valid(self.row))?;
        match column.as_binary_opt::<i32>() {
            Some(bytes) => Some(bytes.value(self.row)),
            None => Some(column.as_string_opt::<i32>()?.value(self.row).as_bytes()),
        }
    }

    /// Its body, if that is text.
    pub fn text(&self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    /// An application property, as text: numbers in decimal, booleans as true and false.
    pub fn property(&self, name: &str) -> Option<&'a str> {
        self.properties().find(|(key, _)| *key == name)?.1
    }

    /// All application properties.
    pub fn properties(&self) -> impl Iterator<Item = (&'a str, Option<&'a str>)> + use<'a> {
        let entries = self.columns.properties.filter(|map| map.is_valid(self.row)).map(|map| {
            let offsets = map.value_offsets();
            (map, offsets[self.row] as usize..offsets[self.row + 1] as usize)
        });
        let texts = entries.and_then(|(map, range)| {
            Some((map.keys().as_string_opt::<i32>()?, map.values().as_string_opt::<i32>()?, range))
        });
        texts.into_iter().flat_map(|(keys, values, range)| {
            range.map(move |at| (keys.value(at), values.is_valid(at).then(|| values.value(at))))
        })
    }

    fn text_of(&self, name: &str) -> Option<&'a str> {
        let column = self.columns.column(name)?.as_string_opt::<i32>()?;
        column.is_valid(self.row).then(|| column.value(self.row))
    }

    fn number<T: ArrowPrimitiveType>(&self, name: &str) -> Option<T::Native> {
        let column: &PrimitiveArray<T> = self.columns.column(name)?.as_primitive_opt()?;
        column.is_valid(self.row).then(|| column.value(self.row))
    }
}

/// Not the body: messages may hold what no log should.
impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// The message columns of a batch.
struct Columns<'a> {
    raw: &'a Raw,
    properties: Option<&'a MapArray>,
}

impl<'a> Columns<'a> {
    fn of(raw: &'a Raw) -> Self {
        let properties = raw.columns.column_by_name("properties").and_then(|column| column.as_map_opt());
        Self { raw, properties }
    }

    fn column(&self, name: &str) -> Option<&'a ArrayRef> {
        self.raw.columns.column_by_name(name)
    }
}

/// What a topology says of such a translator.
#[derive(Deserialize, JsonSchema)]
struct Config<M> {
    #[serde(flatten)]
    mapper: M,
    /// What becomes of a message that cannot be translated.
    #[serde(default)]
    on_error: OnError,
    /// What comes out.
    #[serde(flatten)]
    shape: Shape,
}

impl<M: MessageMapper> Kind for TranslatorOf<M> {
    fn name(&self) -> &'static str {
        M::NAME
    }

    fn about(&self) -> &'static str {
        M::ABOUT
    }

    fn example(&self) -> &'static str {
        M::EXAMPLE
    }

    fn schema(&self) -> Schema {
        schema_for!(Config<M>)
    }
}

impl<M: MessageMapper> TranslatorKind for TranslatorOf<M> {
    fn plan(&self, config: &Value, input: &SchemaRef) -> Planned<dyn TranslatorFactory> {
        let Config { mapper, on_error, shape } = configured::<Config<M>>(config)?;
        let declared = M::COLUMNS.iter().map(|(name, of)| ((*name).to_owned(), ColumnType::Name((*of).to_owned())));
        let columns: Arc<[Column]> = Column::all(&Ordered(declared.collect()))?.into();
        let mut errors = unreadable(&columns);
        errors.extend(mapper.check().err().map(ConfigError::here));
        let fields = bodies::fields(&columns, Records::One);
        match shape.plan(input, &fields, Base::Identity, on_error).map_err(|more| errors.extend(more)) {
            Ok(shaper) if errors.is_empty() => Ok(Arc::new(Factory { mapper, on_error, columns, shaper })),
            _ => Err(errors),
        }
    }
}

struct Factory<M> {
    mapper: M,
    on_error: OnError,
    columns: Arc<[Column]>,
    shaper: Shaper,
}

impl<M: MessageMapper> TranslatorFactory for Factory<M> {
    fn output(&self) -> SchemaRef {
        Arc::clone(self.shaper.output())
    }

    fn translator(&self) -> Box<dyn Translator> {
        let format = JsonFormat::new(&self.columns, Records::One);
        Box::new(Mapping {
            mapper: self.mapper.clone(),
            on_error: self.on_error,
            reader: Reader::new(format, Records::One, self.on_error, Arc::clone(&self.columns)),
            shaper: self.shaper.clone(),
        })
    }
}

struct Mapping<M> {
    mapper: M,
    on_error: OnError,
    reader: Reader<JsonFormat>,
    shaper: Shaper,
}

impl<M: MessageMapper> Translator for Mapping<M> {
    fn translate(&mut self, raw: &Raw) -> Result<Translated> {
        let messages = Columns::of(raw);
        // The rows as bodies of JSON, and which message each is of.
        let (mut bodies, mut of) = (StringBuilder::new(), Vec::with_capacity(raw.len()));
        let (mut refused, mut missing) = (Vec::new(), Vec::new());
        for (at, row) in (0..raw.len()).zip(0_u32..) {
            let mapped = self.mapper.map(&Message { columns: &messages, row: at });
            let body =
                mapped.and_then(|row| serde_json::to_string(&row).map_err(|e| format!("its row is no JSON: {e}")));
            match body {
                Ok(body) => bodies.append_value(body),
                Err(detail) => match self.on_error {
                    OnError::Fail => return Err(stop(row, &detail)),
                    OnError::DeadLetter => {
                        refused.push(Rejected { row, reason: Reason::Decode, detail });
                        continue;
                    }
                    OnError::Null => {
                        missing.push(row);
                        bodies.append_value("{}");
                    }
                },
            }
            of.push(row);
        }
        let bodies: ArrayRef = Arc::new(bodies.finish());
        let Read { columns, from, rejects, nulled } = self.reader.read(Bodies::of(&bodies))?;
        let message = |body: u32| of[body as usize];
        let mut rejects: Vec<_> =
            rejects.into_iter().map(|reject| Rejected { row: message(reject.row), ..reject }).collect();
        rejects.append(&mut refused);
        let nulled = nulled.into_iter().map(message).chain(missing).collect();
        let from = match from {
            Some(from) => from.into_iter().map(message).collect(),
            None => of,
        };
        self.shaper.shape(raw, Read { columns, from: Some(from), rejects, nulled })
    }
}

#[cfg(test)]
mod tests;
