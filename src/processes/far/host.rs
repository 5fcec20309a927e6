//! This machine as the calls of a controller see it: its state directory, its workers, and its supervisor.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use swarm_actors::worker::is_final;
use swarm_git::clones::Failure;
use swarm_model::{Caller, Refusal, RefusalKind, Reply, Route, RowWorktree};
use swarm_ports::{DirFacts, SpecFacts};
use swarm_store::records::DiskRecords;
use swarm_store::runs::far::FarAnswer;
use swarm_store::runs::order;
use swarm_store::views::load_one;
use swarm_sys::paths::Paths;

use super::login;
use super::place::Attempt;
use crate::api::client::post;
use crate::cli::caller;

/// Free disk space below which nothing begins.
const ROOM_BYTES_MIN: u64 = 512 << 20;

/// This machine.
pub struct Host {
    pub paths: Paths,
    /// Installed program.
    pub executable: PathBuf,
    caller: Caller,
}

/// The latest worker of the name that an attempt's worker has.
pub enum Found {
    None,
    /// The worker of the attempt, in the life that the controller has asked for.
    Its(Box<Worker>),
    /// The worker of another attempt of the job.
    Sibling(Box<Worker>),
    /// A later life of a worker of the job, which somebody on this host has started. It belongs to that person.
    Again(Box<Worker>),
    /// A worker of somebody else.
    Strange,
}

pub struct Worker {
    pub generation: u64,
    pub facts: DirFacts,
    pub worktree: Option<RowWorktree>,
}

impl Worker {
    /// Returns the request that has started it.
    pub fn request(&self) -> &str {
        self.facts.spec.spec().map_or("", |spec| &spec.request)
    }

    /// Reports whether it executes the attempt, in whichever life. The command of a file of jobs does not tell.
    pub fn executes(&self, attempt: &Attempt) -> bool {
        self.facts.spec.spec().is_some_and(|spec| order::attempt_of(&spec.contract.argv) == Some(&attempt.dir))
    }

    /// Reports whether it has ended, with all of its processes.
    pub fn has_ended(&self) -> bool {
        self.facts.exit.is_some() && !self.facts.lease.held
    }
}

impl Host {
    /// Takes on the environment of a login shell. Must be called before there are threads.
    ///
    /// # Errors
    /// Fails if the state directory or the attributes of this process are unknown.
    pub fn new(state: Option<&str>) -> Result<Self, String> {
        login::assume(state)?;
        let paths = Paths::from_env().map_err(|error| format!("cannot find the state directory: {error}"))?;
        let executable = std::env::current_exe().map_err(|error| format!("cannot find the program: {error}"))?;
        let caller = caller::collect().map_err(|refusal| refusal.cause)?.caller;
        Ok(Self { paths, executable, caller })
    }

    /// Returns the caller of a request, in this directory.
    pub fn caller(&self, dir: &Path) -> Caller {
        let request = caller::request_id().unwrap_or_else(|_| self.caller.request.clone());
        Caller { request, cwd: dir.to_string_lossy().into_owned(), ..self.caller.clone() }
    }

