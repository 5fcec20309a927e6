//! Whether a file belongs to the work in a worktree.

use std::path::{Component, Path, PathBuf};

/// Names that configure git, agents or swarm, or from which programs execute or start something.
pub const GUARDED: [&str; 24] = [
    ".git",
    ".gitattributes",
    ".gitmodules",
    ".vscode",
    ".claude",
    ".codex",
    ".gemini",
    ".qwen",
    ".opencode",
    ".agent",
    ".agents",
    ".aider.conf.yml",
    ".aider.model.settings.yml",
    ".arial",
    ".a-society",
    ".mcp.json",
    ".lsp.json",
    "opencode.json",
    "opencode.jsonc",
    "tui.json",
    "tui.jsonc",
    ".env",
    ".envrc",
    "swarm.toml",
];

/// Reports whether `path`, with symbolic links resolved, is in the worktree and configures neither git nor an agent. A path
/// that begins with `~` is not: the agent may take it for one in a home directory.
pub fn is_confined(worktree: &Path, path: &Path) -> bool {
    !path.to_string_lossy().starts_with('~')
        && resolved(&worktree.join(path)).is_some_and(|whole| is_below(&whole, worktree, &GUARDED))
}

/// Returns the path with symbolic links resolved, as far as it exists. `None` if it leads through a link to something that
/// does not exist, or if the part that does not exist contains `..`.
pub fn resolved(path: &Path) -> Option<PathBuf> {
    // The deepest existing ancestor with symbolic links resolved, and the rest of the path as given.
    let (there, rest) =
        path.ancestors().find_map(|part| Some((part.canonicalize().ok()?, path.strip_prefix(part).ok()?)))?;
    // A link that leads nowhere is not resolved, but would be followed.
    let is_link = rest.components().next().is_some_and(|first| there.join(first).symlink_metadata().is_ok());
    let is_plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
    (is_plain && !is_link).then(|| there.join(rest))
}

/// Reports whether a resolved path is below `base`, and none of its parts below that has one of the `guarded` names.
pub fn is_below(whole: &Path, base: &Path, guarded: &[&str]) -> bool {
    let is_guarded = |part: Component<'_>| guarded.iter().any(|name| part.as_os_str().eq_ignore_ascii_case(name));
    base.canonicalize().is_ok_and(|base| whole.strip_prefix(&base).is_ok_and(|rest| !rest.components().any(is_guarded)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_files_of_the_work_are_confined() {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = dir.path().join("tree");
        std::fs::create_dir_all(tree.join("src")).expect("made");
        symlink(dir.path(), tree.join("out")).expect("made");
        symlink("/nowhere/at/all", tree.join("dangling")).expect("made");
        for (path, is) in [
            ("src/new/a.rs", true),
            ("a.txt", true),
            ("~/a.txt", false),
            ("../a.txt", false),
            ("src/../../a.txt", false),
            ("no/../../../a.txt", false),
            ("out/a.txt", false),
            ("dangling", false),
            (".git/hooks/pre-commit", false),
            ("src/.GIT/config", false),
            (".claude/settings.json", false),
            (".agents/skills/x/SKILL.md", false),
            ("src/.agents.md", true),
            ("src/.gitattributes", false),
            (".gitmodules", false),
            (".vscode/tasks.json", false),
            (".gitignore", true),
            ("swarm.toml", false),
            ("tui.json", false),
            ("/etc/passwd", false),
        ] {
            assert_eq!(is_confined(&tree, path.as_ref()), is, "{path}");
        }
        let inside = tree.join("src/x.rs");
        assert!(is_confined(&tree, &inside), "an absolute path");
        assert!(!is_confined(&tree.join("gone"), &inside));
    }
}
