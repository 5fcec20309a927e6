"""Soak of flows: thirty nodes of six roles, while everything around them is killed.

Every turn writes itself into a ledger outside of the workspace. A person answers,
approves and chooses; a reader looks at flow.json all the time. In the end the flow is
completed, each edge was handed over, no artifact twice, each answer that was taken
reached one turn and its repetitions, and nothing is left behind. A round is one flow;
rounds follow each other, each in a rig of its own, until the time is up.

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
    """One flow, struck for so long and then left alone."""
    # Two roles of six play in a window, where there is a tmux.
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
    """One flow that nobody strikes, and into whose file another program writes."""
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
        chance, told = random.Random(seed), ["it broke off"]
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
    """Rounds until the time is up; the one that begins last is struck for what is left."""
    findings, end, number = [], time.monotonic() + args.seconds, 0
    while (left := end - time.monotonic()) > 0:
        findings += run_round(f"{seed}/{number}", left, args)
        number += 1
    return findings


def main(argv=None) -> int:
    parser = cases.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="replays a run's choices (default: the time)")
    parser.add_argument("--other-writer", action="store_true",
                        help="nobody is killed; another program writes flow.json")
    parser.add_argument("--without", metavar="STRIKES", default="", help=f"leaves some out of {', '.join(STRIKES)}")
    parser.add_argument("--keep", metavar="DIR", help="copies the rig of a round that found something to here")
    args = parser.parse_args(argv)
    cases.ends_on_term()
    seed = args.seed if args.seed is not None else int(time.time())
    name = f"soak_flows: {'another writer' if args.other_writer else 'strikes'}, {args.seconds:g} s, seed {seed}"
    return cases.run_all({name: lambda: run_rounds(seed, args)}, args.only, allow_skips=args.allow_skips).close()


if __name__ == "__main__":
    sys.exit(main())
