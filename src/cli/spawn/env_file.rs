//! `--env-file`: variables that appear neither on a command line nor in the registry. The format is that of `.env`
//! files: `KEY=VALUE` lines, optionally with `export` in front and quotes around the whole value; a comment begins with
//! `#` at the start of a line or after a blank.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use swarm_model::{Refusal, RefusalKind};

use swarm_config::sections::VARIABLES_MAX;

/// Maximum size of a file in bytes; the environment of a process cannot be larger.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads the variables of all files; a later file overrides an earlier one.
pub fn read_all(files: &[String], cwd: &Path) -> Result<Vec<(String, String)>, Refusal> {
    let mut all: Vec<(String, String)> = Vec::new();
    for file in files {
        let text = read(&cwd.join(file)).map_err(|cause| refusal(format!("{file}: {cause}")))?;
        for (number, line) in text.lines().enumerate() {
            // The message must not show the line: it may contain a secret.
            let wrong = |what: &str| refusal(format!("{file}, line {}: {what}", number + 1));
            let Some((key, value)) = pair(line).map_err(|what| wrong(what).remedy(REMEDY))? else { continue };
            all.retain(|(known, _)| known != key);
            all.push((key.to_owned(), value.to_owned()));
            if all.len() > VARIABLES_MAX {
                return Err(refusal(format!("{file} sets more than {VARIABLES_MAX} variables")));
            }
        }
    }
    Ok(all)
}

const REMEDY: &str = "write one KEY=VALUE per line, as in .env files";

/// Parses one line; returns `None` for a blank line or a comment.
fn pair(line: &str) -> Result<Option<(&str, &str)>, &'static str> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let line = line.strip_prefix("export ").map_or(line, str::trim_start);
    let (key, value) = line.split_once('=').ok_or("missing '='")?;
    if !is_name(key) {
        return Err("variable names consist of letters, digits and '_', without spaces around them");
    }
    if line.contains('\0') {
        return Err("NUL byte in the line");
    }
    unquoted(value.trim_start()).map(|value| Some((key, value)))
}

fn unquoted(value: &str) -> Result<&str, &'static str> {
    let plain = || value.split(" #").next().unwrap_or(value).trim_end();
    let Some(quote) = value.chars().next().filter(|first| matches!(first, '"' | '\'')) else { return Ok(plain()) };
    let rest = &value[1..];
    let (inner, behind) = rest.split_once(quote).ok_or("unterminated quote")?;
    let behind = behind.trim_start();
    if behind.is_empty() || behind.starts_with('#') {
        Ok(inner)
    } else {
        Err("unexpected text after the closing quote")
    }
}

fn is_name(key: &str) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    key.starts_with(is_first) && key.chars().all(|c| is_first(c) || c.is_ascii_digit())
}

fn read(path: &Path) -> Result<String, String> {
    // The file may be a pipe, so its size is unknown before it is read.
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    match u64::try_from(text.len()) {
        Ok(..=FILE_BYTES_MAX) => Ok(text),
        Ok(_) | Err(_) => Err(format!("larger than {FILE_BYTES_MAX} bytes")),
    }
}

fn refusal(cause: String) -> Refusal {
    Refusal::new(RefusalKind::Invalid, cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<String, String> {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("f"), text).expect("written");
        let set = read_all(&["f".to_owned()], dir.path()).map_err(|refusal| refusal.cause)?;
        Ok(set.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(";"))
    }

    #[test]
    fn the_usual_env_syntax_is_parsed() {
        assert_eq!(of("").as_deref(), Ok(""));
        assert_eq!(of("# c\n\nA=1\n  B = x\n").map_err(|cause| cause.len() > 5), Err(true));
        let text = "A=1\nexport B=two words \nC=\"q # no\" # yes\nD='x=\"y\"'\nE=a#b # c\nF=\nA=2\r\n";
        assert_eq!(of(text).as_deref(), Ok("B=two words;C=q # no;D=x=\"y\";E=a#b;F=;A=2"));
    }

    #[test]
    fn mistakes_name_the_line_number_but_not_its_text() {
        for line in ["secret words", "=secret", "1A=secret", "A=\"secret", "A='secret' more"] {
            let cause = of(&format!("A=1\n{line}\n")).expect_err("wrong");
            assert!(cause.starts_with("f, line 2: ") && !cause.contains("secret"), "{cause}");
        }
        assert!(of("A=\0").expect_err("wrong").contains("NUL"));
    }
}
