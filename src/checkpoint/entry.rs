//! The record of the log: what was prepared, by whom, and all that a process needs to go on from it.
//!
//! On disk: a line `distributary entry 2 <crc32>`, then the length of a JSON head, the head, and the identities as a block
//! of 25 bytes each (id, content, rejected). The checksum covers everything after the first line. The head is JSON so that a
//! person can read an entry with a pager; the identities are not, because there may be millions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Base;
use crate::flow::{Epoch, Generation, Identity, PartitionId, Prepared, StageName, StoreId};

/// One prepared epoch of one partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    /// Whose.
    pub partition: PartitionId,
    /// Which.
    pub epoch: Epoch,
    /// The generation that prepared it; for people.
    pub generation: Generation,
    /// Every identity whose last row is in it, and whether it was rejected.
    #[serde(skip)]
    pub ids: Vec<(Identity, bool)>,
    /// How many there are.
    pub messages: u64,
    /// Unfinished deliveries: rows sent up to the end of this epoch.
    #[serde(skip)]
    pub cursors: Vec<(Identity, u64)>,
    /// For each exactly-once sink with rows in it, what it needs to commit. The dead letter is a sink here.
    pub sinks: BTreeMap<StageName, Prepared>,
}

/// An identity in doubt, and since when (ms since the epoch).
pub type Doubt = (Identity, i64);

/// A cursor that is named again because the floor rises over the entry that had it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CursorCopy {
    /// The partition that wrote it.
    pub partition: PartitionId,
    /// The epoch that has its highest row.
    pub epoch: Epoch,
    /// Which delivery.
    pub identity: Identity,
    /// Rows committed with that epoch.
    pub row: u64,
}

/// What an entry says besides its parts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A process has started (R1).
    Session {
        /// `--new-store`: all sinks are adopted by it (R7).
        new_store: bool,
    },
    /// Prepared epochs.
    Epochs,
    /// The process has drained: every part is committed by all its sinks (R11).
    Drained,
    /// An operator's way out of an inconsistent partition (R5).
    Reset {
        /// Which.
        partition: PartitionId,
        /// `--drop`: its newest part is given up.
        dropped: bool,
    },
}

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Its place in the log, counted from 1.
    pub number: u64,
    /// Random, of each attempt to create it: an answer *already exists* with mine is success (R1).
    pub attempt: Uuid,
    /// The process that wrote it.
    pub session: Uuid,
    /// The topology's name.
    pub topology: Arc<str>,
    /// The log's identity.
    pub store: StoreId,
    /// When it was written, in ms since the epoch; for people and for the age of doubts.
    pub written: i64,
    /// Entries below it count no more (R4).
    pub floor: u64,
    /// What it is.
    pub kind: Kind,
    /// The epochs in it: any number for `Epochs`, at most one for `Reset`.
    pub parts: Vec<Part>,
    /// For every known partition: where it is once everything *before* this entry is committed (R5).
    pub base: BTreeMap<PartitionId, Base>,
    /// Sinks that have a part in this log, or were adopted at its start (R7).
    pub adopted: BTreeSet<StageName>,
    /// Identities, by receiver, that the broker may still deliver though they are committed (R11).
    pub in_doubt: BTreeMap<StageName, Vec<Doubt>>,
    /// Cursors named again.
    pub cursors: Vec<CursorCopy>,
}

/// Why bytes are not an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// It does not start as an entry does.
    #[error("it is not a checkpoint entry")]
    Foreign,
    /// A later version of this program wrote it.
    #[error(
        "it has format version {0}, and this program knows version {VERSION}: use the version that wrote it, or a later one"
    )]
    Version(u32),
    /// It was cut off or changed.
    #[error("it is torn or damaged: {0}")]
    Damaged(&'static str),
}

const VERSION: u32 = 2;
/// Bytes of an identity in the block.
const IDENTITY: usize = 25;
const MAGIC: &str = "distributary entry ";

#[derive(Serialize, Deserialize)]
struct Head {
    number: u64,
    attempt: Uuid,
    session: Uuid,
    topology: Arc<str>,
    store: StoreId,
    written: i64,
    floor: u64,
    kind: Kind,
    parts: Vec<PartHead>,
    base: Vec<BaseHead>,
    adopted: BTreeSet<StageName>,
    /// Since when, and how many in a row.
    in_doubt: BTreeMap<StageName, Vec<(i64, usize)>>,
    cursors: Vec<CursorHead>,
}

