"""Landing where repository or disk are not as usual: collected all the time, large, full, of other formats."""

import contextlib
import json
import shutil

from . import cases
from .bench_landing import must, repository
from .inject import panics, stop_everything
from .real_disk import mounted, unmount
from .real_tools import stays, worked
from .rig import ROOT, Rig, wait_until

LIMIT = 120
MINE = "edited by a person, committed by nobody\n"
COLLECT = "while test ! -e {stop}; do git gc -q --prune=now; echo $? >> {rounds}; done"
# So many commits of this project are replayed, and so many at once from one base.
REPLAYED = 40
FLEET = 4
# Whatever the project's own swarm.toml says.
PLAIN = ("--verify", "", "--strategy", "merge")


def imported(rig: Rig, branches: dict[str, dict[str, str | None]], start: str = "refs/heads/main") -> None:
    """Makes branches of one commit each on `start`; a file without text is removed."""
    lines = []
    for name, files in branches.items():
        lines.append(f"commit refs/heads/{name}\ncommitter L <l@l> 1700000002 +0000")
        lines.append(f"data {len(name)}\n{name}\nfrom {start}^0")
        for path, text in files.items():
            lines.append(f"D {path}" if text is None else f"M 100644 inline {path}\ndata {len(text.encode())}\n{text}")
    script = rig.root / "branches"
    script.write_text("\n".join(lines) + "\n")
    must(rig, f"git fast-import --quiet < {script}")


def numbered(*changed: int) -> str:
    """A hundred lines, some of them changed: what is far apart merges."""
    return "".join(f"{'changed' if n in changed else 'line'} {n}\n" for n in range(100))


def items(rig: Rig, base: str = "main") -> dict[str, dict]:
    said = json.loads(rig.must("merge", "ls", "--all", "--json", "--base", base, cwd=rig.repo).out)
    return {item["name"]: item for queue in said["queues"] for item in queue["items"]}


def waited(rig: Rig, base: str = "main") -> dict[str, dict]:
    """The items by name, once all are settled."""
    rig.swarm("merge", "wait", "--timeout", str(LIMIT), cwd=rig.repo, limit=LIMIT + 10)
    return items(rig, base)


def states(found: dict[str, dict], expected: dict[str, str]) -> list[str]:
    """Each item against the state it has to have."""
    findings = []
    for name, state in expected.items():
        item = found.get(name)
        if item is None:
            findings.append(f"lost: {name} is in no queue")
        elif item["state"] != state:
            findings.append(f"{name} is {item['state']} and not {state}: {item['reason']} {item['files']}")
    return findings


def landed_in_order(rig: Rig, base: str = "main") -> list[str]:
    """The names in the order in which they landed."""
    log = json.loads(rig.must("merge", "log", "--json", "--base", base, cwd=rig.repo).out)["items"]
    return [item["name"] for item in log if item["state"] == "landed"]


def named(found: dict[str, dict], expected: dict[str, list[str]]) -> list[str]:
    """Each item against the files it has to name."""
    return [f"unclear: {name} names {found[name]['files']} and not {files}" for name, files in expected.items()
            if found[name]["files"] != files]


def tree_of(rig: Rig, commit: str) -> str:
    return must(rig, f"git rev-parse {commit}^{{tree}}").strip()


def made(rig: Rig, tree: str, *parents: str) -> str:
    """A new commit."""
    return must(rig, f"git commit-tree -m x {' '.join(f'-p {parent}' for parent in parents)} {tree}").strip()


def as_by_hand(rig: Rig, start: str, base: str = "main") -> list[str]:
    """The base has the tree that `git merge --no-ff` of the same branches gives in a clean clone."""
    clone = rig.root / "clean"
    must(rig, f"git clone -q --sparse {rig.repo} {clone}", rig.root)
    must(rig, f"git checkout -q --detach {start}", clone)
    for name in landed_in_order(rig, base):
        must(rig, f"git merge -q --no-ff -m x origin/{name}", clone)
    ours, theirs = tree_of(rig, base), must(rig, "git rev-parse HEAD^{tree}", clone).strip()
    if ours == theirs:
        return []
    return [f"altered: other tree than by hand: {must(rig, f'git diff --stat {ours} {theirs}', clone)[-300:]}"]


