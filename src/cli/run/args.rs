//! Arguments of `swarm plan` and `swarm run`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use swarm_model::asks::judge::Consent;

use crate::cli::duration;
use crate::cli::examples;

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Directory of specs, one *.md file per workstream
    #[arg(long, value_name = "DIR")]
    pub specs: String,
    /// Do not ask for confirmation
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// Branch on which finished work lands [default: current branch]
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RunArgs {
    #[command(subcommand)]
    pub action: Option<RunAction>,
    #[command(flatten)]
    pub begin: BeginArgs,
}

fn consents() -> impl TypedValueParser<Value = Consent> {
    PossibleValuesParser::new(Consent::ALL.map(Consent::word)).try_map(|word| Consent::of(&word).ok_or("unknown mode"))
}

fn lost(text: &str) -> Result<String, String> {
    swarm_config::sections::lost(text).map(|_| text.to_owned())
}

#[derive(Clone, Debug, Args)]
pub struct BeginArgs {
    /// Job file to run instead of the planned specs (its name must end in .toml or contain a /)
    #[arg(value_name = "FILE.toml")]
    pub file: Option<PathBuf>,
    /// Maximum number of workstreams that run at the same time [default: 20]
    #[arg(short = 'j', long, visible_alias = "jobs", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Agent for specs that name none [default: claude]
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// Maximum number of retries of a workstream [default: 1]
    #[arg(long, value_name = "N")]
    pub retries: Option<u32>,
    /// Maximum time of one attempt: 90 (seconds), 5m, 1h30m
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_positive)]
    pub timeout: Option<Duration>,
    /// Shell command that verifies work before it lands ('' for none)
    #[arg(long, value_name = "COMMAND")]
    pub verify: Option<String>,
    /// Leave finished work on its branch, to be reviewed and landed later
    #[arg(long, overrides_with = "merge")]
    pub no_merge: bool,
    /// Land work again, also what a run with --no-merge has finished and left on its branch
    #[arg(long)]
    pub merge: bool,
    /// What agents may do without asking you (claude, codex and ACP agents can ask) [default: edit files and run commands]
    #[arg(long, value_name = "MODE", value_parser = consents())]
    pub consent: Option<Consent>,
    /// Hosts on which agents and commands of job files work, instead of here; work lands here ('local' is this machine)
    #[arg(long, value_name = "HOST[,HOST]", value_delimiter = ',')]
    pub on: Vec<String>,
    /// Time after which attempts at a host that is out of reach are repeated elsewhere: 2h, or 'wait' [default: wait]
    #[arg(long, value_name = "DURATION", value_parser = lost)]
    pub lost: Option<String>,
    /// Start no further workstream after one has failed
    #[arg(long)]
    pub fail_fast: bool,
    /// Also retry workstreams that failed before, on the base as it is now unless they have work
    #[arg(long)]
    pub retry_failed: bool,
    /// Show what would run without starting it
    #[arg(long)]
    pub dry_run: bool,
    /// Start the run and return at once
    #[arg(short, long)]
    pub detach: bool,
    /// Print one JSON object per line, on a terminal too
    #[arg(long, visible_aliases = ["headless", "no-tui"])]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum RunAction {
    /// Create .arial/ in this repository
    Init(Plain),
    /// Show the progress of a run
    Status(Plain),
    /// Follow a run, by default from its last start on
    #[command(after_help = examples::RUN_ATTACH)]
    Attach(AttachArgs),
    /// Show what the agent of a workstream, or the command of a job, wrote
    #[command(after_help = examples::RUN_LOGS)]
    Logs(LogsArgs),
    /// Stop a run; the next 'swarm run' continues it
    Stop(Plain),
    /// Start no further workstream; running ones continue
    Pause(Plain),
    /// Resume a paused run
    Resume(Plain),
    /// Give up attempts whose hosts are out of reach: they are repeated elsewhere
    #[command(after_help = examples::RUN_GIVE_UP)]
    GiveUp(GiveUpArgs),
    /// Remove worktrees and branches that are no longer needed
    Cleanup(Plain),
    /// Send a message to the agent of a workstream, delivered at its next turn
    #[command(after_help = examples::RUN_CONTEXT)]
    Context(ContextArgs),
}

#[derive(Debug, Args)]
pub struct Plain {
    /// Directory of the run, or its job file [default: .arial of this repository]
    #[arg(long, value_name = "PATH")]
    pub home: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AttachArgs {
    /// Directory of the run, or its job file [default: .arial of this repository]
    #[arg(long, value_name = "PATH")]
    pub home: Option<PathBuf>,
    /// Show the lines after this number ('seq'), 0 for all
    #[arg(long, value_name = "SEQ")]
    pub since: Option<u64>,
    /// Print one JSON object per line, on a terminal too
    #[arg(long, visible_aliases = ["headless", "no-tui"])]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// ID of the workstream or job
    pub id: String,
    /// Show this attempt [default: all of a workstream, the latest of a job]
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Keep printing until the attempt has ended
    #[arg(short, long)]
    pub follow: bool,
    /// Directory of the run, or its job file [default: .arial of this repository]
    #[arg(long, value_name = "PATH")]
    pub home: Option<PathBuf>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct GiveUpArgs {
    /// IDs of workstreams
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,
    #[command(flatten)]
    pub plain: Plain,
}

#[derive(Debug, Args)]
pub struct ContextArgs {
    /// ID of the workstream
    pub id: String,
    /// Message text ('-' reads standard input)
    #[arg(allow_hyphen_values = true)]
    pub text: String,
    /// Directory of the run, or its job file [default: .arial of this repository]
    #[arg(long, value_name = "PATH")]
    pub home: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
