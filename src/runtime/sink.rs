//! The sink actor: lends a connector to one operation at a time, in mailbox order, and keeps the receipts of what it wrote
//! until the epoch is complete.
//!
//! While an operation runs the mailbox stands still (`AtomicResponse`); every operation races the kill switch and a time
//! limit, because nothing else could stop it.

use std::collections::{BTreeSet, VecDeque};

use actix::prelude::*;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::exclusive::{Exclusive, Terms};
use super::message::{CommitCheckpoint, CompleteCheckpoint, OpenSink, Reject, StageEvent, Store};
use super::pool::Weight;
use super::stage::Stage;
use crate::checkpoint::{Commit, SinkReport};
use crate::clock;
use crate::flow::mutation::{Rule, removed};
use crate::flow::{
    Barrier, Bulk, Digest, Element, Epoch, Identity, Opened, Prepared, Receipt, Rejected, Result, Rows, Share,
    SinkInstance,
};
use crate::telemetry::metrics::PartitionMetrics;

/// One sink of one partition; the dead letter's sink is one too.
pub(super) struct SinkActor {
    pub stage: Stage,
    pub connector: Exclusive<SinkInstance>,
    pub terms: Terms,
    /// `None`: this is the dead letter itself, and what it cannot hold ends the generation.
    pub dead_letter: Option<Recipient<Reject>>,
    /// Receipts of the current epoch.
    pub held: Vec<Receipt>,
    /// Identities that this sink rejected in the current epoch.
    pub rejected: Vec<Identity>,
    /// Receipts of epochs that are prepared and not complete.
    pub prepared: VecDeque<(Epoch, Vec<Receipt>)>,
    pub metrics: PartitionMetrics,
}

impl Actor for SinkActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.stage.stop_when_killed(self, ctx);
    }
}

impl SinkActor {
    /// Runs one operation of the connector, then `then` with what it returned.
    fn operate<R: Send + 'static>(
        &mut self,
        weight: Weight,
        what: &str,
        operation: impl for<'a> FnOnce(&'a mut SinkInstance) -> BoxFuture<'a, Result<R>> + Send + 'static,
        then: impl FnOnce(&mut Self, R, &mut Context<Self>) + 'static,
    ) -> AtomicResponse<Self, ()> {
        let connector = self.connector.take();
        let terms = self.terms.clone();
        let what = format!("{what} of sink '{}'", self.stage.guard.stage);
        let work = async move {
            match connector {
                Some(connector) => terms.run(weight, what, connector, operation).await,
                // It was lost in an operation that failed: the stage is stopping.
                None => Ok(None),
            }
        };
        AtomicResponse::new(Box::pin(work.into_actor(self).map(|answer, sink, ctx| match answer {
            Ok(Some((connector, value))) => {
                sink.connector.put(connector);
                then(sink, value, ctx);
            }
            Ok(None) => ctx.stop(),
            Err(error) => sink.stage.fail(error, ctx),
        })))
    }

    fn write(&mut self, bulk: Bulk) -> AtomicResponse<Self, ()> {
        let Bulk { columns, shares } = bulk;
        let rows = columns.num_rows();
        if rows == 0 {
            self.held.extend(shares.into_iter().map(|share| share.receipt));
            return AtomicResponse::new(Box::pin(async {}.into_actor(self)));
        }
        let origin: Vec<u32> = shares.iter().flat_map(|share| share.origin.iter().copied()).collect();
        debug_assert_eq!(origin.len(), rows, "a row, an origin");
        let batch = Rows { columns, origin };
        let written = |sink: &mut Self, rejects, ctx: &mut Context<Self>| sink.written(shares, rejects, ctx);
        self.operate(Weight::Heavy, "a write", |connector| write(connector, batch).boxed(), written)
    }

    fn written(&mut self, shares: Vec<Share>, rejects: Vec<Rejected>, ctx: &mut Context<Self>) {
        let mut rejects = rejects.into_iter().peekable();
        let mut start = 0;
        for Share { origin, mut receipt } in shares {
            let end = start + u32::try_from(origin.len()).expect("fewer than 2^32 rows");
            let mut why = Vec::new();
            while let Some(reject) = rejects.next_if(|reject| reject.row < end) {
                why.push((origin[(reject.row - start) as usize], reject.reason, reject.detail));
            }
            start = end;
            if !why.is_empty() {
                let Some(dead_letter) = &self.dead_letter else {
                    let (_, reason, detail) = why.swap_remove(0);
                    let context =
                        format!("the dead letter cannot hold a rejected message ({}: {detail})", reason.as_str());
                    return self.stage.fail(crate::flow::StageError::park(context), ctx);
                };
                let origins: Vec<_> = why.iter().map(|(origin, ..)| *origin).collect();
                let rejected = receipt.split(&origins);
                self.rejected.extend(rejected.deliveries().map(|delivery| delivery.identity));
                self.stage.reject(dead_letter, rejected, why);
            }
            if !receipt.is_empty() {
                self.held.push(receipt);
            }
        }
    }

    fn end_epoch(&mut self, barrier: Barrier) -> AtomicResponse<Self, ()> {
        let epoch = barrier.epoch;
        let ended = move |sink: &mut Self, done, _: &mut Context<Self>| sink.ended(barrier, done);
        self.operate(Weight::Heavy, "a prepare", move |connector| prepare(connector, epoch).boxed(), ended)
    }

    fn ended(&mut self, barrier: Barrier, done: Prepare) {
        let receipts = std::mem::take(&mut self.held);
        // A message rejected by two branches has two receipts in the dead letter, and counts once.
        let mut identities = BTreeSet::new();
        let mut held = Digest::default();
        for delivery in receipts.iter().flat_map(Receipt::deliveries) {
            if self.dead_letter.is_some() || identities.insert(delivery.identity) {
                held.add(delivery.identity);
            }
        }
        let prepared = match done {
            Prepare::Flushed => {
                self.settle(receipts);
                None
            }
            Prepare::Durable(prepared) if removed(Rule::AcceptAfterCommit) => {
                self.settle(receipts);
                prepared
            }
            Prepare::Durable(prepared) => {
                self.prepared.push_back((barrier.epoch, receipts));
                prepared
            }
        };
        let report = SinkReport {
            sent: barrier.sent,
            rejected_before: barrier.rejected,
            held,
            rejected: std::mem::take(&mut self.rejected),
            cursors: barrier.cursors,
            prepared,
        };
        let sink = self.stage.guard.stage.clone();
        self.stage.report(StageEvent::CheckpointPrepared { sink, epoch: barrier.epoch, report });
    }
}

