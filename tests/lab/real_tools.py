"""Functions shared by the cases under real conditions."""

import signal
import time

from . import procs
from .inject import complaint
from .rig import Result, Rig, wait_until

QUICK_S = 0.5


def ran(rig: Rig, name: str, times: int = 1) -> bool:
    """Reports whether the worker has written its first line (at least `times` times)."""
    return sum(line[:2] == ["start", name] for line in rig.ledger_lines()) >= times


def up(rig: Rig, name: str, *what, flags: tuple = (), **kwargs) -> Result:
    """Spawns a worker and waits until it runs."""
    result = rig.spawn(name, *what, flags=flags, **kwargs)
    if result.rc != 0:
        raise AssertionError(f"setup failed: {result}")
    wait_until(lambda: ran(rig, name), 10, f"{name} runs")
    return result


def stays(condition, seconds: float, what: str, findings: list[str]) -> None:
    """Checks that a condition holds for the whole time; adds a finding if not."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not condition():
            findings.append(f"did not stay true: {what}")
            return
        time.sleep(0.02)


def refused(result: Result, *words: str) -> list[str]:
    """Returns findings unless the command was refused with exactly one error line that contains these words."""
    findings = complaint(result)
    if result.rc == 0:
        findings.append(f"was not refused: {result}")
    findings += [f"does not name {word!r}: {result}" for word in words if word not in result.err]
    return findings


def worked(result: Result, within: float | None = None) -> list[str]:
    findings = [] if result.rc == 0 else [f"failed: {result}"]
    if within is not None and result.seconds > within:
        findings.append(f"took {result.seconds:.2f} s instead of {within:g} s: {result}")
    return findings


def quickly(rig: Rig, *words: str) -> list[str]:
    """Checks that a read-only command succeeds and waits for nothing: one of three calls within half a second.

    A loaded machine is slow now and then; a command that waits for a lock or the supervisor is slow each time.
    """
    for _ in range(3):
        result = rig.swarm(*words)
        if result.rc != 0 or result.seconds <= QUICK_S:
            break
    return worked(result, QUICK_S)


def kill_ours(rig: Rig, *roles: str) -> None:
    """Kills every process of these roles; the guard first, because it restarts its child."""
    for process in sorted(rig.census(), key=lambda p: p.role != "guard"):
        if process.role in roles:
            procs.send(process.pid, process.start, signal.SIGKILL)


def gone(rig: Rig, name: str) -> bool:
    """Reports whether no process of this worker is left."""
    return not any(process.worker == name for process in rig.workers())
