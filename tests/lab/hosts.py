"""Other machines: `--host` and `swarm hosts` through a real sshd on loopback. A host is a rig of its own with its own sshd;
the person's rig has a `ssh` in PATH that knows the hosts by their names."""

import fcntl
import os
import pty
import shutil
import signal
import stat
import struct
import sys
import termios
import time

from . import cases, procs
from .inject import panics
from .rig import Rig, wait_until
from .ssh import Door, free_port, same

CONFIG = """Host {name}
  HostName 127.0.0.1
  Port {port}
  IdentityFile {door.place}/id
  IdentitiesOnly yes
  UserKnownHostsFile {door.place}/known
  StrictHostKeyChecking {strict}
"""
# Time in which a host that does not answer is named: that of a connection, with room for a loaded machine.
NAMED = 45


class Site:
    """A person's rig, and the hosts that its ssh knows."""

    def __init__(self, here: Rig, doors: dict[str, Door]):
        self.here, self.doors = here, doors
        self.place = here.root / "bin"
        self.place.mkdir()
        self.run_dir = here.root / "run"
        self.run_dir.mkdir(mode=0o700)
        wrapper = self.place / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {here.root}/ssh_config "$@"\n')
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        here.env["PATH"] = f"{self.place}:{here.env['PATH']}"
        here.env["XDG_RUNTIME_DIR"] = str(self.run_dir)
        self.configure()
        hosts = "".join(f'[hosts.{name}]\nswarm = "{door.rig.binary}"\n' for name, door in doors.items())
        config = here.home / ".config" / "swarm"
        config.mkdir(parents=True, exist_ok=True)
        (config / "config.toml").write_text(hosts + "[hosts.dead]\n")

    def configure(self, strict: str = "accept-new") -> None:
        """Writes the configuration of ssh. Nothing listens on the port of `dead`."""
        self.dead = free_port()
        ports = {name: (door.port, door) for name, door in self.doors.items()}
        ports["dead"] = (self.dead, next(iter(self.doors.values())))
        text = "".join(CONFIG.format(name=name, port=port, door=door, strict=strict)
                       for name, (port, door) in ports.items())
        (self.here.root / "ssh_config").write_text(text)

    def swarm(self, *words: str):
        return self.here.run(str(self.here.binary), *words, limit=120)

    def masters(self) -> list[int]:
        """Returns the pids of the connections that are shared: processes of ssh that made their socket."""
        titles = {pid: " ".join(procs.read_argv(pid)) for pid in procs.all_pids()}
        return [pid for pid, title in titles.items()
                if f"{self.run_dir}/swarm-ssh/" in title and (" -M " in title or "[mux]" in title)]

    def master(self) -> int:
        found = self.masters()
        if len(found) != 1:
            raise AssertionError(f"{len(found)} shared connections: {found}")
        return found[0]

    def close(self) -> None:
        """Ends the shared connections, each by its own pid."""
        for pid in procs.all_pids():
            if f"{self.run_dir}/swarm-ssh/" in " ".join(procs.read_argv(pid)):
                found = procs.read_stat(pid)
                if found:
                    procs.send(pid, found.start, signal.SIGCONT)
                    procs.send(pid, found.start, signal.SIGKILL)


def on_site(scene, names=("box",), make=Door):
    """Makes a case with a person's rig and hosts."""

    def case() -> list[str]:
        rigs, doors = [], {}
        try:
            for name in names:
                rigs.append(Rig(home_length=1))
                doors[name] = make(rigs[-1])
            here = Rig(home_length=1)
            rigs.append(here)
            site = Site(here, doors)
            try:
                findings = scene(site)
            finally:
                site.close()
            return findings + [finding for rig in rigs for finding in panics(rig)]
        finally:
            for door in doors.values():
                door.__exit__()
            for rig in rigs:
                rig.__exit__(None, None, None)

    return case


