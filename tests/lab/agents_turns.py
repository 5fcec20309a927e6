"""Turns of real agents in windows that fail or that a person interrupts, and text that is typed while an agent starts."""

import json

from .agents_windows import IN_A_WINDOW, known
from .rig import SESSION, wait_until

LIMIT = 60


def spawn(site, task: str) -> None:
    known(site, True)
    site.rig.env["CLAUDE_CODE_MAX_RETRIES"] = "1"
    site.rig.start_tmux()
    site.rig.must("trust", "--yes", cwd=site.rig.repo)
    tree = f"{site.rig.repo}-worktrees/w"
    trust(site, tree)
    words = [*IN_A_WINDOW[site.agent], task]
    site.rig.must("spawn", "--name", "w", *site.rig.tmux_flags, "--worktree", "--", *words, cwd=site.rig.repo)


def trust(site, tree: str) -> None:
    """Has the agent trust the worktree, which does not exist yet."""
    settings = site.rig.home / ".claude.json"
    told = json.loads(settings.read_text())
    told["projects"][tree] = {"hasTrustDialogAccepted": True}
    settings.write_text(json.dumps(told))
    config = site.rig.home / ".codex" / "config.toml"
    config.write_text(config.read_text() + f'[projects."{tree}"]\ntrust_level = "trusted"\n')


def activity(site) -> dict:
    told = site.swarm("status", "w", "--json")
    return (json.loads(told.out).get("activity") or {}) if told.rc == 0 else {}


def state(site, word: str) -> list[str]:
    """Checks that each listing says how the turn ended, and that the work does not land unasked."""
    try:
        wait_until(lambda: activity(site).get("turn") == word, LIMIT, f"the turn is {word}")
    except AssertionError:
        return [f"not {word}: {activity(site)} {site.swarm('peek', 'w', '-n', '0').out}"]
    findings = [] if activity(site)["doing"] == "idle" else [f"{activity(site)}"]
    for verb in (["ls", "-l"], ["explain", "w"]):
        said = site.swarm(*verb).out
        findings += [] if word in said else [f"{verb}: {said}"]
    failed = "w" in site.swarm("ls", "--status", "failed", "-q").out.split()
    findings += [] if failed == (word == "failed") else [f"among the failures: {failed}"]
    refused = site.swarm("merge", "add", "w")
    if refused.rc != 1 or "its work may be incomplete" not in refused.err or "--uncommitted" not in refused.err:
        findings.append(f"merge add: {refused}")
    return findings


def interrupted(site) -> list[str]:
    """Esc ends the turn. The next prompt begins another one, and then the agent is idle as usual."""
    spawn(site, "[[as task]] [[bash echo half > half.txt]] [[gate middle]] [[say done]]")
    wait_until(lambda: site.stand_in.waiting("middle") == 1, LIMIT, "the agent is at work")
    wait_until(lambda: activity(site).get("doing") == "working", LIMIT, "it is shown at work")
    site.rig.tmux("send-keys", "-t", f"{SESSION}:w", "Escape")
    findings = state(site, "interrupted")
    site.stand_in.open("middle")
    site.rig.must("send", "w", "[[as next]] [[say all done]]", cwd=site.rig.repo)
    wait_until(lambda: site.stand_in.answers("next"), LIMIT, "it goes on")
    idle = {"doing": "idle", "turn": None}
    wait_until(lambda: idle.items() <= activity(site).items(), LIMIT, "its turn is over")
    added = site.swarm("merge", "add", "w")
    return findings + ([] if added.rc == 0 else [f"merge add: {added}"])


def failed(site) -> list[str]:
    """A turn that ends with an error of the provider."""
    spawn(site, "[[as task]] [[bash echo half > half.txt]] [[error 400 99]] [[say done]]")
    findings = state(site, "failed")
    what = activity(site).get("what") or ""
    findings += [] if "refused with 400" in what else [f"the cause: {what}"]
    added = site.swarm("merge", "add", "--uncommitted", "w")
    return findings + ([] if added.rc == 0 else [f"merge add --uncommitted: {added}"])


def typed_at_the_start(site) -> list[str]:
    """gemini shows what is typed before it takes Enter: the text is submitted all the same, and once."""
    site.rig.start_tmux()
    (site.rig.home / ".gemini" / "trustedFolders.json").write_text(json.dumps({str(site.rig.repo): "TRUST_FOLDER"}))
    words = ["gemini", "-m", "gemini-2.5-flash"]
    site.rig.must("spawn", "--name", "w", *site.rig.tmux_flags, "--ready-wait", "--", *words, cwd=site.rig.repo)
    site.rig.must("send", "w", "[[as task]] [[say done]]", cwd=site.rig.repo)
    wait_until(lambda: site.stand_in.answers("task"), LIMIT, "the prompt arrives")
    wait_until(lambda: "done" in site.swarm("peek", "w", "-n", "0").out, LIMIT, "the answer is shown")
    prompts = max(record.prompts for record in site.stand_in.answers("task"))
    return [] if prompts == 1 else [f"the prompt arrived {prompts} times"]


SCENES = {"turn interrupted": interrupted, "turn failed": failed}
GEMINI = {"typed at the start": typed_at_the_start}
