//! Arguments of `swarm flow`.

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
    /// Check a workflow and report every error
    #[command(after_help = examples::FLOW_CHECK)]
    Check(CheckArgs),
    /// Create a flow from a workflow and print its ID
    #[command(after_help = examples::FLOW_NEW)]
    New(NewArgs),
    /// List flows, newest first
    Ls(LsArgs),
    /// Show the state of each node of a flow
    Status(FlowOf),
    /// Show which nodes hand over to which
    Graph(GraphArgs),
    /// Run a flow: start ready nodes, and continue as roles hand over
    #[command(after_help = examples::FLOW_RUN)]
    Run(RunArgs),
    /// Continue a flow that was stopped (same as 'run')
    Resume(RunArgs),
    /// Stop a flow and end its turns, or end the turn of one node
    Stop(StopArgs),
    /// For agents: hand over, ask, wait or close at the end of a turn
    #[command(after_help = examples::FLOW_EMIT)]
    Emit(EmitArgs),
    /// Show what waits for a person, and the command that answers it
    Requests(FlowOf),
    /// Grant a permission request of an agent
    Allow(AllowArgs),
    /// Deny a permission request of an agent and end its turn
    Deny(DenyArgs),
    /// For hooks of agents: ask for permission to use a tool
    #[command(hide = true)]
    ConsentCheck,
    /// Answer a node that asked a question or waits for a handoff
    #[command(after_help = examples::FLOW_ANSWER)]
    Answer(AnswerArgs),
    /// Approve the pending handoff of a node, or its changed work
    Approve(ApproveArgs),
    /// Decline the pending handoff of a node, or its changed work; it then waits for an answer
    Decline(DeclineArgs),
    /// Choose how roles review their work after the forward pass
    Improve(ImproveArgs),
    /// Choose whether feedback is written after the improvement phase
    Feedback(FeedbackArgs),
    /// Set what agents may do without asking
    Consent(ConsentArgs),
    /// Show the events of a flow, oldest first
    Events(EventsArgs),
    /// Show the conversations of the roles
    Feed(FeedArgs),
    /// Delete a stopped flow and its record; worktrees and branches are kept
    Rm(FlowOf),
}

/// Options that every verb takes.
#[derive(Debug, Args)]
pub struct Common {
    /// Directory that holds the projects [default: nearest parent with .a-society, else the repository]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct FlowOf {
    /// Flow: PROJECT/ID, an ID, or a unique prefix of an ID
    pub flow: String,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Workflow file (YAML)
    #[arg(value_name = "WORKFLOW")]
    pub file: PathBuf,
    /// Also check the workflow against the state of this flow
    #[arg(long, value_name = "FLOW")]
    pub flow: Option<String>,
    /// Allow any role, not only the owner, to start and end the workflow
    #[arg(long)]
    pub relaxed: bool,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Args)]
pub struct NewArgs {
    /// Project directory below the root
    pub project: String,
    /// Workflow file (YAML)
    #[arg(long, value_name = "FILE")]
    pub workflow: PathBuf,
    /// Task description ('-' reads standard input)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub task: Option<String>,
    /// Commit, branch or tag from which the roles start
    #[arg(long, value_name = "REF")]
    pub base: Option<String>,
    /// Allow any role, not only the owner, to start and end the workflow
    #[arg(long)]
    pub relaxed: bool,
    /// Permissions of agents [default: no-access]
    #[arg(long, value_parser = ["no-access", "partial-access", "full-access"])]
    pub consent: Option<String>,
    /// Add the result to the merge queue of the base branch when the flow completes
    #[arg(long)]
    pub merge: bool,
    /// Start the flow at once
    #[arg(long)]
    pub start: bool,
    /// Create the missing role documents that A-Society requires before it continues a flow
    #[arg(long)]
    pub a_docs: bool,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// List only the flows of this project
    pub project: Option<String>,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Args)]
pub struct GraphArgs {
    /// Print the graph in Graphviz format
    #[arg(long, conflicts_with = "json")]
    pub dot: bool,
    #[command(flatten)]
    pub of: FlowOf,
}

#[derive(Debug, Args)]
pub struct AnswerArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Answer text ('-' reads standard input)
    pub text: String,
    /// Answer this node; required if several nodes wait
    #[arg(long, value_name = "NODE", conflicts_with = "role")]
    pub node: Option<String>,
    /// Answer the waiting node of this role
    #[arg(long, value_name = "ROLE")]
    pub role: Option<String>,
}

#[derive(Debug, Args)]
pub struct ApproveArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Node that waits
    pub node: String,
}

#[derive(Debug, Args)]
pub struct DeclineArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Node that waits
    pub node: String,
    /// What the node must do instead ('-' reads standard input)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub message: Option<String>,
}

#[derive(Debug, Args)]
pub struct ImproveArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Order of the reviews: each role after those it handed over to, all at once, or none
    #[arg(value_parser = ["graph-based", "parallel", "none"])]
    pub mode: String,
}

#[derive(Debug, Args)]
pub struct FeedbackArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Write the feedback or complete the flow without it
    #[arg(value_parser = ["grant", "deny"])]
    pub decision: String,
}

#[derive(Debug, Args)]
pub struct ConsentArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Agents ask for everything, for what is not granted yet, or for nothing
    #[arg(value_parser = ["no-access", "partial-access", "full-access"])]
    pub mode: String,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Maximum number of turns that run at the same time
    #[arg(long, value_name = "N")]
    pub max: Option<std::num::NonZeroUsize>,
    /// Start only the nodes that are ready now
    #[arg(long)]
    pub once: bool,
    /// Wait until no turn runs: the flow is completed or waits for a person
    #[arg(long)]
    pub wait: bool,
}

#[derive(Debug, Args)]
pub struct StopArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// End only the turn of this node (or role, in the improvement phase), which then waits for an answer
    pub node: Option<String>,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("word").required(true).args(["to", "ask", "wait", "close", "findings", "feedback"])))]
pub struct EmitArgs {
    /// Hand over to this node (may be repeated)
    #[arg(long, value_name = "NODE", requires = "artifact")]
    pub to: Vec<String>,
    /// File to hand over: one for each --to, or one for all
    #[arg(long, value_name = "FILE", requires = "to")]
    pub artifact: Vec<PathBuf>,
    /// Ask a person ('-' reads the question from standard input)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub ask: Option<String>,
    /// Wait for the next handoff
    #[arg(long = "await")]
    pub wait: bool,
    /// Close the forward pass: all work is done
    #[arg(long)]
    pub close: bool,
    /// Finish the improvement step of the role with its findings
    #[arg(long, value_name = "FILE")]
    pub findings: Option<PathBuf>,
    /// Finish the improvement phase with the feedback
    #[arg(long, value_name = "FILE")]
    pub feedback: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct DenyArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Request number, as shown by 'swarm flow requests'
    pub request: u64,
}

#[derive(Debug, Args)]
pub struct AllowArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Request number, as shown by 'swarm flow requests'
    pub request: u64,
    /// With 'allow': also give all roles of the flow partial access from now on
    #[arg(long)]
    pub flow_wide: bool,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Keep printing new events until interrupted
    #[arg(short, long)]
    pub follow: bool,
}

#[derive(Debug, Args)]
pub struct FeedArgs {
    #[command(flatten)]
    pub of: FlowOf,
    /// Show only the conversation of this role
    #[arg(long, value_name = "ROLE")]
    pub role: Option<String>,
    /// Keep printing new messages until interrupted
    #[arg(short, long)]
    pub follow: bool,
}
