"""Landing under unusual conditions of repository and disk: concurrent git gc, large, full, other object formats."""

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
# Number of commits of this project to replay, and the maximum number from one base.
REPLAYED = 40
FLEET = 4
# Overrides the project's own swarm.toml.
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
    """A hundred lines, some of them changed: distant changes merge."""
    return "".join(f"{'changed' if n in changed else 'line'} {n}\n" for n in range(100))


def items(rig: Rig, base: str = "main") -> dict[str, dict]:
    said = json.loads(rig.must("merge", "ls", "--all", "--json", "--base", base, cwd=rig.repo).out)
    return {item["name"]: item for queue in said["queues"] for item in queue["items"]}


def waited(rig: Rig, base: str = "main") -> dict[str, dict]:
    """Returns the items by name, once all are settled."""
    rig.swarm("merge", "wait", "--timeout", str(LIMIT), cwd=rig.repo, limit=LIMIT + 10)
    return items(rig, base)


def states(found: dict[str, dict], expected: dict[str, str]) -> list[str]:
    """Compares the state of each item with the expected one."""
    findings = []
    for name, state in expected.items():
        item = found.get(name)
        if item is None:
            findings.append(f"lost: {name} is in no queue")
        elif item["state"] != state:
            findings.append(f"{name} is {item['state']} and not {state}: {item['reason']} {item['files']}")
    return findings


def landed_in_order(rig: Rig, base: str = "main") -> list[str]:
    """Returns the names in landing order."""
    log = json.loads(rig.must("merge", "log", "--json", "--base", base, cwd=rig.repo).out)["items"]
    return [item["name"] for item in log if item["state"] == "landed"]


def named(found: dict[str, dict], expected: dict[str, list[str]]) -> list[str]:
    """Compares the files that each item names with the expected ones."""
    return [f"unclear: {name} names {found[name]['files']} and not {files}" for name, files in expected.items()
            if found[name]["files"] != files]


def tree_of(rig: Rig, commit: str) -> str:
    return must(rig, f"git rev-parse {commit}^{{tree}}").strip()


def made(rig: Rig, tree: str, *parents: str) -> str:
    """Makes a commit and returns its id."""
    return must(rig, f"git commit-tree -m x {' '.join(f'-p {parent}' for parent in parents)} {tree}").strip()


def as_by_hand(rig: Rig, start: str, base: str = "main") -> list[str]:
    """Checks that the base has the tree that `git merge --no-ff` of the same branches gives in a clean clone."""
    clone = rig.root / "clean"
    must(rig, f"git clone -q --sparse {rig.repo} {clone}", rig.root)
    must(rig, f"git checkout -q --detach {start}", clone)
    for name in landed_in_order(rig, base):
        must(rig, f"git merge -q --no-ff -m x origin/{name}", clone)
    ours, theirs = tree_of(rig, base), must(rig, "git rev-parse HEAD^{tree}", clone).strip()
    if ours == theirs:
        return []
    return [f"altered: the tree differs from a manual merge: {must(rig, f'git diff --stat {ours} {theirs}', clone)[-300:]}"]


def whole(rig: Rig) -> list[str]:
    """Checks that no object is missing or damaged; unreachable objects are fine."""
    result = rig.run("git", "fsck", "--full", "--no-dangling", cwd=rig.repo, limit=60)
    lines = (result.out + result.err).splitlines()
    bad = [line for line in lines if line.startswith(("missing", "broken", "error", "fatal"))]
    return [f"lost: fsck exited with {result.rc}: {bad[:3]}"] if bad or result.rc != 0 else []


def checkout(rig: Rig, status: list[str]) -> list[str]:
    """Checks the output of git status, and that every file but those listed is as committed."""
    said = must(rig, "git status --porcelain -uall").splitlines()
    findings = [] if said == status else [f"altered: git status prints {said[:5]}, not {status}"]
    # A fresh index, without stat data, makes git read every file.
    fresh = f"GIT_INDEX_FILE={rig.root / 'fresh'}"
    differing = must(rig, f"{fresh} git read-tree HEAD && {fresh} git diff --name-only").splitlines()
    own = [line[3:] for line in status if not line.startswith("??")]
    return findings + ([] if sorted(differing) == sorted(own) else [f"altered: files that differ: {differing[:5]}"])


def ended(rig: Rig) -> list[str]:
    # The guard started at a worker's end checks for one second whether it is needed.
    wait_until(lambda: len(rig.of_role("guard")) <= 1, 10, "one guard is left")
    return panics(rig) + stop_everything(rig)


