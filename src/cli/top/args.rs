//! Arguments of `swarm top`, and its keys as text.

use clap::Args;

use super::draw::help_lines;

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Print one JSON object with everything, then one for each change
    #[arg(long)]
    pub json: bool,
    /// Print one line for each worker, then one for each change, for screen readers [default if $ACCESSIBLE is set]
    #[arg(long, conflicts_with = "json")]
    pub lines: bool,
    /// Leave out every key that changes something
    #[arg(long)]
    pub read_only: bool,
    /// Show nothing but ASCII [default: as the locale says]
    #[arg(long)]
    pub ascii: bool,
}

impl TopArgs {
    /// Reports whether it prints lines, and needs no terminal.
    pub fn is_followed(&self) -> bool {
        let is_accessible = || std::env::var_os("ACCESSIBLE").is_some_and(|value| !value.is_empty());
        self.json || self.lines || is_accessible()
    }
}

const EXAMPLES: &str = "\
Examples:
  swarm top
  swarm top --read-only
  swarm top --lines            one line for each change, for screen readers
  swarm top --json | jq -c '.workers[] | select(.needs) | [.name, .needs.text]'
  swarm --host box top

Shows all workers, those that need somebody first, and of the selected one its
screen, log, changes, session, history or explanation. Starts no supervisor and
writes nothing; what is done is a verb, and the last line shows its words.

With --json the first line has all workers, as 'swarm ls --json' shows them. Each
further line has those that have changed since, and the names of those that are
gone. Ctrl-C ends it.

";

/// Returns the text below the help: examples, and the table of keys.
pub fn notes() -> String {
    let keys = help_lines().into_iter().map(|(line, is_title)| if is_title { format!("{line}:") } else { line });
    let text = keys.fold(EXAMPLES.to_owned(), |text, line| text + line.trim_end() + "\n");
    text.trim_end().to_owned()
}
