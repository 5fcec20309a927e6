//! Implements the processes port: reaches our shims and process trees through their leases, and workers of the
//! original `swarm` through their rows.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::process::pidfd_send_signal;
use swarm_model::{Lease, ProcessId, Row};
use swarm_ports::{BoxFuture, Gone, ProcessError, Processes, StopOrder};
use swarm_sys::cgroups::Groups;
use swarm_sys::processes::{end_set, order_to_end, pidfd};
use swarm_sys::procfs;
use swarm_sys::readable::Readable;

use crate::legacy_process::{self, Sighting};

/// Pause before the second try to watch a process. Doubles up to [`WATCH_PAUSE_MAX`].
const WATCH_PAUSE: Duration = Duration::from_millis(200);
const WATCH_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Minimum number of watches before those without a waiting task are forgotten.
const WATCHES_MIN: usize = 64;

/// Processes of this system, in this boot.
pub struct SystemProcesses {
    boot: String,
    watches: Arc<Mutex<Watches>>,
}

/// One descriptor for each watched process, shared by all tasks that wait for its end.
#[derive(Default)]
struct Watches {
    by_process: HashMap<ProcessId, Weak<Readable>>,
    /// Number of entries at which unused ones are removed.
    room: usize,
}

impl Watches {
    /// Returns the watch of a process. `None` if the process is gone.
    fn of(&mut self, process: &ProcessId, boot: &str) -> io::Result<Option<Arc<Readable>>> {
        if let Some(watch) = self.by_process.get(process).and_then(Weak::upgrade) {
            return Ok(Some(watch));
        }
        let Some(fd) = pidfd(process, boot)? else { return Ok(None) };
        let watch = Arc::new(Readable::new(fd)?);
        if self.by_process.len() >= self.room {
            self.by_process.retain(|_, watch| watch.strong_count() > 0);
            self.room = (2 * self.by_process.len()).max(WATCHES_MIN);
        }
        self.by_process.insert(process.clone(), Arc::downgrade(&watch));
        Ok(Some(watch))
    }
}

impl Default for SystemProcesses {
    fn default() -> Self {
        Self::new()
    }
}

impl SystemProcesses {
    pub fn new() -> Self {
        Self { boot: procfs::boot_id(), watches: Arc::default() }
    }
}

