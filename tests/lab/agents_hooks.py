"""What real agents in windows tell of themselves by their hooks."""

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
    """One file of the session of w, as far as it is there."""
    try:
        return json.loads((Path(f"{site.rig.repo}-worktrees") / "w" / ".agent" / file).read_text())
    except (OSError, ValueError):
        return {}


def counting(path: Path) -> dict:
    """Settings of claude with a hook of somebody else, which writes a line for each tool."""
    return {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": f"echo x >> {path}"}]}]}}


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def at_home(site) -> list[Path]:
    """A user who has used claude before, with hooks of their own; the repository has some too. What these write."""
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
    return theirs


def in_a_window(site) -> list[str]:
    """claude in a window says what it does, what it asks, when it is done; the hooks of others go on beside ours."""
    site.rig.env["AGENT_HEARTBEAT_INTERVAL_MS"] = "500"
    site.rig.start_tmux()
    theirs = at_home(site)
    settings = [site.rig.home / ".claude" / "settings.json", site.rig.repo / ".claude" / "settings.json"]
    before = [path.read_text() for path in settings]
    task = "[[as task]] [[bash touch made.txt]] [[gate middle]] [[bash echo two]] [[say done]]"
    words = ["claude", "--model", "claude-opus-5-5", "--permission-mode", "default", task]
    site.rig.must("spawn", "--name", "w", *site.rig.tmux_flags, "--worktree", "--", *words, cwd=site.rig.repo)
    asks = "asks for permission: Bash: touch made.txt"
    wait_until(lambda: session(site, "activity.json").get("waiting") == asks, LIMIT, "it asks")
    wait_until(lambda: session(site, "heartbeat.json").get("lastActivityType") == "waiting", LIMIT, "its beat says so")
    wait_until(lambda: asks in site.swarm("ls", "-l").out, LIMIT, "it is marked")
    # Nobody who watched needs to live on: what it says is on disk.
    supervisor = wait_until(site.rig.supervisor, 10, "there is a supervisor")
    procs.send(supervisor.pid, supervisor.start, signal.SIGKILL)
    procs.wait_gone(supervisor.pid, 5)
    # As a person who presses the key: what is pasted answers no question.
    site.rig.tmux("send-keys", "-t", f"{SESSION}:w", "1")
    wait_until(lambda: site.stand_in.waiting("middle") == 1, LIMIT, "it goes on")
    now = session(site, "activity.json")
    findings = [] if (now.get("calls"), now.get("operation"), now.get("waiting")) == (1, None, None) else [f"now: {now}"]
    wait_until(lambda: asks not in site.swarm("ls", "-l").out, LIMIT, "it is marked no more")
    site.stand_in.open("middle")
    wait_until(lambda: len(site.stand_in.answers("task")) == 3, LIMIT, "it is done")
    wait_until(lambda: session(site, "activity.json").get("calls") == 2, LIMIT, "both are counted")
    wait_until(lambda: session(site, "activity.json").get("operation") is None, LIMIT, "it is at nothing")
    known = session(site, "state.json").get("providerSessionId")
    findings += [] if {known} == site.stand_in.sessions("task") else [f"the conversation is {known}"]
    findings += [f"{path.name}: {lines(path)} tools, not 2" for path in theirs if lines(path) != 2]
    findings += [f"{path} was changed" for path, text in zip(settings, before) if path.read_text() != text]
    wait_until(lambda: session(site, "activity.json").get("idle"), 90, "it waits for what is next")
    wait_until(lambda: "idle" in site.swarm("events", "--json").out, LIMIT, "that is told")
    return findings


def by_hand(site) -> list[str]:
    """codex tells the same where its user has given it the hook."""
    config = site.rig.home / ".codex" / "config.toml"
    hooks = "".join(CODEX_HOOKS.format(event=one, command=f"{site.rig.binary} session hook") for one in CODEX_EVENTS)
    config.write_text(config.read_text() + hooks)
    task = "[[as task]] [[bash echo one]] [[gate middle]] [[bash echo two]] [[say done]]"
    words = ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
             "--dangerously-bypass-hook-trust", task]
    site.rig.must("spawn", "--name", "w", "--worktree", "--", *words, cwd=site.rig.repo)
    wait_until(lambda: site.stand_in.waiting("middle") == 1, LIMIT, "it is in the middle")
    wait_until(lambda: session(site, "activity.json").get("calls") == 1, LIMIT, "its tool is counted")
    known = session(site, "state.json").get("providerSessionId")
    site.stand_in.open("middle")
    ended = site.swarm("wait", "w", "--timeout", str(LIMIT))
    findings = [] if ended.rc == 0 else [f"its end: {ended}"]
    progress = (Path(f"{site.rig.repo}-worktrees") / "w" / ".agent" / "progress.log").read_text()
    told = ("|tool|Bash: echo one", "|tool|Bash: echo two")
    findings += [f"no {word!r} in {progress}" for word in told if word not in progress]
    return findings + ([] if {known} == site.stand_in.sessions("task") else [f"the conversation is {known}"])
