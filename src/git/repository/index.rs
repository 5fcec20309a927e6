//! The index of a worktree: reads it in-process with libgit2, which saves a fork, refreshes it, and
//! replaces it. Index formats that libgit2 rejects (split, sparse, SHA-256) are left
//! to git.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use git2::{Index, IndexEntry, IndexEntryExtendedFlag, IndexEntryFlag};

use crate::repository::cli::{Call, CliError};
use crate::trash::scratch::{self, Scratch};
use swarm_sys::files;

/// Name of the index in a git directory.
pub(crate) const FILE: &str = "index";

/// Bits of an entry's flags that hold its stage.
const STAGE: u16 = 0x3000;

/// Refreshes the file times in the index that `call` uses. Files with changes remain as they are. So do all files if git
/// exits with an error, which the next command reports.
///
/// # Errors
/// Returns an error if git was killed or did not run: the command after it would take every file for a changed one.
pub(crate) fn refresh(call: Call<'_>) -> Result<(), CliError> {
    match call.args(["update-index", "-q", "--refresh"]).run() {
        Ok(_) | Err(CliError::Exit { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Unusual properties of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexProperties {
    /// Some entry is assume-unchanged or skip-worktree, so git does not look at its file.
    pub(crate) has_hidden: bool,
    /// A path with an unresolved conflict.
    pub(crate) unmerged: Option<Vec<u8>>,
}

/// Reads the unusual properties of an index. Returns `None` if only git can read the file.
pub(crate) fn properties(file: &Path) -> Option<IndexProperties> {
    let index = Index::open(file).ok()?;
    let is_hidden = |entry: &IndexEntry| {
        entry.flags & IndexEntryFlag::VALID.bits() != 0
            || entry.flags_extended & IndexEntryExtendedFlag::SKIP_WORKTREE.bits() != 0
    };
    let unmerged = index.iter().find(|entry| entry.flags & STAGE != 0);
    Some(IndexProperties {
        has_hidden: index.iter().any(|entry| is_hidden(&entry)),
        unmerged: unmerged.map(|entry| entry.path),
    })
}

/// Replaces the index in `git_dir` by `new`, as git does: `index.lock` is renamed to
/// `index`. The lock is a hard link of `new`, so that it can be recognized as ours if
/// this process is killed in between.
///
/// # Errors
/// Fails if another process holds the lock, or if the file system has no hard links.
pub(crate) fn install(new: &Scratch, git_dir: &Path) -> io::Result<()> {
    let lock = git_dir.join("index.lock");
    fs::hard_link(new.path(), &lock)?;
    fs::rename(&lock, git_dir.join("index")).inspect_err(|_| drop(fs::remove_file(&lock)))
}

/// Removes the lock left by an `install` that was killed.
///
/// # Errors
/// Fails if the directory cannot be read or a file cannot be removed.
pub(crate) fn clear_own_lock(git_dir: &Path) -> io::Result<()> {
    let lock = git_dir.join("index.lock");
    let Ok(found) = fs::symlink_metadata(&lock) else { return Ok(()) };
    // A lock of git itself has a single link.
    if found.nlink() < 2 {
        return Ok(());
    }
    for file in files::list(scratch::place(git_dir))? {
        let same = file.metadata().is_ok_and(|meta| (meta.dev(), meta.ino()) == (found.dev(), found.ino()));
        let writer = file.file_name().to_str().and_then(|name| scratch::writer_of(name, Some("index")));
        let Some(writer) = writer.filter(|_| same) else { continue };
        // A process that is not known to be gone may hold it for its git.
        if writer.is_older_version() || writer.is_gone() == Some(true) {
            fs::remove_file(&lock)?;
            return fs::remove_file(file.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use swarm_config::trust;

    use super::*;
    use crate::fixture::{Fixture, text};

    #[test]
    fn unusual_entries_are_found_and_unsupported_formats_are_left_to_git() {
        let fix = Fixture::new();
        let file = fix.repo.join(".git/index");
        let plain = IndexProperties { has_hidden: false, unmerged: None };
        assert_eq!(properties(&file), Some(plain.clone()));
        for flag in ["assume-unchanged", "skip-worktree"] {
            fix.git(&["update-index", &format!("--{flag}"), "f"]);
            assert_eq!(properties(&file), Some(IndexProperties { has_hidden: true, unmerged: None }), "{flag}");
            fix.git(&["update-index", &format!("--no-{flag}"), "f"]);
        }
        for version in ["3", "4"] {
            fix.git(&["update-index", "--index-version", version]);
            assert_eq!(properties(&file), Some(plain.clone()), "version {version}");
        }
        fix.git(&["checkout", "-q", "-b", "other"]);
        fix.commit("theirs", "f", "theirs\n");
        fix.git(&["checkout", "-q", "main"]);
        fix.commit("ours", "f", "ours\n");
        let (merged, _) = fix.attempt(&fix.repo, &["merge", "-q", "other"]);
        assert!(!merged);
        assert_eq!(properties(&file).and_then(|properties| properties.unmerged), Some(b"f".to_vec()));
        fix.git(&["reset", "-q", "--hard"]);
        fix.git(&["update-index", "--split-index"]);
        assert_eq!(properties(&file), None, "a split index");
    }

    /// Returns the files that `claude` loads from `dir`.
    fn loaded(dir: &Path) -> Vec<String> {
        let files = trust::agent_files(dir, &[trust::CLAUDE]).expect("read");
        files.into_iter().map(|file| file.key).collect()
    }

    fn put(dir: &Path, name: &str) {
        let file = dir.join(name);
        fs::create_dir_all(file.parent().expect("a parent")).expect("made");
        fs::write(file, "{}").expect("written");
    }

    #[test]
    fn tracked_files_of_agents_are_found_where_nobody_searches() {
        for format in ["sha1", "sha256"] {
            let fix = Fixture::empty();
            fs::remove_dir_all(fix.repo.join(".git")).expect("removed");
            fix.git(&["init", "-q", "-b", "main", "--object-format", format]);
            let tracked = [
                ".claude/of/.claude/settings.json",
                "node_modules/.claude/settings.json",
                "node_modules/a/.claude/agents/a.md",
                "sub/node_modules/b/.claude/skills/s/SKILL.md",
            ];
            tracked.iter().for_each(|name| put(&fix.repo, name));
            fix.git(&["add", "."]);
            put(&fix.repo, "node_modules/untracked/.claude/settings.json");
            assert_eq!(loaded(&fix.repo), tracked, "before the first commit, {format}");
            fix.git(&["commit", "-q", "-m", "modules"]);
            for version in ["2", "3", "4"] {
                fix.git(&["update-index", "--index-version", version]);
                assert_eq!(loaded(&fix.repo), tracked, "version {version}, {format}");
            }
            let tree = fix.root.join("w");
            fix.git(&["worktree", "add", "-q", tree.to_str().expect("text")]);
            assert_eq!(loaded(&tree), tracked, "a worktree, {format}");
            assert_eq!(loaded(&tree.join("sub")), ["node_modules/b/.claude/skills/s/SKILL.md"], "below its root");
            fs::remove_dir_all(tree.join("node_modules/a")).expect("removed");
            assert_eq!(loaded(&tree).len(), 3, "what is not checked out is not loaded");
            // Only git reads this form, so everything is searched.
            fix.git(&["update-index", "--split-index"]);
            let names = loaded(&fix.repo);
            assert!(tracked.iter().all(|name| names.iter().any(|one| one == name)), "{names:?}");
        }
    }

    #[test]
    fn packages_of_opencode_count_if_git_tracks_them() {
        let fix = Fixture::new();
        let keys = || {
            let files = trust::agent_files(&fix.repo, &[trust::OPENCODE]);
            files.map(|files| files.into_iter().map(|file| (file.key, file.value)).collect::<Vec<_>>())
        };
        put(&fix.repo, ".opencode/node_modules/installed/index.js");
        assert_eq!(keys(), Ok(Vec::new()), "opencode has installed it");
        put(&fix.repo, ".opencode/node_modules/x/addon.node");
        fix.git(&["add", ".opencode/node_modules/x"]);
        let before = keys().expect("read");
        assert_eq!(before.len(), 1);
        assert_eq!(before[0].0, ".opencode/node_modules");
        fs::write(fix.repo.join(".opencode/node_modules/x/addon.node"), [0, 159, 146, 150]).expect("written");
        assert_ne!(keys().expect("read")[0].1, before[0].1, "another content");
        std::os::unix::fs::symlink("../../elsewhere", fix.repo.join(".opencode/node_modules/link")).expect("linked");
        fs::create_dir(fix.repo.join("elsewhere")).expect("made");
        fix.git(&["add", ".opencode/node_modules/link"]);
        assert!(
            keys().is_err_and(|why| why.contains("not a file")),
            "git does not track what is behind the link there"
        );
    }

    #[test]
    fn files_of_agents_in_submodules_are_found_also_in_a_worktree() {
        let fix = Fixture::new();
        let lib = fix.root.join("lib");
        fix.at(&fix.root, &["init", "-q", "-b", "main", "lib"]);
        for name in [".claude/settings.json", "node_modules/a/.claude/settings.json"] {
            put(&lib, name);
        }
        fix.at(&lib, &["add", "."]);
        fix.at(&lib, &["commit", "-q", "-m", "library"]);
        let allow = ["-c", "protocol.file.allow=always"];
        for place in ["lib", "node_modules/lib"] {
            fix.git(&[&allow[..], &["submodule", "--quiet", "add", "../lib", place]].concat());
        }
        fix.git(&["commit", "-q", "-m", "libraries"]);
        let tree = fix.root.join("w");
        fix.git(&["worktree", "add", "-q", tree.to_str().expect("text")]);
        assert_eq!(loaded(&tree), [""; 0], "they are not checked out");
        fix.at(&tree, &[&allow[..], &["submodule", "--quiet", "update", "--init"]].concat());
        let expected = [
            "lib/.claude/settings.json",
            "lib/node_modules/a/.claude/settings.json",
            "node_modules/lib/.claude/settings.json",
            "node_modules/lib/node_modules/a/.claude/settings.json",
        ];
        assert_eq!(
            (loaded(&fix.repo), loaded(&tree)),
            (expected.map(str::to_owned).to_vec(), expected.map(str::to_owned).to_vec())
        );
        // A worktree in the checkout is a root of its own, whatever it has.
        let inner = fix.repo.join("inner");
        fix.git(&["worktree", "add", "-q", "--detach", inner.to_str().expect("text")]);
        put(&inner, "x/.claude/settings.json");
        assert_eq!(loaded(&fix.repo), expected);
    }

    #[test]
    fn an_index_is_replaced_unless_it_is_locked() {
        let fix = Fixture::new();
        let git_dir = fix.repo.join(".git");
        let (lock, index) = (git_dir.join("index.lock"), git_dir.join("index"));
        let new = || {
            let scratch = Scratch::new(&git_dir, "index");
            fs::copy(&index, scratch.path()).expect("copied");
            scratch
        };
        fs::write(fix.repo.join("new"), "new\n").expect("written");
        let made = new();
        let file = made.path().to_str().expect("text").to_owned();
        fix.cli().write(&fix.repo).env("GIT_INDEX_FILE", &file).args(["add", "new"]).run().expect("added");
        fs::write(&lock, "").expect("locked");
        install(&made, &git_dir).expect_err("the index is locked");
        clear_own_lock(&git_dir).expect("looked");
        assert!(lock.exists(), "it is not ours");
        fs::remove_file(&lock).expect("released");
        install(&made, &git_dir).expect("installed");
        drop(made);
        assert_eq!(text(&fix.git(&["status", "--porcelain"])), "A  new");
        // Killed between link and rename, and so before its scratch file was removed.
        let cut_off = new();
        fs::hard_link(cut_off.path(), &lock).expect("linked");
        clear_own_lock(&git_dir).expect("looked");
        assert!(lock.exists(), "this process may be at it");
        let elsewhere = git_dir.join(format!("swarm-index-{}-0", crate::repository::writer::in_another_namespace()));
        fs::rename(cut_off.path(), &elsewhere).expect("of another container");
        clear_own_lock(&git_dir).expect("looked");
        assert!(lock.exists(), "its process may live");
        fs::rename(&elsewhere, git_dir.join("swarm-index-1-0")).expect("of a process before");
        drop(cut_off);
        clear_own_lock(&git_dir).expect("cleared");
        assert!(!lock.exists());
        let left = fs::read_dir(&git_dir).expect("listed").flatten();
        assert_eq!(left.filter(|file| file.file_name().to_string_lossy().starts_with("swarm-")).count(), 0);
    }
}
