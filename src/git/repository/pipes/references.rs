//! Named pipes in place of references. git and libgit2 open the file of a reference, and libgit2 waits without a limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use git2::{Reference, Repository};
use swarm_sys::files::list;

use super::{is_pipe, is_pipe_at};
use crate::worktrees::{admin, record};

/// Maximum number of symbolic refs in a row, as in git.
const SYMBOLIC_MAX: u32 = 5;
/// Time limit for a search through all references.
const SEARCH_MAX: Duration = Duration::from_secs(5);
/// Files that git reads in the record of every worktree, apart from HEAD.
const OF_RECORD: [&str; 2] = ["gitdir", "commondir"];
/// Places in which git looks for a short name, by what comes before and after it.
const PLACES: [(&str, &str); 6] = [
    ("", ""),
    ("refs/", ""),
    ("refs/tags/", ""),
    ("refs/heads/", ""),
    ("refs/remotes/", ""),
    ("refs/remotes/", "/HEAD"),
];

/// Returns the pipe in place of a reference, or of one that it leads to as a symbolic ref.
pub(crate) fn in_reference(git_dir: &Path, common: &Path, name: &str) -> Option<PathBuf> {
    let mut name = name.to_owned();
    for _ in 0..=SYMBOLIC_MAX {
        // libgit2 and git reject any other name.
        if !Reference::is_valid_name(&name) {
            return None;
        }
        let file = if name.starts_with("refs/") { common.join(&name) } else { git_dir.join(&name) };
        if is_pipe_at(&file) {
            return Some(file);
        }
        name = target_of(&file)?;
    }
    None
}

/// Like [`in_reference`], in an open repository.
pub(crate) fn in_reference_of(repo: &Repository, name: &str) -> Option<PathBuf> {
    in_reference(repo.path(), repo.commondir(), name)
}

/// Returns a pipe that git may read to find out which commit a revision means.
pub(crate) fn in_revision(repo: &Repository, revision: &str) -> Option<PathBuf> {
    let short = revision.split(['~', '^', '@', ':']).next().unwrap_or(revision);
    PLACES.iter().find_map(|(before, after)| in_reference_of(repo, &format!("{before}{short}{after}")))
}

/// Returns a pipe among the references below `dir`, a directory of references. `None` if the search takes too long.
pub(crate) fn below(dir: &Path) -> Option<PathBuf> {
    let deadline = Instant::now() + SEARCH_MAX;
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop().filter(|_| Instant::now() < deadline) {
        for entry in list(&dir).unwrap_or_default() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(_) if is_pipe(&entry).unwrap_or_default() => return Some(entry.path()),
                _ => {}
            }
        }
    }
    None
}

/// Returns a pipe in the records of all worktrees, or among the references. git reads them to learn which branches are
/// checked out.
pub(super) fn anywhere(git_dir: &Path, common: &Path) -> Option<PathBuf> {
    let records = admin::entries(common).unwrap_or_default();
    let of_record = |record: &PathBuf| {
        let files = OF_RECORD.iter().map(|name| record.join(name)).find(|file| is_pipe_at(file));
        files.or_else(|| in_reference(record, common, "HEAD"))
    };
    let found = records.iter().find_map(of_record).or_else(|| below(&common.join("refs")));
    found.or_else(|| Some(git_dir).filter(|dir| *dir != common).and_then(|dir| below(&dir.join("refs"))))
}

/// Returns the name to which a reference leads. `None` if it is not symbolic, or cannot be read.
fn target_of(file: &Path) -> Option<String> {
    // With `core.preferSymlinkRefs`, it is a link.
    if let Ok(to) = fs::read_link(file)
        && let Some(to) = to.to_str().filter(|to| to.starts_with("refs/"))
    {
        return Some(to.to_owned());
    }
    let text = record::read_linked(file).ok()?;
    let text = String::from_utf8(text).ok()?;
    text.strip_prefix("ref:").map(|name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;
    use crate::fixture::Fixture;
    use crate::repository::pipes::{in_repository, in_repository_anew};
    use crate::repository::{listed, objects};

    fn pipe(path: &Path) {
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        let _ = fs::remove_file(path);
        mkfifo(path, Mode::S_IRWXU).expect("made");
    }

    #[test]
    fn libgit2_waits_for_no_pipe_in_place_of_a_reference() {
        let fix = Fixture::new();
        let git = fix.repo.join(".git");
        fix.git(&["symbolic-ref", "refs/heads/leads", "refs/heads/w"]);
        let repo = objects::open(&fix.repo).expect("open");
        let branch = git.join("refs/heads/w");
        assert_eq!(objects::tip(&repo, "w"), Ok(None));
        pipe(&branch);
        for name in ["w", "leads"] {
            let held = objects::tip(&repo, name).expect_err("held up");
            assert!(held.message().contains("refs/heads/w, which is a named pipe"), "{held:?}");
            for revision in [name.to_owned(), format!("{name}~1"), format!("heads/{name}^{{commit}}")] {
                assert_eq!(in_revision(&repo, &revision).as_ref(), Some(&branch), "{revision}");
            }
        }
        assert_eq!(objects::remove_merged_branch(&fix.repo, "w", "main").ok(), None);
        assert_eq!(objects::tip(&repo, "main").map(|tip| tip.is_some()), Ok(true));
        assert_eq!((in_revision(&repo, "main~1"), in_repository(&fix.repo)), (None, None));
        assert_eq!(in_repository_anew(&fix.repo).as_ref(), Some(&branch), "git may read all references");
        // git itself would wait.
        fs::write(git.join("HEAD"), "ref: refs/heads/w\n").expect("written");
        assert_eq!(in_repository(&fix.repo).as_ref(), Some(&branch), "HEAD leads to it");
    }

    #[test]
    fn pipes_in_the_record_of_a_worktree_are_named_and_not_waited_for() {
        let fix = Fixture::new();
        let tree = fix.root.join("w");
        fix.git(&["worktree", "add", "-q", "-b", "w", tree.to_str().expect("text")]);
        let (common, record) = (fix.repo.join(".git"), fix.repo.join(".git/worktrees/w"));
        assert_eq!(listed::worktrees_of(&fix.repo).expect("read")[0].branch.as_deref(), Some("w"));
        let saved = fix.root.join("saved");
        for name in ["HEAD", "gitdir", "commondir"] {
            fs::rename(record.join(name), &saved).expect("moved");
            pipe(&record.join(name));
            assert_eq!(in_repository_anew(&common), Some(record.join(name)));
            assert_eq!(in_repository(&common), None, "libgit2 reads no records");
            let listed = listed::worktrees_of(&fix.repo).expect("read");
            assert!(name == "commondir" || listed.iter().all(|one| one.branch.is_none()), "{listed:?}");
            if name == "HEAD" {
                fix.git(&["branch", "merged"]);
                assert_eq!(objects::remove_merged_branch(&fix.repo, "merged", "main").ok(), Some(false));
            }
            fs::remove_file(record.join(name)).expect("removed");
            fs::rename(&saved, record.join(name)).expect("moved");
        }
        std::os::unix::fs::symlink("refs/heads/other", &saved).expect("linked");
        fs::rename(&saved, record.join("HEAD")).expect("moved");
        assert_eq!(in_reference(&record, &common, "HEAD"), None);
        pipe(&common.join("refs/heads/other"));
        assert_eq!(in_reference(&record, &common, "HEAD"), Some(common.join("refs/heads/other")));
    }
}
