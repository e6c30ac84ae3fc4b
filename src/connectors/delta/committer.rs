//! The one place of a process from which a table is changed: all partitions of a sink share it.
//!
//! Whoever wants to commit queues its part, waits a moment for the others of its group, and then commits everything that
//! is queued as one version of the table, with one transaction per partition (group commit). Work is done on blocking
//! threads, which finish what they began even if the one who asked gives up; and every one who waits tries to lead, so
//! nobody depends on another's life.
//!
//! Invariants, protocol R7 and R8: a version is only put against the version that was looked at (put if absent); after a
//! conflict what was added is read and every part checked again, never rebased blindly; after an answer that says neither
//! yes nor no the log is read before anything is repeated. A table that others changed so that our rows no longer fit, or
//! that is no longer the table it was, takes no more commits.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deltalake::kernel::StructType;
use tokio::sync::{Notify, oneshot};

use super::actions::{self, Add};
use super::checkpoint::Checkpoints;
use super::log::{Log, Metadata, News, Table};
use super::protocol::{SET_TRANSACTION_RETENTION, interval, refusal};
use super::schema::{Fit, fit};
use crate::clock;
use crate::flow::{AppId, Committed, Epoch, Opened, Probed, Result, StageError};
use crate::objects::{blocking, failure, writable};

/// How long a part waits for the others of its group.
const GATHER: Duration = Duration::from_millis(20);

/// Conflicts in a row after which a commit is given back as failed.
const CONFLICTS: u32 = 1000;

/// One partition's part of a commit.
#[derive(Clone, Debug)]
pub struct Part {
    /// Whose.
    pub app_id: AppId,
    /// Which epoch it shows.
    pub epoch: Epoch,
    /// Which epoch the table must show before.
    pub base: Epoch,
    /// Its files.
    pub files: Vec<Add>,
}

struct Waiting {
    part: Part,
    answer: oneshot::Sender<Result<()>>,
}

/// What the table is to be, where it is absent, and what our rows need of it.
pub struct Plan {
    /// Where it is.
    pub root: PathBuf,
    /// Our columns.
    pub columns: StructType,
    /// The partition columns the topology asks for.
    pub partition_by: Vec<String>,
    /// Properties of a table that we make.
    pub properties: HashMap<String, String>,
}

/// See the module.
pub struct Committer {
    plan: Plan,
    log: Log,
    queue: Mutex<Vec<Waiting>>,
    arrived: Notify,
    seen: Mutex<Option<Seen>>,
    checkpoints: Checkpoints,
}

/// The table as it was read last.
struct Seen {
    table: Table,
    /// How our rows fit, or why they do not.
    fit: Result<Fit, String>,
    /// This process has made the table: nothing of another checkpoint log can be under way to it.
    made_here: bool,
}

enum Look {
    Done,
    Refused(StageError),
    Go,
}

impl Committer {
    /// For a table that may not be there yet.
    pub fn new(plan: Plan, log: Log) -> Self {
        let (queue, arrived, seen) = (Mutex::default(), Notify::new(), Mutex::default());
        Self { plan, log, queue, arrived, seen, checkpoints: Checkpoints::default() }
    }

