"""Runs one disturbed command, from the empty rig to the proof that nothing is left.

Both sweeps consist of this: run a scenario under the tracer, strike at one point, wait until everything has come to
rest, judge, repeat the command, judge again, stop everything, and check for leftovers.
"""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from . import calls, procs
from .oracle import Expect, Oracle, token_of
from .rig import Result, Rig, Timeout, wait_until
from .scenarios import SCENARIOS, Scenario

TESTS = Path(__file__).resolve().parents[1]
LAUNCH = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from lab.tracer import main; main()"
REST_LIMIT = 10
COMMAND_LIMIT = 40
# A traced git in a large repository makes 100,000 calls, each of which stops it.
LARGE_LIMIT = 160


def show(scenario: str, point: dict) -> str:
    """Returns a point as one word for the command line."""
    words = [scenario, point["role"], point["call"], point["target"], str(point["k"])]
    return "|".join(words + ([point["error"]] if point.get("error") else []))


def parse(text: str) -> tuple[str, dict]:
    scenario, role, call, target, k, *error = text.split("|")
    point = {"role": role, "call": call, "target": target, "k": int(k)}
    return scenario, {**point, "error": error[0]} if error else point


class Traced:
    """The tracer, attached to one command of a rig."""

    def __init__(self, rig: Rig, words: list[str], attach: list[int], cwd: str, point: dict | None):
        self.log = rig.root / "trace"
        self.paths = [rig.out / f"traced.{kind}" for kind in ("stdout", "stderr")]
        argv = [sys.executable, "-c", LAUNCH, "--log", str(self.log), "--root", str(rig.root)]
        for pid in attach:
            argv += ["--attach", str(pid)]
        if point:
            argv += ["--point", json.dumps(point)]
        self.words = [rig.binary, *words]
        self.begun = time.monotonic()
        with open(self.paths[0], "wb") as out, open(self.paths[1], "wb") as err:
            self.process = procs.launch(argv + ["--", *self.words], cwd=cwd, env=rig.env,
                                        stdin=subprocess.PIPE, stdout=out, stderr=err)

    def records(self) -> list[dict]:
        try:
            text = self.log.read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    @property
    def rc(self) -> int | None:
        return next((r["ended"] for r in self.records() if "ended" in r), None)

    @property
    def hit(self) -> bool:
        return any(r.get("hit") for r in self.records())

    def wait(self, limit: float) -> Result:
        """Waits until the command has ended."""
        try:
            wait_until(lambda: self.rc is not None or self.process.poll() is not None, limit, "the command ends", 0.02)
        except Timeout:
            pass
        out, err = (path.read_bytes().decode(errors="replace") for path in self.paths)
        return Result(self.words, self.rc, out, err, time.monotonic() - self.begun)

    def close(self) -> None:
        """Detaches from every process."""
        self.process.terminate()
        self.process.wait()
        self.process.stdin.close()
        procs.forget(self.process)


def enumerate_points(name: str) -> list[dict]:
    """Returns every call that the tracer sees in an undisturbed run of a scenario."""
    scenario = SCENARIOS[name]
    with Rig() as rig:
        expect = scenario.prepare(rig)
        traced = Traced(rig, scenario.words(rig), scenario.attach(rig), scenario.cwd(rig), None)
        result = traced.wait(LARGE_LIMIT if scenario.large else COMMAND_LIMIT)
        if result.rc != 0:
            traced.close()
            raise AssertionError(f"undisturbed, {result}")
        wait_until(lambda: scenario.finished(rig), REST_LIMIT, "the command's consequences are over")
        findings = Oracle(rig).converge(scenario.after(expect, result, None), REST_LIMIT)
        traced.close()
        if findings:
            raise AssertionError(f"undisturbed: {'; '.join(findings)}")
        return [record for record in traced.records() if "call" in record]


def complaint(result: Result) -> list[str]:
    """Returns findings if a command neither succeeds nor states the problem in one line."""
    if result.rc is not None and result.rc < 0:
        return []
    if result.rc is None:
        return [f"wedge: no end within {result.seconds:.0f} s: {result}"]
    findings = []
    if "panicked" in result.err or "RUST_BACKTRACE" in result.err:
        findings.append(f"panic: {result.err.strip()[:200]}")
    errors = [line for line in result.err.splitlines() if line.startswith("swarm: error:")]
    if result.rc != 0 and len(errors) != 1:
        findings.append(f"unclear: exit code {result.rc} with {len(errors)} error lines: {result.err.strip()[:200]!r}")
    if result.rc == 0 and errors:
        findings.append(f"unclear: exit code 0 with an error line: {errors[0][:200]!r}")
    return findings


def panics(rig: Rig) -> list[str]:
    try:
        text = (rig.dir / "supervisor.log").read_text(errors="replace")
    except OSError:
        return []
    return [f"panic: {line[:200]}" for line in text.splitlines() if "panicked" in line][:1]


def agreement(rig: Rig) -> list[str]:
    """Compares `ls` with the process table. An end is recorded shortly after it, a window's when its log is written."""
    end = time.monotonic() + REST_LIMIT
    while (found := compared(rig)) and time.monotonic() < end and all(one.endswith("but it does not") for one in found):
        time.sleep(0.01)
    return found


