//! A random topology, and the messages that go through it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::json;

use super::checks::{DEAD_LETTER, Sort};
use super::sink::FaultySinks;
use super::source::FaultyReceiver;
use super::world::{Hands, Token};
use crate::connectors::memory::MemoryReceiver;
use crate::flow::registry::{Guarantee, SourceKind};
use crate::flow::{Raw, Reason, Rejected, Result, Rows, StageName, Translated, Translator, TranslatorFactory};
use crate::topology::{
    BackoffRange, BatcherStage, Checkpoint, GiveUp, IdentityPolicy, MissingId, OnCollision, Receiver, SinkSpec, Stage,
    StoreConfig, Supervision, TelemetryConfig, Topology, TranslatorStage, dead_letter_schema,
};

/// Everything of a run that is settled before it starts.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub partitions: u32,
    pub sinks: Vec<String>,
    /// One batcher feeds both sinks, or each has its own.
    shared_batcher: bool,
    pub merge: bool,
    pub dead_letter: bool,
    /// Two processes with a store each work on the queue at once (R13).
    pub scaled_out: bool,
    /// See [`FaultyReceiver::answers`].
    answers: bool,
    pub accept_anonymous: bool,
    pub max_unsettled: u64,
    max_unsettled_bytes: u64,
    max_rows: u64,
    max_age: Duration,
    interval: Duration,
    timeout: Duration,
    pub horizon: Duration,
    restarts: u32,
    /// Processes come and go; otherwise it is links that die, mostly.
    pub rough: bool,
    pub copy_limit: usize,
    pub entry_limit: usize,
}

impl Scenario {
    pub fn draw(rng: &mut StdRng) -> Self {
        let merge = rng.random_bool(0.4);
        let max_unsettled = *[1, 1, 2, 3, 5, 8].get(rng.random_range(0..6)).expect("one of six");
        let sinks = if rng.random_bool(0.5) { vec!["a"] } else { vec!["a", "b"] };
        Self {
            partitions: rng.random_range(1..=4),
            sinks: sinks.into_iter().map(str::to_owned).collect(),
            shared_batcher: rng.random_bool(0.5),
            merge,
            dead_letter: rng.random_bool(0.7),
            scaled_out: merge && rng.random_bool(0.4),
            answers: rng.random_bool(0.3),
            accept_anonymous: rng.random_bool(0.5),
            max_unsettled,
            max_unsettled_bytes: if rng.random_bool(0.2) { 30 } else { 1 << 20 },
            max_rows: rng.random_range(1..=max_unsettled.min(4)),
            max_age: Duration::from_millis(rng.random_range(50..1000)),
            interval: Duration::from_millis(rng.random_range(200..4000)),
            timeout: Duration::from_millis(rng.random_range(4000..12_000)),
            horizon: Duration::from_secs(7),
            rough: rng.random_bool(0.6),
            restarts: rng.random_range(2..8),
            copy_limit: *[0, 2, 1000].get(rng.random_range(0..3)).expect("one of three"),
            entry_limit: *[3, 8, 100].get(rng.random_range(0..3)).expect("one of three"),
        }
    }

    /// Whether a share can be lost while another goes on.
    pub fn branches(&self) -> bool {
        self.sinks.len() > 1
    }

    /// What the next message is.
    pub fn sort(&self, rng: &mut StdRng) -> Sort {
        match rng.random_range(0..20) {
            0 | 1 => Sort::TwoRows,
            2 => Sort::NoRows,
            3 if self.accept_anonymous || self.dead_letter => Sort::Anonymous,
            4 if self.dead_letter => Sort::Panics,
            5 | 6 if self.dead_letter => Sort::Poison,
            7 if self.dead_letter => Sort::RefusedBy(self.sinks[rng.random_range(0..self.sinks.len())].clone()),
            // Two processes that do not know of each other may judge twins differently.
            8 | 9 if self.dead_letter && !self.scaled_out => Sort::Twin,
            _ => Sort::Plain,
        }
    }

