//! Converts a file of workers into the arguments of `swarm spawn` for each worker. Pure. The keys are the flags of
//! `swarm spawn` themselves, so a new flag is a new key.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction};
use swarm_model::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::cli::args::{Command, SpawnArgs};
use crate::cli::parse;

/// Maximum number of faults reported for one file.
const FAULTS_MAX: usize = 50;
/// Flags of `swarm spawn` that are not keys of a worker, because they concern the whole command.
const NOT_KEYS: [&str; 2] = ["file", "json"];

/// One mistake in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line of the mistake, from 1.
    pub line: usize,
    pub cause: String,
}

/// One worker of the file.
pub struct Entry {
    /// Line of its table, from 1.
    pub line: usize,
    pub args: Box<SpawnArgs>,
}

type Table<'a> = DeTable<'a>;
type Value<'a> = Spanned<DeValue<'a>>;

/// Parses the text of a file.
///
/// # Errors
/// Returns all mistakes, sorted by line.
pub fn read(text: &str) -> Result<Vec<Entry>, Vec<Fault>> {
    let (file, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader { text, faults: Vec::new(), keys: keys() };
    for error in errors {
        let at = error.span().map_or(0, |span| span.start);
        reader.fault(at, error.message());
    }
    let entries = if reader.faults.is_empty() { reader.file(file.get_ref()) } else { Vec::new() };
    // A mistake in the defaults was found once for each worker.
    reader.faults.sort_by(|one, other| (one.line, &one.cause).cmp(&(other.line, &other.cause)));
    reader.faults.dedup();
    if reader.faults.is_empty() { Ok(entries) } else { Err(reader.faults) }
}

/// Returns the flags that are keys.
fn keys() -> Vec<Arg> {
    let spawn = parse::verb("spawn").expect("it is in the list of verbs");
    let named = |arg: &&Arg| arg.get_long().is_some_and(|long| !NOT_KEYS.contains(&long));
    spawn.get_arguments().filter(named).cloned().collect()
}

struct Reader<'t> {
    text: &'t str,
    faults: Vec<Fault>,
    keys: Vec<Arg>,
}

/// A flag with its value as one word, and its offset in the file.
struct Word {
    flag: String,
    word: String,
    at: usize,
}

