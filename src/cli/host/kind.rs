//! What a verb does, as far as it matters on another machine.

use crate::cli::args::{Command, SupervisorAction};
use crate::cli::flow::args::FlowAction;
use crate::cli::run::args::RunAction;

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

/// Reports whether the verb reads its standard input. For others it is not touched: a loop of a shell may read names from
/// it.
pub fn wants_input(command: &Command) -> bool {
    match command {
        Command::Session(_) => true,
        Command::Run(args) => matches!(args.action, Some(RunAction::Context(_))),
        Command::Flow(args) => {
            matches!(args.action, FlowAction::Answer(_) | FlowAction::Emit(_) | FlowAction::ConsentCheck)
        }
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
