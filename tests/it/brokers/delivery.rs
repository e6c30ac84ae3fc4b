//! The main job: what Proton sent is in the tables as it was sent, each message once, although connections are cut again
//! and again while messages are unsettled, and the broker is restarted twice, once in good order and once by `kill -9`.
//!
//! The short form runs always; `DISTRIBUTARY_KILLS=100 DISTRIBUTARY_MESSAGES=50000` is a long one.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::proxy::Proxy;
use super::server::{self, Kind, PASSWORD, Server, USER};
use crate::process::moment::{PHASES, Phase, moment, setting};
use crate::process::run::{Lab, Process, metric, now, until};
use crate::process::table;

const QUEUES: [&str; 2] = ["texts", "bytes"];
/// Consumers on each queue.
const PARTITIONS: u64 = 2;
/// From the broker's return, or a cut, until every consumer receives again, at most.
const RECOVERY: Duration = Duration::from_secs(2);

/// A run of the product against a broker.
struct Run {
    kind: Kind,
    lab: Lab,
    server: Server,
    proxy: Proxy,
    process: Process,
    /// Where its telemetry listens.
    endpoint: String,
    rng: SmallRng,
    /// What the cuts hit, and how many deliveries were unsettled then.
    hit: BTreeMap<Phase, Vec<usize>>,
    /// How long it took until every consumer received again.
    after_cuts: Vec<Duration>,
    after_restarts: Vec<Duration>,
}

impl Run {
    fn start(kind: Kind) -> Self {
        let server = Server::start(kind);
        let proxy = Proxy::start(server.port());
        let lab = Lab::new();
        let [texts, bytes] = QUEUES.map(|queue| kind.address(queue));
        let receiver = format!(
            "type: amqp, url: \"amqp://127.0.0.1:{}\", user: {USER}, password: {PASSWORD}, partitions: {PARTITIONS}, \
             max_unsettled: 400, max_time: 1h",
            proxy.port()
        );
        lab.write(
            "topology.yaml",
            &format!(
                "topology: brokers
receivers:
  texts: {{ {receiver}, queue: {texts}, format: text }}
  bytes: {{ {receiver}, queue: {bytes}, format: binary }}
translators:
  texts_as_sent: {{ from: texts, type: text }}
  bytes_as_sent: {{ from: bytes, type: binary }}
sinks:
  lake: {{ from: texts_as_sent, type: delta, table: lake }}
  files: {{ from: bytes_as_sent, type: parquet, path: files }}
dead_letter: {{ type: parquet, path: rejected }}
checkpoint: {{ interval: 300ms, store: state }}
telemetry: {{ listen: 127.0.0.1:0 }}
"
            ),
        );
        let process = lab.start(&["start", "topology.yaml"]);
        let endpoint = process.endpoint();
        let rng = SmallRng::seed_from_u64(1);
        let run = Self {
            kind,
            lab,
            server,
            proxy,
            process,
            endpoint,
            rng,
            hit: BTreeMap::new(),
            after_cuts: Vec::new(),
            after_restarts: Vec::new(),
        };
        run.until_linked(0);
        run
    }

    /// How many links there have been.
    fn links(&self) -> u64 {
        self.process.text().matches(" receiving ").count() as u64
    }

    /// The sum of a metric over all partitions.
    fn metric(&self, name: &str) -> u64 {
        metric(&self.endpoint, name)
    }

    /// Proton sends a range of both queues' messages, `rate` a second to each until told to [`finish`].
    fn send(&self, first: u64, end: u64, rate: u64) -> Vec<Child> {
        let send = |queue| {
            let address = self.kind.address(queue);
            let numbers = [first, end, rate].map(|number| number.to_string());
            let [first, end, rate] = numbers.each_ref().map(String::as_str);
            let mut client = self.server.client(&["send", &address, first, end, rate]);
            client.stdin(Stdio::piped()).spawn().expect("Proton")
        };
        QUEUES.map(send).into()
    }

    /// Cuts all connections, at a moment with work in hand, and waits until the links are back. `false`: there was none,
    /// as all was sent.
    fn cut(&mut self, wanted: Phase, sending: &mut [Child]) -> bool {
        let mut rng = self.rng.clone();
        let unsettled = || self.metric("distributary_unsettled") as usize;
        let over = || sending.iter_mut().all(|child| child.try_wait().expect("ask for the end").is_some());
        let found = moment(&self.lab, wanted, &mut rng, unsettled, over);
        self.rng = rng;
        if found.is_none() {
            return false;
        }
        let (links, unsettled) = (self.links(), self.metric("distributary_unsettled") as usize);
        self.proxy.cut();
        let cut = now();
        let hit = if unsettled > 0 { wanted } else { Phase::Nothing };
        self.hit.entry(hit).or_default().push(unsettled);
        self.until_linked(links);
        self.after_cuts.push(cut.elapsed());
        true
    }

