//! `runtime state FILE show | reset PARTITION [--drop]`: the checkpoint log in words, and the way out of an inconsistent
//! partition (protocol R5).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};

use super::{Exit, fail, load, print};
use crate::checkpoint::{CheckpointStore, Created, Entry, Kind, LocalStore, Log, StoreError};
use crate::clock;
use crate::embed::block_on;
use crate::flow::registry::{Guarantee, Registry};
use crate::flow::{Committed, Epoch, PartitionId, SinkInstance, StageName};
use crate::topology::{StoreConfig, Topology};

#[derive(Args)]
pub(super) struct Arguments {
    /// The topology file.
    file: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

pub(super) const EXAMPLE: &str = "Examples:
  runtime state topology.yaml show
  runtime state topology.yaml reset orders/0           while nothing runs; loses and doubles nothing by itself
  runtime state topology.yaml reset orders/0 --drop    only if the epoch's files are gone";

#[derive(Subcommand)]
enum Verb {
    /// Print what is in the log, in words.
    Show,
    /// Go on from what the sinks show now. Refused while a process holds the store. The partition's newest epoch is kept
    /// and committed again where it is missing, so nothing is lost or doubled by the reset itself.
    Reset {
        /// The partition, as `receiver/number`.
        partition: String,
        /// Give the newest epoch up: only if it cannot be committed again because its files are gone. Its messages are
        /// then not in the sinks that lack it, and will not be delivered again.
        #[arg(long)]
        drop: bool,
    },
}

pub(super) fn run(arguments: Arguments, registry: &Registry) -> Exit {
    let (topology, _) = match load(&arguments.file, registry) {
        Ok(loaded) => loaded,
        Err(exit) => return exit,
    };
    let StoreConfig::Local(root) = topology.checkpoint.store.clone() else {
        return fail(Exit::Usage, "this topology keeps its checkpoint log in memory: there is nothing to look at");
    };
    let done = block_on(async {
        match arguments.verb {
            Verb::Show => show(&LocalStore::read_only(&root)).await,
            Verb::Reset { partition, drop } => reset(&topology, &root, &partition, drop).await.map(|()| String::new()),
        }
    });
    match done {
        Ok(Ok(text)) => print(&text),
        Ok(Err(error)) => {
            let locked = matches!(error.downcast_ref(), Some(StoreError::Locked { .. }));
            fail(if locked { Exit::LogLost } else { Exit::Failed }, format!("{error:#}"))
        }
        Err(error) => fail(Exit::Failed, error),
    }
}

async fn entries(store: &LocalStore) -> anyhow::Result<Vec<Entry>> {
    let numbers = store.list().await?;
    let Some(newest) = numbers.last() else { bail!("the checkpoint log is empty: nothing was ever started with it") };
    let newest = store.read(*newest).await?.context("the newest entry has just been deleted; try again")?;
    let mut entries = Vec::new();
    for number in newest.floor..=newest.number {
        entries.extend(store.read(number).await?);
    }
    Ok(entries)
}

/// The log in words.
async fn show(store: &LocalStore) -> anyhow::Result<String> {
    let mut text = String::new();
    let entries = entries(store).await?;
    let log = Log::read(&entries);
    let newest = entries.last().context("the checkpoint log is empty")?;
    writeln!(text, "topology {}, store {}, entries {} to {}", newest.topology, newest.store, log.floor, log.last)?;
    for entry in &entries {
        let what = match &entry.kind {
            Kind::Session { new_store: false } => "a process started".to_owned(),
            Kind::Session { new_store: true } => "a process started with --new-store".to_owned(),
            Kind::Epochs => "epochs prepared".to_owned(),
            Kind::Drained => "drained: everything before it is committed".to_owned(),
            Kind::Reset { partition, dropped: false } => format!("partition {partition} was reset"),
            Kind::Reset { partition, dropped: true } => {
                format!("partition {partition} was reset, its newest epoch dropped")
            }
        };
        let doubts: usize = entry.in_doubt.values().map(Vec::len).sum();
        let doubts = if doubts == 0 { String::new() } else { format!(", {doubts} ids in doubt") };
        writeln!(text, "entry {}, {}: {what}{doubts}", entry.number, at(entry.written))?;
        for part in &entry.parts {
            let sinks: Vec<_> =
                part.sinks.iter().map(|(sink, prepared)| format!("{sink} {} rows", prepared.rows)).collect();
            let rejected = part.ids.iter().filter(|(_, rejected)| *rejected).count();
            let rejected = if rejected == 0 { String::new() } else { format!(" ({rejected} rejected)") };
            let sinks = if sinks.is_empty() { "no rows".to_owned() } else { sinks.join(", ") };
            writeln!(
                text,
                "  partition {} epoch {}: {} messages{rejected}; {sinks}",
                part.partition, part.epoch, part.messages
            )?;
        }
    }
    for (partition, base) in &log.base {
        let sinks: Vec<_> = base.sinks.iter().map(|(sink, epoch)| format!("{sink} {epoch}")).collect();
        writeln!(
            text,
            "partition {partition}: last epoch {}; committed, its sinks show: {}",
            base.epoch,
            sinks.join(", ")
        )?;
    }
    Ok(text)
}

fn at(millis: i64) -> String {
    chrono::DateTime::from_timestamp_millis(millis).map_or_else(|| millis.to_string(), |time| time.to_rfc3339())
}

async fn reset(topology: &Topology, root: &std::path::Path, partition: &str, drop: bool) -> anyhow::Result<()> {
    let partition = partition
        .rsplit_once('/')
        .and_then(|(receiver, index)| Some(PartitionId::new(receiver, index.parse().ok()?)))
        .with_context(|| format!("'{partition}' is not a partition: write receiver/number, like orders/0"))?;
    let store = LocalStore::open(root)?;
    loop {
        let entries = entries(&store).await?;
        let log = Log::read(&entries);
        let Some(base) = log.base.get(&partition) else {
            let known: Vec<_> = log.base.keys().map(ToString::to_string).collect();
            bail!("the checkpoint log does not know partition {partition}; it knows {}", known.join(", "));
        };
        let newest = log.newest.get(&partition);
        let named = newest.into_iter().flat_map(|newest| newest.part.sinks.keys()).chain(base.sinks.keys());
        let store_id = entries.last().context("the log is empty")?.store;
        let mut shown = BTreeMap::new();
        for sink in named.cloned().collect::<std::collections::BTreeSet<StageName>>() {
            let epoch = shows(topology, &sink, store_id, &partition).await?;
            println!("sink {sink} shows epoch {epoch}");
            shown.insert(sink, epoch);
        }
        let entry = Entry::reset(&entries, &partition, &shown, drop, clock::wall_millis())
            .context("the checkpoint log has changed meanwhile; try again")?;
        if drop && let Some(newest) = newest {
            for (sink, prepared) in &newest.part.sinks {
                if shown.get(sink).is_none_or(|shown| *shown < newest.part.epoch) {
                    println!("given up: {} rows of epoch {} in sink {sink}", prepared.rows, newest.part.epoch);
                }
            }
        }
        match store.create(&entry).await? {
            Created::Created => {}
            Created::AlreadyExists(_) => continue,
        }
        println!("partition {partition} goes on after epoch {} (entry {})", entry.base[&partition].epoch, entry.number);
        return Ok(());
    }
}

/// What a sink's target shows of a partition now.
async fn shows(
    topology: &Topology,
    sink: &StageName,
    store: crate::flow::StoreId,
    partition: &PartitionId,
) -> anyhow::Result<Epoch> {
    let specs = topology.sinks.get(sink).or_else(|| topology.dead_letter.as_ref().filter(|spec| spec.name == *sink));
    let Some(spec) = specs.filter(|spec| spec.guarantee == Guarantee::ExactlyOnce) else {
        bail!("sink '{sink}' has epochs in the log and is not in the topology: put it back to reset the partition");
    };
    let SinkInstance::ExactlyOnce(mut instance) = spec.build(&topology.name, store)?.sink(partition) else {
        bail!("sink '{sink}' cannot say what it shows");
    };
    match instance.open(true).await?.committed {
        Committed::At(epoch) => Ok(epoch),
        Committed::Unknown => bail!("sink '{sink}' no longer knows which epoch it shows"),
    }
}
