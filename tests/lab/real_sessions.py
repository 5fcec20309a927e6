"""Sessions: a machine that goes down under fifty workers, and what comes back."""

import collections
import json
import signal
from pathlib import Path

from . import procs
from .inject import stop_everything
from .rig import Rig, wait_until

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
EARLIER = "00000000-0000-0000-0000-000000000000"
MACHINE = "the machine went down under it"
SERVER = "its tmux server is gone"
# Kind: how many, flags, what it does, what is decided after the reboot and why.
KINDS = {
    "plain": (12, (), ("sleep", 1000), "start", MACHINE),
    "window": (8, ("tmux",), ("sleep", 1000), "start", MACHINE),
    "tree": (8, ("--worktree",), ("sleep", 1000), "start", MACHINE),
    "both": (3, ("tmux", "--worktree"), ("sleep", 1000), "start", MACHINE),
    "policy": (6, ("--restart", "on-failure"), ("sleep", 1000), "leave", "its restart policy starts it again"),
    "ended": (5, (), ("exit", 0), "leave", "it has finished"),
    "failed": (4, (), ("exit", 3), "leave", "it ended by itself with code 3"),
    "killed": (4, (), ("sleep", 1000), "leave", "it was stopped"),
}


def killed(rig: Rig) -> bool:
    """Whether everything of the rig is dead; what is not is killed. Keepers that are killed one by one start each other."""
    left = sorted(rig.census(), key=lambda process: process.role != "guard")
    for process in left:
        procs.send(process.pid, process.start, signal.SIGKILL)
    return not left


def reboot(rig: Rig) -> None:
    """Everything of the rig is killed, and what is left was written in an earlier boot."""
    wait_until(lambda: killed(rig), 15, "everything is killed")
    trees = Path(f"{rig.repo}-worktrees")
    for path in [*rig.dir.glob("w/*/lease"), *trees.glob("*/.agent/state.json")]:
        path.write_text(path.read_text().replace(BOOT, EARLIER))


def begin(rig: Rig) -> dict[str, str]:
    """All fifty, by their names, as they should be; the kind of each."""
    kinds = {}
    for kind, (count, flags, what, *_) in KINDS.items():
        words = [word for flag in flags for word in (rig.tmux_flags if flag == "tmux" else (flag,))]
        for number in range(count):
            name = f"{kind}{number}"
            kinds[name] = kind
            result = rig.spawn(name, *what, flags=tuple(words), cwd=rig.repo)
            if result.rc != 0:
                raise AssertionError(f"setup failed: {result}")
    rig.must("wait", *[name for name, kind in kinds.items() if kind in ("ended", "failed")])
    rig.must("kill", *[name for name, kind in kinds.items() if kind == "killed"])
    wait_until(lambda: len(starts(rig)) == len(kinds), 30, "all were executed")
    return kinds


def starts(rig: Rig) -> collections.Counter:
    """How often each worker was executed."""
    return collections.Counter(line[1] for line in rig.ledger_lines() if line[0] == "start")


def fifty() -> list[str]:
    """Each that should be comes back once, none that had ended does, and for every other one it is said why not."""
    with Rig() as rig:
        rig.make_repo()
        rig.start_tmux()
        kinds = begin(rig)
        reboot(rig)
        rig.start_tmux()
        shown = json.loads(rig.must("recover", "--json").out)["workers"]
        findings = []
        for case in shown:
            *_, decision, why = KINDS[kinds[case["name"]]]
            # A shim may note that its window went before it is killed itself.
            why = SERVER if why == MACHINE and case["why"] == SERVER and "tmux" in KINDS[kinds[case["name"]]][1] else why
            if (case["decision"], case["why"]) != (decision, why):
                findings.append(f"{case['name']}: {case['decision']}, {case['why']}; not {decision}, {why}")
        if len(shown) != len(kinds):
            findings.append(f"{len(shown)} cases, not {len(kinds)}")
        applied = rig.swarm("recover", "--apply", "--settle", "0", "--json", limit=120)
        findings += [] if applied.rc == 0 else [f"recover: {applied}"]
        running = {"plain", "window", "tree", "both", "policy"}
        expected = {name: 2 if kind in running else 1 for name, kind in kinds.items()}
        wait_until(lambda: sum(starts(rig).values()) >= sum(expected.values()), 30, "all that should be are back")
        findings += [f"{name}: executed {count} times, not {expected[name]}"
                     for name, count in starts(rig).items() if count != expected[name]]
        states = {worker["name"]: worker["status"] for worker in json.loads(rig.must("ls", "--json").out)["workers"]}
        findings += [f"{name} is {status}" for name, status in states.items()
                     if (status == "running") != (kinds[name] in running)]
        again = rig.must("recover", "--apply")
        findings += [] if again.out == "nothing to recover\n" else [f"again: {again}"]
        return findings + stop_everything(rig)


CASES = {"sessions: fifty workers after a reboot": fifty}
