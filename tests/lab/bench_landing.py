"""Landing compared with a hand-written script of merge-tree, commit-tree and update-ref."""

import itertools
import json
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

from . import disks
from .bench_rows import Row, against, alternate
from .peers import timed
from .rig import Rig

COMPLETIONS = 50
# One process per step and branch, as a script would do it.
PIPELINE = """
set -e
for n in $(seq 0 49); do
  base=$(git rev-parse refs/heads/%(base)s)
  tree=$(git merge-tree --write-tree $base refs/heads/w$n)
  new=$(git commit-tree -p $base -p refs/heads/w$n -m x $tree)
  git update-ref refs/heads/%(base)s $new $base
done
"""
# The usual way: `git merge` in a separate worktree.
MERGES = "set -e; git checkout -q %(base)s; for n in $(seq 0 49); do git merge -q --no-ff -m x w$n; done"


def shared(changed: int | None = None) -> str:
    """Returns a file with a line for each branch to change."""
    return "".join(f"line {n}{' changed' if n == changed else ''}\n\n\n\n" for n in range(COMPLETIONS))


def repository(rig: Rig, files: int, branches: int, bad: int | None = None, shape: str = "directories") -> Path:
    """Makes a repository with `files` files in directories of 50, and branches that change one file each.

    The shape `flat` has all files in one directory; with `shared`, all branches change the same file.
    """
    rig.repo.mkdir()
    path = (lambda n: f"f{n}") if shape == "flat" else (lambda n: f"d{n // 50}/f{n}")
    lines = ["commit refs/heads/main\ncommitter L <l@l> 1700000000 +0000\ndata 1\nx"]
    lines += [f"M 100644 inline {path(n)}\ndata 7\n{n:06d}\n" for n in range(files)]
    if shape == "shared":
        lines.append(f"M 100644 inline shared\ndata {len(shared())}\n{shared()}")
    lines.append("M 100644 inline health\ndata 5\ngood\n\n")
    for n in range(branches):
        lines.append(f"commit refs/heads/w{n}\ncommitter L <l@l> 1700000001 +0000\ndata 1\nx\nfrom refs/heads/main")
        at = n * (files // branches)
        lines.append(f"M 100644 inline {path(at)}\ndata 8\nchanged\n" if shape != "shared" else
                     f"M 100644 inline shared\ndata {len(shared(n))}\n{shared(n)}")
        lines.append("M 100644 inline health\ndata 4\nill\n\n" if n == bad else "")
    script = rig.root / "script"
    script.write_text("\n".join(lines) + "\n")
    for words in ("git init -q -b main", f"git fast-import --quiet < {script}", "git repack -adq", "git pack-refs --all"):
        must(rig, words)
    return rig.repo


def must(rig: Rig, words: str, cwd: Path | None = None) -> str:
    result = rig.run("sh", "-c", words, cwd=cwd or rig.repo, limit=300)
    if result.rc != 0:
        raise AssertionError(f"setup failed: {result}")
    return result.out


def shell(rig: Rig, words: str, cwd: Path) -> float:
    return timed(["/bin/sh", "-c", words], rig.env, cwd)


@contextmanager
def field(files: int, shape: str = "directories", calls: int = 1, state: str | None = None):
    """Yields the actions that land fifty branches: ours, with journal, pins and clean-up, and the peers'.

    Ours adds them by so many `calls`. The base is checked out nowhere. `state` is a directory for the state directory.
    """
    with Rig() as rig, tempfile.TemporaryDirectory(prefix="lab-", dir=state or rig.root) as folder:
        if state:
            rig.dir = Path(folder) / "s"
            rig.env["SWARM_DIR"] = str(rig.dir)
        repo = repository(rig, files, COMPLETIONS, shape=shape)
        rig.must("spawn", "--name", "stay", "--", "sleep", "100000")
        count = itertools.count()
        names = [f"w{n}" for n in range(COMPLETIONS)]
        each = [" ".join(names[at::calls]) for at in range(calls)]

        def base() -> str:
            name = f"base{next(count)}"
            must(rig, f"git branch {name} main")
            return name

        def ours() -> float:
            name = base()
            adds = " && ".join(f"{rig.binary} merge add {some} --base {name}" for some in each)
            took = shell(rig, f"{adds} && {rig.binary} merge wait --base {name}", repo)
            landed = must(rig, f"git rev-list --count --first-parent main..{name}").strip()
            if landed != str(COMPLETIONS):
                raise AssertionError(f"{landed} of {COMPLETIONS} landed")
            return took

        def pipeline() -> float:
            return shell(rig, PIPELINE % {"base": base()}, repo)

        def merges() -> float:
            name = base()
            tree = rig.root / name
            must(rig, f"git worktree add -q --detach {tree} main")
            took = shell(rig, MERGES % {"base": name}, tree)
            must(rig, f"git worktree remove -f {tree}")
            return took

        yield {"swarm": ours, "merge-tree": pipeline, "git merge": merges}
        rig.end()


def completions(quick: bool) -> list[Row]:
    """Fifty finished branches, from `merge add` until the last has landed."""
    rows = []
    for files, floor in ((200, 0.4), (20_000, 1.0)):
        with field(files) as actions:
            rounds = (3 if quick else 7) if files < 1_000 else (2 if quick else 5)
            found = alternate(actions, rounds)
        row = Row(f"land {COMPLETIONS} completions, {files:,} files", found.pop("swarm"), peers=found)
        against(row, "merge-tree", floor, 0.2)
        against(row, "git merge", aim=0.1 if files < 1_000 else 0.02)
        rows.append(row)
    return rows


def hard(quick: bool) -> list[Row]:
    """Fifty branches in repositories and by calls that cost more, compared with the script alone."""
    kinds = {"20,000 files, state on tmpfs": {"state": disks.in_memory()}, "20,000 files in one directory": {"shape": "flat"},
             "all in one file of 20,000": {"shape": "shared"}, "20,000 files, by 50 calls": {"calls": COMPLETIONS}}
    rows = []
    for words, options in kinds.items():
        with field(20_000, **options) as actions:
            actions.pop("git merge")
            found = alternate(actions, 2 if quick else 5)
        row = Row(f"land {COMPLETIONS}, {words}", found.pop("swarm"), peers=found)
        against(row, "merge-tree", 1.0, 0.5)
        rows.append(row)
    return rows


def checkout(quick: bool) -> list[Row]:
    """One changed file lands on a checked-out base of 20,000 files, compared with read-tree alone."""
    with Rig() as rig:
        repo = repository(rig, 20_000, 50)
        must(rig, "git reset -q --hard main")
        rig.must("spawn", "--name", "stay", "--", "sleep", "100000")
        count = itertools.count()
        clone = rig.root / "clone"
        shutil.copytree(repo, clone, symlinks=True)
        must(rig, "git update-index -q --refresh", clone)

        def ours() -> float:
            name = f"w{next(count)}"
            return shell(rig, f"{rig.binary} merge add {name} && {rig.binary} merge wait {name}", repo)

        def theirs() -> float:
            name = f"w{next(count)}"
            tree = must(rig, f"git merge-tree --write-tree HEAD {name}", clone).strip()
            words = f"git read-tree -m -u HEAD {tree}"
            took = shell(rig, words, clone)
            must(rig, "git commit -q -m x", clone)
            return took

        found = alternate({"swarm": ours, "read-tree": theirs}, 5 if quick else 11)
    row = Row("land one file, base of 20,000 checked out", found.pop("swarm"), peers=found,
              note="includes 'merge add' and 'merge wait'")
    against(row, "read-tree", 1.5, 1.1)
    return [row]


def batches(quick: bool) -> list[Row]:
    """Number of verifications for 32 completions, one of them bad, in batches of eight."""
    worst = 0
    for bad in (0, 13, 31) if quick else (0, 5, 13, 18, 26, 31):
        with Rig() as rig:
            repo = repository(rig, 200, 32, bad)
            runs = rig.root / "runs"
            verify = f"echo run >> {runs}; test \"$(cat health)\" = good"
            rig.must("merge", "add", "w0", "--base", "main", "--verify", "false", cwd=repo)
            rig.run(rig.binary, "merge", "wait", cwd=repo)
            rig.must("merge", "pause", cwd=repo)
            names = [f"w{n}" for n in range(32)]
            rig.must("merge", "add", *names, "--verify", verify, "--batch", "8", cwd=repo)
            rig.must("merge", "resume", cwd=repo)
            rig.run(rig.binary, "merge", "wait", cwd=repo, limit=120)
            landed = [item for item in json.loads(rig.must("merge", "ls", "--all", "--json", cwd=repo).out)["queues"][0]["items"]
                      if item["state"] == "landed"]
            if len(landed) != 31:
                raise AssertionError(f"{len(landed)} of 31 landed")
            worst = max(worst, len(runs.read_text().splitlines()))
    return [Row("verifications for 32, one bad, batches of 8", worst, "", floor={"twelve": 12}, aim={"nine and a recheck": 10})]


LANDING = {"completions": completions, "landings": hard, "checkout": checkout, "batches": batches}
