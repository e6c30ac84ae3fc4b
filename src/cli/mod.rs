//! The command line: one file per verb. A program that embeds the runtime calls [`main`] with a registry of its own.
//!
//! Every failure ends in one line that says what to do, and in an exit code of its own ([`Exit`]).

mod broker;
mod check;
mod connect;
mod describe;
mod health;
mod init;
mod list;
mod progress;
mod schema;
mod start;
mod state;
mod text;

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::flow::registry::Registry;
use crate::telemetry::log;
use crate::topology::{self, ProcessEnvironment, Topology};

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Drained, or the input ended.
    Done = 0,
    /// It could not go on.
    Failed = 1,
    /// The command line was wrong.
    Usage = 2,
    /// Another process has, or took, the checkpoint log.
    LogLost = 3,
    /// The topology file is not valid (`EX_CONFIG` of sysexits.h).
    NotValid = 78,
}

#[derive(Parser)]
#[command(
    name = "runtime",
    version,
    about = "Carries messages from queues into Delta Lake and Parquet, exactly once.",
    after_help = "First steps:
  runtime init                                 writes a commented topology.yaml
  runtime check topology.yaml --connect        finds every mistake, then tries broker, queue, table and store
  runtime start topology.yaml                  runs it

Exit codes: 0 drained or input ended, 1 failed, 2 usage, 3 the checkpoint log belongs to another process, \
                  78 the topology file is not valid."
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    /// What is logged: a level, or levels by component, like `info` or `amqp=debug,checkpoint=trace`.
    #[arg(long, global = true, env = "RUNTIME_LOG", default_value = "info", value_name = "FILTER")]
    log: log::Filter,
    /// How it is logged: text or json.
    #[arg(long, global = true, default_value_t = log::Format::Text, value_name = "FORMAT")]
    log_format: log::Format,
}

#[derive(Subcommand)]
enum Verb {
    /// Run a topology until it ends, or until SIGTERM or SIGINT drains it.
    #[command(after_help = start::EXAMPLE)]
    Start(start::Arguments),
    /// Check a topology file and say what it guarantees; with --connect also try what it needs.
    #[command(after_help = check::EXAMPLE)]
    Check(check::Arguments),
    /// Write a commented topology to start from.
    #[command(after_help = init::EXAMPLE)]
    Init(init::Arguments),
    /// List the receivers, translators and sinks, and the sections of a topology.
    #[command(after_help = list::EXAMPLE)]
    List,
    /// Say what a component or a section takes: every field, and an example.
    #[command(after_help = describe::EXAMPLE)]
    Describe(describe::Arguments),
    /// Print the JSON Schema of topology files, for editors.
    #[command(after_help = schema::EXAMPLE)]
    Schema,
    /// Ask a running topology whether it is alive and ready, for probes.
    #[command(after_help = health::EXAMPLE)]
    Health(health::Arguments),
    /// Look at a topology's checkpoint log, or get a partition out of an inconsistent state.
    #[command(after_help = state::EXAMPLE)]
    State(state::Arguments),
    /// Run the embedded broker alone: in memory, for first runs and tests.
    #[command(after_help = broker::EXAMPLE)]
    Broker(broker::Arguments),
}

/// Reads the command line of this process, does what it says, and returns the exit code.
pub fn main(registry: &Registry) -> ExitCode {
    run(std::env::args_os(), registry).into()
}

/// Does what a command line says, whose first word is the program's name. [`main`] for those who have words of their own.
pub fn run(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>, registry: &Registry) -> Exit {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            let wrong = error.use_stderr();
            // Nothing is left to do about a closed terminal.
            let _ = error.print();
            return if wrong { Exit::Usage } else { Exit::Done };
        }
    };
    progress::init_log(&arguments.log, arguments.log_format);
    match arguments.verb {
        Verb::Start(start) => start::run(start, registry),
        Verb::Check(check) => check::run(check, registry),
        Verb::Init(init) => init::run(&init, registry),
        Verb::List => list::run(registry),
        Verb::Describe(describe) => describe::run(&describe, registry),
        Verb::Schema => schema::run(registry),
        Verb::Health(health) => health::run(&health),
        Verb::State(state) => state::run(state, registry),
        Verb::Broker(broker) => broker::run(broker),
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Says why, in one line, and how the process ends.
fn fail(exit: Exit, why: impl std::fmt::Display) -> Exit {
    eprintln!("runtime: {why}");
    exit
}

/// Prints what a verb was asked for. A reader that has seen enough, like `head`, is no failure.
fn print(text: &str) -> Exit {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => fail(Exit::Failed, format!("cannot print: {error}")),
        _ => Exit::Done,
    }
}

/// A topology file that has passed the check, and its text.
fn load(file: &Path, registry: &Registry) -> Result<(Topology, String), Exit> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| fail(Exit::Usage, format!("cannot read the topology file {}: {error}", file.display())))?;
    match topology::load(&text, &file.display().to_string(), &ProcessEnvironment, registry) {
        Ok(topology) => Ok((topology, text)),
        Err(problems) => {
            eprintln!("{problems}");
            let count = problems.iter().count();
            let (s, them) = if count == 1 { ("", "it") } else { ("s", "them") };
            Err(fail(Exit::NotValid, format!("{} has {count} problem{s}; mend {them} and try again", file.display())))
        }
    }
}

/// Runs `work` on a runtime of its own, without actors. What it leaves behind, like a file system that does not answer,
/// does not hold up the end.
fn aside<T>(work: impl Future<Output = T>) -> std::io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(done)
}
