"""The commands that the sweeps disturb: the setup of each, and what must hold afterwards.

A scenario is one command in one mode. `keep` is a bystander that must stay untouched; `x` is the worker that the
command is about.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from .oracle import Expect, token_of
from .rig import Result, Rig, wait_until

DIRTY = "written by hand, committed by nobody\n"
# Work of the worker of a landing: two files changed, one created, one removed.
LANDS = "echo landed >> d0/f0.txt; mkdir new; echo landed > new/landed; rm d0/f2.txt"
FILES_OF_LARGE = 20_000
# Time limit of a worker.
TIMEOUT = "1s"
# A kill of one of these may end the worker too: the process of the pane, or the worker itself.
MAY_END_WORKER = ("shim", "shim-child", "tmux", "tmux-child")


@dataclass(frozen=True)
class Scenario:
    verb: str
    tmux: bool = False
    worktree: bool = False
    dirty: bool = False
    cold: bool = False
    """Neither supervisor nor tmux server runs yet."""
    short: bool = False
    """The worker ends by itself at once."""
    verified: bool = False
    """A landing with a verification."""
    timed: bool = False
    """The worker has a time limit. A start without the timer for it must be refused, or the limit holds nevertheless."""
    large: bool = False
    """Runs in a repository of 20,000 files; only with --full or if --only names it."""

    @property
    def name(self) -> str:
        words = [self.verb, "tmux" if self.tmux else "pid"]
        words += [word for word in ("worktree", "dirty", "cold", "short", "verified", "timed", "large") if getattr(self, word)]
        return "-".join(words)

    def prepare(self, rig: Rig) -> Expect:
        """Sets up the scenario and returns what is known at the end of the setup."""
        expect = Expect()
        if self.worktree:
            rig.make_repo(FILES_OF_LARGE if self.large else 3)
        if self.tmux and not self.cold:
            rig.start_tmux()
        if not self.cold:
            rig.must("spawn", "--name", "keep", "--", *rig.worker("sleep", 1000))
            wait_until(lambda: len(rig.ledger_lines()) == 1, 10, "the bystander runs")
            # A supervisor that lost the race for the lock is about to exit and takes no part.
            wait_until(lambda: len(rig.of_role("supervisor")) == 1, 10, "one supervisor is left")
            expect.must.add("keep")
            expect.running.add("keep")
            expect.unchanged["keep"] = rig.row("keep")
        if self.verb != "spawn":
            self.prepare_target(rig, expect)
        return expect

    def prepare_target(self, rig: Rig, expect: Expect) -> None:
        if self.verb == "merge":
            return self.prepare_landing(rig, expect)
        rig.must(*self.spawn_words(rig), cwd=self.cwd(rig))
        wait_until(lambda: any(line[1] == "x" for line in rig.ledger_lines()), 10, "the target runs")
        row = rig.row("x")
        if self.dirty:
            path = Path(row["worktree"]["path"]) / "notes.txt"
            path.write_text(DIRTY)
            expect.kept[str(path)] = DIRTY
        if self.worktree:
            expect.branches.add("x")
        if self.verb == "clean":
            rig.must("kill", "x")
        if self.verb in ("clean", "respawn"):
            expect.retired.add(token_of(row))

    def prepare_landing(self, rig: Rig, expect: Expect) -> None:
        rig.must("spawn", "--name", "x", "--worktree", "--", "sh", "-c", LANDS, cwd=self.cwd(rig))
        rig.must("wait", "x", "--timeout", "20")
        edited = rig.repo / "d0" / "f1.txt"
        edited.write_text(DIRTY)
        expect.kept[str(edited)] = DIRTY
        expect.must.add("x")
        expect.landing = "x"

    def cwd(self, rig: Rig) -> str:
        return str(rig.repo if self.worktree else rig.work)

    def spawn_words(self, rig: Rig) -> list[str]:
        flags = list(rig.tmux_flags) if self.tmux else []
        flags += ["--worktree"] if self.worktree else []
        flags += ["--timeout", TIMEOUT] if self.timed else []
        what = ("exit", 7) if self.short else ("sleep", 1000)
        return ["spawn", "--name", "x", *flags, "--", *rig.worker(*what)]

    def words(self, rig: Rig) -> list[str]:
        """The command that is disturbed, without the binary."""
        if self.verb == "spawn":
            return self.spawn_words(rig)
        if self.verb == "merge":
            return ["merge", "add", "x", *(["--verify", "test -e new/landed"] if self.verified else [])]
        if self.verb == "kill":
            return ["kill", "x", *(["--rm-worktree"] if self.worktree else [])]
        return [self.verb, "x", *(["--force-dirty"] if self.dirty else [])]

    def attach(self, rig: Rig) -> list[int]:
        """Running processes of ours that take part."""
        pids = [p.pid for p in rig.census() if p.role in ("guard", "supervisor", "forkserver")]
        folder = rig.folder("x")
        if folder is not None and (folder / "lease").exists():
            shim = json.loads((folder / "lease").read_text())["shim"]["pid"]
            if any(p.pid == shim for p in rig.census()):
                pids.append(shim)
        return pids

    def finished(self, rig: Rig) -> bool:
        """Reports whether no background work of this command is left."""
        if self.verb == "merge":
            return bool(rig.items()) and all(item["state"] == "landed" for item in rig.items())
        if self.short or self.timed or self.verb == "kill":
            return rig.exit_record("x") is not None
        return True

    def after(self, before: Expect, result: Result, point: dict | None) -> Expect:
        """What holds once the disturbed command is over."""
        expect = replace(before, must=set(before.must), absent=set(before.absent),
                         running=set(before.running), stopped=set(before.stopped))
        done = result.rc == 0
        if self.verb == "merge":
            expect.landed = done
            return expect
        role = (point or {}).get("role", "")
        if self.verb in ("kill", "respawn"):
            expect.must.add("x")
        if self.timed and (role not in MAY_END_WORKER or (point or {}).get("error")):
            expect.stopped.add("x")
        if not done:
            return expect
        if self.verb == "clean":
            expect.absent.add("x")
        else:
            expect.must.add("x")
        if self.verb == "kill":
            expect.stopped.add("x")
        elif self.verb != "clean" and not (self.short or self.timed) and role not in MAY_END_WORKER:
            expect.running.add("x")
        return expect

    def again(self, result: Result) -> list[str]:
        """Checks that the repeated command had the same outcome."""
        if result.rc == 0:
            return []
        if self.verb == "spawn" and "worker 'x' already exists" in result.err:
            return []
        if self.verb == "clean" and "not found" in result.err:
            return []
        return [f"wedge: {result}"]

    def at_rest(self, before: Expect, rig: Rig, point: dict | None) -> Expect:
        """What holds after the repetition."""
        expect = self.after(before, Result([], 0, "", "", 0), None)
        # A disturbed start may have run and ended with its shim; then "exists" is the correct answer.
        if self.verb == "spawn" and (point or {}).get("role", "") in MAY_END_WORKER:
            expect.running.discard("x")
            if not (point or {}).get("error"):
                expect.stopped.discard("x")
        return expect


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("spawn"),
        Scenario("spawn", cold=True),
        Scenario("spawn", short=True),
        Scenario("spawn", timed=True),
        Scenario("spawn", worktree=True),
        Scenario("spawn", tmux=True),
        Scenario("spawn", tmux=True, cold=True),
        Scenario("spawn", tmux=True, short=True),
        Scenario("spawn", tmux=True, worktree=True),
        Scenario("kill"),
        Scenario("kill", tmux=True),
        Scenario("kill", worktree=True),
        Scenario("clean"),
        Scenario("clean", tmux=True),
        Scenario("clean", worktree=True),
        Scenario("clean", worktree=True, dirty=True),
        Scenario("respawn"),
        Scenario("respawn", tmux=True),
        Scenario("respawn", worktree=True),
        Scenario("respawn", tmux=True, worktree=True),
        Scenario("merge", worktree=True),
        Scenario("merge", worktree=True, verified=True),
        Scenario("merge", worktree=True, large=True),
    )
}
