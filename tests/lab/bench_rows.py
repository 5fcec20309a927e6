"""Scenarios of the benchmark, each alternating with its peers in one run.

Every function returns a list of `Row`s. Times are medians in milliseconds.
"""

import os
import shlex
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from . import cases, procs
from .peers import Pueue, Subject, Swarm, SwarmShort, Tsp, timed
from .rig import Rig, temp_base, wait_until

ORIGINAL_START_MS = 145
# Pooled threads exit after some seconds without work; that belongs to the start and is not idle time.
CALM_SECONDS = 12
TRUE, SLEEP = ["/bin/true"], ["/bin/sleep", "100000"]
HELLO = 'fn main() { println!("hello"); }'
# A worker that records when it ends: it reads the clock last, so that only the write comes after the timestamp.
STAMP = r"""
extern "C" { fn clock_gettime(clock: i32, out: *mut [i64; 2]) -> i32; }
fn main() {
    let mut args = std::env::args().skip(1);
    let pause: u64 = args.next().unwrap().parse().unwrap();
    let mut file = std::fs::File::create(args.next().unwrap()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(pause));
    let mut now = [0i64; 2];
    unsafe { clock_gettime(1, &mut now) };
    use std::io::Write;
    file.write_all(format!("{}", now[0] * 1_000_000_000 + now[1]).as_bytes()).unwrap();
}
"""


@dataclass
class Row:
    """One line of the table: our figure, the peers' figures, and the bounds."""

    scenario: str
    ours: float
    unit: str = "ms"
    peers: dict[str, float] = field(default_factory=dict)
    floor: dict[str, float] = field(default_factory=dict)
    """Name of a bound -> the highest accepted figure."""
    aim: dict[str, float] = field(default_factory=dict)
    note: str = ""

    def verdict(self) -> str:
        if any(self.ours > limit for limit in self.floor.values()):
            return "MISS"
        if not self.floor and not self.aim:
            return "-"
        if any(self.ours > limit for limit in self.aim.values()):
            return "floor"
        return "aim" if self.aim else "floor"


def against(row: Row, name: str, floor: float | None = None, aim: float | None = None, plus: float = 0) -> None:
    """Adds bounds that are multiples of a peer's figure, if the peer took part."""
    if name not in row.peers:
        return
    if floor is not None:
        row.floor[f"{floor:g} x {name}"] = floor * row.peers[name] + plus
    if aim is not None:
        row.aim[f"{aim:g} x {name}"] = aim * row.peers[name]


def alternate(actions: dict, rounds: int) -> dict[str, float]:
    """Runs the actions in alternating order (A B, B A, A B …) and returns the median of each."""
    samples: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds):
        order = list(actions) if number % 2 == 0 else list(reversed(actions))
        for name in order:
            samples[name].append(actions[name]())
            procs.reap()
    return {name: median(values) for name, values in samples.items()}


class Field:
    """Our program and the available peers, for one scenario."""

    def __init__(self, *kinds, quick: bool = False):
        self.subjects: dict[str, Subject] = {}
        self.missing: list[str] = []
        self.quick = quick
        for kind in kinds:
            try:
                self.subjects[kind.name] = kind()
            except cases.Skip as why:
                self.missing.append(str(why))

    def __enter__(self) -> "Field":
        return self

    def __exit__(self, *exc) -> None:
        for subject in self.subjects.values():
            subject.end()

    def fill(self, count: int, command: list[str]) -> None:
        for subject in self.subjects.values():
            subject.fill(count, command)

    def measure(self, scenario: str, action, rounds: int, unit: str = "ms") -> Row:
        """Alternates `action(subject)` over all subjects."""
        found = alternate({name: (lambda s=s: action(s)) for name, s in self.subjects.items()}, rounds)
        return Row(scenario, found.pop("swarm"), unit, found, note="; ".join(self.missing))


