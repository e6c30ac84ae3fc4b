//! What is wrong with a topology file, and where: the form in which every part of the check says so.
//!
//! A check names a [`Path`] and a sentence; the place in the file is looked up once, at the end, in the tree that was
//! read. Invariant: no sentence holds a secret or anything that came from outside the file.

use std::fmt;
use std::sync::Arc;

use super::node::{Content, Node};

/// One mistake in a topology file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, as the caller named it.
    pub file: Arc<str>,
    /// Counted from 1.
    pub line: u32,
    /// In characters, counted from 1.
    pub column: u32,
    /// The way through the YAML, like `sinks.lake.partition_by[0]`; empty for the file as a whole.
    pub path: String,
    /// What is wrong and what is allowed, lower case, no full stop.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, path, message } = self;
        write!(f, "{file}:{line}:{column}: ")?;
        if !path.is_empty() {
            write!(f, "{path}: ")?;
        }
        f.write_str(message)
    }
}

/// Every mistake of a topology file, in the order of the file. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// The problems, in the order of the file.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// One problem a line.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// A line and a column, both counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub line: u32,
    pub column: u32,
}

impl Place {
    pub const START: Self = Self { line: 1, column: 1 };
}

/// One step down the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

/// A way through the tree, from its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Path(Vec<Step>);

impl Path {
    /// The root itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// The value under `key`.
    pub fn key(&self, key: &str) -> Self {
        self.step(Step::Key(key.to_owned()))
    }

    /// The list's item at `index`.
    pub fn index(&self, index: usize) -> Self {
        self.step(Step::Index(index))
    }

