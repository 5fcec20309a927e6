//! Hooks of `codex` in a window, for one start: they are flags of the command line, and no file is changed. Pure functions.
//!
//! `codex` executes a hook only if its hash is trusted, and only `codex` itself computes the hash. The hash depends on the
//! words of the hook, so these are the same for all workers: what differs is in the environment.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use swarm_model::json::Members as _;

use super::{consent, resume};

/// Hook events of `codex` that are reported.
const EVENTS: [&str; 6] = ["SessionStart", "UserPromptSubmit", "PreToolUse", ASKS, "PostToolUse", "Stop"];
/// Hook event before a dialog. `codex` shows the dialog only after the hook has ended without an answer.
const ASKS: &str = "PermissionRequest";
/// Timeout of the other hooks in seconds, after which `codex` continues.
const SECONDS_MAX: u32 = 10;
/// Source of hooks in flags, as `codex` names it.
const OF_FLAGS: &str = "sessionFlags";
/// Id of the request that lists hooks.
const LIST: u64 = 2;

/// Hashes of our hooks by the keys that `codex` gives them.
pub type Hashes = BTreeMap<String, String>;

/// Reports whether a command line starts `codex` with a terminal and without hooks in its own flags, which would change the
/// keys of ours.
pub fn is_for(argv: &[String]) -> bool {
    let has_hooks = argv.iter().any(|word| {
        let word = word.strip_prefix("--config=").or_else(|| word.strip_prefix("-c")).unwrap_or(word);
        word.starts_with("hooks.") || word.starts_with("hooks=")
    });
    resume::program(argv) == Some("codex") && resume::is_interactive(argv) && !has_hooks
}

/// Returns the flags that define hooks which run `program`. `None` if its path is not UTF-8.
pub fn flags(program: &Path) -> Option<Vec<String>> {
    let program = program.to_str()?;
    let flag = |event: &&str| {
        let (command, seconds) =
            (hook(program, event), if *event == ASKS { consent::SECONDS_MAX } else { SECONDS_MAX });
        // A text of JSON is also one of TOML.
        let hook = format!("{{type=\"command\",command={},timeout={seconds}}}", json!(command));
        ["-c".to_owned(), format!("hooks.{event}=[{{hooks=[{hook}]}}]")]
    };
    Some(EVENTS.iter().flat_map(flag).collect())
}

fn hook(program: &str, event: &str) -> String {
    let program = format!("'{}'", program.replace('\'', r"'\''"));
    // The hook must never fail, and print nothing but an answer.
    let ends = if event == ASKS { "--wait 2>/dev/null || :" } else { ">/dev/null 2>&1 || :" };
    format!("{program} session hook --window {ends}")
}

/// Returns what `codex app-server` is told so that it lists its hooks, one line each.
pub fn questions(dir: &Path) -> Vec<String> {
    let client =
        json!({ "clientInfo": { "name": "swarm", "version": "1" }, "capabilities": { "experimentalApi": true } });
    [
        json!({ "id": 1, "method": "initialize", "params": client }),
        json!({ "method": "initialized" }),
        json!({ "id": LIST, "method": "hooks/list", "params": { "cwds": [dir] } }),
    ]
    .map(|line| line.to_string())
    .to_vec()
}

/// Returns the hashes of our hooks from a line of `codex app-server`. `None` if the line is something else.
///
/// # Errors
/// Fails if the line is the answer and does not have a hash for each hook.
pub fn hashes(line: &str, program: &Path) -> Option<Result<Hashes, String>> {
    let said: Value = serde_json::from_str(line).ok()?;
    (said.get("id").and_then(Value::as_u64) == Some(LIST)).then(|| {
        let program = program.to_str().unwrap_or_default();
        let ours: Vec<String> = EVENTS.iter().map(|event| hook(program, event)).collect();
        let listed = said.member("result").list("data").iter().flat_map(|place| Some(place).list("hooks"));
        let found: Hashes = listed
            .filter(|hook| hook.text("source") == Some(OF_FLAGS))
            .filter(|hook| hook.text("command").is_some_and(|command| ours.iter().any(|one| one == command)))
            .filter_map(|hook| Some((hook.text("key")?.to_owned(), hook.text("currentHash")?.to_owned())))
            .collect();
        let error = said.member("error").text("message").unwrap_or("it does not list the hooks in its flags");
        if found.len() == EVENTS.len() { Ok(found) } else { Err(error.to_owned()) }
    })
}

