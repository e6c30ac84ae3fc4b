//! Draining a queue: 1,000,000 waiting text messages of 200 bytes, through `runtime start` with 4 partitions into Delta,
//! beside a bare fe2o3-amqp consumer on 4 links that accepts in ranges and discards. The broker is `runtime broker` in a
//! process of its own, or with `BROKER=artemis` Apache Artemis, as the tests install and start it; runs alternate, each
//! with a broker of its own.
//!
//! `MESSAGES`, `RUNS` and `RATE` (messages a second the feed is capped at; 0: all wait beforehand) change it.

#[path = "../tests/it/brokers/server.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod server;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use distributary::broker::Feed;
use distributary::broker::feed::{self, Credentials};
use distributary::flow::Secret;
use fe2o3_amqp::link::delivery::DeliveryInfo;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::{Connection, Receiver, Session};
use fe2o3_amqp_types::messaging::Body;
use fe2o3_amqp_types::primitives::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::server::{Kind, PASSWORD, Server, USER};

const LINKS: u64 = 4;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}

/// What one run took.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    wall: f64,
    cpu: f64,
    peak_mib: f64,
}

/// CPU seconds and peak memory of a process, as far as it has come.
fn measure(pid: u32) -> Option<(f64, f64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let peak: f64 = peak.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some((ticks / 100.0, peak / 1024.0))
}

