//! Tells the supervisor how a stage ended, and when the last stage of a generation is gone, from `Drop`: a stage that
//! panics, fails or is stopped cannot forget it.

use std::sync::Arc;

use actix::Recipient;

use super::message::{Exit, GenerationEnded, StageExited};
use crate::flow::{Generation, PartitionId, StageError, StageName};

/// Owned by every stage.
pub(super) struct ExitGuard {
    pub partition: PartitionId,
    pub generation: Generation,
    pub stage: StageName,
    life: Arc<Life>,
    failure: Option<StageError>,
}

/// Shared by the guards of one generation.
pub(super) struct Life {
    partition: PartitionId,
    generation: Generation,
    exited: Recipient<StageExited>,
    ended: Recipient<GenerationEnded>,
}

impl Life {
    pub fn new(
        partition: PartitionId,
        generation: Generation,
        exited: Recipient<StageExited>,
        ended: Recipient<GenerationEnded>,
    ) -> Arc<Self> {
        Arc::new(Self { partition, generation, exited, ended })
    }

    /// The guard of one more stage.
    pub fn guard(self: &Arc<Self>, stage: StageName) -> ExitGuard {
        ExitGuard {
            partition: self.partition.clone(),
            generation: self.generation,
            stage,
            life: self.clone(),
            failure: None,
        }
    }
}

impl ExitGuard {
    /// Why the stage is about to stop. The first word counts.
    pub fn fail(&mut self, error: StageError) {
        self.failure.get_or_insert(error);
    }
}

// The supervisor outlives every stage; if its mailbox is closed the process is ending, and nobody needs to know.

impl Drop for ExitGuard {
    fn drop(&mut self) {
        let cause = match self.failure.take() {
            _ if std::thread::panicking() => Exit::Panicked,
            Some(error) => Exit::Failed(error),
            None => Exit::Stopped,
        };
        let (partition, stage) = (self.partition.clone(), self.stage.clone());
        let _ = self.life.exited.try_send(StageExited { partition, generation: self.generation, stage, cause });
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let (partition, generation) = (self.partition.clone(), self.generation);
        let _ = self.ended.try_send(GenerationEnded { partition, generation });
    }
}
