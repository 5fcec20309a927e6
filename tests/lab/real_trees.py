"""Realistic repositories: 20,000 files, a submodule, a sparse checkout; and 1,000 rows in every read-only verb."""

import hashlib
import json
import os
from pathlib import Path

from .inject import stop_everything
from .real_tools import worked
from .rig import Rig

FILES = 20_000
ROWS = 1000
# Read-only verbs with 1,000 registered workers, and the time limit of each, with reserve for a busy machine.
LOOKS = [
    ["ls"], ["ls", "-l"], ["ls", "--json"], ["ls", "-q"], ["ls", "--sort", "state", "--limit", "5"], ["status", "n7"],
    ["explain", "n7"], ["history", "n7"], ["doctor"], ["du"], ["recover"], ["events", "--since", "1m"], ["wait", "--any", "n7"],
    ["logs", "n7"], ["merge", "ls"], ["ralph", "list"], ["heartbeat", "list"], ["config"], ["__complete", "status", "n"],
]
LOOK_S = 5


def content(tree: Path) -> dict[str, str]:
    """Mode and content of every file except `.git`."""
    found = {}
    for folder, names, files in os.walk(tree):
        names[:] = [name for name in names if name != ".git"]
        for name in files:
            path = Path(folder, name)
            if name == ".git":
                continue
            data = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            found[str(path.relative_to(tree))] = f"{path.lstat().st_mode:o} {hashlib.sha1(data).hexdigest()}"
    return found


def large(rig: Rig) -> Path:
    """Makes the repository; its sparse checkout leaves out half of it."""

    def git(*words: str, cwd: Path = rig.repo) -> str:
        result = rig.run("git", "-C", str(cwd), "-c", "protocol.file.allow=always", *words, limit=120)
        if result.rc:
            raise AssertionError(f"git {words}: {result.err[-300:]}")
        return result.out

    other = rig.root / "other"
    for place in (other, rig.repo):
        place.mkdir(exist_ok=True)
        git("init", "-q", "-b", "main", cwd=place)
    (other / "inside").write_text("of the submodule\n")
    git("add", ".", cwd=other)
    git("commit", "-qm", "one", cwd=other)
    for number in range(FILES):
        place = rig.repo / ("in" if number % 2 else "out") / f"d{number // 100}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"f{number}").write_text(f"{number}\n" * 3)
    git("add", ".")
    git("commit", "-qm", "files")
    git("submodule", "-q", "add", str(other), "sub")
    git("commit", "-qm", "a submodule")
    git("sparse-checkout", "set", "--skip-checks", "in", "sub")
    (rig.repo / "swarm.toml").write_text("[worktree]\nsubmodules = true\ninclude = ['.env']\n")
    (rig.repo / ".git/info/exclude").write_text(".env\nswarm.toml\n")
    (rig.repo / ".env").write_text("A=1\n")
    return rig.repo


def large_repository() -> list[str]:
    """A sparse worktree of 20,000 files with a submodule: made, dirtied, removed by force, and restored byte for byte.
    """
    with Rig() as rig:
        repo = large(rig)
        script = "echo new > in/d1/new; rm in/d1/f101; chmod +x in/d1/f103; git add in/d1/new; ln -s new in/link; cat .env"
        findings = worked(rig.swarm("spawn", "--name", "w", "--worktree", "--", "sh", "-c", script, cwd=repo, limit=90), 90)
        rig.must("wait", "w", limit=30)
        tree = rig.root / "repo-worktrees" / "w"
        if (tree / "out").exists():
            findings.append("the sparse checkout was not kept")
        if not (tree / "sub" / "inside").exists():
            findings.append("the submodule is missing")
        before, status = content(tree), rig.run("git", "-C", str(tree), "status", "--porcelain").out
        refused = rig.swarm("kill", "w", "--rm-worktree", cwd=repo, limit=60)
        if not tree.exists():
            findings.append(f"work was removed without force: {refused.out}{refused.err}")
        findings += worked(rig.swarm("clean", "w", "--rm-worktree", "--force-dirty", cwd=repo, limit=90), 90)
        if tree.exists():
            findings.append("the worktree still exists")
        findings += worked(rig.swarm("restore", "w", cwd=repo, limit=120), 120)
        after, status_after = content(tree), rig.run("git", "-C", str(tree), "status", "--porcelain").out
        lost = [path for path in before if before[path] != after.get(path) and not path.startswith(("sub/", ".agent/"))]
        if lost or status != status_after:
            findings.append(f"not restored: {lost[:5]}; status {status!r}, then {status_after!r}")
        return findings + stop_everything(rig)


def thousand_rows() -> list[str]:
    """Every read-only verb with 1,000 registered workers; then all of them are killed, respawned and cleaned."""
    with Rig() as rig:
        fleet = rig.work / "fleet.toml"
        fleet.write_text("[defaults]\ncommand = 'echo hello'\n" + "".join(f"[[worker]]\nname = 'n{n}'\n" for n in range(ROWS)))
        findings = worked(rig.swarm("spawn", "--file", str(fleet), limit=120), 120)
        rig.must("wait", "--all", limit=60)
        for words in LOOKS:
            allowed = {0, 1} if words[0] in ("doctor", "status") else {0}
            # A loaded machine is slow now and then; a verb that is slow by itself is slow each time.
            for _ in range(3):
                result = rig.swarm(*words, limit=30)
                if result.rc not in allowed or result.seconds <= LOOK_S:
                    break
            if result.rc not in allowed or result.seconds > LOOK_S or "panicked" in result.err:
                findings.append(f"{words}: code {result.rc} after {result.seconds:.1f} s: {result.err[-200:]}")
        total = json.loads(rig.must("ls", "--json", limit=30).out)["total"]
        if total != ROWS:
            findings.append(f"{total} are listed, not {ROWS}")
        for words in (["kill", "--all"], ["clean", "--all"]):
            findings += worked(rig.swarm(*words, limit=120), 120)
        left = rig.must("ls", "-q").out
        if left:
            findings.append(f"some rows are left: {left[:200]}")
        return findings + stop_everything(rig)


CASES = {"trees: a large repository": large_repository, "rows: a thousand in every verb": thousand_rows}
