"""Records every change that a command and all its descendants make below one directory, in order.

Runs as a separate process (`python3 -m lab.power_trace`) and follows all processes by ptrace. Files are identified by
their real inodes, offsets and flags are read from the kernel, so that no descriptor has to be followed. When the command
has ended, the recording is written with pickle, and everything else runs on without a tracer.
"""

import argparse
import ctypes
import os
import pickle
import signal
import stat
import struct
import sys
from pathlib import Path

from .power_disk import Ack, Data, Entries, Mode, Recording, Size, Sync, born, read_tree
from .tracer import ENTRY, EVENT_EXEC, EVENT_STOP, EXIT, LISTEN, STOPS, SYSCALL, SYSCALL_INFO, WALL, Tracer, _libc, ptrace

AT_FDCWD = -100
CREAT, TRUNC, APPEND, TMPFILE = os.O_CREAT, os.O_TRUNC, os.O_APPEND, os.O_TMPFILE
EXCHANGE, REMOVE_DIR = 2, 0x200


def stopped_at(tid: int) -> tuple[int, list[int]]:
    """Returns (ENTRY, [number, arguments…]) or (EXIT, [result]) of a tracee in a system-call stop."""
    buffer = ctypes.create_string_buffer(88)
    size = _libc.ptrace(SYSCALL_INFO, tid, ctypes.cast(88, ctypes.c_void_p), ctypes.cast(buffer, ctypes.c_void_p))
    if size < 0:
        return 0, []
    kind = buffer.raw[0]
    if kind == ENTRY:
        return kind, list(struct.unpack_from("=7Q", buffer.raw, 24))
    return kind, [struct.unpack_from("=q", buffer.raw, 24)[0]] if kind == EXIT else []


def memory(tid: int, address: int, length: int) -> bytes:
    with open(f"/proc/{tid}/mem", "rb", buffering=0) as file:
        file.seek(address)
        parts = []
        while length > 0 and (part := file.read(length)):
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


def text(tid: int, address: int) -> str:
    raw = b""
    while b"\0" not in raw:
        part = memory(tid, address + len(raw), 4096 - (address + len(raw)) % 4096)
        if not part:
            break
        raw += part
    return os.fsdecode(raw.split(b"\0", 1)[0])


def signed(value: int) -> int:
    return ctypes.c_int(value & 0xFFFFFFFF).value


def place(tid: int, folder: int, path: str) -> str:
    """Returns a path that names the same file from here."""
    if path.startswith("/"):
        return path
    base = f"/proc/{tid}/cwd" if signed(folder) == AT_FDCWD else f"/proc/{tid}/fd/{signed(folder)}"
    return f"{base}/{path}" if path else base


