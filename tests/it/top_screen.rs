//! `swarm top` on a real terminal, which is a pane of a private tmux server.

use rustix::process::Signal;

use crate::common::{Rig, SOON, proc, wait_quiet, wait_until};

/// A pane with a running `swarm top`.
pub struct Pane<'a> {
    rig: &'a Rig,
    pid: i32,
}

impl<'a> Pane<'a> {
    /// Starts it in a pane of 80×24. After its end the pane shows its exit code and the state of the terminal.
    pub fn start(rig: &'a Rig, words: &str) -> Self {
        let pid = rig.path("top.pid");
        let swarm = env!("CARGO_BIN_EXE_swarm");
        let top = format!("echo $$ > '{}'; exec '{swarm}' top {words}", pid.display());
        let top = rig.file("top.sh", &top);
        let script = format!("sh '{top}'; code=$?; stty -a | grep -w icanon; echo ended $code; exec sleep 600");
        let script = rig.file("pane.sh", &script);
        let pane = Self { rig, pid: 0 };
        pane.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "-s", "outer", "sh", &script]);
        let read = || std::fs::read_to_string(&pid).ok()?.trim().parse().ok();
        wait_until("it has a pid", SOON, || read().is_some());
        Self { pid: read().expect("a number"), ..pane }
    }

    fn tmux(&self, words: &[&str]) -> String {
        self.rig.tmux(&[&["-L", "outer"], words].concat()).ok()
    }

    pub fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys", "-t", "outer:"], keys].concat());
    }

    fn lines(&self) -> Vec<String> {
        self.tmux(&["capture-pane", "-p", "-t", "outer:"]).lines().map(str::to_owned).collect()
    }

    pub fn shows(&self, what: &str, condition: impl Fn(&[String]) -> bool) {
        wait_until(what, SOON, || condition(&self.lines()));
    }

    pub fn has(&self, text: &str) {
        self.shows(text, |lines| lines.iter().any(|line| line.contains(text)));
    }

    fn is_alternate(&self) -> bool {
        self.tmux(&["display-message", "-p", "-t", "outer:", "#{alternate_on}"]).trim() == "1"
    }
}

#[test]
fn who_asks_is_first_and_is_answered_and_a_kill_is_asked() {
    let rig = Rig::new();
    rig.spawn("calm", &[], &["sleep", "600"]);
    let ask = format!("'{}' ask 'Which colour?' --wait > said; exec sleep 600", env!("CARGO_BIN_EXE_swarm"));
    rig.spawn_sh("zebra", &[], &ask);
    wait_until("it asks", SOON, || rig.view("zebra")["needs"]["kind"] == "question");
    let pane = Pane::start(&rig, "");
    pane.shows("who asks is first", |lines| lines.get(2).is_some_and(|line| line.starts_with(">! zebra")));
    assert!(pane.lines()[0].starts_with("swarm  2 workers  1 needs you  1 at work"), "{:?}", pane.lines());
    pane.keys(&["a"]);
    pane.shows("the request in full", |lines| {
        lines[1].contains("request 1 of zebra") && lines.iter().skip(2).any(|line| line.contains("Which colour?"))
    });
    pane.has("answer (enter sends");
    pane.keys(&["-l", "light green"]);
    pane.keys(&["Enter"]);
    wait_until("it is answered", SOON, || rig.view("zebra")["needs"].is_null());
    pane.keys(&["/", "c", "a", "l", "m", "Enter", "x"]);
    pane.shows("the question", |lines| lines.last().is_some_and(|line| line.trim_end() == "stop calm? y n"));
    assert_eq!(rig.fine("calm"), "running");
    pane.keys(&["y"]);
    wait_until("it is stopped", SOON, || rig.fine("calm") == "stopped");
    pane.shows("what was done", |lines| lines.last().is_some_and(|line| line.starts_with("swarm kill calm: ")));
    assert_eq!(rig.fine("zebra"), "running");
    pane.keys(&["q"]);
    pane.has("ended 0");
}

#[test]
fn the_terminal_is_given_away_resized_and_restored() {
    let rig = Rig::new();
    rig.spawn_sh("win", &["--tmux"], "echo hello from the window; exec sleep 600");
    let pane = Pane::start(&rig, "");
    pane.has("hello from the window");
    assert!(pane.is_alternate());
    pane.keys(&["Enter"]);
    wait_until("the window is attached", SOON, || !rig.tmux(&["list-clients"]).out.is_empty());
    pane.shows("the window alone", |lines| lines[0].starts_with("hello from the window"));
    pane.keys(&["C-b", "d"]);
    pane.has("swarm  1 worker");
    pane.tmux(&["resize-window", "-t", "outer:", "-x", "1", "-y", "1"]);
    pane.shows("one cell", |lines| lines.iter().all(|line| line.chars().count() <= 1));
    pane.tmux(&["resize-window", "-t", "outer:", "-x", "80", "-y", "24"]);
    pane.has("swarm  1 worker");
    pane.has("hello from the window");
    // Nothing changes, so nothing wakes it.
    wait_quiet(&[pane.pid]);
    pane.keys(&["C-z"]);
    wait_until("it is stopped", SOON, || proc::is_stopped(pane.pid));
    assert!(!pane.is_alternate());
    proc::signal(pane.pid, Signal::CONT);
    wait_until("it goes on", SOON, || pane.is_alternate());
    pane.has("swarm  1 worker");
    // In a dialog, too.
    pane.keys(&[":"]);
    pane.shows("a dialog", |lines| lines.last().is_some_and(|line| line.trim_end() == "swarm"));
    proc::signal(pane.pid, Signal::TERM);
    pane.has("ended 143");
    pane.shows("a terminal as it was", |lines| {
        let has = |word: &str| lines.iter().any(|line| line.split_whitespace().any(|one| one == word));
        has("icanon") && has("echo") && has("isig")
    });
    assert!(!pane.is_alternate());
    assert_eq!(rig.fine("win"), "running");
}

#[test]
fn a_terminal_that_is_closed_ends_it() {
    let rig = Rig::new();
    let pane = Pane::start(&rig, "--read-only");
    pane.has("no workers");
    pane.keys(&["n"]);
    pane.has("this is read-only");
    pane.tmux(&["kill-server"]);
    assert!(proc::wait_end(pane.pid, SOON));
    assert_eq!(rig.keepers(), (None, None), "looking starts no supervisor");
    assert!(!rig.root().exists(), "and writes nothing");
}

/// A stopped process, which goes on at the end, whatever that is.
struct Stopped(i32);

impl Drop for Stopped {
    fn drop(&mut self) {
        proc::signal(self.0, Signal::CONT);
    }
}

#[test]
fn a_tmux_that_hangs_holds_up_no_key_and_no_row() {
    let rig = Rig::new();
    rig.spawn_sh("win", &["--tmux"], "echo hello from the window; exec sleep 600");
    let pane = Pane::start(&rig, "");
    pane.has("hello from the window");
    let server = rig.tmux(&["display-message", "-p", "#{pid}"]).ok().trim().parse().expect("a pid");
    proc::signal(server, Signal::STOP);
    let held = Stopped(server);
    // The window is asked for again, and does not answer.
    pane.keys(&["R"]);
    rig.spawn("next", &[], &["sleep", "600"]);
    pane.has("swarm  2 workers");
    pane.keys(&["j", "?"]);
    pane.has("half a page down");
    pane.keys(&["?", "q"]);
    pane.has("ended 0");
    drop(held);
}
