//! Requests of agents in windows: the hook beside the dialog records them, waits for the answer and prints it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::proc::{alive, kill, signal, wait_end};
use crate::common::{Rig, SOON, Said, run, wait_quiet, wait_until};
use rustix::process::Signal;

/// Stand-in for claude: runs the hook that its `--settings` name for each event, each in a process group of its own.
/// Lines of `events` are `NUMBER EVENT JSON`. Leaves `pid.NUMBER` of the hook, its output `out.NUMBER`, and its exit code
/// `done.NUMBER`.
const CLAUDE: &str = r#"#!/bin/sh
printf '%s' "$2" > settings
hook_of() { sed -n "s/.*\"$1\":\[{\"hooks\":\[{\"command\":\"\([^\"]*\)\".*/\1/p" settings; }
"#;
/// Stand-in for codex, with hooks from its flags. Its `app-server` names their hashes if the file `hashes` exists beside it.
const CODEX: &str = r#"#!/bin/sh
if [ "$1" = app-server ]; then
    echo asked >> "$0.asked"
    [ -e "${0%/*}/hashes" ] || exit 1
    for word; do
        case $word in hooks.*)
            event=${word#hooks.}; event=${event%%=*}
            command=$(printf '%s' "$word" | sed 's/.*command=\("[^"]*"\).*/\1/')
            hook="{\"key\":\"k:$event\",\"source\":\"sessionFlags\",\"command\":$command,\"currentHash\":\"sha256:$event\"}"
            hooks="$hooks${hooks:+,}$hook"
        esac
    done
    while read -r line; do
        case $line in *hooks/list*) echo "{\"id\":2,\"result\":{\"data\":[{\"hooks\":[$hooks]}]}}"; esac
    done
    exit
fi
for word; do printf '%s\n' "$word"; done > settings
hook_of() { sed -n "s/^hooks.$1=.*command=\"\([^\"]*\)\".*/\1/p" settings; }
"#;
const EVENTS: &str = r#"
[ -p events ] || mkfifo events
# Also open for writing, so that there is no end of file between two writers.
exec 3<> events
while read -r number event said <&3; do
    hook=$(hook_of "$event")
    printf '%s' "$said" > "in.$number"
    (
        setsid sh -c "echo \$\$ > pid.$number; $hook" < "in.$number" > "out.$number" 2>&1
        echo $? > "done.$number"
    ) 3>&- &
done
"#;
const CONVERSATION: &str = "7d6c54f0-0000-4000-a000-000000000000";

struct Site {
    rig: Rig,
    dir: PathBuf,
}

impl Site {
    /// Starts a stand-in for claude in a window, with these flags of `spawn` and these arguments.
    fn new(flags: &[&str], words: &[&str]) -> Self {
        let site = Self::installed();
        site.spawn(&[&["--name", "a"], flags, &["--", "claude"], words].concat()).ok();
        site.begun()
    }

