//! Which identities a receiver knows, and what is becoming of them.
//!
//! A broker may redeliver a message to any partition, at any time until it has received the settlement; `Seen` is what
//! makes that harmless. It belongs to the receiver, not to a partition, and to the process, not to a generation
//! (protocol R2, R3, R10, R11). Invariant: an identity leaves only when the broker cannot deliver it again (the horizon
//! has passed on the link that carried the accept, or the source has answered), when nothing of it was stored, or when it
//! was in doubt for longer than the topology says.
//!
//! Identities share their fate with the others of their epoch, so they are kept in *cohorts*: to commit an epoch is to
//! change one state. Pure: it is told the time and reads no clock.

mod table;

use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};

use super::mutation::{Rule, removed};
use super::{DeliveryId, Epoch, Generation, Identity, Tick};
use table::{Slot, Table};

/// A delivery that waits until the fate of its identity is known (protocol R10). It belongs to no epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// The partition that received it.
    pub partition: u32,
    /// The generation whose link it came over.
    pub generation: Generation,
    /// The source's handle.
    pub delivery: DeliveryId,
}

/// What to do with a delivery that has just arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Send it on. `resume`: rows of it that are committed already (protocol R6, cursors); 0 for a message.
    New {
        /// Rows to skip.
        resume: u64,
    },
    /// Its rows are committed: accept it, and say [`Seen::settled`].
    Done,
    /// Keep it until a [`Verdict`] comes. `owner` is the partition that has the identity: ask it for a checkpoint.
    Held {
        /// Which.
        owner: u32,
    },
    /// Another message with this id and other content is known: reject it with reason `id_collision`. It is in flight.
    Collision,
}

/// What became of a held delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Its identity is committed: accept it, and say [`Seen::settled`].
    Accept(Holder, Identity),
    /// Its identity is free: offer it again when there is a permit. Every holder of the identity is told; whoever is
    /// first has it, the others are held again.
    Free(Holder, Identity),
}

impl Verdict {
    /// Who held it.
    pub fn holder(&self) -> Holder {
        match self {
            Self::Accept(holder, _) | Self::Free(holder, _) => *holder,
        }
    }
}

/// An identity that the log must go on naming, and since when it is in doubt (ms since the epoch; `None`: it is not, its
/// accept is within the horizon).
pub type Undischarged = (Identity, Option<i64>);

/// Cohorts, oldest first.
type CohortId = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Sent, and nothing is stored.
    InFlight,
    /// In a stored entry that not all sinks have committed.
    Committing,
    /// Committed by all sinks, and the link that carries the accepts is up.
    Committed,
    /// Committed, and nothing is known of the accept; since this time (ms since the epoch).
    InDoubt { since: i64 },
}

impl State {
    fn is_done(self) -> bool {
        matches!(self, Self::Committed | Self::InDoubt { .. })
    }
}

/// How far the accept of a cohort has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Accept {
    Owed,
    /// The last one was sent at this time.
    Sent(Tick),
    /// The source has answered, and keeps it.
    Received,
}

#[derive(Clone, Debug)]
struct Cohort {
    state: State,
    /// The partition and the epoch that sent it; no epoch for unfinished deliveries between two of their epochs, and for
    /// what was settled anew.
    partition: u32,
    epoch: Option<Epoch>,
    /// Whose link carries the accepts.
    generation: Generation,
    accept: Accept,
    /// The entry of the log that names these identities; 0: none yet.
    recorded: u64,
    /// Those that were put in. One that has moved to another cohort since stays in the list and no longer counts.
    members: Vec<Identity>,
    live: usize,
}

/// How far an unfinished delivery is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Cursor {
    row: u64,
    partition: u32,
    epoch: Epoch,
    /// The part that has its highest row is not committed by all its sinks.
    committing: bool,
    recorded: u64,
}

/// The identities of one receiver.
#[derive(Clone, Default)]
pub struct Seen {
    ids: Table,
    cohorts: BTreeMap<CohortId, Cohort>,
    next: CohortId,
    cursors: BTreeMap<Identity, Cursor>,
    waiting: BTreeMap<Identity, VecDeque<Holder>>,
    /// The links that are up, by partition.
    links: BTreeMap<u32, Generation>,
}