def whole(rig: Rig) -> list[str]:
    """No object is missing or damaged; what nobody needs may lie about."""
    result = rig.run("git", "fsck", "--full", "--no-dangling", cwd=rig.repo, limit=60)
    lines = (result.out + result.err).splitlines()
    bad = [line for line in lines if line.startswith(("missing", "broken", "error", "fatal"))]
    return [f"lost: fsck ended with {result.rc}: {bad[:3]}"] if bad or result.rc != 0 else []


def checkout(rig: Rig, status: list[str]) -> list[str]:
    """The directory is as git says, and each of its files as committed but for those named."""
    said = must(rig, "git status --porcelain -uall").splitlines()
    findings = [] if said == status else [f"altered: status says {said[:5]} and not {status}"]
    # An index that has seen no file makes git read each of them.
    fresh = f"GIT_INDEX_FILE={rig.root / 'fresh'}"
    differing = must(rig, f"{fresh} git read-tree HEAD && {fresh} git diff --name-only").splitlines()
    own = [line[3:] for line in status if not line.startswith("??")]
    return findings + ([] if sorted(differing) == sorted(own) else [f"altered: files that differ: {differing[:5]}"])


def ended(rig: Rig) -> list[str]:
    # A guard that a worker's end has started looks for a second whether it is needed.
    wait_until(lambda: len(rig.of_role("guard")) <= 1, 10, "one guard is left")
    return panics(rig) + stop_everything(rig)


# Collected all the time.

def collected() -> list[str]:
    """`git gc --prune=now` in a loop beside thirty landings: nothing that is needed goes."""
    with Rig() as rig:
        repository(rig, 200, 1)
        must(rig, "git reset -q --hard main")
        imported(rig, {"lines": {"lines": numbered()}})
        must(rig, "git merge -q lines")
        start = must(rig, "git rev-parse main").strip()
        names = [f"b{n}" for n in range(24)]
        imported(rig, {name: {f"d0/{name}": name, "lines": numbered(4 * n)} for n, name in enumerate(names)})
        with collecting(rig, findings := []):
            findings += add_thirty(rig, names)
            found = waited(rig)
        findings += states(found, dict.fromkeys([*names, *(f"w{n}" for n in range(100, 106))], "landed"))
        findings += whole(rig)
        # By hand nothing can be done in a repository with holes.
        findings += [] if findings else as_by_hand(rig, start) + checkout(rig, [])
        return findings + ended(rig)


@contextlib.contextmanager
def collecting(rig: Rig, findings: list[str]):
    """Meanwhile git gc runs all the time."""
    stop, rounds = rig.root / "stop", rig.root / "rounds"
    loop = rig.start(["sh", "-c", COLLECT.format(stop=stop, rounds=rounds)], cwd=rig.repo)
    try:
        wait_until(rounds.exists, 20, "git gc has run once")
        yield
    finally:
        stop.touch()
        said = rig.finish(loop, 60).err
    codes = rounds.read_text().split()[1:]
    if len(codes) < 3 or "0" not in codes:
        findings.append(f"git gc was hardly at work: its exit codes are {codes}")
    # It may also find a reference moved, or another git gc at work; that harms nobody.
    lost = [line for line in said.splitlines() if "valid object" in line or "bad " in line or "missing " in line]
    findings += [f"lost: git gc says {lost[:2]}"] if lost else []


def add_thirty(rig: Rig, names: list[str]) -> list[str]:
    """One after another: branches, every third verified, and workers that leave their work uncommitted."""
    findings = []
    for n, name in enumerate(names):
        verify = ("--verify", f"test -e d0/{name}") if n % 3 == 0 else ()
        findings += worked(rig.swarm("merge", "add", name, *verify, cwd=rig.repo))
        if n % 4 == 0:
            worker = f"w{100 + n // 4}"
            script = f"echo {worker} > {worker}; echo {worker} > d1/f{50 + n}"
            result = rig.swarm("spawn", "--name", worker, "--worktree", "--merge", "--", "sh", "-c", script, cwd=rig.repo)
            findings += worked(result)
    return findings