def start_and_list(quick: bool) -> list[Row]:
    """Start, list and status with 10 and 100 running workers, in one field."""
    rows = []
    with Field(Swarm, Pueue, Tsp) as field_:
        for count in (10, 100):
            field_.fill(count, SLEEP)
            row = field_.measure(f"start one, {count} registered", lambda s: s.start(TRUE), 10 if quick else 40)
            against(row, "pueue", 1.0, 0.5)
            against(row, "tsp", aim=1.2)
            row.floor[f"0.05 x {ORIGINAL_START_MS} ms"] = 0.05 * ORIGINAL_START_MS
            rows.append(row)
        rounds = 10 if quick else 30
        listed = field_.measure("list 100", lambda s: s.call(s.list_words()), rounds)
        against(listed, "pueue", 0.3)
        one = field_.measure("status of one of 100", lambda s: s.call(s.status_words(5), may_fail=True), rounds)
        against(one, "pueue", 0.2)
        for row in (listed, one):
            against(row, "tsp", aim=1.0)
        rows += [listed, one]
    return rows


def thousand(quick: bool) -> list[Row]:
    """Start and list with 1,000 registered workers, most of them ended."""
    rounds = 10 if quick else 30
    with Field(Swarm) as small:
        small.fill(10, TRUE)
        few = small.measure("", lambda s: s.start(TRUE), rounds).ours
    with Field(Swarm, Pueue) as field_:
        field_.fill(1000, TRUE)
        start = field_.measure("start one, 1,000 registered", lambda s: s.start(TRUE), rounds)
        start.floor["3 x at 10"], start.aim["1.5 x at 10"] = 3 * few, 1.5 * few
        start.note = f"at 10: {few:.2f} ms; {start.note}".strip("; ")
        listed = field_.measure("list 1,000", lambda s: s.call(s.list_words()), rounds)
        against(listed, "pueue", 0.3)
    return [start, listed]


def burst(quick: bool) -> list[Row]:
    """100 short workers by 100 calls, and waiting for all of them."""

    def action(subject: Subject) -> float:
        begun = time.perf_counter_ns()
        for _ in range(100):
            subject.start(TRUE)
        subject.call(subject.wait_all_words())
        took = (time.perf_counter_ns() - begun) / 1e6
        subject.clear()
        return took

    with Field(SwarmShort, Pueue, Tsp) as field_:
        row = field_.measure("100 short workers, wait for all", action, 2 if quick else 5)
    against(row, "pueue", 0.45)
    against(row, "tsp", aim=1.2)
    return [row]


def sleeper(subject: Subject) -> tuple[int, int]:
    """Starts a worker that writes its pid; returns the worker's number and that pid."""
    path = subject.rig.work / f"pid{subject.started}"
    script = subject.rig.root / "sayer"
    if not script.exists():
        script.write_text('#!/bin/sh\necho $$ > "$1.new"; mv "$1.new" "$1"; exec sleep 100000\n')
        script.chmod(0o755)
    number = subject.started
    subject.start([str(script), str(path)])
    wait_until(path.exists, 10, "the worker has written its pid", 0.002)
    return number, int(path.read_text())


def kill(quick: bool) -> list[Row]:
    """Time from the start of the kill until it has returned and the worker is gone."""

    def action(subject: Subject) -> float:
        number, pid = sleeper(subject)
        handle_start = procs.read_stat(pid).start
        begun = time.perf_counter_ns()
        subject.call(subject.kill_words(number))
        procs.wait_gone(pid, 10)
        took = (time.perf_counter_ns() - begun) / 1e6
        if procs.alive(pid, handle_start):
            raise AssertionError(f"{subject.name} did not end its worker")
        return took

    with Field(Swarm, Pueue, Tsp) as field_:
        row = field_.measure("kill until gone", action, 10 if quick else 30)
    against(row, "pueue", 1.0)
    against(row, "tsp", aim=1.0)
    return [row]


def compiled(folder: Path, name: str, source: str) -> Path:
    """Compiles a static program, which starts as fast as Rust allows."""
    if shutil.which("rustc") is None:
        raise cases.Missing("rustc")
    (folder / f"{name}.rs").write_text(source)
    words = ["rustc", "--edition", "2021", "-C", "target-feature=+crt-static", "-O", "-o", name, f"{name}.rs"]
    result = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if result.returncode != 0:
        raise cases.Skip(f"rustc: {result.stderr.strip()[-200:]}")
    return folder / name


