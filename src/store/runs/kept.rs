//! What is kept and reported of a finished job before its worker is cleaned.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use swarm_agents::short;
use swarm_model::RowWorktree;
use swarm_model::run::plan::Work;
use swarm_model::run::progress::Now;
use swarm_model::run::words::Word;
use swarm_sys::clock::wall_ms;
use swarm_sys::files::{remove_if_present, replace_durably};
use swarm_sys::paths::Paths;

use super::home::{Home, make_all};
use super::registration::{place, read_any};
use super::{events, order};
use crate::log_parts;

/// Kinds of output of a command.
const KINDS: [&str; 2] = ["stdout", "stderr"];
/// Maximum number of ignored files that an event names.
const IGNORED_MAX: usize = 100;

/// Moves the logs of a finished command to the home of its run. The log of an agent is there already.
pub(super) fn keep(now: &Now, paths: &Paths) {
    let (home, worker) = (Home::new(&now.plan.home), now.worker());
    if matches!(now.job().work, Work::Spec(_)) {
        if now.job().merge {
            report_ignored(&home, now, paths);
        }
        return report_late(&home, &now.plan.id, &now.job().id);
    }
    // What a host has sent is there already, and a worker of that name here is somebody else's.
    if now.progress.host.is_some() {
        return;
    }
    for kind in KINDS {
        let (live, kept) = (paths.log(&worker, kind), output_of(&home, &now.job().id, kind));
        move_log(&live, &kept);
    }
}

/// Returns the file in the home of a run with the output of a finished command.
pub fn output_of(home: &Home, id: &str, kind: &str) -> PathBuf {
    home.logs().join(format!("{id}.{kind}.log"))
}

/// Replaces the output of an earlier attempt of a command by what a host has sent.
///
/// # Errors
/// Returns any I/O error.
pub fn replace_output(home: &Home, id: &str, stdout: &str, stderr: &str) -> io::Result<()> {
    make_all(&home.logs())?;
    for (kind, text) in KINDS.into_iter().zip([stdout, stderr]) {
        let file = output_of(home, id, kind);
        remove_if_present(&log_parts::older(&file))?;
        match (text, file.file_name().and_then(OsStr::to_str)) {
            (text, Some(name)) if !text.is_empty() => replace_durably(&home.logs(), name, text.as_bytes())?,
            _ => remove_if_present(&file)?,
        }
    }
    Ok(())
}

/// Moves a log, then its rotated part. A part that an earlier attempt left is removed, because it does not belong to
/// this log.
fn move_log(live: &Path, kept: &Path) {
    let _ = fs::rename(live, kept);
    if fs::rename(log_parts::older(live), log_parts::older(kept)).is_err() {
        let _ = fs::remove_file(log_parts::older(kept));
    }
}

/// Reports the ignored files in the worktree of a finished workstream, which is removed next.
fn report_ignored(home: &Home, now: &Now, paths: &Paths) {
    let Ok(Some(active)) = read_any(&place(paths, &now.plan.home)) else { return };
    let path = home.worktrees().join(now.job().leaf()).to_string_lossy().into_owned();
    let branch = now.job().branch.clone().unwrap_or_default();
    let tree = RowWorktree { path, branch, base_repo: now.plan.root.clone() };
    let mut files = swarm_git::worktrees::ignored_files(&tree, &active.caller);
    files.truncate(IGNORED_MAX);
    if files.is_empty() {
        return;
    }
    let line = events::line(&now.plan.id, &now.job().id, wall_ms(), Word::Ignored { files, host: None });
    if let Err(error) = line.and_then(|line| events::report(&home.events(), &line)) {
        tracing::warn!(home = %now.plan.home, %error, "cannot report ignored files");
    }
}

/// Reports the messages that an agent on a host has got. Those that were reported before are not.
pub fn report_delivered(home: &Home, run: &str, id: &str, names: &[String]) {
    let is_named = |file: &PathBuf| file.file_stem().is_some_and(|stem| names.iter().any(|name| stem == name.as_str()));
    for (file, text) in order::said(&home.context(id)).into_iter().filter(|(file, _)| is_named(file)) {
        report_text(home, (run, id), (&file, &text), true);
    }
}

/// Reports messages to an agent that will not have another turn.
fn report_late(home: &Home, run: &str, id: &str) {
    for (file, text) in order::said(&home.context(id)) {
        report_text(home, (run, id), (&file, &text), false);
    }
}

fn report_text(home: &Home, (run, id): (&str, &str), (file, text): (&Path, &str), delivered: bool) {
    let word = Word::Context { delivered, text: short(text) };
    let told = events::line(run, id, wall_ms(), word).and_then(|line| events::report(&home.events(), &line));
    if let Err(error) = told.and_then(|()| order::take(file, delivered)) {
        tracing::warn!(file = %file.display(), %error, "cannot report what became of a message");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rotated_part_of_a_log_is_kept_beside_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |leaf: &str| dir.path().join(leaf);
        let read = |leaf: &str| fs::read_to_string(path(leaf)).ok();
        fs::write(path("a.log"), "new").expect("written");
        fs::write(path("a.log.1"), "old").expect("written");
        move_log(&path("a.log"), &path("kept.log"));
        assert_eq!((read("kept.log").as_deref(), read("kept.log.1").as_deref()), (Some("new"), Some("old")));
        fs::write(path("a.log"), "next").expect("written");
        move_log(&path("a.log"), &path("kept.log"));
        assert_eq!((read("kept.log").as_deref(), read("kept.log.1")), (Some("next"), None));
        assert_eq!((read("a.log"), read("a.log.1")), (None, None));
    }
}
