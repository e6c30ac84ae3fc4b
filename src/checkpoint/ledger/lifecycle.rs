//! How a partition goes down and comes back: who may recover when, and from what (protocol R2, R5).

use std::collections::BTreeMap;

use super::{Action, Committing, Ledger, Now, Phase, Seens, tell};
use crate::checkpoint::{Inconsistent, recover};
use crate::flow::mutation::{Rule, removed};
use crate::flow::{Committed, Generation, PartitionId, StageName};

impl Ledger {
    pub(super) fn down(
        &mut self,
        partition: &PartitionId,
        generation: Generation,
        seens: &mut Seens<'_>,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let Some(member) = self.members.get_mut(partition) else { return };
        match member.phase {
            // It died before its sinks had answered: nothing of it is anywhere.
            Phase::Down { free: true } => {
                actions.push(Action::MayRecover { partition: partition.clone() });
                return;
            }
            Phase::Down { free: false } | Phase::Parked => return,
            Phase::Replaying | Phase::Living | Phase::Failing if member.generation != generation => return,
            Phase::Replaying | Phase::Living | Phase::Failing => {}
        }
        member.phase = Phase::Down { free: false };
        member.collecting = None;
        member.report = None;
        if let Some(seen) = seens.get_mut(&partition.receiver) {
            seen.link_down(partition.index, generation, now.wall);
        }
        if !self.is_named(partition) {
            self.release(partition, seens, actions);
        } else if removed(Rule::FateBeforeRecovery) {
            self.members.get_mut(partition).expect("a member that is down").phase = Phase::Down { free: true };
            actions.push(Action::MayRecover { partition: partition.clone() });
        } else if removed(Rule::FateBeforeFree) {
            let seen = seens.get_mut(&partition.receiver);
            actions.extend(seen.into_iter().flat_map(|seen| tell(&partition.receiver, seen.free(partition.index))));
        }
    }

    /// Whether the outstanding create names this partition.
    fn is_named(&self, partition: &PartitionId) -> bool {
        self.outstanding.iter().flat_map(|entry| &entry.parts).any(|part| part.partition == *partition)
    }

    /// Nothing of its dead generation can be stored any more.
    pub(super) fn release(&mut self, partition: &PartitionId, seens: &mut Seens<'_>, actions: &mut Vec<Action>) {
        self.members.get_mut(partition).expect("a member that is down").phase = Phase::Down { free: true };
        if let Some(seen) = seens.get_mut(&partition.receiver) {
            actions.extend(tell(&partition.receiver, seen.free(partition.index)));
        }
        actions.push(Action::MayRecover { partition: partition.clone() });
    }

    pub(super) fn opened(
        &mut self,
        partition: &PartitionId,
        generation: Generation,
        shown: &BTreeMap<StageName, Committed>,
        seens: &mut Seens<'_>,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let Some(member) = self.members.get_mut(partition) else { return };
        if member.phase != (Phase::Down { free: true }) {
            return;
        }
        member.generation = generation;
        let recovery = match recover(&self.log, partition, shown, now.wall) {
            Ok(recovery) => recovery,
            Err(inconsistent) => {
                let reason = Inconsistent::to_string(&inconsistent);
                actions.push(Action::Park { partition: partition.clone(), generation, reason });
                return;
            }
        };
        member.filling = recovery.next;
        member.phase = Phase::Replaying;
        let epoch = self.log.newest.get(partition).map(|newest| newest.part.epoch);
        match epoch {
            // Asked before in this process and done since: nothing is committing, and nothing is to be replayed.
            Some(epoch) if member.committing.is_some() || !recovery.replay.is_empty() => {
                member.committing = Some(Committing { epoch, left: recovery.replay.clone() });
                if recovery.replay.is_empty() {
                    self.complete_if_done(partition, seens, now, actions);
                } else {
                    actions.push(self.commit(partition, recovery.replay, &BTreeMap::new()));
                }
            }
            _ => {
                member.committing = None;
                member.phase = Phase::Living;
                let (partition, next) = (partition.clone(), member.filling);
                actions.push(Action::Resume { partition, generation, next });
            }
        }
    }
}
