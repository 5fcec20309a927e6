"""Runs compared with the usual alternatives: GNU parallel, and a loop of git commands."""

import itertools
import json
import shutil
import time
from pathlib import Path

from .bench_landing import must, repository, shell
from .bench_rows import Row, against, alternate
from .rig import Rig, wait_until

JOBS, SPECS, AT_ONCE = 1000, 100, 4
MEGABYTES = 100
# Work of each of four parallel processes for one branch; access to the base is serialized.
LOOP = """i=$1; repo=$2; base=$3; cd "$repo"
flock ../lock git worktree add -q -b "$base-w$i" "../trees/$i" "$base"
(cd "../trees/$i" && sh -e -c "echo $i > new$i.txt" && git add -A && git commit -q -m "do $i")
flock ../lock sh -c "git merge -q --no-ff -m 'merge $i' $base-w$i && git worktree remove --force ../trees/$i"
"""


def jobs(quick: bool) -> list[Row]:
    """A thousand jobs that do nothing, eight at a time."""
    with Rig() as rig:
        file = rig.root / "jobs.toml"
        file.write_text("limit = 8\n" + "[[job]]\ncommand = ['true']\n" * JOBS)

        def ours() -> float:
            took = shell(rig, f"{rig.binary} run {file} --headless > {rig.root}/told", rig.root)
            last = json.loads((rig.root / "told").read_text().splitlines()[-1])
            if (last["event"], last["done"]) != ("run.completed", JOBS):
                raise AssertionError(f"not all jobs were done: {last}")
            return took

        def parallel() -> float:
            return shell(rig, f"seq {JOBS} | parallel --will-cite -j8 true", rig.root)

        def xargs() -> float:
            return shell(rig, f"seq {JOBS} | xargs -n1 -P8 true", rig.root)

        actions = {"swarm": ours, "xargs": xargs}
        if shutil.which("parallel"):
            actions["parallel"] = parallel
        found = alternate(actions, 2 if quick else 5)
    row = Row(f"run {JOBS:,} jobs, 8 at once", found.pop("swarm"), peers=found)
    against(row, "parallel", 0.5, 0.3)
    return [row]


