//! Recognition of dialogs of agents: menus and questions that take keys instead of text. Text that is typed into one
//! answers it, so nothing may be typed while one is shown. Pure.
//!
//! A dialog is recognised by its structure: choices below each other with a cursor at one of them, and below the choices
//! only their descriptions and the keys that they take. Text that an agent prints has its input line below it.

/// What a dialog is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whether to trust the directory.
    Trust,
    Login,
    /// The colours of the program.
    Theme,
    /// Whether to install a new version.
    Update,
    Permission,
    /// Any other choice.
    Choice,
}

/// A dialog that a screen shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialog {
    pub kind: Kind,
    /// The question, as it is shown. May be empty.
    pub title: String,
    /// The choices, as they are shown, if the cursor is visible as text.
    pub choices: Vec<String>,
}

impl Dialog {
    /// Returns what the agent does, as a predicate: `asks for permission`.
    pub fn asks(&self) -> &'static str {
        match self.kind {
            Kind::Trust => "asks whether to trust this directory",
            Kind::Login => "asks how to log in",
            Kind::Theme => "asks for a colour theme",
            Kind::Update => "asks whether to update",
            Kind::Permission => "asks for permission",
            Kind::Choice => "asks for a choice",
        }
    }

    /// Reports whether the agent cannot start working before the dialog is answered.
    pub fn blocks_start(&self) -> bool {
        match self.kind {
            Kind::Trust | Kind::Login | Kind::Theme | Kind::Update => true,
            Kind::Permission | Kind::Choice => false,
        }
    }

    /// Returns [`Dialog::asks`] with the question, where that says more.
    pub fn sentence(&self) -> String {
        match self.kind {
            Kind::Permission | Kind::Choice if !self.title.is_empty() => format!("{} ({})", self.asks(), self.title),
            _ => self.asks().to_owned(),
        }
    }
}

/// Marks in front of the selected choice. Agents mark their input line in the same way.
const CURSORS: [char; 3] = ['❯', '›', '>'];
/// Mark in front of the selected choice inside a frame. Outside of one it is the mark of an answer.
const FRAMED_CURSOR: char = '●';
/// Keys that dialogs name, in lower case.
const KEYS: [&str; 6] = ["enter", "esc", "↑/↓", "↑↓", "⇆", "arrow"];
/// What the keys do, in lower case.
const DEEDS: [&str; 14] = [
    "confirm", "select", "save", "submit", "continue", "cancel", "back", "go", "exit", "close", "reject", "dismiss",
    "skip", "navigate",
];
/// Words of dialogs, in lower case. The first kind that fits counts.
const WORDS: [(Kind, &[&str]); 5] = [
    (Kind::Theme, &["choose the text style", "select theme"]),
    (Kind::Trust, &["trust this folder", "trust the files", "one you trust", "trust the contents", "trust folder"]),
    (Kind::Login, &["select login method", "sign in with", "to authenticate", "log in", "login"]),
    (Kind::Update, &["update available", "update now"]),
    (
        Kind::Permission,
        &["do you want to", "would you like to", "allow ", "permission required", "don't ask again", "(y/n)"],
    ),
];
/// Words of screens that take a login code or a key as text, in lower case.
const ENTRIES: [&str; 4] =
    ["paste code here", "enter gemini api key", "finish signing in", "waiting for authentication"];
/// Number of rows above the choices that belong to a dialog.
const ABOVE_MAX: usize = 12;
/// Length from which a drawn line separates the dialog from what is above it.
const RULE_MIN: usize = 20;

/// Separates words that do not belong together.
const GAP: &str = "  ";

/// A line of the screen without frames.
#[derive(Debug)]
struct Row {
    /// Column of the first character.
    column: usize,
    /// Empty for a drawn line.
    text: String,
    framed: bool,
}

