"""Loops of real agents, in windows and headless, and the dialogs that they show to a person."""

import json

from .rig import wait_until

LIMIT = 60
MODEL = "claude-opus-5-5"
# The prompt names the words of the done pattern, and its last line consists of them.
PROMPT = "[[as loop]] {steps} Do the first open task of TODO.md. If none is left, print\n\nALL TASKS DONE\n"
ALONE = {"claude": ["claude", "-p", "--model", MODEL], "codex": ["codex", "exec"]}
IN_A_WINDOW = {"claude": ["claude", "--model", MODEL], "codex": ["codex"]}


def known(site, trusted: bool) -> None:
    """Sets the agents up for a user who has used them before, perhaps in this repository."""
    key, repo = site.rig.env["ANTHROPIC_API_KEY"], str(site.rig.repo)
    projects = {repo: {"hasTrustDialogAccepted": True}} if trusted else {}
    settings = {"hasCompletedOnboarding": True, "theme": "dark", "customApiKeyResponses": {"approved": [key[-20:]]},
                "projects": projects}
    (site.rig.home / ".claude.json").write_text(json.dumps(settings))
    if trusted:
        config = site.rig.home / ".codex" / "config.toml"
        config.write_text(config.read_text() + f'[projects."{repo}"]\ntrust_level = "trusted"\n')


def begin(site, command: list[str], steps: str, pattern: str):
    site.rig.start_tmux()
    (site.rig.repo / "PROMPT.md").write_text(PROMPT.format(steps=steps))
    words = ["ralph", "spawn", "--name", "dev", "--prompt-file", "PROMPT.md", "--max-iterations", "3",
             "--inactivity-timeout", "20", "--done-pattern", pattern]
    return site.swarm(*words, *site.rig.tmux_flags[1:], "--", *command)


def status(site) -> dict:
    told = site.swarm("ralph", "status", "dev", "--json")
    return json.loads(told.out) if told.rc == 0 else {}


def ends(site, reason: str) -> list[str]:
    try:
        wait_until(lambda: status(site).get("exit_reason") == reason, 2 * LIMIT, f"the loop ends: {reason}")
    except AssertionError:
        return [f"not {reason}: {status(site)} {site.swarm('ralph', 'logs', 'dev').out} {site.swarm('peek', 'dev').out}"]
    return []


def loops(command: dict, pattern: str):
    """The loop ends when the agent says so, and not before: its prompt says it too."""

    def scene(site) -> list[str]:
        known(site, True)
        begun = begin(site, command[site.agent], "[[gate middle]] [[say I did the last one.\n\nALL TASKS DONE]]", pattern)
        if begun.rc:
            return [f"not begun: {begun}"]
        wait_until(lambda: site.stand_in.waiting("middle") == 1, LIMIT, "the agent is at work")
        now = status(site)
        findings = [] if (now.get("status"), now.get("iteration")) == ("running", 1) else [f"at work: {now}"]
        site.stand_in.open("middle")
        findings += ends(site, "done_pattern")
        now = status(site)
        return findings + ([] if now.get("iteration") == 1 else [f"in the end: {now}"])

    return scene


def asks_for_trust(site) -> list[str]:
    """A loop whose agent asks for trust stops with the reason, types nothing and uses no iteration. It goes on when a
    person has answered."""
    known(site, False)
    begun = begin(site, IN_A_WINDOW[site.agent], "[[say ALL TASKS DONE]]", "^ALL TASKS DONE")
    findings = [] if f"{site.agent} will ask whether to trust this directory" in begun.err else [f"no hint: {begun}"]
    wait_until(lambda: status(site).get("blocked") == "asks whether to trust this directory", LIMIT, "the loop is blocked")
    now = status(site)
    if (now["status"], now["iteration"], now["total_failures"]) != ("paused", 1, 0):
        findings.append(f"blocked: {now}")
    refused = site.swarm("send", "dev", "1")
    if refused.rc != 1 or "asks whether to trust this directory" not in refused.err:
        findings.append(f"send: {refused}")
    keys = {"claude": ["Down", "Enter"], "codex": ["Enter"]}[site.agent]
    # claude ignores keys for a moment; then swarm does not press the next one either.
    wait_until(lambda: site.swarm("keys", "dev", *keys).rc == 0, LIMIT, "the dialog takes keys")
    shows = {"claude": "shift+tab to cycle", "codex": "· /"}[site.agent]
    wait_until(lambda: shows in site.swarm("peek", "dev", "-n", "0").out, LIMIT, "the agent takes text")
    site.rig.must("ralph", "resume", "dev", cwd=site.rig.repo)
    findings += ends(site, "done_pattern")
    prompts = max((record.prompts for record in site.stand_in.answers("loop")), default=0)
    return findings + ([] if prompts == 1 else [f"the prompt was typed {prompts} times"])


def not_logged_in(site) -> list[str]:
    """A headless agent without a login stops the loop with the reason and uses no iteration."""
    known(site, True)
    site.rig.env.pop("ANTHROPIC_API_KEY")
    begin(site, ALONE["claude"], "[[say ALL TASKS DONE]]", "ALL TASKS DONE")
    wait_until(lambda: status(site).get("blocked") == "is not logged in", LIMIT, "the loop is blocked")
    now = status(site)
    seen = (now["status"], now["iteration"], now["total_failures"])
    return [] if seen == ("paused", 1, 0) else [f"blocked: {now}"]


SCENES = {"loops in a window": loops(IN_A_WINDOW, "ALL TASKS DONE"),
          "loops in a window, anchored": loops(IN_A_WINDOW, "^ALL TASKS DONE"),
          "loops headless": loops(ALONE, "^ALL TASKS DONE"), "asks for trust in a loop": asks_for_trust}
CLAUDE = {"not logged in in a loop": not_logged_in}
