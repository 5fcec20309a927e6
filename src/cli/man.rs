//! `swarm man`: manual pages, generated from the texts of `--help` and the table of exit codes.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

use clap::{Arg, Args, Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use serde_json::json;
use swarm_model::{Refusal, RefusalKind, nearest};

use super::args::Cli;
use super::error::Failure;
use super::groups::GROUPS;
use super::json;
use super::screen::Screen;

const EXIT_CODES: &str = include_str!("../../docs/exit-codes.md");
const ENVIRONMENT: [(&str, &str); 6] = [
    ("SWARM_DIR", "State directory (default ~/.swarm)."),
    ("SWARM_HOST", "Hosts on which verbs are executed, as with --host."),
    ("SWARM_LOG", "Log level of supervisor.log."),
    ("SWARM_LOG_MAX_BYTES", "Size in bytes at which the log of a worker is rotated."),
    ("SWARM_HOOKS", "off: agents get no hooks; on: agents that are shell scripts get hooks, too."),
    ("NO_COLOR", "If set, no colours on a terminal."),
];

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
        let remedy = near.map_or_else(
            || "run 'swarm --help' to list all verbs".to_owned(),
            |near| format!("did you mean '{near}'?"),
        );
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
    let top = documented(top);
    let mut page = Page::new(&top);
    let usage = top.clone().override_usage("swarm VERB [OPTIONS]");
    page.add(&rendered(|out| man(&usage).render_synopsis_section(out)));
    let mut verbs = section("VERBS");
    for (heading, names) in GROUPS {
        verbs.control("SS", [heading]);
        for verb in names.iter().filter_map(|name| top.find_subcommand(name)) {
            tagged(&mut verbs, &[bold(format!("swarm-{}", verb.get_name())), roman("(1)")], &about(verb));
        }
    }
    page.add(&verbs.render());
    page.add(&rendered(|out| man(&top).render_options_section(out)));
    page.add(&general_codes().render());
    let mut environment = section("ENVIRONMENT");
    for (name, about) in ENVIRONMENT {
        tagged(&mut environment, &[bold(name)], about);
    }
    page.add(&environment.render());
    page.examples(&top);
    page.text()
}

fn page(verb: &Command) -> String {
    let verb = documented(verb);
    let mut page = Page::new(&verb);
    page.add(&rendered(|out| man(&with_usage(&verb)).render_synopsis_section(out)));
    page.add(&rendered(|out| man(&verb).render_options_section(out)));
    if shown(&verb).next().is_some() {
        page.add(&section("ACTIONS").render());
    }
    for action in shown(&verb).map(documented) {
        page.add(&Roff::new().control("SS", [action.get_name()]).render());
        page.add_below(&rendered(|out| man(&with_usage(&action)).render_synopsis_section(out)));
        page.add(&Roff::new().control("PP", []).render());
        page.add_below(&rendered(|out| man(&action).render_description_section(out)));
        page.add_below(&rendered(|out| man(&action).render_options_section(out)));
        page.add(&verbatim(&action).render());
    }
    page.add(&codes_of(verb.get_name()).render());
    page.examples(&verb);
    page.add(&section("SEE ALSO").text([bold("swarm"), roman("(1)")]).render());
    page.text()
}

/// A page in the making.
struct Page(String);

impl Page {
    fn new(command: &Command) -> Self {
        let title = rendered(|out| man(command).render_title(out));
        let mut page = Self(title);
        page.add(&rendered(|out| man(command).render_name_section(out)));
        page
    }

    /// Appends rendered text. Each has its own preamble, which a page needs once.
    fn add(&mut self, text: &str) {
        self.0.push_str(text.strip_prefix(&Roff::new().render()).unwrap_or(text));
    }

    /// Appends a rendered section without its heading.
    fn add_below(&mut self, text: &str) {
        if let Some((_, body)) = text.split_once(".SH ").and_then(|(_, section)| section.split_once('\n')) {
            self.0.push_str(body);
        }
    }

    /// Appends the text below the help: examples and notes.
    fn examples(&mut self, command: &Command) {
        if command.get_after_help().is_some() {
            self.add(&section("EXAMPLES").render());
            self.add(&verbatim(command).render());
        }
    }

    /// Returns the page in ASCII, so that every formatter prints it in every encoding.
    fn text(self) -> String {
        let mut text = String::with_capacity(self.0.len());
        for c in self.0.chars() {
            match c.is_ascii() {
                true => text.push(c),
                false => write!(text, "\\[u{:04X}]", u32::from(c)).expect("writing to a string cannot fail"),
            }
        }
        text
    }
}

fn man(command: &Command) -> Man {
    let title = command.get_display_name().unwrap_or("swarm").to_uppercase();
    let man = Man::new(command.clone()).title(title).source(concat!("swarm ", env!("CARGO_PKG_VERSION")));
    // `roff` does not quote empty arguments: without a date, the next argument would take its place.
    man.date("\"\"").manual("swarm")
}

