//! The checkpoint store as the world treats it: entries land late, or their answer is lost.

use std::time::Duration;

use async_trait::async_trait;

use super::faults::{Fault, Op};
use super::world::{Hands, Pulse, Verdict};
use crate::checkpoint::{CheckpointStore, Created, Entry, MemoryStore, StoreError};

/// One process's way to a store that others may use too.
pub(super) struct FaultyStore {
    pub hands: Hands,
    pub store: MemoryStore,
}

fn away() -> StoreError {
    StoreError::Away { place: "simulated".into(), cause: std::io::Error::other("simulated") }
}

impl FaultyStore {
    async fn begin(&self, op: Op) -> Result<Verdict, StoreError> {
        match self.hands.begin(op, "store").await {
            Verdict::Hang => std::future::pending().await,
            Verdict::Fail => Err(away()),
            verdict => Ok(verdict),
        }
    }
}

#[async_trait]
impl CheckpointStore for FaultyStore {
    async fn list(&self) -> Result<Vec<u64>, StoreError> {
        self.begin(Op::List).await?;
        self.store.list().await
    }

    async fn read(&self, number: u64) -> Result<Option<Entry>, StoreError> {
        self.begin(Op::Read).await?;
        self.store.read(number).await
    }

    /// What is on its way lands whether or not anybody waits for it.
    async fn create(&self, entry: &Entry) -> Result<Created, StoreError> {
        let verdict = self.begin(Op::Create).await?;
        let delay = if let Verdict::FailAndDoLater(delay) = verdict { delay } else { Duration::ZERO };
        let (hands, store, entry) = (self.hands.clone(), self.store.clone(), entry.clone());
        let landing = actix::spawn(async move {
            tokio::time::sleep(delay).await;
            if !hands.lands() {
                return Err(away());
            }
            let created = store.create(&entry).await;
            if let Ok(Created::Created) = created {
                landed(&hands, &entry);
            }
            created
        });
        match verdict {
            Verdict::FailAndDoLater(_) => Err(away()),
            verdict => {
                let created = landing.await.unwrap_or_else(|_| Err(away()));
                self.hands.alive().await;
                if verdict == Verdict::DoAndFail { Err(away()) } else { created }
            }
        }
    }

    async fn delete(&self, number: u64) -> Result<(), StoreError> {
        self.begin(Op::Delete).await?;
        self.store.delete(number).await
    }
}

fn landed(hands: &Hands, entry: &Entry) {
    let mut state = hands.world.state();
    let parts: Vec<_> = entry.parts.iter().map(|part| format!("{} e{}", part.partition, part.epoch)).collect();
    let (number, floor, kind) = (entry.number, entry.floor, &entry.kind);
    state.note(format!("entry {number} of process {}: {kind:?} {parts:?}, floor {floor}", hands.process));
    if hands.pulse() == Pulse::Cut {
        state.fired.count(Fault::CreateAfterItsProcess);
    } else {
        let gone = |index: u32| state.tokens.get(&(hands.process, Some(index))).is_none_or(|n| *n == 0);
        if entry.parts.iter().any(|part| gone(part.partition.index)) {
            state.fired.count(Fault::CreateAfterItsGeneration);
        }
    }
    if state.evidence.floor_rises(entry) {
        state.fired.count(Fault::Pruned);
    }
    if let Err(broken) = state.evidence.stored(entry) {
        state.violated(broken);
    }
}
