//! Clones for the runs of other machines: made here, filled and read over the line. Nobody works in the clone itself. Its
//! HEAD names a branch that never exists, and only worktrees of it are checked out.

mod strays;

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use swarm_model::Caller;

use crate::landing::complete::pinned;
use crate::landing::site::CompletionRepo;
use crate::repository::cli::Cli;
use crate::repository::durable::sync_file_systems;
use crate::repository::fault::Fault;
use crate::repository::plain_ref::{self, Before, Entry};
use crate::repository::{deletion, objects, parse};
use crate::worktrees::record;
use swarm_sys::files::{is_absent, remove_tree};

pub use self::strays::{keep_stray, move_aside, other_users, set_back, strays};
pub use crate::carry::is_commit_id;
pub use crate::landing::keep::{Kept, keep};

/// Namespace of the refs that keep what was sent here; each is named after its commit.
pub const SENT: &str = "refs/swarm/in";
/// Branch that HEAD of a clone names.
const UNBORN: &str = "swarm-unborn";
/// Settings of a clone. No hooks run. Nothing is pruned by git itself: commits that a run names may be reachable from
/// no ref. Whatever is received is durable.
const SETTINGS: &str = "[core]\n\thooksPath = /dev/null\n\tfsync = committed,loose-object,reference\n[receive]\n\t\
                        shallowUpdate = true\n\tdenyCurrentBranch = ignore\n\tautogc = false\n[gc]\n\tauto = 0\n";

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub cause: String,
    /// A later try may succeed although nobody changes anything.
    pub passes: bool,
}

impl<F: Into<Fault>> From<F> for Failure {
    fn from(fault: F) -> Self {
        let Fault { cause, remedy, transient, killed, passes, .. } = fault.into();
        let is_full = ["No space left on device", "Disk quota exceeded"].iter().any(|sign| cause.contains(sign));
        let cause = remedy.map_or_else(|| cause.clone(), |remedy| format!("{cause} ({remedy})"));
        Self { cause, passes: transient || killed || passes || is_full }
    }
}

fn cli(caller: &Caller) -> Result<Cli, Failure> {
    Ok(Cli::new(caller)?)
}

/// Makes a clone without a commit at `dir`, unless it is there. The caller must hold a lock, so that nobody else makes it.
///
/// # Errors
/// Fails if the clone that is there has another object format, or if git or the system fails.
pub fn make_clone(dir: &Path, format: &str, caller: &Caller) -> Result<(), Failure> {
    let cli = cli(caller)?;
    if dir.join(".git/HEAD").exists() {
        let known = cli.read(dir).args(["rev-parse", "--show-object-format"]).line()?;
        let cause = || format!("the clone {} has object format {known}, not {format}", dir.display());
        return if known == format { Ok(()) } else { Err(Fault::new(cause()).into()) };
    }
    let failed = |error: io::Error| Failure::from(Fault::at(dir)(error));
    let Some(above) = dir.parent() else { return Err(failed(io::ErrorKind::InvalidInput.into())) };
    // A process that was killed may have left a part of a clone.
    let temporary = above.join(".clone.tmp");
    remove_tree(&temporary).map_err(failed)?;
    fs::create_dir(&temporary).map_err(failed)?;
    let words = ["init", "-q", "--template="].map(str::to_owned);
    let named = [format!("--object-format={format}"), format!("--initial-branch={UNBORN}")];
    cli.write(&temporary).args(words.into_iter().chain(named)).run()?;
    let config = temporary.join(".git/config");
    let text = fs::read_to_string(&config).map_err(failed)? + SETTINGS;
    fs::write(&config, text).map_err(failed)?;
    sync_file_systems([temporary.as_path()])?;
    fs::rename(&temporary, dir).map_err(failed)?;
    Ok(sync_file_systems([dir])?)
}

