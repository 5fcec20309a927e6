"""Side by side with the original `swarm`: each sees, kills and cleans the other's workers."""

import datetime
import json
import sys
from pathlib import Path

from . import procs
from .inject import agreement, stop_everything
from .oracle import Expect, Oracle, token_of
from .original import KEYS, Original
from .real_tools import ran, stays
from .rig import Rig, wait_until


def original_ends_ours() -> list[str]:
    """The original sees a worker of swarm, ends it by its pid, and drops its row."""
    with Rig() as rig:
        rig.must("spawn", "--name", "x", "--tag", "t", "--", *rig.worker("sleep", 1000))
        wait_until(lambda: ran(rig, "x"), 10, "x runs")
        other = Original(rig.dir)
        row = other.row("x")
        findings = [] if row and Original.running(row) and row["pid"] else [f"original does not see x: {row}"]
        other.kill("x")
        wait_until(lambda: rig.swarm("status", "x").rc == 1, 10, "swarm sees that x was ended")
        record = wait_until(lambda: rig.exit_record("x"), 10, "the exit record exists")
        if record.get("signal") != 15:
            findings.append(f"exit record says {record}")
        token = token_of(rig.row("x"))
        other.remove("x")
        rig.must("spawn", "--name", "y", "--", *rig.worker("sleep", 1000))
        expect = Expect(must={"y"}, running={"y"}, absent={"x"}, retired={token})
        return findings + Oracle(rig).converge(expect) + stop_everything(rig)


def we_end_originals() -> list[str]:
    """swarm sees a worker of the original, ends it, and drops its row."""
    with Rig() as rig:
        other = Original(rig.dir)
        process = other.spawn("legacy", rig.worker("sleep", 1000), env=rig.env, launch=procs.launch)
        wait_until(lambda: len(rig.ledger_lines()) == 1, 10, "the legacy worker runs")
        findings = []
        if rig.swarm("status", "legacy").rc != 0:
            findings.append("swarm does not see that the original's worker runs")
        killed = rig.swarm("kill", "legacy")
        if killed.rc != 0 or not procs.wait_gone(process.pid, 5):
            findings.append(f"swarm does not end the original's worker: {killed}")
            process.kill()
        process.wait()
        procs.forget(process)
        if rig.swarm("status", "legacy").rc != 1:
            findings.append("swarm still shows the ended worker as running")
        cleaned = rig.swarm("clean", "legacy")
        if cleaned.rc != 0 or other.row("legacy") is not None:
            findings.append(f"swarm does not clean the original's worker: {cleaned}")
        return findings + stop_everything(rig)


def respawn_originals() -> list[str]:
    """swarm respawns an ended worker of the original, with its command."""
    with Rig() as rig:
        other = Original(rig.dir)
        other.add({**Original.make_row("legacy", rig.worker("sleep", 1000), None), "cwd": str(rig.work)})
        result = rig.swarm("respawn", "legacy")
        if result.rc != 0:
            return [f"respawn: {result}"] + stop_everything(rig)
        wait_until(lambda: ran(rig, "legacy"), 10, "the legacy worker runs again")
        row = other.row("legacy")
        findings = [] if Original.running(row) else ["the original does not see the respawned worker"]
        # The original created the lock file, so the file has the original's mode.
        expect = Expect(must={"legacy"}, running={"legacy"})
        return findings + Oracle(rig).converge(expect, ignore=lambda f: "state.lock has mode" in f) + stop_everything(rig)


