//! Requests of codex for an approval or for answers, and what it is told.

use std::path::Path;

use serde_json::{Map, Value, json};
use swarm_model::asks::{AskWish, Question, Verdict};
use swarm_model::json::Members as _;

use super::WIRE;
use crate::dialogue::{Request, Step};

/// Members of a request for a command that say what is asked.
const COMMAND: [&str; 5] = ["command", "cwd", "reason", "networkApprovalContext", "additionalPermissions"];

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Command,
    Edit,
    /// More permissions for the rest of the turn.
    Permissions,
    Question,
}

/// Open request.
pub struct Approval {
    /// Id of the message.
    id: Value,
    kind: Kind,
    call: String,
    tool: &'static str,
    /// What remains to be decided, the next one last. Never empty.
    wishes: Vec<AskWish>,
    /// Permissions that are asked for.
    permissions: Value,
}

impl Approval {
    /// Reads a request; `edit` is what an edit does, and `cwd` the worktree. `None` for an unknown method.
    pub fn new(id: &Value, method: &str, params: Option<&Value>, edit: &[AskWish], cwd: &str) -> Option<Self> {
        let all = || params.cloned().unwrap_or_default();
        let (kind, tool, wishes) = match method {
            "item/commandExecution/requestApproval" => {
                let more = asked(params, &["reason", "networkApprovalContext", "additionalPermissions"]);
                let is_here = params.text("cwd").is_none_or(|dir| Path::new(dir) == Path::new(cwd));
                let wish = match params.text("command") {
                    Some(command) if is_here && more == json!({}) => AskWish::Command { command: unwrapped(command) },
                    // Another directory, or a reason to leave the sandbox, is part of what is asked, and no rule about the
                    // command is meant for it.
                    _ => AskWish::Tool { input: asked(params, &COMMAND) },
                };
                (Kind::Command, "exec", vec![wish])
            }
            "item/fileChange/requestApproval" => {
                let files: Vec<AskWish> = edit.iter().rev().cloned().collect();
                let is_files = !files.is_empty() && params.text("grantRoot").is_none();
                let whole = || vec![AskWish::Tool { input: asked(params, &["reason", "grantRoot"]) }];
                (Kind::Edit, "edit", if is_files { files } else { whole() })
            }
            "item/permissions/requestApproval" => {
                let wish = AskWish::Tool { input: asked(params, &["permissions", "reason"]) };
                (Kind::Permissions, "permissions", vec![wish])
            }
            "item/tool/requestUserInput" => {
                let questions = params.list("questions").iter().map(question).collect();
                (Kind::Question, "request_user_input", vec![AskWish::Question { questions }])
            }
            _ => return None,
        };
        let call =
            params.text("approvalId").or(params.text("itemId")).map_or_else(|| format!("request-{id}"), str::to_owned);
        let permissions = all().get("permissions").cloned().unwrap_or_default();
        Some(Self { id: id.clone(), kind, call, tool, wishes, permissions })
    }

    pub fn request(&self) -> Request {
        let wish = self.wishes.last().cloned().unwrap_or(AskWish::Tool { input: Value::Null });
        // Each file of an edit is a request of its own.
        let call = match self.wishes.len() {
            0 | 1 => self.call.clone(),
            more => format!("{}#{more}", self.call),
        };
        Request { call, tool: self.tool.to_owned(), wish }
    }

    /// Returns the answer; `None` if more has to be decided.
    pub fn answer(&mut self, verdict: &Verdict) -> Option<Step> {
        // The protocol cannot change what is executed, so another input is no permission for this one.
        let is_allowed = matches!(verdict, Verdict::Allow { input: None });
        if is_allowed && self.wishes.len() > 1 {
            self.wishes.pop();
            return None;
        }
        Some(match (self.kind, verdict) {
            (Kind::Question, Verdict::Answer { answers }) => {
                let each = answers.iter().map(|(id, answer)| (id.clone(), json!({ "answers": [answer] })));
                WIRE.result(&self.id, json!({ "answers": each.collect::<Map<_, _>>() }))
            }
            (Kind::Question, _) => WIRE.result(&self.id, json!({ "answers": {} })),
            (Kind::Permissions, _) => self.permit(is_allowed),
            (Kind::Command | Kind::Edit, _) => self.decide(if is_allowed { "accept" } else { "decline" }),
        })
    }

    pub fn cancelled(&self) -> Step {
        match self.kind {
            Kind::Command | Kind::Edit => self.decide("cancel"),
            Kind::Permissions => self.permit(false),
            Kind::Question => WIRE.result(&self.id, json!({ "answers": {} })),
        }
    }

    fn decide(&self, decision: &str) -> Step {
        WIRE.result(&self.id, json!({ "decision": decision }))
    }

    fn permit(&self, is_allowed: bool) -> Step {
        let permissions = if is_allowed { self.permissions.clone() } else { json!({}) };
        WIRE.result(&self.id, json!({ "permissions": permissions, "scope": "turn" }))
    }
}

