//! Activity of an agent in a window, as the agent itself reports it: by hooks that its command line installs, and
//! by `swarm session note` for any other program.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::{Rig, SOON, Said, run, wait_until};
use crate::recover::reboot;

/// Stand-in for an agent: writes its arguments to `words`, and runs the hook that they name for each line that
/// arrives in `hooks`.
const AGENT: &str = r#"#!/bin/sh
for word; do echo "$word"; done > words
hook=$(printf '%s' "$2" | sed -n 's/.*"command":"\([^"]*\)".*/\1/p')
[ -p hooks ] || mkfifo hooks
# Also open for writing, so that there is no end of file between two writers.
exec 3<> hooks
while read -r line <&3; do
    printf '%s' "$line" | sh -c "$hook" > said 2>&1
    echo "$? $(cat said)" > done
done
"#;

struct Site {
    rig: Rig,
    repo: PathBuf,
}

impl Site {
    /// Puts a stand-in for claude on the PATH of the caller.
    fn new() -> Self {
        let rig = Rig::new();
        let repo = rig.repo();
        fs::create_dir(rig.path("bin")).expect("made");
        let agent = rig.path("bin/claude");
        fs::write(&agent, AGENT).expect("written");
        fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).expect("set");
        Self { rig, repo }
    }

    fn swarm(&self, words: &[&str], env: &[(&str, &str)]) -> Said {
        let mut command = self.rig.command(words);
        let path = std::env::var("PATH").expect("a path");
        command.current_dir(&self.repo).env("PATH", format!("{}:{path}", self.rig.path("bin").display()));
        // The stand-in agent is a script, for which hooks are off by default.
        command.env("AGENT_HEARTBEAT_INTERVAL_MS", "100").env("SWARM_HOOKS", "on").envs(env.iter().copied());
        run(command)
    }

    fn tree(&self, name: &str) -> PathBuf {
        self.rig.path("repo-worktrees").join(name)
    }

    fn file(&self, name: &str, file: &str) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.tree(name).join(".agent").join(file)).ok()?).ok()
    }

    fn words(&self, name: &str) -> Vec<String> {
        let path = self.tree(name).join("words");
        wait_until("the agent was executed", SOON, || self.tree(name).join("hooks").exists());
        fs::read_to_string(path).expect("read").lines().map(str::to_owned).collect()
    }

    /// Fires a hook in the agent and waits for its end.
    #[track_caller]
    fn hook(&self, name: &str, said: &Value) {
        self.fire(&self.tree(name), said);
    }

    /// Fires a hook in the agent that runs in `dir` and waits for its end.
    #[track_caller]
    fn fire(&self, dir: &Path, said: &Value) {
        let done = dir.join("done");
        let _ = fs::remove_file(&done);
        let mut said = said.clone();
        said["session_id"] = json!("7d6c54f0-0000-4000-a000-000000000000");
        tell(&dir.join("hooks"), &said.to_string());
        wait_until("the hook has run", SOON, || fs::read_to_string(&done).is_ok_and(|text| text.ends_with('\n')));
        assert_eq!(fs::read_to_string(done).expect("read"), "0 \n", "the hook prints nothing and succeeds");
    }

    #[track_caller]
    fn beats(&self, name: &str, kind: &str, operation: &Value, calls: u64) {
        wait_until(kind, SOON, || {
            self.file(name, "heartbeat.json").is_some_and(|beat| {
                (&beat["lastActivityType"], &beat["currentOperation"], &beat["toolCallsCount"])
                    == (&json!(kind), operation, &json!(calls))
            })
        });
    }

    fn worker(&self, name: &str) -> Value {
        serde_json::from_str(&self.swarm(&["status", name, "--json"], &[]).out).expect("JSON")
    }

    fn told(&self, word: &str) -> usize {
        self.swarm(&["events", "--json"], &[]).out.lines().filter(|line| line.contains(word)).count()
    }
}

/// Writes a line into a named pipe once someone reads it. Does not block if its reader has died.
#[track_caller]
fn tell(pipe: &Path, line: &str) {
    let open = || fs::OpenOptions::new().write(true).custom_flags(nix::libc::O_NONBLOCK).open(pipe).ok();
    wait_until("someone reads the pipe", SOON, || open().is_some());
    open().expect("it is read").write_all(format!("{line}\n").as_bytes()).expect("written");
}