impl Reader<'_> {
    fn fault(&mut self, at: usize, cause: impl Into<String>) {
        if self.faults.len() >= FAULTS_MAX {
            return;
        }
        let line = self.text.get(..at).unwrap_or_default().matches('\n').count() + 1;
        self.faults.push(Fault { line, cause: cause.into() });
    }

    fn file(&mut self, file: &Table) -> Vec<Entry> {
        let mut defaults = None;
        let mut workers: &[Value] = &[];
        for (key, value) in file {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("defaults", DeValue::Table(table)) => defaults = Some(table),
                ("worker", DeValue::Array(list)) => workers = list,
                ("defaults", _) => self.fault(key.span().start, "invalid 'defaults': expected a table, [defaults]"),
                ("worker", _) => {
                    self.fault(key.span().start, "invalid 'worker': expected a list of tables, [[worker]]")
                }
                (other, _) => {
                    let near = nearest(other, ["defaults", "worker"]).map(|near| format!(" (did you mean '{near}'?)"));
                    self.fault(key.span().start, format!("unknown key '{other}'{}", near.unwrap_or_default()));
                }
            }
        }
        if workers.is_empty() && self.faults.is_empty() {
            self.fault(0, "no [[worker]] table in this file");
        }
        workers.iter().filter_map(|worker| self.worker(worker, defaults)).collect()
    }

    fn worker(&mut self, worker: &Value, defaults: Option<&Table>) -> Option<Entry> {
        let (at, before) = (worker.span().start, self.faults.len());
        let DeValue::Table(table) = worker.get_ref() else {
            self.fault(at, "invalid 'worker': expected a list of tables, [[worker]]");
            return None;
        };
        let own = self.words(table);
        let mut words = defaults.map(|defaults| self.words(defaults)).unwrap_or_default();
        // Repeatable flags add up; for any other flag the worker's own value overrides the default.
        let repeats = |flag: &str| self.repeats(flag);
        words.retain(|word| repeats(&word.flag) || !has(table, &word.flag));
        words.extend(own);
        let command = table.iter().chain(defaults.into_iter().flatten()).find(|(key, _)| key.get_ref() == "command");
        let command = match command {
            Some((_, value)) => self.command(value),
            None => {
                self.fault(at, format!("{}: missing command", called(table)));
                Vec::new()
            }
        };
        if self.faults.len() > before {
            return None;
        }
        self.parsed(&words, command, at, table)
    }

    /// Parses one worker as if it had been typed on the command line.
    fn parsed(&mut self, words: &[Word], command: Vec<String>, at: usize, table: &Table) -> Option<Entry> {
        let typed = ["swarm", "spawn"].map(str::to_owned).into_iter();
        let typed = typed.chain(words.iter().map(|word| word.word.clone())).chain(["--".to_owned()]).chain(command);
        let typed: Vec<OsString> = typed.map(OsString::from).collect();
        let line = self.text.get(..at).unwrap_or_default().matches('\n').count() + 1;
        match parse::parse(&typed).map(|cli| cli.command) {
            Ok(Command::Spawn(args)) => return Some(Entry { line, args }),
            Ok(_) => self.fault(at, format!("{}: not a worker", called(table))),
            Err(error) => {
                let at = self.place(&error, words).unwrap_or(at);
                let text = error.render().to_string();
                let cause = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
                let missing = error.kind() == clap::error::ErrorKind::MissingRequiredArgument;
                let cause = if missing { missing_words(&error).unwrap_or(cause) } else { cause };
                self.fault(at, format!("{}: {cause}", called(table)));
            }
        }
        None
    }

    /// Returns the offset of the flag that a parse error names.
    fn place(&self, error: &clap::Error, words: &[Word]) -> Option<usize> {
        let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else { return None };
        let flag = arg.trim_start_matches('-').split([' ', '=']).next()?;
        words.iter().rev().find(|word| word.flag == flag).map(|word| word.at)
    }

    /// Returns the flags of a table.
    fn words(&mut self, table: &Table) -> Vec<Word> {
        let mut words = Vec::new();
        for (key, value) in table {
            let flag = flag_of(key.get_ref());
            if flag == "command" {
                continue;
            }
            let at = key.span().start;
            let Some(arg) = self.keys.iter().find(|arg| arg.get_long() == Some(&flag)) else {
                let known = self.keys.iter().filter_map(Arg::get_long).chain(["command"]);
                let near = nearest(&flag, known).map(|near| format!(" (did you mean '{}'?)", near.replace('-', "_")));
                let near = near.unwrap_or_else(|| " (the keys are the flags of 'swarm spawn')".to_owned());
                self.fault(at, format!("unknown key '{}'{near}", key.get_ref()));
                continue;
            };
            match values(arg, value.get_ref()) {
                Ok(found) => words.extend(found.into_iter().map(|word| Word { flag: flag.clone(), word, at })),
                Err(expected) => self.fault(at, format!("invalid '{}': expected {expected}", key.get_ref())),
            }
        }
        words
    }

    fn repeats(&self, flag: &str) -> bool {
        let arg = self.keys.iter().find(|arg| arg.get_long() == Some(flag));
        arg.is_some_and(|arg| matches!(arg.get_action(), ArgAction::Append))
    }

    /// Reads `command`: a list of words, or a line for `sh -c`.
    fn command(&mut self, value: &Value) -> Vec<String> {
        let words = match value.get_ref() {
            DeValue::String(line) => Some(vec!["/bin/sh".to_owned(), "-c".to_owned(), line.to_string()]),
            DeValue::Array(list) => list.iter().map(|word| word.get_ref().as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        match words {
            Some(words) if !words.is_empty() => words,
            _ => {
                self.fault(value.span().start, "invalid 'command': expected a line for sh or a list of words");
                Vec::new()
            }
        }
    }
}

/// Returns the flag for a key: `ready_wait` and `ready-wait` are one flag, and `tags` lists values of `--tag`.
fn flag_of(key: &str) -> String {
    match key {
        "tags" => "tag".to_owned(),
        key => key.replace('_', "-"),
    }
}

fn has(table: &Table, flag: &str) -> bool {
    table.keys().any(|key| flag_of(key.get_ref()) == flag)
}

/// Returns `worker 'x'`, or `worker` if the table has no name.
fn called(table: &Table) -> String {
    let name = table.iter().find(|(key, _)| key.get_ref() == "name").and_then(|(_, value)| value.get_ref().as_str());
    name.map_or_else(|| "worker".to_owned(), |name| format!("worker '{name}'"))
}

fn missing_words(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return None };
    let keys: Vec<&str> = missing.iter().filter_map(|arg| arg.trim_start_matches('-').split(' ').next()).collect();
    Some(format!("missing {}", keys.join(", ")))
}

