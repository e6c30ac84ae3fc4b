//! What takes from what: `from` resolved, and below each receiver the tree that it must be.
//!
//! Invariant: whatever the file says, each receiver gets a finite tree that holds no stage twice; where the file says
//! something else, that was reported. Kinds, columns and configuration are not looked at here.

use std::collections::{HashMap, VecDeque};

use super::problem::{Path, Report, shown, suggestion};
use super::schema::Section;

/// Longer chains are refused: nobody writes them, and everything below may recurse over the tree.
const LONGEST_CHAIN: usize = 64;

/// A stage as far as the tree is concerned.
pub(super) struct Vertex {
    pub section: Section,
    pub name: String,
    pub path: Path,
    pub from: Vec<From>,
}

/// One name after `from:`.
pub(super) struct From {
    pub name: String,
    pub path: Path,
    /// It came from outside the file and is not shown.
    pub private: bool,
}

/// A stage, by its index, and what takes from it.
#[derive(Debug)]
pub(super) struct Branch {
    pub stage: usize,
    pub next: Vec<Branch>,
}

/// One tree per receiver, in the order of the file.
pub(super) fn plant(stages: &[Vertex], report: &mut Report) -> Vec<Branch> {
    let edges = Edges::resolve(stages, report);
    edges.report_circles(report);
    edges.report_unused(report);
    let receivers = (0..stages.len()).filter(|&stage| stages[stage].section == Section::Receivers);
    receivers.map(|receiver| Growing { edges: &edges, parents: HashMap::new(), report }.receiver(receiver)).collect()
}

struct Edges<'s> {
    stages: &'s [Vertex],
    parents: Vec<Vec<usize>>,
    children: Vec<Vec<usize>>,
    used: Vec<bool>,
}

impl<'s> Edges<'s> {
    fn resolve(stages: &'s [Vertex], report: &mut Report) -> Self {
        let mut names: HashMap<&str, usize> = HashMap::new();
        for (index, stage) in stages.iter().enumerate() {
            if let Some(&first) = names.get(&*stage.name) {
                let taken = &stages[first].path;
                report.key_problem(&stage.path, format!("the name '{}' is taken by {taken}", stage.name));
            } else {
                names.insert(&stage.name, index);
            }
        }
        let none = || vec![Vec::new(); stages.len()];
        let mut edges = Self { stages, parents: none(), children: none(), used: vec![false; stages.len()] };
        for (index, stage) in stages.iter().enumerate() {
            if stage.from.is_empty() {
                edges.perhaps_used(index);
            }
            for from in &stage.from {
                edges.connect(index, from, &names, report);
            }
        }
        edges
    }

    fn connect(&mut self, taker: usize, from: &From, names: &HashMap<&str, usize>, report: &mut Report) {
        let section = self.stages[taker].section;
        let Some(&giver) = names.get(&*from.name) else {
            let mut known: Vec<&str> = names.keys().copied().filter(|name| self.may_take(taker, names[name])).collect();
            known.sort_unstable();
            let end = match from.private {
                true => format!("known stages: {}", known.join(", ")),
                false => suggestion(&from.name, known.iter().copied(), "known stages"),
            };
            match super::problem::nearest(&from.name, known.iter().copied()) {
                Some(meant) => self.used[names[meant]] = true,
                None => self.perhaps_used(taker),
            }
            let name = if from.private { "this name" } else { &shown(&from.name) };
            return report.problem(&from.path, format!("there is no stage {name}; {end}"));
        };
        self.used[giver] = true;
        let name = if from.private { "this name" } else { &format!("'{}'", from.name) };
        if giver == taker {
            return report.problem(&from.path, "a stage cannot take from itself");
        }
        if self.parents[taker].contains(&giver) {
            return report.problem(&from.path, format!("{name} is listed twice"));
        }
        if !self.may_take(taker, giver) {
            let allowed = match section {
                Section::Batchers => "a batcher takes from a receiver or a translator",
                Section::Sinks => "a sink takes from a receiver, a translator or a batcher",
                _ => "a translator takes from a receiver or a translator",
            };
            let is = self.stages[giver].section.one();
            return report.problem(&from.path, format!("{name} is a {is}; {allowed}"));
        }
        self.parents[taker].push(giver);
        self.children[giver].push(taker);
    }

