//! Which thread a partition's stages live on.
//!
//! All stages of a partition share one arbiter, so nothing between them crosses a thread. Tests put everything on their
//! own arbiter, whose clock they can stop.

use actix::{Arbiter, ArbiterHandle};

/// Where partitions are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On the arbiter of whoever starts the topology; heavy work runs there too.
    Current,
    /// On this many arbiters of their own, and heavy work on as many worker threads.
    Threads(usize),
}

/// The arbiters of one run.
pub(super) struct Arbiters {
    current: ArbiterHandle,
    own: Vec<Arbiter>,
}

impl Arbiters {
    pub fn new(placement: Placement) -> Self {
        let own = match placement {
            Placement::Current => Vec::new(),
            Placement::Threads(n) => (0..n.max(1)).map(|_| Arbiter::new()).collect(),
        };
        Self { current: Arbiter::current(), own }
    }

    /// The arbiter of the `n`-th partition of the topology.
    pub fn of(&self, n: usize) -> ArbiterHandle {
        match self.own.len() {
            0 => self.current.clone(),
            len => self.own[n % len].handle(),
        }
    }
}

impl Drop for Arbiters {
    fn drop(&mut self) {
        for arbiter in &self.own {
            arbiter.stop();
        }
    }
}