impl Processes for SystemProcesses {
    fn gone(&self, process: ProcessId) -> BoxFuture<'static, Gone> {
        let (watches, boot) = (Arc::clone(&self.watches), self.boot.clone());
        Box::pin(async move {
            let mut pause = WATCH_PAUSE;
            loop {
                let watch = watches.lock().unwrap_or_else(PoisonError::into_inner).of(&process, &boot);
                let ended = match watch {
                    Ok(None) => return Gone,
                    Ok(Some(watch)) => watch.wait_for_end().await,
                    Err(error) => Err(error),
                };
                let Err(error) = ended else { return Gone };
                if pause == WATCH_PAUSE {
                    tracing::warn!(pid = process.pid, %error, "cannot watch a process; retrying");
                }
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(WATCH_PAUSE_MAX);
            }
        })
    }

    fn is_alive(&self, process: &ProcessId) -> bool {
        // A process that cannot be examined counts as alive: declaring a living worker dead would start it twice.
        procfs::alive(process, &self.boot).map_or(true, |stat| stat.is_some())
    }

    fn has_hung_up(&self, process: &ProcessId) -> bool {
        procfs::has_hung_up(process, &self.boot)
    }

    fn dir(&self, pid: i32) -> Option<PathBuf> {
        procfs::dir(pid)
    }

    fn stop_by_shim(&self, lease: &Lease, order: StopOrder) -> Result<(), ProcessError> {
        let failed = |error: io::Error| ProcessError::Tool(format!("cannot signal shim {}: {error}", lease.shim.pid));
        let Some(fd) = pidfd(&lease.shim, &self.boot).map_err(failed)? else { return Ok(()) };
        let sent = match order {
            StopOrder::Stop => order_to_end(&fd),
            StopOrder::Output => pidfd_send_signal(&fd, rustix::process::Signal::XFSZ).map_err(io::Error::from),
        };
        // A suspended shim has to continue before it can handle the signal.
        let _ = pidfd_send_signal(&fd, rustix::process::Signal::CONT);
        match sent {
            Err(error) if error.raw_os_error() != Some(nix::libc::ESRCH) => Err(failed(error)),
            _ => Ok(()),
        }
    }

    fn stop_unsupervised<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), ProcessError>> {
        let (lease, boot) = (lease.clone(), self.boot.clone());
        blocking(move || {
            // Control groups first: a fork bomb cannot be found process by process.
            let groups = Groups::of(&lease);
            let survivors = groups.end();
            let doomed = Doomed::new(&boot);
            end_set(&|| doomed.members(&|known| with_token(&lease, &boot, known)))?;
            groups.remove();
            let leader = procfs::alive(&lease.worker, &boot);
            let leader = leader.map_err(|error| ProcessError::Tool(format!("cannot examine the worker: {error}")))?;
            match leader {
                Some(_) if survivors.is_empty() => Err(ProcessError::Survivors(vec![lease.worker.pid])),
                _ if survivors.is_empty() => Ok(()),
                _ => Err(ProcessError::Survivors(survivors)),
            }
        })
    }

    fn end_survivors<'a>(&'a self, survivors: &'a [ProcessId]) -> BoxFuture<'a, Result<(), ProcessError>> {
        let (survivors, boot) = (survivors.to_vec(), self.boot.clone());
        blocking(move || {
            let doomed = Doomed::new(&boot);
            end_set(&|| doomed.members(&|known| with_descendants(&survivors, &boot, known)))
        })
    }

    fn stop_foreign<'a>(&'a self, row: &'a Row) -> BoxFuture<'a, Result<(), ProcessError>> {
        let (row, boot) = (row.clone(), self.boot.clone());
        blocking(move || {
            let leader = match legacy_process::sight(&row, &boot).map_err(ProcessError::Tool)? {
                Sighting::Gone => return Ok(()),
                Sighting::Worker(process) => process,
                Sighting::Doubtful(process) => {
                    let pid = process.pid;
                    return Err(ProcessError::Tool(format!(
                        "cannot tell whether process {pid} is worker '{}': it has its pid, but another command, \
                         directory or start (inspect it with 'ps -fp {pid}', and end it with 'kill {pid}')",
                        row.name
                    )));
                }
            };
            let tree = legacy_process::tree(&leader)
                .map_err(|error| ProcessError::Tool(format!("cannot list the processes: {error}")))?;
            if row.tmux.is_some() {
                legacy_process::kill_window(&row).map_err(ProcessError::Tool)?;
            }
            end_set(&|| legacy_process::survivors(&tree, &leader, &boot))
        })
    }

    fn foreign<'a>(&'a self, row: &'a Row) -> BoxFuture<'a, Result<Option<ProcessId>, ProcessError>> {
        let (row, boot) = (row.clone(), self.boot.clone());
        blocking(move || legacy_process::alive(&row, &boot).map_err(ProcessError::Tool))
    }
}

/// Processes that are being ended. Each stays one of them until it has ended: what made it one of them, such as its parent
/// or the leader of its session, may end before it.
struct Doomed<'a> {
    boot: &'a str,
    known: RefCell<Vec<ProcessId>>,
}

impl<'a> Doomed<'a> {
    fn new(boot: &'a str) -> Self {
        Self { boot, known: RefCell::default() }
    }

