//! `swarm man`: manual pages, generated from the texts of `--help` and the table of exit codes.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Arg, Args, Command, CommandFactory as _};
use serde_json::json;
use swarm_model::{Refusal, RefusalKind, nearest};

use super::args::Cli;
use super::error::Failure;
use super::groups::GROUPS;
use super::json;
use super::screen::Screen;

const EXIT_CODES: &str = include_str!("../../docs/exit-codes.md");

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Verb to document [default: swarm itself]
    #[arg(conflicts_with = "dir")]
    pub verb: Option<String>,
    /// Write all pages to this directory, which is created if missing
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, requires = "dir")]
    pub json: bool,
}

pub fn run(args: &ManArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let mut top = Cli::command();
    top.build();
    if let Some(dir) = &args.dir {
        let pages = pages(&top);
        let failed =
            |path: &std::path::Path, error| Failure::system(format!("cannot write {}", path.display()), &error);
        std::fs::create_dir_all(dir).map_err(|error| failed(dir, error))?;
        for (name, text) in &pages {
            let path = dir.join(name);
            std::fs::write(&path, text).map_err(|error| failed(&path, error))?;
        }
        let names: Vec<&String> = pages.iter().map(|(name, _)| name).collect();
        return match args.json {
            true => json::print(screen, "swarm.man/1", &json!({"dir": dir, "pages": names})).map(|()| 0),
            false => screen.line(&format!("wrote {} pages to {}", pages.len(), dir.display())).map(|()| 0),
        };
    }
    let Some(verb) = &args.verb else { return screen.bytes(overview(&top).as_bytes()).map(|()| 0) };
    let Some(command) = top.get_subcommands().find(|command| command.get_name() == verb) else {
        let refusal = Refusal::new(RefusalKind::NotFound, format!("verb '{verb}' not found"));
        let near = nearest(verb, top.get_subcommands().map(Command::get_name));
        let remedy =
            near.map_or_else(|| "run 'swarm --help' for a list".to_owned(), |near| format!("did you mean '{near}'?"));
        return Err(refusal.remedy(remedy).into());
    };
    screen.bytes(page(command).as_bytes()).map(|()| 0)
}

/// Returns each page with its file name.
fn pages(top: &Command) -> Vec<(String, String)> {
    let verbs = shown(top).map(|verb| (format!("swarm-{}.1", verb.get_name()), page(verb)));
    std::iter::once(("swarm.1".to_owned(), overview(top))).chain(verbs).collect()
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|action| !action.is_hide_set() && action.get_name() != "help")
}

fn overview(top: &Command) -> String {
    let mut text = head("SWARM", "swarm", &about(top));
    section(&mut text, "SYNOPSIS", "\\fBswarm\\fR \\fIVERB\\fR [\\fIOPTIONS\\fR]\n");
    let mut verbs = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(verbs, ".SS {heading}");
        for verb in names.iter().filter_map(|name| top.find_subcommand(name)) {
            tagged(&mut verbs, &format!("\\fBswarm\\-{}\\fR(1)", escape(verb.get_name())), &about(verb));
        }
    }
    section(&mut text, "VERBS", &verbs);
    section(&mut text, "EXIT STATUS", &general_codes());
    let environment = [
        ("SWARM_DIR", "State directory (default ~/.swarm)."),
        ("SWARM_LOG", "Log level of supervisor.log."),
        ("SWARM_LOG_MAX_BYTES", "Size in bytes at which the log of a worker is rotated."),
        ("SWARM_HOOKS", "off: agents get no hooks; on: agents that are shell scripts get hooks, too."),
        ("NO_COLOR", "If set, no colours on a terminal."),
    ];
    let mut variables = String::new();
    environment.iter().for_each(|(name, about)| tagged(&mut variables, &format!("\\fB{name}\\fR"), about));
    section(&mut text, "ENVIRONMENT", &variables);
    after(&mut text, top);
    text
}

