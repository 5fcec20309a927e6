"""System calls of x86_64: which ones change state outside the process, and with which errors they may fail.

A call is described by its number, the position of its target among the arguments (`path0`: a path in argument 0; `at0`:
a directory descriptor and a path; `fd0`: a descriptor), and the errors that the error sweep lets it return.
"""

import errno
import os
import re

ERRORS_ASKED = ("EIO", "ENOSPC", "EMFILE", "EACCES", "EROFS", "ENOLCK", "EAGAIN", "ENOMEM", "EINTR")

_MAKE = "EIO ENOSPC EACCES EROFS ENOMEM"
# EAGAIN is left to calls that may really return it: a call that returns EAGAIN on a ready descriptor breaks the
# contract of epoll, and no program can survive that.
_DATA = "EIO ENOSPC EINTR"
_FD = "EMFILE ENOMEM"

# number: (name, target, whether a kill before the call is a point of the sweep, errors)
TABLE = {
    0: ("read", "fd0", False, "EIO EINTR"),
    1: ("write", "fd0", True, _DATA),
    2: ("open", "path0", False, "EIO EMFILE EACCES EINTR ENOMEM"),
    7: ("poll", "", False, "EINTR"),
    17: ("pread64", "fd0", False, "EIO EINTR"),
    18: ("pwrite64", "fd0", True, _DATA),
    20: ("writev", "fd0", True, _DATA),
    22: ("pipe", "", False, _FD),
    40: ("sendfile", "fd0", True, _DATA),
    41: ("socket", "", False, _FD + " EACCES"),
    42: ("connect", "fd0", True, "EAGAIN EACCES EINTR"),
    44: ("sendto", "fd0", True, "EINTR ENOMEM"),
    45: ("recvfrom", "fd0", False, "EINTR"),
    46: ("sendmsg", "fd0", True, "EINTR ENOMEM"),
    47: ("recvmsg", "fd0", False, "EINTR"),
    49: ("bind", "fd0", True, "EACCES EROFS"),
    50: ("listen", "fd0", True, ""),
    53: ("socketpair", "", False, _FD),
    56: ("clone", "", True, "EAGAIN ENOMEM"),
    57: ("fork", "", True, "EAGAIN ENOMEM"),
    58: ("vfork", "", True, "EAGAIN ENOMEM"),
    59: ("execve", "path0", True, "EACCES EIO ENOMEM"),
    61: ("wait4", "", False, "EINTR"),
    62: ("kill", "", True, ""),
    72: ("fcntl", "fd0", False, "ENOLCK EAGAIN"),
    73: ("flock", "fd0", True, "ENOLCK EINTR"),
    74: ("fsync", "fd0", True, "EIO ENOSPC EINTR"),
    75: ("fdatasync", "fd0", True, "EIO ENOSPC EINTR"),
    76: ("truncate", "path0", True, _MAKE),
    77: ("ftruncate", "fd0", True, "EIO EINTR"),
    82: ("rename", "path1", True, _MAKE),
    83: ("mkdir", "path0", True, _MAKE),
    84: ("rmdir", "path0", True, "EIO EACCES EROFS"),
    85: ("creat", "path0", True, _MAKE + " EMFILE EINTR"),
    86: ("link", "path1", True, _MAKE),
    87: ("unlink", "path0", True, "EIO EACCES EROFS"),
    88: ("symlink", "path1", True, _MAKE),
    90: ("chmod", "path0", True, "EIO EACCES EROFS"),
    91: ("fchmod", "fd0", True, "EIO EROFS"),
    109: ("setpgid", "", True, ""),
    112: ("setsid", "", True, ""),
    200: ("tkill", "", True, ""),
    217: ("getdents64", "fd0", False, "EIO"),
    231: ("exit_group", "", True, ""),
    234: ("tgkill", "", True, ""),
    247: ("waitid", "", False, "EINTR"),
    254: ("inotify_add_watch", "path1", False, "ENOSPC ENOMEM EACCES"),
    257: ("openat", "at0", False, "EIO EMFILE EACCES EINTR ENOMEM"),
    258: ("mkdirat", "at0", True, _MAKE),
    263: ("unlinkat", "at0", True, "EIO EACCES EROFS"),
    264: ("renameat", "at2", True, _MAKE),
    265: ("linkat", "at2", True, _MAKE),
    266: ("symlinkat", "at1", True, _MAKE),
    268: ("fchmodat", "at0", True, "EIO EACCES EROFS"),
    280: ("utimensat", "at0", True, "EIO EACCES EROFS"),
    283: ("timerfd_create", "", False, _FD),
    285: ("fallocate", "fd0", True, "EIO ENOSPC EINTR"),
    288: ("accept4", "fd0", False, "EMFILE EINTR ENOMEM"),
    289: ("signalfd4", "", False, _FD),
    290: ("eventfd2", "", False, _FD),
    291: ("epoll_create1", "", False, _FD),
    293: ("pipe2", "", False, _FD),
    294: ("inotify_init1", "", False, _FD),
    306: ("syncfs", "fd0", True, "EIO ENOSPC EINTR"),
    316: ("renameat2", "at2", True, _MAKE),
    424: ("pidfd_send_signal", "fd0", True, ""),
    434: ("pidfd_open", "", False, _FD),
    435: ("clone3", "", True, "EAGAIN ENOMEM"),
    452: ("fchmodat2", "at0", True, "EIO EACCES EROFS"),
}

