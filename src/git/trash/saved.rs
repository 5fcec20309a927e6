//! Reads the saves of removed worktrees: the refs under `refs/swarm/trash/`.

use std::path::{Path, PathBuf};

use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::trash::save::UNMERGED;

pub const PREFIX: &str = "refs/swarm/trash/";
const FORMAT: &str = "%(refname)%00%(objectname)%00%(tree)%00%(parent)%00%(committerdate:unix)%00%(contents)%00";
const FIELDS: usize = 6;

/// A save: one worktree as it was before its removal, or commits that only the reflog of a branch had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Save {
    pub reference: String,
    pub commit: String,
    /// Tree of the files.
    pub tree: String,
    /// Name of the worker, as in the ref.
    pub name: String,
    /// Time and a unique number, the last component of the ref.
    pub stamp: String,
    /// Rank among the saves with this name; the newest is 1.
    pub number: usize,
    pub at_ms: u64,
    /// Path of the removed worktree.
    pub path: Option<PathBuf>,
    /// Full ref name of the branch that was checked out.
    pub branch: Option<String>,
    pub head: Option<String>,
    /// git operation that was in progress.
    pub doing: Option<String>,
    /// Number of paths that differed from HEAD or the index, if it was recorded.
    pub changes: Option<usize>,
    /// Commits that hold the index and the metadata.
    pub(crate) index: Option<String>,
    pub(crate) metadata: Option<String>,
    /// Changes that an unfinished rebase had stashed.
    pub(crate) autostash: Option<String>,
    /// Of a save of commits without a worktree: its commits apart from HEAD.
    pub commits: Option<Vec<String>>,
}

impl Save {
    /// Returns the id `NAME@N` that users type.
    pub fn id(&self) -> String {
        format!("{}@{}", self.name, self.number)
    }
}

/// Lists all saves of a repository, newest first.
pub(crate) fn list(cli: &Cli, common: &Path) -> Result<Vec<Save>, Fault> {
    let format = format!("--format={FORMAT}");
    Ok(parse(&cli.read(common).args(["for-each-ref", &format, PREFIX]).run()?))
}

fn parse(out: &[u8]) -> Vec<Save> {
    let text = String::from_utf8_lossy(out);
    let fields: Vec<&str> = text.split('\0').collect();
    let mut saves: Vec<Save> = fields.chunks_exact(FIELDS).filter_map(read).collect();
    saves.sort_by(|a, b| (b.at_ms, &b.reference).cmp(&(a.at_ms, &a.reference)));
    for at in 0..saves.len() {
        let newer = saves[..at].iter().filter(|one| one.name == saves[at].name).count();
        saves[at].number = newer + 1;
    }
    saves
}

fn read(fields: &[&str]) -> Option<Save> {
    let [reference, commit, tree, parents, seconds, message] = fields else { return None };
    // Each record ends with a newline, which is read as part of the next record.
    let reference = reference.trim_start_matches('\n');
    let (name, stamp) = reference.strip_prefix(PREFIX)?.rsplit_once('/')?;
    let field = |key: &str| {
        let value = message.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))?;
        Some(value.to_owned()).filter(|value| value != "(none)")
    };
    let head = field("HEAD");
    // Saves of an earlier version do not say which parent is the index.
    let index = field("Index").or_else(|| {
        let mut parents = parents.split(' ').filter(|parent| head.as_deref() != Some(*parent) && !parent.is_empty());
        parents.next().map(str::to_owned)
    });
    Some(Save {
        reference: reference.to_owned(),
        commit: (*commit).to_owned(),
        tree: (*tree).to_owned(),
        name: name.to_owned(),
        stamp: stamp.to_owned(),
        number: 0,
        at_ms: seconds.parse::<u64>().ok()?.saturating_mul(1000),
        path: field("Path").map(PathBuf::from),
        branch: field("Branch"),
        head,
        doing: field("Doing"),
        changes: field("Changes").and_then(|count| count.parse().ok()),
        index,
        metadata: field("Particulars"),
        autostash: field("Autostash"),
        commits: field("Commits").map(|ids| ids.split_whitespace().map(str::to_owned).collect()),
    })
}