fn event(name: &str) -> Value {
    json!({ "hook_event_name": name })
}

fn tool(event: &str) -> Value {
    json!({ "hook_event_name": event, "tool_name": "Bash", "tool_input": { "command": "make it" } })
}

#[test]
fn an_agent_in_a_window_reports_its_operation() {
    let site = Site::new();
    site.swarm(&["spawn", "--name", "a", "--tmux", "--worktree", "--", "claude", "go on"], &[]).ok();
    let words = site.words("a");
    assert_eq!((words[0].as_str(), &words[2..]), ("--settings", &["go on".to_owned()][..]));
    assert_eq!(site.rig.rows()[0]["cmd"], json!(["claude", "go on"]), "the row has the command as typed");

    let doing = || site.worker("a")["activity"]["doing"].clone();
    site.hook("a", &event("SessionStart"));
    assert_eq!(doing(), json!("idle"), "shown as soon as the hook has run");
    site.hook("a", &event("UserPromptSubmit"));
    assert_eq!(doing(), json!("working"));
    site.hook("a", &tool("PreToolUse"));
    assert!(site.swarm(&["ls", "-l"], &[]).out.contains("  working: Bash: make it  "));
    assert_eq!(site.worker("a")["needs"], Value::Null);
    site.beats("a", "tool_use", &json!("Bash: make it"), 1);
    let state = site.file("a", "state.json").expect("a state");
    assert_eq!(state["providerSessionId"], "7d6c54f0-0000-4000-a000-000000000000");
    let shown = site.swarm(&["session", "show", "a"], &[]).ok();
    assert!(shown.contains("\nOperation:    Bash: make it\n"), "{shown}");

    site.hook("a", &tool("PermissionRequest"));
    site.beats("a", "waiting", &json!("Bash: make it"), 1);
    let asks = "asks for permission: Bash: make it";
    let shown = site.worker("a");
    assert_eq!((&shown["waiting"], &shown["stuck"]), (&json!(asks), &Value::Null));
    let needs = &shown["needs"];
    assert_eq!((&needs["kind"], &needs["text"]), (&json!("permission"), &json!(asks)));
    assert_eq!((&needs["answer"], &shown["activity"]["doing"]), (&json!("swarm attach a"), &json!("waiting")));
    wait_until("an event reports the wait", SOON, || site.told("worker.waiting") == 1);
    let said = site.swarm(&["explain", "a"], &[]).ok();
    assert!(said.contains(&format!("its agent waits for a person: {asks}\n")), "{said}");
    assert!(said.contains(&format!("waits for a person: {asks}\n")) && !said.contains("stuck"), "{said}");
    assert!(site.swarm(&["ls", "-l"], &[]).out.contains(&format!("waiting: {asks}")));
    site.hook("a", &tool("PostToolUse"));
    wait_until("ls no longer shows the wait", SOON, || !site.swarm(&["ls", "-l"], &[]).out.contains(asks));
    wait_until("an event reports that it works", SOON, || site.told("worker.working") > 0);
    assert_eq!((site.told("worker.unstuck"), site.told("worker.stuck")), (0, 0));

    let message = json!({ "hook_event_name": "Notification", "notification_type": "idle_prompt", "message": "next?" });
    site.hook("a", &event("Stop"));
    assert!(site.swarm(&["ls", "-l"], &[]).out.contains("  idle  "));
    wait_until("an event reports the end of its turn", SOON, || site.told("worker.idle") > 0);
    site.hook("a", &message);
    site.beats("a", "idle", &Value::Null, 1);
    let shown = site.swarm(&["session", "show", "a", "--json"], &[]).ok();
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!((&shown["activity"]["waiting"], &shown["activity"]["idle"]), (&json!("next?"), &json!(true)));
}

#[test]
fn an_agent_stuck_in_one_operation_is_nudged_even_if_it_prints() {
    let site = Site::new();
    let words = ["spawn", "--name", "a", "--worktree", "--tmux", "--stuck-after", "1s", "--", "claude"];
    site.swarm(&words, &[]).ok();
    site.words("a");
    site.hook("a", &tool("PreToolUse"));
    wait_until("the agent is nudged", SOON, || site.told("\"step\":\"nudged\"") > 0);
    let said = site.swarm(&["events", "--json"], &[]).out;
    assert!(said.contains("same-operation") || said.contains("silent"), "{said}");
}