impl Row {
    /// Returns the mark at the start of the row, and the text behind it with its column.
    fn marked(&self) -> Option<(char, usize, &str)> {
        let mark = self.text.chars().next()?;
        let is_cursor = CURSORS.contains(&mark) || (mark == FRAMED_CURSOR && self.framed);
        let rest = self.text.strip_prefix(mark).filter(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        let rest = rest.filter(|_| is_cursor)?;
        // The choice in effect has a tick.
        let text = rest.trim_start().trim_start_matches(['✔', '✓']).trim_start();
        Some((mark, self.column + self.text.chars().count() - text.chars().count(), text))
    }

    /// Reports whether the row names keys that answer a dialog.
    fn keys(&self) -> usize {
        let text = self.text.to_lowercase();
        let words: Vec<&str> = text.split([' ', '(', ')', ',', '·', '•']).filter(|word| !word.is_empty()).collect();
        let deed = |at: usize| words.get(at).is_some_and(|word| DEEDS.contains(word));
        let names = |at: &usize| {
            let next = if words.get(at + 1) == Some(&"keys") { at + 1 } else { *at };
            KEYS.contains(&words[*at]) && (deed(next + 1) || (words.get(next + 1) == Some(&"to") && deed(next + 2)))
        };
        (0..words.len()).filter(names).count()
    }

    /// Returns the column of the last words that a gap separates from those before.
    fn last_group(&self) -> usize {
        self.column + self.text.rfind(GAP).map_or(0, |at| self.text[..at].chars().count() + GAP.len())
    }

    /// Reports whether the row is the prompt of a shell.
    fn is_shell(&self) -> bool {
        self.text.ends_with(['$', '#', '%']) || self.text.starts_with("$ ")
    }
}

/// Returns the dialog that a screen shows.
pub fn dialog(screen: &str) -> Option<Dialog> {
    let rows: Vec<Row> = screen.lines().filter_map(row).collect();
    menu(&rows).or_else(|| entry(&rows)).or_else(|| bar(&rows))
}

/// Message of claude whose key or login was refused.
const LOGGED_OUT: &str = "Please run /login · API Error";

/// Returns why the agent on this screen cannot work: a dialog of its start, or that it is not logged in.
pub fn obstacle(screen: &str) -> Option<String> {
    if let Some(dialog) = dialog(screen) {
        return dialog.blocks_start().then(|| dialog.asks().to_owned());
    }
    let rows: Vec<Row> = screen.lines().filter_map(row).collect();
    let says = |row: &Row| match row.text.strip_prefix(['●', '⏺']) {
        Some(said) => said.trim_start().starts_with(LOGGED_OUT),
        None => row.text.starts_with('⎿') && row.text.to_lowercase().contains("please run /login"),
    };
    let at = rows.iter().rposition(says)?;
    let goes_on = rows[at + 1..].iter().any(|row| row.text.starts_with(['●', '⏺', '⎿']));
    (!goes_on).then(|| "is not logged in".to_owned())
}

/// Returns a line without frames; `None` for a blank one.
fn row(line: &str) -> Option<Row> {
    let (mut text, mut column, mut framed) = (line.trim_end(), 0, false);
    loop {
        let inner = text.trim_start();
        column += text.chars().count() - inner.chars().count();
        let Some(rest) = inner.strip_prefix(['│', '┃']) else {
            text = inner;
            break;
        };
        (text, column, framed) = (rest.trim_end().trim_end_matches(['│', '┃']).trim_end(), column + 1, true);
    }
    let drawn = text.chars().filter(|c| ('\u{2500}'..='\u{259f}').contains(c) && !"╌┄".contains(*c)).count();
    if text.is_empty() || text.chars().all(|c| ('\u{2500}'..='\u{259f}').contains(&c) || c == ' ') && drawn < RULE_MIN {
        return None;
    }
    let text = if drawn >= RULE_MIN && drawn == text.chars().count() { String::new() } else { text.to_owned() };
    Some(Row { column, text, framed })
}

/// Returns the number of a numbered choice.
fn number(text: &str) -> Option<u32> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let rest = text[digits..].strip_prefix(['.', ')'])?;
    rest.starts_with(char::is_whitespace).then(|| text[..digits].parse().ok())?
}

/// Returns the menu whose cursor is the last mark of the screen.
fn menu(rows: &[Row]) -> Option<Dialog> {
    let at = rows.iter().rposition(|row| row.marked().is_some())?;
    let (mark, column, text) = rows[at].marked()?;
    let own = number(text);
    let choices = match own {
        Some(own) => numbered(rows, at, column, own),
        None => listed(rows, at, column),
    };
    let (first, last) = (*choices.first()?, *choices.last()?);
    if first == last || (own.is_none() && mark == '>') {
        return None;
    }
    let rest = &rows[last + 1..];
    let has_keys = rest.iter().any(|row| row.keys() > 0) && !rest.last().is_some_and(Row::is_shell);
    // A menu in a frame may have a line about the agent's state below the frame.
    let is_below = |row: &Row| rows[at].framed && !row.framed;
    let is_last = rest.iter().all(|row| row.text.is_empty() || row.column > column || is_below(row));
    let region = region(rows, first, mark);
    let kind = kind(rows[region..].iter());
    let is_menu = has_keys || (own.is_some() && mark != '>' && is_last) || kind == Kind::Theme;
    let shown = |at: &usize| rows[*at].marked().map_or(rows[*at].text.as_str(), |(_, _, text)| text).to_owned();
    let choices = choices.iter().map(shown).collect();
    is_menu.then(|| Dialog { kind, title: title(&rows[region..first]), choices })
}

