//! `swarm plan` and `swarm run`: run agents or commands on specs or jobs, and land their work.

mod advice;
pub mod args;
mod attach;
mod base;
mod batch;
mod begin;
mod context;
mod flags;
mod given_up;
mod identity;
mod jobs;
pub mod left;
mod live;
pub mod logs;
mod moved;
mod on;
mod own;
mod own_spec;
mod places;
pub mod plain;
mod plan;
mod queue;
mod renew;
mod settings;
mod show;
mod since;
mod tags;
mod tidy;
mod waits;
mod withdrawn;

pub use self::jobs::file_of;

use std::path::{Path, PathBuf};

use serde_json::json;
use swarm_model::{Refusal, RefusalKind, Reply, RunLine, RunOrder, RunRequest};

use self::args::{GiveUpArgs, Plain, PlanArgs, RunAction, RunArgs};
use super::caller;
use super::error::Failure;
use super::json;
use super::render::escape;
use super::screen::Screen;
use crate::api::client;
use swarm_store::runs::home::Home;
use swarm_store::runs::wire;
use swarm_sys::paths::Paths;

/// What the supervisor answers when attempts were given up.
const GIVEN_UP: &str = "given up";

pub fn plan(args: &PlanArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    plan::run(args, paths, screen)
}

pub fn run(args: &RunArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    match &args.action {
        None => begin::run(&args.begin, paths, screen),
        Some(RunAction::Init(args)) => init(args, screen),
        Some(RunAction::Status(args)) => show::status(args, paths, screen),
        Some(RunAction::Attach(args)) => attach::run(args, paths, screen),
        Some(RunAction::Logs(args)) => logs::run(args, paths, screen),
        Some(RunAction::Stop(args)) => stop(args, paths, screen),
        Some(RunAction::Pause(args)) => change(args, paths, screen, |home| RunOrder::Hold { home }),
        Some(RunAction::Resume(args)) => change(args, paths, screen, |home| RunOrder::Resume { home }),
        Some(RunAction::GiveUp(GiveUpArgs { ids, plain })) => {
            let jobs = ids.clone();
            change(plain, paths, screen, |home| RunOrder::GiveUp { home, jobs })
        }
        Some(RunAction::Cleanup(args)) => tidy::run(args, paths, screen),
        Some(RunAction::Context(args)) => context::context(args, paths, screen),
    }
}

/// Returns the home of the run that `--home` names: a directory or a job file. By default that of the caller's
/// repository.
///
/// # Errors
/// Fails if the path does not exist, or outside of a git repository if no path is given.
pub fn home(typed: Option<&Path>) -> Result<Home, Failure> {
    let Some(typed) = typed else {
        let caller = caller::collect()?.caller;
        let root = swarm_store::repositories::root(&caller)?;
        own::refuse_tracked_link(&root, &caller)?;
        return Ok(Home::of(&root));
    };
    let path: PathBuf =
        typed.canonicalize().map_err(|error| Failure::system(format!("cannot open '{}'", typed.display()), &error))?;
    if path.is_dir() {
        return Ok(Home::new(path));
    }
    let paths = Paths::from_env().map_err(|error| Failure::new(RefusalKind::Invalid, error.to_string()))?;
    Ok(identity::home_of_file(&path, &paths))
}

fn init(args: &Plain, screen: &mut Screen) -> Result<u8, Failure> {
    let caller = caller::collect()?.caller;
    let root = swarm_store::repositories::root(&caller)?;
    let home = Home::of(&root);
    own::refuse_tracked_link(&root, &caller)?;
    plan::prepare(&root, &home)?;
    if args.json {
        json::print(screen, "swarm.run-init/1", &json!({"home": home.path()}))?;
    } else {
        screen
            .line(&format!("initialized {}; next: swarm plan --specs DIR", escape(&home.path().to_string_lossy())))?;
    }
    Ok(0)
}

/// Refuses a home whose state is of a newer version, which must be left alone.
///
/// # Errors
/// Returns a refusal in that case, and if the state cannot be read. A damaged state is none.
fn check_version(home: &Home) -> Result<(), Failure> {
    match wire::load(home) {
        Err(wire::StateFault::Unusable(cause)) => Err(Failure::new(RefusalKind::Invalid, cause)),
        Ok(_) | Err(wire::StateFault::Damaged(_)) => Ok(()),
    }
}

/// Stops a run, and returns when its agents have ended.
fn stop(args: &Plain, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let home = home(args.home.as_deref())?;
    check_version(&home)?;
    let mut line = send(paths, RunOrder::Stop { home: home.path().to_string_lossy().into_owned() })?;
    match begin::is_over_soon(&home, paths)? {
        true => {
            line.done = "stopped".to_owned();
            queue::note_what_lands(&home, paths, screen);
        }
        false => screen.warning("agents of the run have not ended yet; 'swarm run status' shows when they have"),
    }
    tell(args, &line, screen)
}

fn change(
    args: &Plain,
    paths: &Paths,
    screen: &mut Screen,
    order: impl FnOnce(String) -> RunOrder,
) -> Result<u8, Failure> {
    let home = home(args.home.as_deref())?;
    check_version(&home)?;
    tell(args, &send(paths, order(home.path().to_string_lossy().into_owned()))?, screen)
}

fn tell(args: &Plain, line: &RunLine, screen: &mut Screen) -> Result<u8, Failure> {
    if args.json {
        json::print(screen, "swarm.run-changed/1", &json!({"run": line.run, "home": line.home, "done": line.done}))?;
    } else {
        screen.line(&match line.done.as_str() {
            GIVEN_UP => format!("given up; run {} goes on without it", line.run),
            done => format!("{done} run {}", line.run),
        })?;
    }
    Ok(0)
}

/// Sends an order about one run to the supervisor and returns its answer.
///
/// # Errors
/// Returns the supervisor's refusal, or an error if the supervisor cannot be reached or answers nothing.
fn send(paths: &Paths, order: RunOrder) -> Result<RunLine, Failure> {
    let request = RunRequest { caller: caller::collect()?.caller, order };
    let mut told: Option<Result<RunLine, Refusal>> = None;
    client::post(paths, &request, &mut |reply| match reply {
        Reply::Answer(line) => told = Some(Ok(line)),
        Reply::Refused(refusal) => told = Some(Err(refusal)),
        Reply::Warning(_) => {}
    })?;
    match told {
        Some(Ok(line)) => Ok(line),
        Some(Err(refusal)) => Err(refusal.into()),
        None => {
            Err(Refusal::new(RefusalKind::Internal, "the supervisor closed the connection without a result").into())
        }
    }
}
