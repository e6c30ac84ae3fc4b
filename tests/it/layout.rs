//! Who may import whom: the module tree's directions, read from the source.
//!
//! Every path that starts at the crate's root (`crate::…`, `distributary::…` in `main.rs`, or `super::` up to the root) is
//! an edge from the top-level module it stands in to the one it names. Code under `#[cfg(test)]` may name what it likes.

use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Modules that anyone may use, and that use only `flow` and each other.
const LEAVES: &[&str] = &["backoff", "clock", "expr", "objects", "payload", "telemetry", "units"];

/// What each other module may use besides itself and the leaves. `lib` and `main` are the files of these names.
const MAY_USE: &[(&str, &[&str])] = &[
    ("main", &["cli", "embed"]),
    ("lib", &[]),
    ("cli", &["embed", "runtime", "topology", "connectors", "translators", "broker", "checkpoint", "flow"]),
    ("embed", &["runtime", "topology", "connectors", "translators", "broker", "flow"]),
    ("runtime", &["checkpoint", "topology", "flow"]),
    ("checkpoint", &["flow"]),
    ("topology", &["flow"]),
    ("broker", &["flow"]),
    ("connectors", &["flow"]),
    ("translators", &["flow"]),
    ("flow", &[]),
];

/// Connectors that stand on another one.
const CONNECTOR_ON: &[(&str, &str)] = &[("delta", "parquet")];

/// Crates that only some files may name: a path below `src`, or a folder that ends with a slash.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("serde_yaml", &["topology/document.rs"]),
    ("actix", &["runtime/", "embed.rs"]),
    ("actix_rt", &[]),
    ("actix_web", &["telemetry/http.rs"]),
];

#[test]
fn imports_go_the_allowed_ways() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&source, &source, &mut files);
    assert!(files.len() > 20, "only {} files found below {}", files.len(), source.display());
    let problems = problems(&files);
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// A path below `src`, with slashes, and the text.
type File = (String, String);

fn collect(source: &Path, folder: &Path, files: &mut Vec<File>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(source, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(source).expect("below src").to_string_lossy().replace('\\', "/");
            files.push((name, fs::read_to_string(&path).expect("utf-8")));
        }
    }
    files.sort();
}

/// Every forbidden edge, a sentence each.
fn problems(files: &[File]) -> Vec<String> {
    let codes: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), without_tests(&code_only(text)))).collect();
    let tests: Vec<_> =
        codes.iter().flat_map(|(name, code)| code.test_modules.iter().map(|m| below(name, m))).collect();
    let mut problems = Vec::new();
    for (name, code) in &codes {
        if tests.iter().any(|test| *name == format!("{test}.rs") || name.starts_with(&format!("{test}/"))) {
            continue;
        }
        for (line, edge) in edges(name, &code.code) {
            if let Err(why) = allowed(name, &edge) {
                problems.push(format!("src/{name}:{line} names `{edge}`: {why}"));
            }
        }
        for &(dependency, places) in ONLY_IN {
            if places.iter().any(|place| name == place || (place.ends_with('/') && name.starts_with(place))) {
                continue;
            }
            for (at, _) in words(&code.code).filter(|(_, word)| *word == dependency) {
                let line = line_of(&code.code, at);
                let places = if places.is_empty() { "nothing".to_owned() } else { places.join(" and ") };
                problems.push(format!("src/{name}:{line} names `{dependency}`: only {places} may"));
            }
        }
    }
    problems
}

/// The path of the child module `module` of the file `name`, without an extension.
fn below(name: &str, module: &str) -> String {
    let parent = name.trim_end_matches(".rs").trim_end_matches("mod").trim_end_matches('/');
    if matches!(parent, "lib" | "main") { module.to_owned() } else { format!("{parent}/{module}") }
}

/// The modules a file is in, outermost first: `connectors/amqp/link.rs` is `connectors`, `amqp`, `link`.
fn modules(name: &str) -> Vec<&str> {
    let mut modules: Vec<_> = name.trim_end_matches(".rs").split('/').collect();
    if modules.len() > 1 && modules.last() == Some(&"mod") {
        modules.pop();
    }
    modules
}

