//! Command line arguments. Verbs, flags and defaults of the original `swarm` are kept, and so is its parsing: options
//! anywhere among the positionals, unique prefixes of long options, the last of two equal options wins, and everything
//! after `--` belongs to the worker's command.

mod limits;
mod list;
mod output;
mod supervisor;
mod windows;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use swarm_model::{RestartPolicy, WORK_TYPES};

pub use self::limits::LimitFlags;
pub use self::list::{LsArgs, Sort};
pub use self::output::{EventsArgs, LogsArgs};
pub use self::supervisor::{InstallFlags, SupervisorAction, SupervisorArgs, SupervisorFlags};
pub use self::windows::{AttachArgs, EofArgs, InterruptArgs, KeysArgs, PeekArgs, SendArgs};
use super::agents::AgentsArgs;
use super::asks::args::{AnswerArgs, ApprovalsArgs, ApproveArgs, AskArgs, DenyArgs, RulesArgs};
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
use super::host::args::HostsArgs;
pub use super::init_args::{GuideFile, InitArgs};
use super::man::ManArgs;
use super::mcp::McpArgs;
use super::merge::args::MergeArgs;
use super::notify::NotifyArgs;
use super::ralph::args::RalphArgs;
use super::recover::args::RecoverArgs;
use super::restore::args::RestoreArgs;
use super::run::args::{PlanArgs, RunArgs};
use super::session::args::SessionArgs;
use super::tagged::Tagged;
pub use super::top::TopArgs;
use super::trust::args::TrustArgs;
use super::web::WebArgs;

#[derive(Debug, Parser)]
#[command(
    name = "swarm",
    version,
    about = "Supervise a fleet of coding agents, each in its own tmux window or process and git worktree",
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

