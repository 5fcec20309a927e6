//! Arguments that make agents ask before, or keep them from, what a flow does not allow.

use serde_json::json;

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
