//! Fits tables to narrow terminals: shortens the least important columns, so that each worker stays on one line. Names
//! are never shortened, and nothing is shortened in a pipe.

/// Columns that may be shortened, in this order. Paths and windows keep their end, which distinguishes them.
const CUT: [(&str, Keep); 5] = [
    ("WORKTREE", Keep::End),
    ("TAG", Keep::Start),
    ("WINDOW", Keep::End),
    ("PID/WINDOW", Keep::End),
    ("STATE", Keep::Start),
];
/// Minimum width of a shortened cell, in characters.
const CELL_CHARS_MIN: usize = 8;
/// Blanks between two columns.
const GAP_CHARS: usize = 2;

#[derive(Clone, Copy)]
enum Keep {
    Start,
    End,
}

/// Shortens cells until the table is at most `columns` wide. The first row is the header.
pub fn to_width(rows: &mut [Vec<String>], columns: Option<u16>) {
    let (Some(columns), Some(head)) = (columns, rows.first().cloned()) else { return };
    let wide = |rows: &[Vec<String>], at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let whole: usize = (0..head.len()).map(|at| wide(rows, at)).sum::<usize>() + GAP_CHARS * (head.len() - 1);
    let mut over = whole.saturating_sub(usize::from(columns));
    for (name, keep) in CUT {
        let Some(at) = head.iter().position(|cell| cell == name).filter(|_| over > 0) else { continue };
        let now = wide(rows, at);
        let least = CELL_CHARS_MIN.max(name.len()).min(now);
        let then = now.saturating_sub(over).max(least);
        for row in rows.iter_mut().skip(1) {
            row[at] = cut(&row[at], then, keep);
        }
        over -= now - then;
    }
}

fn cut(cell: &str, chars: usize, keep: Keep) -> String {
    let count = cell.chars().count();
    if count <= chars {
        return cell.to_owned();
    }
    match keep {
        Keep::Start => cell.chars().take(chars - 1).chain(['…']).collect(),
        Keep::End => std::iter::once('…').chain(cell.chars().skip(count - (chars - 1))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(columns: Option<u16>) -> Vec<Vec<String>> {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let mut rows = vec![
            row(["NAME", "STATE", "WORKTREE", "TAG"]),
            row(["a-name-that-is-long", "running", "/home/me/project-worktrees/fix", "nightly,release"]),
        ];
        to_width(&mut rows, columns);
        rows
    }

    #[test]
    fn rows_that_fit_are_unchanged() {
        assert_eq!(fitted(None), fitted(Some(200)));
        assert_eq!(fitted(Some(77)), fitted(None));
    }

    #[test]
    fn paths_lose_their_beginning_and_tags_their_end_but_names_nothing() {
        assert_eq!(fitted(Some(70))[1][2], "…/project-worktrees/fix");
        let narrow = &fitted(Some(50))[1];
        assert_eq!(narrow[2..], ["…ees/fix".to_owned(), "nightly,r…".to_owned()]);
        assert_eq!(fitted(Some(10))[1][..2], ["a-name-that-is-long".to_owned(), "running".to_owned()]);
    }
}
