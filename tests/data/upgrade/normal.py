"""Reads a living world into a state, and replaces everything that depends on the machine and the date of the capture.
"""

import hashlib
import os
import re
import socket
import stat
import subprocess
from pathlib import Path

import archive
from world import World

BOOT_FILE = "/proc/sys/kernel/random/boot_id"
# Ticks and milliseconds since the boot at the start of a capture, after normalisation.
BOOT_TICKS = 100_000
PID = re.compile(rb'("(?:[A-Za-z_]*pid|shim|guard|fork_server)"\s*:\s*|\bpid[ =:]+|\(pid: )(\d+)(?!\d)')
ONLY_PID = re.compile(rb"\s*(\d+)\s*")
TICKS = re.compile(rb'("start_ticks"\s*:\s*)(\d+)')
BOOT_MS = re.compile(rb'("[a-z_]*boot_ms"\s*:\s*)(\d+)')
GROUP = re.compile(rb"(/sys/fs/cgroup/[a-z0-9_,]+|/sys/fs/cgroup)(/[^\"\n]*)?(/swarm-[^/\"\n]+)")


def snapshot(world: World) -> archive.State:
    """Reads the whole directory of a world, until two readings in a row are equal."""
    before = None
    for _ in range(50):
        try:
            now = read_tree(world)
        except FileNotFoundError:
            continue
        if before is not None and settled(before) == settled(now):
            return now
        before = now
    raise AssertionError("the state does not settle")


def settled(state: archive.State):
    # The heartbeat of a session is written every ten seconds and never settles.
    return [entry for entry in state.entries if not entry[2].endswith("heartbeat.json")], state.objects


def read_tree(world: World) -> archive.State:
    state = archive.State()
    for place, folders, files in os.walk(world.root):
        at = Path(place)
        name = str(at.relative_to(world.root))
        if name == ".":
            # Sockets of tmux and output of verbs.
            folders[:] = [folder for folder in folders if folder not in ("t", "o")]
        folders.sort()
        if at.name == "objects" and (at.parent / "HEAD").exists():
            if at.parent != world.repo / ".git":
                raise AssertionError(f"{name}: objects outside of the repository")
            folders.clear()
            state.entries.append(("dir", "755", name, b""))
            continue
        if name != ".":
            state.entries.append(("dir", f"{stat.S_IMODE(at.lstat().st_mode):o}", name, b""))
        links = [folder for folder in folders if (at / folder).is_symlink()]
        for file in sorted(files + links):
            entry = read_file(world, at / file)
            state.entries += [entry] if entry else []
        folders[:] = [folder for folder in folders if folder not in links]
    state.objects = read_objects(world)
    return state


def read_file(world: World, path: Path) -> tuple | None:
    meta, name = path.lstat(), str(path.relative_to(world.root))
    if stat.S_ISLNK(meta.st_mode):
        return ("link", os.readlink(path), name, b"")
    if not stat.S_ISREG(meta.st_mode):
        return None
    mode, data = f"{stat.S_IMODE(meta.st_mode):o}", path.read_bytes()
    if data.startswith(b"DIRC"):
        env = {**world.env, "GIT_INDEX_FILE": str(path)}
        data = subprocess.run(["git", "ls-files", "--stage"], cwd=world.repo, env=env, capture_output=True,
                              check=True).stdout
        return ("index", mode, name, data)
    return ("file", mode, name, data)


def read_objects(world: World) -> dict[str, tuple[str, bytes]]:
    if not (world.repo / ".git").exists():
        return {}
    done = subprocess.run(["git", "cat-file", "--batch-all-objects", "--batch"], cwd=world.repo, env=world.env,
                          capture_output=True, check=True)
    text, at, found = done.stdout, 0, {}
    while at < len(text):
        end = text.index(b"\n", at)
        name, kind, length = text[at:end].decode().split()
        found[name] = (kind, text[end + 1 : end + 1 + int(length)])
        at = end + 2 + int(length)
    return found


