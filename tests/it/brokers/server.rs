//! A broker in a process of its own, started by `start.sh` and ended with this process, however it ends.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// User and password of every broker here.
pub const USER: &str = "app";
/// See [`USER`].
pub const PASSWORD: &str = "let-me-in-7";

/// Which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    RabbitMq,
    Artemis,
}

impl Kind {
    /// As the scripts call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::RabbitMq => "rabbitmq",
            Self::Artemis => "artemis",
        }
    }

    /// The address of a queue that was made beforehand.
    pub fn address(self, queue: &str) -> String {
        match self {
            // The forms without `amq` would declare it again, otherwise than it is.
            Self::RabbitMq => format!("/amq/queue/{queue}"),
            Self::Artemis => queue.to_owned(),
        }
    }
}

/// A running broker.
pub struct Server {
    kind: Kind,
    folder: TempDir,
    port: u16,
    keeper: Child,
}

impl Server {
    /// Starts one that is empty, and waits until it accepts connections.
    pub fn start(kind: Kind) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let (port, keeper) = keep(kind, folder.path());
        Self { kind, folder, port, keeper }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends it by a signal and waits for its end.
    pub fn stop(&mut self, signal: &str) {
        let mut stdin = self.keeper.stdin.take().expect("running");
        stdin.write_all(format!("{signal}\n").as_bytes()).expect("the keeper listens");
        assert!(self.keeper.wait().expect("its end").success(), "the keeper failed");
    }

    /// Starts it again, with all that it had, on another port.
    pub fn start_again(&mut self) {
        (self.port, self.keeper) = keep(self.kind, self.folder.path());
    }

    /// `messages.py` with this broker.
    pub fn client(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(python());
        command.arg(here().join("messages.py")).args(arguments);
        command.env("BROKER_URL", format!("amqp://{USER}:{PASSWORD}@127.0.0.1:{}", self.port)).stdin(Stdio::null());
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The end of its input ends the broker.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// Runs a command to its end; it must be content.
pub fn run(command: &mut Command) {
    let output = command.output().expect("starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/brokers")
}

/// The Python with the clients.
fn python() -> PathBuf {
    let found = Command::new(here().join("install.sh")).arg("python").output().expect("install.sh");
    let said = String::from_utf8_lossy(&found.stdout);
    assert!(found.status.success(), "{said}");
    Path::new(said.trim()).join("bin/python")
}

/// Starts `start.sh`; it needs three ports at most.
fn keep(kind: Kind, folder: &Path) -> (u16, Child) {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let ports = listeners.map(|listener| listener.local_addr().expect("bound").port());
    let mut keeper = Command::new(here().join("start.sh"))
        .arg(kind.name())
        .arg(folder.join("broker"))
        .args(ports.map(|port| port.to_string()))
        // An interrupt from the keyboard is for us; the keeper ends when we have ended.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start.sh");
    let mut line = String::new();
    let told = BufReader::new(keeper.stdout.take().expect("piped")).read_line(&mut line);
    assert!(told.is_ok() && line == "ready\n", "{kind:?} did not start");
    (ports[0], keeper)
}
