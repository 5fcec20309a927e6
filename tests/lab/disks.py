"""Directories of the benchmark: one on a real disk, and one on tmpfs."""

import os
import re
import tempfile
from pathlib import Path

from .rig import ROOT

# Types of file systems that keep their files in memory.
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
TMPFS = "/dev/shm"
MOUNTS = "/proc/self/mountinfo"


def type_of(path: str, mounts: str) -> str:
    """Returns the type of the file system of an absolute path, by the text of /proc/self/mountinfo."""
    found = ("", "")
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        # Of two mounts on one directory, the later one is seen.
        if is_above and len(point) >= len(found[0]):
            found = (point, after.split()[0])
    return found[1]


def choose(places: list[str], mounts: str) -> str | None:
    """Returns the first place that is not in memory."""
    return next((place for place in places if type_of(place, mounts) not in IN_MEMORY), None)


def usable(places) -> list[str]:
    """Returns the places that are directories in which files can be created, without symbolic links in their paths."""
    return [os.path.realpath(place) for place in places if os.access(place, os.W_OK | os.X_OK)]


def on_disk(given: str | None) -> str | None:
    """Returns `given` or the directory for temporary files, if it is on a disk, else a directory on the disk of this
    repository. `None` if all of them are in memory."""
    places = [given] if given else [tempfile.gettempdir(), "/var/tmp", str(ROOT.parent)]
    return choose(usable(places), Path(MOUNTS).read_text())


def in_memory() -> str | None:
    """Returns a directory on tmpfs, or `None`."""
    places = usable([TMPFS])
    return next((place for place in places if type_of(place, Path(MOUNTS).read_text()) in IN_MEMORY), None)