/// A part, with how many ids and cursors of the block are its own, and the cursors' rows.
#[derive(Serialize, Deserialize)]
struct PartHead {
    #[serde(flatten)]
    part: Part,
    ids: u64,
    rows: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
struct BaseHead {
    partition: PartitionId,
    #[serde(flatten)]
    base: Base,
}

#[derive(Serialize, Deserialize)]
struct CursorHead {
    partition: PartitionId,
    epoch: Epoch,
    row: u64,
}

impl Entry {
    /// The bytes to store.
    pub fn encode(&self) -> Vec<u8> {
        let head = Head {
            number: self.number,
            attempt: self.attempt,
            session: self.session,
            topology: self.topology.clone(),
            store: self.store,
            written: self.written,
            floor: self.floor,
            kind: self.kind.clone(),
            parts: self
                .parts
                .iter()
                .map(|part| PartHead {
                    part: Part { ids: Vec::new(), cursors: Vec::new(), ..part.clone() },
                    ids: part.ids.len() as u64,
                    rows: part.cursors.iter().map(|(_, row)| *row).collect(),
                })
                .collect(),
            base: self
                .base
                .iter()
                .map(|(partition, base)| BaseHead { partition: partition.clone(), base: base.clone() })
                .collect(),
            adopted: self.adopted.clone(),
            in_doubt: self.in_doubt.iter().map(|(receiver, doubts)| (receiver.clone(), runs(doubts))).collect(),
            cursors: self
                .cursors
                .iter()
                .map(|c| CursorHead { partition: c.partition.clone(), epoch: c.epoch, row: c.row })
                .collect(),
        };
        let head = serde_json::to_vec(&head).expect("a head is plain JSON");
        let first = |checksum: u32| format!("{MAGIC}{VERSION} {checksum:08x}\n");
        let mut bytes = first(0).into_bytes();
        let body = bytes.len();
        bytes.reserve(head.len() + IDENTITY * self.identities().count() + 16);
        bytes.extend_from_slice(format!("{}\n", head.len()).as_bytes());
        bytes.extend_from_slice(&head);
        bytes.push(b'\n');
        for (identity, rejected) in self.identities() {
            bytes.extend_from_slice(&identity.to_bytes());
            bytes.push(u8::from(rejected));
        }
        let checksum = crc32fast::hash(&bytes[body..]);
        bytes[..body].copy_from_slice(first(checksum).as_bytes());
        bytes
    }

    /// Every identity in it, in the order of the block, and whether it was rejected.
    fn identities(&self) -> impl Iterator<Item = (Identity, bool)> + '_ {
        let parts = self.parts.iter().flat_map(|part| {
            let unfinished = part.cursors.iter().map(|(identity, _)| (*identity, false));
            part.ids.iter().copied().chain(unfinished)
        });
        let doubts = self.in_doubt.values().flatten().map(|(identity, _)| (*identity, false));
        parts.chain(doubts).chain(self.cursors.iter().map(|cursor| (cursor.identity, false)))
    }

    /// The entry in these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, EntryError> {
        let (first, body) = line(bytes).ok_or(EntryError::Foreign)?;
        let first = std::str::from_utf8(first).map_err(|_| EntryError::Foreign)?;
        let (version, checksum) =
            first.strip_prefix(MAGIC).and_then(|rest| rest.split_once(' ')).ok_or(EntryError::Foreign)?;
        let version: u32 = version.parse().map_err(|_| EntryError::Foreign)?;
        if version != VERSION {
            return Err(EntryError::Version(version));
        }
        if u32::from_str_radix(checksum, 16) != Ok(crc32fast::hash(body)) {
            return Err(EntryError::Damaged("its checksum does not match"));
        }
        let (length, rest) = line(body).ok_or(EntryError::Damaged("its length is missing"))?;
        let length: usize = std::str::from_utf8(length)
            .ok()
            .and_then(|length| length.parse().ok())
            .ok_or(EntryError::Damaged("its length is not a number"))?;
        let (head, block) = rest.split_at_checked(length).ok_or(EntryError::Damaged("its head is cut off"))?;
        let head: Head = serde_json::from_slice(head).map_err(|_| EntryError::Damaged("its head does not parse"))?;
        let block = block.strip_prefix(b"\n").ok_or(EntryError::Damaged("its identities are missing"))?;
        let mut identities = Identities(block);

