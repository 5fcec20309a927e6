"""Disks as a power cut may leave them: the operations of a recording, and the trees that some of them make.

The recording starts from a tree that is durable. Every operation changes directory entries or the content of one file,
or makes earlier ones durable: fsync of a file its content, fsync of a directory its entries, syncfs everything. A disk
after a power cut has all durable operations of a prefix, and those of the others that reached it: the model drops any
of them, or tears a write. That is harsher than ext4, which keeps the order of changes to directories.
"""

import json
import os
import re
import stat
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = 0
"""Number of the root directory's inode."""
NOTHING = -1
"""Number of no inode."""


@dataclass
class Inode:
    """A file, a directory or a symbolic link."""

    kind: str
    mode: int = 0o600
    data: bytes = b""
    target: str = ""
    entries: dict[str, int] = field(default_factory=dict)
    real: int = 0
    """Number that the file system gave it."""
    modified_ns: int = 0
    """Time of its last change; 0 if that is unknown."""

    def copy(self) -> "Inode":
        return replace(self, entries=dict(self.entries))


@dataclass
class Entries:
    """Changes of directory entries that a file system makes together: (directory, name, inode or None)."""

    changes: list[tuple[int, str, int | None]]
    made: dict[int, Inode] = field(default_factory=dict)
    """New inodes, as they are at birth."""
    label: str = ""

    def apply(self, inodes: dict[int, Inode]) -> None:
        for folder, name, inode in self.changes:
            place = inodes.get(folder)
            if place is None:
                continue
            if inode is None:
                place.entries.pop(name, None)
            else:
                place.entries[name] = inode

    def is_in(self, folder: int) -> bool:
        return any(at == folder for at, _, _ in self.changes)


@dataclass
class Data:
    """Bytes written to a file."""

    inode: int
    offset: int
    data: bytes
    label: str = ""
    at_ns: int = field(default_factory=time.time_ns)

    def apply(self, inodes: dict[int, Inode]) -> None:
        held = inodes[self.inode]
        padded = held.data.ljust(self.offset, b"\0")
        held.data = padded[: self.offset] + self.data + padded[self.offset + len(self.data):]
        held.modified_ns = self.at_ns


@dataclass
class Size:
    """New length of a file."""

    inode: int
    length: int
    label: str = ""
    at_ns: int = field(default_factory=time.time_ns)

    def apply(self, inodes: dict[int, Inode]) -> None:
        held = inodes[self.inode]
        held.data = held.data[: self.length].ljust(self.length, b"\0")
        held.modified_ns = self.at_ns


@dataclass
class Mode:
    """New permissions."""

    inode: int
    mode: int
    label: str = ""

    def apply(self, inodes: dict[int, Inode]) -> None:
        inodes[self.inode].mode = self.mode


@dataclass
class Sync:
    """Makes earlier operations durable: of one inode, or all if `inode` is None."""

    inode: int | None
    label: str = ""

    def apply(self, inodes: dict[int, Inode]) -> None:
        pass


@dataclass
class Ack:
    """Something that the program said, from which on it must hold."""

    text: str
    label: str = ""

    def apply(self, inodes: dict[int, Inode]) -> None:
        pass


def is_covered(op, sync: Sync) -> bool:
    """Reports whether a sync makes an operation before it durable."""
    if isinstance(op, (Sync, Ack)):
        return False
    if sync.inode is None:
        return True
    if isinstance(op, Entries):
        return op.is_in(sync.inode)
    return op.inode == sync.inode


def read_tree(top: Path) -> tuple[dict[int, Inode], dict[int, int]]:
    """Returns the inodes below a directory, and the model's number of each real inode."""
    inodes, numbers = {ROOT: Inode("dir", 0o700)}, {os.stat(top).st_ino: ROOT}
    waiting = [(top, ROOT)]
    while waiting:
        path, number = waiting.pop()
        for entry in os.scandir(path):
            meta = entry.stat(follow_symlinks=False)
            if meta.st_ino in numbers:
                inodes[number].entries[entry.name] = numbers[meta.st_ino]
                continue
            made = born(entry.path, meta)
            if made is None:
                continue
            new = len(inodes)
            inodes[new], numbers[meta.st_ino] = made, new
            inodes[number].entries[entry.name] = new
            if made.kind == "dir":
                waiting.append((Path(entry.path), new))
    return inodes, numbers


