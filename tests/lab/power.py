"""Power-loss replay: what a supervisor finds on the disks that a power cut may leave.

Each scenario is recorded once, with every change below its directory. For each image, a prefix of the recording is
chosen, and up to two operations that no sync covers (or all of them) are dropped or torn. The program is started on the
image under another boot id, in namespaces of its own, and its answers are compared with what it had acknowledged before
that point.

    python3 -m lab power --images 300 --seed 7
    python3 -m lab power --only land --images 10000
    python3 -m lab power --again 'spawn|120|d118'
    python3 -m lab power --removed
"""

import ctypes
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from . import cases, procs
from .power_disk import Data, Entries, Recording, write_tree
from . import power_asks, power_scenarios
from .power_scenarios import World
from .rig import Rig

SCENARIOS = power_scenarios.SCENARIOS | power_asks.SCENARIOS
NEWNS, NEWPID, NEWTIME = 0x20000, 0x20000000, 0x80
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
BOOT_ID = "/proc/sys/kernel/random/boot_id"
OTHER_BOOT = "00000000-0000-4000-8000-00000000b007"
IMAGE_SECONDS_MAX = 60
OBJECT = re.compile(r"^(link [0-9a-f]{38}|make [0-9a-f]{2})$")
POINT = re.compile(r"^(?P<scenario>[\w-]+)\|(?P<end>\d+)(?:\|(?P<faults>(?:[dt]\d+(?:/\d+)?,?)*))?$")

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    words = [word.encode() if word is not None else None for word in (source, target, kind)]
    if _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), None) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


class Taped:
    """A recorded scenario: the operations, and the rig at whose paths its images are shown."""

    def __init__(self, name: str):
        self.name = name
        self.scenario = SCENARIOS[name]
        self.rig = Rig(base=os.environ.get("LAB_TMP") or tempfile.gettempdir())
        self.disk = self.rig.root / "disk"
        self.disk.mkdir(mode=0o700)
        self.rig.home, self.rig.dir, self.rig.repo = self.disk / "home", self.disk / "s", self.disk / "repo"
        self.rig.home.mkdir(mode=0o700)
        self.rig.env.update(HOME=str(self.rig.home), SWARM_DIR=str(self.rig.dir))
        (self.rig.root / "acks").touch()

    def record(self) -> Recording:
        """Runs the scenario under the tracer. The ledger is outside of the disk, as the world is."""
        world = self.world = World(self.rig, self.disk)
        self.scenario.prepare(world)
        self.rig.swarm("supervisor", "stop")
        script = self.rig.root / "script"
        script.write_text("set -e\nack() { echo \"$*\" >> '%s'; }\n" % (self.rig.root / "acks") + self.scenario.script(world))
        target = self.rig.root / "recording"
        words = [sys.executable, "-m", "lab.power_trace", "--recording", str(target), "--root", str(self.disk),
                 "--acks", str(self.rig.root / "acks"), "sh", str(script)]
        path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
        result = self.rig.run(*words, limit=180, env={"PYTHONPATH": path}, cwd=str(self.disk))
        if result.rc != 0:
            raise AssertionError(f"not recorded: {result}")
        for process in sorted(self.rig.census(), key=lambda p: p.role != "guard"):
            procs.send(process.pid, process.start, 9)
        self.rig.ledger.write_text("")
        with open(target, "rb") as file:
            return pickle.load(file)


def is_of_object(op) -> bool:
    """Reports whether an operation makes a loose object, or a directory of objects, visible."""
    return isinstance(op, Entries) and bool(OBJECT.match(op.label))


