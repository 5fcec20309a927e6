"""Random strikes at a run: kill -9 of each of its parts, stops, pauses and reboots.

Shared by the soaks of specs and jobs: a client always watches, every strike at an attempt is recorded, and in the end
each failure must have a matching cause.
"""

import json
import os
import random
import re
import signal
import subprocess
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from . import procs
from .inject import panics
from .oracle import Oracle
from .rig import Rig, Timeout, wait_until

LIMIT = 10
# Maximum time without an event once nothing is struck any more, in seconds.
SETTLE_LIMIT = 120
COMMAND_LIMIT = 60
BOOT_ID = "/proc/sys/kernel/random/boot_id"
OVER = ("completed", "failed")
UNDER_WAY = ("running", "paused", "stopping")
RACES = ("no run is in progress", "the run ended before it could answer")
STRIKES = {"supervisor": 5, "guard": 2, "both": 2, "forkserver": 1, "shim": 2, "attempt": 3, "shim+attempt": 2,
           "agent": 4, "client": 4, "stop": 2, "pause": 3, "reboot": 1}
# Errors that an attempt may end with after such a strike.
UNKNOWN, KILLED = r"ended with an unknown result(: .*)?$", r"killed by signal 9$"
FITS = {"agent": [KILLED], "attempt": [KILLED, rf"{KILLED[:-1]} without a result$"], "shim": [UNKNOWN]}
FITS["shim+attempt"] = FITS["reboot"] = FITS["attempt"] + FITS["shim"]

# Runs swarm with a private boot id, where that is possible. All commands of one boot share a mount namespace: swarm
# refuses to start work for callers in another one than the supervisor's.
WRAPPER = """#!/bin/sh
[ -e '@BOOT@' ] || exec '@BINARY@' "$@"
exec nsenter --mount="/proc/$(cat '@BOOT@')/ns/mnt" sh -c 'cd "$0" && exec "$@"' "$PWD" '@BINARY@' "$@"
"""
# Keeps a namespace with another boot id until its standard input ends.
BOOTED = 'mount --bind "$0" "$1" && echo booted && exec cat'


@dataclass
class Life:
    """An attempt that is being worked on, from its records."""

    id: str
    attempt: int
    shim: dict
    worker: dict


class Client:
    """`swarm run` or `run attach`, and the lines that it printed."""

    def __init__(self, rig: Rig, words: list[str], after: int | None):
        self.words, self.after = words, after
        self.process, self.paths, _ = rig.start([rig.binary, *words], cwd=rig.repo)

    def events(self) -> list[dict]:
        return [json.loads(line) for line in self.paths[0].read_text().split("\n")[:-1]]

    def last(self) -> int:
        return next((event["seq"] for event in reversed(self.events())), self.after or 0)

    def ended(self) -> int | None:
        code = self.process.poll()
        if code is not None:
            procs.forget(self.process)
        return code

    def gaps(self) -> list[str]:
        """Checks that the lines are numbered without gaps from the requested number on."""
        numbers = [event["seq"] for event in self.events()]
        first = numbers[0] if self.after is None and numbers else (self.after or 0) + 1
        if numbers != list(range(first, first + len(numbers))):
            return [f"altered: `{' '.join(self.words)}` showed the lines {numbers[:40]}"]
        return []