def specs(quick: bool) -> list[Row]:
    """A hundred specs of the shell agent, four at a time, each landed; compared with the same by hand."""
    samples = {"swarm": [], "loop": []}
    for turn in range(1 if quick else 3):
        for name in ("swarm", "loop") if turn % 2 == 0 else ("loop", "swarm"):
            samples[name].append(specs_by_us() if name == "swarm" else specs_by_hand())
    middle = {name: sorted(took)[len(took) // 2] for name, took in samples.items()}
    row = Row(f"run and land {SPECS} specs, {AT_ONCE} at once", middle.pop("swarm"), peers=middle)
    against(row, "loop", 1.5, 1)
    return [row]


def specs_by_us() -> float:
    with Rig() as rig:
        repo = repository(rig, 200, 1)
        must(rig, "git checkout -q -f main")
        write_specs(repo, SPECS, "echo {n} > new{n}.txt")
        must(rig, "git add -A && git commit -q -m specs")
        rig.must("plan", "--specs", "specs", "-y", cwd=repo)
        rig.must("trust", "--yes", cwd=repo)
        took = shell(rig, f"{rig.binary} run -j {AT_ONCE} --headless > {rig.root}/told", repo)
        landed = must(rig, "git rev-list --count --merges main").strip()
        if landed != str(SPECS):
            raise AssertionError(f"{landed} of {SPECS} landed")
        return took


def specs_by_hand() -> float:
    with Rig() as rig:
        repo = repository(rig, 200, 1)
        must(rig, "git checkout -q -f main && mkdir ../trees")
        (rig.root / "one.sh").write_text(LOOP)
        words = f"seq {SPECS} | xargs -n1 -P{AT_ONCE} -I@ sh {rig.root}/one.sh @ {repo} main"
        took = shell(rig, words, repo)
        if must(rig, "git rev-list --count --merges main").strip() != str(SPECS):
            raise AssertionError("the loop did not merge them all")
        return took


def write_specs(repo: Path, count: int, script: str) -> None:
    (repo / "specs").mkdir()
    for n in range(count):
        text = f"---\nadapter: shell\n---\n# Do {n}\n\nSome words about what it is for.\n\n```sh\n{script.format(n=n)}\n```\n"
        (repo / "specs" / f"s{n}.md").write_text(text)


def memory(_quick: bool) -> list[Row]:
    """Memory of the supervisor with a thousand specs, twenty of them being worked on."""
    with Rig() as rig:
        repo = repository(rig, 20, 1)
        must(rig, "git checkout -q -f main")
        write_specs(repo, 1000, f"read word < {rig.root}/gate; echo {{n}} > new{{n}}.txt")
        must(rig, f"git add -A && git commit -q -m specs && mkfifo {rig.root}/gate")
        rig.must("plan", "--specs", "specs", "-y", cwd=repo)
        rig.must("trust", "--yes", cwd=repo)
        rig.must("run", "-j", "20", "--detach", cwd=repo)
        working = lambda: rig.must("run", "status", "--json", cwd=repo).out.count('"working"') == 20
        wait_until(working, 60, "twenty agents work")
        pid = (rig.dir / "supervisor.lock").read_text().strip()
        status = Path(f"/proc/{pid}/status").read_text()
        used = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return [Row("supervisor with 1,000 specs, 20 at work", used / 1024, "MB", floor={"sixty": 60}, aim={"twenty-five": 25})]


def events(quick: bool) -> list[Row]:
    """Time that a hundred megabytes of an agent's events add to a run, compared with cat to /dev/null."""
    with Rig() as rig:
        repo = repository(rig, 20, 1)
        must(rig, "git checkout -q -f main")
        stream, silence = rig.root / "stream", rig.root / "silence"
        said = [json.dumps({"type": "assistant", "message": {"content": [{"type": "text", "text": f"{n:06d} " + "x" * 900}]}},
                           separators=(",", ":")) for n in range(MEGABYTES * 1_000)]
        result = json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": "done", "total_cost_usd": 0.1})
        stream.write_text("\n".join(said) + "\n" + result + "\n")
        silence.write_text(result + "\n")
        agents = ""
        for name, prints in (("loud", stream), ("silent", silence)):
            agents += f'[agents.{name}]\ncommand = ["sh", "-c", "echo x > x$SWARM_WORKSTREAM; cat {prints}"]\nevents = "claude"\n'
        (repo / "swarm.toml").write_text(agents)
        (repo / "specs").mkdir()
        (repo / "specs" / "a.md").write_text("# A\n")
        must(rig, "git add -A && git commit -q -m specs")
        count = itertools.count()

        def run(agent: str) -> float:
            (repo / "specs" / "a.md").write_text(f"# A {next(count)}\n")
            must(rig, "git rm -q --cached --ignore-unmatch xa; rm -f xa; git commit -q --allow-empty -am again")
            rig.must("plan", "--specs", "specs", "-y", cwd=repo)
            rig.must("trust", "--yes", cwd=repo)
            begun = time.monotonic()
            shell(rig, f"{rig.binary} run --agent {agent} --headless > /dev/null", repo)
            took = (time.monotonic() - begun) * 1000
            told = (repo / ".arial" / "events.jsonl").read_text().splitlines()
            if json.loads(told[-1]).get("status") != "completed":
                raise AssertionError(f"it did not end well: {told[-1]}")
            return took

        def cat() -> float:
            return shell(rig, f"sh -c 'cat {stream}' | cat > /dev/null", repo)

        actions = {"loud": lambda: run("loud"), "silent": lambda: run("silent"), "cat": cat}
        found = alternate(actions, 3 if quick else 7)
    loud, silent = found.pop("loud"), found.pop("silent")
    note = f"{loud:.0f} ms with worktree, commit and landing, which take {silent:.0f} ms"
    row = Row(f"an agent that prints {MEGABYTES} MB", loud - silent, peers=found, note=note)
    against(row, "cat", 3, 1.5)
    return [row]


RUNS = {"jobs": jobs, "specs": specs, "run-memory": memory, "events": events}
