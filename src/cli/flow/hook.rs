//! `swarm flow consent-check`: the hook through which an agent asks for permission to use a tool. The hook waits until
//! a person has answered.

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use swarm_actors::flow::rules::consent::{self, Answer, Request, Wish};
use swarm_model::asks::AskWish;
use swarm_model::json::Members as _;

use super::emit::Here;
use crate::cli::error::Failure;
use crate::cli::screen::Screen;
use crate::cli::watch::{Changes, Until, wait_any};
use swarm_agents::asking;
use swarm_agents::confined::{GUARDED, is_below, resolved};
use swarm_agents::consent::SECONDS_MAX;
use swarm_agents::gating::is_harmless;
use swarm_store::flows::sidecar::Asked;
use swarm_store::flows::store::{StoreError, gate_of};
use swarm_sys::clock::now_iso;

/// Maximum size of a hook's input, in bytes.
const SAID_BYTES_MAX: u64 = 64 << 20;
/// Maximum size in bytes of a command or of a tool's input in a request. A longer command is denied; a longer input is
/// left out of the request.
const COMMAND_BYTES_MAX: usize = 64 << 10;
/// Maximum wait for an answer: ends one day before the agent's own hook timeout, after which it would ignore the hook.
const ANSWER_MAX: Duration = Duration::from_secs(SECONDS_MAX as u64 - 24 * 3600);
/// Maximum interval between two checks, because some file systems do not report changes.
const LOOK_PAUSE: Duration = Duration::from_secs(60);

/// Answer to the agent's hook.
enum Decision {
    Proceed,
    /// Deny this tool use; the agent may continue.
    Deny(String),
    /// Deny this tool use and stop the agent.
    End(String),
}

/// Answers the hook on standard output. Any failure is answered with a denial, because agents ignore a hook that fails.
pub fn check(screen: &mut Screen) -> Result<u8, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().take(SAID_BYTES_MAX).read_to_string(&mut text);
    let said: Value = match read
        .map_err(|error| error.to_string())
        .and_then(|_| serde_json::from_str(&text).map_err(|error| error.to_string()))
    {
        Ok(said) => said,
        Err(cause) => {
            let denied = Decision::Deny(format!("cannot read the hook's input: {cause}"));
            screen.line(&answer_to(&json!({"tool_name": ""}), &denied).to_string())?;
            return Ok(0);
        }
    };
    let decision = decide(&said).unwrap_or_else(|failure| Decision::Deny(failure.cause()));
    screen.line(&answer_to(&said, &decision).to_string())?;
    Ok(0)
}

fn decide(said: &Value) -> Result<Decision, Failure> {
    let here = Here::find()?;
    let flow = here.files.read()?;
    let (tool, input) = confined(wish_of(said), flow.record_folder());
    let node = here.turn.node.clone().unwrap_or_default();
    let Some(request) = consent::request(&tool, &input, &node, &here.turn.role) else { return Ok(Decision::Proceed) };
    match &request.wish {
        Wish::Command { command } if is_own(command) => return Ok(Decision::Proceed),
        Wish::Command { command } if command.len() > COMMAND_BYTES_MAX => {
            return Ok(Decision::Deny(format!(
                "the command is longer than {COMMAND_BYTES_MAX} bytes; put it into a script"
            )));
        }
        _ => {}
    }
    let changes = Changes::new()?;
    changes.add_dir(here.files.dir())?;
    let until = Instant::now() + ANSWER_MAX;
    loop {
        match ask(&here, &request, &tool, &input)? {
            Question::NotNeeded => return Ok(Decision::Proceed),
            Question::Open(number) => {
                super::run::wake_quietly(&here.files);
                return wait_for_answer(&here, number, &request, &changes, until);
            }
            // A role has at most one open request: wait until that of the agent's helper is settled.
            Question::Behind => wait_for_change(&changes, until)?,
        }
    }
}

/// Outcome of an attempt to open a permission request.
enum Question {
    /// The flow already grants it.
    NotNeeded,
    /// Request with this number is open.
    Open(u64),
    /// Another request of the same turn is still open.
    Behind,
}

fn ask(here: &Here, request: &Request, tool: &str, input: &Value) -> Result<Question, Failure> {
    here.files.update(|open| {
        here.check(open)?;
        if gate_of(&open.flow).is_granted(&request.wish) {
            return Ok(Question::NotNeeded);
        }
        let of_turn = |asked: &Asked| asked.role == here.turn.role && asked.turn == here.turn.number;
        if open.sidecar.requests.values().any(of_turn) {
            return Ok(Question::Behind);
        }
        open.sidecar.requests.retain(|_, asked| asked.role != here.turn.role);
        open.sidecar.last_request += 1;
        let number = open.sidecar.last_request;
        let input =
            if input.to_string().len() > COMMAND_BYTES_MAX { json!({"left out": "too long"}) } else { input.clone() };
        let asked = Asked {
            role: here.turn.role.clone(),
            turn: here.turn.number,
            node: here.turn.node.clone(),
            tool: tool.to_owned(),
            input,
            asked_at: now_iso(),
            answer: None,
        };
        open.sidecar.requests.insert(number, asked);
        consent::await_answer(&mut open.flow, request);
        let members = [("role", json!(here.turn.role)), ("nodeId", json!(here.turn.node)), ("request", json!(number))];
        open.tell("consent.requested", members);
        Ok(Question::Open(number))
    })
}

