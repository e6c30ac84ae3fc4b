//! A `runtime` process under test, and the folder it works in.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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

    /// Starts `runtime` with these arguments, in the folder.
    pub fn start(&self, arguments: &[&str]) -> Process {
        let mut child = Command::new(env!("CARGO_BIN_EXE_runtime"))
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("RUNTIME_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the binary");
        let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let log = Arc::<Mutex<String>>::default();
        let written = log.clone();
        // Read at once, or a long run would wait for room in the pipe.
        let reader = std::thread::spawn(move || {
            for line in lines {
                // What is not UTF-8 is not expected of a log.
                let line = line.expect("the log is text");
                written.lock().expect("not poisoned").extend([line.as_str(), "\n"]);
            }
        });
        Process { child, log, reader: Some(reader) }
    }

    /// Runs `runtime` to its end.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        self.start(arguments).wait(Duration::from_secs(60))
    }
}

/// A running `runtime`; killed when dropped.
pub struct Process {
    child: Child,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    pub fn id(&self) -> u32 {
        self.child.id()
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

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("not poisoned").clone()
    }

    /// Waits for the end, at most `limit`.
    pub fn wait(mut self, limit: Duration) -> Ended {
        let status = until(limit, "the process to end", || self.child.try_wait().expect("ask for the end"));
        self.reader.take().expect("waited for once").join().expect("the reader");
        Ended { code: status.code(), text: self.log() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
