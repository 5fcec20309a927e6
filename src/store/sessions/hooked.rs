//! Command lines of agents, extended by hooks that report what they do.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use swarm_agents::codex_hooks::{self, Hashes};
use swarm_agents::hooks::{self, Asking};
use swarm_model::{Contract, Spec};
use swarm_sys::files::{Durability, replace_private};
use swarm_sys::lookup;
use swarm_sys::paths::Paths;

use super::resume::variable_in;

/// Environment variable of a worker that turns its hooks `on` or `off`.
const HOOKS: &str = "SWARM_HOOKS";
/// File of the state directory with the hashes of our hooks for `codex`. It may be deleted: `codex` is asked again.
const CODEX: &str = "codex-hooks.json";

/// Hashes that a version of `codex` told for hooks in these flags. They are valid as long as its file does not change.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Known {
    changed_ns: u64,
    size: u64,
    flags: Vec<String>,
    hashes: Hashes,
}

/// Returns the command of a worker with hooks that run `program`. `None` if it takes none.
pub fn command(paths: &Paths, program: &Path, spec: &Spec) -> Option<Vec<String>> {
    let (argv, contract) = (spec.unhooked(), &spec.contract);
    let command = if codex_hooks::is_for(argv) {
        let codex = codex_in_a_window(contract)?;
        codex_hooks::command(argv, program, &known(paths, &codex, program)?)?
    } else {
        let asking = Asking { worker: &spec.name, generation: spec.generation };
        let asking = Some(asking).filter(|_| contract.tmux.is_some());
        hooks::command(argv, program, &paths.worker(&spec.name, spec.generation), asking)?
    };
    takes_hooks(argv, contract).then_some(command)
}

/// Reports whether a worker takes hooks if its program is not a wrapper script. Looks at no disk.
pub fn may_take_hooks(paths: &Paths, program: &Path, spec: &Spec) -> bool {
    let argv = spec.unhooked();
    let records = paths.worker(&spec.name, spec.generation);
    codex_hooks::is_for(argv) || hooks::command(argv, program, &records, None).is_some()
}

fn takes_hooks(argv: &[String], contract: &Contract) -> bool {
    match variable_in(contract, HOOKS) {
        Some("off") => false,
        Some("on") => true,
        // A script of the agent's name may not understand the added arguments.
        _ => argv.first().is_some_and(|command| lookup::is_program(command, contract)),
    }
}

fn codex_in_a_window(contract: &Contract) -> Option<PathBuf> {
    contract.tmux.as_ref()?;
    lookup::file_of(contract.argv.first()?, contract)
}

/// Returns the file of `codex` that must be asked for its hashes before a worker with this contract starts. `None` if they
/// are known, or not needed.
pub fn codex_to_ask(paths: &Paths, contract: &Contract, program: &Path) -> Option<PathBuf> {
    let argv = &contract.argv;
    let codex = codex_in_a_window(contract).filter(|_| codex_hooks::is_for(argv) && takes_hooks(argv, contract))?;
    known(paths, &codex, program).is_none().then_some(codex)
}

fn known(paths: &Paths, codex: &Path, program: &Path) -> Option<Hashes> {
    let (changed_ns, size) = version(codex)?;
    let known = read(paths).remove(codex)?;
    let is_same =
        (known.changed_ns, known.size) == (changed_ns, size) && Some(known.flags) == codex_hooks::flags(program);
    is_same.then_some(known.hashes)
}

/// Records the hashes that `codex` told.
///
/// # Errors
/// Returns any I/O error; then `codex` is asked again.
pub fn remember(paths: &Paths, codex: &Path, program: &Path, hashes: Hashes) -> io::Result<()> {
    let gone = || io::Error::other("the program is gone");
    let ((changed_ns, size), flags) = (version(codex).ok_or_else(gone)?, codex_hooks::flags(program).ok_or_else(gone)?);
    let mut all = read(paths);
    all.insert(codex.to_owned(), Known { changed_ns, size, flags, hashes });
    replace_private(paths.root(), CODEX, &serde_json::to_vec(&all)?, Durability::None)
}

fn read(paths: &Paths) -> BTreeMap<PathBuf, Known> {
    fs::read(paths.root().join(CODEX)).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// Returns time of the last change, and size, of the program's file.
fn version(codex: &Path) -> Option<(u64, u64)> {
    let about = codex.canonicalize().ok()?.metadata().ok()?;
    let changed = about.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some((u64::try_from(changed.as_nanos()).ok()?, about.len()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use swarm_ports::Sessions as _;
    use swarm_sys::pool::Pool;

    use super::*;
    use crate::sessions::DiskSessions;

    fn spec(program: &Path) -> Spec {
        let argv = vec![program.to_string_lossy().into_owned()];
        Spec {
            name: "a".to_owned(),
            generation: 1,
            token: "t".to_owned(),
            request: String::new(),
            started: "s".to_owned(),
            contract: Contract { argv, ..Contract::default() },
            worktree: None,
            logs: Vec::new(),
            resume: None,
            hooked: None,
            machine: None,
            exit_slot: None,
        }
    }

    #[tokio::test]
    async fn an_agent_on_a_disk_that_does_not_answer_starts_without_hooks() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a directory");
        let claude = dir.path().join("claude");
        fs::write(&claude, "\u{7f}ELF").expect("written");
        fs::set_permissions(&claude, fs::Permissions::from_mode(0o755)).expect("set");
        let mut sessions = DiskSessions::new(Paths::new(dir.path()), Some("/bin/swarm".into()));
        assert!(sessions.hooked(&spec(&claude)).await.is_some());
        (sessions.looks, sessions.look_max) = (Pool::new(1), Duration::from_millis(20));
        let (release, waits) = std::sync::mpsc::channel::<()>();
        let looks = std::sync::Arc::clone(&sessions.looks);
        let stuck = tokio::spawn(async move { looks.run(move || waits.recv()).await });
        tokio::task::yield_now().await;
        assert_eq!(sessions.hooked(&spec(&claude)).await, None);
        assert_eq!(sessions.hooked(&spec(Path::new("/bin/sleep"))).await, None, "needs no look");
        drop(release);
        let _ = stuck.await.expect("no panic");
        sessions.look_max = Duration::from_secs(20);
        assert!(sessions.hooked(&spec(&claude)).await.is_some());
    }

    #[test]
    fn hashes_are_known_until_the_program_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        let (paths, codex, program) = (Paths::new(dir.path()), dir.path().join("codex"), Path::new("/bin/swarm"));
        let hashes = Hashes::from([("key".to_owned(), "sha256:x".to_owned())]);
        assert!(remember(&paths, &codex, program, hashes.clone()).is_err(), "there is no such program");
        fs::write(&codex, "1").expect("written");
        assert_eq!(known(&paths, &codex, program), None);
        remember(&paths, &codex, program, hashes.clone()).expect("recorded");
        assert_eq!(known(&paths, &codex, program), Some(hashes.clone()));
        assert_eq!(known(&paths, &codex, Path::new("/opt/swarm")), None, "the hooks have other words");
        fs::write(&codex, "22").expect("written");
        assert_eq!(known(&paths, &codex, program), None, "another version");
        fs::write(dir.path().join(CODEX), "{").expect("written");
        remember(&paths, &codex, program, hashes.clone()).expect("recorded");
        assert_eq!(known(&paths, &codex, program), Some(hashes));
    }
}
