"""Bad registry files: nothing crashes, nothing hangs, no running worker is lost.

Each kind damages state.json while a worker `a` runs. If no registry is left, it is rebuilt from the directories below
w/. Files that may be intentional (a link, a FIFO, a newer schema) are refused and left alone.
"""

import json
import os
from pathlib import Path

from .inject import complaint, stop_everything
from .oracle import Expect, Oracle
from .original import Original
from .real_tools import up
from .rig import Rig

REBUILT, EITHER, ONE_BAD_ROW, NEWER, READ = "rebuilt", "either", "one bad row", "newer", "read"
LIMIT = 10


def replace_by(make):
    """Damage that first removes the file."""

    def damage(path: Path, rows: list[dict]) -> None:
        path.unlink()
        make(path)

    return damage


def with_rows(change):
    """Damage to the rows of valid JSON."""

    def damage(path: Path, rows: list[dict]) -> None:
        path.write_text(json.dumps(change(rows), indent=2))

    return damage


def legacy(rows: list[dict], **fields) -> dict:
    row = {**Original.make_row("legacy", ["true"], None), **fields}
    return {"workers": [*rows, {key: value for key, value in row.items() if value is not ...}]}


def link_elsewhere(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere.json"
    elsewhere.write_text('{"workers": []}')
    path.symlink_to(elsewhere)


KINDS = {
    "torn": (REBUILT, lambda path, rows: path.write_text(path.read_text()[:-40])),
    "empty": (REBUILT, lambda path, rows: path.write_bytes(b"")),
    "binary": (REBUILT, lambda path, rows: path.write_bytes(os.urandom(4096))),
    "zeros": (REBUILT, lambda path, rows: path.write_bytes(bytes(4096))),
    "deep nesting": (REBUILT, lambda path, rows: path.write_text("[" * 200_000)),
    "list on top": (EITHER, lambda path, rows: path.write_text("[]")),
    "workers not a list": (EITHER, lambda path, rows: path.write_text('{"workers": {"a": 1}}')),
    "FIFO": (EITHER, replace_by(os.mkfifo)),
    "directory": (EITHER, replace_by(os.mkdir)),
    "dangling symlink": (EITHER, replace_by(lambda path: path.symlink_to("nowhere"))),
    "symlink elsewhere": (EITHER, replace_by(link_elsewhere)),
    "wrong types": (ONE_BAD_ROW, with_rows(lambda rows: legacy(rows, status=5, cmd="true", env=[1]))),
    "row without name": (ONE_BAD_ROW, with_rows(lambda rows: legacy(rows, name=...))),
    "newer schema": (NEWER, with_rows(lambda rows: {"schema_version": 99, "workers": rows})),
    "100 MB": (EITHER, with_rows(lambda rows: legacy(rows, env={"BIG": "x" * (100 << 20)}))),
    "duplicate names": (READ, with_rows(lambda rows: {"workers": [*rows, *rows]})),
    "negative pid": (READ, with_rows(lambda rows: legacy(rows, pid=-7))),
    "huge pid": (READ, with_rows(lambda rows: legacy(rows, pid=1 << 40))),
}


def state_case(kind: str):
    expected, damage = KINDS[kind]

    def case() -> list[str]:
        with Rig() as rig:
            up(rig, "a")
            state = rig.dir / "state.json"
            damage(state, rig.rows())
            before = state.read_bytes() if state.is_file() and kind != "100 MB" else None
            listed = rig.swarm("ls", "--format", "names", limit=LIMIT)
            # One bad row is named in a warning, and the exit code is 1 although the good rows are listed; that is no
            # error line.
            findings = ([] if expected == ONE_BAD_ROW else complaint(listed)) + reading(expected, listed)
            spawned = rig.swarm("spawn", "--name", "b", "--", *rig.worker("sleep", 1000), limit=2 * LIMIT)
            findings += complaint(spawned) + writing(expected, rig, spawned, state, before)
            if not any(process.worker == "a" for process in rig.workers()):
                findings.append("lost: the running worker was ended")
            return findings + after(rig, expected, state)

    return case


def reading(expected: str, listed) -> list[str]:
    """Checks what `ls` prints about the damage."""
    names = listed.out.split()
    if expected in (REBUILT, READ, NEWER) and (listed.rc != 0 or "a" not in names):
        return [f"lost: a is not listed: {listed}"]
    if expected == REBUILT and "corrupt state file" not in listed.err:
        return [f"unclear: no warning about the corrupt file: {listed}"]
    if expected == ONE_BAD_ROW and (listed.rc != 1 or "a" not in names):
        return [f"the good row is not listed, or the exit code is not 1: {listed}"]
    if expected == ONE_BAD_ROW and "legacy" not in listed.err and "row 2" not in listed.err:
        return [f"the bad row is not named: {listed}"]
    if expected == EITHER and listed.rc == 0 and "a" not in names:
        return [f"lost: neither refused nor listed: {listed}"]
    return []


def writing(expected: str, rig: Rig, spawned, state: Path, before: bytes | None) -> list[str]:
    """Checks what `spawn` does with the damage."""
    if expected == NEWER:
        findings = [] if spawned.rc != 0 else [f"a newer registry was changed: {spawned}"]
        return findings + ([] if state.read_bytes() == before else ["altered: the newer file was touched"])
    if expected in (REBUILT, READ) and spawned.rc != 0:
        return [f"wedge: {spawned}"]
    if spawned.rc == 0:
        names = [row.get("name") for row in rig.rows()]
        return [f"lost: {name} has no row" for name in ("a", "b") if name not in names]
    return []


def after(rig: Rig, expected: str, state: Path) -> list[str]:
    """Checks that the quarantined copy exists, and that everything works once the damage is removed."""
    findings = []
    if expected == REBUILT:
        if not (rig.dir / "state.json.corrupted").exists():
            findings.append("no quarantined copy state.json.corrupted")
        findings += Oracle(rig).converge(Expect(must={"a", "b"}, running={"a", "b"}))
        return findings + stop_everything(rig)
    return findings


def second_quarantine() -> list[str]:
    """A second damage does not overwrite the first copy."""
    with Rig() as rig:
        up(rig, "a")
        for number in range(2):
            # Put in place by rename, because the first copy may be a link to the old file.
            (rig.root / "broken").write_text(f"broken {number}")
            os.replace(rig.root / "broken", rig.dir / "state.json")
            rig.must("ls")
        copies = sorted(path.read_text() for path in rig.dir.glob("state.json.corrupted*"))
        findings = [] if copies == ["broken 0", "broken 1"] else [f"altered: the copies are {copies}"]
        return findings + stop_everything(rig)


CASES = {f"state: {kind}": state_case(kind) for kind in KINDS}
CASES["state: damaged twice"] = second_quarantine
