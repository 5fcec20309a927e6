//! Finds the argument at the cursor from the words before it. Pure.

use clap::{Arg, ArgAction, Command};
use swarm_model::WORK_TYPES;

use super::Candidate;
use super::live::Live;

/// Possible completions at one place of the command line.
#[derive(Debug, Default)]
pub struct Wanted {
    /// Text before each candidate in the completed word: `--option=`.
    pub prefix: String,
    /// Part of the candidate that is already typed.
    pub typed: String,
    pub candidates: Vec<Candidate>,
    /// Kind of existing names to add.
    pub live: Option<Live>,
}

/// Returns the candidates for the first word.
pub fn verbs(top: &Command, typed: &str) -> Wanted {
    let mut wanted = Wanted { typed: typed.to_owned(), candidates: actions(top), ..Wanted::default() };
    if typed.starts_with('-') {
        wanted
            .candidates
            .extend([Candidate::new("--help", "Print help"), Candidate::new("--version", "Print version")]);
    }
    wanted
}

/// Returns the candidates for the word after `before`, the words that follow the verb `name`.
pub fn after(name: &str, mut verb: Command, before: &[String], typed: &str) -> Wanted {
    verb.build();
    let mut walk = Walk::new(name, &verb);
    before.iter().for_each(|word| walk.step(word));
    walk.wanted(typed)
}

struct Walk<'a> {
    command: &'a Command,
    /// Verb with its action, such as `merge add`.
    path: String,
    /// Number of positionals so far.
    positionals: usize,
    /// Ids of the options given so far.
    given: Vec<&'a str>,
    /// Option whose value comes next.
    open: Option<&'a Arg>,
    /// Set after `--`.
    literal: bool,
    /// Set within the command of the worker.
    in_command: bool,
}

impl<'a> Walk<'a> {
    fn new(name: &str, command: &'a Command) -> Self {
        let path = name.to_owned();
        let (given, open) = (Vec::new(), None);
        Self { command, path, positionals: 0, given, open, literal: false, in_command: false }
    }

    fn step(&mut self, word: &str) {
        if self.in_command || self.open.take().is_some() {
            return;
        }
        if self.literal {
            self.positional();
        } else if word == "--" {
            self.literal = true;
        } else if let Some(option) = word.strip_prefix("--") {
            let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
            self.give(long(self.command, name), value.is_some());
        } else if word.len() > 1 && word.starts_with('-') {
            self.shorts(&word[1..]);
        } else if let Some(action) = self.action(word) {
            self.path = format!("{} {}", self.path, action.get_name());
            (self.command, self.positionals) = (action, 0);
        } else {
            self.positional();
        }
    }

    fn give(&mut self, arg: Option<&'a Arg>, has_value: bool) {
        let Some(arg) = arg else { return };
        self.given.push(arg.get_id().as_str());
        if takes_value(arg) && !has_value {
            self.open = Some(arg);
        }
    }

    /// Reads short options in one word, of which the last may take a value: `-fn 20`.
    fn shorts(&mut self, letters: &str) {
        for (at, letter) in letters.char_indices() {
            let Some(arg) = self.command.get_arguments().find(|arg| arg.get_short() == Some(letter)) else { return };
            let rest = at + letter.len_utf8() < letters.len();
            self.give(Some(arg), rest);
            if takes_value(arg) {
                return;
            }
        }
    }

    fn action(&self, word: &str) -> Option<&'a Command> {
        let is_meant =
            |action: &&Command| action.get_name() == word || action.get_visible_aliases().any(|alias| alias == word);
        self.command.get_subcommands().find(is_meant).filter(|_| self.positionals == 0)
    }

    fn positional(&mut self) {
        if let Some(arg) = self.next() {
            self.in_command = arg.is_trailing_var_arg_set();
            let is_list = arg.get_num_args().is_some_and(|count| count.max_values() > 1);
            self.positionals += usize::from(!is_list);
        }
    }

    /// Returns the next positional. With `--all` or `--tag`, `send` takes no name.
    fn next(&self) -> Option<&'a Arg> {
        let nobody_is_named = (self.has("all") || self.has("tags")) && self.path == "send";
        self.command.get_positionals().nth(self.positionals + usize::from(nobody_is_named))
    }

    fn has(&self, id: &str) -> bool {
        self.given.contains(&id)
    }

    fn wanted(&self, typed: &str) -> Wanted {
        if self.in_command {
            return Wanted { typed: typed.to_owned(), live: Some(Live::Files), ..Wanted::default() };
        }
        if let Some(open) = self.open {
            return self.value(open, typed);
        }
        if !self.literal
            && let Some((name, value)) = typed.strip_prefix("--").and_then(|option| option.split_once('='))
        {
            let arg = long(self.command, name).filter(|arg| takes_value(arg));
            let wanted = arg.map(|arg| self.value(arg, value)).unwrap_or_default();
            return Wanted { prefix: format!("--{name}="), ..wanted };
        }
        if !self.literal && typed.starts_with('-') {
            return Wanted { typed: typed.to_owned(), candidates: self.options(), ..Wanted::default() };
        }
        let mut wanted = self.next().map(|arg| self.value(arg, typed)).unwrap_or_default();
        typed.clone_into(&mut wanted.typed);
        if self.positionals == 0 && !self.literal {
            wanted.candidates.extend(actions(self.command));
        }
        if (self.has("all") || self.has("tags")) && matches!(wanted.live, Some(Live::Workers(_))) {
            wanted.live = None;
        }
        wanted
    }

    fn value(&self, arg: &Arg, typed: &str) -> Wanted {
        let known = arg.get_possible_values();
        let about = |value: &clap::builder::PossibleValue| value.get_help().map(ToString::to_string);
        let mut candidates: Vec<Candidate> = known
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| Candidate::new(value.get_name(), about(value).unwrap_or_default()))
            .collect();
        if arg.get_id() == "work_type" {
            candidates = WORK_TYPES.iter().map(|(name, _)| Candidate::new(*name, "")).collect();
        }
        let live = if candidates.is_empty() { Live::of(&self.path, arg) } else { None };
        Wanted { typed: typed.to_owned(), candidates, live, ..Wanted::default() }
    }

    /// Returns the options that can still be given.
    fn options(&self) -> Vec<Candidate> {
        let repeats = |arg: &Arg| matches!(arg.get_action(), ArgAction::Append | ArgAction::Count);
        let open = |arg: &&Arg| {
            !arg.is_positional() && !arg.is_hide_set() && (repeats(arg) || !self.has(arg.get_id().as_str()))
        };
        let named = |arg: &Arg| {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            arg.get_long().map(|long| Candidate::new(format!("--{long}"), help))
        };
        self.command.get_arguments().filter(open).filter_map(named).collect()
    }
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

