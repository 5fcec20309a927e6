//! What an agent asks at its first start in a directory, told before it asks. Only reads the agents' files: trust is the
//! person's to give.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use swarm_model::loops::headless;

use crate::cli::render::escape;
use swarm_store::repositories;

/// Returns a hint if the agent in a new window will ask whether to trust `dir`, or ask for its setup. `None` if it will
/// not, if the program is not known, or if this user has never used it.
pub fn hint(name: &str, argv: &[String], dir: &Path) -> Option<String> {
    let program = Path::new(argv.first()?).file_name()?.to_str()?;
    if headless::is_headless(argv) {
        return None;
    }
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = variable("HOME")?;
    let name = escape(name);
    // An answer for the repository counts in its worktrees.
    let main = repositories::main_tree(dir);
    let places: Vec<&Path> = std::iter::once(dir).chain(main.as_deref()).collect();
    let (asks, keys, instead) = match program {
        "claude" => {
            let config = variable("CLAUDE_CONFIG_DIR").unwrap_or_else(|| home.clone()).join(".claude.json");
            let (asks, keys) = claude(&fs::read(config).ok()?, &places)?;
            (asks, keys, String::new())
        }
        "codex" if !argv.iter().any(|word| word.contains("trust_level")) => {
            let config = variable("CODEX_HOME").unwrap_or_else(|| home.join(".codex")).join("config.toml");
            let (asks, keys) = codex(&fs::read_to_string(config).ok()?, &places)?;
            (
                asks,
                keys,
                format!("; or start it with -c 'projects={{\"{}\"={{trust_level=\"trusted\"}}}}'", dir.display()),
            )
        }
        "gemini" if !argv.iter().any(|word| word == "--skip-trust") => {
            fs::metadata(home.join(".gemini")).ok()?;
            let trusted = fs::read(home.join(".gemini/trustedFolders.json")).ok();
            let keys = gemini(trusted.as_deref(), dir)?;
            ("whether to trust this directory", keys, "; or start it with --skip-trust".to_owned())
        }
        _ => return None,
    };
    let answer = format!("answer in 'swarm attach {name}', or with 'swarm keys {name} {keys}'");
    let once = match &main {
        Some(main) if program != "gemini" && main != dir => {
            format!("; to be asked once for all worktrees, first run '{program}' in {}", main.display())
        }
        _ => String::new(),
    };
    let dir = dir.display();
    Some(escape(&format!("{program} will ask {asks} ({dir}): {answer}{once}{instead}")).into_owned())
}

/// Returns what claude will ask, and keys that agree.
fn claude(config: &[u8], places: &[&Path]) -> Option<(&'static str, &'static str)> {
    let config: Option<Value> = serde_json::from_slice(config).ok();
    let Some(config) = config.filter(|config| is_true(config.get("hasCompletedOnboarding"))) else {
        return Some(("for a theme, a login and whether to trust this directory", "KEY…"));
    };
    let projects = config.get("projects");
    let is_trusted = |dir: &&Path| {
        let project = projects.and_then(|projects| projects.get(dir.to_string_lossy().as_ref()));
        is_true(project.and_then(|project| project.get("hasTrustDialogAccepted")))
    };
    (!places.iter().any(is_trusted)).then_some(("whether to trust this directory", "Down Enter"))
}

fn is_true(value: Option<&Value>) -> bool {
    value.and_then(Value::as_bool) == Some(true)
}

/// Returns what codex will ask, and keys that agree.
fn codex(config: &str, places: &[&Path]) -> Option<(&'static str, &'static str)> {
    let config: toml::Table = config.parse().unwrap_or_default();
    let projects = config.get("projects").and_then(toml::Value::as_table);
    let is_known = |dir: &&Path| {
        let project = projects.and_then(|projects| projects.get(dir.to_string_lossy().as_ref()));
        project.is_some_and(|project| project.get("trust_level").is_some())
    };
    (!places.iter().any(is_known)).then_some(("whether to trust this directory", "Enter"))
}

/// Returns keys that agree to what gemini will ask.
fn gemini(trusted: Option<&[u8]>, dir: &Path) -> Option<&'static str> {
    let trusted: Value = trusted.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default();
    let is_known = |dir: &Path| trusted.get(dir.to_string_lossy().as_ref()).is_some();
    (!dir.ancestors().any(is_known)).then_some("Enter")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_answered_is_not_asked_again() {
        let dir = Path::new("/src/repo-worktrees/fix");
        let places = [dir, Path::new("/src/repo")];
        let asks = |config: &str| claude(config.as_bytes(), &places).map(|(asks, _)| asks);
        let onboarded = r#"{"hasCompletedOnboarding":true,"projects":{"DIR":{"hasTrustDialogAccepted":true}}}"#;
        assert_eq!(asks(&onboarded.replace("DIR", "/src/repo-worktrees/fix")), None);
        assert_eq!(asks(&onboarded.replace("DIR", "/src/repo")), None);
        assert_eq!(asks(&onboarded.replace("DIR", "/src/other")), Some("whether to trust this directory"));
        assert_eq!(asks("{}"), Some("for a theme, a login and whether to trust this directory"));
        let known = "[projects.\"/src/repo-worktrees/fix\"]\ntrust_level = \"trusted\"\n";
        assert_eq!((codex(known, &places), codex("", &places).is_some()), (None, true));
        assert_eq!(gemini(Some(br#"{"/src":"TRUST_FOLDER"}"#), dir), None);
        assert_eq!(gemini(None, dir), Some("Enter"));
    }
}
