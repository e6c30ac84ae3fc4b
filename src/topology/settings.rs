//! The sections of a topology that are no stages, and the fields that every stage of a section has.
//!
//! Their schema, their defaults and their documentation come from these types; what spans several fields is in `check`.

use std::borrow::Cow;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::schema::schema_of;
use crate::payload::Feed;
use crate::units::{Size, Span};

/// A section of the file that is no stage.
pub(super) trait Documented: JsonSchema {
    /// Its key.
    const KEY: &'static str;

    /// It, as it could stand under its key; it passes the check.
    const EXAMPLE: &'static str;
}

/// A [`Documented`] section, as a value.
pub(super) struct Settings {
    pub key: &'static str,
    pub example: &'static str,
    pub schema: Value,
}

/// All of them, in the order in which the check reads them.
pub(super) fn all() -> [Settings; 5] {
    fn of<T: Documented>() -> Settings {
        Settings { key: T::KEY, example: T::EXAMPLE, schema: schema_of::<T>() }
    }
    [of::<Checkpoint>(), of::<IdentityPolicy>(), of::<Supervision>(), of::<TelemetryConfig>(), of::<BrokerConfig>()]
}

impl Documented for Checkpoint {
    const KEY: &'static str = "checkpoint";
    const EXAMPLE: &'static str = "interval: 10s\nstore: ./data/orders-state\n";
}

impl Documented for IdentityPolicy {
    const KEY: &'static str = "identity";
    const EXAMPLE: &'static str = "horizon: 2m\nmissing_id: dead_letter\n";
}

impl Documented for Supervision {
    const KEY: &'static str = "supervision";
    const EXAMPLE: &'static str =
        "backoff: { min: 200ms, max: 30s }\ngive_up: { restarts: 10, within: 10m }\ndrain_timeout: 30s\n";
}

impl Documented for TelemetryConfig {
    const KEY: &'static str = "telemetry";
    const EXAMPLE: &'static str = "listen: 127.0.0.1:9464\n";
}

impl Documented for BrokerConfig {
    const KEY: &'static str = "broker";
    const EXAMPLE: &'static str =
        "listen: 127.0.0.1:5672\nfeed:\n  - { queue: orders, payload: animals_csv, count: 1000 }\n";
}

/// When epochs end, and where the checkpoint log is kept.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// How often what was received is committed.
    #[serde(with = "span")]
    #[schemars(with = "Span")]
    pub interval: Duration,
    /// How long one checkpoint may take before it is given up.
    #[serde(with = "span")]
    #[schemars(with = "Span")]
    pub timeout: Duration,
    /// The log of checkpoints: a folder, or `memory` for one that ends with the process. Where a sink is exactly once it
    /// must be said.
    pub store: StoreConfig,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), timeout: Duration::from_secs(60), store: StoreConfig::Memory }
    }
}

/// Where the checkpoint log is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    /// In this process: forgotten at its end.
    Memory,
    /// In this folder.
    Local(PathBuf),
}

impl StoreConfig {
    pub(super) fn read(text: &str) -> Option<Self> {
        match text {
            "memory" => Some(Self::Memory),
            _ if text.trim().is_empty() || text.contains("://") => None,
            _ => Some(Self::Local(text.into())),
        }
    }
}

impl<'de> Deserialize<'de> for StoreConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::read(&text).ok_or_else(|| serde::de::Error::custom("not a folder"))
    }
}

impl Serialize for StoreConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Memory => serializer.serialize_str("memory"),
            Self::Local(folder) => serializer.collect_str(&folder.display()),
        }
    }
}

impl JsonSchema for StoreConfig {
    fn schema_name() -> Cow<'static, str> {
        "Store".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "store", "x-editor": { "not": { "pattern": "://" } } })
    }

    fn inline_schema() -> bool {
        true
    }
}

/// What makes two messages the same, for how long, and what becomes of those that are in doubt.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IdentityPolicy {
    /// How long after its settlement, over a link that stayed up, a message can still come again.
    #[serde(with = "span")]
    #[schemars(with = "Span")]
    pub horizon: Duration,
    /// How long a message whose settlement may not have arrived is remembered.
    #[serde(with = "span")]
    #[schemars(with = "Span")]
    pub in_doubt: Duration,
    /// How many ids a receiver remembers; at the limit its intake slows down, none is forgotten early.
    #[schemars(range(min = 1), extend("x-unit" = "ids"))]
    pub max_ids: u64,
    /// What becomes of a message without an id.
    pub missing_id: MissingId,
    /// What becomes of a message with a known id and other content.
    pub on_collision: OnCollision,
}

impl Default for IdentityPolicy {
    fn default() -> Self {
        Self {
            horizon: Duration::from_secs(2 * 60),
            in_doubt: Duration::from_secs(7 * 24 * 60 * 60),
            max_ids: 20_000_000,
            missing_id: MissingId::default(),
            on_collision: OnCollision::default(),
        }
    }
}

