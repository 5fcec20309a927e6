//! Classifies verbs: which can be executed on another machine, repeated, or executed on several.

use crate::cli::args::{Command, SupervisorAction};
use crate::cli::asks::args::RulesAction;
use crate::cli::flow::args::FlowAction;
use crate::cli::heartbeat::args::HeartbeatAction;
use crate::cli::merge::args::MergeAction;
use crate::cli::ralph::args::RalphAction;
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
        Command::Mcp(_) => Kind::Local("its client is a process here; let the client execute 'ssh HOST swarm mcp'"),
        Command::Web(_) => {
            Kind::Local("its page is for a browser here; run it there and forward its port with 'ssh -L'")
        }
        Command::Supervisor(args) => match args.action {
            SupervisorAction::Status(_) => Kind::Reads,
            SupervisorAction::Install(_) | SupervisorAction::Uninstall(_) => {
                Kind::Local("the unit belongs to the machine; execute this verb there")
            }
            SupervisorAction::Start(_) | SupervisorAction::Stop(_) | SupervisorAction::Restart(_) => Kind::Acts,
        },
        Command::Attach(_) => Kind::Terminal,
        // A screen has the terminal; lines and JSON are followed.
        Command::Top(args) if !args.is_followed() => Kind::Terminal,
        Command::Ls(_)
        | Command::Top(_)
        | Command::Status(_)
        | Command::Explain(_)
        | Command::Wait(_)
        | Command::Logs(_)
        | Command::History(_)
        | Command::Diff(_)
        | Command::Peek(_)
        | Command::Approvals(_)
        | Command::Agents(_)
        | Command::Config(_)
        | Command::Events(_)
        | Command::Du(_) => Kind::Reads,
        Command::Doctor(args) => reads_unless(args.repair),
        Command::Recover(args) => reads_unless(args.apply || args.gone.is_some()),
        Command::Trust(args) => reads_unless(!args.show && !args.list),
        Command::Restore(args) => {
            let is_list = args.what.is_none() && !args.expire;
            reads_unless(!(is_list || args.show || args.diff || args.dry_run))
        }
        Command::Run(args) => args.action.as_ref().map_or(Kind::Acts, of_run),
        Command::Ralph(args) => of_loop(&args.action),
        Command::Merge(args) => of_landing(&args.action),
        Command::Heartbeat(args) => of_heartbeat(&args.action),
        Command::Session(args) => of_session(&args.action),
        Command::Rules(args) => args.action.as_ref().map_or(Kind::Reads, of_rules),
        Command::Flow(args) => of_flow(&args.action),
        Command::Plan(_)
        | Command::Spawn(_)
        | Command::Kill(_)
        | Command::Respawn(_)
        | Command::Clean(_)
        | Command::Send(_)
        | Command::Keys(_)
        | Command::Interrupt(_)
        | Command::Eof(_)
        | Command::Approve(_)
        | Command::Deny(_)
        | Command::Answer(_)
        | Command::Ask(_)
        | Command::Init(_)
        | Command::Notify(_) => Kind::Acts,
    }
}

fn reads_unless(acts: bool) -> Kind {
    if acts { Kind::Acts } else { Kind::Reads }
}

fn of_run(action: &RunAction) -> Kind {
    match action {
        RunAction::Status(_) | RunAction::Attach(_) | RunAction::Logs(_) => Kind::Reads,
        RunAction::Init(_)
        | RunAction::Stop(_)
        | RunAction::Pause(_)
        | RunAction::Resume(_)
        | RunAction::GiveUp(_)
        | RunAction::Cleanup(_)
        | RunAction::Context(_) => Kind::Acts,
    }
}

fn of_loop(action: &RalphAction) -> Kind {
    match action {
        RalphAction::Template(_) | RalphAction::Status(_) | RalphAction::List(_) | RalphAction::Logs(_) => Kind::Reads,
        RalphAction::Spawn(_)
        | RalphAction::Run(_)
        | RalphAction::Init(_)
        | RalphAction::Pause(_)
        | RalphAction::Resume(_)
        | RalphAction::Clean(_)
        | RalphAction::Stop(_) => Kind::Acts,
    }
}

