//! Text in the input line of an agent that nobody has submitted: a draft of a person, or a task that the agent has put
//! back. Whoever types after it and presses Enter submits it as well. Pure.
//!
//! Only the attributes of the cells tell a text from the placeholder of an empty line, so the screen must be captured with
//! its escape sequences. What cannot be told from a placeholder counts as a text.

/// Signs in front of the input line of claude, the second one in its shell mode.
const CLAUDE: [char; 2] = ['❯', '!'];
/// Signs in front of the input line of gemini and qwen, in their modes.
const GEMINI: [char; 3] = ['>', '*', '!'];
const CODEX: char = '›';
const SHELL: char = '!';
/// Placeholder, in lower case, in the input lines of gemini and qwen.
const PLACEHOLDER: &str = "type your message";
const RULE: char = '─';
/// Lines above and below the input lines of gemini and qwen.
const BARS: [char; 2] = ['▄', RULE];
const BARS_BELOW: [char; 2] = ['▀', RULE];
const RULE_CHARS_MIN: usize = 4;
/// Number of characters of a text that are shown.
const SHOWN_CHARS: usize = 40;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Look {
    bold: bool,
    dim: bool,
    inverse: bool,
}

/// A character on the screen.
#[derive(Clone, Copy, Debug)]
struct Cell {
    sign: char,
    look: Look,
}

/// Returns the text in the input line of claude, codex, gemini or qwen on this screen. `None` if the line is empty or if
/// there is no such line.
pub fn draft(screen: &str) -> Option<String> {
    let rows = rows(screen);
    let text = claude(&rows).or_else(|| codex(&rows)).or_else(|| gemini(&rows))?;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    (!words.is_empty()).then_some(words)
}

/// Returns what an agent with this draft does, as a predicate.
pub fn sentence(draft: &str) -> String {
    let mut shown: String = draft.chars().filter(|c| !c.is_control()).take(SHOWN_CHARS).collect();
    if draft.chars().count() > SHOWN_CHARS {
        shown.push('…');
    }
    format!("has a text in its input line that is not submitted ({shown})")
}

/// Returns the text between the last two rules, the first of which is directly above the sign of claude.
fn claude(rows: &[Vec<Cell>]) -> Option<String> {
    let below = rows.iter().rposition(|row| is_line(row, &[RULE]))?;
    let above = rows[..below].iter().rposition(|row| is_line(row, &[RULE]))?;
    let (first, more) = rows[above + 1..below].split_first()?;
    first.first().filter(|cell| CLAUDE.contains(&cell.sign))?;
    Some(more.iter().fold(typed(&first[1..]), |text, row| text + " " + &typed(row)))
}

fn codex(rows: &[Vec<Cell>]) -> Option<String> {
    let is_input = |row: &&Vec<Cell>| {
        row.first().is_some_and(|cell| cell.sign == CODEX || cell.sign == SHELL && cell.look.bold)
            && row.get(1).is_none_or(|cell| cell.sign.is_whitespace())
    };
    rows.iter().rfind(is_input).map(|row| typed(&row[1..]))
}

fn gemini(rows: &[Vec<Cell>]) -> Option<String> {
    let inner = |row: &[Cell]| -> Option<Vec<Cell>> {
        let row: Vec<Cell> = row.iter().copied().skip_while(|cell| cell.sign.is_whitespace()).collect();
        let is_sign = row.first().is_some_and(|cell| GEMINI.contains(&cell.sign));
        (is_sign && row.get(1).is_none_or(|cell| cell.sign.is_whitespace())).then(|| row[1..].to_vec())
    };
    let below = rows.iter().rposition(|row| is_line(row, &BARS_BELOW))?;
    let at = (1..below).rfind(|at| is_line(&rows[at - 1], &BARS) && inner(&rows[*at]).is_some())?;
    let text = typed(&inner(&rows[at])?);
    let is_empty = text.trim_start().to_lowercase().starts_with(PLACEHOLDER);
    Some(if is_empty { String::new() } else { text })
}

/// Reports whether a row is a drawn line, which may have a name in it.
fn is_line(row: &[Cell], signs: &[char]) -> bool {
    let is_drawn = |cell: &Cell| signs.contains(&cell.sign);
    row.len() >= RULE_CHARS_MIN && row[..RULE_CHARS_MIN].iter().all(is_drawn) && row.last().is_some_and(is_drawn)
}

/// Returns the text of an input line without placeholders, which are dim: except for their first character if the cursor
/// stands on it.
fn typed(row: &[Cell]) -> String {
    let is_blank = |cell: &&Cell| cell.sign.is_whitespace();
    let from = row.iter().take_while(is_blank).count();
    let is_placeholder = row.get(from).is_some_and(|cell| cell.look.inverse)
        && row.get(from + 1).is_some_and(|cell| cell.look.dim)
        && row[from + 1..].iter().all(|cell| cell.look.dim || cell.sign.is_whitespace());
    let cells = row.iter().filter(|cell| !is_placeholder && !cell.look.dim);
    cells.map(|cell| cell.sign).collect()
}

/// Splits a captured screen into its rows. Attributes last beyond the end of a row.
fn rows(screen: &str) -> Vec<Vec<Cell>> {
    let mut look = Look::default();
    let rows = screen.lines().map(|line| {
        let (mut row, mut rest) = (Vec::new(), line);
        while let Some(sign) = rest.chars().next() {
            rest = &rest[sign.len_utf8()..];
            if sign != '\u{1b}' {
                row.push(Cell { sign, look });
            } else if let Some(sequence) = rest.strip_prefix('[') {
                let end = sequence.find(|c: char| ('@'..='~').contains(&c)).unwrap_or(sequence.len());
                if sequence[end..].starts_with('m') {
                    look = changed(look, &sequence[..end]);
                }
                rest = sequence.get(end + 1..).unwrap_or_default();
            } else if let Some(link) = rest.strip_prefix(']') {
                rest = link.split_once("\u{1b}\\").map_or("", |(_, rest)| rest);
            } else {
                rest = rest.get(1..).unwrap_or_default();
            }
        }
        while row.last().is_some_and(|cell: &Cell| cell.sign.is_whitespace()) {
            row.pop();
        }
        row
    });
    rows.collect()
}

/// Returns attributes after a sequence with these numbers. Numbers of colours are skipped.
fn changed(look: Look, numbers: &str) -> Look {
    let mut numbers = numbers.split(';');
    let mut look = look;
    while let Some(number) = numbers.next() {
        match number {
            "" | "0" => look = Look::default(),
            "1" => look.bold = true,
            "2" => look.dim = true,
            "7" => look.inverse = true,
            "22" => (look.bold, look.dim) = (false, false),
            "27" => look.inverse = false,
            "38" | "48" | "58" => {
                let skipped = if numbers.next() == Some("5") { 1 } else { 3 };
                numbers.by_ref().take(skipped).for_each(|_| ());
            }
            _ => {}
        }
    }
    look
}

#[cfg(test)]
#[path = "drafts_tests.rs"]
mod tests;