/// Waits for the end of a process, measuring it.
fn wait(mut child: Child) -> Cost {
    let started = now();
    let mut last = (0.0, 0.0);
    loop {
        last = measure(child.id()).filter(|(cpu, _)| *cpu >= last.0).unwrap_or(last);
        if let Some(status) = child.try_wait().expect("wait") {
            assert!(status.success(), "{status}");
            return Cost { wall: started.elapsed().as_secs_f64(), cpu: last.0, peak_mib: last.1 };
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A broker process with messages in it, or coming.
enum Broker {
    Own { child: Child, address: String },
    Artemis(Server),
}

impl Broker {
    fn start(messages: u64, rate: u64) -> Self {
        let rate = (rate > 0).then_some(rate);
        match std::env::var("BROKER").as_deref() {
            Ok("artemis") => Self::artemis(messages, rate),
            Err(_) => Self::own(messages, rate),
            Ok(other) => panic!("BROKER={other}: only 'artemis', or nothing for `runtime broker`"),
        }
    }

    fn own(messages: u64, rate: Option<u64>) -> Self {
        let rate_of = rate.map_or(String::new(), |rate| format!(", rate: {rate}"));
        let feed = format!("{{queue: q, payload: {{template: \"{{random:200}}\"}}, count: {messages}{rate_of}}}");
        let mut child = Command::new(env!("CARGO_BIN_EXE_runtime"))
            .args(["broker", "--listen", "127.0.0.1:0", "--feed", &feed])
            .stderr(Stdio::piped())
            .spawn()
            .expect("the broker");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut address = String::new();
        for line in lines.by_ref() {
            let line = line.expect("a line");
            if let Some((_, found)) = line.split_once("address=") {
                address = found.trim().to_owned();
                if rate.is_some() {
                    break;
                }
            }
            if line.contains("the feed has ended") {
                break;
            }
        }
        // What else it says must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self::Own { child, address }
    }

    fn artemis(messages: u64, rate: Option<u64>) -> Self {
        let server = Server::start(Kind::Artemis);
        let queue = Kind::Artemis.address("texts");
        let feed: Feed = serde_json::from_value(serde_json::json!({ "queue": queue, "count": messages, "rate": rate }))
            .expect("a feed");
        let address = ([127, 0, 0, 1], server.port()).into();
        let filling = async move {
            let login = Credentials { user: USER.into(), password: Secret::new(PASSWORD) };
            let body = |n| format!("{n:0200}");
            feed::send(&feed, address, Some(&login), Uuid::new_v4(), body, CancellationToken::new()).await
        };
        let filled = std::thread::spawn(|| runtime().block_on(filling));
        if rate.is_none() {
            assert_eq!(filled.join().expect("no panic").expect("sent"), messages);
        }
        Self::Artemis(server)
    }

    fn url(&self) -> String {
        match self {
            Self::Own { address, .. } => format!("amqp://{address}"),
            Self::Artemis(server) => format!("amqp://{USER}:{PASSWORD}@127.0.0.1:{}", server.port()),
        }
    }

    fn queue(&self) -> String {
        match self {
            Self::Own { .. } => "q".to_owned(),
            Self::Artemis(_) => Kind::Artemis.address("texts"),
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Self::Own { child, .. } = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// The limit: nothing but receiving and accepting in ranges.
async fn bare(url: String, queue: String, messages: u64) {
    let link = |n: u64| {
        let (url, queue) = (url.clone(), queue.clone());
        async move {
            let mut connection = Connection::open(format!("bare-{n}"), url.as_str()).await.expect("a connection");
            let mut session = Session::begin(&mut connection).await.expect("a session");
            let mut receiver = Receiver::builder()
                .name(format!("bare-{n}"))
                .source(queue)
                .credit_mode(CreditMode::Manual)
                .attach(&mut session)
                .await
                .expect("a link");
            let mine = messages / LINKS;
            let (mut granted, mut got) = (0u64, 0u64);
            let mut unsettled: Vec<DeliveryInfo> = Vec::new();
            while got < mine {
                if granted - got < 5_000 && granted < mine {
                    granted = (got + 10_000).min(mine);
                    receiver.set_credit(u32::try_from(granted - got).expect("small")).await.expect("credit");
                }
                let delivery = receiver.recv::<Body<Value>>().await.expect("a message");
                unsettled.push(DeliveryInfo::from(&delivery));
                got += 1;
                if unsettled.len() >= 1_000 || got == mine {
                    receiver.accept_all(std::mem::take(&mut unsettled)).await.expect("accepted");
                }
            }
            let _ = receiver.close().await;
            let _ = session.end().await;
            let _ = connection.close().await;
        }
    };
    let links: Vec<_> = (0..LINKS).map(|n| tokio::spawn(link(n))).collect();
    for link in links {
        link.await.expect("a link");
    }
}

fn product(folder: &Path, broker: &Broker, messages: u64) -> Cost {
    let text = format!(
        "topology: drain
receivers:
  q: {{ type: amqp, url: \"{}\", queue: {}, partitions: 4, max_messages: {messages} }}
translators:
  plain: {{ from: q, type: text }}
sinks:
  lake: {{ from: plain, type: delta, table: lake }}
dead_letter: {{ type: parquet, path: rejected }}
checkpoint: {{ interval: 10s, store: state }}
",
        broker.url(),
        broker.queue()
    );
    std::fs::write(folder.join("drain.yaml"), text).expect("the topology");
    let child = Command::new(env!("CARGO_BIN_EXE_runtime"))
        .args(["start", "drain.yaml", "--log", "warn"])
        .current_dir(folder)
        .stderr(Stdio::null())
        .spawn()
        .expect("the runtime");
    wait(child)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--bare").skip(1);
    if let (Some(url), Some(queue)) = (arguments.next(), arguments.next()) {
        return runtime().block_on(bare(url, queue, setting("MESSAGES", 1_000_000)));
    }
    let (messages, runs, rate) = (setting("MESSAGES", 1_000_000), setting("RUNS", 3), setting("RATE", 0));
    let mut costs: [Vec<Cost>; 2] = Default::default();
    for run in 0..runs {
        for (kind, costs) in costs.iter_mut().enumerate() {
            let broker = Broker::start(messages, rate);
            let folder = TempDir::new().expect("a folder");
            let cost = if kind == 0 {
                let this = std::env::current_exe().expect("this program");
                wait(
                    Command::new(this)
                        .args(["--bare", &broker.url(), &broker.queue()])
                        .spawn()
                        .expect("the bare consumer"),
                )
            } else {
                product(folder.path(), &broker, messages)
            };
            println!("run {run} {}: {cost:.2?}", ["bare", "runtime"][kind]);
            costs.push(cost);
        }
    }
    let rate_of = |costs: &[Cost]| median(costs.iter().map(|cost| messages as f64 / cost.wall).collect());
    let cpu = |costs: &[Cost]| median(costs.iter().map(|cost| cost.cpu).collect());
    let peak = costs[1].iter().map(|cost| cost.peak_mib).fold(0.0, f64::max);
    println!(
        "rate:  bare {:.0}/s, runtime {:.0}/s, ratio {:.2}",
        rate_of(&costs[0]),
        rate_of(&costs[1]),
        rate_of(&costs[1]) / rate_of(&costs[0])
    );
    println!(
        "CPU s: bare {:.2}, runtime {:.2}, ratio {:.2}",
        cpu(&costs[0]),
        cpu(&costs[1]),
        cpu(&costs[1]) / cpu(&costs[0])
    );
    println!("peak memory of the runtime: {peak:.0} MiB");
}