# Large.

def large() -> list[str]:
    """Twenty thousand files checked out with edits of a person: what is in the way waits, the rest lands around it."""
    with Rig() as rig:
        repository(rig, 20_000, 6)
        must(rig, "git reset -q --hard main")
        start = must(rig, "git rev-parse main").strip()
        mine, staged = "d200/f10001", "d200/f10002"
        imported(rig, {
            "moves": {"d7/f377": None, "new/deep/f377": "000377\n", "d8/f400": "eight\n"},
            "clash": {"d0/f0": "otherwise\n"},
            "touches": {mine: "theirs\n", "d3/f199": "comes with it\n"},
        })
        for path in (mine, staged):
            (rig.repo / path).write_text(MINE)
        must(rig, f"git add {staged}")
        script = "echo worker > d300/f15000; echo new > fresh; rm d301/f15050"
        rig.must("spawn", "--name", "worker", "--worktree", "--", "sh", "-c", script, cwd=rig.repo)
        good = [f"w{n}" for n in range(6)] + ["moves", "worker"]
        rig.must("merge", "add", *(f"w{n}" for n in range(6)), "clash", "touches", cwd=rig.repo)
        rig.must("wait", "worker", "--timeout", "30")
        rig.must("merge", "add", "moves", "worker", "--verify", "test ! -e d7/f377", cwd=rig.repo)
        found = waited(rig)
        findings = states(found, {**dict.fromkeys(good, "landed"), "clash": "conflict", "touches": "waiting"})
        findings += named(found, {"clash": ["d0/f0"], "touches": [mine]})
        findings += [f"lost: {path}" for path in (mine, staged) if (rig.repo / path).read_text() != MINE]
        findings += checkout(rig, [f" M {mine}", f"M  {staged}"]) + as_by_hand(rig, start)
        return findings + ended(rig)


# The project's own history.

def history(rig: Rig) -> list[str]:
    """The last commits of this repository's first-parent history, oldest first, in a clone of it."""
    if rig.run("git", "-C", str(ROOT), "rev-parse", "HEAD").rc != 0:
        raise cases.Skip("the project is in no repository")
    must(rig, f"git clone -q --no-local --no-checkout {ROOT} {rig.repo}", rig.root)
    listed = must(rig, f"git rev-list --first-parent --reverse --max-count={REPLAYED + 1} HEAD").split()
    if len(listed) < 3:
        raise cases.Skip("the repository has no history to replay")
    return listed


def replayed_in_line() -> list[str]:
    """Each commit of this project as a branch on the one before: every landing has the original's tree."""
    with Rig() as rig:
        listed = history(rig)
        must(rig, f"git branch line {listed[0]}")
        names = [f"c{n}" for n in range(1, len(listed))]
        for name, commit in zip(names, listed[1:]):
            must(rig, f"git branch {name} {commit}")
        rig.must("merge", "add", *names, "--base", "line", *PLAIN, cwd=rig.repo, limit=60)
        findings = states(waited(rig, "line"), dict.fromkeys(names, "landed"))
        return findings + same_trees(rig, "line", listed) + ended(rig)


def same_trees(rig: Rig, base: str, listed: list[str]) -> list[str]:
    """Landing by landing the base has had the trees of these commits."""
    got = must(rig, f"git log --reverse --first-parent --format=%T {listed[0]}..{base}").split()
    wanted = must(rig, f"git log --no-walk=unsorted --format=%T {' '.join(listed[1:])}").split()
    if got == wanted:
        return []
    first = next((commit for commit, one, other in zip(listed[1:], got, wanted) if one != other), "none")
    return [f"altered: {len(got)} landings of {len(wanted)}, the first with another tree: {first}"]


