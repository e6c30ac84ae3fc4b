//! Messages made up on the spot: for first runs, demonstrations and load, with no broker to install.
//!
//! All partitions of a receiver share one run and one sequence of numbers; a message's id is `<run>-<number>`. A number
//! that was given out and not settled when its link ended is generated again, as the same message. A new process is a new
//! run: what was unsettled then is never generated again, so a run across a crash is neither complete nor doubled.
//!
//! Invariant: a number is out on one link at most, and settled once. It keeps nothing on disk, and knows nothing of
//! retries: a link here cannot fail.

mod pool;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arrow::array::builder::{MapBuilder, StringBuilder};
use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Int32Array, RecordBatch, StringArray, TimestampMillisecondArray,
};
use arrow::datatypes::{DataType, SchemaRef};
use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use uuid::Uuid;

use self::pool::{LinkId, Message, Pool, Taken};
use crate::clock;
use crate::flow::registry::{ConfigError, Kind, Planned, SourceKind};
use crate::flow::{
    Closed, Delivery, DeliveryId, Identity, Intake, Link, Outcome, Raw, Received, Result, Room, Settled, Settler,
    Source, SourceContext, SourceFactory, StageError, message_columns,
};
use crate::payload::{self, Payload};

/// Rows per batch at most, so that many partitions take turns.
const BATCH: usize = 4096;

/// A new process starts a new run, with ids of its own: what was unsettled in the last one is not made again.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Config {
    /// Messages per second over all partitions. Left out: as many as the budget allows. A receiver that was held up
    /// catches up.
    #[serde(default)]
    #[schemars(extend("exclusiveMinimum" = 0, "x-unit" = "messages per second"))]
    pub rate: Option<f64>,
    /// How many messages over all partitions; the input ends when all of them are settled. Left out: no end.
    #[serde(default)]
    #[schemars(range(min = 1), extend("x-unit" = "messages"))]
    pub count: Option<u64>,
    /// What is in them; `animals_csv` when left out.
    #[serde(default)]
    pub payload: Payload,
    /// Whether `value` is text or bytes.
    #[serde(default)]
    pub format: Format,
}

/// What the column `value` holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Text.
    #[default]
    Text,
    /// Bytes.
    Binary,
}

/// The kind `generator`.
#[derive(Clone, Copy, Debug, Default)]
pub struct GeneratorReceiver;

impl Kind for GeneratorReceiver {
    fn name(&self) -> &'static str {
        "generator"
    }

    fn about(&self) -> &'static str {
        "messages made up on the spot: so many per second, so many in all"
    }

    fn example(&self) -> &'static str {
        "payload: animals_csv\nrate: 100\ncount: 1000\n"
    }

    fn schema(&self) -> schemars::Schema {
        schemars::schema_for!(Config)
    }
}

impl SourceKind for GeneratorReceiver {
    fn example_of(&self, body: &str) -> Option<String> {
        Some(format!("payload: {{ template: {body} }}\nrate: 100\ncount: 1000\n"))
    }

    fn plan(&self, config: &serde_json::Value) -> Planned<dyn SourceFactory> {
        let config = Config::deserialize(config).map_err(|e| vec![ConfigError::here(e.to_string())])?;
        let mut problems = Vec::new();
        if config.rate.is_some_and(|rate| rate.is_nan() || rate <= 0.0) {
            problems
                .push(ConfigError::at("rate", "must be greater than 0; leave it out for as many as the budget allows"));
        }
        if config.count == Some(0) {
            problems.push(ConfigError::at("count", "must be at least 1; leave it out for a run without end"));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Arc::new(Factory { columns: columns(config.format), config, run: OnceLock::new() }))
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
    /// Made with the first partition: planning is pure.
    run: OnceLock<Arc<Run>>,
}

impl SourceFactory for Factory {
    fn columns(&self) -> SchemaRef {
        self.columns.clone()
    }

    fn source(&self, _context: SourceContext) -> Box<dyn Source> {
        let run = self.run.get_or_init(|| Arc::new(Run::start(&self.config, self.columns.clone())));
        Box::new(Generator(run.clone()))
    }

    /// A settled number is never generated again, and after a restart no number of this run is.
    fn answered_end_is_durable(&self) -> bool {
        true
    }
}

/// One run: what the partitions of the receiver share.
struct Run {
    id: Uuid,
    format: Format,
    columns: SchemaRef,
    /// What each intake takes its own copy of: a body depends on nothing but the run and the number.
    bodies: payload::Generator,
    pool: Mutex<Pool>,
    /// A number came back, or the last one was settled.
    changed: Notify,
}

impl Run {
    fn start(config: &Config, columns: SchemaRef) -> Self {
        let id = Uuid::new_v4();
        let (seed, _) = id.as_u64_pair();
        Self {
            id,
            format: config.format,
            columns,
            bodies: payload::Generator::new(&config.payload, id, seed, clock::wall_millis()),
            pool: Mutex::new(Pool::new(config.count, config.rate)),
            changed: Notify::new(),
        }
    }

