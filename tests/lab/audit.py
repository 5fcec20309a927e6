"""Audit: checks of the system calls that supervisor and shim make during spawn, kill and clean.

What a power cut must not take is synced before and after the rename onto its place (`RULES`). Every descriptor is created
close-on-exec. Files are created with mode 0600 and directories with 0700, whatever the umask. The lock file is
never unlinked, renamed or overwritten.
"""

import os
import re
import signal
import sys
from pathlib import Path

from . import cases, procs
from .inject import stop_everything
from .rig import Rig, wait_until

RULES = [
    (re.compile(r"/state\.json$"), ("the journal",), ()),
    (re.compile(r"/wanted\.json$"), ("the new file",), ("the directory", "the directory above")),
    (re.compile(r"/exit\.json$"), (), ("its slot",)),
    (re.compile(r"/tree\.1/spec\.pending$"), ("the new file",), ("the directory",)),
]
"""What is synced before and after the rename onto a durable file. Of the contracts, only those that make a worktree are."""
TRACED = ("openat,open,creat,close,rename,renameat,renameat2,link,linkat,unlink,unlinkat,fsync,fdatasync,mkdir,mkdirat,"
          "chmod,fchmod,fchmodat,socket,socketpair,pipe,pipe2,dup,dup2,dup3,fcntl,accept,accept4,epoll_create,"
          "epoll_create1,eventfd,eventfd2,inotify_init,inotify_init1,timerfd_create,signalfd4,pidfd_open,memfd_create,"
          "execve,clone,clone3")
LINE = re.compile(r"^(?P<pid>\d+)\s+(?P<call>\w+)\((?P<args>.*)\)\s+= (?P<ret>-?\d+|\?)")
EXECUTED = re.compile(r'^(?P<pid>\d+)\s+execve\("(?P<path>[^"]*)", \[(?P<argv>.*?)\]')
RESUMED = re.compile(r"^(?P<pid>\d+)\s+<\.\.\. (?P<call>\w+) resumed>(?P<tail>.*)$")
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
OURS = ("supervisor", "forkserver", "shim", "guard", "command")
WITHOUT_CLOEXEC = {"pipe", "dup", "accept", "epoll_create", "eventfd", "inotify_init", "creat", "open"}


class Trace:
    """An strace log as a list of complete calls, each with the role of its process.

    `first` maps the thread ids of the supervisor to roles too, because threads have ids of their own.
    """

    def __init__(self, text: str, first: dict[int, str]):
        self.roles = dict(first)
        self.calls: list[tuple[int, str, str, str]] = []
        pending: dict[str, str] = {}
        for line in text.splitlines():
            line = self.joined(line, pending)
            if line is None:
                continue
            self.note_role(line)
            match = LINE.match(line)
            if match:
                pid = int(match["pid"])
                if match["call"].startswith("clone") and match["ret"].isdigit():
                    if "CLONE_THREAD" in match["args"]:
                        self.roles[int(match["ret"])] = self.role(pid)
                    elif self.role(pid) == "forkserver":
                        self.roles[int(match["ret"])] = "shim"
                self.calls.append((pid, match["call"], match["args"], match["ret"]))

    @staticmethod
    def joined(line: str, pending: dict[str, str]) -> str | None:
        """Joins the two halves of an interrupted line."""
        if line.endswith("<unfinished ...>"):
            pending[line.split(None, 1)[0]] = line.removesuffix("<unfinished ...>").rstrip()
            return None
        match = RESUMED.match(line)
        if match:
            return pending.pop(match["pid"], "") + match["tail"]
        return line

    def note_role(self, line: str) -> None:
        match = EXECUTED.match(line)
        if match and line.rstrip().endswith("= 0"):
            self.roles[int(match["pid"])] = procs.role_of(QUOTED.findall(match["argv"]))

    def role(self, pid: int) -> str:
        return self.roles.get(pid, "thread or child")


