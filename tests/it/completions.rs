//! Completion in real shells: Tab is pressed and the command line is read back.

use std::path::Path;

use crate::common::{Rig, SOON, wait_until};

/// A shell in a window, at its prompt.
struct Terminal<'a> {
    rig: &'a Rig,
}

impl<'a> Terminal<'a> {
    /// Starts the shell and types `setup`, in which `PROGRAM` stands for the directory of swarm.
    fn open(rig: &'a Rig, shell: &str, setup: &[&str]) -> Self {
        rig.tmux(&["new-session", "-d", "-s", "tab", "-x", "150", "-y", "40", shell]).ok();
        let terminal = Self { rig };
        let program = Path::new(env!("CARGO_BIN_EXE_swarm")).parent().expect("a directory");
        for line in setup {
            terminal.types(&line.replace("PROGRAM", program.to_str().expect("text")));
            terminal.presses("Enter");
        }
        terminal.types("echo set-\"up\"");
        terminal.presses("Enter");
        terminal.shows("set-up\n");
        terminal
    }

    fn types(&self, text: &str) {
        self.rig.tmux(&["send-keys", "-t", "=tab:", "-l", text]).ok();
    }

    fn presses(&self, key: &str) {
        self.rig.tmux(&["send-keys", "-t", "=tab:", key]).ok();
    }

    fn screen(&self) -> String {
        self.rig.tmux(&["capture-pane", "-p", "-t", "=tab:"]).ok()
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        wait_until(text, SOON, || self.screen().contains(text));
    }

    /// Types `line`, presses Tab, waits until the line reads `whole`, and clears it.
    #[track_caller]
    fn completes(&self, line: &str, whole: &str) {
        self.types(line);
        self.presses("Tab");
        self.shows(whole);
        // Not Ctrl-C: it may discard text that is typed right after it.
        self.presses("C-u");
        wait_until("the line is empty", SOON, || !self.screen().contains(whole));
    }
}

fn fleet() -> Rig {
    let rig = Rig::new();
    rig.spawn("window-one", &["--tmux", "--tag", "nightly"], &["sleep", "600"]);
    rig.spawn("process-two", &[], &["sleep", "600"]);
    rig.spawn("ended-three", &[], &["true"]);
    rig.wait("ended-three");
    rig
}

const BASH: [&str; 2] = ["PATH=PROGRAM:$PATH", "source <(swarm completions bash)"];

#[test]
fn tab_completes_existing_names_in_bash() {
    let rig = fleet();
    let shell = Terminal::open(&rig, "bash --norc --noprofile", &BASH);
    shell.completes("swarm status win", "swarm status window-one");
    shell.completes("swarm kill pro", "swarm kill process-two");
    shell.completes("swarm clean e", "swarm clean ended-three");
    // The only worker with a window.
    shell.completes("swarm peek ", "swarm peek window-one");
    shell.completes("swarm ls --tag ni", "swarm ls --tag nightly");
    shell.completes("swarm ls --format=na", "swarm ls --format=names");
    shell.completes("swarm resp", "swarm respawn");
    rig.spawn("fresh-four", &[], &["sleep", "600"]);
    shell.completes("swarm logs fr", "swarm logs fresh-four");
    std::fs::create_dir(rig.cwd().join("folder-five")).expect("made");
    shell.completes("swarm spawn --name x --cwd fold", "--cwd folder-five/");
    shell.completes("swarm spawn --name x -- ls fold", "-- ls folder-five");
}

#[test]
fn tab_completes_existing_names_in_zsh() {
    let rig = fleet();
    let setup = ["PATH=PROGRAM:$PATH", "autoload -U compinit && compinit -u -D", "source <(swarm completions zsh)"];
    let shell = Terminal::open(&rig, "zsh -f", &setup);
    shell.completes("swarm status win", "swarm status window-one");
    shell.completes("swarm send win", "swarm send window-one");
    shell.completes("swarm ls --format=na", "swarm ls --format=names");
}

#[test]
fn tab_completes_existing_names_in_fish() {
    let rig = fleet();
    let setup = ["set -x PATH PROGRAM $PATH", "swarm completions fish | source"];
    let shell = Terminal::open(&rig, "fish --no-config", &setup);
    shell.completes("swarm status win", "swarm status window-one");
    shell.completes("swarm clean e", "swarm clean ended-three");
    shell.completes("swarm ls --format=na", "swarm ls --format=names");
}

#[test]
fn a_name_that_a_shell_would_execute_is_not_offered() {
    let rig = fleet();
    let text = std::fs::read_to_string(rig.state()).expect("there");
    std::fs::write(rig.state(), text.replace("\"process-two\"", "\"$(touch x)\"")).expect("written");
    let offered = rig.swarm(&["__complete", "bash", "status", ""]).ok();
    assert!(offered.contains("window-one\trunning") && !offered.contains("touch"), "{offered}");
}

#[test]
fn completion_without_a_state_directory_is_silent_and_creates_nothing() {
    let rig = Rig::new();
    assert_eq!(rig.swarm(&["__complete", "bash", "status", ""]).ok(), "");
    assert_eq!(rig.swarm(&["__complete", "bash"]).ok(), "");
    assert_eq!(rig.swarm(&["__complete"]).ok(), "");
    assert!(!rig.root().exists());
}

#[test]
fn pages_are_written_for_every_verb() {
    let rig = Rig::new();
    let dir = rig.path("man/man1");
    let said = rig.swarm(&["man", "--dir", dir.to_str().expect("text")]).ok();
    let count = std::fs::read_dir(&dir).expect("made").count();
    assert_eq!(said, format!("wrote {count} pages to {}\n", dir.display()));
    let page = rig.swarm(&["man", "spawn"]).ok();
    assert_eq!(std::fs::read_to_string(dir.join("swarm-spawn.1")).expect("there"), page);
    let refused = rig.swarm(&["man", "spawm"]).refused(1, "verb 'spawm' not found");
    assert!(refused.err.contains("did you mean 'spawn'?"));
}