/// Whether the file `name` may name the path `edge`, which starts at the crate's root.
fn allowed(name: &str, edge: &str) -> Result<(), String> {
    let from = modules(name);
    let to: Vec<_> = edge.split("::").collect();
    let (&from_top, &to_top) = (from.first().expect("a module"), to.first().expect("a module"));
    if from_top == to_top {
        return match (from_top, from.get(1), to.get(1)) {
            ("connectors", Some(a), Some(b)) if a != b && !CONNECTOR_ON.contains(&(a, b)) => {
                Err(format!("connectors do not use each other, but {a} ▶ {b} is such an edge"))
            }
            _ => Ok(()),
        };
    }
    let known = |module| LEAVES.contains(&module) || MAY_USE.iter().any(|(known, _)| *known == module);
    for module in [from_top, to_top] {
        if !known(module) {
            return Err(format!(
                "the table in tests/it/layout.rs does not have the module {module}; say there who may use it"
            ));
        }
    }
    let uses = MAY_USE.iter().find(|(module, _)| *module == from_top).map_or(&["flow"][..], |(_, uses)| uses);
    // `flow` uses nothing of ours, leaves included.
    let leaf = LEAVES.contains(&to_top) && from_top != "flow";
    if leaf || uses.contains(&to_top) {
        return Ok(());
    }
    let mut may = uses.join(", ");
    if from_top != "flow" {
        write!(may, "{}the leaves", if may.is_empty() { "" } else { " and " }).expect("a string takes everything");
    }
    let may = if may.is_empty() { "nothing of ours" } else { &may };
    Err(format!("{from_top} ▶ {to_top} is a forbidden edge; {from_top} may use {may}"))
}

/// The paths in `code` that start at the crate's root, as `module::…`, with the line each is on.
fn edges(name: &str, code: &str) -> Vec<(usize, String)> {
    let depth = if matches!(name, "lib.rs" | "main.rs") { 0 } else { modules(name).len() };
    let mut edges = Vec::new();
    for (at, word) in words(code) {
        let rest = &code[at + word.len()..];
        let rest = match word {
            "crate" => rest,
            "distributary" if name == "main.rs" => rest,
            "super" if !code[..at].trim_end().ends_with("::") => match above(rest, depth) {
                Some(rest) => rest,
                None => continue,
            },
            _ => continue,
        };
        let Some(rest) = rest.trim_start().strip_prefix("::") else { continue };
        edges.extend(heads(rest, 2).into_iter().map(|edge| (line_of(code, at), edge)));
    }
    edges
}

/// What follows a chain of `super` (the first one read already) that reaches the root from this depth.
fn above(mut rest: &str, depth: usize) -> Option<&str> {
    let mut supers = 1;
    while supers < depth {
        rest = rest.trim_start().strip_prefix("::")?.trim_start().strip_prefix("super")?;
        supers += 1;
    }
    (depth > 0).then_some(rest)
}

/// The first `levels` names of each path of a tree like `a::{b, c::d}`.
fn heads(tree: &str, levels: usize) -> Vec<String> {
    let tree = tree.trim_start();
    if let Some(group) = tree.strip_prefix('{') {
        return members(group).into_iter().flat_map(|member| heads(member, levels)).collect();
    }
    let end = tree.find(|c: char| !is_word(c)).unwrap_or(tree.len());
    let (name, rest) = tree.split_at(end);
    if name.is_empty() {
        return Vec::new();
    }
    let below = (levels > 1).then(|| rest.trim_start().strip_prefix("::")).flatten();
    let below = below.map(|rest| heads(rest, levels - 1)).unwrap_or_default();
    if below.is_empty() {
        return vec![name.to_owned()];
    }
    below.into_iter().map(|below| format!("{name}::{below}")).collect()
}

/// The members of a brace group whose opening brace has been read.
fn members(group: &str) -> Vec<&str> {
    let (mut members, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' if depth == 0 => {
                members.push(&group[start..at]);
                start = at + 1;
            }
            '}' => {
                members.push(&group[start..at]);
                break;
            }
            _ => {}
        }
    }
    members
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.split(|c| !is_word(c))
        .filter(|word| !word.is_empty())
        .map(|word| (word.as_ptr() as usize - code.as_ptr() as usize, word))
}

fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

/// The text with comments, strings and characters blanked out; the lines stay.
fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let before = code.chars().next_back().is_some_and(is_word);
        let skipped = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => comment(rest),
            '"' => string(rest),
            'r' | 'b' | 'c' if !before => prefixed(rest),
            '\'' => character(rest),
            _ => 0,
        };
        if skipped == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            code.extend(rest[..skipped].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[skipped..];
        }
    }
    code
}

/// The length of a block comment, which may hold others.
fn comment(rest: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if rest[at..].starts_with("*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// The length of a string, from its quote.
fn string(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The length of a raw, byte or C string or a byte, from its prefix; 0 if it is none.
fn prefixed(rest: &str) -> usize {
    let letters = rest.find(|c| !matches!(c, 'r' | 'b' | 'c')).unwrap_or(rest.len());
    let (prefix, quoted) = rest.split_at(letters);
    let hashes = quoted.len() - quoted.trim_start_matches('#').len();
    let inner = &quoted[hashes..];
    match prefix {
        "r" | "br" | "cr" if inner.starts_with('"') => {
            let end = format!("\"{}", "#".repeat(hashes));
            letters + hashes + 1 + inner[1..].find(&end).map_or(inner.len() - 1, |at| at + end.len())
        }
        "b" | "c" if hashes == 0 && inner.starts_with('"') => letters + string(inner),
        "b" if inner.starts_with('\'') => letters + character(inner),
        _ => 0,
    }
}

/// The length of a character, from its quote; 0 if it is a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => chars.skip(1).find(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 1),
        Some(_) => chars.next().filter(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 1),
        None => 0,
    }
}

/// Code without what stands under `#[cfg(test)]`.
struct Code {
    code: String,
    /// Modules of that kind that are files of their own.
    test_modules: Vec<String>,
}

fn without_tests(code: &str) -> Code {
    const MARK: &str = "#[cfg(test)]";
    let mut out = Code { code: String::with_capacity(code.len()), test_modules: Vec::new() };
    let mut rest = code;
    while let Some(at) = rest.find(MARK) {
        out.code.push_str(&rest[..at]);
        let item = &rest[at..];
        let end = item_end(item);
        let head: Vec<_> = words(&item[MARK.len()..end]).map(|(_, word)| word).collect();
        if let Some(at) = head.iter().position(|&word| word == "mod")
            && item[..end].ends_with(';')
        {
            out.test_modules.extend(head.get(at + 1).map(|&module| module.to_owned()));
        }
        out.code.extend(item[..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &item[end..];
    }
    out.code.push_str(rest);
    out
}

/// Where an item ends: after its first `;` or `,` outside, or its first closing brace back at the outside.
fn item_end(item: &str) -> usize {
    let mut depth = 0;
    for (at, c) in item.char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth -= 1;
                if depth < 0 {
                    return at;
                }
                if depth == 0 && c == '}' {
                    return at + 1;
                }
            }
            ';' | ',' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    item.len()
}

#[cfg(test)]
mod of_the_test {
    use super::*;

    fn found(name: &str, text: &str) -> Vec<String> {
        problems(&[(name.to_owned(), text.to_owned())])
    }

    #[test]
    fn a_forbidden_edge_is_a_sentence_with_file_line_and_edge() {
        assert_eq!(
            found("runtime/sink.rs", "//! Doc.\nuse crate::flow::Sink;\nuse crate::connectors::delta;\n"),
            ["src/runtime/sink.rs:3 names `connectors::delta`: runtime ▶ connectors is a forbidden edge; \
              runtime may use checkpoint, topology, flow and the leaves"]
        );
        assert_eq!(
            found("flow/id.rs", "use crate::clock;"),
            ["src/flow/id.rs:1 names `clock`: flow ▶ clock is a forbidden edge; flow may use nothing of ours"]
        );
    }

    #[test]
    fn every_way_to_write_it_is_seen() {
        for text in [
            "use crate::{clock, runtime::Run};",
            "use crate::{\n    clock,\n    runtime::{Run, message},\n};",
            "fn f() { crate::runtime::run() }",
            "fn f() -> Vec<crate :: runtime :: Run> {}",
            "macro_rules! m { () => { $crate::runtime::run() } }",
            "pub use super::super::runtime;",
            "use super::super::{runtime as r};",
        ] {
            let problems = found("connectors/amqp.rs", text);
            assert!(!problems.is_empty(), "{text}");
            assert!(problems.iter().all(|problem| problem.contains("connectors ▶ runtime")), "{text}: {problems:?}");
        }
        assert_eq!(found("main.rs", "fn main() { distributary::runtime::run() }").len(), 1);
    }

    #[test]
    fn what_is_allowed_is_not_complained_about() {
        for (name, text) in [
            ("runtime/mod.rs", "use crate::{checkpoint::Ledger, flow::{Sink, Source}, topology, telemetry};"),
            ("connectors/mod.rs", "use crate::connectors::{amqp, delta};"),
            (
                "connectors/delta/mod.rs",
                "use crate::connectors::parquet::Writer; use super::parquet; use super::super::flow;",
            ),
            ("connectors/amqp/link.rs", "use super::{Link, super_link}; use crate::connectors::amqp::columns;"),
            ("telemetry/http.rs", "use actix_web::web; use super::metrics; use crate::clock;"),
            ("embed.rs", "use actix::System; use crate::runtime;"),
            ("topology/document.rs", "use serde_yaml::Value;"),
            ("main.rs", "fn main() { distributary::cli::main(distributary::embed::registry()) }"),
            ("flow/a.rs", "pub(crate) struct A; fn f<'a>(c: char) { c == '\"' || c == '\\'' || c == 'x'; }"),
        ] {
            assert_eq!(found(name, text), [""; 0], "{name}");
        }
    }

    #[test]
    fn connectors_and_crates_have_their_places() {
        assert!(found("connectors/amqp/mod.rs", "use crate::connectors::delta;")[0].contains("amqp ▶ delta"));
        assert!(found("connectors/parquet.rs", "use super::super::connectors::delta;")[0].contains("parquet ▶ delta"));
        assert!(found("topology/check.rs", "let v: serde_yaml::Value;")[0].contains("only topology/document.rs may"));
        assert_eq!(found("connectors/amqp/mod.rs", "use actix::Actor;\nuse actix_web::web;").len(), 2);
        assert!(found("surprise.rs", "use crate::flow::Sink;")[0].contains("does not have the module surprise"));
    }

    #[test]
    fn comments_strings_and_tests_are_not_code() {
        for text in [
            "// use crate::runtime;\n/* crate::runtime /* crate::cli */ crate::runtime */",
            "const A: &str = \"crate::runtime \\\" crate::cli\"; const B: &str = r#\"\"crate::cli\"#;",
            "const C: &[u8] = b\"crate::cli\"; const D: u8 = b'\\''; // '\"' crate::cli",
            "#[cfg(test)]\nuse crate::runtime;\n",
            "#[cfg(test)]\nmod tests {\n    use crate::{runtime, cli};\n    fn f() { if true {} }\n}\n",
            "struct A { #[cfg(test)] a: crate::runtime::A, }",
        ] {
            assert_eq!(found("flow/a.rs", text), [""; 0], "{text}");
        }
        let after = found("flow/a.rs", "#[cfg(test)]\nmod tests { use crate::cli; }\nuse crate::runtime;\n");
        assert!(after.len() == 1 && after[0].starts_with("src/flow/a.rs:3 "), "{after:?}");
    }

    #[test]
    fn test_modules_in_files_of_their_own_are_tests_too() {
        let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let files = [
            file("flow/mod.rs", "#[cfg(test)]\nmod tests;"),
            file("flow/tests.rs", "use crate::runtime;"),
            file("flow/id.rs", "#[cfg(test)]\nmod tests;"),
            file("flow/id/tests.rs", "use crate::runtime;"),
            file("flow/seen/tests.rs", "use crate::runtime;"),
        ];
        let problems = problems(&files);
        assert!(problems.len() == 1 && problems[0].starts_with("src/flow/seen/tests.rs:1 "), "{problems:?}");
    }
}
