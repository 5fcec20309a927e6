//! Basic facts of a repository: toplevel, HEAD, and the requested base and branch.
//! libgit2 reads them in-process, which saves a fork; repositories that it rejects
//! (reftable, SHA-256, partial clones, another owner) are read with `git`.

use std::path::{Path, PathBuf};

use git2::{ErrorCode, Oid, Reference, Repository, RepositoryOpenFlags};
use swarm_model::BaseRef;
use swarm_sys::files::{is_absent, list_if_present};

use super::cli::{Cli, CliError};
use super::deletion;
use super::fault::Fault;
use super::pipes;
use crate::worktrees::record;

/// Query for the facts of a repository.
pub(crate) struct Question<'a> {
    /// Directory in which the search for the repository starts.
    pub(crate) cwd: &'a Path,
    pub(crate) branch: &'a str,
    pub(crate) base: Option<&'a str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// `None` for a bare repository.
    pub(crate) toplevel: Option<PathBuf>,
    /// `None` if there is no commit yet.
    pub(crate) head: Option<BaseRef>,
    /// `None` if no base was requested or there is no such commit.
    pub(crate) base: Option<BaseRef>,
    /// Tip of the requested branch, if it exists.
    pub(crate) tip: Option<String>,
    /// Existing branch whose name conflicts with the requested one, as `w` with `w/x`.
    pub(crate) clash: Option<String>,
}

/// Opens the repository around a directory with libgit2.
pub(crate) fn discover(cli: &Cli, dir: &Path) -> Result<Repository, git2::Error> {
    let ceilings = cli.variable("GIT_CEILING_DIRECTORIES").unwrap_or_default();
    let ceilings = ceilings.split(':').filter(|dir| !dir.is_empty());
    refuse_pipes(dir)?;
    Repository::open_ext(dir, RepositoryOpenFlags::empty(), ceilings)
}

/// Opens a repository by its git directory or its worktree with libgit2.
pub(crate) fn open(path: &Path) -> Result<Repository, git2::Error> {
    refuse_pipes(path)?;
    Repository::open(path)
}

/// Fails if libgit2 would wait for a pipe. git then waits as well, but with a limit.
fn refuse_pipes(path: &Path) -> Result<(), git2::Error> {
    pipes::in_repository(path).map_or(Ok(()), |pipe| Err(held_by(pipe)))
}

/// Returns the error of a call of libgit2 that would wait for a pipe.
pub(crate) fn held_by(pipe: PathBuf) -> git2::Error {
    git2::Error::from_str(&CliError::Pipe(pipe).to_string())
}

/// Looks up a reference. Fails if libgit2 would wait for a pipe in its place, or in that of one that it leads to.
pub(crate) fn find_reference<'a>(repo: &'a Repository, name: &str) -> Result<Reference<'a>, git2::Error> {
    pipes::in_reference_of(repo, name).map_or_else(|| repo.find_reference(name), |pipe| Err(held_by(pipe)))
}

/// Returns the common directory of the repository around `dir`, without a trailing slash.
pub(crate) fn common_dir(cli: &Cli, dir: &Path) -> Result<String, CliError> {
    let known = discover(cli, dir).ok().and_then(|repo| repo.commondir().to_str().map(str::to_owned));
    match known {
        Some(common) => Ok(common.trim_end_matches('/').to_owned()),
        None => cli.read(dir).args(["rev-parse", "--path-format=absolute", "--git-common-dir"]).line(),
    }
}

/// Reports whether git accepts `branch` as a branch name.
pub(crate) fn is_branch_name(branch: &str) -> bool {
    let special = branch.starts_with('-') || branch == "HEAD" || branch == "@";
    !special && !branch.is_empty() && Reference::is_valid_name(&format!("refs/heads/{branch}"))
}

pub(crate) fn read_facts(cli: &Cli, question: &Question<'_>) -> Result<Facts, Fault> {
    match by_library(cli, question) {
        // libgit2 does not know every revision syntax.
        Ok(facts) if question.base.is_none() || facts.base.is_some() => Ok(facts),
        _ => by_command(cli, question),
    }
}

/// Yields the names that cannot exist next to a branch: `a` and `a/b` for `a/b/c`.
fn names_above(branch: &str) -> impl Iterator<Item = &str> {
    branch.match_indices('/').map(|(at, _)| &branch[..at])
}