class Recorder(Tracer):
    """Follows every process, and turns system calls that succeed into operations."""

    def __init__(self, log, root: Path, acks: Path):
        super().__init__(log, str(root), None)
        self.first, self.numbers = read_tree(root)
        self.device = os.stat(root).st_dev
        self.acks_inode = os.stat(acks).st_ino
        self.count = len(self.first)
        self.ops: list = []
        self.waiting: dict[int, tuple] = {}
        self.seen: set[int] = set()

    # The registration of processes is that of the tracer; none is left alone here.

    def resume(self, tid: int, number: int = 0) -> None:
        ptrace(SYSCALL, tid, 0, number)

    def stopped(self, tid: int, status: int) -> None:
        if tid not in self.threads:
            self.threads[tid] = tid
        number, event = os.WSTOPSIG(status), status >> 16
        if number == signal.SIGTRAP | 0x80:
            self.at_call(tid)
            self.resume(tid)
        elif event == EVENT_STOP and number in STOPS:
            ptrace(LISTEN, tid)
        elif event == EVENT_EXEC or event:
            self.resume(tid)
        else:
            self.resume(tid, number)

    def follow(self) -> None:
        while True:
            tid, status = os.waitpid(-1, WALL)
            if os.WIFSTOPPED(status):
                self.stopped(tid, status)
                continue
            self.threads.pop(tid, None)
            if tid == self.command:
                self.code = os.waitstatus_to_exitcode(status)
                return

    def at_call(self, tid: int) -> None:
        kind, words = stopped_at(tid)
        try:
            if kind == ENTRY:
                self.waiting.pop(tid, None)
                plan = PLANS.get(words[0])
                held = plan and plan(self, tid, words[1:])
                if held:
                    self.waiting[tid] = held
            elif kind == EXIT and words:
                held = self.waiting.pop(tid, None)
                if held and words[0] >= 0:
                    held[0](words[0], *held[1:])
        except (OSError, ValueError, OverflowError):
            # The process died, or it passed something that the kernel refuses too.
            pass

    # Numbers of inodes.

    def number(self, meta: os.stat_result) -> int | None:
        return self.numbers.get(meta.st_ino) if meta.st_dev == self.device else None

    def of_fd(self, tid: int, fd: int) -> tuple[int | None, os.stat_result]:
        meta = os.stat(f"/proc/{tid}/fd/{signed(fd)}")
        return self.number(meta), meta

    def parent(self, path: str) -> tuple[int | None, str]:
        folder, name = os.path.split(path.rstrip("/"))
        return self.number(os.stat(folder or ".")), name

    def new(self, path: str, meta: os.stat_result) -> tuple[int, dict]:
        """Numbers an inode that was just created, or that came from elsewhere."""
        made = born(path, meta)
        if made is None:
            raise ValueError("no file")
        self.count += 1
        self.numbers[meta.st_ino] = self.count
        return self.count, {self.count: made}

    def emit(self, op, label: str) -> None:
        op.label = label
        self.ops.append(op)

    # Calls: each plan is made at the entry, and finished at the exit if the call succeeded.

    def opens(self, tid: int, folder: int, path: int, flags: int):
        if not flags & (CREAT | TRUNC) or flags & TMPFILE == TMPFILE:
            return None
        path = place(tid, folder, text(tid, path))
        folder_number, name = self.parent(path)
        if folder_number is None:
            return None
        return self.opened, tid, folder_number, name, os.path.exists(path), bool(flags & TRUNC)

    def opened(self, fd: int, tid: int, folder: int, name: str, existed: bool, truncates: bool) -> None:
        meta = os.stat(f"/proc/{tid}/fd/{fd}")
        if existed:
            if truncates and (number := self.number(meta)) is not None:
                self.emit(Size(number, 0), f"truncate {name}")
            return
        number, made = self.new(f"/proc/{tid}/fd/{fd}", meta)
        made[number].data = b""
        self.emit(Entries([(folder, name, number)], made), f"create {name}")

    def writes(self, tid: int, fd: int, parts: list[tuple[int, int]], offset: int | None):
        meta = os.stat(f"/proc/{tid}/fd/{signed(fd)}")
        is_ack = meta.st_ino == self.acks_inode
        number = self.number(meta)
        if number is None and not is_ack or not stat.S_ISREG(meta.st_mode):
            return None
        data = b"".join(memory(tid, address, length) for address, length in parts)
        if is_ack:
            return (lambda _: self.emit(Ack(data.decode().strip()), "ack"),)
        at = self.position(tid, fd, meta, offset)
        name = os.path.basename(os.readlink(f"/proc/{tid}/fd/{signed(fd)}"))
        return (lambda count: self.emit(Data(number, at, data[:count]), f"write {name} {at}+{count}"),)

    def position(self, tid: int, fd: int, meta: os.stat_result, offset: int | None) -> int:
        info = Path(f"/proc/{tid}/fdinfo/{signed(fd)}").read_text()
        fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        if int(fields["flags"], 8) & APPEND:
            return meta.st_size
        return int(fields["pos"]) if offset is None else offset

    def vector(self, tid: int, address: int, count: int) -> list[tuple[int, int]]:
        raw = memory(tid, address, 16 * count)
        return [struct.unpack_from("=2Q", raw, 16 * at) for at in range(count)]

    def copies(self, tid: int, fd: int, offset_at: int):
        number, meta = self.of_fd(tid, fd)
        if number is None:
            return None
        offset = struct.unpack("=q", memory(tid, offset_at, 8))[0] if offset_at else None
        return self.copied, tid, signed(fd), number, self.position(tid, fd, meta, offset)

    def copied(self, count: int, tid: int, fd: int, number: int, at: int) -> None:
        with open(f"/proc/{tid}/fd/{fd}", "rb") as file:
            file.seek(at)
            self.emit(Data(number, at, file.read(count)), f"copy {at}+{count}")

    def resizes(self, tid: int, fd: int, length: int):
        number, _ = self.of_fd(tid, fd)
        return (lambda _: self.emit(Size(number, length), "truncate"),) if number is not None else None

    def allocates(self, tid: int, fd: int, mode: int, offset: int, length: int):
        number, meta = self.of_fd(tid, fd)
        if number is None or mode != 0 or offset + length <= meta.st_size:
            return None
        return (lambda _: self.emit(Size(number, offset + length), "allocate"),)

    def moves(self, tid: int, from_folder: int, from_path: int, to_folder: int, to_path: int, flags: int):
        source, target = place(tid, from_folder, text(tid, from_path)), place(tid, to_folder, text(tid, to_path))
        (at, old), (to, new) = self.parent(source), self.parent(target)
        if at is None and to is None:
            return None
        meta = os.lstat(source)
        number, made = self.number(meta), {}
        if number is None:
            number, made = self.new(source, meta)
        if flags & EXCHANGE:
            changes = [(to, new, number), (at, old, self.number(os.lstat(target)))]
        else:
            changes = [(to, new, number), (at, old, None)]
        changes = [change for change in changes if change[0] is not None]
        return (lambda _: self.emit(Entries(changes, made), f"rename {old} {new}"),)

    def links(self, tid: int, from_folder: int, from_path: int, to_folder: int, to_path: int):
        source, target = place(tid, from_folder, text(tid, from_path)), place(tid, to_folder, text(tid, to_path))
        folder, name = self.parent(target)
        if folder is None:
            return None
        meta = os.stat(source)
        number, made = self.number(meta), {}
        if number is None:
            number, made = self.new(source, meta)
        return (lambda _: self.emit(Entries([(folder, name, number)], made), f"link {name}"),)

    def makes(self, tid: int, folder: int, path: int):
        path = place(tid, folder, text(tid, path))
        folder_number, name = self.parent(path)
        return (self.made, path, folder_number, name) if folder_number is not None else None

    def made(self, _: int, path: str, folder: int, name: str) -> None:
        number, made = self.new(path, os.lstat(path))
        self.emit(Entries([(folder, name, number)], made), f"make {name}")

    def removes(self, tid: int, folder: int, path: int):
        folder_number, name = self.parent(place(tid, folder, text(tid, path)))
        if folder_number is None:
            return None
        return (lambda _: self.emit(Entries([(folder_number, name, None)]), f"remove {name}"),)

    def changes_mode(self, path: str, mode: int):
        number = self.number(os.stat(path))
        return (lambda _: self.emit(Mode(number, mode & 0o7777), "chmod"),) if number is not None else None

    def syncs(self, tid: int, fd: int):
        number, _ = self.of_fd(tid, fd)
        name = os.path.basename(os.readlink(f"/proc/{tid}/fd/{signed(fd)}"))
        return (lambda _: self.emit(Sync(number), f"sync {name}"),) if number is not None else None

    def syncs_all(self, tid: int, fd: int | None):
        if fd is not None and self.of_fd(tid, fd)[1].st_dev != self.device:
            return None
        return (lambda _: self.emit(Sync(None), "syncfs"),)