    /// Makes the table if it is absent and looks what it shows of `app_id`; see [`Sink::open`](crate::flow::Sink::open).
    /// Blocks.
    pub fn open(&self, app_id: &AppId, adopted: bool) -> Result<(Opened, Fit)> {
        let mut guard = lock(&self.seen);
        let mut conflicts = 0;
        loop {
            let seen = self.current(&mut guard, true)?;
            let fit = seen.fit.clone().map_err(|why| self.unfit(&why))?;
            let txns = &seen.table.txns;
            let foreign = !adopted && has_foreign(&seen.table, app_id);
            // Once a version of this checkpoint log is in the table, nothing an older log had under way can land any more:
            // it was to be put against a version before.
            let fenced = adopted || foreign || seen.made_here || txns.keys().any(|id| is_of_this_log(id, app_id));
            if fenced {
                return Ok((Opened { committed: self.shown(&seen.table, app_id), foreign }, fit));
            }
            match self.put(seen, &[(app_id, Epoch(0), &[])]) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::AlreadyExists && conflicts < CONFLICTS => conflicts += 1,
                Err(e) => return Err(failure("write to the log of the table at", &self.plan.root, e)),
            }
        }
    }

    /// What is there, without changing anything; see [`SinkFactory::probe`](crate::flow::SinkFactory::probe). Blocks.
    pub fn probe(&self, app_id: &AppId, adopted: bool) -> Result<Probed> {
        let root = self.root();
        let Some(table) = self.log.load()? else {
            writable(root)?;
            return Ok(Probed { found: format!("the table '{}' will be created", root.display()), foreign: false });
        };
        self.fit(&table).map_err(|why| self.unfit(&why))?;
        writable(root)?;
        writable(&self.log.directory)?;
        let found = format!("the table '{}' at version {} takes these columns", root.display(), table.version);
        Ok(Probed { found, foreign: !adopted && has_foreign(&table, app_id) })
    }

    /// Commits a part, together with the others of its group of `group` parts where they come in time.
    pub async fn commit(self: &Arc<Self>, part: Part, group: usize) -> Result<()> {
        loop {
            let (answer, mut answered) = oneshot::channel();
            lock(&self.queue).push(Waiting { part: part.clone(), answer });
            self.arrived.notify_waiters();
            if let Some(Ok(answer)) = self.gather(group, &mut answered).await {
                return answer;
            }
            let committer = self.clone();
            blocking(move || {
                committer.commit_waiting();
                Ok(())
            })
            .await?;
            // Without an answer whoever had the part broke off; the part is looked for in the table before it is repeated.
            if let Ok(answer) = answered.await {
                return answer;
            }
        }
    }

    /// Returns when the group is complete, the wait is over, or someone else has answered.
    async fn gather(
        &self,
        group: usize,
        answered: &mut oneshot::Receiver<Result<()>>,
    ) -> Option<Result<Result<()>, oneshot::error::RecvError>> {
        let complete = async {
            loop {
                let more = self.arrived.notified();
                if lock(&self.queue).len() >= group {
                    return;
                }
                more.await;
            }
        };
        tokio::select! {
            biased;
            answer = answered => Some(answer),
            () = complete => None,
            () = tokio::time::sleep(GATHER) => None,
        }
    }

    /// Commits everything that waits. Blocks.
    fn commit_waiting(&self) {
        let mut guard = lock(&self.seen);
        let mut waiting = std::mem::take(&mut *lock(&self.queue));
        let mut conflicts = 0;
        while !waiting.is_empty() {
            let seen = match self.current(&mut guard, false) {
                Ok(seen) => seen,
                Err(error) => return answer(waiting, Err(&error)),
            };
            let (mut going, mut later) = (Vec::new(), Vec::new());
            let mut ids = HashSet::new();
            for one in waiting {
                if !ids.insert(one.part.app_id.clone()) {
                    // The same partition twice: the second looks again after the first.
                    later.push(one);
                    continue;
                }
                match self.look(seen, &one.part) {
                    Look::Done => answer([one], Ok(())),
                    Look::Refused(error) => answer([one], Err(&error)),
                    Look::Go => going.push(one),
                }
            }
            if !going.is_empty() {
                let parts: Vec<(&AppId, Epoch, &[Add])> =
                    going.iter().map(|one| (&one.part.app_id, one.part.epoch, &one.part.files[..])).collect();
                match self.put(seen, &parts) {
                    Ok(()) => answer(going, Ok(())),
                    Err(e) if e.kind() == ErrorKind::AlreadyExists && conflicts < CONFLICTS => {
                        conflicts += 1;
                        later.extend(going);
                    }
                    Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                        answer(going, Err(&self.outrun(seen.table.version + 1)));
                    }
                    Err(e) => self.answer_after_doubt(seen, going, e),
                }
            }
            waiting = later;
        }
    }

    /// A put failed, but not because the version was there: it may have landed. Looks, and says what is known.
    fn answer_after_doubt(&self, seen: &mut Seen, parts: Vec<Waiting>, error: std::io::Error) {
        let error = failure("write to the log of the table at", &self.plan.root, error);
        let looked = self.log.follow(&mut seen.table).and_then(|news| match news {
            News::Lost => Err(self.lost()),
            News::Changed | News::Nothing => self.log.flush(),
        });
        if let Err(error) = looked {
            return answer(parts, Err(&error));
        }
        seen.fit = self.fit(&seen.table);
        for one in parts {
            let Part { app_id, epoch, .. } = &one.part;
            let landed = seen.table.txns.get(&app_id.to_string()).is_some_and(|shown| *shown >= number(*epoch));
            answer([one], if landed { Ok(()) } else { Err(&error) });
        }
    }

    /// The table as it is now. With `create` an absent one is made.
    fn current<'a>(&self, seen: &'a mut Option<Seen>, create: bool) -> Result<&'a mut Seen> {
        let Some(known) = seen.as_mut() else {
            let found = match self.log.load()? {
                Some(table) => Seen { fit: self.fit(&table), table, made_here: false },
                None if create => self.create()?,
                None => return Err(self.lost()),
            };
            return Ok(seen.insert(found));
        };
        match self.log.follow(&mut known.table)? {
            News::Nothing => {}
            News::Changed => known.fit = self.fit(&known.table),
            News::Lost => {
                let before = &known.table;
                let same = |now: &Table| now.metadata.id == before.metadata.id && now.version >= before.version;
                let table = self.log.load()?.filter(same).ok_or_else(|| self.lost())?;
                known.fit = self.fit(&table);
                known.table = table;
            }
        }
        seen.as_mut().ok_or_else(|| self.lost())
    }

    fn create(&self) -> Result<Seen> {
        let lines = actions::creation(&self.plan);
        let made_here = self
            .log
            .durability
            .create_directories(&self.log.directory)
            .and_then(|()| match self.log.put(0, &lines) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
                put => put.map(|()| true),
            })
            .map_err(|e| failure("create the table at", &self.plan.root, e))?;
        let table = self.log.load()?.ok_or_else(|| self.lost())?;
        Ok(Seen { fit: self.fit(&table), table, made_here })
    }

    fn fit(&self, table: &Table) -> Result<Fit, String> {
        refusal(&table.protocol, &table.metadata)?;
        fit(&self.plan.columns, &self.plan.partition_by, &table.metadata)
    }

    /// What the table shows. A table that forgets applications may have forgotten this one.
    fn shown(&self, table: &Table, app_id: &AppId) -> Committed {
        match table.txns.get(&app_id.to_string()) {
            Some(version) => Committed::At(Epoch(u64::try_from(*version).unwrap_or_default())),
            None if forgets(&table.metadata) => Committed::Unknown,
            None => Committed::At(Epoch(0)),
        }
    }

    /// Protocol R8, for one part against the table as it was read.
    fn look(&self, seen: &Seen, part: &Part) -> Look {
        let Part { app_id, epoch, base, files } = part;
        let (root, partition) = (self.plan.root.display(), &app_id.partition);
        match self.shown(&seen.table, app_id) {
            Committed::At(shown) if shown >= *epoch => return Look::Done,
            Committed::At(shown) if shown != *base => {
                return Look::Refused(StageError::park(format!(
                    "inconsistent: the table at '{root}' shows epoch {shown} of {partition}, the checkpoint log expects \
                     {base} before {epoch}; run 'runtime state FILE reset {partition}'"
                )));
            }
            _ => {}
        }
        let fit = match &seen.fit {
            Ok(fit) => fit,
            Err(why) => return Look::Refused(self.unfit(why)),
        };
        for file in files {
            if !file.partition_values.keys().eq(fit.partition_by.iter().collect::<BTreeSet<_>>()) {
                return Look::Refused(self.unfit("its partition columns are not those the files were written for"));
            }
            if let Err(why) = file.whole(&self.plan.root) {
                return Look::Refused(StageError::park(format!(
                    "epoch {epoch} of {partition} cannot be committed to the table at '{root}': {why}; put it back, or run \
                     'runtime state FILE reset {partition} --drop' to give its rows up"
                )));
            }
        }
        Look::Go
    }

    /// Puts the next version, with these parts in it, against the table as it was read.
    fn put(&self, seen: &mut Seen, parts: &[(&AppId, Epoch, &[Add])]) -> std::io::Result<()> {
        let table = &mut seen.table;
        let now = clock::wall_millis();
        let time = (table.metadata.property("delta.enableInCommitTimestamps") == Some("true"))
            .then(|| now.max(table.in_commit_timestamp.map_or(now, |last| last + 1)));
        let txns: HashMap<String, i64> = parts.iter().map(|(id, epoch, _)| (id.to_string(), number(*epoch))).collect();
        let adds: Vec<&Add> = parts.iter().flat_map(|(_, _, files)| files.iter()).collect();
        let lines = actions::append(&txns, &adds, &table.metadata.partition_columns, now, time);
        self.log.put(table.version + 1, &lines)?;
        self.log.added(table, txns, time);
        self.checkpoints.due(&self.plan.root, &self.log, table.version, &table.metadata);
        Ok(())
    }

    fn outrun(&self, version: u64) -> StageError {
        let root = self.plan.root.display();
        StageError::retry(format!(
            "others changed the table at '{root}' at each of {CONFLICTS} attempts to commit, the last one of version {version}"
        ))
    }

    fn unfit(&self, why: &str) -> StageError {
        StageError::park(format!("cannot append to the table at '{}': {why}", self.plan.root.display()))
    }

    fn lost(&self) -> StageError {
        StageError::park(format!(
            "the table at '{}' was deleted or made anew by someone else: restore it, or start with an empty checkpoint \
             store",
            self.plan.root.display()
        ))
    }

    /// Where the table is.
    pub fn root(&self) -> &Path {
        &self.plan.root
    }

    /// Waits for a log checkpoint that is being made.
    #[cfg(test)]
    pub fn wait_for_checkpoint(&self) {
        self.checkpoints.wait();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(epoch: Epoch) -> i64 {
    i64::try_from(epoch.0).unwrap_or(i64::MAX)
}

/// Tells those who wait; who no longer does has given up.
fn answer(waiting: impl IntoIterator<Item = Waiting>, result: Result<(), &StageError>) {
    for one in waiting {
        let copy =
            |error: &StageError| StageError { reaction: error.reaction, context: error.to_string(), source: None };
        let _ = one.answer.send(result.map_err(copy));
    }
}

/// Whether the table has epochs of the same topology and sink from another checkpoint log.
fn has_foreign(table: &Table, app_id: &AppId) -> bool {
    table.txns.keys().any(|id| app_id.is_foreign(id))
}

/// Whether this is an app id of the same topology, sink and checkpoint log.
fn is_of_this_log(id: &str, app_id: &AppId) -> bool {
    let parts: Vec<&str> = id.split('/').collect();
    matches!(parts[..], [topology, _, sink, store, _]
        if *topology == *app_id.topology && sink == app_id.sink.as_str() && store == app_id.store.to_string())
}

fn forgets(metadata: &Metadata) -> bool {
    let Some(retention) = metadata.property(SET_TRANSACTION_RETENTION).and_then(interval) else { return false };
    let age = clock::wall_millis().saturating_sub(metadata.created_time.unwrap_or(0));
    u128::try_from(age).is_ok_and(|age| age > retention.as_millis())
}
