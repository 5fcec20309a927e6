"""The text format of a captured state: one file holds a directory tree and the objects of its git repository.

Each entry is a header line, then, if the header has a length, that many bytes and a line feed:

    dir MODE PATH
    link TARGET<tab>PATH
    file MODE BYTES PATH            the bytes of a file
    binary MODE BYTES PATH          the same in base64, for data that is not text
    zeros MODE BYTES PATH           a file of NUL bytes; its content is their number
    index MODE BYTES PATH           a git index, as `git ls-files --stage` prints it
    object TYPE BYTES ID            a git object; trees as `git ls-tree` prints them
    object-binary TYPE BYTES ID     an object that is not text, in base64
"""

import base64
import calendar
import hashlib
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

# The instant at which every capture starts, after normalisation: 2030-01-01T00:00:00Z.
EPOCH = 1_893_456_000
# Process ids start above the maximum of Linux (2^22), so no living process has one of them.
FIRST_PID = 5_000_001

TREE_LINE = re.compile(rb"([0-7]+) [a-z]+ ([0-9a-f]{40})\t(.*)")
ID = re.compile(rb"(?<![0-9a-zA-Z])[0-9a-f]{7,40}(?![0-9a-zA-Z])")


@dataclass
class State:
    """One captured state: entries of its directory tree, and git objects by id."""

    entries: list[tuple[str, str, str, bytes]] = field(default_factory=list)
    """Kind, mode (or link target), path, content."""
    objects: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Type and content in git's own form, by id."""