/// What becomes of a message without an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MissingId {
    /// It goes to the dead letter.
    #[default]
    DeadLetter,
    /// It gets a random identity per delivery: at least once for it.
    Accept,
}

/// What becomes of a message with a known id and other content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnCollision {
    /// It goes to the dead letter.
    #[default]
    DeadLetter,
    /// The partition parks until a person has looked.
    Park,
}

/// What happens after a failure, and how a run ends.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Supervision {
    /// How long a partition waits before it is built anew.
    pub backoff: BackoffRange,
    /// When a partition that fails again and again parks.
    pub give_up: GiveUp,
    /// How long a drain may take before what is left is released.
    #[serde(with = "span")]
    #[schemars(with = "Span")]
    pub drain_timeout: Duration,
}

impl Default for Supervision {
    fn default() -> Self {
        Self { backoff: BackoffRange::default(), give_up: GiveUp::default(), drain_timeout: Duration::from_secs(30) }
    }
}

/// The shortest and the longest wait of a backoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BackoffRange {
    /// The first wait.
    #[serde(with = "span")]
    #[schemars(with = "Span")]
    pub min: Duration,
    /// The longest wait.
    #[serde(with = "span")]
    #[schemars(with = "Span")]
    pub max: Duration,
}

impl Default for BackoffRange {
    fn default() -> Self {
        Self { min: Duration::from_millis(200), max: Duration::from_secs(30) }
    }
}

/// How many restarts without a commit between them, within how long, are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GiveUp {
    /// How many restarts without a commit between them are too many.
    #[schemars(range(min = 1), extend("x-unit" = "restarts"))]
    pub restarts: u32,
    /// Within how long.
    #[serde(with = "span")]
    #[schemars(with = "Span")]
    pub within: Duration,
}

impl Default for GiveUp {
    fn default() -> Self {
        Self { restarts: 10, within: Duration::from_secs(10 * 60) }
    }
}

/// What the process says of itself over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Address and port of `/metrics`, `/live`, `/ready` and `/version`; left out: none of them.
    #[schemars(with = "Option<Listen>")]
    pub listen: Option<SocketAddr>,
}

/// The embedded broker: for first runs and tests, in memory, loopback only.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BrokerConfig {
    /// Loopback address and port; port 0 takes a free one.
    #[schemars(with = "Listen")]
    pub listen: SocketAddr,
    /// Messages that are sent to its queues when it starts.
    pub feed: Vec<Feed>,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self { listen: (Ipv4Addr::LOCALHOST, 0).into(), feed: Vec::new() }
    }
}

/// What every receiver has beside its kind's own fields.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct ReceiverFields {
    /// How many consumers, each with a whole tree of stages of its own.
    #[schemars(range(min = 1, max = 1024), extend("x-unit" = "consumers"))]
    pub partitions: u32,
    /// How many deliveries of one partition may be unsettled; a checkpoint is taken when half of them are. With the bytes
    /// below it bounds the memory.
    #[schemars(range(min = 1), extend("x-unit" = "deliveries"))]
    pub max_unsettled: u64,
    /// How many bytes of one partition may be unsettled.
    pub max_unsettled_bytes: Size,
    /// Ends the run after this many messages of this receiver.
    #[schemars(range(min = 1), extend("x-unit" = "messages"))]
    pub max_messages: Option<u64>,
    /// Ends the run after this time.
    pub max_time: Option<Span>,
}

impl Default for ReceiverFields {
    fn default() -> Self {
        Self {
            partitions: 1,
            max_unsettled: 25_000,
            max_unsettled_bytes: Size(64 << 20),
            max_messages: None,
            max_time: None,
        }
    }
}

/// What a batcher has.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct BatcherFields {
    /// As many rows make a batch. At most the receiver's `max_unsettled`.
    #[schemars(range(min = 1), extend("x-unit" = "rows"))]
    pub max_rows: u64,
    /// As many bytes make a batch.
    pub max_bytes: Size,
    /// After this time what there is makes a batch.
    pub max_age: Span,
}

impl Default for BatcherFields {
    fn default() -> Self {
        Self { max_rows: 20_000, max_bytes: Size(16 << 20), max_age: Span(Duration::from_secs(1)) }
    }
}

/// What every sink has beside its kind's own fields.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct SinkFields {
    /// What is promised. A sink that cannot look whether a commit landed must say `at_least_once` itself.
    pub delivery: Option<Delivery>,
}

/// What a sink promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Delivery {
    ExactlyOnce,
    AtLeastOnce,
}

/// The schema of an address with a port.
pub(super) struct Listen;

impl JsonSchema for Listen {
    fn schema_name() -> Cow<'static, str> {
        "Listen".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "listen",
            "x-editor": { "pattern": r"^(\[[0-9A-Fa-f:.]+\]|[0-9.]+):[0-9]{1,5}$" },
        })
    }

    fn inline_schema() -> bool {
        true
    }
}

/// [`Duration`]s as people write them.
mod span {
    use super::*;

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Span::deserialize(deserializer).map(|span| span.0)
    }

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        Span(*duration).serialize(serializer)
    }
}