    fn installed() -> Self {
        let rig = Rig::new();
        let dir = rig.repo();
        fs::create_dir(rig.path("bin")).expect("made");
        for (name, script) in [("claude", CLAUDE), ("codex", CODEX)] {
            let agent = rig.path("bin").join(name);
            fs::write(&agent, [script, EVENTS].concat()).expect("written");
            fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).expect("set");
        }
        Self { rig, dir }
    }

    fn spawn(&self, words: &[&str]) -> Said {
        let mut command = self.rig.command(&[&["spawn"], words].concat());
        let path = format!("{}:{}", self.rig.path("bin").display(), std::env::var("PATH").expect("a path"));
        // The stand-in agents are scripts, for which hooks are off by default.
        command.current_dir(&self.dir).env("PATH", path).env("SWARM_HOOKS", "on");
        run(command)
    }

    fn begun(self) -> Self {
        wait_until("the agent takes events", SOON, || self.dir.join("events").exists());
        self
    }

    fn settings(&self) -> String {
        fs::read_to_string(self.dir.join("settings")).expect("read")
    }

    fn in_a_window() -> Self {
        Self::new(&["--tmux"], &["go on"])
    }

    /// Fires a hook in the agent.
    fn fire(&self, number: u32, event: &str, more: &Value) {
        let mut said = json!({ "hook_event_name": event, "session_id": CONVERSATION, "cwd": "/work" });
        let members = more.as_object().expect("an object").clone();
        said.as_object_mut().expect("an object").extend(members);
        let line = format!("{number} {event} {said}\n");
        let pipe = fs::OpenOptions::new().write(true).open(self.dir.join("events"));
        pipe.expect("a reader").write_all(line.as_bytes()).expect("written");
    }

    /// Fires a hook and waits for its end.
    #[track_caller]
    fn tell(&self, number: u32, event: &str, more: &Value) {
        self.fire(number, event, more);
        assert_eq!(self.said(number), "", "{event}");
    }

    /// Fires the hook of a dialog about this command, and waits until its request is recorded.
    #[track_caller]
    fn asks(&self, number: u32, command: &str) -> u64 {
        let (before, reported) = (self.open().len(), self.reported());
        self.fire(number, "PermissionRequest", &bash(command));
        wait_until("the request is recorded", SOON, || self.open().len() == before + 1);
        wait_until("the agent's wait is reported", SOON, || self.reported() != reported);
        *self.open().last().expect("a request")
    }

    /// Returns a value that is another one after each report.
    fn reported(&self) -> Option<u64> {
        let mut workers = fs::read_dir(self.rig.root().join("w")).expect("listed").flatten();
        let of_a = workers.find(|dir| dir.file_name().to_string_lossy().starts_with("a."))?;
        fs::metadata(of_a.path().join("activity.json")).ok().map(|meta| meta.ino())
    }

    /// Waits for the end of a hook, which must succeed; returns what it printed.
    #[track_caller]
    fn said(&self, number: u32) -> String {
        let done = self.dir.join(format!("done.{number}"));
        wait_until("the hook has ended", SOON, || fs::read_to_string(&done).is_ok_and(|text| text.ends_with('\n')));
        assert_eq!(fs::read_to_string(done).expect("read"), "0\n");
        fs::read_to_string(self.dir.join(format!("out.{number}"))).expect("read")
    }

    #[track_caller]
    fn decision(&self, number: u32) -> Value {
        let said: Value = serde_json::from_str(&self.said(number)).expect("JSON");
        assert_eq!(said["hookSpecificOutput"]["hookEventName"], "PermissionRequest");
        said["hookSpecificOutput"]["decision"].clone()
    }

    fn part(&self, number: u64, part: &str) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.asks_dir().join(format!("{number}.{part}.json"))).ok()?).ok()
    }

    fn asks_dir(&self) -> PathBuf {
        self.rig.root().join("asks")
    }

    /// Returns the numbers of the requests that are not over.
    fn open(&self) -> Vec<u64> {
        let names = fs::read_dir(self.asks_dir()).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let numbers = names.filter_map(|name| name.to_str()?.strip_suffix(".ask.json")?.parse().ok());
        let mut open: Vec<u64> = numbers.filter(|number| self.part(*number, "over").is_none()).collect();
        open.sort_unstable();
        open
    }

    /// Answers a request as the verbs do: by a file that appears complete.
    fn answer(&self, number: u64, verdict: &Value) {
        let by = json!({ "uid": 0, "user": null, "pid": 1, "tty": null, "from": null, "via": "person" });
        let digest = self.part(number, "ask").expect("asked")["digest"].clone();
        let mut answer = json!({ "digest": digest, "by": by, "at_ms": 1 });
        answer.as_object_mut().expect("an object").extend(verdict.as_object().expect("an object").clone());
        let dir = self.asks_dir();
        fs::write(dir.join(".answer"), answer.to_string()).expect("written");
        fs::hard_link(dir.join(".answer"), dir.join(format!("{number}.answer.json"))).expect("linked");
        fs::remove_file(dir.join(".answer")).expect("removed");
    }

    fn allow(&self, number: u64) {
        self.answer(number, &json!({ "verdict": "allow" }));
    }

    #[track_caller]
    fn over(&self, number: u64, why: &str) {
        wait_until("the request is over", SOON, || self.part(number, "over").is_some_and(|over| over["why"] == why));
    }

    fn doing(&self) -> (Value, Value) {
        let shown = self.rig.view("a");
        (shown["activity"]["doing"].clone(), shown["activity"]["what"].clone())
    }

    /// Returns the process of a hook: the child of its shell.
    fn hook(&self, number: u32) -> i32 {
        let shell = fs::read_to_string(self.dir.join(format!("pid.{number}"))).expect("it runs");
        let shell = shell.trim();
        let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).expect("alive");
        children.trim().parse().expect("one child")
    }

    fn shell(&self, number: u32) -> i32 {
        fs::read_to_string(self.dir.join(format!("pid.{number}"))).expect("it runs").trim().parse().expect("a pid")
    }
}

