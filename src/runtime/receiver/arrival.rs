//! What happens to messages that have arrived: sent on, rejected, held, or accepted at once because they are known.

use actix::prelude::*;
use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;

use super::{ReceiverActor, lock};
use crate::clock;
use crate::flow::{Batch, Delivery, Holder, Offer, Raw, Reason, Receipt, Rejected, Rows, StageError};
use crate::runtime::message::StageEvent;

/// What is not simply sent on.
enum Fate {
    Reject(Reason, String),
    Hold,
    Known,
}

impl ReceiverActor {
    /// Takes permits for what has arrived and sorts it.
    pub(super) fn arrived(
        &mut self,
        raw: Raw,
        deliveries: Vec<Delivery>,
        rejects: Vec<Rejected>,
        ctx: &mut Context<Self>,
    ) {
        self.metrics.received.add(deliveries.len() as u64);
        self.metrics.redelivered.add(redelivered(&raw.columns));
        self.allotment.received(deliveries.len() as u64);
        let (raw, deliveries, rejects) = self.put_excess_aside(raw, deliveries, rejects);
        self.budget.take(deliveries.len() as u64, deliveries.iter().map(|delivery| u64::from(delivery.bytes)).sum());
        self.epoch.arrived.push_back((clock::tick(), deliveries.len() as u64));
        self.sort(raw, deliveries, rejects, ctx);
        self.measure();
    }

    /// Held deliveries that were taken up may have used permits that were granted as credit before. What arrives beyond
    /// the budget waits like a held delivery that is free (I4). A batch with rejects of the source's own is taken whole.
    fn put_excess_aside(
        &mut self,
        raw: Raw,
        mut deliveries: Vec<Delivery>,
        rejects: Vec<Rejected>,
    ) -> (Raw, Vec<Delivery>, Vec<Rejected>) {
        let room = self.budget.deliveries_left();
        let keep = usize::try_from(room).unwrap_or(usize::MAX);
        if deliveries.len() <= keep || !rejects.is_empty() {
            return (raw, deliveries, rejects);
        }
        for (at, delivery) in deliveries.drain(keep..).enumerate() {
            self.allotment.give_back(1);
            let message = Rows::one_per_delivery(raw.columns.slice(keep + at, 1));
            self.link.retry.push_back(delivery.id);
            self.link.held.insert(delivery.id, (delivery, message));
        }
        (Rows::one_per_delivery(raw.columns.slice(0, keep)), deliveries, rejects)
    }

    fn sort(&mut self, raw: Raw, deliveries: Vec<Delivery>, rejects: Vec<Rejected>, ctx: &mut Context<Self>) {
        let Some(fates) = self.fates(&deliveries, rejects, ctx) else { return };
        if fates.is_empty() {
            return self.send(raw.columns, deliveries, Vec::new(), ctx);
        }
        let mut fates = fates.into_iter().peekable();
        let mut sent = Vec::with_capacity(deliveries.len());
        let mut mask = vec![true; deliveries.len()];
        let mut why = Vec::new();
        let mut gone = (0, 0);
        for (at, delivery) in deliveries.into_iter().enumerate() {
            match fates.next_if(|(row, _)| *row == at).map(|(_, fate)| fate) {
                None => sent.push(delivery),
                Some(Fate::Reject(reason, detail)) => {
                    why.push((u32::try_from(sent.len()).expect("fewer than 2^32 rows"), reason, detail));
                    sent.push(delivery);
                }
                Some(fate) => {
                    mask[at] = false;
                    gone = (gone.0 + 1, gone.1 + u64::from(delivery.bytes));
                    match fate {
                        Fate::Known => {
                            self.metrics.duplicates.add(1);
                            self.link.unsent.known(delivery.id, delivery.identity);
                        }
                        _ => {
                            let message = Rows::one_per_delivery(raw.columns.slice(at, 1));
                            self.link.held.insert(delivery.id, (delivery, message));
                        }
                    }
                }
            }
        }
        self.budget.give_back(gone.0, gone.1);
        self.allotment.give_back(gone.0);
        self.epoch.forget_newest(gone.0);
        let columns = if gone.0 == 0 { raw.columns } else { keep(&raw.columns, mask) };
        if !sent.is_empty() {
            self.send(columns, sent, why, ctx);
        }
        self.settle(ctx);
    }

