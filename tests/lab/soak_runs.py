"""Soak of runs: fifty specs, or two hundred jobs, while everything around them is killed.

Every agent records its workstream, attempt and pid in a ledger outside the repository. In the end each spec landed
exactly once or failed with a reason that fits the strikes at it, no attempt ran twice, the base equals a plain replay
of the merges, and nothing is left behind. A round is one run; rounds follow each other, each in a rig of its own, until
the time is up.

    python3 -m lab soak_runs --seconds 60 --seed 7
    python3 -m lab soak_runs --seconds 60 --seed 7 --jobs-file
"""

import json
import random
import re
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from . import cases
from .rig import Rig, wait_until
from .run_strikes import LIMIT, STRIKES, UNKNOWN, Soak

@dataclass
class Work:
    """One spec or job, and how it ends if nothing disturbs it."""

    id: str
    kind: str
    after: tuple[str, ...] = ()
    retries: int = 4
    seconds: float = 0.0

    @property
    def path(self) -> str:
        return f"shared/{self.id[-1]}.txt" if self.kind == "rival" else f"out/{self.id}.txt"

    def script(self, ledger: Path, attempt: str, name: str) -> str:
        """The script of the work: its first line records the start in the ledger, its last one the end."""
        lines = [f'echo "start {name} {attempt} $$" >> {ledger}', f"sleep {self.seconds:.2f}"]
        if self.kind == "flaky":
            count = f'$(grep -c "^start {name} " {ledger})'
            lines.append(f'[ "{count}" -ge 3 ] || {{ echo not yet >&2; exit 3; }}')
        if self.kind == "doomed":
            lines.append("echo it is broken >&2; exit 5")
        return "\n".join(lines)

    def reason(self) -> str | None:
        """Why an undisturbed attempt fails; `None` if it succeeds."""
        reasons = {"flaky": r"exited with code 3: not yet$", "doomed": r"exited with code 5: it is broken$",
                   "late": r"timed out after 1 s$", "rival": rf"conflicts with the base: {self.path}$"}
        return reasons.get(self.kind)


def fifty_specs(chance: random.Random) -> list[Work]:
    made = [Work(f"plain{n}", "plain", seconds=chance.uniform(0, 0.4)) for n in range(23)]
    made += [Work(f"slow{n}", "plain", seconds=chance.uniform(1, 3)) for n in range(6)]
    made += [Work(f"flaky{n}", "flaky", retries=8, seconds=chance.uniform(0, 0.2)) for n in range(4)]
    made += [Work(f"doomed{n}", "doomed", retries=n) for n in range(2)]
    made += [Work("late", "late", retries=1, seconds=5)]
    made += [Work(f"rival{n}{'ab'[n % 2]}", "rival", retries=2, seconds=0.3) for n in range(6)]
    ends = [work.id for work in made if work.kind in ("plain", "flaky")]
    for n in range(7):
        after = tuple(chance.sample(ends, chance.choice([1, 1, 2])))
        made.append(Work(f"chain{n}", "chain", after, seconds=chance.uniform(0, 0.3)))
        ends.append(made[-1].id)
    return made + [Work("lost", "chain", ("doomed0",))]


def two_hundred_jobs(chance: random.Random) -> list[Work]:
    made = [Work(f"j{n}", "plain", retries=3, seconds=chance.choice([0, 0, 0, 0.1, 0.5, 1.5])) for n in range(190)]
    made += [Work(f"flaky{n}", "flaky", retries=8) for n in range(5)]
    made += [Work(f"doomed{n}", "doomed", retries=n) for n in range(2)]
    return made + [Work(f"behind{n}", "plain", tuple(w.id for w in chance.sample(made[:190], 2))) for n in range(3)]


