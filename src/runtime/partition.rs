//! Builds one generation of one partition, from the last stage back to the first: *the* list of stages.
//!
//! Every actor is complete at birth, because what it sends to exists already. Nothing is read or connected here; the
//! coordinator has the sinks opened, and the receiver connects when the partition has recovered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::prelude::*;
use arrow::datatypes::SchemaRef;
use tokio_util::sync::CancellationToken;

use super::accumulator::{Accumulator, Limits};
use super::batcher::BatcherActor;
use super::dead_letter::DeadLetterActor;
use super::exclusive::{Exclusive, Terms};
use super::exit_guard::Life;
use super::message::{Forward, Reject, Report, Store};
use super::pool::Pool;
use super::quota::Quota;
use super::receiver::{EpochState, LinkState, ReceiverActor, ReceiverPolicy};
use super::sink::SinkActor;
use super::stage::{Outlets, Stage, StoreOutlets};
use super::status::Status;
use super::translator::TranslatorActor;
use crate::checkpoint::Tree;
use crate::flow::{Budget, Generation, PartitionId, Seen, SinkFactory, SourceContext, StageName};
use crate::telemetry::metrics::Telemetry;
use crate::topology::{self, Topology, dead_letter_schema};

/// What all generations of all partitions are built from.
pub(super) struct Plan {
    pub topology: Topology,
    pub sinks: BTreeMap<StageName, Arc<dyn SinkFactory>>,
    pub seens: BTreeMap<StageName, Arc<Mutex<Seen>>>,
    pub quotas: BTreeMap<StageName, Quota>,
    pub embedded_broker: Option<std::net::SocketAddr>,
    pub pool: Pool,
    pub status: Status,
    pub telemetry: Telemetry,
    /// How long one operation of a sink may take.
    pub operation_limit: Duration,
}

/// The addresses of a generation, for the coordinator.
#[derive(Clone)]
pub(super) struct Handles {
    pub partition: PartitionId,
    pub generation: Generation,
    /// `None`: only the log knows this partition, and nothing is received for it.
    pub receiver: Option<Addr<ReceiverActor>>,
    /// Every sink of its tree, the dead letter's included.
    pub sinks: BTreeMap<StageName, Addr<SinkActor>>,
    pub dead_letter: Addr<DeadLetterActor>,
}

/// One generation to be built.
pub(super) struct Build {
    pub plan: Arc<Plan>,
    pub partition: PartitionId,
    pub generation: Generation,
    pub life: Arc<Life>,
    pub kill: CancellationToken,
    pub coordinator: Recipient<Report>,
    /// For a partition that only the log knows: the sinks its newest part names.
    pub named: BTreeSet<StageName>,
}

impl Plan {
    /// The sinks below a receiver, by what they take part in.
    pub fn tree(&self, receiver: &StageName) -> Tree {
        let sinks = self.topology.sinks_below(receiver).into_iter().cloned().collect();
        let exactly_once = self.topology.exactly_once(receiver).map(|sink| sink.name.clone()).collect();
        Tree { sinks, exactly_once, dead_letter: self.topology.dead_letter.as_ref().map(|sink| sink.name.clone()) }
    }

    /// Whether the topology has this partition.
    pub fn is_configured(&self, partition: &PartitionId) -> bool {
        self.topology.receivers.get(&partition.receiver).is_some_and(|r| partition.index < r.partitions)
    }
}

impl Build {
    /// Starts every stage on the current arbiter.
    pub fn start(self) -> Handles {
        let mut names = self.plan.tree(&self.partition.receiver).sinks;
        names.extend(self.named.iter().filter(|name| self.plan.topology.sinks.contains_key(*name)).cloned());

        let mut sinks = BTreeMap::new();
        let dead_letter_sink = self.plan.topology.dead_letter.as_ref().map(|spec| {
            let address = self.sink(&spec.name, None);
            sinks.insert(spec.name.clone(), address.clone());
            address.recipient::<Store>()
        });
        let dead_letter = start(DeadLetterActor {
            stage: self.stage("rejects".into()),
            topology: self.plan.topology.name.clone(),
            schema: dead_letter_schema(),
            sink: dead_letter_sink,
            waiting: BTreeMap::new(),
            metrics: self.metrics(),
        });
        for name in names {
            let sink = self.sink(&name, Some(dead_letter.clone().recipient()));
            sinks.insert(name, sink);
        }
        let configured = self.plan.is_configured(&self.partition);
        let receiver = configured.then(|| self.receiver(&sinks, dead_letter.clone().recipient()));
        Handles { partition: self.partition.clone(), generation: self.generation, receiver, sinks, dead_letter }
    }

