"""What limits cost a start: the same with and without, alternating in one run."""

from .bench_rows import SLEEP, TRUE, Field, Row
from .peers import Swarm

LIMITS_MS_MAX = 1.0
FLAGS = ["--memory", "512M", "--cpu", "2", "--pids", "200", "--max-output", "1G"]


class Limited(Swarm):
    """Every worker with every limit."""

    def start_words(self, number: int, command: list[str]) -> list[str]:
        return [self.rig.binary, "spawn", "--name", self.label(number), *FLAGS, "--", *command]


class Unlimited(Swarm):
    name = "without"


def limits(quick: bool) -> list[Row]:
    """Start one with all limits, beside one without any."""
    with Field(Limited, Unlimited) as field_:
        field_.fill(10, SLEEP)
        row = field_.measure("start one with all limits", lambda s: s.start(TRUE), 10 if quick else 60)
    row.floor[f"without + {LIMITS_MS_MAX:g} ms"] = row.peers["without"] + LIMITS_MS_MAX
    return [row]


LIMITS = {"limits": limits}