    /// The stage names none to take from, or none that there is. Whichever was meant is not also told that nothing takes
    /// from it.
    fn perhaps_used(&mut self, taker: usize) {
        for giver in 0..self.stages.len() {
            self.used[giver] |= self.may_take(taker, giver);
        }
    }

    /// The order of the flow: receivers, translators, one batcher, sinks.
    fn may_take(&self, taker: usize, giver: usize) -> bool {
        let (taker, giver) = (self.stages[taker].section, self.stages[giver].section);
        giver < taker || (giver == taker && taker == Section::Translators)
    }

    fn report_circles(&self, report: &mut Report) {
        // What is left when every stage whose givers are known has been taken away is in or behind a circle.
        let mut waiting: Vec<usize> = self.parents.iter().map(Vec::len).collect();
        let mut ready: VecDeque<usize> = (0..waiting.len()).filter(|&stage| waiting[stage] == 0).collect();
        while let Some(stage) = ready.pop_front() {
            for &child in &self.children[stage] {
                waiting[child] -= 1;
                if waiting[child] == 0 {
                    ready.push_back(child);
                }
            }
        }
        let mut walked = vec![false; waiting.len()];
        for start in (0..waiting.len()).filter(|&stage| waiting[stage] > 0) {
            let (mut walk, mut stage) = (Vec::new(), start);
            while !walked[stage] {
                walked[stage] = true;
                walk.push(stage);
                let Some(&giver) = self.parents[stage].iter().find(|&&giver| waiting[giver] > 0) else { break };
                stage = giver;
            }
            if let Some(at) = walk.iter().position(|&seen| seen == stage).filter(|_| walk.last() != Some(&stage)) {
                let circle = walk[at..].iter().rev().chain(walk[at..].last());
                let first = &self.stages[walk[at]];
                let message = format!("the stages go round in a circle: {}", self.way(circle));
                report.problem(&first.path.key("from"), message);
            }
        }
    }

    fn report_unused(&self, report: &mut Report) {
        for (stage, _) in self.stages.iter().zip(&self.used).filter(|(_, used)| !**used) {
            let one = stage.section.one();
            match stage.section {
                Section::Sinks | Section::DeadLetter => {}
                Section::Receivers => {
                    let message =
                        format!("it reaches no sink: nothing takes from this {one}; write 'from: {}'", stage.name);
                    report.key_problem(&stage.path, message);
                }
                _ => {
                    let message = format!("nothing takes from this {one}; write 'from: {}' or take it out", stage.name);
                    report.key_problem(&stage.path, message);
                }
            }
        }
    }

    fn way<'i>(&self, stages: impl Iterator<Item = &'i usize>) -> String {
        Vec::from_iter(stages.map(|&stage| &*self.stages[stage].name)).join(" -> ")
    }
}

struct Growing<'g, 's> {
    edges: &'g Edges<'s>,
    /// For each stage that was reached, from which.
    parents: HashMap<usize, usize>,
    report: &'g mut Report,
}

impl Growing<'_, '_> {
    fn receiver(mut self, receiver: usize) -> Branch {
        self.grow(receiver, 1)
    }

    fn grow(&mut self, stage: usize, depth: usize) -> Branch {
        let mut next = Vec::new();
        let edges = self.edges;
        for &child in &edges.children[stage] {
            let way = self.way(stage);
            if way.contains(&child) {
                continue; // a circle, which was reported
            }
            let path = edges.stages[child].path.key("from");
            if let Some(&other) = self.parents.get(&child) {
                let ways = [self.way(other), way].map(|way| edges.way(way.iter().chain([&child])));
                let message = format!(
                    "reached by two ways from one receiver: {}; below a receiver the stages form a tree",
                    ways.join(" and ")
                );
                self.report.problem(&path, message);
            } else if depth == LONGEST_CHAIN {
                self.report.problem(&path, format!("more than {LONGEST_CHAIN} stages stand one behind the other"));
            } else {
                self.parents.insert(child, stage);
                next.push(self.grow(child, depth + 1));
            }
        }
        Branch { stage, next }
    }

