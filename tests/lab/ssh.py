"""Runs over SSH: a real sshd on loopback, clients and sessions that die, and runs that survive.

The daemon has private keys, configuration and port, and does not use PAM. Its children inherit nothing of this
process's environment: they get a home, a minimal PATH, and the marker by which the rig finds its processes.
"""

import errno
import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from . import cases, procs
from .inject import panics
from .rig import Rig, Timeout, wait_until

DAEMON = """Port {port}
ListenAddress 127.0.0.1
HostKey {place}/hostkey
AuthorizedKeysFile {place}/id.pub
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
SetEnv HOME={home} SWARM_RIG={marker}
"""
CLIENT = ["-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=accept-new", "-o", "BatchMode=yes",
          "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=5"]
SPECS = tuple(f"s{number}" for number in range(1, 6))
# Environment variables of a login, except those that describe its connection.
LOGIN = {"HOME", "LOGNAME", "MAIL", "OLDPWD", "PATH", "PWD", "SHELL", "SHLVL", "USER", "_", "LANG", "TZ", "SWARM_RIG"}
LIMIT = 30
# Number of ports to try: a free port may be taken before the daemon binds it.
PORT_TRIES = 5


def free_port() -> int:
    """Returns a port that was free a moment ago."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def children(pid: int) -> list[procs.Stat]:
    """Returns the living descendants of a process, nearest first."""
    stats = [stat for stat in map(procs.read_stat, procs.all_pids()) if stat and stat.alive]
    found = [stat for stat in stats if stat.ppid == pid]
    for parent in found:
        found += [stat for stat in stats if stat.ppid == parent.pid]
    return found


class Door:
    """sshd on loopback, through which a person reaches a rig."""

    # Further lines of the daemon's configuration.
    more = ""

    def __init__(self, rig: Rig):
        self.rig = rig
        self.place = rig.root / "ssh"
        self.place.mkdir(mode=0o700)
        self.daemon: subprocess.Popen | None = None
        self.port = 0
        self.start()

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, *exc) -> None:
        """Ends the daemon and its sessions, each by its own pid."""
        if self.daemon:
            left = children(self.daemon.pid)
            self.daemon.terminate()
            self.daemon.wait()
            procs.forget(self.daemon)
            for stat in left:
                if any("sshd" in word for word in procs.read_argv(stat.pid)[:1]):
                    procs.send(stat.pid, stat.start, signal.SIGKILL)

    def start(self) -> None:
        sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if not sshd or not shutil.which("ssh") or not shutil.which("ssh-keygen"):
            raise cases.Missing("sshd, ssh and ssh-keygen")
        if os.geteuid() == 0:
            # sshd's directory for privilege separation; without a system service for sshd it does not exist.
            Path("/run/sshd").mkdir(exist_ok=True)
        for key in ("hostkey", "id"):
            self.rig.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.place / key))
        words = [sshd, "-D", "-f", str(self.place / "config"), "-E", str(self.place / "log")]
        for attempt in range(PORT_TRIES):
            self.port = free_port()
            config = DAEMON.format(port=self.port, place=self.place, home=self.rig.home, marker=self.rig.marker)
            (self.place / "config").write_text(config + self.more)
            self.daemon = procs.launch(words, env={"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL)
            if self.await_login(is_last=attempt == PORT_TRIES - 1):
                return

    def await_login(self, is_last: bool) -> bool:
        """Returns whether a login works; False if another process has taken the port meanwhile."""
        result = None

        def works() -> bool:
            nonlocal result
            result = self.ssh("true")
            return result.rc == 0 or self.daemon.poll() is not None

        try:
            wait_until(works, 30, "a login works", 0.05)
        except Timeout:
            pass
        if result.rc == 0:
            return True
        self.__exit__()
        if is_last or "Address already in use" not in (self.place / "log").read_text(errors="replace"):
            raise cases.Skip(f"cannot log in: {result.err.strip()[-200:]} {self.log_end()}")
        (self.place / "log").unlink()
        return False

    def log_end(self) -> str:
        path = self.place / "log"
        return " ".join(path.read_text(errors="replace").splitlines()[-1:])[:200] if path.exists() else ""

    def words(self, command: str, *flags: str) -> list[str]:
        known = ["-o", f"UserKnownHostsFile={self.place}/known", "-i", str(self.place / "id"), "-p", str(self.port)]
        return ["ssh", "-F", "none", *CLIENT, *known, *flags, f"{getpass.getuser()}@127.0.0.1", command]

    def in_repo(self, words: str) -> str:
        return f"cd {self.rig.repo} && {self.rig.binary} {words}"

    def ssh(self, command: str):
        return self.rig.run(*self.words(command), limit=LIMIT)

    def swarm(self, words: str):
        return self.ssh(self.in_repo(words))


class Host(Door):
    """The remote side: sshd, and a repository with specs that each wait until they are released."""

    def __init__(self, rig: Rig):
        self.rig = rig
        self.make_repo()
        super().__init__(rig)

    def make_repo(self) -> None:
        """Makes the repository. Each shell spec finishes once its pipe has a line; git's identity is set in the
        repository."""
        self.rig.make_repo()
        git = ["git", "-C", str(self.rig.repo)]
        for words in (["user.name", "Lab"], ["user.email", "lab@localhost"]):
            self.rig.run(*git, "config", *words)
        (self.rig.repo / "specs").mkdir()
        for name in SPECS:
            os.mkfifo(self.rig.root / f"{name}.pipe")
            text = f"---\nadapter: shell\n---\n# {name}\n\n```sh\ncat {self.rig.root}/{name}.pipe > {name}.txt\n```\n"
            (self.rig.repo / "specs" / f"{name}.md").write_text(text)

    def begin(self, words: str, *flags: str) -> "Client":
        return Client(self, words, *flags)

    def release(self, *names: str) -> None:
        """Lets the agents of these specs finish."""
        for name in names:
            pipe = wait_until(lambda: self.opened(name), LIMIT, f"{name} waits to be released")
            os.write(pipe, f"{name}\n".encode())
            os.close(pipe)

    def opened(self, name: str) -> int | None:
        """Opens the pipe of a spec for writing; `None` until it has a reader."""
        try:
            return os.open(self.rig.root / f"{name}.pipe", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return None

    def told(self) -> list[str]:
        path = self.rig.repo / ".arial" / "events.jsonl"
        return path.read_text().splitlines() if path.exists() else []

    def await_told(self, event: str, count: int) -> None:
        wait_until(lambda: sum(f'"{event}"' in line for line in self.told()) >= count, LIMIT, f"{count} times {event}")

    def remote(self) -> procs.Process | None:
        """Returns the `swarm run` process at the remote end."""
        found = [one for one in self.rig.of_role("command") if one.argv[1:2] == ("run",)]
        return found[0] if found else None

    def landed(self) -> list[str]:
        git = ["git", "-C", str(self.rig.repo)]
        names = self.rig.run(*git, "ls-tree", "--name-only", "main").out.split()
        merges = self.rig.run(*git, "log", "--first-parent", "--merges", "--format=%s", "main")
        found = [name for name in SPECS if f"{name}.txt" in names]
        twice = len(merges.out.splitlines()) - len(found)
        return found + [f"{twice} surplus merges"] * bool(twice)


class Client:
    """A running ssh, and the lines received through it."""

    def __init__(self, host: Host, words: str, *flags: str):
        self.host = host
        self.path = host.rig.out / f"client.{len(list(host.rig.out.glob('client.*')))}"
        with open(self.path, "wb") as out:
            self.process = procs.launch(host.words(host.in_repo(words), *flags), env=host.rig.env, cwd=host.rig.work,
                                        stdin=subprocess.PIPE, stdout=out, stderr=subprocess.DEVNULL)

    def lines(self) -> list[dict]:
        """Complete lines only: the last one may have been cut off with the connection."""
        text = self.path.read_bytes().decode().replace("\r\n", "\n")
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [json.loads(line) for line in whole if line.startswith("{")]

    def await_line(self, count: int = 1) -> None:
        wait_until(lambda: len(self.lines()) >= count, LIMIT, f"{count} lines are received")

    def last(self) -> int:
        return max((line["seq"] for line in self.lines()), default=0)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int | None:
        """Waits for ssh and returns its exit code, which is that of the remote command."""
        try:
            code = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait() and None
        procs.forget(self.process)
        self.process.stdin.close()
        return code


def on_host(scene):
    """Makes a case with a private host."""

    def case() -> list[str]:
        # The supervisor has to be the one that a login finds: below the home.
        with Rig(home_length=1) as rig, Host(rig) as host:
            planned = host.swarm("plan --specs specs -y")
            if planned.rc != 0:
                return [f"setup failed: {planned}"]
            trusted = host.swarm("trust --yes")
            if trusted.rc != 0:
                return [f"setup failed: {trusted}"]
            return scene(host) + panics(rig)

    return case


def same(what: str, seen, expected) -> list[str]:
    return [] if seen == expected else [f"{what}: {seen!r}, not {expected!r}"]


def whole(host: Host, *clients: Client) -> list[str]:
    """Checks that all clients together received every line of the record, once and in order."""
    lines = [line for client in clients for line in client.lines()]
    findings = same("numbers of the lines", [line["seq"] for line in lines], list(range(1, len(lines) + 1)))
    bare = [{key: value for key, value in line.items() if key != "seq"} for line in lines]
    record = [json.loads(line) for line in host.told()]
    wrong = [line for line, told in zip(bare, record) if line != told]
    return findings + same("lines", len(bare), len(record)) + same("lines missing in the record", wrong[:1], [])


def at_work(host: Host, *flags: str) -> Client:
    """Starts a run of which two specs are done and three are being worked on; its client may lag some lines behind."""
    client = host.begin("run --headless", *flags)
    host.await_told("workstream.started", 5)
    host.release("s1", "s2")
    host.await_told("workstream.done", 2)
    client.await_line()
    return client


def goes_on(host: Host, client: Client) -> list[str]:
    """After the connection broke, another client attaches where the stream ended, and the run continues."""
    host.release("s3")
    host.await_told("workstream.done", 3)
    second = host.begin(f"run attach --headless --since {client.last()}")
    second.await_line()
    host.release("s4", "s5")
    findings = same("exit code of attach", second.end(), 0) + whole(host, client, second)
    findings += same("landed", host.landed(), list(SPECS))
    again = host.swarm("run attach --headless --since 0")
    return findings + same("attach after the end", (again.rc, len(again.out.splitlines())), (0, len(host.told())))


def undisturbed(host: Host) -> list[str]:
    """The whole run over one connection, with only the environment of a login."""
    seen = host.ssh("env").out
    names = sorted(re.findall(r"^(\w+)=", seen, re.M))
    more = [name for name in names if name not in LOGIN and not name.startswith("SSH_")]
    findings = same("environment of a login", more, [])
    client = host.begin("run --headless")
    host.await_told("workstream.started", 5)
    host.release(*SPECS)
    findings += same("exit code", client.end(), 0) + whole(host, client)
    findings += same("landed", host.landed(), list(SPECS))
    return findings + same("state", (host.rig.home / ".swarm" / "state.json").exists(), True)


def fails(host: Host) -> list[str]:
    """A failed workstream determines the exit code of the first and of a second client."""
    path = host.rig.repo / "specs" / "s5.md"
    path.write_text(path.read_text().replace(".txt\n```", ".txt; exit 3\n```"))
    host.rig.must("trust", "--yes", cwd=host.rig.repo)
    client = host.begin("run --headless --retries 0")
    host.await_told("workstream.started", 5)
    second = host.begin("run attach --headless --since 0")
    second.await_line()
    host.release(*SPECS)
    codes = (client.end(), second.end())
    return same("exit codes", codes, (1, 1)) + whole(host, client) + whole(host, second) + same(
        "landed", host.landed(), list(SPECS[:4]))


def ends(what: str, process: procs.Process) -> list[str]:
    return [] if procs.wait_gone(process.pid, 10) else [f"orphan: {what}: {process}"]


def client_killed(host: Host) -> list[str]:
    client = at_work(host)
    remote = host.remote()
    client.kill()
    return ends("the remote command", remote) + goes_on(host, client)


def session_killed(host: Host) -> list[str]:
    """kill -9 of the sshd processes that serve this connection."""
    client = at_work(host)
    remote = host.remote()
    serving = [stat for stat in children(host.daemon.pid) if "sshd" in " ".join(procs.read_argv(stat.pid)[:1])]
    for stat in serving:
        procs.send(stat.pid, stat.start, signal.SIGKILL)
    findings = same("sessions of the client", bool(serving), True) + same("exit code of the client", client.end(), 255)
    return findings + ends("the remote command", remote) + goes_on(host, client)


def everything_killed(host: Host) -> list[str]:
    """Client, session, supervisor and guard are killed at once: `attach` wakes the run."""
    client = at_work(host)
    client.kill()
    for one in sorted(host.rig.census(), key=lambda process: process.role != "guard"):
        # Attempts are spared: an agent that outlives its attempt by a moment would read the line meant for the next
        # one.
        if one.role in ("guard", "supervisor") or (one.role == "command" and one.argv[1:2] == ("run",)):
            procs.send(one.pid, one.start, signal.SIGKILL)
            procs.wait_gone(one.pid, 5)
    second = host.begin(f"run attach --headless --since {client.last()}")
    host.release("s3", "s4", "s5")
    findings = same("exit code of attach", second.end(), 0) + whole(host, client, second)
    return findings + same("landed", host.landed(), list(SPECS))


def stopped(host: Host, client: Client) -> list[str]:
    """The client's Ctrl-C has stopped the run; the next run does the rest."""
    findings = same("exit code", client.end(), 130)
    status = json.loads(host.swarm("run status --json").out)
    stages = [row["stage"] for row in status["workstreams"]]
    findings += same("status", (status["status"], stages), ("interrupted", ["done"] * 2 + ["paused"] * 3))
    before = len(host.told())
    next_one = host.begin("run --headless")
    host.await_told("workstream.started", 8)
    host.release("s3", "s4", "s5")
    findings += same("exit code of the next run", next_one.end(), 0) + same("landed", host.landed(), list(SPECS))
    begun = [line["workstream"] for line in next_one.lines() if line["event"] == "workstream.started"]
    findings += same("started again", sorted(begun), list(SPECS[2:]))
    return findings + same("first number of the next run", [line["seq"] for line in next_one.lines()][:1], [before + 1])


