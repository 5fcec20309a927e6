"""Threads that act while a flow runs: a reader, a person who answers, and another program that writes.

Each thread collects findings of its own.
"""

import json
import os
import random
import threading
import time
from collections import Counter

from .flow_world import World

LOOK = 0.003
COMMAND_LIMIT = 60
# Seconds without a change after which the person checks whether the flow is still being run.
QUIET = 1.5
# Error messages that a person may get whose command came too late.
RACES = ("not currently accepting", "is not accepting", "already has queued", "not awaiting", "not a text reply",
         "is not currently waiting", "is not currently awaiting", "it has ended")


class Onlooker(threading.Thread):
    """Acts until it is told that all is over."""

    def __init__(self, world: World):
        super().__init__(daemon=True)
        self.world = world
        self.findings: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        try:
            while not self.over.wait(LOOK):
                self.look()
        except Exception as error:
            self.findings.append(f"{type(self).__name__}: {type(error).__name__}: {error}")

    def look(self) -> None:
        raise NotImplementedError

    def end(self) -> list[str]:
        self.over.set()
        self.join(COMMAND_LIMIT + 10)
        return self.findings[:10] + ([f"wedge: {type(self).__name__} does not end"] if self.is_alive() else [])


class Reader(Onlooker):
    """Reads flow.json whenever it has changed; it must always parse and never contain an impossible state."""

    def __init__(self, world: World, may_be_torn: bool = False):
        super().__init__(world)
        self.may_be_torn = may_be_torn
        self.looks = 0
        self.last: bytes = b""
        self.flow: dict | None = None

    def look(self) -> None:
        text = self.world.path.read_bytes()
        if text == self.last:
            return
        self.last = text
        try:
            flow = json.loads(text)
        except ValueError as error:
            if not self.may_be_torn:
                self.findings.append(f"torn: {len(text)} bytes of flow.json: {error}")
            return
        self.looks += 1
        self.findings += self.world.at_any_time(flow)
        if self.flow is not None and not self.may_be_torn:
            self.findings += self.world.after(self.flow, flow)
        self.flow = flow


class Person(Onlooker):
    """Answers questions, approves or declines, makes choices, and resumes the flow if no process runs it."""

    def __init__(self, world: World, chance: random.Random):
        super().__init__(world)
        self.chance = chance
        self.said = 0
        self.acknowledged: dict[str, str] = {}
        """Acknowledged answers: text -> node."""
        self.counts: Counter = Counter()
        self.slowest = 0.0
        self.done = threading.Event()
        self.seen = ({}, time.monotonic())

    def look(self) -> None:
        try:
            flow = self.world.flow()
        except ValueError:
            # Another program is writing the file right now; the reader judges whether that is allowed.
            return
        if flow["status"] == "completed":
            self.done.set()
            self.over.set()
        elif flow["status"] == "awaiting_improvement_choice":
            self.say("improve", self.world.id, "graph-based")
        elif flow["status"] == "awaiting_feedback_consent":
            self.say("feedback", self.world.id, "deny")
        elif self.waits(flow):
            self.attend()
        else:
            self.prod(flow)

    def waits(self, flow: dict) -> bool:
        phase = flow.get("improvementPhase") or {}
        asked = set(flow["awaitingHumanNodes"]) - set(flow["pendingHumanInputs"])
        return bool(asked or set(phase.get("awaitingHumanRoles") or {}) - set(phase.get("pendingHumanInputs") or {}))

    def attend(self) -> None:
        asked = self.command("requests", self.world.id, "--json")
        if asked is None:
            return
        for request in json.loads(asked)["requests"]:
            node, reason = request["node"], request["reason"]
            self.counts[reason] += 1
            if reason == "handoff-approval":
                if self.chance.random() < 0.7:
                    self.say("approve", self.world.id, node)
                else:
                    self.tell(node, "no", "decline", self.world.id, node, "--message")
            elif reason in ("prompt-human", "autonomous-abort"):
                word = "yes" if reason == "prompt-human" else "go-on"
                whom = "--node" if node in self.world.role else "--role"
                self.tell(node, word, "answer", self.world.id, whom, node)
            else:
                self.findings.append(f"altered: {node} waits for unexpected {reason}")

    def tell(self, node: str, word: str, *words: str) -> None:
        """Gives an answer whose text is unique."""
        self.said += 1
        text = f"{word}-{self.said}"
        if self.say(*words, text):
            self.acknowledged[text] = node

    def say(self, *words: str) -> bool:
        return self.command(*words) is not None

    def command(self, *words: str) -> str | None:
        """Returns the command's output; `None` if the command came too late or was killed."""
        result = self.world.swarm(*words, limit=COMMAND_LIMIT)
        self.slowest = max(self.slowest, result.seconds)
        if result.rc == 0:
            return result.out
        if result.rc is None:
            self.findings.append(f"wedge: {result}")
        elif result.rc > 0 and not any(race in result.err for race in RACES):
            self.findings.append(f"unclear: {result}")
        return None

    def prod(self, flow: dict) -> None:
        """Resumes the flow if nothing has changed for long: perhaps no process runs it, or swarm has not noticed a
        foreign write."""
        flow.pop("theirs", None)
        if flow != self.seen[0]:
            self.seen = (flow, time.monotonic())
        elif time.monotonic() > self.seen[1] + QUIET:
            self.seen = (flow, time.monotonic())
            self.counts["prodded"] += 1
            self.say("resume", self.world.id)


