//! What every stage of a generation has: its exit guard, its kill switch, and where its output goes.

use actix::prelude::*;
use tokio_util::sync::CancellationToken;

use super::exit_guard::ExitGuard;
use super::message::{Forward, Reject, Report, StageEvent, Store};
use crate::flow::{Barrier, Batch, Bulk, Element, Reason, Receipt, Share, StageError};

/// Whether a test wants a branch to lose its share: it is dropped, and the other branches go on.
#[cfg(test)]
use super::simulation::loses_share;

#[cfg(not(test))]
const fn loses_share() -> bool {
    false
}

/// Common to all stages.
pub(super) struct Stage {
    pub guard: ExitGuard,
    pub kill: CancellationToken,
    pub coordinator: Recipient<Report>,
}

impl Stage {
    /// To be called from `Actor::started`: the stage stops when its generation does.
    pub fn stop_when_killed<A: Actor<Context = Context<A>>>(&self, actor: &A, ctx: &mut Context<A>) {
        let killed = self.kill.clone().cancelled_owned().into_actor(actor);
        ctx.spawn(killed.map(|(), _, ctx| ctx.stop()));
    }

    /// Ends the stage, and with it the generation.
    pub fn fail<A: Actor<Context = Context<A>>>(&mut self, error: StageError, ctx: &mut Context<A>) {
        self.guard.fail(error);
        ctx.stop();
    }

    /// Tells the coordinator. If it is gone the process is ending.
    pub fn report(&self, event: StageEvent) {
        let (partition, generation) = (self.guard.partition.clone(), self.guard.generation);
        let _ = self.coordinator.try_send(Report { partition, generation, event });
    }

    /// Hands messages to the dead letter writer. What is dropped on a closed mailbox is released, as it must be.
    pub fn reject(&self, dead_letter: &Recipient<Reject>, receipt: Receipt, why: Vec<(u32, Reason, String)>) {
        if !receipt.is_empty() {
            let _ = dead_letter.try_send(Reject { stage: self.guard.stage.clone(), receipt, why });
        }
    }
}

/// The stages that take from a receiver or a translator.
pub(super) struct Outlets(pub Vec<Recipient<Forward>>);

impl Outlets {
    /// Every branch gets the rows, and a share of the promise. A closed branch drops its share, which releases it.
    pub fn send(&self, batch: Batch) {
        let Some((last, others)) = self.0.split_last() else { return };
        for outlet in others {
            let copy = Batch { rows: batch.rows.clone(), receipt: batch.receipt.share() };
            if loses_share() {
                continue;
            }
            let _ = outlet.try_send(Forward(Element::Rows(copy)));
        }
        let _ = last.try_send(Forward(Element::Rows(batch)));
    }

    /// Every branch gets the barrier.
    pub fn end_epoch(&self, barrier: &Barrier) {
        for outlet in &self.0 {
            let _ = outlet.try_send(Forward(Element::Barrier(barrier.clone())));
        }
    }
}

/// The sinks that take from a batcher.
pub(super) struct StoreOutlets(pub Vec<Recipient<Store>>);

impl StoreOutlets {
    /// As [`Outlets::send`].
    pub fn send(&self, bulk: Bulk) {
        let Some((last, others)) = self.0.split_last() else { return };
        for outlet in others {
            let share = |share: &Share| Share { origin: share.origin.clone(), receipt: share.receipt.share() };
            let copy = Bulk { columns: bulk.columns.clone(), shares: bulk.shares.iter().map(share).collect() };
            if loses_share() {
                continue;
            }
            let _ = outlet.try_send(Store(Element::Rows(copy)));
        }
        let _ = last.try_send(Store(Element::Rows(bulk)));
    }

    /// As [`Outlets::end_epoch`].
    pub fn end_epoch(&self, barrier: &Barrier) {
        for outlet in &self.0 {
            let _ = outlet.try_send(Store(Element::Barrier(barrier.clone())));
        }
    }
}
