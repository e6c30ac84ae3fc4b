//! Text for a terminal: paragraphs on lines that are not too long.

use crate::topology::filled;

/// Lines are no longer than this.
pub(super) const WIDTH: usize = 100;

/// A paragraph on as many lines as it takes, each so far to the right.
pub(super) fn wrapped(text: &str, indent: usize) -> String {
    filled(text, WIDTH - indent).iter().map(|line| format!("{:indent$}{line}\n", "")).collect()
}

/// Rows of cells below each other, the last cell as long as it likes.
pub(super) fn columns(rows: &[Vec<String>], indent: usize) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|at| width(at).unwrap_or_default()).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths.iter().copied()).map(|(cell, width)| format!("{cell:width$}"));
        let line = Vec::from_iter(cells).join("  ");
        text.push_str(&format!("{:indent$}{}\n", "", line.trim_end()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kept_whole_and_lines_short() {
        let text = wrapped(&"word ".repeat(60), 4);
        assert!(text.lines().all(|line| line.len() <= WIDTH && line.starts_with("    word")), "{text}");
        assert_eq!(text.split_whitespace().count(), 60);
        assert_eq!(wrapped("", 4), "");
        let long = "x".repeat(200);
        assert_eq!(wrapped(&long, 2), format!("  {long}\n"));
    }

    #[test]
    fn cells_stand_below_each_other() {
        let row = |cells: &[&str]| cells.iter().map(|&cell| cell.to_owned()).collect::<Vec<_>>();
        assert_eq!(columns(&[row(&["a", "", "x y"]), row(&["long", "é"])], 1), " a        x y\n long  é\n");
    }
}
