//! Finds `--host` in a command line. It is taken out before the verb is parsed: the other machine gets the remaining words.

use std::ffi::OsString;

use super::Chosen;

/// Environment variable with the hosts that count without `--host`.
const VARIABLE: &str = "SWARM_HOST";
const FLAG: &str = "--host";
/// Verbs whose words may be a text or a command of their own, in which `--host` means something else. For these, `--host` is
/// before the verb.
const FREE_TEXT: [&str; 7] = ["spawn", "send", "keys", "ask", "answer", "ralph", "deny"];

/// Takes `--host` out of the command line. Returns the hosts and the remaining words.
///
/// # Errors
/// Returns the problem if a value is missing or names no host.
pub fn take(words: &[OsString]) -> Result<(Option<Chosen>, Vec<OsString>), String> {
    let set = std::env::var(VARIABLE).unwrap_or_default();
    chosen(words, &set)
}

fn chosen(words: &[OsString], set: &str) -> Result<(Option<Chosen>, Vec<OsString>), String> {
    let (mut kept, mut typed, mut is_open) = (Vec::new(), None, true);
    let mut rest = words.iter();
    kept.extend(rest.next().cloned());
    while let Some(word) = rest.next() {
        let text = word.to_str().unwrap_or_default();
        if !is_open {
            kept.push(word.clone());
        } else if text == FLAG {
            let value = rest.next().and_then(|value| value.to_str()).unwrap_or_default();
            typed = Some(
                names(value).ok_or_else(|| format!("a value is required for '{FLAG} <HOST>' but none was supplied"))?,
            );
        } else if let Some(value) = text.strip_prefix("--host=") {
            typed = Some(names(value).ok_or_else(|| format!("invalid value '{value}' for '{FLAG} <HOST>'"))?);
        } else {
            is_open = text != "--" && !(kept.len() == 1 && FREE_TEXT.contains(&text));
            kept.push(word.clone());
        }
    }
    let chosen = typed.map(Chosen::Typed).or_else(|| names(set).map(Chosen::Set));
    Ok((chosen, kept))
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

    #[test]
    fn hosts_are_before_or_after_the_verb() {
        let typed = |names: &[&str]| Some(Chosen::Typed(names.iter().map(|name| (*name).to_owned()).collect()));
        assert_eq!(read("swarm --host box ls -l", ""), (typed(&["box"]), "swarm ls -l".into()));
        assert_eq!(read("swarm ls --host a,b,a --json", ""), (typed(&["a", "b"]), "swarm ls --json".into()));
        assert_eq!(read("swarm ls --host=a", "b"), (typed(&["a"]), "swarm ls".into()));
        assert_eq!(read("swarm ls", ""), (None, "swarm ls".into()));
        assert_eq!(read("swarm ls", "b").0, Some(Chosen::Set(vec!["b".into()])));
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
        for line in ["swarm ls --host", "swarm --host= ls", "swarm --host a,,b ls"] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            chosen(&words, "").expect_err(line);
        }
    }
}
