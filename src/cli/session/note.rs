//! `swarm session hook` and `note`: activity that is reported by an agent's hooks or by any program in a session.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use swarm_model::{NeedKind, launch_id};

use super::args::{HookArgs, NoteArgs};
use super::dialogs::Dialogs;
use super::failed;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::screen::Screen;
use swarm_agents::hooks::{self, Heard, Word};
use swarm_agents::short;
use swarm_store::sessions;
use swarm_sys::paths::Paths;
use swarm_sys::processes::wait_readable;

/// Environment variables with the directory of a worker's session and with its launch token.
pub const SESSION: &str = "SWARM_SESSION";
const TOKEN: &str = "SWARM_TOKEN";
/// Maximum time to read a hook's input.
const INPUT_MAX: Duration = Duration::from_secs(5);
/// Maximum size of a hook's input, in bytes. The input may be large: it has the contents of files that an agent writes.
const INPUT_BYTES_MAX: usize = 16 << 20;
/// Maximum wait for the session's lock in a hook, because the agent waits for its hook.
const LOCK_MAX: Duration = Duration::from_secs(2);
/// Maximum wait for the session's lock in `swarm session note`.
const NOTE_MAX: Duration = Duration::from_secs(10);
const NEXT_TASK: &str = "the next task";

/// Returns the session directory of the calling worker; `None` outside of a worker with a session.
pub fn ours() -> Option<PathBuf> {
    std::env::var_os(SESSION).filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

fn launch() -> Option<String> {
    std::env::var(TOKEN).ok().map(|token| launch_id(&token))
}

/// Records what a hook reports. Always returns 0 and ignores errors, so that the agent is not disturbed.
pub fn hook(args: &HookArgs) -> u8 {
    let Some(said) = said(&args.words) else { return 0 };
    let heard = hooks::hear(&said);
    if let (Some(records), Some(file)) = (args.records(), hooks::conversation_file(&said)) {
        // Before the report: whoever hears that finds the file.
        let _ = sessions::note_conversation(&records, file);
    }
    match Dialogs::of(args) {
        Some(dialogs) => dialogs.hear(said, heard, args.wait, |heard| report(args, heard)),
        None => report(args, heard),
    }
    0
}

fn report(args: &HookArgs, heard: Heard) {
    let records = args.records();
    match (ours(), launch(), records.as_deref()) {
        (Some(base), Some(launch), records) => {
            let _ = sessions::note(&base, Some(&launch), records, heard, LOCK_MAX);
        }
        (None, _, Some(records)) => {
            let _ = sessions::note_without_session(records, heard, LOCK_MAX);
        }
        _ => {}
    }
}

/// Parses the hook's input: its last argument, or standard input if there is none.
fn said(words: &[String]) -> Option<Value> {
    match words.last() {
        Some(word) => serde_json::from_str(word).ok(),
        None => serde_json::from_slice(&input()?).ok(),
    }
}

/// Reads standard input to its end, so that the writer does not get a broken pipe. Returns `None` if it is too large or
/// does not end in time.
fn input() -> Option<Vec<u8>> {
    let (stdin, deadline) = (io::stdin(), Instant::now() + INPUT_MAX);
    let (mut bytes, mut buffer, mut over) = (Vec::new(), vec![0_u8; 64 << 10], false);
    while wait_readable(&stdin, deadline.saturating_duration_since(Instant::now())) {
        match rustix::io::retry_on_intr(|| rustix::io::read(&stdin, &mut buffer[..])) {
            Ok(0) => return Some(bytes).filter(|_| !over),
            Ok(count) => {
                over |= bytes.len() + count > INPUT_BYTES_MAX;
                bytes.extend_from_slice(&buffer[..if over { 0 } else { count }]);
            }
            Err(_) => return None,
        }
    }
    None
}

/// Records the activity that a program reports.
///
/// # Errors
/// Fails if the session cannot be written, belongs to another launch or is over.
pub fn note(args: &NoteArgs, base: &Path, paths: Option<&Paths>, screen: &mut Screen) -> Result<u8, Failure> {
    let word = match (&args.operation, &args.waiting) {
        (Some(what), _) => Word::Tool(short(what)),
        (None, Some(what)) => Word::Waits(NeedKind::Input, short(what)),
        (None, None) if args.idle => Word::Idle(NEXT_TASK.to_owned()),
        (None, None) => Word::Working,
    };
    // The launch is checked only if the worker reports to its own session.
    let launch = launch().filter(|_| args.name.is_none() && args.dir.is_none() && ours().is_some());
    let heard = Heard { word: Some(word), ..Heard::default() };
    let owner = sessions::read(base).ok().and_then(|session| session.owner());
    let records = paths.zip(owner).map(|(paths, owner)| paths.worker(&owner.worker, owner.generation));
    let records = records.filter(|records| records.is_dir());
    let now = sessions::note(base, launch.as_deref(), records.as_deref(), heard, NOTE_MAX).map_err(failed)?;
    if args.json {
        json::print(screen, "swarm.session.note/1", &json!({ "dir": base, "activity": now }))?;
    }
    Ok(0)
}
