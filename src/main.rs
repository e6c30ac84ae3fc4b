//! The binary: hands the standard registry to the command line.

use std::process::ExitCode;

use distributary::{cli, connectors, translators};

fn main() -> ExitCode {
    cli::main(&translators::register(connectors::register(Default::default())))
}
