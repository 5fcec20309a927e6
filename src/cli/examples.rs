//! The examples below each verb's help.

pub const TOP: &str = "\
Examples:
  swarm spawn --name fix --tmux --worktree -- claude   an agent in its own window and branch
  swarm ls -l                                          who runs, who ended and how
  swarm send fix \"run the tests and fix what fails\"
  swarm wait fix && swarm logs fix

State lies in $SWARM_DIR (default ~/.swarm). `swarm VERB --help` shows more.";

pub const SPAWN: &str = "\
Examples:
  swarm spawn --name fix --tmux --worktree -- claude
  swarm spawn --name tests --tag ci --env RUST_LOG=debug -- cargo test
  swarm spawn --name web --restart on-failure --timeout 8h -- ./serve --port 8080
  swarm spawn --name try --memory 2G --cpu 1.5 --pids 200 -- ./experiment
  swarm spawn --file fleet.toml
    [defaults]
    tmux = true
    worktree = true
    command = [\"claude\"]
    [[worker]]
    name = \"parser\"
    tags = [\"core\"]
    [[worker]]
    name = \"docs\"
    command = \"make -C docs watch\"             a line for sh
    restart = \"on-failure\"

Prints `spawned NAME (tmux: SESSION:WINDOW)` or `spawned NAME (pid: N)`.
Everything after `--` is the command, run without a shell. A file is checked as a whole before the first worker is
started; paths in it begin at its directory.";

pub const LS: &str = "\
Examples:
  swarm ls
  swarm ls --status running --tag ci
  swarm ls -l --sort state --limit 20
  swarm ls -q | xargs -n 1 swarm status
  swarm ls --json | jq '.workers[] | select(.state == \"failed\").name'";

pub const STATUS: &str = "\
Examples:
  swarm status fix
  if swarm status fix >/dev/null; then echo still at work; fi";

pub const EXPLAIN: &str = "\
Examples:
  swarm explain fix             how it is, why, from which file, and what to do next
  swarm explain fix --json | jq -r .because";

pub const PEEK: &str = "\
Examples:
  swarm peek fix
  swarm peek fix -n 200
  swarm peek --all";

pub const SEND: &str = "\
Examples:
  swarm send fix \"add a test for the empty list\"
  swarm send --all \"commit what you have\"
  swarm send --tag review \"look at the open questions\"
  swarm send fix --no-enter \"draft\"
  swarm send fix -- --help

Done when its window shows something of what was typed (a password is typed unseen); else that worker fails, and
Enter is not pressed.";

pub const INTERRUPT: &str = "\
Examples:
  swarm interrupt fix
  swarm interrupt --all";

pub const EOF: &str = "\
Example:
  swarm eof fix";

pub const ATTACH: &str = "\
Example:
  swarm attach fix        leave again with the tmux prefix (Ctrl-B) and d";

pub const LOGS: &str = "\
Examples:
  swarm logs tests
  swarm logs tests --stderr --lines 50
  swarm logs tests --follow
  swarm logs fix --history --lines 5000
  swarm logs --tag ci --follow                each line under its worker's name";

pub const DIFF: &str = "\
Examples:
  swarm diff fix
  swarm diff fix --stat
  swarm diff fix | git apply --index        take it over by hand

Compares with the point of its base branch that it started from or last took over. Uncommitted and untracked
files count, ignored ones and what tools make (node_modules, target/debug, *.log, …) do not. Changes nothing.";

pub const MERGE: &str = "\
Examples:
  swarm spawn --name fix --worktree --merge -- claude -p 'mend the parser'
  swarm merge add fix docs --verify 'make test'
  swarm merge wait && git log --first-parent
  swarm merge status docs
  swarm merge log

[merge] in swarm.toml at the repository's root sets verify, batch, timeout (seconds), resolver, max_retries, strategy.
Nothing of yours is checked out, stashed or overwritten: uncommitted edits in the way make an item wait.";

pub const MERGE_ADD: &str = "\
Examples:
  swarm merge add fix
  swarm merge add fix docs --base release --priority 5
  swarm merge add feature/x --verify 'cargo test' --batch 8

What a worker left uncommitted is committed first, but for untracked files of kinds that tools make.";

pub const HEARTBEAT: &str = "\
Examples:
  swarm heartbeat start fix --interval 4h --expire 24h
  swarm heartbeat start fix --cron '0 9 * * 1-5' --message 'go on with the list'
  swarm heartbeat list
  swarm heartbeat stop fix

For agents that wait for a limit to be renewed. A nudge ends with its worker, goes on when the supervisor is started
again, and is not typed while the one before still stands in the last line.";

pub const HEARTBEAT_START: &str = "\
Examples:
  swarm heartbeat start fix --interval 4h --expire 24h
  swarm heartbeat start fix --interval 30m --jitter 5m --message 'continue where you left off'
  swarm heartbeat start fix --cron '*/30 9-17 * * 1-5' --force";

pub const FLOW: &str = "\
Examples:
  swarm flow check workflow.yaml
  swarm flow new shop --workflow workflow.yaml --task 'add rate limiting'
  swarm flow ls
  swarm flow status 20260527T143000123Z
  swarm flow answer 20260527T143000123Z --node build 'use the token bucket'

A flow lies in .a-society/state/PROJECT/FLOW below the root. It is named by PROJECT/FLOW, FLOW, or how one begins. Exit
code 4: it is there and cannot be opened.";

pub const FLOW_CHECK: &str = "\
Examples:
  swarm flow check workflow.yaml
  swarm flow check workflow.yaml --flow shop/20260527T143000123Z
  swarm flow check workflow.yaml --relaxed --json";

pub const FLOW_NEW: &str = "\
Examples:
  swarm flow new shop --workflow workflow.yaml --task 'add rate limiting'
  swarm flow new shop --workflow workflow.yaml --task - --base main < task.md";

pub const FLOW_RUN: &str = "\
Examples:
  swarm flow run 20260527T143000123Z
  swarm flow run shop/20260527T143000123Z --max 4 --wait

The supervisor works on it; it goes on when this terminal is gone. Which agent plays which role is said in
swarm.toml, [flow.roles.ROLE].";

pub const FLOW_EMIT: &str = "\
Examples:
  swarm flow emit --to review --artifact \"$SWARM_RECORD/02-build.md\"
  swarm flow emit --ask 'Which limit is meant?'
  swarm flow emit --close

It is checked against the flow as it is now, and counts when the agent's turn ends. Said again, the last one counts.";

pub const FLOW_ANSWER: &str = "\
Examples:
  swarm flow answer 20260527T143000123Z 'use the token bucket'
  swarm flow answer shop/20260527T143000123Z --node build - < answer.md

It is delivered with the node's next turn.";

pub const KILL: &str = "\
Examples:
  swarm kill fix
  swarm kill fix docs --rm-worktree
  swarm kill --all
  swarm kill --tag ci --tag nightly          those that have both tags

The whole process tree is ended: SIGTERM, five seconds, SIGKILL.";

pub const WAIT: &str = "\
Examples:
  swarm wait fix docs
  swarm wait --all --timeout 30m
  swarm wait --any --tag ci

Exit code 0: all have ended, with --any at least one, whatever their own codes; 1: the time was up.";

pub const CLEAN: &str = "\
Examples:
  swarm clean fix docs
  swarm clean --all
  swarm clean fix --no-rm-worktree

Branches are never removed, and a worktree with unsaved work stays.";

pub const RESPAWN: &str = "\
Examples:
  swarm respawn fix
  swarm respawn fix --clean-first";

pub const INIT: &str = "\
Examples:
  swarm init
  swarm init --dry-run
  swarm init --file CLAUDE.md --force
  swarm init --with-sandbox";

pub const EVENTS: &str = "\
Examples:
  swarm events --lines 20
  swarm events fix --follow
  swarm events --since 10m
  swarm events --since '2026-01-31 12:00' --until 13:00 --json
  swarm events --follow --json | jq 'select(.type == \"worker.exited\")'";

pub const DOCTOR: &str = "\
Examples:
  swarm doctor                  what is wrong here and what helps
  swarm doctor --repair         asks, then mends what can be mended without losing anything
  swarm doctor --json | jq -r '.findings[].what'";

pub const CONFIG: &str = "\
Examples:
  swarm config                  every key with its value and the file that sets it
  swarm config spawn merge      two sections
  swarm config --set            only what is set

swarm.toml at the repository's root wins over ~/.config/swarm/config.toml, and flags over both:
  [spawn]
  tmux = true
  worktree = true
  timeout = \"2h\"";

pub const HISTORY: &str = "\
Examples:
  swarm history fix
  swarm history fix --json | jq '.starts[] | select(.exit.code != 0)'

It is made of events.jsonl, which is rotated at 8 MiB (one part, .1, is kept), and of the exit record.";

pub const NOTIFY: &str = "\
Example:
  swarm notify test

~/.config/swarm/config.toml says who is told, and of what (default: all):
  [notify]
  command = \"jq -r .message >> ~/swarm.txt\"     the event on standard input; in SWARM_EVENT, SWARM_EVENT_TYPE,
                                                 SWARM_WORKER and SWARM_MESSAGE at most 16 kB of each
  desktop = true                                 by notify-send
  webhook = \"http://127.0.0.1:8080/swarm\"        POST, plain HTTP
  events = [\"finished\", \"failed\", \"stuck\", \"waiting\", \"landed\", \"budget\"]";

pub const SUPERVISOR: &str = "\
Examples:
  swarm supervisor status
  swarm supervisor restart
  swarm supervisor install --recover    begins at boot, and has interrupted workers go on";

pub const COMPLETIONS: &str = "\
Examples:
  source <(swarm completions bash)                                          in ~/.bashrc
  source <(swarm completions zsh)                                           in ~/.zshrc, after compinit
  swarm completions fish > ~/.config/fish/completions/swarm.fish            once

Names of workers, tags, flows, loops and merge items are those that are there when Tab is pressed.";

pub const MAN: &str = "\
Examples:
  swarm man spawn | man -l -
  swarm man --dir ~/.local/share/man/man1        then: man swarm-spawn";

pub const RECOVER: &str = "\
Examples:
  swarm recover                 what would be started again, and why the others would not
  swarm recover --apply
  swarm recover fix --apply --json

Each is started as it was: command, environment, directory, limits, place. claude and codex go on in their own
conversation; other commands find in $SWARM_RECOVERY what was done. Workers with --restart come back by themselves.";

pub const SESSION: &str = "\
Examples:
  swarm session show fix
  swarm session check fix --json
  swarm session update currentPhase='writing tests'     in the worktree of an agent

The session of a worker with a worktree lies in its .agent folder, which git passes over.";

pub const SESSION_CHECK: &str = "\
Examples:
  swarm session check fix
  swarm session check --dir ../project-worktrees/fix --expect SUP-12 --json

Answers: no_state, invalid_state, identifier_mismatch, agent_alive, finished, max_attempts, recoverable.";

pub const SESSION_UPDATE: &str = "\
Examples:
  swarm session update currentPhase='writing tests' pullRequestUrl=https://forge/pull/7
  swarm session update --worker fix summaryVersion:=2 errorMessage:-";

pub const SESSION_NOTE: &str = "\
Examples (of a program in a worker with a session):
  swarm session note --operation \"building $target\"
  swarm session note --waiting 'may it be deployed?'
  swarm session note --idle

It shows in `swarm session show` and heartbeat.json. One that waits is told of and marked in `swarm ls -l`; one that is at
the same operation for too long is helped where --stuck-after says so.";

pub const SESSION_HOOK: &str = "\
Workers that run claude are given it (SWARM_HOOKS=off: not), with --settings, unless their command line has --settings.
A shell script of that name is left alone (SWARM_HOOKS=on: not).
Other agents with hooks of the same kind can be given it by hand, as in ~/.codex/hooks.json:
  {\"hooks\": {\"PreToolUse\": [{\"hooks\": [{\"type\": \"command\", \"command\": \"swarm session hook\"}]}]}}

Outside of a worker with a session it does nothing.";

pub const DU: &str = "\
Examples:
  swarm du
  swarm du fix docs
  swarm du --json | jq .bytes

The largest first: worktree and logs of each worker, then what is saved of removed ones. Blocks that copies share
(reflinks) count for each of them.";

pub const RESTORE: &str = "\
Examples:
  swarm restore                     what is saved in this repository
  swarm restore fix                 the newest save of fix, where its worktree was
  swarm restore fix@2 --to ../fix-before
  swarm restore fix --show          what is in it
  swarm restore fix --diff | git apply --check
  swarm restore --expire --older-than 30d --dry-run

Files, index, modes, links and what a merge has noted come back byte for byte; that is looked at before the worktree is
put in its place, and nothing is written over. The save stays until it is dropped or expires.";

pub const PLAN: &str = "\
Examples:
  swarm plan --specs ./specs -y && swarm run
  swarm plan --specs ./specs --base develop

A spec is a *.md file that begins with a heading. Front matter may say adapter, requiredCapabilities, after, priority,
group, timeout, retries, verify, merge. _context.md goes into every prompt. Planning again keeps what is unchanged.";

pub const RUN: &str = "\
Examples:
  swarm plan --specs ./specs -y && swarm run --verify 'make test'
  swarm run --agent shell -j 4
  ssh host 'cd project && swarm run --headless'
  swarm run attach
  swarm run jobs.toml --dry-run

The run belongs to the supervisor: a terminal that is closed or a line that is cut changes nothing. Ctrl-C stops it,
and the next `swarm run` goes on. Exit codes: 0 all landed, 1 some failed, 2 usage, 130 interrupted.";

pub const RUN_ATTACH: &str = "\
Examples:
  swarm run attach
  swarm run attach --headless --since 120    what followed line 120

Ctrl-C ends the view, not the run.";

pub const RUN_CONTEXT: &str = "\
Examples:
  swarm run context auth 'use the existing session table'
  swarm run context auth - < notes.md";

pub const RALPH: &str = "\
Examples:
  swarm ralph init
  swarm ralph spawn --name dev --prompt-file PROMPT.md --done-pattern 'ALL TASKS DONE' -- claude
  swarm ralph status dev
  swarm ralph logs dev --live
  swarm ralph pause dev && swarm ralph resume dev

Each iteration is a new agent in a window of its own, in the same worktree, with the prompt typed as it is then.";

pub const RALPH_SPAWN: &str = "\
Examples:
  swarm ralph spawn --name dev --prompt-file PROMPT.md -- claude --dangerously-skip-permissions
  swarm ralph spawn --name dev --prompt-file PROMPT.md --max-iterations 10 --foreground -- claude
  swarm ralph spawn --name dev --prompt-file PROMPT.md --no-worktree --inactivity-timeout 5m -- ./agent.sh

The prompt is typed when the agent's own one shows, and after 30 s at the latest. An iteration ends when its agent does,
when its window shows the same for --inactivity-timeout, or when its context is used up. Ends with another code than 0 count as failures: five in a row end the loop. The loop belongs to the
supervisor: a terminal that is closed changes nothing. Ctrl-C with --foreground pauses it.";
