//! Examples of the verbs about requests of agents.

pub const APPROVALS: &str = "\
Examples:
  swarm approvals                   what waits for you, oldest first
  swarm approvals 17                all of it, and who asks
  swarm approvals --all             also what was answered or is over
  swarm approvals --follow --json | jq -c '.approvals[]'

A request is over, too, if its worker no longer waits. Requests of flows that run
are named FLOW/N, or FLOW/NODE if they have no number.";

pub const APPROVE: &str = "\
Examples:
  swarm approve 17 18
  swarm approve 17 --always                    and never ask about this command again
  swarm approve 17 --always --as 'cargo test'  ... nor about others that begin so
  swarm approve fl1/3                          a request in a flow

One approval is at most one execution. Of several answers the first counts. Agents
cannot answer: below a worker the command is refused.";

pub const DENY: &str = "\
Examples:
  swarm deny 17
  swarm deny 17 18 --reason 'use nextest instead'

The agent is told the reason and goes on. Denying a question tells the agent to
decide without an answer.";

pub const ANSWER: &str = "\
Examples:
  swarm answer 17 postgres          the label of an option, or a text
  swarm answer 17 2                 the number of an option
  swarm answer 18 postgres 'port 5433'         one answer for each question
  swarm answer fl1/owner 'yes, go on'          a question in a flow";

pub const RULES: &str = "\
Examples:
  swarm rules
  swarm rules add --allow 'cargo test'
  swarm rules add --deny 'git push' --reason 'branches are landed by swarm'
  swarm rules rm 3
  swarm rules test 'cargo test && git push'

A pattern is the first words of a command, compared whole; `*` at the end of a
word stands for its rest. `mcp__SERVER__TOOL` is a tool of an MCP server. Every
command of a line must be allowed, and lines with substitutions, redirections,
`&`, `sh -c`, xargs and the like never are. Deny wins over ask, ask over allow.
Rules are also read from [approvals] of your own configuration file; those of a
repository's swarm.toml only deny and ask.";

pub const RULES_ADD: &str = "\
Examples:
  swarm rules add --allow 'cargo test'
  swarm rules add --allow 'mcp__docs__*' --everywhere
  swarm rules add --ask 'cargo publish'";

pub const ASK: &str = "\
Examples:
  swarm ask 'Which database?' --option postgres --option sqlite --wait
  db=$(swarm ask 'Which database?' --wait) || exit 1

For programs that run in a worker. Prints the answer. The exit code is 1 if a
person denied it, with the reason on standard error.";