def the_same(site: Site) -> list[str]:
    """Verbs have the words and exit codes that they have over a plain ssh."""
    door = site.doors["box"]
    findings = []
    spawned = site.swarm("--host", "box", "spawn", "--name", "w", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    findings += same("spawn", spawned.rc, 0)
    findings += same("wait", site.swarm("--host", "box", "wait", "w", "--exit-code").rc, 7)
    for words in (["ls", "--json"], ["logs", "w"], ["status", "nobody"], ["history", "w"], ["approvals"]):
        far, plain = site.swarm("--host", "box", *words), door.ssh(f"{door.rig.binary} {' '.join(words)}")
        findings += same(" ".join(words), (far.rc, far.out, far.err), (plain.rc, plain.out, plain.err))
    environment = site.swarm("--host", "box", "spawn", "--name", "e", "--", "env")
    site.swarm("--host", "box", "wait", "e")
    printed = site.swarm("--host", "box", "logs", "e").out
    findings += same("spawn of env", environment.rc, 0)
    return findings + [f"the worker has {line}" for line in printed.splitlines() if line.startswith("SSH_")]


def one_login(site: Site) -> list[str]:
    """Commands share one connection; a person's Ctrl-C or kill does not end it."""
    for _ in range(5):
        site.swarm("--host", "box", "ls")
    log = (site.doors["box"].place / "log").read_text(errors="replace")
    # One login by the door itself, and one by the connection.
    before = log.count("Accepted publickey")
    for _ in range(5):
        site.swarm("--host", "box", "ls")
    after = (site.doors["box"].place / "log").read_text(errors="replace").count("Accepted publickey")
    return same("logins by five more commands", after - before, 0) + same("the shared connection", site.master() > 0, True)


def stopped_connection(site: Site) -> list[str]:
    """A shared connection that is stopped delays a command, and does not hang it."""
    site.swarm("--host", "box", "ls")
    pid = site.master()
    found = procs.read_stat(pid)
    procs.send(pid, found.start, signal.SIGSTOP)
    begun = time.monotonic()
    said = site.swarm("--host", "box", "ls")
    took = time.monotonic() - begun
    findings = same("ls beside a stopped connection", said.rc, 0)
    procs.send(pid, found.start, signal.SIGKILL)
    return findings + ([f"it took {took:.0f} s"] if took > NAMED else [])


def stale_socket(site: Site) -> list[str]:
    """The socket of a connection that was killed is no obstacle."""
    site.swarm("--host", "box", "ls")
    pid = site.master()
    found = procs.read_stat(pid)
    procs.send(pid, found.start, signal.SIGKILL)
    procs.wait_gone(pid, 10)
    return same("ls", site.swarm("--host", "box", "ls").rc, 0) + same("a new connection", site.master() != pid, True)


def moved(site: Site) -> list[str]:
    """After a change of the configuration of ssh, a name means the machine that ssh reaches by it."""
    site.swarm("--host", "box", "spawn", "--name", "onbox", "--", "sleep", "600")
    site.swarm("--host", "gpu", "spawn", "--name", "ongpu", "--", "sleep", "600")
    config = site.here.root / "ssh_config"
    # Each name gets what the other one had: port, key and known hosts.
    text = config.read_text().replace("Host box\n", "Host X\n").replace("Host gpu\n", "Host box\n")
    config.write_text(text.replace("Host X\n", "Host gpu\n"))
    listed = site.swarm("--host", "box", "ls").out
    return same("workers of box", ("ongpu" in listed, "onbox" in listed), (True, False))


def dead_host(site: Site) -> list[str]:
    """A dead host is named within its deadline and delays no other."""
    begun = time.monotonic()
    said = site.swarm("ls", "--host", "box,dead,gpu", "--json")
    took = time.monotonic() - begun
    findings = same("answers", (said.rc, len(said.out.splitlines())), (1, 2))
    findings += same("named", "cannot reach dead" in said.err, True)
    listed = site.swarm("hosts")
    states = sorted(line.split()[1] for line in listed.out.splitlines()[1:])
    findings += same("states", states, ["away", "up", "up"])
    return findings + ([f"it took {took:.0f} s"] if took > NAMED else [])


def strangers(site: Site) -> list[str]:
    """An unknown or changed host key and a refused login: one sentence and a remedy each, and nothing is changed."""
    door = site.doors["box"]
    findings = []
    known = door.place / "known"
    site.configure("yes")
    known.write_text("")
    said = site.swarm("--host", "box", "ls")
    findings += same("unknown key", (said.rc, "does not accept the host key" in said.err), (255, True))
    door.rig.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(door.place / "other"))
    key = (door.place / "other.pub").read_text().split()
    known.write_text(f"[127.0.0.1]:{door.port} {key[0]} {key[1]}\n")
    said = site.swarm("--host", "box", "ls")
    findings += same("changed key", (said.rc, "does not accept the host key" in said.err), (255, True))
    site.configure()
    known.unlink()
    (door.place / "id").rename(door.place / "hidden")
    shutil.copy(door.place / "other", door.place / "id")
    said = site.swarm("--host", "box", "ls")
    findings += same("refused login", (said.rc, "refuses the login" in said.err), (255, True))
    # A key with a passphrase, and no agent that knows it.
    (door.place / "id").unlink()
    door.rig.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(door.place / "id"))
    said = site.swarm("--host", "box", "ls")
    findings += same("key with a passphrase", (said.rc, "refuses the login" in said.err), (255, True))
    return findings + same("hints", "swarm: hint:" in said.err, True)


