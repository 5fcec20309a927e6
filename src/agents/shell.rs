//! `shell`: runs the fenced shell blocks of the spec. For codemods, demonstrations and everything else that needs no
//! judgement; needs no key and no network.

use super::{Launch, Turn};

/// Languages after the fence that mark a block as shell script.
const LANGUAGES: [&str; 3] = ["sh", "bash", "shell"];

pub fn launch(turn: &Turn<'_>) -> Launch {
    let argv = ["/bin/sh", "-e", "-c"].into_iter().map(str::to_owned).chain([turn.prompt.to_owned()]).collect();
    Launch { argv, ..Launch::default() }
}

/// Returns the concatenated shell blocks of a spec.
///
/// # Errors
/// Fails if there is none, or if one is not closed.
pub fn script(spec: &str) -> Result<String, String> {
    let (mut script, mut found) = (String::new(), false);
    let mut open: Option<(String, bool)> = None;
    for line in spec.lines() {
        let trimmed = line.trim_start();
        match &open {
            Some((fence, ours)) => {
                let closes =
                    trimmed.starts_with(fence.as_str()) && trimmed.trim_end().chars().all(|c| fence.starts_with(c));
                if closes {
                    open = None;
                } else if *ours {
                    script.push_str(line);
                    script.push('\n');
                }
            }
            None => {
                let Some(fence) = fence_of(trimmed) else { continue };
                let word = trimmed[fence.len()..].split_whitespace().next().unwrap_or_default();
                let ours = LANGUAGES.contains(&word);
                found |= ours;
                open = Some((fence, ours));
            }
        }
    }
    match open {
        Some((fence, true)) => Err(format!("a shell block is not closed with {fence}")),
        _ if !found => Err("no ```sh block, which the shell agent runs".to_owned()),
        _ => Ok(script),
    }
}

/// Returns the three or more backticks or tildes at the start of a line.
fn fence_of(line: &str) -> Option<String> {
    let mark = line.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let fence: String = line.chars().take_while(|c| *c == mark).collect();
    (fence.len() >= 3).then_some(fence)
}
