//! Finds `--host` in a command line. It is taken out before the verb is parsed: the other machine gets the remaining words.

use std::ffi::OsString;

use swarm_sys::variables::HOSTS;

use super::Chosen;
use crate::cli::parse;

const FLAG: &str = "--host";
const SHOWN: &str = "--host <HOST>";
/// Verbs whose words may be a text or a command of their own, in which `--host` means something else. For these, `--host` is
/// before the verb.
const WITH_TEXT: [&str; 11] = [
    "spawn",
    "ralph spawn",
    "send",
    "keys",
    "ask",
    "answer",
    "deny",
    "run context",
    "flow answer",
    "rules test",
    "session hook",
];

/// Reports whether the words of the verb with this path may be a text or a command.
pub fn has_text(path: &str) -> bool {
    WITH_TEXT.contains(&path)
}

/// Takes `--host`, and `-C` before the verb, out of the command line. Returns what was chosen and the remaining words.
///
/// # Errors
/// Returns the problem if a value is missing or names no host, or if there is a directory and no host.
pub fn take(words: &[OsString]) -> Result<(Option<Chosen>, Vec<OsString>), String> {
    let set = std::env::var_os(HOSTS).unwrap_or_default();
    chosen(words, set.to_str().ok_or_else(|| format!("{HOSTS} is not valid UTF-8"))?)
}

fn chosen(words: &[OsString], set: &str) -> Result<(Option<Chosen>, Vec<OsString>), String> {
    let (mut kept, mut typed, mut dir) = (Vec::new(), None, None);
    let mut place = Place::default();
    let mut rest = words.iter();
    kept.extend(rest.next().cloned());
    while let Some(word) = rest.next() {
        let text = word.to_str().unwrap_or_default();
        let mut value = |flag: &str| {
            let value = rest.next().and_then(|value| value.to_str()).filter(|value| !value.is_empty());
            value.ok_or_else(|| format!("a value is required for '{flag}' but none was supplied"))
        };
        let is_host = text.starts_with(FLAG) && place.is_open();
        if is_host && text == FLAG {
            typed = Some(value(SHOWN).and_then(named)?);
        } else if let Some(value) = text.strip_prefix("--host=").filter(|_| is_host) {
            typed = Some(named(value)?);
        } else if text == "-C" && kept.len() == 1 {
            dir = Some(value("-C <DIR>")?.to_owned());
        } else {
            place.pass(text);
            kept.push(word.clone());
        }
    }
    let is_typed = typed.is_some();
    let set = || (!set.is_empty()).then(|| names(set).ok_or_else(|| format!("invalid value '{set}' of {HOSTS}")));
    match typed.map_or_else(|| set().transpose(), |typed| Ok(Some(typed)))? {
        Some(names) => Ok((Some(Chosen { names, is_typed, dir }), kept)),
        None if dir.is_some() => Err("'-C' is a directory on another host; name it with '--host'".to_owned()),
        None => Ok((None, kept)),
    }
}

/// Place in a command line, behind the words that were passed.
#[derive(Default)]
struct Place {
    /// Verb with the verbs that follow it, at most two.
    path: Vec<String>,
    /// Set behind the first word that is no verb.
    is_behind: bool,
    /// Set if no `--host` follows.
    is_closed: bool,
    /// Option whose value comes next, if it has one.
    option: Option<String>,
}

impl Place {
    fn pass(&mut self, word: &str) {
        if self.is_closed {
            return;
        }
        // Another word cannot be taken for anything else.
        let is_value = word.starts_with("--") && self.is_value();
        self.option = word.strip_prefix("--").filter(|name| !is_value && !name.contains('=')).map(str::to_owned);
        if is_value {
            return;
        }
        self.is_closed = word == "--";
        self.is_behind |= !self.path.is_empty() && (word.starts_with('-') || self.path.len() == 2);
        if !self.is_behind && !word.starts_with('-') {
            self.path.push(word.to_owned());
            self.is_closed = has_text(&self.path.join(" "));
        }
    }

    fn is_open(&self) -> bool {
        !self.is_closed && !self.is_value()
    }

