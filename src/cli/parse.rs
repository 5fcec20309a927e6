//! Parses the command line into [`Cli`], and reports usage errors.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Args as _, CommandFactory as _, FromArgMatches as _};

use super::agents::AgentsArgs;
use super::args::{
    AttachArgs, CleanArgs, Cli, Command, DiffArgs, EofArgs, EventsArgs, InitArgs, InterruptArgs, KeysArgs, KillArgs,
    LogsArgs, LsArgs, PeekArgs, RespawnArgs, SendArgs, SpawnArgs, StatusArgs, SupervisorArgs, TopArgs, WaitArgs,
};
use super::asks::args::{AnswerArgs, ApprovalsArgs, ApproveArgs, AskArgs, DenyArgs, RulesArgs};
use super::complete::CompletionsArgs;
use super::config::ConfigArgs;
use super::doctor::DoctorArgs;
use super::du::DuArgs;
use super::explain::ExplainArgs;
use super::flow::args::FlowArgs;
use super::groups;
use super::heartbeat::args::HeartbeatArgs;
use super::history::HistoryArgs;
use super::host::args::HostsArgs;
use super::man::ManArgs;
use super::mcp::McpArgs;
use super::merge::args::MergeArgs;
use super::notify::NotifyArgs;
use super::ralph::args::RalphArgs;
use super::recover::args::RecoverArgs;
use super::restore::args::RestoreArgs;
use super::run::args::{PlanArgs, RunArgs};
use super::session::args::SessionArgs;
use super::trust::args::TrustArgs;
use super::web::WebArgs;

/// Parses the command line.
///
/// # Errors
/// Returns an error for `--help`, `--version` and usage errors; print it with [`report`].
pub fn parse(words: &[OsString]) -> Result<Cli, clap::Error> {
    let words = &usual(words);
    let cli = match parse_alone(words) {
        Some(cli) => cli,
        None => {
            let matches = groups::command().try_get_matches_from(words).map_err(|error| meant(error, words))?;
            Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))?
        }
    };
    if let Command::Spawn(spawn) = &cli.command
        && spawn.file.is_some()
    {
        refuse_beside_file(&words[2..])?;
    }
    if let Command::Send(send) = &cli.command {
        refuse_flag_as_text(send, words)?;
    }
    Ok(cli)
}

/// Words that other programs use for a verb, and the verb.
const USUAL: [(&str, &str); 4] = [("list", "ls"), ("ps", "ls"), ("stop", "kill"), ("rm", "clean")];

/// Returns the usage error, which names what may be meant if no verb has a similar name.
fn meant(error: clap::Error, words: &[OsString]) -> clap::Error {
    let word = |at: usize| words.get(at).and_then(|word| word.to_str()).unwrap_or_default();
    let is_unknown = matches!(error.kind(), ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument);
    if is_unknown && word(1) == "hosts" && ["rm", "remove"].contains(&word(2)) {
        let cause = format!(
            "unrecognized subcommand '{}': 'swarm hosts forget HOST' forgets what a host is still to be told; the host itself \
             is a section of your configuration",
            word(2)
        );
        return Cli::command().error(ErrorKind::InvalidSubcommand, cause);
    }
    error
}

/// Replaces a first word that other programs use by the verb or option that is meant. These words are no verbs: help and
/// completion do not list them.
fn usual(words: &[OsString]) -> Vec<OsString> {
    let mut words = words.to_vec();
    let Some(first) = words.get(1).and_then(|word| word.to_str()).map(str::to_owned) else { return words };
    match first.as_str() {
        // Whatever follows, as with the option: `swarm help version` ends here as well.
        "version" => {
            words.truncate(1);
            words.push("--version".into());
        }
        "help" if words.len() == 2 => words[1] = "--help".into(),
        "help" => {
            words.remove(1);
            words.push("--help".into());
            return usual(&words);
        }
        first => {
            if let Some((_, verb)) = USUAL.iter().find(|(word, _)| *word == first) {
                words[1] = (*verb).into();
            }
        }
    }
    words
}

/// Parses a valid command line. Builds only the verb that was typed: building all verbs with their help takes longer
/// than most verbs run. Returns `None` for anything else.
fn parse_alone(words: &[OsString]) -> Option<Cli> {
    let (name, arguments) = VERBS.iter().find(|(name, _)| words.get(1).is_some_and(|word| word == name))?;
    let top = clap::Command::new("swarm").infer_long_args(true).args_override_self(true);
    let top = top.subcommand(arguments(clap::Command::new(*name)));
    Cli::from_arg_matches(&top.try_get_matches_from(words).ok()?).ok()
}

/// Names of all verbs.
pub fn names() -> impl Iterator<Item = &'static str> {
    VERBS.iter().map(|(name, _)| *name)
}

/// Returns the arguments of a verb, without its help texts.
pub fn verb(name: &str) -> Option<clap::Command> {
    let (name, arguments) = VERBS.iter().find(|(verb, _)| *verb == name)?;
    Some(arguments(clap::Command::new(*name)))
}

