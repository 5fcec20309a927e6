"""The judge: checks what must hold whenever swarm has come to rest.

Compares four witnesses that cannot all be wrong in the same way: the registry file, the directories below `w/`, the
process table (by the rig's marker) and the ledger that every worker appends to as its first act.
"""

import fcntl
import json
import os
import re
import stat
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import procs
from .rig import Rig

ROW_KEYS = ["name", "status", "cmd", "started", "cwd", "env", "tags", "tmux", "worktree", "pid", "metadata"]
STARTED = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}$")
F_OFD_GETLK = 36
F_UNLCK = 2


@dataclass
class Expect:
    """What a case expects of the workers, in addition to the invariants."""

    must: set[str] = field(default_factory=set)
    """Acknowledged names, which must have a row."""
    absent: set[str] = field(default_factory=set)
    """Names that must have no row."""
    running: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    unchanged: dict[str, dict] = field(default_factory=dict)
    """Rows of bystanders, which must not have changed."""
    retired: set[str] = field(default_factory=set)
    """Tokens of starts whose rows were replaced or cleaned on purpose."""
    branches: set[str] = field(default_factory=set)
    """Branches that may exist without a row (a clean keeps the branch)."""
    landing: str | None = None
    """Worker whose work lands on main at most once."""
    landed: bool = False
    """Whether the work must have landed."""
    kept: dict[str, str] = field(default_factory=dict)
    """Uncommitted files (path -> content) that must survive somewhere."""