/// Becomes the git process that serves a push (`receive-pack`) or a fetch (`upload-pack`) of a clone, with the streams of
/// this process. Calls `before` once nothing but that is left to do. Returns only if it fails, with the cause.
pub fn serve(dir: &Path, service: &str, caller: &Caller, before: impl FnOnce() -> io::Result<()>) -> String {
    let cli = match cli(caller) {
        Ok(cli) => cli,
        Err(failure) => return failure.cause,
    };
    let mut command = Command::new(cli.program());
    command.args(["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", service]).arg(dir.join(".git"));
    command.env_clear().envs(cli.environment().iter().map(|(key, value)| (key, value)));
    command.env("LC_ALL", "C").env("GIT_TERMINAL_PROMPT", "0");
    if let Err(error) = before() {
        return error.to_string();
    }
    format!("cannot run git: {}", command.exec())
}

/// Returns the worktrees that have a branch of a clone checked out.
///
/// # Errors
/// Fails if git cannot tell.
pub fn users(clone: &Path, branch: &str, caller: &Caller) -> Result<Vec<PathBuf>, Failure> {
    let (cli, full) = (cli(caller)?, format!("refs/heads/{branch}"));
    let listed = parse::worktrees(&cli.read(clone).args(["worktree", "list", "--porcelain", "-z"]).run()?);
    let of_it = listed.into_iter().filter(|tree| tree.branch.as_ref() == Some(&full));
    // Git lists a worktree also after its directory was removed.
    Ok(of_it.map(|tree| PathBuf::from(tree.path)).filter(|path| !is_absent(path)).collect())
}

/// Returns the failure for a branch that must not be moved now.
#[must_use]
pub fn in_use(branch: &str) -> Failure {
    Failure { cause: format!("branch '{branch}' is in use by another run on this host"), passes: true }
}

/// Sets a branch of a clone to a commit, whatever it was before. The caller must hold a lock, so that nobody else sets
/// branches or makes worktrees.
///
/// # Errors
/// Fails if the branch would be moved and is checked out somewhere, if the commit is not there, or if git fails.
pub fn set_branch(clone: &Path, branch: &str, commit: &str, caller: &Caller) -> Result<(), Failure> {
    let (cli, full) = (cli(caller)?, format!("refs/heads/{branch}"));
    if objects::branch_tip(&cli, clone, branch)?.as_deref() == Some(commit) {
        return Ok(());
    }
    if !users(clone, branch, caller)?.is_empty() {
        return Err(in_use(branch));
    }
    record::check_reference(&common(clone), &full)?;
    // Attempts that start at the same time set the same base.
    let entry = Entry { why: strays::SET, makes: true };
    Ok(plain_ref::write(&cli, &common(clone), (&full, commit), Before::Any, entry)?)
}

/// Returns the commit of a branch of a clone; `None` if there is no such branch.
///
/// # Errors
/// Fails if git cannot tell.
pub fn branch_tip(clone: &Path, branch: &str, caller: &Caller) -> Result<Option<String>, Failure> {
    Ok(objects::branch_tip(&cli(caller)?, clone, branch)?)
}

/// Reports whether a clone has a commit.
///
/// # Errors
/// Fails if git cannot tell.
pub fn has_commit(clone: &Path, commit: &str, caller: &Caller) -> Result<bool, Failure> {
    Ok(objects::commit(&cli(caller)?, clone, commit)?.is_some())
}

/// Makes sure that git knows who commits in a clone. `known` is used if the configuration of this machine does not say.
///
/// # Errors
/// Returns what to do.
pub fn check_identity(clone: &Path, known: Option<(&str, &str)>, caller: &Caller) -> Result<(), Failure> {
    let checked = is_known(clone, caller);
    let is_plain = |text: &str| !text.is_empty() && !text.starts_with('-') && !text.contains(char::is_control);
    let Some((name, email)) = known.filter(|(name, email)| is_plain(name) && is_plain(email)) else { return checked };
    if checked.is_err() {
        let cli = cli(caller)?;
        cli.write(clone).args(["config", "--replace-all", "user.name", name]).run()?;
        cli.write(clone).args(["config", "--replace-all", "user.email", email]).run()?;
        return is_known(clone, caller);
    }
    checked
}

fn is_known(clone: &Path, caller: &Caller) -> Result<(), Failure> {
    let cli = cli(caller)?;
    for variable in ["GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"] {
        let (code, _) = cli.read(clone).args(["var", variable]).run_for(&[0, 1, 128])?;
        if code != 0 {
            let remedy = "run 'git config --global user.name NAME' and 'git config --global user.email MAIL' there";
            return Err(Fault::new("git on this host does not know who commits").remedy(remedy).into());
        }
    }
    Ok(())
}