def replayed_by_fleet() -> list[str]:
    """The same as workers would have made them: up to four from one base, which are merged where they overlap."""
    with Rig() as rig:
        listed = history(rig)
        must(rig, f"git checkout -q -b fleet {listed[0]}")
        rig.must("spawn", "--name", "stay", "--", *rig.worker("sleep", 1000))
        findings, done, rounds = [], 0, 0
        while done + 1 < len(listed) and not findings:
            names = side_by_side(rig, listed[done:done + FLEET + 1])
            rig.must("merge", "add", *names, "--base", "fleet", *PLAIN, cwd=rig.repo)
            findings = states(waited(rig, "fleet"), dict.fromkeys(names, "landed"))
            done, rounds = done + len(names), rounds + 1
        if rounds >= len(listed) - 1:
            findings.append("no two commits were side by side")
        return findings + same_trees(rig, "fleet", listed) + checkout(rig, []) + ended(rig)


def side_by_side(rig: Rig, listed: list[str]) -> list[str]:
    """Branches for the commits after the first, all on the base; as many as git itself merges to the original."""
    base, names = must(rig, "git rev-parse fleet").strip(), []
    tip = base
    for before, commit in zip(listed, listed[1:]):
        picked = rig.run("git", "merge-tree", "--write-tree", f"--merge-base={before}", base, commit, cwd=rig.repo)
        if picked.rc != 0:
            break
        topic = made(rig, picked.out.split()[0], base)
        merged = rig.run("git", "merge-tree", "--write-tree", tip, topic, cwd=rig.repo)
        if merged.rc != 0 or merged.out.split()[0] != tree_of(rig, commit):
            break
        tip = made(rig, merged.out.split()[0], tip, topic)
        names.append(f"f-{commit[:12]}")
        must(rig, f"git branch {names[-1]} {topic}")
    return names


# A full disk.

def filled(ignored: bool) -> list[str]:
    """A verification takes all the room of the state directory: that is told, the base stays, and the next one lands."""
    with Rig() as rig:
        mounted(rig, "size=8m")
        try:
            rig.make_repo()
            (rig.repo / ".gitignore").write_text("built/\n" if ignored else "")
            must(rig, "git add .gitignore; git commit -qm ignore")
            imported(rig, {name: {name: f"{name}\n"} for name in ("first", "fills", "next")})
            rig.must("merge", "add", "first", "--verify", "test -e first", cwd=rig.repo)
            findings = states(waited(rig), {"first": "landed"})
            before = must(rig, "git rev-parse main").strip()
            rig.must("merge", "add", "fills", "--verify", "mkdir built; cat /dev/zero > built/filler", cwd=rig.repo)
            findings += told_of_the_disk(rig)
            if must(rig, "git rev-parse main").strip() != before:
                findings.append("altered: the base moved for what was not verified")
            if ignored or findings:
                # What git ignores stays there, so it is for a person to remove.
                for built in rig.dir.glob("merge/*/verify/built"):
                    shutil.rmtree(built, ignore_errors=True)
            findings += next_lands(rig) + whole(rig) + checkout(rig, [])
            return findings + ended(rig)
        finally:
            unmount(rig)


def told_of_the_disk(rig: Rig) -> list[str]:
    """The item comes to rest, with a reason that leads to the cause."""
    rig.swarm("merge", "wait", "fills", "--timeout", "6", cwd=rig.repo)
    item = items(rig)["fills"]
    if item["state"] not in ("rejected", "waiting"):
        return [f"wedge: the item is {item['state']} and nothing says why"]
    log = "".join(path.read_text() for path in rig.dir.glob(f"merge/*/logs/{item['item']}.log"))
    clear = "No space left" in (item["reason"] or "") or "No space left" in log
    return [] if clear else [f"unclear: {item['reason']}, and its output is {log!r}"]


def next_lands(rig: Rig) -> list[str]:
    """With a verification that needs room itself."""
    verify = "head -c 1000000 /dev/zero > room && test -e next && rm room"
    result = rig.swarm("merge", "add", "next", "--verify", verify, cwd=rig.repo)
    if result.rc != 0:
        return [f"wedge: {result}"]
    rig.swarm("merge", "wait", "next", "--timeout", "10", cwd=rig.repo)
    return states(items(rig), {"first": "landed", "next": "landed"})


