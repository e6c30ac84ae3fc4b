//! The translator actor: runs a translator on each batch, and sends what it cannot translate to the dead letter.
//!
//! A translator may panic. The message that makes it panic is found by halving, and rejected alone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use actix::prelude::*;
use arrow::array::RecordBatch;
use arrow::compute::concat_batches;

use super::message::{Forward, Reject};
use super::stage::{Outlets, Stage};
use crate::flow::{
    Barrier, Batch, Element, Identity, Raw, Reason, Rejected, Result, Rows, Translated, Translator, TranslatorFactory,
};
use crate::telemetry::metrics::PartitionMetrics;

/// One translator of one partition.
pub(super) struct TranslatorActor {
    pub stage: Stage,
    pub factory: Arc<dyn TranslatorFactory>,
    pub translator: Box<dyn Translator>,
    pub outlets: Outlets,
    pub dead_letter: Recipient<Reject>,
    pub metrics: PartitionMetrics,
    /// Identities rejected in the current epoch.
    pub rejected: Vec<Identity>,
}

impl Actor for TranslatorActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.stage.stop_when_killed(self, ctx);
    }
}

impl Handler<Forward> for TranslatorActor {
    type Result = ();

    fn handle(&mut self, Forward(element): Forward, ctx: &mut Self::Context) {
        match element {
            Element::Rows(batch) => self.batch(batch, ctx),
            Element::Barrier(mut barrier) => {
                barrier.rejected.append(&mut self.rejected);
                self.end_epoch(&barrier);
            }
        }
    }
}

impl TranslatorActor {
    fn batch(&mut self, batch: Batch, ctx: &mut Context<Self>) {
        let Batch { rows: raw, mut receipt } = batch;
        let translated = match translate(self.factory.as_ref(), &mut self.translator, &raw) {
            Ok(translated) => translated,
            // The receipt is dropped, and so released, while the stage goes down.
            Err(error) => return self.stage.fail(error, ctx),
        };
        self.metrics.decoded.add(translated.rows.len() as u64);
        self.metrics.nulled.add(translated.nulled);
        if !translated.rejects.is_empty() {
            let why: Vec<_> = translated
                .rejects
                .into_iter()
                .map(|Rejected { row, reason, detail }| (raw.origin[row as usize], reason, detail))
                .collect();
            let origins: Vec<_> = why.iter().map(|(origin, ..)| *origin).collect();
            let rejected = receipt.split(&origins);
            self.rejected.extend(rejected.deliveries().map(|delivery| delivery.identity));
            self.stage.reject(&self.dead_letter, rejected, why);
        }
        if !receipt.is_empty() {
            self.outlets.send(Batch { rows: translated.rows, receipt });
        }
    }

    fn end_epoch(&self, barrier: &Barrier) {
        self.outlets.end_epoch(barrier);
    }
}

/// Translates; a panic is narrowed down to the messages that cause it.
fn translate(factory: &dyn TranslatorFactory, translator: &mut Box<dyn Translator>, raw: &Raw) -> Result<Translated> {
    match catch_unwind(AssertUnwindSafe(|| translator.translate(raw))) {
        Ok(translated) => translated,
        Err(panic) => {
            // Its state may be half changed.
            *translator = factory.translator();
            if raw.len() == 1 {
                let detail = panic_text(panic.as_ref());
                let rows = Rows { columns: RecordBatch::new_empty(factory.output()), origin: Vec::new() };
                let rejects = vec![Rejected { row: 0, reason: Reason::Panic, detail }];
                return Ok(Translated { rows, rejects, nulled: 0 });
            }
            let middle = raw.len() / 2;
            let mut first = translate(factory, translator, &slice(raw, 0, middle))?;
            let second = translate(factory, translator, &slice(raw, middle, raw.len() - middle))?;
            let columns = concat_batches(&factory.output(), [&first.rows.columns, &second.rows.columns])
                .expect("one translator has one output");
            first.rows.origin.extend(second.rows.origin);
            let offset = u32::try_from(middle).expect("fewer than 2^32 rows");
            first.rejects.extend(second.rejects.into_iter().map(|r| Rejected { row: r.row + offset, ..r }));
            let rows = Rows { columns, origin: first.rows.origin };
            Ok(Translated { rows, rejects: first.rejects, nulled: first.nulled + second.nulled })
        }
    }
}

fn slice(raw: &Raw, offset: usize, length: usize) -> Raw {
    Rows { columns: raw.columns.slice(offset, length), origin: raw.origin[offset..offset + length].to_vec() }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the translator panicked on this message: {}", text.unwrap_or("no text"))
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};

    use super::*;

    struct Fussy(SchemaRef);

    impl TranslatorFactory for Fussy {
        fn output(&self) -> SchemaRef {
            self.0.clone()
        }

        fn translator(&self) -> Box<dyn Translator> {
            struct T;
            impl Translator for T {
                fn translate(&mut self, raw: &Raw) -> Result<Translated> {
                    let values = raw.columns.column(0).as_primitive::<Int64Type>();
                    assert!(values.values().iter().all(|value| *value != 13), "thirteen");
                    Ok(Translated { rows: raw.clone(), rejects: Vec::new(), nulled: raw.len() as u64 })
                }
            }
            Box::new(T)
        }
    }

    #[test]
    fn the_message_that_panics_is_rejected_alone() {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
        let values = Int64Array::from_iter_values([1, 2, 13, 4, 5, 13, 7]);
        let raw = Rows::one_per_delivery(RecordBatch::try_new(schema.clone(), vec![Arc::new(values)]).expect("batch"));
        let factory = Fussy(schema);
        let translated = translate(&factory, &mut factory.translator(), &raw).expect("translated");
        assert_eq!((translated.rows.origin, translated.nulled), (vec![0, 1, 3, 4, 6], 5));
        assert_eq!(translated.rejects.iter().map(|r| r.row).collect::<Vec<_>>(), [2, 5]);
        assert!(translated.rejects[0].detail.contains("thirteen"), "{:?}", translated.rejects[0]);
    }
}