/// A verb and the function that adds its arguments.
type Verb = (&'static str, fn(clap::Command) -> clap::Command);

const VERBS: [Verb; 47] = [
    ("spawn", SpawnArgs::augment_args),
    ("ls", LsArgs::augment_args),
    ("status", StatusArgs::augment_args),
    ("peek", PeekArgs::augment_args),
    ("send", SendArgs::augment_args),
    ("keys", KeysArgs::augment_args),
    ("interrupt", InterruptArgs::augment_args),
    ("eof", EofArgs::augment_args),
    ("attach", AttachArgs::augment_args),
    ("logs", LogsArgs::augment_args),
    ("diff", DiffArgs::augment_args),
    ("du", DuArgs::augment_args),
    ("merge", MergeArgs::augment_args),
    ("plan", PlanArgs::augment_args),
    ("run", RunArgs::augment_args),
    ("ralph", RalphArgs::augment_args),
    ("heartbeat", HeartbeatArgs::augment_args),
    ("approvals", ApprovalsArgs::augment_args),
    ("approve", ApproveArgs::augment_args),
    ("deny", DenyArgs::augment_args),
    ("answer", AnswerArgs::augment_args),
    ("rules", RulesArgs::augment_args),
    ("ask", AskArgs::augment_args),
    ("flow", FlowArgs::augment_args),
    ("kill", KillArgs::augment_args),
    ("wait", WaitArgs::augment_args),
    ("clean", CleanArgs::augment_args),
    ("respawn", RespawnArgs::augment_args),
    ("restore", RestoreArgs::augment_args),
    ("recover", RecoverArgs::augment_args),
    ("init", InitArgs::augment_args),
    ("session", SessionArgs::augment_args),
    ("events", EventsArgs::augment_args),
    ("top", TopArgs::augment_args),
    ("explain", ExplainArgs::augment_args),
    ("doctor", DoctorArgs::augment_args),
    ("agents", AgentsArgs::augment_args),
    ("config", ConfigArgs::augment_args),
    ("trust", TrustArgs::augment_args),
    ("history", HistoryArgs::augment_args),
    ("hosts", HostsArgs::augment_args),
    ("mcp", McpArgs::augment_args),
    ("web", WebArgs::augment_args),
    ("notify", NotifyArgs::augment_args),
    ("supervisor", SupervisorArgs::augment_args),
    ("completions", CompletionsArgs::augment_args),
    ("man", ManArgs::augment_args),
];

/// Refuses a text for `send` that looks like an option. Text may begin with a hyphen (`- fix the bug`, `-1`), but a
/// single word such as `--no-entre` is more likely a typing error, and text typed into an agent cannot be taken back.
/// Everything after `--` is accepted.
fn refuse_flag_as_text(send: &SendArgs, words: &[OsString]) -> Result<(), clap::Error> {
    if words.iter().any(|word| word == "--") {
        return Ok(());
    }
    for text in std::iter::once(&send.first).chain(&send.second) {
        let numeric = text.parse::<f64>().is_ok();
        if text.len() > 1 && text.starts_with('-') && !text.contains(char::is_whitespace) && !numeric {
            let cause = format!("unexpected argument '{text}' found; to send it as text, put '--' before it");
            return Err(Cli::command().error(ErrorKind::UnknownArgument, cause));
        }
    }
    Ok(())
}

/// Refuses arguments beside `--file`: they would belong to no particular worker and be ignored silently.
fn refuse_beside_file(words: &[OsString]) -> Result<(), clap::Error> {
    let mut value_follows = false;
    for word in words.iter().map(|word| word.to_string_lossy()) {
        if std::mem::take(&mut value_follows) {
            continue;
        }
        value_follows = word == "-f" || (word.starts_with("--f") && !word.contains('='));
        if !value_follows && !word.starts_with("-f") && !word.starts_with("--f") && !word.starts_with("--j") {
            let cause = format!("'{word}' cannot be used with --file; set it in the file instead");
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, cause));
        }
    }
    Ok(())
}

/// Returns the usage error with this cause.
pub fn misused(cause: String) -> clap::Error {
    Cli::command().error(ErrorKind::InvalidValue, cause)
}

/// Prints an error of [`parse`] and returns the exit code: 0 for help and version, 2 for usage errors, whose text
/// begins with `swarm: error:`.
pub fn report(error: &clap::Error) -> u8 {
    use std::io::{IsTerminal as _, Write as _};
    let text = error.render();
    if !error.use_stderr() {
        let printed = error.print().and_then(|()| std::io::stdout().flush());
        return u8::from(printed.is_err() || swarm_sys::streams::stdout_was_closed());
    }
    let prefix = if text.to_string().starts_with("error:") { "swarm: " } else { "" };
    let mut stderr = std::io::stderr().lock();
    // A failure to write to standard error cannot be reported anywhere.
    let _ = if stderr.is_terminal() && super::render::colour_wanted() {
        write!(stderr, "{prefix}{}", text.ansi())
    } else {
        write!(stderr, "{prefix}{text}")
    };
    2
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