fn bash(command: &str) -> Value {
    json!({ "tool_name": "Bash", "tool_input": { "command": command } })
}

const WAITING: &str = "asks for permission: Bash: touch a";
const SHOWN: &str = "it was answered in the agent's own dialog";

#[test]
fn a_permission_is_answered_beside_the_dialog() {
    let site = Site::in_a_window();
    let number = site.asks(1, "touch a");
    let asked = site.part(number, "ask").expect("asked");
    let who = &asked["who"];
    assert_eq!(
        (&who["worker"], &who["generation"], &who["conversation"]),
        (&json!("a"), &json!(1), &json!(CONVERSATION))
    );
    assert_eq!((&asked["waits"], &asked["cwd"], &who["agent"]), (&json!("shown"), &json!("/work"), &json!("claude")));
    assert_eq!(asked["wish"], json!({ "type": "command", "command": "touch a" }));
    wait_until("the agent waits", SOON, || site.doing() == (json!("waiting"), json!(WAITING)));
    assert!(!site.dir.join("done.1").exists());
    site.allow(number);
    assert_eq!(site.decision(1), json!({ "behavior": "allow" }));
    assert!(site.part(number, "taken").is_some(), "the answer is taken before the agent hears it");
    assert_eq!(site.doing(), (json!("working"), json!("Bash: touch a")));
    site.tell(2, "PostToolUse", &bash("touch a"));
    site.over(number, "its answer was carried out");

    let denied = site.asks(3, "rm a");
    site.answer(denied, &json!({ "verdict": "deny", "reason": "keep it" }));
    assert_eq!(site.decision(3), json!({ "behavior": "deny", "message": "keep it" }));
    site.over(denied, "it was denied");
    assert_eq!(site.doing(), (json!("working"), Value::Null));
}

#[test]
fn a_question_is_answered_beside_the_dialog() {
    let site = Site::in_a_window();
    let input = json!({ "questions": [{ "question": "Which?", "options": [{ "label": "a" }, { "label": "b" }] }] });
    let asked = json!({ "tool_name": "AskUserQuestion", "tool_input": input });
    site.fire(1, "PermissionRequest", &asked);
    wait_until("the request is recorded", SOON, || site.open() == [1]);
    wait_until("the agent waits", SOON, || site.doing() == (json!("waiting"), json!("Which? (a | b)")));
    site.answer(1, &json!({ "verdict": "answer", "answers": [["Which?", "b"]] }));
    let mut answered = input;
    answered["answers"] = json!({ "Which?": "b" });
    assert_eq!(site.decision(1), json!({ "behavior": "allow", "updatedInput": answered }));
    // The report names the input with the answers in it.
    site.tell(2, "PostToolUse", &json!({ "tool_name": "AskUserQuestion", "tool_input": answered }));
    site.over(1, "its answer was carried out");
}

#[test]
fn what_is_answered_in_the_dialog_is_over() {
    let site = Site::in_a_window();
    let first = site.asks(1, "touch a");
    site.tell(2, "PostToolUse", &bash("touch b"));
    site.tell(3, "Stop", &json!({ "agent_id": "helper" }));
    site.tell(4, "UserPromptSubmit", &json!({}));
    assert_eq!(site.open(), [first], "another tool use, the end of a helper and a text that came say nothing about it");
    assert_eq!(site.doing(), (json!("waiting"), json!(WAITING)), "it still asks");
    for (number, event, more) in [
        (10, "PostToolUse", bash("touch a")),
        (20, "PostToolUseFailure", bash("touch a")),
        (30, "PermissionDenied", bash("touch a")),
        (50, "Stop", json!({})),
    ] {
        let asked = site.open().first().copied().unwrap_or_else(|| site.asks(number, "touch a"));
        site.tell(number + 1, event, &more);
        site.over(asked, SHOWN);
        assert_eq!(site.said(if asked == first { 1 } else { number }), "", "{event}: the hook ends without a word");
    }
    // A person dismissed the dialog: claude ends the process group of its hook and reports nothing else.
    let asked = site.asks(60, "touch a");
    let (shell, hook) = (site.shell(60), site.hook(60));
    [shell, hook].into_iter().for_each(|pid| signal(pid, Signal::TERM));
    assert!(wait_end(hook, SOON));
    site.over(asked, "the dialog was dismissed, or the agent has ended");
    assert_eq!(site.doing(), (json!("idle"), json!("its turn was interrupted")));
}