/// Finds a save by `NAME` (its newest), `NAME@N`, `NAME/STAMP` or the ref.
pub fn find<'a>(saves: &'a [Save], what: &str) -> Option<&'a Save> {
    let what = what.strip_prefix(PREFIX).unwrap_or(what);
    let numbered = what.rsplit_once('@').and_then(|(name, number)| Some((name, number.parse::<usize>().ok()?)));
    let is_meant = |save: &&Save| {
        what == format!("{}/{}", save.name, save.stamp) || numbered == Some((save.name.as_str(), save.number))
    };
    saves.iter().find(is_meant).or_else(|| saves.iter().find(|save| save.name == what))
}

/// Returns the bytes on disk of objects that are reachable from this save and not from its HEAD, or from no branch if it
/// is one of commits.
pub(crate) fn bytes(cli: &Cli, common: &Path, save: &Save) -> Result<u64, Fault> {
    let call = cli.read(common).args(["rev-list", "--objects", "--disk-usage", &save.commit]);
    let call = match &save.head {
        // No branch has them.
        _ if save.commits.is_some() => call.args(["--not", "--branches", "--tags", "--remotes"]),
        Some(head) => call.args(["--not", head]),
        None => call,
    };
    let said = call.line()?;
    said.trim().parse().map_err(|_| Fault::new(format!("unexpected disk usage of {}: {said}", save.reference)))
}

/// Reports whether the index of a save is saved by stages, because it had conflicts.
pub(crate) fn is_unmerged(cli: &Cli, common: &Path, index: &str) -> Result<bool, Fault> {
    let subject = cli.read(common).args(["show", "-s", "--no-show-signature", "--format=%s", index, "--"]).line()?;
    Ok(subject.starts_with(UNMERGED))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(reference: &str, seconds: u64, message: &str) -> String {
        format!("{reference}\0c{seconds}\0t\0h i p\0{seconds}\0{message}\0\n")
    }

    #[test]
    fn saves_are_numbered_from_the_newest_and_found_by_any_of_their_names() {
        let message = "swarm: saved worktree of w\n\nWorker: w\nPath: /r/w\nBranch: refs/heads/w\nHEAD: h\nDoing: a merge\nChanges: 3\nIndex: i\nParticulars: p\n";
        let old = "swarm: saved worktree of x\n\nWorker: x\nPath: /r/x\nBranch: (none)\nHEAD: h\n";
        let text = [
            record("refs/swarm/trash/w/A-1", 5, message),
            record("refs/swarm/trash/w/B-2", 9, message),
            record("refs/swarm/trash/x/C-3", 7, old),
            record("refs/swarm/other", 7, old),
        ];
        let saves = parse(text.concat().as_bytes());
        let ids: Vec<String> = saves.iter().map(Save::id).collect();
        assert_eq!(ids, ["w@1", "x@1", "w@2"]);
        let (new, old) = (&saves[0], &saves[1]);
        assert_eq!((new.path.as_deref(), new.branch.as_deref()), (Some(Path::new("/r/w")), Some("refs/heads/w")));
        assert_eq!((new.doing.as_deref(), new.changes, new.at_ms), (Some("a merge"), Some(3), 9000));
        assert_eq!((new.index.as_deref(), new.metadata.as_deref()), (Some("i"), Some("p")));
        assert_eq!((old.branch.as_deref(), old.index.as_deref(), old.metadata.as_deref()), (None, Some("i"), None));
        for (what, stamp) in [("w", "B-2"), ("w@2", "A-1"), ("w/A-1", "A-1"), ("refs/swarm/trash/x/C-3", "C-3")] {
            assert_eq!(find(&saves, what).map(|save| save.stamp.as_str()), Some(stamp), "{what}");
        }
        assert_eq!((find(&saves, "w@3"), find(&saves, "nobody")), (None, None));
    }
}