def record(rig: Rig, umask: int) -> Trace:
    """Spawns, kills, respawns and cleans a worker with the running supervisor under strace."""
    rig.make_repo()
    rig.must("spawn", "--name", "keep", "--", *rig.worker("sleep", 1000))
    wait_until(lambda: len(rig.ledger_lines()) == 1, 10, "the bystander runs")
    people = {p.pid: p.role for p in rig.census() if p.role in ("supervisor", "guard", "forkserver")}
    threads = {tid: role for pid, role in people.items() for tid in map(int, os.listdir(f"/proc/{pid}/task"))}
    log = rig.root / "strace.log"
    attach = [word for pid in people for word in ("-p", str(pid))]
    argv = ["strace", "-f", "-y", "-s", "300", "-o", str(log), "-e", f"trace={TRACED}", "-e", "signal=none", *attach]
    strace = procs.launch(argv, stderr=open(rig.root / "strace.err", "wb"))
    try:
        for pid in people:
            wait_until(lambda pid=pid: traced(pid), 10, "strace is attached")

        rig.must("spawn", "--name", "x", "--", *rig.worker("sleep", 1000), prepare=lambda: os.umask(umask))
        wait_until(lambda: len(rig.ledger_lines()) == 2, 10, "the worker runs")
        rig.must("kill", "x")
        rig.must("respawn", "x")
        rig.must("spawn", "--name", "short", "--", *rig.worker("exit", 3))
        wait_until(lambda: rig.exit_record("short"), 10, "the short one has its record")
        rig.must("spawn", "--name", "tree", "--worktree", "--", *rig.worker("sleep", 1000), cwd=str(rig.repo))
        rig.must("kill", "x")
        rig.must("clean", "x")
        rig.must("clean", "short")
    finally:
        # SIGINT makes strace detach; SIGKILL would leave the tracees to the kernel.
        strace.send_signal(signal.SIGINT)
        strace.wait()
        procs.forget(strace)
    return Trace(log.read_text(errors="replace"), threads)


def traced(pid: int) -> bool:
    """Every thread of a process has a tracer."""
    threads = Path(f"/proc/{pid}/task").glob("*/status")
    return all("TracerPid:\t0\n" not in status.read_text() for status in threads)


def synced_renames(trace: Trace, root: str) -> list[str]:
    """Checks what is synced before and after each rename onto a durable place."""
    findings = []
    calls = trace.calls
    seen = set()
    for at, (pid, call, args, ret) in enumerate(calls):
        if not call.startswith("rename") or ret != "0":
            continue
        names = [resolve(part, args) for part in QUOTED.findall(args)]
        if not names[-1].startswith("/"):
            # Relative to the directory of the process, which its next calls name.
            names = [later(calls[at:], pid, names[-1]) or beside_lease(calls, pid, names[-1]) or names[-1]]
        source, target = names[0], Path(names[-1])
        rule = next((rule for rule in RULES if rule[0].search(str(target))), None)
        if not str(target).startswith(root) or rule is None:
            continue
        pattern, before, after = rule
        seen.add(pattern)
        made = max((i for i in range(at) if calls[i][1].startswith("open") and f'"{Path(source).name}"' in calls[i][2]
                    or source in calls[i][2] and "O_CREAT" in calls[i][2]), default=0)
        findings += [f"unsynced: {call} onto {target.name} without a sync of {what} before" for what in before
                     if not is_synced(calls[made:at], place(what, source, target))]
        findings += [f"unsynced: {what} of {target.name} is not synced after {call}" for what in after
                     if not is_synced(own(calls[at:], pid, what), place(what, source, target))]
    findings += [f"audit: no rename onto {pattern.pattern} was seen" for pattern, _, _ in RULES if pattern not in seen]
    return findings


def later(calls: list, pid: int, name: str) -> str | None:
    """Returns the path of a file that a process uses by this name."""
    found = (re.search(r"<([^>]*/" + re.escape(name) + r")>", args) for other, _, args, _ in calls if other == pid)
    return next((match[1] for match in found if match), None)


def beside_lease(calls: list, pid: int, name: str) -> str | None:
    """Returns the path of a file in the directory of a shim, by the lease that it has locked."""
    found = (re.search(r"<([^>]*)/lease>", args) for other, call, args, _ in calls if other == pid and call == "fcntl")
    return next((f"{match[1]}/{name}" for match in found if match), None)