# Concurrent git gc.

def collected() -> list[str]:
    """`git gc --prune=now` in a loop during thirty landings: no needed object is lost."""
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
        # In a repository with missing objects, the merge by hand would fail too.
        findings += [] if findings else as_by_hand(rig, start) + checkout(rig, [])
        return findings + ended(rig)


@contextlib.contextmanager
def collecting(rig: Rig, findings: list[str]):
    """Runs git gc in a loop inside the `with` block."""
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
        findings.append(f"git gc hardly ran; exit codes: {codes}")
    # git gc may also fail because a reference moved or another git gc runs; that is harmless.
    lost = [line for line in said.splitlines() if "valid object" in line or "bad " in line or "missing " in line]
    findings += [f"lost: git gc says {lost[:2]}"] if lost else []


def add_thirty(rig: Rig, names: list[str]) -> list[str]:
    """Adds items one after the other: branches, every third verified, and workers that leave their work uncommitted."""
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


# Large repository.

def large() -> list[str]:
    """20,000 files checked out with edits of a user: what conflicts with an edit waits, the rest lands around the
    edits."""
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
    """Clones this repository and returns the last commits of its first-parent history, oldest first."""
    if rig.run("git", "-C", str(ROOT), "rev-parse", "HEAD").rc != 0:
        raise cases.Skip("the project is not in a git repository")
    must(rig, f"git clone -q --no-local --no-checkout {ROOT} {rig.repo}", rig.root)
    listed = must(rig, f"git rev-list --first-parent --reverse --max-count={REPLAYED + 1} HEAD").split()
    if len(listed) < 3:
        raise cases.Skip("the repository has no history to replay")
    return listed


def replayed_in_line() -> list[str]:
    """Each commit of this project as a branch on its predecessor: every landing has the original's tree."""
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
    """Compares the trees of the landings on the base, one by one, with the trees of these commits."""
    got = must(rig, f"git log --reverse --first-parent --format=%T {listed[0]}..{base}").split()
    wanted = must(rig, f"git log --no-walk=unsorted --format=%T {' '.join(listed[1:])}").split()
    if got == wanted:
        return []
    first = next((commit for commit, one, other in zip(listed[1:], got, wanted) if one != other), "none")
    return [f"altered: {len(got)} landings of {len(wanted)}, the first that differs: {first}"]


def replayed_by_fleet() -> list[str]:
    """The same history as a fleet would make it: up to four branches from one base, which are merged if they overlap.
    """
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
            findings.append("no two commits shared a base")
        return findings + same_trees(rig, "fleet", listed) + checkout(rig, []) + ended(rig)


def side_by_side(rig: Rig, listed: list[str]) -> list[str]:
    """Makes branches on the base for the next commits, as many as git itself merges to the original tree."""
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


# Full disk.

def filled(ignored: bool) -> list[str]:
    """A verification fills the state directory: the reason is reported, the base stays, and the next item lands."""
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
                findings.append("altered: the base moved without verification")
            if ignored or findings:
                # Files ignored by git stay there, so a user has to remove them.
                for built in rig.dir.glob("merge/*/verify/built"):
                    shutil.rmtree(built, ignore_errors=True)
            findings += next_lands(rig) + whole(rig) + checkout(rig, [])
            return findings + ended(rig)
        finally:
            unmount(rig)


def told_of_the_disk(rig: Rig) -> list[str]:
    """Checks that the item settles, with a reason that leads to the cause."""
    rig.swarm("merge", "wait", "fills", "--timeout", "6", cwd=rig.repo)
    item = items(rig)["fills"]
    if item["state"] not in ("rejected", "waiting"):
        return [f"wedge: the item is {item['state']} without a reason"]
    log = "".join(path.read_text() for path in rig.dir.glob(f"merge/*/logs/{item['item']}.log"))
    clear = "No space left" in (item["reason"] or "") or "No space left" in log
    return [] if clear else [f"unclear: {item['reason']}, output {log!r}"]


def next_lands(rig: Rig) -> list[str]:
    """Lands an item whose verification itself needs disk space."""
    verify = "head -c 1000000 /dev/zero > room && test -e next && rm room"
    result = rig.swarm("merge", "add", "next", "--verify", verify, cwd=rig.repo)
    if result.rc != 0:
        return [f"wedge: {result}"]
    rig.swarm("merge", "wait", "next", "--timeout", "10", cwd=rig.repo)
    return states(items(rig), {"first": "landed", "next": "landed"})


# Other object formats.

