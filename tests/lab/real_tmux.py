"""tmux under interference: the server dies, its socket disappears, windows are renamed and closed."""

import os
import signal

from . import procs
from .inject import stop_everything
from .oracle import Expect, Oracle
from .real_tools import gone, ran, refused, up, worked
from .rig import SESSION, SOCKET, Rig, wait_until

HOSTILE = {
    "parent": "../x", "absolute": "/tmp/x", "slash": "a/b", "dot": ".", "two dots": "..", "dash": "-x", "empty": "",
    "newline": "a\nb", "300 bytes": "x" * 300, "tmux format": "#(touch CANARY)", "shell": "$(touch CANARY)",
    "semicolon": ";", "bidi": "a\u202eb", "blank": "a b", "escape": "\x1b[2J", "dots inside": "a..b",
}


def in_tmux(rig: Rig, name: str, *what) -> None:
    up(rig, name, *what, flags=rig.tmux_flags)


def servers(rig: Rig) -> list[procs.Process]:
    """The tmux servers: orphans, adopted by this process or by pid 1. A client has a living parent."""
    return [process for process in rig.of_role("tmux") if process.ppid in (1, os.getpid())]


def server_killed() -> list[str]:
    """The workers of a killed server end by hang-up with a record, and the next spawn starts a new server."""
    with Rig() as rig:
        rig.start_tmux()
        in_tmux(rig, "x")
        for process in servers(rig):
            procs.send(process.pid, process.start, signal.SIGKILL)
        wait_until(lambda: rig.swarm("status", "x").rc == 1, 10, "x is stopped")
        record = wait_until(lambda: rig.exit_record("x"), 10, "the exit record exists")
        findings = [] if "signal" in record else [f"exit record says {record}"]
        in_tmux(rig, "y")
        findings += Oracle(rig).converge(Expect(must={"x", "y"}, running={"y"}, stopped={"x"}))
        return findings + stop_everything(rig)


def socket_deleted() -> list[str]:
    """Liveness does not depend on tmux, and there is never a second server."""
    with Rig() as rig:
        rig.start_tmux()
        in_tmux(rig, "x")
        (rig.root / "t" / f"tmux-{os.getuid()}" / SOCKET).unlink()
        findings = worked(rig.swarm("status", "x"))
        second = rig.spawn("y", flags=rig.tmux_flags)
        # The spawn either finds the server again or is refused; a second server would hide the first.
        if second.rc != 0:
            findings += refused(second)
        if len(servers(rig)) != 1:
            findings.append(f"twice: {len(servers(rig))} tmux servers")
        findings += worked(rig.swarm("kill", "x"), 15)
        if not gone(rig, "x"):
            findings.append("orphan: x survived its kill")
        for process in servers(rig):
            procs.send(process.pid, process.start, signal.SIGTERM)
        return findings + stop_everything(rig)


def window_renamed() -> list[str]:
    """Targets are ids: a renamed window still belongs to the worker, and one that took its name does not."""
    with Rig() as rig:
        rig.start_tmux()
        in_tmux(rig, "x")
        in_tmux(rig, "x-two")
        rig.tmux("rename-window", "-t", f"{SESSION}:=x", "other")
        rig.tmux("rename-window", "-t", f"{SESSION}:=x-two", "x")
        findings = worked(rig.swarm("status", "x")) + worked(rig.swarm("kill", "x"))
        if not gone(rig, "x"):
            findings.append("orphan: x survived")
        if gone(rig, "x-two"):
            findings.append("lost: the kill hit the window that had taken the name")
        return findings + stop_everything(rig)


