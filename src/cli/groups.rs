//! Groups of verbs, as `swarm --help` and the manual page list them. clap knows only one flat list of subcommands, so
//! the help is a template that is built from the parser: names and descriptions are not repeated here.

use std::fmt::Write as _;

use clap::builder::styling::Styles;
use clap::{Arg, Command, CommandFactory as _};

use super::args::Cli;

/// Headings with their verbs. Every verb is in exactly one group.
pub const GROUPS: [(&str, &[&str]); 7] = [
    ("Runs", &["plan", "run", "ralph"]),
    (
        "Workers",
        &["spawn", "ls", "top", "status", "explain", "wait", "logs", "history", "kill", "respawn", "clean", "recover"],
    ),
    ("Landing", &["diff", "merge", "restore"]),
    ("Agents and sessions", &["peek", "send", "keys", "interrupt", "eof", "attach", "heartbeat", "session"]),
    ("Requests of agents", &["approvals", "approve", "deny", "answer", "rules", "ask"]),
    ("Flows", &["flow"]),
    (
        "System",
        &[
            "init",
            "agents",
            "config",
            "trust",
            "doctor",
            "events",
            "du",
            "hosts",
            "mcp",
            "web",
            "notify",
            "supervisor",
            "completions",
            "man",
        ],
    ),
];

/// Returns the whole command line, whose help lists the verbs in groups.
pub fn command() -> Command {
    let top = Cli::command();
    let template = template(&top);
    top.help_template(template).arg(host())
}

/// Returns the option that chooses other machines. For the help only: [`super::host::take`] takes it out of the command line
/// before that is parsed.
fn host() -> Arg {
    let help = "Machines on which the verb is executed; see 'swarm hosts' [env: SWARM_HOST]";
    Arg::new("host").long("host").value_name("HOST[,HOST]").help(help)
}

fn template(top: &Command) -> String {
    let styles = Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let width = top.get_subcommands().map(|verb| verb.get_name().len()).max().unwrap_or_default();
    let mut text = "{before-help}{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (heading, verbs) in GROUPS {
        let _ = writeln!(text, "\n{header}{heading}:{header:#}");
        for verb in verbs.iter().filter_map(|verb| top.find_subcommand(verb)) {
            let (name, about) = (verb.get_name(), verb.get_about().map(ToString::to_string).unwrap_or_default());
            let _ = writeln!(text, "  {literal}{name}{literal:#}{:1$}  {about}", "", width - name.len());
        }
    }
    let _ = write!(text, "\n{header}Options:{header:#}\n{{options}}{{after-help}}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_is_in_exactly_one_group() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, verbs)| verbs.iter().copied()).collect();
        let top = Cli::command();
        let verbs: Vec<&str> = top.get_subcommands().map(Command::get_name).collect();
        assert_eq!(grouped, verbs, "in the order of the parser");
        grouped.sort_unstable();
        grouped.dedup();
        assert_eq!(grouped.len(), verbs.len());
    }

    #[test]
    fn every_line_of_the_list_fits_a_terminal_of_80_columns() {
        let help = command().term_width(80).render_help().to_string();
        let list = help.split("Options:").next().expect("a list");
        assert!(list.lines().all(|line| line.chars().count() <= 80), "{list}");
    }
}