/// Returns the option with this name, or the only one with this prefix.
fn long<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let exact = command.get_arguments().find(|arg| arg.get_long() == Some(name));
    let begins = || {
        let mut found = command.get_arguments().filter(|arg| arg.get_long().is_some_and(|long| long.starts_with(name)));
        found.next().filter(|_| found.next().is_none())
    };
    exact.or_else(begins)
}

fn actions(command: &Command) -> Vec<Candidate> {
    let shown = command.get_subcommands().filter(|action| !action.is_hide_set() && action.get_name() != "help");
    let about = |action: &Command| action.get_about().map(ToString::to_string).unwrap_or_default();
    shown.map(|action| Candidate::new(action.get_name(), about(action))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::live::Which;
    use super::*;
    use crate::cli::parse;

    fn live(line: &[&str]) -> Option<Live> {
        let words: Vec<String> = line.iter().map(ToString::to_string).collect();
        let (typed, before) = words.split_last().expect("a word");
        after(&before[0], parse::verb(&before[0]).expect("a verb"), &before[1..], typed).live
    }

    #[test]
    fn each_place_offers_its_kind_of_names() {
        for (line, expected) in [
            (&["status", ""][..], Some(Live::Workers(Which::Any))),
            (&["events", ""], Some(Live::Workers(Which::Any))),
            (&["kill", "a", "b", ""], Some(Live::Workers(Which::Running))),
            (&["kill", "--all", ""], None),
            (&["clean", ""], Some(Live::Workers(Which::Stopped))),
            (&["peek", "-n", "20", ""], Some(Live::Workers(Which::Window))),
            (&["peek", "-n", ""], None),
            (&["peek", "-n20", ""], Some(Live::Workers(Which::Window))),
            (&["send", ""], Some(Live::Workers(Which::Window))),
            (&["send", "x", ""], None),
            (&["keys", ""], Some(Live::Workers(Which::Window))),
            (&["keys", "x", "Down", ""], Some(Live::WindowKeys)),
            (&["send", "--all", ""], None),
            (&["attach", "x", ""], None),
            (&["logs", "--li", "5", ""], Some(Live::Workers(Which::Any))),
            (&["merge", "add", ""], Some(Live::Workers(Which::Worktree))),
            (&["merge", "status", ""], Some(Live::Items)),
            (&["heartbeat", "start", ""], Some(Live::Workers(Which::Window))),
            (&["heartbeat", "stop", ""], Some(Live::Nudged)),
            (&["ralph", "status", ""], Some(Live::Loops)),
            (&["ralph", "spawn", "--prompt-file", ""], Some(Live::Files)),
            (&["ralph", "spawn", "--name", ""], None),
            (&["flow", "status", ""], Some(Live::Flows)),
            (&["flow", "ls", ""], Some(Live::Projects)),
            (&["run", "context", ""], Some(Live::Workstreams)),
            (&["session", "show", ""], Some(Live::Workers(Which::Worktree))),
            (&["session", "update", "--worker", ""], Some(Live::Workers(Which::Worktree))),
            (&["ls", "--tag", ""], Some(Live::Tags)),
            (&["spawn", "--", ""], Some(Live::Commands)),
        ] {
            assert_eq!(live(line), expected, "{line:?}");
        }
    }

    #[test]
    fn a_given_option_is_offered_again_only_if_it_repeats() {
        let words = ["--tag", "a", "--tmux"].map(str::to_owned);
        let wanted = after("spawn", parse::verb("spawn").expect("a verb"), &words, "--t");
        let texts: Vec<&str> = wanted.candidates.iter().map(|one| one.text.as_str()).collect();
        assert!(texts.contains(&"--tag") && texts.contains(&"--tmux-socket") && !texts.contains(&"--tmux"));
    }
}
