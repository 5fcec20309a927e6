//! Classifies verbs: which can be executed on another machine, repeated, or executed on several.

use crate::cli::args::{Command, SupervisorAction};
use crate::cli::flow::args::FlowAction;
use crate::cli::run::args::RunAction;
use crate::cli::session::args::SessionAction;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Is about this machine, for this reason.
    Local(&'static str),
    /// Needs a terminal there.
    Terminal,
    /// Changes nothing: can be repeated, and executed on several hosts.
    Reads,
    /// Changes something.
    Acts,
}

pub fn kind_of(command: &Command) -> Kind {
    match command {
        Command::Completions(_) | Command::Man(_) => Kind::Local("this verb writes files for this machine"),
        Command::Hosts(_) => Kind::Local("this verb is about the hosts that this machine knows"),
        Command::Supervisor(args) => match args.action {
            SupervisorAction::Status(_) => Kind::Reads,
            SupervisorAction::Install(_) | SupervisorAction::Uninstall(_) => {
                Kind::Local("the unit belongs to the machine; execute this verb there")
            }
            SupervisorAction::Start(_) | SupervisorAction::Stop(_) | SupervisorAction::Restart(_) => Kind::Acts,
        },
        Command::Attach(_) => Kind::Terminal,
        Command::Ls(_)
        | Command::Status(_)
        | Command::Explain(_)
        | Command::Wait(_)
        | Command::Logs(_)
        | Command::History(_)
        | Command::Diff(_)
        | Command::Peek(_)
        | Command::Approvals(_)
        | Command::Agents(_)
        | Command::Doctor(_)
        | Command::Events(_)
        | Command::Du(_) => Kind::Reads,
        Command::Run(args) => match args.action {
            Some(RunAction::Status(_) | RunAction::Attach(_) | RunAction::Logs(_)) => Kind::Reads,
            _ => Kind::Acts,
        },
        Command::Plan(_)
        | Command::Ralph(_)
        | Command::Spawn(_)
        | Command::Kill(_)
        | Command::Respawn(_)
        | Command::Clean(_)
        | Command::Recover(_)
        | Command::Merge(_)
        | Command::Restore(_)
        | Command::Send(_)
        | Command::Keys(_)
        | Command::Interrupt(_)
        | Command::Eof(_)
        | Command::Heartbeat(_)
        | Command::Session(_)
        | Command::Approve(_)
        | Command::Deny(_)
        | Command::Answer(_)
        | Command::Rules(_)
        | Command::Ask(_)
        | Command::Flow(_)
        | Command::Init(_)
        | Command::Config(_)
        | Command::Trust(_)
        | Command::Notify(_) => Kind::Acts,
    }
}

/// Reports whether the verb reads its standard input: by what it is, or because a text is `-`. For others it is not touched: a
/// loop of a shell may read names from it.
pub fn wants_input(command: &Command, words: &[String]) -> bool {
    match command {
        Command::Session(args) => matches!(args.action, SessionAction::Write(_) | SessionAction::Hook(_)),
        Command::Flow(args) if matches!(args.action, FlowAction::ConsentCheck) => true,
        Command::Flow(_) | Command::Run(_) => words.iter().any(|word| word == "-" || word.ends_with("=-")),
        _ => false,
    }
}

/// Reports whether the verb says by marks how far it is, so that it goes on where it was after the connection was cut.
pub fn says_how_far(command: &Command) -> bool {
    match command {
        Command::Logs(args) => args.follow && args.name.is_some(),
        Command::Events(args) => args.follow,
        Command::Run(args) => matches!(args.action, Some(RunAction::Attach(_))),
        Command::Wait(_) => true,
        _ => false,
    }
}

/// Reports whether the verb goes on until something happens.
pub fn is_endless(command: &Command) -> bool {
    match command {
        Command::Logs(args) => args.follow,
        Command::Events(args) => args.follow,
        Command::Run(args) => matches!(args.action, Some(RunAction::Attach(_))),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    #[test]
    fn only_verbs_that_read_standard_input_get_it() {
        for (line, expected) in [
            ("swarm run context a -", true),
            ("swarm flow answer f -", true),
            ("swarm session write", true),
            ("swarm session show", false),
            ("swarm run context a text", false),
            ("swarm flow answer f yes", false),
            ("swarm ls", false),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let typed: Vec<std::ffi::OsString> = words.iter().map(Into::into).collect();
            let cli = parse::parse(&typed).expect("valid");
            assert_eq!(wants_input(&cli.command, &words[1..]), expected, "{line}");
        }
    }
}
