"""Full and read-only disks, in a private mount namespace (needs root)."""

import os

from . import cases
from .inject import complaint, stop_everything
from .oracle import Expect, Oracle
from .real_tools import gone, quickly, refused, up, worked
from .rig import Rig, wait_until


def mounted(rig: Rig, options: str) -> None:
    """Mounts a small tmpfs as the state directory."""
    rig.dir.mkdir(mode=0o700)
    result = rig.run("mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "tmpfs", str(rig.dir))
    if result.rc != 0:
        raise cases.Skip(f"cannot mount: {result.err.strip()}")


def unmount(rig: Rig) -> None:
    # The namespace ends with this process, so a lazy unmount only has to hide the directory.
    rig.run("umount", "-l", str(rig.dir))


def fill_bytes(rig: Rig) -> list:
    """Fills the last page, so that not even a one-byte file can be written."""
    path = rig.dir / "filler"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for size in (1 << 20, 4096):
            while True:
                try:
                    os.write(handle, bytes(size))
                except OSError:
                    break
    finally:
        os.close(handle)
    return [path]


def fill_inodes(rig: Rig) -> list:
    made = []
    while True:
        path = rig.dir / f"filler{len(made)}"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError:
            return made
        made.append(path)


def full(options: str, fill) -> list[str]:
    """On a full disk, reading works, a finished worker can be removed, and other changes are refused without leftovers;
    once there is room, everything works again."""
    with Rig() as rig:
        mounted(rig, options)
        try:
            up(rig, "a")
            findings = worked(rig.swarm("spawn", "--name", "c", "--", "sh", "-c", "head -c 20000 /dev/zero"))
            findings += worked(rig.swarm("wait", "c"))
            fillers = fill(rig)
            findings += quickly(rig, "ls") + quickly(rig, "status", "a")
            result = rig.swarm("spawn", "--name", "b", "--", *rig.worker("sleep", 1000))
            findings += refused(result)
            if not gone(rig, "b") or rig.row("b"):
                findings.append("half-done: b was refused but exists")
            findings += worked(rig.swarm("clean", "c"))
            if rig.row("c") or list(rig.dir.glob("logs/c.*")):
                findings.append("leftover: c was removed, but its row or its logs are there")
            killed = rig.swarm("kill", "a")
            findings += complaint(killed)
            for path in fillers:
                path.unlink()
            findings += worked(rig.swarm("kill", "a"))
            wait_until(lambda: rig.swarm("status", "a").rc == 1, 10, "a is stopped")
            findings += worked(rig.spawn("b"))
            findings += Oracle(rig).converge(Expect(must={"a", "b"}, running={"b"}, stopped={"a"}))
            return findings + stop_everything(rig)
        finally:
            unmount(rig)


def read_only_below() -> list[str]:
    """The state directory becomes read-only while a worker runs."""
    with Rig() as rig:
        mounted(rig, "size=16m")
        try:
            up(rig, "a")
            # A second mount on top can be made read-only even if files below it are open for writing.
            for words in (["--bind", str(rig.dir), str(rig.dir)], ["-o", "remount,ro,bind", str(rig.dir)]):
                if rig.run("mount", *words).rc != 0:
                    raise cases.Skip("cannot remount read-only")
            findings = quickly(rig, "ls") + quickly(rig, "status", "a") + quickly(rig, "logs", "a")
            result = rig.swarm("spawn", "--name", "b", "--", *rig.worker("sleep", 1000))
            if result.rc != 0:
                findings += refused(result)
                if not gone(rig, "b") or rig.row("b"):
                    findings.append("half-done: b was refused but exists")
            rig.run("umount", str(rig.dir))
            findings += worked(rig.spawn("c"))
            findings += Oracle(rig).converge(Expect(must={"a", "c"}, running={"a", "c"}))
            return findings + stop_everything(rig)
        finally:
            unmount(rig)


def read_only_first() -> list[str]:
    """The state directory was never writable: reading finds nothing, and spawning states the reason."""
    with Rig() as rig:
        mounted(rig, "size=1m,ro")
        try:
            listed = rig.swarm("ls", "--format", "json")
            findings = complaint(listed)
            result = rig.swarm("spawn", "--name", "b", "--", *rig.worker("sleep", 1000))
            findings += refused(result)
            findings += [] if gone(rig, "b") else ["half-done: b was refused but runs"]
            wait_until(lambda: not rig.census(), 40, "all processes have ended")
            return findings
        finally:
            unmount(rig)


CASES = {
    "disk: full": lambda: full("size=2m", fill_bytes),
    "disk: no inodes": lambda: full("size=16m,nr_inodes=120", fill_inodes),
    "disk: turns read-only": read_only_below,
    "disk: read-only from the start": read_only_first,
}
