//! The sink actor: lends a connector to one operation at a time, and keeps the receipts of what it wrote until the epoch is
//! complete.
//!
//! Rows and barriers wait for the connector in the order in which they came. A commit goes before them: what waits belongs
//! to later epochs, and the budget that the commit sets free is what lets intake go on. Every operation races the kill
//! switch and a time limit, because nothing else could stop it.

use std::collections::{BTreeSet, VecDeque};

use actix::prelude::*;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::Instant;

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
    pub waiting: Waiting,
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

/// What is to be done when the connector is free.
#[derive(Default)]
pub(super) struct Waiting {
    commits: VecDeque<(Instant, CommitCheckpoint)>,
    elements: VecDeque<Element<Bulk>>,
}

impl Actor for SinkActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.stage.stop_when_killed(self, ctx);
    }
}

impl SinkActor {
    /// Takes up what waits, until an operation has the connector.
    fn go_on(&mut self, ctx: &mut Context<Self>) {
        while self.connector.is_free() {
            if let Some((since, commit)) = self.waiting.commits.pop_front() {
                self.commit(since, commit, ctx);
                continue;
            }
            match self.waiting.elements.pop_front() {
                Some(Element::Rows(bulk)) => self.write(bulk, ctx),
                Some(Element::Barrier(barrier)) => self.end_epoch(barrier, ctx),
                None => return,
            }
        }
    }