HERE = AT_FDCWD & 0xFFFFFFFF
PLANS = {
    1: lambda r, t, a: r.writes(t, a[0], [(a[1], a[2])], None),
    18: lambda r, t, a: r.writes(t, a[0], [(a[1], a[2])], a[3]),
    20: lambda r, t, a: r.writes(t, a[0], r.vector(t, a[1], a[2]), None),
    296: lambda r, t, a: r.writes(t, a[0], r.vector(t, a[1], a[2]), a[3]),
    2: lambda r, t, a: r.opens(t, HERE, a[0], a[1]),
    85: lambda r, t, a: r.opens(t, HERE, a[0], CREAT | TRUNC),
    257: lambda r, t, a: r.opens(t, a[0], a[1], a[2]),
    40: lambda r, t, a: r.copies(t, a[0], 0),
    326: lambda r, t, a: r.copies(t, a[2], a[3]),
    77: lambda r, t, a: r.resizes(t, a[0], a[1]),
    285: lambda r, t, a: r.allocates(t, *a[:4]),
    82: lambda r, t, a: r.moves(t, HERE, a[0], HERE, a[1], 0),
    264: lambda r, t, a: r.moves(t, *a[:4], 0),
    316: lambda r, t, a: r.moves(t, *a[:5]),
    86: lambda r, t, a: r.links(t, HERE, a[0], HERE, a[1]),
    265: lambda r, t, a: r.links(t, *a[:4]),
    83: lambda r, t, a: r.makes(t, HERE, a[0]),
    258: lambda r, t, a: r.makes(t, a[0], a[1]),
    88: lambda r, t, a: r.makes(t, HERE, a[1]),
    266: lambda r, t, a: r.makes(t, a[1], a[2]),
    84: lambda r, t, a: r.removes(t, HERE, a[0]),
    87: lambda r, t, a: r.removes(t, HERE, a[0]),
    263: lambda r, t, a: r.removes(t, a[0], a[1]),
    90: lambda r, t, a: r.changes_mode(place(t, HERE, text(t, a[0])), a[1]),
    91: lambda r, t, a: r.changes_mode(f"/proc/{t}/fd/{signed(a[0])}", a[1]),
    268: lambda r, t, a: r.changes_mode(place(t, a[0], text(t, a[1])), a[2]),
    74: lambda r, t, a: r.syncs(t, a[0]),
    75: lambda r, t, a: r.syncs(t, a[0]),
    162: lambda r, t, a: r.syncs_all(t, None),
    306: lambda r, t, a: r.syncs_all(t, a[0]),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="lab.power_trace", description=__doc__.split("\n")[0])
    parser.add_argument("--recording", required=True, help="file to write")
    parser.add_argument("--root", required=True, help="directory whose changes are recorded")
    parser.add_argument("--acks", required=True, help="file outside of it, to which acknowledgements are written")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    recorder = Recorder(sys.stderr, Path(args.root), Path(args.acks))
    recorder.run(args.command)
    recorder.follow()
    with open(args.recording, "wb") as file:
        pickle.dump(Recording(recorder.first, recorder.ops), file)
    sys.exit(recorder.code)


if __name__ == "__main__":
    main()