CREATING = os.O_CREAT | os.O_TRUNC
OPENS = {2: 1, 257: 2}
"""Position of the flags among the arguments of an open."""
LOCKING = (6, 7, 37, 38)
"""fcntl commands that take a lock: F_SETLK, F_SETLKW and their OFD kin."""
# Wake-ups of threads and timers change nothing that another process can see.
PRIVATE = re.compile(r"anon_inode:|^pipe:#$|/proc/|/sys/|^/dev/")


def normalise(target: str, root: str) -> str:
    """Returns a name for the target that is the same in the next rig."""
    target = target.removesuffix(" (deleted)")
    if root:
        target = target.replace(root, "~")
    # The id of a flow and the worker of one of its roles; temporary files of git before they become objects.
    target = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "#", target)
    target = re.sub(r"\d{8}T\d{9}Z-[0-9a-f]{6}", "#flow", target)
    target = re.sub(r"/[0-9a-f]{6}-(?=[a-z])", "/#-", target)
    target = re.sub(r"/objects/[0-9a-f]{2}(?=/|$)", "/objects/#", re.sub(r"tmp_obj_\w{6}", "tmp_obj_#", target))
    target = re.sub(r"[0-9a-f]{8,}", "#", target)
    return re.sub(r"\d+", "#", target)


def is_point(number: int, args: list[int], target: str) -> bool:
    """Reports whether a kill before this call belongs to the sweep."""
    if number in OPENS:
        return bool(args[OPENS[number]] & CREATING) and not PRIVATE.search(target)
    if number == 72:
        return args[1] in LOCKING
    name, _, point, _ = TABLE[number]
    if name in ("write", "writev") and PRIVATE.search(target):
        # A pipe between processes is part of the handshake; an eventfd is not.
        return target.startswith("pipe:")
    # A new thread of the same process is no outside change; CLONE_THREAD is 0x10000.
    if name == "clone" and args[0] & 0x10000:
        return False
    return point


def errors_for(name: str, target: str) -> list[str]:
    """Returns the errors to try at a call of this name on this target."""
    for known, _, _, errors in TABLE.values():
        if known == name:
            break
    else:
        return []
    if "anon_inode:" in target:
        # Event and timer descriptors are not interrupted, and no disk can fail under them.
        return []
    if name in ("read", "write", "writev") and target.startswith(("socket:", "pipe:")):
        return ["EINTR"]
    if target.startswith(("/proc/", "/sys/", "/dev/")) or ".so" in target or target.startswith("/etc/"):
        return [e for e in errors.split() if e in ("EMFILE", "EINTR")]
    listed = errors.split()
    if name == "openat":
        listed += ["ENOSPC", "EROFS"] if target.startswith("~") else []
    return [e for e in listed if e in ERRORS_ASKED]


def number_of(error: str) -> int:
    return getattr(errno, error)
