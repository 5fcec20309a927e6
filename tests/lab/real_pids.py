"""Pids that must never be signalled, in a private PID namespace (needs root).

A wrong kill here ends the canary or reaches pid 1, which is this program itself.
"""

import json
import os
import signal
import time
from pathlib import Path

from . import cases, procs
from .inject import complaint
from .original import Original
from .real_tools import kill_ours, up
from .real_sessions import killed
from .rig import Rig, wait_until

hits: list[int] = []


def canary(rig: Rig):
    return procs.launch(["sleep", "1000"], env=rig.env, start_new_session=True)


def ticks_now() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def end_canary(process) -> None:
    process.kill()
    process.wait()
    procs.forget(process)


def written_pid(pid: int):
    """A row with this pid, as the original would have written it."""

    def case() -> list[str]:
        hits.clear()
        signal.signal(signal.SIGTERM, lambda number, _: hits.append(number))
        with Rig() as rig:
            bird = canary(rig)
            Original(rig.dir).add(Original.make_row("victim", ["true"], pid))
            findings = complaint(rig.swarm("status", "victim")) if rig.swarm("status", "victim").rc not in (1, 2) else []
            if rig.swarm("status", "victim").rc == 0:
                findings.append(f"pid {pid} is shown as a running worker")
            for words in (["kill", "victim"], ["kill", "--all"], ["clean", "victim"]):
                findings += complaint(rig.swarm(*words))
            if bird.poll() is not None or not procs.alive(bird.pid):
                findings.append(f"a kill of pid {pid} ended a bystander")
            if hits:
                findings.append(f"a kill of pid {pid} reached pid 1")
            end_canary(bird)
            return findings

    return case


def reused_by_legacy() -> list[str]:
    """The pid of an old row belongs to a process that started long after the row."""
    with Rig() as rig:
        bird = canary(rig)
        Original(rig.dir).add(Original.make_row("victim", ["true"], bird.pid, "2001-01-01T00:00:00.000001"))
        findings = [] if rig.swarm("status", "victim").rc == 1 else ["a recycled pid is shown as running"]
        findings += complaint(rig.swarm("kill", "victim"))
        if not procs.alive(bird.pid):
            findings.append("the kill hit the process that now has the pid")
        end_canary(bird)
        return findings


def reused_by_ours() -> list[str]:
    """All processes of a worker die, and an unrelated process gets its pid."""
    with Rig() as rig:
        up(rig, "x")
        pid = rig.row("x")["pid"]
        wait_until(lambda: killed(rig), 10, "all processes are dead")
        # Start times have ticks of 10 ms; two processes of the same tick cannot be told apart.
        wait_until(lambda: ticks_now() > int(rig.ledger_lines()[0][4]) + 10, 10, "the clock advances")
        bird = None
        for _ in range(50):
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
            bird = canary(rig)
            if bird.pid == pid:
                break
            end_canary(bird)
        else:
            raise cases.Skip("could not get the pid again")
        status = rig.swarm("status", "x")
        findings = [] if status.rc == 1 else [f"a recycled pid is shown as running: {status}"]
        shown = rig.swarm("ls", "--format", "json")
        if shown.rc != 0 or json.loads(shown.out)[0]["status"] != "stopped":
            findings.append(f"ls: {shown}")
        findings += complaint(rig.swarm("kill", "x"))
        if not procs.alive(bird.pid):
            findings.append("the kill hit the process that now has the pid")
        end_canary(bird)
        return findings


CASES = {f"pids: {pid} in the registry": written_pid(pid) for pid in (0, 1, -1)}
CASES |= {"pids: reused, legacy row": reused_by_legacy, "pids: reused, our row": reused_by_ours}
