"""Processes that misbehave: workers, supervisors, lock holders, callers."""

import json
import signal
import sys
import time

from . import procs
from .inject import panics, stop_everything
from .oracle import Expect, Oracle
from .real_tools import gone, kill_ours, quickly, ran, refused, stays, up, worked
from .rig import Rig, wait_until

HOLDER = ("import fcntl, os, signal, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX);"
          "open(sys.argv[2], 'w').close(); os.kill(os.getpid(), signal.SIGSTOP)")


def lock_holder_stopped() -> list[str]:
    """Readers take no lock; writers give up and name the holder."""
    with Rig() as rig:
        up(rig, "a")
        taken = rig.root / "taken"
        holder = procs.launch([sys.executable, "-S", "-c", HOLDER, str(rig.dir / "state.lock"), str(taken)], env=rig.env)
        wait_until(taken.exists, 10, "the lock is held")
        wait_until(lambda: procs.read_stat(holder.pid).state == "T", 10, "its holder is stopped")
        findings = quickly(rig, "ls") + quickly(rig, "status", "a")
        result = rig.swarm("spawn", "--name", "b", "--", *rig.worker("sleep", 1000))
        findings += refused(result, str(holder.pid))
        if not 8 <= result.seconds < 20:
            findings.append(f"gave up after {result.seconds:.1f} s instead of 10 s")
        holder.kill()
        holder.wait()
        procs.forget(holder)
        findings += worked(rig.spawn("c"), 5)
        findings += Oracle(rig).converge(Expect(must={"a", "c"}, running={"a", "c"}, absent={"b"}))
        return findings + stop_everything(rig)


def supervisor_stopped() -> list[str]:
    """A command names the stopped supervisor within its limit; readers do not need the supervisor."""
    with Rig() as rig:
        up(rig, "a")
        supervisor = rig.supervisor()
        procs.send(supervisor.pid, supervisor.start, signal.SIGSTOP)
        findings = quickly(rig, "ls") + quickly(rig, "status", "a") + quickly(rig, "logs", "a")
        result = rig.swarm("spawn", "--name", "b", "--", *rig.worker("sleep", 1000))
        findings += refused(result, str(supervisor.pid))
        if result.seconds >= 10:
            findings.append(f"answered after {result.seconds:.1f} s instead of 5 s")
        procs.send(supervisor.pid, supervisor.start, signal.SIGCONT)
        findings += worked(rig.spawn("c"), 5)
        # A refused command must not take effect later, when the supervisor reads its socket.
        stays(lambda: rig.row("b") is None and gone(rig, "b"), 1, "the refused b does not exist", findings)
        findings += Oracle(rig).converge(Expect(must={"a", "c"}, running={"a", "c"}, absent={"b"}))
        return findings + stop_everything(rig)


def long_home() -> list[str]:
    """With a home of 200 characters, the socket still finds a place."""
    with Rig(home_length=200) as rig:
        up(rig, "a")
        findings = worked(rig.swarm("ls")) + worked(rig.swarm("kill", "a")) + worked(rig.swarm("clean", "a"))
        findings += Oracle(rig).converge(Expect(absent={"a"}, retired={line[2] for line in rig.ledger_lines()}))
        return findings + stop_everything(rig)


def stubborn(what: tuple, limit: float, check=None):
    """A misbehaving worker is shown as running, and a kill ends all of its processes."""

    def case() -> list[str]:
        findings = []
        for tmux in (False, True):
            with Rig() as rig:
                up(rig, "x", *what, flags=rig.tmux_flags if tmux else ())
                where = "in tmux: " if tmux else ""
                if check:
                    wait_until(lambda: check(rig), 10, "the worker misbehaves")
                mine = worked(rig.swarm("status", "x")) + worked(rig.swarm("kill", "x"), limit)
                if not gone(rig, "x"):
                    mine.append(f"orphan: {', '.join(str(p) for p in rig.workers())}")
                mine += Oracle(rig).converge(Expect(must={"x"}, stopped={"x"}))
                findings += [where + finding for finding in mine + stop_everything(rig)]
        return findings

    return case