fn page(verb: &Command) -> String {
    let name = format!("swarm-{}", verb.get_name());
    let mut text = head(&name.to_uppercase(), &name, &about(verb));
    section(&mut text, "SYNOPSIS", &usage(verb));
    section(&mut text, "OPTIONS", &options(verb));
    let mut actions = String::new();
    for action in shown(verb) {
        let _ = writeln!(actions, ".SS {}", escape(action.get_name()));
        let _ = writeln!(actions, "{}.PP\n{}", usage(action), escape(&about(action)));
        actions.push_str(&options(action));
        verbatim(&mut actions, action);
    }
    section(&mut text, "ACTIONS", &actions);
    section(&mut text, "EXIT STATUS", &codes_of(verb.get_name()));
    after(&mut text, verb);
    section(&mut text, "SEE ALSO", "\\fBswarm\\fR(1)\n");
    text
}

fn head(title: &str, name: &str, about: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let (title, name, about) = (escape(title), escape(name), escape(about));
    format!(".TH {title} 1 \"\" \"swarm {version}\" \"swarm\"\n.SH NAME\n{name} \\- {about}\n")
}

/// Appends a section unless its body is empty.
fn section(text: &mut String, title: &str, body: &str) {
    if !body.is_empty() {
        let _ = write!(text, ".SH {title}\n{body}");
    }
}

fn tagged(text: &mut String, tag: &str, body: &str) {
    let _ = writeln!(text, ".TP\n{tag}\n{}", escape(body));
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn usage(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let lines = usage.trim_start_matches("Usage:").lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| format!("{}\n.br\n", escape(line))).collect()
}

fn options(command: &Command) -> String {
    let mut text = String::new();
    let open = |arg: &&Arg| !arg.is_hide_set() && arg.get_id() != "help";
    for arg in command.get_arguments().filter(open) {
        let mut names: Vec<String> = Vec::new();
        names.extend(arg.get_short().map(|short| format!("\\fB\\-{short}\\fR")));
        names.extend(arg.get_long().map(|long| format!("\\fB\\-\\-{}\\fR", escape(long))));
        let mut tag = names.join(", ");
        if arg.is_positional() || arg.get_action().takes_values() {
            let fallback = || arg.get_id().as_str().to_uppercase();
            let value =
                arg.get_value_names().and_then(|names| names.first()).map_or_else(fallback, ToString::to_string);
            let gap = if tag.is_empty() { "" } else { " " };
            let _ = write!(tag, "{gap}\\fI{}\\fR", escape(&value));
        }
        let mut body = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let known: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        if !known.is_empty() && arg.get_action().takes_values() {
            let _ = write!(body, " [{}]", known.join(", "));
        }
        let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        if !default.is_empty() && arg.get_action().takes_values() && !arg.is_hide_default_value_set() {
            let _ = write!(body, " [default: {}]", default.join(" "));
        }
        tagged(&mut text, &tag, body.trim());
    }
    text
}

/// Appends the text below the help: examples and notes.
fn after(text: &mut String, command: &Command) {
    let mut body = String::new();
    verbatim(&mut body, command);
    section(text, "EXAMPLES", &body);
}

fn verbatim(text: &mut String, command: &Command) {
    let Some(after) = command.get_after_help() else { return };
    let after = after.to_string();
    let lines = after.lines().filter(|line| !matches!(*line, "Examples:" | "Example:"));
    let _ = writeln!(text, ".PP\n.nf\n{}\n.fi", lines.map(escape).collect::<Vec<_>>().join("\n"));
}

/// Returns the cells of the rows of all Markdown tables in `text`.
fn rows(text: &str) -> impl Iterator<Item = Vec<String>> {
    let lines = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("|--"));
    lines.map(|line| {
        let line = line.replace("\\|", "\u{1}");
        let cells = line.trim_matches('|').split('|').map(|cell| cell.replace('\u{1}', "|").replace('`', ""));
        cells.map(|cell| cell.trim().to_owned()).collect()
    })
}

