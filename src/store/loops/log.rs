//! `iterations.log`: one line per event, in the format of the original `swarm`.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use swarm_model::loops::progress::Loop;
use swarm_model::loops::words::Word;

use super::wire::local;

/// Appends those of the loop's last lines that are missing in the log. A crash may have torn them, and another program
/// may have appended lines of its own.
pub fn complete(path: &Path, it: &Loop) -> io::Result<()> {
    if it.lines.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = it.lines.iter().map(|(at_ms, word)| line(*at_ms, word)).collect();
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    let length = file.metadata()?.len();
    let at = it.lines_at.min(length);
    let mut there = vec![0; usize::try_from(length - at).map_err(io::Error::other)?];
    file.read_exact_at(&mut there, at)?;
    let text = lines.concat();
    let missing = if text.as_bytes().starts_with(&there) {
        text[there.len()..].to_owned()
    } else {
        let there = String::from_utf8_lossy(&there);
        let mut missing: String = lines.into_iter().filter(|line| !there.contains(line.as_str())).collect();
        if !missing.is_empty() && !there.ends_with('\n') {
            missing.insert(0, '\n');
        }
        missing
    };
    if missing.is_empty() {
        return Ok(());
    }
    file.write_all(missing.as_bytes())?;
    file.sync_data()
}

fn line(at_ms: u64, word: &Word) -> String {
    let text: String = word.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("{} [{}] {text}\n", local(at_ms, "%Y-%m-%dT%H:%M:%S"), word.event())
}
