//! Identities in groups: what [`Seen`](super::Seen) keeps its tens of millions of identities in.
//!
//! An identity is stored once, in its group's list: 25 bytes, and 9 for each place of an index of hashes, which has between
//! 1.2 and 4.6 places for each: it grows when it is full, and counts what was removed as full until it is made anew. To
//! change what is true of a group is one write, however many identities it has.

use std::collections::BTreeMap;

use hashbrown::HashTable;

use crate::flow::Identity;

/// Which group; a later one has the greater number.
pub(super) type GroupId = u32;

/// An identity as it is stored: with the alignment of a byte.
#[derive(Clone)]
struct Member {
    id: [u8; 16],
    content: [u8; 8],
    rejected: bool,
}

impl Member {
    fn identity(&self) -> Identity {
        Identity { id: u128::from_ne_bytes(self.id), content: u64::from_ne_bytes(self.content) }
    }
}

/// Where an identity is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    group: GroupId,
    at: u32,
}

#[derive(Clone)]
struct Group<T> {
    data: T,
    /// Those that were put in. One that has moved to another group since stays in the list and no longer counts.
    members: Vec<Member>,
    live: usize,
}

/// What is known of an identity.
pub(super) struct Known<'a, T> {
    pub group: GroupId,
    /// What is true of the group.
    pub data: &'a T,
    pub rejected: bool,
}

/// Identities, each in one of the groups; `T` is what is true of a group.
#[derive(Clone)]
pub(super) struct Groups<T> {
    groups: BTreeMap<GroupId, Group<T>>,
    index: HashTable<Place>,
    next: GroupId,
}

impl<T> Default for Groups<T> {
    fn default() -> Self {
        Self { groups: BTreeMap::new(), index: HashTable::new(), next: 0 }
    }
}

/// Ids are hashes already: eight bytes of one are as good as any.
fn hash(id: u128) -> u64 {
    id as u64
}

fn member<T>(groups: &BTreeMap<GroupId, Group<T>>, place: Place) -> &Member {
    &groups[&place.group].members[place.at as usize]
}

