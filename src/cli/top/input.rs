//! Keys and pasted text, as the terminal sends them.

use std::io;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event as Told, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use swarm_actors::top::{Event, Key};

/// Returns what has been typed, without waiting.
///
/// # Errors
/// Fails if the terminal cannot be read.
pub fn take() -> io::Result<Vec<Event>> {
    let mut taken = Vec::new();
    while event::poll(Duration::ZERO)? {
        match event::read()? {
            Told::Key(key) => taken.extend(key_of(key).map(Event::Key)),
            Told::Paste(text) => taken.push(Event::Pasted(text)),
            // The size is asked of the kernel.
            Told::Resize(..) | Told::FocusGained | Told::FocusLost | Told::Mouse(_) => {}
        }
    }
    Ok(taken)
}

fn key_of(key: KeyEvent) -> Option<Key> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let has_control = key.modifiers.contains(KeyModifiers::CONTROL);
    if key.modifiers.contains(KeyModifiers::ALT) {
        return None;
    }
    Some(match key.code {
        KeyCode::Char(c) if has_control => Key::Ctrl(c.to_ascii_lowercase()),
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_terminal_are_those_of_the_table() {
        let key = |code, modifiers| key_of(KeyEvent::new(code, modifiers));
        assert_eq!(key(KeyCode::Char('G'), KeyModifiers::SHIFT), Some(Key::Char('G')));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::Ctrl('c')));
        assert_eq!(key(KeyCode::Char('x'), KeyModifiers::ALT), None, "Alt is no act");
        assert_eq!(key(KeyCode::F(1), KeyModifiers::NONE), None);
    }
}
