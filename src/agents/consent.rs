//! Arguments that make agents ask before, or keep them from, what a flow does not allow.

use std::path::Path;

use serde_json::json;

use super::{Kind, resume};

/// Timeout of the hook in seconds: long, because a person answers. The agent ignores a hook that takes longer, so the
/// hook itself must deny before that.
pub const SECONDS_MAX: u32 = 7 * 24 * 3600;

/// Returns arguments that make `claude` ask `program` before each use of a tool. Without an answer it only reads. Servers
/// that a file of the repository defines are not started: `claude` would do that without asking.
pub fn claude(program: &str) -> Vec<String> {
    // Only exit code 2 blocks the tool; any other failure of the hook is ignored.
    let command = format!("'{}' flow consent-check || exit 2", program.replace('\'', r"'\''"));
    let hook =
        json!([{ "matcher": "*", "hooks": [{ "type": "command", "command": command, "timeout": SECONDS_MAX }] }]);
    let settings = json!({ "disableAllHooks": false, "hooks": { "PreToolUse": hook } });
    let settings = settings.to_string();
    ["--permission-mode", "default", "--strict-mcp-config", "--settings", &settings].map(str::to_owned).to_vec()
}

/// Arguments that keep `claude` from loading servers, hooks and variables from files of the repository.
pub const OWN_SETTINGS_ONLY: [&str; 3] = ["--strict-mcp-config", "--setting-sources", "user"];

/// Returns arguments that keep an agent from loading what the repository in `dir` defines: servers, hooks and variables.
/// `None` for other programs.
pub fn own_settings_only(kind: Kind, dir: &Path) -> Option<Vec<String>> {
    match kind {
        Kind::Claude => Some(OWN_SETTINGS_ONLY.map(str::to_owned).to_vec()),
        Kind::Codex => {
            // It loads `.codex` of trusted directories only. The nearest directory that has an entry decides, and an
            // entry that is given keeps it from adding one itself. Dots in a path would divide a key.
            let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
            let entry = format!("projects={{{}={{trust_level=\"untrusted\"}}}}", json!(dir.to_string_lossy()));
            Some(vec!["-c".to_owned(), entry])
        }
        _ => None,
    }
}

/// Returns the agent that a command line executes directly, if it loads files of the repository.
pub fn agent_of(argv: &[String]) -> Option<Kind> {
    match resume::program(argv)? {
        "claude" => Some(Kind::Claude),
        "codex" => Some(Kind::Codex),
        _ => None,
    }
}

/// Returns the command line of an agent with these arguments, which come before its own.
pub fn with_arguments(argv: &[String], ours: Vec<String>) -> Vec<String> {
    let (program, words) = argv.split_at(argv.len().min(1));
    program.iter().cloned().chain(ours).chain(words.iter().cloned()).collect()
}

/// Returns arguments for the sandbox of `codex`, which refuses without asking. `roots` are writable in addition to the
/// worktree.
pub fn codex(reads_only: bool, all: bool, roots: &[&str]) -> Vec<String> {
    if all {
        return Vec::new();
    }
    let mode = if reads_only { "read-only" } else { "workspace-write" };
    let roots = json!(roots);
    let settings = [format!("sandbox_mode=\"{mode}\""), format!("sandbox_workspace_write.writable_roots={roots}")];
    settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn agents_are_known_by_the_program_that_is_executed() {
        assert_eq!(agent_of(&words("/opt/claude -p x")), Some(Kind::Claude));
        assert_eq!(agent_of(&words("codex exec x")), Some(Kind::Codex));
        assert_eq!((agent_of(&words("sh -c claude")), agent_of(&[])), (None, None));
    }

    #[test]
    fn a_held_back_agent_gets_its_arguments_before_those_that_were_typed() {
        let ours = own_settings_only(Kind::Claude, Path::new("/w")).expect("arguments");
        assert_eq!(
            with_arguments(&words("claude -p x"), ours),
            words("claude --strict-mcp-config --setting-sources user -p x")
        );
        let ours = own_settings_only(Kind::Codex, Path::new("/no such/a.'b")).expect("arguments");
        assert_eq!(ours, ["-c", r#"projects={"/no such/a.'b"={trust_level="untrusted"}}"#]);
        assert_eq!(own_settings_only(Kind::Shell, Path::new("/w")), None);
    }
}