impl Seen {
    /// Knows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many identities are known.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many are in doubt.
    pub fn in_doubt(&self) -> usize {
        self.cohorts.values().filter(|c| matches!(c.state, State::InDoubt { .. })).map(|c| c.live).sum()
    }

    /// A message has arrived at `holder.partition`, whose current epoch is `epoch`.
    pub fn offer(&mut self, identity: Identity, holder: Holder, epoch: Epoch) -> Offer {
        if let Some(slot) = self.ids.get(identity) {
            let cohort = &self.cohorts[&slot.cohort];
            if cohort.state.is_done() {
                return Offer::Done;
            }
            let owner = cohort.partition;
            return self.hold(identity, holder, owner);
        }
        let resume = match self.cursors.get(&identity).copied() {
            Some(cursor) if cursor.committing => return self.hold(identity, holder, cursor.partition),
            Some(cursor) => cursor.row,
            None => 0,
        };
        // Other content under an id that was not itself rejected.
        let collides = self.ids.under(identity.id).any(|slot| !slot.rejected);
        let cohort = self.in_flight(holder.partition, holder.generation, Some(epoch));
        self.insert(identity, cohort, collides);
        if collides { Offer::Collision } else { Offer::New { resume } }
    }

    fn hold(&mut self, identity: Identity, holder: Holder, owner: u32) -> Offer {
        self.waiting.entry(identity).or_default().push_back(holder);
        Offer::Held { owner }
    }

    /// Whether `partition` has sent anything in `epoch` that is not stored.
    pub fn has_open(&self, partition: u32, epoch: Epoch) -> bool {
        self.part(partition, epoch, State::InFlight).is_some()
    }

    /// What `partition` has sent in `epoch`, for the entry.
    pub fn sent(&self, partition: u32, epoch: Epoch) -> Vec<Identity> {
        let part = self.part(partition, epoch, State::InFlight);
        part.into_iter().flat_map(|id| self.living(id)).collect()
    }

    /// At the barrier: takes unfinished deliveries, those with rows left to send, out of the epoch that ends. They belong
    /// to none until [`continued`](Self::continued), so that waiting for more rows makes no epochs.
    pub fn carry(&mut self, unfinished: &[Identity], partition: u32, generation: Generation) {
        for &identity in unfinished {
            let to = self.in_flight(partition, generation, None);
            self.move_to(identity, to);
        }
    }

    /// Further rows of these unfinished deliveries are sent in `epoch`.
    pub fn continued(&mut self, unfinished: &[Identity], partition: u32, generation: Generation, epoch: Epoch) {
        for &identity in unfinished {
            let to = self.in_flight(partition, generation, Some(epoch));
            self.move_to(identity, to);
        }
    }

    /// Entry `number` with this epoch is stored.
    pub fn committing(
        &mut self,
        partition: u32,
        epoch: Epoch,
        number: u64,
        rejected: &[Identity],
        cursors: &[(Identity, u64)],
    ) {
        if let Some(id) = self.part(partition, epoch, State::InFlight) {
            let cohort = self.cohorts.get_mut(&id).expect("a cohort that was found");
            cohort.state = State::Committing;
            cohort.recorded = number;
        }
        for &identity in rejected {
            self.ids.update(identity, |slot| slot.rejected = true);
        }
        for &(identity, row) in cursors {
            let committing = !removed(Rule::CursorAfterCommit);
            self.cursors.insert(identity, Cursor { row, partition, epoch, committing, recorded: number });
        }
    }

    /// All sinks have committed this epoch.
    pub fn committed(&mut self, partition: u32, epoch: Epoch, wall: i64) -> Vec<Verdict> {
        let live = self.links.get(&partition).copied();
        if let Some(id) = self.part(partition, epoch, State::Committing) {
            let cohort = self.cohorts.get_mut(&id).expect("a cohort that was found");
            let attached = live == Some(cohort.generation) || removed(Rule::InDoubt);
            cohort.state = if attached { State::Committed } else { State::InDoubt { since: wall } };
        }
        for cursor in self.cursors.values_mut().filter(|c| c.partition == partition && c.epoch == epoch) {
            cursor.committing = false;
        }
        let finished: Vec<_> = self.cursors.keys().copied().filter(|id| self.is_done(*id)).collect();
        for identity in finished {
            self.cursors.remove(&identity);
        }
        self.wake()
    }

