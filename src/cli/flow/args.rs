//! What may be typed after `swarm flow`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use crate::cli::examples;

#[derive(Debug, Args)]
pub struct FlowArgs {
    #[command(subcommand)]
    pub action: FlowAction,
}

#[derive(Debug, Subcommand)]
pub enum FlowAction {
    /// Say all that is wrong with a workflow
    #[command(after_help = examples::FLOW_CHECK)]
    Check(CheckArgs),
    /// Make a flow of a workflow, and print its id
    #[command(after_help = examples::FLOW_NEW)]
    New(NewArgs),
    /// List flows, newest first
    Ls(LsArgs),
    /// Show what each node of a flow does or waits for
    Status(FlowOf),
    /// Show who hands over to whom
    Graph(GraphArgs),
    /// Work on a flow: begin what can be begun, and go on as its roles hand over
    #[command(after_help = examples::FLOW_RUN)]
    Run(RunArgs),
    /// The same for one that was left
    Resume(RunArgs),
    /// End one turn of a flow, or all of them and work on it no longer
    Stop(StopArgs),
    /// For agents: say what comes next
    #[command(after_help = examples::FLOW_EMIT)]
    Emit(EmitArgs),
    /// Show what waits for a person, and what helps
    Requests(FlowOf),
    /// Let an agent do what it asks for
    Allow(AllowArgs),
    /// Do not, and end its turn
    Deny(AllowArgs),
    /// For hooks of agents: ask whether a tool may be used
    #[command(hide = true)]
    ConsentCheck,
    /// Answer a node that asked, or that waits for a handoff
    #[command(after_help = examples::FLOW_ANSWER)]
    Answer(AnswerArgs),
    /// Let a node hand over what it asked to hand over
    Approve(ApproveArgs),
    /// Do not; the node waits for words then
    Decline(DeclineArgs),
    /// Choose how the roles look back when the forward pass is over
    Improve(ImproveArgs),
    /// Say whether feedback is written when all have looked back
    Feedback(FeedbackArgs),
    /// Say what agents may do without asking
    Consent(ConsentArgs),
    /// Show what happened in a flow, oldest first
    Events(EventsArgs),
    /// Show what was said in the conversations of roles
    Feed(FeedArgs),
    /// Remove a flow that nobody runs, with its record; worktrees and branches stay
    Rm(FlowOf),
}

/// What all of them take.
#[derive(Debug, Args)]
pub struct Common {
    /// Folder that holds the projects [default: the nearest one above with .a-society, else the repository]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct FlowOf {
    /// PROJECT/ID, an id, or how one begins
    pub flow: String,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The workflow, a YAML file
    #[arg(value_name = "WORKFLOW")]
    pub file: PathBuf,
    /// Ask also whether it fits what has happened in this flow
    #[arg(long, value_name = "FLOW")]
    pub flow: Option<String>,
    /// Any role may begin and end it, not the owner alone
    #[arg(long)]
    pub relaxed: bool,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Args)]
pub struct NewArgs {
    /// The folder of the project, below the root
    pub project: String,
    /// The workflow, a YAML file
    #[arg(long, value_name = "FILE")]
    pub workflow: PathBuf,
    /// What is to be done; `-` reads it from standard input
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub task: Option<String>,
    /// Commit, branch or tag that the work begins from
    #[arg(long, value_name = "REF")]
    pub base: Option<String>,
    /// Any role may begin and end it, not the owner alone
    #[arg(long)]
    pub relaxed: bool,
    /// What agents may do without asking [default: no-access]
    #[arg(long, value_parser = ["no-access", "partial-access", "full-access"])]
    pub consent: Option<String>,
    /// What it comes to goes into the merge queue of its base when it is over
    #[arg(long)]
    pub merge: bool,
    /// Work on it at once
    #[arg(long)]
    pub start: bool,
    /// Write what A-Society asks of a project before it goes on with its flows, where that is missing
    #[arg(long)]
    pub a_docs: bool,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Only those of this project
    pub project: Option<String>,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Args)]
pub struct GraphArgs {
    /// In the language of Graphviz
    #[arg(long, conflicts_with = "json")]
    pub dot: bool,
    #[command(flatten)]
    pub of: FlowOf,
}

#[derive(Debug, Args)]
pub struct AnswerArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// The answer; `-` reads it from standard input
    pub text: String,
    /// Which node is meant, where several wait
    #[arg(long, value_name = "NODE", conflicts_with = "role")]
    pub node: Option<String>,
    /// Which role is meant
    #[arg(long, value_name = "ROLE")]
    pub role: Option<String>,
}

#[derive(Debug, Args)]
pub struct ApproveArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// The node that asked
    pub node: String,
}

#[derive(Debug, Args)]
pub struct DeclineArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// The node that asked
    pub node: String,
    /// What to do instead; `-` reads it from standard input
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub message: Option<String>,
}

#[derive(Debug, Args)]
pub struct ImproveArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Each role after those it handed over to, all at once, or not at all
    #[arg(value_parser = ["graph-based", "parallel", "none"])]
    pub mode: String,
}

#[derive(Debug, Args)]
pub struct FeedbackArgs {
    #[command(flatten)]
    pub of: FlowOf,
    #[arg(value_parser = ["grant", "deny"])]
    pub decision: String,
}

#[derive(Debug, Args)]
pub struct ConsentArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Ask for everything, for what was not granted yet, or for nothing
    #[arg(value_parser = ["no-access", "partial-access", "full-access"])]
    pub mode: String,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Turns at work at the same time
    #[arg(long, value_name = "N")]
    pub max: Option<std::num::NonZeroUsize>,
    /// Begin what can be begun now, and nothing after it
    #[arg(long)]
    pub once: bool,
    /// Return when nothing is at work any more: it is over, or waits for a person
    #[arg(long)]
    pub wait: bool,
}

#[derive(Debug, Args)]
pub struct StopArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// The node, or the role that looks back, whose turn is ended; the node waits for words then
    pub node: Option<String>,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("word").required(true).args(["to", "ask", "wait", "close", "findings", "feedback"])))]
pub struct EmitArgs {
    /// Hand over to this node; may be given several times
    #[arg(long, value_name = "NODE", requires = "artifact")]
    pub to: Vec<String>,
    /// What is handed over; one for each --to, or one for all
    #[arg(long, value_name = "FILE", requires = "to")]
    pub artifact: Vec<PathBuf>,
    /// Ask a person; `-` reads the question from standard input
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub ask: Option<String>,
    /// Wait for a handoff that is still to come
    #[arg(long = "await")]
    pub wait: bool,
    /// Everything is done
    #[arg(long)]
    pub close: bool,
    /// Looking back is done, and this is what was found
    #[arg(long, value_name = "FILE")]
    pub findings: Option<PathBuf>,
    /// The feedback is written
    #[arg(long, value_name = "FILE")]
    pub feedback: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct AllowArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Its number, as `requests` shows it
    pub request: u64,
    /// For all roles of the flow, and from now on
    #[arg(long)]
    pub flow_wide: bool,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Go on with those that are still to come
    #[arg(short, long)]
    pub follow: bool,
}

#[derive(Debug, Args)]
pub struct FeedArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Only this role
    #[arg(long, value_name = "ROLE")]
    pub role: Option<String>,
    /// Go on with what is still to come
    #[arg(short, long)]
    pub follow: bool,
}