def is_text(data: bytes) -> bool:
    """Reports whether times, paths and ids in the data may be replaced. NUL bytes are allowed: git's lists contain
    them."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_plain(data: bytes) -> bool:
    """Reports whether the data is written to an archive verbatim, not in base64."""
    return is_text(data) and b"\0" not in data


def write(path: Path, state: State) -> None:
    out = bytearray()

    def entry(kind: str, mode: str, name: str, data: bytes) -> None:
        out.extend(f"{kind} {mode} {len(data)} {name}\n".encode() + data + b"\n")

    for kind, mode, name, data in state.entries:
        if kind == "dir":
            out += f"dir {mode} {name}\n".encode()
        elif kind == "link":
            out += f"link {mode}\t{name}\n".encode()
        elif kind == "file" and data and not data.strip(b"\0"):
            entry("zeros", mode, name, str(len(data)).encode())
        elif kind == "file" and not is_plain(data):
            entry("binary", mode, name, base64.encodebytes(data))
        else:
            entry(kind, mode, name, data)
    for name, (kind, data) in state.objects.items():
        text = tree_text(data) if kind == "tree" else data
        plain = is_plain(text)
        entry("object" if plain else "object-binary", kind, name, text if plain else base64.encodebytes(text))
    path.write_bytes(bytes(out))


def read(path: Path) -> State:
    text, at, state = path.read_bytes(), 0, State()
    while at < len(text):
        end = text.index(b"\n", at)
        kind, _, rest = text[at:end].decode().partition(" ")
        at = end + 1
        if kind == "dir":
            mode, name = rest.split(" ", 1)
            state.entries.append((kind, mode, name, b""))
            continue
        if kind == "link":
            target, name = rest.split("\t", 1)
            state.entries.append((kind, target, name, b""))
            continue
        mode, length, name = rest.split(" ", 2)
        data = text[at : at + int(length)]
        at += int(length) + 1
        if kind in ("binary", "object-binary"):
            data = base64.decodebytes(data)
        if kind == "zeros":
            data = bytes(int(data))
        if kind.startswith("object"):
            state.objects[name] = (mode, tree_bytes(data) if mode == "tree" else data)
        else:
            state.entries.append(("index" if kind == "index" else "file", mode, name, data))
    return state


# Git objects.


def object_id(kind: str, data: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data).hexdigest()


def tree_text(data: bytes) -> bytes:
    kinds = {b"40000": b"tree", b"160000": b"commit"}
    lines, at = [], 0
    while at < len(data):
        end = data.index(b"\0", at)
        mode, name = data[at:end].split(b" ", 1)
        number = data[end + 1 : end + 21].hex().encode()
        lines.append(b"%s %s %s\t%s\n" % (mode, kinds.get(mode, b"blob"), number, name))
        at = end + 21
    return b"".join(lines)


def tree_bytes(text: bytes) -> bytes:
    lines = (TREE_LINE.fullmatch(line).groups() for line in text.split(b"\n") if line)
    return b"".join(b"%s %s\0%s" % (mode, name, bytes.fromhex(number.decode())) for mode, number, name in lines)


def map_ids(data: bytes, names: dict[str, str]) -> bytes:
    """Replaces object ids, full or abbreviated, by their values in `names`."""

    def replace(found: re.Match) -> bytes:
        word = found[0].decode()
        if len(word) == 40:
            return names.get(word, word).encode()
        match = [new for old, new in names.items() if old.startswith(word)]
        return match[0][: len(word)].encode() if len(match) == 1 else found[0]

    return ID.sub(replace, data) if names else data


def transform(state: State, change) -> State:
    """Applies `change` to every text and path of a state, and updates the ids of the git objects that it changed."""
    made: dict[str, tuple[str, bytes]] = {}
    names: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in names or name not in state.objects:
            return
        kind, data = state.objects[name]
        if kind == "tree":
            text = tree_text(data)
            for line in text.splitlines():
                visit(TREE_LINE.fullmatch(line)[2].decode())
            data = tree_bytes(map_ids(text, {old: new for old, new in names.items() if old != new}))
        elif is_text(data):
            # A commit names its tree and parents; its message and the notes of a save may name other objects.
            for word in re.findall(rb"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])", data):
                visit(word.decode())
            data = change(map_ids(data, {old: new for old, new in names.items() if old != new}))
        names[name] = object_id(kind, data)
        made[names[name]] = (kind, data)

    for name in sorted(state.objects):
        visit(name)
    changed = {old: new for old, new in names.items() if old != new}

    def text(data: bytes) -> bytes:
        return change(map_ids(data, changed)) if is_text(data) else data

    def line(value: str) -> str:
        return text(value.encode()).decode()

    entries = [(kind, line(mode) if kind == "link" else mode, line(name), text(data))
               for kind, mode, name, data in state.entries]
    return State(entries, dict(sorted(made.items())))


# Times.

ISO = re.compile(rb"(?<!\d)(\d{4})-(\d\d)-(\d\d)([T ])(\d\d)([:.])(\d\d)\6(\d\d)(?!\d)")
COMPACT = re.compile(rb"(?<!\d)(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)(?=\d{3}Z|\d{6}Z|Z|[^0-9]|$)")
NUMBER = re.compile(rb"(?<![0-9a-zA-Z.])([12]\d{9})(\d{3}|\d{6}|\d{9})?(?![0-9a-zA-Z])")
YEAR = 400 * 86_400


def shift_times(data: bytes, around: int, seconds: int) -> bytes:
    """Adds whole seconds to each time in `data` within some 400 days of `around`; every time keeps its width."""
    def near(then: int) -> bool:
        return abs(then - around) < YEAR

    def number(found: re.Match) -> bytes:
        then = int(found[1])
        return b"%d%s" % (then + seconds, found[2] or b"") if near(then) else found[0]

    def moved(parts) -> time.struct_time | None:
        try:
            then = calendar.timegm(tuple(int(part) for part in parts))
        except ValueError:
            return None
        return time.gmtime(then + seconds) if near(then) else None

    def iso(found: re.Match) -> bytes:
        year, month, day, letter, hour, mark, minute, second = found.groups()
        then = moved((year, month, day, hour, minute, second))
        if then is None:
            return found[0]
        form = f"%Y-%m-%d{letter.decode()}%H{mark.decode()}%M{mark.decode()}%S"
        return time.strftime(form, then).encode()

    def compact(found: re.Match) -> bytes:
        then = moved(found.groups())
        return time.strftime("%Y%m%dT%H%M%S", then).encode() if then else found[0]

    return NUMBER.sub(number, COMPACT.sub(compact, ISO.sub(iso, data)))