// The verbs, in the order of `super::groups::GROUPS`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a plan with one workstream for each spec in a directory
    #[command(after_help = examples::PLAN)]
    Plan(PlanArgs),
    /// Run the plan or a file of jobs: work, verify, land
    #[command(after_help = examples::RUN)]
    Run(RunArgs),
    /// Repeat an agent with a fresh context until it is done
    #[command(after_help = examples::RALPH)]
    Ralph(RalphArgs),
    /// Start a worker
    #[command(after_help = examples::SPAWN)]
    Spawn(Box<SpawnArgs>),
    /// List workers
    #[command(after_help = examples::LS)]
    Ls(LsArgs),
    /// Watch the fleet on a screen, what needs you first, and act on it
    #[command(after_help = super::top::notes())]
    Top(TopArgs),
    /// Show whether a worker runs (exit code 0: yes, 1: no, 2: unknown)
    #[command(after_help = examples::STATUS)]
    Status(StatusArgs),
    /// Explain the state of a worker, with the evidence
    #[command(after_help = examples::EXPLAIN)]
    Explain(ExplainArgs),
    /// Wait until workers have ended (exit code 1: timed out)
    #[command(after_help = examples::WAIT)]
    Wait(WaitArgs),
    /// Show the output of a worker
    #[command(after_help = examples::LOGS)]
    Logs(LogsArgs),
    /// Show every start of a worker, how it ended, and what landed
    #[command(after_help = examples::HISTORY)]
    History(HistoryArgs),
    /// Stop workers; they stay registered
    #[command(after_help = examples::KILL)]
    Kill(KillArgs),
    /// Start a worker again with its original settings
    #[command(after_help = examples::RESPAWN)]
    Respawn(RespawnArgs),
    /// Remove stopped workers, with their logs and clean worktrees
    #[command(after_help = examples::CLEAN)]
    Clean(CleanArgs),
    /// List or restart interrupted workers (reboot, lost tmux)
    #[command(after_help = examples::RECOVER)]
    Recover(RecoverArgs),
    /// Show the changes of a worker, committed or not
    #[command(after_help = examples::DIFF)]
    Diff(DiffArgs),
    /// Land finished work on its base branch through a merge queue
    #[command(after_help = examples::MERGE)]
    Merge(MergeArgs),
    /// List and restore saves of removed worktrees
    #[command(after_help = examples::RESTORE)]
    Restore(RestoreArgs),
    /// Show the screen of a tmux worker
    #[command(after_help = examples::PEEK)]
    Peek(PeekArgs),
    /// Type text into a tmux worker
    #[command(after_help = examples::SEND)]
    Send(SendArgs),
    /// Press keys in a tmux worker, to answer its dialogs
    #[command(after_help = examples::KEYS)]
    Keys(KeysArgs),
    /// Send Ctrl-C to a tmux worker
    #[command(after_help = examples::INTERRUPT)]
    Interrupt(InterruptArgs),
    /// Send Ctrl-D to a tmux worker
    #[command(after_help = examples::EOF)]
    Eof(EofArgs),
    /// Attach this terminal to the window of a tmux worker
    #[command(after_help = examples::ATTACH)]
    Attach(AttachArgs),
    /// Nudge agents on a schedule by typing text into their windows
    #[command(after_help = examples::HEARTBEAT)]
    Heartbeat(HeartbeatArgs),
    /// Show or update the session of a worker
    #[command(after_help = examples::SESSION)]
    Session(SessionArgs),
    /// List what agents ask of you, or show one request in full
    #[command(after_help = examples::APPROVALS)]
    Approvals(ApprovalsArgs),
    /// Allow what agents ask for
    #[command(after_help = examples::APPROVE)]
    Approve(ApproveArgs),
    /// Refuse what agents ask for
    #[command(after_help = examples::DENY)]
    Deny(DenyArgs),
    /// Answer a question of an agent
    #[command(after_help = examples::ANSWER)]
    Answer(AnswerArgs),
    /// List or change the rules that answer in advance
    #[command(after_help = examples::RULES)]
    Rules(RulesArgs),
    /// For workers: ask a person and wait for the answer
    #[command(after_help = examples::ASK)]
    Ask(AskArgs),
    /// Let roles hand work to each other along a workflow
    #[command(after_help = examples::FLOW)]
    Flow(FlowArgs),
    /// Add instructions for agents to AGENTS.md or CLAUDE.md
    #[command(after_help = examples::INIT)]
    Init(InitArgs),
    /// Show the agents, their programs and what each of them offers
    #[command(after_help = examples::AGENTS)]
    Agents(AgentsArgs),
    /// Show the configuration, and where each value is set
    #[command(after_help = examples::CONFIG)]
    Config(ConfigArgs),
    /// Agree to what a repository's files execute or set
    #[command(after_help = examples::TRUST)]
    Trust(TrustArgs),
    /// Find problems and offer repairs (exit code 1: problems remain)
    #[command(after_help = examples::DOCTOR)]
    Doctor(DoctorArgs),
    /// Show recorded events, oldest first
    #[command(after_help = examples::EVENTS)]
    Events(EventsArgs),
    /// Show the disk usage of workers and saved worktrees
    #[command(after_help = examples::DU)]
    Du(DuArgs),
    /// List, check and set up other machines, for --host
    #[command(after_help = examples::HOSTS)]
    Hosts(HostsArgs),
    /// Serve the fleet to an agent as tools (Model Context Protocol)
    #[command(after_help = examples::MCP)]
    Mcp(McpArgs),
    /// Serve the fleet as a page to a browser on this machine
    #[command(after_help = examples::WEB)]
    Web(WebArgs),
    /// Test the delivery of notifications
    #[command(after_help = examples::NOTIFY)]
    Notify(NotifyArgs),
    /// Control the supervisor, the process that manages the workers
    #[command(after_help = examples::SUPERVISOR)]
    Supervisor(SupervisorArgs),
    /// Print a completion script for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions(CompletionsArgs),
    /// Print the manual page of a verb, or write all pages to files
    #[command(after_help = examples::MAN)]
    Man(ManArgs),
}

