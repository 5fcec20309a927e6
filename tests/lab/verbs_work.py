"""Scenarios of verbs that change the merge queue or start workers: `merge` and `recover`."""

import json
import signal
from collections import Counter
from dataclasses import replace

from . import procs
from .oracle import Expect, token_of
from .rig import Result, Rig, wait_until
from .scenarios import DIRTY, LANDS, MAY_END_WORKER
from .verbs import Scenario, git, keep


class Merge(Scenario):
    """`merge pause`, `resume` or `retry` of the queue in which `x` waits or failed."""

    def __init__(self, mode: str):
        self.mode = mode
        self.name = f"merge-{mode}"

    def prepare(self, rig: Rig) -> Expect:
        rig.make_repo()
        expect = keep(rig)
        for name, script in (("a", "echo a > a.txt"), ("x", LANDS)):
            rig.must("spawn", "--name", name, "--worktree", "--", "sh", "-c", script, cwd=str(rig.repo))
            rig.must("wait", name, "--timeout", "20")
        if self.mode == "retry":
            self.must(rig, "add", "x", "--verify", f"test ! -e new/landed || test -e {rig.root}/gate")
            wait_until(lambda: self.state(rig) == "rejected", 20, "x is rejected")
            (rig.root / "gate").touch()
        # Lands after the rejection, so that the retry never builds the same objects again.
        self.must(rig, "add", "a")
        wait_until(lambda: self.state(rig, "a") == "landed", 20, "a has landed")
        if self.mode == "resume":
            self.must(rig, "pause")
            self.must(rig, "add", "x")
        edited = rig.repo / "d0" / "f1.txt"
        edited.write_text(DIRTY)
        return replace(expect, must={"keep", "a", "x"}, kept={str(edited): DIRTY})

    def must(self, rig: Rig, *words: str) -> None:
        rig.must("merge", *words, cwd=str(rig.repo))

    def words(self, rig: Rig) -> list[str]:
        return ["merge", self.mode, *(["x"] if self.mode == "retry" else [])]

    def state(self, rig: Rig, name: str = "x") -> str | None:
        """State of the item of a worker."""
        return next((item["state"] for item in rig.items() if item["name"] == name), None)

    def is_paused(self, rig: Rig) -> bool:
        (journal,) = rig.dir.glob("merge/*/queue.json")
        return json.loads(journal.read_text())["queue"]["paused"]

    def as_before(self, rig: Rig) -> bool:
        """Reports whether the verb has had no effect on `x`."""
        return {"pause": True, "resume": self.is_paused(rig), "retry": self.state(rig) == "rejected"}[self.mode]

    def expect(self, rig: Rig, made: Expect, whole: bool) -> Expect:
        # If the verb has had an effect, its consequences follow, acknowledged or not.
        lands = self.mode != "pause" and (whole or not self.as_before(rig))
        return replace(made, landing="x", landed=True) if lands else made

    def findings(self, rig: Rig, made: Expect, whole: bool) -> list[str]:
        found = []
        if self.is_paused(rig) and self.mode != "pause" and whole:
            found.append("lost: the queue is paused")
        if self.mode == "pause" and whole and not self.is_paused(rig):
            found.append("lost: the queue is not paused")
        if self.mode == "pause" or (not whole and self.as_before(rig)):
            found += [] if self.landings(rig) == {"a": 1} else [f"altered: landed: {self.landings(rig)}"]
        elif self.landings(rig) != {"a": 1, "x": 1}:
            found.append(f"lost: landed: {self.landings(rig)}")
        return found

    def landings(self, rig: Rig) -> dict[str, int]:
        subjects = git(rig, rig.repo, "log", "--first-parent", "--format=%s", "main").splitlines()
        return Counter(line.removeprefix("Merge ") for line in subjects if line.startswith("Merge "))

    def may_refuse(self, rig: Rig, made: Expect, result: Result) -> bool:
        return self.mode == "retry" and "cannot be retried" in result.err and self.landings(rig)["x"] == 1

    def at_last(self, rig: Rig, made: Expect, before) -> list[str]:
        """Checks that a paused queue holds `x` back until it is resumed."""
        if self.mode != "pause":
            return []
        self.must(rig, "add", "x")
        # The answer comes from the actor of the queue.
        self.must(rig, "ls")
        found = [] if self.state(rig) == "queued" else [f"altered: x is {self.state(rig)} in a paused queue"]
        found += [] if self.landings(rig) == {"a": 1} else [f"altered: landed: {self.landings(rig)}"]
        self.must(rig, "resume")
        done = rig.swarm("merge", "wait", "--timeout", "20", cwd=str(rig.repo))
        return found + ([] if done.rc == 0 and self.landings(rig) == {"a": 1, "x": 1} else [f"wedge: {done}"])