def lease_held(path: Path) -> bool | None:
    """Whether the lock of a lease is held; `None` if there is no lease."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # F_OFD_GETLK asks whether a write lock of the whole file is possible, and returns the answer in the same
        # struct.
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(handle, F_OFD_GETLK, asked)
        return struct.unpack("hhqqi4x", answer)[0] != F_UNLCK
    finally:
        os.close(handle)


def token_of(row: dict) -> str | None:
    meta = (row.get("metadata") or {}).get("swarm")
    return meta.get("id") if isinstance(meta, dict) else None


class Oracle:
    def __init__(self, rig: Rig):
        self.rig = rig

    def findings(self, expect: Expect) -> list[str]:
        """Returns all current violations."""
        text = self.rig.state_text()
        try:
            data = json.loads(text) if text is not None else {"workers": []}
            rows = data["workers"]
        except (ValueError, KeyError, TypeError) as error:
            return [f"altered: state.json cannot be read: {error}"]
        found = self.wire_form(text, data)
        people = self.rig.census()
        found += self.expected_rows(rows, expect)
        found += self.starts(rows, expect)
        found += self.processes(rows, people, expect)
        found += self.litter(rows)
        found += self.modes()
        if (self.rig.repo / ".git").exists():
            found += self.worktrees(rows, expect)
        found += self.uncommitted(expect)
        if expect.landing:
            found += self.landing(expect)
        return found

    def converge(self, expect: Expect, limit: float = 10, ignore=lambda finding: False) -> list[str]:
        """Waits until there is no violation, and returns those that remain after the limit."""
        end = time.monotonic() + limit
        while True:
            found = [finding for finding in self.findings(expect) if not ignore(finding)]
            if not found or time.monotonic() > end:
                return found
            time.sleep(0.02)

    def wire_form(self, text: str | None, data: dict) -> list[str]:
        if text is None:
            return []
        found = []
        if text.rstrip("\n") != json.dumps(data, indent=2):
            found.append("altered: state.json is not in the original's wire form")
        names = [row.get("name") for row in data["workers"]]
        for name in {name for name in names if names.count(name) > 1}:
            found.append(f"twice: {name} has {names.count(name)} rows")
        for row in data["workers"]:
            name = row.get("name")
            if list(row)[: len(ROW_KEYS)] != ROW_KEYS:
                found.append(f"altered: row {name} has keys {list(row)}")
            if not STARTED.match(str(row.get("started"))):
                found.append(f"altered: row {name} started {row.get('started')!r}")
            meta = (row.get("metadata") or {}).get("swarm", {})
            if set(meta) - {"id", "generation", "host", "base", "merge", "port"}:
                found.append(f"altered: row {name} metadata.swarm has {sorted(meta)}")
        return found

    def expected_rows(self, rows: list[dict], expect: Expect) -> list[str]:
        names = {row["name"] for row in rows}
        found = [f"lost: {name} was acknowledged but has no row" for name in sorted(expect.must - names)]
        found += [f"ghost: {name} has a row but should have none" for name in sorted(expect.absent & names)]
        by_name = {row["name"]: row for row in rows}
        for name, before in expect.unchanged.items():
            now = by_name.get(name)
            # The status is advisory and may be updated by any command.
            if now is None or {**now, "status": ""} != {**before, "status": ""}:
                found.append(f"altered: row of bystander {name}")
        return found

    def starts(self, rows: list[dict], expect: Expect) -> list[str]:
        """Compares the ledger with the rows: each start ran once, and neither exists without the other."""
        lines = [line for line in self.rig.ledger_lines() if line[0] == "start" and line[2] != "-"]
        counts: dict[str, int] = {}
        names = {}
        for _, name, token, *_ in lines:
            counts[token] = counts.get(token, 0) + 1
            names[token] = name
        found = [f"twice: {names[token]} ran {n} times as {token[:8]}" for token, n in counts.items() if n > 1]
        tokens = {token_of(row): row["name"] for row in rows if token_of(row)}
        # A worker whose command is not the rig's own script leaves no ledger line.
        scripted = {token_of(row) for row in rows
                    if row["cmd"] and row["cmd"][0] == str(self.rig.script) and not self.was_hung_up(row)}
        for token, name in tokens.items():
            if token in scripted and token not in counts:
                found.append(f"ghost: {name} has a row and never ran")
        for token, name in names.items():
            if token not in tokens and token not in expect.retired:
                found.append(f"lost: {name} ran as {token[:8]} but has no row")
        return found

    def processes(self, rows: list[dict], people: list[procs.Process], expect: Expect) -> list[str]:
        tokens = {token_of(row): row["name"] for row in rows if token_of(row)}
        found = []
        living: dict[str, int] = {}
        for person in people:
            if person.token and person.role == "other":
                living[person.worker or "?"] = living.get(person.worker or "?", 0) + 1
                if person.token not in tokens:
                    found.append(f"orphan: {person} of {person.worker} has no row")
        shims = [person for person in people if person.role == "shim"]
        running_rows = [row for row in rows if token_of(row) and self.is_held(row)]
        # The forked child that waits at the gate looks like its shim, so there may briefly be more shims than leases.
        if len(shims) > len(running_rows):
            found.append(f"orphan: {len(shims)} shims for {len(running_rows)} held leases")
        for name in expect.running:
            if not living.get(name):
                found.append(f"lost: {name} should run but has no process")
        for name in expect.stopped:
            if living.get(name):
                found.append(f"orphan: {name} should be stopped but has {living[name]} processes")
        for role in ("supervisor", "guard"):
            count = sum(person.role == role for person in people)
            if count > 1:
                found.append(f"twice: {count} processes of role {role}")
        return found

    def was_hung_up(self, row: dict) -> bool:
        """Reports whether the worker was executed in a window that closed, perhaps before its first line.

        Its shim was killed with the window, or recorded `closed` as the reason of the end.
        """
        folder = self.rig.folder(row["name"])
        record = self.rig.exit_record(row["name"])
        ended_otherwise = record and record.get("reason") != "closed"
        executed = folder and (folder / "spec.json").exists()
        return bool(row.get("tmux") and executed and not ended_otherwise and not self.is_held(row))

    def is_held(self, row: dict) -> bool:
        meta = row["metadata"]["swarm"]
        return bool(lease_held(self.rig.dir / "w" / f"{row['name']}.{meta['generation']}" / "lease"))

    def litter(self, rows: list[dict]) -> list[str]:
        """Returns files and directories that belong to no row."""
        found = []
        wanted = {f"{row['name']}.{row['metadata']['swarm']['generation']}" for row in rows if token_of(row)}
        places = self.rig.dir / "w"
        for place in sorted(places.iterdir()) if places.is_dir() else []:
            if place.name not in wanted:
                found.append(f"litter: w/{place.name} has no row")
            elif (place / "spec.pending").exists():
                found.append(f"litter: w/{place.name} still has spec.pending")
        if self.rig.dir.is_dir():
            for path in self.rig.dir.rglob("*"):
                # The shim reserves space for its exit record; the reserve is litter once there is a record.
                if path.name == "exit.tmp" and not (path.parent / "exit.json").exists():
                    continue
                if re.search(r"\.tmp|\.partial|\.new$|~$", path.name):
                    found.append(f"litter: {path.relative_to(self.rig.dir)}")
        return found

    def modes(self) -> list[str]:
        """Returns our files that others can read or write, whatever the umask was."""
        found = []
        for base, dirs, files in os.walk(self.rig.dir):
            for name in [".", *dirs, *files]:
                path = Path(base, name)
                # A checkout has the modes that its repository records; the directory above it is closed to others.
                if "/verify" in str(path) or "/resolve-" in str(path):
                    continue
                try:
                    mode = path.lstat().st_mode
                except OSError:
                    continue
                if not stat.S_ISLNK(mode) and mode & 0o077:
                    found.append(f"altered: {path.relative_to(self.rig.dir)} has mode {mode & 0o777:o}")
        return found

    def worktrees(self, rows: list[dict], expect: Expect) -> list[str]:
        wanted = {row["worktree"]["path"]: row["worktree"]["branch"] for row in rows if row.get("worktree")}
        git = ["git", "-C", str(self.rig.repo)]
        listing = self.rig.run(*git, "worktree", "list", "--porcelain").out
        trees = {line.split(" ", 1)[1] for line in listing.splitlines() if line.startswith("worktree ")}
        trees.discard(str(self.rig.repo))
        # The scratch directories of merge queues stay.
        trees = {path for path in trees if not path.startswith(str(self.rig.dir / "merge"))}
        folder = self.rig.root / "repo-worktrees"
        real = {str(path) for path in folder.iterdir()} if folder.is_dir() else set()
        found = [f"litter: worktree {path} has no row" for path in sorted((trees | real) - set(wanted))
                 if not any(kept.startswith(path + "/") for kept in expect.kept)]
        for path in sorted(set(wanted)):
            missing = path not in trees or path not in real
            if missing and self.of_living_worker(rows, path):
                found.append(f"lost: worktree {path} of a running worker is gone")
        heads = self.rig.run(*git, "for-each-ref", "--format=%(refname:short)", "refs/heads").out.split()
        extra = set(heads) - {"main"} - set(wanted.values()) - expect.branches
        found += [f"litter: branch {name} has no row" for name in sorted(extra)]
        found += [f"lost: branch {name} of a row is gone" for name in sorted(set(wanted.values()) - set(heads))]
        return found

    def of_living_worker(self, rows: list[dict], path: str) -> bool:
        return any(row.get("worktree") and row["worktree"]["path"] == path and token_of(row) and self.is_held(row)
                   for row in rows)

    def landing(self, expect: Expect) -> list[str]:
        """Checks that the base has the work once or not at all, and that the user's checkout is unchanged otherwise."""
        git = ["git", "-C", str(self.rig.repo)]
        subjects = self.rig.run(*git, "log", "--first-parent", "--format=%s", "main").out.splitlines()
        count = subjects.count(f"Merge {expect.landing}")
        found = []
        if count > 1 or (expect.landed and count == 0):
            found.append(f"{'twice' if count else 'lost'}: {expect.landing} landed {count} times")
        status = self.rig.run(*git, "status", "--porcelain").out.splitlines()
        if status != [" M d0/f1.txt"]:
            found.append(f"altered: the checkout of the base: {status}")
        # Locks of a scratch index in a worktree's record; they are removed with the worktree.
        # Directories may disappear meanwhile, which os.walk ignores.
        files = [Path(top, name) for top, _, names in os.walk(self.rig.repo / ".git") for name in names]
        locks = [path for path in files if path.suffix == ".lock" and not path.name.startswith("swarm-index-")]
        found += [f"litter: {path}" for path in locks if path.name != "swarm-worktree.lock"]
        for item in self.rig.items():
            if item["state"] not in ("landed", "noop"):
                found.append(f"wedge: item {item['id']} is {item['state']} {item.get('reason', '')}")
        return found

    def uncommitted(self, expect: Expect) -> list[str]:
        """Checks that uncommitted work is in its original place, or in a commit below refs/swarm/trash."""
        found = []
        for path, content in expect.kept.items():
            try:
                if Path(path).read_text() == content:
                    continue
            except OSError:
                pass
            if not self.in_trash(Path(path).name, content):
                found.append(f"lost: uncommitted file {path}")
        return found

    def in_trash(self, name: str, content: str) -> bool:
        git = ["git", "-C", str(self.rig.repo)]
        refs = self.rig.run(*git, "for-each-ref", "--format=%(objectname)", "refs/swarm/trash").out.split()
        for commit in self.rig.run(*git, "rev-list", *refs).out.split() if refs else []:
            for entry in self.rig.run(*git, "ls-tree", "-r", commit).out.splitlines():
                head, _, path = entry.partition("\t")
                if Path(path).name == name and self.rig.run(*git, "cat-file", "blob", head.split()[2]).out == content:
                    return True
        return False