/// Returns the command line extended by hooks that run `program`. `None` if it cannot be extended.
pub fn command(argv: &[String], program: &Path, hashes: &Hashes) -> Option<Vec<String>> {
    let (agent, words) = argv.split_first().filter(|_| is_for(argv))?;
    let trusted: Vec<String> =
        hashes.iter().map(|(key, hash)| format!("{}={{trusted_hash={}}}", json!(key), json!(hash))).collect();
    let state = ["-c".to_owned(), format!("hooks.state={{{}}}", trusted.join(","))];
    Some([vec![agent.clone()], flags(program)?, state.to_vec(), words.to_vec()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn program() -> &'static Path {
        Path::new("/opt/it's/swarm")
    }

    /// Returns the answer of codex to flags with these hooks.
    fn listed(edit: impl Fn(&mut Vec<Value>)) -> String {
        let of = |event: &str, key: &str| {
            json!({ "key": format!("/<session-flags>/config.toml:{key}:0:0"), "source": "sessionFlags",
                    "command": hook("/opt/it's/swarm", event), "currentHash": format!("sha256:{key}"),
                    "trustStatus": "untrusted" })
        };
        let mut hooks =
            vec![json!({ "key": "/home/u/.codex/config.toml:stop:0:0", "source": "user", "command": "mine",
                    "currentHash": "sha256:mine" })];
        let keys =
            ["session_start", "user_prompt_submit", "pre_tool_use", "permission_request", "post_tool_use", "stop"];
        hooks.extend(EVENTS.iter().zip(keys).map(|(event, key)| of(event, key)));
        edit(&mut hooks);
        json!({ "id": 2, "result": { "data": [{ "cwd": "/", "hooks": hooks, "warnings": [], "errors": [] }] } })
            .to_string()
    }

    #[test]
    fn only_an_agent_with_a_terminal_and_without_own_hooks_gets_ours() {
        for line in ["codex", "/bin/codex go", "codex resume ID", "codex -m hooks go", "codex -c model=x hooks"] {
            assert!(is_for(&words(line)), "{line}");
        }
        for line in [
            "codex exec go",
            "codex login",
            "codex -c hooks.Stop=[] go",
            "codex -chooks={} go",
            "codex --config=hooks.state={} go",
            "claude go",
            "sh codex",
        ] {
            assert!(!is_for(&words(line)), "{line}");
        }
        assert!(!is_for(&[]));
    }

    #[test]
    fn hooks_are_trusted_by_the_hashes_that_codex_tells() {
        let hashes = hashes(&listed(|_| {}), program()).expect("the answer").expect("complete");
        assert_eq!(hashes.len(), EVENTS.len());
        assert!(!hashes.values().any(|hash| hash == "sha256:mine"), "nothing else is trusted");
        let argv = command(&words("codex -m x go"), program(), &hashes).expect("extended");
        assert_eq!((argv[0].as_str(), &argv[argv.len() - 3..]), ("codex", &words("-m x go")[..]));
        let values: Vec<&String> = argv[1..argv.len() - 3].iter().filter(|word| *word != "-c").collect();
        assert_eq!(values.len(), EVENTS.len() + 1);
        assert_eq!(
            values[3],
            r#"hooks.PermissionRequest=[{hooks=[{type="command",command="'/opt/it'\\''s/swarm' session hook --window --wait 2>/dev/null || :",timeout=604800}]}]"#
        );
        assert!(values[5].contains("--window >/dev/null 2>&1 || :\",timeout=10}"), "{}", values[5]);
        assert!(
            values[6].contains(r#""/<session-flags>/config.toml:stop:0:0"={trusted_hash="sha256:stop"}"#)
                && values[6].starts_with("hooks.state={"),
            "{}",
            values[6]
        );
    }

    #[test]
    fn an_incomplete_answer_trusts_nothing() {
        let told = |line: &str| hashes(line, program());
        for line in ["", "{", r#"{"id":1,"result":{}}"#, r#"{"method":"configWarning"}"#, "[2]"] {
            assert_eq!(told(line), None, "{line}");
        }
        assert!(told(&listed(|hooks| drop(hooks.pop()))).expect("the answer").is_err(), "one is missing");
        let foreign = |hooks: &mut Vec<Value>| hooks[1]["command"] = json!("other");
        assert!(told(&listed(foreign)).expect("the answer").is_err(), "not ours");
        let error = told(r#"{"id":2,"error":{"code":-32601,"message":"unknown method"}}"#);
        assert_eq!(error, Some(Err("unknown method".to_owned())));
    }
}
