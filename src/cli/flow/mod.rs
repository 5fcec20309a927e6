//! `swarm flow`: flows of roles that hand work to each other. Verbs of people change the flow's files under its lock,
//! whether the flow is running or not.

pub mod args;
mod check;
pub mod consent;
mod emit;
mod hook;
mod log;
mod make;
pub mod respond;
mod run;
mod show;

use std::io::Read as _;
use std::path::Path;

use swarm_model::{Refusal, RefusalKind};

use self::args::{Common, FlowAction, FlowOf};
use super::error::Failure;
use super::screen::Screen;
use super::trust::gate::refuse_to_steer_below_a_worker;
use swarm_store::flows::place::Workspace;
use swarm_store::flows::store::{FlowFiles, Open, StoreError};
use swarm_sys::quoting::command_line;

/// Exit code if a flow exists but cannot be opened.
const CLOSED: u8 = 4;
/// Maximum size in bytes of a text on standard input.
const TEXT_BYTES_MAX: u64 = 1 << 20;

pub fn run(action: &FlowAction, screen: &mut Screen) -> Result<u8, Failure> {
    match action {
        FlowAction::Check(args) => check::run(args, screen),
        FlowAction::New(args) => make::run(args, screen),
        FlowAction::Ls(args) => show::list(args, screen),
        FlowAction::Status(args) => show::status(args, screen),
        FlowAction::Graph(args) => show::graph(args, screen),
        FlowAction::Run(args) | FlowAction::Resume(args) => run::run(args, screen),
        FlowAction::Stop(args) => run::stop(args, screen),
        FlowAction::Emit(args) => emit::run(args, screen),
        FlowAction::Requests(args) => consent::requests(args, screen),
        FlowAction::Allow(args) => consent::allow(args, screen),
        FlowAction::Deny(args) => consent::deny(args, screen),
        FlowAction::ConsentCheck => hook::check(screen),
        FlowAction::Answer(args) => respond::answer(args, screen),
        FlowAction::Approve(args) => respond::approve(args, screen),
        FlowAction::Decline(args) => respond::decline(args, screen),
        FlowAction::Improve(args) => respond::improve(args, screen),
        FlowAction::Feedback(args) => respond::feedback(args, screen),
        FlowAction::Consent(args) => respond::consent(args, screen),
        FlowAction::Events(args) => log::events(args, screen),
        FlowAction::Feed(args) => log::feed(args, screen),
        FlowAction::Rm(args) => log::remove(args, screen),
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let kind = match &error {
            StoreError::NotFound { .. } => RefusalKind::NotFound,
            StoreError::Ambiguous { .. } | StoreError::Brought { .. } => RefusalKind::Invalid,
            StoreError::Closed { .. } | StoreError::Unreadable { .. } => RefusalKind::Registry,
            StoreError::Busy(_) | StoreError::System(_) => RefusalKind::Internal,
        };
        let mut refusal = Refusal::new(kind, error.to_string());
        match &error {
            StoreError::NotFound { .. } => {
                let hint = "run 'swarm flow ls' to list flows, or use --root DIR to search another directory";
                refusal.remedy = Some(hint.to_owned());
            }
            StoreError::Ambiguous { .. } => refusal.remedy = Some("use a longer prefix".to_owned()),
            StoreError::Brought { whole, .. } => {
                let whole = whole.display().to_string();
                let command = command_line(["git", "rm", "-r", "--cached", &whole]);
                refusal.remedy =
                    Some(format!("run '{command}', and delete it unless you or a program of yours began that flow"));
            }
            _ => {}
        }
        let code = if error.is_closed() { CLOSED } else { 1 };
        Self::Refused { refusal: Box::new(refusal), code }
    }
}

fn workspace(common: &Common) -> Result<Workspace, Failure> {
    let cwd =
        std::env::current_dir().map_err(|error| Failure::system("cannot determine the current directory", &error))?;
    Workspace::find(common.root.as_deref(), &cwd).map_err(|error| {
        let named = common.root.as_deref().unwrap_or(&cwd);
        Failure::new(RefusalKind::NotFound, format!("cannot use directory '{}': {error}", named.display()))
    })
}

fn flow_of(args: &FlowOf) -> Result<FlowFiles, Failure> {
    Ok(workspace(&args.common)?.resolve(&args.flow)?)
}

/// Opens a flow, and warns if its workflow cannot be read.
fn opened(files: &FlowFiles, screen: &mut Screen) -> Result<Open, Failure> {
    let open = files.open()?;
    damage(&open).iter().for_each(|warning| screen.warning(warning));
    Ok(open)
}

/// Opens a flow. Returns it with a warning if its workflow cannot be read, or breaks a rule while the flow is under way.
fn examined(files: &FlowFiles) -> Result<(Open, Vec<String>), Failure> {
    let open = files.open()?;
    if open.damage.is_some() || open.flow.status() == "completed" {
        let warnings = damage(&open).into_iter().collect();
        return Ok((open, warnings));
    }
    let warnings = files.fault(&open)?.into_iter().collect();
    Ok((open, warnings))
}

fn damage(open: &Open) -> Option<String> {
    let cause = open.damage.as_ref()?;
    Some(format!("{cause}; the flow goes on with its last valid workflow"))
}

/// Returns the flow in which the caller decides for a person.
///
/// # Errors
/// Fails if the flow cannot be found, or below a worker: an agent is not the person.
fn steered(args: &FlowOf) -> Result<FlowFiles, Failure> {
    let files = flow_of(args)?;
    refuse_to_steer_below_a_worker(&run::place_of(&files)?)?;
    Ok(files)
}

/// Returns the text that was typed, or standard input if that is `-`.
///
/// # Errors
/// Fails if standard input cannot be read or is longer than `TEXT_BYTES_MAX`.
fn text_of(typed: &str) -> Result<String, Failure> {
    if typed != "-" {
        return Ok(typed.to_owned());
    }
    let mut text = String::new();
    let read = std::io::stdin().take(TEXT_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::system("cannot read standard input", &error))?;
    if text.len() as u64 > TEXT_BYTES_MAX {
        let cause = format!("standard input is longer than {TEXT_BYTES_MAX} bytes");
        return Err(Failure::new(RefusalKind::Invalid, cause));
    }
    Ok(text.trim_end_matches('\n').to_owned())
}

/// Reads a file that was named on the command line.
fn read_file(path: &Path) -> Result<String, Failure> {
    use swarm_store::flows::read_text;
    use swarm_store::flows::yaml::YAML_BYTES_MAX;
    let cause = match read_text(path, YAML_BYTES_MAX as u64) {
        Ok(Some(text)) => return Ok(text),
        Ok(None) => "file not found".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Failure::new(RefusalKind::Invalid, format!("cannot read {}: {cause}", path.display())))
}
