"""Kill sweep: SIGKILL before every call of spawn, kill, clean and respawn that changes state outside the process.

An undisturbed run finds the points: every such call of the command, the guard, the supervisor, the shim and the git and
tmux that they run. Each point is then one case: kill there, judge, repeat the command, judge, stop.
"""

import random
import sys
import time

from . import cases, inject
from .scenarios import SCENARIOS


TRIES_MAX = 20
"""Maximum number of runs of a scenario until the point is reached."""
TRIES_OF_ONE = 3
"""Number of these runs until an earlier call is struck instead."""


def points_of(names: list[str], jobs: int, *, errors: bool, tally: cases.Tally, kit=inject) -> list[tuple[str, dict]]:
    """Returns the points of some scenarios; a scenario that fails without a strike counts as a failed case."""
    found = []
    for name, points, problem in cases.in_parallel(_enumerate, [(kit.enumerate_points, name) for name in names], jobs):
        if problem:
            tally.record(f"{name}|undisturbed", [problem])
            continue
        if errors:
            mine = inject.error_points(points)
        else:
            mine = [inject.bare(point) for point in points if point["kill"]]
        print(f"      {name}: {len(mine)} points", flush=True)
        found += [(name, point) for point in mine]
    return sorted(found, key=lambda item: inject.show(*item))


def _enumerate(item) -> tuple[str, list[dict], str]:
    enumerate_points, name = item
    try:
        return name, enumerate_points(name), ""
    except Exception as error:
        return name, [], f"{type(error).__name__}: {error}"


def _run(item):
    """Runs one case in a job; returns `None` instead of findings if the time is up."""
    disturb, name, point, deadline = item
    if deadline and time.monotonic() > deadline:
        return name, point, None, False, 0.0
    begun = time.monotonic()
    for number in range(TRIES_MAX):
        try:
            findings, hit = disturb(name, _struck(point, number))
        except Exception as error:
            findings, hit = [f"{type(error).__name__}: {error}"], True
        if hit or findings:
            break
    return name, point, findings, hit, time.monotonic() - begun


def _struck(point: dict, number: int) -> dict:
    """Returns the point that is struck in this run. The order of calls varies from run to run, and so does their number if
    one call does the work of several, for example one read of a directory after two changes. If the last of many equal
    calls is rarely made, an earlier one is struck, which does its work then; at last the first one."""
    k = point["k"]
    earlier = (k, k - 1, k // 2, 1)[min(number // TRIES_OF_ONE, 3)]
    return {**point, "k": max(1, earlier)}


def run_points(points, jobs: int, deadline: float | None, module: str, tally: cases.Tally, kit=inject) -> None:
    """Runs the cases and prints a line and a reproduction for each failure."""
    left = 0
    items = [(kit.disturb, name, point, deadline) for name, point in points]
    for name, point, findings, hit, seconds in cases.in_parallel(_run, items, jobs):
        if findings is None:
            left += 1
            continue
        shown = inject.show(name, point)
        if not hit and not findings:
            tally.miss(f"{shown} ({seconds:.1f} s): not reached in {TRIES_MAX} runs")
            continue
        repro = f"PYTHONPATH=tests python3 -m lab.{module} --point '{shown}'"
        tally.record(shown, findings, seconds=seconds, repro=repro)
    if left:
        print(f"      {left} points were skipped, because the time was up", flush=True)


def main(argv=None, *, errors: bool = False, doc: str = __doc__, kit=inject, scenarios=SCENARIOS, module="sweep") -> int:
    parser = cases.parser(doc)
    parser.add_argument("--full", action="store_true", help="run every point (the default without --sample)")
    parser.add_argument("--sample", type=int, metavar="N", help="run N points, chosen by the seed")
    parser.add_argument("--seed", type=int, help="seed of the sample (default: the day, so that it rotates)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget", type=float, metavar="SEC", help="start no case after SEC seconds")
    parser.add_argument("--point", action="append", help="run exactly this point, as a failure prints it")
    parser.add_argument("--list", action="store_true", help="list the points and exit")
    args = parser.parse_args(argv)
    cases.ends_on_term()
    tally = cases.Tally(allow_skips=args.allow_skips)
    deadline = time.monotonic() + args.budget if args.budget else None
    if args.point:
        points = [inject.parse(text) for text in args.point]
    else:
        # --only may name a scenario, or also role and call.
        names = [n for n, scenario in scenarios.items()
                 if (_may_match(n, args.only, scenarios) if args.only else args.full or not scenario.large)]
        names = [n for n in names if not (errors and scenarios[n].large)]
        points = points_of(names, args.jobs, errors=errors, tally=tally, kit=kit)
        points = [p for p in points if not args.only or cases.chosen([inject.show(*p)], args.only)]
    seed = args.seed if args.seed is not None else int(time.time() // 86400)
    shuffled = random.Random(seed).sample(points, len(points))
    if args.sample:
        shuffled = shuffled[: args.sample]
        print(f"      {len(shuffled)} of {len(points)} points, seed {seed}", flush=True)
    if args.list:
        print("\n".join(inject.show(*point) for point in points))
        return 0
    run_points(shuffled, args.jobs, deadline, module, tally, kit)
    return tally.close()


def _may_match(name: str, only: str, scenarios) -> bool:
    """Reports whether points of a scenario can match: the pattern matches its name, or no scenario's name at all."""
    return bool(cases.chosen([name + "|"], only)) or not any(cases.chosen([n + "|"], only) for n in scenarios)


if __name__ == "__main__":
    sys.exit(main())
