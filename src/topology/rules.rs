//! What spans several fields or sections, and what `check` says of a topology in which everything holds.

use std::path::{Component, PathBuf};
use std::time::Duration;

use super::check::Declared;
use super::problem::{Path, Report};
use super::schema::Section;
use super::settings::{MissingId, StoreConfig};
use super::{Receiver, SinkSpec, Topology};
use crate::flow::StageName;
use crate::flow::registry::Guarantee;
use crate::units::Span;

/// What one known id takes at most: 16 bytes of its hash, 8 of its content's, one of marks, and its places in an index.
const ID_BYTES: u64 = 66;

/// `url: embedded` means the topology's own broker, so there must be one.
pub(super) fn embedded_broker(stages: &[Declared], has_broker: bool, report: &mut Report) {
    for stage in stages.iter().filter(|stage| !has_broker && stage.section != Section::Translators) {
        if stage.config.as_ref().is_some_and(|config| config["url"] == "embedded") {
            let message = "there is no embedded broker in this topology; add 'broker: { listen: 127.0.0.1:0 }'";
            report.problem(&stage.path.key("url"), message);
        }
    }
}

/// What of the settings the file itself says.
#[derive(Clone, Copy)]
pub(super) struct Given {
    /// `checkpoint.store`.
    pub store: bool,
    /// `identity.horizon`.
    pub horizon: bool,
}

/// Settings that must fit each other.
pub(super) fn settings(topology: &Topology, given: Given, report: &mut Report) {
    let Topology { checkpoint, identity, supervision, broker, .. } = topology;
    let section = |key: &str| Path::root().key(key);
    for (path, span) in [
        (section("checkpoint").key("interval"), checkpoint.interval),
        (section("checkpoint").key("timeout"), checkpoint.timeout),
        (section("identity").key("horizon"), identity.horizon),
        (section("supervision").key("backoff").key("min"), supervision.backoff.min),
        (section("supervision").key("give_up").key("within"), supervision.give_up.within),
    ] {
        if span == Duration::ZERO {
            report.problem(&path, "expected a duration longer than 0");
        }
    }
    if supervision.backoff.min > supervision.backoff.max {
        let path = section("supervision").key("backoff").key("min");
        report.problem(&path, "longer than the longest wait, 'max'; lower it, or raise 'max'");
    }
    let in_doubt = section("identity").key("in_doubt");
    if identity.in_doubt < identity.horizon {
        report.problem(
            &in_doubt,
            "shorter than 'horizon'; a message in doubt is remembered at least as long as any other",
        );
    } else if identity.in_doubt < checkpoint.interval.saturating_add(checkpoint.timeout) {
        let message = "shorter than checkpoint.interval and checkpoint.timeout together: \
                       an id would be forgotten while its message is still being committed";
        report.problem(&in_doubt, message);
    }
    for (name, receiver) in &topology.receivers {
        let in_flight = u64::from(receiver.partitions).saturating_mul(receiver.max_unsettled);
        if remembers(topology, name) && in_flight > identity.max_ids {
            let message = format!(
                "fewer than the partitions of receivers.{name} may have unsettled together: its intake would never be \
                 at full speed; raise it, or lower max_unsettled"
            );
            report.problem(&section("identity").key("max_ids"), message);
        }
        if remembers(topology, name) {
            horizon(name, receiver, identity.horizon, given.horizon, report);
        }
    }
    if !given.store && topology.receivers.keys().any(|name| remembers(topology, name)) {
        let message = "exactly once needs a checkpoint log that outlives the process: write 'store: ./state', \
                       or 'store: memory' to start from nothing each time";
        let path = section("checkpoint").key("store");
        report.problem(&path, message);
    }
    if broker.as_ref().is_some_and(|broker| !broker.listen.ip().is_loopback()) {
        let message =
            "a topology's own broker knows no passwords: it listens on a loopback address like 127.0.0.1:5672";
        report.problem(&section("broker").key("listen"), message);
    }
}