def window_closed() -> list[str]:
    """A worker whose window was closed by hand is stopped, and its record says so."""
    with Rig() as rig:
        rig.start_tmux()
        in_tmux(rig, "x")
        rig.tmux("kill-window", "-t", f"{SESSION}:=x")
        record = wait_until(lambda: rig.exit_record("x"), 10, "the exit record exists")
        findings = [] if record.get("reason") == "closed" else [f"exit record says {record}"]
        if rig.swarm("status", "x").rc != 1:
            findings.append("a closed window is shown as running")
        findings += Oracle(rig).converge(Expect(must={"x"}, stopped={"x"}))
        return findings + stop_everything(rig)


def prefix() -> list[str]:
    """A dead `job` is stopped although `job-two` lives, and killing `job` leaves `job-two` alone."""
    with Rig() as rig:
        rig.start_tmux()
        in_tmux(rig, "job", "exit", 0)
        in_tmux(rig, "job-two")
        wait_until(lambda: rig.swarm("status", "job").rc == 1, 10, "job is stopped")
        findings = worked(rig.swarm("kill", "job"))
        if gone(rig, "job-two"):
            findings.append("lost: job-two was killed instead of job")
        return findings + stop_everything(rig)


def users_session() -> list[str]:
    """A session that the user already had outlives its last worker."""
    with Rig() as rig:
        rig.start_tmux()
        rig.tmux("new-session", "-d", "-s", SESSION, "-n", "mine", "sleep 100000")
        in_tmux(rig, "x")
        findings = worked(rig.swarm("kill", "x")) + worked(rig.swarm("clean", "x"))
        windows = rig.tmux("list-windows", "-t", f"={SESSION}", "-F", "#{window_name}")
        if windows.out.split() != ["mine"]:
            findings.append(f"lost: the user's session has the windows {windows.out.split()} ({windows.err.strip()})")
        return findings + stop_everything(rig)


def parallel_first() -> list[str]:
    """Many concurrent first spawns start one server and one session, and all succeed."""
    with Rig() as rig:
        started = [rig.start([rig.binary, "spawn", "--name", f"w{n}", *rig.tmux_flags, "--", *rig.worker("sleep", 1000)])
                   for n in range(8)]
        findings = [finding for one in started for finding in worked(rig.finish(one))]
        names = {f"w{n}" for n in range(8)}
        findings += Oracle(rig).converge(Expect(must=names, running=names))
        if len(servers(rig)) != 1:
            findings.append(f"twice: {len(servers(rig))} tmux servers")
        return findings + stop_everything(rig)


def name_case(label: str, tmux: bool):
    def case() -> list[str]:
        name = HOSTILE[label].replace("CANARY", "canary")
        with Rig() as rig:
            if tmux:
                rig.start_tmux()
            up(rig, "keep")
            outside = {str(path) for path in rig.root.rglob("*") if rig.dir not in path.parents and rig.out not in path.parents}
            result = rig.swarm("spawn", f"--name={name}", *(rig.tmux_flags if tmux else ()), "--", *rig.worker("sleep", 1))
            findings = refused(result)
            findings += Oracle(rig).converge(Expect(must={"keep"}, running={"keep"}))
            if [row["name"] for row in rig.rows()] != ["keep"]:
                findings.append(f"half-done: rows are {[row['name'] for row in rig.rows()]}")
            now = {str(path) for path in rig.root.rglob("*") if rig.dir not in path.parents and rig.out not in path.parents}
            findings += [f"half-done: {path} was made" for path in sorted(now - outside)]
            if ran(rig, "-") or any("canary" in path.name for path in rig.root.rglob("*")):
                findings.append("executed: the name was run as a command")
            return findings + stop_everything(rig)

    return case


CASES = {
    "tmux: server killed": server_killed,
    "tmux: socket deleted": socket_deleted,
    "tmux: window renamed": window_renamed,
    "tmux: window closed by hand": window_closed,
    "tmux: name is the prefix of another": prefix,
    "tmux: the user's own session": users_session,
    "tmux: eight first spawns at once": parallel_first,
}
CASES |= {f"name: {label}{' in tmux' if tmux else ''}": name_case(label, tmux) for label in HOSTILE for tmux in (False, True)}
