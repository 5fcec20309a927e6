//! `--here`: selects the workers of the caller's repository. Also asks before `--all` reaches other repositories.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::Path;

use swarm_model::{Caller, Refusal, RefusalKind, Row, WorkerView};
use swarm_store::repositories;

use super::caller;
use super::error::Failure;
use super::render::counted;
use super::screen::Screen;

/// Repositories of workers, known by their common directory. Each directory is looked up once.
pub struct Repositories {
    caller: Caller,
    known: BTreeMap<String, Option<String>>,
}

impl Repositories {
    /// # Errors
    /// Fails if the attributes of this process cannot be read.
    pub fn new() -> Result<Self, Failure> {
        Ok(Self { caller: caller::collect()?.caller, known: BTreeMap::new() })
    }

    /// Returns the repository of the current directory.
    ///
    /// # Errors
    /// Fails outside of a repository.
    pub fn here(&mut self) -> Result<String, Failure> {
        let cwd = self.caller.cwd.clone();
        self.around(&cwd).ok_or_else(|| {
            let refusal = Refusal::new(RefusalKind::Invalid, format!("{cwd} is not in a git repository"));
            refusal.remedy("change to a directory of the repository whose workers you mean").into()
        })
    }

    /// Returns the repository of a worker: that of its worktree, or else that of its working directory. `None` if there is
    /// none.
    pub fn of(&mut self, row: &Row) -> Option<String> {
        let dir = row.worktree.as_ref().map_or(&row.cwd, |tree| &tree.base_repo);
        if Path::new(dir).is_absolute() { self.around(dir) } else { None }
    }

    fn around(&mut self, dir: &str) -> Option<String> {
        if !self.known.contains_key(dir) {
            let common = repositories::common_dir(&Caller { cwd: dir.to_owned(), ..self.caller.clone() });
            self.known.insert(dir.to_owned(), common);
        }
        self.known.get(dir).cloned().flatten()
    }
}

/// Returns the workers of the caller's repository.
///
/// # Errors
/// Fails outside of a repository.
pub fn workers<'a>(views: impl Iterator<Item = &'a WorkerView>) -> Result<Vec<&'a WorkerView>, Failure> {
    let mut repositories = Repositories::new()?;
    let here = repositories.here()?;
    Ok(views.filter(|view| repositories.of(&view.row).as_ref() == Some(&here)).collect())
}

/// Returns the rows of workers of the caller's repository.
///
/// # Errors
/// Fails outside of a repository.
pub fn rows<'a>(rows: impl Iterator<Item = &'a Row>) -> Result<Vec<&'a Row>, Failure> {
    let mut repositories = Repositories::new()?;
    let here = repositories.here()?;
    Ok(rows.filter(|row| repositories.of(row).as_ref() == Some(&here)).collect())
}

/// Asks a person before `verb` with `--all` reaches workers of other repositories. Scripts are not asked, because the
/// original's `--all` means every worker.
///
/// # Errors
/// Fails if the person does not agree.
pub fn confirm_all(verb: &str, views: &[&WorkerView], screen: &mut Screen) -> Result<(), Failure> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(());
    }
    let mut repositories = Repositories::new()?;
    let here = repositories.here().ok();
    let Some(places) = places(here.as_deref(), views, |view| repositories.of(&view.row)) else { return Ok(()) };
    for line in places {
        screen.aside("", &line);
    }
    screen.aside("", &format!("{verb} {}? [y/N]", counted(views.len() as u64, "worker")));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::system("cannot read the answer", &error))?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    let refusal = Refusal::new(RefusalKind::Invalid, "nothing was done");
    Err(refusal.remedy(format!("run 'swarm {verb} --here' for the workers of this repository")).into())
}

/// Returns a line for each repository of these workers, `None` if all belong to `here`.
fn places(
    here: Option<&str>,
    views: &[&WorkerView],
    mut of: impl FnMut(&WorkerView) -> Option<String>,
) -> Option<Vec<String>> {
    let mut found: BTreeMap<Option<String>, Vec<&str>> = BTreeMap::new();
    for view in views {
        found.entry(of(view)).or_default().push(&view.row.name);
    }
    if found.keys().all(|place| place.as_deref() == here) {
        return None;
    }
    let line = |(place, names): (Option<String>, Vec<&str>)| {
        let place = match place {
            Some(common) => common.strip_suffix("/.git").unwrap_or(&common).to_owned(),
            None => "outside of repositories".to_owned(),
        };
        format!("{place}: {}", names.join(", "))
    };
    Some(found.into_iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample;

    #[test]
    fn a_question_names_every_repository_that_is_reached() {
        let (tree, plain) = (sample::window("fix"), sample::process("build"));
        let of = |view: &WorkerView| view.row.worktree.as_ref().map(|tree| format!("{}/.git", tree.base_repo));
        let here = Some("/r/repo/.git");
        assert_eq!(places(here, &[&tree, &tree], of), None, "all are here");
        assert_eq!(places(None, &[&plain], of), None);
        let both = vec!["outside of repositories: build".to_owned(), "/r/repo: fix".to_owned()];
        assert_eq!(places(here, &[&tree, &plain], of), Some(both));
        assert_eq!(places(Some("/other/.git"), &[&tree], of), Some(vec!["/r/repo: fix".to_owned()]));
    }
}
