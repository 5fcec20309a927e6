//! What may be typed. Words, flags and defaults of the original's verbs are
//! kept, and so are its habits: options anywhere among the positionals, unique
//! prefixes of long options, the last of two equal options wins, and everything
//! after `--` belongs to the worker's command.

mod limits;
mod list;
mod windows;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use swarm_actors::model::{RestartPolicy, WORK_TYPES};

pub use self::limits::LimitFlags;
pub use self::list::{LsArgs, Sort};
pub use self::windows::{AttachArgs, EofArgs, InterruptArgs, PeekArgs, SendArgs};
use super::complete::CompletionsArgs;
use super::config::ConfigArgs;
use super::doctor::DoctorArgs;
use super::du::DuArgs;
use super::duration;
use super::examples;
use super::explain::ExplainArgs;
use super::flow::args::FlowArgs;
use super::heartbeat::args::{HeartbeatArgs, NudgeFlags};
use super::history::HistoryArgs;
pub use super::init_args::{GuideFile, InitArgs};
use super::man::ManArgs;
use super::merge::args::MergeArgs;
use super::moment;
use super::notify::NotifyArgs;
use super::ralph::args::RalphArgs;
use super::recover::args::RecoverArgs;
use super::restore::args::RestoreArgs;
use super::run::args::{PlanArgs, RunArgs};
use super::session::args::SessionArgs;
use super::tagged::Tagged;

#[derive(Debug, Parser)]
#[command(
    name = "swarm",
    version,
    about = "Runs a fleet of coding agents: each in a tmux window or process of its own, with its own git worktree.",
    after_help = examples::TOP,
    infer_long_args = true,
    args_override_self = true,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a worker
    #[command(after_help = examples::SPAWN)]
    Spawn(Box<SpawnArgs>),
    /// List workers
    #[command(after_help = examples::LS)]
    Ls(LsArgs),
    /// Say in one line how a worker is (exit code 0 running, 1 stopped, 2 unknown)
    #[command(after_help = examples::STATUS)]
    Status(StatusArgs),
    /// Say how a worker is and why, with the evidence
    #[command(after_help = examples::EXPLAIN)]
    Explain(ExplainArgs),
    /// Show what is on the screen of a tmux worker
    #[command(after_help = examples::PEEK)]
    Peek(PeekArgs),
    /// Type text into a tmux worker
    #[command(after_help = examples::SEND)]
    Send(SendArgs),
    /// Send Ctrl-C to a tmux worker
    #[command(after_help = examples::INTERRUPT)]
    Interrupt(InterruptArgs),
    /// Send Ctrl-D to a tmux worker
    #[command(after_help = examples::EOF)]
    Eof(EofArgs),
    /// Take the terminal to the window of a tmux worker
    #[command(after_help = examples::ATTACH)]
    Attach(AttachArgs),
    /// Show what a worker has written
    #[command(after_help = examples::LOGS)]
    Logs(LogsArgs),
    /// Show what a worker has done to its repository, committed or not
    #[command(after_help = examples::DIFF)]
    Diff(DiffArgs),
    /// Show what workers and their saves take on the disk
    #[command(after_help = examples::DU)]
    Du(DuArgs),
    /// Land finished work on its base branch, one verified step at a time
    #[command(after_help = examples::MERGE)]
    Merge(MergeArgs),
    /// Make a workstream of each spec in a folder
    #[command(after_help = examples::PLAN)]
    Plan(PlanArgs),
    /// Carry out what is planned, or a file of jobs: worked on, verified and landed
    #[command(after_help = examples::RUN)]
    Run(RunArgs),
    /// Repeat an agent with fresh context until it is done
    #[command(after_help = examples::RALPH)]
    Ralph(RalphArgs),
    /// Nudge agents: text that is typed into their windows on a schedule
    #[command(after_help = examples::HEARTBEAT)]
    Heartbeat(HeartbeatArgs),
    /// Let roles hand work to each other by a workflow, and answer them
    #[command(after_help = examples::FLOW)]
    Flow(FlowArgs),
    /// Stop workers; they stay registered
    #[command(after_help = examples::KILL)]
    Kill(KillArgs),
    /// Wait until workers have ended (exit code 1 when the time is up)
    #[command(after_help = examples::WAIT)]
    Wait(WaitArgs),
    /// Forget stopped workers, with their logs and clean worktrees
    #[command(after_help = examples::CLEAN)]
    Clean(CleanArgs),
    /// Start a worker again as it was started
    #[command(after_help = examples::RESPAWN)]
    Respawn(RespawnArgs),
    /// List what was saved of worktrees that were removed, and bring it back
    #[command(after_help = examples::RESTORE)]
    Restore(RestoreArgs),
    /// Show which workers nobody ended, after a reboot or a lost tmux server, and start them again
    #[command(after_help = examples::RECOVER)]
    Recover(RecoverArgs),
    /// Tell the agents of this project about swarm (AGENTS.md or CLAUDE.md)
    #[command(after_help = examples::INIT)]
    Init(InitArgs),
    /// Look at the session of a worker, or change it
    #[command(after_help = examples::SESSION)]
    Session(SessionArgs),
    /// Show what happened, oldest first
    #[command(after_help = examples::EVENTS)]
    Events(EventsArgs),
    /// Look for what is wrong, and mend it when you agree (exit code 1 when something is)
    #[command(after_help = examples::DOCTOR)]
    Doctor(DoctorArgs),
    /// Show what is set for this repository and this user, and where
    #[command(after_help = examples::CONFIG)]
    Config(ConfigArgs),
    /// Show the life of a worker: each start, how it ended, and what landed
    #[command(after_help = examples::HISTORY)]
    History(HistoryArgs),
    /// Try whether notifications arrive
    #[command(after_help = examples::NOTIFY)]
    Notify(NotifyArgs),
    /// Look after the process that looks after the workers
    #[command(after_help = examples::SUPERVISOR)]
    Supervisor(SupervisorArgs),
    /// Print what makes a shell complete verbs, options and the names of workers
    #[command(after_help = examples::COMPLETIONS)]
    Completions(CompletionsArgs),
    /// Print the manual page of a verb, or write all of them to a directory
    #[command(after_help = examples::MAN)]
    Man(ManArgs),
}

