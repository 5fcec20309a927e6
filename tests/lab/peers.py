"""The programs that the benchmark times: swarm and its peers behind one interface, each in a private rig."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from . import cases, procs
from .rig import Rig, wait_until

DEVNULL = os.open(os.devnull, os.O_RDWR)
QUIET = [(os.POSIX_SPAWN_DUP2, DEVNULL, 0), (os.POSIX_SPAWN_DUP2, DEVNULL, 1), (os.POSIX_SPAWN_DUP2, DEVNULL, 2)]


def timed(argv: list[str], env: dict, cwd, may_fail: bool = False) -> float:
    """Runs a program and returns the milliseconds from before its start until it was waited for."""
    os.chdir(cwd)
    begun = time.perf_counter_ns()
    pid = os.posix_spawn(argv[0], argv, env, file_actions=QUIET)
    _, status = os.waitpid(pid, 0)
    ended = time.perf_counter_ns()
    if status != 0 and not may_fail:
        raise AssertionError(f"{' '.join(argv)[:150]}: rc {os.waitstatus_to_exitcode(status)}")
    return (ended - begun) / 1e6


class Subject:
    """One program: how it starts, lists, kills and waits. Ids count from 0 in order of starts."""

    name = ""

    def __init__(self, base: str | None = None, binary: str | None = None):
        self.rig = Rig(binary=binary or "/bin/true", base=base)
        self.started = 0
        self.begin()

    def begin(self) -> None:
        """Starts what has to run before the first call."""

    def end(self) -> None:
        self.rig.end()

    def __enter__(self):
        return self

    def __exit__(self, *exc) -> None:
        self.end()

    def call(self, argv: list[str], may_fail: bool = False) -> float:
        return timed(argv, self.rig.env, self.rig.work, may_fail)

    def start_words(self, number: int, command: list[str]) -> list[str]:
        raise NotImplementedError

    def start(self, command: list[str]) -> float:
        number = self.started
        self.started += 1
        return self.call(self.start_words(number, command))

    def fill(self, count: int, command: list[str]) -> None:
        """Starts workers until `count` are registered."""
        while self.started < count:
            self.start(command)
        self.settle()

    def settle(self) -> None:
        """Waits until all started workers have ended or are running."""

    def list_words(self) -> list[str]:
        raise NotImplementedError

    def status_words(self, number: int) -> list[str]:
        raise NotImplementedError

    def kill_words(self, number: int) -> list[str]:
        raise NotImplementedError

    def wait_words(self, number: int) -> list[str]:
        raise NotImplementedError

    def wait_all_words(self) -> list[str]:
        raise NotImplementedError

    def clear(self) -> None:
        """Forgets ended workers."""

    def overhead(self) -> dict[int, int]:
        """PSS in kB of each of its processes, without the `sleep`s that it was asked to run."""
        people = self.rig.census()
        return procs.descendants_pss([p.pid for p in people if os.path.basename(p.argv[0] if p.argv else "") != "sleep"])


class Swarm(Subject):
    name = "swarm"

    def __init__(self, base: str | None = None):
        from .rig import find_binary
        super().__init__(base, find_binary())

    def begin(self) -> None:
        self.call([self.rig.binary, "spawn", "--name", "first", "--", "/bin/sleep", "100000"])

    def label(self, number: int) -> str:
        return f"n{number}"

    def start_words(self, number: int, command: list[str]) -> list[str]:
        return [self.rig.binary, "spawn", "--name", self.label(number), "--", *command]

    def list_words(self) -> list[str]:
        return [self.rig.binary, "ls"]

    def status_words(self, number: int) -> list[str]:
        return [self.rig.binary, "status", self.label(number)]

    def kill_words(self, number: int) -> list[str]:
        return [self.rig.binary, "kill", self.label(number)]

    def wait_words(self, number: int) -> list[str]:
        return [self.rig.binary, "wait", self.label(number)]

    def wait_all_words(self) -> list[str]:
        # `first` keeps the supervisor busy and never ends, so it must not be waited for.
        return [self.rig.binary, "wait", "--all"]

    def clear(self) -> None:
        self.call([self.rig.binary, "clean", "--all"])


class SwarmShort(Swarm):
    """swarm without the long-lived worker, for scenarios that wait for all workers."""

    def begin(self) -> None:
        self.call([self.rig.binary, "spawn", "--name", "first", "--", "/bin/true"])


class Pueue(Subject):
    name = "pueue"

    @staticmethod
    def find() -> Path:
        given = os.environ.get("PUEUE_BIN")
        place = (Path(given) if Path(given).is_dir() else Path(given).parent) if given else Path(shutil.which("pueue") or "/nowhere/pueue").parent
        if not (place / "pueue").exists() or not (place / "pueued").exists():
            raise cases.Missing("pueue and pueued in PATH or $PUEUE_BIN (cargo install pueue)")
        return place

    def begin(self) -> None:
        place = self.find()
        home = self.rig.home / "pueue"
        home.mkdir()
        config = home / "pueue.yml"
        shared = {"pueue_directory": str(home), "runtime_directory": str(home), "use_unix_socket": True,
                  "unix_socket_path": str(home / "socket")}
        # JSON is valid YAML, so no library is needed to write the configuration.
        config.write_text(json.dumps({"shared": shared, "client": {}, "daemon": {}}))
        self.pueue = [str(place / "pueue"), "-c", str(config)]
        self.daemon = procs.launch([str(place / "pueued"), "-c", str(config)], env=self.rig.env,
                                   stdin=DEVNULL, stdout=DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: self.ready(), 10, "pueued answers")
        self.call([*self.pueue, "parallel", "0"])

    def ready(self) -> bool:
        try:
            self.call([*self.pueue, "status"])
            return True
        except AssertionError:
            return False

    def end(self) -> None:
        self.daemon.kill()
        self.daemon.wait()
        procs.forget(self.daemon)
        super().end()

    def start_words(self, number: int, command: list[str]) -> list[str]:
        return [*self.pueue, "add", "--", *command]

    def list_words(self) -> list[str]:
        return [*self.pueue, "status"]

    def status_words(self, number: int) -> list[str]:
        return [*self.pueue, "status", f"columns=id,status,command order_by id desc last {1}"]

    def kill_words(self, number: int) -> list[str]:
        return [*self.pueue, "kill", str(number)]

    def wait_words(self, number: int) -> list[str]:
        return [*self.pueue, "wait", str(number)]

    def wait_all_words(self) -> list[str]:
        return [*self.pueue, "wait", "--all"]

    def clear(self) -> None:
        self.call([*self.pueue, "clean"])


class Tsp(Subject):
    name = "tsp"

    def begin(self) -> None:
        found = shutil.which("tsp")
        if found is None:
            raise cases.Missing("tsp in PATH (Debian: task-spooler)")
        self.tsp = found
        self.rig.env |= {"TS_SOCKET": str(self.rig.root / "tsp"), "TS_SLOTS": "2000", "TS_MAXFINISHED": "5000",
                         "TS_MAXCONN": "2000", "TMPDIR": str(self.rig.work)}
        self.call([self.tsp, "-S", "2000"])

    def start_words(self, number: int, command: list[str]) -> list[str]:
        return [self.tsp, *command]

    def list_words(self) -> list[str]:
        return [self.tsp]

    def status_words(self, number: int) -> list[str]:
        return [self.tsp, "-s", str(number)]

    def kill_words(self, number: int) -> list[str]:
        return [self.tsp, "-k", str(number)]

    def wait_words(self, number: int) -> list[str]:
        return [self.tsp, "-w", str(number)]

    def wait_all_words(self) -> list[str]:
        # tsp can wait for one job only; the last one stands for all.
        return [self.tsp, "-w", str(self.started - 1)]

    def clear(self) -> None:
        self.call([self.tsp, "-C"])
