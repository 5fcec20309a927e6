"""A rig: a private world per case, and the means to remove it completely.

A rig has its own home, state directory, tmux socket and git repository. Every process that descends from it carries
SWARM_RIG=<uuid> in its environment, by which the rig finds and ends the process, whatever it did to hide.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from . import procs

ROOT = Path(__file__).resolve().parents[2]
TRIPLE = "x86_64-unknown-linux-gnu"
SOCKET = "lab"
TMUX_TRIES = 10
SESSION = "lab"

WORKER = """#!/bin/sh
# The first act of every worker: record its start. Fields of /proc/PID/stat are
# safe to split, because the name of this script has no blanks.
read -r stat < /proc/$$/stat
what=$1; shift
say() { printf '%s\\n' "$*" >> '@LEDGER@'; }
set_start() { shift 21; start=$1; }
set_start $stat
say "start ${SWARM_WORKER:--} ${SWARM_TOKEN:--} $$ $start"
finish() { say "end ${SWARM_WORKER:--} ${SWARM_TOKEN:--} $$ $1"; exit "$1"; }
case $what in
  sleep) exec sleep "$1" ;;
  exit) [ -n "${2:-}" ] && sleep "$2"; finish "$1" ;;
  ignore-term) trap '' TERM; while :; do sleep 1000 & wait $!; done ;;
  stop-self) kill -STOP $$; exec sleep 1000 ;;
  close-all) exec 0<&- 1>&- 2>&- 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; exec sleep 1000 ;;
  daemonise) setsid setsid sleep 1000 >/dev/null 2>&1 </dev/null & exec sleep 1000 ;;
  flood) head -c "$1" /dev/zero | tr '\\0' 'x' | fold -w 120; finish 0 ;;
  binary) head -c "$1" /dev/urandom; printf '\\033]0;owned\\007\\033[2J\\000\\377'; finish 0 ;;
  env) env; finish 0 ;;
  stamp) sleep "$1"; exec "@PYTHON@" -S -c 'import time,sys;open(sys.argv[1],"w").write(str(time.clock_gettime_ns(1)))' "$2" ;;
esac
"""


@dataclass
class Result:
    """Result of one command. `rc` is `None` if the command had to be killed."""

    argv: list[str]
    rc: int | None
    out: str
    err: str
    seconds: float

    def __str__(self) -> str:
        words = " ".join(os.path.basename(self.argv[0]) if i == 0 else a for i, a in enumerate(self.argv))
        return f"`{words[:120]}` -> rc {self.rc}, out {self.out.strip()[:200]!r}, err {self.err.strip()[:300]!r}"


class Timeout(AssertionError):
    """Raised if a condition did not become true within its limit."""


def wait_until(condition, limit: float, what: str, step: float = 0.01):
    """Polls `condition` until it is true and returns its value."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise Timeout(f"not within {limit:g} s: {what}")
        procs.reap()
        time.sleep(step)


def find_binary() -> str:
    """Returns $SWARM_BIN, or the newest build in this repository."""
    given = os.environ.get("SWARM_BIN")
    if given:
        return str(Path(given).resolve())
    places = [ROOT / "target" / TRIPLE / kind / "swarm" for kind in ("release", "debug")]
    places += [ROOT / "target" / kind / "swarm" for kind in ("release", "debug")]
    built = [place for place in places if os.access(place, os.X_OK)]
    if not built:
        raise SystemExit("lab: error: no swarm binary (build one with `cargo build --release`, or set SWARM_BIN)")
    return str(max(built, key=lambda place: place.stat().st_mtime))


def temp_base() -> str:
    """Directory for the rigs, on tmpfs if possible: they measure the program, not the disk."""
    given = os.environ.get("LAB_TMP")
    if given:
        return given
    shm = "/dev/shm"
    if os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > 2 << 30:
        return shm
    return tempfile.gettempdir()


