//! What was seen, and the invariants over it. The predicates themselves are those of [`crate::flow::invariants`].

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, Int32Type};

use crate::checkpoint::{Entry, Kind};
use crate::connectors::memory::{Message, Space};
use crate::flow::invariants::{self, Broken, Invariant};
use crate::flow::{Epoch, StoreId};

/// The name of the dead letter's table.
pub(super) const DEAD_LETTER: &str = "dead_letter";

/// What a message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Plain,
    TwoRows,
    NoRows,
    /// The translator rejects it.
    Poison,
    /// The translator panics on it.
    Panics,
    /// This sink rejects it.
    RefusedBy(String),
    /// It shares its id with another: whichever comes second while the first is known is rejected.
    Twin,
    /// It has no id: it may come several times.
    Anonymous,
}

impl Sort {
    /// What a row or a body says of itself.
    pub fn of_value(value: &str) -> Option<Self> {
        let sort = value.split_once(':')?.1;
        Some(match sort {
            "plain" => Self::Plain,
            "two" => Self::TwoRows,
            "none" => Self::NoRows,
            "poison" => Self::Poison,
            "panics" => Self::Panics,
            "twin" => Self::Twin,
            "anonymous" => Self::Anonymous,
            sink => Self::RefusedBy(sink.strip_prefix("refused by ")?.to_owned()),
        })
    }

    fn word(&self) -> String {
        match self {
            Self::Plain => "plain".into(),
            Self::TwoRows => "two".into(),
            Self::NoRows => "none".into(),
            Self::Poison => "poison".into(),
            Self::Panics => "panics".into(),
            Self::Twin => "twin".into(),
            Self::Anonymous => "anonymous".into(),
            Self::RefusedBy(sink) => format!("refused by {sink}"),
        }
    }

    /// How many rows the translator makes of it.
    pub fn rows(&self) -> i32 {
        match self {
            Self::TwoRows => 2,
            Self::NoRows | Self::Poison | Self::Panics => 0,
            _ => 1,
        }
    }
}

/// The number of the message with this body.
pub(super) fn message_number(value: &str) -> usize {
    value.split_once(':').and_then(|(number, _)| number.parse().ok()).unwrap_or(usize::MAX)
}

/// Everything that was seen of a run.
#[derive(Default)]
pub(super) struct Evidence {
    messages: Vec<Sort>,
    /// The sinks, without the dead letter.
    pub sinks: Vec<String>,
    /// Messages without id go to the dead letter.
    pub reject_anonymous: bool,
    /// Tables are appended to: another store's epochs must stop a process (R7).
    pub append: bool,
    /// Stores that were started with `--new-store`.
    permitted: BTreeSet<StoreId>,
    /// The store that has shown the last epoch in each table.
    owner: BTreeMap<String, StoreId>,
    /// Of these messages each row may be there this many times: a store was emptied while they were under way.
    allowed: BTreeMap<usize, u64>,
    /// How often a row is in a table: by table, message and row.
    rows: BTreeMap<String, BTreeMap<(usize, i32), u64>>,
    /// How many versions of each table were read.
    read: BTreeMap<String, usize>,
    /// What each app id shows.
    shown: BTreeMap<String, Epoch>,
    /// What the stores have named: by store, partition, epoch and sink, what was prepared.
    prepared: BTreeMap<(StoreId, u32, Epoch, String), String>,
    /// The last epoch of each store's partition.
    last: BTreeMap<(StoreId, u32), Epoch>,
    floors: BTreeMap<StoreId, u64>,
    /// The newest entry of each store.
    numbers: BTreeMap<StoreId, u64>,
    /// The kind of the newest entry that is no session.
    pub newest: Option<Kind>,
    /// Which links have brought a message: process, partition and link.
    brought: BTreeMap<usize, BTreeSet<(usize, u32, u64)>>,
    /// Messages of which the broker has a settlement.
    arrived: BTreeSet<usize>,
}

impl Evidence {
    /// A message of this sort, to be put into the queue. `twin`: the number of the message whose id it shares.
    pub fn message(&mut self, sort: Sort, twin: Option<usize>) -> Message {
        let number = self.messages.len();
        let id = (sort != Sort::Anonymous).then(|| format!("id-{}", twin.unwrap_or(number)));
        let value = format!("{number}:{}", sort.word()).into_bytes();
        self.messages.push(sort);
        Message { id, value, ..Message::default() }
    }

    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// The broker has settlements of all messages.
    pub fn all_arrived(&self) -> bool {
        self.arrived.len() == self.messages.len()
    }