def exit_to_wait(quick: bool) -> list[Row]:
    """Time from the last act of a worker until `wait` has returned."""
    with tempfile.TemporaryDirectory() as folder:
        program = str(compiled(Path(folder), "stamp", STAMP))

        def action(subject: Subject) -> float:
            path = subject.rig.work / f"stamp{subject.started}"
            number = subject.started
            subject.start([program, "300", str(path)])
            subject.call(subject.wait_words(number))
            return (time.clock_gettime_ns(time.CLOCK_MONOTONIC) - int(path.read_text())) / 1e6

        with Field(Swarm, Pueue, Tsp) as field_:
            row = field_.measure("exit until wait returns", action, 3 if quick else 11)
    against(row, "pueue", 0.01)
    against(row, "tsp", aim=2.0)
    return [row]


def concurrent(quick: bool) -> list[Row]:
    """8 processes x 25 registrations; checks that no row is lost."""

    def action(subject: Subject) -> float:
        scripts = []
        for client in range(8):
            calls = []
            for _ in range(25):
                calls.append(shlex.join(subject.start_words(subject.started, TRUE)) + " >/dev/null || echo refused")
                subject.started += 1
            path = subject.rig.root / f"client{client}"
            path.write_text("\n".join(calls) + "\n")
            scripts.append(str(path))
        begun = time.perf_counter_ns()
        clients = [subject.rig.start(["/bin/sh", path]) for path in scripts]
        results = [subject.rig.finish(client, 120) for client in clients]
        took = (time.perf_counter_ns() - begun) / 1e6
        lost = sum(result.out.count("refused") for result in results)
        if lost:
            raise AssertionError(f"{subject.name} refused {lost} of 200: {results[0].err[:200]}")
        if isinstance(subject, Swarm) and len(subject.rig.rows()) < subject.started:
            raise AssertionError(f"lost: {len(subject.rig.rows())} rows after {subject.started} starts")
        return took

    # Every sample starts new programs, so that no registration slows down because of rows of an earlier sample.
    samples: dict[str, list[float]] = {}
    missing: list[str] = []
    for _ in range(1 if quick else 3):
        with Field(SwarmShort, Pueue, Tsp) as field_:
            for name, subject in field_.subjects.items():
                samples.setdefault(name, []).append(action(subject))
            missing = field_.missing
    found = {name: median(values) for name, values in samples.items()}
    row = Row("8 x 25 registrations at once", found.pop("swarm"), peers=found, note="; ".join(missing))
    against(row, "pueue", 0.7)
    against(row, "tsp", aim=1.2)
    return [row]


def memory(quick: bool) -> list[Row]:
    """PSS of all processes that each program keeps for 100 sleeping workers."""
    with Field(Swarm, Pueue, Tsp) as field_:
        field_.fill(100, SLEEP)
        # Only what stays once everything is quiet counts.
        time.sleep(1)
        sizes = {name: subject.overhead() for name, subject in field_.subjects.items()}
        ours = field_.subjects["swarm"]
        shims = [p.pid for p in ours.rig.of_role("shim")]
        totals = {name: sum(each.values()) / 1024 for name, each in sizes.items()}
        row = Row("memory with 100 workers (PSS)", totals.pop("swarm"), "MB", totals, note="; ".join(field_.missing))
        against(row, "pueue", 0.6)
        against(row, "tsp", aim=1.4)
        each = sum(sizes["swarm"][pid] for pid in shims) / max(1, len(shims))
        shim = Row("one shim (PSS, mean)", each, "kB", floor={"140 kB": 140}, aim={"140 kB": 140})
    return [row, shim]