    /// Returns the pids of the living ones. `find` lists those that can be told now, with the known ones that it is given.
    fn members(&self, find: &dyn Fn(&[i32]) -> io::Result<Vec<i32>>) -> io::Result<Vec<i32>> {
        let mut living = Vec::new();
        for process in self.known.borrow().iter() {
            living.extend(procfs::alive(process, self.boot)?.map(|_| process.clone()));
        }
        let known: Vec<i32> = living.iter().map(|process| process.pid).collect();
        let mut new = Vec::new();
        for pid in find(&known)?.into_iter().filter(|pid| !known.contains(pid)) {
            let stat = procfs::living(pid)?;
            new.extend(stat.map(|stat| ProcessId { pid, start_ticks: stat.start_ticks, boot: self.boot.to_owned() }));
        }
        if !new.is_empty() {
            // A pid that another process got before it was examined is not found again.
            let again = find(&known)?;
            living.extend(new.into_iter().filter(|process| again.contains(&process.pid)));
        }
        let pids = living.iter().map(|process| process.pid).collect();
        *self.known.borrow_mut() = living;
        Ok(pids)
    }
}

/// Returns the pids of the worker's process and its session, of all processes that carry the worker's token in their
/// environment, of the known ones, and of the descendants of all these.
fn with_token(lease: &Lease, boot: &str, known: &[i32]) -> io::Result<Vec<i32>> {
    let needle = format!("SWARM_TOKEN={}", lease.token);
    let leader = procfs::alive(&lease.worker, boot)?.map(|_| lease.worker.pid);
    let mut found: Vec<i32> = leader.into_iter().chain(known.iter().copied()).collect();
    for pid in procfs::all()? {
        let Some(stat) = procfs::living(pid)? else { continue };
        if Some(stat.session) == leader || procfs::has_variable(pid, needle.as_bytes())? {
            found.push(pid);
        }
    }
    found.extend(living_below(&found)?);
    found.sort_unstable();
    found.dedup();
    // An older program may have started this process from inside a worker.
    let kept = keepers()?;
    found.retain(|pid| !kept.contains(pid));
    Ok(found)
}

