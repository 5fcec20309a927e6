"""Kill sweep of other verbs: SIGKILL before every call of them that changes state outside the process.

    merge-pause, merge-resume, merge-retry   the merge queue
    recover-pid                              two workers that were killed together with their shims
    asks-approve, -deny, -answer, -always    the answer to a request, alone and with a rule
    rules-add, rules-rm                      rules that answer in advance

After the kill, what was acknowledged must hold, and nothing may be half-done. After one repetition, the result must be
complete.

    python3 -m lab sweep_verbs --sample 20 --seed 7
"""

import sys
import time

from . import sweep, verbs_asks
from .inject import COMMAND_LIMIT, REST_LIMIT, Traced, agreement, complaint, panics, stop_everything
from .oracle import Oracle
from .rig import Rig, Timeout, wait_until
from .verbs import Scenario
from .verbs_work import Merge, Recover

SCENARIOS = {scenario.name: scenario for scenario in (
    Merge("pause"), Merge("resume"), Merge("retry"), Recover(), *verbs_asks.SCENARIOS)}
REST = 0.5
"""Time without a call after which nothing follows from the command any more, in seconds."""
HIT_LIMIT = 2
"""Time after the end of the command in which the point may be reached, in seconds."""


def settled(rig: Rig, scenario: Scenario, made, whole: bool, point: dict | None = None) -> list[str]:
    """Waits until nothing is wrong, and returns the findings that remain after the limit."""

    def found() -> list[str]:
        wrong = scenario.findings(rig, made, whole) + Oracle(rig).findings(scenario.expect(rig, made, whole))
        return [finding for finding in wrong if not scenario.tolerated(point, finding)]

    try:
        wait_until(lambda: not found(), REST_LIMIT, "nothing is wrong", 0.02)
    except Timeout:
        return found()
    return []


def trace(scenario: Scenario, rig: Rig, point: dict | None) -> Traced:
    attach = [person.pid for person in rig.census() if person.role in ("guard", "supervisor", "forkserver")]
    return Traced(rig, scenario.words(rig), attach, scenario.cwd(rig), point)


def enumerate_points(name: str) -> list[dict]:
    """Returns every call that the tracer sees in an undisturbed run of a scenario."""
    scenario = SCENARIOS[name]
    with Rig() as rig:
        made = scenario.prepare(rig)
        if settled(rig, scenario, made, False):
            raise AssertionError(f"before: {'; '.join(settled(rig, scenario, made, False))}")
        if not scenario.findings(rig, made, True) + Oracle(rig).findings(scenario.expect(rig, made, True)):
            raise AssertionError("before: the result is complete already")
        traced = trace(scenario, rig, None)
        result = traced.wait(COMMAND_LIMIT)
        records = at_rest(traced)
        findings = settled(rig, scenario, made, True) if result.rc == 0 else [str(result)]
        traced.close()
        findings = findings or again(rig, scenario, made, None)
        if findings:
            raise AssertionError(f"undisturbed: {'; '.join(findings)}")
        return [record for record in records if "call" in record and scenario.is_ours(record) and not is_chance(record)]


def is_chance(record: dict) -> bool:
    """The supervisor looks at who calls if the caller still lives: whether it does is a matter of chance."""
    return record["role"] == "supervisor" and record["target"] == "/proc/#/status"


def at_rest(traced: Traced) -> list[dict]:
    """Returns the calls that the command leads to. Those of the checks that follow are never struck."""
    seen, since = traced.records(), time.monotonic()
    deadline = since + HIT_LIMIT
    while time.monotonic() < min(since + REST, deadline):
        time.sleep(0.02)
        now = traced.records()
        if len(now) != len(seen):
            seen, since = now, time.monotonic()
    return seen


def disturb(name: str, point: dict) -> tuple[list[str], bool]:
    """Runs a scenario with one strike. Returns the findings and whether the point was reached."""
    scenario = SCENARIOS[name]
    with Rig() as rig:
        made = scenario.prepare(rig)
        # As before the calls were listed: what the supervisor does depends on whether it is busy.
        settled(rig, scenario, made, False)
        traced = trace(scenario, rig, point)
        result = traced.wait(COMMAND_LIMIT)
        try:
            wait_until(lambda: traced.hit, HIT_LIMIT, "the point is reached")
        except Timeout:
            pass
        hit = traced.hit
        findings = [finding for finding in complaint(result) if not scenario.tolerated(point, finding)]
        if point.get("error") == "EINTR" and result.rc != 0:
            findings.append(f"visible: an interrupted call was not repeated: {result}")
        findings += settled(rig, scenario, made, scenario.acknowledged(result, point), point)
        traced.close()
        findings += agreement(rig) + panics(rig)
        if not findings:
            findings += again(rig, scenario, made, point)
        return findings + stop_everything(rig), hit


def again(rig: Rig, scenario: Scenario, made, point: dict | None) -> list[str]:
    """Repeats the command undisturbed and checks that the result is complete."""
    before = scenario.before_again(rig, made)
    result = rig.swarm(*scenario.words(rig), cwd=scenario.cwd(rig))
    findings = complaint(result)
    if result.rc != 0 and not scenario.may_refuse(rig, made, result):
        findings.append(f"wedge: {result}")
    findings = findings or settled(rig, scenario, made, True, point)
    findings = findings or agreement(rig) + scenario.at_last(rig, made, before)
    return [f"again: {finding}" for finding in findings]


def main(argv=None) -> int:
    return sweep.main(argv, doc=__doc__, kit=sys.modules[__name__], scenarios=SCENARIOS, module="sweep_verbs")


if __name__ == "__main__":
    sys.exit(main())