def own(calls: list, pid: int, what: str) -> list:
    """Returns the calls that may sync something: of slots, which are in one file, those of the process itself."""
    return [call for call in calls if call[0] == pid] if what == "its slot" else calls


def place(what: str, source: str, target: Path) -> str:
    places = {"the new file": source, "the file": target, "the directory": target.parent,
              "the directory above": target.parent.parent, "the journal": target.parent / "state.journal",
              "its slot": target.parent.parent.parent / "exit.slots"}
    return str(places[what])


def is_synced(calls: list, path: str) -> bool:
    return any(call in ("fsync", "fdatasync") and ret == "0" and f"<{path}>" in args for _, call, args, ret in calls)


def resolve(name: str, args: str) -> str:
    """The absolute path of a name relative to a directory descriptor, as -y prints it."""
    if name.startswith("/"):
        return name
    match = re.search(r'<([^>]*)>, "' + re.escape(name) + '"', args)
    return str(Path(match[1], name)) if match else name


def close_on_exec(trace: Trace) -> list[str]:
    """Every descriptor that one of ours makes is close-on-exec from birth."""
    findings = set()
    for pid, call, args, ret in trace.calls:
        # The child between fork and exec places descriptors 0 to 2 by dup2 on purpose. It has no
        # role yet, and a thread of the supervisor is found by its process.
        if trace.role(pid) not in OURS or ret.startswith("-") or ret == "?":
            continue
        if '"/dev/urandom"' in args:
            # libgit2 reads it once, and closes it at once.
            continue
        if call in WITHOUT_CLOEXEC and "O_CLOEXEC" not in args:
            findings.add(f"inheritable: {call}({args[:100]})")
        elif call in ("openat", "socket", "socketpair", "pipe2", "accept4", "epoll_create1", "eventfd2",
                      "inotify_init1", "timerfd_create", "signalfd4", "memfd_create") and "CLOEXEC" not in args:
            findings.add(f"inheritable: {call}({args[:100]})")
        elif call == "fcntl" and "F_DUPFD," in args:
            findings.add(f"inheritable: {call}({args[:100]})")
    return sorted(findings)


def lock_untouched(trace: Trace) -> list[str]:
    findings = []
    for pid, call, args, ret in trace.calls:
        if "state.lock" in args and (call.startswith(("unlink", "rename", "link", "creat")) or "O_TRUNC" in args):
            findings.append(f"lock: {trace.role(pid)} did {call}({args[:100]})")
    return findings


def modes_at_birth(trace: Trace, root: str) -> list[str]:
    """Files are asked for with 0600 and directories with 0700, so that no moment is open to others."""
    findings = set()
    for pid, call, args, ret in trace.calls:
        if trace.role(pid) not in OURS or ret.startswith("-") or root not in args:
            continue
        mode = re.search(r", 0(\d{3,4})$", args)
        if call in ("openat", "open") and "O_CREAT" in args and mode and int(mode[1], 8) & 0o077:
            findings.add(f"open to others: {call}({args[:140]})")
        if call in ("mkdir", "mkdirat") and mode and int(mode[1], 8) & 0o077:
            findings.add(f"open to others: {call}({args[:140]})")
    return sorted(findings)


def main(argv=None) -> int:
    args = cases.parser(__doc__).parse_args(argv)
    cases.ends_on_term()
    procs.become_subreaper()
    tally = cases.Tally(allow_skips=args.allow_skips)
    with Rig() as rig:
        trace: list[Trace] = []
        # A caller with umask 0 must not open anything of ours to others.
        findings, seconds = cases.attempt(lambda: trace.append(record(rig, 0)))
        if findings:
            tally.record("audit: record", findings)
            return tally.close()
        root = str(rig.dir)
        checks = {
            "audit: synced before and after each rename": lambda: synced_renames(trace[0], root),
            "audit: descriptors are close-on-exec": lambda: close_on_exec(trace[0]),
            "audit: lock file is never replaced": lambda: lock_untouched(trace[0]),
            "audit: files are created 0600, directories 0700": lambda: modes_at_birth(trace[0], root),
            "audit: nothing is left": lambda: stop_everything(rig),
        }
        cases.run_all(checks, args.only, tally)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