fn of_landing(action: &MergeAction) -> Kind {
    match action {
        MergeAction::Ls(_) | MergeAction::Status(_) | MergeAction::Log(_) | MergeAction::Wait(_) => Kind::Reads,
        MergeAction::Add(_)
        | MergeAction::Retry(_)
        | MergeAction::Drop(_)
        | MergeAction::Pause(_)
        | MergeAction::Resume(_) => Kind::Acts,
    }
}

fn of_heartbeat(action: &HeartbeatAction) -> Kind {
    match action {
        HeartbeatAction::List(_) | HeartbeatAction::Status(_) => Kind::Reads,
        HeartbeatAction::Start(_)
        | HeartbeatAction::Stop(_)
        | HeartbeatAction::Pause(_)
        | HeartbeatAction::Resume(_) => Kind::Acts,
    }
}

fn of_session(action: &SessionAction) -> Kind {
    match action {
        SessionAction::Show(_) | SessionAction::Check(_) => Kind::Reads,
        SessionAction::Update(_) | SessionAction::Write(_) | SessionAction::Note(_) | SessionAction::Hook(_) => {
            Kind::Acts
        }
    }
}

fn of_rules(action: &RulesAction) -> Kind {
    match action {
        RulesAction::Test(_) => Kind::Reads,
        RulesAction::Add(_) | RulesAction::Rm(_) => Kind::Acts,
    }
}

fn of_flow(action: &FlowAction) -> Kind {
    match action {
        FlowAction::Check(_)
        | FlowAction::Ls(_)
        | FlowAction::Status(_)
        | FlowAction::Graph(_)
        | FlowAction::Requests(_)
        | FlowAction::Events(_)
        | FlowAction::Feed(_) => Kind::Reads,
        FlowAction::New(_)
        | FlowAction::Run(_)
        | FlowAction::Resume(_)
        | FlowAction::Stop(_)
        | FlowAction::Emit(_)
        | FlowAction::Allow(_)
        | FlowAction::Deny(_)
        | FlowAction::ConsentCheck
        | FlowAction::Answer(_)
        | FlowAction::Approve(_)
        | FlowAction::Decline(_)
        | FlowAction::Improve(_)
        | FlowAction::Feedback(_)
        | FlowAction::Consent(_)
        | FlowAction::Rm(_) => Kind::Acts,
    }
}

/// Reports whether the verb reads its standard input: by what it is, or because a text is `-`. For others it is not touched: a
/// loop of a shell may read names from it.
pub fn wants_input(command: &Command, words: &[String]) -> bool {
    match command {
        Command::Session(args) => matches!(args.action, SessionAction::Write(_) | SessionAction::Hook(_)),
        Command::Flow(args) if matches!(args.action, FlowAction::ConsentCheck) => true,
        Command::Flow(_) | Command::Run(_) => words.iter().any(|word| word == "-" || word.ends_with("=-")),
        Command::Send(args) => args.text() == "-",
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

/// Reports whether the verb shows what happens until it is interrupted, or until what it shows is over.
pub fn is_endless(command: &Command) -> bool {
    match command {
        Command::Logs(args) => args.follow,
        Command::Events(args) => args.follow,
        Command::Approvals(args) => args.follow,
        Command::Top(args) => args.is_followed(),
        Command::Run(args) => match &args.action {
            Some(RunAction::Attach(_)) => true,
            Some(RunAction::Logs(args)) => args.follow,
            _ => false,
        },
        Command::Flow(args) => match &args.action {
            FlowAction::Events(args) => args.follow,
            FlowAction::Feed(args) => args.follow,
            _ => false,
        },
        _ => false,
    }
}

/// Reports whether the verb waits for ends, as long as its own limit of time says.
pub fn is_patient(command: &Command) -> bool {
    match command {
        Command::Wait(_) => true,
        Command::Merge(args) => matches!(args.action, MergeAction::Wait(_)),
        _ => false,
    }
}

#[cfg(test)]
#[path = "kind_tests.rs"]
mod tests;
