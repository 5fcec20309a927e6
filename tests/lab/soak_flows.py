"""Soak of flows: thirty nodes of six roles, while everything around them is killed.

Every turn records itself in a ledger outside the workspace. A person answers, approves and chooses; a reader checks
flow.json all the time. In the end the flow is completed, each edge was handed over, no artifact twice, each
acknowledged answer reached one turn and its repetitions, and nothing is left behind. A round is one flow; rounds follow
each other, each in a rig of its own, until the time is up.

    python3 -m lab soak_flows --seconds 60 --seed 7
    python3 -m lab soak_flows --seconds 20 --seed 7 --other-writer
"""

import random
import shutil
import sys
import time
from pathlib import Path

from . import cases
from .flow_people import Person, Reader, Writer
from .flow_strikes import STRIKES, Striker
from .flow_verdict import verdict
from .flow_world import World, thirty_nodes
from .rig import Rig, Timeout, wait_until
from .soak_runs import keep

SETTLE_LIMIT = 60
FINDINGS_MAX = 12
WINDOWS = "[flow.roles.writer]\nmode = 'tmux'\n[flow.roles.dev]\nmode = 'tmux'\n"


def play(rig: Rig, chance: random.Random, seconds: float, strikes: dict[str, int]) -> tuple[list[str], str]:
    """Runs one flow: strikes at it for `seconds`, then lets it finish."""
    # Two of the six roles play in a tmux window, if tmux is installed.
    windows = shutil.which("tmux") and chance.random() < 0.3
    world = World(rig, thirty_nodes(chance), settings=WINDOWS if windows else "")
    reader, person = Reader(world), Person(world, chance)
    striker = Striker(world, chance, strikes)
    world.must("run", world.id)
    reader.start()
    person.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end and not person.done.is_set():
        person.done.wait(chance.choice([0.05, 0.3, 0.6]) * chance.random())
        striker.strike()
    striker.finish()
    try:
        wait_until(person.done.is_set, SETTLE_LIMIT, "the flow is completed", 0.05)
    except Timeout as late:
        striker.findings.append(f"wedge: {late}")
    found = person.end() + reader.end() + striker.findings
    found += verdict(world, person.acknowledged, striker)
    counts = {**({"roles in windows": 2} if windows else {}), **striker.struck, **person.counts}
    told = ", ".join(f"{count} {what}" for what, count in counts.items())
    return found, f"{reader.looks} looks, slowest command {person.slowest:.2f} s, {told}"


def play_beside(rig: Rig, chance: random.Random) -> tuple[list[str], str]:
    """Runs one flow without strikes while another program writes its file."""
    world = World(rig, thirty_nodes(chance))
    reader, person, writer = Reader(world, may_be_torn=True), Person(world, chance), Writer(world, chance)
    striker = Striker(world, chance, {})
    world.must("run", world.id)
    for onlooker in (reader, person, writer):
        onlooker.start()
    found = []
    try:
        wait_until(person.done.is_set, SETTLE_LIMIT, "the flow is completed", 0.05)
    except Timeout as late:
        found.append(f"wedge: {late}")
    found += person.end() + reader.end() + writer.end()
    writer.check(world.flow())
    found += [finding for finding in writer.findings if finding not in found]
    found += verdict(world, person.acknowledged | writer.answers, striker)
    told = ", ".join(f"{count} {what}" for what, count in person.counts.items())
    theirs = f"{writer.writes} writes of another, {writer.excused} in the gap, {len(writer.answers)} answers"
    return found, f"{theirs}, {told}"


def run_round(seed: str, seconds: float, args) -> list[str]:
    with Rig() as rig:
        chance, told = random.Random(seed), ["the round was aborted"]
        strikes = {what: weight for what, weight in STRIKES.items() if what not in args.without.split(",")}

        def case() -> list[str]:
            found, told[0] = play_beside(rig, chance) if args.other_writer else play(rig, chance, seconds, strikes)
            return found

        findings, took = cases.attempt(case)
        if findings and args.keep:
            keep(rig.root, Path(args.keep) / seed.replace("/", "-"))
        print(f"      {seed}: {took:.1f} s, {told[0]}", flush=True)
        return [f"round {seed}: {finding}" for finding in list(dict.fromkeys(findings))[:FINDINGS_MAX]]


def run_rounds(seed: int, args) -> list[str]:
    """Runs rounds until the time is up; the last one is struck only for the remaining time."""
    findings, end, number = [], time.monotonic() + args.seconds, 0
    while (left := end - time.monotonic()) > 0:
        findings += run_round(f"{seed}/{number}", left, args)
        number += 1
    return findings


def main(argv=None) -> int:
    parser = cases.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="replay the choices of an earlier run (default: the time)")
    parser.add_argument("--other-writer", action="store_true",
                        help="kill nothing; another program writes flow.json")
    parser.add_argument("--without", metavar="STRIKES", default="", help=f"omit some of {', '.join(STRIKES)}")
    parser.add_argument("--keep", metavar="DIR", help="copy the rig of every round with findings to DIR")
    args = parser.parse_args(argv)
    cases.ends_on_term()
    seed = args.seed if args.seed is not None else int(time.time())
    name = f"soak_flows: {'another writer' if args.other_writer else 'strikes'}, {args.seconds:g} s, seed {seed}"
    return cases.run_all({name: lambda: run_rounds(seed, args)}, args.only, allow_skips=args.allow_skips).close()


if __name__ == "__main__":
    sys.exit(main())
