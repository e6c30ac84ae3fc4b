//! What [`Seen`] takes from the checkpoint log at start, and what the log must go on naming (protocol R3).

use std::collections::BTreeMap;

use super::groups::GroupId;
use super::{Cohort, Cursor, Seen, State};
use crate::flow::{Epoch, Identity};

/// An identity that the log must go on naming, and since when it is in doubt (ms since the epoch; `None`: it is not, its
/// accept is within the horizon).
pub type Undischarged = (Identity, Option<i64>);

impl Seen {
    /// At start: the identities of a part of the log, in the log's order. `newest`: it is the partition's newest, and its
    /// sinks have not been asked yet; all others are committed, and in doubt since their entry was `written`.
    pub fn load(
        &mut self,
        part: (u32, Epoch),
        identities: &[(Identity, bool)],
        number: u64,
        newest: bool,
        written: i64,
    ) {
        let (partition, epoch) = part;
        let state = if newest { State::Committing } else { State::InDoubt { since: written } };
        let cohort = Cohort { epoch: Some(epoch), recorded: number, ..Cohort::new(state, partition) };
        let cohort = self.cohorts.add(cohort);
        for &(identity, rejected) in identities {
            self.cursors.remove(&identity);
            if self.cohort(identity).is_some() {
                self.cohorts.move_to(identity, cohort);
            } else {
                self.cohorts.insert(identity, rejected, cohort);
            }
            if rejected {
                self.cohorts.reject(identity);
            }
        }
        self.cohorts.remove_if_empty(cohort);
    }

    /// At start: identities that an entry names as in doubt. One that is committing stays so.
    pub fn load_in_doubt(&mut self, identities: &[(Identity, i64)], number: u64) {
        let mut by_day: BTreeMap<i64, GroupId> = BTreeMap::new();
        for &(identity, since) in identities {
            self.cursors.remove(&identity);
            let known = self.cohort(identity).map(|cohort| cohort.state);
            if known == Some(State::Committing) {
                continue;
            }
            let cohort = *by_day.entry(since).or_insert_with(|| {
                let fresh = Cohort { recorded: number, ..Cohort::new(State::InDoubt { since }, u32::MAX) };
                self.cohorts.add(fresh)
            });
            match known {
                Some(_) => self.cohorts.move_to(identity, cohort),
                None => self.cohorts.insert(identity, false, cohort),
            }
        }
    }

    /// At start: how far an unfinished delivery is recorded. The highest row decides; an identity that is done or in
    /// doubt beats every cursor (protocol R6).
    pub fn load_cursor(&mut self, identity: Identity, row: u64, part: (u32, Epoch), number: u64, newest: bool) {
        if self.cohort(identity).is_none() {
            let cursor = Cursor { row, partition: part.0, epoch: part.1, committing: newest, recorded: number };
            let known = self.cursors.entry(identity).or_insert(cursor);
            if row >= known.row {
                *known = cursor;
            }
        }
    }

    /// What an entry whose floor is `floor` must name: identities that are recorded only below it and that the broker
    /// may still deliver.
    pub fn undischarged_below(&self, floor: u64) -> Vec<Undischarged> {
        let below = self.cohorts.iter().filter(|(_, c, _)| c.state.is_done() && c.recorded < floor);
        below
            .flat_map(|(id, cohort, _)| {
                let since = match cohort.state {
                    State::InDoubt { since } => Some(since),
                    _ => None,
                };
                self.cohorts.members(id).map(move |(identity, _)| (identity, since))
            })
            .collect()
    }

    /// How many identities [`undischarged_below`](Self::undischarged_below) would name because of entry `number`.
    pub fn undischarged_at(&self, number: u64) -> usize {
        self.count(|c| c.state.is_done() && c.recorded == number)
    }

    /// Cursors recorded only below `floor`: identity, row, partition, epoch.
    pub fn cursors_below(&self, floor: u64) -> Vec<(Identity, u64, u32, Epoch)> {
        let below = self.cursors.iter().filter(|(_, cursor)| cursor.recorded < floor);
        below.map(|(identity, c)| (*identity, c.row, c.partition, c.epoch)).collect()
    }

    /// Entry `number` with floor `floor` is stored, and names what [`undischarged_below`](Self::undischarged_below) and
    /// [`cursors_below`](Self::cursors_below) said.
    pub fn copied(&mut self, floor: u64, number: u64) {
        for cohort in self.cohorts.data_mut().filter(|c| c.state.is_done() && c.recorded < floor) {
            cohort.recorded = number;
        }
        for cursor in self.cursors.values_mut().filter(|cursor| cursor.recorded < floor) {
            cursor.recorded = number;
        }
    }
}
