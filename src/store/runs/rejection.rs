//! What an attempt is told about the rejection of the one before: the end of the verification's output in its prompt, and
//! all of it in the worktree, where the agent may read it.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Component, Path, PathBuf};

use swarm_model::SESSION_FOLDER;
use swarm_model::merge::OUTPUT_AT;
use swarm_sys::paths::Paths;
use swarm_sys::strip_ansi::Plain;

use super::records;
use crate::sessions::folder::Folder;

/// Name of the copy in the folder of the worktree's session. git ignores it.
pub const COPY: &str = "verification.log";
/// Maximum size of the copy in bytes; of a longer log the last part is copied.
const COPY_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of lines in the prompt.
const LINES_MAX: usize = 40;
/// Maximum number of bytes of them.
const BYTES_MAX: usize = 4 << 10;

/// Returns the evidence for the next attempt: `evidence` itself, unless it names the log of a verification. Then the log
/// is copied into `worktree`, and the end of the log is added.
pub fn with_output(evidence: &str, worktree: &Path, paths: &Paths) -> String {
    let Some((before, log, after)) = parts(evidence, &paths.merges()) else { return evidence.to_owned() };
    let bytes = match end_of(&log) {
        Ok(bytes) => bytes,
        Err(error) => {
            tracing::warn!(log = %log.display(), %error, "cannot read the output of a verification");
            return evidence.to_owned();
        }
    };
    let mut plain = Vec::new();
    Plain::new().feed(&bytes, &mut plain);
    let copied = Folder::make(worktree).and_then(|folder| folder.replace(COPY, &plain, false));
    let place = match copied {
        Ok(_) => format!("{SESSION_FOLDER}/{COPY} in this worktree"),
        Err(error) => {
            tracing::warn!(worktree = %worktree.display(), %error, "cannot copy the output of a verification");
            log.display().to_string()
        }
    };
    let output = String::from_utf8_lossy(&plain);
    let shown = tail(&output);
    let named = format!("{before}{OUTPUT_AT}{place}{after}");
    if shown.is_empty() {
        return format!("{named}\n\nIt printed nothing.");
    }
    let fence = "`".repeat(longest_fence(shown).max(2) + 1);
    format!("{named}\n\nThe end of its output:\n\n{fence}text\n{shown}\n{fence}")
}

/// Splits evidence at the path of the log of a merge queue below `queues`. The last such path counts, because anything
/// else in the text may come from the work.
fn parts<'a>(evidence: &'a str, queues: &Path) -> Option<(&'a str, PathBuf, &'a str)> {
    let first = evidence.split_once("\n\n").map_or(evidence, |(first, _)| first);
    let (before, rest) = first.rsplit_once(OUTPUT_AT)?;
    let is_log = |log: &Path| {
        let below: Vec<Component> = log.strip_prefix(queues).into_iter().flat_map(Path::components).collect();
        matches!(below.as_slice(), [Component::Normal(_), Component::Normal(dir), Component::Normal(_)] if *dir == "logs")
    };
    let mut ends = rest.match_indices(".log").map(|(at, end)| at + end.len());
    let length = ends.find(|length| is_log(Path::new(&rest[..*length])))?;
    Some((before, PathBuf::from(&rest[..length]), &evidence[before.len() + OUTPUT_AT.len() + length..]))
}

fn end_of(log: &Path) -> io::Result<Vec<u8>> {
    let mut file = records::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(COPY_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(COPY_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the last lines, without blank ones at the end.
fn tail(text: &str) -> &str {
    let text = text.trim_end();
    let line = text.rmatch_indices('\n').nth(LINES_MAX - 1).map_or(0, |(at, _)| at + 1);
    let byte = text.ceil_char_boundary(text.len().saturating_sub(BYTES_MAX));
    // Only whole lines, unless the last one alone is too long.
    let byte = if byte <= line { line } else { text[byte..].find('\n').map_or(byte, |at| byte + at + 1) };
    &text[byte..]
}

/// Returns the length of the longest run of backticks.
fn longest_fence(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Place {
        dir: tempfile::TempDir,
        paths: Paths,
        log: PathBuf,
    }

    fn place(output: &str) -> Place {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path().join("state"));
        let log = paths.merges().join("q/logs/1.log");
        fs::create_dir_all(log.parent().expect("a parent")).expect("made");
        fs::write(&log, output).expect("written");
        fs::create_dir(dir.path().join("tree")).expect("made");
        Place { dir, paths, log }
    }

    impl Place {
        fn told(&self, evidence: &str) -> String {
            with_output(evidence, &self.dir.path().join("tree"), &self.paths)
        }
    }

    #[test]
    fn the_end_of_the_output_is_told_and_all_of_it_is_in_the_worktree() {
        let output: String = (0..100).map(|line| format!("\x1b[31mline {line}\x1b[0m\n")).collect();
        let place = place(&output);
        let reason = format!("'make' exited with code 2: line 99{OUTPUT_AT}{}", place.log.display());
        let told = place.told(&format!("{reason}, which is incomplete (full)\n\nThese new files"));
        let start = "'make' exited with code 2: line 99; its output is in .agent/verification.log in this worktree, \
                     which is incomplete (full)\n\nThese new files\n\nThe end of its output:\n\n```text\nline 60\n";
        assert!(told.starts_with(start) && told.ends_with("\nline 99\n```"), "{told}");
        let copy = fs::read_to_string(place.dir.path().join("tree/.agent/verification.log")).expect("copied");
        assert_eq!((copy.lines().count(), copy.lines().next()), (100, Some("line 0")));
    }

    #[test]
    fn little_and_strange_output_is_told_as_well() {
        let told = |output: &str| {
            let place = place(output);
            place.told(&format!("no{OUTPUT_AT}{}", place.log.display()))
        };
        assert!(told("\n\n").ends_with("in this worktree\n\nIt printed nothing."));
        assert!(told("a\n````\nb\n").ends_with("\n\n`````text\na\n````\nb\n`````"));
        let long = told(&format!("first\n{}", "é".repeat(9000)));
        assert!(!long.contains("first") && (BYTES_MAX - 2..BYTES_MAX + 200).contains(&long.len()), "{}", long.len());
        let lines = told(&format!("{}\n{}\nlast\n", "x".repeat(3000), "y".repeat(3000)));
        assert!(lines.contains("text\nyyy") && lines.ends_with("y\nlast\n```"));
    }

    #[test]
    fn only_logs_of_merge_queues_are_copied_and_no_link_is_followed() {
        let place = place("secret");
        let own = place.dir.path().join("own.log");
        fs::write(&own, "secret").expect("written");
        let log = place.log.display();
        for evidence in [
            "no path".to_owned(),
            format!("no{OUTPUT_AT}{}", own.display()),
            format!("no{OUTPUT_AT}{}/q/logs/../../../../own.log", place.paths.merges().display()),
            format!("no\n\nThese new files: x{OUTPUT_AT}{log}"),
        ] {
            assert_eq!(place.told(&evidence), evidence);
        }
        let reason = format!("x{OUTPUT_AT}{}: y{OUTPUT_AT}{log}", own.display());
        assert!(place.told(&reason).contains("y; its output is in .agent/verification.log"));
        let tree = place.dir.path().join("tree");
        fs::remove_dir_all(tree.join(".agent")).expect("removed");
        std::os::unix::fs::symlink(place.dir.path(), tree.join(".agent")).expect("linked");
        let told = place.told(&format!("no{OUTPUT_AT}{log}"));
        assert!(told.contains(&format!("in {log}")) && told.contains("secret"), "{told}");
        assert!(!place.dir.path().join(COPY).exists());
    }
}
