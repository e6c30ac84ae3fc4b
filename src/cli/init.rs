//! `runtime init`: writes a commented topology to start from.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use super::{Exit, fail, print};
use crate::flow::registry::Registry;
use crate::topology::{Parts, starter};

pub(super) const EXAMPLE: &str = "Examples:
  runtime init                                             amqp, csv and delta, into topology.yaml
  runtime init --receiver amqp --translator json --sink parquet orders.yaml
  runtime init --receiver generator --sink console -       to the standard output";

#[derive(Args)]
pub(super) struct Arguments {
    /// Where messages come from (see `runtime list`).
    #[arg(long, default_value = "amqp", value_name = "TYPE")]
    receiver: String,
    /// How bodies become columns.
    #[arg(long, default_value = "csv", value_name = "TYPE")]
    translator: String,
    /// Where rows go.
    #[arg(long, default_value = "delta", value_name = "TYPE")]
    sink: String,
    /// The file to write; `-` is the standard output.
    #[arg(default_value = "topology.yaml")]
    file: PathBuf,
    /// Overwrite the file if it is there.
    #[arg(long)]
    force: bool,
}

pub(super) fn run(arguments: &Arguments, registry: &Registry) -> Exit {
    let Arguments { receiver, translator, sink, file, force } = arguments;
    let topology = match starter(registry, &Parts { receiver, translator, sink }) {
        Ok(topology) => topology,
        Err(problems) => return fail(Exit::Usage, problems.join("; ")),
    };
    let to_stdout = file == Path::new("-");
    let shown = if to_stdout { "FILE".into() } else { file.to_string_lossy() };
    let text = format!(
        "# Messages into a table. A field behind '#' is optional and shows what stands for it, if anything does.
#
#   runtime check {shown} --connect    every mistake with its place; then broker, queue, table and store
#   runtime start {shown}              SIGTERM or Ctrl-C drains
#
# `runtime describe receivers.{receiver}`, `… translators.{translator}`, `… sinks.{sink}` say more of every field. Values may
# hold ${{NAME}}, ${{NAME:-default}} and ${{file:/path}}.

{topology}"
    );
    if to_stdout {
        return print(&text);
    }
    let mut options = OpenOptions::new();
    let options =
        if *force { options.write(true).create(true).truncate(true) } else { options.write(true).create_new(true) };
    match options.open(file).and_then(|mut file| file.write_all(text.as_bytes())) {
        Ok(()) => {
            eprintln!("wrote {shown}; edit it, then: runtime check {shown} --connect");
            Exit::Done
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fail(Exit::Usage, format!("{shown} is there already: give another name, or --force to overwrite it"))
        }
        Err(error) => fail(Exit::Failed, format!("cannot write {shown}: {error}")),
    }
}
