//! Recovery of one partition (protocol R5): what the log says against what each sink shows. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{Base, Log};
use crate::flow::mutation::{Rule, removed};
use crate::flow::{Committed, Epoch, PartitionId, StageName};

/// What is to be done before a partition may go on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recovery {
    /// Sinks that lack the newest part: commit it there again.
    pub replay: BTreeSet<StageName>,
    /// The first epoch to fill.
    pub next: Epoch,
}

/// The log and a sink contradict each other: going on could lose or double.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inconsistent {
    /// The partition.
    pub partition: PartitionId,
    /// The sink.
    pub sink: StageName,
    /// What it shows; `None`: it is no longer in the topology, so it cannot be asked.
    pub shown: Option<Committed>,
    /// What the log allows.
    pub expected: Vec<Epoch>,
}

impl fmt::Display for Inconsistent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { partition, sink, shown, expected } = self;
        let expected: Vec<_> = expected.iter().map(ToString::to_string).collect();
        let expected = expected.join(" or ");
        match shown {
            Some(Committed::At(epoch)) => write!(
                f,
                "partition {partition}: sink '{sink}' shows epoch {epoch}, the checkpoint log expects {expected}; was the \
                 target or the store replaced or restored? `runtime state FILE reset {partition}` goes on from what the sinks show"
            ),
            Some(Committed::Unknown) => write!(
                f,
                "partition {partition}: sink '{sink}' no longer knows which epoch it shows, the checkpoint log expects \
                 {expected}; `runtime state FILE reset {partition}` goes on from what the sinks show"
            ),
            None => write!(
                f,
                "partition {partition}: sink '{sink}' is no longer in the topology, but its epoch {expected} may be unfinished; \
                 put it back until a drain has ended, or give that epoch up with `runtime state FILE reset {partition} --drop`"
            ),
        }
    }
}

/// No target forgets a record that is younger than this, in ms: a day. (Tables that the Delta sink makes keep theirs for
/// 30 days.)
const RECORDS_KEPT: i64 = 24 * 60 * 60 * 1000;