    /// Runs one operation of the connector, then `then` with what it returned.
    fn operate<R: Send + 'static>(
        &mut self,
        weight: Weight,
        what: &str,
        operation: impl for<'a> FnOnce(&'a mut SinkInstance) -> BoxFuture<'a, Result<R>> + Send + 'static,
        then: impl FnOnce(&mut Self, R, &mut Context<Self>) + 'static,
        ctx: &mut Context<Self>,
    ) {
        // It is lost in an operation that fails: the stage is stopping.
        let Some(connector) = self.connector.take() else { return };
        let terms = self.terms.clone();
        let what = format!("{what} of sink '{}'", self.stage.guard.stage);
        let work = terms.run(weight, what, connector, operation);
        ctx.spawn(work.into_actor(self).map(|answer, sink, ctx| match answer {
            Ok(Some((connector, value))) => {
                sink.connector.put(connector);
                then(sink, value, ctx);
                sink.go_on(ctx);
            }
            Ok(None) => ctx.stop(),
            Err(error) => sink.stage.fail(error, ctx),
        }));
    }

    fn write(&mut self, bulk: Bulk, ctx: &mut Context<Self>) {
        let Bulk { columns, shares } = bulk;
        let rows = columns.num_rows();
        if rows == 0 {
            self.held.extend(shares.into_iter().map(|share| share.receipt));
            return;
        }
        let origin: Vec<u32> = shares.iter().flat_map(|share| share.origin.iter().copied()).collect();
        debug_assert_eq!(origin.len(), rows, "a row, an origin");
        let batch = Rows { columns, origin };
        let written = |sink: &mut Self, rejects, ctx: &mut Context<Self>| sink.written(shares, rejects, ctx);
        self.operate(Weight::Heavy, "a write", |connector| write(connector, batch).boxed(), written, ctx);
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

    fn end_epoch(&mut self, barrier: Barrier, ctx: &mut Context<Self>) {
        let epoch = barrier.epoch;
        let ended = move |sink: &mut Self, done, _: &mut Context<Self>| sink.ended(barrier, done);
        self.operate(Weight::Heavy, "a prepare", move |connector| prepare(connector, epoch).boxed(), ended, ctx);
    }

    fn commit(&mut self, since: Instant, commit: CommitCheckpoint, ctx: &mut Context<Self>) {
        let CommitCheckpoint { epoch, commit } = commit;
        let committed = move |sink: &mut Self, (), _: &mut Context<Self>| {
            sink.metrics.commit.observe(clock::now().saturating_duration_since(since));
            let name = sink.stage.guard.stage.clone();
            sink.stage.report(StageEvent::CheckpointCommitted { sink: name, epoch });
        };
        self.operate(
            Weight::Light,
            "a commit",
            move |connector| show(connector, epoch, commit).boxed(),
            committed,
            ctx,
        );
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
    type Result = ();

    fn handle(&mut self, OpenSink { adopted }: OpenSink, ctx: &mut Self::Context) {
        let opened = |sink: &mut Self, opened, _: &mut Context<Self>| {
            let name = sink.stage.guard.stage.clone();
            sink.stage.report(StageEvent::SinkOpened { sink: name, opened });
        };
        self.operate(Weight::Light, "opening", move |connector| open(connector, adopted).boxed(), opened, ctx);
    }
}

impl Handler<Store> for SinkActor {
    type Result = ();

    fn handle(&mut self, Store(element): Store, ctx: &mut Self::Context) {
        self.waiting.elements.push_back(element);
        self.go_on(ctx);
    }
}

impl Handler<CommitCheckpoint> for SinkActor {
    type Result = ();

    fn handle(&mut self, commit: CommitCheckpoint, ctx: &mut Self::Context) {
        self.waiting.commits.push_back((clock::now(), commit));
        self.go_on(ctx);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use arrow::array::{Int64Array, RecordBatch};
    use async_trait::async_trait;
    use tokio::sync::{Semaphore, mpsc};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::flow::{Committed, Delivery, DeliveryId, Generation, Outcome, PartitionId, Resolved, Sink};
    use crate::runtime::Placement;
    use crate::runtime::exit_guard::Life;
    use crate::runtime::message::{GenerationEnded, Report, StageExited};
    use crate::runtime::pool::Pool;
    use crate::telemetry::Telemetry;

    /// Says what it is asked to do, and needs a permit for each write.
    struct Slow {
        asked: mpsc::UnboundedSender<String>,
        permits: Arc<Semaphore>,
    }

    impl Slow {
        fn say(&self, what: String) {
            self.asked.send(what).expect("the test listens");
        }
    }

    #[async_trait]
    impl Sink for Slow {
        async fn open(&mut self, _: bool) -> Result<Opened> {
            Ok(Opened { committed: Committed::At(Epoch(0)), foreign: false })
        }

        async fn write(&mut self, rows: &Rows) -> Result<Vec<Rejected>> {
            self.say(format!("write {}", rows.len()));
            self.permits.acquire().await.expect("open").forget();
            Ok(Vec::new())
        }

        async fn prepare(&mut self, epoch: Epoch) -> Result<Option<Prepared>> {
            self.say(format!("prepare {epoch}"));
            Ok(Some(Prepared { rows: 1, payload: String::new() }))
        }

        async fn commit(&mut self, epoch: Epoch, _: Epoch, _: &Prepared, _: usize) -> Result<()> {
            self.say(format!("commit {epoch}"));
            Ok(())
        }
    }

    /// Everyone a stage talks to.
    struct Others;

    impl Actor for Others {
        type Context = Context<Self>;
    }

    macro_rules! takes {
        ($($message:ty),*) => {
            $(impl Handler<$message> for Others {
                type Result = ();

                fn handle(&mut self, _: $message, _: &mut Self::Context) {}
            })*
        };
    }

    takes!(Report, Reject, StageExited, GenerationEnded);

    fn sink(connector: Slow) -> Addr<SinkActor> {
        let (others, partition) = (Others.start(), PartitionId::new("in", 0));
        let telemetry = Telemetry::new("test");
        let metrics = telemetry.partition(&partition.receiver, partition.index);
        let life = Life::new(partition, Generation(1), others.clone().recipient(), others.clone().recipient());
        let kill = CancellationToken::new();
        let pool = Pool::new(Placement::Current).expect("nothing to start");
        let sink = SinkActor {
            stage: Stage {
                guard: life.guard("out".into()),
                kill: kill.clone(),
                coordinator: others.clone().recipient(),
            },
            connector: Exclusive::new(SinkInstance::ExactlyOnce(Box::new(connector))),
            waiting: Waiting::default(),
            terms: Terms { pool, kill, limit: Duration::from_secs(60) },
            dead_letter: Some(others.recipient()),
            held: Vec::new(),
            rejected: Vec::new(),
            prepared: VecDeque::new(),
            metrics,
        };
        sink.start()
    }

    fn rows(n: u64, settled: &mpsc::UnboundedSender<Resolved>) -> Store {
        let values = Int64Array::from_iter_values((0..n).map(|n| n.cast_signed()));
        let columns = RecordBatch::try_from_iter([("n", Arc::new(values) as _)]).expect("a batch");
        let delivery = |n| Delivery { id: DeliveryId(n), identity: Identity::random(), bytes: 1, anonymous: false };
        let settled = settled.clone();
        let outcomes = Arc::new(move |resolved| drop(settled.send(resolved)));
        let receipt = Receipt::new((0..n).map(delivery).collect(), columns.clone(), outcomes);
        let origin = Rows::one_per_delivery(columns.clone()).origin;
        Store(Element::Rows(Bulk { columns, shares: vec![Share { origin, receipt }] }))
    }

    /// A commit, and the settling that follows it, set the budget free: neither waits for the writes of later epochs.
    #[actix::test]
    async fn a_commit_goes_before_the_writes_that_wait() {
        let (asked, mut said) = mpsc::unbounded_channel();
        let (settled, mut resolved) = mpsc::unbounded_channel();
        let permits = Arc::new(Semaphore::new(1));
        let sink = sink(Slow { asked, permits: permits.clone() });
        let epoch = Epoch(1);
        let barrier = Barrier { epoch, sent: Digest::default(), cursors: Vec::new(), rejected: Vec::new() };
        for store in [rows(1, &settled), Store(Element::Barrier(barrier)), rows(2, &settled), rows(3, &settled)] {
            sink.send(store).await.expect("the sink lives");
        }
        let mut next = async || said.recv().await.expect("the sink lives");
        assert_eq!([next().await, next().await, next().await], ["write 1", "prepare 1", "write 2"]);

        let commit = Commit { base: Epoch(0), prepared: Prepared { rows: 1, payload: String::new() }, group: 1 };
        sink.send(CommitCheckpoint { epoch, commit }).await.expect("the sink lives");
        permits.add_permits(1);
        assert_eq!([next().await, next().await], ["commit 1", "write 3"]);
        sink.send(CompleteCheckpoint { epoch }).await.expect("the sink lives");
        let Resolved { outcome, deliveries } = resolved.recv().await.expect("settled while a write runs");
        assert_eq!((outcome, deliveries.len()), (Outcome::Accepted, 1));
    }
}
