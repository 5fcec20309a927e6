//! The job of an allocation: takes the state directory, and keeps a supervisor running until the end.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags};
use swarm_config::hosts::{Engine, HostConfig};
use swarm_hosts::Host;
use swarm_hosts::slurm::{Fate, fate_of, look};
use swarm_sys::clock::wall_ms;
use swarm_sys::commands::deadline::wait_until;
use swarm_sys::files::{make_dirs, replace_durably};
use swarm_sys::paths::Paths;

use super::claim::{self, Claim, Taken, Verdict};
use super::{Present, VERB, allocation_in, ending, replaced};
use crate::api::supervision::Supervision;
use crate::processes::far;
use crate::processes::supervisor::STAY;

/// Word with which a person says that nothing of an earlier allocation works any more.
pub const GONE: &str = "gone";
/// File with the reason of the last end.
const LAST: &str = "last";
/// Time in which an earlier allocation must have ended, and Slurm must have answered.
const CLAIM_MAX: Duration = Duration::from_secs(120);
const CLAIM_PAUSE: Duration = Duration::from_secs(3);
/// Maximum time between two looks at the end of the allocation, which somebody may move.
const LOOK_MAX: Duration = Duration::from_secs(600);
/// Time that is left after the signal with which Slurm announces the end, if Slurm does not answer.
const WARNED: Duration = Duration::from_secs(540);
/// Exit code of a job that left the directory to another one.
const LEFT: u8 = 3;

/// Becomes [`serve`], without the variables of the job.
pub fn begin(state: &str, token: &str, name: &str, more: &[String]) -> Result<u8, String> {
    let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set: this is no job of Slurm"));
    let (job, node) = (variable("SLURM_JOB_ID")?, variable("SLURMD_NODENAME")?);
    let paths = Paths::new(far::at_home(state)?);
    make_dirs(paths.root()).map_err(|error| format!("cannot make {}: {error}", paths.root().display()))?;
    let fixed = [VERB, "serve", state, token, name, &job, &node].map(str::to_owned);
    let words: Vec<String> = fixed.into_iter().chain(more.iter().cloned()).collect();
    // The supervisor stays while there is nothing to do.
    Err(replaced(&words, &allocation_in(&paths, token)?, &[(STAY, "1")]))
}

/// Holds the directory until the allocation ends.
pub fn serve(state: &str, token: &str, name: &str, more: &[String]) -> Result<u8, String> {
    let [job, node, flags @ ..] = more else { return Err("the job is not named".to_owned()) };
    let mine = Claim {
        token: token.to_owned(),
        job: job.parse().map_err(|_| format!("'{job}' is no number of a job"))?,
        node: node.clone(),
    };
    let signals = Signals::block()?;
    far::assume(Some(state))?;
    let paths = Paths::from_env().map_err(|error| format!("cannot find the state directory: {error}"))?;
    let config =
        HostConfig { engine: Some(Engine::SlurmPilot), state: Some(state.to_owned()), ..HostConfig::default() };
    let host =
        swarm_hosts::find(name, &BTreeMap::from([(name.to_owned(), config)])).map_err(|refusal| refusal.cause)?;
    let is_gone = flags.iter().any(|flag| flag == GONE);
    let failed = |error: std::io::Error| format!("{}: {error}", paths.root().display());
    let taken = claim::take(paths.root(), &mine, |holder| judge(&host, holder, is_gone, &signals));
    let pilot = Pilot { paths: paths.clone(), host, mine, signals };
    match taken.map_err(failed)? {
        Taken::Held => pilot.hold(),
        Taken::Left(why) => {
            swarm_sys::complain!("swarm: {why}");
            pilot.say_last(&why);
            Ok(LEFT)
        }
    }
}

/// Reports whether the holder of the directory has ended. Waits for one that is ending, and for Slurm to answer.
fn judge(host: &Host, holder: &Claim, is_gone: bool, signals: &Signals) -> Verdict {
    let deadline = Instant::now() + CLAIM_MAX;
    let (job, node) = (holder.job, &holder.node);
    loop {
        let why = match look(host).map(|look| fate_of(host, &look, &holder.token, node)) {
            Ok(Fate::Over) => return Verdict::Over,
            Ok(Fate::Works) => return Verdict::Holds(format!("allocation {job} on {node} holds the directory")),
            Ok(Fate::Unproven) if is_gone => return Verdict::Over,
            Ok(Fate::Unproven) => {
                return Verdict::Holds(format!(
                    "allocation {job} has ended, and its node {node} does not answer, so its workers may still work \
                     (if that node is down for good: 'swarm hosts start {} --gone')",
                    host.name
                ));
            }
            Ok(Fate::Ends) => format!("allocation {job} on {node} is still ending"),
            Err(fault) => fault.cause,
        };
        if Instant::now() >= deadline || signals.wait(CLAIM_PAUSE, None) == Some(Told::End) {
            return Verdict::Holds(why);
        }
    }
}

/// What the job is told by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// To end.
    End,
    /// That the end comes near.
    Warning,
}

struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals, before there are threads.
    fn block() -> Result<Self, String> {
        let set: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1].into_iter().collect();
        let fd = set
            .thread_block()
            .and_then(|()| SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK));
        fd.map(Self).map_err(|error| format!("cannot wait for signals: {error}"))
    }

    fn take(&self) -> Option<Told> {
        let info = self.0.read_signal().ok().flatten()?;
        let is_warning = i32::try_from(info.ssi_signo).is_ok_and(|number| number == Signal::SIGUSR1 as i32);
        Some(if is_warning { Told::Warning } else { Told::End })
    }

    /// Waits for a signal, or for the end of the supervisor.
    fn wait(&self, limit: Duration, supervision: Option<&Supervision<'_>>) -> Option<Told> {
        let deadline = Instant::now() + limit;
        let mut waits = vec![PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        let supervisor = supervision.and_then(Supervision::fd);
        waits.extend(supervisor.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let _ = wait_until(&mut waits, deadline);
        self.take()
    }
}

/// The job, which holds the directory.
struct Pilot {
    paths: Paths,
    host: Host,
    mine: Claim,
    signals: Signals,
}

impl Pilot {
    /// Returns begin and end of the allocation, as Slurm says; `None` if it does not answer.
    fn times(&self) -> Option<(Option<u64>, Option<u64>)> {
        let jobs = look(&self.host).ok()?.jobs;
        let job = jobs.into_iter().find(|job| job.token == self.mine.token)?;
        let millis = |seconds: Option<u64>| seconds.map(|seconds| seconds.saturating_mul(1000));
        Some((millis(job.begun), millis(job.ends)))
    }

    fn say_last(&self, why: &str) {
        let text = format!("{} {why}\n", self.mine.token);
        if let Err(error) = replace_durably(self.paths.root(), LAST, text.as_bytes()) {
            swarm_sys::complain!("swarm: warning: {LAST}: {error}");
        }
    }

    fn hold(&self) -> Result<u8, String> {
        let (begun_ms, ends_ms) = self.times().unwrap_or_default();
        let mut present = Present {
            token: self.mine.token.clone(),
            job: self.mine.job,
            node: self.mine.node.clone(),
            begun_ms: begun_ms.unwrap_or_else(wall_ms),
            ends_ms,
            ending: false,
        };
        let root = self.paths.root();
        let written = |present: &Present| present.write(root).map_err(|error| format!("{}: {error}", root.display()));
        // A supervisor first: a connection is passed on as soon as the file is there.
        let mut supervision = Supervision::ensure(&self.paths).map_err(|refusal| refusal.cause)?;
        written(&present)?;
        loop {
            let limit = match present.times(wall_ms()) {
                Some(times) if times.is_over() => break,
                Some(times) => times.left.saturating_sub(times.stops()).min(LOOK_MAX),
                None => LOOK_MAX,
            };
            let told = self.signals.wait(limit, Some(&supervision));
            if told == Some(Told::End) {
                break;
            }
            if supervision.has_ended() && supervision.renew().is_err() {
                // Also one that a person stopped: the next command could only start one that ends with its step.
                supervision = Supervision::ensure(&self.paths).map_err(|refusal| refusal.cause)?;
            }
            let warned = || told.map(|_| wall_ms() + u64::try_from(WARNED.as_millis()).unwrap_or_default());
            let ends_ms = match self.times() {
                Some((_, ends_ms)) => ends_ms,
                None => present.ends_ms.into_iter().chain(warned()).min(),
            };
            if ends_ms != present.ends_ms {
                present.ends_ms = ends_ms;
                written(&present)?;
            }
        }
        present.ending = true;
        written(&present)?;
        if ending::end_workers(&self.paths) {
            self.await_fetches(&present);
        }
        self.close()
    }

    /// Waits until runs have fetched what their attempts did here. What is not fetched stays in the directory.
    fn await_fetches(&self, present: &Present) {
        let (begun, mut asked) = (Instant::now(), None);
        loop {
            if asked.is_none() && !ending::has_attempts(&self.paths) {
                asked = Some(Instant::now());
            }
            let left = present.times(wall_ms()).map(|times| times.left);
            let is_late = match asked {
                Some(asked) => asked.elapsed() >= ending::FETCH_MAX,
                None => begun.elapsed() >= ending::ASK_MAX,
            };
            let ends = left.is_some_and(|left| left <= ending::CLOSE_MAX);
            if is_late || ends || self.signals.wait(ending::FETCH_PAUSE, None) == Some(Told::End) {
                return;
            }
        }
    }

    fn close(&self) -> Result<u8, String> {
        if let Err(refusal) = crate::api::client::stop(&self.paths, crate::api::client::After::None) {
            swarm_sys::complain!("swarm: warning: {}", refusal.cause);
        }
        self.say_last("its workers were ended, and their work is kept");
        claim::release(self.paths.root(), &self.mine)
            .map_err(|error| format!("cannot release the directory: {error}"))?;
        Ok(0)
    }
}