#[test]
fn two_dialogs_are_answered_each_for_itself() {
    let site = Site::in_a_window();
    let (one, two) = (site.asks(1, "touch a"), site.asks(2, "touch a"));
    assert_ne!(one, two, "an answer to one is none to an equal other one");
    let other = site.asks(3, "touch b");
    assert_eq!(site.doing(), (json!("waiting"), json!(WAITING)), "the first one is shown until it is answered");
    site.allow(two);
    assert_eq!(site.decision(2), json!({ "behavior": "allow" }));
    assert_eq!(site.doing(), (json!("waiting"), json!(WAITING)), "it still waits for the others");
    // The end of the tool use is that of the one which was allowed.
    site.tell(4, "PostToolUse", &bash("touch a"));
    site.over(two, "its answer was carried out");
    assert_eq!(site.open(), [one, other]);
    assert_eq!(site.doing(), (json!("waiting"), json!(WAITING)));
    site.allow(other);
    assert_eq!(site.decision(3), json!({ "behavior": "allow" }));
    site.tell(5, "PostToolUse", &bash("touch a"));
    site.over(one, SHOWN);
    assert_eq!(site.said(1), "");
}

#[test]
fn a_rule_answers_at_once_and_records_nothing() {
    let site = Site::in_a_window();
    // The rules of the directory in which the agent was started apply; the reports name another one.
    let add = |words: &[&str]| drop(site.rig.swarm_in(&site.dir, &[&["rules", "add"], words].concat()).ok());
    add(&["--allow", "touch a"]);
    add(&["--deny", "rm", "--reason", "keep it", "--everywhere"]);
    add(&["--ask", "touch a now"]);
    site.fire(1, "PermissionRequest", &bash("touch a"));
    assert_eq!(site.decision(1), json!({ "behavior": "allow" }));
    assert_eq!(site.doing(), (json!("working"), json!("Bash: touch a")));
    site.fire(2, "PermissionRequest", &bash("touch a && rm b"));
    assert_eq!(site.decision(2), json!({ "behavior": "deny", "message": "keep it" }));
    assert_eq!(site.doing(), (json!("working"), Value::Null));
    assert_eq!(site.open(), [0_u64; 0]);
    // A person is asked: no rule allows it, one says so, or a repository's file would allow it, which it cannot.
    for (number, command) in [(3, "touch b"), (4, "touch a now")] {
        site.asks(number, command);
    }
    fs::write(site.dir.join("swarm.toml"), "[approvals]\nallow = ['touch a']\n").expect("written");
    site.asks(5, "touch a");
    fs::write(site.dir.join("swarm.toml"), "[[approvals.rule]]\ndeny = 'touch'\n").expect("written");
    site.fire(6, "PermissionRequest", &bash("touch a"));
    assert_eq!(site.decision(6), json!({ "behavior": "deny", "message": "a rule denies 'touch'" }));
    assert_eq!(site.doing().0, json!("waiting"), "the others still wait");
}

#[test]
fn an_answer_is_used_once_and_not_beside_its_record() {
    let site = Site::in_a_window();
    let number = site.asks(1, "touch a");
    let taken = json!({ "by": "another", "at_ms": 1 }).to_string();
    fs::write(site.asks_dir().join(format!("{number}.taken.json")), taken).expect("written");
    site.allow(number);
    assert_eq!(site.said(1), "", "it was used before");
}

#[test]
fn without_a_record_only_the_dialog_asks() {
    let site = Site::in_a_window();
    // The records cannot be written, as on a full disk.
    let _ = fs::remove_dir(site.asks_dir());
    fs::write(site.asks_dir(), "").expect("written");
    site.fire(1, "PermissionRequest", &bash("touch a"));
    assert_eq!(site.said(1), "");
    assert_eq!(site.doing(), (json!("waiting"), json!(WAITING)), "the wait itself is reported");
    fs::remove_file(site.asks_dir()).expect("removed");
    // Nobody could read it all.
    site.fire(2, "PermissionRequest", &bash(&"x".repeat(100_000)));
    assert_eq!(site.said(2), "");
    assert_eq!(site.open(), [0_u64; 0]);
    site.asks(3, "touch a");
}

#[test]
fn a_killed_hook_leaves_the_question_to_the_dialog() {
    let site = Site::in_a_window();
    let number = site.asks(1, "touch a");
    kill(site.hook(1));
    assert_eq!(site.said(1), "");
    site.allow(number);
    // Not by the next hook for an equal tool use: it is asked anew.
    let next = site.asks(2, "touch a");
    assert_ne!(number, next);
    assert!(site.part(number, "taken").is_none());
    site.tell(3, "Stop", &json!({}));
    site.over(number, SHOWN);
    assert_eq!(site.said(2), "");
}

