//! Examples and notes below the help of each verb.

mod asks;
mod mcp;
mod web;
mod work;

pub use asks::*;
pub use mcp::*;
pub use web::*;
pub use work::*;

pub const TOP: &str = "\
Examples:
  swarm plan --specs ./specs -y && swarm run           one agent per spec: work, verify, land
  swarm spawn --name fix --tmux --worktree -- claude   one agent in its own window and branch
  swarm ls -l                                          states and exit codes of all workers
  swarm send fix \"run the tests and fix what fails\"
  swarm wait fix && swarm logs fix

State directory: $SWARM_DIR (default ~/.swarm). See also 'swarm VERB --help'.";

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
    command = \"make -C docs watch\"             run by sh -c
    restart = \"on-failure\"

Prints `spawned NAME (tmux: SESSION:WINDOW)` or `spawned NAME (pid: N)`.
Everything after `--` is the command; it runs without a shell. A file is checked
completely before the first worker starts; paths in it are relative to its
directory.";

pub const AGENTS: &str = "\
Examples:
  swarm agents
  swarm agents --json | jq -r '.agents[] | select(.lost != []) | .name'

CONTINUES: a retry goes on in the conversation of the attempt before it.
ASKS: how the program can ask while it runs without a terminal. USAGE PER: what
its token counts are of. Below the table: what is missing in an older version.
Each program on PATH is executed once with `--version`; commands of swarm.toml
are not.";

pub const HOSTS: &str = "\
Examples:
  swarm hosts install me@build1           copy this program to ~/.local/bin/swarm there
  swarm --host me@build1 ls
  swarm --host box spawn --name fix --tmux --worktree -- claude
  swarm ls --host box,gpu1
  swarm hosts check box
  swarm hosts start cluster -t 8h -c 16   a job of Slurm, which is a host while it runs
  swarm hosts stop cluster

Hosts with settings of their own are in ~/.config/swarm/config.toml:
    [hosts.box]
    ssh = \"me@build1\"                     whatever ssh takes
    dir = \"work/project\"                  where verbs are executed, from the home there
    [hosts.cluster]
    engine = \"slurm-pilot\"                allocations of Slurm (docs/slurm.md);
                                         with \"slurm\", each worker of 'spawn --on' is a job
    ssh = \"login1\"                       unless this machine is a login node

STATE: up; away: nothing answers; refused: login, key or configuration; missing:
no swarm there; protocol: the two programs do not understand each other; pending,
ended: the allocation waits, or there is none.";

pub const HOSTS_START: &str = "\
Examples:
  swarm hosts start cluster
  swarm hosts start cluster -t 8h -c 16 --wait
  swarm hosts start cluster -p gpu -- --gres=gpu:1
  swarm run --on cluster

One allocation at a time holds the state directory of the host. The next one is
the same host after a restart: its workers, logs and worktrees are there.";

pub const HOSTS_STOP: &str = "\
Examples:
  swarm hosts stop cluster

Runs that are connected take what their agents have done first.";

pub const LS: &str = "\
Examples:
  swarm ls
  swarm ls --status running --tag ci
  swarm ls --status failed               ended with an error, by a signal, at a limit, or unknown
  swarm ls --here                        only workers of this repository
  swarm ls -l --sort state --limit 20
  swarm ls -q | xargs -n 1 swarm status
  swarm ls --json | jq '.workers[] | select(.failed).name'

On a terminal, failures come last, and a line with totals follows. Otherwise the
output is the original's: workers in the order of their start, 'running' or
'stopped'.";

pub const STATUS: &str = "\
Examples:
  swarm status fix
  if swarm status fix >/dev/null; then echo still running; fi";

pub const EXPLAIN: &str = "\
Examples:
  swarm explain fix             its state, the cause, the evidence, and what to do next
  swarm explain fix --json | jq -r .because";

pub const PEEK: &str = "\
Examples:
  swarm peek fix
  swarm peek fix -n 5          the last five lines that are not blank
  swarm peek --all";

pub const SEND: &str = "\
Examples:
  swarm send fix \"add a test for the empty list\"
  swarm send --all \"commit what you have\"
  swarm send --tag review \"answer the open questions\"
  swarm send fix --no-enter \"draft\"
  swarm send fix -- --help
  swarm send fix - < task.md          the text is not in the list of processes

Succeeds when the window shows part of the text (input without echo, such as a
password, is exempt). Otherwise sending to that worker fails, and Enter is not
pressed. Nothing is typed while an agent shows a dialog (trust, login, permission,
a menu), which text would answer: see 'swarm keys'.";

pub const KEYS: &str = "\
Examples:
  swarm keys fix Down Enter
  swarm keys fix 1
  swarm keys fix Escape
  swarm keys fix -- -

Keys: Enter Escape Tab BTab Space BSpace Up Down Left Right Home End PageUp
PageDown DC F1 to F12, C-x and M-x with a letter, or one letter, digit or sign.
Look at the window before ('swarm peek') and after: a dialog decides what a key
means. Refused from within a worker: an agent must not answer for a person.";

