"""Large runs: a thousand specs, and an agent that prints a gigabyte."""

from pathlib import Path

from .inject import stop_everything
from .rig import Rig, wait_until

SPECS = 1_000
FLOOD = 1 << 30
MEMORY_MAX = 24 << 20
LOG_MAX = 80 << 20
LIMIT = 600


def planned(rig: Rig, specs: dict[str, str], config: str = "") -> Path:
    """Makes a repository and plans these specs. The specs are not committed: every worktree would contain them all."""
    repo = rig.make_repo()
    (repo / "specs").mkdir()
    for name, text in specs.items():
        (repo / "specs" / f"{name}.md").write_text(text)
    (repo / "swarm.toml").write_text(config)
    (repo / ".gitignore").write_text("specs\n")
    for words in (("add", "-A"), ("commit", "-q", "-m", "specs")):
        result = rig.run("git", "-C", str(repo), *words)
        if result.rc != 0:
            raise AssertionError(str(result))
    rig.must("plan", "--specs", "specs", "-y", cwd=repo)
    rig.must("trust", "--yes", cwd=repo)
    return repo


def lines(rig: Rig, repo: Path, *words: str) -> list[str]:
    return rig.run("git", "-C", str(repo), *words).out.splitlines()


def thousand() -> list[str]:
    """All specs land, each once, and nothing is left but the work on the base."""
    with Rig() as rig:
        script = "---\nadapter: shell\n---\n# Do {n}\n\n```sh\necho {n} > new{n}.txt\n```\n"
        repo = planned(rig, {f"s{n}": script.format(n=n) for n in range(SPECS)})
        result = rig.swarm("run", "--headless", "-j", "8", cwd=repo, limit=LIMIT)
        findings = [] if result.rc == 0 else [f"the run: {str(result)[-400:]}"]
        for what, count, expected in (
            ("files on the base", sum(name.startswith("new") for name in lines(rig, repo, "ls-tree", "--name-only", "main")), SPECS),
            ("merges", len(lines(rig, repo, "rev-list", "--merges", "main")), SPECS),
            ("branches", len(lines(rig, repo, "branch", "--list", "arial/*")), 0),
            ("worktrees", len(lines(rig, repo, "worktree", "list")), 1),
            ("workers", len(rig.rows()), 0),
        ):
            findings += [] if count == expected else [f"{what}: {count}, not {expected}"]
        return findings + stop_everything(rig)


def peak(rig: Rig) -> int:
    """Peak private memory of the attempt's process in bytes; 0 if there is no such process.

    Excludes the pages of the program file, of which a test build has many.
    """
    most = 0
    for process in rig.census():
        if "__attempt" in process.argv:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                continue
            sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in status.splitlines() if line.endswith(" kB")}
            if "VmHWM" in sizes:
                most = max(most, sizes["VmHWM"] - sizes.get("RssFile", 0))
    return most


def flood() -> list[str]:
    """An agent that prints 1 GB is not held up, its log stays capped, and its listener stays small."""
    with Rig() as rig:
        agent = f"head -c {FLOOD} /dev/zero | tr '\\\\0' x; echo done > done.txt"
        config = f'[agents.loud]\ncommand = ["sh", "-c", "{agent}"]\n'
        repo = planned(rig, {"loud": "---\nadapter: loud\n---\n# Loud\n"}, config)
        rig.must("run", "--detach", cwd=repo)
        seen = 0
        over = repo / ".arial" / "state.json"

        def is_over() -> bool:
            nonlocal seen
            seen = max(seen, peak(rig))
            return '"done"' in over.read_text() or '"failed"' in over.read_text()

        wait_until(is_over, LIMIT, "the flood is over", 0.1)
        result = rig.swarm("run", "attach", "--headless", cwd=repo, limit=30)
        findings = [] if result.rc == 0 else [f"the run: {str(result)[-400:]}"]
        landed = rig.run("git", "-C", str(repo), "show", "main:done.txt").out
        findings += [] if landed == "done\n" else [f"what landed: {landed!r}"]
        size = sum(path.stat().st_size for path in (repo / ".arial" / "logs").iterdir())
        findings += [] if size < LOG_MAX else [f"the agent's logs have {size >> 20} MB"]
        findings += [] if 0 < seen < MEMORY_MAX else [f"the listener used {seen >> 20} MB"]
        return findings + stop_everything(rig)


CASES = {"runs: a thousand specs": thousand, "runs: an agent that prints 1 GB": flood}