class SpecSoak(Soak):
    """Fifty specs of the `shell` agent in a repository."""

    begin_words: list[str] = []

    def prepare(self) -> None:
        repo = self.rig.make_repo()
        self.home = repo / ".arial"
        for name in ("specs", "shared"):
            (repo / name).mkdir()
        for name in "ab":
            (repo / "shared" / f"{name}.txt").write_text("base\n")
        for work in fifty_specs(self.chance):
            self.works[work.id] = work
            (repo / "specs" / f"{work.id}.md").write_text(self.spec(work))
        for words in (["add", "-A"], ["commit", "-q", "-m", "specs"]):
            self.rig.run("git", "-C", str(repo), *words)
        (repo / "d0/f1.txt").write_text("edited by a person\n")
        self.rig.must("plan", "--specs", "specs", "-y", cwd=repo)
        self.rig.must("trust", "--yes", cwd=repo)

    def spec(self, work: Work) -> str:
        script = work.script(self.rig.ledger, "$SWARM_ATTEMPT", "$SWARM_WORKSTREAM")
        inputs = " ".join(self.works[id].path for id in work.after)
        made = f"mkdir -p out\n{{ cat {inputs or '/dev/null'}; echo {work.id}; }} > {work.path}\n"
        ends = f'echo "end $SWARM_WORKSTREAM $SWARM_ATTEMPT $$" >> {self.rig.ledger}'
        front = f"adapter: shell\nretries: {work.retries}\nafter: [{', '.join(work.after)}]\n"
        front += "timeout: 1\n" if work.kind == "late" else ""
        return f"---\n{front}---\n# Spec {work.id}\n\n```sh\n{script}\n{made}{ends}\n```\n"

    def content(self, id: str) -> str:
        return "".join(self.content(before) for before in self.works[id].after) + f"{id}\n"

    def git(self, *words: str) -> str:
        return self.rig.run("git", "-C", str(self.rig.repo), *words).out

    def verdict(self, status: dict, events: list[dict]) -> list[str]:
        stages = {row["id"]: row["stage"] for row in status["workstreams"]}
        found = [f"lost: {id} has no row" for id in sorted(set(self.works) - set(stages))]
        done = {id for id, stage in stages.items() if stage == "done"}
        found += self.landed(done) + self.base() + self.state(status) + self.rests(done) + self.overlaps()
        ran = Counter((id, attempt) for what, id, attempt, *_ in self.ledger() if what == "start")
        return found + [f"twice: {id}.{attempt} ran {count} times" for (id, attempt), count in ran.items() if count > 1]

    def felt(self, id: str, attempt: int) -> set[str]:
        """A running attempt continues without its shim and leaves a result, unless its time is up."""
        if self.works[id].kind == "late":
            return super().felt(id, attempt)
        ran = any(line[:3] == ["start", id, str(attempt)] for line in self.ledger())
        felt = super().felt(id, attempt)
        return felt - {"shim"} if ran and felt == {"shim"} else felt

    def merges(self) -> list[str]:
        """Names of the landed specs in landing order, from the end of each merge's subject."""
        subjects = self.git("log", "--first-parent", "--merges", "--reverse", "--format=%s", "main").splitlines()
        return [re.split(r"[.(]", subject.rstrip(")"))[-1] for subject in subjects]

    def landed(self, done: set[str]) -> list[str]:
        counts = Counter(self.merges())
        wrong = sorted(id for id in done if counts[id] != 1)
        found = [f"{'twice' if counts[id] else 'lost'}: {id} landed {counts[id]} times" for id in wrong]
        return found + [f"ghost: {id} landed but is not done" for id in sorted(set(counts) - done)]

    def base(self) -> list[str]:
        """Compares the base with a plain replay of the landings in their order."""
        names = self.git("ls-tree", "-r", "--name-only", "main", "out", "shared").split()
        expected = {"shared/a.txt": "base\n", "shared/b.txt": "base\n"}
        expected.update((self.works[id].path, self.content(id)) for id in self.merges())
        real = {name: self.git("show", f"main:{name}") for name in names}
        wrong = sorted(name for name in set(real) | set(expected) if real.get(name) != expected.get(name))
        found = [f"altered: the base has {real.get(name)!r} in {name}, not {expected.get(name)!r}"
                 for name in wrong[:5]]
        edits = self.git("status", "--porcelain").splitlines()
        return found + ([] if edits == [" M d0/f1.txt"] else [f"altered: the checkout of the base: {edits[:5]}"])

    def state(self, status: dict) -> list[str]:
        state = json.loads((self.home / "state.json").read_text())
        rows = {row["id"]: (row["status"], row.get("lastError")) for row in state["workstreams"]}
        shown = {row["id"]: (row["stage"], row["error"]) for row in status["workstreams"]}
        wrong = [f"{id} {rows.get(id)} {shown.get(id)}" for id in sorted(rows | shown) if rows.get(id) != shown.get(id)]
        if state["status"] != status["status"]:
            wrong.append(f"the run {state['status']} {status['status']}")
        return [f"altered: state.json against status: {', '.join(wrong[:5])}"] if wrong else []

    def rests(self, done: set[str]) -> list[str]:
        trees = {path.name for path in (self.home / "worktrees").iterdir()}
        known = self.git("worktree", "list", "--porcelain").splitlines()
        trees |= {line.rsplit("/", 1)[1] for line in known if "/.arial/worktrees/" in line}
        heads = self.git("for-each-ref", "--format=%(refname)", "refs/heads/arial").splitlines()
        found = [f"litter: worktree of {id}, which is done" for id in sorted(trees & done)]
        found += [f"litter: branch {head}, which is done" for head in heads if head.rsplit("/", 1)[1] in done]
        # Scratch files and directories of a killed supervisor are removed when they are a day old.
        locks = [path.relative_to(self.rig.repo) for path in (self.rig.repo / ".git").rglob("*.lock")]
        ours = [path for path in locks if any(part.startswith("swarm-") for part in path.parts)]
        return found + [f"litter: {path}" for path in locks if path not in ours]


