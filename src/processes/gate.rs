//! The supervisor's side of the handshake with a shim: what becomes of a start after its commit.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use swarm_model::ProcessId;
use swarm_ports::LaunchError;
use tokio::io::AsyncWriteExt as _;

use super::launcher::{Link, PREPARE_MAX, blocking, read_line};
use swarm_sys::processes;

/// Name of a contract whose start was withdrawn.
const WITHDRAWN: &str = "spec.withdrawn";
/// Warning about a command that is being executed and that has not answered.
const NOT_YET: &str = "the command has not begun yet: the disk of its program does not answer";
/// Maximum number of failures to execute a command that may happen while its start is withdrawn.
const EXECS_MAX: u32 = 3;
/// Maximum time of an exec; long because the binary may be on a slow network disk.
const EXEC_MAX: Duration = Duration::from_secs(30);
/// Pause before another try to open a handle of a shim.
const PIDFD_PAUSE: Duration = Duration::from_millis(100);

/// Supervisor's side of the handshake.
pub(super) struct Gate {
    pub(super) link: Link,
    pub(super) shim: ProcessId,
    pub(super) worker: ProcessId,
    pub(super) boot: String,
    /// Directory of the worker's records.
    pub(super) dir: PathBuf,
}

impl Gate {
    pub(super) async fn open(mut self) -> Result<Vec<String>, LaunchError> {
        let said = match self.link.write_all(b"go\n").await {
            Ok(()) => read_line(&mut self.link, EXEC_MAX).await,
            Err(error) => Err(error),
        };
        match said.as_deref() {
            Ok(line) if line.starts_with("started ") => {
                Ok(serde_json::from_str(&line["started ".len()..]).unwrap_or_default())
            }
            Ok(line) if line.starts_with("failed ") => {
                let failure = LaunchError::Exec(line["failed ".len()..].to_owned());
                blocking(move || {
                    self.wait_gone();
                    Err(failure)
                })
                .await
            }
            _ => blocking(move || self.without_answer()).await,
        }
    }

    /// Decides what becomes of a start without an answer, and without an error, after the commit: the shim has died, or
    /// the worker's process waits for a disk. The worker's process renames the
    /// contract just before it executes the command, and this function renames it to cancel the start. Only one rename
    /// succeeds. If it is this one, both processes are ended, and nothing is executed. Otherwise the worker runs, with or
    /// without its shim.
    fn without_answer(self) -> Result<Vec<String>, LaunchError> {
        match self.take_contract() {
            Ok(true) => {}
            Ok(false) => {
                let is_under_way = self.pidfd().is_ok_and(|shim| shim.is_some());
                return Ok(is_under_way.then(|| NOT_YET.to_owned()).into_iter().collect());
            }
            Err(error) => {
                tracing::error!(dir = %self.dir.display(), %error, "cannot withdraw the contract of a start");
                self.end_shim();
                return Ok(Vec::new());
            }
        }
        self.end_worker();
        self.end_shim();
        Err(LaunchError::NotStarted("the worker's process did not get to its command".to_owned()))
    }

