"""Commands of the laboratory: the sweeps, errors, real, agents, mcp, web, ssh, hosts, hammer, the soaks, audit, power, slurm,
slurm_jobs and bench; ci runs all but bench.

    python3 -m lab sweep --sample 20 --seed 7
    python3 -m lab real --only tmux
    python3 -m lab ci --budget 360
"""

import argparse
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

from . import cases

MODULES = ("sweep", "sweep_flows", "sweep_verbs", "errors", "errors_verbs", "real", "agents", "mcp", "web", "ssh", "hosts", "hammer",
           "soak", "soak_runs", "soak_flows", "audit", "power", "slurm", "slurm_jobs", "bench")
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?(?:, (\d+) not met)?$")
TIMED = re.compile(r"^(?:ok|FAIL)  +(.*?) \((\d+\.\d) s\)")
SLOWEST = 20


@dataclass
class Part:
    """One module of a `ci` run, started as a separate program, and its output."""

    module: str
    words: list[str]
    process: subprocess.Popen | None = None
    lines: list[str] = field(default_factory=list)
    code: int = 1
    seconds: float = 0.0

    def run(self, prefix: bool) -> None:
        """Runs the module to its end and forwards its lines, each prefixed with the module's name if other lanes run
        too."""
        before = f"{self.module:>10} | " if prefix else ""
        print(f"{before}== {self.module} {' '.join(self.words)}", flush=True)
        begun = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", __package__, self.module, *self.words], text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            print(before + self.lines[-1], flush=True)
        self.code, self.seconds = self.process.wait(), time.monotonic() - begun

    def end(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Numbers of passed, failed and skipped cases, and of those whose fault never struck; one failure if the module
        printed no closing line."""
        closing = [found for line in self.lines if (found := CLOSING.match(line))]
        return tuple(int(count or 0) for count in closing[-1].groups()) if closing else (0, 1, 0, 0)

    def begins(self, word: str) -> list[str]:
        return [line for line in self.lines if line.startswith(word)]


def run_lanes(lanes: list[list[Part]]) -> None:
    """Runs the parts of each lane in sequence, and the lanes in parallel."""

    def run_lane(lane: list[Part]) -> None:
        for part in lane:
            if not stopped.is_set():
                part.run(prefix=len(lanes) > 1)

    stopped = threading.Event()
    threads = [threading.Thread(target=run_lane, args=(lane,)) for lane in lanes]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        stopped.set()
        while any(thread.is_alive() for thread in threads):
            for part in (part for lane in lanes for part in lane):
                part.end()
            time.sleep(0.1)
        raise


def show_total(parts: list[Part]) -> None:
    timed = [(float(found[2]), found[1]) for part in parts for line in part.lines if (found := TIMED.match(line))]
    print(f"== the {SLOWEST} slowest of {len(timed)} cases")
    for seconds, name in sorted(timed, reverse=True)[:SLOWEST]:
        print(f"{seconds:8.1f} s  {name}")
    print("== total")
    for part in parts:
        passed, failed, skipped, unmet = part.counts
        print(f"      {part.module}: {passed} passed, {failed} failed, {skipped} skipped, {unmet} not met "
              f"({part.seconds:.0f} s)")
    for line in [line for part in parts for word in ("skip  ", "unmet ", "FAIL  ") for line in part.begins(word)]:
        print(line)
    passed, failed, skipped, unmet = (sum(counts) for counts in zip(*(part.counts for part in parts)))
    print(f"{passed} passed, {failed} failed, {skipped} skipped, {unmet} not met", flush=True)


def ci(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="lab ci", description="Runs every laboratory module that is short enough for CI.")
    parser.add_argument("--budget", type=float, default=360, help="seconds for the kill and error sweeps")
    parser.add_argument("--seed", type=int, help="seed of the samples (default: the current day)")
    parser.add_argument("--soak-seconds", type=float, default=180)
    parser.add_argument("--power-images", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--allow-skips", action="store_true",
                        help="succeed even if cases were skipped for a reason other than a missing tool")
    args = parser.parse_args(argv)
    cases.ends_on_term()
    seed = args.seed if args.seed is not None else int(time.time() // 86400)
    allow = ["--allow-skips"] if args.allow_skips else []
    sample = ["--seed", str(seed), "--jobs", str(args.jobs), "--sample", "1000", "--budget", str(args.budget / 2)]
    # A quarter of the time of the kill sweep is for the verbs that have a module of their own.
    verbs = args.budget / 8

    def part(module: str, *words) -> Part:
        return Part(module, [*map(str, words), *allow])

    # The soaks last as long as requested and leave the processors idle most of that time. The two lanes take about as long.
    soaks = [part("soak", "--seconds", args.soak_seconds, "--seed", seed),
             part("soak_runs", "--seconds", args.soak_seconds * 2 / 3, "--seed", seed),
             part("soak_runs", "--seconds", args.soak_seconds / 3, "--seed", seed, "--jobs-file"),
             part("soak_flows", "--seconds", 20, "--seed", seed),
             part("soak_flows", "--seconds", 8, "--seed", seed, "--other-writer")]
    # Their cases wait for Slurm most of the time, and need little of the processors.
    clusters = [part("slurm", "--jobs", 3), part("slurm_jobs", "--jobs", 4)]
    beside = [part("real", "--jobs", args.jobs), part("agents")]
    short = [part("audit"), part("mcp"), part("web"), part("ssh"), part("hosts"), part("hammer")]
    power = ["--seed", str(seed), "--jobs", str(args.jobs)]
    alone = [part("power", "--images", args.power_images, *power), part("power", "--removed", *power),
             part("sweep", *sample[:-1], args.budget / 2 - verbs), part("sweep_verbs", *sample[:-1], verbs),
             part("errors", *sample[:-1], args.budget / 2 - verbs), part("errors_verbs", *sample[:-1], verbs),
             part("sweep_flows", *sample[:-1], 20)]
    run_lanes([soaks + short, beside, clusters])
    run_lanes([alone])
    parts = [*short, *beside, *clusters, *alone, *soaks]
    show_total(parts)
    return 1 if any(part.code for part in parts) else 0


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] == "ci":
        return ci(sys.argv[2:])
    if len(sys.argv) > 1 and sys.argv[1] in MODULES:
        return importlib.import_module(f".{sys.argv[1]}", __package__).main(sys.argv[2:])
    print(__doc__)
    return 0 if sys.argv[1:2] in (["--help"], ["-h"]) else 2


if __name__ == "__main__":
    sys.exit(main())
