//! Private tmux server of a test, with its own directory and home. The server is ended when the test ends.

#![allow(clippy::unwrap_used, clippy::new_without_default, reason = "a test fixture")]

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Order, Server, Tmux, Window};

/// Private tmux server.
pub struct Private {
    pub dir: TempDir,
    pub name: String,
    pub environment: Vec<(String, String)>,
}

impl Private {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let dir = tempfile::tempdir().expect("makes a directory");
        let name = format!("swarm-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let place = dir.path().to_string_lossy().into_owned();
        let path = std::env::var("PATH").unwrap_or_default();
        let environment =
            [("PATH", path), ("HOME", place.clone()), ("TMUX_TMPDIR", place), ("SHELL", "/bin/sh".to_owned())];
        let environment = environment.map(|(name, value)| (name.to_owned(), value)).to_vec();
        Self { dir, name, environment }
    }

    /// Returns a connection with a time limit that is long enough for a busy machine.
    pub fn tmux(&self) -> Tmux {
        Tmux::new(Server::Name(self.name.clone()), &self.environment).with_limit(Duration::from_secs(30))
    }

    /// Runs tmux as a person does, and returns its output.
    pub fn user(&self, words: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.env_clear().envs(self.environment.iter().cloned()).current_dir("/");
        let output = command.args(["-u", "-L", &self.name]).args(words).output().expect("tmux runs");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Opens a window that runs `script`, in the session `swarm`.
    pub fn open(&self, name: &str, script: &str) -> Window {
        self.open_in("swarm", name, script)
    }

    pub fn open_in(&self, session: &str, name: &str, script: &str) -> Window {
        let cwd = self.dir.path().to_string_lossy();
        let argv = ["sh", "-c", script];
        let order = Order { session, name, cwd: &cwd, argv: &argv, log: &self.log(name) };
        self.tmux().open_window(&order, &|| Ok(Vec::new())).expect("opens a window")
    }

    /// Creates an empty log for the window `name`, and returns its path.
    pub fn log(&self, name: &str) -> std::path::PathBuf {
        let log = self.dir.path().join(format!("{name}.log"));
        std::fs::OpenOptions::new().create(true).append(true).open(&log).expect("makes a log");
        log
    }

    pub fn logged(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log(name)).expect("reads the log")).into_owned()
    }

    pub fn socket(&self) -> String {
        let user = nix::unistd::getuid();
        self.dir.path().join(format!("tmux-{user}")).join(&self.name).to_string_lossy().into_owned()
    }

    /// Returns the pids of the servers whose command line names this test's socket. Children that a server has
    /// forked, but that have not called exec yet, look the same and are excluded.
    pub fn servers(&self) -> Vec<i32> {
        let processes = std::fs::read_dir("/proc").expect("reads /proc").flatten();
        let server = |entry: std::fs::DirEntry| -> Option<(i32, i32)> {
            let read = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
            let line = String::from_utf8_lossy(&read("cmdline")).into_owned();
            let ours = read("comm").starts_with(b"tmux: server") && line.split('\0').any(|word| word == self.name);
            let pid = entry.file_name().to_str().filter(|_| ours)?.parse().ok()?;
            let stat = String::from_utf8_lossy(&read("stat")).into_owned();
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        };
        let found: Vec<(i32, i32)> = processes.filter_map(server).collect();
        let forked = |parent: i32| found.iter().any(|(pid, _)| *pid == parent);
        found.iter().filter(|(_, parent)| !forked(*parent)).map(|(pid, _)| *pid).collect()
    }
}

impl Drop for Private {
    /// Ends the server by its socket, or by its pid if a failed test left it without a socket.
    fn drop(&mut self) {
        self.user(&["kill-server"]);
        for pid in self.servers() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// Waits until `condition` holds. Panics after a time that only a failure takes.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come true");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}
