"""Hosts whose line, door or shell is broken, through a real sshd on loopback."""

import signal
import time

from . import procs
from .hosts import NAMED, Site
from .rig import wait_until
from .ssh import Door, children, same

COUNT = "i=0; while :; do echo line $i; i=$((i + 1)); sleep 0.2; done"
CROWD = 20


class NarrowDoor(Door):
    """sshd that refuses bursts of logins, and has few sessions for each of them."""

    more = "MaxStartups 1:100:1\nMaxSessions 2\n"


def black_hole(site: Site) -> list[str]:
    """The line of a host is still there, and nothing comes over it any more. Other hosts are undisturbed, and what is followed
    goes on over a new line."""
    door, rig = site.doors["box"], site.doors["box"].rig
    site.swarm("--host", "box", "spawn", "--name", "w", "--", "sh", "-c", COUNT)
    out, err = site.here.out / "follow", site.here.out / "follow.err"
    with open(out, "wb") as file, open(err, "wb") as said:
        follower = procs.launch([str(site.here.binary), "--host", "box", "logs", "w", "-f"], env=site.here.env,
                                cwd=site.here.work, stdout=file, stderr=said)
    wait_until(lambda: b"line 5\n" in out.read_bytes(), 30, "it follows")
    stopped = [stat for stat in children(door.daemon.pid) if any("sshd" in word for word in procs.read_argv(stat.pid)[:1])]
    for stat in stopped:
        procs.send(stat.pid, stat.start, signal.SIGSTOP)
    begun = time.monotonic()
    findings = same("connections", bool(stopped), True)
    findings += same("the other host", site.swarm("--host", "gpu", "ls").rc, 0)
    took = time.monotonic() - begun
    findings += [f"the other host took {took:.0f} s"] if took > NAMED else []
    wait_until(lambda: b"box is out of reach" in err.read_bytes(), 2 * NAMED, "it is noticed")
    wait_until(lambda: b"box answers again" in err.read_bytes(), NAMED, "there is a new line")
    seen = len(out.read_bytes().splitlines())
    wait_until(lambda: len(out.read_bytes().splitlines()) > seen + 5, 30, "it goes on")
    for stat in stopped:
        procs.send(stat.pid, stat.start, signal.SIGCONT)
    wait_until(lambda: len([one for one in rig.census() if "logs" in one.argv[1:3]]) == 1, 90,
               "nobody follows over the old line")
    follower.send_signal(signal.SIGINT)
    follower.wait(60)
    procs.forget(follower)
    lines = out.read_text().splitlines()
    return findings + same("lines", lines, [f"line {number}" for number in range(len(lines))])


def crowd(site: Site) -> list[str]:
    """Many commands at once at a door that refuses bursts of logins, and has few sessions for each login."""
    site.swarm("--host", "box", "ls")
    site.close()
    log = site.doors["box"].place / "log"
    before = log.read_text(errors="replace").count("Accepted publickey")
    out = [site.here.out / f"crowd{number}" for number in range(CROWD)]
    crowd = []
    for number in range(CROWD):
        with open(out[number], "wb") as file:
            crowd.append(procs.launch([str(site.here.binary), "--host", "box", "ls"], env=site.here.env,
                                      cwd=site.here.work, stdout=file, stderr=file))
    codes = [one.wait(120) for one in crowd]
    for one in crowd:
        procs.forget(one)
    logins = log.read_text(errors="replace").count("Accepted publickey") - before
    said = {text for text in (path.read_text(errors="replace").strip()[-200:] for path in out) if text}
    # On a slow machine, some wait for too long and log in one after the other.
    many = [f"{logins} logins"] if logins > CROWD // 2 else []
    return same("codes", codes, [0] * CROWD) + many + [f"said: {text}" for text in said]


def hanging_shell(site: Site) -> list[str]:
    """A login shell that sleeps, and one that asks: both hosts are named with what to look for."""
    for name, line in (("box", "sleep 1000"), ("gpu", "read -r answer")):
        (site.doors[name].rig.home / ".bashrc").write_text(f"{line}\n")
    begun = time.monotonic()
    said = site.swarm("ls", "--host", "box,gpu")
    took = time.monotonic() - begun
    findings = same("ls", (said.rc, said.out), (1, ""))
    for name in site.doors:
        cause = f"cannot reach {name}: its login shell did not start swarm within 20 seconds"
        findings += same(f"{name} is named", cause in said.err, True)
    findings += same("hints", said.err.count("in ~/.bashrc there"), 2)
    return findings + ([f"it took {took:.0f} s"] if took > NAMED else [])