#[derive(Clone, Debug, Args)]
#[command(
    override_usage = "swarm spawn --name <NAME> [OPTIONS] -- <COMMAND>...\n       swarm spawn --file <FILE.toml>"
)]
pub struct SpawnArgs {
    /// Name of the worker: letters, digits, `.`, `_` and `-`
    #[arg(long, required_unless_present = "file", default_value = "", hide_default_value = true)]
    pub name: String,
    /// Start every [[worker]] of a file, whose keys are these flags, and `command`
    #[arg(short, long, value_name = "FILE.toml")]
    pub file: Option<PathBuf>,
    /// Run in a tmux window instead of a process without terminal
    #[arg(long, overrides_with = "no_tmux")]
    pub tmux: bool,
    /// Not in a window, whatever the configuration says
    #[arg(long)]
    pub no_tmux: bool,
    #[command(flatten)]
    pub place: PlaceFlags,
    /// Give the worker a git worktree of its own
    #[arg(long, overrides_with = "no_worktree")]
    pub worktree: bool,
    /// No worktree, whatever the configuration says
    #[arg(long)]
    pub no_worktree: bool,
    /// Longest life of the worker: 90, 90s, 5m, 1h30m
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_positive)]
    pub timeout: Option<Duration>,
    /// When to start the command again after it has ended [default: never]
    #[arg(long, value_name = "POLICY", value_enum)]
    pub restart: Option<Restart>,
    /// Directory for its session (.agent) [default: the worktree; none without one]
    #[arg(long, value_name = "DIR")]
    pub session_dir: Option<String>,
    /// Issue that the session is of [default: the name]
    #[arg(long, value_name = "ID")]
    pub issue: Option<String>,
    /// Kind of work, as sessions have it
    #[arg(long, value_name = "TYPE", value_parser = session_work_type)]
    pub work_type: Option<String>,
    /// The task, for whoever goes on with the session [default: the command]
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Look after it when it says nothing for so long: nudge, interrupt, restart, give up
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_positive)]
    pub stuck_after: Option<Duration>,
    /// What a nudge types [default: continue]
    #[arg(long, value_name = "TEXT")]
    pub stuck_message: Option<String>,
    /// Land its work on the base branch when it has ended with success (needs --worktree)
    #[arg(long)]
    pub merge: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub command: Vec<String>,
}

/// Where a worker runs, and what is begun with it, however it is started.
#[derive(Clone, Debug, Default, Args)]
pub struct PlaceFlags {
    /// tmux session for the window [default: one session per state directory]
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
    /// tmux server for the window, as in `tmux -L`
    #[arg(long, value_name = "SOCKET")]
    pub tmux_socket: Option<String>,
    /// Branch of the worktree [default: the name]
    #[arg(long)]
    pub branch: Option<String>,
    /// Directory for worktrees [default: <repository>-worktrees beside it]
    #[arg(long, value_name = "DIR")]
    pub worktree_dir: Option<String>,
    /// Branch or commit from which the worktree starts [default: HEAD]
    #[arg(long, value_name = "REV")]
    pub base: Option<String>,
    /// Tag for filtering (may be repeated)
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// Variable for the worker (may be repeated)
    #[arg(long = "env", value_name = "KEY=VAL")]
    pub env: Vec<String>,
    /// File of variables, KEY=VALUE lines, which no view shows (may be repeated)
    #[arg(long = "env-file", value_name = "FILE")]
    pub env_files: Vec<String>,
    /// Directory to run in (ignored with a worktree) [default: this one]
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// Return only when the agent in the window is ready for input
    #[arg(long)]
    pub ready_wait: bool,
    /// Seconds to wait for that
    #[arg(long, value_name = "SEC", default_value_t = 120)]
    pub ready_timeout: u64,
    #[command(flatten)]
    pub nudge: Box<NudgeFlags>,
    #[command(flatten)]
    pub limits: LimitFlags,
}

