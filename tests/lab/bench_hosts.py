"""Verbs on another machine, compared with a plain ssh to the same sshd on loopback."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from .bench_landing import must, repository
from .bench_rows import Row, against, alternate
from .hosts import Site
from .rig import Rig
from .ssh import Door

NAMES = tuple(f"h{number}" for number in range(10))
JOBS, FILES, SENT = 40, 5_000, 10
# Half of the round trip of the long line, in seconds.
HALF = 0.025


def timed(site: Site, *words: str) -> float:
    """Returns the time of a command in milliseconds; its output is read to its end."""
    begun = time.perf_counter()
    done = subprocess.run(words, env=site.here.env, cwd=site.here.work, stdin=subprocess.DEVNULL, capture_output=True)
    took = (time.perf_counter() - begun) * 1000
    if done.returncode != 0:
        raise AssertionError(f"{words}: {done.stderr.decode(errors='replace')[-300:]}")
    return took


def hosts(quick: bool) -> list[Row]:
    """Lists and starts on a host, over a connection that is there and over a new one."""
    rounds = 4 if quick else 15
    with Rig(home_length=1) as far, Door(far) as door, Rig(home_length=1) as here:
        site = Site(here, {name: door for name in NAMES})
        try:
            return [*rows(site, door, rounds), *long_line(site, door, rounds), *runs(site, door, 2 if quick else 5)]
        finally:
            site.close()


def over_master(site: Site, name: str) -> list[str]:
    """Returns the words of ssh over a new connection that swarm shares."""
    site.close()
    for socket in sockets(site):
        socket.unlink()
    timed(site, str(site.here.binary), "--host", name, "ls")
    [socket] = sockets(site)
    return ["ssh", "-S", str(socket), "-o", "ControlMaster=no", name]


def sockets(site: Site) -> list[Path]:
    place = site.run_dir / "swarm-ssh"
    return [path for path in place.iterdir() if path.is_socket()] if place.is_dir() else []


def rows(site: Site, door: Door, rounds: int):
    swarm, remote, name = str(site.here.binary), str(door.rig.binary), NAMES[0]
    master = over_master(site, name)

    warm = alternate({"swarm": lambda: timed(site, swarm, "--host", name, "ls"),
                      "ssh": lambda: timed(site, *master, remote, "ls")}, rounds)
    row = Row("list on a host, connection there", warm.pop("swarm"), peers=warm)
    against(row, "ssh", 1.2, 1.0)
    yield row

    def cold() -> float:
        site.close()
        return timed(site, swarm, "--host", name, "ls")

    found = alternate({"swarm": cold, "ssh": lambda: timed(site, "ssh", "-S", "none", name, remote, "ls")}, rounds)
    row = Row("list on a host, new connection", found.pop("swarm"), peers=found)
    against(row, "ssh", 1.1, 1.0)
    yield row

    for one in NAMES:
        timed(site, swarm, "--host", one, "ls")
    found = alternate({"swarm": lambda: timed(site, swarm, "--host", ",".join(NAMES), "ls", "--json"),
                       "one": lambda: timed(site, swarm, "--host", name, "ls", "--json")}, rounds)
    row = Row(f"list of {len(NAMES)} hosts", found.pop("swarm"), peers=found,
              note="all hosts are this machine, so they share its processors")
    against(row, "one", 1.3)
    yield row

    numbers = iter(range(10_000))
    spawn = ("spawn", "--name")
    found = alternate({"swarm": lambda: timed(site, swarm, "--host", name, *spawn, f"f{next(numbers)}", "--", "true"),
                       "local + ssh": lambda: timed(site, swarm, *spawn, f"l{next(numbers)}", "--", "true")
                       + timed(site, *master, "true")}, rounds)
    row = Row("start on a host", found.pop("swarm"), peers=found)
    against(row, "local + ssh", 1.3)
    yield row


def long_line(site: Site, door: Door, rounds: int):
    """Lists and starts on a host with a round trip of 50 ms, which a relay makes."""
    config = site.here.root / "ssh_config"
    known, relay = config.read_text(), Path(__file__).with_name("relay.py")
    proxy = f"  ProxyCommand {sys.executable} {relay} {door.port} {HALF}\n"
    config.write_text(known.replace(f"Host {NAMES[0]}\n", f"Host {NAMES[0]}\n{proxy}", 1))
    try:
        swarm, name = str(site.here.binary), NAMES[0]
        master = over_master(site, name)
        found = alternate({"swarm": lambda: timed(site, swarm, "--host", name, "ls"),
                           "ssh": lambda: timed(site, *master, str(door.rig.binary), "ls")}, rounds)
        row = Row("list on a host, 50 ms away", found.pop("swarm"), peers=found)
        against(row, "ssh", 1.2)
        yield row
        numbers = iter(range(10_000))
        spawn = ("spawn", "--name")
        found = alternate({"swarm": lambda: timed(site, swarm, "--host", name, *spawn, f"d{next(numbers)}", "--", "true"),
                           "local + ssh": lambda: timed(site, swarm, *spawn, f"e{next(numbers)}", "--", "true")
                           + timed(site, *master, "true")}, rounds)
        row = Row("start on a host, 50 ms away", found.pop("swarm"), peers=found)
        against(row, "local + ssh", 1.3)
        yield row
    finally:
        config.write_text(known)


def runs(site: Site, door: Door, rounds: int):
    """Jobs of a run on a host, and the base that they begin with."""
    here, name = site.here, NAMES[0]
    swarm, master = str(here.binary), over_master(site, name)
    config = here.home / ".config" / "swarm" / "config.toml"
    config.write_text(config.read_text().replace(f"[hosts.{name}]\n", f"[hosts.{name}]\ncap = {SENT}\n", 1))
    (door.rig.home / ".gitconfig").write_text("[user]\nname = x\nemail = x@example.com\n")
    file = here.work / "jobs.toml"
    file.write_text("limit = 8\n" + "[[job]]\ncommand = ['true']\n" * JOBS)

    def jobs() -> float:
        begun = time.perf_counter()
        done = here.run(swarm, "run", str(file), "--on", name, "--headless", cwd=here.work, limit=300)
        took = (time.perf_counter() - begun) * 1000
        last = json.loads(done.out.splitlines()[-1])
        if (last["event"], last["done"]) != ("run.completed", JOBS):
            raise AssertionError(f"not all jobs were done: {last}")
        return took

    line = " ".join(master[:-1])
    parallel = f"seq {JOBS} | parallel --will-cite --ssh '{line}' -S 8/{name} true"
    actions = {"swarm": jobs, "xargs": lambda: timed(site, "sh", "-c", f"seq {JOBS} | xargs -P8 -I@ {line} {name} true")}
    if shutil.which("parallel"):
        actions["parallel"] = lambda: timed(site, "sh", "-c", parallel)
    found = alternate(actions, rounds)
    note = "" if "parallel" in found else "GNU parallel is missing, so this is not compared with it"
    row = Row(f"{JOBS} jobs on a host, 8 at once", found.pop("swarm"), peers=found, note=note)
    against(row, "parallel", 0.3)
    against(row, "xargs", aim=1.0)
    yield row
    yield base(site, door, line, rounds)


def base(site: Site, door: Door, line: str, rounds: int) -> Row:
    """Time from the beginning of a run to the moment when the last of its jobs can be started on the host."""
    here, name = site.here, NAMES[0]
    repo = repository(here, FILES, 1)
    must(here, "git checkout -q -f main && mkdir specs")
    for number in range(SENT):
        (repo / "specs" / f"s{number}.md").write_text(f"---\nadapter: shell\n---\n# Do {number}\n\n```sh\ntrue\n```\n")
    must(here, "git add -A && git commit -q -m specs")
    numbers = iter(range(10_000))

    def sent() -> float:
        # Of another repository, the host has nothing yet.
        copy = here.root / f"copy{next(numbers)}"
        shutil.copytree(repo, copy, symlinks=True)
        for words in (["plan", "--specs", "specs", "-y"], ["trust", "--yes"],
                      ["run", "--on", name, "-j", str(SENT), "--no-merge", "--headless"]):
            done = here.run(str(here.binary), *words, cwd=copy, limit=300)
            if done.rc != 0:
                raise AssertionError(f"{words}: {done.err[-300:]}")
        times = [json.loads(text) for text in (copy / ".arial" / "run.jsonl").read_text().splitlines()[1:]]
        begun = next(at for at, event in times if event == "began")
        last = [at for at, event in times if isinstance(event, dict) and "sent" in event]
        if len(last) != SENT:
            raise AssertionError(f"{len(last)} of {SENT} jobs were sent")
        return float(last[-1] - begun)

    def push() -> float:
        there = door.rig.home / f"bare{next(numbers)}"
        must(door.rig, f"git init -q --bare {there}", door.rig.home)
        words = f"GIT_SSH_COMMAND='{line}' git push -q {name}:{there} main"
        begun = time.perf_counter()
        must(here, words)
        return (time.perf_counter() - begun) * 1000

    found = alternate({"swarm": sent, "git push": push}, rounds)
    row = Row(f"a base of {FILES:,} files to a host, for {SENT} specs", found.pop("swarm"), peers=found,
              note="while the first of them begin there")
    against(row, "git push", 1.2)
    return row


HOSTS = {"hosts": hosts}
