"""Included files of new worktrees and restored worktrees, compared with the manual commands."""

import itertools

from .bench_landing import must, repository, shell
from .bench_rows import Row, against, alternate
from .rig import Rig

# Sized like a typical tool directory: 2,000 files of 32 KiB.
FILES = 2_000
FILL = f"mkdir -p cache && head -c {FILES * 32_768} /dev/urandom | (cd cache && split -a 4 -b 32768 - f)"


def include(quick: bool) -> list[Row]:
    """A worker whose worktree includes a big ignored directory, compared with cp alone."""
    with Rig() as rig:
        repo = repository(rig, 200, 2)
        must(rig, "git reset -q --hard main && echo cache/ >> .git/info/exclude && echo cache/ > .worktreeinclude")
        must(rig, FILL)
        rig.must("spawn", "--name", "stay", "--", "sleep", "100000")
        count = itertools.count()

        def ours() -> float:
            return shell(rig, f"{rig.binary} spawn --name i{next(count)} --worktree -- true", repo)

        def copied() -> float:
            return shell(rig, f"cp -r --reflink=auto cache {rig.root}/copy{next(count)}", repo)

        found = alternate({"swarm": ours, "cp": copied}, 3 if quick else 7)
    row = Row(f"include {FILES:,} files in a new worktree", found.pop("swarm"), peers=found, note="includes the whole spawn")
    against(row, "cp", 5)
    return [row]


def restore(quick: bool) -> list[Row]:
    """Restores a dirty sparse worktree of a repository with 20,000 files, compared with `git worktree add`."""
    with Rig() as rig:
        repo = repository(rig, 20_000, 2)
        must(rig, "git reset -q --hard main && git sparse-checkout set --no-cone '/*' '!/d1*/'")
        count = itertools.count()
        rig.must("spawn", "--name", "w", "--worktree", "--", "sh", "-c", "echo x > d2/f100; echo y > new", cwd=repo)
        rig.must("wait", "w")
        rig.must("kill", "w", "--rm-worktree", "--force-dirty")

        def ours() -> float:
            place = rig.root / f"back{next(count)}"
            took = shell(rig, f"{rig.binary} restore w --to {place}", repo)
            said = must(rig, "git status --porcelain", place).splitlines()
            if said != [" M d2/f100", "?? new"]:
                raise AssertionError(f"came back as {said}")
            must(rig, f"git worktree remove --force {place}")
            return took

        def added() -> float:
            return shell(rig, f"git worktree add -q --detach {rig.root}/tree{next(count)} main", repo)

        found = alternate({"swarm": ours, "worktree add": added}, 2 if quick else 5)
    row = Row("restore, 20,000 files, sparse", found.pop("swarm"), peers=found, note="verified byte for byte")
    against(row, "worktree add", 10)
    return [row]


WORKTREES = {"include": include, "restore": restore}