    /// The last accept of this epoch was sent over the partition's link. `received`: the source has answered and will
    /// not deliver them again.
    pub fn settled_epoch(&mut self, partition: u32, generation: Generation, epoch: Epoch, now: Tick, received: bool) {
        // A sink's share is accepted before the coordinator hears of the last commit, so the state may still lag behind.
        let part =
            [State::Committed, State::Committing].into_iter().find_map(|state| self.part(partition, epoch, state));
        if let Some(cohort) = part.and_then(|id| self.cohorts.get_mut(&id)).filter(|c| c.generation == generation) {
            cohort.accept = if received { Accept::Received } else { Accept::Sent(now) };
        }
    }

    /// Accepts were sent over the partition's link for identities that were [`Offer::Done`] or [`Verdict::Accept`]: their
    /// clock starts anew, on this link.
    pub fn settled(
        &mut self,
        identities: &[Identity],
        partition: u32,
        generation: Generation,
        now: Tick,
        received: bool,
    ) {
        if self.links.get(&partition) != Some(&generation) {
            return;
        }
        let accept = if received { Accept::Received } else { Accept::Sent(now) };
        let mut moved: BTreeMap<u64, CohortId> = BTreeMap::new();
        for &identity in identities {
            let Some(slot) = self.ids.get(identity) else { continue };
            let Cohort { state, recorded, .. } = self.cohorts[&slot.cohort];
            if state.is_done() {
                let to = *moved.entry(recorded).or_insert_with(|| {
                    let fresh = Cohort { accept, recorded, generation, ..Cohort::new(State::Committed, partition) };
                    add(&mut self.cohorts, &mut self.next, fresh)
                });
                self.move_to(identity, to);
            }
        }
    }

    /// The link of this generation is up.
    pub fn link_up(&mut self, partition: u32, generation: Generation) {
        self.links.insert(partition, generation);
    }

    /// Whether this generation's link is the one that is up: what a dead generation still receives counts for nothing.
    pub fn is_up(&self, partition: u32, generation: Generation) -> bool {
        self.links.get(&partition) == Some(&generation)
    }

    /// The generation's link is gone, whatever the reason: what was accepted over it and is within the horizon is in
    /// doubt, and what it held is no longer there to be told.
    pub fn link_down(&mut self, partition: u32, generation: Generation, wall: i64) {
        if self.links.get(&partition) == Some(&generation) {
            self.links.remove(&partition);
        }
        self.forget(|c| c.over(partition, generation) && c.accept == Accept::Received);
        for cohort in self.cohorts.values_mut().filter(|c| c.over(partition, generation) && !removed(Rule::InDoubt)) {
            cohort.state = State::InDoubt { since: wall };
            cohort.accept = Accept::Owed;
        }
        self.waiting.retain(|_, holders| {
            holders.retain(|holder| holder.partition != partition || holder.generation != generation);
            !holders.is_empty()
        });
    }

    /// The peer answered the end of this generation's link, and the source says that this is for good: what was
    /// accepted over it cannot come again. Returns how many identities ended.
    pub fn link_answered(&mut self, partition: u32, generation: Generation) -> usize {
        self.forget(|c| c.over(partition, generation) && c.accept != Accept::Owed)
    }

    /// Nothing of the partition's dead generations will be stored any more: its identities in flight are forgotten.
    pub fn free(&mut self, partition: u32) -> Vec<Verdict> {
        self.forget(|c| c.state == State::InFlight && c.partition == partition);
        self.wake()
    }

    /// Forgets what was accepted over this partition's link at least `horizon` ms ago; to be called only while the link
    /// is attached and the peer's frames arrive (protocol R11).
    pub fn expire(&mut self, partition: u32, now: Tick, horizon: u64) -> usize {
        self.forget(|c| {
            c.state == State::Committed
                && c.partition == partition
                && match c.accept {
                    Accept::Owed => false,
                    Accept::Sent(at) => now.0.saturating_sub(at.0) >= horizon,
                    Accept::Received => true,
                }
        })
    }

