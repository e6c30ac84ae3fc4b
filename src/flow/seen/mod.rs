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

mod groups;
mod log;

use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};

use super::mutation::{Rule, removed};
use super::{DeliveryId, Epoch, Generation, Identity, Tick};
use groups::{GroupId, Groups};
pub use log::Undischarged;

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

/// What the identities of one epoch have in common.
#[derive(Clone, Copy, Debug)]
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
    cohorts: Groups<Cohort>,
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
        self.cohorts.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many are in doubt.
    pub fn in_doubt(&self) -> usize {
        self.count(|c| matches!(c.state, State::InDoubt { .. }))
    }

    /// A message has arrived at `holder.partition`, whose current epoch is `epoch`.
    pub fn offer(&mut self, identity: Identity, holder: Holder, epoch: Epoch) -> Offer {
        // Other content under an id that was not itself rejected.
        let mut collides = false;
        let mut same = None;
        for (found, known) in self.cohorts.under(identity.id) {
            match found == identity {
                true => same = Some(*known.data),
                false => collides |= !known.rejected,
            }
        }
        if let Some(Cohort { state, partition, .. }) = same {
            return if state.is_done() { Offer::Done } else { self.hold(identity, holder, partition) };
        }
        let resume = match self.cursors.get(&identity).copied() {
            Some(cursor) if cursor.committing => return self.hold(identity, holder, cursor.partition),
            Some(cursor) => cursor.row,
            None => 0,
        };
        let cohort = self.in_flight(holder.partition, holder.generation, Some(epoch));
        self.cohorts.insert(identity, collides, cohort);
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
        part.into_iter().flat_map(|id| self.cohorts.members(id)).map(|(identity, _)| identity).collect()
    }

    /// At the barrier: takes unfinished deliveries, those with rows left to send, out of the epoch that ends. They belong
    /// to none until [`continued`](Self::continued), so that waiting for more rows makes no epochs.
    pub fn carry(&mut self, unfinished: &[Identity], partition: u32, generation: Generation) {
        for &identity in unfinished {
            let to = self.in_flight(partition, generation, None);
            self.cohorts.move_to(identity, to);
        }
    }

    /// Further rows of these unfinished deliveries are sent in `epoch`.
    pub fn continued(&mut self, unfinished: &[Identity], partition: u32, generation: Generation, epoch: Epoch) {
        for &identity in unfinished {
            let to = self.in_flight(partition, generation, Some(epoch));
            self.cohorts.move_to(identity, to);
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
            let cohort = self.cohorts.close(id);
            cohort.state = State::Committing;
            cohort.recorded = number;
        }
        for &identity in rejected {
            self.cohorts.reject(identity);
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
            let cohort = self.cohorts.close(id);
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
        let cohort = part.map(|id| self.cohorts.close(id));
        if let Some(cohort) = cohort.filter(|c| c.generation == generation) {
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
        let mut moved: BTreeMap<u64, GroupId> = BTreeMap::new();
        for &identity in identities {
            let Some(&Cohort { state, recorded, .. }) = self.cohort(identity) else { continue };
            if state.is_done() {
                let to = *moved.entry(recorded).or_insert_with(|| {
                    let fresh = Cohort { accept, recorded, generation, ..Cohort::new(State::Committed, partition) };
                    self.cohorts.add(fresh)
                });
                self.cohorts.move_to(identity, to);
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
        self.cohorts.remove(|c| c.over(partition, generation) && c.accept == Accept::Received);
        for cohort in self.cohorts.data_mut().filter(|c| c.over(partition, generation) && !removed(Rule::InDoubt)) {
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
        self.cohorts.remove(|c| c.over(partition, generation) && c.accept != Accept::Owed)
    }

    /// Nothing of the partition's dead generations will be stored any more: its identities in flight are forgotten.
    pub fn free(&mut self, partition: u32) -> Vec<Verdict> {
        self.cohorts.remove(|c| c.state == State::InFlight && c.partition == partition);
        self.wake()
    }

    /// Forgets what was accepted over this partition's link at least `horizon` ms ago; to be called only while the link
    /// is attached and the peer's frames arrive (protocol R11).
    pub fn expire(&mut self, partition: u32, now: Tick, horizon: u64) -> usize {
        self.cohorts.remove(|c| {
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
        self.cohorts.remove(|c| matches!(c.state, State::InDoubt { since } if since < oldest))
    }

    /// Takes held deliveries out whose identity is no longer in flight or committing.
    fn wake(&mut self) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|&identity, holders| {
            match self.cohort(identity).map(|cohort| cohort.state) {
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
        self.cohort(identity).is_some_and(|cohort| cohort.state.is_done())
    }

    fn cohort(&self, identity: Identity) -> Option<&Cohort> {
        self.cohorts.get(identity).map(|known| known.data)
    }

    /// How many identities there are in such cohorts.
    fn count(&self, which: impl Fn(&Cohort) -> bool) -> usize {
        self.cohorts.iter().filter(|(_, cohort, _)| which(cohort)).map(|(_, _, live)| live).sum()
    }

    /// The cohort that `partition` sent in `epoch`, if it is in this state. The newest are looked at first: one that is in
    /// flight is among the last few.
    fn part(&self, partition: u32, epoch: impl Into<Option<Epoch>>, state: State) -> Option<GroupId> {
        let epoch = epoch.into();
        let wanted = |c: &Cohort| c.state == state && c.partition == partition && c.epoch == epoch;
        self.cohorts.iter().rev().find_map(|(id, cohort, _)| wanted(cohort).then_some(id))
    }

    fn in_flight(&mut self, partition: u32, generation: Generation, epoch: Option<Epoch>) -> GroupId {
        self.part(partition, epoch, State::InFlight).unwrap_or_else(|| {
            let cohort = Cohort { epoch, generation, ..Cohort::new(State::InFlight, partition) };
            self.cohorts.add(cohort)
        })
    }
}

impl Cohort {
    fn new(state: State, partition: u32) -> Self {
        let (generation, accept) = (Generation(0), Accept::Owed);
        Self { state, partition, epoch: None, generation, accept, recorded: 0 }
    }

    /// Whether its accepts go, or went, over this generation's link.
    fn over(&self, partition: u32, generation: Generation) -> bool {
        self.state == State::Committed && self.partition == partition && self.generation == generation
    }
}

/// Two `Seen` that behave the same hash the same, however they came about: a search that visits states needs that.
impl Hash for Seen {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut all = Vec::with_capacity(self.len());
        for (id, c, _) in self.cohorts.iter() {
            for (identity, rejected) in self.cohorts.members(id) {
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
        for (id, cohort, _) in self.cohorts.iter() {
            for (identity, _) in self.cohorts.members(id) {
                map.entry(&format_args!("{:x}/{:x}", identity.id, identity.content), &cohort.state);
            }
        }
        map.finish()
    }
}

#[cfg(test)]
mod tests;
