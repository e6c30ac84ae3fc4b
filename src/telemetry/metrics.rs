//! Every metric: its name, its help and its labels, once.
//!
//! A partition's handles are made with the first call of [`Telemetry::partition`] and are the same for all its
//! generations, so a counter never falls while the process lives, and every series exists from the start with 0. The same
//! numbers are read back for the progress line and the summary ([`Tally`]); nothing is counted twice.
//!
//! Labels are `topology`, `component` (the receiver, as the topology file names it), `partition` and `reason`, and no
//! others: their number is known when the topology is.

use std::collections::BTreeMap;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};

use super::instrument::{Age, Counter, Gauge, Histogram, Rejections, Upkeep};
use crate::flow::{PartitionId, Reason, StageName};

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Behaviour {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// How many observations lay below each bound.
    Histogram,
}

/// What a series of a metric is about, and so which labels it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum About {
    /// The whole process.
    Process,
    /// A receiver.
    Receiver,
    /// A partition of a receiver.
    Partition,
    /// A partition and a reason why its messages were rejected.
    Reason,
}

impl About {
    /// The labels' names, in order.
    pub fn labels(self) -> &'static [&'static str] {
        match self {
            Self::Process => &["topology"],
            Self::Receiver => &["topology", "component"],
            Self::Partition => &["topology", "component", "partition"],
            Self::Reason => &["topology", "component", "partition", "reason"],
        }
    }
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// How it behaves.
    pub behaviour: Behaviour,
    /// What it counts, or in what it is measured.
    pub unit: &'static str,
    /// What each of its series is about.
    pub about: About,
}

macro_rules! metrics {
    ($($ident:ident = $behaviour:ident $name:literal of $unit:ident per $about:ident $help:literal;)*) => {
        $(const $ident: Metric = Metric {
            name: $name,
            help: $help,
            behaviour: Behaviour::$behaviour,
            unit: stringify!($unit),
            about: About::$about,
        };)*

        /// All of them.
        pub const METRICS: &[Metric] = &[$($ident),*];
    };
}

metrics! {
    RECEIVED = Counter "distributary_received_total" of messages per Partition
        "Messages that came from the source, redelivered ones and duplicates among them.";
    DECODED = Counter "distributary_decoded_total" of rows per Partition "Rows that the translator made.";
    NULLED = Counter "distributary_nulled_total" of messages per Partition
        "Messages with null for what could not be read or computed, as `on_error: null` says.";
    COMMITTED = Counter "distributary_committed_total" of messages per Partition
        "Messages that are committed and settled, without those in the dead letter.";
    REJECTED = Counter "distributary_rejected_total" of messages per Reason "Messages in the dead letter, by reason.";
    REDELIVERED = Counter "distributary_redelivered_total" of messages per Partition
        "Messages that the source delivered again.";
    DUPLICATES = Counter "distributary_duplicates_total" of messages per Partition
        "Messages or rows that were dropped because they are committed already.";
    RESTARTS = Counter "distributary_restarts_total" of restarts per Partition
        "Generations that were built after the first.";
    RECONNECTS = Counter "distributary_reconnects_total" of connections per Partition
        "Connections to the source after the first.";
    CHECKPOINTS = Counter "distributary_checkpoints_total" of epochs per Partition
        "Epochs that all sinks have committed.";
    UNSETTLED = Gauge "distributary_unsettled" of messages per Partition "Messages received and not settled.";
    UNSETTLED_BYTES = Gauge "distributary_unsettled_bytes" of bytes per Partition "Their bytes.";
    OLDEST_UNSETTLED = Gauge "distributary_oldest_unsettled_seconds" of seconds per Partition
        "Age of the oldest of them.";
    KNOWN_IDS = Gauge "distributary_known_ids" of identities per Receiver
        "Identities that the receiver keeps to recognise redeliveries.";
    CHECKPOINT_AGE = Gauge "distributary_checkpoint_age_seconds" of seconds per Partition
        "Time since the last checkpoint was committed, or since work began without one; 0 while nothing is open.";
    READY = Gauge "distributary_ready" of flag per Process "1 while /ready says ready, 0 while it says why not.";
    PARKED = Gauge "distributary_parked" of flag per Partition
        "1 while the partition is given up, until a person has acted and the process is started again; otherwise 0.";
    COMMIT = Histogram "distributary_commit_seconds" of seconds per Partition
        "How long a sink took to commit an epoch, once the log had it; with several sinks, each of them.";
    END_TO_END = Histogram "distributary_end_to_end_seconds" of seconds per Partition
        "From a message's arrival until it is committed.";
}

