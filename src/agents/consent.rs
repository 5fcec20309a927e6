//! How agents are held back from what a flow does not allow: words for their command lines.

use serde_json::json;

/// A person may take their time. A hook that takes longer is passed over, so that whoever
/// answers for it has to say no before.
pub const SECONDS_MAX: u32 = 7 * 24 * 3600;

/// `claude` asks `program` before each use of a tool, and goes by its answer; without one
/// it does nothing but read.
pub fn claude(program: &str) -> Vec<String> {
    // It passes over a hook that fails in any other way.
    let command = format!("'{}' flow consent-check || exit 2", program.replace('\'', r"'\''"));
    let hook =
        json!([{ "matcher": "*", "hooks": [{ "type": "command", "command": command, "timeout": SECONDS_MAX }] }]);
    let settings = json!({ "disableAllHooks": false, "hooks": { "PreToolUse": hook } });
    ["--permission-mode", "default", "--settings", &settings.to_string()].map(str::to_owned).to_vec()
}

/// `codex` has a sandbox: what it refuses is not asked for. `roots` may be written to
/// beside the worktree.
pub fn codex(reads_only: bool, all: bool, roots: &[&str]) -> Vec<String> {
    if all {
        return Vec::new();
    }
    let mode = if reads_only { "read-only" } else { "workspace-write" };
    let roots = json!(roots);
    let settings = [format!("sandbox_mode=\"{mode}\""), format!("sandbox_workspace_write.writable_roots={roots}")];
    settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]).collect()
}
