"""A stand-in for the original `swarm`, which keeps its workers in state.json: its wire form, its lock and its
behaviour, good and bad, as far as they matter to swarm.

    original.py spawn NAME [--tmux SESSION] -- COMMAND...
    original.py ls | kill NAME | clean NAME | respawn NAME | burst PREFIX COUNT
    original.py ralph begin NAME SESSION PROMPT MAX [--worktree PATH REPO] -- COMMAND...
    original.py ralph set NAME KEY=JSON... | run NAME
"""

import datetime
import fcntl
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Optional

ROOT = os.environ["SWARM_DIR"]
STATE = os.path.join(ROOT, "state.json")


@dataclass
class Window:
    """Fails on unknown keys, as the original does."""

    session: str
    window: str
    socket: Optional[str] = None


@dataclass
class Tree:
    path: str
    branch: str
    base_repo: str


@dataclass
class Worker:
    """Drops unknown keys, as the original does."""

    name: str
    status: str
    cmd: list
    started: str
    cwd: str
    env: dict = field(default_factory=dict)
    tags: list = field(default_factory=list)
    tmux: Optional[Window] = None
    worktree: Optional[Tree] = None
    pid: Optional[int] = None
    metadata: dict = field(default_factory=dict)

    @staticmethod
    def read(row):
        known = {key: row[key] for key in ("name", "status", "cmd", "started", "cwd")}
        for key in ("env", "tags", "pid", "metadata"):
            if key in row:
                known[key] = row[key]
        known["tmux"] = Window(**row["tmux"]) if row.get("tmux") else None
        known["worktree"] = Tree(**row["worktree"]) if row.get("worktree") else None
        return Worker(**known)

    def target(self):
        return f"{self.tmux.session}:{self.tmux.window}"

    def running(self):
        if self.tmux:
            return tmux(self.tmux.socket, "has-session", "-t", self.target()).returncode == 0
        if not self.pid:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return open(f"/proc/{self.pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"


def tmux(socket, *words):
    server = ["-L", socket] if socket else []
    return subprocess.run(["tmux", *server, *words], capture_output=True, text=True)


class Registry:
    """One critical section: reads, changes, writes a temporary file, renames it."""

    def __enter__(self):
        self.lock = open(os.path.join(ROOT, "state.lock"), "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        rows = json.load(open(STATE))["workers"] if os.path.exists(STATE) else []
        self.workers = [Worker.read(row) for row in rows]
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            with open(STATE + ".tmp", "w") as out:
                json.dump({"workers": [asdict(worker) for worker in self.workers]}, out, indent=2)
            os.rename(STATE + ".tmp", STATE)
        self.lock.close()

    def find(self, name):
        found = [worker for worker in self.workers if worker.name == name]
        if not found:
            sys.exit(f"swarm: error: worker '{name}' not found")
        return found[0]


def start(worker):
    if worker.tmux:
        if tmux(worker.tmux.socket, "has-session", "-t", worker.tmux.session).returncode:
            tmux(worker.tmux.socket, "new-session", "-d", "-s", worker.tmux.session)
        place = ["-t", worker.tmux.session, "-n", worker.name, "-c", worker.cwd]
        made = tmux(worker.tmux.socket, "new-window", "-a", *place, " ".join(worker.cmd))
        assert made.returncode == 0, made.stderr
    else:
        log = open(os.path.join(ROOT, "logs", worker.name.replace("/", "_") + ".stdout.log"), "w")
        process = subprocess.Popen(
            worker.cmd, cwd=worker.cwd, env={**os.environ, **worker.env}, stdout=log, stderr=log, start_new_session=True
        )
        worker.pid = process.pid
    worker.status, worker.started = "running", datetime.datetime.now().isoformat()


def stop(worker):
    if worker.tmux:
        tmux(worker.tmux.socket, "kill-window", "-t", worker.target())
    elif worker.running():
        handle = os.pidfd_open(worker.pid)
        signal.pidfd_send_signal(handle, signal.SIGTERM)
    worker.status = "stopped"


def loop_file(name, leaf):
    return os.path.join(ROOT, "ralph", name, leaf)


def tell(name, line):
    with open(loop_file(name, "iterations.log"), "a") as log:
        log.write(f"{datetime.datetime.now().isoformat(timespec='seconds')} {line}\n")


def change(name, **members):
    """Takes no lock and does not check what another program wrote meanwhile."""
    path = loop_file(name, "state.json")
    state = json.load(open(path)) if os.path.exists(path) else {}
    state.update(members)
    with open(path + ".tmp", "w") as out:
        json.dump(state, out, indent=2)
    os.rename(path + ".tmp", path)


def begin(name, session, prompt, most, *words):
    """Starts a loop whose first iteration runs and which no process monitors."""
    split = words.index("--")
    flags, cmd = words[:split], list(words[split + 1 :])
    worker = Worker(name, "running", cmd, "", os.getcwd(), env={"K": "V"}, metadata={"ralph": True, "ralph_iteration": 1})
    worker.tmux = Window(session, name)
    if flags:
        worker.worktree = Tree(flags[1], name, flags[2])
        worker.cwd = flags[1]
        subprocess.run(["git", "-C", flags[2], "worktree", "add", "-q", "-b", name, flags[1]], check=True)
    start(worker)
    with Registry() as registry:
        registry.workers.append(worker)
    os.makedirs(os.path.dirname(loop_file(name, "")), exist_ok=True)
    now = datetime.datetime.now().isoformat()
    change(
        name, worker_name=name, prompt_file=os.path.abspath(prompt), max_iterations=int(most), current_iteration=1,
        status="running", started=now, last_iteration_started=now, last_iteration_ended="", iteration_durations=[],
        consecutive_failures=0, total_failures=0, done_pattern=None, inactivity_timeout=180,
        check_done_continuous=False, exit_reason=None, prompt_baseline_content="", last_screen_change=None,
        monitor_pid=None, max_context=None, context_nudge_sent=False,
    )
    tell(name, f"[START] iteration 1/{most}")
    tmux(None, "send-keys", "-t", worker.target(), "-l", open(prompt).read().strip())
    tmux(None, "send-keys", "-t", worker.target(), "Enter")


def look_after(name):
    """Monitors the loop until a signal asks it to end, which pauses the loop."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    change(name, monitor_pid=os.getpid())
    signal.sigwait([signal.SIGTERM])
    change(name, status="paused")
    tell(name, "[PAUSE] loop paused reason=sigterm")


def ralph(verb, name, *words):
    if verb == "begin":
        begin(name, *words)
    elif verb == "set":
        change(name, **{key: json.loads(value) for key, value in (word.split("=", 1) for word in words)})
    elif verb == "run":
        look_after(name)


def main(verb, *words):
    words = list(words)
    os.makedirs(os.path.join(ROOT, "logs"), exist_ok=True)
    if verb == "spawn":
        split = words.index("--")
        name, flags, cmd = words[0], words[1:split], words[split + 1 :]
        worker = Worker(name, "running", cmd, "", os.getcwd(), env={"K": "V"}, tags=["theirs"], metadata={"note": "é"})
        if flags[:1] == ["--tmux"]:
            worker.tmux = Window(flags[1], name)
        start(worker)
        with Registry() as registry:
            registry.workers.append(worker)
    elif verb == "ls":
        with Registry() as registry:
            for worker in registry.workers:
                print(worker.name, "running" if worker.running() else "stopped")
    elif verb == "kill":
        with Registry() as registry:
            stop(registry.find(words[0]))
    elif verb == "clean":
        with Registry() as registry:
            registry.workers.remove(registry.find(words[0]))
    elif verb == "respawn":
        with Registry() as registry:
            worker = registry.find(words[0])
            stop(worker)
            registry.workers.remove(worker)
        start(worker)
        with Registry() as registry:
            registry.workers.append(worker)
    elif verb == "ralph":
        ralph(*words)
    elif verb == "burst":
        for number in range(int(words[1])):
            with Registry() as registry:
                row = Worker(f"{words[0]}{number}", "stopped", ["true"], datetime.datetime.now().isoformat(), "/")
                registry.workers.append(row)


main(*sys.argv[1:])
