//! YAML text into a small tree in which every key and value knows its place. The only file that knows YAML.
//!
//! serde stops at the first mistake and loses positions below tagged enums, so the tree is built from the parser's
//! events: scalars by the core schema of YAML 1.2, aliases copied, merge keys (`<<`) applied. Invariant: whatever the
//! text, reading ends in bounded time and memory with a tree or with a problem that has a place. What the keys mean is
//! not known here, and `${…}` is ordinary text.

use std::collections::{HashMap, HashSet};

use serde_json::{Number, Value};
use serde_yaml::granit_parser::{ErrorKind, Event, Marker, Parser, ScalarStyle, ScanError, Span, Tag};

use super::node::{Content, Entry, NODE_WEIGHT, Node};
use super::problem::{Path, Place, Report, shown};

/// Deeper than any topology, and far from any stack's end.
const MAX_DEPTH: usize = 64;
/// What the tree may weigh, aliases copied out: a bound on the memory that a small file can ask for.
const MAX_WEIGHT: usize = 16 << 20;

/// One value of a configuration, as it would stand in a topology file: for the command line.
pub fn fragment<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_yaml::from_str(text).map_err(|error: serde_yaml::Error| error.without_snippet().to_string())
}

/// The tree of `text`. What is wrong but leaves a tree is reported beside it; `None`: there is none.
pub(super) fn read(text: &str, report: &mut Report) -> Option<Node> {
    if text.len() > MAX_WEIGHT {
        report.problem_at(&Path::root(), Place::START, "the file is larger than 16 MiB");
        return None;
    }
    let mut builder = Builder { report, frames: Vec::new(), anchors: HashMap::new(), weight: 0, root: None };
    for event in Parser::new_from_str(text) {
        let step = match event {
            Ok((event, span)) => builder.event(event, span),
            Err(error) => {
                // A tab is not where the parser was when it met it.
                let path = if TABS.contains(error.kind()) { Path::root() } else { builder.path() };
                builder.report.problem_at(&path, place_of(&error, text), sentence(&error, text));
                Err(Stop::Failed)
            }
        };
        match step {
            Ok(()) => {}
            Err(Stop::Failed) => return None,
            Err(Stop::End) => break,
        }
    }
    let root = builder.root;
    if root.as_ref().is_none_or(Node::is_null) {
        let message = "there is no topology in this file; it starts with 'topology: NAME'";
        report.problem_at(&Path::root(), Place::START, message);
        return None;
    }
    root
}

/// Why reading goes no further.
enum Stop {
    /// With a tree.
    End,
    /// Without, and the reason was reported.
    Failed,
}

/// A collection that is not closed yet.
enum Frame {
    List { place: Place, anchor: usize, items: Vec<Node> },
    Map { place: Place, anchor: usize, entries: Vec<Entry>, merges: Vec<(Place, Node)>, slot: Slot },
}

/// What a map waits for.
enum Slot {
    Key,
    Value {
        place: Place,
        key: String,
    },
    Merge {
        place: Place,
    },
    /// The value of a key that was refused.
    Refused,
}

struct Builder<'r> {
    report: &'r mut Report,
    frames: Vec<Frame>,
    anchors: HashMap<usize, Node>,
    weight: usize,
    root: Option<Node>,
}