#[derive(Clone, Debug, Args)]
#[command(
    override_usage = "swarm spawn --name <NAME> [OPTIONS] -- <COMMAND>...\n       swarm spawn --file <FILE.toml>"
)]
pub struct SpawnArgs {
    /// Name of the worker: letters, digits, '.', '_' and '-'
    #[arg(long, required_unless_present = "file", default_value = "", hide_default_value = true)]
    pub name: String,
    /// Start every [[worker]] of a file; its keys are these flags and 'command'
    #[arg(short, long, value_name = "FILE.toml")]
    pub file: Option<PathBuf>,
    /// Run in a tmux window instead of a process without a terminal
    #[arg(long, overrides_with = "no_tmux")]
    pub tmux: bool,
    /// Run without a tmux window, overriding the configuration
    #[arg(long)]
    pub no_tmux: bool,
    #[command(flatten)]
    pub place: PlaceFlags,
    /// Submit the worker as a job of Slurm: a name in [hosts] with engine = "slurm"
    #[arg(long, value_name = "HOST", value_parser = NonEmptyStringValueParser::new())]
    pub on: Option<String>,
    /// Give the worker its own git worktree
    #[arg(long, overrides_with = "no_worktree")]
    pub worktree: bool,
    /// Run without a worktree, overriding the configuration
    #[arg(long)]
    pub no_worktree: bool,
    /// Stop the worker after this time: 90 (seconds), 5m, 1h30m
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_positive)]
    pub timeout: Option<Duration>,
    /// When to restart the command after it has ended [default: never]
    #[arg(long, value_name = "POLICY", value_enum)]
    pub restart: Option<Restart>,
    /// Directory for the session (.agent) [default: the worktree, if it has one]
    #[arg(long, value_name = "DIR")]
    pub session_dir: Option<String>,
    /// Issue that the session belongs to [default: the name of the worker]
    #[arg(long, value_name = "ID")]
    pub issue: Option<String>,
    /// Kind of work recorded in the session
    #[arg(long, value_name = "TYPE", value_parser = session_work_type)]
    pub work_type: Option<String>,
    /// Task recorded in the session, needed to resume it [default: the command]
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// After this time without activity: nudge, interrupt, restart, give up
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_positive)]
    pub stuck_after: Option<Duration>,
    /// Text that --stuck-after types as a nudge [default: continue]
    #[arg(long, value_name = "TEXT")]
    pub stuck_message: Option<String>,
    /// Land the work on the base branch if the worker ends successfully (needs --worktree)
    #[arg(long)]
    pub merge: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub command: Vec<String>,
}

/// Flags shared by all verbs that start a worker: where it runs, its environment, limits and nudge.
#[derive(Clone, Debug, Default, Args)]
pub struct PlaceFlags {
    /// tmux session for the window [default: one session per state directory]
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
    /// tmux server for the window, as in 'tmux -L'
    #[arg(long, value_name = "SOCKET")]
    pub tmux_socket: Option<String>,
    /// Branch of the worktree [default: the name of the worker]
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub branch: Option<String>,
    /// Directory for worktrees [default: <repository>-worktrees, next to the repository]
    #[arg(long, value_name = "DIR", value_parser = NonEmptyStringValueParser::new())]
    pub worktree_dir: Option<String>,
    /// Branch or commit that the worktree starts from [default: HEAD]
    #[arg(long, value_name = "REV", value_parser = NonEmptyStringValueParser::new())]
    pub base: Option<String>,
    /// Tag for filtering (may be repeated)
    #[arg(long = "tag", value_name = "TAG", value_parser = NonEmptyStringValueParser::new())]
    pub tags: Vec<String>,
    /// Environment variable for the worker (may be repeated)
    #[arg(long = "env", value_name = "KEY=VAL")]
    pub env: Vec<String>,
    /// File of KEY=VALUE lines: environment variables that are never displayed (may be repeated)
    #[arg(long = "env-file", value_name = "FILE")]
    pub env_files: Vec<String>,
    /// Working directory (ignored with a worktree) [default: the current directory]
    #[arg(long, value_name = "DIR", value_parser = NonEmptyStringValueParser::new())]
    pub cwd: Option<String>,
    /// Return only when the agent in the window is ready for input
    #[arg(long)]
    pub ready_wait: bool,
    /// Maximum time of --ready-wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub ready_timeout: u64,
    #[command(flatten)]
    pub nudge: Box<NudgeFlags>,
    #[command(flatten)]
    pub limits: LimitFlags,
}