impl SinkActor {
    /// Resolves this sink's share of these promises.
    fn settle(&self, receipts: Vec<Receipt>) {
        let resolve = if self.dead_letter.is_some() { Receipt::accept } else { Receipt::reject };
        receipts.into_iter().for_each(resolve);
    }
}

enum Prepare {
    /// At least once: everything is where it belongs.
    Flushed,
    /// Exactly once: durable and invisible.
    Durable(Option<Prepared>),
}

async fn write(connector: &mut SinkInstance, rows: Rows) -> Result<Vec<Rejected>> {
    let mut rejects = match connector {
        SinkInstance::ExactlyOnce(sink) => sink.write(&rows).await?,
        SinkInstance::AtLeastOnce(sink) => sink.write(&rows).await?,
    };
    rejects.sort_by_key(|reject| reject.row);
    Ok(rejects)
}

async fn prepare(connector: &mut SinkInstance, epoch: Epoch) -> Result<Prepare> {
    match connector {
        SinkInstance::ExactlyOnce(sink) => sink.prepare(epoch).await.map(Prepare::Durable),
        SinkInstance::AtLeastOnce(sink) => sink.flush().await.map(|()| Prepare::Flushed),
    }
}

async fn open(connector: &mut SinkInstance, adopted: bool) -> Result<Option<Opened>> {
    match connector {
        SinkInstance::ExactlyOnce(sink) => sink.open(adopted).await.map(Some),
        SinkInstance::AtLeastOnce(sink) => sink.open().await.map(|()| None),
    }
}

async fn show(connector: &mut SinkInstance, epoch: Epoch, commit: Commit) -> Result<()> {
    match connector {
        SinkInstance::ExactlyOnce(sink) => sink.commit(epoch, commit.base, &commit.prepared, commit.group).await,
        // Nothing of it is ever in an entry.
        SinkInstance::AtLeastOnce(_) => Ok(()),
    }
}

impl Handler<OpenSink> for SinkActor {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, OpenSink { adopted }: OpenSink, _: &mut Self::Context) -> Self::Result {
        self.operate(
            Weight::Light,
            "opening",
            move |connector| open(connector, adopted).boxed(),
            |sink, opened, _| {
                let name = sink.stage.guard.stage.clone();
                sink.stage.report(StageEvent::SinkOpened { sink: name, opened });
            },
        )
    }
}

impl Handler<Store> for SinkActor {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, Store(element): Store, _: &mut Self::Context) -> Self::Result {
        match element {
            Element::Rows(bulk) => self.write(bulk),
            Element::Barrier(barrier) => self.end_epoch(barrier),
        }
    }
}

impl Handler<CommitCheckpoint> for SinkActor {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, CommitCheckpoint { epoch, commit }: CommitCheckpoint, _: &mut Self::Context) -> Self::Result {
        let started = clock::now();
        self.operate(
            Weight::Light,
            "a commit",
            move |connector| show(connector, epoch, commit).boxed(),
            move |sink, (), _| {
                sink.metrics.commit.observe(clock::now().saturating_duration_since(started));
                let name = sink.stage.guard.stage.clone();
                sink.stage.report(StageEvent::CheckpointCommitted { sink: name, epoch });
            },
        )
    }
}

impl Handler<CompleteCheckpoint> for SinkActor {
    type Result = ();

    fn handle(&mut self, CompleteCheckpoint { epoch }: CompleteCheckpoint, _: &mut Self::Context) {
        while let Some((_, receipts)) = self.prepared.pop_front_if(|(prepared, _)| *prepared <= epoch) {
            self.settle(receipts);
        }
    }
}
