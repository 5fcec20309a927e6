"""Random strikes at a flow: kill -9 of each of its parts, and stops. Every strike at a turn is recorded."""

import json
import random
import signal
from collections import Counter
from dataclasses import dataclass

from . import procs
from .flow_world import World

COMMAND_LIMIT = 60
STRIKES = {"supervisor": 5, "guard": 2, "both": 2, "forkserver": 1, "shim": 3, "role": 4, "shim+role": 3, "agent": 4,
           "git": 2, "client": 3, "tmux": 1, "stop": 1, "all": 1}
RACES = ("is not running", "ended before it could answer")


@dataclass
class Life:
    """A turn that is being worked on, from the records of its worker."""

    role: str
    turn: int
    shim: dict
    worker: dict


class Striker:
    def __init__(self, world: World, chance: random.Random, strikes: dict[str, int]):
        self.world, self.rig, self.chance, self.strikes = world, world.rig, chance, strikes
        self.wounds: dict[tuple[str, int], set[str]] = {}
        self.struck: Counter = Counter()
        self.findings: list[str] = []

    def strike(self) -> None:
        what = self.chance.choices(list(self.strikes), list(self.strikes.values()))[0]
        self.struck[what] += 1
        if what in ("supervisor", "guard", "both", "forkserver"):
            self.kill_roles({"supervisor", "guard"} if what == "both" else {what})
            if what == "both" and self.chance.random() < 0.7:
                self.resume()
        elif what in ("shim", "role", "shim+role"):
            self.kill_life(what)
        else:
            getattr(self, f"strike_{what}")()

    def finish(self) -> None:
        """Resumes the flow a last time."""
        if self.struck:
            self.resume()

    def resume(self) -> None:
        self.command("resume", self.world.id)

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
                *_, role, turn = spec["request"].split("/")
                life = Life(role, int(turn), lease["shim"], lease["worker"])
            except (OSError, ValueError, TypeError, KeyError):
                continue
            if procs.alive(life.worker["pid"], life.worker["start_ticks"]):
                found.append(life)
        return found

    def wound(self, role: str, turn: int, what: str) -> None:
        self.wounds.setdefault((role, turn), set()).add(what)

    def kill_life(self, what: str) -> None:
        lives = self.lives()
        if not lives:
            return
        life = self.chance.choice(lives)
        parts = {"shim": life.shim, "role": life.worker}
        self.wound(life.role, life.turn, what)
        for part in what.split("+"):
            procs.send(parts[part]["pid"], parts[part]["start_ticks"], signal.SIGKILL)

    def strike_agent(self) -> None:
        """Kills the shell of an agent, but not a fresh fork of that shell, which looks the same."""
        people = self.rig.census()
        roles = {person.pid for person in people if person.role == "role"}
        agents = [person for person in people
                  if person.env.get("SWARM_TURN") and person.argv[:1] == ("/bin/sh",) and person.ppid in roles]
        if agents:
            agent = self.chance.choice(agents)
            self.wound(agent.env["SWARM_ROLE"], int(agent.env["SWARM_TURN"]), "agent")
            procs.send(agent.pid, agent.start, signal.SIGKILL)

    def strike_git(self) -> None:
        """Kills git in the middle of a turn, together with the turn, so that nobody cleans up after it."""
        people = self.rig.census()
        roles = {person.pid: person for person in people if person.role == "role"}
        gits = [person for person in people if person.role == "git" and person.ppid in roles]
        for git in gits[:1]:
            role = roles[git.ppid]
            *_, name, turn = role.argv[2].split("/")
            self.wound(name, int(turn), "role")
            for person in (role, git):
                procs.send(person.pid, person.start, signal.SIGKILL)

    def strike_client(self) -> None:
        """Kills a `swarm flow` command of a person or an agent."""
        clients = [person for person in self.rig.census() if person.role == "command" and person.argv[1:2] == ("flow",)]
        if clients:
            client = self.chance.choice(clients)
            if client.env.get("SWARM_TURN"):
                self.wound(client.env["SWARM_ROLE"], int(client.env["SWARM_TURN"]), "agent")
            procs.send(client.pid, client.start, signal.SIGKILL)

    def strike_tmux(self) -> None:
        """Kills the tmux server, and with it the windows in which roles play."""
        before = self.lives()
        if any([procs.send(person.pid, person.start, signal.SIGKILL) for person in self.rig.of_role("tmux")]):
            # The newest turn of a role may have begun meanwhile.
            newest = {order["turn"]["role"]: order["turn"]["number"] for order in self.world.orders()}
            for role, turn in [*((life.role, life.turn) for life in before), *newest.items()]:
                self.wound(role, turn, "tmux")

    def strike_stop(self) -> None:
        """Stops the flow, as a person would, and resumes it."""
        for life in self.lives():
            self.wound(life.role, life.turn, "stop")
        self.command("stop", self.world.id)
        # Turns that started meanwhile.
        for order in self.world.orders():
            self.wound(order["turn"]["role"], order["turn"]["number"], "stop")
        self.resume()

    def strike_all(self) -> None:
        """Kills everything at once."""
        before = self.lives()
        while left := [person for person in self.rig.census() if person.role not in ("strace",)]:
            before += self.lives()
            for person in left:
                procs.send(person.pid, person.start, signal.SIGKILL)
            procs.reap()
        for life in before:
            self.wound(life.role, life.turn, "all")
        for order in self.world.orders():
            self.wound(order["turn"]["role"], order["turn"]["number"], "all")
        self.resume()

    def command(self, *words: str) -> None:
        result = self.world.swarm(*words, limit=COMMAND_LIMIT)
        if result.rc is None:
            self.findings.append(f"wedge: {result}")
        elif result.rc > 0 and not any(words in result.err for words in RACES):
            self.findings.append(f"unclear: {result}")
