//! Finds `--host` in a command line. It is taken out before the verb is parsed: the other machine gets the remaining words.

use std::ffi::OsString;

use swarm_sys::variables::HOSTS;

use super::Chosen;

const FLAG: &str = "--host";
const SHOWN: &str = "--host <HOST>";
/// Verbs whose words may be a text or a command of their own, in which `--host` means something else. For these, `--host` is
/// before the verb.
const FREE_TEXT: [&str; 7] = ["spawn", "send", "keys", "ask", "answer", "ralph", "deny"];

/// Takes `--host`, and `-C` before the verb, out of the command line. Returns what was chosen and the remaining words.
///
/// # Errors
/// Returns the problem if a value is missing or names no host, or if there is a directory and no host.
pub fn take(words: &[OsString]) -> Result<(Option<Chosen>, Vec<OsString>), String> {
    let set = std::env::var_os(HOSTS).unwrap_or_default();
    chosen(words, set.to_str().ok_or_else(|| format!("{HOSTS} is not valid UTF-8"))?)
}

fn chosen(words: &[OsString], set: &str) -> Result<(Option<Chosen>, Vec<OsString>), String> {
    let (mut kept, mut typed, mut dir, mut is_open) = (Vec::new(), None, None, true);
    let mut rest = words.iter();
    kept.extend(rest.next().cloned());
    while let Some(word) = rest.next() {
        let text = word.to_str().unwrap_or_default();
        let mut value = |flag: &str| {
            let value = rest.next().and_then(|value| value.to_str()).filter(|value| !value.is_empty());
            value.ok_or_else(|| format!("a value is required for '{flag}' but none was supplied"))
        };
        if !is_open {
            kept.push(word.clone());
        } else if text == FLAG {
            typed = Some(value(SHOWN).and_then(named)?);
        } else if let Some(value) = text.strip_prefix("--host=") {
            typed = Some(named(value)?);
        } else if text == "-C" && kept.len() == 1 {
            dir = Some(value("-C <DIR>")?.to_owned());
        } else {
            is_open = text != "--" && !(kept.len() == 1 && FREE_TEXT.contains(&text));
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
        for line in ["swarm spawn --name x -- claude --host a", "swarm send x --host a", "swarm spawn claude --host a"]
        {
            assert_eq!(read(line, ""), (None, line.into()));
        }
        let both = read("swarm --host box spawn --name x -- ssh --host a", "");
        assert_eq!(both.1, "swarm spawn --name x -- ssh --host a");
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
