//! The entries that a ledger writes: which reports go in, what it must name again, and how far the floor may rise.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use super::{Action, Ledger, Now, Phase, Seens};
use crate::checkpoint::{CursorCopy, Doubt, Entry, Kind, Part};
use crate::flow::mutation::{Rule, removed};
use crate::flow::{PartitionId, StageName};

impl Ledger {
    /// Takes every waiting report of a living generation whose previous epoch is committed (protocol R5), if there is one.
    pub(super) fn create_epochs(&mut self, seens: &Seens<'_>, now: Now, actions: &mut Vec<Action>) {
        let mut parts = Vec::new();
        for (partition, member) in &mut self.members {
            let waits = member.committing.is_some() && !removed(Rule::OneEpochAtATime);
            if member.phase != Phase::Living || waits {
                continue;
            }
            let Some(report) = member.report.take() else { continue };
            let sent = seens.get(&partition.receiver).map(|seen| seen.sent(partition.index, report.epoch));
            let ids: Vec<_> =
                sent.unwrap_or_default().into_iter().map(|id| (id, report.rejected.contains(&id))).collect();
            parts.push(Part {
                partition: partition.clone(),
                epoch: report.epoch,
                generation: member.generation,
                messages: ids.len() as u64,
                ids,
                cursors: report.cursors,
                sinks: report.sinks,
            });
        }
        if !parts.is_empty() {
            let floor = self.next_floor(seens);
            self.create(Kind::Epochs, parts, floor, seens, now, actions);
        }
    }

    /// After a drain: a drained entry, if every part in the log is committed by all its sinks (protocol R11).
    pub(super) fn ended(&mut self, seens: &Seens<'_>, now: Now, actions: &mut Vec<Action>) {
        let all_committed = self.members.values().all(|member| member.committing.is_none());
        let exactly_once = self.config.trees.values().any(|tree| !tree.exactly_once.is_empty());
        if self.outstanding.is_some() || !all_committed || !exactly_once {
            actions.push(Action::Drained { written: false });
            return;
        }
        let floor = self.next_floor(seens);
        self.create(Kind::Drained, Vec::new(), floor, seens, now, actions);
    }

    fn create(
        &mut self,
        kind: Kind,
        parts: Vec<Part>,
        floor: u64,
        seens: &Seens<'_>,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let number = self.log.last + 1;
        let mut adopted = self.log.adopted.clone();
        adopted.extend(parts.iter().flat_map(|part| part.sinks.keys().cloned()));
        let mut in_doubt: BTreeMap<StageName, Vec<Doubt>> = BTreeMap::new();
        let mut cursors = Vec::new();
        for (receiver, seen) in seens.iter().filter(|_| !removed(Rule::CopyBeforeFloor)) {
            let doubts = seen.undischarged_below(floor).into_iter();
            let doubts: Vec<_> = doubts.map(|(identity, since)| (identity, since.unwrap_or(now.wall))).collect();
            if !doubts.is_empty() {
                in_doubt.insert(receiver.clone(), doubts);
            }
            cursors.extend(seen.cursors_below(floor).into_iter().map(|(identity, row, index, epoch)| CursorCopy {
                partition: PartitionId { receiver: receiver.clone(), index },
                epoch,
                identity,
                row,
            }));
        }
        let entry = Arc::new(Entry {
            number,
            // Of this process and this number there is one attempt only.
            attempt: Uuid::from_u128(self.begun.session.as_u128() ^ u128::from(number)),
            session: self.begun.session,
            topology: self.config.topology.clone(),
            store: self.begun.store,
            written: now.wall,
            floor,
            kind,
            parts,
            base: self.log.base.clone(),
            adopted,
            in_doubt,
            cursors,
        });
        self.outstanding = Some(entry.clone());
        actions.push(Action::Create(entry));
    }

    /// How far the floor may rise (protocol R4): over no part that is not committed by all its sinks, and only as far as
    /// what must be named again stays small, or the log would become longer than it may.
    fn next_floor(&self, seens: &Seens<'_>) -> u64 {
        let number = self.log.last + 1;
        let uncommitted = self.members.iter().filter(|(_, member)| member.committing.is_some());
        let uncommitted = uncommitted.filter_map(|(partition, _)| Some(self.log.newest.get(partition)?.number));
        let limit = uncommitted.min().unwrap_or(number);
        let mut floor = self.log.floor;
        let mut copies = 0;
        while floor < limit {
            copies += seens.values().map(|seen| seen.undischarged_at(floor)).sum::<usize>();
            let short_enough = number - floor < self.config.entry_limit as u64;
            if copies > self.config.copy_limit && short_enough {
                break;
            }
            floor += 1;
        }
        floor
    }
}
