//! `runtime check FILE`: every problem at once, or what the topology guarantees; with `--connect` also whether everything
//! it needs is there.

use std::path::PathBuf;

use clap::Args;

use super::{Exit, connect, load, print};
use crate::flow::registry::Registry;
use crate::units::Span;

pub(super) const EXAMPLE: &str = "Examples:
  runtime check topology.yaml
  runtime check topology.yaml --connect    also logs in, attaches to the queue, opens the table and the store

Exit codes: 0 fine, 1 something cannot be reached or used, 78 the file is not valid.";

#[derive(Args)]
pub(super) struct Arguments {
    /// The topology file.
    file: PathBuf,
    /// Also try the broker and the queue, the tables, the store and the dead letter. Receives no message, and
    /// makes nothing but what a broker makes by itself when a queue is asked for.
    #[arg(long)]
    connect: bool,
    /// How long each of them may take.
    #[arg(long, default_value = "15s", value_name = "DURATION", requires = "connect")]
    timeout: Span,
}

pub(super) fn run(arguments: Arguments, registry: &Registry) -> Exit {
    let (topology, _) = match load(&arguments.file, registry) {
        Ok(loaded) => loaded,
        Err(exit) => return exit,
    };
    let valid = format!("{}: topology '{}' is valid", arguments.file.display(), topology.name);
    let printed = print(&topology.notes.iter().chain([&valid]).map(|line| format!("{line}\n")).collect::<String>());
    if arguments.connect { connect::run(&topology, arguments.timeout.0) } else { printed }
}
