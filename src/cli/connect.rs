//! `runtime check FILE --connect`: whether what a topology needs is there, a line each.
//!
//! It uses what `start` uses, up to the point where something would be changed: links without credit, tables that are
//! read, a store that is locked for a moment. All are tried at once, each within the time limit, and all are reported.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use futures::future::{FutureExt, LocalBoxFuture, join_all};
use uuid::Uuid;

use super::{Exit, aside, fail, print};
use crate::broker::Broker;
use crate::checkpoint::{Found, LocalStore, SessionError, StoreError, look};
use crate::clock;
use crate::embed::embedded;
use crate::flow::{PartitionId, SourceContext, StoreId, foreign_epochs};
use crate::topology::{Receiver, SinkSpec, StoreConfig, Topology};
use crate::units::Span;

/// What was found, or what is wrong and what to do.
type Outcome = Result<String, String>;

pub(super) fn run(topology: &Topology, limit: Duration) -> Exit {
    let outcomes = match aside(all(topology, limit)) {
        Ok(outcomes) => outcomes,
        Err(error) => return fail(Exit::Failed, format!("cannot start: {error}")),
    };
    let lines = outcomes.iter().map(|(what, outcome)| match outcome {
        Ok(found) => format!("ok    {what}: {found}\n"),
        Err(why) => format!("FAIL  {what}: {why}\n"),
    });
    print(&lines.collect::<String>());
    match outcomes.iter().filter(|(_, outcome)| outcome.is_err()).count() {
        0 => Exit::Done,
        failed => fail(Exit::Failed, format!("{failed} of {} checks failed; mend that and try again", outcomes.len())),
    }
}

/// Every outcome, with what it is of, in the order of the flow.
async fn all(topology: &Topology, limit: Duration) -> Vec<(String, Outcome)> {
    let mut outcomes = Vec::new();
    let mut broker = None;
    if let Some(section) = &topology.broker {
        let started = embedded(section, Vec::new());
        let outcome =
            started.as_ref().map(|broker| format!("listens on {}", broker.address())).map_err(ToString::to_string);
        outcomes.push(("broker".to_owned(), outcome));
        broker = started.ok();
    }
    // Where it cannot listen, somebody else does.
    let address = broker.as_ref().map(Broker::address).or(topology.broker.as_ref().map(|section| section.listen));
    let (log, stored) = match within(limit, store(topology)).await {
        Ok((log, found)) => (Some(log), Ok(found)),
        Err(why) => (None, Err(why)),
    };
    let mut probes: Vec<(String, LocalBoxFuture<'_, Outcome>)> = Vec::new();
    for (name, receiver) in &topology.receivers {
        let what = format!("receivers.{name} ({})", receiver.kind);
        probes.push((what, source(topology, name.as_str(), receiver, address).boxed_local()));
    }
    for spec in topology.sinks.values() {
        let what = format!("sinks.{} ({})", spec.name, spec.kind.name());
        probes.push((what, sink(topology, spec, log.as_ref()).boxed_local()));
    }
    if let Some(spec) = &topology.dead_letter {
        probes.push((format!("dead_letter ({})", spec.kind.name()), sink(topology, spec, log.as_ref()).boxed_local()));
    }
    let probes = probes.into_iter().map(|(what, probe)| async move { (what, within(limit, probe).await) });
    outcomes.extend(join_all(probes).await);
    outcomes.push(("checkpoint.store".to_owned(), stored));
    if let Some(listen) = topology.telemetry.listen {
        outcomes.push(("telemetry.listen".to_owned(), free(listen)));
    }
    if let Some(broker) = broker {
        broker.stop().await;
    }
    outcomes
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = || format!("no answer within {}; see what keeps it, or give it longer with --timeout", Span(limit));
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(late()))
}

async fn source(topology: &Topology, name: &str, receiver: &Receiver, embedded_broker: Option<SocketAddr>) -> Outcome {
    let partition = PartitionId::new(name, 0);
    let context = SourceContext { topology: topology.name.clone(), partition, embedded_broker };
    receiver.factory.source(context).probe().await.map_err(|error| error.to_string())
}

/// `log` is `None` if it cannot be read: then nobody knows whose epochs are in the target.
async fn sink(topology: &Topology, spec: &SinkSpec, log: Option<&Option<Found>>) -> Outcome {
    let found = log.and_then(Option::as_ref);
    // To a log that is yet to be made every epoch in the target is of another one.
    let store = found.map_or(StoreId(Uuid::nil()), |found| found.store);
    let adopted = log.is_none() || found.is_some_and(|found| found.log.adopted.contains(&spec.name));
    let target = spec.build(&topology.name, store).map_err(|error| error.to_string())?;
    let probed = target.probe(adopted).await.map_err(|error| error.to_string())?;
    if probed.foreign && !adopted { Err(foreign_epochs(&spec.name)) } else { Ok(probed.found) }
}

/// The checkpoint log, if there is one, and what is to be said of it.
async fn store(topology: &Topology) -> Result<(Option<Found>, String), String> {
    if topology.receivers.keys().all(|receiver| topology.exactly_once(receiver).next().is_none()) {
        return Ok((None, "not needed: no sink is exactly once".to_owned()));
    }
    let StoreConfig::Local(root) = &topology.checkpoint.store else {
        return Ok((None, "in memory".to_owned()));
    };
    let place = root.display().to_string();
    let root = root.clone();
    let opened = tokio::task::spawn_blocking(move || LocalStore::open_existing(root)).await;
    let opened = opened.map_err(|error| error.to_string())?.map_err(|error| store_way_out(&error))?;
    let Some(store) = opened else { return Ok((None, format!("'{place}' will be created"))) };
    let found = look(&store, &topology.name, clock::wall_millis()).await.map_err(|error| match error {
        SessionError::Store(error) => store_way_out(&error),
        error => error.to_string(),
    })?;
    let said = match &found {
        Some(Found { log, .. }) => format!("'{place}' can be opened; its log is whole up to entry {}", log.last),
        None => format!("'{place}' can be opened; its log is empty"),
    };
    Ok((found, said))
}

/// What is wrong with the store, and what to do.
fn store_way_out(error: &StoreError) -> String {
    match error {
        StoreError::Away { .. } => format!("{error}; let this user write there, or choose another checkpoint.store"),
        error => error.to_string(),
    }
}

fn free(listen: SocketAddr) -> Outcome {
    match TcpListener::bind(listen) {
        Ok(_) => Ok(format!("{listen} is free")),
        Err(error) => {
            Err(format!("cannot listen on {listen}: {error}; stop what listens there, or choose another port"))
        }
    }
}