def installed(site: Site) -> list[str]:
    """The program is installed in an account without it, and used from then on."""
    config = site.here.home / ".config" / "swarm" / "config.toml"
    config.write_text("[hosts.box]\n")
    said = site.swarm("--host", "box", "ls")
    findings = same("before", (said.rc, "swarm hosts install box" in said.err), (255, True))
    said = site.swarm("hosts", "install", "box")
    findings += same("install", (said.rc, said.out.startswith("installed swarm ")), (0, True))
    findings += same("after", site.swarm("--host", "box", "ls").rc, 0)
    return findings + same("again", site.swarm("hosts", "install", "box").rc, 0)


def noisy_shell(site: Site) -> list[str]:
    """A login shell that prints is no obstacle, and one that ends is named with what it printed."""
    home = site.doors["box"].rig.home
    (home / ".bashrc").write_text("echo welcome to box; printf 'no newline'\n")
    (home / ".profile").write_text("echo welcome\nexport FROM_PROFILE=1\n")
    site.swarm("--host", "box", "spawn", "--name", "e", "--", "env")
    site.swarm("--host", "box", "wait", "e")
    return same("environment", "FROM_PROFILE=1" in site.swarm("--host", "box", "logs", "e").out, True)


def cut(site: Site) -> list[str]:
    """The connection is cut while a verb follows: it is said, the worker goes on, and nothing stays behind there."""
    rig = site.doors["box"].rig
    site.swarm("--host", "box", "spawn", "--name", "w", "--", "sleep", "600")
    out = site.here.out / "follow"
    with open(out, "wb") as file:
        follower = procs.launch([str(site.here.binary), "--host", "box", "wait", "w"], env=site.here.env,
                                cwd=site.here.work, stdout=file, stderr=file)

    def waiting() -> list[int]:
        return [one.pid for one in rig.of_role("command") if one.argv[1:3] == ("__marked", "wait")]

    wait_until(lambda: len(waiting()) == 1, 30, "it waits there")
    pid = site.master()
    found = procs.read_stat(pid)
    procs.send(pid, found.start, signal.SIGKILL)
    # A verb that reads is asked again over a new connection.
    wait_until(lambda: len(waiting()) == 1 and site.masters() not in ([], [pid]), 90, "it waits there again")
    site.swarm("--host", "box", "kill", "w")
    code = follower.wait(60)
    procs.forget(follower)
    wait_until(lambda: not waiting(), 90, "nothing waits there")
    return same("exit code of wait", code, 0)


