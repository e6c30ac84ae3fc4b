//! A target: rows, the epoch it shows of each partition and log, and its version.

use std::collections::BTreeMap;

use super::world::Msg;
use crate::flow::Prepared;
use crate::flow::mutation::{Rule, removed};

/// A table that outlives processes and that several may share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Table {
    /// How often each row is there: message, row.
    pub rows: BTreeMap<(Msg, u8), u8>,
    /// The epoch of each log (its store) and partition.
    pub txns: BTreeMap<(u8, u8), u64>,
    pub version: u64,
}

/// What became of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landed {
    /// The target shows the epoch.
    Shown,
    /// It shows neither the epoch nor what should be before it.
    Inconsistent,
}

impl Table {
    pub fn shown(&self, app: (u8, u8)) -> u64 {
        self.txns.get(&app).copied().unwrap_or(0)
    }

    /// Whether another log has epochs here (protocol R7).
    pub fn has_foreign(&self, store: u8) -> bool {
        self.txns.iter().any(|(&(other, _), &epoch)| other != store && epoch > 0)
    }

    /// A version with the txn alone: a commit that was made against an older one dies by it (protocol R7).
    pub fn fence(&mut self, app: (u8, u8)) {
        self.txns.entry(app).or_insert(0);
        self.version += 1;
    }

    /// Protocol R8, and R12 with `merge`.
    pub fn commit(&mut self, app: (u8, u8), epoch: u64, base: u64, rows: &[(Msg, u8)], merge: bool) -> Landed {
        let shown = self.shown(app);
        if !removed(Rule::ConditionalCommit) {
            if shown >= epoch {
                return Landed::Shown;
            }
            if shown != base {
                return Landed::Inconsistent;
            }
        }
        for &row in rows {
            let times = self.rows.entry(row).or_insert(0);
            if !merge || *times == 0 || removed(Rule::MergeByIds) {
                *times += 1;
            }
        }
        self.txns.insert(app, shown.max(epoch));
        self.version += 1;
        Landed::Shown
    }
}

/// What a sink puts into an entry.
pub fn prepared(rows: &[(Msg, u8)]) -> Prepared {
    let payload: Vec<_> = rows.iter().map(|(msg, row)| format!("{msg}.{row}")).collect();
    Prepared { rows: rows.len() as u64, payload: payload.join(" ") }
}

/// The rows in it.
pub fn rows(prepared: &Prepared) -> Vec<(Msg, u8)> {
    let row = |text: &str| {
        let (msg, row) = text.split_once('.').expect("a row");
        (msg.parse().expect("a message"), row.parse().expect("a row's number"))
    };
    prepared.payload.split_whitespace().map(row).collect()
}
