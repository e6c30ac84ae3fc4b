//! The reports of one epoch, and what they add up to (protocol R6).

use std::collections::{BTreeMap, BTreeSet};

use super::{Action, SinkReport, Tree};
use crate::flow::mutation::{Rule, removed};
use crate::flow::{Digest, Epoch, Generation, Identity, PartitionId, Prepared, StageName, Tick};

#[derive(Clone, Debug, Hash)]
pub(super) struct Collecting {
    pub epoch: Epoch,
    pub since: Tick,
    pub reports: BTreeMap<StageName, SinkReport>,
    /// What was rejected, once all sinks but the dead letter have reported.
    pub rejected: Option<BTreeSet<Identity>>,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Report {
    pub epoch: Epoch,
    pub rejected: BTreeSet<Identity>,
    pub cursors: Vec<(Identity, u64)>,
    pub sinks: BTreeMap<StageName, Prepared>,
}

/// What the reports of an epoch add up to.
pub(super) enum Tallied {
    Incomplete,
    AskDeadLetter(Action),
    Mismatch(String),
    Complete(Report),
}

impl Collecting {
    /// Protocol R6: what each branch holds and what was rejected on its way must be all that the receiver sent, and the
    /// dead letter must have exactly what was rejected.
    pub fn verdict(&mut self, tree: &Tree, partition: &PartitionId, generation: Generation) -> Tallied {
        let dead_letter = tree.dead_letter.as_ref();
        if !tree.sinks.iter().all(|sink| self.reports.contains_key(sink)) {
            return Tallied::Incomplete;
        }
        if self.rejected.is_none() {
            let mut rejected = BTreeSet::new();
            for sink in &tree.sinks {
                let report = &self.reports[sink];
                let mut found = report.held;
                let own = report.rejected_before.iter().chain(&report.rejected);
                own.clone().for_each(|identity| found.add(*identity));
                if found != report.sent && !removed(Rule::ReceiptsAddUp) {
                    let (found, sent) = (found.count, report.sent.count);
                    return Tallied::Mismatch(format!(
                        "sink '{sink}' accounts for {found} of {sent} messages of epoch {}",
                        self.epoch
                    ));
                }
                rejected.extend(own.copied());
            }
            let ask = !rejected.is_empty() && dead_letter.is_some();
            self.rejected = Some(rejected.clone());
            if ask {
                let (partition, epoch) = (partition.clone(), self.epoch);
                let rejected = rejected.into_iter().collect();
                return Tallied::AskDeadLetter(Action::PrepareDeadLetter { partition, generation, epoch, rejected });
            }
        }
        let rejected = self.rejected.clone().unwrap_or_default();
        if let Some(dead_letter) = dead_letter.filter(|_| !rejected.is_empty()) {
            let Some(report) = self.reports.get(dead_letter) else { return Tallied::Incomplete };
            if report.held != Digest::of(&rejected) {
                let (has, of) = (report.held.count, rejected.len());
                return Tallied::Mismatch(format!(
                    "the dead letter has {has} of {of} rejected messages of epoch {}",
                    self.epoch
                ));
            }
        }
        let cursors =
            self.reports.values().map(|report| &report.cursors).max_by_key(|c| c.len()).cloned().unwrap_or_default();
        let sinks = std::mem::take(&mut self.reports).into_iter().filter(|(sink, _)| tree.exactly_once.contains(sink));
        let sinks = sinks.filter_map(|(sink, report)| Some((sink, report.prepared?))).collect();
        Tallied::Complete(Report { epoch: self.epoch, rejected, cursors, sinks })
    }
}
