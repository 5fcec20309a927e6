"""Scenarios of `swarm top`: how soon its first picture is there, what it costs to look at it, and how soon a key shows."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from statistics import median

from . import procs
from .bench_rows import SLEEP, Row, switches, wakeups
from .peers import Swarm

ROWS, COLUMNS = 50, 200
# After this time without output a picture is complete.
STILL_SECONDS = 0.3
MOST_SECONDS = 20


class Screen:
    """A running `swarm top` on a terminal of its own."""

    def __init__(self, ours: Swarm):
        self.near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        env = {**ours.rig.env, "TERM": "xterm-256color"}
        self.begun = time.perf_counter()
        self.child = subprocess.Popen([ours.rig.binary, "top"], stdin=far, stdout=far, stderr=far, env=env, start_new_session=True)
        os.close(far)

    def read(self, seconds: float) -> bytes:
        if not select.select([self.near], [], [], seconds)[0]:
            return b""
        try:
            return os.read(self.near, 1 << 16)
        except OSError:
            return b""

    def until_still(self) -> tuple[bytes, float]:
        """Everything that comes until nothing does, and the time at which the last of it came."""
        got, last, end = b"", time.perf_counter(), time.monotonic() + MOST_SECONDS
        while time.monotonic() < end:
            part = self.read(STILL_SECONDS if got else MOST_SECONDS)
            if not part:
                break
            got, last = got + part, time.perf_counter()
        return got, last

    def end(self) -> None:
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(10)
        os.close(self.near)


def top(quick: bool) -> list[Row]:
    """The first picture, an idle time and a key, with 100 workers that run."""
    seconds, keys, rows = (20 if quick else 50), (20 if quick else 100), []
    with Swarm() as ours:
        ours.fill(100, SLEEP)
        firsts = []
        for _ in range(3 if quick else 10):
            screen = Screen(ours)
            try:
                got = b""
                # The foot line is the last that is drawn of a picture.
                while b"leave" not in got and time.perf_counter() - screen.begun < MOST_SECONDS:
                    got += screen.read(1)
                firsts.append((time.perf_counter() - screen.begun) * 1000)
            finally:
                screen.end()
        rows.append(Row("top: first picture, 100 workers", median(firsts), floor={"30 ms": 30}, aim={"30 ms": 30}))
        screen = Screen(ours)
        try:
            screen.until_still()
            pid = screen.child.pid
            memory = next(int(line.split()[1]) for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS"))
            before, end, bytes_idle = switches([pid]), time.monotonic() + seconds, 0
            while time.monotonic() < end:
                bytes_idle += len(screen.read(max(0.0, end - time.monotonic())))
            woken = wakeups(before, switches([pid]))
            times = []
            for number in range(keys):
                os.write(screen.near, b"j" if number % 20 < 10 else b"k")
                begun = time.perf_counter()
                if screen.read(2):
                    times.append((time.perf_counter() - begun) * 1000)
                screen.until_still() if number % 10 == 0 else time.sleep(0.05)
        finally:
            screen.end()
    procs.reap()
    times.sort()
    # Ages are drawn again once a minute.
    rows.append(Row(f"top: wake-ups in {seconds} idle s", woken, "", floor={"ages": 2}, aim={"none": 0}, note=f"{bytes_idle} bytes"))
    rows.append(Row("top: key to picture, p95", times[int(len(times) * 0.95) - 1], floor={"20 ms": 20}, aim={"20 ms": 20}))
    rows.append(Row("top: memory", memory / 1024, "MB", floor={"12 MB": 12}, aim={"12 MB": 12}))
    return rows


TOP = {"top": top}
