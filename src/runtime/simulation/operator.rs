//! What a person does from outside: `runtime state FILE reset`, while no process has the store.

use std::collections::BTreeMap;

use super::world::World;
use crate::checkpoint::{CheckpointStore, Created, Entry, Log};
use crate::clock;
use crate::flow::{AppId, PartitionId};

/// Resets a partition (`None`: any that the log knows); whether there was one.
pub(super) async fn reset(world: &World, slot: usize, partition: Option<u32>) -> bool {
    let store = world.state().stores[slot].clone();
    loop {
        let numbers = store.list().await.expect("a store in memory");
        let mut entries = Vec::new();
        for number in numbers {
            entries.extend(store.read(number).await.expect("a store in memory"));
        }
        let log = Log::read(&entries);
        let entries: Vec<_> = entries.into_iter().filter(|entry| entry.number >= log.floor).collect();
        let Some(last) = entries.last() else { return false };
        let known: Vec<_> = log.base.keys().filter(|id| partition.is_none_or(|index| id.index == index)).collect();
        let at = usize::try_from(world.roll(known.len() as u64)).expect("small");
        let Some(id) = known.get(at).map(|id| PartitionId::clone(id)) else { return false };
        let named = log.newest.get(&id).into_iter().flat_map(|newest| newest.part.sinks.keys());
        let sinks: std::collections::BTreeSet<_> = named.chain(log.base[&id].sinks.keys()).cloned().collect();
        let shows = |sink: &crate::flow::StageName| {
            let app_id =
                AppId { topology: last.topology.clone(), partition: id.clone(), sink: sink.clone(), store: last.store };
            world.space.table(sink.as_str()).shows(&app_id.to_string())
        };
        let shown: BTreeMap<_, _> = sinks.into_iter().map(|sink| (sink.clone(), shows(&sink))).collect();
        let Some(entry) = Entry::reset(&entries, &id, &shown, false, clock::wall_millis()) else { return false };
        if store.create(&entry).await.expect("a store in memory") == Created::Created {
            world.note(format!("reset of {id} in entry {}: {shown:?}", entry.number));
            let mut state = world.state();
            if let Err(broken) = state.evidence.stored(&entry) {
                state.violated(broken);
            }
            return true;
        }
    }
}
