//! The table under [`Seen`](super::Seen): identity → slot, 29 bytes each, for tens of millions of them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use crate::flow::Identity;

/// What is kept with an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub content: u64,
    pub cohort: u32,
    pub rejected: bool,
}

/// A [`Slot`] with the alignment of a byte.
#[derive(Clone, Copy)]
struct Packed {
    content: [u8; 8],
    cohort: [u8; 4],
    rejected: bool,
}

impl From<Slot> for Packed {
    fn from(slot: Slot) -> Self {
        Self { content: slot.content.to_ne_bytes(), cohort: slot.cohort.to_ne_bytes(), rejected: slot.rejected }
    }
}

impl From<Packed> for Slot {
    fn from(packed: Packed) -> Self {
        Self {
            content: u64::from_ne_bytes(packed.content),
            cohort: u32::from_ne_bytes(packed.cohort),
            rejected: packed.rejected,
        }
    }
}

/// Ids are hashes already: eight bytes of one are as good as any.
#[derive(Clone, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = self.0.rotate_left(5) ^ u64::from_ne_bytes(word);
        }
    }

    fn write_usize(&mut self, _: usize) {}
}

/// Identities and their slots.
#[derive(Clone, Default)]
pub(super) struct Table {
    first: HashMap<[u8; 16], Packed, BuildHasherDefault<IdHasher>>,
    /// Further contents under an id that `first` has: only after collisions.
    more: BTreeMap<u128, Vec<Slot>>,
    len: usize,
}

impl Table {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, identity: Identity) -> Option<Slot> {
        self.under(identity.id).find(|slot| slot.content == identity.content)
    }

    /// All slots under an id, whatever the content.
    pub fn under(&self, id: u128) -> impl Iterator<Item = Slot> + '_ {
        let first = self.first.get(&id.to_be_bytes()).copied().map(Slot::from);
        let more = if self.more.is_empty() { None } else { self.more.get(&id) };
        first.into_iter().chain(more.into_iter().flatten().copied())
    }

    /// Adds an identity that [`get`](Self::get) does not find.
    pub fn insert(&mut self, id: u128, slot: Slot) {
        match self.first.entry(id.to_be_bytes()) {
            Entry::Vacant(vacant) => {
                vacant.insert(slot.into());
            }
            Entry::Occupied(_) => self.more.entry(id).or_default().push(slot),
        }
        self.len += 1;
    }

    pub fn update(&mut self, identity: Identity, change: impl FnOnce(&mut Slot)) {
        let Some(packed) = self.first.get_mut(&identity.id.to_be_bytes()) else { return };
        let mut slot = Slot::from(*packed);
        if slot.content == identity.content {
            change(&mut slot);
            *packed = slot.into();
        } else if let Some(more) = self.more.get_mut(&identity.id) {
            more.iter_mut().find(|slot| slot.content == identity.content).map(change);
        }
    }

    pub fn remove(&mut self, identity: Identity) {
        let key = identity.id.to_be_bytes();
        let Some(first) = self.first.get(&key).copied().map(Slot::from) else { return };
        let more = self.more.get_mut(&identity.id);
        if first.content == identity.content {
            match more {
                Some(more) => self.first.insert(key, more.remove(0).into()),
                None => self.first.remove(&key),
            };
        } else if let Some(more) = more {
            more.retain(|slot| slot.content != identity.content);
        }
        if self.more.get(&identity.id).is_some_and(Vec::is_empty) {
            self.more.remove(&identity.id);
        }
        self.len -= 1;
    }

    /// Gives memory back when the table has shrunk far below its room, so that memory follows the load.
    pub fn shrink(&mut self) {
        if self.first.capacity() > 4096 && self.first.len() * 4 < self.first.capacity() {
            self.first.shrink_to(self.first.len() * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_under_one_id_come_and_go_apart() {
        let slot = |content| Slot { content, cohort: 7, rejected: false };
        let identity = |content| Identity { id: 1, content };
        let mut table = Table::default();
        for content in [10, 20, 30] {
            table.insert(1, slot(content));
        }
        table.update(identity(20), |slot| slot.rejected = true);
        assert_eq!(table.get(identity(20)), Some(Slot { content: 20, cohort: 7, rejected: true }));
        table.remove(identity(10));
        assert_eq!(table.get(identity(10)), None);
        assert_eq!(table.under(1).map(|slot| slot.content).collect::<Vec<_>>(), [20, 30]);
        table.remove(identity(30));
        table.remove(identity(20));
        assert_eq!((table.len(), table.under(1).count()), (0, 0));
    }
}
