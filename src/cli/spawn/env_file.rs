//! `--env-file`: variables that are neither on a command line nor in the registry's row.
//! As docker has it: `KEY=VALUE` lines, the value as it stands; `KEY` alone is the caller's;
//! empty lines and those that begin with `#` are passed over.

use std::fs;
use std::path::Path;

use swarm_actors::model::{Refusal, RefusalKind};

/// Larger is no list of variables: a process gets no more than that.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The caller's variables with those of the files set, the last file's first of all.
pub fn with_files(
    mut environment: Vec<(String, String)>,
    files: &[String],
    cwd: &Path,
) -> Result<Vec<(String, String)>, Refusal> {
    for file in files {
        let text = read(&cwd.join(file)).map_err(|cause| refusal(format!("{file}: {cause}")))?;
        for (number, line) in text.lines().enumerate() {
            let wrong = |what: &str| refusal(format!("{file}, line {}: {what}", number + 1));
            let line = line.trim_start();
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            // The line itself is not shown: it may be a secret.
            let (key, value) = match line.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (line.trim_end(), None),
            };
            if !is_name(key) {
                return Err(
                    wrong("KEY=VALUE is expected, KEY of letters, digits and _").remedy("see swarm spawn --help")
                );
            }
            if line.contains('\0') {
                return Err(wrong("it has a NUL byte"));
            }
            if let Some(value) = value {
                environment.retain(|(known, _)| known != key);
                environment.push((key.to_owned(), value.to_owned()));
            }
        }
    }
    Ok(environment)
}

fn is_name(key: &str) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    key.starts_with(is_first) && key.chars().all(|c| is_first(c) || c.is_ascii_digit())
}

fn read(path: &Path) -> Result<String, String> {
    let meta = fs::metadata(path).map_err(|error| error.to_string())?;
    match meta.len() {
        // A pipe or process substitution is what people give who keep no file.
        _ if meta.is_dir() => Err("it is a directory".to_owned()),
        length if length > FILE_BYTES_MAX => Err(format!("it is larger than {FILE_BYTES_MAX} bytes")),
        _ => fs::read_to_string(path).map_err(|error| error.to_string()),
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
        let caller = vec![("A".to_owned(), "old".to_owned()), ("K".to_owned(), "kept".to_owned())];
        let set = with_files(caller, &["f".to_owned()], dir.path()).map_err(|refusal| refusal.cause)?;
        Ok(set.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(";"))
    }

    #[test]
    fn values_stand_as_they_are_and_win_over_the_callers() {
        assert_eq!(of("").as_deref(), Ok("A=old;K=kept"));
        assert_eq!(of("# c\n\nA=new\nB= 'x' =y \nK\n").as_deref(), Ok("K=kept;A=new;B= 'x' =y "));
    }

    #[test]
    fn mistakes_are_told_by_line_and_without_the_line() {
        for line in ["export A=secret", "=secret", "1A=secret", "secret words"] {
            let cause = of(&format!("A=1\n{line}\n")).expect_err("wrong");
            assert!(cause.starts_with("f, line 2: ") && !cause.contains("secret"), "{cause}");
        }
        assert!(of("A=\0").expect_err("wrong").contains("NUL"));
    }
}