def compared(rig: Rig) -> list[str]:
    result = rig.swarm("ls", "--format", "json")
    if result.rc != 0:
        return [f"altered: {result}"]
    shown = {entry["name"]: entry["status"] for entry in json.loads(result.out)}
    rows = rig.rows()
    if set(shown) != {row["name"] for row in rows}:
        return [f"altered: ls shows {sorted(shown)}, the registry has {sorted(row['name'] for row in rows)}"]
    living = {person.token for person in rig.workers()}
    findings = []
    for row in rows:
        said = shown[row["name"]]
        if said == "running" and token_of(row) not in living:
            findings.append(f"altered: ls says {row['name']} runs, but it does not")
        if said == "stopped" and token_of(row) in living:
            findings.append(f"altered: ls says {row['name']} is stopped, but it runs")
    return findings


def stop_everything(rig: Rig) -> list[str]:
    """Runs `kill --all` and `supervisor stop`, after which no process with the marker may be left."""
    findings = []
    for words in (["kill", "--all"], ["supervisor", "stop"]):
        result = rig.swarm(*words)
        if result.rc != 0:
            findings.append(f"wedge: {result}")
    if rig.of_role("tmux"):
        rig.tmux("kill-server")
    try:
        wait_until(lambda: not rig.census(), REST_LIMIT, "all processes have ended")
    except Timeout:
        findings.append(f"orphan: left at the end: {', '.join(map(str, rig.census()))}")
    return findings


def undisturbed_again(rig: Rig, scenario: Scenario, expect: Expect, point: dict) -> list[str]:
    """Repeats the command undisturbed and checks what must hold then."""
    if scenario.verb == "respawn":
        # Each repetition replaces the previous start.
        expect = replace(expect, retired=expect.retired | {token_of(row) for row in rig.rows() if row["name"] == "x"})
    result = rig.swarm(*scenario.words(rig), cwd=scenario.cwd(rig))
    findings = scenario.again(result) + (complaint(result) if result.rc != 0 else [])
    findings += Oracle(rig).converge(scenario.at_rest(expect, rig, point), REST_LIMIT, lambda f: never_ran(point, f))
    return [f"again: {finding}" for finding in findings + agreement(rig)]


def disturb(name: str, point: dict) -> tuple[list[str], bool]:
    """Runs a scenario with one strike. Returns the findings and whether the point was reached."""
    scenario = SCENARIOS[name]
    with Rig() as rig:
        expect = scenario.prepare(rig)
        traced = Traced(rig, scenario.words(rig), scenario.attach(rig), scenario.cwd(rig), point)
        result = traced.wait(LARGE_LIMIT if scenario.large else COMMAND_LIMIT)
        try:
            wait_until(lambda: traced.hit, 2, "the point is reached")
        except Timeout:
            pass
        hit = traced.hit
        findings = complaint(result)
        if point.get("error") == "EINTR" and result.rc != 0:
            findings.append(f"visible: an interrupted call was not repeated: {result}")
        after = scenario.after(expect, result, point)
        found = Oracle(rig).converge(after, REST_LIMIT, lambda finding: tolerated(scenario, point, finding))
        traced.close()
        findings += found + agreement(rig) + half_done(scenario, rig, result, point) + panics(rig)
        if not findings:
            findings += undisturbed_again(rig, scenario, expect, point)
        return findings + stop_everything(rig), hit


def never_ran(point: dict, finding: str) -> bool:
    """Reports whether the finding is unavoidable: the child was killed in the very call that executes the command."""
    return (point["role"], point["call"]) == ("shim-child", "execve") and finding == "ghost: x has a row and never ran"


def tolerated(scenario: Scenario, point: dict, finding: str) -> bool:
    """Reports whether the finding does not count before the command has been repeated.

    A failed removal may leave files until the next attempt; a refused spawn may not.
    """
    if never_ran(point, finding):
        return True
    return bool(point.get("error")) and scenario.verb != "spawn" and finding.startswith("litter:")


def half_done(scenario: Scenario, rig: Rig, result: Result, point: dict) -> list[str]:
    """Returns findings about leftovers of a refused command."""
    if result.rc is None or result.rc <= 0 or "/out/" in point["target"]:
        return []
    row = rig.row("x")
    if scenario.verb == "spawn" and row is not None:
        return [f"half-done: spawn was refused ({result.err.strip()[:160]}), but x is registered"]
    return []


def error_points(points: list[dict]) -> list[dict]:
    """Returns the calls of our own processes, each with each error that it may return."""
    own = ("command", "supervisor", "forkserver", "shim", "guard", "supervisor-child", "shim-child")
    made = []
    for point in points:
        # Of fcntl, only the lock commands can fail, and those are points of the kill sweep too.
        if point["role"] in own and (point["call"] != "fcntl" or point["kill"]):
            made += [{**bare(point), "error": error} for error in calls.errors_for(point["call"], point["target"])]
    return made


def bare(point: dict) -> dict:
    return {key: point[key] for key in ("role", "call", "target", "k")}
