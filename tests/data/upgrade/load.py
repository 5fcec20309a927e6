#!/usr/bin/env python3
"""Materialises a captured state under a new root, and reads it with a swarm program.

    load.py FIXTURE ROOT [--start now|EPOCH|fixed] [--boot ID] [--host NAME] [--swarm PROGRAM]

FIXTURE is a file such as v1/workers.tree, with index.json in the same directory. ROOT is created: `s` is the state
directory, `h` the home, `repo` the repository, `t` for TMUX_TMPDIR. Start programs with `world.environment(ROOT)` only.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path

import archive
from normal import derived
from world import World, environment

# No machine has this boot id, so the processes of a state belong to an earlier boot.
OTHER_BOOT = "00000000-0000-4000-8000-000000000000"


def restore(fixture: Path, root: Path, *, start: float | None = None, boot: str = OTHER_BOOT,
            host: str | None = None, swarm: str = "swarm") -> dict:
    """Materialises `fixture` under `root`, which is created, and returns its entry of the index.

    `start` is the pretended start time of the capture in seconds: by default one minute ago; `archive.EPOCH` keeps the
    stored times. `boot` and `host` are the boot id and host name in the state: by default another boot of this machine,
    so that every process of the state has ended. `swarm` replaces the captured program in contracts and resolvers: pass
    the program under test, as if it had been replaced on disk.
    """
    fixture, root = Path(fixture), Path(root).absolute()
    entry = json.loads((fixture.parent / "index.json").read_text())["states"][fixture.stem]
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    root = root.resolve()
    seconds = int(time.time() - 60 if start is None else start) - archive.EPOCH
    words = {b"@ROOT@": str(root), b"@BOOT@": boot, b"@HOST@": host or socket.gethostname(), b"@SWARM@": swarm,
             b"@UID@": str(os.getuid())}
    plain = {name.decode(): value for name, value in words.items()}

    def change(data: bytes) -> bytes:
        if b"@" in data:
            for name, value in words.items():
                data = data.replace(name, value.encode())
        return archive.shift_times(data, archive.EPOCH, seconds) if seconds else data

    # Names that the program derives from paths and times; `change` uses them.
    for name, (text, count) in entry["derived"].items():
        made = archive.shift_times(fill(text, plain).encode(), archive.EPOCH, seconds).decode()
        words[name.encode()] = derived(made, count)
    write(archive.transform(archive.read(fixture), change), root)
    for name in ("h", "t", "o"):
        (root / name).mkdir(mode=0o700, exist_ok=True)
    return entry


def fill(text: str, words: dict[str, str]) -> str:
    return re.sub(r"@[A-Z]+@", lambda found: words.get(found[0], found[0]), text)


def write(state: archive.State, root: Path) -> None:
    """Writes directories, files, objects and indexes, in this order; modes of directories last."""
    env = {**environment(root), "HOME": "/nonexistent"}
    for kind, mode, name, data in state.entries:
        path = root / name
        if kind == "dir":
            path.mkdir(parents=True, exist_ok=True)
        elif kind == "link":
            path.symlink_to(mode)
        elif kind == "file":
            path.write_bytes(data)
            path.chmod(int(mode, 8))
    for name, (kind, data) in state.objects.items():
        path = root / "repo/.git/objects" / name[:2] / name[2:]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(zlib.compress(f"{kind} {len(data)}\0".encode() + data))
        path.chmod(0o444)
    for kind, mode, name, data in state.entries:
        if kind == "index":
            path = root / name
            subprocess.run(["git", "update-index", "--index-info"], cwd=root / "repo", input=data, check=True,
                           env={**env, "GIT_INDEX_FILE": str(path), "GIT_DIR": str(root / "repo/.git")})
            path.chmod(int(mode, 8))
            refresh(path, root, env)
    for kind, mode, name, _ in reversed(state.entries):
        if kind == "dir":
            (root / name).chmod(int(mode, 8))


def refresh(index: Path, root: Path, env: dict[str, str]) -> None:
    """Makes git record the stat data of a worktree's files on this disk."""
    link = index.parent / "gitdir"
    tree = Path(link.read_text().strip()).parent if link.exists() else root / "repo"
    if index.name == "index" and tree.exists():
        # Exit code 1: some files differ, as they did at the capture.
        subprocess.run(["git", "update-index", "-q", "--refresh"], cwd=tree, env=env, capture_output=True)


# Output of the reading verbs, reduced to names and states.

READERS = {
    "ls": (["ls", "--json"],
           lambda said: {row["name"]: row["state"] for row in said["workers"]}),
    "merge": (["merge", "ls", "--all", "--json"],
              lambda said: {queue["base"]: {"paused": queue["paused"],
                                            "items": {item["name"]: item["state"] for item in queue["items"]}}
                            for queue in said["queues"]}),
    "run": (["run", "status", "--json"],
            lambda said: {"status": said["status"],
                          "workstreams": {row["id"]: row["stage"] for row in said["workstreams"]}}),
    "ralph": (["ralph", "list", "--json"],
              lambda said: {loop["name"]: {"status": loop["status"], "iteration": loop["iteration"]}
                            for loop in said["loops"]}),
    "heartbeat": (["heartbeat", "list", "--json"],
                  lambda said: {beat["worker"]: {"status": beat["status"], "beats": beat["beats"]}
                                for beat in said["heartbeats"]}),
    "flow": (["flow", "ls", "--json"],
             lambda said: [{"project": flow["project"], "status": flow["status"], "openable": flow["openable"]}
                           for flow in said["flows"]]),
    "restore": (["restore", "--json"],
                lambda said: {save["id"]: save["branch"] for save in said["saves"]}),
}
# The verbs in text form: exit code 0, and only warnings on standard error.
PLAIN = (["ls"], ["ls", "-l"], ["merge", "ls", "--all"], ["ralph", "list"], ["heartbeat", "list"], ["events"])


def readings(world: World) -> dict:
    """Returns the program's output about the state of a world; for a verb that fails, the exit code."""
    found = {}
    for name, (words, reduce) in READERS.items():
        done = world.run(world.binary, *words)
        found[name] = reduce(json.loads(done.stdout)) if done.returncode == 0 else {"failed": done.returncode}
    if isinstance(found["flow"], list) and found["flow"]:
        said = world.swarm("flow", "requests", "2", "--json")
        found["requests"] = {one["node"]: one["reason"] for one in json.loads(said)["requests"]}
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("fixture", type=Path)
    words.add_argument("root", type=Path)
    words.add_argument("--start", default="now", help="now, fixed (as stored), or seconds since 1970")
    words.add_argument("--boot", default=OTHER_BOOT)
    words.add_argument("--host")
    words.add_argument("--swarm", default="swarm", help="the program that contracts of swarm's own workers name")
    given = words.parse_args()
    start = {"now": None, "fixed": archive.EPOCH}.get(given.start, given.start)
    entry = restore(given.fixture, given.root, start=None if start is None else float(start), boot=given.boot,
                    host=given.host, swarm=given.swarm)
    json.dump(entry, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
