//! The sinks' connector as the world treats it. What a commit has begun goes on whether or not anybody still waits for it.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, BooleanArray, StringArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use futures::FutureExt;
use serde_json::Value;

use super::checks::Sort;
use super::faults::{Fault, Op};
use super::world::{Hands, Pulse, Token, Verdict};
use crate::connectors::memory::{MemorySink, Moment, Pace};
use crate::flow::registry::{ConfigError, Guarantee, Kind, SinkKind};
use crate::flow::{
    Epoch, Opened, PartitionId, Prepared, Reason, Rejected, Result, Rows, Sink, SinkContext, SinkFactory, SinkInstance,
    StageError,
};

/// The memory sink, reached through a process's hands.
pub(super) struct FaultySinks {
    hands: Hands,
    inner: MemorySink,
    /// Every partition's budget is a single message.
    budget_one: bool,
}

impl FaultySinks {
    pub fn new(hands: &Hands, budget_one: bool) -> Self {
        let inner = MemorySink::new(hands.world.space.clone()).paced(pace(hands.clone()));
        Self { hands: hands.clone(), inner, budget_one }
    }
}

/// The way to the table and back: slow at times, and cut with the process.
fn pace(hands: Hands) -> Pace {
    Arc::new(move |moment| {
        let hands = hands.clone();
        async move {
            match moment {
                Moment::Look => hands.alive().await,
                Moment::Put => {
                    let calm = hands.world.state().calm;
                    let most = if !calm && hands.world.chance(5) { 15_000 } else { 20 };
                    tokio::time::sleep(hands.world.millis(0, most)).await;
                    if !hands.lands() {
                        std::future::pending::<()>().await;
                    }
                }
                Moment::Answer => hands.world.check(),
            }
        }
        .boxed()
    })
}

impl Kind for FaultySinks {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn about(&self) -> &'static str {
        self.inner.about()
    }

    fn example(&self) -> &'static str {
        self.inner.example()
    }

    fn schema(&self) -> schemars::Schema {
        self.inner.schema()
    }
}

impl SinkKind for FaultySinks {
    fn guarantee(&self) -> Guarantee {
        Guarantee::ExactlyOnce
    }

    fn check(&self, config: &Value, input: &SchemaRef) -> Vec<ConfigError> {
        self.inner.check(config, input)
    }

    fn build(&self, config: &Value, context: SinkContext) -> Result<Arc<dyn SinkFactory>> {
        let name = context.sink.to_string();
        let inner = self.inner.build(config, context)?;
        let (hands, budget_one) = (self.hands.clone(), self.budget_one);
        Ok(Arc::new(FaultyFactory { name, inner, _token: hands.token(None), hands, budget_one }))
    }
}

struct FaultyFactory {
    name: String,
    inner: Arc<dyn SinkFactory>,
    hands: Hands,
    budget_one: bool,
    _token: Token,
}

impl SinkFactory for FaultyFactory {
    fn sink(&self, partition: &PartitionId) -> SinkInstance {
        let SinkInstance::ExactlyOnce(inner) = self.inner.sink(partition) else { unreachable!("a memory sink") };
        SinkInstance::ExactlyOnce(Box::new(FaultySink {
            inner: Arc::new(tokio::sync::Mutex::new(inner)),
            name: self.name.clone(),
            partition: partition.index,
            hands: self.hands.clone(),
            budget_one: self.budget_one,
            recovering: true,
            _token: self.hands.token(Some(partition.index)),
        }))
    }
}

struct FaultySink {
    inner: Arc<tokio::sync::Mutex<Box<dyn Sink>>>,
    name: String,
    partition: u32,
    hands: Hands,
    budget_one: bool,
    /// Nothing was written with it yet: a commit is a replay.
    recovering: bool,
    _token: Token,
}

impl FaultySink {
    async fn begin(&self, op: Op) -> Result<Verdict> {
        match self.hands.begin(op, &format!("partition {} sink {}", self.partition, self.name)).await {
            Verdict::Hang => std::future::pending().await,
            Verdict::Fail => Err(failure(&self.hands, op)),
            verdict => Ok(verdict),
        }
    }

    fn looks(&self) -> u64 {
        self.hands.world.state().looks.get(&(self.partition, self.name.clone())).copied().unwrap_or_default()
    }
}