#[test]
fn a_worker_resumes_the_conversation_that_it_reported_and_old_hooks_are_ignored() {
    let site = Site::new();
    site.swarm(&["spawn", "--name", "a", "--worktree", "--", "claude", "--model", "m", "go"], &[]).ok();
    site.words("a");
    site.hook("a", &tool("PreToolUse"));
    let tree = site.tree("a");
    let (projects, id) = conversation(&site, "a");
    // A newer conversation, which may belong to a subagent.
    fs::write(projects.join("newer.jsonl"), "{}\n").expect("written");
    let token = token(&site, "a");
    reboot(&site.rig);
    fs::remove_file(tree.join("hooks")).expect("removed");
    site.swarm(&["recover", "a", "--apply", "--settle", "0"], &[]).ok();
    let words = site.words("a");
    assert_eq!(
        (words[0].as_str(), &words[2..4]),
        ("--settings", &["--resume".to_owned(), id.to_owned()][..]),
        "{words:?}"
    );
    assert_eq!(site.file("a", "activity.json"), None, "the operation of the earlier agent is discarded");
    let mut late = site.rig.command(&["session", "hook", &tool("PreToolUse").to_string()]);
    late.env("SWARM_SESSION", &tree).env("SWARM_TOKEN", token);
    run(late).is(0, "", "");
    assert_eq!(site.file("a", "activity.json"), None);
}

/// Makes the conversation that the hooks report; returns its folder and its id.
fn conversation(site: &Site, name: &str) -> (PathBuf, &'static str) {
    let tree = site.tree(name);
    let slug: String =
        tree.to_string_lossy().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let projects = site.rig.path("home/.claude/projects").join(slug);
    fs::create_dir_all(&projects).expect("made");
    let id = "7d6c54f0-0000-4000-a000-000000000000";
    fs::write(projects.join(format!("{id}.jsonl")), "{}\n").expect("written");
    (projects, id)
}

#[test]
fn an_agent_that_had_finished_is_reopened_without_being_told_to_go_on() {
    let site = Site::new();
    let words = ["spawn", "--name", "a", "--tmux", "--worktree", "--", "claude", "--model", "m", "go"];
    site.swarm(&words, &[]).ok();
    site.words("a");
    site.hook("a", &tool("PreToolUse"));
    site.hook(
        "a",
        &json!({ "hook_event_name": "Notification", "notification_type": "idle_prompt", "message": "next?" }),
    );
    let (_, id) = conversation(&site, "a");
    reboot(&site.rig);
    fs::remove_file(site.tree("a").join("hooks")).expect("removed");
    site.swarm(&["recover", "a", "--apply", "--settle", "0"], &[]).ok();
    let words = site.words("a");
    assert_eq!(
        (words[0].as_str(), &words[2..]),
        ("--settings", &["--resume", id, "--model", "m"].map(str::to_owned)[..])
    );
}

fn token(site: &Site, name: &str) -> String {
    let dirs = fs::read_dir(site.rig.root().join("w")).expect("listed").flatten();
    let dir = dirs.map(|dir| dir.path()).find(|dir| dir.file_name().is_some_and(|leaf| leaf == &*format!("{name}.1")));
    let lease = fs::read(dir.expect("a record").join("lease")).expect("read");
    let lease: Value = serde_json::from_slice(&lease).expect("JSON");
    lease["token"].as_str().expect("a token").to_owned()
}

#[test]
fn commands_with_settings_or_without_hooks_are_unchanged() {
    let site = Site::new();
    let typed = |name: &str, flags: &[&str], words: &[&str], env: &[(&str, &str)], dir: &Path| {
        let all = [&["spawn", "--name", name], flags, &["--"], words].concat();
        site.swarm(&all, env).ok();
        wait_until("the agent was executed", SOON, || dir.join("hooks").exists());
        let said = fs::read_to_string(dir.join("words")).expect("read");
        assert_eq!(said.lines().collect::<Vec<_>>(), words[1..], "{name}");
    };
    typed("own", &["--worktree"], &["claude", "--settings", "{}", "go"], &[], &site.tree("own"));
    typed("off", &["--worktree"], &["claude", "go"], &[("SWARM_HOOKS", "off")], &site.tree("off"));
    typed("env", &["--worktree", "--env", "SWARM_HOOKS=off"], &["claude", "go"], &[], &site.tree("env"));
}

