//! What the agent of a session says of itself: by its hooks, or by a plain word of any
//! program.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use swarm_model::launch_id;

use super::args::NoteArgs;
use super::failed;
use crate::adapters::process::wait_readable;
use crate::adapters::session;
use crate::agents::hooks::{self, Heard, Word};
use crate::agents::short;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::screen::Screen;

/// Where a worker finds the directory of its session, and which launch it is.
pub const SESSION: &str = "SWARM_SESSION";
const TOKEN: &str = "SWARM_TOKEN";
/// What a hook is told is read for so long, and no more of it: what an agent writes into
/// a file comes along.
const INPUT_MAX: Duration = Duration::from_secs(5);
const INPUT_BYTES_MAX: usize = 16 << 20;
/// An agent waits for its hook.
const LOCK_MAX: Duration = Duration::from_secs(2);
/// A person waits longer.
const NOTE_MAX: Duration = Duration::from_secs(10);
const NEXT_TASK: &str = "it waits for its next task";

/// The session of this worker; none for who is no worker, or has none.
pub fn ours() -> Option<PathBuf> {
    std::env::var_os(SESSION).filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

fn launch() -> Option<String> {
    std::env::var(TOKEN).ok().map(|token| launch_id(&token))
}

/// Notes what a hook says. Whatever is wrong with it, the agent hears nothing of that.
pub fn hook(words: &[String]) -> u8 {
    if let (Some(base), Some(launch)) = (ours(), launch())
        && let Some(said) = said(words)
    {
        let _ = session::note(&base, Some(&launch), hooks::hear(&said), LOCK_MAX);
    }
    0
}

/// What it was told: by its last word, or on standard input.
fn said(words: &[String]) -> Option<Value> {
    match words.last() {
        Some(word) => serde_json::from_str(word).ok(),
        None => serde_json::from_slice(&input()?).ok(),
    }
}

/// Standard input to its end, so that whoever writes there meets no closed door.
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

/// Notes what a program says of itself.
pub fn note(args: &NoteArgs, base: &Path, screen: &mut Screen) -> Result<u8, Failure> {
    let word = match (&args.operation, &args.waiting) {
        (Some(what), _) => Word::Tool(short(what)),
        (None, Some(what)) => Word::Waits(short(what)),
        (None, None) if args.idle => Word::Idle(NEXT_TASK.to_owned()),
        (None, None) => Word::Working,
    };
    // Who names a session means that one; a worker that names none means its own.
    let launch = launch().filter(|_| args.name.is_none() && args.dir.is_none() && ours().is_some());
    let heard = Heard { word: Some(word), ..Heard::default() };
    let now = session::note(base, launch.as_deref(), heard, NOTE_MAX).map_err(failed)?;
    if args.json {
        json::print(screen, "swarm.session.note/1", &json!({ "dir": base, "activity": now }))?;
    }
    Ok(0)
}
