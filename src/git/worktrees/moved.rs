//! Moves the branch of a worktree, with entries in its log and in that of HEAD. A sandboxed agent may write to all of them, and
//! no link in their place is followed.

use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::repository::plain_ref::{self, Before, HEAD, Update};
use crate::trash::save::{DURABLE, Place};
use crate::worktrees::record;

/// Moves the branch of a worktree from one commit to another. If it is now at a third one, the fault is transient.
///
/// # Errors
/// Fails if a link is in place of the branch, or if git fails.
pub(crate) fn move_branch(
    cli: &Cli,
    place: &Place,
    branch: &str,
    [from, to]: [&str; 2],
    why: &str,
) -> Result<(), Fault> {
    record::check_reference(&place.common, branch)?;
    let who = cli.read(&place.common).args(["var", "GIT_COMMITTER_IDENT"]).line()?;
    let log = |_: Option<&str>| {
        let line = format!("{from} {to} {who}\t{why}\n");
        plain_ref::append(&place.common, branch, &line);
        plain_ref::append(&place.git_dir, HEAD, &line);
    };
    let update = Update { name: branch, to, before: Before::Is(from), is_durable: true };
    if plain_ref::set(&place.common, &update, log)? {
        return Ok(());
    }
    // Not through HEAD: if the branch becomes a symbolic ref now, the branch that it points to must not move.
    let words = ["-c", "core.filesRefLockTimeout=5000", "update-ref", "--no-deref", "-m", why, branch, to, from];
    place.call(cli.write(&place.tree)).args(DURABLE).args(words).run().map(drop).map_err(plain_ref::refused)
}

/// Moves the detached HEAD of a worktree from one commit to another.
///
/// # Errors
/// As [`move_branch`].
pub(crate) fn move_head(cli: &Cli, place: &Place, [from, to]: [&str; 2], why: &str) -> Result<(), Fault> {
    let who = cli.read(&place.common).args(["var", "GIT_COMMITTER_IDENT"]).line()?;
    let update = Update { name: HEAD, to, before: Before::Is(from), is_durable: true };
    if plain_ref::are_files(&place.common) {
        let head = plain_ref::prepare(&place.git_dir, &update)?;
        plain_ref::append(&place.git_dir, HEAD, &format!("{from} {to} {who}\t{why}\n"));
        return head.commit();
    }
    let call =
        cli.write(&place.git_dir).in_record().env("GIT_DIR", &place.git_dir).env("GIT_IMPLICIT_WORK_TREE", "false");
    Ok(call.args(DURABLE).args(["update-ref", "--no-deref", "-m", why, HEAD, to, from]).run().map(drop)?)
}
