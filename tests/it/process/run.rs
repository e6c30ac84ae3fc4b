//! A `runtime` process under test, and the folder it works in.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A folder of its own, gone afterwards.
pub struct Lab {
    folder: TempDir,
}

/// What a process left behind.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub text: String,
}

impl Lab {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a topology file.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("write the topology");
        path
    }

    /// `runtime` with these arguments, in the folder, and with nothing from the environment of the tests.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runtime"));
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        for name in ["RUNTIME_LOG", "RUNTIME_TELEMETRY", "RUNTIME_HEALTH_URL", "RUNTIME_BROKER_PASSWORD"] {
            command.env_remove(name);
        }
        command
    }

    /// Starts `runtime` with these arguments, in the folder.
    pub fn start(&self, arguments: &[&str]) -> Process {
        self.start_with(arguments, |command| command.stdout(Stdio::null()))
    }

    /// Starts `runtime` with these arguments, in the folder, after `change` had its say.
    pub fn start_with(&self, arguments: &[&str], change: impl FnOnce(&mut Command) -> &mut Command) -> Process {
        let mut command = self.command(arguments);
        command.stderr(Stdio::piped());
        Process::new(change(&mut command).spawn().expect("start the binary"))
    }

    /// Runs `runtime` to its end.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        self.start(arguments).wait(Duration::from_secs(60))
    }
}

/// A running `runtime`; killed when dropped.
pub struct Process {
    child: Child,
    /// What it has said so far.
    text: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    fn new(mut child: Child) -> Self {
        let stderr = child.stderr.take().expect("piped");
        let text = Arc::new(Mutex::new(String::new()));
        let heard = text.clone();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                // What is not UTF-8 is not expected of a log.
                let line = line.expect("the log is text");
                let mut text = heard.lock().expect("the text");
                text.push_str(&line);
                text.push('\n');
            }
        });
        Self { child, text, reader: Some(reader) }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has said so far.
    pub fn text(&self) -> String {
        self.text.lock().expect("the text").clone()
    }

    /// Waits until it has said a line with this in it, and answers the line.
    pub fn said(&self, words: &str) -> String {
        until(Duration::from_secs(60), words, || {
            // Asked first: after it, the text is whole.
            let ended = self.reader.as_ref().is_none_or(JoinHandle::is_finished);
            let text = self.text();
            let line = text.lines().find(|line| line.contains(words)).map(str::to_owned);
            assert!(line.is_some() || !ended, "it ended without a word of '{words}':\n{text}");
            line
        })
    }

    /// Where its telemetry listens.
    pub fn endpoint(&self) -> String {
        let line = self.said("serving /metrics");
        let (_, address) = line.split_once("address=").expect("an address");
        address.split_whitespace().next().expect("an address").to_owned()
    }

    /// Its standard output, if that is a pipe.
    pub fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("piped")
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// SIGTERM or another signal by name.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.id().to_string()]).status().expect("kill(1)");
        assert!(sent.success());
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("ask for the end").is_some()
    }

    /// Waits for the end, at most `limit`.
    pub fn wait(mut self, limit: Duration) -> Ended {
        let status = until(limit, "the process to end", || self.child.try_wait().expect("ask for the end"));
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader");
        }
        Ended { code: status.code(), text: self.text() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What an endpoint answers, head and body; empty where nobody does.
pub fn get(address: &str, path: &str) -> String {
    let asked = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    asked().unwrap_or_default()
}

/// The sum of a metric over all its series; 0 where nobody answers.
pub fn metric(address: &str, name: &str) -> u64 {
    let text = get(address, "/metrics");
    let values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once(' '));
    values.map(|(_, value)| value.parse::<f64>().expect("a number")).sum::<f64>() as u64
}

/// Asks until there is an answer; panics after `limit`.
pub fn until<T>(limit: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(started.elapsed() < limit, "waited {limit:?} for {what}");
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_micros(200));
    }
}

#[allow(clippy::disallowed_methods)]
pub fn now() -> Instant {
    Instant::now()
}

/// The files below a folder, by path.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}