def attached(site: Site) -> list[str]:
    """A person's terminal shows the window there, with the environment of a login."""
    rig = site.doors["box"].rig
    (rig.home / ".profile").write_text(f"export TMUX_TMPDIR={rig.env['TMUX_TMPDIR']} SWARM_DIR={rig.home}/.other\n")
    script = "printf 'in the %s' window; exec sleep 600"
    spawned = site.swarm("--host", "box", "spawn", "--tmux", "--name", "w", "--", "sh", "-c", script)
    findings = same("spawn", spawned.rc, 0)
    near, far = pty.openpty()
    person = procs.launch([str(site.here.binary), "attach", "box:w"], env=site.here.env | {"TERM": "xterm-kitty"},
                          cwd=site.here.work, stdin=far, stdout=far, stderr=far, start_new_session=True)
    os.close(far)
    os.set_blocking(near, False)
    shown = b""

    def sees() -> bool:
        nonlocal shown
        try:
            shown += os.read(near, 65536)
        except (BlockingIOError, OSError):
            pass
        return b"in the window" in shown or person.poll() is not None

    wait_until(sees, 60, "the window is shown")
    findings += same("shown", b"in the window" in shown, True)
    person.kill()
    person.wait()
    procs.forget(person)
    os.close(near)
    return findings + same("state", "running" in site.swarm("--host", "box", "ls").out, True)


def screen(site: Site) -> list[str]:
    """The screen of the other machine's fleet, on this terminal: it shows a worker there and stops it."""
    findings = same("spawn", site.swarm("--host", "box", "spawn", "--name", "w", "--", "sleep", "600").rc, 0)
    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    person = procs.launch([str(site.here.binary), "--host", "box", "top"], env=site.here.env | {"TERM": "xterm-256color"},
                          cwd=site.here.work, stdin=far, stdout=far, stderr=far, start_new_session=True)
    os.close(far)
    os.set_blocking(near, False)
    shown = b""

    def sees(words: bytes) -> bool:
        nonlocal shown
        try:
            shown += os.read(near, 65536)
        except (BlockingIOError, OSError):
            pass
        return words in shown or person.poll() is not None

    wait_until(lambda: sees(b"1 at work"), 60, "the fleet is shown")
    os.write(near, b"x")
    wait_until(lambda: sees(b"stop w?"), 30, "the question is shown")
    os.write(near, b"y")
    # Only what has changed is written.
    wait_until(lambda: "stopped" in site.swarm("--host", "box", "ls", "-l").out, 30, "the worker is stopped")
    os.write(near, b"q")
    wait_until(lambda: (sees(b"\0"), person.poll())[1] is not None, 30, "the screen ends")
    findings += same("exit code", person.wait(), 0) + same("terminal", b"\x1b[?1049l" in shown, True)
    procs.forget(person)
    os.close(near)
    return findings


def scenes() -> dict:
    from . import hosts_faults, hosts_runs
    return SCENES | {
        "a run over two hosts": on_site(hosts_runs.lost_and_found, ("a", "b")),
        "black hole": on_site(hosts_faults.black_hole, ("box", "gpu")),
        "crowd": on_site(hosts_faults.crowd, make=hosts_faults.NarrowDoor),
        "hanging shell": on_site(hosts_faults.hanging_shell, ("box", "gpu")),
        "an attempt is given up": on_site(hosts_runs.given_up, ("a", "b")),
        "a host is restarted": on_site(hosts_runs.restarted, ("a",)),
    }


SCENES = {
    "the same words": on_site(the_same),
    "one login": on_site(one_login),
    "stopped connection": on_site(stopped_connection),
    "stale socket": on_site(stale_socket),
    "moved": on_site(moved, ("box", "gpu")),
    "dead host": on_site(dead_host, ("box", "gpu")),
    "strangers": on_site(strangers),
    "installed": on_site(installed),
    "noisy shell": on_site(noisy_shell),
    "cut": on_site(cut),
    "attached": on_site(attached),
    "screen": on_site(screen),
}


def main(argv=None) -> int:
    parser = cases.parser(__doc__)
    args = parser.parse_args(argv)
    cases.ends_on_term()
    return cases.run_all(scenes(), args.only, allow_skips=args.allow_skips).close()


if __name__ == "__main__":
    sys.exit(main())