/// Returns the rows of the choices with consecutive numbers in this column, of which row `at` has number `own`.
fn numbered(rows: &[Row], at: usize, column: usize, own: u32) -> Vec<usize> {
    let numbered = |at: &usize, wanted: u32| rows[*at].column == column && number(&rows[*at].text) == Some(wanted);
    let mut choices = vec![at];
    let mut wanted = own;
    for other in (at.saturating_sub(2 * ABOVE_MAX)..at).rev() {
        if wanted > 1 && numbered(&other, wanted - 1) {
            wanted -= 1;
            choices.insert(0, other);
        }
    }
    wanted = own;
    for other in at + 1..rows.len() {
        if numbered(&other, wanted + 1) {
            wanted += 1;
            choices.push(other);
        }
    }
    choices
}

/// Returns the rows of the choices without numbers, which are next to each other in this column.
fn listed(rows: &[Row], at: usize, column: usize) -> Vec<usize> {
    let is_choice = |row: &&Row| row.column == column && row.marked().is_none() && !row.text.is_empty();
    let above = rows[..at].iter().rev().take_while(is_choice).count();
    let below = rows[at + 1..].iter().take_while(is_choice).count();
    (at - above..=at + below).collect()
}

/// Returns where the dialog with these choices begins.
fn region(rows: &[Row], first: usize, mark: char) -> usize {
    let ends = |row: &Row| row.text.is_empty() || row.text.starts_with([mark, '•', '●', '⏺', '✦']);
    first - rows[..first].iter().rev().take(ABOVE_MAX).take_while(|row| !ends(row)).count()
}

fn kind<'a>(rows: impl Iterator<Item = &'a Row>) -> Kind {
    let text = rows.map(|row| row.text.to_lowercase()).collect::<Vec<_>>().join(" ");
    let fits = |words: &&[&str]| words.iter().any(|words| text.contains(words));
    WORDS.iter().find(|(_, words)| fits(words)).map_or(Kind::Choice, |(kind, _)| *kind)
}

/// Returns the last question of these rows, otherwise the row next to the choices.
fn title(rows: &[Row]) -> String {
    let is_drawn = |row: &Row| row.text.contains(|c| ('\u{2500}'..='\u{25ff}').contains(&c));
    let rows: Vec<&Row> = rows.iter().filter(|row| !is_drawn(row)).collect();
    let question = rows.iter().rev().find(|row| row.text.ends_with('?')).or(rows.last());
    question.map(|row| row.text.clone()).unwrap_or_default()
}

/// Returns a screen that takes a login as text.
fn entry(rows: &[Row]) -> Option<Dialog> {
    let names = |row: &Row| ENTRIES.iter().any(|words| row.text.to_lowercase().starts_with(words));
    let at = rows.iter().rposition(names)?;
    let rest = &rows[at..];
    let is_entry = rest.iter().any(|row| row.keys() > 0) && rest.iter().all(|row| row.marked().is_none());
    is_entry.then(|| Dialog { kind: Kind::Login, title: rows[at].text.clone(), choices: Vec::new() })
}

/// Returns a dialog beside a bar, whose last row names the keys; its cursor is a colour. In a wide window, other text is
/// to the right of the dialog, and may go on below the keys.
fn bar(rows: &[Row]) -> Option<Dialog> {
    let keys = rows.iter().rposition(|row| row.framed && row.keys() >= 2)?;
    let side = rows[keys].last_group();
    if rows[keys + 1..].iter().any(|row| !row.text.is_empty() && row.column <= side) {
        return None;
    }
    let first = keys - rows[..keys].iter().rev().take_while(|row| row.framed).count();
    // Messages above have a bar, too.
    let first = rows[first..keys].iter().rposition(|row| row.text.starts_with('△')).map_or(first, |at| first + at);
    let dialog = &rows[first..=keys];
    let title = dialog.first().and_then(|row| row.text.split(GAP).next()).unwrap_or_default().to_owned();
    Some(Dialog { kind: kind(dialog.iter()), title, choices: Vec::new() })
}

#[cfg(test)]
#[path = "dialog_tests.rs"]
mod tests;