#[test]
fn requests_end_with_their_worker_and_outlive_the_supervisor() {
    let site = Site::in_a_window();
    let number = site.asks(1, "touch a");
    let hook = site.hook(1);
    site.rig.kill_keepers();
    assert!(alive(hook));
    site.allow(number);
    assert_eq!(site.decision(1), json!({ "behavior": "allow" }));
    let (second, hook) = (site.asks(2, "touch b"), site.hook(2));
    // Killed without a word, so that only the supervisor can tell.
    kill(hook);
    site.rig.swarm(&["kill", "a"]).ok();
    site.over(second, "the worker has ended");
    site.over(number, "the worker has ended");
}

#[test]
fn a_worker_that_is_killed_takes_its_waiting_hook_along() {
    let site = Site::in_a_window();
    let number = site.asks(1, "touch a");
    let hook = site.hook(1);
    site.rig.swarm(&["kill", "a"]).ok();
    assert!(wait_end(hook, SOON));
    wait_until("the request is over", SOON, || site.part(number, "over").is_some());
}

#[test]
fn an_agent_without_a_terminal_is_not_kept_waiting() {
    for (flags, words) in [(&["--tmux"][..], &["-p", "go on"][..]), (&[], &["go on"])] {
        let site = Site::new(flags, words);
        site.fire(1, "PermissionRequest", &bash("touch a"));
        assert_eq!(site.said(1), "");
        assert_eq!(site.open(), [0_u64; 0], "nobody could answer in time");
    }
}

#[test]
fn a_waiting_hook_sleeps() {
    let site = Site::in_a_window();
    site.asks(1, "touch a");
    let hook = site.hook(1);
    wait_quiet(&[hook]);
}

#[test]
fn codex_in_a_window_reports_and_is_answered_through_hooks_that_are_trusted_once() {
    let site = Site::installed();
    fs::write(site.rig.path("bin/hashes"), "").expect("written");
    let codex = ["--tmux", "--", "codex", "-m", "x"];
    site.spawn(&[&["--name", "a"], &codex[..]].concat()).ok();
    let site = site.begun();
    let settings = site.settings();
    assert!(settings.contains(r#""k:PermissionRequest"={trusted_hash="sha256:PermissionRequest"}"#), "{settings}");
    assert!(settings.ends_with("-m\nx\n"), "{settings}");
    site.tell(1, "SessionStart", &json!({}));
    assert_eq!(site.doing().0, json!("idle"));
    let number = site.asks(2, "touch a");
    let asked = site.part(number, "ask").expect("asked");
    assert_eq!((&asked["who"]["agent"], &asked["who"]["worker"]), (&json!("codex"), &json!("a")));
    wait_until("the agent waits", SOON, || site.doing() == (json!("waiting"), json!(WAITING)));
    site.allow(number);
    assert_eq!(site.decision(2), json!({ "behavior": "allow" }));
    site.tell(3, "PostToolUse", &bash("touch a"));
    site.over(number, "its answer was carried out");
    // codex kills the shell around the hook if a person interrupts it.
    let dismissed = site.asks(4, "touch b");
    let hook = site.hook(4);
    kill(site.shell(4));
    site.over(dismissed, "the dialog was dismissed, or the agent has ended");
    assert!(wait_end(hook, SOON));
    wait_until("the agent is idle", SOON, || site.doing() == (json!("idle"), json!("its turn was interrupted")));

    site.rig.swarm(&["kill", "a"]).ok();
    fs::remove_file(site.dir.join("events")).expect("removed");
    site.spawn(&[&["--name", "b"], &codex[..]].concat()).ok();
    let site = site.begun();
    assert_eq!(fs::read_to_string(site.rig.path("bin/codex.asked")).expect("read"), "asked\n", "once for a version");
}

#[test]
fn codex_that_names_no_hashes_starts_without_hooks() {
    let site = Site::installed();
    let said = site.spawn(&["--name", "a", "--tmux", "--", "codex", "-m", "x"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("codex does not report what it does"), "{said:?}");
    let site = site.begun();
    assert_eq!(site.settings(), "-m\nx\n");
    let said = site.spawn(&["--name", "b", "--", "codex", "exec", "x"]);
    assert!(!said.err.contains("hooks"), "only windows have hooks: {said:?}");
}