/// Compares, at time `wall` (ms since the epoch). `shown` has every exactly-once sink of the partition's tree, dead letter included.
pub fn recover(
    log: &Log,
    partition: &PartitionId,
    shown: &BTreeMap<StageName, Committed>,
    wall: i64,
) -> Result<Recovery, Inconsistent> {
    let inconsistent = |sink: &StageName, shown, expected: &[Epoch]| {
        let (partition, sink, expected) = (partition.clone(), sink.clone(), expected.to_vec());
        Err(Inconsistent { partition, sink, shown, expected })
    };
    let Some(newest) = log.newest.get(partition) else {
        // Nothing to ask about: every sink must be where the log left it.
        let base = if removed(Rule::BaseInEntries) { Base::default() } else { log.base_of(partition) };
        for (sink, shown) in shown {
            match shown {
                Committed::At(epoch) if *epoch == base.shown(sink) => {}
                Committed::Unknown => {}
                Committed::At(_) => return inconsistent(sink, Some(*shown), &[base.shown(sink)]),
            }
        }
        return Ok(Recovery { replay: BTreeSet::new(), next: base.epoch.next() });
    };
    let epoch = newest.part.epoch;
    for sink in newest.part.sinks.keys() {
        if !shown.contains_key(sink) && newest.number > log.drained {
            return inconsistent(sink, None, &[epoch]);
        }
    }
    let mut replay = BTreeSet::new();
    for (sink, shown) in shown {
        let before = newest.base.shown(sink);
        let named = newest.part.sinks.contains_key(sink);
        match shown {
            Committed::At(at) if named && *at == epoch => {
                if removed(Rule::AskEachSink) {
                    break;
                }
            }
            Committed::At(at) if *at == before => {
                if named && !removed(Rule::Replay) {
                    replay.insert(sink.clone());
                }
            }
            // Had a part this young been committed, its record would still be there.
            Committed::Unknown if named && wall.saturating_sub(newest.written) < RECORDS_KEPT => {
                replay.insert(sink.clone());
            }
            _ if named => return inconsistent(sink, Some(*shown), &[before, epoch]),
            Committed::Unknown => {}
            Committed::At(_) => return inconsistent(sink, Some(*shown), &[before]),
        }
    }
    Ok(Recovery { replay, next: epoch.max(newest.base.epoch).next() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Newest, Part};
    use crate::flow::{Generation, Prepared};

    fn partition() -> PartitionId {
        PartitionId::new("orders", 0)
    }

    /// The newest part is epoch 3 with rows in `a` only; before it `a` showed 2 and `b` showed 1.
    fn log() -> Log {
        let base = Base { epoch: Epoch(2), sinks: [("a".into(), Epoch(2)), ("b".into(), Epoch(1))].into() };
        let part = Part {
            partition: partition(),
            epoch: Epoch(3),
            generation: Generation(1),
            ids: vec![],
            messages: 1,
            cursors: vec![],
            sinks: [("a".into(), Prepared { rows: 1, payload: String::new() })].into(),
        };
        let newest = Newest { number: 9, written: 0, part, base };
        Log { last: 9, newest: [(partition(), newest)].into(), ..Log::default() }
    }

    fn shown(a: u64, b: u64) -> BTreeMap<StageName, Committed> {
        [("a".into(), Committed::At(Epoch(a))), ("b".into(), Committed::At(Epoch(b)))].into()
    }

    #[test]
    fn done_replay_or_inconsistent() {
        let recover = |a, b| recover(&log(), &partition(), &shown(a, b), 0);
        let next = Epoch(4);
        assert_eq!(recover(3, 1), Ok(Recovery { replay: [].into(), next }));
        assert_eq!(recover(2, 1), Ok(Recovery { replay: ["a".into()].into(), next }));
        for (a, b, sink) in [(1, 1, "a"), (4, 1, "a"), (3, 0, "b"), (3, 3, "b")] {
            assert_eq!(recover(a, b).expect_err("inconsistent").sink.as_str(), sink, "{a} {b}");
        }
    }

    #[test]
    fn a_removed_sink_with_an_unfinished_entry_refuses() {
        let only_b: BTreeMap<StageName, _> = [("b".into(), Committed::At(Epoch(1)))].into();
        let error = recover(&log(), &partition(), &only_b, 0).expect_err("a cannot be asked");
        assert!(error.to_string().contains("no longer in the topology"), "{error}");
        let drained = Log { drained: 10, ..log() };
        assert!(recover(&drained, &partition(), &only_b, 0).is_ok());
    }

    #[test]
    fn without_a_part_the_base_decides() {
        let base = Base { epoch: Epoch(7), sinks: [("a".into(), Epoch(6))].into() };
        let log = Log { base: [(partition(), base)].into(), ..Log::default() };
        let resumed = recover(&log, &partition(), &shown(6, 0), 0).expect("as the base says");
        assert_eq!(resumed.next, Epoch(8));
        assert!(recover(&log, &partition(), &shown(7, 0), 0).is_err());
        let fresh = recover(&Log::default(), &partition(), &shown(0, 0), 0).expect("nothing anywhere");
        assert_eq!(fresh.next, Epoch(1));
    }

    #[test]
    fn a_sink_that_has_forgotten_is_trusted_while_the_part_is_young() {
        let unknown: BTreeMap<StageName, _> =
            [("a".into(), Committed::Unknown), ("b".into(), Committed::At(Epoch(1)))].into();
        let recovered = recover(&log(), &partition(), &unknown, RECORDS_KEPT - 1).expect("replayed");
        assert_eq!(recovered.replay, ["a".into()].into());
        assert!(recover(&log(), &partition(), &unknown, RECORDS_KEPT).is_err());
    }
}