    /// No operation on the pool can leave it half done, so a panic elsewhere does not spoil it.
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Generator(Arc<Run>);

#[async_trait]
impl Source for Generator {
    async fn connect(&mut self) -> Result<Link> {
        let link = self.0.pool().attach();
        let attachment = Arc::new(Attachment { run: self.0.clone(), link });
        Ok(Link {
            intake: Box::new(GeneratorIntake {
                attachment: attachment.clone(),
                bodies: self.0.bodies.clone(),
                exhausted: false,
            }),
            settler: Box::new(GeneratorSettler { attachment }),
        })
    }
}

/// Both halves of a link hold it: what is out comes back when both are gone, or when the link is closed.
struct Attachment {
    run: Arc<Run>,
    link: LinkId,
}

impl Attachment {
    fn end(&self) {
        self.run.pool().detach(self.link);
        self.run.changed.notify_waiters();
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.end();
    }
}

struct GeneratorIntake {
    attachment: Arc<Attachment>,
    bodies: payload::Generator,
    /// It was said that everything has been handed out.
    exhausted: bool,
}

#[async_trait]
impl Intake for GeneratorIntake {
    async fn receive(&mut self, room: Room) -> Result<Received> {
        let Attachment { run, link } = &*self.attachment;
        loop {
            // Enabled before looking, so that no change between looking and waiting is missed.
            let changed = run.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let taken = run.pool().take(*link, room.deliveries.min(BATCH), clock::now(), clock::wall_millis());
            match taken {
                Taken::Messages(messages) => {
                    self.exhausted = false;
                    return Ok(run.deliver(*link, &messages, &mut self.bodies, room.bytes));
                }
                Taken::End => return Ok(Received::End),
                Taken::Closed => return Err(StageError::retry("the link to the generator has been closed")),
                Taken::Nothing(None) if !std::mem::replace(&mut self.exhausted, true) => {
                    return Ok(Received::Exhausted);
                }
                Taken::Nothing(None) => changed.await,
                Taken::Nothing(Some(due)) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(due) => {}
                },
            }
        }
    }
}

impl Run {
    /// The batch of these messages, as far as `room` bytes reach; the rest goes back. At least one is delivered.
    fn deliver(&self, link: LinkId, messages: &[Message], generator: &mut payload::Generator, room: usize) -> Received {
        let mut ids = Vec::with_capacity(messages.len());
        let mut bodies = Vec::with_capacity(messages.len());
        let mut deliveries = Vec::with_capacity(messages.len());
        let mut total = 0;
        for message in messages {
            let id = format!("{}-{}", self.id, message.number);
            let body = generator.body(message.number);
            let bytes = id.len() + body.len();
            total += bytes;
            if total > room && !deliveries.is_empty() {
                break;
            }
            deliveries.push(Delivery {
                id: DeliveryId(message.number),
                identity: Identity::of(id.as_bytes(), body.as_bytes()),
                bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
                anonymous: false,
            });
            ids.push(id);
            bodies.push(body);
        }
        let (delivered, rest) = messages.split_at(deliveries.len());
        if !rest.is_empty() {
            self.pool().untake(link, rest);
            self.changed.notify_waiters();
        }
        let raw = Raw::one_per_delivery(self.batch(delivered, ids, bodies));
        Received::Batch { raw, deliveries, rejects: Vec::new() }
    }

    fn batch(&self, messages: &[Message], ids: Vec<String>, bodies: Vec<String>) -> RecordBatch {
        let received = clock::wall_millis();
        let time = |column: TimestampMillisecondArray| Arc::new(column.with_timezone("UTC"));
        let mut properties = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
        for _ in messages {
            properties.append(true).expect("an empty map has as many keys as values");
        }
        let value: ArrayRef = match self.format {
            Format::Text => Arc::new(StringArray::from(bodies)),
            Format::Binary => Arc::new(BinaryArray::from_iter_values(bodies)),
        };
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from(ids)),
            time(messages.iter().map(|message| Some(message.sent)).collect()),
            time(messages.iter().map(|_| Some(received)).collect()),
            value,
            Arc::new(properties.finish()),
            Arc::new(messages.iter().map(|message| Some(message.earlier > 0)).collect::<BooleanArray>()),
            Arc::new(messages.iter().map(|message| Some(message.earlier)).collect::<Int32Array>()),
        ];
        RecordBatch::try_new(self.columns.clone(), columns).expect("columns of the schema above, one row per message")
    }
}

struct GeneratorSettler {
    attachment: Arc<Attachment>,
}

#[async_trait]
impl Settler for GeneratorSettler {
    async fn settle(&mut self, deliveries: &[DeliveryId], outcome: Outcome) -> Result<Settled> {
        let Attachment { run, link } = &*self.attachment;
        run.pool().settle(*link, deliveries.iter().map(|delivery| delivery.0), outcome);
        run.changed.notify_waiters();
        Ok(Settled::Received)
    }

    fn attached(&self) -> bool {
        true
    }

    async fn close(self: Box<Self>) -> Closed {
        self.attachment.end();
        Closed::Answered
    }
}