    pub fn arrived(&mut self, numbers: &[usize]) {
        self.arrived.extend(numbers);
    }

    /// A store is emptied: what the broker has no settlement of may come once more, and go another way. Not into a merged
    /// table, which knows what it has.
    pub fn forget(&mut self, merge: bool) {
        for number in (0..self.messages.len()).filter(|number| !self.arrived.contains(number)) {
            if !merge || self.messages[number] == Sort::Twin {
                *self.allowed.entry(number).or_insert(1) += 1;
            }
        }
    }

    /// A link brings messages; whether one of them came to this partition before, over another link.
    pub fn received(&mut self, numbers: &[usize], here: (usize, u32, u64)) -> bool {
        let mut again = false;
        for number in numbers {
            let before = self.brought.entry(*number).or_default();
            again |= before
                .iter()
                .any(|(process, partition, link)| (*process, *partition) == (here.0, here.1) && *link != here.2);
            before.insert(here);
        }
        again
    }

    pub fn floor_rises(&mut self, entry: &Entry) -> bool {
        let before = self.floors.insert(entry.store, entry.floor).unwrap_or(1);
        entry.floor > before
    }

    /// An entry has landed: I5. One that lands where an older one was deleted counts for nothing: nobody reads it, and
    /// nothing of it may be shown (R4).
    pub fn stored(&mut self, entry: &Entry) -> Result<(), Broken> {
        let newest = self.numbers.entry(entry.store).or_default();
        if entry.number <= *newest {
            return Ok(());
        }
        *newest = entry.number;
        match &entry.kind {
            Kind::Session { new_store: true } => {
                self.permitted.insert(entry.store);
            }
            Kind::Session { .. } => {}
            kind => self.newest = Some(kind.clone()),
        }
        for part in &entry.parts {
            let key = (entry.store, part.partition.index);
            if matches!(entry.kind, Kind::Epochs) {
                let last = self.last.get(&key).copied().unwrap_or_default();
                invariants::contiguous(last, part.epoch)?;
                self.last.insert(key, part.epoch);
            }
            for (sink, prepared) in &part.sinks {
                let key = (entry.store, part.partition.index, part.epoch, sink.to_string());
                self.prepared.insert(key, prepared.payload.clone());
            }
        }
        if let Kind::Reset { partition, .. } = &entry.kind {
            let last = self.last.entry((entry.store, partition.index)).or_default();
            *last = (*last).max(entry.base[partition].epoch);
        }
        Ok(())
    }

    /// Reads what was added to the tables: I3, I5, I6, I8.
    pub fn scan(&mut self, space: &Space) -> Result<(), Broken> {
        for table in self.sinks.clone().iter().map(String::as_str).chain([DEAD_LETTER]) {
            let read = self.read.entry(table.to_owned()).or_default();
            let added = space.table(table).versions_from(*read);
            *read += added.len();
            for version in added {
                let (app_id, epoch) = &version.txn;
                if *epoch > Epoch(0) {
                    self.foreseen(table, app_id, *epoch, version.staged)?;
                }
                for batch in &version.rows {
                    self.count(table, batch)?;
                }
            }
        }
        Ok(())
    }

    /// What is shown is what a stored entry has named, and nothing that was shown before.
    fn foreseen(&mut self, table: &str, app_id: &str, epoch: Epoch, staged: Option<uuid::Uuid>) -> Result<(), Broken> {
        let before = self.shown.insert(app_id.to_owned(), epoch).unwrap_or_default();
        let mut parts = app_id.split('/').skip(3);
        let store = parts.next().and_then(|store| store.parse().ok()).map(StoreId);
        let partition = parts.next().and_then(|partition| partition.parse().ok());
        let key = (store.expect("a store"), partition.expect("a partition"), epoch, table.to_owned());
        let named = self
            .prepared
            .get(&key)
            .is_some_and(|payload| staged.is_some_and(|staged| payload.contains(&staged.to_string())));
        let evidence = |what: &str| format!("table {table}, partition {}, epoch {epoch}: {what}", key.1);
        if !named {
            return Err(Broken { invariant: Invariant::I6, evidence: evidence("it was shown, and no entry names it") });
        }
        let other = self.owner.insert(table.to_owned(), key.0).is_some_and(|owner| owner != key.0);
        if self.append && other && !self.permitted.contains(&key.0) {
            let what = evidence("it was shown beside another store's epochs, which nobody has permitted");
            return Err(Broken { invariant: Invariant::I6, evidence: what });
        }
        if before >= epoch {
            let what = format!("it was shown, and epoch {before} was there");
            return Err(Broken { invariant: Invariant::I5, evidence: evidence(&what) });
        }
        Ok(())
    }