impl Builder<'_> {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Stop> {
        let here = place(span.start);
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                let message = "a second document begins here; one file holds one topology";
                self.report.problem_at(&Path::root(), here, message);
                return Err(Stop::End);
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && !self.tag(tag.as_deref(), span, "str")?;
                let value = if plain { resolved(&text) } else { Value::String(text.clone().into_owned()) };
                self.weigh(NODE_WEIGHT + text.len(), here)?;
                let node = Node::new(here, Content::Scalar(value));
                self.remember(anchor, &node, here)?;
                self.place_node(node, Some((&text, plain)));
            }
            Event::Alias(id) => {
                let Some(node) = self.anchors.get(&id) else {
                    let path = self.path();
                    self.report.problem_at(&path, here, "this alias stands inside the value that it names");
                    return Err(Stop::Failed);
                };
                let (weight, mut node) = (node.weight(), node.clone());
                self.weigh(weight, here)?;
                node.place = here;
                let text = node.text().map(str::to_owned);
                self.place_node(node, text.as_deref().map(|text| (text, false)));
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.tag(tag.as_deref(), span, "seq")?;
                self.open(Frame::List { place: here, anchor, items: Vec::new() }, here)?;
            }
            Event::MappingStart(_, anchor, tag) => {
                self.tag(tag.as_deref(), span, "map")?;
                let (entries, merges) = (Vec::new(), Vec::new());
                self.open(Frame::Map { place: here, anchor, entries, merges, slot: Slot::Key }, here)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(here)?,
            _ => {}
        }
        Ok(())
    }

    /// Whether a tag says `core` of this node. Any tag that is not of YAML's core is refused.
    fn tag(&mut self, tag: Option<&Tag>, span: Span, core: &str) -> Result<bool, Stop> {
        let Some(tag) = tag else { return Ok(false) };
        if !tag.is_yaml_core_schema() && tag.original() != "!" {
            let path = self.path();
            let message = format!("the tag {} means nothing here; write the value without it", shown(&tag.original()));
            self.report.problem_at(&path, place(span.tag_start.unwrap_or(span.start)), message);
        }
        Ok(tag.core_suffix() == Some(core) || tag.original() == "!")
    }

    fn open(&mut self, frame: Frame, here: Place) -> Result<(), Stop> {
        self.weigh(NODE_WEIGHT, here)?;
        if self.frames.len() == MAX_DEPTH {
            let message = format!("nested more than {MAX_DEPTH} deep");
            self.report.problem_at(&Path::root(), here, message);
            return Err(Stop::Failed);
        }
        self.frames.push(frame);
        Ok(())
    }

    fn close(&mut self, here: Place) -> Result<(), Stop> {
        let (node, anchor) = match self.frames.pop() {
            Some(Frame::List { place, anchor, items }) => (Node::new(place, Content::List(items)), anchor),
            Some(Frame::Map { place, anchor, mut entries, merges, .. }) => {
                for (key, merged) in merges {
                    self.merge(&mut entries, key, merged);
                }
                (Node::new(place, Content::Map(entries)), anchor)
            }
            None => return Ok(()),
        };
        self.remember(anchor, &node, here)?;
        self.place_node(node, None);
        Ok(())
    }

    /// Puts a complete node where it belongs. `text`: the source text of a scalar, and whether it stood unquoted.
    fn place_node(&mut self, node: Node, text: Option<(&str, bool)>) {
        let Some(frame) = self.frames.last_mut() else {
            self.root.get_or_insert(node);
            return;
        };
        let (entries, merges, slot) = match frame {
            Frame::List { items, .. } => return items.push(node),
            Frame::Map { entries, merges, slot, .. } => (entries, merges, slot),
        };
        match std::mem::replace(slot, Slot::Key) {
            Slot::Value { place, key } => entries.push(Entry { place, key, value: node }),
            Slot::Merge { place } => merges.push((place, node)),
            Slot::Refused => {}
            Slot::Key => {
                let first = text.and_then(|(key, _)| entries.iter().find(|entry| entry.key == key));
                let refused = match (text, first) {
                    (Some(("<<", true)), _) => {
                        *slot = Slot::Merge { place: node.place };
                        return;
                    }
                    (Some((key, _)), None) if !key.contains("${") => {
                        *slot = Slot::Value { place: node.place, key: key.to_owned() };
                        return;
                    }
                    (Some((key, _)), Some(first)) => Some((
                        key.to_owned(),
                        format!("this key is here twice; the first is on line {}", first.place.line),
                    )),
                    (Some((key, _)), None) => {
                        Some((key.to_owned(), "nothing is substituted in a key; write the name itself".to_owned()))
                    }
                    (None, _) => None,
                };
                *slot = Slot::Refused;
                let (path, message) = match refused {
                    Some((key, message)) => (self.path().key(&key), message),
                    None => (self.path(), "a key is one word or text, not a list or a map".to_owned()),
                };
                self.report.problem_at(&path, node.place, message);
            }
        }
    }

    /// `<<`: what `merged` (a map or a list of maps) has and `entries` has not.
    fn merge(&mut self, entries: &mut Vec<Entry>, key: Place, merged: Node) {
        let sources = match merged.content {
            Content::List(items) => items,
            _ => vec![merged],
        };
        let mut known: HashSet<String> = entries.iter().map(|entry| entry.key.clone()).collect();
        for source in sources {
            let Content::Map(more) = source.content else {
                let path = self.path().key("<<");
                self.report.problem_at(&path, key, "merges a map or a list of maps into this one; this is neither");
                continue;
            };
            entries.extend(more.into_iter().filter(|entry| known.insert(entry.key.clone())));
        }
    }

    fn remember(&mut self, anchor: usize, node: &Node, here: Place) -> Result<(), Stop> {
        if anchor != 0 {
            self.weigh(node.weight(), here)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(())
    }

    fn weigh(&mut self, weight: usize, here: Place) -> Result<(), Stop> {
        self.weight += weight;
        if self.weight <= MAX_WEIGHT {
            return Ok(());
        }
        self.report.problem_at(&Path::root(), here, "the file with its aliases copied out is larger than 16 MiB");
        Err(Stop::Failed)
    }

    /// The way to the value that comes next.
    fn path(&self) -> Path {
        self.frames.iter().fold(Path::root(), |path, frame| match frame {
            Frame::List { items, .. } => path.index(items.len()),
            Frame::Map { slot: Slot::Value { key, .. }, .. } => path.key(key),
            Frame::Map { slot: Slot::Merge { .. }, .. } => path.key("<<"),
            Frame::Map { .. } => path,
        })
    }
}