/// Upper bounds of `distributary_commit_seconds`: a local disk needs milliseconds, an object store seconds.
const COMMIT_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Upper bounds of `distributary_end_to_end_seconds`: at the least a commit, as a rule a checkpoint interval.
const END_TO_END_BUCKETS: &[f64] =
    &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// What one partition counts. Cheap to clone, and the same over all its generations.
#[derive(Clone)]
#[expect(missing_docs, reason = "each is the metric of its name, and its help says what it is")]
pub struct PartitionMetrics {
    pub received: Counter,
    pub decoded: Counter,
    pub nulled: Counter,
    pub committed: Counter,
    pub rejected: Rejections,
    pub redelivered: Counter,
    pub duplicates: Counter,
    pub restarts: Counter,
    pub reconnects: Counter,
    pub checkpoints: Counter,
    pub unsettled: Gauge,
    pub unsettled_bytes: Gauge,
    pub oldest_unsettled: Age,
    pub checkpoint_age: Age,
    pub parked: Gauge,
    pub commit: Histogram,
    pub end_to_end: Histogram,
}

impl PartitionMetrics {
    /// The numbers as they are now.
    pub fn tally(&self) -> Tally {
        Tally {
            received: self.received.get(),
            decoded: self.decoded.get(),
            committed: self.committed.get(),
            rejected: self.rejected.total(),
            redelivered: self.redelivered.get(),
            duplicates: self.duplicates.get(),
            restarts: self.restarts.get(),
            reconnects: self.reconnects.get(),
            checkpoints: self.checkpoints.get(),
            unsettled: self.unsettled.get(),
            unsettled_bytes: self.unsettled_bytes.get(),
            checkpoint_age: self.checkpoint_age.get(),
        }
    }
}

/// What the partitions of a receiver count together.
#[derive(Clone)]
pub struct ReceiverMetrics {
    /// `distributary_known_ids`.
    pub known_ids: Gauge,
}

/// Plain numbers, of one partition or added up over several, for the progress line and the summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the metric of its name, and its help says what it is")]
pub struct Tally {
    pub received: u64,
    pub decoded: u64,
    pub committed: u64,
    pub rejected: u64,
    pub redelivered: u64,
    pub duplicates: u64,
    pub restarts: u64,
    pub reconnects: u64,
    pub checkpoints: u64,
    pub unsettled: u64,
    pub unsettled_bytes: u64,
    /// Of several partitions the greatest: the one that is worst off.
    pub checkpoint_age: Option<Duration>,
}

impl Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            decoded: self.decoded + other.decoded,
            committed: self.committed + other.committed,
            rejected: self.rejected + other.rejected,
            redelivered: self.redelivered + other.redelivered,
            duplicates: self.duplicates + other.duplicates,
            restarts: self.restarts + other.restarts,
            reconnects: self.reconnects + other.reconnects,
            checkpoints: self.checkpoints + other.checkpoints,
            unsettled: self.unsettled + other.unsettled,
            unsettled_bytes: self.unsettled_bytes + other.unsettled_bytes,
            checkpoint_age: self.checkpoint_age.max(other.checkpoint_age),
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), Add::add)
    }
}

/// The metrics of one run of one topology. Clones share them.
#[derive(Clone)]
pub struct Telemetry(Arc<Shared>);

struct Shared {
    topology: String,
    recorder: PrometheusRecorder,
    upkeep: Arc<Upkeep>,
    ready: Gauge,
    partitions: Mutex<BTreeMap<PartitionId, PartitionMetrics>>,
    receivers: Mutex<BTreeMap<StageName, ReceiverMetrics>>,
}

