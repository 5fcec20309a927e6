"""What real agents in tmux windows report through their hooks."""

import json
import signal
from pathlib import Path

from . import procs
from .rig import SESSION, wait_until

LIMIT = 60
CODEX_HOOKS = """
[[hooks.{event}]]
[[hooks.{event}.hooks]]
type = "command"
command = "{command}"
"""
CODEX_EVENTS = ("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop")


def session(site, file: str) -> dict:
    """Contents of one file of w's session; empty if the file is missing or incomplete."""
    try:
        return json.loads((Path(f"{site.rig.repo}-worktrees") / "w" / ".agent" / file).read_text())
    except (OSError, ValueError):
        return {}


def counting(path: Path) -> dict:
    """Settings of claude with a foreign hook that appends a line for each tool call."""
    return {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": f"echo x >> {path}"}]}]}}


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def at_home(site) -> list[Path]:
    """Sets up hooks of the user and of the repository, as on a machine where claude is in use. Returns the hooks'
    output files."""
    home, repo, root = site.rig.home, site.rig.repo, site.rig.root
    tree, key = f"{repo}-worktrees/w", site.rig.env["ANTHROPIC_API_KEY"]
    known = {"hasCompletedOnboarding": True, "theme": "dark", "customApiKeyResponses": {"approved": [key[-20:]]},
             "projects": {str(place): {"hasTrustDialogAccepted": True} for place in (repo, tree)}}
    (home / ".claude.json").write_text(json.dumps(known))
    theirs = [root / "of-the-user", root / "of-the-repository"]
    for place, path in zip((home, repo), theirs):
        (place / ".claude").mkdir(exist_ok=True)
        (place / ".claude" / "settings.json").write_text(json.dumps(counting(path)))
    site.rig.run("git", "-C", str(repo), "add", ".claude")
    site.rig.run("git", "-C", str(repo), "commit", "-q", "-m", "hooks of the repository")
    site.rig.must("trust", "--yes", cwd=repo)
    return theirs


def in_a_window(site) -> list[str]:
    """claude in a window reports its operations, its questions and when it is idle; foreign hooks keep working beside
    ours."""
    site.rig.env["AGENT_HEARTBEAT_INTERVAL_MS"] = "500"
    site.rig.start_tmux()
    theirs = at_home(site)
    settings = [site.rig.home / ".claude" / "settings.json", site.rig.repo / ".claude" / "settings.json"]
    before = [path.read_text() for path in settings]
    task = "[[as task]] [[bash touch made.txt]] [[gate middle]] [[bash echo two]] [[say done]]"
    words = ["claude", "--model", "claude-opus-5-5", "--permission-mode", "default", task]
    site.rig.must("spawn", "--name", "w", *site.rig.tmux_flags, "--worktree", "--", *words, cwd=site.rig.repo)
    asks = "asks for permission: Bash: touch made.txt"
    wait_until(lambda: session(site, "activity.json").get("waiting") == asks, LIMIT, "claude asks for a permission")
    wait_until(lambda: session(site, "heartbeat.json").get("lastActivityType") == "waiting", LIMIT, "its heartbeat says waiting")
    wait_until(lambda: asks in site.swarm("ls", "-l").out, LIMIT, "ls shows the question")
    # The report survives the death of the supervisor: it is on disk.
    supervisor = wait_until(site.rig.supervisor, 10, "a supervisor runs")
    procs.send(supervisor.pid, supervisor.start, signal.SIGKILL)
    procs.wait_gone(supervisor.pid, 5)
    # The answer is a key press: pasted text does not answer a question.
    site.rig.tmux("send-keys", "-t", f"{SESSION}:w", "1")
    wait_until(lambda: site.stand_in.waiting("middle") == 1, LIMIT, "claude continues")
    now = session(site, "activity.json")
    findings = [] if (now.get("calls"), now.get("operation"), now.get("waiting")) == (1, None, None) else [f"now: {now}"]
    wait_until(lambda: asks not in site.swarm("ls", "-l").out, LIMIT, "ls no longer shows the question")
    site.stand_in.open("middle")
    wait_until(lambda: len(site.stand_in.answers("task")) == 3, LIMIT, "the task is done")
    wait_until(lambda: session(site, "activity.json").get("calls") == 2, LIMIT, "both tool calls are counted")
    wait_until(lambda: session(site, "activity.json").get("operation") is None, LIMIT, "claude is at no operation")
    known = session(site, "state.json").get("providerSessionId")
    findings += [] if {known} == site.stand_in.sessions("task") else [f"the conversation is {known}"]
    findings += [f"{path.name}: {lines(path)} tools, not 2" for path in theirs if lines(path) != 2]
    findings += [f"{path} was changed" for path, text in zip(settings, before) if path.read_text() != text]
    wait_until(lambda: session(site, "activity.json").get("idle"), 90, "claude is idle")
    wait_until(lambda: "idle" in site.swarm("events", "--json").out, LIMIT, "an event reports that claude is idle")
    return findings


def by_hand(site) -> list[str]:
    """codex reports the same if its user has configured the hook."""
    config = site.rig.home / ".codex" / "config.toml"
    hooks = "".join(CODEX_HOOKS.format(event=one, command=f"{site.rig.binary} session hook") for one in CODEX_EVENTS)
    config.write_text(config.read_text() + hooks)
    task = "[[as task]] [[bash echo one]] [[gate middle]] [[bash echo two]] [[say done]]"
    words = ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
             "--dangerously-bypass-hook-trust", task]
    site.rig.must("spawn", "--name", "w", "--worktree", "--", *words, cwd=site.rig.repo)
    wait_until(lambda: site.stand_in.waiting("middle") == 1, LIMIT, "codex is at the gate")
    wait_until(lambda: session(site, "activity.json").get("calls") == 1, LIMIT, "the tool call is counted")
    known = session(site, "state.json").get("providerSessionId")
    site.stand_in.open("middle")
    ended = site.swarm("wait", "w", "--timeout", str(LIMIT))
    findings = [] if ended.rc == 0 else [f"exit of w: {ended}"]
    progress = (Path(f"{site.rig.repo}-worktrees") / "w" / ".agent" / "progress.log").read_text()
    told = ("|tool|Bash: echo one", "|tool|Bash: echo two")
    findings += [f"no {word!r} in {progress}" for word in told if word not in progress]
    return findings + ([] if {known} == site.stand_in.sessions("task") else [f"the conversation is {known}"])