fn by_library(cli: &Cli, question: &Question<'_>) -> Result<Facts, git2::Error> {
    let repo = discover(cli, question.cwd)?;
    let toplevel = repo.workdir().filter(|_| !repo.is_bare());
    let head = match repo.head() {
        Ok(head) => {
            let branch = if head.is_branch() { Some(head.shorthand()?.to_owned()) } else { None };
            Some(BaseRef { branch, commit: head.peel_to_commit()?.id().to_string() })
        }
        Err(error) if error.code() == ErrorCode::UnbornBranch => None,
        Err(error) => return Err(error),
    };
    let base = question.base.and_then(|base| {
        let local = base.strip_prefix("refs/heads/").unwrap_or(base);
        // git itself would prefer a tag of that name, which says nothing about the branch.
        if let Some(commit) = tip(&repo, local).ok().flatten().filter(|_| is_branch_name(local)) {
            return Some(BaseRef { branch: Some(local.to_owned()), commit });
        }
        let is_held = pipes::in_revision(&repo, base).is_some();
        let commit =
            repo.revparse_single(Some(base).filter(|_| !is_held)?).ok()?.peel_to_commit().ok()?.id().to_string();
        Some(BaseRef { branch: None, commit })
    });
    let mut clash = None;
    for name in names_above(question.branch) {
        if tip(&repo, name)?.is_some() {
            clash = Some(name.to_owned());
        }
    }
    if let Some(pipe) = pipes::below(&repo.commondir().join("refs/heads").join(question.branch)) {
        return Err(held_by(pipe));
    }
    if let Some(below) = repo.references_glob(&format!("refs/heads/{}/*", question.branch))?.names().next() {
        clash = below?.strip_prefix("refs/heads/").map(str::to_owned);
    }
    Ok(Facts { toplevel: toplevel.map(Path::to_owned), head, base, tip: tip(&repo, question.branch)?, clash })
}

/// Returns the tip of a local branch in a repository that is open. `None` if there is no such branch.
pub(crate) fn tip(repo: &Repository, branch: &str) -> Result<Option<String>, git2::Error> {
    match find_reference(repo, &format!("refs/heads/{branch}")) {
        Ok(reference) => Ok(Some(reference.peel_to_commit()?.id().to_string())),
        Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::InvalidSpec) => Ok(None),
        Err(error) => Err(error),
    }
}

fn by_command(cli: &Cli, question: &Question<'_>) -> Result<Facts, Fault> {
    let at = question.cwd;
    let is_bare = cli.read(at).args(["rev-parse", "--is-bare-repository"]).line()? == "true";
    let toplevel = match is_bare {
        true => None,
        false => Some(PathBuf::from(cli.read(at).args(["rev-parse", "--show-toplevel"]).line()?)),
    };
    let head = match commit(cli, at, "HEAD")? {
        Some(commit) => {
            let full = cli.read(at).args(["symbolic-ref", "-q", "HEAD"]).line_if_any()?;
            let branch = full.and_then(|name| name.strip_prefix("refs/heads/").map(str::to_owned));
            Some(BaseRef { branch, commit })
        }
        None => None,
    };
    let base = match question.base {
        Some(base) => {
            let local = base.strip_prefix("refs/heads/").unwrap_or(base);
            match branch_tip(cli, at, local)? {
                Some(commit) => Some(BaseRef { branch: Some(local.to_owned()), commit }),
                None => commit(cli, at, base)?.map(|commit| BaseRef { branch: None, commit }),
            }
        }
        None => None,
    };
    let mut clash = None;
    for name in names_above(question.branch) {
        if branch_tip(cli, at, name)?.is_some() {
            clash = Some(name.to_owned());
        }
    }
    let below = format!("refs/heads/{}/", question.branch);
    let below = cli.read(at).args(["for-each-ref", "--count=1", "--format=%(refname)", &below]).line()?;
    let clash = below.strip_prefix("refs/heads/").map(str::to_owned).or(clash);
    Ok(Facts { toplevel, head, base, tip: branch_tip(cli, at, question.branch)?, clash })
}