    /// One step further.
    pub fn step(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    /// The key at its end.
    pub fn last_key(&self) -> Option<&str> {
        match self.0.last() {
            Some(Step::Key(key)) => Some(key),
            _ => None,
        }
    }

    /// Down the tree below `root` as far as it goes: the place of what is there. A scalar is shown itself; a map, a list
    /// or an empty value is shown by its key, which is what a reader looks for.
    fn place(&self, root: &Node, spot: Spot) -> Place {
        if let Spot::Exact(place) = spot {
            return place;
        }
        let (mut node, mut key) = (root, root.place);
        for step in &self.0 {
            let next = match (&node.content, step) {
                (Content::Map(entries), Step::Key(name)) => {
                    entries.iter().find(|entry| entry.key == *name).map(|entry| (&entry.value, entry.place))
                }
                (Content::Map(entries), Step::Index(index)) => {
                    let name = index.to_string();
                    entries.iter().find(|entry| entry.key == name).map(|entry| (&entry.value, entry.place))
                }
                (Content::List(items), Step::Index(index)) => items.get(*index).map(|item| (item, item.place)),
                // A connector that names a list's item writes its index as text.
                (Content::List(items), Step::Key(name)) => {
                    name.parse::<usize>().ok().and_then(|index| items.get(index)).map(|item| (item, item.place))
                }
                _ => None,
            };
            let Some(next) = next else { return key };
            (node, key) = next;
        }
        match &node.content {
            Content::Scalar(value) if spot == Spot::Value && !value.is_null() => node.place,
            _ => key,
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) => {
                    let separator = if depth == 0 { "" } else { "." };
                    if !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '<')) {
                        write!(f, "{separator}{key}")?;
                    } else {
                        write!(f, "{separator}{key:?}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// What at the end of a path is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spot {
    Value,
    Key,
    Exact(Place),
}

struct Finding {
    path: Path,
    spot: Spot,
    message: String,
}

/// Collects problems and notes while a topology is checked.
#[derive(Default)]
pub(super) struct Report {
    findings: Vec<Finding>,
    notes: Vec<String>,
    private: Vec<String>,
}

impl Report {
    /// The value at `path` is wrong.
    pub fn problem(&mut self, path: &Path, message: impl Into<String>) {
        self.push(path, Spot::Value, message.into());
    }

    /// The key at the end of `path` is wrong.
    pub fn key_problem(&mut self, path: &Path, message: impl Into<String>) {
        self.push(path, Spot::Key, message.into());
    }

    /// Something is wrong that the tree has no node for.
    pub fn problem_at(&mut self, path: &Path, place: Place, message: impl Into<String>) {
        self.push(path, Spot::Exact(place), message.into());
    }

    /// As [`problem`](Self::problem), with a sentence that somebody else wrote: what is private is struck out of it, and it
    /// stays on one line.
    pub fn foreign_problem(&mut self, path: &Path, message: &str) {
        let mut message = message.to_owned();
        for private in &self.private {
            message = message.replace(private.as_str(), "***");
        }
        let one_line = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
        self.push(path, Spot::Value, message.chars().map(one_line).collect());
    }

    fn push(&mut self, path: &Path, spot: Spot, message: String) {
        // Two receivers that feed one stage find the same mistake in it.
        let known = |finding: &Finding| finding.path == *path && finding.spot == spot && finding.message == message;
        if !self.findings.iter().any(known) {
            self.findings.push(Finding { path: path.clone(), spot, message });
        }
    }

    /// Something that must not be printed: longer ones are struck out first. One or two characters keep no secret, and
    /// striking them out would only garble the sentence.
    pub fn keep_private(&mut self, text: &str) {
        let text = text.trim();
        for form in [text.to_owned(), text.escape_debug().to_string(), text.escape_default().to_string()] {
            if form.chars().count() > 2 && !self.private.contains(&form) {
                let at = self.private.partition_point(|known| known.len() >= form.len());
                self.private.insert(at, form);
            }
        }
    }

    /// A line that `check` prints of a valid topology.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// How many problems there are so far.
    pub fn count(&self) -> usize {
        self.findings.len()
    }

    /// The notes, if there is no problem; otherwise the problems, with their places in the tree below `root`.
    pub fn finish(self, file: &str, root: Option<&Node>) -> Result<Vec<String>, Problems> {
        if self.findings.is_empty() {
            return Ok(self.notes);
        }
        let file: Arc<str> = file.into();
        let mut problems: Vec<Problem> = self
            .findings
            .into_iter()
            .map(|Finding { path, spot, message }| {
                let place = match (spot, root) {
                    (Spot::Exact(place), _) => place,
                    (spot, Some(root)) => path.place(root, spot),
                    (_, None) => Place::START,
                };
                Problem { file: file.clone(), line: place.line, column: place.column, path: path.to_string(), message }
            })
            .collect();
        problems.sort_by_key(|problem| (problem.line, problem.column));
        Err(Problems(problems))
    }
}

/// The name among `known` that `written` was probably meant to be.
pub(super) fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = written.to_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::osa_distance(&lower, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= (name.chars().count() / 3).max(1) && *distance < name.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The end of a sentence about a name that nobody knows: the nearest one, or all that are known (as `label`).
pub(super) fn suggestion<'a>(written: &str, known: impl IntoIterator<Item = &'a str>, label: &str) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(written, known.iter().copied()) {
        Some(name) => format!("did you mean '{name}'?"),
        None if known.is_empty() => format!("{label}: none"),
        None => format!("{label}: {}", known.join(", ")),
    }
}

/// Text from the file, short enough for a sentence and on one line.
pub(super) fn shown(text: &str) -> String {
    const LONGEST: usize = 40;
    let clean: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    let rest = if text.chars().nth(LONGEST).is_some() { "…" } else { "" };
    format!("'{clean}{rest}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_near() {
        let known = ["table", "partition_by", "mode", "keys"];
        for (written, meant) in
            [("tabel", Some("table")), ("Table", Some("table")), ("partitionby", Some("partition_by"))]
        {
            assert_eq!(nearest(written, known), meant, "{written}");
        }
        for written in ["colour", "x", ""] {
            assert_eq!(nearest(written, known), None, "{written}");
        }
        assert_eq!(suggestion("x", ["a_b_c"], "known keys"), "known keys: a_b_c");
    }

    #[test]
    fn paths_read_like_the_yaml() {
        let path = Path::root().key("sinks").key("lake").key("partition_by").index(0);
        assert_eq!(path.to_string(), "sinks.lake.partition_by[0]");
        assert_eq!(Path::root().key("a b").key("").to_string(), r#""a b"."""#);
    }

    #[test]
    fn what_is_private_is_struck_out_of_what_others_say() {
        let mut report = Report::default();
        report.keep_private("pass");
        report.keep_private("passport\n");
        report.keep_private("a\"b");
        report.keep_private("s");
        report.foreign_problem(&Path::root(), "cannot use\n'passport' nor 'pass' nor \"a\\\"b\"");
        let problems = report.finish("t.yaml", None).unwrap_err();
        assert_eq!(problems.to_string(), r#"t.yaml:1:1: cannot use\n'***' nor '***' nor "***""#);
    }

    #[test]
    fn long_or_broken_text_stays_on_one_line() {
        assert_eq!(shown("a\nb"), r"'a\nb'");
        assert_eq!(shown(&"x".repeat(50)), format!("'{}…'", "x".repeat(40)));
    }
}