def is_stopped(rig: Rig) -> bool:
    return any(process.state in "Tt" for process in rig.workers())


def has_daemon(rig: Rig) -> bool:
    return sum("sleep" in process.argv[0] for process in rig.workers() if process.argv) == 2


def flood() -> list[str]:
    """1 GB of output: the log stays capped, and the worker is not slowed down."""
    with Rig() as rig:
        up(rig, "x", "flood", 1 << 30)
        wait_until(lambda: rig.exit_record("x"), 120, "the flood is over", 0.1)
        size = sum(path.stat().st_size for path in (rig.dir / "logs").glob("x.*"))
        findings = [] if size < 256 << 20 else [f"the logs have {size >> 20} MB"]
        findings += [] if rig.exit_record("x").get("code") == 0 else [f"exit record says {rig.exit_record('x')}"]
        findings += worked(rig.swarm("logs", "x", limit=60))
        return findings + stop_everything(rig)


def binary() -> list[str]:
    """Binary output and escape sequences: every view still works."""
    with Rig() as rig:
        up(rig, "x", "binary", 1 << 20)
        wait_until(lambda: rig.exit_record("x"), 10, "x has ended")
        findings = worked(rig.swarm("logs", "x")) + worked(rig.swarm("ls", "-l"))
        listed = rig.swarm("ls", "--json")
        try:
            json.loads(listed.out)
        except ValueError:
            findings.append(f"not JSON: {listed}")
        return findings + panics(rig) + stop_everything(rig)


def stays_stopped() -> list[str]:
    """A worker with `--restart always` is killed while everything dies: it does not come back."""
    findings = []
    for delay in (0, 0.005, 0.02, 0.05, 0.1):
        with Rig() as rig:
            up(rig, "x", flags=("--restart", "always"))
            kill = rig.start([rig.binary, "kill", "x"])
            begun = time.monotonic()
            wait_until(lambda begun=begun, delay=delay: time.monotonic() - begun >= delay, 1, "the moment", 0.001)
            kill_ours(rig, "guard", "supervisor")
            result = rig.finish(kill)
            if result.rc != 0:
                result = rig.swarm("kill", "x")
            mine = worked(result)
            wait_until(lambda: gone(rig, "x"), 10, "x has ended")
            rig.must("spawn", "--name", "y", "--", *rig.worker("sleep", 1000))
            stays(lambda: gone(rig, "x"), 4, "x is stopped", mine)
            mine += Oracle(rig).converge(Expect(must={"x", "y"}, running={"y"}, stopped={"x"}))
            findings += [f"after {delay * 1000:g} ms: {finding}" for finding in mine + stop_everything(rig)]
    return findings


def due_restart(*roles: str):
    """Supervisor or guard dies, no command follows, and a due restart still happens."""

    def case() -> list[str]:
        with Rig() as rig:
            up(rig, "x", "exit", 1, 0.5, flags=("--restart", "always"))
            kill_ours(rig, *roles)
            # 0.5 s of life, 1 s of back-off, 2 s for the supervisor to restart, and the rest for a loaded machine.
            wait_until(lambda: ran(rig, "x", 2), 15, "x was restarted")
            return stop_everything(rig)

    return case


def due_timeout(*roles: str):
    def case() -> list[str]:
        with Rig() as rig:
            up(rig, "x", flags=("--timeout", "1s"))
            kill_ours(rig, *roles)
            wait_until(lambda: gone(rig, "x"), 15, "x has reached its time limit")
            record = wait_until(lambda: rig.exit_record("x"), 10, "the exit record exists")
            findings = [] if record.get("reason") == "timeout" else [f"exit record says {record}"]
            return findings + stop_everything(rig)

    return case