impl Telemetry {
    /// No metrics yet, for the topology of this name.
    pub fn new(topology: impl Into<String>) -> Self {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Full(COMMIT.name.to_owned()), COMMIT_BUCKETS)
            .and_then(|builder| {
                builder.set_buckets_for_metric(Matcher::Full(END_TO_END.name.to_owned()), END_TO_END_BUCKETS)
            })
            .expect("the lists of buckets are not empty")
            .build_recorder();
        for metric in METRICS {
            let (name, help) = (metric.name.into(), metric.help.into());
            match metric.behaviour {
                Behaviour::Counter => recorder.describe_counter(name, None, help),
                Behaviour::Gauge => recorder.describe_gauge(name, None, help),
                Behaviour::Histogram => recorder.describe_histogram(name, None, help),
            }
        }
        let upkeep = Arc::new(Upkeep::new(recorder.handle()));
        let topology = topology.into();
        let ready = Gauge::new(recorder.register_gauge(&key(&topology, READY, Vec::new()), &METADATA));
        Self(Arc::new(Shared {
            topology,
            recorder,
            upkeep,
            ready,
            partitions: Mutex::default(),
            receivers: Mutex::default(),
        }))
    }

    /// The topology's name.
    pub fn topology(&self) -> &str {
        &self.0.topology
    }

    /// The handles of one partition; called again, the same ones. With the first its series exist.
    pub fn partition(&self, receiver: &StageName, partition: u32) -> PartitionMetrics {
        self.receiver(receiver);
        let id = PartitionId { receiver: receiver.clone(), index: partition };
        lock(&self.0.partitions).entry(id).or_insert_with_key(|id| self.register(id)).clone()
    }

    /// The handles of one receiver; called again, the same ones.
    pub fn receiver(&self, receiver: &StageName) -> ReceiverMetrics {
        let labels = || vec![Label::new("component", receiver.as_str().to_owned())];
        lock(&self.0.receivers)
            .entry(receiver.clone())
            .or_insert_with(|| ReceiverMetrics { known_ids: self.gauge(KNOWN_IDS, labels()) })
            .clone()
    }

    /// The numbers of each receiver, added up over its partitions.
    pub fn tallies(&self) -> BTreeMap<StageName, Tally> {
        let mut tallies = BTreeMap::<_, Tally>::new();
        for (id, partition) in &*lock(&self.0.partitions) {
            *tallies.entry(id.receiver.clone()).or_default() += partition.tally();
        }
        tallies
    }

    /// All series in the text format of Prometheus; `ready`: what `/ready` says now.
    pub fn render(&self, ready: bool) -> String {
        self.0.ready.set(ready.into());
        for partition in lock(&self.0.partitions).values() {
            partition.oldest_unsettled.show();
            partition.checkpoint_age.show();
        }
        self.0.recorder.handle().render()
    }

    fn register(&self, id: &PartitionId) -> PartitionMetrics {
        let labels = || {
            let component = Label::new("component", id.receiver.as_str().to_owned());
            vec![component, Label::new("partition", id.index.to_string())]
        };
        let with_reason = |reason: Reason| {
            let mut labels = labels();
            labels.push(Label::new("reason", reason.as_str()));
            labels
        };
        PartitionMetrics {
            received: self.counter(RECEIVED, labels()),
            decoded: self.counter(DECODED, labels()),
            nulled: self.counter(NULLED, labels()),
            committed: self.counter(COMMITTED, labels()),
            rejected: Rejections::new(|reason| self.counter(REJECTED, with_reason(reason))),
            redelivered: self.counter(REDELIVERED, labels()),
            duplicates: self.counter(DUPLICATES, labels()),
            restarts: self.counter(RESTARTS, labels()),
            reconnects: self.counter(RECONNECTS, labels()),
            checkpoints: self.counter(CHECKPOINTS, labels()),
            unsettled: self.gauge(UNSETTLED, labels()),
            unsettled_bytes: self.gauge(UNSETTLED_BYTES, labels()),
            oldest_unsettled: self.age(OLDEST_UNSETTLED, labels()),
            checkpoint_age: self.age(CHECKPOINT_AGE, labels()),
            parked: self.gauge(PARKED, labels()),
            commit: self.histogram(COMMIT, labels()),
            end_to_end: self.histogram(END_TO_END, labels()),
        }
    }

    fn key(&self, metric: Metric, labels: Vec<Label>) -> Key {
        key(&self.0.topology, metric, labels)
    }

    fn counter(&self, metric: Metric, labels: Vec<Label>) -> Counter {
        Counter::new(self.0.recorder.register_counter(&self.key(metric, labels), &METADATA))
    }

    fn gauge(&self, metric: Metric, labels: Vec<Label>) -> Gauge {
        Gauge::new(self.0.recorder.register_gauge(&self.key(metric, labels), &METADATA))
    }

    fn age(&self, metric: Metric, labels: Vec<Label>) -> Age {
        Age::new(self.0.recorder.register_gauge(&self.key(metric, labels), &METADATA))
    }

    fn histogram(&self, metric: Metric, labels: Vec<Label>) -> Histogram {
        let shown = self.0.recorder.register_histogram(&self.key(metric, labels), &METADATA);
        Histogram::new(shown, self.0.upkeep.clone())
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Telemetry({})", self.topology())
    }
}

/// A series: the metric, and the labels that follow `topology`.
fn key(topology: &str, metric: Metric, mut labels: Vec<Label>) -> Key {
    labels.insert(0, Label::new("topology", topology.to_owned()));
    debug_assert!(labels.iter().map(Label::key).eq(metric.about.labels().iter().copied()), "{}", metric.name);
    Key::from_parts(metric.name, labels)
}

/// The exporter does not look at it.
static METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