    fn count(&mut self, table: &str, batch: &RecordBatch) -> Result<(), Broken> {
        let numbers = batch.column_by_name("row").map(|column| column.as_primitive::<Int32Type>());
        let values = arrow::compute::cast(&batch["value"], &DataType::Utf8).expect("text");
        for at in 0..batch.num_rows() {
            let number = message_number(values.as_string::<i32>().value(at));
            let row = numbers.map_or(0, |numbers| numbers.value(at));
            let times = self.rows.entry(table.to_owned()).or_default().entry((number, row)).or_default();
            *times += 1;
            let allowed = self.allowed.get(&number).copied().unwrap_or(1);
            // I8 is at least once for messages without an id.
            if self.messages[number] == Sort::Anonymous || *times <= allowed {
                continue;
            }
            let found = match table {
                DEAD_LETTER => invariants::rejected_once(false, 1, 1, *times),
                _ => invariants::row_once(*times),
            };
            return found.map_err(|broken| Broken {
                evidence: format!("message {number} row {row} in {table}: {}", broken.evidence),
                ..broken
            });
        }
        Ok(())
    }

    fn times(&self, table: &str, number: usize, row: i32) -> u64 {
        self.rows.get(table).and_then(|rows| rows.get(&(number, row))).copied().unwrap_or_default()
    }

    /// How many of the rows that `table` must have of a message are there, and how many it must have.
    fn there(&self, table: &str, number: usize) -> (u64, u64) {
        let sort = &self.messages[number];
        let refused = *sort == Sort::RefusedBy(table.to_owned());
        let expected = if refused { 0 } else { sort.rows() };
        let there = (0..expected).filter(|row| self.times(table, number, *row) > 0).count() as u64;
        (u64::try_from(expected).unwrap_or_default(), there)
    }

    /// Accepts are sent, each delivery for the given time: I1, I2, I8.
    pub fn accept_sent(&self, deliveries: &[(usize, u64)]) -> Result<(), Broken> {
        for &(number, times) in deliveries {
            let named =
                |broken: Broken| Broken { evidence: format!("message {number}: {}", broken.evidence), ..broken };
            invariants::settled_once(times).map_err(named)?;
            self.whole(number).map_err(named)?;
        }
        Ok(())
    }

    /// Everything that must be anywhere of a message is there.
    fn whole(&self, number: usize) -> Result<(), Broken> {
        let dead = self.times(DEAD_LETTER, number, 0);
        let sort = &self.messages[number];
        let rejected = match sort {
            Sort::Poison | Sort::Panics | Sort::RefusedBy(_) => true,
            // Either way is right for these; the way that was taken must be whole.
            Sort::Twin => dead > 0,
            Sort::Anonymous => self.reject_anonymous,
            Sort::Plain | Sort::TwoRows | Sort::NoRows => false,
        };
        if rejected {
            invariants::rejected_once(true, 1, dead, dead.min(1))?;
            if !matches!(sort, Sort::RefusedBy(_)) {
                return Ok(());
            }
        }
        for sink in &self.sinks {
            let (expected, there) = self.there(sink, number);
            invariants::settled_after_commit(expected, there)?;
        }
        Ok(())
    }

    /// At the end: every message is where it belongs, and nowhere else (I3, I8).
    pub fn complete(&self) -> Result<(), Broken> {
        for number in 0..self.messages.len() {
            self.whole(number).map_err(|broken| Broken {
                evidence: format!("in the end, message {number}: {}", broken.evidence),
                ..broken
            })?;
            let dead = self.times(DEAD_LETTER, number, 0) > 0;
            let shown = self.sinks.iter().any(|sink| (0..2).any(|row| self.times(sink, number, row) > 0));
            let sort = &self.messages[number];
            let both = dead && shown && !matches!(sort, Sort::RefusedBy(_) | Sort::Anonymous);
            let wrong = dead && matches!(sort, Sort::Plain | Sort::TwoRows | Sort::NoRows);
            let refused = matches!(sort, Sort::RefusedBy(sink) if self.times(sink, number, 0) > 0);
            if (both || wrong || refused) && !self.allowed.contains_key(&number) {
                let evidence = format!("in the end, message {number} ({sort:?}): in a table and in the dead letter");
                return Err(Broken { invariant: Invariant::I3, evidence });
            }
        }
        Ok(())
    }
}