# Other formats.

def format_case(*flags: str) -> list[str]:
    """A worker lands, a conflict is reported, edits wait, the checkout comes along: as everywhere."""
    with Rig() as rig:
        rig.repo.mkdir()
        if rig.run("git", "init", "-q", "-b", "main", *flags, cwd=rig.repo).rc != 0:
            raise cases.Missing(f"a git with {flags[0]}")
        rig.make_repo()
        start = must(rig, "git rev-parse main").strip()
        (rig.repo / "d0/f1.txt").write_text(MINE)
        imported(rig, {"conflict": {"d0/f0.txt": "otherwise\n"}, "touches": {"d0/f1.txt": "theirs\n"},
                       "squashed": {"s": "s\n"}, "rebased": {"r": "r\n"}, "bad": {"bad": "bad\n"}})
        script = "echo worker >> d0/f0.txt; mkdir new; echo worker > new/file; rm d0/f2.txt"
        flags = ("--worktree", "--merge")
        findings = worked(rig.swarm("spawn", "--name", "worker", *flags, "--", "sh", "-c", script, cwd=rig.repo))
        findings += states(waited(rig), {"worker": "landed"})
        for name, *rules in (("conflict",), ("touches",), ("squashed", "--strategy", "squash"),
                             ("rebased", "--strategy", "rebase"), ("bad", "--verify", "test ! -e bad")):
            rig.must("merge", "add", name, *rules, cwd=rig.repo)
        found = waited(rig)
        findings += states(found, {"conflict": "conflict", "touches": "waiting", "squashed": "landed",
                                   "rebased": "landed", "bad": "rejected"})
        findings += named(found, {"conflict": ["d0/f0.txt"], "touches": ["d0/f1.txt"]})
        findings += checkout(rig, [" M d0/f1.txt"]) + as_by_hand(rig, start) + whole(rig)
        findings += worked(rig.swarm("clean", "worker"))
        return findings + ended(rig)


# Submodules.

def superproject(rig: Rig, recurse: str = "false") -> tuple[str, str]:
    """A repository with a submodule `lib` that is checked out at the first of two commits, with an edit in it."""
    lib = rig.root / "lib"
    lib.mkdir()
    must(rig, "git init -q -b main; echo 1 > code; git add .; git commit -qm 1; echo 2 > code; git commit -qam 2", lib)
    one, two = must(rig, "git rev-parse HEAD~1 HEAD", lib).split()
    rig.make_repo()
    must(rig, f"git -c protocol.file.allow=always submodule --quiet add {lib} lib; git -C lib checkout -q {one}")
    must(rig, f"git add lib; git commit -qm lib; git config submodule.recurse {recurse}")
    (rig.repo / "lib/own").write_text(MINE)
    return one, two


def pointing(rig: Rig, name: str, commit: str) -> None:
    """A branch that moves the submodule to a commit."""
    index = f"GIT_INDEX_FILE={rig.root / 'pointing'}"
    words = ("read-tree main", f"update-index --cacheinfo 160000,{commit},lib", "write-tree")
    tree = must(rig, " && ".join(f"{index} git {word}" for word in words)).strip()
    must(rig, f"git branch {name} {made(rig, tree, 'main')}")


def submodule(recurse: str) -> list[str]:
    """A branch that moves a submodule lands, and what is checked out of the submodule stays as it is."""
    with Rig() as rig:
        one, two = superproject(rig, recurse)
        start = must(rig, "git rev-parse main").strip()
        pointing(rig, "moved", two)
        pointing(rig, "elsewhere", "1" * 40)
        rig.must("spawn", "--name", "w", "--worktree", "--merge", "--", "sh", "-c", "echo w > w", cwd=rig.repo)
        findings = states(waited(rig), {"w": "landed"})
        for name, rules in (("moved", ("--verify", "test -e w")), ("elsewhere", ())):
            rig.must("merge", "add", name, *rules, cwd=rig.repo)
            found = waited(rig)
        findings += states(found, {"moved": "landed", "elsewhere": "conflict"}) + named(found, {"elsewhere": ["lib"]})
        pointer = must(rig, "git rev-parse main:lib").strip()
        findings += [] if pointer == two else [f"lost: the base has the submodule at {pointer}"]
        findings += submodule_kept(rig, one) + as_by_hand(rig, start)
        findings += [] if (rig.repo / "w").exists() else ["lost: w did not come along"]
        return findings + ended(rig)


