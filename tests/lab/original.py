"""The registry as the original program reads and writes it, for tests side by side.

Written from the description of its behaviour: flock on state.lock, the whole file read and written as JSON with
two-space indent, unknown keys dropped, status by kill(pid, 0), the end of a worker by SIGTERM to the one pid.
"""

import datetime
import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

KEYS = ["name", "status", "cmd", "started", "cwd", "env", "tags", "tmux", "worktree", "pid", "metadata"]
DEFAULTS = {"env": {}, "tags": [], "tmux": None, "worktree": None, "pid": None, "metadata": {}}


class Original:
    def __init__(self, root: Path):
        self.root = root
        for place in (root, root / "logs"):
            place.mkdir(mode=0o700, exist_ok=True)

    @contextmanager
    def locked(self):
        with open(self.root / "state.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> list[dict]:
        try:
            data = json.loads((self.root / "state.json").read_text())
        except FileNotFoundError:
            return []
        return [{key: {**DEFAULTS, **row}[key] for key in KEYS} for row in data.get("workers", [])]

    def write(self, rows: list[dict]) -> None:
        aside = self.root / "state.json.tmp"
        aside.write_text(json.dumps({"workers": rows}, indent=2))
        os.replace(aside, self.root / "state.json")

    def load(self) -> list[dict]:
        with self.locked():
            return self.read()

    def change(self, function) -> None:
        with self.locked():
            rows = self.read()
            self.write(function(rows))

    def add(self, row: dict) -> None:
        self.change(lambda rows: [*rows, row])

    def remove(self, name: str) -> None:
        self.change(lambda rows: [row for row in rows if row["name"] != name])

    def update(self, name: str, **fields) -> None:
        self.change(lambda rows: [{**row, **fields} if row["name"] == name else row for row in rows])

    def row(self, name: str) -> dict | None:
        return next((row for row in self.load() if row["name"] == name), None)

    def spawn(self, name: str, command: list[str], *, env=None, launch=subprocess.Popen):
        """Starts first and records afterwards, as the original does."""
        with open(self.root / "logs" / f"{name}.stdout.log", "w") as out, \
                open(self.root / "logs" / f"{name}.stderr.log", "w") as err:
            process = launch(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True)
        self.add(self.make_row(name, command, process.pid))
        return process

    @staticmethod
    def make_row(name: str, command: list[str], pid: int | None, started: str | None = None) -> dict:
        now = datetime.datetime.now().isoformat(timespec="microseconds")
        row = {"name": name, "status": "running", "cmd": command, "started": started or now, "cwd": os.getcwd()}
        return {key: {**DEFAULTS, **row, "env": {}, "tags": [], "metadata": {}, "pid": pid}[key] for key in KEYS}

    @staticmethod
    def running(row: dict) -> bool:
        try:
            os.kill(row["pid"], 0)
        except (ProcessLookupError, TypeError):
            return False
        return True

    def kill(self, name: str) -> None:
        """Sends SIGTERM to the one pid; the caller waits for the end."""
        try:
            os.kill(self.row(name)["pid"], signal.SIGTERM)
        except ProcessLookupError:
            pass
        self.update(name, status="stopped")


def add_many(root: str, prefix: str, count: int) -> None:
    """Registers ended workers one after the other; runs as a separate process."""
    registry = Original(Path(root))
    for number in range(count):
        registry.add(Original.make_row(f"{prefix}-{number}", ["true"], None))


if __name__ == "__main__":
    add_many(sys.argv[1], sys.argv[2], int(sys.argv[3]))
