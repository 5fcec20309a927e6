//! Text in an area, cut at its edge.

use std::borrow::Cow;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Span;
use swarm_actors::top::Area;

use super::Face;

pub struct Pen<'a> {
    pub buffer: &'a mut Buffer,
    pub face: Face,
}

impl Pen<'_> {
    /// Writes text in the first line of an area, from a column on. Returns the column behind it.
    pub fn put(&mut self, area: Area, at: usize, text: &str, style: Style) -> u16 {
        self.put_cut(area, at, usize::MAX, text, style)
    }

    /// Writes text of at most `width` columns. A mark tells that some is left out.
    pub fn put_cut(&mut self, area: Area, at: usize, width: usize, text: &str, style: Style) -> u16 {
        let at = u16::try_from(at).unwrap_or(u16::MAX);
        if at >= area.columns || area.rows == 0 {
            return area.columns;
        }
        let width = width.min(usize::from(area.columns - at));
        let text = self.shown(text);
        let has_place = self.width(&text) <= width;
        let (x, y) = (area.x + at, area.y);
        if has_place || width == 0 {
            return self.buffer.set_stringn(x, y, text, width, style).0 - area.x;
        }
        let (end, _) = self.buffer.set_stringn(x, y, text, width - 1, style);
        let mark = if self.face.unicode { "…" } else { "~" };
        self.buffer.set_stringn(end, y, mark, 1, style).0 - area.x
    }

    /// Gives all cells of an area a style.
    pub fn fill(&mut self, area: Area, style: Style) {
        self.buffer.set_style(Rect::new(area.x, area.y, area.columns, area.rows), style);
    }

    pub fn width(&self, text: &str) -> usize {
        Span::raw(text).width()
    }

    /// Returns a style without its colours if none are wanted.
    pub fn colour(&self, style: Style) -> Style {
        if self.face.colour { style } else { Style { fg: None, bg: None, ..style } }
    }

    /// Writes a line in reverse video, as a title.
    pub fn title(&mut self, area: Area, text: &str) {
        let style = Style::new().add_modifier(Modifier::REVERSED);
        self.fill(area, style);
        self.put(area, 1, text, style);
    }

    /// Returns text that the terminal can show.
    pub fn shown<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.face.unicode || text.is_ascii() {
            return Cow::Borrowed(text);
        }
        text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect::<String>().into()
    }
}
