//! Where things are on a screen of some size.

/// Fewest rows with which there is a detail below the list.
const DETAIL_ROWS_MIN: u16 = 12;
/// Fewest columns with which list and detail are side by side.
const BESIDE_COLUMNS_MIN: u16 = 120;
/// Widest list beside a detail.
const LIST_COLUMNS_MAX: u16 = 100;
/// Most rows of a list above a detail, as a share of all.
const LIST_SHARE: u16 = 2;

/// A rectangle of cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    pub x: u16,
    pub y: u16,
    pub columns: u16,
    pub rows: u16,
}

impl Area {
    pub fn is_empty(&self) -> bool {
        self.columns == 0 || self.rows == 0
    }
}

/// The areas of a screen. An area without cells is not shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Totals.
    pub head: Area,
    /// Titles of the columns.
    pub titles: Area,
    pub list: Area,
    /// Views of what is selected, with the present one.
    pub views: Area,
    pub detail: Area,
    /// Keys, a message, or a question.
    pub foot: Area,
}

impl Layout {
    /// Returns the areas of a screen. `is_full`: the detail has all of it; `has_detail`: something has one.
    pub fn of(columns: u16, rows: u16, is_full: bool) -> Self {
        let line = |y: u16| Area { x: 0, y, columns, rows: u16::from(y < rows) };
        if rows < 3 || columns < 20 {
            // Either the question, or how many need somebody.
            return Self { foot: line(rows.saturating_sub(1)), ..Self::default() };
        }
        let (head, foot, inner) = (line(0), line(rows - 1), rows - 2);
        let below = |y: u16, rows: u16| Area { x: 0, y, columns, rows };
        if is_full {
            return Self { head, views: line(1), detail: below(2, inner - 1), foot, ..Self::default() };
        }
        if columns >= BESIDE_COLUMNS_MIN && rows >= DETAIL_ROWS_MIN {
            let left = (columns / 2).min(LIST_COLUMNS_MAX);
            let right = columns - left - 1;
            return Self {
                head,
                titles: Area { columns: left, ..line(1) },
                list: Area { columns: left, ..below(2, inner - 1) },
                views: Area { x: left + 1, columns: right, ..line(1) },
                detail: Area { x: left + 1, columns: right, ..below(2, inner - 1) },
                foot,
            };
        }
        let list = if rows < DETAIL_ROWS_MIN { inner - 1 } else { (inner - 1) / LIST_SHARE };
        let after = 2 + list;
        let (views, detail) = match rows {
            DETAIL_ROWS_MIN.. => (line(after), below(after + 1, rows - after - 2)),
            _ => (Area::default(), Area::default()),
        };
        Self { head, titles: line(1), list: below(2, list), views, detail, foot }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_on_the_screen_and_do_not_overlap() {
        for columns in (1..200).chain([300]) {
            for rows in (1..60).chain([100]) {
                for is_full in [false, true] {
                    let layout = Layout::of(columns, rows, is_full);
                    let areas = [layout.head, layout.titles, layout.list, layout.views, layout.detail, layout.foot];
                    let areas: Vec<Area> = areas.into_iter().filter(|area| !area.is_empty()).collect();
                    for (at, one) in areas.iter().enumerate() {
                        assert!(one.x + one.columns <= columns && one.y + one.rows <= rows, "{layout:?}");
                        for other in &areas[at + 1..] {
                            let apart = one.x + one.columns <= other.x
                                || other.x + other.columns <= one.x
                                || one.y + one.rows <= other.y
                                || other.y + other.rows <= one.y;
                            assert!(apart, "{columns}x{rows}: {layout:?}");
                        }
                    }
                    assert!(!layout.foot.is_empty(), "a question can always be asked");
                }
            }
        }
    }

    #[test]
    fn a_usual_terminal_has_a_list_above_a_detail_and_a_wide_one_beside() {
        let usual = Layout::of(80, 24, false);
        assert_eq!((usual.list.rows, usual.views.y, usual.detail.rows), (10, 12, 10));
        let wide = Layout::of(120, 40, false);
        assert_eq!((wide.list.columns, wide.detail.x, wide.detail.columns), (60, 61, 59));
        assert!(Layout::of(40, 10, false).detail.is_empty());
        assert!(Layout::of(300, 100, false).list.columns == 100);
    }
}
