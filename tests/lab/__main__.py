"""The laboratory's commands: sweep, errors, real, agents, ssh, hammer, the soaks, audit, bench, and ci for all but the last.

    python3 -m lab sweep --sample 20 --seed 7
    python3 -m lab real --only tmux
    python3 -m lab ci --budget 360
"""

import argparse
import contextlib
import importlib
import io
import re
import sys
import time

from . import cases

MODULES = ("sweep", "sweep_flows", "errors", "real", "agents", "ssh", "hammer", "soak", "soak_runs", "soak_flows", "audit",
           "bench")
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed", re.M)


class Tee(io.TextIOBase):
    """Writes through and keeps what was written, for the closing counts."""

    def __init__(self, below):
        self.below = below
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return self.below.write(text)

    def flush(self) -> None:
        self.below.flush()


def run(module: str, argv: list[str]) -> tuple[int, int, int]:
    """Runs one module and returns (exit code, passed, failed)."""
    print(f"== {module} {' '.join(argv)}", flush=True)
    tee = Tee(sys.stdout)
    with contextlib.redirect_stdout(tee):
        code = importlib.import_module(f".{module}", __package__).main(argv)
    counts = CLOSING.findall(tee.text)
    passed, failed = map(int, counts[-1]) if counts else (0, 1)
    return code, passed, failed


def ci(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="lab ci", description="Everything that fits into a run of the tests.")
    parser.add_argument("--budget", type=float, default=360, help="seconds for the samples of both sweeps together")
    parser.add_argument("--seed", type=int, help="chooses the samples (default: the day)")
    parser.add_argument("--soak-seconds", type=float, default=180)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args(argv)
    cases.ends_on_term()
    seed = args.seed if args.seed is not None else int(time.time() // 86400)
    sample = ["--seed", str(seed), "--jobs", str(args.jobs), "--sample", "1000", "--budget", str(args.budget / 2)]
    plan = [("audit", []), ("hammer", []), ("real", []), ("ssh", []), ("agents", []),
            ("sweep", sample), ("errors", sample), ("soak", ["--seconds", str(args.soak_seconds), "--seed", str(seed)]),
            ("soak_runs", ["--seconds", str(args.soak_seconds * 2 / 3), "--seed", str(seed)]),
            ("soak_runs", ["--seconds", str(args.soak_seconds / 3), "--seed", str(seed), "--jobs-file"]),
            ("soak_flows", ["--seconds", "20", "--seed", str(seed)]),
            ("soak_flows", ["--seconds", "8", "--seed", str(seed), "--other-writer"]),
            ("sweep_flows", [*sample[:-1], "20"])]
    results = [(module, *run(module, words)) for module, words in plan]
    print("== total")
    for module, _, passed, failed in results:
        print(f"      {module}: {passed} passed, {failed} failed")
    print(f"{sum(r[2] for r in results)} passed, {sum(r[3] for r in results)} failed")
    return 1 if any(code for _, code, _, _ in results) else 0


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] == "ci":
        return ci(sys.argv[2:])
    if len(sys.argv) > 1 and sys.argv[1] in MODULES:
        return importlib.import_module(f".{sys.argv[1]}", __package__).main(sys.argv[2:])
    print(__doc__)
    return 0 if sys.argv[1:2] in (["--help"], ["-h"]) else 2


if __name__ == "__main__":
    sys.exit(main())