/// Returns the words for a flag, or a description of the expected value.
fn values(arg: &Arg, value: &DeValue) -> Result<Vec<String>, &'static str> {
    let long = arg.get_long().unwrap_or_default();
    let word = |value: &DeValue| scalar(value).map(|text| format!("--{long}={text}"));
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, DeValue::Boolean(true)) => Ok(vec![format!("--{long}")]),
        // The configuration may set these two; `false` overrides it.
        (ArgAction::SetTrue, DeValue::Boolean(false)) if matches!(long, "tmux" | "worktree") => {
            Ok(vec![format!("--no-{long}")])
        }
        (ArgAction::SetTrue, DeValue::Boolean(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, _) => Err("true or false"),
        (ArgAction::Append, DeValue::Array(list)) => {
            list.iter().map(|value| word(value.get_ref())).collect::<Option<_>>().ok_or("a list of strings")
        }
        (ArgAction::Append, DeValue::Table(table)) if long == "env" => {
            let pair = |(key, value): (&Spanned<_>, &Value)| {
                let key: &std::borrow::Cow<str> = key.get_ref();
                scalar(value.get_ref()).map(|text| format!("--{long}={key}={text}"))
            };
            table.iter().map(pair).collect::<Option<_>>().ok_or("a table of strings")
        }
        (ArgAction::Append, value) => word(value).map(|word| vec![word]).ok_or("a string or a list of strings"),
        (_, value) => word(value).map(|word| vec![word]).ok_or("a string or a number"),
    }
}

fn scalar(value: &DeValue) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<(usize, String)> {
        let faults = read(text).err().unwrap_or_default();
        faults.into_iter().map(|fault| (fault.line, fault.cause)).collect()
    }

    #[test]
    fn keys_are_flags_and_a_worker_overrides_the_defaults() {
        let text = "\
[defaults]
tmux = true
tags = ['all']
restart = 'on-failure'
env = { A = '1', B = 2 }
command = 'make'
[[worker]]
name = 'one'
[[worker]]
name = 'two'
tmux = false
tags = ['own']
timeout = 90
env = ['B=3']
prompt = '- begins with a hyphen'
session_dir = '/s'
command = ['claude', '--verbose', '--', 'x']
";
        let entries = read(text).unwrap_or_else(|faults| panic!("{faults:?}"));
        let (one, two) = (&entries[0].args, &entries[1].args);
        assert_eq!((one.name.as_str(), one.tmux, one.command.join(" ").as_str()), ("one", true, "/bin/sh -c make"));
        assert_eq!((entries[1].line, two.tmux, two.command.join(" ").as_str()), (9, false, "claude --verbose -- x"));
        assert_eq!((one.place.tags.join(","), two.place.tags.join(",")), ("all".into(), "all,own".into()));
        assert_eq!(two.place.env, ["A=1", "B=2", "B=3"]);
        assert_eq!(two.timeout, Some(std::time::Duration::from_secs(90)));
        assert_eq!(two.prompt.as_deref(), Some("- begins with a hyphen"));
    }

    #[test]
    fn all_mistakes_are_reported_at_once_with_their_lines() {
        let text = "\
[defaults]
restrat = 'never'
[[worker]]
name = 'one'
command = 'true'
[[worker]]
name = 'two'
timeout = 'soon'
tmux = 'yes'
[[worker]]
command = []
[wroker]
";
        let expected = [
            (2, "unknown key 'restrat' (did you mean 'restart'?)"),
            (6, "worker 'two': missing command"),
            (9, "invalid 'tmux': expected true or false"),
            (11, "invalid 'command': expected a line for sh or a list of words"),
            (12, "unknown key 'wroker' (did you mean 'worker'?)"),
        ];
        assert_eq!(faults(text), expected.map(|(line, cause)| (line, cause.to_owned())));
        let one = |key: &str| faults(&format!("[[worker]]\nname = 'x'\ncommand = 'true'\n{key}\n"));
        let (line, cause) = one("timeout = 'soon'").remove(0);
        assert!(line == 4 && cause.starts_with("worker 'x': invalid value 'soon' for '--timeout"), "{line} {cause}");
        assert_eq!(faults("[[worker]]\ncommand = 'true'\n"), [(1, "worker: missing name".to_owned())]);
        assert_eq!(faults(""), [(1, "no [[worker]] table in this file".to_owned())]);
        assert_eq!(one("json = true").len(), 1);
        assert_eq!(faults("[[worker]]\nname = 'x\n")[0].0, 2);
    }
}