        let mut parts = Vec::with_capacity(head.parts.len());
        for PartHead { mut part, ids, rows } in head.parts {
            for _ in 0..ids {
                part.ids.push(identities.next()?);
            }
            for row in rows {
                part.cursors.push((identities.next()?.0, row));
            }
            parts.push(part);
        }
        let mut in_doubt: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (receiver, runs) in head.in_doubt {
            let mut doubts = Vec::new();
            for (since, count) in runs {
                for _ in 0..count {
                    doubts.push((identities.next()?.0, since));
                }
            }
            in_doubt.insert(receiver, doubts);
        }
        let mut cursors = Vec::with_capacity(head.cursors.len());
        for CursorHead { partition, epoch, row } in head.cursors {
            cursors.push(CursorCopy { partition, epoch, row, identity: identities.next()?.0 });
        }
        if !identities.0.is_empty() {
            return Err(EntryError::Damaged("it has more identities than its head says"));
        }
        Ok(Self {
            number: head.number,
            attempt: head.attempt,
            session: head.session,
            topology: head.topology,
            store: head.store,
            written: head.written,
            floor: head.floor,
            kind: head.kind,
            parts,
            base: head.base.into_iter().map(|BaseHead { partition, base }| (partition, base)).collect(),
            adopted: head.adopted,
            in_doubt,
            cursors,
        })
    }
}

/// Doubts of one time follow each other: since when, and how many.
fn runs(doubts: &[Doubt]) -> Vec<(i64, usize)> {
    let runs = doubts.chunk_by(|(_, one), (_, other)| one == other);
    runs.map(|run| (run[0].1, run.len())).collect()
}

fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().take(128).position(|byte| *byte == b'\n')?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

struct Identities<'a>(&'a [u8]);

impl Identities<'_> {
    fn next(&mut self) -> Result<(Identity, bool), EntryError> {
        let (identity, rest) =
            self.0.split_first_chunk::<24>().ok_or(EntryError::Damaged("its identities are cut off"))?;
        let (rejected, rest) = rest.split_first().ok_or(EntryError::Damaged("its identities are cut off"))?;
        self.0 = rest;
        Ok((Identity::from_bytes(identity), *rejected != 0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry() -> Entry {
        let partition = PartitionId::new("orders", 1);
        let identity = |n: u8| Identity::of(&[n], b"content");
        Entry {
            number: 42,
            attempt: Uuid::from_u128(1),
            session: Uuid::from_u128(2),
            topology: "orders".into(),
            store: StoreId(Uuid::from_u128(3)),
            written: 1_700_000_000_000,
            floor: 40,
            kind: Kind::Epochs,
            parts: vec![Part {
                partition: partition.clone(),
                epoch: Epoch(7),
                generation: Generation(2),
                ids: vec![(identity(1), false), (identity(2), true)],
                messages: 2,
                cursors: vec![(identity(3), 99)],
                sinks: [("lake".into(), Prepared { rows: 1, payload: r#"{"files":["a\nb"]}"#.into() })].into(),
            }],
            base: [(partition.clone(), Base { epoch: Epoch(6), sinks: [("lake".into(), Epoch(5))].into() })].into(),
            adopted: ["lake".into()].into(),
            in_doubt: [("orders".into(), vec![(identity(4), 5)])].into(),
            cursors: vec![CursorCopy { partition, epoch: Epoch(6), identity: identity(5), row: 3 }],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let entry = entry();
        assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
    }

    #[test]
    fn a_later_version_is_named() {
        let bytes = entry().encode();
        let text = [b"distributary entry 3 00000000\n".as_slice(), &bytes[30..]].concat();
        assert_eq!(Entry::decode(&text), Err(EntryError::Version(3)));
    }

    proptest! {
        #[test]
        fn a_torn_entry_is_noticed(at in 0usize..700) {
            let bytes = entry().encode();
            if at < bytes.len() {
                prop_assert!(Entry::decode(&bytes[..at]).is_err());
            }
        }

        #[test]
        fn a_flipped_bit_is_noticed(at in 0usize..700, bit in 0u8..8) {
            let mut bytes = entry().encode();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            // Upper and lower case of the checksum's hexadecimal digits mean the same.
            if let Ok(decoded) = Entry::decode(&bytes) { prop_assert_eq!(decoded, entry()); }
        }

        #[test]
        fn random_bytes_are_no_entry(bytes: Vec<u8>) {
            prop_assert!(Entry::decode(&bytes).is_err());
        }
    }
}