/// Returns the pids of those processes that are alive, of the known ones, and of the descendants of all these.
fn with_descendants(processes: &[ProcessId], boot: &str, known: &[i32]) -> io::Result<Vec<i32>> {
    let mut found = known.to_vec();
    for process in processes {
        found.extend(procfs::alive(process, boot)?.map(|_| process.pid));
    }
    found.extend(living_below(&found)?);
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Returns the living descendants of these processes.
fn living_below(pids: &[i32]) -> io::Result<Vec<i32>> {
    let mut below = Vec::new();
    for pid in pids {
        for descendant in procfs::descendants(*pid)? {
            below.extend(procfs::living(descendant)?.map(|_| descendant));
        }
    }
    Ok(below)
}

/// Returns the pids of this process, of its guard, and of all their descendants. They serve every worker.
fn keepers() -> io::Result<Vec<i32>> {
    let me = nix::unistd::getpid().as_raw();
    let parent = nix::unistd::getppid().as_raw();
    let words = std::fs::read(format!("/proc/{parent}/cmdline")).unwrap_or_default();
    let guard = words.split(|byte| *byte == 0).nth(1).is_some_and(|verb| verb == b"__guard").then_some(parent);
    let mut kept = procfs::descendants(me)?;
    kept.extend([Some(me), guard].into_iter().flatten());
    Ok(kept)
}

fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ProcessError> + Send + 'static,
) -> BoxFuture<'static, Result<T, ProcessError>> {
    Box::pin(async move {
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| Err(ProcessError::Tool(io::Error::other(error).to_string())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[tokio::test]
    async fn all_waiters_share_one_watch_and_one_that_comes_late_is_answered() {
        let mut child = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().expect("starts");
        let processes = SystemProcesses::new();
        let pid = i32::try_from(child.id()).expect("pids fit");
        let process = procfs::identity(pid, &processes.boot).expect("it is alive");
        let waits = [0, 1].map(|_| tokio::spawn(processes.gone(process.clone())));
        // One turn of the runtime for each, so that both wait.
        tokio::task::yield_now().await;
        let kept = processes.watches.lock().expect("not poisoned").of(&process, &processes.boot);
        let kept = kept.expect("examined").expect("it is alive");
        assert_eq!(processes.watches.lock().expect("not poisoned").by_process.len(), 1);
        child.kill().expect("ours");
        for wait in waits {
            assert_eq!(wait.await.expect("no panic"), Gone);
        }
        kept.wait_for_end().await.expect("the end stays readable");
        child.wait().expect("ended");
        assert_eq!(processes.gone(process.clone()).await, Gone);
        assert!(!processes.is_alive(&process));
    }

    /// Descriptors belong to the whole process, so this test runs in one of its own.
    #[test]
    fn a_process_that_cannot_be_examined_for_want_of_descriptors_counts_as_alive() {
        const ALONE: &str = "SWARM_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            return without_descriptors();
        }
        let test = "processes::tests::a_process_that_cannot_be_examined_for_want_of_descriptors_counts_as_alive";
        let mut again = Command::new(std::env::current_exe().expect("known"));
        let said = again.args(["--exact", test]).env(ALONE, "1").output().expect("started");
        let out = String::from_utf8_lossy(&said.stdout);
        assert!(said.status.success() && out.contains("1 passed"), "{out}{}", String::from_utf8_lossy(&said.stderr));
    }

    fn without_descriptors() {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("made").block_on(async {
            let mut child = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().expect("starts");
            let processes = SystemProcesses::new();
            let process = procfs::identity(i32::try_from(child.id()).expect("pids fit"), &processes.boot);
            let process = process.expect("it is alive");
            let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("readable");
            setrlimit(Resource::RLIMIT_NOFILE, 0, hard).expect("lowered");
            let is_alive = processes.is_alive(&process);
            let gone = tokio::spawn(processes.gone(process.clone()));
            // Time passes by itself while nothing else is to be done: many tries are made.
            tokio::time::sleep(Duration::from_mins(10)).await;
            let is_gone = gone.is_finished();
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("raised");
            child.kill().expect("ours");
            assert_eq!((is_alive, is_gone), (true, false));
            child.wait().expect("ended");
            assert_eq!(gone.await.expect("no panic"), Gone, "the descriptors are back");
            assert!(!processes.is_alive(&process));
        });
    }

    #[tokio::test]
    async fn an_unsupervised_worker_ends_with_descendants_that_have_neither_its_token_nor_its_session() {
        let script = "echo $$; env -i sleep 60 & echo $!; env -i setsid sleep 60 & echo $!; exec sleep 60 > /dev/null";
        // Not below this process, whose own descendants serve every worker.
        let mut starter = Command::new("sh");
        starter.args(["-c", "setsid sh -c \"$1\" &", "sh", script]).stdout(Stdio::piped());
        let mut starter = starter.spawn().expect("starts");
        let mut lines = io::BufRead::lines(io::BufReader::new(starter.stdout.take().expect("a pipe")));
        starter.wait().expect("ended");
        let processes = SystemProcesses::new();
        let identify = |pid: i32| procfs::identity(pid, &processes.boot).expect("it is alive");
        let [worker, one, other] =
            [(); 3].map(|()| identify(lines.next().expect("a line").expect("read").parse().expect("a pid")));
        let lease = Lease {
            token: "no-process-has-it".to_owned(),
            started: String::new(),
            shim: ProcessId::default(),
            worker,
            pane: None,
            restart: swarm_model::RestartPolicy::default(),
            limits: None,
            machine: None,
            process_namespace: None,
            survivors: Vec::new(),
        };
        processes.stop_unsupervised(&lease).await.expect("all end");
        assert_eq!([one, other].map(|process| processes.is_alive(&process)), [false, false]);
    }
}
