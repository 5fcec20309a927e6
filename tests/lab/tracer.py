"""Kills or fails one system call of one role, by ptrace.

strace counts `when=` per thread and cannot be restricted to the shim alone, because the shim, git and tmux are all
children of the supervisor. This tracer follows the command and the running supervisor together, identifies each process
by its command line, and names a call by role, name, target and number of occurrences: `shim rename ~/s/w/x.#/exit.json
1`. As with strace, the kill comes at the entry of the call, which is then not executed; an error replaces the call.

The tracer runs as a separate process (`python3 -m lab.tracer`), writes JSON lines to --log, and detaches from
everything on SIGTERM or when its standard input ends.
"""

import argparse
import ctypes
import json
import os
import signal
import struct
import sys
import threading

from . import calls
from .procs import read_argv, role_of

SEIZE, INTERRUPT, LISTEN, SYSCALL_INFO = 0x4206, 0x4207, 0x4208, 0x420E
CONT, DETACH, SYSCALL, POKEUSER = 7, 17, 24, 6
OPTIONS = 1 | 2 | 4 | 8 | 0x10
EVENT_EXEC, EVENT_STOP = 4, 128
RAX, ORIG_RAX = 80, 120
ENTRY, EXIT = 1, 2
WALL = 0x40000000
STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
UNTRACED_ROLES = ("other", "other-child", "strace")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def ptrace(request: int, tid: int, address=0, data=0) -> bool:
    """Returns False if the tracee has died, which can happen at any time."""
    return _libc.ptrace(request, tid, address, data) >= 0


def syscall_info(tid: int):
    """(ENTRY or EXIT, number, arguments) of a tracee in a system-call stop."""
    buffer = ctypes.create_string_buffer(88)
    size = _libc.ptrace(SYSCALL_INFO, tid, ctypes.cast(88, ctypes.c_void_p), ctypes.cast(buffer, ctypes.c_void_p))
    if size < 0:
        return 0, 0, []
    kind = buffer.raw[0]
    if kind != ENTRY:
        return kind, 0, []
    number, *args = struct.unpack_from("=7Q", buffer.raw, 24)
    return kind, number, args


def status_field(tid: int, field: str) -> int | None:
    try:
        with open(f"/proc/{tid}/status") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return int(line.split()[1])
    except OSError:
        pass
    return None


def link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return "?"