# Consecutive looks that may see something other than the last write.
LOOKS = 50


class Writer(Onlooker):
    """Another program, which takes no lock and writes in place, as A-Society does.

    It adds a counter in a field of its own and sometimes answers a question. As far as possible it checks that nobody
    wrote between its read and its write.
    """

    # A foreign write between swarm's last check and its rename cannot be prevented.
    GAP_NS = 5_000_000

    def __init__(self, world: World, chance: random.Random):
        super().__init__(world)
        self.chance = chance
        self.count = 0
        self.writes = 0
        self.excused = 0
        self.answers: dict[str, str] = {}
        # Writes that overlapped a rename, with their answers: they may be present, or be repeated.
        self.perhaps: dict[int, dict[str, str]] = {}
        self.odd = 0
        self.due = 0.0

    def look(self) -> None:
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + self.chance.choice([0, 0, 0.02, 0.1]) * self.chance.random()
        with open(self.world.path, "r+b") as file:
            text = file.read()
            try:
                flow = json.loads(text)
            except ValueError as error:
                self.findings.append(f"torn: swarm wrote an invalid flow.json: {error}")
                return
            if self.check(flow):
                self.change(flow, file)

    def check(self, flow: dict) -> bool:
        """Checks that the last write is present. For a moment, a version that is about to be replaced may be visible.
        """
        found = flow.get("theirs", {}).get("count", 0)
        if found in self.perhaps:
            self.count = found
            self.answers |= self.perhaps[found]
        if found == self.count:
            self.odd = 0
            self.perhaps.clear()
            return True
        self.odd += 1
        if self.odd > LOOKS:
            self.findings.append(f"lost: count {self.count} was written, but the file has {flow.get('theirs')}")
            self.count, self.odd = found, 0
        return False

    def change(self, flow: dict, file) -> None:
        # The number has a fixed width, so that the file's length alone does not reveal the change.
        count = self.count + 1 if self.count else 100_000_001
        flow["theirs"] = {"count": count, "by": "another program"}
        answers = {}
        if flow["status"] == "running" and self.chance.random() < 0.6:
            for node, wait in flow["awaitingHumanNodes"].items():
                if wait["reason"] in ("prompt-human", "autonomous-abort") and node not in flow["pendingHumanInputs"]:
                    word = f"theirs-{count}-{node}"
                    flow["pendingHumanInputs"][node] = {"text": word, "receivedAt": "2026-01-01T00:00:00.000Z"}
                    answers[word] = node
        made = json.dumps(flow, indent=2, ensure_ascii=False).encode()
        mine = os.fstat(file.fileno())
        there = os.stat(self.world.path)
        if (there.st_ino, there.st_mtime_ns) != (mine.st_ino, mine.st_mtime_ns):
            return
        begun = time.time_ns()
        # As node does: truncate, then write.
        os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), made, 0)
        ended = time.time_ns()
        now = os.stat(self.world.path)
        if now.st_ino != mine.st_ino and not self.is_there(count):
            # The file was replaced by a rename during the write.
            if now.st_ctime_ns - begun > self.GAP_NS + (ended - begun):
                self.findings.append(f"lost: count {count}, whose write took {ended - begun} ns, was replaced")
            self.excused += 1
            self.perhaps[count] = answers
            return
        self.count, self.writes = count, self.writes + 1
        self.answers |= answers

    def is_there(self, count: int) -> bool:
        try:
            return self.world.flow().get("theirs", {}).get("count") == count
        except ValueError:
            return False