def format_case(*flags: str) -> list[str]:
    """A worker lands, a conflict is reported, edits make an item wait, the checkout follows: all as usual."""
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
    """Makes a repository with a submodule `lib` that is checked out at the first of two commits and has a user's edit.
    """
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
    """Makes a branch that moves the submodule to a commit."""
    index = f"GIT_INDEX_FILE={rig.root / 'pointing'}"
    words = ("read-tree main", f"update-index --cacheinfo 160000,{commit},lib", "write-tree")
    tree = must(rig, " && ".join(f"{index} git {word}" for word in words)).strip()
    must(rig, f"git branch {name} {made(rig, tree, 'main')}")


def submodule(recurse: str) -> list[str]:
    """A branch that moves a submodule lands; the submodule's checkout stays unchanged."""
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
        findings += [] if pointer == two else [f"lost: the submodule on the base is at {pointer}"]
        findings += submodule_kept(rig, one) + as_by_hand(rig, start)
        findings += [] if (rig.repo / "w").exists() else ["lost: w is not checked out"]
        return findings + ended(rig)


def submodule_kept(rig: Rig, commit: str) -> list[str]:
    """Checks the submodule's commit, its files and the user's edit."""
    lib = rig.repo / "lib"
    if not (lib / ".git").exists():
        return [f"lost: the submodule's checkout, which contains {MINE!r}"]
    head = must(rig, "git rev-parse HEAD; git status --porcelain", lib).splitlines()
    findings = [] if head == [commit, "?? own"] else [f"altered: the submodule is at {head}"]
    wanted = {"code": "1\n", "own": MINE}
    return findings + [f"lost: lib/{path}" for path, text in wanted.items() if (lib / path).read_text() != text]


def submodule_removed() -> list[str]:
    """A branch without the submodule lands; its checkout stays, as with git itself."""
    with Rig() as rig:
        one, _ = superproject(rig)
        imported(rig, {"without": {".gitmodules": None, "lib": None}})
        rig.must("merge", "add", "without", cwd=rig.repo)
        findings = states(waited(rig), {"without": "landed"}) + submodule_kept(rig, one)
        return findings + ended(rig)


def replaced(nested: bool) -> list[str]:
    """A file replaces a submodule, or a nested repository with its objects: the existing directory blocks the landing.
    """
    with Rig() as rig:
        one, _ = superproject(rig)
        if nested:
            # A nested repository, whose objects exist nowhere else.
            must(rig, "rm lib/.git; mv .git/modules/lib lib/.git; git -C lib config --unset core.worktree")
            must(rig, "git rm -q .gitmodules; git commit -qm nested")
        imported(rig, {"file": {"lib": "a file\n"}, "other": {"other": "other\n"}})
        rig.must("merge", "add", "file", "other", cwd=rig.repo)
        found = waited(rig)
        findings = states(found, {"file": "waiting", "other": "landed"}) + submodule_kept(rig, one)
        if not any(path.startswith("lib") for path in found["file"]["files"]):
            findings.append(f"unclear: names {found['file']['files']}, not lib")
        return findings + ended(rig)


# The supervisor.

def stopped_at_the_end() -> list[str]:
    """A stopped supervisor stays stopped, even if a worker with work to land has just ended."""
    with Rig() as rig:
        rig.make_repo()
        rig.must("spawn", "--name", "w", "--worktree", "--merge", "--", "sh", "-c", "echo w > w", cwd=rig.repo)
        findings = states(waited(rig), {"w": "landed"})
        findings += worked(rig.swarm("supervisor", "stop"))
        stays(lambda: rig.swarm("supervisor", "status").rc != 0, 1.5, "no supervisor runs", findings)
        return findings + ended(rig)


INSIDE = {
    "disk: filled by a verification": lambda: filled(False),
    "disk: filled by a verification with ignored files": lambda: filled(True),
}
CASES = {
    "landing: git gc in a loop": collected,
    "landing: 20,000 files": large,
    "landing: this project's history in line": replayed_in_line,
    "landing: this project's history by a fleet": replayed_by_fleet,
    "landing: SHA-256": lambda: format_case("--object-format=sha256"),
    "landing: reftable": lambda: format_case("--ref-format=reftable"),
    "landing: a submodule moves": lambda: submodule("false"),
    "landing: a submodule moves with submodule.recurse": lambda: submodule("true"),
    "landing: a submodule is removed": submodule_removed,
    "landing: a file replaces a submodule": lambda: replaced(False),
    "landing: a file replaces a repository": lambda: replaced(True),
    "landing: stopped as its worker ends": stopped_at_the_end,
}
