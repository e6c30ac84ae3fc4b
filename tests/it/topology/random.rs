//! Any text at all is a topology or a list of placed problems: never a panic.

use proptest::prelude::*;

use super::*;

/// What random texts are made of.
const PIECES: [&str; 48] = [
    "topology",
    "receivers",
    "sinks",
    "lake",
    "orders",
    "from",
    "type",
    "queue",
    ":",
    ": ",
    "\n",
    "\n  ",
    "\n\t",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "- ",
    "? ",
    "&a ",
    "*a",
    "<<: ",
    "!x ",
    "!!str ",
    "'",
    "\"",
    "|",
    ">",
    "#",
    " #",
    "%",
    "@",
    "\\",
    "---",
    "\n---\n",
    "...",
    "${A}",
    "${SECRET}",
    "${B:-x}",
    "${file:/f}",
    "$$",
    "${",
    "~",
    "1e999",
    "-0",
    "\u{feff}",
    "é\u{0}\u{2028}",
];

/// A change to a text: where (in thousandths), how much of it goes, and what comes instead.
type Change = (u16, u8, Vec<usize>);

fn changed(text: &str, changes: &[Change]) -> String {
    let mut text: Vec<char> = text.chars().collect();
    for (at, gone, pieces) in changes {
        let at = usize::from(*at) * text.len() / 1000;
        let end = (at + usize::from(*gone)).min(text.len());
        text.splice(at..end, pieces.iter().flat_map(|&piece| PIECES[piece].chars()));
    }
    text.into_iter().collect()
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = (0..=1000u16, 0..12u8, prop::collection::vec(0..PIECES.len(), 0..4));
    prop::collection::vec(change, 1..5)
}

fn holds(yaml: &str) -> Result<(), TestCaseError> {
    let given = given([("SECRET", "hunter22"), ("A", "5"), ("/f", "hunter22")]);
    let Err(problems) = load(yaml, "t.yaml", &given, &kinds::registry()) else { return Ok(()) };
    prop_assert!(problems.iter().count() > 0);
    let lines =
        u32::try_from(yaml.chars().filter(|c| matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')).count())
            .expect("a short text");
    for problem in &problems {
        prop_assert!((1..=lines + 2).contains(&problem.line) && problem.column >= 1, "{}\n{}", problem, yaml);
        prop_assert!(!problem.message.is_empty() && !problem.message.contains('\n'), "{:?}\n{}", problem, yaml);
        prop_assert!(!problem.message.contains("hunter22"), "{}\n{}", problem, yaml);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(1_500),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever the text: a topology, or problems with places; never a panic, never a secret.
    #[test]
    fn a_changed_topology_is_checked_or_explained(changes in changes()) {
        holds(&changed(ORDERS, &changes))?;
    }

    #[test]
    fn a_random_text_is_checked_or_explained(pieces in prop::collection::vec(0..PIECES.len(), 0..60), text in ".{0,20}") {
        let yaml: String = pieces.iter().map(|&piece| PIECES[piece]).chain([&*text]).collect();
        holds(&yaml)?;
    }
}
