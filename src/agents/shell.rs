//! `shell`: the fenced shell blocks of the spec are the program. For codemods, for
//! demonstrations, and for everything that needs no judgement; no key, no network.

use super::{Launch, Turn};

/// Words after the fence that mark a block as one of ours.
const LANGUAGES: [&str; 3] = ["sh", "bash", "shell"];

pub fn launch(turn: &Turn<'_>) -> Launch {
    let argv = ["/bin/sh", "-e", "-c"].into_iter().map(str::to_owned).chain([turn.prompt.to_owned()]).collect();
    Launch { argv, ..Launch::default() }
}

/// All blocks, in their order.
///
/// # Errors
/// When there is none, or one is not closed.
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
        _ if !found => Err("it has no ```sh block, which is what the shell agent runs".to_owned()),
        _ => Ok(script),
    }
}

/// Three or more backticks or tildes at the beginning of a line.
fn fence_of(line: &str) -> Option<String> {
    let mark = line.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let fence: String = line.chars().take_while(|c| *c == mark).collect();
    (fence.len() >= 3).then_some(fence)
}