    /// Reports whether the next word is the value of an option, whatever it begins with.
    fn is_value(&self) -> bool {
        let Some((option, verb)) = self.option.as_deref().zip(self.path.first()) else { return false };
        let Some(mut verb) = parse::verb(verb) else { return false };
        if let Some(below) = self.path.get(1).and_then(|below| verb.find_subcommand(below)) {
            verb = below.clone();
        }
        // As the parser does, this takes the beginning of a name for the name.
        let is_it = |arg: &&clap::Arg| arg.get_long().is_some_and(|long| long.starts_with(option));
        !option.is_empty() && verb.get_opts().any(|arg| is_it(&arg) && arg.is_allow_hyphen_values_set())
    }
}

fn named(list: &str) -> Result<Vec<String>, String> {
    names(list).ok_or_else(|| format!("invalid value '{list}' for '{SHOWN}'"))
}

/// Returns the names in a list with commas, each once; `None` if there is none, or an empty one.
fn names(list: &str) -> Option<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for name in list.split(',').map(str::trim) {
        if name.is_empty() {
            return None;
        }
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, set: &str) -> (Option<Chosen>, String) {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let (chosen, kept) = chosen(&words, set).expect("valid");
        (chosen, kept.join(" ".as_ref()).into_string().expect("text"))
    }

    fn on(names: &[&str], is_typed: bool) -> Option<Chosen> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Some(Chosen { names, is_typed, dir: None })
    }

    #[test]
    fn hosts_are_before_or_after_the_verb() {
        assert_eq!(read("swarm --host box ls -l", ""), (on(&["box"], true), "swarm ls -l".into()));
        assert_eq!(read("swarm ls --host a,b,a --json", ""), (on(&["a", "b"], true), "swarm ls --json".into()));
        assert_eq!(read("swarm ls --host=a", "b"), (on(&["a"], true), "swarm ls".into()));
        assert_eq!(read("swarm ls", ""), (None, "swarm ls".into()));
        assert_eq!(read("swarm ls", "b").0, on(&["b"], false));
    }

    #[test]
    fn a_directory_is_before_the_verb_and_needs_a_host() {
        let (chosen, kept) = read("swarm --host box -C work/p restore -C x", "");
        assert_eq!((chosen.and_then(|chosen| chosen.dir).as_deref(), &*kept), (Some("work/p"), "swarm restore -C x"));
        assert_eq!(read("swarm -C p ls", "box").0.and_then(|chosen| chosen.dir).as_deref(), Some("p"));
    }

    #[test]
    fn words_of_other_commands_are_left_alone() {
        for line in [
            "swarm spawn --name x -- claude --host a",
            "swarm send x --host a",
            "swarm spawn claude --host a",
            "swarm run context auth --host a",
            "swarm run context --host=a auth",
            "swarm ralph spawn --name x --host a",
            "swarm flow answer f --host a",
            "swarm flow new p --task --host",
            "swarm flow decline f n --message --host=a",
            "swarm flow decline f n --mess --host=a",
            "swarm rules test ssh --host=a",
            "swarm session hook --host=a",
            "swarm ls -- --host a",
        ] {
            assert_eq!(read(line, ""), (None, line.into()));
        }
        let both = read("swarm --host box spawn --name x -- ssh --host a", "");
        assert_eq!(both.1, "swarm spawn --name x -- ssh --host a");
        let before = read("swarm run --host box context auth --host", "");
        assert_eq!(before, (on(&["box"], true), "swarm run context auth --host".into()));
        for (line, kept) in [
            ("swarm run status --host box", "swarm run status"),
            ("swarm ralph ls --host box", "swarm ralph ls"),
            ("swarm flow new p --task --x --host box", "swarm flow new p --task --x"),
            ("swarm flow new p --task=x --host box", "swarm flow new p --task=x"),
            ("swarm merge add send --host box", "swarm merge add send"),
            ("swarm wait w spawn --host box", "swarm wait w spawn"),
        ] {
            assert_eq!(read(line, ""), (on(&["box"], true), kept.into()));
        }
    }

    #[test]
    fn a_missing_name_is_refused() {
        for line in ["swarm ls --host", "swarm --host= ls", "swarm --host a,,b ls", "swarm -C p ls", "swarm -C"] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            chosen(&words, "").expect_err(line);
        }
        let words = ["swarm", "ls"].map(OsString::from);
        for set in ["box,", " ", ",", "a,,b"] {
            chosen(&words, set).expect_err(set);
        }
    }
}
