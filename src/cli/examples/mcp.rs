//! Examples of the verb that serves agents.

pub const MCP: &str = "\
Examples:
  claude mcp add swarm -- swarm mcp --allow act
  codex mcp add swarm -- swarm mcp --allow act
  ssh box swarm mcp                         the fleet of another machine

Tools that look: ls, explain, logs, diff, merge_ls, run_status, approvals, events,
wait. --allow act adds spawn, send, kill, respawn, merge_add and merge_retry, with
the refusals of the verbs. --allow answer adds approve, deny and answer, for what
agents ask of people. Nothing forces, removes or consents. It ends with its input.";
