//! Files that came with a repository.

use std::path::Path;

use swarm_model::Caller;

use super::cli::{Cli, CliError};
use super::fault::Fault;

/// Returns the entries of git's index at `name` in `dir` and below, relative to `dir`. A submodule and a symbolic link are
/// one entry, whatever is in them; below such an entry, `name` itself is one. Empty if `dir` is in no repository.
///
/// # Errors
/// Returns a message if git cannot tell.
pub fn tracked(dir: &Path, name: &str, caller: &Caller) -> Result<Vec<String>, String> {
    if swarm_config::root_above(dir).is_none() {
        return Ok(Vec::new());
    }
    let found = Cli::new(caller).map_err(Fault::from).and_then(|cli| Ok(entries(&cli, dir, name)?));
    found.map_err(|fault| fault.cause)
}

fn entries(cli: &Cli, dir: &Path, name: &str) -> Result<Vec<String>, CliError> {
    let below = cli.read(dir).args(["rev-parse", "--show-prefix"]).run()?;
    let below = String::from_utf8_lossy(below.strip_suffix(b"\n").unwrap_or(&below)).into_owned();
    // A submodule without a repository of its own belongs to the outer one, and git does not look into it.
    for (end, _) in below.match_indices('/') {
        let entry = format!(":0:{}", &below[..end]);
        if cli.read(dir).args(["rev-parse", "--quiet", "--verify", &entry]).run_for(&[0, 1])?.0 == 0 {
            return Ok(vec![name.to_owned()]);
        }
    }
    let only = format!(":(literal){name}");
    let listed = cli.read(dir).args(["ls-files", "-z", "--", &only]).run()?;
    let entries = listed.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
    Ok(entries.map(|entry| String::from_utf8_lossy(entry).into_owned()).collect())
}

/// Returns the entry that brought `path`: the file itself, a submodule, a link or a file in place of a directory above it,
/// or something below it.
pub fn brought<'a>(entries: &'a [String], path: &str) -> Option<&'a str> {
    let is_below = |path: &str, above: &str| path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'));
    let brings = |entry: &&String| *entry == path || is_below(path, entry) || is_below(entry, path);
    entries.iter().find(brings).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::fixture::Fixture;

    fn entries(fix: &Fixture, name: &str) -> Vec<String> {
        tracked(&fix.repo, name, &fix.caller).expect("git can tell")
    }

    #[test]
    fn whatever_a_commit_has_at_a_path_or_above_it_brings_the_path() {
        let fix = Fixture::new();
        assert_eq!(entries(&fix, "home"), [""; 0]);
        fs::create_dir_all(fix.repo.join("home/a b")).expect("made");
        fix.commit("files", "home/a b/ü\"x", "1\n");
        assert_eq!(entries(&fix, "home"), ["home/a b/ü\"x"]);
        assert_eq!(entries(&fix, "hom?"), [""; 0], "a name is no pattern");
        fs::remove_dir_all(fix.repo.join("home")).expect("removed");
        symlink("..", fix.repo.join("home")).expect("linked");
        fix.git(&["add", "-A"]);
        assert_eq!(brought(&entries(&fix, "home"), "home/run"), Some("home"), "a link");
        fs::remove_file(fix.repo.join("home")).expect("removed");
        fix.git(&["init", "-q", "home"]);
        fix.git(&["-C", "home", "commit", "-q", "--allow-empty", "-m", "sub"]);
        fs::write(fix.repo.join("home/run"), "untracked in the submodule").expect("written");
        fix.git(&["add", "-A"]);
        assert_eq!(brought(&entries(&fix, "home"), "home/run"), Some("home"), "a submodule");
        // Without a repository of its own, git does not look into it.
        fs::remove_dir_all(fix.repo.join("home/.git")).expect("removed");
        assert_eq!(brought(&entries(&fix, "home"), "home/run"), Some("home"));
        fs::create_dir_all(fix.repo.join("home/a/b")).expect("made");
        let inside = tracked(&fix.repo.join("home/a/b"), "run", &fix.caller).expect("git can tell");
        assert_eq!(inside, ["run"], "it came with the submodule");
        fs::create_dir_all(fix.repo.join("dir/a")).expect("made");
        fix.commit("dir", "dir/a/run", "1\n");
        assert_eq!(tracked(&fix.repo.join("dir"), "a", &fix.caller).expect("git can tell"), ["a/run"]);
        assert_eq!(tracked(&fix.repo.join("dir"), "run", &fix.caller).expect("git can tell"), [""; 0]);
        assert_eq!(tracked(&fix.root, "repo", &fix.caller), Ok(Vec::new()), "no repository");
        fs::create_dir_all(fix.root.join(".git/info")).expect("made");
        assert_eq!(tracked(&fix.root, "repo", &fix.caller), Ok(Vec::new()), "no repository, only a `.git`");
    }

    #[test]
    fn an_entry_beside_a_path_does_not_bring_it() {
        let entries = ["home/a".to_owned(), "home/dir/x".to_owned()];
        assert_eq!(brought(&entries, "home/a"), Some("home/a"));
        assert_eq!(brought(&entries, "home/a/b"), Some("home/a"));
        assert_eq!(brought(&entries, "home/dir"), Some("home/dir/x"));
        for other in ["home/b", "home/ab", "home/di", "home/dir/y"] {
            assert_eq!(brought(&entries, other), None, "{other}");
        }
    }
}