/// Resolves a revision to a commit. Returns `None` if there is no such commit.
pub(crate) fn commit(cli: &Cli, at: &Path, name: &str) -> Result<Option<String>, CliError> {
    // HEAD is resolved very often, so libgit2 tries first; git handles every unusual case.
    if name == "HEAD"
        && let Ok(commit) = open(at).and_then(|repo| Ok(repo.head()?.peel_to_commit()?.id().to_string()))
    {
        return Ok(Some(commit));
    }
    let name = format!("{name}^{{commit}}");
    match cli.read(at).args(["rev-parse", "--verify", "-q", "--end-of-options", &name]).line_if_any() {
        // git exits with 128 if the name exists but is not a commit.
        Err(CliError::Exit { code: 128, .. }) if name != "HEAD^{commit}" => Ok(None),
        other => other,
    }
}

/// Reports whether objects may be missing that git fetches when it needs them. `true` if the configuration does not tell.
pub(crate) fn may_be_partial(git_dir: &Path) -> bool {
    let common = record::read_text(&git_dir.join("commondir")).map(|text| git_dir.join(text.trim_end()));
    let config = common.unwrap_or_else(|_| git_dir.to_owned()).join("config");
    let known = record::read_linked(&config).map(|text| String::from_utf8_lossy(&text).to_lowercase());
    known.map_or(true, |text| ["promisor", "partialclone", "include"].iter().any(|word| text.contains(word)))
}

/// Returns the commit of HEAD and the ref that HEAD points to, using libgit2 alone.
pub(crate) fn head_of(git_dir: &Path) -> Result<(String, Option<String>), git2::Error> {
    let repo = open(git_dir)?;
    let commit = repo.head()?.peel_to_commit()?.id().to_string();
    let head = repo.find_reference("HEAD")?;
    Ok((commit, head.symbolic_target()?.map(str::to_owned)))
}

/// Returns what [`head_of`] returns for the record of a worktree, which need not lead to its common directory. `None` if only
/// git can tell.
pub(crate) fn head_of_record(common: &Path, record: &Path) -> Option<(String, Option<String>)> {
    let text = record::read_text(&record.join("HEAD")).ok()?;
    let repo = open(common).ok()?;
    match text.trim_end().strip_prefix("ref: ") {
        // Others may belong to the worktree alone.
        Some(name) if name.starts_with("refs/heads/") => {
            let commit = find_reference(&repo, name).ok()?.peel_to_commit().ok()?;
            Some((commit.id().to_string(), Some(name.to_owned())))
        }
        Some(_) => None,
        None => Some((repo.find_commit(Oid::from_str(text.trim_end()).ok()?).ok()?.id().to_string(), None)),
    }
}

/// Returns the ref that HEAD points to, or `None` if HEAD is detached.
pub(crate) fn head_ref(cli: &Cli, at: &Path) -> Result<Option<String>, CliError> {
    symbolic_target(cli, at, "HEAD")
}

/// Returns the ref that a symbolic ref points to, which may be symbolic as well. `None` for any other ref.
pub(crate) fn symbolic_target(cli: &Cli, at: &Path, name: &str) -> Result<Option<String>, CliError> {
    let known = open(at).and_then(|repo| Ok(find_reference(&repo, name)?.symbolic_target()?.map(str::to_owned)));
    match known {
        Ok(known) => Ok(known),
        Err(_) => cli.read(at).args(["symbolic-ref", "-q", name]).line_if_any(),
    }
}

/// Returns the tip of a local branch, or `None` if there is no such branch.
pub(crate) fn branch_tip(cli: &Cli, at: &Path, branch: &str) -> Result<Option<String>, CliError> {
    if !is_branch_name(branch) {
        return Ok(None);
    }
    if let Ok(tip) = open(at).and_then(|repo| tip(&repo, branch)) {
        return Ok(tip);
    }
    let out = cli
        .read(at)
        .args(["for-each-ref", "--format=%(refname) %(objectname)"])
        .arg(format!("refs/heads/{branch}"))
        .line()?;
    let wanted = format!("refs/heads/{branch} ");
    Ok(out.lines().find_map(|line| line.strip_prefix(&wanted)).map(str::to_owned))
}

