"""Sessions: a machine that goes down with fifty workers, and what comes back."""

import collections
import json
import signal
from pathlib import Path

from . import procs
from .inject import stop_everything
from .real_runs import lines, planned
from .rig import Rig, wait_until

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
EARLIER = "00000000-0000-0000-0000-000000000000"
MACHINE = "the machine went down while the worker was running"
SERVER = "its tmux server is gone"
# Kind: number of workers, flags, command, and the decision after the reboot with its reason.
KINDS = {
    "plain": (12, (), ("sleep", 1000), "start", MACHINE),
    "window": (8, ("tmux",), ("sleep", 1000), "start", MACHINE),
    "tree": (8, ("--worktree",), ("sleep", 1000), "start", MACHINE),
    "both": (3, ("tmux", "--worktree"), ("sleep", 1000), "start", MACHINE),
    "policy": (6, ("--restart", "on-failure"), ("sleep", 1000), "leave", "its restart policy starts it again"),
    "ended": (5, (), ("exit", 0), "leave", "finished successfully"),
    "failed": (4, (), ("exit", 3), "leave", "exited with code 3"),
    "killed": (4, (), ("sleep", 1000), "leave", "stopped on request"),
}


def killed(rig: Rig) -> bool:
    """Kills what is left of the rig and reports whether nothing was left.

    Processes that are killed one by one restart each other, so this may have to be repeated.
    """
    left = sorted(rig.census(), key=lambda process: process.role != "guard")
    for process in left:
        procs.send(process.pid, process.start, signal.SIGKILL)
    return not left


def reboot(rig: Rig) -> None:
    """Kills everything in the rig, and makes the records look as if an earlier boot wrote them."""
    wait_until(lambda: killed(rig), 15, "everything is killed")
    trees = Path(f"{rig.repo}-worktrees")
    for path in [*rig.dir.glob("w/*/lease"), *trees.glob("*/.agent/state.json")]:
        path.write_text(path.read_text().replace(BOOT, EARLIER))


SPEC = """---
adapter: shell
---
# Wait and write {n}

```sh
while [ ! -e {go} ]; do sleep 0.1; done
echo {n} > new{n}.txt
```
"""


def begin_others(rig: Rig, repo: Path) -> None:
    """Starts a run whose agents wait for a signal, and a loop with its first agent."""
    rig.must("run", "--detach", "-j", "2", cwd=repo)
    prompt = rig.root / "PROMPT.md"
    prompt.write_text("go on\n")
    agent = rig.worker("sleep", 1000)
    rig.must("ralph", "spawn", "--name", "loop", "--prompt-file", str(prompt), "--max-iterations", "2", "--no-worktree",
             *rig.tmux_flags[1:], "--", *agent, cwd=repo)


def begin(rig: Rig) -> dict[str, str]:
    """Starts all fifty workers and waits until each is in its expected state; returns the kind of each name."""
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
    wait_until(lambda: set(kinds) | {"loop"} <= set(starts(rig)), 120, "all were executed")
    return kinds


def starts(rig: Rig) -> collections.Counter:
    """Number of times that each worker was executed."""
    return collections.Counter(line[1] for line in rig.ledger_lines() if line[0] == "start")


def fifty() -> list[str]:
    """Each worker that should come back does so once, no ended one does, and a reason is given for every other one."""
    with Rig() as rig:
        go = rig.root / "go"
        repo = planned(rig, {f"s{n}": SPEC.format(n=n, go=go) for n in range(2)})
        rig.start_tmux()
        begin_others(rig, repo)
        kinds = begin(rig)
        of_run = {row["name"] for row in rig.rows()} - set(kinds) - {"loop"}
        reboot(rig)
        rig.start_tmux()
        shown = json.loads(rig.must("recover", "--json").out)["workers"]
        findings = []
        told = {case["name"]: case["why"] for case in shown if case["decision"] == "leave"}
        findings += [f"{name} of the run: {told.get(name)}" for name in of_run if "part of a run" not in told.get(name, "")]
        findings += [] if "part of a ralph loop" in told.get("loop", "") else [f"the loop: {told.get('loop')}"]
        for case in shown:
            if case["name"] not in kinds:
                continue
            *_, decision, why = KINDS[kinds[case["name"]]]
            # A shim may record that its window closed before it is killed itself.
            why = SERVER if why == MACHINE and case["why"] == SERVER and "tmux" in KINDS[kinds[case["name"]]][1] else why
            if (case["decision"], case["why"]) != (decision, why):
                findings.append(f"{case['name']}: {case['decision']}, {case['why']}; not {decision}, {why}")
        if len(shown) != len(kinds) + len(of_run) + 1 or len(of_run) != 2:
            findings.append(f"{len(shown)} cases, not {len(kinds)} and {sorted(of_run)} and the loop")
        applied = rig.swarm("recover", "--apply", "--settle", "0", "--json", limit=120)
        findings += [] if applied.rc == 0 else [f"recover: {applied}"]
        running = {"plain", "window", "tree", "both", "policy"}
        expected = {name: 2 if kind in running else 1 for name, kind in kinds.items()} | {"loop": 2}
        wait_until(lambda: sum(starts(rig).values()) >= sum(expected.values()), 120, "all expected workers are back")
        findings += [f"{name}: executed {count} times, not {expected[name]}"
                     for name, count in starts(rig).items() if count != expected[name]]
        go.touch()
        done = rig.swarm("run", "attach", "--headless", cwd=repo, limit=60)
        findings += [] if done.rc == 0 else [f"the run: {str(done)[-400:]}"]
        landed = [name for name in lines(rig, repo, "ls-tree", "--name-only", "main") if name.startswith("new")]
        findings += [] if landed == ["new0.txt", "new1.txt"] else [f"what landed: {landed}"]
        loop = json.loads(rig.must("ralph", "status", "loop", "--json").out)
        findings += [] if (loop["status"], loop["iteration"]) == ("running", 1) else [f"the loop: {loop}"]
        states = {worker["name"]: worker["status"] for worker in json.loads(rig.must("ls", "--json").out)["workers"]}
        findings += [] if states.pop("loop") == "running" else ["the loop's agent does not run"]
        findings += [f"{name} is {status}" for name, status in states.items()
                     if (status == "running") != (kinds[name] in running)]
        again = rig.must("recover", "--apply")
        findings += [] if again.out == "nothing to recover\n" else [f"again: {again}"]
        return findings + stop_everything(rig)


CASES = {"sessions: fifty workers after a reboot": fifty}
