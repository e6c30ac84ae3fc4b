//! `${NAME}`, `${NAME:-default}`, `${file:/path}` and `$$` in the scalars of a tree that is already read.
//!
//! Because it comes after parsing, a value with a colon, a quote or a newline in it cannot change the YAML around it, and
//! what is put in is never looked at again. Invariant: nothing that looks like a reference is left as it stands without
//! being said: it is substituted, or it is a problem. A bare `$1` is no reference and stays.

use std::borrow::Cow;
use std::io;
use std::path::Path as FilePath;

use serde_json::Value;

use super::node::{Content, Node, Origin};
use super::problem::{Path, Report};

/// Where the values of references come from; given to the check, so that it is pure.
pub trait Environment {
    /// The variable's value, if it is set.
    fn variable(&self, name: &str) -> Option<String>;

    /// The file's text.
    fn file(&self, path: &FilePath) -> io::Result<String>;
}

/// The environment of this process and its files.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn file(&self, path: &FilePath) -> io::Result<String> {
        std::fs::read_to_string(path)
    }
}

/// Substitutes in every scalar below `node`. A scalar that is wholly `${file:…}` only becomes [`Origin::File`]: whether it
/// is read now or at each use depends on the schema (see [`read_file`]).
pub(super) fn substitute(node: &mut Node, path: &Path, environment: &dyn Environment, report: &mut Report) {
    match &mut node.content {
        Content::Scalar(Value::String(text)) if text.contains('$') => {
            let template = std::mem::take(text);
            match (Filling { path, environment, report }).fill(&template) {
                Ok((filled, origin)) => {
                    *text = filled;
                    node.origin = origin;
                }
                Err(message) => {
                    node.origin = Origin::Broken;
                    report.problem(path, message);
                    // The place is a value's as long as there is a value.
                    node.content = Content::Scalar(Value::String(template));
                }
            }
        }
        Content::Scalar(_) => {}
        Content::List(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                substitute(item, &path.index(index), environment, report);
            }
        }
        Content::Map(entries) => {
            for entry in entries {
                substitute(&mut entry.value, &path.key(&entry.key), environment, report);
            }
        }
    }
}

/// Reads the file of a scalar that is wholly `${file:…}`; anything else is left alone.
pub(super) fn read_file(node: &mut Node, path: &Path, environment: &dyn Environment, report: &mut Report) {
    let Origin::File(file) = &node.origin else { return };
    match (Filling { path, environment, report }).file(file) {
        Ok(text) => {
            node.content = Content::Scalar(Value::String(text));
            node.origin = Origin::Outside { whole: true };
        }
        Err(message) => {
            node.origin = Origin::Broken;
            report.problem(path, message);
        }
    }
}

/// A reference, taken apart.
#[derive(Debug, PartialEq, Eq)]
enum Reference<'t> {
    Variable { name: &'t str, default: Option<&'t str> },
    File(&'t str),
}

/// A piece of a scalar.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'t> {
    Text(&'t str),
    Reference(Reference<'t>),
}

/// The scalar in pieces, or what is wrong with a reference in it.
fn pieces(template: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        pieces.push(Piece::Text(before));
        if let Some(after) = from.strip_prefix("$$") {
            pieces.push(Piece::Text("$"));
            rest = after;
        } else if let Some(after) = from.strip_prefix("${") {
            let end = after.find('}').ok_or("a '${' is never closed: write ${NAME}, or $$ for a dollar sign")?;
            pieces.push(Piece::Reference(reference(&after[..end])?));
            rest = &after[end + 1..];
        } else {
            pieces.push(Piece::Text("$"));
            rest = &from[1..];
        }
    }
    pieces.push(Piece::Text(rest));
    pieces.retain(|piece| *piece != Piece::Text(""));
    Ok(pieces)
}

fn reference(inner: &str) -> Result<Reference<'_>, String> {
    if let Some(path) = inner.strip_prefix("file:") {
        return match path.trim() {
            "" => Err("${file:} names no file: write ${file:/path}".to_owned()),
            _ => Ok(Reference::File(path)),
        };
    }
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    if default.is_some_and(|default| default.contains("${")) {
        return Err("a default cannot hold another reference".to_owned());
    }
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if starts && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Ok(Reference::Variable { name, default });
    }
    // It may be a piece of a password: shown only if it looks like somebody's idea of a name.
    let namelike = inner.len() <= 40 && inner.chars().all(|c| c.is_ascii_alphanumeric() || "_-.: ".contains(c));
    let shown = if namelike { inner } else { "…" };
    Err(format!(
        "'${{{shown}}}' is no reference: a name is letters, digits and '_'; write ${{NAME}}, ${{NAME:-default}} or \
         ${{file:/path}}, or $$ for a dollar sign"
    ))
}

struct Filling<'a> {
    path: &'a Path,
    environment: &'a dyn Environment,
    report: &'a mut Report,
}