fn failure(hands: &Hands, op: Op) -> StageError {
    match hands.world.chance(50) {
        true => StageError::retry(format!("simulated failure of {op:?}")),
        false => StageError::away(format!("simulated absence at {op:?}")),
    }
}

#[async_trait]
impl Sink for FaultySink {
    async fn open(&mut self, adopted: bool) -> Result<Opened> {
        self.begin(Op::Open).await?;
        *self.hands.world.state().looks.entry((self.partition, self.name.clone())).or_default() += 1;
        let opened = self.inner.lock().await.open(adopted).await?;
        self.hands.world.note(format!(
            "process {} partition {} sink {} opened: {opened:?}",
            self.hands.process, self.partition, self.name
        ));
        Ok(opened)
    }

    async fn write(&mut self, rows: &Rows) -> Result<Vec<Rejected>> {
        self.begin(Op::Write).await?;
        self.recovering = false;
        let values = rows.columns.column_by_name("value").and_then(|c| c.as_any().downcast_ref::<StringArray>());
        let Some(values) = values else { return self.inner.lock().await.write(rows).await };
        let rejects: Vec<_> = (0u32..)
            .zip(values.iter())
            .filter(|(_, value)| Sort::of_value(value.unwrap_or_default()) == Some(Sort::RefusedBy(self.name.clone())))
            .map(|(row, _)| Rejected { row, reason: Reason::Sink, detail: "simulated".into() })
            .collect();
        let mut keep = vec![true; rows.len()];
        rejects.iter().for_each(|reject| keep[reject.row as usize] = false);
        let columns = filter_record_batch(&rows.columns, &BooleanArray::from(keep.clone())).expect("a mask");
        let origin = rows.origin.iter().zip(keep).filter(|(_, keep)| *keep).map(|(origin, _)| *origin).collect();
        self.inner.lock().await.write(&Rows { columns, origin }).await?;
        Ok(rejects)
    }

    async fn prepare(&mut self, epoch: Epoch) -> Result<Option<Prepared>> {
        self.recovering = false;
        self.begin(Op::Prepare).await?;
        self.inner.lock().await.prepare(epoch).await
    }

    async fn commit(&mut self, epoch: Epoch, base: Epoch, prepared: &Prepared, group: usize) -> Result<()> {
        let world = self.hands.world.clone();
        if self.recovering && self.budget_one && !world.state().calm && world.chance(10) {
            world.count(Fault::ParkedInReplayWithBudgetOne);
            return Err(StageError::park("simulated refusal of a replay"));
        }
        let verdict = self.begin(Op::Commit).await?;
        let delay = if let Verdict::FailAndDoLater(delay) = verdict { delay } else { Duration::ZERO };
        let (inner, prepared, hands) = (self.inner.clone(), prepared.clone(), self.hands.clone());
        let (partition, name, looked) = (self.partition, self.name.clone(), self.looks());
        let commit = actix::spawn(async move {
            tokio::time::sleep(delay).await;
            if !hands.lands() {
                return Err(StageError::away("gone"));
            }
            let put =
                |hands: &Hands| hands.world.space.table(&name).versions().iter().filter(|v| v.txn.1 == epoch).count();
            let before = put(&hands);
            let result = inner.lock().await.commit(epoch, base, &prepared, group).await;
            let landed = put(&hands) > before;
            let mut state = hands.world.state();
            state
                .note(format!("process {} partition {partition} sink {name} epoch {epoch}: {result:?}", hands.process));
            if result.is_ok() && landed {
                if hands.pulse() == Pulse::Cut {
                    state.fired.count(Fault::CommitAfterItsProcess);
                }
                if state.looks.get(&(partition, name)).is_some_and(|looks| *looks > looked) {
                    state.fired.count(Fault::CommitAfterTheLook);
                }
            }
            result
        });
        match verdict {
            Verdict::FailAndDoLater(_) => return Err(failure(&self.hands, Op::Commit)),
            verdict => {
                let result = commit.await.unwrap_or_else(|_| Err(StageError::retry("the commit panicked")));
                self.hands.alive().await;
                if verdict == Verdict::DoAndFail { Err(failure(&self.hands, Op::Commit)) } else { result }
            }
        }
    }
}