def interrupted(host: Host) -> list[str]:
    """SIGINT to the remote command."""
    client = at_work(host)
    remote = host.remote()
    procs.send(remote.pid, remote.start, signal.SIGINT)
    return stopped(host, client)


def interrupted_by_key(host: Host) -> list[str]:
    """Ctrl-C typed into a terminal."""
    client = at_work(host, "-tt")
    client.process.stdin.write(b"\x03")
    client.process.stdin.flush()
    return stopped(host, client)


def terminal_gone(host: Host) -> list[str]:
    """With a terminal, a broken connection hangs up the remote command, but not the run."""
    client = at_work(host, "-tt")
    remote = host.remote()
    client.kill()
    return ends("the remote command", remote) + goes_on(host, client)


SCENES = {
    "undisturbed": undisturbed,
    "one fails": fails,
    "client killed": client_killed,
    "session killed": session_killed,
    "everything killed": everything_killed,
    "interrupted": interrupted,
    "Ctrl-C in a terminal": interrupted_by_key,
    "terminal gone": terminal_gone,
}


def main(argv=None) -> int:
    parser = cases.parser(__doc__)
    args = parser.parse_args(argv)
    cases.ends_on_term()
    every = {name: on_host(scene) for name, scene in SCENES.items()}
    return cases.run_all(every, args.only, allow_skips=args.allow_skips).close()


if __name__ == "__main__":
    sys.exit(main())
