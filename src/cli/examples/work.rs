//! Examples of the verbs for saved work, runs and loops.

pub const DU: &str = "\
Examples:
  swarm du
  swarm du fix docs
  swarm du --json | jq .bytes

Largest first: worktree and logs of each worker, then the saves of removed
worktrees. Blocks shared between copies (reflinks) are counted for each copy.";

pub const RESTORE: &str = "\
Examples:
  swarm restore                     list the saves in this repository
  swarm restore fix                 restore the newest save of fix to its old place
  swarm restore fix@2 --to ../fix-before
  swarm restore fix --show          show the content of the save
  swarm restore fix --diff | git apply --check
  swarm restore --expire --older-than 30d --dry-run

Files, index, modes, links and the state of a merge are restored byte for byte;
this is verified before the worktree is moved into place, and nothing is
overwritten. The save is kept until it is dropped or expires.";

pub const PLAN: &str = "\
Examples:
  swarm plan --specs ./specs -y && swarm run
  swarm plan --specs ./specs --base develop

A spec is a *.md file that says what to do. Front matter may set adapter,
requiredCapabilities, after, priority, group, on, timeout, retries, verify, merge.
_context.md is added to every prompt. Planning again keeps unchanged
workstreams.";

pub const RUN: &str = "\
Examples:
  swarm plan --specs ./specs -y && swarm run --verify 'make test'
  swarm run --agent shell -j 4
  swarm run --no-merge                   review the work, then land it with 'swarm merge add'
  ssh host 'cd project && swarm run'
  swarm run attach
  swarm run --on box,gpu1                work on other machines (docs/hosts.md), land here
  swarm run jobs.toml --dry-run

The supervisor owns the run: closing the terminal or losing the connection does
not affect it. Ctrl-C stops the run, and the next `swarm run` resumes it. Exit
codes: 0 all landed, 1 some failed, 2 usage error, 130 interrupted.";

pub const RUN_ATTACH: &str = "\
Examples:
  swarm run attach
  swarm run attach --json --since 120    continue after line 120

Ctrl-C closes the view; the run continues.";

pub const RUN_LOGS: &str = "\
Examples:
  swarm run logs auth
  swarm run logs auth --follow
  swarm run logs auth --attempt 1 --json | jq -r .text
  swarm run logs build --home jobs.toml

Prints messages, uses of tools with the beginnings of their results, questions,
denials, and the result of each turn with its cost. Agents that print plain text
are shown as they are; of a command, standard error comes before standard output.";

pub const RUN_GIVE_UP: &str = "\
Examples:
  swarm run status                  which host is out of reach, and since when
  swarm run give-up auth api

The next attempt begins elsewhere. When the host answers again, the attempt there is
ended, and what it has done is kept here as refs/swarm/from/HOST/ID.N: nothing lands
it by itself.";

pub const RUN_CONTEXT: &str = "\
Examples:
  swarm run context auth 'use the existing session table'
  swarm run context auth - < notes.md";

pub const RALPH: &str = "\
Examples:
  swarm ralph init
  swarm ralph spawn --name dev --prompt-file PROMPT.md \\
    --done-pattern '^ALL TASKS DONE' -- claude
  swarm ralph status dev
  swarm ralph logs dev --live
  swarm ralph pause dev && swarm ralph resume dev

Each iteration is a new agent in its own window and the same worktree. The
prompt file is read again for each one.

Quick reference:
  init, template       write or print a prompt to start from
  spawn                start a loop
  status, list, logs   see how far it is
  pause, resume, run   hold it, and continue
  stop, clean          end it, delete its state

Prompt design principles:
  - Have the agent study the code and the task list first; it remembers nothing.
  - One task per iteration, the most important first.
  - Keep the state in files and commits, not in the conversation.
  - Say how to check the work: which tests, and what counts as done.
  - Have it exit when the task is done, and print the done pattern at the end.

Monitoring is explained by 'swarm ralph status --help', intervention by
'swarm ralph pause --help'.";

pub const RALPH_MONITOR: &str = "\
Monitoring:
  swarm ralph list               all loops with iterations and failures
  swarm ralph status dev         progress, and whether the agent is possibly stuck
  swarm ralph logs dev --live    each start and end of an iteration, as it happens
  swarm peek dev                 the agent's window";

pub const RALPH_INTERVENE: &str = "\
Intervention:
  swarm ralph pause dev          let the current agent finish, start no other
  swarm send dev 'skip the UI'   tell the current agent something
  swarm attach dev               type into its window yourself
  swarm ralph resume dev         continue
  swarm ralph stop dev           end the loop and its agent

To change the course, edit the prompt file: the next iteration reads it.";

pub const RALPH_SPAWN: &str = "\
Examples:
  swarm ralph spawn --name dev --prompt-file PROMPT.md \\
    --done-pattern 'ALL TASKS DONE' -- claude
  swarm ralph spawn --name dev --prompt-file PROMPT.md \\
    --max-iterations 10 -- claude -p
  swarm ralph spawn --name dev --prompt-file PROMPT.md \\
    --foreground -- codex exec
  swarm ralph spawn --name dev --prompt-file PROMPT.md \\
    --no-worktree --inactivity-timeout 5m -- ./agent.sh

The prompt is typed when the agent is ready for input, after 30 s at the latest;
claude -p and codex exec get it as an argument. An agent that asks for trust or
a login pauses the loop: see 'swarm ralph status'. An iteration ends when its
agent ends, when its window has not changed for --inactivity-timeout, or when
its context is used up. An exit code other than 0 is a failure; five failures in
a row end the loop. The supervisor owns the loop: closing the terminal does not
affect it. Ctrl-C with --foreground pauses the loop.";
