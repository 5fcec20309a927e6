"""Soak: hundreds of short workers while the supervisor, shims and tmux are killed.

Every worker records its start and its end in the ledger. In the end each acknowledged worker ran exactly once, its
recorded exit code is the one it ended with (unknown only if its shim was killed), the session of every other worker has
ended as the worker did, and nothing is left behind.
"""

import json
import random
import signal
import sys
import time
from pathlib import Path

from . import cases, procs
from .inject import agreement, panics, stop_everything
from .oracle import Expect, Oracle, token_of
from .rig import Rig, Timeout, wait_until

SETTLE_LIMIT = 30


class Soak:
    def __init__(self, rig: Rig, seconds: float, workers: int, seed: int, tmux: bool):
        self.rig = rig
        self.random = random.Random(seed)
        self.seconds = seconds
        self.tmux = tmux
        self.workers = workers
        self.codes: dict[str, int] = {}
        self.acked: set[str] = set()
        self.in_tmux: set[str] = set()
        self.shimless: set[str] = set()
        self.tmux_cut: set[str] = set()
        self.sessions: dict[str, Path] = {}
        # The shortest heartbeat interval, so that kills hit heartbeats.
        rig.env["AGENT_HEARTBEAT_INTERVAL_MS"] = "100"
        self.killed = {"supervisor": 0, "guard": 0, "forkserver": 0, "shim": 0, "tmux": 0}
        self.findings: list[str] = []
        self.longest = 0.0

    def run(self) -> list[str]:
        """Spreads the spawns over the time and strikes in between."""
        if self.tmux:
            self.rig.start_tmux()
        begun = time.monotonic()
        next_kill = begun + 1
        next_tmux = begun + self.seconds / 4
        number = 0
        while number < self.workers or time.monotonic() < begun + self.seconds:
            now = time.monotonic()
            if now >= next_kill:
                self.kill_supervisor()
                next_kill = now + self.random.uniform(1, 5)
            if self.tmux and now >= next_tmux:
                self.kill_tmux()
                next_tmux = now + self.seconds / 4
            due = begun + number * self.seconds / self.workers
            if number < self.workers and now >= due:
                self.spawn(number)
                number += 1
                continue
            next_due = due if number < self.workers else begun + self.seconds
            self.rest(min(next_due, next_kill, begun + self.seconds) - now)
            if now > begun + 4 * self.seconds:
                return self.findings + ["wedge: the spawns took four times as long as planned"]
        return self.findings + self.verdict()

    def rest(self, seconds: float) -> None:
        """Waits between actions and reaps orphans."""
        procs.reap()
        time.sleep(max(0.0, min(seconds, 0.2)))

    def spawn(self, number: int) -> None:
        name = f"w{number}"
        self.codes[name] = self.random.choice([0, 0, 0, 1, 3, 7, 42, 255])
        flags = self.rig.tmux_flags if self.tmux and self.random.random() < 0.3 else ()
        if number % 2:
            self.sessions[name] = self.rig.root / "sessions" / name
            self.sessions[name].mkdir(parents=True)
            flags = (*flags, "--session-dir", str(self.sessions[name]))
        delay = f"{self.random.uniform(0, 4):.2f}"
        result = self.rig.spawn(name, "exit", self.codes[name], delay, flags=flags)
        self.longest = max(self.longest, result.seconds)
        if result.rc != 0:
            self.findings.append(f"wedge: {result}")
            return
        self.acked.add(name)
        if "--tmux" in flags:
            self.in_tmux.add(name)
        if self.random.random() < 0.02:
            self.kill_shim(name)

    def kill_supervisor(self) -> None:
        """Kills the supervisor, sometimes with its guard, or the fork server instead."""
        both, forks = self.random.random() < 0.2, self.random.random() < 0.3
        struck = {"forkserver"} if forks else {"supervisor", "guard"} if both else {"supervisor"}
        people = self.rig.census()
        supervisors = {process.pid for process in people if process.role == "supervisor"}
        for process in people:
            # A process that the fork server keeps ready may already be a shim; the server itself never is.
            spare = process.role == "forkserver" and process.ppid not in supervisors
            if process.role in struck and not spare:
                self.killed[process.role] += procs.send(process.pid, process.start, signal.SIGKILL)

    def kill_shim(self, name: str) -> None:
        """Kills one worker's shim; from now on its exit code may be unknown."""
        folder = self.rig.folder(name)
        try:
            shim = json.loads((folder / "lease").read_text())["shim"]
        except (OSError, TypeError, ValueError):
            return
        if procs.send(shim["pid"], shim["start_ticks"], signal.SIGKILL):
            self.killed["shim"] += 1
            self.shimless.add(name)

    def kill_tmux(self) -> None:
        """Kills the whole server: its workers end by hang-up, and their exit records name a signal."""
        self.tmux_cut |= {name for name in self.in_tmux if self.rig.exit_record(name) is None}
        # The client and the server look alike; the parent of the panes is the server.
        for process in self.rig.of_role("tmux"):
            self.killed["tmux"] += procs.send(process.pid, process.start, signal.SIGKILL)
        self.rig.start_tmux()

    def verdict(self) -> list[str]:
        # The last strike may have killed supervisor and guard; nobody else starts another one.
        self.rig.must("supervisor", "start")
        ended = self.rig.swarm("wait", "--all", "--timeout", str(SETTLE_LIMIT), limit=SETTLE_LIMIT + 10)
        findings = [] if ended.rc == 0 else [f"wedge: {ended}"]
        expect = Expect(must=set(self.acked), stopped=set(self.codes))
        findings += Oracle(self.rig).converge(expect)
        findings += self.exit_codes() + self.session_ends() + agreement(self.rig) + panics(self.rig)
        cleaned = self.rig.swarm("clean", "--all", limit=60)
        if cleaned.rc != 0:
            findings.append(f"wedge: {cleaned}")
        if self.rig.rows():
            findings.append(f"litter: {len(self.rig.rows())} rows after clean --all")
        places = self.rig.dir / "w"
        try:
            wait_until(lambda: not places.is_dir() or not any(places.iterdir()), 10, "w/ is empty")
        except Timeout:
            findings.append(f"litter: {sorted(p.name for p in places.iterdir())[:5]} after clean --all")
        return findings + stop_everything(self.rig)

    def session_ends(self) -> list[str]:
        """Compares the sessions with the exit records; checks that no session still beats or leaves files."""
        states = {name: folder / ".agent" / "state.json" for name, folder in self.sessions.items() if name in self.acked}

        def status(name: str) -> str:
            return json.loads(states[name].read_text())["status"]

        try:
            wait_until(lambda: not any(status(name) in ("initializing", "running") for name in states), 15, "sessions have ended")
        except Timeout:
            pass
        findings = []
        for name in states:
            record = self.rig.exit_record(name)
            success = record is not None and record.get("code") == 0
            if (status(name) == "completed") != success or status(name) not in ("completed", "failed", "stopped"):
                findings.append(f"altered: the session of {name} is {status(name)}, its record says {record}")
            left = sorted(path.name for path in states[name].parent.iterdir() if path.name != "progress.log")
            # A temporary file of a supervisor that was killed while it wrote the state is removed by a later write.
            whole = [path for path in left if not path.startswith(".state.json.tmp-")]
            if whole != ["state.json", "state.lock"]:
                findings.append(f"litter: {whole} in the session of {name}")
        return findings

    def exit_codes(self) -> list[str]:
        """Compares the exit records with what the workers recorded themselves."""
        said = {line[1]: int(line[4]) for line in self.rig.ledger_lines() if line[0] == "end"}
        findings = []
        for name in sorted(self.acked):
            record = self.rig.exit_record(name)
            if record is None:
                if name not in self.shimless:
                    findings.append(f"lost: exit code of {name}")
                continue
            if record.get("token") != token_of(self.rig.row(name)):
                findings.append(f"altered: exit record of {name} has another token")
            cut = name in self.tmux_cut or (name in self.shimless and name in self.in_tmux)
            if name in said and not cut and record.get("code") != said[name]:
                findings.append(f"altered: {name} ended with {said[name]}, its record says {record}")
            if name not in said and not cut:
                findings.append(f"altered: {name} did not run to its end: {record}")
        return findings


def run_soak(seconds: float, workers: int, seed: int, tmux: bool = True) -> list[str]:
    with Rig() as rig:
        soak = Soak(rig, seconds, workers, seed, tmux)
        findings = soak.run()
        kills = ", ".join(f"{count} {what}" for what, count in soak.killed.items())
        print(f"      {len(soak.acked)} workers, killed: {kills}; slowest spawn {soak.longest:.2f} s", flush=True)
        return findings


def main(argv=None) -> int:
    parser = cases.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--seed", type=int, help="replay the choices of an earlier run (default: the time)")
    parser.add_argument("--no-tmux", action="store_true", help="only detached workers")
    args = parser.parse_args(argv)
    cases.ends_on_term()
    seed = args.seed if args.seed is not None else int(time.time())
    name = f"soak: {args.workers} workers in {args.seconds:g} s, seed {seed}"
    case = {name: lambda: run_soak(args.seconds, args.workers, seed, not args.no_tmux)}
    return cases.run_all(case, args.only, allow_skips=args.allow_skips).close()


if __name__ == "__main__":
    sys.exit(main())