    fn stage(&self, name: StageName) -> Stage {
        let guard = self.life.guard(name);
        Stage { guard, kill: self.kill.clone(), coordinator: self.coordinator.clone() }
    }

    fn metrics(&self) -> crate::telemetry::metrics::PartitionMetrics {
        self.plan.telemetry.partition(&self.partition.receiver, self.partition.index)
    }

    fn sink(&self, name: &StageName, dead_letter: Option<Recipient<Reject>>) -> Addr<SinkActor> {
        let connector = self.plan.sinks[name].sink(&self.partition);
        let (pool, kill, limit) = (self.plan.pool.clone(), self.kill.clone(), self.plan.operation_limit);
        start(SinkActor {
            stage: self.stage(name.clone()),
            connector: Exclusive::new(connector),
            waiting: Default::default(),
            terms: Terms { pool, kill, limit },
            dead_letter,
            held: Vec::new(),
            rejected: Vec::new(),
            prepared: Default::default(),
            metrics: self.metrics(),
        })
    }

    fn receiver(
        &self,
        sinks: &BTreeMap<StageName, Addr<SinkActor>>,
        dead_letter: Recipient<Reject>,
    ) -> Addr<ReceiverActor> {
        let plan = &self.plan;
        let name = &self.partition.receiver;
        let receiver = &plan.topology.receivers[name];
        let columns = receiver.factory.columns();
        let outlets = receiver.stages.iter().map(|stage| self.forward(stage, &columns, sinks, &dead_letter)).collect();
        let identity = &plan.topology.identity;
        let quota = plan.quotas[name].clone();
        start(ReceiverActor {
            stage: self.stage(name.clone()),
            source: Some(receiver.factory.source(SourceContext {
                topology: plan.topology.name.clone(),
                partition: self.partition.clone(),
                embedded_broker: plan.embedded_broker,
            })),
            seen: plan.seens.get(name).filter(|_| !plan.tree(name).exactly_once.is_empty()).cloned(),
            policy: ReceiverPolicy {
                reject_missing_id: identity.missing_id == topology::MissingId::DeadLetter,
                park_on_collision: identity.on_collision == topology::OnCollision::Park,
                horizon: identity.horizon,
                max_ids: identity.max_ids,
                operation_limit: plan.operation_limit,
                answered_end_is_durable: receiver.factory.answered_end_is_durable(),
            },
            budget: Budget::new(receiver.max_unsettled, receiver.max_unsettled_bytes),
            allotment: quota.allotment(),
            quota,
            outlets: Outlets(outlets),
            dead_letter,
            metrics: self.metrics(),
            receiver_metrics: plan.telemetry.receiver(name),
            status: plan.status.clone(),
            reconnect: self.generation > Generation(1),
            link: LinkState::default(),
            epoch: EpochState::default(),
        })
    }

    fn forward(
        &self,
        stage: &topology::Stage,
        input: &SchemaRef,
        sinks: &BTreeMap<StageName, Addr<SinkActor>>,
        dead_letter: &Recipient<Reject>,
    ) -> Recipient<Forward> {
        match stage {
            topology::Stage::Translator(translator) => {
                let output = translator.factory.output();
                let next = translator.next.iter().map(|next| self.forward(next, &output, sinks, dead_letter)).collect();
                start(TranslatorActor {
                    stage: self.stage(translator.name.clone()),
                    factory: translator.factory.clone(),
                    translator: translator.factory.translator(),
                    outlets: Outlets(next),
                    dead_letter: dead_letter.clone(),
                    metrics: self.metrics(),
                    rejected: Vec::new(),
                })
                .recipient()
            }
            topology::Stage::Batcher(batcher) => {
                let next = batcher.next.iter().map(|next| match next {
                    topology::Stage::Sink(name) => sinks[name].clone().recipient(),
                    _ => unreachable!("a checked topology has only sinks after a batcher"),
                });
                let limits = Limits {
                    rows: usize::try_from(batcher.max_rows).unwrap_or(usize::MAX),
                    bytes: usize::try_from(batcher.max_bytes).unwrap_or(usize::MAX),
                    age: batcher.max_age,
                };
                start(BatcherActor {
                    stage: self.stage(batcher.name.clone()),
                    accumulator: Accumulator::new(limits, input.clone()),
                    outlets: StoreOutlets(next.collect()),
                    timer: None,
                })
                .recipient()
            }
            topology::Stage::Sink(_) => unreachable!("a checked topology has a batcher before every sink"),
        }
    }
}

/// Starts an actor whose mailbox has no bound of its own: the budget bounds what can be in it.
fn start<A: Actor<Context = Context<A>>>(actor: A) -> Addr<A> {
    A::create(|ctx| {
        ctx.set_mailbox_capacity(0);
        actor
    })
}