class Recover(Scenario):
    """Restarts two workers, which were killed together with their shims."""

    NAMES = ("x", "y")
    name = "recover-pid"

    def cwd(self, rig: Rig) -> str:
        return str(rig.work)

    def prepare(self, rig: Rig) -> Expect:
        expect = keep(rig)
        for name in self.NAMES:
            rig.must("spawn", "--name", name, "--", *rig.worker("sleep", 1000))
        wait_until(lambda: len(rig.ledger_lines()) == 3, 10, "the workers run")
        self.kill_all(rig)
        tokens = {token_of(rig.row(name)) for name in self.NAMES}
        return replace(expect, must={"keep", *self.NAMES}, retired=tokens)

    def kill_all(self, rig: Rig) -> None:
        leases = [json.loads((rig.folder(name) / "lease").read_text()) for name in self.NAMES]
        for part in ("shim", "worker"):
            for lease in leases:
                procs.send(lease[part]["pid"], lease[part]["start_ticks"], signal.SIGKILL)
        wait_until(lambda: not self.living(rig), 10, "the workers have ended")

    def words(self, rig: Rig) -> list[str]:
        return ["recover", "--apply", "--settle", "0", *self.NAMES]

    def living(self, rig: Rig) -> list[tuple[str, str]]:
        """Name and token of each process of the workers."""
        return [(p.worker, p.token) for p in rig.census() if p.worker in self.NAMES and p.token and p.role == "other"]

    def expect(self, rig: Rig, made: Expect, whole: bool) -> Expect:
        return replace(made, running={"keep", *self.NAMES}) if whole else made

    def acknowledged(self, result: Result, point: dict) -> bool:
        return result.rc == 0 and point["role"] not in MAY_END_WORKER

    def findings(self, rig: Rig, made: Expect, whole: bool) -> list[str]:
        counts = Counter(name for name, _ in self.living(rig))
        return [f"twice: {name} has {count} processes" for name, count in counts.items() if count > 1]

    def is_ours(self, point: dict) -> bool:
        # An answer is one write, or several if its parts are not ready together.
        return (point["role"], point["call"]) != ("supervisor", "writev") or point["k"] <= len(self.NAMES)

    def tolerated(self, point: dict | None, finding: str) -> bool:
        if point is None or (point["role"], point["call"]) != ("shim-child", "execve") or point["k"] > len(self.NAMES):
            return False
        # The child was killed in the very call that executes the command: a worker that was killed, not interrupted.
        # They are started one after the other.
        name = self.NAMES[point["k"] - 1]
        said = f"worker '{name}' did not recover: no output"
        return (finding.startswith("unclear: exit code 1 with 0 error lines") and said in finding
                or finding in (f"ghost: {name} has a row and never ran", f"lost: {name} should run but has no process"))

    def before_again(self, rig: Rig, made: Expect) -> set[tuple[str, str]]:
        living = set(self.living(rig))
        made.retired.update(token_of(row) for row in rig.rows() if row["name"] not in {name for name, _ in living})
        return living

    def at_last(self, rig: Rig, made: Expect, before: set) -> list[str]:
        """Checks that the repetition left alone what was running."""
        return [f"altered: {name} was started again" for name, _ in before - set(self.living(rig))]
