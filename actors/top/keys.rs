//! The table of keys. Help, the foot line and the manual are made from it, and no key has two meanings.

use std::fmt;

/// A key, as terminals tell them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Char(char),
    Ctrl(char),
    Enter,
    Escape,
    Tab,
    BackTab,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Backspace,
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Char(' ') => out.write_str("space"),
            Self::Char(c) => write!(out, "{c}"),
            Self::Ctrl(c) => write!(out, "Ctrl-{}", c.to_ascii_uppercase()),
            Self::Enter => out.write_str("enter"),
            Self::Escape => out.write_str("esc"),
            Self::Tab => out.write_str("tab"),
            Self::BackTab => out.write_str("shift-tab"),
            Self::Up => out.write_str("up"),
            Self::Down => out.write_str("down"),
            Self::Left => out.write_str("left"),
            Self::Right => out.write_str("right"),
            Self::PageUp => out.write_str("page-up"),
            Self::PageDown => out.write_str("page-down"),
            Self::Home => out.write_str("home"),
            Self::End => out.write_str("end"),
            Self::Backspace => out.write_str("backspace"),
        }
    }
}

/// Meaning of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    Down,
    Up,
    First,
    Last,
    HalfDown,
    HalfUp,
    PageDown,
    PageUp,
    NextNeed,
    NextList,
    PreviousList,
    Filter,
    Show,
    Sort,
    Reverse,
    Freeze,
    Mark,
    MarkAll,
    NextView,
    PreviousView,
    Screen,
    Log,
    Diff,
    Session,
    History,
    Explain,
    Again,
    Full,
    TextDown,
    TextUp,
    TextPageDown,
    TextPageUp,
    TextRight,
    TextLeft,
    Attach,
    Answer,
    Type,
    Press,
    Interrupt,
    Stop,
    Respawn,
    Land,
    Spawn,
    Command,
    Help,
    Suspend,
    Back,
    Quit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Move,
    List,
    Detail,
    Act,
    Program,
}

impl Group {
    pub const ALL: [Self; 5] = [Self::Move, Self::List, Self::Detail, Self::Act, Self::Program];

    pub fn title(self) -> &'static str {
        match self {
            Self::Move => "Move",
            Self::List => "List",
            Self::Detail => "Detail",
            Self::Act => "Act on what is marked, else on what is selected",
            Self::Program => "Program",
        }
    }
}

/// Keys of an action.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    pub keys: &'static [Key],
    pub action: Action,
    pub group: Group,
    pub help: &'static str,
    /// Word in the foot line. `None`: not there.
    pub foot: Option<&'static str>,
}

const fn bind(group: Group, action: Action, keys: &'static [Key], help: &'static str) -> Binding {
    Binding { keys, action, group, help, foot: None }
}

const fn foot(group: Group, action: Action, keys: &'static [Key], help: &'static str, foot: &'static str) -> Binding {
    Binding { keys, action, group, help, foot: Some(foot) }
}

use Action as A;
use Group as G;
use Key::{Char, Ctrl};