/// Deletes a branch that is fully merged into `base`, unless it is checked out somewhere
/// or moves at the same time. Returns whether it was deleted. Fails if libgit2 cannot tell, or if something of it must be
/// saved first.
pub(crate) fn remove_merged_branch(root: &Path, branch: &str, base: &str) -> Result<bool, git2::Error> {
    let repo = open(root)?;
    let full = format!("refs/heads/{branch}");
    let reference = match find_reference(&repo, &full) {
        Err(error) if error.code() == ErrorCode::NotFound => return Ok(false),
        found => found?,
    };
    let (tip, onto) = (reference.peel_to_commit()?.id(), find_reference(&repo, &format!("refs/heads/{base}"))?);
    let onto = onto.peel_to_commit()?.id();
    if tip != onto && !repo.graph_descendant_of(onto, tip)? {
        return Ok(false);
    }
    let common = repo.commondir();
    // A branch that may be checked out stays.
    let Ok(entries) = list_if_present(&common.join("worktrees")) else { return Ok(false) };
    let mut heads = entries.iter().map(|entry| entry.path().join("HEAD")).chain([common.join("HEAD")]);
    let is_held = |head: PathBuf| match record::read_linked(&head) {
        Ok(text) => text.trim_ascii_end().ends_with(full.as_bytes()),
        Err(_) => !is_absent(&head),
    };
    if heads.any(is_held) {
        return Ok(false);
    }
    // The deletion compares the ref with the value read above.
    deletion::delete_landed(&repo, &full, reference, onto).map(|()| true)
}

/// Reports whether a branch exists, with libgit2 if possible.
pub(crate) fn has_branch(cli: &Cli, repo: &Path, branch: &str) -> Result<bool, Fault> {
    let fast = open(repo).and_then(|repo| tip(&repo, branch));
    match fast {
        Ok(tip) => Ok(tip.is_some()),
        Err(_) => Ok(branch_tip(cli, repo, branch)?.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Fixture, text};

    #[test]
    fn branch_names_are_checked_as_by_git() {
        for good in ["w", "a/b", "ü", "v1.2", "a@b"] {
            assert!(is_branch_name(good), "{good}");
        }
        for bad in ["", "-x", "a..b", "a@{1}", "HEAD", "@", "a b", "a.lock", "/a", "a/", "a~1", "x:y", "a\\b", ".a"] {
            assert!(!is_branch_name(bad), "{bad}");
        }
    }

    #[test]
    fn library_and_command_see_the_same() {
        let fix = Fixture::new();
        fix.git(&["branch", "a/b"]);
        fix.git(&["tag", "-a", "-m", "t", "t1"]);
        fix.git(&["tag", "main"]);
        fix.commit("second", "f", "2");
        let cli = fix.cli();
        for (branch, base) in [
            ("w", None),
            ("main", Some("t1")),
            ("a", Some("a/b")),
            ("a/b/c", Some("refs/heads/main")),
            ("x", Some("nothing")),
            ("x", Some("main")),
            ("x", Some("tags/main")),
            ("y", Some("HEAD~1")),
            ("z", Some("HEAD:f")),
        ] {
            let question = Question { cwd: &fix.repo, branch, base };
            let library = by_library(&cli, &question).unwrap();
            assert_eq!(
                library.toplevel.as_deref(),
                Some(fix.repo.as_path()),
                "libgit2 ends the path with a slash or not"
            );
            assert_eq!(library, by_command(&cli, &question).unwrap(), "{branch} {base:?}");
            if base == Some("main") {
                let commit = text(&fix.git(&["rev-parse", "refs/heads/main"]));
                assert_eq!(library.base, Some(BaseRef { branch: Some("main".into()), commit }), "not the tag");
            }
        }
        fix.git(&["checkout", "-q", "--detach"]);
        let question = Question { cwd: &fix.repo, branch: "w", base: None };
        let facts = by_library(&cli, &question).unwrap();
        assert_eq!(facts, by_command(&cli, &question).unwrap());
        let head = BaseRef { branch: None, commit: text(&fix.git(&["rev-parse", "HEAD"])) };
        assert_eq!(facts.head, Some(head));
    }

    #[test]
    fn repositories_that_libgit2_rejects_are_read_by_git() {
        let fix = Fixture::new();
        fix.git(&["config", "core.repositoryFormatVersion", "1"]);
        fix.git(&["config", "extensions.partialClone", "origin"]);
        let cli = fix.cli();
        let question = Question { cwd: &fix.repo, branch: "w", base: Some("main") };
        assert!(by_library(&cli, &question).is_err());
        let facts = read_facts(&cli, &question).unwrap();
        assert_eq!(facts.base.unwrap().branch.as_deref(), Some("main"));
        assert!(has_branch(&cli, &fix.repo, "main").unwrap());
        assert!(!has_branch(&cli, &fix.repo, "mai").unwrap());
    }
}