/// No map is ever left half changed, so a panic elsewhere does not spoil it.
fn lock<T>(map: &Mutex<T>) -> MutexGuard<'_, T> {
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::clock;

    /// The samples of one metric, without help and type.
    fn samples<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name)).collect()
    }

    #[test]
    fn every_series_is_there_from_the_start_with_0() {
        let telemetry = Telemetry::new("orders");
        telemetry.partition(&"lake".into(), 3);
        let text = telemetry.render(true);
        for metric in METRICS {
            assert!(text.contains(&format!("# HELP {} {}\n", metric.name, metric.help)), "{}", metric.name);
            let suffix = if metric.behaviour == Behaviour::Histogram { "_count" } else { "" };
            let samples = samples(&text, &format!("{}{suffix}", metric.name));
            let expected = if *metric == REJECTED { Reason::ALL.len() } else { 1 };
            assert_eq!(samples.len(), expected, "{} in\n{text}", metric.name);
            for sample in samples {
                let labels = sample.split_once('{').and_then(|(_, rest)| rest.split_once('}')).expect("labels").0;
                let names: Vec<_> = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0)).collect();
                assert_eq!(names, metric.about.labels(), "{sample}");
                let expected = if *metric == READY { " 1" } else { " 0" };
                assert!(sample.ends_with(expected), "{sample}");
            }
        }
        let buckets = samples(&text, "distributary_commit_seconds_bucket");
        assert_eq!(buckets.len(), COMMIT_BUCKETS.len() + 1);
        let all: BTreeSet<_> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once('{')?.1.split_once('}'))
            .flat_map(|(labels, _)| labels.split(',').filter_map(|label| label.split_once('=')))
            .map(|(label, _)| label)
            .collect();
        assert_eq!(Vec::from_iter(all), ["component", "le", "partition", "reason", "topology"]);
    }

    #[test]
    fn what_is_counted_is_shown_and_read_back() {
        let telemetry = Telemetry::new("orders");
        let (first, again) = (telemetry.partition(&"lake".into(), 0), telemetry.partition(&"lake".into(), 0));
        first.received.add(5);
        again.received.add(2);
        first.rejected.add(Reason::Panic, 1);
        first.unsettled.set(4);
        telemetry.partition(&"lake".into(), 1).received.add(10);
        telemetry.receiver(&"lake".into()).known_ids.set(9);
        first.commit.observe(Duration::from_millis(30));

        let lake = telemetry.tallies()[&"lake".into()];
        assert_eq!((lake.received, lake.rejected, lake.unsettled), (17, 1, 4));
        let text = telemetry.render(true);
        for line in [
            "distributary_received_total{topology=\"orders\",component=\"lake\",partition=\"0\"} 7",
            "distributary_rejected_total{topology=\"orders\",component=\"lake\",partition=\"0\",reason=\"panic\"} 1",
            "distributary_known_ids{topology=\"orders\",component=\"lake\"} 9",
            "distributary_commit_seconds_bucket{topology=\"orders\",component=\"lake\",partition=\"0\",le=\"0.025\"} 0",
            "distributary_commit_seconds_bucket{topology=\"orders\",component=\"lake\",partition=\"0\",le=\"0.05\"} 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn two_runs_in_one_process_do_not_mix() {
        let (one, two) = (Telemetry::new("a"), Telemetry::new("b"));
        one.partition(&"r".into(), 0).received.add(1);
        assert_eq!(two.tallies().len(), 0);
        assert!(!two.render(true).contains("component"));
    }

    #[tokio::test(start_paused = true)]
    async fn ages_grow_while_nobody_sets_them() {
        let telemetry = Telemetry::new("orders");
        let metrics = telemetry.partition(&"lake".into(), 0);
        metrics.checkpoint_age.since(clock::tick());
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(metrics.tally().checkpoint_age, Some(Duration::from_secs(90)));
        let age = samples(&telemetry.render(true), CHECKPOINT_AGE.name)[0].to_owned();
        assert!(age.ends_with(" 90"), "{age}");
        metrics.checkpoint_age.clear();
        assert_eq!(metrics.tally().checkpoint_age, None);
    }

    #[test]
    fn observations_do_not_pile_up_unread_and_none_is_lost() {
        let telemetry = Telemetry::new("orders");
        let metrics = telemetry.partition(&"lake".into(), 0);
        for _ in 0..100 {
            metrics.end_to_end.observe_many(Duration::from_secs(1), 1_000);
        }
        let count = samples(&telemetry.render(true), "distributary_end_to_end_seconds_count")[0].to_owned();
        assert!(count.ends_with(" 100000"), "{count}");
    }
}