def text_at(tid: int, address: int) -> str:
    try:
        with open(f"/proc/{tid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            page = 4096 - address % 4096
            raw = memory.read(page)
            if b"\0" not in raw:
                raw += memory.read(4096)
            return raw.split(b"\0", 1)[0].decode(errors="replace")
    except (OSError, ValueError, OverflowError):
        return "?"


def target_of(tid: int, kind: str, args: list[int]) -> str:
    """Target of a call: the path that it names, or the file of its descriptor."""
    if not kind:
        return ""
    at = int(kind[-1])
    if kind.startswith("fd"):
        return link(f"/proc/{tid}/fd/{args[at] & 0xFFFFFFFF}")
    if kind.startswith("path"):
        path = text_at(tid, args[at])
        return path if path.startswith("/") else os.path.normpath(os.path.join(link(f"/proc/{tid}/cwd"), path))
    path = text_at(tid, args[at + 1])
    if path.startswith("/"):
        return path
    directory = ctypes.c_int(args[at] & 0xFFFFFFFF).value
    base = link(f"/proc/{tid}/cwd") if directory == -100 else link(f"/proc/{tid}/fd/{directory}")
    return os.path.normpath(os.path.join(base, path)) if path else base


def forked(parent: str, role: str) -> str:
    """Role of a fork; the fork server forks shims, or processes that wait to become one."""
    return "shim" if parent == "forkserver" else role


class Tracer:
    def __init__(self, log, root: str, point: dict | None):
        self.log = log
        self.root = root
        self.point = point
        self.threads: dict[int, int] = {}
        self.roles: dict[int, str] = {}
        self.counts: dict[tuple, int] = {}
        self.failing: dict[int, int] = {}
        self.hit = False
        self.command: int | None = None

    def say(self, **record) -> None:
        self.log.write(json.dumps(record) + "\n")
        self.log.flush()

    def seize(self, pid: int) -> None:
        """Attaches to every thread of a running process."""
        parent = status_field(pid, "PPid") or 0
        self.roles[pid] = forked(role_of(read_argv(parent)), role_of(read_argv(pid)))
        while True:
            try:
                new = [int(t) for t in os.listdir(f"/proc/{pid}/task") if int(t) not in self.threads]
            except FileNotFoundError:
                return
            if not new:
                return
            for tid in new:
                self.threads[tid] = pid
                if ptrace(SEIZE, tid, 0, OPTIONS):
                    ptrace(INTERRUPT, tid)

    def run(self, argv: list[str]) -> None:
        """Starts the command; it executes only after the tracer has attached."""
        gate, opener = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(opener)
                os.read(gate, 1)
                os.close(gate)
                # The tracer's own standard input is its leash and must not reach the command.
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.execvp(argv[0], argv)
            finally:
                os._exit(127)
        os.close(gate)
        self.command = child
        self.threads[child] = child
        self.roles[child] = "command"
        if not ptrace(SEIZE, child, 0, OPTIONS):
            raise OSError(ctypes.get_errno(), "PTRACE_SEIZE")
        os.write(opener, b"g")
        os.close(opener)

    def resume(self, tid: int, number: int = 0) -> None:
        role = self.roles.get(self.threads.get(tid, 0), "other")
        wanted = role not in UNTRACED_ROLES and (self.point is None or (self.point["role"] == role and not self.hit))
        ptrace(SYSCALL if wanted or tid in self.failing else CONT, tid, 0, number)

    def adopt(self, tid: int) -> None:
        """Registers a thread or process that was just created under the tracer."""
        pid = status_field(tid, "Tgid") or tid
        self.threads[tid] = pid
        if pid not in self.roles:
            role = self.roles.get(status_field(tid, "PPid") or 0) or role_of(read_argv(pid))
            self.roles[pid] = role if role.endswith("-child") or role == "git" else forked(role, f"{role}-child")

    def entered(self, tid: int, number: int, args: list[int]) -> None:
        """At the entry of a call: counts it, and strikes if it is the requested one."""
        known = calls.TABLE.get(number)
        if known is None:
            return
        pid = self.threads[tid]
        role = self.roles[pid]
        target = calls.normalise(target_of(tid, known[1], args), self.root)
        key = (role, known[0], target)
        self.counts[key] = self.counts.get(key, 0) + 1
        count = self.counts[key]
        if self.point is None:
            self.say(role=role, call=known[0], target=target, k=count, pid=pid, kill=calls.is_point(number, args, target))
            return
        point = self.point
        if self.hit or (role, known[0], target, count) != (point["role"], point["call"], point["target"], point["k"]):
            return
        self.hit = True
        self.say(hit=True, pid=pid)
        if point.get("error"):
            ptrace(POKEUSER, tid, ORIG_RAX, ctypes.c_void_p(-1 & (1 << 64) - 1))
            self.failing[tid] = calls.number_of(point["error"])
        else:
            os.kill(pid, signal.SIGKILL)

    def left(self, tid: int) -> None:
        number = self.failing.pop(tid, None)
        if number is not None:
            ptrace(POKEUSER, tid, RAX, ctypes.c_void_p(-number & (1 << 64) - 1))

    def executed(self, pid: int) -> bool:
        """After an exec, updates the role. Returns True if the process was detached."""
        for tid in [t for t, p in self.threads.items() if p == pid and t != pid]:
            del self.threads[tid]
        self.threads[pid] = pid
        argv = read_argv(pid)
        self.roles[pid] = role_of(argv)
        if self.point is None:
            self.say(exec=list(argv), role=self.roles[pid], pid=pid)
        if self.roles[pid] in UNTRACED_ROLES:
            ptrace(DETACH, pid)
            del self.threads[pid]
            return True
        return False

    def stopped(self, tid: int, status: int) -> None:
        if tid not in self.threads:
            self.adopt(tid)
        number, event = os.WSTOPSIG(status), status >> 16
        if number == signal.SIGTRAP | 0x80:
            kind, call, args = syscall_info(tid)
            if kind == ENTRY:
                self.entered(tid, call, args)
            elif kind == EXIT:
                self.left(tid)
            self.resume(tid)
        elif event == EVENT_STOP and number in STOPS:
            ptrace(LISTEN, tid)
        elif event == EVENT_EXEC:
            if not self.executed(tid):
                self.resume(tid)
        elif event:
            self.resume(tid)
        else:
            self.resume(tid, number)

    def follow(self) -> None:
        while True:
            try:
                tid, status = os.waitpid(-1, WALL)
            except ChildProcessError:
                return
            if os.WIFSTOPPED(status):
                self.stopped(tid, status)
                continue
            self.threads.pop(tid, None)
            if tid == self.command:
                self.say(ended=os.waitstatus_to_exitcode(status))
            if not self.threads:
                return


def quit_on_request() -> None:
    """Exits on request: on exit the kernel detaches and resumes every tracee."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(prog="lab.tracer", description=__doc__.split("\n")[0])
    parser.add_argument("--log", required=True)
    parser.add_argument("--root", default="", help="directory to abbreviate as ~ in targets")
    parser.add_argument("--attach", type=int, action="append", default=[])
    parser.add_argument("--point", help="JSON with role, call, target, k and optionally error")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    with open(args.log, "w") as log:
        tracer = Tracer(log, args.root, json.loads(args.point) if args.point else None)
        for pid in args.attach:
            tracer.seize(pid)
        if not sys.stdin.isatty():
            quit_on_request()
        tracer.run(args.command)
        tracer.follow()


if __name__ == "__main__":
    main()