def born(path: str, meta: os.stat_result) -> Inode | None:
    """Returns the inode of an existing path; None for sockets and the like, which no disk keeps."""
    known = {"mode": stat.S_IMODE(meta.st_mode), "real": meta.st_ino, "modified_ns": meta.st_mtime_ns}
    if stat.S_ISDIR(meta.st_mode):
        return Inode("dir", **known)
    if stat.S_ISLNK(meta.st_mode):
        return Inode("link", target=os.readlink(path), **known)
    if stat.S_ISREG(meta.st_mode):
        return Inode("file", data=Path(path).read_bytes(), **known)
    return None


class Recording:
    """A durable tree and the operations after it."""

    def __init__(self, first: dict[int, Inode], ops: list):
        self.first = first
        self.ops = ops

    def pending(self, end: int) -> list[int]:
        """Returns the operations before `end` that no sync before `end` covers."""
        found = [at for at in range(end) if not isinstance(self.ops[at], (Sync, Ack))]
        for at in range(end):
            if isinstance(self.ops[at], Sync):
                found = [one for one in found if one > at or not is_covered(self.ops[one], self.ops[at])]
        return found

    def without(self, pattern: str) -> "tuple[Recording, list[int]]":
        """Returns the recording of a program that lacks some syncs, and where they were."""
        removed = [at for at, op in enumerate(self.ops) if isinstance(op, Sync) and re.search(pattern, op.label)]
        ops = [replace(op, inode=NOTHING) if at in removed else op for at, op in enumerate(self.ops)]
        return Recording(self.first, ops), removed

    def acks(self, end: int) -> list[str]:
        """Returns what was acknowledged before `end`."""
        return [op.text for op in self.ops[:end] if isinstance(op, Ack)]

    def image(self, end: int, dropped: set[int], torn: dict[int, int]) -> dict[int, Inode]:
        """Returns the tree after the operations before `end`, without those dropped. A torn write has only its first
        `torn[at]` bytes; zeros follow."""
        inodes = {number: inode.copy() for number, inode in self.first.items()}
        for at in range(end):
            op = self.ops[at]
            if isinstance(op, Entries):
                inodes.update({number: inode.copy() for number, inode in op.made.items() if number not in inodes})
            if at in dropped:
                continue
            if at in torn:
                kept = op.data[: torn[at]]
                op = replace(op, data=kept.ljust(len(op.data), b"\0"))
            op.apply(inodes)
        return inodes


def write_tree(inodes: dict[int, Inode], top: Path) -> None:
    """Writes an image below an existing empty directory."""
    places: dict[int, str] = {}
    waiting = [(ROOT, str(top))]
    os.chmod(top, inodes[ROOT].mode)
    while waiting:
        number, path = waiting.pop()
        for name, child in inodes[number].entries.items():
            held, at = inodes.get(child), f"{path}/{name}"
            if held is None:
                continue
            if held.kind == "link":
                os.symlink(held.target, at)
            elif held.kind == "dir":
                # An entry that was moved may be seen at both places, of which only one can be a directory.
                if child not in places:
                    os.mkdir(at)
                    os.chmod(at, held.mode | 0o700)
                    places[child] = at
                    waiting.append((child, at))
            elif child in places:
                os.link(places[child], at)
            else:
                write_file(held, at)
                places[child] = at
    renumber({inodes[number].real: os.stat(path).st_ino for number, path in places.items()}, places.values())


def write_file(held: Inode, at: str) -> None:
    handle = os.open(at, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if held.data:
            os.write(handle, held.data)
        os.fchmod(handle, held.mode)
    finally:
        os.close(handle)
    if held.modified_ns:
        os.utime(at, ns=(held.modified_ns, held.modified_ns))


def renumber(numbers: dict[int, int], paths) -> None:
    """Replaces the inode numbers that a landing recorded: a real disk keeps them over a power cut."""
    for path in paths:
        if os.path.basename(path) != "landing.json":
            continue
        try:
            marker = json.loads(Path(path).read_text())
            for checkout in marker["checkouts"]:
                checkout["lock"] = numbers.get(checkout["lock"], checkout["lock"])
                for file in checkout["files"]:
                    if file["before"]:
                        file["before"]["inode"] = numbers.get(file["before"]["inode"], file["before"]["inode"])
            Path(path).write_text(json.dumps(marker))
        except (ValueError, KeyError, TypeError):
            # Torn, as the image wants it.
            pass
