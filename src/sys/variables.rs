//! Names of environment variables that several processes must agree on.

/// Directory of the records of a worker, for hooks whose words are the same for all workers.
pub const RECORDS: &str = "SWARM_RECORDS";

/// Hosts on which verbs are executed.
pub const HOSTS: &str = "SWARM_HOST";

/// Variables that belong to one worker. A process that serves all workers must not have them: a search for what a
/// worker left behind would take it for a part of that worker.
pub const OF_A_WORKER: [&str; 25] = [
    "SWARM_TOKEN",
    "SWARM_WORKER",
    "SWARM_DEPTH",
    "SWARM_SESSION",
    RECORDS,
    "SWARM_PORT",
    "SWARM_RECOVERY",
    "SWARM_RUN",
    "SWARM_WORKSTREAM",
    "SWARM_ATTEMPT",
    "SWARM_PROMPT",
    "SWARM_WORKTREE",
    "SWARM_BASE_REPO",
    "SWARM_FLOW",
    "SWARM_FLOW_ROOT",
    "SWARM_NODE",
    "SWARM_ROLE",
    "SWARM_TURN",
    "SWARM_RECORD",
    "SWARM_HANDOFF",
    "SWARM_ANSWER",
    "SWARM_SCRATCH",
    "SWARM_MERGE_ITEM",
    "SWARM_MERGE_NAME",
    "SWARM_MERGE_BASE",
];
