"""What a scenario of the sweep of verbs consists of."""

from pathlib import Path

from .oracle import Expect
from .rig import Result, Rig, wait_until


class Scenario:
    """One verb in one mode. `made` is what `prepare` returns: the state to compare with."""

    name: str
    large = False

    def prepare(self, rig: Rig):
        raise NotImplementedError

    def words(self, rig: Rig) -> list[str]:
        """The command that is disturbed, without the binary."""
        raise NotImplementedError

    def cwd(self, rig: Rig) -> str:
        return str(rig.repo)

    def expect(self, rig: Rig, made, whole: bool) -> Expect:
        """What must hold for workers."""
        raise NotImplementedError

    def findings(self, rig: Rig, made, whole: bool) -> list[str]:
        """Other violations. If `whole`, the result must be complete; otherwise it may also be missing altogether."""
        raise NotImplementedError

    def is_ours(self, point: dict) -> bool:
        """Reports whether a call is a point in each run, whatever comes first."""
        return True

    def acknowledged(self, result: Result, point: dict) -> bool:
        """Reports whether the result must be complete before the repetition."""
        return result.rc == 0

    def tolerated(self, point: dict | None, finding: str) -> bool:
        """Reports whether a finding is unavoidable after a kill at this point."""
        return False

    def before_again(self, rig: Rig, made):
        """Returns what `at_last` compares with, before the repetition."""

    def may_refuse(self, rig: Rig, made, result: Result) -> bool:
        """Reports whether this failure of a repetition says that everything is done already, and it is."""
        return False

    def at_last(self, rig: Rig, made, before) -> list[str]:
        """Violations after the repetition that take further commands to see."""
        return []


def keep(rig: Rig) -> Expect:
    """Starts the bystander."""
    rig.must("spawn", "--name", "keep", "--", *rig.worker("sleep", 1000))
    wait_until(lambda: len(rig.ledger_lines()) == 1, 10, "the bystander runs")
    wait_until(lambda: len(rig.of_role("supervisor")) == 1, 10, "one supervisor is left")
    return Expect(must={"keep"}, running={"keep"}, unchanged={"keep": rig.row("keep")})


def git(rig: Rig, at: Path, *words: str) -> str:
    """Output of a git command that must succeed."""
    result = rig.run("git", "-C", str(at), *words)
    if result.rc != 0:
        raise AssertionError(f"git failed: {result}")
    return result.out
