"""Scenarios of sessions: the cost of heartbeats, which processes they wake, and how soon an exit is reported."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from . import procs
from .bench_rows import SLEEP, Row, alternate, timed_calls
from .peers import Swarm

TICK_SECONDS = 10
# Work left by the last start is over after one heartbeat of each session.
CALM_SECONDS = 2 * TICK_SECONDS


def begin(ours: Swarm, count: int) -> int:
    """Starts `count` workers with a session each; returns the pid of the supervisor."""
    for number in range(count):
        folder = ours.rig.root / "sessions" / str(number)
        folder.mkdir(parents=True)
        ours.call([ours.rig.binary, "spawn", "--name", f"s{number}", "--session-dir", str(folder), "--", *SLEEP])
        procs.reap()
    time.sleep(CALM_SECONDS)
    return next(process.pid for process in ours.rig.census() if process.role == "supervisor")


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process in ns, including threads that have ended."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def sessions(quick: bool) -> list[Row]:
    """Share of a core that heartbeats take."""
    count, seconds = (100, 30) if quick else (1000, 120)
    with Swarm() as ours:
        supervisor = begin(ours, count)
        before = cpu_ns(supervisor)
        time.sleep(seconds)
        percent = (cpu_ns(supervisor) - before) / (seconds * 1e9) * 100
        beats = [json.loads(path.read_text())["timestamp"] for path in ours.rig.root.glob("sessions/*/.agent/heartbeat.json")]
        late = sum(time.time() * 1000 - at > 2 * TICK_SECONDS * 1000 for at in beats)
    limit = count / 1000
    return [Row(f"{count:,} sessions, share of a core", percent, "%", floor={f"{limit:g} %": limit}, aim={f"{limit:g} %": limit},
                note=f"{len(beats)} beat, {late} of them late")]


def ticks(quick: bool) -> list[Row]:
    """An idle supervisor with a hundred sessions wakes for the tick and for nothing else."""
    seconds = 30 if quick else 60
    with Swarm() as ours:
        supervisor = begin(ours, 100)
        calls = timed_calls(ours, [supervisor], seconds)
    moments = sorted(at for at, _ in calls)
    woken = sum(later - earlier > 1 for earlier, later in zip([0.0, *moments], moments))
    most = seconds // TICK_SECONDS + 1
    return [Row(f"times 100 sessions wake their supervisor in {seconds} s", woken, "", floor={"ticks": most}, aim={"ticks": most},
                note=f"{len(calls)} calls")]


def told(quick: bool) -> list[Row]:
    """Time from the death of an agent to its line in `swarm events --follow`."""
    rounds = 5 if quick else 30
    with Swarm() as ours:
        follower = procs.launch([ours.rig.binary, "events", "--follow", "--json"], env=ours.rig.env, stdout=subprocess.PIPE,
                                text=True)
        numbers = iter(range(rounds))

        def until(name: str, kind: str) -> None:
            lines = map(json.loads, follower.stdout)
            next(event for event in lines if event.get("worker") == name and event["type"] == kind)

        def death() -> float:
            name = f"d{next(numbers)}"
            pid = json.loads(ours.rig.must("spawn", "--json", "--name", name, "--", *SLEEP).out)["pid"]
            until(name, "worker.started")
            begun = time.perf_counter_ns()
            os.kill(pid, signal.SIGKILL)
            until(name, "worker.exited")
            return (time.perf_counter_ns() - begun) / 1e6

        found = alternate({"swarm": death}, rounds)
        follower.terminate()
        follower.wait()
        procs.forget(follower)
    return [Row("from an agent's death to its event", found["swarm"], floor={"50 ms": 50}, aim={"10 ms": 10})]


SESSIONS = {"sessions": sessions, "ticks": ticks, "told": told}