class Point:
    """An image: the length of the prefix, and the operations that did not reach the disk, or only in part."""

    def __init__(self, scenario: str, end: int, dropped: set[int], torn: dict[int, int]):
        self.scenario, self.end, self.dropped, self.torn = scenario, end, dropped, torn

    def __str__(self) -> str:
        faults = [f"d{at}" for at in sorted(self.dropped)] + [f"t{at}/{kept}" for at, kept in sorted(self.torn.items())]
        return "|".join([self.scenario, str(self.end), ",".join(faults)])

    @staticmethod
    def parse(text: str) -> "Point":
        found = POINT.match(text)
        if not found:
            raise SystemExit(f"lab power: error: '{text}' names no image (example: spawn|120|d118,t119/40)")
        dropped, torn = set(), {}
        for word in filter(None, (found["faults"] or "").split(",")):
            if word[0] == "d":
                dropped.add(int(word[1:]))
            else:
                at, kept = word[1:].split("/")
                torn[int(at)] = int(kept)
        return Point(found["scenario"], int(found["end"]), dropped, torn)

    @staticmethod
    def choose(scenario: str, recording: Recording, dice: random.Random) -> "Point":
        end = dice.randint(1, len(recording.ops))
        pending = recording.pending(end)
        lot = dice.random()
        if not pending or lot < 0.1:
            return Point(scenario, end, set(), {})
        if lot < 0.25:
            return Point(scenario, end, set(pending), {})
        # Late operations are the most likely ones to be lost.
        some = dice.sample(pending, min(len(pending), dice.choice((1, 1, 2))))
        dropped, torn = set(), {}
        for at in some:
            op = recording.ops[at]
            if is_of_object(op):
                # git syncs its objects, but not their directories: it relies on a file system that keeps their order.
                dropped.update(one for one in pending if one >= at)
            elif isinstance(op, Data) and op.data and dice.random() < 0.5:
                torn[at] = dice.choice((0, len(op.data) // 2))
            else:
                dropped.add(at)
        return Point(scenario, end, dropped, torn)


# Syncs that are removed from a recording in order to see that the replay misses them: scenario, and label of the sync.
REMOVED = [
    ("spawn", r"^sync state\.journal"),
    ("exit", r"^sync exit\.slots$"),
    ("ends", r"^sync exit\.slots$"),
    ("exit-alone", r"^sync (exit\.tmp|exit\.json)"),
    ("kill-alone", r"^sync w\s*$"),
    ("worktree", r"^syncfs"),
    ("land-merge", r"^sync queue\.json\.tmp"),
    ("removal", r"^syncfs"),
    ("answers", r"^sync asks"),
    ("answers", r"^sync \."),
    ("rules", r"^sync rules\.jsonl"),
    ("ask", r"^sync asks"),
    ("held", r"^sync asks"),
]
REMOVED_BATCH, REMOVED_IMAGES_MAX = 20, 200
"""Numbers of images that are checked at once, and until a removed sync has to be found."""

_shows_log = False
_taped: dict[str, Taped] = {}
_recordings: dict[str, Recording] = {}


def judge(text: str) -> list[str]:
    """Shows one image to the program and returns the findings."""
    point = Point.parse(text)
    taped, recording = _taped[point.scenario], _recordings[point.scenario]
    top = Path(tempfile.mkdtemp(prefix="lab-image-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    try:
        disk = top / "disk"
        disk.mkdir()
        write_tree(recording.image(point.end, point.dropped, point.torn), disk)
        (top / "boot").write_text(OTHER_BOOT + "\n")
        for name in ("ledger", "acks"):
            (top / name).touch()
        for name in ("out", "t"):
            (top / name).mkdir(mode=0o700)
        return boot(taped, recording, point, top)
    finally:
        shutil.rmtree(top, ignore_errors=True)


def leave() -> None:
    """Puts the children of this process into namespaces of their own, in which the machine was just booted."""
    if _libc.unshare(NEWNS | NEWPID | NEWTIME) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    # After a power cut, every file is older than the boot.
    up_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    Path("/proc/self/timens_offsets").write_text(f"boottime {-up_ns // 10**9} {-up_ns % 10**9}")


def may_leave() -> bool:
    """Reports whether this user and this kernel allow such namespaces."""
    child = os.fork()
    if child == 0:
        try:
            leave()
            mount("none", "/", None, MS_REC | MS_PRIVATE)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def boot(taped: Taped, recording: Recording, point: Point, top: Path) -> list[str]:
    """Runs the judge as the first process of new namespaces, which end with it."""
    reader, writer = os.pipe()
    outer = os.fork()
    if outer == 0:
        try:
            os.close(reader)
            leave()
            first = os.fork()
            if first == 0:
                inside(taped, recording, point, top, writer)
            os.waitpid(first, 0)
        except BaseException as error:
            os.write(writer, pickle.dumps([f"rig: {error}"]))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read()
    os.waitpid(outer, 0)
    return pickle.loads(said) if said else ["rig: the judge said nothing"]


def inside(taped: Taped, recording: Recording, point: Point, top: Path, writer: int) -> None:
    """The first process of the namespaces."""
    try:
        mount("none", "/", None, MS_REC | MS_PRIVATE)
        mount("proc", "/proc", "proc", 0)
        mount(str(top / "boot"), BOOT_ID, None, MS_BIND)
        for name in ("disk", "ledger", "out", "t"):
            mount(str(top / name), str(taped.rig.root / name), None, MS_BIND)
        world = taped.world
        findings = world.start(point.end)
        acks = recording.acks(point.end)
        findings = findings or [*taped.scenario.check(world, acks), *world.repository(acks, taped.scenario.commits_until)]
        findings += world.log() if findings and _shows_log else []
    except AssertionError as error:
        findings = [str(error)]
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        findings = [f"rig: {type(error).__name__}: {error} ({last.name}:{last.lineno})"]
    os.write(writer, pickle.dumps(findings)[:60000])
    os._exit(0)


def judged(text: str) -> tuple[str, list[str], float]:
    began = time.monotonic()
    return text, judge(text), time.monotonic() - began


def check_removed(tally: cases.Tally, dice: random.Random, jobs: int) -> None:
    """Removes syncs from the recordings; each must lead to findings."""
    for name, pattern in REMOVED:
        whole = _recordings[name]
        _recordings[name], removed = whole.without(pattern)
        if not removed:
            tally.record(f"power {name} without '{pattern}'", ["the recording has no such sync"])
            continue
        covered = set(range(len(whole.ops))) - set(whole.pending(len(whole.ops)))
        seen, found = 0, []
        while not found and seen < REMOVED_IMAGES_MAX:
            texts = [removed_point(name, dice, removed, covered) for _ in range(REMOVED_BATCH)]
            found = [text for text, findings, _ in cases.in_parallel(judged, texts, jobs) if findings]
            seen += len(texts)
        print(f"      {name} without '{pattern}': findings in {len(found)} of the last {REMOVED_BATCH} of {seen} images",
              flush=True)
        tally.record(f"power {name} without '{pattern}'", [] if found else ["a removed sync was not found"])
        _recordings[name] = whole


def removed_point(name: str, dice: random.Random, removed: list[int], covered: set[int]) -> str:
    """Returns an image without some of the operations that a removed sync had `covered`, or without all that no sync
    covers: what one file does not have, another one may."""
    recording = _recordings[name]
    end = dice.randint(removed[0] + 1, len(recording.ops))
    lost = sorted(covered & set(recording.pending(end))) or [removed[0]]
    dropped = set(recording.pending(end)) if dice.random() < 0.3 else set(dice.sample(lost, min(len(lost), dice.choice((1, 2)))))
    return str(Point(name, end, dropped, {}))


def describe(point: Point) -> str:
    ops = _recordings[point.scenario].ops
    lost = [f"-{ops[at].label}" for at in sorted(point.dropped)[-4:]]
    lost += [f"~{ops[at].label}" for at in sorted(point.torn)]
    return f"after {ops[point.end - 1].label}; lost: {', '.join(lost) or 'nothing'}"


def main(argv=None) -> int:
    parser = cases.parser(__doc__)
    parser.add_argument("--images", type=int, default=300, help="number of images over all scenarios")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", metavar="IMAGE", action="append", help="check only this image (may be repeated)")
    parser.add_argument("--removed", action="store_true", help="check that removed syncs are found")
    parser.add_argument("--log", action="store_true", help="add the supervisor's log to the findings")
    parser.add_argument("--list", action="store_true", help="print the operations of the recordings and exit")
    args = parser.parse_args(argv)
    if not may_leave():
        tally = cases.Tally(allow_skips=args.allow_skips)
        tally.skip("power", f"{cases.MISSING}namespaces (root, and a kernel with CONFIG_TIME_NS)")
        return tally.close()
    global _shows_log
    _shows_log = args.log
    cases.ends_on_term()
    procs.become_subreaper()
    if args.removed:
        args.only = "|".join(f"^{name}$" for name, _ in REMOVED)
    names = sorted({Point.parse(text).scenario for text in args.again}) if args.again else cases.chosen(SCENARIOS, args.only)
    tally = cases.Tally(allow_skips=args.allow_skips)
    try:
        for name in names:
            _taped[name] = Taped(name)
            _recordings[name] = _taped[name].record()
            print(f"      {name}: {len(_recordings[name].ops)} operations", flush=True)
        if args.list:
            for name in names:
                for at, op in enumerate(_recordings[name].ops):
                    print(f"{name} {at:4} {type(op).__name__:8} {op.label} {getattr(op, 'text', '')}")
            return 0
        dice = random.Random(args.seed)
        if args.removed:
            check_removed(tally, dice, args.jobs)
            return tally.close()
        texts = args.again or [str(Point.choose(names[at % len(names)], _recordings[names[at % len(names)]], dice))
                               for at in range(args.images)]
        for text, findings, seconds in cases.in_parallel(judged, texts, args.jobs):
            point = Point.parse(text)
            note = [f"{'; '.join(findings)} [{describe(point)}]"] if findings else []
            tally.record(f"power {text[:200]}", note, seconds=seconds)
    finally:
        for taped in _taped.values():
            taped.rig.end()
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
