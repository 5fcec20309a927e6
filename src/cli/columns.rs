//! Fits tables to narrow terminals: shortens the least important columns, or leaves them out, so that each worker stays
//! on one line. Names are never shortened, and nothing is shortened in a pipe.

/// Columns that may be shortened, in this order. Paths and windows keep their end, which distinguishes them.
const CUT: [(&str, Keep); 6] = [
    ("WHAT", Keep::Start),
    ("WORKTREE", Keep::End),
    ("TAG", Keep::Start),
    ("WINDOW", Keep::End),
    ("PID/WINDOW", Keep::End),
    ("STATE", Keep::Start),
];
/// Columns that are left out, in this order, if the shortened table is still too wide.
const DROPPED: [&str; 6] = ["WORKTREE", "TAG", "WINDOW", "RESTARTS", "PID/WINDOW", "PID"];
/// Minimum width of a shortened cell, in characters.
const CELL_CHARS_MIN: usize = 8;
/// Blanks between two columns.
const GAP_CHARS: usize = 2;

#[derive(Clone, Copy)]
enum Keep {
    Start,
    End,
}

/// Makes the table at most `columns` wide, if the remaining columns permit: leaves out columns without any content, then
/// shortens cells, then leaves out columns. The first row is the header.
pub fn to_width(rows: &mut [Vec<String>], columns: Option<u16>) {
    let Some(columns) = columns.map(usize::from) else { return };
    let is_empty =
        |rows: &[Vec<String>], at: usize| rows.iter().skip(1).all(|row| matches!(row[at].as_str(), "-" | "0"));
    for name in DROPPED {
        let at = rows.first().and_then(|head| head.iter().position(|cell| cell == name));
        if let Some(at) = at.filter(|at| whole(rows) > columns && is_empty(rows, *at)) {
            drop_column(rows, at);
        }
    }
    shorten(rows, columns);
    for name in DROPPED {
        let at = rows.first().and_then(|head| head.iter().position(|cell| cell == name));
        if let Some(at) = at.filter(|_| whole(rows) > columns) {
            drop_column(rows, at);
        }
    }
}

/// Returns the width of the table.
fn whole(rows: &[Vec<String>]) -> usize {
    let count = rows.first().map_or(0, Vec::len);
    (0..count).map(|at| wide(rows, at)).sum::<usize>() + GAP_CHARS * count.saturating_sub(1)
}

fn wide(rows: &[Vec<String>], at: usize) -> usize {
    rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0)
}

fn drop_column(rows: &mut [Vec<String>], at: usize) {
    rows.iter_mut().for_each(|row| drop(row.remove(at)));
}

/// Shortens cells until the table is at most `columns` wide.
fn shorten(rows: &mut [Vec<String>], columns: usize) {
    let Some(head) = rows.first().cloned() else { return };
    let mut over = whole(rows).saturating_sub(columns);
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
    }

    #[test]
    fn columns_are_left_out_if_short_cells_do_not_suffice() {
        let kept = |columns| fitted(Some(columns))[1].clone();
        assert_eq!(kept(48), ["a-name-that-is-long", "running", "…ees/fix", "nightly…"]);
        assert_eq!(kept(47), ["a-name-that-is-long", "running", "nightly…"]);
        assert_eq!(kept(10), ["a-name-that-is-long", "running"]);
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let mut rows = vec![row(["NAME", "STATUS", "WORKTREE", "TAG"]), row(["fix", "running", "/w/fix", "-"])];
        to_width(&mut rows, Some(23));
        assert_eq!(rows[1], ["fix", "running", "/w/fix"], "an empty column goes first");
    }
}