    /// From the receiver to `stage`.
    fn way(&self, mut stage: usize) -> Vec<usize> {
        let mut way = vec![stage];
        while let Some(&parent) = self.parents.get(&stage) {
            way.push(parent);
            stage = parent;
        }
        way.reverse();
        way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `section name from…` a line.
    fn planted(lines: &str) -> (String, Vec<String>) {
        let vertices: Vec<Vertex> = lines
            .lines()
            .map(|line| {
                let mut words = line.split_whitespace();
                let section = match words.next() {
                    Some("r") => Section::Receivers,
                    Some("t") => Section::Translators,
                    Some("b") => Section::Batchers,
                    _ => Section::Sinks,
                };
                let name = words.next().expect("a name").to_owned();
                let path = Path::root().key(section.key()).key(&name);
                let from =
                    words.map(|name| From { name: name.into(), path: path.key("from"), private: false }).collect();
                Vertex { section, name, path, from }
            })
            .collect();
        fn drawn(branch: &Branch, vertices: &[Vertex]) -> String {
            let next = Vec::from_iter(branch.next.iter().map(|next| drawn(next, vertices)));
            let below = if next.is_empty() { String::new() } else { format!("({})", next.join(" ")) };
            format!("{}{below}", vertices[branch.stage].name)
        }
        let mut report = Report::default();
        let trees = Vec::from_iter(plant(&vertices, &mut report).iter().map(|tree| drawn(tree, &vertices)));
        let problems = match report.finish("", None) {
            Ok(_) => Vec::new(),
            Err(problems) => problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect(),
        };
        (trees.join(" "), problems)
    }

    #[test]
    fn each_receiver_gets_its_tree() {
        for (lines, trees) in [
            ("r a\ns z a", "a(z)"),
            ("r a\nt x a\nb y x\ns z y", "a(x(y(z)))"),
            ("r a\nt x a\nb y x\ns z y\ns w y\ns v x", "a(x(y(z w) v))"),
            ("r a\nr b\nt x a b\ns z x", "a(x(z)) b(x(z))"),
            ("r a\nr b\nt x a\nt y b\ns z x y", "a(x(z)) b(y(z))"),
        ] {
            assert_eq!(planted(lines), (trees.to_owned(), vec![]), "{lines}");
        }
    }

    #[test]
    fn what_is_no_tree_is_reported_once() {
        for (lines, problem) in [
            ("r orders\ns z ordres", "sinks.z.from: there is no stage 'ordres'; did you mean 'orders'?"),
            ("r orders\ns z kiosk", "sinks.z.from: there is no stage 'kiosk'; known stages: orders"),
            ("r a\ns z a a", "sinks.z.from: 'a' is listed twice"),
            (
                "r a\ns y a\ns z y",
                "sinks.z.from: 'y' is a sink; a sink takes from a receiver, a translator or a batcher",
            ),
            (
                "r a\nb y a\nt x y\ns z x",
                "translators.x.from: 'y' is a batcher; a translator takes from a receiver or a translator",
            ),
            ("r a\nt x x\ns z a x", "translators.x.from: a stage cannot take from itself"),
            ("r a\nt x a y\nt y x\ns z y", "translators.x.from: the stages go round in a circle: y -> x -> y"),
            (
                "r a\nt x w\nt y x\nt w y\ns z w\ns v a",
                "translators.x.from: the stages go round in a circle: y -> w -> x -> y",
            ),
            (
                "r a\nt x a\nt y a\ns z x y",
                "sinks.z.from: reached by two ways from one receiver: a -> x -> z and a -> y -> z; below a receiver the stages form a tree",
            ),
            ("r a\nr b\ns z a", "receivers.b: it reaches no sink: nothing takes from this receiver; write 'from: b'"),
            ("r a\nt x a\ns z a", "translators.x: nothing takes from this translator; write 'from: x' or take it out"),
            ("r a\ns a a", "sinks.a: the name 'a' is taken by receivers.a"),
        ] {
            assert_eq!(planted(lines).1, [problem], "{lines}");
        }
    }

    #[test]
    fn a_chain_without_end_is_cut() {
        let mut lines = "r s0\n".to_owned();
        for stage in 1..50_000 {
            lines.push_str(&format!("t s{stage} s{}\n", stage - 1));
        }
        let (_, problems) = planted(&format!("{lines}s z s49999"));
        assert_eq!(problems, ["translators.s64.from: more than 64 stages stand one behind the other"]);
    }
}