fn place(marker: Marker) -> Place {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Place { line: number(marker.line().max(1)), column: number(marker.col().saturating_add(1)) }
}

/// A plain scalar by the core schema of YAML 1.2. What JSON cannot hold (`.inf`, `.nan`) stays text.
fn resolved(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number),
    }
}

/// A number as YAML 1.2 and this program's substitution read one.
pub(super) fn number(text: &str) -> Option<Number> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let based = [("0x", 16), ("0o", 8)].into_iter().find_map(|(prefix, base)| Some((text.strip_prefix(prefix)?, base)));
    if let Some((digits, base)) = based {
        return u64::from_str_radix(digits, base).ok().filter(|_| !digits.starts_with('+')).map(Number::from);
    }
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') || !digits.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let text = text.strip_prefix('+').unwrap_or(text);
    let unsigned = text.parse::<u64>().ok().map(Number::from);
    unsigned.or_else(|| text.parse::<i64>().ok().map(Number::from)).or_else(|| Number::from_f64(text.parse().ok()?))
}

const TABS: [ErrorKind; 5] = [
    ErrorKind::TabNotAllowed,
    ErrorKind::TabInBlockIndentation,
    ErrorKind::TabInIndentation,
    ErrorKind::TabAtBlockScalarStart,
    ErrorKind::TabInPlainScalar,
];

/// Where a syntax error is. Of a tab the parser says where the text before it began; a reader looks for the tab.
fn place_of(error: &ScanError, text: &str) -> Place {
    let marked = place(*error.marker());
    if !TABS.contains(error.kind()) {
        return marked;
    }
    let lines = (1..).zip(text.lines()).skip_while(|(line, _)| *line < marked.line);
    let tab = lines.filter_map(|(line, text)| {
        let indent = text.chars().take_while(|c| c.is_whitespace());
        let column = (1..).zip(indent).find(|(_, c)| *c == '\t')?.0;
        Some(Place { line, column })
    });
    tab.into_iter().next().unwrap_or(marked)
}