    /// Takes the contract away from the worker's process, which needs it to execute the command. Returns false if it has
    /// been executed.
    ///
    /// # Errors
    /// Fails if that cannot be found out. The records then decide what became of it.
    fn take_contract(&self) -> io::Result<bool> {
        let (pending, withdrawn) = (self.dir.join("spec.pending"), self.dir.join(WITHDRAWN));
        for _ in 0..EXECS_MAX {
            match std::fs::rename(&pending, &withdrawn) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                taken => return taken.map(|()| true),
            }
            if self.dir.join("spec.json").try_exists()? {
                return Ok(false);
            }
            // The command could not be executed, and the contract is pending again.
        }
        Ok(false)
    }

    /// Kills the worker's process, which has not executed its command. If it waits for a disk, it ends with its wait.
    fn end_worker(&self) {
        match processes::pidfd(&self.worker, &self.boot) {
            Ok(Some(fd)) => drop(rustix::process::pidfd_send_signal(&fd, rustix::process::Signal::KILL)),
            Ok(None) => {}
            Err(error) => tracing::error!(pid = self.worker.pid, %error, "cannot end a process that was not started"),
        }
    }

    pub(super) async fn withdraw(mut self) {
        let told = self.link.write_all(b"no\n").await.is_ok();
        let ended = tokio::task::spawn_blocking(move || if told { self.wait_gone() } else { self.end_shim() });
        let _ = ended.await;
    }

    /// Ends a shim that has not started its command: by SIGTERM, else by SIGKILL. Its child then exits by itself.
    /// Reports whether the shim is gone.
    fn end_shim(&self) -> bool {
        for signal in [rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
            match self.pidfd() {
                Ok(None) => return true,
                Ok(Some(fd)) => {
                    let _ = rustix::process::pidfd_send_signal(&fd, signal);
                    if processes::wait_all_gone(&[fd], PREPARE_MAX) {
                        return true;
                    }
                }
                Err(error) => tracing::error!(pid = self.shim.pid, %error, "cannot end a shim"),
            }
        }
        self.wait_gone()
    }

    /// Waits until the shim is gone, and reports whether it is.
    fn wait_gone(&self) -> bool {
        match self.pidfd() {
            Ok(None) => true,
            Ok(Some(fd)) => processes::wait_all_gone(&[fd], PREPARE_MAX),
            Err(_) => false,
        }
    }

    /// Returns a pidfd of the shim; `None` if it is gone. Tries again for a while if that cannot be decided, for
    /// example because no descriptor is free.
    fn pidfd(&self) -> io::Result<Option<OwnedFd>> {
        let deadline = Instant::now() + PREPARE_MAX;
        loop {
            match processes::pidfd(&self.shim, &self.boot) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(PIDFD_PAUSE),
                opened => return opened,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use swarm_sys::procfs;
    use tokio::io::BufReader;
    use tokio::net::UnixStream;

    use super::*;

    struct Start {
        dir: tempfile::TempDir,
        shim: Child,
        worker: Child,
    }

    impl Start {
        fn new(contract: &str) -> Self {
            let sleep = || Command::new("sleep").arg("600").spawn().unwrap();
            let start = Self { dir: tempfile::tempdir().unwrap(), shim: sleep(), worker: sleep() };
            std::fs::write(start.dir.path().join(contract), "{}").unwrap();
            start
        }

        fn gate(&self) -> Gate {
            let boot = procfs::boot_id();
            let id = |child: &Child| procfs::identity(i32::try_from(child.id()).unwrap(), &boot).unwrap();
            let link = BufReader::new(UnixStream::pair().unwrap().0);
            let (shim, worker, dir) = (id(&self.shim), id(&self.worker), self.dir.path().to_owned());
            Gate { link, shim, worker, boot, dir }
        }

        fn has(&self, name: &str) -> bool {
            self.dir.path().join(name).exists()
        }
    }

    impl Drop for Start {
        fn drop(&mut self) {
            for child in [&mut self.shim, &mut self.worker] {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    #[tokio::test]
    async fn a_start_without_an_answer_is_withdrawn_before_anything_ends() {
        let mut start = Start::new("spec.pending");
        let gate = start.gate();
        // Reaped as soon as they end, so that nobody waits for a zombie.
        let withdrawn = std::thread::spawn(move || gate.without_answer());
        assert_eq!(start.worker.wait().unwrap().to_string(), "signal: 9 (SIGKILL)");
        assert!(!start.has("spec.pending") && start.has(WITHDRAWN), "its process could not rename it any more");
        assert_eq!(start.shim.wait().unwrap().to_string(), "signal: 15 (SIGTERM)");
        assert!(matches!(withdrawn.join().unwrap(), Err(LaunchError::NotStarted(_))));
    }

    #[tokio::test]
    async fn a_command_that_was_executed_goes_on_with_its_shim() {
        let mut start = Start::new("spec.json");
        assert!(matches!(start.gate().without_answer(), Ok(warnings) if warnings == [NOT_YET]));
        assert!(start.worker.try_wait().unwrap().is_none() && start.shim.try_wait().unwrap().is_none());
        let gate = start.gate();
        start.shim.kill().unwrap();
        start.shim.wait().unwrap();
        assert!(matches!(gate.without_answer(), Ok(warnings) if warnings.is_empty()));
        assert!(start.worker.try_wait().unwrap().is_none() && start.has("spec.json"));
    }
}