    /// Forgets what has been in doubt since before `oldest` (ms since the epoch).
    pub fn sweep(&mut self, oldest: i64) -> usize {
        self.forget(|c| matches!(c.state, State::InDoubt { since } if since < oldest))
    }

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
        let cohort = add(&mut self.cohorts, &mut self.next, cohort);
        for &(identity, rejected) in identities {
            self.cursors.remove(&identity);
            if self.ids.get(identity).is_some() {
                self.move_to(identity, cohort);
            } else {
                self.insert(identity, cohort, rejected);
            }
            self.ids.update(identity, |slot| slot.rejected |= rejected);
        }
        self.drop_if_empty(cohort);
    }

    /// At start: identities that an entry names as in doubt. One that is committing stays so.
    pub fn load_in_doubt(&mut self, identities: &[(Identity, i64)], number: u64) {
        let mut by_day: BTreeMap<i64, CohortId> = BTreeMap::new();
        for &(identity, since) in identities {
            self.cursors.remove(&identity);
            let known = self.ids.get(identity).map(|slot| self.cohorts[&slot.cohort].state);
            if known == Some(State::Committing) {
                continue;
            }
            let cohort = *by_day.entry(since).or_insert_with(|| {
                let fresh = Cohort { recorded: number, ..Cohort::new(State::InDoubt { since }, u32::MAX) };
                add(&mut self.cohorts, &mut self.next, fresh)
            });
            match known {
                Some(_) => self.move_to(identity, cohort),
                None => self.insert(identity, cohort, false),
            }
        }
    }

    /// At start: how far an unfinished delivery is recorded. The highest row decides; an identity that is done or in
    /// doubt beats every cursor (protocol R6).
    pub fn load_cursor(&mut self, identity: Identity, row: u64, part: (u32, Epoch), number: u64, newest: bool) {
        if self.ids.get(identity).is_none() {
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
        let below = self.cohorts.iter().filter(|(_, c)| c.state.is_done() && c.recorded < floor);
        below
            .flat_map(|(id, cohort)| {
                let since = match cohort.state {
                    State::InDoubt { since } => Some(since),
                    _ => None,
                };
                self.living(*id).map(move |identity| (identity, since))
            })
            .collect()
    }

    /// How many identities [`undischarged_below`](Self::undischarged_below) would name because of entry `number`.
    pub fn undischarged_at(&self, number: u64) -> usize {
        self.cohorts.values().filter(|c| c.state.is_done() && c.recorded == number).map(|c| c.live).sum()
    }

    /// Cursors recorded only below `floor`: identity, row, partition, epoch.
    pub fn cursors_below(&self, floor: u64) -> Vec<(Identity, u64, u32, Epoch)> {
        let below = self.cursors.iter().filter(|(_, cursor)| cursor.recorded < floor);
        below.map(|(identity, c)| (*identity, c.row, c.partition, c.epoch)).collect()
    }

    /// Entry `number` with floor `floor` is stored, and names what [`undischarged_below`](Self::undischarged_below) and
    /// [`cursors_below`](Self::cursors_below) said.
    pub fn copied(&mut self, floor: u64, number: u64) {
        for cohort in self.cohorts.values_mut().filter(|c| c.state.is_done() && c.recorded < floor) {
            cohort.recorded = number;
        }
        for cursor in self.cursors.values_mut().filter(|cursor| cursor.recorded < floor) {
            cursor.recorded = number;
        }
    }

    /// Takes held deliveries out whose identity is no longer in flight or committing.
    fn wake(&mut self) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|&identity, holders| {
            match self.ids.get(identity).map(|slot| self.cohorts[&slot.cohort].state) {
                Some(state) if state.is_done() => {
                    verdicts.extend(holders.drain(..).map(|holder| Verdict::Accept(holder, identity)));
                }
                Some(_) => {}
                None if self.cursors.get(&identity).is_some_and(|cursor| cursor.committing) => {}
                None => verdicts.extend(holders.drain(..).map(|holder| Verdict::Free(holder, identity))),
            }
            !holders.is_empty()
        });
        self.waiting = waiting;
        verdicts
    }

    fn is_done(&self, identity: Identity) -> bool {
        self.ids.get(identity).is_some_and(|slot| self.cohorts[&slot.cohort].state.is_done())
    }

    fn insert(&mut self, identity: Identity, cohort: CohortId, rejected: bool) {
        self.ids.insert(identity.id, Slot { content: identity.content, cohort, rejected });
        let cohort = self.cohorts.get_mut(&cohort).expect("a cohort for what is inserted");
        cohort.members.push(identity);
        cohort.live += 1;
    }

    fn move_to(&mut self, identity: Identity, to: CohortId) {
        let Some(from) = self.ids.get(identity).map(|slot| slot.cohort).filter(|from| *from != to) else { return };
        self.ids.update(identity, |slot| slot.cohort = to);
        let cohort = self.cohorts.get_mut(&to).expect("a cohort to move to");
        cohort.members.push(identity);
        cohort.live += 1;
        self.cohorts.get_mut(&from).expect("a cohort to move from").live -= 1;
        self.drop_if_empty(from);
    }

    fn drop_if_empty(&mut self, id: CohortId) {
        if self.cohorts.get(&id).is_some_and(|cohort| cohort.live == 0) {
            self.cohorts.remove(&id);
        }
    }

    fn living(&self, id: CohortId) -> impl Iterator<Item = Identity> + '_ {
        let members = self.cohorts[&id].members.iter().copied();
        members.filter(move |identity| self.ids.get(*identity).is_some_and(|slot| slot.cohort == id))
    }

    fn forget(&mut self, which: impl Fn(&Cohort) -> bool) -> usize {
        let before = self.len();
        let gone: Vec<_> = self.cohorts.iter().filter(|(_, cohort)| which(cohort)).map(|(id, _)| *id).collect();
        for id in gone {
            let cohort = self.cohorts.remove(&id).expect("a cohort that was listed");
            for identity in cohort.members {
                if self.ids.get(identity).is_some_and(|slot| slot.cohort == id) {
                    self.ids.remove(identity);
                }
            }
        }
        self.ids.shrink();
        before - self.len()
    }

    /// The cohort that `partition` sent in `epoch`, if it is in this state. The newest are looked at first: one that is in
    /// flight is among the last few.
    fn part(&self, partition: u32, epoch: impl Into<Option<Epoch>>, state: State) -> Option<CohortId> {
        let epoch = epoch.into();
        let wanted = |c: &Cohort| c.state == state && c.partition == partition && c.epoch == epoch;
        self.cohorts.iter().rev().find_map(|(id, cohort)| wanted(cohort).then_some(*id))
    }

    fn in_flight(&mut self, partition: u32, generation: Generation, epoch: Option<Epoch>) -> CohortId {
        self.part(partition, epoch, State::InFlight).unwrap_or_else(|| {
            let cohort = Cohort { epoch, generation, ..Cohort::new(State::InFlight, partition) };
            add(&mut self.cohorts, &mut self.next, cohort)
        })
    }
}

