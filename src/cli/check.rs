//! `runtime check FILE`: every problem at once, or what the topology guarantees.

use std::path::Path;

use super::{Exit, load};
use crate::flow::registry::Registry;

pub(super) fn run(file: &Path, registry: &Registry) -> Exit {
    match load(file, registry) {
        Err(exit) => exit,
        Ok((topology, _)) => {
            for note in &topology.notes {
                println!("{note}");
            }
            println!("{}: topology '{}' is valid", file.display(), topology.name);
            Exit::Done
        }
    }
}
