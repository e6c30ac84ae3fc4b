//! How a process takes the log over (protocol R1): read its newest entry, write a session entry after it, read it all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::{CheckpointStore, Created, Entry, Kind, Log, StoreError};
use crate::flow::mutation::{Rule, removed};
use crate::flow::{PartitionId, Seen, StageName, StoreId};

/// What a process starts with.
#[derive(Clone, Debug)]
pub struct Begun {
    /// This process.
    pub session: Uuid,
    /// The log's identity.
    pub store: StoreId,
    /// The log, its session entry included.
    pub log: Log,
    /// Its entries from the floor on, for [`load_seen`].
    pub entries: Vec<Entry>,
}

/// Why a process may not have the log.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The store did not answer, or cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It belongs to something else.
    #[error("the checkpoint store belongs to topology '{0}', not to '{1}': give each topology a store of its own")]
    OtherTopology(Arc<str>, Arc<str>),
    /// `--new-store` on a store that is not new.
    #[error("--new-store is for an emptied store, and this one has epochs in it: start without it")]
    NotNew,
    /// An entry between the floor and the newest is not there.
    #[error(
        "the checkpoint log has no entry {0}, though it goes on after it: it was tampered with; restore it from a copy"
    )]
    Gap(u64),
    /// Another process wrote after our session entry.
    #[error("another process has taken over the checkpoint log (entry {0})")]
    Lost(u64),
}

impl Entry {
    /// The session entry to write after `newest`.
    pub fn session(
        newest: Option<&Self>,
        topology: &Arc<str>,
        session: Uuid,
        new_store: bool,
        sinks: &BTreeSet<StageName>,
        wall: i64,
    ) -> Result<Self, SessionError> {
        let log = Log::read(newest);
        if let Some(newest) = newest.filter(|newest| newest.topology != *topology) {
            return Err(SessionError::OtherTopology(newest.topology.clone(), topology.clone()));
        }
        if new_store && log.has_parts {
            return Err(SessionError::NotNew);
        }
        let mut adopted = log.adopted;
        if new_store {
            adopted.extend(sinks.iter().cloned());
        }
        Ok(Self {
            number: log.last + 1,
            attempt: session,
            session,
            topology: topology.clone(),
            store: newest.map_or_else(|| StoreId(Uuid::new_v4()), |newest| newest.store),
            written: wall,
            floor: log.floor.max(1),
            kind: Kind::Session { new_store },
            parts: Vec::new(),
            base: log.base,
            adopted,
            in_doubt: Default::default(),
            cursors: Vec::new(),
        })
    }
}

impl Entry {
    fn resets(&self, which: &PartitionId) -> bool {
        matches!(&self.kind, Kind::Reset { partition, .. } if partition == which)
    }
}

/// Takes the log over. `sinks` are those that `new_store` adopts. Retries what a store does not answer, for ever; the
/// caller sets the limit.
pub async fn begin(
    store: &dyn CheckpointStore,
    topology: &Arc<str>,
    new_store: bool,
    sinks: &BTreeSet<StageName>,
    wall: i64,
) -> Result<Begun, SessionError> {
    loop {
        // Of each try its own: a try that was given up must not be mistaken for this one.
        let session = Uuid::new_v4();
        let newest = newest(store).await?;
        let entry = Entry::session(newest.as_ref(), topology, session, new_store, sinks, wall)?;
        match create(store, &entry).await {
            Created::Created => {}
            Created::AlreadyExists(other) if other.attempt == entry.attempt => {}
            Created::AlreadyExists(_) => continue,
        }
        let numbers = store.list().await?;
        if let Some(&higher) = numbers.last().filter(|last| **last > entry.number) {
            return Err(SessionError::Lost(higher));
        }
        let entries = whole(store, &entry).await?;
        let log = Log::read(&entries);
        return Ok(Begun { session, store: entry.store, log, entries });
    }
}

/// A log as a process that started now would find it.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its identity.
    pub store: StoreId,
    /// What is in it.
    pub log: Log,
}

/// Looks whether a process of this topology could take the log over, and writes nothing. `None`: it is empty.
pub async fn look(store: &dyn CheckpointStore, topology: &Arc<str>, wall: i64) -> Result<Option<Found>, SessionError> {
    let Some(newest) = newest(store).await? else { return Ok(None) };
    // What a process would begin with, only to hear whether it may.
    Entry::session(Some(&newest), topology, Uuid::new_v4(), false, &BTreeSet::new(), wall)?;
    let log = Log::read(&whole(store, &newest).await?);
    Ok(Some(Found { store: newest.store, log }))
}

/// The newest entry.
async fn newest(store: &dyn CheckpointStore) -> Result<Option<Entry>, SessionError> {
    loop {
        let Some(&number) = store.list().await?.last() else { return Ok(None) };
        // One that is gone was deleted by whoever wrote a newer one.
        if let Some(entry) = store.read(number).await? {
            return Ok(Some(entry));
        }
    }
}

/// Every entry from the floor of `newest` on.
async fn whole(store: &dyn CheckpointStore, newest: &Entry) -> Result<Vec<Entry>, SessionError> {
    let mut entries = Vec::new();
    for number in newest.floor..=newest.number {
        entries.push(store.read(number).await?.ok_or(SessionError::Gap(number))?);
    }
    Ok(entries)
}

/// Creates `entry`, however often that takes (protocol R2: the fate of a create is always found out).
pub async fn create(store: &dyn CheckpointStore, entry: &Entry) -> Created {
    let mut delay = Duration::from_millis(50);
    loop {
        match store.create(entry).await {
            Ok(created) => return created,
            Err(error) => {
                tracing::warn!(number = entry.number, %error, "cannot write the checkpoint log, trying again")
            }
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(Duration::from_secs(5));
    }
}

/// Fills the `Seen` of one receiver from the whole log, before any of its partitions receives (protocol R3).
pub fn load_seen(receiver: &StageName, entries: &[Entry], log: &Log) -> Seen {
    let mut seen = Seen::new();
    if removed(Rule::IndexBeforeReceive) {
        return seen;
    }
    for (at, entry) in entries.iter().enumerate() {
        let doubts = entry.in_doubt.get(receiver).map_or(&[][..], Vec::as_slice);
        seen.load_in_doubt(doubts, entry.number);
        for part in entry.parts.iter().filter(|part| part.partition.receiver == *receiver) {
            // Of a part that a reset repeats only the newest copy counts (R4).
            if removed(Rule::ResetKeepsIds) && entries[at + 1..].iter().any(|later| later.resets(&part.partition)) {
                continue;
            }
            let same = |p: &super::Part| p.partition == part.partition && p.epoch == part.epoch;
            if entries[at + 1..].iter().flat_map(|later| &later.parts).any(same) {
                continue;
            }
            let newest = log.newest.get(&part.partition).is_some_and(|newest| newest.number == entry.number);
            let whose = (part.partition.index, part.epoch);
            seen.load(whose, &part.ids, entry.number, newest, entry.written);
            for &(identity, row) in &part.cursors {
                seen.load_cursor(identity, row, whose, entry.number, newest);
            }
        }
        for copy in entry.cursors.iter().filter(|copy| copy.partition.receiver == *receiver) {
            let newest = log.newest.get(&copy.partition).is_some_and(|newest| newest.part.epoch == copy.epoch);
            seen.load_cursor(copy.identity, copy.row, (copy.partition.index, copy.epoch), entry.number, newest);
        }
    }
    seen
}