/// Parses `--work-type`: one of the kinds of work that readers of sessions know.
fn session_work_type(text: &str) -> Result<String, String> {
    let known = WORK_TYPES.map(|(name, _)| name);
    if known.contains(&text) { Ok(text.to_owned()) } else { Err(format!("possible values: {}", known.join(", "))) }
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
    /// Ended with a code other than 0, by a signal, at a limit, or nobody recorded how
    Failed,
    All,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Name of the worker
    pub name: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DiffArgs {
    /// Name of the worker
    pub name: String,
    /// Show only the number of changed lines of each file
    #[arg(long, conflicts_with = "name_only")]
    pub stat: bool,
    /// Show only the names of changed files
    #[arg(long)]
    pub name_only: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with_all = ["stat", "name_only"])]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct KillArgs {
    /// Workers to stop
    #[arg(value_name = "NAME", conflicts_with = "tags")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Also remove the worktree, unless it holds unsaved work
    #[arg(long)]
    pub rm_worktree: bool,
    /// Remove a worktree with unsaved work too, after saving it under refs/swarm/trash/
    #[arg(long)]
    pub force_dirty: bool,
    /// Stop every worker
    #[arg(long)]
    pub all: bool,
    /// Stop every worker of the repository of the current directory
    #[arg(long, conflicts_with_all = ["names", "tags", "all"])]
    pub here: bool,
    /// Do not ask before --all reaches other repositories (on a terminal)
    #[arg(long, requires = "all")]
    pub everywhere: bool,
    /// Generation that the worker must have: 'swarm web' means the one that it shows
    #[arg(long, value_name = "N", requires = "names", conflicts_with_all = ["tags", "all", "here"], hide = true)]
    pub generation: Option<u64>,
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
    /// Return when any of the workers has ended
    #[arg(long)]
    pub any: bool,
    /// Maximum time to wait: 90 (seconds), 5m, 1h30m (0 for no limit)
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub timeout: Option<Duration>,
    /// Wait for every worker that is running now
    #[arg(long)]
    pub all: bool,
    /// Exit with the worker's own code (several workers: 1 if one failed; timed out: 124)
    #[arg(long, alias = "status")]
    pub exit_code: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CleanArgs {
    /// Workers to remove
    #[arg(value_name = "NAME", conflicts_with = "tags")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Remove the worktree unless it holds unsaved work (the default)
    #[arg(long, overrides_with = "no_rm_worktree")]
    pub rm_worktree: bool,
    /// Keep the worktree
    #[arg(long, overrides_with = "rm_worktree")]
    pub no_rm_worktree: bool,
    /// Remove a worktree with unsaved work too, after saving it under refs/swarm/trash/
    #[arg(long)]
    pub force_dirty: bool,
    /// Remove every stopped worker
    #[arg(long)]
    pub all: bool,
    /// Remove every stopped worker of the repository of the current directory
    #[arg(long, conflicts_with_all = ["names", "tags", "all"])]
    pub here: bool,
    /// Do not ask before --all reaches other repositories (on a terminal)
    #[arg(long, requires = "all")]
    pub everywhere: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RespawnArgs {
    /// Name of the worker
    #[arg(required_unless_present = "tags", conflicts_with = "tags")]
    pub name: Option<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Recreate the worktree first
    #[arg(long)]
    pub clean_first: bool,
    /// Recreate a worktree with unsaved work too, after saving it under refs/swarm/trash/
    #[arg(long)]
    pub force_dirty: bool,
    /// Generation that the worker must have: 'swarm web' means the one that it shows
    #[arg(long, value_name = "N", requires = "name", conflicts_with_all = ["tags"], hide = true)]
    pub generation: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