def submodule_kept(rig: Rig, commit: str) -> list[str]:
    """Its commit, its files and what a person has in it."""
    lib = rig.repo / "lib"
    if not (lib / ".git").exists():
        return [f"lost: the checkout of the submodule, with {MINE!r} in it"]
    head = must(rig, "git rev-parse HEAD; git status --porcelain", lib).splitlines()
    findings = [] if head == [commit, "?? own"] else [f"altered: the submodule is at {head}"]
    wanted = {"code": "1\n", "own": MINE}
    return findings + [f"lost: lib/{path}" for path, text in wanted.items() if (lib / path).read_text() != text]


def submodule_removed() -> list[str]:
    """A branch without the submodule lands, and its checkout stays, as git has it."""
    with Rig() as rig:
        one, _ = superproject(rig)
        imported(rig, {"without": {".gitmodules": None, "lib": None}})
        rig.must("merge", "add", "without", cwd=rig.repo)
        findings = states(waited(rig), {"without": "landed"}) + submodule_kept(rig, one)
        return findings + ended(rig)


def replaced(nested: bool) -> list[str]:
    """A file in the place of a submodule, or of a repository with its objects: what is there is in the way."""
    with Rig() as rig:
        one, _ = superproject(rig)
        if nested:
            # With its git directory in it, and its objects nowhere else.
            must(rig, "rm lib/.git; mv .git/modules/lib lib/.git; git -C lib config --unset core.worktree")
            must(rig, "git rm -q .gitmodules; git commit -qm nested")
        imported(rig, {"file": {"lib": "a file\n"}, "other": {"other": "other\n"}})
        rig.must("merge", "add", "file", "other", cwd=rig.repo)
        found = waited(rig)
        findings = states(found, {"file": "waiting", "other": "landed"}) + submodule_kept(rig, one)
        if not any(path.startswith("lib") for path in found["file"]["files"]):
            findings.append(f"unclear: names {found['file']['files']} and not lib")
        return findings + ended(rig)


# The supervisor.

def stopped_at_the_end() -> list[str]:
    """What was told to stop stays so, though a worker that was to land has just ended."""
    with Rig() as rig:
        rig.make_repo()
        rig.must("spawn", "--name", "w", "--worktree", "--merge", "--", "sh", "-c", "echo w > w", cwd=rig.repo)
        findings = states(waited(rig), {"w": "landed"})
        findings += worked(rig.swarm("supervisor", "stop"))
        stays(lambda: rig.swarm("supervisor", "status").rc != 0, 1.5, "no supervisor runs", findings)
        return findings + ended(rig)


INSIDE = {
    "disk: filled by a verification": lambda: filled(False),
    "disk: filled by a verification where git ignores it": lambda: filled(True),
}
CASES = {
    "landing: git gc in a loop": collected,
    "landing: 20,000 files": large,
    "landing: this project's history in line": replayed_in_line,
    "landing: this project's history by a fleet": replayed_by_fleet,
    "landing: SHA-256": lambda: format_case("--object-format=sha256"),
    "landing: reftable": lambda: format_case("--ref-format=reftable"),
    "landing: a submodule moves": lambda: submodule("false"),
    "landing: a submodule moves where git goes into them": lambda: submodule("true"),
    "landing: a submodule goes": submodule_removed,
    "landing: a file replaces a submodule": lambda: replaced(False),
    "landing: a file replaces a repository": lambda: replaced(True),
    "landing: stopped as its worker ends": stopped_at_the_end,
}