def windows(quick: bool) -> list[Row]:
    """50 tmux windows by 50 calls."""
    tmux = shutil.which("tmux")
    if tmux is None:
        raise cases.Missing("tmux")
    count = 10 if quick else 50

    def ours(rig: Rig) -> float:
        rig.start_tmux()
        rig.must("spawn", "--name", "first", "--", *SLEEP)
        begun = time.perf_counter_ns()
        for number in range(count):
            words = [rig.binary, "spawn", "--name", f"w{number}", *rig.tmux_flags, "--", *SLEEP]
            timed(words, rig.env, rig.work)
        return (time.perf_counter_ns() - begun) / 1e6

    def raw(rig: Rig) -> float:
        rig.start_tmux()
        begun = time.perf_counter_ns()
        timed([tmux, "-L", "lab", "new-session", "-d", "-s", "lab", "-n", "w0", *SLEEP], rig.env, rig.work)
        for number in range(1, count):
            timed([tmux, "-L", "lab", "new-window", "-d", "-t", "lab:", "-n", f"w{number}", *SLEEP], rig.env, rig.work)
        return (time.perf_counter_ns() - begun) / 1e6

    def in_rig(action):
        def run() -> float:
            with Rig() as rig:
                return action(rig)
        return run

    found = alternate({"swarm": in_rig(ours), "raw tmux": in_rig(raw)}, 2 if quick else 5)
    row = Row(f"{count} tmux windows by {count} calls", found["swarm"], peers={"raw tmux": found["raw tmux"]})
    against(row, "raw tmux", 2.5, 1.3)
    return [row]


def worktrees(quick: bool) -> list[Row]:
    """A worker in a new worktree compared with `git worktree add` alone."""
    rows = []
    git = shutil.which("git")
    for files, rounds in ((200, 10), (20_000, 3)):
        if quick and files > 200:
            continue
        with Rig() as rig:
            rig.make_repo(files)
            rig.must("spawn", "--name", "first", "--", *SLEEP)
            counter = iter(range(10**6))

            def ours(rig=rig, counter=counter) -> float:
                words = [rig.binary, "spawn", "--name", f"w{next(counter)}", "--worktree", "--", *TRUE]
                return timed(words, rig.env, rig.repo)

            def theirs(rig=rig, counter=counter) -> float:
                name = f"g{next(counter)}"
                words = [git, "worktree", "add", "-q", "-b", name, str(rig.root / "repo-worktrees" / name)]
                return timed(words, rig.env, rig.repo)

            found = alternate({"swarm": ours, "git": theirs}, rounds)
            row = Row(f"worktree of {files:,} files", found["swarm"], peers={"git": found["git"]})
            against(row, "git", 1.3, 1.05, plus=10)
            rows.append(row)
    return rows


def process_start(quick: bool) -> list[Row]:
    """`swarm status` compared with a program that only prints hello."""
    with tempfile.TemporaryDirectory() as folder, Swarm() as ours:
        hello = str(compiled(Path(folder), "hello", HELLO))
        ours.fill(10, SLEEP)
        found = alternate({"swarm": lambda: ours.call(ours.status_words(3)), "hello": lambda: ours.call([hello])},
                          30 if quick else 200)
    row = Row("swarm status, process start", found["swarm"], peers={"hello": found["hello"]})
    against(row, "hello", 3, 2)
    return [row]


def supervisor_start(quick: bool) -> list[Row]:
    """Extra time of the first command, which starts the supervisor, over the next one."""
    with Swarm() as ours:
        ours.call([ours.rig.binary, "kill", "--all"])

        def cold() -> float:
            ours.call([ours.rig.binary, "supervisor", "stop"])
            wait_until(lambda: not ours.rig.of_role("supervisor"), 10, "the supervisor has exited")
            return ours.start(TRUE)

        found = alternate({"cold": cold, "warm": lambda: ours.start(TRUE)}, 5 if quick else 15)
    return [Row("supervisor start (cold - warm spawn)", found["cold"] - found["warm"], floor={"15 ms": 15},
                note=f"cold {found['cold']:.1f} ms")]