class JobSoak(Soak):
    """Two hundred commands of a jobs file, without a repository."""

    def prepare(self) -> None:
        self.rig.repo.mkdir()
        text = f"limit = {LIMIT}\n"
        for work in two_hundred_jobs(self.chance):
            self.works[work.id] = work
            ends = f'echo "end $NAME $SWARM_TOKEN $$" >> {self.rig.ledger}'
            command = f"{work.script(self.rig.ledger, '$SWARM_TOKEN', '$NAME')}\n{ends}\n"
            text += f"[[job]]\nname = '{work.id}'\ncommand = '''\n{command}'''\nenv = {{ NAME = '{work.id}' }}\n"
            text += f"retries = {work.retries}\nafter = {json.dumps(work.after)}\n"
        (self.rig.repo / "jobs.toml").write_text(text)
        self.begin_words = ["jobs.toml"]

    def begin(self) -> None:
        super().begin()
        runs = self.rig.dir / "run"
        self.home = wait_until(lambda: next(runs.glob("jobs-*/lock"), None), 20, "the run's home exists").parent

    def verdict(self, status: dict, events: list[dict]) -> list[str]:
        tokens = Counter(line[2] for line in self.ledger() if line[0] == "start")
        found = [f"twice: {token} ran {count} times" for token, count in tokens.items() if count > 1] + self.overlaps()
        begun = Counter(e["workstream"] for e in events if e["event"] == "workstream.started")
        ran = Counter(line[1] for line in self.ledger() if line[0] == "start")
        # A stop may come before the first line of a script.
        paused = Counter(e["workstream"] for e in events if e["event"] == "workstream.paused")
        for id in self.works:
            hurt = sum(key[0] == id for key in self.wounds) + paused[id]
            if not begun[id] - hurt <= ran[id] <= begun[id]:
                found.append(f"altered: {id} ran {ran[id]} times in {begun[id]} attempts, of which {hurt} were struck")
        return found + self.joblog(begun, events)

    def joblog(self, begun: Counter, events: list[dict]) -> list[str]:
        """Checks for one joblog line per attempt; an attempt with unknown end may have no line or two."""
        log = [line.split("\t")[:-1] for line in (self.home / "joblog").read_text().splitlines()[1:]]
        lines = Counter(int(line[0]) for line in log)
        unknown = Counter(e["workstream"] for e in events if re.match(UNKNOWN, e.get("error", "")))
        # No event tells the end of an attempt that was stopped, but its line does.
        odd = Counter(int(line[0]) for line in log if line[6] == "-1")

        def agrees(at: int, id: str) -> bool:
            surplus = lines[at] - begun[id]
            # Each attempt whose end is known has one line; each other one that has a line has one or two.
            left = begun[id] - (lines[at] - odd[at])
            return surplus >= -unknown[id] and odd[at] <= 2 * left

        return [f"altered: {id} has {lines[at]} lines in joblog, {begun[id]} attempts, {unknown[id]} of them unknown: "
                f"{[line for line in log if int(line[0]) == at]}"
                for at, id in enumerate(self.works, 1) if not agrees(at, id)]


def run_round(kind: type[Soak], seed: str, seconds: float, args) -> list[str]:
    with Rig() as rig:
        soak = kind(rig, random.Random(seed), seconds, set(args.without.split(",")))
        findings, _ = cases.attempt(soak.run)
        findings += [finding for finding in soak.findings if finding not in findings]
        if findings and args.keep:
            keep(rig.root, Path(args.keep) / seed.replace("/", "-"))
        print(f"      {seed}: {', '.join(f'{count} {what}' for what, count in soak.struck.items())}", flush=True)
        return [f"round {seed}: {finding}" for finding in findings]


def keep(root: Path, place: Path) -> None:
    """Copies the rig of a round with findings; its processes may still be running."""
    try:
        shutil.copytree(root, place, symlinks=True, ignore=shutil.ignore_patterns("*.sock"), dirs_exist_ok=True)
    except shutil.Error:
        pass


def run_rounds(kind: type[Soak], seed: int, args) -> list[str]:
    """Runs rounds until the time is up; the last one is shortened to the remaining time."""
    findings, end, number = [], time.monotonic() + args.seconds, 0
    while (left := end - time.monotonic()) > 0:
        findings += run_round(kind, f"{seed}/{number}", left, args)
        number += 1
    return findings


def main(argv=None) -> int:
    parser = cases.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="replay the choices of an earlier run (default: the time)")
    parser.add_argument("--jobs-file", action="store_true", help="run a file of 200 jobs instead of 50 specs")
    parser.add_argument("--without", metavar="STRIKES", default="", help=f"omit some of {', '.join(STRIKES)}")
    parser.add_argument("--keep", metavar="DIR", help="copy the rig of every round with findings to DIR")
    args = parser.parse_args(argv)
    cases.ends_on_term()
    seed = args.seed if args.seed is not None else int(time.time())
    kind = JobSoak if args.jobs_file else SpecSoak
    name = f"soak_runs: {'jobs' if args.jobs_file else 'specs'}, {args.seconds:g} s, seed {seed}"
    case = {name: lambda: run_rounds(kind, seed, args)}
    return cases.run_all(case, args.only, allow_skips=args.allow_skips).close()


if __name__ == "__main__":
    sys.exit(main())