class Soak:
    """One run in one rig: the common part of the soaks of specs and jobs."""

    def __init__(self, rig: Rig, chance: random.Random, seconds: float, without: set[str]):
        self.rig, self.chance, self.seconds = rig, chance, seconds
        self.strikes = {what: weight for what, weight in STRIKES.items() if what not in without}
        self.works: dict = {}
        self.wounds: dict[tuple[str, int], set[str]] = {}
        self.struck: Counter = Counter()
        self.findings: list[str] = []
        self.held = False
        self.seen = 0
        self.client: Client | None = None
        self.real = rig.binary
        self.boot = rig.root / "boot"
        self.booted: subprocess.Popen | None = None

    # What subclasses define.

    home: Path
    begin_words: list[str]

    def prepare(self) -> None:
        raise NotImplementedError

    def verdict(self, status: dict, events: list[dict]) -> list[str]:
        raise NotImplementedError

    # The run.

    def run(self) -> list[str]:
        self.wrap()
        self.prepare()
        self.begin()
        end = time.monotonic() + self.seconds
        while time.monotonic() < end and not self.tended():
            self.rest(self.chance.choice([0.05, 0.5, 1]) * self.chance.random())
            self.strike()
        self.settle()
        return self.findings + self.all_verdicts()

    def rest(self, seconds: float) -> None:
        procs.reap()
        time.sleep(seconds)

    def wrap(self) -> None:
        """Makes commands of this rig see the boot id of the last reboot."""
        wrapper = self.rig.root / "swarm-booted"
        text = WRAPPER.replace("@BINARY@", self.real).replace("@BOOT@", str(self.boot))
        wrapper.write_text(text)
        wrapper.chmod(0o755)
        self.rig.binary = str(wrapper)

    def begin(self) -> None:
        self.client = Client(self.rig, ["run", *self.begin_words, "-j", str(LIMIT), "--headless"], None)

    def attach(self, after: int) -> None:
        words = ["run", "attach", "--headless", "--since", str(after), "--home", str(self.home)]
        self.client = Client(self.rig, words, after)

    def tended(self) -> bool:
        """Ensures that a client watches the run. Returns True once the run is over."""
        client = self.client
        code = client.ended()
        if code is None:
            return False
        self.findings += client.gaps()
        told = client.events()
        if told and told[-1]["event"] == "run.completed" and told[-1]["status"] in OVER:
            return True
        self.seen = max(self.seen, client.last())
        said = client.paths[1].read_text().strip()
        if code not in (130, -signal.SIGKILL) and "a run is in progress" not in said:
            self.findings.append(f"unclear: `{' '.join(client.words)}` -> rc {code}: {said[:300]}")
        if self.status()["status"] in UNDER_WAY:
            self.attach(self.seen)
        else:
            self.begin()
        return False

    def settle(self) -> None:
        """Waits, without further strikes, until the run ends. It may take long, but not without any progress."""
        start = changed = time.monotonic()
        seen = None
        if self.held:
            self.resume()
        # If the supervisor and its guard died together, a command has to wake them.
        self.strike_client()
        while not self.tended():
            self.rest(0.05)
            now, events = time.monotonic(), self.client.paths[0]
            if seen != (seen := (events, events.stat().st_size)):
                changed = now
            for since, limit, what in ((changed, SETTLE_LIMIT, "event"), (start, 5 * SETTLE_LIMIT, "strike")):
                if now - since > limit:
                    self.findings.append(f"wedge: still running {limit} s after the last {what}")
                    return self.strike_client()

    # Strikes.

    def strike(self) -> None:
        what = self.chance.choices(list(self.strikes), list(self.strikes.values()))[0]
        if self.held and self.chance.random() < 0.5:
            return self.resume()
        self.struck[what] += 1
        if what in ("supervisor", "guard", "both", "forkserver"):
            self.kill_roles({"supervisor", "guard"} if what == "both" else {what})
            if what == "both" and self.chance.random() < 0.7:
                self.strike_client()
        elif what in ("shim", "attempt", "shim+attempt"):
            self.kill_life(what)
        else:
            getattr(self, f"strike_{what}")()

    def kill_roles(self, struck: set[str]) -> None:
        people = self.rig.census()
        supervisors = {person.pid for person in people if person.role == "supervisor"}
        for person in people:
            # A process that the fork server keeps ready may already be a shim; the server itself never is.
            if person.role in struck and not (person.role == "forkserver" and person.ppid not in supervisors):
                procs.send(person.pid, person.start, signal.SIGKILL)

    def lives(self) -> list[Life]:
        found = []
        for place in sorted((self.rig.dir / "w").glob("*.*")):
            try:
                spec, lease = (json.loads((place / name).read_text()) for name in ("spec.json", "lease"))
                _, _, job, attempt = spec["request"].split("/")
                found.append(Life(job, int(attempt), lease["shim"], lease["worker"]))
            except (OSError, ValueError, TypeError, KeyError):
                continue
        return found

    def wound(self, life: Life, what: str) -> None:
        self.wounds.setdefault((life.id, life.attempt), set()).add(what)

    def kill_life(self, what: str) -> None:
        living = [life for life in self.lives() if procs.alive(life.worker["pid"], life.worker["start_ticks"])]
        if not living:
            return
        life = self.chance.choice(living)
        parts = {"shim": life.shim, "attempt": life.worker}
        self.wound(life, what)
        for part in what.split("+"):
            procs.send(parts[part]["pid"], parts[part]["start_ticks"], signal.SIGKILL)

    def strike_agent(self) -> None:
        """Kills the agent's own shell, but not a fresh fork of that shell, which looks the same."""
        people = self.rig.census()
        attempts = {person.pid for person in people if "__attempt" in person.argv}
        agents = [person for person in people
                  if person.env.get("SWARM_ATTEMPT") and person.argv[:1] == ("/bin/sh",) and person.ppid in attempts]
        if agents:
            agent = self.chance.choice(agents)
            key = (agent.env["SWARM_WORKSTREAM"], int(agent.env["SWARM_ATTEMPT"]))
            self.wounds.setdefault(key, set()).add("agent")
            procs.send(agent.pid, agent.start, signal.SIGKILL)

    def strike_client(self) -> None:
        if self.client.ended() is None:
            self.client.process.kill()
            self.client.process.wait()

    def strike_stop(self) -> None:
        self.command("run", "stop", "--home", str(self.home))
        self.held = False

    def strike_pause(self) -> None:
        self.held = True
        self.command("run", "pause", "--home", str(self.home))

    def resume(self) -> None:
        self.held = False
        self.command("run", "resume", "--home", str(self.home))

    def strike_reboot(self) -> None:
        """Kills everything at once; afterwards the boot id is a different one."""
        for life in self.lives():
            self.wound(life, "reboot")
        self.strike_client()
        while left := self.rig.census():
            for person in left:
                procs.send(person.pid, person.start, signal.SIGKILL)
            self.rest(0.01)
        for life in self.lives():
            self.wound(life, "reboot")
        boot_id = self.rig.root / "boot-id"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        words = ["unshare", "-m", "sh", "-c", BOOTED, str(boot_id), BOOT_ID]
        # Of an earlier reboot: nothing runs there any more.
        self.unboot()
        self.booted = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/",
                                       env={"PATH": os.environ["PATH"]})
        if self.booted.stdout.readline() == b"booted\n":
            self.boot.write_text(f"{self.booted.pid}\n")

    def unboot(self) -> None:
        self.boot.unlink(missing_ok=True)
        if self.booted:
            self.booted.communicate()
            self.booted = None

    def command(self, *words: str) -> None:
        result = self.rig.swarm(*words, cwd=self.rig.repo, limit=COMMAND_LIMIT)
        if result.rc is None:
            self.findings.append(f"wedge: {result}")
        elif result.rc != 0 and not any(words in result.err for words in RACES):
            self.findings.append(f"unclear: {result}")

    # What holds in the end.

    def status(self) -> dict:
        return json.loads(self.rig.must("run", "status", "--home", str(self.home), "--json").out)

    def told(self) -> list[dict]:
        found = []
        for line in (self.home / "events.jsonl").read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def all_verdicts(self) -> list[str]:
        found = self.at_work()
        status, events = self.status(), self.told()
        if status["status"] not in OVER:
            found.append(f"wedge: the run is {status['status']}: {self.unfinished(status)}")
        found += self.numbers(events) + self.attempts(events) + self.reasons(status, events)
        found += self.verdict(status, events)
        found += [f"litter: {path}" for path in self.home.rglob("*.tmp*")]
        found += self.rows(status) + Oracle(self.rig).litter(self.rig.rows()) + panics(self.rig)
        stopped = self.rig.swarm("supervisor", "stop", limit=COMMAND_LIMIT)
        found += [] if stopped.rc == 0 else [f"wedge: {stopped}"]
        try:
            wait_until(lambda: not self.rig.census(), 10, "all processes have ended")
        except Timeout:
            found.append(f"orphan: left at the end: {', '.join(map(str, self.rig.census()))}")
        self.unboot()
        return found

    def at_work(self) -> list[str]:
        """Checks that no attempt of a run still works when the run is reported over."""
        found = []
        for person in self.rig.census():
            if person.token and person.role not in ("supervisor", "guard", "forkserver", "command"):
                env, whose = person.env, person.worker
                if env.get("SWARM_ATTEMPT"):
                    whose = self.named(env["SWARM_WORKSTREAM"], env["SWARM_ATTEMPT"])
                found.append(f"orphan: of {whose}, alive after the end of the run: {person}")
        return found

    def unfinished(self, status: dict) -> str:
        rows = [row for row in status["workstreams"] if row["stage"] not in OVER and row["stage"] != "done"]
        return ", ".join(f"{row['id']} {row['stage']} {row['attempt']}" for row in rows[:8])

    def numbers(self, events: list[dict]) -> list[str]:
        numbers = [event["number"] for event in events if "number" in event]
        if numbers == list(range(len(numbers))):
            return []
        wrong = [f"{after} after {before}" for before, after in zip([-1, *numbers], numbers) if after != before + 1]
        return [f"altered: numbers of events.jsonl: {', '.join(wrong[:5])}"]

    def attempts(self, events: list[dict]) -> list[str]:
        """Checks that no attempt starts twice and no workstream is done twice."""
        found = []
        begun = Counter((e["workstream"], e["attempt"]) for e in events if e["event"] == "workstream.started")
        found += [f"twice: attempt {key} was started {count} times" for key, count in begun.items() if count > 1]
        done = Counter(e["workstream"] for e in events if e["event"] == "workstream.done")
        return found + [f"twice: {id} was done {count} times" for id, count in done.items() if count > 1]

    def reasons(self, status: dict, events: list[dict]) -> list[str]:
        """Checks that every failure has a cause that lies in the spec or in the strikes at this attempt."""
        failed = {row["id"] for row in status["workstreams"] if row["stage"] == "failed"}
        found = []
        for event in events:
            if event["event"] in ("workstream.failed", "workstream.retrying"):
                work, error = self.works[event["workstream"]], event["error"]
                wounds = self.felt(work.id, event["attempt"])
                fits = [fit for wound in wounds for fit in FITS[wound]] + ([work.reason()] if work.reason() else [])
                fits += [rf"dependency '{id}' failed$" for id in work.after if id in failed]
                if not any(re.match(pattern, error) for pattern in fits):
                    found.append(f"altered: {self.named(work.id, event['attempt'])} {event['event']}: {error}")
        for row in status["workstreams"]:
            if row["stage"] == "failed" and not row["error"]:
                found.append(f"lost: why {row['id']} failed")
            if row["stage"] == "done" and self.works[row["id"]].kind in ("doomed", "late"):
                found.append(f"altered: {row['id']} is done")
        return found

    def named(self, id: str, attempt: int | str) -> str:
        """An attempt and the strikes at it, for findings."""
        wounds = self.wounds.get((id, int(attempt)), set())
        return f"{id}.{attempt} ({', '.join(sorted(wounds)) or 'not struck'})"

    def felt(self, id: str, attempt: int) -> set[str]:
        """The strikes at an attempt that may have ended it."""
        return self.wounds.get((id, attempt), set())

    def rows(self, status: dict) -> list[str]:
        names = {row["name"] for row in self.rig.rows()}
        done = {row["worker"] for row in status["workstreams"] if row["stage"] == "done"}
        return [f"litter: rows of finished workstreams: {sorted(names & done)}"] if names & done else []

    def ledger(self) -> list[list[str]]:
        return [line for line in self.rig.ledger_lines() if line[0] in ("start", "end")]

    def overlaps(self) -> list[str]:
        """Checks that no attempt still works after the next one of the same spec has started."""
        latest, found = {}, []
        for what, id, attempt, *_ in self.ledger():
            if what == "start":
                latest[id] = attempt
            elif latest.get(id) != attempt:
                who = self.named(id, attempt) if attempt.isdigit() else f"{id} as {attempt}"
                found.append(f"twice: {who} ran beside {latest.get(id)}")
        return found