def on_disk(quick: bool) -> list[Row]:
    """A start compared with one fsync on the same disk."""
    base = temp_base()

    def fsync() -> float:
        with tempfile.TemporaryDirectory(dir=base) as folder:
            handle = os.open(f"{folder}/f", os.O_WRONLY | os.O_CREAT, 0o600)
            begun = time.perf_counter_ns()
            os.write(handle, bytes(10_000))
            os.fsync(handle)
            took = (time.perf_counter_ns() - begun) / 1e6
            os.close(handle)
        return took

    with Swarm() as ours:
        ours.fill(10, SLEEP)
        found = alternate({"swarm": lambda: ours.start(TRUE), "one fsync": fsync}, 10 if quick else 30)
    return [Row("start one, state on disk", found["swarm"], peers={"one fsync": found["one fsync"]}, note=f"below {base}")]


def switches(pids: list[int]) -> dict[tuple[int, str], int]:
    """Number of times that each thread of these processes has waited so far: each wake-up adds one."""
    counts = {}
    for pid in pids:
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            lines = status.read_text().splitlines()
            counts[pid, status.parent.name] = sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return counts


def wakeups(before: dict, after: dict) -> int:
    """Number of wake-ups between the two samples; a thread that is new or gone counts too."""
    added = sum(count - before.get(thread, 0) for thread, count in after.items())
    return added + len(set(before) - set(after))


def idle(quick: bool, seconds: float) -> list[Row]:
    """An idle minute with 100 workers: no thread of ours wakes, measured by the kernel's counters and by strace."""
    with Swarm() as ours:
        ours.fill(100, SLEEP)
        people = [p for p in ours.rig.census() if p.role in ("guard", "supervisor", "forkserver", "shim")]
        pids = [p.pid for p in people]
        last = [switches(pids), time.monotonic()]

        def calm() -> bool:
            now = switches(pids)
            if now != last[0]:
                last[:] = now, time.monotonic()
            return time.monotonic() - last[1] > CALM_SECONDS

        wait_until(calm, 60, "all threads are idle after the last start", 1.0)
        before = switches(pids)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(1.0, seconds))
        woken = wakeups(before, switches(pids))
        calls = traced_calls(ours, [p.pid for p in people if p.role != "shim"], seconds)
    return [
        Row(f"wake-ups in {seconds:g} idle s, 100 workers", woken, "", floor={"none": 0}, aim={"none": 0}),
        Row(f"system calls in {seconds:g} idle s (strace)", len(calls), "", floor={"none": 0}, aim={"none": 0},
            note=" ".join(calls[:10]) or "excludes the wait that strace itself interrupts once per thread"),
    ]


def traced_calls(ours: Swarm, pids: list[int], seconds: float) -> list[str]:
    """Names of the calls made while strace is attached."""
    return [call.split("(")[0] for _, call in timed_calls(ours, pids, seconds) if "resumed>" not in call]


def timed_calls(ours: Swarm, pids: list[int], seconds: float) -> list[tuple[float, str]]:
    """Calls made while strace is attached, except those that strace interrupts by attaching and detaching."""
    log = ours.rig.root / "idle.log"
    argv = ["strace", "-f", "-ttt", "-o", str(log), "-e", "signal=none"] + [word for pid in pids for word in ("-p", str(pid))]
    if shutil.which("strace") is None:
        raise cases.Missing("strace")
    strace = procs.launch(argv, stderr=subprocess.DEVNULL)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(1.0, seconds))
    strace.terminate()
    strace.wait()
    procs.forget(strace)
    # Attaching interrupts each wait once, and the program waits again: the calls of the first second are excluded.
    lines = [line.split(None, 2) for line in log.read_text().splitlines()]
    first = float(lines[0][1]) if lines else 0.0
    return [(float(at), call) for _, at, call in lines if float(at) > first + 1 and "detached" not in call]


ROWS = {
    "start": start_and_list,
    "thousand": thousand,
    "burst": burst,
    "kill": kill,
    "exit": exit_to_wait,
    "concurrent": concurrent,
    "memory": memory,
    "windows": windows,
    "worktrees": worktrees,
    "process": process_start,
    "supervisor": supervisor_start,
    "disk": on_disk,
    "idle": idle,
}