pub const TABLE: &[Binding] = &[
    foot(G::Act, A::Attach, &[Key::Enter], "attach to the window, and return when you leave it", "attach"),
    foot(G::Act, A::Answer, &[Char('a')], "show in full what is asked; then y or n, or type the answer", "answer"),
    foot(G::Act, A::Type, &[Char('t')], "type a line into the window, or for the agent of a workstream", "type"),
    bind(G::Act, A::Press, &[Char('p')], "press keys in the window, such as Escape or 1"),
    bind(G::Act, A::Interrupt, &[Char('i')], "send Ctrl-C"),
    foot(G::Act, A::Stop, &[Char('x')], "stop a worker, a run or a flow (asks first)", "stop"),
    foot(G::Act, A::Respawn, &[Char('r')], "start again; resume a run, retry a workstream, run a flow", "respawn"),
    foot(G::Act, A::Land, &[Char('m')], "add the work to the merge queue", "merge"),
    bind(G::Act, A::Spawn, &[Char('n')], "start a worker: type the words of 'swarm spawn'"),
    foot(G::Act, A::Command, &[Char(':')], "run any verb: type its words", "command"),
    foot(G::List, A::Mark, &[Char(' ')], "mark or unmark", "mark"),
    bind(G::List, A::MarkAll, &[Char('*')], "mark all that are listed, or unmark them"),
    foot(
        G::List,
        A::Filter,
        &[Char('/')],
        "filter by words; !word must not be there; state:, tag:, name: narrow",
        "filter",
    ),
    bind(G::List, A::Show, &[Char('F')], "show all, those that need you, at work, failed, ended"),
    bind(G::List, A::Sort, &[Char('S')], "sort by need, name, age, state"),
    bind(G::List, A::Reverse, &[Char('O')], "reverse the order"),
    bind(G::List, A::Freeze, &[Char('f')], "freeze the order, or let it follow again"),
    bind(G::List, A::NextList, &[Char(']')], "next list: workers, runs, flows, merge queues, requests"),
    bind(G::List, A::PreviousList, &[Char('[')], "previous list"),
    bind(G::Move, A::Down, &[Char('j'), Key::Down], "next row"),
    bind(G::Move, A::Up, &[Char('k'), Key::Up], "previous row"),
    bind(G::Move, A::First, &[Char('g'), Key::Home], "first row"),
    bind(G::Move, A::Last, &[Char('G'), Key::End], "last row"),
    bind(G::Move, A::HalfDown, &[Ctrl('d')], "half a page down"),
    bind(G::Move, A::HalfUp, &[Ctrl('u')], "half a page up"),
    bind(G::Move, A::PageDown, &[Key::PageDown], "a page down"),
    bind(G::Move, A::PageUp, &[Key::PageUp], "a page up"),
    bind(G::Move, A::NextNeed, &[Char('w')], "next that needs you"),
    bind(G::Detail, A::NextView, &[Key::Tab], "next view"),
    bind(G::Detail, A::PreviousView, &[Key::BackTab], "previous view"),
    bind(G::Detail, A::Screen, &[Char('1')], "screen of the window"),
    bind(G::Detail, A::Log, &[Char('l'), Char('2')], "log"),
    foot(G::Detail, A::Diff, &[Char('d'), Char('3')], "what it changed", "diff"),
    bind(G::Detail, A::Session, &[Char('4')], "session"),
    bind(G::Detail, A::History, &[Char('h'), Char('5')], "starts and ends"),
    bind(G::Detail, A::Explain, &[Char('e'), Char('6')], "why it is as it is, and what to do"),
    bind(G::Detail, A::Again, &[Char('R')], "read it again"),
    bind(G::Detail, A::Full, &[Char('z')], "give the detail the whole screen, or not"),
    bind(G::Detail, A::TextDown, &[Char('J')], "text: a line down"),
    bind(G::Detail, A::TextUp, &[Char('K')], "text: a line up"),
    bind(G::Detail, A::TextPageDown, &[Char('}')], "text: a page down"),
    bind(G::Detail, A::TextPageUp, &[Char('{')], "text: a page up"),
    bind(G::Detail, A::TextRight, &[Key::Right], "text: to the right"),
    bind(G::Detail, A::TextLeft, &[Key::Left], "text: to the left"),
    foot(G::Program, A::Help, &[Char('?')], "this help", "help"),
    foot(G::Program, A::Quit, &[Char('q'), Ctrl('c')], "leave", "leave"),
    bind(G::Program, A::Back, &[Key::Escape], "close a message, a filter or the full screen"),
    bind(G::Program, A::Suspend, &[Ctrl('z')], "stop this program; 'fg' continues it"),
];

/// Returns what a key means.
pub fn action_of(key: Key) -> Option<Action> {
    TABLE.iter().find(|binding| binding.keys.contains(&key)).map(|binding| binding.action)
}

/// Returns the keys of a binding, as help names them.
pub fn shown(binding: &Binding) -> String {
    binding.keys.iter().map(Key::to_string).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_key_and_no_action_has_two_meanings() {
        let keys: Vec<Key> = TABLE.iter().flat_map(|binding| binding.keys.iter().copied()).collect();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
        let actions: BTreeSet<Action> = TABLE.iter().map(|binding| binding.action).collect();
        assert_eq!(actions.len(), TABLE.len());
        assert!(TABLE.iter().all(|binding| !binding.keys.is_empty() && !binding.help.is_empty()));
    }

    #[test]
    fn keys_are_the_usual_ones() {
        let usual = [
            (Key::Char('j'), A::Down),
            (Key::Down, A::Down),
            (Key::Char('/'), A::Filter),
            (Key::Char('?'), A::Help),
            (Key::Ctrl('c'), A::Quit),
            (Key::Enter, A::Attach),
            (Key::Char('x'), A::Stop),
            (Key::Char('w'), A::NextNeed),
        ];
        for (key, action) in usual {
            assert_eq!(action_of(key), Some(action), "{key}");
        }
        // In a dialog these are its answers, so that none of them is an act in the list.
        assert_eq!((action_of(Key::Char('y')), action_of(Key::Char('Y'))), (None, None));
    }

    #[test]
    fn names_of_keys_are_plain_words() {
        let all: Vec<String> = TABLE.iter().map(shown).collect();
        assert!(all.iter().all(|keys| keys.is_ascii()), "{all:?}");
        assert!(all.contains(&"j down".to_owned()) && all.contains(&"q Ctrl-C".to_owned()), "{all:?}");
    }
}