impl Filling<'_> {
    fn fill(mut self, template: &str) -> Result<(String, Origin), String> {
        let pieces = pieces(template)?;
        if let [Piece::Reference(Reference::File(file))] = pieces[..] {
            return Ok((template.to_owned(), Origin::File(file.to_owned())));
        }
        let (mut filled, mut outside) = (String::new(), false);
        for piece in &pieces {
            let text = match piece {
                Piece::Text(text) => Cow::Borrowed(*text),
                Piece::Reference(Reference::Variable { name, default }) => match self.environment.variable(name) {
                    // As in a shell: `:-` also stands for a variable that is set to nothing.
                    Some(value) if !(value.is_empty() && default.is_some()) => {
                        outside = true;
                        self.came(&value, &format!("${{{name}}}"));
                        Cow::Owned(value)
                    }
                    _ => Cow::Borrowed(default.ok_or_else(|| {
                        format!("the variable {name} is not set, and ${{{name}}} gives no default; set it, or write ${{{name}:-default}}")
                    })?),
                },
                Piece::Reference(Reference::File(file)) => {
                    outside = true;
                    Cow::Owned(self.file(file)?)
                }
            };
            filled.push_str(&text);
        }
        let whole = matches!(pieces[..], [Piece::Reference(_)]);
        let origin = match (outside, whole) {
            (true, whole) => Origin::Outside { whole },
            (false, true) => Origin::Default,
            (false, false) => Origin::Written,
        };
        Ok((filled, origin))
    }

    /// The file's text without its last newline.
    fn file(&mut self, file: &str) -> Result<String, String> {
        let mut text = self
            .environment
            .file(FilePath::new(file))
            .map_err(|error| format!("cannot read the file of ${{file:{file}}}: {error}"))?;
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        self.came(&text, &format!("${{file:{file}}}"));
        Ok(text)
    }

    /// `value` came from outside the file by `reference`.
    fn came(&mut self, value: &str, reference: &str) {
        self.report.keep_private(value);
        if value.contains("${") {
            let path = self.path;
            self.report.note(format!(
                "warning: {path}: the value of {reference} has '${{' in it; what is put in is not substituted again"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::document;
    use super::*;

    impl Environment for HashMap<&str, &str> {
        fn variable(&self, name: &str) -> Option<String> {
            self.get(name).map(|&value| value.to_owned())
        }

        fn file(&self, path: &FilePath) -> io::Result<String> {
            let text = path.to_str().and_then(|path| self.get(path));
            text.map(|&text| text.to_owned()).ok_or_else(|| io::ErrorKind::NotFound.into())
        }
    }

    /// The scalar `yaml` after substitution, or the problem.
    fn filled(yaml: &str, environment: &HashMap<&str, &str>) -> Result<Node, String> {
        let mut report = Report::default();
        let mut node = document::read(yaml, &mut report).expect("a tree");
        substitute(&mut node, &Path::root(), environment, &mut report);
        read_file(&mut node, &Path::root(), environment, &mut report);
        report.finish("t.yaml", Some(&node)).map(|_| node).map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_password_of_any_characters_goes_in_unchanged() {
        for password in
            [r"back\slash", r#"quo"te"#, "it's", "a>b", "a #comment", "a: b", "line\nbreak", "- x", "$$", "${X}", "@x"]
        {
            let environment = HashMap::from([("PASSWORD", password)]);
            for yaml in ["${PASSWORD}", "\"${PASSWORD}\"", "'${PASSWORD}'"] {
                let node = filled(yaml, &environment).expect(yaml);
                assert_eq!(node.text(), Some(password), "{yaml}");
                assert!(node.is_private());
            }
            let url = filled("amqp://me:${PASSWORD}@host", &environment).expect("a url");
            assert_eq!(url.text(), Some(&*format!("amqp://me:{password}@host")));
        }
    }

    #[test]
    fn references_and_what_only_looks_like_one() {
        let environment = HashMap::from([("NAME", "x"), ("EMPTY", ""), ("/secret", "s\n"), ("/crlf", "s\r\n")]);
        for (yaml, text) in [
            ("a${NAME}b${NAME}", "axbx"),
            ("${MISSING:-d}", "d"),
            ("${MISSING:-}.", "."),
            ("${MISSING:-amqp://h:1/-x}", "amqp://h:1/-x"),
            ("${EMPTY:-d}", "d"),
            ("${EMPTY}.", "."),
            ("^(.*)$1 $x $", "^(.*)$1 $x $"),
            ("$$NAME costs 5$$", "$NAME costs 5$"),
            ("$${NAME}", "${NAME}"),
            ("$$$${NAME}", "$${NAME}"),
            ("${file:/secret}", "s"),
            ("a ${file:/crlf} b", "a s b"),
        ] {
            assert_eq!(filled(yaml, &environment).expect(yaml).text(), Some(text), "{yaml}");
        }
    }

    #[test]
    fn what_cannot_be_substituted_is_named_with_its_place() {
        let environment = HashMap::from([("MY_VAR", "x")]);
        for (yaml, problem) in [
            (
                "\n  ${MISSING}",
                "t.yaml:2:3: the variable MISSING is not set, and ${MISSING} gives no default; set it, or write ${MISSING:-default}",
            ),
            (
                "${MY-VAR}",
                "t.yaml:1:1: '${MY-VAR}' is no reference: a name is letters, digits and '_'; write ${NAME}, ${NAME:-default} or ${file:/path}, or $$ for a dollar sign",
            ),
            ("${MY_VAR", "t.yaml:1:1: a '${' is never closed: write ${NAME}, or $$ for a dollar sign"),
            ("${A:-${B}}", "t.yaml:1:1: a default cannot hold another reference"),
            ("${file:}", "t.yaml:1:1: ${file:} names no file: write ${file:/path}"),
            ("${file:/nowhere}", "t.yaml:1:1: cannot read the file of ${file:/nowhere}: entity not found"),
        ] {
            assert_eq!(filled(yaml, &environment).expect_err(yaml), problem);
        }
        for yaml in ["${}", "${1}", "${A:?must be set}", "${ A }", "${ENV:A}"] {
            assert!(filled(yaml, &environment).expect_err(yaml).contains("is no reference"), "{yaml}");
        }
    }
}