fn rendered(render: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> String {
    let mut text = Vec::new();
    render(&mut text).expect("writing to memory cannot fail");
    String::from_utf8(text).expect("what is rendered from text is text")
}

/// Returns the command as pages show it: each would list `--help` again.
fn documented(command: &Command) -> Command {
    let is_help = |arg: &Arg| arg.get_id() == "help";
    command.clone().mut_args(|arg| if is_help(&arg) { arg.hide(true) } else { arg })
}

/// Sets the usage that `--help` shows: one that is derived from the arguments would list every option.
fn with_usage(command: &Command) -> Command {
    let usage = command.clone().render_usage().to_string();
    command.clone().override_usage(usage.trim_start_matches("Usage:").trim().to_owned())
}

fn section(title: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    roff
}

fn tagged(roff: &mut Roff, tag: &[Inline], body: &str) {
    roff.control("TP", []).text(tag).text([roman(body)]);
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn verbatim(command: &Command) -> Roff {
    let mut roff = Roff::new();
    if let Some(after) = command.get_after_help() {
        let after = after.to_string();
        let lines = after.lines().filter(|line| !matches!(*line, "Examples:" | "Example:"));
        let text = lines.collect::<Vec<_>>().join("\n");
        roff.control("PP", []).control("nf", []).text([roman(text)]).control("fi", []);
    }
    roff
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

fn general_codes() -> Roff {
    let mut codes = section("EXIT STATUS");
    for row in rows(EXIT_CODES) {
        if let [code, meaning] = row.as_slice()
            && code.parse::<u8>().is_ok()
        {
            tagged(&mut codes, &[roman(code)], meaning);
        }
    }
    codes
}

/// Returns the meaning of the exit codes of a verb, for each of its actions that the table lists.
fn codes_of(verb: &str) -> Roff {
    let mut codes = section("EXIT STATUS");
    let is_of = |part: &str| part.split_whitespace().next() == Some(verb);
    let mut listed = rows(EXIT_CODES).filter(|row| row.len() == 4 && row[0].split(',').any(is_of)).peekable();
    if listed.peek().is_none() {
        codes.text([roman("0 on success, 1 on failure with the cause on standard error, 2 on wrong usage.")]);
    }
    for row in listed {
        for (code, meaning) in row[1..].iter().enumerate().filter(|(_, meaning)| !meaning.is_empty()) {
            tagged(&mut codes, &[roman(format!("{code} ({})", row[0]))], meaning);
        }
    }
    codes
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
            assert_eq!(text.matches(&Roff::new().render()).count(), 1, "{name}: {text}");
            assert!(
                text.contains("\n.TH SWARM") && text.contains(" 1 \"\" \"swarm ") && text.contains("\n.SH EXAMPLES\n"),
                "{name}"
            );
            assert!(text.contains("\n.SH \"EXIT STATUS\"\n.TP\n0") || text.contains("0 on success"), "{name}");
            assert!(text.is_ascii() && !text.contains("\nPrint help"), "{name}");
        }
        let spawn = &pages.iter().find(|(name, _)| name == "swarm-spawn.1").expect("there").1;
        assert!(spawn.contains(".TP\n\\fB\\-\\-restart\\fR \\fI<POLICY>\\fR"), "{spawn}");
        for text in ["\nWhen to restart", "\nnever\n", "\non\\-failure\n", "\nalways\n"] {
            assert!(spawn.contains(text), "{text}: {spawn}");
        }
        assert!(spawn.contains("\n.SH SYNOPSIS\n\\fBswarm spawn\\fR \\-\\-name <NAME>"), "{spawn}");
        let merge = &pages.iter().find(|(name, _)| name == "swarm-merge.1").expect("there").1;
        assert!(merge.contains("\n.SS add\n\\fBswarm merge add\\fR "), "{merge}");
        let swarm = &pages[0].1;
        for (heading, verbs) in GROUPS {
            let heading = if heading.contains(' ') { format!("\"{heading}\"") } else { heading.to_owned() };
            assert!(swarm.contains(&format!("\n.SS {heading}\n.TP\n\\fBswarm\\-{}\\fR(1)\n", verbs[0])), "{swarm}");
        }
    }

    #[test]
    fn the_codes_of_a_verb_are_those_of_the_table() {
        let codes = codes_of("status").to_roff();
        assert!(codes.contains("0 (status NAME)\nit runs") && codes.contains("2 (status NAME)\nnobody"), "{codes}");
        assert!(codes_of("clean").to_roff().contains("1 (kill, clean, respawn)"));
        assert!(general_codes().to_roff().contains("141\nwhoever read the output closed it (swarm logs x | head)"));
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
        let after = Command::new("x").after_help("Examples:\n.so a\\b\n'x…\n\n  y --z");
        let mut page = Page(String::new());
        page.examples(&after);
        let text = page.text();
        assert_eq!(text, ".SH EXAMPLES\n.PP\n.nf\n\\&.so a\\\\b\n\\*(Aqx\\[u2026]\n\n  y \\-\\-z\n.fi\n");
    }
}
