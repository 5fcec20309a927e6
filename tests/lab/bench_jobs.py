"""Workers that are jobs of a real Slurm, compared with sbatch itself."""

import itertools
import json
import re
import subprocess
import time
from statistics import median

from .bench_rows import Row, against, alternate
from .rig import Rig, wait_until
from .slurm_cluster import Cluster

# Seconds for which the calls to the controller are counted.
COUNTED = 150


def jobs(quick: bool) -> list[Row]:
    """Starts a job until its first line, sees its end, and counts the calls to the controller while one works."""
    rounds = 4 if quick else 15
    with Rig(home_length=1) as rig, Cluster(rig) as cluster:
        config = rig.home / ".config" / "swarm"
        config.mkdir(parents=True)
        (config / "config.toml").write_text(f'[hosts.jobs]\nengine = "slurm"\nswarm = "{rig.binary}"\n')
        return [first_line(rig, rounds), end(rig, rounds), calls(rig, cluster, 60 if quick else COUNTED)]


def said(rig: Rig, *words: str) -> str:
    done = subprocess.run(words, env=rig.env, cwd=rig.work, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{words}: {done.stderr[-300:]}")
    return done.stdout


def first_line(rig: Rig, rounds: int) -> Row:
    swarm, numbers = str(rig.binary), itertools.count()

    def until_written(file, *words: str) -> float:
        begun = time.perf_counter()
        said(rig, *words)
        wait_until(lambda: file.exists() and file.stat().st_size > 0, 60, "its first line", step=0.002)
        return (time.perf_counter() - begun) * 1000

    def ours() -> float:
        name = f"f{next(numbers)}"
        return until_written(rig.dir / "logs" / f"{name}.stdout.log", swarm, "spawn", "--on", "jobs", "--name", name, "--",
                             "echo", "x")

    def plain() -> float:
        file = rig.work / f"o{next(numbers)}"
        return until_written(file, "sbatch", "--parsable", f"--output={file}", "--wrap=echo x")

    ours()
    found = alternate({"swarm": ours, "sbatch": plain}, rounds)
    row = Row("a job until its first line", found.pop("swarm"), peers=found, note="the beat of Slurm's scheduler included")
    against(row, "sbatch", 1.3, 1.1)
    return row


def told(rig: Rig, name: str) -> int | None:
    """Returns the time of the event of a worker's end."""
    events = [json.loads(line) for line in (rig.dir / "events.jsonl").read_text().splitlines()]
    times = [event["at_ms"] for event in events if event.get("worker") == name and event["type"] == "worker.exited"]
    return times[-1] if times else None


def end(rig: Rig, rounds: int) -> Row:
    swarm, took = str(rig.binary), []
    for number in range(rounds):
        name = f"e{number}"
        said(rig, swarm, "spawn", "--on", "jobs", "--name", name, "--", "sh", "-c", "sleep 2")
        said(rig, swarm, "wait", name)
        exit = json.loads(subprocess.run([swarm, "status", name, "--json"], env=rig.env, capture_output=True).stdout)["exit"]
        wait_until(lambda: told(rig, name), 30, f"{name} is told", step=0.05)
        took.append(told(rig, name) - exit["ended_at_ms"])
    row = Row("the end of a job until it is known", float(median(took)), note="a listing each 5 s")
    row.floor["6 s"] = 6000.0
    return row


def calls(rig: Rig, cluster: Cluster, seconds: int) -> Row:
    swarm = str(rig.binary)

    def counted() -> int:
        text = said(rig, "sdiag")
        return sum(int(count) for count in re.findall(r"REQUEST_JOB_INFO\S*\s*\(\s*\d+\)\s*count:(\d+)", text))

    for number in range(4):
        said(rig, swarm, "spawn", "--on", "jobs", "--name", f"c{number}", "--", "sleep", "600")
    time.sleep(10)
    before = counted()
    time.sleep(seconds)
    row = Row("questions to the controller, 4 jobs", (counted() - before) * 60 / seconds, "per min", note="sdiag")
    row.floor["2.2 per min"] = 2.3
    said(rig, swarm, "kill", "--all", "--everywhere")
    return row


JOBS = {"slurm-jobs": jobs}