/// Keeps a commit of a clone from being pruned, under `refs/swarm/done/`.
///
/// # Errors
/// Fails if the commit is not there, or if git fails.
pub fn pin(clone: &Path, commit: &str, caller: &Caller) -> Result<(), Failure> {
    let cli = cli(caller)?;
    Ok(CompletionRepo::open(&cli, clone).pin(commit)?)
}

/// Keeps a commit of a clone for good, because its controller cannot fetch it.
///
/// # Errors
/// Fails if git fails.
pub fn withhold(clone: &Path, commit: &str, caller: &Caller) -> Result<(), Failure> {
    let entry = Entry { why: "swarm: not fetched", makes: false };
    Ok(plain_ref::write(&cli(caller)?, &common(clone), (&refused(commit), commit), Before::Any, entry)?)
}

/// Returns the ref that [`withhold`] makes.
#[must_use]
pub fn refused(commit: &str) -> String {
    format!("refs/swarm/refused/{commit}")
}

/// Removes what [`pin`] has made.
///
/// # Errors
/// Fails if git fails.
pub fn unpin(clone: &Path, commit: &str, caller: &Caller) -> Result<(), Failure> {
    drop_reference(clone, &pinned(commit), caller)
}

/// Removes the ref with which a commit was sent.
///
/// # Errors
/// Fails if git fails.
pub fn drop_sent(clone: &Path, commit: &str, caller: &Caller) -> Result<(), Failure> {
    drop_reference(clone, &format!("{SENT}/{commit}"), caller)
}

fn drop_reference(clone: &Path, reference: &str, caller: &Caller) -> Result<(), Failure> {
    deletion::delete(&cli(caller)?, &common(clone), reference, None)?;
    Ok(())
}

/// Deletes a branch of a clone whose tip is one of `known`. Commits that only its reflog has are saved first. Returns
/// whether there is no such branch now.
///
/// # Errors
/// Fails if git fails.
pub fn drop_branch(clone: &Path, branch: &str, known: &[&str], caller: &Caller) -> Result<bool, Failure> {
    let cli = cli(caller)?;
    let Some(tip) = objects::branch_tip(&cli, clone, branch)? else { return Ok(true) };
    if !known.contains(&tip.as_str()) {
        return Ok(false);
    }
    let full = format!("refs/heads/{branch}");
    deletion::delete(&cli, &common(clone), &full, Some(&tip))?;
    Ok(true)
}

/// Removes what nothing names any more if there is much of it, in a process of its own that may take long. No run may need
/// a commit that no ref keeps. What was sent within the last hour stays.
///
/// # Errors
/// Fails if git fails.
pub fn prune(clone: &Path, caller: &Caller) -> Result<(), Failure> {
    let settings = ["gc.auto=200", "gc.autoPackLimit=10", "gc.pruneExpire=1.hour.ago", "gc.worktreePruneExpire=never"];
    let cli = cli(caller)?;
    let call = cli.write(clone).args(settings.into_iter().flat_map(|setting| ["-c", setting]));
    call.args(["gc", "--auto", "--quiet"]).run()?;
    Ok(())
}

/// Reports whether a clone has commits that no controller has sent: work that nobody may have fetched, and saves.
///
/// # Errors
/// Fails if git cannot tell.
pub fn has_own_work(clone: &Path, caller: &Caller) -> Result<bool, Failure> {
    let cli = cli(caller)?;
    let sent = format!("--glob={SENT}");
    let words = ["rev-list", "--max-count=1", "--all", "--not", &sent, "--glob=refs/swarm/bas[e]"];
    Ok(!cli.read(clone).args(words).run()?.is_empty())
}

