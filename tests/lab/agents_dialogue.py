"""Scenes of the agents that are talked to in a dialogue."""

import json
import os
import time
from pathlib import Path

from .rig import wait_until

LIMIT = 60
# Kinds of the agents in an order.
KINDS = {"codex": "codex", "gemini-acp": "gemini-acp", "opencode-acp": "opencode-acp", "qwen": "qwen"}


class Attempt:
    """One attempt that asks before it executes anything, without a run around it."""

    def __init__(self, site, number: int, prompt: str, hold_ms: int, session: str | None = None):
        self.site, self.dir = site, site.rig.root / f"attempt.{number}"
        self.dir.mkdir()
        model = "gemini-2.5-flash" if site.agent == "gemini-acp" else None
        config = {"command": None, "capabilities": None, "events": None, "arguments": [], "env": {}, "model": model}
        agent = {"name": site.agent, "kind": KINDS[site.agent], "config": config}
        order = {"run": "r", "job": "j", "attempt": number, "root": None, "agent": agent,
                 "events": str(self.dir / "events"), "log": str(self.dir / "log"), "context": str(self.dir / "context"),
                 "session": {"id": session, "spent": {}} if session else None, "fresh_id": "f",
                 "consent": "no-access", "hold_ms": hold_ms}
        (self.dir / "order.json").write_text(json.dumps(order))
        (self.dir / "prompt.md").write_text(prompt)
        self.asks = Path(site.rig.env["SWARM_DIR"]) / "asks"
        self.started = site.rig.start([site.rig.binary, "__attempt", str(self.dir)], cwd=site.rig.repo)

    def asked(self, number: int) -> dict:
        path = self.asks / f"{number}.ask.json"
        wait_until(path.exists, LIMIT, f"request {number} is asked")
        return json.loads(path.read_text())

    def answer(self, number: int, **verdict) -> None:
        by = {"uid": 0, "user": None, "pid": 1, "tty": None, "from": None, "via": "person"}
        answer = {**verdict, "digest": self.asked(number)["digest"], "by": by, "at_ms": 1}
        new = self.asks / ".new"
        new.write_text(json.dumps(answer))
        os.rename(new, self.asks / f"{number}.answer.json")

    def outcome(self) -> dict:
        ended = self.site.rig.finish(self.started, LIMIT)
        path = self.dir / "result.json"
        return json.loads(path.read_text())["outcome"] if path.exists() else {"none": str(ended)}

    def session(self) -> str:
        return json.loads((self.dir / "session.json").read_text())["id"]


def held(site) -> list[str]:
    """The agent is held until a person allows what it asks; what is denied is not executed."""
    task = "[[as task]] [[usage 1000 200]]"
    findings = []
    file = site.rig.repo / "one.txt"
    attempt = Attempt(site, 1, f"{task} [[bash echo one > one.txt]] [[say it is there]]", 60_000)
    ask = attempt.asked(1)
    if ask["wish"] != {"type": "command", "command": "echo one > one.txt"} or ask["waits"] != "held":
        findings.append(f"what is asked: {ask['wish']} {ask['waits']}")
    if file.exists():
        findings.append("it was executed before the answer")
    begun = time.monotonic()
    attempt.answer(1, verdict="allow")
    wait_until(file.exists, LIMIT, "the command is executed")
    took = time.monotonic() - begun
    outcome = attempt.outcome()
    if outcome != {"success": {"summary": "it is there"}}:
        findings.append(f"outcome: {outcome}")
    denied = Attempt(site, 2, f"{task} [[bash echo two > two.txt]] [[say it went on]]", 60_000)
    denied.answer(2, verdict="deny", reason="no")
    outcome = denied.outcome()
    # opencode ends its turn at a refusal.
    good = "failure" if site.agent == "opencode-acp" else "success"
    if good not in outcome or (site.rig.repo / "two.txt").exists():
        findings.append(f"outcome of what was denied: {outcome}")
    print(f"      {site.agent}: {took * 1000:.0f} ms from the answer to the end of the command")
    return findings


def parked(site) -> list[str]:
    """After the hold the turn is cancelled; the next turn executes what was allowed meanwhile, without asking again."""
    task = "[[as task]] [[usage 1000 200]] [[bash echo one >> one.txt]] [[say it is there]]"
    file = site.rig.repo / "one.txt"
    first = Attempt(site, 1, task, 1)
    outcome = first.outcome()
    findings = []
    asked = {"ask": 1, "what": "echo one >> one.txt", "kind": "permission"}
    if outcome != {"parked": asked} or file.exists():
        findings.append(f"outcome of the first: {outcome}")
    first.answer(1, verdict="allow")
    second = Attempt(site, 2, task, 1, first.session())
    outcome = second.outcome()
    if outcome != {"success": {"summary": "it is there"}} or not file.exists() or file.read_text() != "one\n":
        findings.append(f"outcome of the second: {outcome}, {file.exists()}")
    if (second.asks / "2.ask.json").exists():
        findings.append("it was asked again")
    return findings


def corrected(site) -> list[str]:
    """Work that the verification rejects is fixed in the same conversation, or else in a new one with the evidence."""
    site.spec("fix", "[[bash test -e fix.txt && echo good > fix.txt || echo bad > fix.txt]] [[say wrote it]]")
    told = site.finish(site.begin("--verify", "grep -q good fix.txt"))
    told.row("fix", stage="done", attempt=2, failures=1, summary="wrote it")
    told.landed(fix="good")
    told.merges(1)
    one, two = site.conversation("fix", 1), site.conversation("fix", 2)
    if site.agent != "gemini-acp":
        # gemini may not find its own conversation.
        told.same("conversations on record", two, one)
        prompts = [record.prompts for record in site.stand_in.answers("fix")]
        told.same("prompts in the conversation", prompts, [1, 1, 2, 2])
    told.tools("fix", "fix.txt", "fix.txt")
    told.spent("fix")
    return told.findings


def refused(site) -> list[str]:
    """A refused key fails the workstream."""
    site.spec("key", "[[error 401 1000]] [[bash true]]", "retries: 0\n")
    told = site.finish(site.begin(), code=1)
    told.row("key", stage="failed", attempt=1, failures=1)
    return told.findings


ASKING = {"held": held, "parked": parked}
SCENES = {"corrected": corrected, "refused": refused, **ASKING}