fn general_codes() -> String {
    let mut text = String::new();
    for row in rows(EXIT_CODES) {
        if let [code, meaning] = row.as_slice()
            && code.parse::<u8>().is_ok()
        {
            tagged(&mut text, code, meaning);
        }
    }
    text
}

/// Returns the meaning of the exit codes of a verb, for each of its actions that the table lists.
fn codes_of(verb: &str) -> String {
    let mut text = String::new();
    for row in rows(EXIT_CODES).filter(|row| row.len() == 4) {
        let is_of = |part: &str| part.split_whitespace().next() == Some(verb);
        if row[0].split(',').any(is_of) {
            let meanings = row[1..].iter().enumerate().filter(|(_, meaning)| !meaning.is_empty());
            for (code, meaning) in meanings {
                tagged(&mut text, &format!("{code} ({})", escape(&row[0])), meaning);
            }
        }
    }
    if text.is_empty() {
        "0 on success, 1 on failure with the cause on standard error, 2 on wrong usage.\n".into()
    } else {
        text
    }
}

/// Escapes troff requests and non-ASCII characters, so that text is printed literally in every encoding.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\\' => safe.push_str("\\e"),
            '-' => safe.push_str("\\-"),
            c if c.is_ascii() => safe.push(c),
            c => write!(safe, "\\[u{:04X}]", u32::from(c)).expect("writing to a string cannot fail"),
        }
    }
    let guard = |line: &str| if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() };
    safe.lines().map(guard).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_page_with_its_options_and_examples() {
        let mut top = Cli::command();
        top.build();
        let pages = pages(&top);
        assert_eq!(pages.len(), shown(&top).count() + 1);
        for (name, text) in &pages {
            assert!(text.starts_with(".TH SWARM") && text.contains(".SH EXAMPLES"), "{name}");
            assert!(text.contains(".SH EXIT STATUS\n.TP\n0") || text.contains("0 on success"), "{name}");
        }
        let spawn = &pages.iter().find(|(name, _)| name == "swarm-spawn.1").expect("there").1;
        assert!(spawn.contains(".TP\n\\fB\\-\\-restart\\fR \\fIPOLICY\\fR\nWhen to restart"), "{spawn}");
        assert!(spawn.contains("[never, on\\-failure, always]"), "{spawn}");
        let merge = &pages.iter().find(|(name, _)| name == "swarm-merge.1").expect("there").1;
        assert!(merge.contains(".SS add\n"), "{merge}");
    }

    #[test]
    fn the_codes_of_a_verb_are_those_of_the_table() {
        let codes = codes_of("status");
        assert!(codes.contains("0 (status NAME)\nit runs") && codes.contains("2 (status NAME)\nnobody"), "{codes}");
        assert!(codes_of("clean").contains("1 (kill, clean, respawn)"));
        assert!(general_codes().contains("141\nwhoever read the output closed it (swarm logs x | head)"));
    }

    #[test]
    fn the_tables_of_exit_codes_agree_and_list_only_existing_verbs() {
        let codes = |text: &str| -> Vec<String> {
            let first = rows(text).filter(|row| row.len() == 2).map(|row| row[0].clone());
            first.filter(|cell| cell.parse::<u8>().is_ok()).collect()
        };
        let readme = include_str!("../../README.md").split("## Exit codes").nth(1).expect("a section");
        let section = readme.split("\n## ").next().expect("its text");
        assert_eq!(codes(section), codes(EXIT_CODES));
        let verbs: Vec<String> = Cli::command().get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
        for row in rows(EXIT_CODES).filter(|row| row.len() == 4 && row[0] != "verb") {
            for part in row[0].split(", ") {
                let verb = part.split(' ').next().unwrap_or_default();
                assert!(verbs.iter().any(|known| known == verb), "{part}");
            }
        }
    }

    #[test]
    fn text_stays_text() {
        assert_eq!(escape(".so a\\b\n'x…"), "\\&.so a\\eb\n\\&'x\\[u2026]");
    }
}
