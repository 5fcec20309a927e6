//! The command line of a call. No value can become an option: options carry theirs behind `=`, and names come after `--`.

use serde_json::{Map, Value};
use swarm_model::json::Members as _;

use crate::verbs::Line;

/// Arguments of a call that were checked.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a>(pub &'a Map<String, Value>);

impl<'a> Arguments<'a> {
    pub fn text(self, name: &str) -> Option<&'a str> {
        self.0.text(name)
    }

    pub fn texts(self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0.list(name).iter().filter_map(Value::as_str)
    }

    pub fn is_set(self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    pub fn whole(self, name: &str) -> Option<u64> {
        self.0.whole(name)
    }
}

/// Returns the words for a tool that changes something, and the text for its standard input. `None` for other tools.
/// A run has at most `children` workers at a time.
pub fn acting(tool: &str, arguments: Arguments, children: usize) -> Option<(Line, Option<String>)> {
    let json = |words: &[&str]| Line::new(&[words, &["--json"]].concat());
    let name = || arguments.text("name").into_iter();
    let line = match tool {
        "spawn" => spawn(arguments),
        "send" => {
            let line = json(&["send"]).flag("no-enter", arguments.is_set("no_enter"));
            // As an argument, others could see the text in the list of processes.
            return Some((line.names(name().chain(["-"])), arguments.text("text").map(str::to_owned)));
        }
        "keys" => json(&["keys"]).names(name().chain(arguments.texts("keys"))),
        "run" => run(arguments, children),
        "kill" => json(&["kill"]).names(arguments.texts("names")),
        "respawn" => json(&["respawn"]).names(name()),
        "merge_add" => json(&["merge", "add"]).option("base", arguments.text("base")).names(arguments.texts("names")),
        "merge_retry" => json(&["merge", "retry"]).names(arguments.texts("items")),
        "approve" => json(&["approve"]).names(arguments.texts("ids")),
        "deny" => json(&["deny"]).option("reason", arguments.text("reason")).names(arguments.texts("ids")),
        "answer" => json(&["answer"]).names(arguments.text("id").into_iter().chain(arguments.texts("answers"))),
        _ => return None,
    };
    Some((line, None))
}

/// The run goes on without the client.
fn run(arguments: Arguments, children: usize) -> Line {
    let children = u64::try_from(children).unwrap_or(u64::MAX).max(1);
    let limit = children.to_string();
    Line::new(&["run", "--detach", "--json"])
        .option("limit", Some(&limit))
        .flag("no-merge", arguments.is_set("no_merge"))
        .names(arguments.text("file"))
}

fn spawn(arguments: Arguments) -> Line {
    let mut line = Line::new(&["spawn", "--json"])
        .option("name", arguments.text("name"))
        .flag("worktree", arguments.is_set("worktree"))
        .option("base", arguments.text("base"))
        .option("cwd", arguments.text("cwd"))
        .flag("tmux", arguments.is_set("tmux"))
        .flag("ready-wait", arguments.is_set("ready_wait"))
        .flag("merge", arguments.is_set("merge"))
        .option("timeout", arguments.text("timeout"));
    for tag in arguments.texts("tags") {
        line = line.option("tag", Some(tag));
    }
    line.names(arguments.texts("command"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::sample::command;

    fn words(tool: &str, arguments: Value) -> (String, Option<String>) {
        let arguments = arguments.as_object().expect("an object").clone();
        let (line, input) = acting(tool, Arguments(&arguments), 20).expect("it acts");
        command(&line.0.iter().map(String::as_str).collect::<Vec<_>>());
        (line.0.join(" "), input)
    }

    #[test]
    fn each_act_is_a_valid_command_line() {
        for (tool, arguments, expected) in [
            ("spawn", json!({"name": "a", "command": ["true"]}), "spawn --json --name=a -- true"),
            (
                "spawn",
                json!({"name": "a", "command": ["sh", "-c", "exit 1"], "worktree": true, "base": "main", "cwd": "/x",
                       "tmux": true, "ready_wait": true, "merge": true, "timeout": "30m", "tags": ["x", "y"]}),
                "spawn --json --name=a --worktree --base=main --cwd=/x --tmux --ready-wait --merge --timeout=30m \
                 --tag=x --tag=y -- sh -c exit 1",
            ),
            ("kill", json!({"names": ["a", "b"]}), "kill --json -- a b"),
            ("respawn", json!({"name": "a"}), "respawn --json -- a"),
            ("keys", json!({"name": "a", "keys": ["Escape", "-", "1"]}), "keys --json -- a Escape - 1"),
            ("run", json!({}), "run --detach --json --limit=20 --"),
            (
                "run",
                json!({"file": "j/jobs.toml", "no_merge": true}),
                "run --detach --json --limit=20 --no-merge -- j/jobs.toml",
            ),
            ("merge_add", json!({"names": ["a"], "base": "main"}), "merge add --json --base=main -- a"),
            ("merge_retry", json!({"items": ["3"]}), "merge retry --json -- 3"),
            ("approve", json!({"ids": ["1", "f/2"]}), "approve --json -- 1 f/2"),
            ("deny", json!({"ids": ["1"], "reason": "-no"}), "deny --json --reason=-no -- 1"),
            ("answer", json!({"id": "1", "answers": ["--yes"]}), "answer --json -- 1 --yes"),
        ] {
            assert_eq!(words(tool, arguments), (expected.to_owned(), None));
        }
        let sent = words("send", json!({"name": "a", "text": "--x y", "no_enter": true}));
        assert_eq!(sent, ("send --json --no-enter -- a -".to_owned(), Some("--x y".to_owned())));
    }

    #[test]
    fn no_value_becomes_an_option() {
        for (tool, arguments) in [
            ("kill", json!({"names": ["--rm-worktree", "--all"]})),
            ("respawn", json!({"name": "--clean-first"})),
            ("keys", json!({"name": "--all", "keys": ["1"]})),
            ("run", json!({"file": "--consent=full-access"})),
            ("merge_add", json!({"names": ["--verify=true"]})),
            ("spawn", json!({"name": "--file", "command": ["--env=A=b"], "tags": ["--merge"]})),
        ] {
            let (line, _) = words(tool, arguments);
            let before = line.split(" -- ").next().unwrap_or_default();
            for never in ["--rm-worktree", "--all", "--clean-first", "--verify", "--always", "--force", "--env"] {
                assert!(!before.contains(never), "{line}");
            }
            assert!(
                !before.split(' ').any(|word| ["--file", "--merge", "--consent=full-access"].contains(&word)),
                "{line}"
            );
        }
    }
}
