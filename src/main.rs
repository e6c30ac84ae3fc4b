//! The binary: hands the standard registry to the command line.

use std::process::ExitCode;

use distributary::{cli, embed};

fn main() -> ExitCode {
    cli::main(&embed::standard())
}
