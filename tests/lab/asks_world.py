"""Requests to people, as files: what agents ask, and what became of it."""

import json
import os
import time

from .rig import Rig

WISHES = {"permission": {"type": "command", "command": "make"},
          "question": {"type": "question", "questions": [{"id": "q", "text": "Which?", "options": ["a", "b"],
                                                          "several": False}]}}


def put(rig: Rig, number: int, kind: str = "permission") -> None:
    """Records the request of a workstream, which outlives every worker, durably."""
    folder = rig.dir / "asks"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ask = {"schema": "swarm.ask/1", "number": number, "key": f"run/r/j{number}/1/c", "who": {"worker": f"w{number}"},
           "tool": "Bash", "wish": WISHES[kind], "cwd": str(rig.work), "waits": "parked", "digest": f"d{number}",
           "asked_at_ms": int(time.time() * 1000)}
    path = folder / f"{number}.ask.json"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(handle, json.dumps(ask).encode())
    os.fsync(handle)
    os.close(handle)


def part(rig: Rig, number: int, name: str) -> dict | None:
    """One file of a request; `None` if it does not exist. Every file is complete from the moment on at which it exists."""
    try:
        return json.loads((rig.dir / "asks" / f"{number}.{name}.json").read_text())
    except FileNotFoundError:
        return None


def listed(rig: Rig) -> dict[str, dict]:
    """All requests by number, as swarm shows them."""
    shown = rig.swarm("approvals", "--all", "--json")
    if shown.rc != 0:
        raise AssertionError(f"damage: {shown}")
    return {one["id"]: one for one in json.loads(shown.out)["approvals"]}


def rules(rig: Rig) -> list[tuple[int, str, str]]:
    """Number, effect and pattern of the rules that were made with verbs."""
    shown = rig.swarm("rules", "--json")
    if shown.rc != 0:
        raise AssertionError(f"damage: {shown}")
    made = [rule for rule in json.loads(shown.out)["rules"] if rule["number"] is not None]
    return [(rule["number"], rule["rule"], rule["pattern"]) for rule in made]


def answer_of(shown: dict | None) -> tuple | None:
    """Verdict, reason and texts of the answer to a request; `None` if it has none."""
    answer = (shown or {}).get("answer")
    return answer and (answer["verdict"], answer["reason"], answer["answers"])
