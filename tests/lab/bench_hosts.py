"""Verbs on another machine, compared with a plain ssh to the same sshd on loopback."""

import subprocess
import time

from .bench_rows import Row, against, alternate
from .hosts import Site
from .rig import Rig
from .ssh import Door

NAMES = tuple(f"h{number}" for number in range(10))


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
            return list(rows(site, door, rounds))
        finally:
            site.close()


def rows(site: Site, door: Door, rounds: int):
    swarm, remote, name = str(site.here.binary), str(door.rig.binary), NAMES[0]
    timed(site, swarm, "--host", name, "ls")
    socket = next(path for path in (site.run_dir / "swarm-ssh").iterdir() if path.is_socket())
    master = ["ssh", "-S", str(socket), "-o", "ControlMaster=no", name]

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


HOSTS = {"hosts": hosts}