/// Returns what a change of an edit does. What is not understood is a wish of its own, which is never taken for a file in the
/// worktree.
pub fn of_change(change: &Value) -> Vec<AskWish> {
    let kind = change.member("kind");
    // Older versions name the kind alone.
    let word = kind.text("type").or(kind.and_then(Value::as_str));
    let target = ["move_path", "movePath"].into_iter().find_map(|key| kind.member(key));
    let target = target.filter(|target| !target.is_null());
    let text = change.text("diff").map_or_else(|| change.to_string(), str::to_owned);
    let write = |path: &str| AskWish::Write { path: path.to_owned(), change: text.clone() };
    match (change.text("path"), word, target.map(Value::as_str)) {
        (Some(path), Some("add" | "update" | "delete"), None) => vec![write(path)],
        (Some(path), Some("update"), Some(Some(target))) => vec![write(path), write(target)],
        _ => vec![AskWish::Tool { input: change.clone() }],
    }
}

/// Returns the members that say what is asked.
fn asked(params: Option<&Value>, keys: &[&str]) -> Value {
    let known = keys.iter().filter_map(|key| Some(((*key).to_owned(), params.member(key)?.clone())));
    Value::Object(known.filter(|(_, value)| !value.is_null()).collect())
}

fn question(value: &Value) -> Question {
    Question {
        id: value.text("id").unwrap_or_default().to_owned(),
        text: value.text("question").unwrap_or_default().to_owned(),
        options: value.list("options").iter().filter_map(|one| one.text("label")).map(str::to_owned).collect(),
        several: false,
    }
}

/// Returns the script of a command that starts a shell for it, as `/bin/bash -lc 'make test'`; any other command as it is.
pub fn unwrapped(command: &str) -> String {
    let script = command.split_once(' ').and_then(|(shell, rest)| {
        let is_shell = ["bash", "sh", "zsh"].contains(&shell.rsplit('/').next()?);
        rest.strip_prefix("-lc ").or(rest.strip_prefix("-c ")).filter(|_| is_shell)
    });
    script.and_then(unquoted).unwrap_or_else(|| command.to_owned())
}

/// Returns the one word that a quoted text consists of. `None` if it may be more, or less plain.
fn unquoted(text: &str) -> Option<String> {
    let inside = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    if let Some(inner) = inside('\'') {
        return (!inner.contains('\'')).then(|| inner.to_owned());
    }
    if let Some(inner) = inside('"') {
        let (mut word, mut rest) = (String::new(), inner.chars());
        while let Some(c) = rest.next() {
            match c {
                '"' => return None,
                '\\' => word.push(rest.next().filter(|c| matches!(c, '"' | '\\' | '$' | '`'))?),
                c => word.push(c),
            }
        }
        return Some(word);
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:@%+".contains(c);
    text.chars().all(plain).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_all_that_happens() {
        let write = |path: &str| AskWish::Write { path: path.to_owned(), change: "+x".to_owned() };
        for (change, wishes) in [
            (json!({"path": "/w/a", "kind": {"type": "add"}, "diff": "+x"}), vec![write("/w/a")]),
            (json!({"path": "/w/a", "kind": {"type": "update", "move_path": null}, "diff": "+x"}), vec![write("/w/a")]),
            (
                json!({"path": "/w/a", "kind": {"type": "update", "move_path": "/o"}, "diff": "+x"}),
                vec![write("/w/a"), write("/o")],
            ),
            (
                json!({"path": "/w/a", "kind": {"type": "update", "movePath": "/o"}, "diff": "+x"}),
                vec![write("/w/a"), write("/o")],
            ),
        ] {
            assert_eq!(of_change(&change), wishes, "{change}");
        }
        for odd in [
            json!({"path": "/w/a", "kind": {"type": "link"}}),
            json!({"path": "/w/a"}),
            json!({"path": "/w/a", "kind": {"type": "update", "move_path": ["/o"]}}),
            json!({"kind": {"type": "add"}}),
        ] {
            assert_eq!(of_change(&odd), [AskWish::Tool { input: odd.clone() }]);
        }
        let wish = |more: Value| {
            let mut params = json!({"itemId": "i", "command": "make", "cwd": "/w"});
            params.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            let method = "item/commandExecution/requestApproval";
            Approval::new(&json!(1), method, Some(&params), &[], "/w").expect("known").request().wish
        };
        let plain = AskWish::Command { command: "make".to_owned() };
        assert_eq!((wish(json!({})), wish(json!({"reason": null, "cwd": "/w/"}))), (plain.clone(), plain));
        for more in [
            json!({"cwd": "/other"}),
            json!({"reason": "outside of the sandbox"}),
            json!({"additionalPermissions": {}}),
        ] {
            assert!(matches!(wish(more.clone()), AskWish::Tool { .. }), "{more}");
        }
    }

    #[test]
    fn the_script_of_a_shell_is_shown_only_if_it_is_all() {
        for (command, shown) in [
            ("/bin/bash -lc 'echo hi > a.txt'", "echo hi > a.txt"),
            ("bash -lc ls", "ls"),
            (r#"/usr/bin/zsh -lc "echo 'a' \"b\" \$c""#, r#"echo 'a' "b" $c"#),
            (r"/bin/bash -lc 'a' 'b'", r"/bin/bash -lc 'a' 'b'"),
            (r#"/bin/bash -lc "a" && "b""#, r#"/bin/bash -lc "a" && "b""#),
            (r#"/bin/bash -lc "a\n""#, r#"/bin/bash -lc "a\n""#),
            ("/bin/bash -lc ls -l", "/bin/bash -lc ls -l"),
            ("python -c 'x'", "python -c 'x'"),
            ("/bin/bash -lc '", "/bin/bash -lc '"),
            ("", ""),
        ] {
            assert_eq!(unwrapped(command), shown, "{command}");
        }
    }
}