def no_file_size() -> list[str]:
    """A caller that may write no file cannot start a supervisor, and cannot harm a running one."""
    with Rig() as rig:
        # The answer goes through a pipe, because the caller itself may not write a file.
        words = f"(ulimit -f 0; exec '{rig.binary}' spawn --name x -- sleep 1000) 2>&1 | cat"
        cold = rig.run("/bin/sh", "-c", words)
        refusal = cold.out.startswith("swarm: error:")
        findings = [] if refusal or cold.out.startswith("spawned x") else [f"failed: {cold}"]
        if refusal and (rig.row("x") or rig.census()):
            findings.append("half-done: the refused spawn left something")
        findings += worked(rig.spawn("y", "exit", 3))
        record = wait_until(lambda: rig.exit_record("y"), 10, "y has its record")
        findings += [] if record.get("code") == 3 else [f"exit record says {record}"]
        if refusal:
            warm = rig.run("/bin/sh", "-c", words)
            findings += [] if warm.out.startswith("spawned x") else [f"failed with a supervisor: {warm}"]
        names = {row["name"] for row in rig.rows()}
        findings += [] if names == {"x", "y"} else [f"lost: rows are {sorted(names)}"]
        return findings + stop_everything(rig)


def substitution() -> list[str]:
    """`$(swarm spawn …)` ends with the command: no daemon keeps the caller's output open."""
    with Rig() as rig:
        words = f"x=$('{rig.binary}' spawn --name x -- {rig.script} sleep 1000 2>&1); echo \"got $x\""
        result = rig.run("/bin/sh", "-c", words, limit=10)
        findings = [] if result.rc is not None else ["wedge: the command substitution does not end"]
        findings += [] if "got spawned x" in result.out else [f"failed: {result}"]
        return findings + stop_everything(rig)


def exit_codes() -> list[str]:
    """Every exit code and signal is recorded, in both modes."""
    findings = []
    with Rig() as rig:
        for tmux in (False, True):
            for code in (0, 1, 42, 255):
                name = f"c{code}{'t' if tmux else ''}"
                up(rig, name, "exit", code, flags=rig.tmux_flags if tmux else ())
                record = wait_until(lambda name=name: rig.exit_record(name), 10, f"{name} has its record")
                if record.get("code") != code:
                    findings.append(f"{name}: exit record says {record}")
            name = f"s{'t' if tmux else ''}"
            up(rig, name, flags=rig.tmux_flags if tmux else ())
            process = next(p for p in rig.workers() if p.worker == name)
            procs.send(process.pid, process.start, signal.SIGUSR1)
            record = wait_until(lambda name=name: rig.exit_record(name), 10, f"{name} has its record")
            if record.get("signal") != signal.SIGUSR1:
                findings.append(f"{name}: exit record says {record}")
        return findings + stop_everything(rig)


CASES = {
    "process: lock holder stopped": lock_holder_stopped,
    "process: supervisor stopped": supervisor_stopped,
    "process: HOME of 200 characters": long_home,
    "process: daemonised grandchild": stubborn(("daemonise",), 8, has_daemon),
    "process: ignores TERM": stubborn(("ignore-term",), 12),
    "process: stops itself": stubborn(("stop-self",), 8, is_stopped),
    "process: closes every descriptor": stubborn(("close-all",), 8),
    "process: prints 1 GB": flood,
    "process: prints binary": binary,
    "process: restart always, killed while all dies": stays_stopped,
    "process: restart is due, supervisor dies": due_restart("supervisor"),
    "process: restart is due, guard dies": due_restart("guard"),
    "process: timeout is due, supervisor dies": due_timeout("supervisor"),
    "process: timeout is due, guard dies": due_timeout("guard"),
    "process: caller may write no file": no_file_size,
    "process: command substitution ends": substitution,
    "process: exit codes and signals": exit_codes,
}
