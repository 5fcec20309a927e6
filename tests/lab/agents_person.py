"""One person over ssh, who has `swarm ls`, `approvals`, `approve`, `deny` and `answer` and nothing else, and finishes windows
of the real claude and a run of specs that ask.

    python3 -m lab agents --only 'one person' --windows 20 --specs 12 --asking 5
"""

import json
import time
from dataclasses import dataclass

from .agents_windows import MODEL, known
from .rig import Rig, wait_until
from .ssh import Door
from .stand_in import StandIn

# For each agent.
SECONDS = 20
# Each third window asks a question instead of a permission, and each third permission is refused.
THIRD = 3


@dataclass
class Sizes:
    windows: int = 3
    specs: int = 3
    asking: int = 2


SIZES = Sizes()


class Evening:
    """The windows, the run, and what the person has said so far."""

    def __init__(self, site, door: Door):
        self.site, self.door = site, door
        self.said: dict[str, str] = {}
        self.findings: list[str] = []

    def person(self, words: str):
        told = self.door.swarm(words)
        if told.rc != 0:
            self.findings.append(f"over ssh: {told}")
        return told

    def windows(self) -> None:
        self.site.rig.start_tmux()
        for number in range(SIZES.windows):
            step = f"[[ask Which one of w{number}?]]" if number % THIRD == 0 else f"[[bash touch w{number}.txt]]"
            task = f"[[as w{number}]] {step} [[say done]]"
            words = ["claude", "--model", MODEL, "--permission-mode", "manual", task]
            self.site.rig.must("spawn", "--name", f"w{number}", *self.site.rig.tmux_flags, "--", *words,
                               cwd=self.site.rig.repo)

    def specs(self):
        for number in range(SIZES.specs):
            asks = f"[[bash touch by-s{number}.txt]]" if number < SIZES.asking else ""
            self.site.spec(f"s{number}", f"{asks} [[write s{number}.txt|one]] [[say done]]")
        return self.site.begin("--consent", "partial-access", "-j", "4")

    def look(self) -> list[dict]:
        """Answers what waits, as the list shows it."""
        told = self.person("approvals --json")
        waiting = json.loads(told.out)["approvals"] if told.rc == 0 else []
        for one in waiting:
            if one["id"] not in self.said:
                self.answer(one)
        return waiting

    def answer(self, one: dict) -> None:
        number, kind = one["id"], one["kind"]
        if kind == "question":
            words = f"answer {number} 2"
        elif one["worker"].startswith("w") and int(number) % THIRD == 0:
            words = f"deny {number} --reason 'not this one'"
        else:
            words = f"approve {number}"
        told = self.person(words)
        self.said[number] = f"{words.split()[0]} {one['worker']}" if told.rc == 0 else "nothing"

    def is_idle(self) -> bool:
        told = self.person("ls -l --json")
        rows = [row for row in json.loads(told.out)["workers"] if row["name"].startswith("w")] if told.rc == 0 else []
        doing = [(row.get("activity") or {}).get("doing") for row in rows]
        return len(doing) == SIZES.windows and set(doing) == {"idle"}


def one_person(site) -> list[str]:
    with Door(site.rig) as door:
        known(site, True)
        evening = Evening(site, door)
        evening.windows()
        started = evening.specs()
        limit = SECONDS * (SIZES.windows + SIZES.specs)
        begun = time.monotonic()
        wait_until(lambda: not evening.look() and started[0].poll() is not None and evening.is_idle(), limit,
                   "windows and run are finished", 0.2)
        print(f"      {SIZES.windows} windows and {SIZES.specs} specs: {time.monotonic() - begun:.0f} s, "
              f"{len(evening.said)} answers")
        site.rig.must("kill", "--all", cwd=site.rig.repo)
        site.rig.tmux("kill-server")
        told = site.finish(started)
    return evening.findings + told.findings + results(site, evening, told)


def results(site, evening: Evening, told) -> list[str]:
    said, findings = set(evening.said.values()), []
    for number in range(SIZES.windows):
        path = site.rig.repo / f"w{number}.txt"
        expected = f"approve w{number}" in said
        findings += [] if path.exists() == expected else [f"{path.name} exists: {path.exists()}, {sorted(said)}"]
    if len(said) != SIZES.windows + SIZES.asking:
        findings.append(f"{len(said)} were answered: {sorted(said)}")
    for number in range(SIZES.specs):
        told.row(f"s{number}", stage="done", attempt=1 + (number < SIZES.asking), failures=0)
        told.landed(**{f"s{number}": "one"})
        if number < SIZES.asking:
            told.landed(**{f"by-s{number}": ""})
        # Each question was asked once, and each step executed once.
        steps = len(site.stand_in.answers(f"s{number}", "call"))
        told.same(f"calls of s{number}", steps, 1 + (number < SIZES.asking))
    return findings + told.findings


def case(make_site):
    """Returns the case. Its state is where a login looks for it."""

    def run() -> list[str]:
        with StandIn() as stand_in, Rig(home_length=1) as rig:
            return one_person(make_site(rig, "claude", stand_in))

    return run


def options(parser) -> None:
    for name, value in vars(SIZES).items():
        parser.add_argument(f"--{name}", type=int, metavar="N", default=value, help=f"{name} of the one person (default {value})")


def take(args) -> None:
    if args.asking > args.specs:
        raise SystemExit("lab: error: --asking may not exceed --specs")
    for name in vars(SIZES):
        setattr(SIZES, name, getattr(args, name))