#[test]
fn an_agent_without_a_session_reports_too() {
    let site = Site::new();
    site.swarm(&["spawn", "--name", "bare", "--tmux", "--", "claude", "go"], &[]).ok();
    wait_until("the agent was executed", SOON, || site.repo.join("hooks").exists());
    for (hook, doing) in
        [(event("SessionStart"), "idle"), (tool("PreToolUse"), "working"), (tool("PermissionRequest"), "waiting")]
    {
        site.fire(&site.repo, &hook);
        assert_eq!(site.worker("bare")["activity"]["doing"], json!(doing));
    }
    wait_until("an event reports the wait", SOON, || site.told("worker.waiting") == 1);
    assert!(!site.repo.join(".agent").exists());
}

#[test]
fn a_hook_never_fails_for_any_input() {
    let site = Site::new();
    site.swarm(&["spawn", "--name", "a", "--worktree", "--", "claude"], &[]).ok();
    site.words("a");
    let (tree, token) = (site.tree("a"), token(&site, "a"));
    let deep = "[".repeat(100_000);
    for said in ["", "{", "null", "\u{fffd}", &deep, "{\"hook_event_name\": 7}", "--help", "-x"] {
        let mut command = site.rig.command(&["session", "hook", "--", said]);
        command.env("SWARM_SESSION", &tree).env("SWARM_TOKEN", &token);
        run(command).is(0, "", "");
    }
    // Without worker, home or session there is nothing to do.
    for (session, token) in [("", ""), ("/nonexistent", "x"), ("/", &token)] {
        let mut command = site.rig.command(&["session", "hook", &tool("PreToolUse").to_string()]);
        command.env_remove("HOME").env_remove("SWARM_DIR").env("SWARM_SESSION", session).env("SWARM_TOKEN", token);
        run(command).is(0, "", "");
    }
    assert_eq!(site.file("a", "activity.json"), None);
    // More input than the hook reads: the writer must not get a closed pipe.
    let script = "{ head -c 20000000 /dev/zero || echo closed >&2; } | \"$0\" session hook";
    let mut command = site.rig.program("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_swarm")]).env("SWARM_SESSION", &tree).env("SWARM_TOKEN", &token);
    run(command).is(0, "", "");
    assert_eq!(site.file("a", "activity.json"), None);
}

#[test]
fn any_program_may_report_its_operation() {
    let site = Site::new();
    let script = "mkfifo next; exec 3<> next; while read -r line <&3; do eval \"$line\"; echo $? > done; done";
    site.swarm(&["spawn", "--name", "a", "--tmux", "--worktree", "--", "sh", "-c", script], &[]).ok();
    let says = |words: &str| {
        let (next, done) = (site.tree("a").join("next"), site.tree("a").join("done"));
        let _ = fs::remove_file(&done);
        tell(&next, &format!("'{}' session note {words}", env!("CARGO_BIN_EXE_swarm")));
        wait_until("the note succeeded", SOON, || fs::read_to_string(&done).is_ok_and(|text| text == "0\n"));
    };
    says("--operation 'step one'");
    site.beats("a", "tool_use", &json!("step one"), 1);
    says("--waiting 'may it be deployed?'");
    site.beats("a", "waiting", &json!("step one"), 1);
    wait_until("ls shows the wait", SOON, || site.swarm(&["ls", "-l"], &[]).out.contains("may it be deployed?"));
    says("--working");
    wait_until("ls shows no wait", SOON, || !site.swarm(&["ls", "-l"], &[]).out.contains("may it be deployed?"));
    // A worker named explicitly needs no variables of a session.
    let said = site.swarm(&["session", "note", "a", "--idle", "--json"], &[]).ok();
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((&said["schema"], &said["activity"]["idle"]), (&json!("swarm.session.note/1"), &json!(true)));
    site.beats("a", "idle", &Value::Null, 1);
    let said = site.swarm(&["session", "note", "a"], &[]);
    assert_eq!(said.code, Some(2), "{said:?}");
    site.rig.swarm(&["kill", "a"]).ok();
    wait_until("session end", SOON, || site.file("a", "state.json").is_some_and(|state| state["status"] == "stopped"));
    let cause = format!("the session in {}/.agent has ended", site.tree("a").display());
    site.swarm(&["session", "note", "a", "--idle"], &[]).refused(1, &cause);
}