    /// The topology of one process.
    pub fn topology(&self, hands: &Hands) -> Topology {
        let receiver = StageName::from("queue");
        let (budget_one, config) = (self.max_unsettled == 1, json!({ "queue": "queue" }));
        let inner = MemoryReceiver::new(hands.world.space.clone()).plan(&config).unwrap_or_else(|e| panic!("{e:?}"));
        let factory =
            Arc::new(FaultyReceiver { inner, hands: hands.clone(), answers: self.answers, _token: hands.token(None) });
        let translator = Arc::new(Sorter::new(hands.clone()));
        let schema = translator.output();
        let kind = Arc::new(FaultySinks::new(hands, budget_one));
        let spec = |name: &str, schema: &SchemaRef, keys: &[&str]| SinkSpec {
            name: name.into(),
            kind: kind.clone(),
            config: match self.merge {
                true => json!({ "table": name, "mode": "merge", "keys": keys }),
                false => json!({ "table": name }),
            },
            guarantee: Guarantee::ExactlyOnce,
            schema: schema.clone(),
        };
        let batcher = |name: &str, sinks: &[String]| {
            Stage::Batcher(BatcherStage {
                name: name.into(),
                max_rows: self.max_rows,
                max_bytes: 1 << 20,
                max_age: self.max_age,
                next: sinks.iter().map(|sink| Stage::Sink(sink.as_str().into())).collect(),
            })
        };
        let next = match self.shared_batcher {
            true => vec![batcher("batcher", &self.sinks)],
            false => self.sinks.chunks(1).map(|sink| batcher(&format!("{}.batcher", sink[0]), sink)).collect(),
        };
        let sorter = Stage::Translator(TranslatorStage { name: "sorter".into(), factory: translator, next });
        let sinks = self.sinks.iter().map(|sink| spec(sink, &schema, &["id", "value", "row"]));
        Topology {
            name: "simulated".into(),
            receivers: BTreeMap::from([(
                receiver,
                Receiver {
                    kind: "memory".into(),
                    factory,
                    partitions: hands.partitions,
                    max_unsettled: self.max_unsettled,
                    max_unsettled_bytes: self.max_unsettled_bytes,
                    max_messages: None,
                    max_time: None,
                    stages: vec![sorter],
                },
            )]),
            sinks: sinks.map(|spec| (spec.name.clone(), spec)).collect(),
            dead_letter: self.dead_letter.then(|| spec(DEAD_LETTER, &dead_letter_schema(), &["id", "value"])),
            checkpoint: Checkpoint { interval: self.interval, timeout: self.timeout, store: StoreConfig::Memory },
            identity: IdentityPolicy {
                horizon: self.horizon,
                missing_id: if self.accept_anonymous { MissingId::Accept } else { MissingId::DeadLetter },
                on_collision: OnCollision::DeadLetter,
                ..IdentityPolicy::default()
            },
            supervision: Supervision {
                backoff: BackoffRange { min: Duration::from_millis(100), max: Duration::from_secs(2) },
                give_up: GiveUp { restarts: self.restarts, within: Duration::from_secs(60) },
                drain_timeout: Duration::from_secs(40),
            },
            telemetry: TelemetryConfig::default(),
            broker: None,
            notes: Vec::new(),
        }
    }
}

/// A translator that does with each message what it says of itself.
struct Sorter {
    output: SchemaRef,
    hands: Hands,
    _token: Token,
}

impl Sorter {
    fn new(hands: Hands) -> Self {
        let output = Arc::new(Schema::new(vec![
            Field::new("id", DataType::Utf8, true),
            Field::new("value", DataType::Utf8, true),
            Field::new("row", DataType::Int32, false),
        ]));
        Self { output, _token: hands.token(None), hands }
    }
}

impl TranslatorFactory for Sorter {
    fn output(&self) -> SchemaRef {
        self.output.clone()
    }

    fn translator(&self) -> Box<dyn Translator> {
        Box::new(Sorting { output: self.output.clone(), _token: self.hands.token(None) })
    }
}

struct Sorting {
    output: SchemaRef,
    _token: Token,
}

impl Translator for Sorting {
    fn translate(&mut self, raw: &Raw) -> Result<Translated> {
        let (ids, values) = (raw.columns["id"].as_string::<i32>(), raw.columns["value"].as_string::<i32>());
        let (mut from, mut numbers, mut rejects) = (Vec::new(), Vec::new(), Vec::new());
        for (at, value) in values.iter().enumerate() {
            let sort = Sort::of_value(value.unwrap_or_default()).expect("a simulated message");
            assert!(sort != Sort::Panics, "simulated panic of the translator");
            if sort == Sort::Poison {
                let row = u32::try_from(at).expect("few");
                rejects.push(Rejected { row, reason: Reason::Decode, detail: "poison".into() });
            }
            for row in 0..sort.rows() {
                from.push(at);
                numbers.push(row);
            }
        }
        let text = |of: &StringArray| {
            let all = from.iter().map(|at| of.iter().nth(*at).flatten());
            Arc::new(all.collect::<StringArray>()) as ArrayRef
        };
        let columns: Vec<ArrayRef> = vec![text(ids), text(values), Arc::new(Int32Array::from(numbers))];
        let columns = RecordBatch::try_new(self.output.clone(), columns).expect("three columns");
        let origin = from.iter().map(|at| raw.origin[*at]).collect();
        Ok(Translated { rows: Rows { columns, origin }, rejects, nulled: 0 })
    }
}