class Rig:
    """Context manager; on exit, all processes of the rig are killed and its files removed."""

    def __init__(self, *, binary: str | None = None, base: str | None = None, home_length: int = 0):
        self.binary = binary or find_binary()
        self.marker = uuid.uuid4().hex
        self.root = Path(tempfile.mkdtemp(prefix="lab-", dir=base or temp_base()))
        self.home = self.root / ("h" * max(1, home_length))
        self.dir = self.home / ".swarm" if home_length else self.root / "s"
        self.repo = self.root / "repo"
        self.ledger = self.root / "ledger"
        self.out = self.root / "out"
        self.work = self.root / "work"
        for place in (self.home, self.root / "t", self.out, self.work):
            place.mkdir(mode=0o700)
        self.ledger.touch()
        self.script = self.root / "worker"
        self.script.write_text(WORKER.replace("@LEDGER@", str(self.ledger)).replace("@PYTHON@", shutil.which("python3")))
        self.script.chmod(0o755)
        self.runs = itertools.count(1)
        self.env = self.make_env()
        if not home_length:
            self.env["SWARM_DIR"] = str(self.dir)

    def make_env(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self.home),
            "TMUX_TMPDIR": str(self.root / "t"),
            "SWARM_RIG": self.marker,
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "SHELL": "/bin/sh",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "Lab",
            "GIT_AUTHOR_EMAIL": "lab@localhost",
            "GIT_COMMITTER_NAME": "Lab",
            "GIT_COMMITTER_EMAIL": "lab@localhost",
        }

    def __enter__(self) -> "Rig":
        return self

    def __exit__(self, *exc) -> None:
        self.end()

    # Commands.

    def start(self, argv: list[str], *, cwd=None, env=None, prepare=None):
        """Starts a program with its output in files, so that a daemon that keeps them open blocks nothing."""
        number = next(self.runs)
        paths = [self.out / f"{number}.{kind}" for kind in ("stdout", "stderr")]
        with open(paths[0], "wb") as out, open(paths[1], "wb") as err:
            process = procs.launch(
                argv, cwd=cwd or self.work, env={**self.env, **(env or {})},
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=prepare)
        return process, paths, time.monotonic()

    def finish(self, started, limit: float = 30) -> Result:
        """Waits for a program of `start`; kills it after the limit, which leaves `rc` `None`."""
        process, paths, begun = started
        try:
            rc = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            rc = None
        procs.forget(process)
        texts = [path.read_bytes().decode(errors="replace") for path in paths]
        return Result(list(process.args), rc, texts[0], texts[1], time.monotonic() - begun)

    def run(self, *argv: str, limit: float = 30, **kwargs) -> Result:
        return self.finish(self.start(list(argv), **kwargs), limit)

    def swarm(self, *args: str, **kwargs) -> Result:
        return self.run(self.binary, *args, **kwargs)

    def must(self, *args: str, **kwargs) -> Result:
        """Runs a swarm command of the setup, which must succeed."""
        result = self.swarm(*args, **kwargs)
        if result.rc != 0:
            raise AssertionError(f"setup failed: {result}")
        return result

    def worker(self, what: str, *args) -> list[str]:
        return [str(self.script), what, *map(str, args)]

    def spawn(self, name: str, *what, flags: tuple = (), **kwargs) -> Result:
        command = self.worker(*(what or ("sleep", 1000)))
        return self.swarm("spawn", "--name", name, *flags, "--", *command, **kwargs)

    # Other tools.

    @property
    def tmux_flags(self) -> tuple[str, ...]:
        return ("--tmux", "--session", SESSION, "--tmux-socket", SOCKET)

    def tmux(self, *args: str) -> Result:
        return self.run("tmux", "-L", SOCKET, *args)

    def start_tmux(self) -> None:
        """Starts the rig's own server, kept alive by a session that is not swarm's.

        A server that a worker started may be exiting with its last window and then drops its clients: the command is
        retried with the next server.
        """
        for _ in range(TMUX_TRIES):
            result = self.tmux("-f", "/dev/null", "new-session", "-d", "-s", "holder", "sleep 100000")
            if result.rc == 0:
                return
            if "server exited" not in result.err and "lost server" not in result.err:
                break
        raise AssertionError(f"tmux does not start: {result}")

    def make_repo(self, files: int = 3) -> Path:
        """Makes a repository with one commit on the branch main."""
        self.repo.mkdir(exist_ok=True)
        for number in range(files):
            place = self.repo / f"d{number // 50}"
            place.mkdir(exist_ok=True)
            (place / f"f{number}.txt").write_text(f"{number}\n" * 20)
        for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
            result = self.run("git", "-C", str(self.repo), *words, limit=120)
            if result.rc != 0:
                raise AssertionError(f"no repository: {result}")
        return self.repo

    # Inspection.

    def census(self) -> list[procs.Process]:
        procs.reap()
        return procs.census(self.marker)

    def of_role(self, role: str) -> list[procs.Process]:
        return [process for process in self.census() if process.role == role]

    def workers(self) -> list[procs.Process]:
        """Processes that run on behalf of a worker (the worker and its descendants)."""
        return [p for p in self.census() if p.token and p.role not in ("shim", "forkserver", "command", "guard", "supervisor")]

    def supervisor(self) -> procs.Process | None:
        found = self.of_role("supervisor")
        return found[0] if found else None

    def state_text(self) -> str | None:
        try:
            return (self.dir / "state.json").read_text()
        except FileNotFoundError:
            return None

    def rows(self) -> list[dict]:
        text = self.state_text()
        return json.loads(text)["workers"] if text is not None else []

    def row(self, name: str) -> dict | None:
        return next((row for row in self.rows() if row["name"] == name), None)

    def items(self) -> list[dict]:
        """Items of all merge queues, from the journals."""
        journals = self.dir.glob("merge/*/queue.json")
        return [item for path in journals for item in json.loads(path.read_text())["queue"]["items"]]

    def folder(self, name: str) -> Path | None:
        """Directory of a worker's current generation."""
        row = self.row(name)
        meta = (row or {}).get("metadata", {}).get("swarm")
        return self.dir / "w" / f"{name}.{meta['generation']}" if meta else None

    def exit_record(self, name: str) -> dict | None:
        folder = self.folder(name)
        try:
            return json.loads((folder / "exit.json").read_text()) if folder else None
        except FileNotFoundError:
            return None

    def ledger_lines(self) -> list[list[str]]:
        return [line.split() for line in self.ledger.read_text().splitlines()]

    # Clean-up.

    def end(self) -> None:
        """Kills every process of the rig and removes its directory."""
        deadline = time.monotonic() + 15
        while True:
            left = self.census()
            if not left or time.monotonic() > deadline:
                break
            # The guard is killed first: it would restart its child.
            for process in sorted(left, key=lambda p: p.role != "guard"):
                procs.send(process.pid, process.start, signal.SIGKILL)
            for process in left:
                procs.wait_gone(process.pid, 1)
        shutil.rmtree(self.root, ignore_errors=True)
        if left:
            raise AssertionError(f"could not end: {', '.join(map(str, left))}")
