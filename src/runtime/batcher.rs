//! The batcher actor: collects small batches into large ones, by rows, bytes and age.

use actix::prelude::*;

use super::accumulator::Accumulator;
use super::message::Forward;
use super::stage::{Stage, StoreOutlets};
use crate::clock;
use crate::flow::Element;

/// One batcher of one partition.
pub(super) struct BatcherActor {
    pub stage: Stage,
    pub accumulator: Accumulator,
    pub outlets: StoreOutlets,
    /// The timer for what waits, if one is set.
    pub timer: Option<SpawnHandle>,
}

impl Actor for BatcherActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.stage.stop_when_killed(self, ctx);
    }
}

impl Handler<Forward> for BatcherActor {
    type Result = ();

    fn handle(&mut self, Forward(element): Forward, ctx: &mut Self::Context) {
        match element {
            Element::Rows(batch) => {
                if let Some(bulk) = self.accumulator.push(batch, clock::now()) {
                    self.outlets.send(bulk);
                }
            }
            Element::Barrier(barrier) => {
                self.flush();
                self.outlets.end_epoch(&barrier);
            }
        }
        self.set_timer(ctx);
    }
}

impl BatcherActor {
    fn flush(&mut self) {
        if let Some(bulk) = self.accumulator.flush() {
            self.outlets.send(bulk);
        }
    }

    /// One timer runs while something waits; when it fires early it is set again for what waits by then.
    fn set_timer(&mut self, ctx: &mut Context<Self>) {
        if self.timer.is_some() {
            return;
        }
        let Some(deadline) = self.accumulator.deadline() else { return };
        let delay = deadline.saturating_duration_since(clock::now());
        self.timer = Some(ctx.run_later(delay, |batcher, ctx| {
            batcher.timer = None;
            if batcher.accumulator.deadline().is_some_and(|deadline| deadline <= clock::now()) {
                batcher.flush();
            }
            batcher.set_timer(ctx);
        }));
    }
}
