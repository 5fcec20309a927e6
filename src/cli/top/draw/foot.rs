//! The last line: what is typed or asked, else what was said, else keys.

use ratatui::layout::Position;
use ratatui::style::{Color, Modifier, Style};
use swarm_actors::top::{Answer, Area, Edit, Group, Machine, Mode, Request, TABLE, Typing};

use super::super::super::render::escape;
use super::pen::Pen;

pub fn draw(machine: &Machine, pen: &mut Pen<'_>, area: Area) -> Option<Position> {
    match machine.mode() {
        Mode::List => {
            said(machine, pen, area);
            None
        }
        Mode::Help(_) => {
            pen.put(area, 0, "j k or page-up page-down: more  any other key: back", Style::new());
            None
        }
        Mode::Filter(_) => Some(typed(pen, area, "filter: ", machine.filter())),
        Mode::Type(typing, edit) => Some(typed(pen, area, &before(typing), edit.text())),
        Mode::Ask(question) => {
            let bold = Style::new().add_modifier(Modifier::BOLD);
            pen.put(area, 0, &escape(&question.text()), bold);
            None
        }
        Mode::Answer(request) => answer(pen, area, request),
    }
}

fn before(typing: &Typing) -> String {
    match typing {
        Typing::Line(targets) => match targets.as_slice() {
            [(id, _)] => format!("type into {}: ", escape(&id.name)),
            many => format!("type into {} workers: ", many.len()),
        },
        Typing::Keys((id, _)) => format!("keys for {} (Escape, Down, Enter, 1): ", escape(&id.name)),
        Typing::Context((id, _)) => {
            format!("for the agent of {}: ", escape(id.name.rsplit('/').next().unwrap_or_default()))
        }
        Typing::Command => "swarm ".to_owned(),
    }
}

/// Shows the end of what is typed, and returns where the cursor is.
fn typed(pen: &mut Pen<'_>, area: Area, before: &str, text: &str) -> Position {
    let columns = usize::from(area.columns);
    // A narrow terminal shows what is typed, and no more.
    let before = if pen.width(before) + 10 < columns { before } else { "" };
    let end = pen.put(area, 0, before, Style::new().add_modifier(Modifier::BOLD));
    let end = if before.is_empty() { 0 } else { end };
    let text = pen.shown(&escape(text)).into_owned();
    let place = columns.saturating_sub(usize::from(end) + 1);
    let mut rest = text.as_str();
    while pen.width(rest) > place {
        let mut chars = rest.chars();
        chars.next();
        rest = chars.as_str();
    }
    let end = if rest.is_empty() { end } else { pen.put(area, usize::from(end), rest, Style::new()) };
    Position { x: area.x + end.min(area.columns.saturating_sub(1)), y: area.y }
}

fn answer(pen: &mut Pen<'_>, area: Area, request: &Request) -> Option<Position> {
    if !request.is_shown {
        let has_place = pen.buffer.area.height > 2;
        pen.put(area, 0, if has_place { "reading the request" } else { "too small" }, Style::new());
        return None;
    }
    match &request.answer {
        Answer::Question(_) => Some(typed(pen, area, "answer (enter sends, esc leaves): ", text(&request.edit))),
        Answer::Permission(_) | Answer::Window | Answer::Words(_) => {
            let bold = Style::new().add_modifier(Modifier::BOLD);
            pen.put(area, 0, "y approve  n deny  esc back  up down more", bold);
            None
        }
    }
}

fn text(edit: &Edit) -> &str {
    edit.text()
}

fn said(machine: &Machine, pen: &mut Pen<'_>, area: Area) {
    if let Some(message) = machine.message() {
        let style = Style::new().add_modifier(Modifier::BOLD);
        let style = if message.is_refusal { pen.colour(style.fg(Color::Red)) } else { style };
        let text =
            if message.is_refusal { format!("! {}", escape(&message.text)) } else { escape(&message.text).into() };
        pen.put(area, 0, &text, style);
    } else if let Some(words) = machine.under_way() {
        pen.put(area, 0, &format!("running: swarm {}", escape(&words.join(" "))), Style::new());
    } else if machine.layout().head.is_empty() {
        pen.put(area, 0, &super::totals(machine), Style::new());
    } else {
        keys(machine, pen, area);
    }
}

/// Shows the keys that have a word, as many as there is place for; the last two always.
fn keys(machine: &Machine, pen: &mut Pen<'_>, area: Area) {
    let has = |group: Group| group != Group::Act || !machine.is_read_only();
    let bound = TABLE.iter().filter(|binding| has(binding.group));
    let mut parts: Vec<String> =
        bound.filter_map(|binding| Some(format!("{} {}", binding.keys.first()?, binding.foot?))).collect();
    let width = |parts: &[String]| parts.iter().map(|part| part.len() + 2).sum::<usize>();
    while parts.len() > 2 && width(&parts) > usize::from(area.columns) + 2 {
        parts.remove(parts.len() - 3);
    }
    pen.put(area, 0, &parts.join("  "), Style::new().add_modifier(Modifier::DIM));
}