/// Two sinks in one folder would each add their rows to it, and whoever cleans up a table's folder of what the table does
/// not name would take the checkpoint log with it.
pub(super) fn places(topology: &Topology, report: &mut Report) {
    let named = topology.sinks.values().map(|sink| (Path::root().key("sinks").key(sink.name.as_str()), sink));
    let dead_letter = topology.dead_letter.iter().map(|sink| (Path::root().key("dead_letter"), sink));
    let mut taken: Vec<(Path, PathBuf)> = Vec::new();
    for (path, sink) in named.chain(dead_letter) {
        let Some(place) = sink.kind.place(&sink.config).map(|place| plain(&place)) else { continue };
        let near = |(_, other): &&(Path, PathBuf)| place.starts_with(other) || other.starts_with(&place);
        if let Some((of, other)) = taken.iter().find(near) {
            let way_out = "give each a folder of its own; one sink may take from several stages, as in 'from: [a, b]'";
            let message = match place == *other {
                true => format!("its folder is that of {of}; {way_out}"),
                false => format!("its folder and that of {of} lie one in the other; {way_out}"),
            };
            report.problem(&path, message);
        }
        taken.push((path, place));
    }
    let StoreConfig::Local(store) = &topology.checkpoint.store else { return };
    let store = plain(store);
    if let Some((of, _)) = taken.iter().find(|(_, place)| store.starts_with(place)) {
        let message = format!("lies in the folder of {of}: a tool that cleans up there would delete it; move it out");
        report.problem(&Path::root().key("checkpoint").key("store"), message);
    }
}

/// Without `.`, and without `..` where it follows a name.
fn plain(path: &std::path::Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if matches!(plain.components().next_back(), Some(Component::Normal(_))) => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

/// Protocol R11: an id is forgotten one horizon after its settlement was sent over a link that lived on, so the horizon
/// must be long enough to notice that the link did not.
fn horizon(name: &StageName, receiver: &Receiver, horizon: Duration, given: bool, report: &mut Report) {
    let Some(idle) = receiver.factory.idle_timeout() else { return };
    let least = idle.saturating_mul(2);
    if horizon >= least {
        return;
    }
    let path = Path::root().key("receivers").key(name.as_str()).key("idle_timeout");
    let (idle, least) = (Span(idle), Span(least));
    let why = "a message whose settlement went over a dead link would be forgotten before the link is known to be dead, \
               and could come twice";
    if given {
        let message = format!("shorter than twice the {idle} of {path}: {why}; write {least} or more");
        report.problem(&Path::root().key("identity").key("horizon"), message);
    } else {
        let horizon = Span(horizon);
        let message =
            format!("longer than half of identity.horizon ({horizon}): {why}; lower it, or write 'horizon: {least}'");
        report.problem(&path, message);
    }
}

/// Guarantees, costs and warnings.
pub(super) fn notes(topology: &Topology, report: &mut Report) {
    for (name, sink) in &topology.sinks {
        report.note(promise(&format!("sinks.{name}"), sink, topology));
    }
    match &topology.dead_letter {
        Some(sink) => report.note(promise("dead_letter", sink, topology)),
        None => report.note("warning: no dead_letter section: a rejected message parks its partition"),
    }
    let mut any = false;
    for (name, receiver) in &topology.receivers {
        if remembers(topology, name) {
            any = true;
        } else {
            report.note(format!(
                "receivers.{name} ({}): none of its sinks is exactly once: it makes no checkpoint entries and remembers \
                 no ids",
                receiver.kind
            ));
        }
    }
    if !any {
        return;
    }
    let max_ids = topology.identity.max_ids;
    report.note(format!(
        "identity: at most {max_ids} known ids per receiver (max_ids), up to {ID_BYTES} bytes each: {} MiB",
        max_ids.saturating_mul(ID_BYTES).div_ceil(1 << 20)
    ));
    if topology.checkpoint.store == StoreConfig::Memory {
        report.note(format!(
            "warning: checkpoint.store is memory: after a restart of the process, messages of the last {} may be \
             written again",
            Span(topology.checkpoint.interval.saturating_add(topology.identity.horizon))
        ));
    }
}

fn promise(path: &str, sink: &SinkSpec, topology: &Topology) -> String {
    let promise = match sink.guarantee {
        Guarantee::AtLeastOnce => "at least once",
        Guarantee::ExactlyOnce if topology.identity.missing_id == MissingId::Accept => {
            "exactly once; messages without an id at least once"
        }
        Guarantee::ExactlyOnce => "exactly once",
    };
    format!("{path} ({}): {promise}", sink.kind.name())
}

/// Whether the receiver makes checkpoint entries and remembers ids.
fn remembers(topology: &Topology, receiver: &StageName) -> bool {
    topology.exactly_once(receiver).next().is_some()
}
