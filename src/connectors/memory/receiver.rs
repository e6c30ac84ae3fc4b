//! The receiver `memory`: consumes a queue of its space.

use std::sync::{Arc, OnceLock};

use arrow::array::builder::{MapBuilder, StringBuilder};
use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Int32Array, RecordBatch, StringArray, TimestampMillisecondArray,
};
use arrow::datatypes::{DataType, SchemaRef};
use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Space;
use super::queue::{Attachment, Message, Queue, Taken};
use crate::clock;
use crate::flow::registry::{ConfigError, Kind, Planned, SourceKind};
use crate::flow::{
    Closed, Delivery, DeliveryId, Identity, Intake, Link, Outcome, Raw, Reason, Received, Rejected, Result, Room,
    Settled, Settler, Source, SourceContext, SourceFactory, StageError, message_columns,
};

/// Rows per batch at most, so that many partitions take turns.
const BATCH: usize = 4096;

/// A program fills the queue, or the topology itself does.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Config {
    /// The queue, shared by its name within the process. Left out: one of this receiver's own, which holds `rows`.
    #[serde(default)]
    pub queue: Option<String>,
    /// Messages that are in the queue from the start. With them the input is bounded: it ends when all are settled.
    #[serde(default)]
    pub rows: Vec<Row>,
    /// Whether `value` is text or bytes.
    #[serde(default)]
    pub format: Format,
}

/// A message in the topology file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Row {
    /// Its body; its id is its place among the rows, counted from 0.
    Body(String),
    /// The whole of it.
    Message(RowMessage),
}

/// A message with all it may have.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RowMessage {
    /// Left out: it has none.
    #[serde(default)]
    pub id: Option<String>,
    /// The body.
    pub value: String,
    /// Application properties.
    #[serde(default)]
    pub properties: std::collections::BTreeMap<String, String>,
}

/// What the column `value` holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Text. A body that is none is rejected.
    #[default]
    Text,
    /// Bytes.
    Binary,
}

/// The kind `memory` of receivers.
#[derive(Clone, Debug)]
pub struct MemoryReceiver {
    space: Space,
}

impl MemoryReceiver {
    /// A receiver of this space's queues.
    pub fn new(space: Space) -> Self {
        Self { space }
    }
}

impl Default for MemoryReceiver {
    fn default() -> Self {
        Self::new(Space::process())
    }
}

impl Kind for MemoryReceiver {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn about(&self) -> &'static str {
        "a queue within this process, for tests and embedding programs"
    }

    fn example(&self) -> &'static str {
        r#"rows:
  - "b7,1,cat,brown,3,2026-01-31 12:00:00"
  - { id: ox-1, value: "b7,2,ox,black,1,2026-01-31 12:00:01" }
"#
    }

    fn schema(&self) -> schemars::Schema {
        schemars::schema_for!(Config)
    }
}

impl SourceKind for MemoryReceiver {
    fn example_of(&self, body: &str) -> Option<String> {
        Some(format!("rows:\n  - {body}\n"))
    }

    fn plan(&self, config: &Value) -> Planned<dyn SourceFactory> {
        let config = Config::deserialize(config).map_err(|e| vec![ConfigError::here(e.to_string())])?;
        if config.queue.is_none() && config.rows.is_empty() {
            let problem =
                "give a `queue` by its name, or the messages themselves in `rows`; without either nothing comes";
            return Err(vec![ConfigError::here(problem)]);
        }
        let queue = config.queue.as_ref().map_or_else(Queue::default, |name| self.space.queue(name));
        let columns = columns(config.format);
        Ok(Arc::new(Factory { columns, queue, config, filled: OnceLock::new() }))
    }
}

/// The message columns, the same as the AMQP receiver's.
fn columns(format: Format) -> SchemaRef {
    message_columns(match format {
        Format::Text => DataType::Utf8,
        Format::Binary => DataType::Binary,
    })
}

struct Factory {
    config: Config,
    columns: SchemaRef,
    queue: Queue,
    /// The rows are put with the first partition: planning is pure.
    filled: OnceLock<()>,
}

impl SourceFactory for Factory {
    fn columns(&self) -> SchemaRef {
        self.columns.clone()
    }

    fn source(&self, _context: SourceContext) -> Box<dyn Source> {
        self.filled.get_or_init(|| {
            let sent = Some(clock::wall_millis());
            for (at, row) in self.config.rows.iter().enumerate() {
                self.queue.put(match row.clone() {
                    Row::Body(body) => {
                        Message { id: Some(at.to_string()), value: body.into_bytes(), sent, ..Message::default() }
                    }
                    Row::Message(RowMessage { id, value, properties }) => {
                        Message { id, value: value.into_bytes(), sent, properties: properties.into_iter().collect() }
                    }
                });
            }
            if !self.config.rows.is_empty() {
                self.queue.finish();
            }
        });
        Box::new(Consumer { queue: self.queue.clone(), columns: self.columns.clone(), format: self.config.format })
    }

