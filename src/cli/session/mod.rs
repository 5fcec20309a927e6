//! `swarm session`: reads and changes the session of a worker, for agents, scripts and people.

pub mod args;
mod change;
pub mod dialogs;
mod note;
mod show;

use std::io::Read as _;
use std::path::{Path, PathBuf};

use swarm_model::{Refusal, RefusalKind, SESSION_BYTES_MAX, Session};

use self::args::{SessionAction, Which};
use super::error::Failure;
use super::screen::Screen;
use swarm_store::sessions::{self, FOLDER, StoreError};
use swarm_store::views;
use swarm_sys::paths::Paths;

pub fn run(
    action: &SessionAction,
    paths: impl Fn() -> Result<Paths, Failure>,
    screen: &mut Screen,
) -> Result<u8, Failure> {
    match action {
        SessionAction::Hook(args) => Ok(note::hook(args)),
        SessionAction::Show(args) => show::show(&args.which, &place(&args.which, &paths()?, screen)?, screen),
        SessionAction::Check(args) => show::check(args, &place(&args.which, &paths()?, screen)?, screen),
        SessionAction::Update(args) => {
            let which = Which {
                name: args.worker.clone(),
                dir: args.dir.clone(),
                expect: args.expect.clone(),
                json: args.json,
            };
            let base = place(&which, &paths()?, screen)?;
            change::update(&args.changes, &which, &base, screen)
        }
        SessionAction::Write(args) => {
            let base = place(&args.which, &paths()?, screen)?;
            write(&args.which, &base, screen)
        }
        SessionAction::Note(args) => {
            let which = Which { name: args.name.clone(), dir: args.dir.clone(), expect: None, json: args.json };
            let own = note::ours().filter(|_| which.name.is_none() && which.dir.is_none());
            let base = own.map_or_else(|| place(&which, &paths()?, screen), Ok)?;
            note::note(args, &base, paths().ok().as_ref(), screen)
        }
    }
}

/// Returns the directory of the selected session.
///
/// # Errors
/// Fails if the directory or the worker does not exist, or if there is no session.
fn place(which: &Which, paths: &Paths, screen: &mut Screen) -> Result<PathBuf, Failure> {
    if let Some(dir) = &which.dir {
        let dir = std::path::absolute(dir).map_err(|error| Failure::system("cannot resolve the directory", &error))?;
        if !dir.is_dir() {
            return Err(Failure::new(RefusalKind::Invalid, format!("{} is not a directory", dir.display())));
        }
        return Ok(dir);
    }
    let Some(name) = &which.name else { return here() };
    let registry = super::read_one(paths, name, screen)?;
    let worker = registry.find(name).ok_or_else(|| super::error::unknown_worker(name, &registry))?;
    views::session_dir(paths, worker).ok_or_else(|| {
        let refusal = Refusal::new(RefusalKind::Invalid, format!("worker '{name}' has no session")).of(name);
        refusal.remedy("start workers with --worktree or --session-dir DIR to give them a session").into()
    })
}

/// Returns the current directory or its nearest parent with a session.
fn here() -> Result<PathBuf, Failure> {
    let cwd =
        std::env::current_dir().map_err(|error| Failure::system("cannot determine the current directory", &error))?;
    let found = cwd.ancestors().find(|dir| dir.join(FOLDER).is_dir());
    found.map(Path::to_owned).ok_or_else(|| {
        let refusal = Refusal::new(RefusalKind::NotFound, format!("no session in {}", cwd.display()));
        refusal.remedy("name a worker, or use --dir DIR").into()
    })
}

/// Converts an error of the session store to a failure with the matching kind.
fn failed(error: StoreError) -> Failure {
    let text = error.to_string();
    match error {
        StoreError::NotFound(_) => Failure::new(RefusalKind::NotFound, text),
        StoreError::Malformed { .. } => {
            let refusal = Refusal::new(RefusalKind::Registry, text);
            refusal.remedy("run 'swarm session write' to move it aside and replace it").into()
        }
        StoreError::Mismatch { .. } => Failure::new(RefusalKind::Exists, text),
        StoreError::AtWork { .. } => {
            let refusal = Refusal::new(RefusalKind::Running, text);
            refusal.remedy("keep sessionId and startedAt unchanged, or end the agent first").into()
        }
        StoreError::Closed { .. } => Failure::new(RefusalKind::Invalid, text),
        StoreError::System(_) => Failure::new(RefusalKind::Internal, text),
    }
}

fn write(which: &Which, base: &Path, screen: &mut Screen) -> Result<u8, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().take(SESSION_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| Failure::system("cannot read standard input", &error))?;
    let session = Session::parse(&text)
        .map_err(|cause| Failure::new(RefusalKind::Invalid, format!("standard input is not a JSON object: {cause}")))?;
    let faults = session.faults();
    if !faults.is_empty() {
        return Err(Failure::new(RefusalKind::Invalid, format!("invalid session: {}", faults.join("; "))));
    }
    if let Some(wanted) = &which.expect {
        match sessions::read_expect(base, wanted) {
            Ok(_) | Err(StoreError::NotFound(_)) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let written = sessions::replace(base, session).map_err(failed)?;
    show::state(&written, base, which.json, screen)
}