pub const INTERRUPT: &str = "\
Examples:
  swarm interrupt fix
  swarm interrupt --all";

pub const EOF: &str = "\
Example:
  swarm eof fix";

pub const ATTACH: &str = "\
Example:
  swarm attach fix        detach with the tmux prefix (Ctrl-B) and d";

pub const LOGS: &str = "\
Examples:
  swarm logs tests
  swarm logs tests --stderr --lines 50
  swarm logs tests --follow
  swarm logs fix --history --lines 5000
  swarm logs --tag ci --follow                each line begins with the name of its worker

A worker without a window: prints its standard output, then its standard error,
to the same stream of 'swarm logs' ('2>/dev/null' hides standard error); with
--tag and --json both go to standard output. --lines counts each of them. With
--follow, both are printed as they are written.

A tmux worker: prints what its window showed, scrollback and screen, wrapped at
the width that it had. With --follow, a line is printed when it is finished: the
cursor is below it, and the program does not repaint it. A program that uses the
whole screen prints its last screen when it ends; 'swarm peek' shows it before.";

pub const DIFF: &str = "\
Examples:
  swarm diff fix
  swarm diff fix --stat
  swarm diff fix | git apply --index        apply the changes by hand

Compares with the commit of the base branch that the worker started from or last
merged. Includes uncommitted and untracked files, but not ignored or generated
ones (node_modules, target/debug, *.log, …). Changes nothing.";

pub const MERGE: &str = "\
Examples:
  swarm spawn --name fix --worktree --merge -- claude -p 'fix the parser'
  swarm merge add fix docs --verify 'make test'
  swarm merge wait && git log --first-parent
  swarm merge status docs
  swarm merge log

[merge] in swarm.toml at the repository root sets verify, batch, timeout
(seconds), resolver, max_retries, strategy. Your checkout is never switched,
stashed or overwritten: an item waits while uncommitted edits are in its way.";

pub const MERGE_ADD: &str = "\
Examples:
  swarm merge add fix
  swarm merge add fix docs --base release --priority 5
  swarm merge add feature/x --verify 'cargo test' --batch 8

Uncommitted work of a worker is committed first, except untracked generated
files such as node_modules or *.log.

A worker may still run: the commit that its branch has now lands. Its uncommitted
changes are included if its agent reports that its turn is over, or with
--uncommitted; otherwise they are refused, because it may be writing them. The
work of an agent whose last turn failed or was interrupted lands with
--uncommitted only, also after the agent has ended.";

pub const HEARTBEAT: &str = "\
Examples:
  swarm heartbeat start fix --interval 4h --expire 24h
  swarm heartbeat start fix --cron '0 9 * * 1-5' --message 'continue with the list'
  swarm heartbeat list
  swarm heartbeat stop fix

Useful for agents that wait until a usage limit resets. A heartbeat ends with
its worker and survives a restart of the supervisor. A nudge is not typed while
the previous one is still in the last line of the window.";

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

A flow is stored in .a-society/state/PROJECT/FLOW below the root. Name it by
PROJECT/FLOW, FLOW, or a unique prefix of FLOW. Exit code 4: the flow exists but
cannot be opened.";

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

The supervisor runs the flow; it continues when this terminal is closed.
[flow.roles.ROLE] in swarm.toml sets the agent of each role.";

pub const FLOW_EMIT: &str = "\
Examples:
  swarm flow emit --to review --artifact \"$SWARM_RECORD/02-build.md\"
  swarm flow emit --ask 'Which limit is meant?'
  swarm flow emit --close

The handoff is checked against the present flow at once and takes effect when
the turn ends. If an agent emits several, the last one counts.";

pub const FLOW_ANSWER: &str = "\
Examples:
  swarm flow answer 20260527T143000123Z 'use the token bucket'
  swarm flow answer shop/20260527T143000123Z --node build - < answer.md

The next turn of the node receives the answer.";

pub const KILL: &str = "\
Examples:
  swarm kill fix
  swarm kill fix docs --rm-worktree
  swarm kill --all
  swarm kill --here                          workers of this repository
  swarm kill --tag ci --tag nightly          workers with both tags

Ends the whole process tree: SIGTERM, then SIGKILL after five seconds.";

pub const WAIT: &str = "\
Examples:
  swarm wait fix docs
  swarm wait --all --timeout 30m
  swarm wait --any --tag ci
  swarm wait fix --exit-code && swarm merge add fix

Exit code 0: all workers have ended (with --any: at least one), whatever their
own exit codes. 1: timed out.

With --exit-code: the worker's own code, 128 and the number of the signal that
ended it, or 1 if that is unknown. Several workers: 0 if all succeeded, else 1.
124: timed out.";

pub const CLEAN: &str = "\
Examples:
  swarm clean fix docs
  swarm clean --all
  swarm clean --here                 workers of this repository
  swarm clean fix --no-rm-worktree