/// What a syntax error means to somebody who wrote the file.
fn sentence(error: &ScanError, text: &str) -> String {
    let line = text.lines().nth(error.marker().line().saturating_sub(1)).unwrap_or_default();
    match error.kind() {
        kind if TABS.contains(kind) => "a tab stands where YAML allows only spaces; indent with spaces".to_owned(),
        ErrorKind::UnclosedQuotedScalar => "a quote is opened and never closed".to_owned(),
        ErrorKind::UnclosedFlowCollection { open } => format!("'{open}' is opened and never closed"),
        ErrorKind::UnknownAnchor => "this alias names no anchor before it; an anchor is written &name".to_owned(),
        ErrorKind::RecursionLimitExceeded => format!("nested more than {MAX_DEPTH} deep"),
        ErrorKind::UnexpectedCharacter { character } if matches!(character, '@' | '`' | '%') => {
            format!("text that begins with '{character}' must stand in quotes")
        }
        kind if line.contains("${") => {
            format!("not valid YAML: {kind}; inside {{ }} or [ ] a ${{NAME}} must stand in quotes")
        }
        ErrorKind::MappingValueNotAllowed => {
            "a ':' stands where no key can be; indent the line like its neighbours, or put text with ': ' in quotes"
                .to_owned()
        }
        kind => format!("not valid YAML: {kind}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(yaml: &str) -> Result<Node, String> {
        let mut report = Report::default();
        let root = read(yaml, &mut report);
        report.finish("t.yaml", root.as_ref()).map_err(|problems| problems.to_string())?;
        Ok(root.expect("a tree where there is no problem"))
    }

    #[test]
    fn scalars_are_what_yaml_says() {
        for (yaml, json) in [
            ("[1, -1, +1, 0x1F, 0o17, 007]", json!([1, -1, 1, 31, 15, 7])),
            ("[1.5, .5, 1e3, -1.0]", json!([1.5, 0.5, 1000.0, -1.0])),
            ("[true, False, yes, on]", json!([true, false, "yes", "on"])),
            ("[~, null, '']", json!([null, null, ""])),
            ("a:\nb: ", json!({ "a": null, "b": null })),
            (r#"['1', "true", !!str 5, ! 6]"#, json!(["1", "true", "5", "6"])),
            ("[1_000, 1.2.3, 127.0.0.1:0, 10s, .inf, 1e999, '-', +, 0x, 0x+1]", {
                json!(["1_000", "1.2.3", "127.0.0.1:0", "10s", ".inf", "1e999", "-", "+", "0x", "0x+1"])
            }),
            ("a: |\n  x\n  y\nb: >\n  x\n  y\n", json!({ "a": "x\ny\n", "b": "x y\n" })),
            ("1: a\ntrue: b", json!({ "1": "a", "true": "b" })),
            ("\u{feff}a: 1", json!({ "a": 1 })),
            ("a: 1\r\nb: 2\r\n", json!({ "a": 1, "b": 2 })),
        ] {
            assert_eq!(parsed(yaml).expect(yaml).json(), json, "{yaml}");
        }
    }

    #[test]
    fn aliases_are_copied_and_merge_keys_applied() {
        let yaml = "base: &b { x: 1, y: 2 }\none: { <<: *b, y: 3 }\ntwo: { <<: [{ y: 4 }, *b] }\nthree: *b\n";
        let root = parsed(yaml).expect("a tree");
        assert_eq!(
            root.json(),
            json!({
                "base": { "x": 1, "y": 2 },
                "one": { "y": 3, "x": 1 },
                "two": { "y": 4, "x": 1 },
                "three": { "x": 1, "y": 2 },
            })
        );
        assert_eq!(root.get("three").expect("there").place, Place { line: 4, column: 8 }, "where it is used");
    }

    #[test]
    fn what_is_not_yaml_has_a_place_and_a_sentence() {
        let mut wrong = Vec::new();
        let laughs: String = (1..30).map(|n| format!("a{n}: &a{n} [*a{0}, *a{0}]\n", n - 1)).collect();
        for (yaml, problem) in [
            ("", "1:1: there is no topology in this file; it starts with 'topology: NAME'"),
            ("# nothing\n", "1:1: there is no topology in this file; it starts with 'topology: NAME'"),
            ("a: 1\n\tb: 2\n", "2:1: a tab stands where YAML allows only spaces; indent with spaces"),
            ("a: 'b\n", "1:4: a: a quote is opened and never closed"),
            ("a: \"b\nc: d\n", "1:4: a: a quote is opened and never closed"),
            ("a: [b,\n", "1:4: a[1]: '[' is opened and never closed"),
            ("a: 1\nb: 2\na: 3\n", "3:1: a: this key is here twice; the first is on line 1"),
            ("a: *b\n", "1:4: a: this alias names no anchor before it; an anchor is written &name"),
            ("a: &b [*b]\n", "1:8: a[0]: this alias stands inside the value that it names"),
            ("a: 1\n---\nb: 2\n", "2:1: a second document begins here; one file holds one topology"),
            ("a: { <<: 1 }\n", "1:6: a.<<: merges a map or a list of maps into this one; this is neither"),
            ("? [a]\n: 1\n", "1:3: a key is one word or text, not a list or a map"),
            ("a: !secret b\n", "1:4: a: the tag '!secret' means nothing here; write the value without it"),
            ("${A}: 1\n", "1:1: \"${A}\": nothing is substituted in a key; write the name itself"),
            (
                "a: { b: ${C} }\n",
                "1:10: a: not valid YAML: while parsing a flow mapping, did not find expected ',' or '}'; inside { } or [ ] a ${NAME} must stand in quotes",
            ),
            ("a: b: c\n", "1:5: a ':' stands where no key can be"),
            ("a: @b\n", "1:4: a: text that begins with '@' must stand in quotes"),
            (&("[".repeat(100) + &"]".repeat(100)), "1:65: nested more than 64 deep"),
            (&format!("a0: &a0 x\n{laughs}"), "16:22: the file with its aliases copied out is larger than 16 MiB"),
        ] {
            let problems = parsed(yaml).map(|node| node.json()).expect_err(yaml);
            if !problems.starts_with(&format!("t.yaml:{problem}")) {
                wrong.push(format!("{yaml}\n{problems}\n!= {problem}\n"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
