"""Hammer: many commands at once must not lose anything that was acknowledged.

Several processes spawn at the same time while readers list, a disturber kills and cleans, and all processes race for
some names: every acknowledged worker is present, each name has one winner, and no reader ever sees a torn registry.
"""

import json
import sys
import threading
import time
from pathlib import Path

from . import cases
from .inject import agreement, stop_everything
from .oracle import Expect, Oracle, token_of
from .rig import Rig, wait_until

ARGS = {"processes": 8, "count": 25}

CLIENT = """#!/bin/sh
# One client: spawns COUNT workers in sequence and prints each answer.
i=0
while [ $i -lt {count} ]; do
  if {binary} spawn --name "$1-$i" -- {worker} sleep 1000 >/dev/null 2>>{out}/client-$1.err
  then echo "ack $1-$i"; else echo "refused $1-$i"; fi
  i=$((i+1))
done
"""

RACER = """#!/bin/sh
# One racer: tries every contested name once.
i=0
while [ $i -lt {count} ]; do
  {binary} spawn --name "race-$i" -- {worker} sleep 1000 >/dev/null 2>>{out}/racer-$1.err && echo "won race-$i $1"
  i=$((i+1))
done
"""


def script(rig: Rig, name: str, text: str, count: int) -> str:
    path = rig.root / name
    path.write_text(text.format(count=count, binary=rig.binary, worker=rig.script, out=rig.out))
    path.chmod(0o755)
    return str(path)


class Readers:
    """Threads that read as fast as they can while others write."""

    def __init__(self, rig: Rig, number: int):
        self.rig = rig
        self.findings: list[str] = []
        self.reads = 0
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.read) for _ in range(number)]

    def read(self) -> None:
        while not self.stop.is_set():
            result = self.rig.swarm("ls", "--format", "json")
            self.reads += 1
            if result.rc != 0:
                self.findings.append(f"reader: {result}")
                return
            try:
                names = [entry["name"] for entry in json.loads(result.out)]
            except ValueError:
                self.findings.append(f"reader: not JSON: {result}")
                return
            if len(names) != len(set(names)):
                self.findings.append("twice: a reader saw one name in two rows")

    def __enter__(self) -> "Readers":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exc) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


def run_clients(rig: Rig, path: str, processes: int, limit: float = 120) -> list[list[str]]:
    """Starts all clients at once and returns the words of their answers."""
    started = [rig.start(["/bin/sh", path, str(number)]) for number in range(processes)]
    words = []
    for one in started:
        result = rig.finish(one, limit)
        if result.rc is None:
            raise AssertionError(f"wedge: a client did not end within {limit:g} s")
        words += [line.split() for line in result.out.splitlines()]
    return words


def errors_of(rig: Rig, prefix: str) -> str:
    return " ".join(path.read_text().strip() for path in rig.out.glob(f"{prefix}-*.err"))[:400]


def at_once() -> list[str]:
    """Distinct names: every spawn is acknowledged, and every acknowledged worker is present."""
    with Rig() as rig, Readers(rig, 2) as readers:
        path = script(rig, "client", CLIENT, ARGS["count"])
        begun = time.monotonic()
        answers = run_clients(rig, path, ARGS["processes"])
        seconds = time.monotonic() - begun
        readers.stop.set()
        refused = [name for word, name in answers if word == "refused"]
        acked = {name for word, name in answers if word == "ack"}
        expect = Expect(must=acked, running=set(acked))
        findings = readers.findings + Oracle(rig).converge(expect) + agreement(rig)
        if refused:
            findings.append(f"lost: {len(refused)} spawns were refused: {errors_of(rig, 'client')}")
        print(f"      {len(acked)} acknowledged in {seconds:.2f} s, {readers.reads} concurrent reads", flush=True)
        return findings + stop_everything(rig)


def same_names() -> list[str]:
    """Every process tries every name: one winner per name; the losers get the error that it exists."""
    with Rig() as rig:
        path = script(rig, "racer", RACER, ARGS["count"])
        won: dict[str, list[str]] = {}
        for _, name, who in run_clients(rig, path, ARGS["processes"]):
            won.setdefault(name, []).append(who)
        names = {f"race-{number}" for number in range(ARGS["count"])}
        findings = [f"twice: {name} was won by {', '.join(who)}" for name, who in won.items() if len(who) > 1]
        findings += [f"lost: nobody won {name}" for name in sorted(names - set(won))]
        for line in (line for file in rig.out.glob("racer-*.err") for line in file.read_text().splitlines()):
            if line.startswith("swarm: error:") and "already exists" not in line:
                findings.append(f"unclear: {line}")
        findings += Oracle(rig).converge(Expect(must=names, running=set(names)))
        return findings + stop_everything(rig)


def killed_meanwhile() -> list[str]:
    """Workers are killed and cleaned while others are spawned: no kill restores or loses a row."""
    with Rig() as rig:
        victims = [f"victim-{number}" for number in range(16)]
        for name in victims:
            rig.must("spawn", "--name", name, "--", *rig.worker("sleep", 1000))
        wait_until(lambda: len(rig.ledger_lines()) == len(victims), 10, "all victims run")
        tokens = {row["name"]: token_of(row) for row in rig.rows()}
        findings: list[str] = []

        def disturb() -> None:
            for number, name in enumerate(victims):
                for verb in ("kill", "clean") if number % 2 else ("kill",):
                    result = rig.swarm(verb, name)
                    if result.rc != 0:
                        findings.append(f"wedge: {result}")

        path = script(rig, "client", CLIENT, ARGS["count"])
        thread = threading.Thread(target=disturb)
        thread.start()
        answers = run_clients(rig, path, ARGS["processes"])
        thread.join()
        acked = {name for word, name in answers if word == "ack"}
        cleaned = {name for number, name in enumerate(victims) if number % 2}
        killed = set(victims) - cleaned
        expect = Expect(must=acked | killed, absent=cleaned, running=acked, stopped=killed | cleaned,
                        retired={tokens[name] for name in cleaned})
        findings += Oracle(rig).converge(expect) + agreement(rig)
        return findings + stop_everything(rig)


def lock_removed() -> list[str]:
    """state.lock is removed by hand repeatedly: no acknowledged worker is lost."""
    with Rig() as rig:
        rig.must("spawn", "--name", "first", "--", *rig.worker("sleep", 1000))
        path = script(rig, "client", CLIENT, ARGS["count"])
        stop = threading.Event()

        def remove() -> None:
            while not stop.wait(0.02):
                Path(rig.dir / "state.lock").unlink(missing_ok=True)

        thread = threading.Thread(target=remove)
        thread.start()
        try:
            answers = run_clients(rig, path, 4)
        finally:
            stop.set()
            thread.join()
        acked = {name for word, name in answers if word == "ack"} | {"first"}
        return Oracle(rig).converge(Expect(must=acked, running=acked)) + stop_everything(rig)


CASES = {
    "hammer: 8 x 25 at once with readers": at_once,
    "hammer: same names, one winner each": same_names,
    "hammer: kills and cleans meanwhile": killed_meanwhile,
    "hammer: lock file removed meanwhile": lock_removed,
}


def main(argv=None) -> int:
    parser = cases.parser(__doc__)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--count", type=int, default=25, help="number of spawns per process")
    args = parser.parse_args(argv)
    ARGS.update(processes=args.processes, count=args.count)
    cases.ends_on_term()
    return cases.run_all(CASES, args.only, allow_skips=args.allow_skips).close()


if __name__ == "__main__":
    sys.exit(main())