    /// What is to happen with each delivery that is not simply sent on, in order. `None`: this generation is over.
    fn fates(
        &mut self,
        deliveries: &[Delivery],
        rejects: Vec<Rejected>,
        ctx: &mut Context<Self>,
    ) -> Option<Vec<(usize, Fate)>> {
        let mut rejects = rejects.into_iter().peekable();
        let mut fates = Vec::new();
        let mut collision = None;
        let (partition, generation) = (self.stage.guard.partition.index, self.stage.guard.generation);
        let seen = self.seen.clone();
        let mut seen = seen.as_deref().map(lock);
        if seen.as_ref().is_some_and(|seen| !seen.is_up(partition, generation)) {
            return None;
        }
        let mut wanted = false;
        for (at, delivery) in deliveries.iter().enumerate() {
            let reject = rejects.next_if(|reject| reject.row as usize == at);
            let mut fate = reject.map(|reject| Fate::Reject(reject.reason, reject.detail));
            if let Some(seen) = &mut seen {
                let holder = Holder { partition, generation, delivery: delivery.id };
                match seen.offer(delivery.identity, holder, self.epoch.number) {
                    Offer::New { .. } if delivery.anonymous && self.policy.reject_missing_id => {
                        fate.get_or_insert_with(|| Fate::Reject(Reason::MissingId, "the message has no id".into()));
                    }
                    Offer::New { .. } => {}
                    Offer::Collision => {
                        let detail = "another message with this id and other content is known".to_owned();
                        collision.get_or_insert(at);
                        fate = Some(Fate::Reject(Reason::IdCollision, detail));
                    }
                    Offer::Done => fate = Some(Fate::Known),
                    Offer::Held { .. } => {
                        wanted = true;
                        fate = Some(Fate::Hold);
                    }
                }
            }
            fates.extend(fate.map(|fate| (at, fate)));
        }
        drop(seen);
        if collision.is_some() && self.policy.park_on_collision {
            let context =
                "two different messages have one id, and identity.on_collision says park; the broker still has both";
            self.stage.fail(StageError::park(context), ctx);
            return None;
        }
        if wanted {
            self.stage.report(StageEvent::CheckpointWanted { urgent: false });
        }
        Some(fates)
    }

    /// Sends messages on with one receipt; `why`: those of them that are rejected here.
    fn send(
        &mut self,
        columns: RecordBatch,
        deliveries: Vec<Delivery>,
        why: Vec<(u32, Reason, String)>,
        ctx: &mut Context<Self>,
    ) {
        for delivery in &deliveries {
            self.epoch.sent.add(delivery.identity);
        }
        let n = deliveries.len();
        let mut receipt = Receipt::new(deliveries, columns.clone(), self.outcomes(ctx));
        let mut rows = Rows::one_per_delivery(columns);
        if !why.is_empty() {
            let origins: Vec<_> = why.iter().map(|(origin, ..)| *origin).collect();
            let rejected = receipt.split(&origins);
            self.epoch.rejected.extend(rejected.deliveries().map(|delivery| delivery.identity));
            self.stage.reject(&self.dead_letter, rejected, why);
            let mut mask = vec![true; n];
            origins.iter().for_each(|origin| mask[*origin as usize] = false);
            rows.origin.retain(|origin| mask[*origin as usize]);
            rows.columns = keep(&rows.columns, mask);
        }
        if !receipt.is_empty() {
            self.outlets.send(Batch { rows, receipt });
        }
        self.want_checkpoint(self.link.exhausted);
    }

    /// Offers held deliveries again whose identity is free, as far as there are permits.
    pub(super) fn take_up(&mut self, ctx: &mut Context<Self>) {
        while let Some(id) = self.link.retry.front().copied() {
            if self.link.draining || self.budget.room().is_none() || !self.allotment.reserve_one() {
                return;
            }
            self.link.retry.pop_front();
            let Some((delivery, message)) = self.link.held.remove(&id) else {
                self.allotment.give_back(1);
                continue;
            };
            self.budget.take(1, u64::from(delivery.bytes));
            self.epoch.arrived.push_back((clock::tick(), 1));
            self.sort(message, vec![delivery], Vec::new(), ctx);
        }
    }
}

fn keep(columns: &RecordBatch, mask: Vec<bool>) -> RecordBatch {
    filter_record_batch(columns, &BooleanArray::from(mask)).expect("a mask as long as the batch")
}

/// How many of these messages the broker marks as delivered before.
fn redelivered(columns: &RecordBatch) -> u64 {
    let column = columns.column_by_name("redelivered").and_then(|c| c.as_any().downcast_ref::<BooleanArray>());
    column.map_or(0, |column| column.true_count() as u64)
}