fn common(clone: &Path) -> PathBuf {
    clone.join(".git")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Fixture, text};

    #[test]
    fn a_branch_is_dropped_only_at_a_commit_that_is_known() {
        let fix = Fixture::new();
        let (caller, dir) = (fix.caller.clone(), fix.root.join("clone"));
        make_clone(&dir, "sha1", &caller).expect("made");
        make_clone(&dir, "sha1", &caller).expect("there");
        let failure = make_clone(&dir, "sha256", &caller).expect_err("another format");
        assert!(failure.cause.ends_with("has object format sha1, not sha256") && !failure.passes, "{failure:?}");
        let git = |words: &[&str]| text(&fix.at(&dir, words));
        let tree = git(&["write-tree"]);
        let one = git(&["commit-tree", "-m", "one", tree.trim()]).trim().to_owned();
        let two = git(&["commit-tree", "-m", "two", "-p", &one, tree.trim()]).trim().to_owned();
        assert_eq!(branch_tip(&dir, "a", &caller), Ok(None));
        set_branch(&dir, "a", &two, &caller).expect("set");
        set_branch(&dir, "a", &one, &caller).expect("set back");
        assert_eq!(branch_tip(&dir, "a", &caller), Ok(Some(one.clone())));
        assert!(set_branch(&dir, "a", tree.trim(), &caller).is_err(), "not a commit");
        let other = fix.root.join("other");
        git(&["worktree", "add", "-q", &other.display().to_string(), "a"]);
        assert_eq!(users(&dir, "a", &caller).map(|users| users.len()), Ok(1));
        assert_eq!(set_branch(&dir, "a", &one, &caller), Ok(()), "it is there already");
        assert_eq!(set_branch(&dir, "a", &two, &caller), Err(in_use("a")));
        fs::remove_dir_all(&other).expect("removed");
        assert_eq!(users(&dir, "a", &caller), Ok(Vec::new()));
        git(&["worktree", "prune"]);
        assert_eq!(drop_branch(&dir, "a", &[&two], &caller), Ok(false));
        pin(&dir, &one, &caller).expect("pinned");
        assert_eq!(drop_branch(&dir, "a", &[&two, &one], &caller), Ok(true));
        assert_eq!(drop_branch(&dir, "a", &[], &caller), Ok(true), "there is none");
        let saved = git(&["for-each-ref", "--format=%(refname)", "refs/swarm/trash"]);
        assert!(!saved.trim().is_empty(), "a commit that only the reflog had is lost");
        unpin(&dir, &one, &caller).expect("removed");
        unpin(&dir, &one, &caller).expect("gone already");
        drop_sent(&dir, &one, &caller).expect("never sent");
        assert_eq!(git(&["for-each-ref", "refs/swarm/done"]), "");
    }

    #[test]
    fn work_of_a_clone_is_told_from_what_was_sent() {
        let fix = Fixture::new();
        let (caller, dir) = (fix.caller.clone(), fix.root.join("clone"));
        make_clone(&dir, "sha1", &caller).expect("made");
        assert_eq!(has_own_work(&dir, &caller), Ok(false), "it is empty");
        let git = |words: &[&str]| text(&fix.at(&dir, words));
        let tree = git(&["write-tree"]);
        let one = git(&["commit-tree", "-m", "one", &tree]);
        let two = git(&["commit-tree", "-m", "two", "-p", &one, &tree]);
        git(&["update-ref", "refs/swarm/base", &two]);
        set_branch(&dir, "main", &one, &caller).expect("set");
        assert_eq!(has_own_work(&dir, &caller), Ok(false));
        let save = git(&["commit-tree", "-m", "save", "-p", &two, &tree]);
        git(&["update-ref", "refs/swarm/trash/x", &save]);
        assert_eq!(has_own_work(&dir, &caller), Ok(true));
        git(&["update-ref", "-d", "refs/swarm/trash/x"]);
        git(&["update-ref", &format!("{SENT}/{save}"), &save]);
        set_branch(&dir, "other", &save, &caller).expect("set");
        assert_eq!(has_own_work(&dir, &caller), Ok(false));
        prune(&dir, &caller).expect("pruned");
    }

    #[test]
    fn ids_of_objects_are_told_from_other_words() {
        assert!(is_commit_id(&"a1".repeat(20)) && is_commit_id(&"0f".repeat(32)));
        for wrong in ["", "main", &"A1".repeat(20), &"a1".repeat(21), &format!("-{}", "a".repeat(39))] {
            assert!(!is_commit_id(wrong), "{wrong}");
        }
    }
}