impl<T> Groups<T> {
    /// How many identities there are.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// What is known of an identity.
    pub fn get(&self, identity: Identity) -> Option<Known<'_, T>> {
        self.under(identity.id).find_map(|(found, known)| (found == identity).then_some(known))
    }

    /// All identities with this id, whatever the content.
    pub fn under(&self, id: u128) -> impl Iterator<Item = (Identity, Known<'_, T>)> {
        self.index.iter_hash(hash(id)).filter_map(move |place| {
            let group = &self.groups[&place.group];
            let member = &group.members[place.at as usize];
            let known = Known { group: place.group, data: &group.data, rejected: member.rejected };
            Some((member.identity(), known)).filter(|(identity, _)| identity.id == id)
        })
    }

    /// The groups, oldest first; `live`: how many identities each has.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (GroupId, &T, usize)> {
        self.groups.iter().map(|(id, group)| (*id, &group.data, group.live))
    }

    /// What is true of each group, to be changed.
    pub fn data_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut T> {
        self.groups.values_mut().map(|group| &mut group.data)
    }

    /// What is true of a group that exists, to be changed. It gets no further identities: its list takes no spare room.
    pub fn close(&mut self, id: GroupId) -> &mut T {
        let group = self.groups.get_mut(&id).expect("a group that exists");
        group.members.shrink_to_fit();
        &mut group.data
    }

    /// The identities of a group.
    pub fn members(&self, id: GroupId) -> impl Iterator<Item = (Identity, bool)> + '_ {
        self.groups.get(&id).into_iter().flat_map(move |group| {
            // Where none has moved to another group, nothing need be looked up.
            let all = group.live == group.members.len();
            group.members.iter().zip(0..).filter_map(move |(member, at)| {
                let (identity, place) = (member.identity(), Place { group: id, at });
                let here = all || self.index.find(hash(identity.id), |found| *found == place).is_some();
                here.then_some((identity, member.rejected))
            })
        })
    }

    /// A new group, without identities.
    pub fn add(&mut self, data: T) -> GroupId {
        // Four thousand million groups at ten a second last thirteen years; then numbers that are free are used again.
        while self.groups.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        self.next = id.wrapping_add(1);
        self.groups.insert(id, Group { data, members: Vec::new(), live: 0 });
        id
    }

    fn push(&mut self, identity: Identity, rejected: bool, to: GroupId) -> Place {
        let group = self.groups.get_mut(&to).expect("a group to put it in");
        let at = u32::try_from(group.members.len()).expect("fewer than 2^32 identities in a group");
        let (id, content) = (identity.id.to_ne_bytes(), identity.content.to_ne_bytes());
        group.members.push(Member { id, content, rejected });
        group.live += 1;
        Place { group: to, at }
    }

    /// Adds an identity that [`get`](Self::get) does not find.
    pub fn insert(&mut self, identity: Identity, rejected: bool, to: GroupId) {
        let place = self.push(identity, rejected, to);
        let groups = &self.groups;
        self.index.insert_unique(hash(identity.id), place, |place| hash(member(groups, *place).identity().id));
    }

    /// Moves an identity that is known to another group; one that is left empty goes.
    pub fn move_to(&mut self, identity: Identity, to: GroupId) {
        let Some(Known { group: from, rejected, .. }) = self.get(identity) else { return };
        if from == to {
            return;
        }
        let place = self.push(identity, rejected, to);
        if let Some(found) = self.place_mut(identity, from) {
            *found = place;
        }
        self.groups.get_mut(&from).expect("the group it was in").live -= 1;
        self.remove_if_empty(from);
    }

    fn place_mut(&mut self, identity: Identity, group: GroupId) -> Option<&mut Place> {
        let groups = &self.groups;
        self.index
            .find_mut(hash(identity.id), |place| place.group == group && member(groups, *place).identity() == identity)
    }

    /// Marks an identity as rejected.
    pub fn reject(&mut self, identity: Identity) {
        let Some(group) = self.get(identity).map(|known| known.group) else { return };
        let Some(Place { at, .. }) = self.place_mut(identity, group).copied() else { return };
        self.groups.get_mut(&group).expect("the group it is in").members[at as usize].rejected = true;
    }

    /// Removes a group that has no identities.
    pub fn remove_if_empty(&mut self, id: GroupId) {
        if self.groups.get(&id).is_some_and(|group| group.live == 0) {
            self.groups.remove(&id);
        }
    }

    /// Removes groups with their identities; how many these were.
    pub fn remove(&mut self, which: impl Fn(&T) -> bool) -> usize {
        let before = self.len();
        let index = &mut self.index;
        self.groups.retain(|id, group| {
            let stays = !which(&group.data);
            if !stays {
                for (member, at) in group.members.iter().zip(0..) {
                    let place = Place { group: *id, at };
                    // One that has moved is in the index with its new place.
                    if let Ok(found) = index.find_entry(hash(member.identity().id), |found| *found == place) {
                        found.remove();
                    }
                }
            }
            stays
        });
        self.shrink();
        before - self.len()
    }

    /// Gives memory back when the index has shrunk far below its room, so that memory follows the load.
    fn shrink(&mut self) {
        if self.index.capacity() > 4096 && self.index.len() * 4 < self.index.capacity() {
            let groups = &self.groups;
            self.index.shrink_to(self.index.len() * 2, |place| hash(member(groups, *place).identity().id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(groups: &Groups<char>, id: u128) -> Vec<(u64, char, bool)> {
        let mut found: Vec<_> = groups.under(id).map(|(i, known)| (i.content, *known.data, known.rejected)).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn contents_under_one_id_come_and_go_apart() {
        let identity = |content| Identity { id: 1, content };
        let mut groups = Groups::default();
        let a = groups.add('a');
        let b = groups.add('b');
        for content in [10, 20, 30] {
            groups.insert(identity(content), false, a);
        }
        groups.reject(identity(20));
        groups.move_to(identity(20), b);
        groups.move_to(identity(30), b);
        assert_eq!(under(&groups, 1), [(10, 'a', false), (20, 'b', true), (30, 'b', false)]);
        assert_eq!(groups.members(a).collect::<Vec<_>>(), [(identity(10), false)]);
        assert_eq!(groups.remove(|data| *data == 'a'), 1);
        assert_eq!(under(&groups, 1), [(20, 'b', true), (30, 'b', false)]);
        assert_eq!((groups.remove(|_| true), groups.len(), groups.iter().count()), (2, 0, 0));
    }

    #[test]
    fn a_group_that_is_left_empty_goes() {
        let identity = Identity { id: 1, content: 1 };
        let mut groups = Groups::default();
        let (a, b) = (groups.add('a'), groups.add('b'));
        groups.insert(identity, false, a);
        groups.move_to(identity, b);
        assert_eq!(groups.iter().collect::<Vec<_>>(), [(b, &'b', 1)]);
        groups.move_to(identity, b);
        assert_eq!(groups.members(b).count(), 1, "to where it is already");
    }

    #[test]
    fn the_index_follows_what_there_is() {
        let mut groups = Groups::default();
        let (old, new) = (groups.add('a'), groups.add('b'));
        for n in 0..50_000 {
            groups.insert(Identity { id: n << 3, content: 0 }, false, if n < 100 { new } else { old });
        }
        let full = groups.index.capacity();
        assert_eq!(groups.remove(|data| *data == 'a'), 49_900);
        assert!(groups.index.capacity() < full / 8);
        assert!((0..100).all(|n| groups.get(Identity { id: n << 3, content: 0 }).is_some()));
    }
}
