"""Scenes of claude in runs that ask a person: it stops at the use of a tool, and continues there after the answer."""

import json
import os
import signal
import time
from pathlib import Path

from . import procs
from .rig import wait_until

LIMIT = 60
OURS = ("supervisor", "guard", "forkserver", "command")


def part(site, number: int, name: str) -> dict | None:
    """Contents of one file of a request; `None` if it does not exist."""
    path = Path(site.rig.env["SWARM_DIR"]) / "asks" / f"{number}.{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def stage(site, name: str) -> str:
    rows = json.loads(site.swarm("run", "status", "--json").out)["workstreams"]
    return next(row["stage"] for row in rows if row["id"] == name)


def parked(site, number: int) -> dict:
    """Waits until this request is recorded and no process waits for its answer."""
    wait_until(lambda: part(site, number, "ask"), LIMIT, f"request {number} is recorded")
    wait_until(lambda: all(one.role in OURS for one in site.rig.census()), LIMIT, "no process of the agent is left")
    wait_until(lambda: stage(site, "task") == "asking", LIMIT, "the workstream is asking")
    return part(site, number, "ask")


def work_tree(site) -> Path:
    return site.rig.repo / ".arial" / "worktrees" / "task"


def asks(site) -> list[str]:
    """Without a process while it waits, and without a request to the provider because of that: what is allowed is executed
    once, a question is answered, what is denied is not executed."""
    steps = ("[[write two.txt|two\\n]] [[bash echo one >> one.txt]] [[ask Which one?]] [[bash echo no >> no.txt]] "
             "[[say done]]")
    site.spec("task", steps)
    started = site.begin("--consent", "partial-access")
    ask = parked(site, 1)
    findings = []
    if (ask["wish"], ask["waits"]) != ({"type": "command", "command": "echo one >> one.txt"}, "parked"):
        findings.append(f"what is asked: {ask['wish']} {ask['waits']}")
    findings += [] if not (work_tree(site) / "one.txt").exists() else ["it was executed before the answer"]
    before = wait_until(site.rig.supervisor, 10, "a supervisor runs")
    procs.send(before.pid, before.start, signal.SIGKILL)
    procs.wait_gone(before.pid, 5)
    begun = time.monotonic()
    site.rig.must("approve", "1", cwd=site.rig.repo)
    wait_until(lambda: (work_tree(site) / "one.txt").exists(), LIMIT, "the command is executed")
    print(f"      {(time.monotonic() - begun) * 1000:.0f} ms from the answer to the end of the command")
    question = parked(site, 2)["wish"]
    findings += [] if question["questions"][0]["options"] == ["yes", "no"] else [f"it asks {question}"]
    site.rig.must("answer", "2", "no", cwd=site.rig.repo)
    parked(site, 3)
    site.rig.must("deny", "3", "--reason", "not that", cwd=site.rig.repo)
    told = site.finish(started)
    told.findings += findings
    told.row("task", stage="done", attempt=4, failures=0, summary="done")
    told.landed(one="one", two="two")
    told.same("no.txt", (site.rig.repo / "no.txt").exists(), False)
    told.same("requests to the provider", len(site.stand_in.answers("task")), 5)
    told.same("conversations", site.stand_in.sessions("task"), {site.conversation("task", 1)})
    heard = "the agent has heard the answer"
    told.same("ends", [part(site, number, "over") and part(site, number, "over")["why"] for number in (1, 2, 3)], [heard] * 3)
    told.spent("task")
    return told.findings


def killed(site) -> list[str]:
    """The attempt is killed while what was allowed is executed: it is not executed again, and the agent is told so."""
    ran, gate = site.rig.root / "ran.txt", site.rig.root / "gate"
    os.mkfifo(gate)
    site.spec("task", f"[[bash echo ran >> {ran}; cat {gate}]] [[bash echo after > after.txt]] [[say done]]")
    started = site.begin("--consent", "no-access")
    parked(site, 1)
    site.rig.must("approve", "1", cwd=site.rig.repo)
    wait_until(ran.exists, LIMIT, "the command runs")
    for one in site.rig.census():
        if one.role not in OURS:
            procs.send(one.pid, one.start, signal.SIGKILL)
    # The model of the stand-in begins anew with the prompt of the next attempt, after it has heard the answer.
    again = parked(site, 2)
    said = (site.rig.repo / ".arial" / "attempts" / "task.3" / "stream.log").read_text()
    findings = [] if "it was allowed once and may have run" in said else ["the agent was not told that it may have run"]
    findings += [] if again["who"]["call"] != part(site, 1, "ask")["who"]["call"] else ["the same use is asked again"]
    site.rig.must("deny", "2", cwd=site.rig.repo)
    parked(site, 3)
    site.rig.must("approve", "3", cwd=site.rig.repo)
    told = site.finish(started)
    told.findings += findings
    told.same("executions", ran.read_text(), "ran\n")
    told.landed(after="after")
    return told.findings


CLAUDE = {"asks in a run": asks, "killed while it does what was allowed": killed}
