"""The benchmark: compares every promised speed with the peers, in the same run.

Figures are medians of alternating calls (A B, B A, …). Each program has a private home, state directory and tmux socket.
Each scenario runs on a real disk first, peers included, and then on tmpfs, which shows what the disk costs. The disk is
that of $TMPDIR or, if that is tmpfs, of /var/tmp or this repository; `--disk` names another one. Syncing is part of what
is measured: if others write to the same disk meanwhile, only the ratios mean something. Scenarios that a disk cannot
influence run once.

A missing peer is named and left out, together with the bounds that need it. The verdict of a figure is `aim`, `floor` or
`MISS`; a MISS in any place fails.
"""

import json
import os
import sys

from . import cases, disks, procs
from .bench_agents import AGENTS
from .bench_flows import FLOWS_ROWS as FLOWS
from .bench_hosts import HOSTS
from .bench_jobs import JOBS
from .bench_landing import LANDING
from .bench_limits import LIMITS
from .bench_runs import RUNS
from .bench_rows import ROWS as FLEET
from .bench_rows import Row
from .bench_sessions import SESSIONS
from .bench_top import TOP
from .bench_worktrees import WORKTREES

ROWS = {**FLEET, **LANDING, **RUNS, **SESSIONS, **FLOWS, **LIMITS, **WORKTREES, **HOSTS, **JOBS, **AGENTS, **TOP}
# Scenarios that run in the first place only: they are about a disk, or read none while they are measured.
ONCE = ("disk", "process", "memory", "idle", "batches", "run-memory", "sessions", "ticks", "hosts", "slurm-jobs", "decisions",
        "asking", "doing", "long-window", "top")


def measure(name: str, places: dict[str, str], arguments: tuple) -> tuple[list[dict[str, Row]], list[str]]:
    """Runs one scenario in each place. Returns its rows, each as place -> row, and what failed."""
    rows: dict[str, dict[str, Row]] = {}
    failed: list[str] = []
    for place, path in list(places.items())[:1 if name in ONCE else None]:
        os.environ["LAB_TMP"] = path
        made: list[Row] = []
        findings, _ = cases.attempt(lambda: made.extend(ROWS[name](*arguments)))
        failed += [f"on {place}: {finding}" for finding in findings]
        for row in made:
            rows.setdefault(row.scenario, {})[place] = row
    return list(rows.values()), failed


def ratio_of(row: Row) -> str:
    return ", ".join(f"{row.ours / value:.2f}" for value in row.peers.values() if value)


def table(rows: list[dict[str, Row]]) -> list[tuple[str, ...]]:
    """Returns the cells of the table, with the title first. The first place has all columns, the others the main ones."""
    places = list(dict.fromkeys(place for row in rows for place in row))
    first, others = places[:1], places[1:]
    title = ["scenario"]
    for place in first:
        title += [place, "peers", "ratio", "floor", "aim", "verdict"]
    for place in others:
        title += [place, "ratio", "verdict"]
    cells = [(*title, "note")]
    for row in rows:
        line = [next(iter(row.values())).scenario]
        for place in places:
            one = row.get(place)
            if one is None:
                line += [""] * (6 if place in first else 3)
                continue
            line += [f"{one.ours:.2f} {one.unit}".strip()]
            if place in first:
                line += [", ".join(f"{name} {value:.2f}" for name, value in one.peers.items())]
            line += [ratio_of(one)]
            if place in first:
                line += [", ".join(f"{name} = {value:.2f}" for name, value in bounds.items()) for bounds in (one.floor, one.aim)]
            line += [one.verdict()]
        notes = dict.fromkeys(one.note for one in row.values() if one.note)
        cells.append((*line, "; ".join(notes)))
    return cells


def show(rows: list[dict[str, Row]]) -> None:
    """Prints the table, one line per figure."""
    cells = table(rows)
    widths = [max(len(line[at]) for line in cells) for at in range(len(cells[0]))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip(), flush=True)


def as_object(row: Row) -> dict:
    return {"scenario": row.scenario, "ours": row.ours, "unit": row.unit, "peers": row.peers, "floor": row.floor,
            "aim": row.aim, "verdict": row.verdict(), "note": row.note}


def as_json(rows: list[dict[str, Row]]) -> str:
    """Returns all figures. A row is what was measured in its first place `on`; other places are members of it."""
    listed = []
    for row in rows:
        (place, one), *others = row.items()
        within = {other: {key: value for key, value in as_object(its).items() if key != "scenario"} for other, its in others}
        listed.append({**as_object(one), "on": place, **within})
    return json.dumps({"schema": "swarm.bench/1", "rows": listed}, indent=2)


def places_of(args) -> dict[str, str]:
    """Returns the places to measure in, by name.

    Raises `SystemExit` if a wanted place does not exist.
    """
    wanted = {"disk": lambda: disks.on_disk(args.disk), "tmpfs": disks.in_memory}
    places = {name: find() for name, find in wanted.items() if args.on in (name, "both")}
    if "disk" in places and places["disk"] is None:
        raise SystemExit("bench: error: no writable directory on a disk (name one with '--disk DIR', or use '--on tmpfs')")
    if places.get("tmpfs", "") is None:
        if args.on == "tmpfs":
            raise SystemExit(f"bench: error: {disks.TMPFS} is no writable tmpfs")
        print(f"bench: warning: {disks.TMPFS} is no writable tmpfs, so only the disk is measured", flush=True)
        del places["tmpfs"]
    return places


def main(argv=None) -> int:
    parser = cases.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="run only a few rounds, for a quick check")
    parser.add_argument("--idle-seconds", type=float, default=60)
    parser.add_argument("--on", choices=("both", "disk", "tmpfs"), default="both", help="where to measure")
    parser.add_argument("--disk", metavar="DIR", help="measure below DIR, which must be on a disk")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--list", action="store_true", help="list the groups of scenarios and exit")
    args = parser.parse_args(argv)
    if args.list:
        print("\n".join(ROWS))
        return 0
    places = places_of(args)
    cases.ends_on_term()
    procs.become_subreaper()
    tally = cases.Tally(allow_skips=args.allow_skips)
    print("bench: " + ", ".join(f"{name}: {path}" for name, path in places.items()), flush=True)
    rows: list[dict[str, Row]] = []
    for name in cases.chosen(ROWS, args.only):
        extra = (args.idle_seconds,) if name == "idle" else ()
        try:
            made, findings = measure(name, places, (args.quick, *extra))
        except cases.Skip as why:
            tally.skip(f"bench: {name}", str(why))
            continue
        for place, row in (figure for row in made for figure in row.items()):
            missed = [f"above {bound} = {limit:.2f}" for bound, limit in row.floor.items() if row.ours > limit]
            tally.record(f"bench: {row.scenario}, {place}: {row.ours:.2f} {row.unit} [{row.verdict()}]", missed)
        if findings:
            tally.record(f"bench: {name}", findings)
        rows += made
    print()
    show(rows)
    print()
    if args.json:
        with open(args.json, "w") as file:
            file.write(as_json(rows) + "\n")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