    /// Returns a variable of the environment of workers.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.caller.environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Fails unless there is disk space for another attempt.
    pub fn check_room(&self) -> Result<(), FarAnswer> {
        let root = self.paths.root();
        let there = root.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
        let Ok(stat) = rustix::fs::statvfs(there) else { return Ok(()) };
        judge_room(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Returns the worker that has the name of the attempt's worker.
    pub fn worker(&self, attempt: &Attempt) -> Result<Found, FarAnswer> {
        let name = &attempt.at.worker;
        let busy = |cause: &str| FarAnswer::Busy(format!("cannot read the records of worker '{name}': {cause}"));
        let view = load_one(&self.paths, name).map_err(|refusal| busy(&refusal.cause))?;
        let Some(row) = view.map(|view| view.row) else { return Ok(Found::None) };
        let Some(generation) = row.swarm().map(|meta| meta.generation) else { return Ok(Found::Strange) };
        let facts = DiskRecords::new(self.paths.clone()).read(name, generation);
        let Some(facts) = facts.map_err(|error| busy(&error.to_string()))? else { return Ok(Found::None) };
        let SpecFacts::Executed(spec) = &facts.spec else { return Ok(Found::None) };
        let (request, series) = (spec.request.as_str(), spec.contract.series.as_ref());
        // A start by somebody else is a request of another id, and keeps the contract.
        let kind = match request {
            _ if request == attempt.request => Found::Its,
            _ if request.starts_with(&attempt.series) => Found::Sibling,
            _ if series == Some(&attempt.series) => Found::Again,
            _ => return Ok(Found::Strange),
        };
        Ok(kind(Box::new(Worker { generation, worktree: row.worktree.clone(), facts })))
    }

    /// Asks the supervisor, which is started if there is none. Returns its answer, if the request has one.
    pub fn ask<R: Route>(&self, request: &R) -> Result<Option<R::Answer>, Refusal> {
        let mut settled = Ok(None);
        post(&self.paths, request, &mut |reply| match reply {
            Reply::Answer(answer) => settled = Ok(Some(answer)),
            Reply::Refused(refusal) => settled = Err(refusal),
            Reply::Warning(_) => {}
        })?;
        settled
    }
}

/// Returns the result of a request to end or remove a worker. An earlier call may have done so meanwhile.
pub fn settled<T>(ended: Result<T, Refusal>) -> Result<(), FarAnswer> {
    match ended {
        Ok(_) => Ok(()),
        Err(refusal) if refusal.kind == RefusalKind::NotFound => Ok(()),
        // Somebody here has started it again since it was found. It is looked for anew.
        Err(refusal) if refusal.kind == RefusalKind::Exists => Err(FarAnswer::Busy(refusal.cause)),
        Err(refusal) => Err(answer_of(refusal)),
    }
}

fn judge_room(bytes: u64) -> Result<(), FarAnswer> {
    match bytes < ROOM_BYTES_MIN {
        true => Err(FarAnswer::Busy(format!("{} MiB of disk space left", bytes >> 20))),
        false => Ok(()),
    }
}

/// Returns the answer for a refusal of the supervisor. Some pass by themselves.
pub fn answer_of(refusal: Refusal) -> FarAnswer {
    let is_full = ["No space left on device", "Disk quota exceeded"].iter().any(|sign| refusal.cause.contains(sign));
    let passes = refusal.passes || is_full || !is_final(refusal.kind) || refusal.kind == RefusalKind::Stopping;
    let text = match refusal.remedy {
        Some(remedy) => format!("{} ({remedy})", refusal.cause),
        None => refusal.cause,
    };
    if passes { FarAnswer::Busy(text) } else { FarAnswer::Refused(text) }
}

/// Returns the answer for a failure of git.
pub fn answer_to(failure: Failure) -> FarAnswer {
    if failure.passes { FarAnswer::Busy(failure.cause) } else { FarAnswer::Refused(failure.cause) }
}

/// Returns the load of this machine, in halves per processor.
pub fn load() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    load_of(&text, std::thread::available_parallelism().map_or(1, usize::from))
}

/// Returns the first load of a text such as `1.50 0.80 0.40`.
fn load_of(text: &str, processors: usize) -> Option<u32> {
    let (whole, hundredths) = text.split(' ').next()?.split_once('.')?;
    let hundredths = whole.parse::<usize>().ok()? * 100 + hundredths.get(..2)?.parse::<usize>().ok()?;
    u32::try_from(hundredths / (processors.max(1) * 50)).ok()
}

/// Returns a caller without an environment, for a request whose contract has it.
pub fn bare(caller: &Caller, request: &str) -> Caller {
    Caller { request: request.to_owned(), environment: Arc::default(), ..caller.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_in_halves_per_processor() {
        for (text, processors, expected) in [
            ("0.49 0.80 0.40 1/2 3", 1, Some(0)),
            ("0.50 0.80 0.40 1/2 3", 1, Some(1)),
            ("12.34 0.80 0.40 1/2 3", 4, Some(6)),
            ("12.34 0.80 0.40 1/2 3", 64, Some(0)),
            ("", 1, None),
            ("x", 1, None),
        ] {
            assert_eq!(load_of(text, processors), expected, "{text}");
        }
    }

    #[test]
    fn a_full_disk_is_no_refusal() {
        assert_eq!(judge_room(ROOM_BYTES_MIN), Ok(()));
        assert_eq!(judge_room(ROOM_BYTES_MIN - 1), Err(FarAnswer::Busy("511 MiB of disk space left".into())));
        let of = |kind, cause: &str| answer_of(Refusal::new(kind, cause).remedy("do it"));
        let text = "x: No space left on device";
        assert_eq!(of(RefusalKind::Start, text), FarAnswer::Busy(format!("{text} (do it)")));
        assert_eq!(of(RefusalKind::Stopping, "x"), FarAnswer::Busy("x (do it)".into()));
        assert_eq!(of(RefusalKind::Invalid, "x"), FarAnswer::Refused("x (do it)".into()));
        let locked = Refusal { passes: true, ..Refusal::new(RefusalKind::Worktree, "x") };
        assert_eq!(answer_of(locked), FarAnswer::Busy("x".into()));
    }
}