def both_write() -> list[str]:
    """Processes of the original register while swarm spawns: no row is lost."""
    with Rig() as rig:
        rig.must("spawn", "--name", "first", "--", *rig.worker("sleep", 1000))
        code = ("import sys; sys.path.insert(0, sys.argv[1]); from lab.original import add_many;"
                "add_many(sys.argv[2], sys.argv[3], int(sys.argv[4]))")
        tests = str(Path(__file__).parents[1])
        adders = [rig.start([sys.executable, "-c", code, tests, str(rig.dir), f"o{n}", "25"]) for n in range(3)]
        acked = {"first"}
        findings = []
        for number in range(25):
            result = rig.spawn(f"s{number}")
            if result.rc == 0:
                acked.add(f"s{number}")
            else:
                findings.append(str(result))
        for adder in adders:
            result = rig.finish(adder, 60)
            if result.rc != 0:
                findings.append(f"original: {result}")
        names = {row["name"] for row in rig.rows()}
        expected = acked | {f"o{n}-{i}" for n in range(3) for i in range(25)}
        findings += [f"lost: {sorted(expected - names)}"] if expected - names else []
        # The modes of these files depend on which program wrote last.
        expect, of_chance = Expect(must=acked, running=acked), ("state.json has mode", "state.lock has mode")
        found = Oracle(rig).converge(expect, ignore=lambda f: any(words in f for words in of_chance))
        return findings + found + stop_everything(rig)


def foreign_fields() -> list[str]:
    """Unknown keys survive a rewrite by swarm, at the top level and in rows."""
    with Rig() as rig:
        Original(rig.dir)
        row = {**Original.make_row("legacy", ["true"], None), "note": {"deep": [1, "é"]}}
        row["metadata"] = {"ralph": True, "ralph_iteration": 3}
        (rig.dir / "state.json").write_text(json.dumps({"workers": [row], "future": {"a": 1}}, indent=2))
        rig.must("spawn", "--name", "x", "--", *rig.worker("sleep", 1000))
        data = json.loads(rig.state_text())
        findings = [] if data.get("future") == {"a": 1} else ["a foreign top-level key is gone"]
        kept = next(r for r in data["workers"] if r["name"] == "legacy")
        if kept.get("note") != row["note"] or kept["metadata"] != row["metadata"]:
            findings.append(f"foreign fields of a row are gone: {kept}")
        mine = next(r for r in data["workers"] if r["name"] == "x")
        if set(mine) != set(KEYS):
            findings.append(f"our row and the original's differ in keys: {sorted(set(mine) ^ set(KEYS))}")
        if datetime.datetime.fromisoformat(mine["started"]).tzinfo is not None:
            findings.append("started carries an offset, which makes the original crash")
        return findings + stop_everything(rig)


def stale_metadata() -> list[str]:
    """The original respawns our worker and copies metadata.swarm: the new worker is judged by its own process."""
    with Rig() as rig:
        rig.must("spawn", "--name", "x", "--", *rig.worker("sleep", 1000))
        wait_until(lambda: ran(rig, "x"), 10, "x runs")
        other = Original(rig.dir)
        other.kill("x")
        wait_until(lambda: not rig.workers(), 10, "x has ended")
        old = other.row("x")
        other.remove("x")
        process = other.spawn("x", rig.worker("sleep", 1000), env=rig.env, launch=procs.launch)
        other.update("x", metadata=old["metadata"])
        findings = [] if rig.swarm("status", "x").rc == 0 else ["swarm does not see that the original's x runs"]
        rig.must("spawn", "--name", "y", "--", *rig.worker("sleep", 1000))
        stays(lambda: procs.alive(process.pid), 1, "the original's worker is left alone", findings)
        rig.must("kill", "x")
        if not procs.wait_gone(process.pid, 5):
            findings.append("swarm does not end the original's x")
            process.kill()
        process.wait()
        procs.forget(process)
        return findings + agreement_of(rig) + stop_everything(rig)


def agreement_of(rig: Rig) -> list[str]:
    # The original started x, so x carries no token: only y can be compared.
    return [finding for finding in agreement(rig) if "x" not in finding.split()]


CASES = {
    "original: it sees, ends and drops ours": original_ends_ours,
    "original: we see, end and clean its own": we_end_originals,
    "original: we respawn its own": respawn_originals,
    "original: both write at once": both_write,
    "original: foreign fields survive": foreign_fields,
    "original: respawned by it with our metadata": stale_metadata,
}