def derived(text: str, count: int) -> str:
    """Returns the name that the program derives from a path: the first bytes of its SHA-256, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()[: 2 * count]


class Normaliser:
    """Replaces everything that depends on machine and date by placeholders and fixed numbers."""

    def __init__(self, world: World, taken_from: archive.State, names: dict[str, tuple[str, int]]):
        self.world, self.seconds = world, archive.EPOCH - world.start
        self.derived = names
        self.words = [(str(world.root).encode(), b"@ROOT@"), (world.binary.encode(), b"@SWARM@")]
        boot = Path(BOOT_FILE).read_text().strip()
        self.words += [(boot.encode(), b"@BOOT@"), (f"tmux-{os.getuid()}/".encode(), b"tmux-@UID@/")]
        for placeholder, (text, count) in names.items():
            self.words.append((derived(text, count).encode(), placeholder.encode()))
        self.host = re.compile(rb'("host"\s*:\s*")' + re.escape(socket.gethostname().encode()) + rb'"')
        self.ticks = BOOT_TICKS - int(world.uptime * 100)
        self.pids = self.find_pids(taken_from)

    def find_pids(self, state: archive.State) -> dict[int, int]:
        """Returns a number for each process that lives or that a file names, in the order of their ids."""
        found = set(self.world.census())
        for kind, _, name, data in state.entries:
            if kind == "file" and archive.is_text(data):
                found |= {int(match[2]) for match in PID.finditer(data)}
        return {pid: archive.FIRST_PID + at for at, pid in enumerate(sorted(found - {0, 1}))}

    def text(self, data: bytes) -> bytes:
        """Normalises one text or path of the state."""
        def pid(match: re.Match) -> bytes:
            return match[1] + str(self.pids.get(int(match[2]), int(match[2]))).encode()

        def moved(by: int):
            return lambda match: match[1] + str(max(1, int(match[2]) + by)).encode()

        data = PID.sub(pid, data)
        only = ONLY_PID.fullmatch(data)
        if only and int(only[1]) in self.pids:
            data = data.replace(only[1], str(self.pids[int(only[1])]).encode())
        data = TICKS.sub(moved(self.ticks), data)
        data = BOOT_MS.sub(moved(self.ticks * 10), data)
        data = GROUP.sub(rb"\1/demo\3", data)
        data = self.host.sub(rb'\1@HOST@"', data)
        for old, new in self.words:
            data = data.replace(old, new)
        data = re.sub(rb"/proc/(\d+)/exe", lambda m: b"/proc/%d/exe" % self.pids.get(int(m[1]), int(m[1])), data)
        return archive.shift_times(data, self.world.start, self.seconds)

    def state(self, taken: archive.State) -> archive.State:
        made = archive.transform(taken, self.text)
        words = b"\n".join(name.encode() + b"\n" + data for _, _, name, data in made.entries)
        for placeholder in self.derived:
            if placeholder.encode() not in words:
                raise AssertionError(f"{placeholder}: no name is derived from this text any more")
        return made

    def processes(self) -> list[dict]:
        """Returns the living processes: the number that stands for each in the files, and its role."""
        shims = {}
        for lease in sorted(self.world.dir.glob("w/*/lease")):
            for part in ("worker", "shim"):
                match = re.search(rf'"{part}":{{"pid":(\d+)', lease.read_text())
                if match:
                    shims[int(match[1])] = f"{'command' if part == 'worker' else part} of {lease.parent.name}"
        rows = []
        for pid, words in sorted(self.world.census().items()):
            if words == ["sleep", "0.2"]:
                # A short-lived child of a script that waits; soon another one takes its place.
                continue
            role = shims.get(pid) or role_of(words)
            rows.append({"pid": self.pids.get(pid), "role": self.text(role.encode()).decode()})
        return rows


def role_of(words: list[str]) -> str:
    verbs = {"__guard": "guard", "__supervisor": "supervisor", "__forkserver": "fork server or its spare",
             "__attempt": "attempt", "__runner": "runner of a verification", "__role": "turn of a flow"}
    if len(words) > 1 and words[1] in verbs:
        return ("late " if words[-1] == "late" else "") + verbs[words[1]]
    if os.path.basename(words[0]) == "tmux":
        return "tmux server"
    return f"child: {os.path.basename(words[0])}"