fn wait_for_answer(
    here: &Here,
    number: u64,
    request: &Request,
    changes: &Changes,
    until: Instant,
) -> Result<Decision, Failure> {
    let no = |why: &str| Ok(Decision::End(why.to_owned()));
    loop {
        let answer = match here.files.sidecar() {
            Ok(sidecar) if !sidecar.is_at(&here.turn) => return no("the turn is over"),
            Ok(sidecar) => match sidecar.requests.get(&number) {
                None => return no("the request was withdrawn"),
                Some(asked) => asked.answer.clone(),
            },
            // Retry: the next change of the file is read.
            Err(StoreError::Unreadable { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(answer) = answer {
            let answer = if answer == Answer::Deny.word() { Answer::Deny } else { Answer::AllowOnce };
            // The process that answered may have been killed before it updated `flow.json`.
            here.files.update(|open| {
                open.sidecar.requests.remove(&number);
                consent::settle(&mut open.flow, request, answer);
                Ok::<_, Failure>(())
            })?;
            return if answer == Answer::Deny { no("denied by a person") } else { Ok(Decision::Proceed) };
        }
        if Instant::now() >= until {
            return no("no answer in time");
        }
        wait_for_change(changes, until)?;
    }
}

fn wait_for_change(changes: &Changes, until: Instant) -> Result<(), Failure> {
    let deadline = until.min(Instant::now() + LOOK_PAUSE);
    wait_any(&[(std::os::fd::AsFd::as_fd(changes), Until::Readable)], Some(deadline))?;
    changes.take()?;
    Ok(())
}

/// Turns a write outside the role's worktree and record into a command, which needs a person's permission.
fn confined((tool, input): (String, Value), record: &str) -> (String, Value) {
    if tool != "write_file" {
        return (tool, input);
    }
    let said = input.text("path").unwrap_or_default();
    let Ok(cwd) = std::env::current_dir() else { return (tool, input) };
    if is_within(&cwd.join(said), &cwd, Path::new(record)) {
        return (tool, input);
    }
    ("run_command".to_owned(), json!({"command": format!("write {said}")}))
}

/// Files of the record that steer the flow itself.
const STEERING: [&str; 2] = ["workflow.yaml", "record.yaml"];

/// Reports whether `path` is below the worktree or the record, and is no file that configures git, agents or the flow.
fn is_within(path: &Path, worktree: &Path, record: &Path) -> bool {
    let Some(whole) = resolved(path) else { return false };
    // The record may be below the worktree, if the project is no repository.
    let steers = is_below(&whole, record, &[]) && !is_below(&whole, record, &STEERING);
    let steers = steers || is_in_workflows(&whole);
    !steers && (is_below(&whole, worktree, &GUARDED) || is_below(&whole, record, &GUARDED))
}

/// Reports whether a path leads through `a-docs/workflow`, from where nodes get the work that their own workflow does not
/// name. What a worktree has there may land.
fn is_in_workflows(path: &Path) -> bool {
    let parts: Vec<&OsStr> = path.iter().collect();
    parts.windows(2).any(|two| two[0].eq_ignore_ascii_case("a-docs") && two[1].eq_ignore_ascii_case("workflow"))
}

/// Returns the tool and its input in the vocabulary of the consent rules.
fn wish_of(said: &Value) -> (String, Value) {
    let Some(tool) = said.text("tool_name") else {
        return (said.text("tool").unwrap_or_default().to_owned(), said.member("input").cloned().unwrap_or_default());
    };
    let input = said.member("tool_input").unwrap_or(&Value::Null);
    match asking::wish(tool, input) {
        AskWish::Command { command } => ("run_command".to_owned(), json!({ "command": command })),
        AskWish::Write { path, .. } => {
            ("write_file".to_owned(), json!({ "path": Some(path).filter(|path| !path.is_empty()) }))
        }
        AskWish::Mcp { .. } => (tool.to_owned(), input.clone()),
        _ if is_harmless(tool) => (tool.to_owned(), input.clone()),
        // An unknown tool may do anything.
        AskWish::Tool { .. } | AskWish::Question { .. } => {
            ("run_command".to_owned(), json!({"command": format!("{tool} {input}")}))
        }
    }
}

/// Reports whether a command is a plain `swarm flow emit`, which needs no permission.
fn is_own(command: &str) -> bool {
    let steers = |c: char| "\n\r;&|<>`$(){}".contains(c);
    let quoted = !command.replace("$SWARM_RECORD", "").contains(steers);
    let words: Vec<&str> = command.split_whitespace().take(3).collect();
    quoted && matches!(words.as_slice(), ["swarm", "flow", "emit"])
}

fn answer_to(said: &Value, decision: &Decision) -> Value {
    if said.get("tool_name").is_none() {
        let word = if matches!(decision, Decision::Proceed) { "proceed" } else { "deny" };
        return json!({ "decision": word });
    }
    let hook = |word: &str, why: &str| {
        json!({
            "hookEventName": "PreToolUse", "permissionDecision": word, "permissionDecisionReason": why,
        })
    };
    match decision {
        Decision::Proceed => json!({ "hookSpecificOutput": hook("allow", "allowed by the flow") }),
        Decision::Deny(why) => json!({ "hookSpecificOutput": hook("deny", why) }),
        Decision::End(why) => {
            json!({ "continue": false, "stopReason": why, "hookSpecificOutput": hook("deny", why) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_use_maps_to_the_consent_rules() {
        let wish = |tool: &str, input: Value| {
            let (tool, input) = wish_of(&json!({"tool_name": tool, "tool_input": input}));
            consent::request(&tool, &input, "n", "dev").map(|request| request.wish)
        };
        let command = |text: &str| Some(Wish::Command { command: text.to_owned() });
        assert_eq!(wish("Bash", json!({"command": " make "})), command("make"));
        assert!(matches!(wish("Edit", json!({"file_path": "a"})), Some(Wish::Write { path, .. }) if path == "a"));
        assert!(
            matches!(wish("NotebookEdit", json!({"notebook_path": "b"})), Some(Wish::Write { path, .. }) if path == "b")
        );
        assert!(matches!(wish("mcp__x__y", json!({})), Some(Wish::Tool { .. })));
        for tool in ["Read", "Agent", "AskUserQuestion", "WebFetch", "TodoWrite"] {
            assert_eq!(wish(tool, json!({"file_path": "a"})), None, "{tool}");
        }
        let nowhere = Wish::Write { tool: "write_file".to_owned(), path: "(missing path)".to_owned() };
        assert_eq!(wish("Write", json!({})), Some(nowhere));
        assert_eq!(wish("mcp__x", json!({})), command("mcp__x {}"), "the name of no server's tool");
        assert_eq!(wish("Launch", json!({"a": 1})), command(r#"Launch {"a":1}"#), "an unknown tool needs permission");
    }

    #[test]
    fn writes_are_confined_to_worktree_and_record() {
        let dir = tempfile::tempdir().expect("a directory");
        let (tree, record) = (dir.path().join("tree"), dir.path().join("flow/record"));
        for folder in [tree.join(".git"), tree.join("src"), record.clone()] {
            std::fs::create_dir_all(folder).expect("made");
        }
        std::os::unix::fs::symlink(dir.path(), tree.join("out")).expect("linked");
        std::os::unix::fs::symlink("/nowhere/at/all", tree.join("dangling")).expect("linked");
        let within = |path: &str| is_within(&tree.join(path), &tree, &record);
        for path in ["a", "src/new/deep.rs", "../flow/record/01.md", record.join("x").to_str().expect("text")] {
            assert!(within(path), "{path}");
        }
        for path in [
            "../flow/flow.json",
            "/etc/passwd",
            ".git/config",
            "out/x",
            "dangling",
            "src/../../x",
            ".claude/settings.json",
            "",
        ] {
            assert!(!within(path) || path.is_empty(), "{path}");
        }
        let steering = [
            ".mcp.json",
            "swarm.toml",
            "sub/.envrc",
            ".MCP.json",
            ".codex/config.toml",
            "../flow/record/workflow.yaml",
        ];
        for path in steering.into_iter().chain(["../flow/record/record.yaml", "../flow/record/swarm.toml"]) {
            assert!(!within(path), "{path}");
        }
        let flow = ".a-society/state/p/f";
        for path in ["flow.json", "swarm.json", "turns/dev/1/order.json"].map(|name| format!("{flow}/{name}")) {
            assert!(!within(&path), "{path}");
        }
        for path in ["a-docs/workflow/main.yaml", "shop/A-Docs/Workflow/new.yaml", "a-docs/workflow"] {
            assert!(!within(path), "{path}");
        }
        assert!(within("a-docs/roles/dev.md") && within("docs/workflow/main.yaml"));
        // A file of the project that only has the name of one in the record.
        assert!(within("workflow.yaml"));
        assert!(!is_within(&record.join("workflow.yaml"), dir.path(), &record), "a record below the folder");
    }

    #[test]
    fn only_a_plain_emit_needs_no_permission() {
        for command in ["swarm flow emit --close", r#"swarm flow emit --to b --artifact "$SWARM_RECORD/x.md""#] {
            assert!(is_own(command), "{command}");
        }
        for command in [
            "swarm flow emit --close; rm x",
            "swarm flow emit --ask $(rm x)",
            "swarm flow emit --close\nrm x",
            "swarm flow emit --close > x",
            "swarm flow allow 1",
            "cd x && swarm flow emit --close",
            "swarm flow emit --ask `rm x`",
            "swarm flow emit --close & rm x",
        ] {
            assert!(!is_own(command), "{command}");
        }
    }
}
