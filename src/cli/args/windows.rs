//! Arguments of the verbs that act on tmux windows.

use clap::Args;
use swarm_model::nearest;
use swarm_store::windows::{KEY_NAMES, NamedKey};

use crate::cli::tagged::Tagged;

#[derive(Debug, Args)]
pub struct PeekArgs {
    /// Name of the worker
    #[arg(conflicts_with = "tags")]
    pub name: Option<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Show only the last LINES lines that are not blank [default: 30 lines of scrollback and the whole screen]
    #[arg(short = 'n', long, value_name = "LINES")]
    pub lines: Option<u32>,
    /// Show every running tmux worker
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(override_usage = "swarm send [OPTIONS] [NAME] <TEXT>")]
pub struct SendArgs {
    /// Name of the worker; omit it with --all or --tag
    #[arg(value_name = "NAME", allow_hyphen_values = true)]
    pub first: String,
    /// Text to type; '-' reads it from standard input
    #[arg(value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "tags")]
    pub second: Option<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Do not press Enter after the text
    #[arg(long)]
    pub no_enter: bool,
    /// Type into every running tmux worker
    #[arg(long)]
    pub all: bool,
    /// Do not check that the window shows the text
    #[arg(long)]
    pub no_proof: bool,
    /// Do not clear the input line first (Escape, Ctrl-U)
    #[arg(long)]
    pub raw: bool,
    /// Generation that the worker must have: 'swarm web' means the one that it shows
    #[arg(long, value_name = "N", requires = "second", conflicts_with_all = ["tags", "all"], hide = true)]
    pub generation: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl SendArgs {
    /// Name of the worker; a single positional is the text, as in the original `swarm`.
    pub fn name(&self) -> Option<&str> {
        self.second.as_ref().map(|_| self.first.as_str())
    }

    pub fn text(&self) -> &str {
        self.second.as_deref().unwrap_or(&self.first)
    }
}

#[derive(Debug, Args)]
pub struct InterruptArgs {
    /// Name of the worker
    #[arg(conflicts_with = "tags")]
    pub name: Option<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Send the key to every running tmux worker
    #[arg(long)]
    pub all: bool,
    /// Generation that the worker must have: 'swarm web' means the one that it shows
    #[arg(long, value_name = "N", requires = "name", conflicts_with_all = ["tags", "all"], hide = true)]
    pub generation: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct EofArgs {
    /// Name of the worker
    #[arg(required_unless_present = "tags", conflicts_with = "tags")]
    pub name: Option<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct KeysArgs {
    /// Name of the worker
    pub name: String,
    /// Keys to press, one after the other: Enter, Down, Escape, 1, y, C-c, …
    #[arg(required = true, value_name = "KEY", value_parser = named_key)]
    pub keys: Vec<NamedKey>,
    /// Generation that the worker must have: 'swarm web' means the one that it shows
    #[arg(long, value_name = "N", hide = true)]
    pub generation: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Reports whether the name of a key is that of a function key.
fn is_function(name: &str) -> bool {
    name.strip_prefix('F').is_some_and(|number| number.parse::<u8>().is_ok())
}

fn named_key(name: &str) -> Result<NamedKey, String> {
    NamedKey::parse(name).ok_or_else(|| match nearest(name, KEY_NAMES) {
        Some(key) => format!("unknown key; did you mean '{key}'?"),
        None => {
            let (functions, others): (Vec<&str>, Vec<&str>) = KEY_NAMES.into_iter().partition(|name| is_function(name));
            let range = format!("{} to {}", functions[0], functions[functions.len() - 1]);
            format!(
                "unknown key; use {}, {range}, C- or M- with a letter (C-c), or one letter, digit or sign",
                others.join(", ")
            )
        }
    })
}

#[derive(Debug, Args)]
pub struct AttachArgs {
    /// Name of the worker
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_answered_with_all_that_there_are() {
        assert_eq!(named_key("Dwon"), Err("unknown key; did you mean 'Down'?".to_owned()));
        let said = named_key("supercalifragilistic").expect_err("unknown");
        assert!(said.contains("BTab, ") && said.contains(", DC, F1 to F12, C- or M- with a letter"), "{said}");
        let is_known = |word: &str| NamedKey::parse(word).is_some();
        let listed = said.strip_prefix("unknown key; use ").and_then(|said| said.split_once(", F1 to F12"));
        assert!(listed.expect("a list").0.split(", ").all(is_known), "{said}");
    }
}
