//! Breadth first through every state, and backwards from the good ends.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use super::apply::apply;
use super::scope::{Model, Scope};
use super::shared::hash128;
use super::step::{Step, steps};
use super::world::World;
use crate::flow::invariants::Broken;

/// What must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl From<Broken> for Violation {
    fn from(broken: Broken) -> Self {
        Self(broken.to_string())
    }
}

/// A violation, and the shortest way to it.
#[derive(Clone, Debug)]
pub struct Counterexample {
    pub violation: Violation,
    pub trace: Vec<String>,
    pub states: usize,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.violation.0)?;
        self.trace.iter().enumerate().try_for_each(|(at, step)| writeln!(f, "  {:2}. {step}", at + 1))
    }
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explored {
    pub states: usize,
    pub steps: usize,
    pub depth: usize,
    /// Those in which everything is settled.
    pub done: usize,
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, steps, depth, done } = self;
        write!(f, "{states} states ({done} of them ends), {steps} steps, depth {depth}")
    }
}

/// States have hashes already.
#[derive(Clone, Copy, Default)]
struct Already(u64);

impl Hasher for Already {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only 128-bit hashes are put in")
    }

    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
}

struct Node {
    from: u32,
    step: Option<Step>,
}

/// Every state that can be reached in `scope`; a violation ends it, and so does a state from which no good end can be
/// reached without a further fault.
pub fn explore(scope: &Scope) -> Result<Explored, Box<Counterexample>> {
    let model = Model::new(scope.clone());
    explore_from(&model, World::new(&model), &[])
}

/// The same from a state that `before` leads to.
pub fn explore_from(model: &Model, start: World, before: &[String]) -> Result<Explored, Box<Counterexample>> {
    let mut known: HashMap<u128, u32, BuildHasherDefault<Already>> = HashMap::default();
    let mut nodes = vec![Node { from: 0, step: None }];
    // Steps that are no faults, to be walked backwards: from, to.
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut done: Vec<u32> = Vec::new();
    let mut frontier = VecDeque::from([(0u32, 0usize, start.clone())]);
    let (mut taken, mut depth) = (0, 0);
    known.insert(hash128(&start), 0);

    while let Some((at, level, world)) = frontier.pop_front() {
        depth = depth.max(level);
        if world.is_done(model) {
            done.push(at);
        }
        for step in steps(&world, model) {
            taken += 1;
            let next = match apply(&world, model, step) {
                Ok(next) => next,
                Err(violation) => {
                    let mut trace = [before, &trace(model, &start, &nodes, at)].concat();
                    trace.push(step.describe(&world, model));
                    return Err(Box::new(Counterexample { violation, trace, states: nodes.len() }));
                }
            };
            let fresh = nodes.len() as u32;
            let to = *known.entry(hash128(&next)).or_insert(fresh);
            if to == fresh {
                nodes.push(Node { from: at, step: Some(step) });
                frontier.push_back((fresh, level + 1, next));
            }
            if to != at && !step.is_fault(model) {
                edges.push((at, to));
            }
        }
    }
    drop(known);
    if let Some(stuck) = first_stuck(nodes.len(), edges, &done) {
        let trace = [before, &trace(model, &start, &nodes, stuck)].concat();
        let violation = Violation("stuck: from here nothing leads to an end where everything is settled".into());
        return Err(Box::new(Counterexample { violation, trace, states: nodes.len() }));
    }
    Ok(Explored { states: nodes.len(), steps: taken, depth, done: done.len() })
}

/// The first state, in the order of discovery, from which no `done` one can be reached.
fn first_stuck(states: usize, mut edges: Vec<(u32, u32)>, done: &[u32]) -> Option<u32> {
    edges.sort_unstable_by_key(|(_, to)| *to);
    let mut good = vec![false; states];
    let mut stack = done.to_vec();
    done.iter().for_each(|at| good[*at as usize] = true);
    while let Some(at) = stack.pop() {
        let first = edges.partition_point(|(_, to)| *to < at);
        for (from, _) in edges[first..].iter().take_while(|(_, to)| *to == at) {
            if !std::mem::replace(&mut good[*from as usize], true) {
                stack.push(*from);
            }
        }
    }
    good.iter().position(|good| !good).map(|at| at as u32)
}

/// The way to a state, in words: it is walked again.
fn trace(model: &Model, start: &World, nodes: &[Node], mut at: u32) -> Vec<String> {
    let mut way = Vec::new();
    while let Some(step) = nodes[at as usize].step {
        way.push(step);
        at = nodes[at as usize].from;
    }
    let mut world = start.clone();
    way.into_iter()
        .rev()
        .map(|step| {
            let words = step.describe(&world, model);
            world = apply(&world, model, step).expect("a step that was taken before");
            words
        })
        .collect()
}