A branch that was made for the worker goes with its worktree if its base contains
it; no other branch is deleted. A worktree with unsaved work is kept unless
--force-dirty is given, which also finds it after its worker was removed.";

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
  swarm doctor                  show problems and remedies
  swarm doctor --repair         ask, then make the repairs that cannot lose work
  swarm doctor --json | jq -r '.findings[].what'";

pub const CONFIG: &str = "\
Examples:
  swarm config                  every key with its value and the file that sets it
  swarm config spawn merge      two sections
  swarm config --set            only keys that a file sets

swarm.toml at the repository root overrides ~/.config/swarm/config.toml, and
flags override both:
  [spawn]
  tmux = true
  worktree = true
  timeout = \"2h\"";

pub const TRUST: &str = "\
Examples:
  swarm trust              show what this project executes or sets, and ask
  swarm trust --yes        agree without asking, for scripts
  swarm trust --show       only show it (exit code 1: not all of it is trusted)
  swarm trust --list
  swarm trust --revoke ~/src/other

Verbs that start something ask the same question if a terminal is there, and
are refused otherwise. A value that changes, by an edit or by work that lands,
needs consent again; until then the value that you agreed to applies. Consent is
recorded in ~/.config/swarm/trust.json, for all worktrees of a repository, and
is never given from within a worker.";

pub const HISTORY: &str = "\
Examples:
  swarm history fix
  swarm history fix --json | jq '.starts[] | select(.exit.code != 0)'

Reads events.jsonl, which is rotated at 8 MiB (one older part, .1, is kept), and
the exit record.";

pub const NOTIFY: &str = "\
Example:
  swarm notify test

~/.config/swarm/config.toml sets the channels and the events (default: all):
  [notify]
  command = \"jq -r .message >> ~/swarm.txt\"
  desktop = true                             uses notify-send
  webhook = \"https://example.org/hook\"       POST of the event, by HTTP or HTTPS
  events = [\"finished\", \"failed\", \"stuck\", \"waiting\", \"landed\", \"budget\"]

The command gets the event on standard input and in SWARM_EVENT,
SWARM_EVENT_TYPE, SWARM_WORKER and SWARM_MESSAGE (at most 16 KiB each).";

pub const SUPERVISOR: &str = "\
Examples:
  swarm supervisor status
  swarm supervisor restart
  swarm supervisor install --recover    start at boot, and restart interrupted workers";

pub const COMPLETIONS: &str = "\
Examples:
  source <(swarm completions bash)    in ~/.bashrc
  source <(swarm completions zsh)     in ~/.zshrc, after compinit
  swarm completions fish > ~/.config/fish/completions/swarm.fish

Names of workers, tags, flows, loops and merge items are looked up when Tab is
pressed.";

pub const MAN: &str = "\
Examples:
  swarm man spawn | man -l -
  swarm man --dir ~/.local/share/man/man1        then: man swarm-spawn";

pub const RECOVER: &str = "\
Examples:
  swarm recover                 show what would be started again, and why the others would not
  swarm recover --apply
  swarm recover fix --apply --json

Each worker starts with its original command, environment, directory, limits and
window. claude and codex resume their conversation; other commands find a
summary of the work in $SWARM_RECOVERY. Workers with --restart start again by
themselves.";

pub const SESSION: &str = "\
Examples:
  swarm session show fix
  swarm session check fix --json
  swarm session update currentPhase='writing tests'     run in the worktree of an agent

The session of a worker with a worktree is stored in its .agent directory, which
git ignores.";

pub const SESSION_CHECK: &str = "\
Examples:
  swarm session check fix
  swarm session check --dir ../project-worktrees/fix --expect SUP-12 --json

Answers: no_state, invalid_state, identifier_mismatch, agent_alive, finished,
max_attempts, recoverable.";

pub const SESSION_UPDATE: &str = "\
Examples:
  swarm session update currentPhase='writing tests' pullRequestUrl=https://forge/pull/7
  swarm session update --worker fix summaryVersion:=2 errorMessage:-";

pub const SESSION_NOTE: &str = "\
Examples (for programs that run in a worker with a session):
  swarm session note --operation \"building $target\"
  swarm session note --waiting 'may it be deployed?'
  swarm session note --idle

The note appears in `swarm session show` and heartbeat.json. A waiting worker
causes a notification and is marked in `swarm ls -l`. With --stuck-after, a
worker that stays at the same operation for too long counts as stuck.";

pub const SESSION_HOOK: &str = "\
Workers that run claude get this hook through --settings, unless their command
line has --settings or the environment has SWARM_HOOKS=off. A shell script named
claude gets it only with SWARM_HOOKS=on. For other agents with hooks of the same
kind, add it by hand, for example in ~/.codex/hooks.json:
  {\"hooks\": {\"PreToolUse\": [{\"hooks\": [{\"type\": \"command\", \"command\": \"swarm session hook\"}]}]}}

Outside a worker, the hook does nothing.";
