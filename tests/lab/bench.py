"""The benchmark: compares every promised speed with the peers, in the same run.

Figures are medians of alternating calls (A B, B A, …). Each program has a private home, state directory and tmux socket
on tmpfs. A missing peer is named and left out, together with the bounds that need it. The verdict of a figure is `aim`,
`floor` or `MISS`.
"""

import json
import sys

from . import cases, procs
from .bench_flows import FLOWS_ROWS as FLOWS
from .bench_landing import LANDING
from .bench_limits import LIMITS
from .bench_runs import RUNS
from .bench_rows import ROWS as FLEET
from .bench_rows import Row
from .bench_sessions import SESSIONS
from .bench_worktrees import WORKTREES

ROWS = {**FLEET, **LANDING, **RUNS, **SESSIONS, **FLOWS, **LIMITS, **WORKTREES}


def show(rows: list[Row]) -> None:
    """Prints the table, one line per figure."""
    cells = [("scenario", "swarm", "peers", "ratio", "floor", "aim", "verdict", "note")]
    for row in rows:
        peers = ", ".join(f"{name} {value:.2f}" for name, value in row.peers.items())
        ratio = ", ".join(f"{row.ours / value:.2f}" for value in row.peers.values() if value)
        floor = ", ".join(f"{name} = {value:.2f}" for name, value in row.floor.items())
        aim = ", ".join(f"{name} = {value:.2f}" for name, value in row.aim.items())
        cells.append((row.scenario, f"{row.ours:.2f} {row.unit}".strip(), peers, ratio, floor, aim, row.verdict(), row.note))
    widths = [max(len(line[at]) for line in cells) for at in range(len(cells[0]))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip(), flush=True)


def as_json(rows: list[Row]) -> str:
    listed = [{"scenario": r.scenario, "ours": r.ours, "unit": r.unit, "peers": r.peers, "floor": r.floor,
               "aim": r.aim, "verdict": r.verdict(), "note": r.note} for r in rows]
    return json.dumps({"schema": "swarm.bench/1", "rows": listed}, indent=2)


def main(argv=None) -> int:
    parser = cases.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="run only a few rounds, for a quick check")
    parser.add_argument("--idle-seconds", type=float, default=60)
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--list", action="store_true", help="list the groups of scenarios and exit")
    args = parser.parse_args(argv)
    if args.list:
        print("\n".join(ROWS))
        return 0
    cases.ends_on_term()
    procs.become_subreaper()
    tally = cases.Tally(allow_skips=args.allow_skips)
    rows: list[Row] = []
    for name in cases.chosen(ROWS, args.only):
        extra = (args.idle_seconds,) if name == "idle" else ()
        made: list[Row] = []
        try:
            findings, seconds = cases.attempt(lambda: made.extend(ROWS[name](args.quick, *extra)))
        except cases.Skip as why:
            tally.skip(f"bench: {name}", str(why))
            continue
        for row in made:
            missed = [f"above {bound} = {limit:.2f}" for bound, limit in row.floor.items() if row.ours > limit]
            tally.record(f"bench: {row.scenario}: {row.ours:.2f} {row.unit} [{row.verdict()}]", missed)
        if findings:
            tally.record(f"bench: {name}", findings, seconds=seconds)
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
