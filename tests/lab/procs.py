"""Processes as the kernel reports them: census by marker, identity, signals, reaping.

A process is never addressed by name or by a bare pid: the start time is compared first, and signals are sent through a
pidfd.
"""

import ctypes
import os
import select
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
INTERNAL_VERBS = {"__guard": "guard", "__supervisor": "supervisor", "__forkserver": "forkserver", "__shim": "shim",
                  "__runner": "runner", "__role": "role"}

_libc = ctypes.CDLL(None, use_errno=True)
_own: set[int] = set()
_own_lock = threading.Lock()


def become_subreaper() -> None:
    """Makes this process adopt the orphans of the rigs, so that none waits for a pid 1 that does not reap."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


@dataclass(frozen=True)
class Stat:
    """Contents of /proc/PID/stat."""

    pid: int
    state: str
    ppid: int
    start: int

    @property
    def alive(self) -> bool:
        return self.state not in "ZXx"


@dataclass(frozen=True)
class Process:
    """One living process of a rig."""

    pid: int
    start: int
    ppid: int
    state: str
    argv: tuple[str, ...]
    env: dict[str, str]

    @property
    def role(self) -> str:
        return role_of(self.argv)

    @property
    def token(self) -> str | None:
        return self.env.get("SWARM_TOKEN")

    @property
    def worker(self) -> str | None:
        return self.env.get("SWARM_WORKER")

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.role}: {' '.join(self.argv)[:80]})"


def role_of(argv: tuple[str, ...] | list[str]) -> str:
    """Returns the role of a process, from its command line alone."""
    words = list(argv)
    if not words:
        return "other"
    base = os.path.basename(words[0])
    # A stand-in for the binary may be a script, whose interpreter comes first on the command line.
    if base.startswith("python") and len(words) > 1 and os.path.basename(words[1]).startswith("swarm"):
        words.pop(0)
        base = os.path.basename(words[0])
    # A shim is started from the supervisor's own image, which exists even if the file was replaced.
    if base.startswith("swarm") or (base == "exe" and words[0].startswith("/proc/")):
        return INTERNAL_VERBS.get(words[1], "command") if len(words) > 1 else "command"
    if base == "git" or base.startswith("git-"):
        return "git"
    if base.startswith("tmux"):
        return "tmux"
    if base == "strace":
        return "strace"
    return "other"


def read_stat(pid: int) -> Stat | None:
    """State of a process, or `None` if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Stat(pid, fields[0].decode(), int(fields[1]), int(fields[19]))


def read_argv(pid: int) -> tuple[str, ...]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode(errors="replace") for part in raw.rstrip(b"\0").split(b"\0")) if raw else ()


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def census(marker: str) -> list[Process]:
    """Returns every living process whose environment carries the rig's marker."""
    wanted = f"SWARM_RIG={marker}".encode()
    found = []
    for pid in all_pids():
        try:
            raw = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if wanted not in raw:
            continue
        stat = read_stat(pid)
        if stat is None or not stat.alive:
            continue
        env = dict(part.split("=", 1) for part in raw.decode(errors="replace").split("\0") if "=" in part)
        if env.get("SWARM_RIG") == marker:
            found.append(Process(pid, stat.start, stat.ppid, stat.state, read_argv(pid), env))
    return found


def alive(pid: int, start: int | None = None) -> bool:
    """Reports whether the process runs and has the expected start time."""
    stat = read_stat(pid)
    return stat is not None and stat.alive and (start is None or stat.start == start)


def send(pid: int, start: int, number: int) -> bool:
    """Signals exactly this process; returns False if it no longer exists."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        stat = read_stat(pid)
        if stat is None or stat.start != start:
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


def wait_gone(pid: int, limit: float) -> bool:
    """Waits until a process has ended, reaped or not; returns False after the limit."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        return bool(select.select([handle], [], [], limit)[0])
    finally:
        os.close(handle)


def launch(*args, **kwargs) -> subprocess.Popen:
    """Popen of a child that its caller waits for: `reap` leaves it alone."""
    with _own_lock:
        process = subprocess.Popen(*args, **kwargs)
        _own.add(process.pid)
    return process


def forget(process: subprocess.Popen) -> None:
    """Records that the caller has waited for the child: its pid may later belong to an orphan."""
    with _own_lock:
        _own.discard(process.pid)


def reap() -> None:
    """Reaps ended orphans, but no child of `launch`."""
    me = os.getpid()
    with _own_lock:
        for pid in all_pids():
            if pid in _own:
                continue
            stat = read_stat(pid)
            if stat is None or stat.ppid != me or stat.state != "Z":
                continue
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass


def descendants_pss(pids: list[int]) -> dict[int, int]:
    """Proportional set size in kB of each process that still runs."""
    sizes = {}
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        sizes[pid] = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return sizes
