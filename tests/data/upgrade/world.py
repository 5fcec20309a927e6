"""A private world for one state: home, state directory, repository and tmux socket below one directory.

Every process of a world has that home in its environment, by which the world finds and ends it.
"""

import os
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

SOCKET = "demo"
TOOLS = ("git", "tmux", "sh", "sleep")
STANDARD = "/usr/local/bin:/usr/bin:/bin"
# Limits that every machine can grant, so that contracts do not record those of the capturing machine.
LIMITS = {resource.RLIMIT_CORE: (0, 0), resource.RLIMIT_NOFILE: (1024, 4096), resource.RLIMIT_NPROC: (8192, 8192),
          resource.RLIMIT_SIGPENDING: (8192, 8192), resource.RLIMIT_MEMLOCK: (65536, 65536)}

# Seconds between two checks of a condition.
STEP = 0.02
PAUSE = threading.Event()


class Timeout(AssertionError):
    """Raised if a condition did not become true in time."""


def wait_until(condition, limit: float, what: str):
    """Polls `condition` until it is true, and returns its value."""
    end = time.monotonic() + limit
    while not (value := condition()):
        if time.monotonic() >= end:
            raise Timeout(f"not within {limit:g} s: {what}")
        PAUSE.wait(STEP)
    return value


def search_path() -> str:
    """Returns the standard directories and those of tools that are installed elsewhere."""
    places = STANDARD.split(":")
    for tool in TOOLS:
        if not shutil.which(tool, path=":".join(places)):
            found = shutil.which(tool)
            if not found:
                raise SystemExit(f"error: {tool} is not installed")
            places.append(os.path.dirname(found))
    return ":".join(places)


def environment(root: Path) -> dict[str, str]:
    """The whole environment of the processes of a world; nothing comes from the caller's environment."""
    return {"PATH": search_path(), "HOME": f"{root}/h", "USER": "demo", "LOGNAME": "demo", "SHELL": "/bin/sh",
            "LANG": "C.UTF-8", "TERM": "xterm", "TZ": "UTC", "TMUX_TMPDIR": f"{root}/t", "SWARM_DIR": f"{root}/s",
            "GIT_CONFIG_NOSYSTEM": "1"}


def lower_limits() -> None:
    os.umask(0o022)
    for which, (soft, hard) in LIMITS.items():
        most = resource.getrlimit(which)[1]
        hard = hard if most == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(which, (min(soft, hard), hard))


def remove_group(path: str) -> bool:
    try:
        os.rmdir(path)
    except OSError:
        return not os.path.exists(path)
    return True


class World:
    """Use as a context manager: on exit, ends all processes of the world and removes its directory."""

    def __init__(self, binary: str, root: Path | None = None):
        self.binary = str(Path(binary).resolve())
        self.root = root or Path(tempfile.mkdtemp(prefix="up-", dir="/tmp"))
        self.repo, self.dir, self.home = self.root / "repo", self.root / "s", self.root / "h"
        self.env = environment(self.root)
        self.start = int(time.time())
        self.uptime = float(Path("/proc/uptime").read_text().split()[0])
        for name in ("h", "t", "o"):
            (self.root / name).mkdir(mode=0o700, exist_ok=True)

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *exc) -> None:
        self.end()
        shutil.rmtree(self.root, ignore_errors=True)

    def run(self, *argv: str, cwd: Path | None = None, limit: float = 60) -> subprocess.CompletedProcess:
        # Output goes to files, so that a daemon that keeps them open does not block us.
        with open(self.root / "o" / "out", "w+b") as out, open(self.root / "o" / "err", "w+b") as err:
            done = subprocess.run(argv, cwd=cwd or self.repo, env=self.env, stdin=subprocess.DEVNULL, stdout=out,
                                  stderr=err, timeout=limit, preexec_fn=lower_limits)
            for file in (out, err):
                file.seek(0)
            done.stdout, done.stderr = (file.read().decode(errors="replace") for file in (out, err))
        return done

    def must(self, *argv: str, **kwargs) -> str:
        done = self.run(*argv, **kwargs)
        if done.returncode != 0:
            raise AssertionError(f"`{' '.join(argv)}` -> {done.returncode}: {done.stderr.strip()[:500]}")
        return done.stdout

    def swarm(self, *words: str, **kwargs) -> str:
        return self.must(self.binary, *words, **kwargs)

    def git(self, *words: str, **kwargs) -> str:
        return self.must("git", *words, **kwargs)

    def make_repo(self, files: dict[str, str]) -> None:
        """Makes a repository with one commit on `main`, without the samples of a template."""
        self.repo.mkdir()
        self.git("init", "-q", "--template=", "-b", "main")
        self.git("config", "user.name", "demo")
        self.git("config", "user.email", "demo@localhost")
        for name, text in files.items():
            (self.repo / name).parent.mkdir(parents=True, exist_ok=True)
            (self.repo / name).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "first")

    # Processes.

    def census(self) -> dict[int, list[str]]:
        """Command lines of all living processes of this world, by process id."""
        wanted, found = f"HOME={self.home}".encode(), {}
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            try:
                if wanted not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    continue
                stat = Path(f"/proc/{pid}/stat").read_text()
                words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b" \0").split(b"\0")
            except OSError:
                continue
            if stat[stat.rindex(")") + 2] not in "ZXx":
                found[pid] = [word.decode(errors="replace") for word in words]
        return found

    def end(self) -> None:
        """Kills every process of this world, the guard first, and removes the control groups of its workers."""
        deadline = time.monotonic() + 15
        # Twice: a process that is just being executed has no environment yet.
        while left := self.census() or (PAUSE.wait(STEP), self.census())[1]:
            if time.monotonic() > deadline:
                raise AssertionError(f"could not end: {left}")
            for pid in sorted(left, key=lambda pid: "__guard" not in left[pid]):
                self.kill(pid)
        for groups in self.dir.glob("w/*/groups"):
            for line in groups.read_text().splitlines():
                wait_until(lambda: remove_group(line), 5, f"control group {line} is removed")

    def kill(self, pid: int) -> None:
        """Kills one process of this world through a pidfd, after checking its environment again."""
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return
        try:
            if f"HOME={self.home}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                select.select([handle], [], [], 2)
        except OSError:
            pass
        finally:
            os.close(handle)