/// One of the kinds that readers of sessions know.
fn session_work_type(text: &str) -> Result<String, String> {
    let known = WORK_TYPES.map(|(name, _)| name);
    if known.contains(&text) { Ok(text.to_owned()) } else { Err(format!("it can be {}", known.join(", "))) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Restart {
    Never,
    OnFailure,
    Always,
}

impl From<Restart> for RestartPolicy {
    fn from(restart: Restart) -> Self {
        match restart {
            Restart::Never => Self::Never,
            Restart::OnFailure => Self::OnFailure,
            Restart::Always => Self::Always,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Table,
    Json,
    Names,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StatusFilter {
    Running,
    Stopped,
    All,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The worker
    pub name: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The worker
    #[arg(required_unless_present = "tags", conflicts_with = "tags")]
    pub name: Option<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// tmux worker: the last LINES lines instead of the last screenful
    #[arg(long)]
    pub history: bool,
    /// Lines from the end [default with --history: 1000]
    #[arg(long, value_name = "LINES")]
    pub lines: Option<u64>,
    /// Go on until the worker has ended
    #[arg(short, long)]
    pub follow: bool,
    /// What the worker wrote to its standard error (not for tmux workers)
    #[arg(long)]
    pub stderr: bool,
    /// tmux worker: leave the terminal's control sequences in
    #[arg(long)]
    pub raw: bool,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The worker
    pub name: String,
    /// Only how many lines of which files
    #[arg(long, conflicts_with = "name_only")]
    pub stat: bool,
    /// Only the names of files
    #[arg(long)]
    pub name_only: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with_all = ["stat", "name_only"])]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct KillArgs {
    /// Workers to end
    #[arg(value_name = "NAME", conflicts_with = "tags")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Remove the worktree as well, when it holds no unsaved work
    #[arg(long)]
    pub rm_worktree: bool,
    /// Remove it even then; its work is saved under refs/swarm/trash/ first
    #[arg(long)]
    pub force_dirty: bool,
    /// Every worker
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Workers to wait for
    #[arg(value_name = "NAME", conflicts_with = "tags")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Only until the first of them has ended
    #[arg(long)]
    pub any: bool,
    /// Longest time to wait: 90, 90s, 5m, 1h30m; 0 is no limit
    #[arg(long, value_name = "SEC", value_parser = duration::parse)]
    pub timeout: Option<Duration>,
    /// Every worker that runs now
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CleanArgs {
    /// Workers to forget
    #[arg(value_name = "NAME", conflicts_with = "tags")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Remove the worktree, when it holds no unsaved work (the default)
    #[arg(long, overrides_with = "no_rm_worktree")]
    pub rm_worktree: bool,
    /// Leave the worktree where it is
    #[arg(long, overrides_with = "rm_worktree")]
    pub no_rm_worktree: bool,
    /// Remove it even then; its work is saved under refs/swarm/trash/ first
    #[arg(long)]
    pub force_dirty: bool,
    /// Every stopped worker
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RespawnArgs {
    /// The worker
    #[arg(required_unless_present = "tags", conflicts_with = "tags")]
    pub name: Option<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Make the worktree anew
    #[arg(long)]
    pub clean_first: bool,
    /// Even when it holds work, which is saved under refs/swarm/trash/ first
    #[arg(long)]
    pub force_dirty: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Only what concerns this worker
    pub name: Option<String>,
    /// Go on until interrupted
    #[arg(short, long)]
    pub follow: bool,
    /// Only the last LINES [default: all; 10 with --follow]
    #[arg(short = 'n', long, value_name = "LINES")]
    pub lines: Option<u64>,
    /// Only from then on: 10m ago, 12:30 today, 2026-01-31, 2026-01-31T12:30:05+01:00
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    pub since: Option<u64>,
    /// Only before that time
    #[arg(long, value_name = "TIME", value_parser = moment::parse, conflicts_with = "follow")]
    pub until: Option<u64>,
    /// Print one JSON object a line, as recorded
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SupervisorArgs {
    #[command(subcommand)]
    pub action: SupervisorAction,
}

#[derive(Debug, Subcommand)]
pub enum SupervisorAction {
    /// Say whether it runs (exit code 0) or not (1)
    Status(SupervisorFlags),
    /// Start it where none runs
    Start(SupervisorFlags),
    /// End it; workers go on, and it stays ended until the next command that needs it
    Stop(SupervisorFlags),
    /// End it and start the present program; workers go on
    Restart(SupervisorFlags),
    /// Have the service manager start it when you log in or the machine boots (systemd --user)
    Install(InstallFlags),
    /// Take that back; what runs goes on
    Uninstall(SupervisorFlags),
}

#[derive(Debug, Args)]
pub struct InstallFlags {
    /// Have the workers go on that were at work when the machine went down
    #[arg(long)]
    pub recover: bool,
    /// Only show the unit
    #[arg(long)]
    pub print: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "print")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SupervisorFlags {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
