//! Shell completion: `swarm completions` prints a script, which runs `swarm __complete SHELL WORD…` at each press of
//! Tab. The last word is the one to complete.
//!
//! The answer has one line per candidate: the text, a tab, a description. A line that begins with a tab names a kind of
//! completion that the shell provides itself (`files`, `directories`, `commands`). Completion never writes anything;
//! names that cannot be read are not offered.

mod live;
mod place;

use std::ffi::OsString;
use std::io::Write as _;

use clap::{Args, CommandFactory as _, ValueEnum};

use self::place::Wanted;
use super::args::Cli;
use super::error::Failure;
use super::parse;
use super::screen::Screen;
use swarm_sys::paths::Paths;

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to print the script for
    #[arg(value_enum)]
    pub shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// One possible completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub text: String,
    /// Short description; may be empty.
    pub about: String,
}

impl Candidate {
    pub fn new(text: impl Into<String>, about: impl Into<String>) -> Self {
        Self { text: text.into(), about: about.into() }
    }
}

pub fn script(args: &CompletionsArgs, screen: &mut Screen) -> Result<u8, Failure> {
    screen.bytes(text_for(args.shell).as_bytes())?;
    Ok(0)
}

/// Returns the completion script for a shell.
pub fn text_for(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => include_str!("bash.sh"),
        Shell::Zsh => include_str!("zsh.sh"),
        Shell::Fish => include_str!("fish.fish"),
    }
}

/// Prints the completions for a shell and returns the exit code. If nothing can be completed, prints nothing.
pub fn main(words: impl Iterator<Item = OsString>) -> u8 {
    let mut words = words.map(|word| word.to_string_lossy().into_owned());
    let shell = words.next().and_then(|word| Shell::from_str(&word, false).ok());
    let mut words: Vec<String> = words.collect();
    if shell == Some(Shell::Bash) {
        words = rejoined(&words);
    }
    let text = answer(&words, shell == Some(Shell::Bash));
    u8::from(std::io::stdout().lock().write_all(text.as_bytes()).is_err())
}

/// Rejoins `--option=value`, which bash splits into three words at the `=`.
fn rejoined(words: &[String]) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    let mut open = false;
    for word in words {
        match joined.last_mut() {
            Some(last) if open => {
                last.push_str(word);
                open = false;
            }
            Some(last) if word == "=" && last.starts_with("--") => {
                last.push('=');
                open = true;
            }
            _ => joined.push(word.clone()),
        }
    }
    joined
}

/// Returns the lines of an answer. With `bare`, a candidate for `--option=value` is the value alone.
fn answer(words: &[String], bare: bool) -> String {
    let Some((typed, before)) = words.split_last() else { return String::new() };
    let verb = before.first().and_then(|name| parse::verb(name));
    let wanted = match (before.first(), verb) {
        (None, _) => place::verbs(&Cli::command(), typed),
        (Some(name), Some(verb)) => place::after(name, verb, &before[1..], typed),
        (Some(_), None) => return String::new(),
    };
    let Wanted { prefix, typed, mut candidates, live } = wanted;
    let fits = |candidate: &Candidate| candidate.text.starts_with(&typed) && is_plain(&candidate.text);
    candidates.retain(fits);
    if let Some(live) = live {
        if let Some(own) = live.of_the_shell() {
            return if candidates.is_empty() { format!("\t{own}\n") } else { lines(&candidates, "") };
        }
        let found = Paths::from_env().map(|paths| live::candidates(live, &paths)).unwrap_or_default();
        // A name that begins with a hyphen would be parsed as an option.
        candidates.extend(found.into_iter().filter(|one| fits(one) && !one.text.starts_with('-')));
    }
    lines(&candidates, if bare { "" } else { &prefix })
}

fn lines(candidates: &[Candidate], prefix: &str) -> String {
    let line = |one: &Candidate| format!("{prefix}{}\t{}\n", one.text, super::render::escape(&one.about));
    candidates.iter().map(line).collect()
}

/// Reports whether no shell gives `text` a special meaning. Rows of another writer may have any name, and completing
/// such a name must not run a command.
fn is_plain(text: &str) -> bool {
    let option = text.trim_start_matches('-');
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/@%+,".contains(c);
    let is_option = option.len() < text.len();
    !option.is_empty() && option.chars().all(plain) && (!is_option || option.len() + 2 >= text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &[&str], bare: bool) -> Vec<String> {
        let words: Vec<String> = line.iter().map(ToString::to_string).collect();
        let words = if bare { rejoined(&words) } else { words };
        answer(&words, bare).lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn verbs_actions_and_options_are_offered_with_their_help() {
        assert_eq!(texts(&["res"], false), ["respawn", "restore"]);
        assert_eq!(texts(&["hea"], false), ["heartbeat"]);
        assert_eq!(texts(&["merge", "re"], false), ["retry", "resume"]);
        assert_eq!(texts(&["kill", "--rm"], false), ["--rm-worktree"]);
        let words = ["spawn".to_owned(), "--rest".to_owned()];
        assert_eq!(
            answer(&words, false),
            "--restart\tWhen to restart the command after it has ended [default: never]\n"
        );
    }

    #[test]
    fn option_values_are_completed_after_a_blank_and_after_an_equals_sign() {
        assert_eq!(texts(&["ls", "--format", ""], false), ["table", "json", "names"]);
        assert_eq!(texts(&["ls", "--format=n"], false), ["--format=names"]);
        assert_eq!(texts(&["ls", "--format", "=", "n"], true), ["names"]);
        assert_eq!(texts(&["ls", "--format", "="], true), ["table", "json", "names"]);
        assert_eq!(texts(&["spawn", "--work-type", "dev"], false), ["development"]);
    }

    #[test]
    fn words_of_the_worker_command_are_left_to_the_shell() {
        let whole = |line: &[&str]| answer(&line.iter().map(ToString::to_string).collect::<Vec<_>>(), false);
        assert_eq!(whole(&["spawn", "--name", "x", "--", "ca"]), "\tcommands\n");
        assert_eq!(whole(&["spawn", "--name", "x", "--", "cat", "-"]), "\tfiles\n");
        assert_eq!(whole(&["spawn", "--name", "x", "--cwd", "s"]), "\tdirectories\n");
        assert_eq!(whole(&["run", "jobs"]), "\tfiles\n");
        assert_eq!(whole(&["spawn", "--name", ""]), "");
        assert_eq!(whole(&["frobnicate", ""]), "");
        assert_eq!(whole(&[]), "");
    }

    #[test]
    fn nothing_that_a_shell_would_execute_is_offered() {
        for text in ["fix", "a/b", "--name", "-n", "x_1.2"] {
            assert!(is_plain(text), "{text}");
        }
        for text in ["$(rm x)", "a b", "`x`", "a;b", "", "---x", "a\nb", "é", "'"] {
            assert!(!is_plain(text), "{text}");
        }
    }
}
