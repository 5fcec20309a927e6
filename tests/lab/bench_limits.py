"""Cost of the extras: what limits add to a start, and how long checks of 1,000 workers take."""

from .bench_rows import SLEEP, TRUE, Field, Row
from .peers import Swarm

LIMITS_MS_MAX = 1.0
FLAGS = ["--memory", "512M", "--cpu", "2", "--pids", "200", "--max-output", "1G"]


DOCTOR_MS_MAX = 200.0
WORKERS = 1000


class Limited(Swarm):
    """Starts every worker with every limit."""

    def start_words(self, number: int, command: list[str]) -> list[str]:
        return [self.rig.binary, "spawn", "--name", self.label(number), *FLAGS, "--", *command]

    def end(self) -> None:
        # `kill` ends the workers, so that their control groups are removed.
        self.call([self.rig.binary, "kill", "--all"])
        super().end()


class Unlimited(Swarm):
    name = "without"


def start_alone(subject: Swarm) -> float:
    """Times one start; the end of its worker falls into nobody else's measurement."""
    number = subject.started
    took = subject.start(TRUE)
    subject.call(subject.wait_words(number))
    return took


def limits(quick: bool) -> list[Row]:
    """Starts one worker with all limits, compared with one without any."""
    with Field(Limited, Unlimited) as field_:
        field_.fill(10, SLEEP)
        row = field_.measure("start one with all limits", start_alone, 10 if quick else 100)
    row.floor[f"without + {LIMITS_MS_MAX:g} ms"] = row.peers["without"] + LIMITS_MS_MAX
    return [row]


def looks(quick: bool) -> list[Row]:
    """The long list and the doctor with 1,000 workers, most of them ended."""
    rounds = 5 if quick else 20
    with Field(Swarm) as field_:
        field_.fill(WORKERS, TRUE)

        def look(scenario: str, *words: str) -> Row:
            return field_.measure(scenario, lambda s: s.call([s.rig.binary, *words], may_fail=True), rounds)

        plain, long = look("ls of 1,000", "ls"), look("ls -l of 1,000", "ls", "-l")
        long.floor["2 x ls"] = 2 * plain.ours
        doctor = look("doctor with 1,000", "doctor")
        doctor.floor["required"] = DOCTOR_MS_MAX
        one = look("explain one of 1,000", "explain", "n5")
    return [plain, long, doctor, one]


LIMITS = {"limits": limits, "looks": looks}