    /// Waits until every consumer has a link more than when there were so many.
    fn until_linked(&self, links: u64) {
        until(Duration::from_secs(30), "all consumers", || {
            assert!(!self.process.text().contains("parked"), "{}", self.process.text());
            (self.links() >= links + PARTITIONS * QUEUES.len() as u64).then_some(())
        });
    }

    /// Ends the broker by a signal while messages are unsettled, and starts it again.
    fn restart(&mut self, signal: &str, first: u64, end: u64) {
        self.proxy.close();
        finish(self.send(first, end, 1));
        self.proxy.open();
        until(Duration::from_secs(60), "unsettled messages", || {
            (self.metric("distributary_unsettled") > 0).then_some(())
        });
        let links = self.links();
        self.server.stop(signal);
        self.server.start_again();
        let returned = now();
        self.proxy.turn_to(self.server.port());
        self.until_linked(links);
        self.after_restarts.push(returned.elapsed());
    }
}

pub fn each_message_once(kind: Kind) {
    let (cuts, messages) = (setting("DISTRIBUTARY_KILLS", 20), setting("DISTRIBUTARY_MESSAGES", 6_000));
    let mut run = Run::start(kind);
    let mut phases = PHASES.into_iter().cycle();
    let mut cut_while_sending = |run: &mut Run, first, end| {
        // So slowly that there is something to come at every cut, if it takes no longer than this.
        const LONGEST: u64 = 4;
        let mut sending = run.send(first, end, ((end - first) * 2 / (cuts * LONGEST)).max(1));
        for phase in phases.by_ref().take((cuts / 2) as usize) {
            if !run.cut(phase, &mut sending) {
                break;
            }
        }
        finish(sending);
    };
    let part = messages / 6;
    cut_while_sending(&mut run, 0, 2 * part);
    run.restart("TERM", 2 * part, 3 * part);
    run.restart("KILL", 3 * part, 4 * part);
    cut_while_sending(&mut run, 4 * part, messages);
    println!("{kind:?}: unsettled deliveries at the cuts, by what was seen last: {:?}", run.hit);
    let slowest = run.after_cuts.iter().max().copied().unwrap_or_default();
    println!("{kind:?}: every consumer received again within {slowest:.2?} of a cut");
    println!("{kind:?}: every consumer received again after the broker's return within {:.2?}", run.after_restarts);

    let tables = |lab: &Lab| [table::delta_ids(&lab.path("lake")), table::parquet_ids(&lab.path("files"))];
    until(Duration::from_secs(60), "all rows", || {
        tables(&run.lab).iter().all(|ids| ids.len() as u64 >= messages).then_some(())
    });
    let Run { lab, server, process, hit, after_cuts, after_restarts, .. } = run;
    process.signal("TERM");
    let ended = process.wait(Duration::from_secs(60));
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert!(!ended.text.contains("parked"), "{}", ended.text);
    for (format, table, queue) in [("delta", "lake", "texts"), ("parquet", "files", "bytes")] {
        let folder = lab.path(table).display().to_string();
        server::run(&mut server.client(&["check", format, &folder, queue, &messages.to_string(), kind.name()]));
    }
    assert_eq!(table::parquet_ids(&lab.path("rejected")).len(), 0, "nothing was rejected");
    let [dead_letters, texts, bytes] = ["DLQ", "texts", "bytes"].map(|queue| kind.address(queue));
    server::run(&mut server.client(&["empty", &dead_letters, &texts, &bytes]));
    let useful: usize = hit.iter().filter(|(phase, _)| **phase != Phase::Nothing).map(|(_, hits)| hits.len()).sum();
    assert!(useful as u64 * 4 >= cuts * 3, "three quarters of the cuts must hit work in hand: {hit:?}");
    let mut took = [after_cuts, after_restarts].concat();
    took.sort_unstable();
    // The broker, its virtual machine and other tests share the cores: one in four may have waited for them.
    assert!(took[took.len() * 3 / 4] < RECOVERY && took[took.len() - 1] < 5 * RECOVERY, "too slow: {took:?}");
}

/// Lets the senders send the rest at once, and waits for them.
fn finish(sending: Vec<Child>) {
    for mut child in sending {
        drop(child.stdin.take());
        assert!(child.wait().expect("its end").success(), "not all was sent");
    }
}