    /// A settled message is gone from the queue, and nothing brings it back.
    fn answered_end_is_durable(&self) -> bool {
        true
    }
}

struct Consumer {
    queue: Queue,
    columns: SchemaRef,
    format: Format,
}

#[async_trait]
impl Source for Consumer {
    async fn connect(&mut self) -> Result<Link> {
        let attachment = Arc::new(self.queue.attach());
        let intake = QueueIntake {
            attachment: attachment.clone(),
            columns: self.columns.clone(),
            format: self.format,
            exhausted: false,
        };
        Ok(Link { intake: Box::new(intake), settler: Box::new(QueueSettler { attachment }) })
    }
}

struct QueueIntake {
    attachment: Arc<Attachment>,
    columns: SchemaRef,
    format: Format,
    /// It was said that everything has been handed out.
    exhausted: bool,
}

#[async_trait]
impl Intake for QueueIntake {
    async fn receive(&mut self, room: Room) -> Result<Received> {
        loop {
            let queue = self.attachment.queue.clone();
            let mut changed = std::pin::pin!(queue.changed());
            // What changes after this line wakes; what changed before is seen below.
            changed.as_mut().enable();
            let mut bytes = 0;
            let fits = |message: &Message| {
                let first = bytes == 0;
                bytes += size(message);
                first || bytes <= room.bytes
            };
            let taken = self.attachment.take(room.deliveries.min(BATCH), fits);
            if !taken.is_empty() {
                self.exhausted = false;
                return self.batch(taken);
            }
            if self.attachment.is_at_end() {
                return Ok(Received::End);
            }
            if self.attachment.queue.is_exhausted() && !std::mem::replace(&mut self.exhausted, true) {
                return Ok(Received::Exhausted);
            }
            changed.await;
        }
    }
}

/// What it takes of the byte budget; never nothing.
fn size(message: &Message) -> usize {
    let properties: usize = message.properties.iter().map(|(key, value)| key.len() + value.len()).sum();
    (message.id.as_ref().map_or(0, String::len) + message.value.len() + properties).max(1)
}

impl QueueIntake {
    fn batch(&self, taken: Vec<(DeliveryId, Taken)>) -> Result<Received> {
        let (mut deliveries, mut rejects) = (Vec::with_capacity(taken.len()), Vec::new());
        let mut properties = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
        for (row, (id, Taken { message, .. })) in (0..).zip(&taken) {
            let identity = message.id.as_ref().map(|id| Identity::of(id.as_bytes(), &message.value));
            deliveries.push(Delivery {
                id: *id,
                identity: identity.unwrap_or_else(Identity::random),
                bytes: u32::try_from(size(message)).unwrap_or(u32::MAX),
                anonymous: identity.is_none(),
            });
            if self.format == Format::Text && std::str::from_utf8(&message.value).is_err() {
                let detail = "the body is not UTF-8; take it with format: binary".to_owned();
                rejects.push(Rejected { row, reason: Reason::BodyType, detail });
            }
            for (key, value) in &message.properties {
                properties.keys().append_value(key);
                properties.values().append_value(value);
            }
            properties.append(true).map_err(|e| StageError::retry("cannot hold a message's properties").because(e))?;
        }
        let messages = || taken.iter().map(|(_, taken)| &taken.message);
        let received = clock::wall_millis();
        let time = |column: TimestampMillisecondArray| Arc::new(column.with_timezone("UTC"));
        let value: ArrayRef = match self.format {
            Format::Text => Arc::new(messages().map(|m| std::str::from_utf8(&m.value).ok()).collect::<StringArray>()),
            Format::Binary => Arc::new(BinaryArray::from_iter_values(messages().map(|m| &m.value))),
        };
        let columns: Vec<ArrayRef> = vec![
            Arc::new(messages().map(|m| m.id.as_deref()).collect::<StringArray>()),
            time(messages().map(|m| m.sent).collect()),
            time(messages().map(|_| Some(received)).collect()),
            value,
            Arc::new(properties.finish()),
            Arc::new(taken.iter().map(|(_, taken)| Some(taken.earlier > 0)).collect::<BooleanArray>()),
            Arc::new(taken.iter().map(|(_, taken)| Some(taken.earlier)).collect::<Int32Array>()),
        ];
        let columns = RecordBatch::try_new(self.columns.clone(), columns)
            .map_err(|e| StageError::retry("cannot make a batch of messages").because(e))?;
        Ok(Received::Batch { raw: Raw::one_per_delivery(columns), deliveries, rejects })
    }
}

struct QueueSettler {
    attachment: Arc<Attachment>,
}

#[async_trait]
impl Settler for QueueSettler {
    async fn settle(&mut self, deliveries: &[DeliveryId], outcome: Outcome) -> Result<Settled> {
        self.attachment.settle(deliveries, outcome);
        Ok(Settled::Received)
    }

    fn attached(&self) -> bool {
        true
    }

    async fn close(self: Box<Self>) -> Closed {
        Closed::Answered
    }
}