impl Cohort {
    fn new(state: State, partition: u32) -> Self {
        let (generation, accept) = (Generation(0), Accept::Owed);
        Self { state, partition, epoch: None, generation, accept, recorded: 0, members: Vec::new(), live: 0 }
    }

    /// Whether its accepts go, or went, over this generation's link.
    fn over(&self, partition: u32, generation: Generation) -> bool {
        self.state == State::Committed && self.partition == partition && self.generation == generation
    }
}

fn add(cohorts: &mut BTreeMap<CohortId, Cohort>, next: &mut CohortId, cohort: Cohort) -> CohortId {
    // Four thousand million cohorts at ten a second last thirteen years; then numbers that are free are used again.
    while cohorts.contains_key(next) {
        *next = next.wrapping_add(1);
    }
    let id = *next;
    *next = next.wrapping_add(1);
    cohorts.insert(id, cohort);
    id
}

/// Two `Seen` that behave the same hash the same, however they came about: a search that visits states needs that.
impl Hash for Seen {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut all = Vec::with_capacity(self.len());
        for (id, c) in &self.cohorts {
            for identity in self.living(*id) {
                let rejected = self.ids.get(identity).is_some_and(|slot| slot.rejected);
                all.push((identity, rejected, c.state, c.partition, c.epoch, c.generation, c.accept, c.recorded));
            }
        }
        all.sort_by_key(|known| known.0);
        all.hash(state);
        self.cursors.hash(state);
        self.waiting.hash(state);
        self.links.hash(state);
    }
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut map = f.debug_map();
        for (id, cohort) in &self.cohorts {
            for identity in self.living(*id) {
                map.entry(&format_args!("{:x}/{:x}", identity.id, identity.content), &cohort.state);
            }
        }
        map.finish()
    }
}

#[cfg(test)]
mod tests;
