"""Scenarios of agents that ask and report: what their hooks cost, how soon a person knows and an answer arrives, and the
text of a long window. The hooks are called as agents call them; the agent itself is a process that does nothing."""

import json
import os
import subprocess
import time

from . import procs
from .bench_rows import Row, alternate
from .peers import Swarm
from .rig import wait_until

LIMIT_S = 20
CONVERSATION = "7d6c54f0-0000-4000-a000-000000000000"
# Screens of an agent with a status line that it draws again and again, below lines that scroll away.
FRAME = "\r\x1b[2Kline {0} of the text of a window that scrolls\r\n✻ Working… ({0} s · \x1b[1mesc\x1b[0m to interrupt)"
LOG_BYTES = 100_000_000


class Agent:
    """A worker that counts as claude, and its hooks."""

    def __init__(self, ours: Swarm, window: bool = False):
        self.rig = ours.rig
        program = self.rig.root / "bin" / "claude"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\nexec sleep 100000\n")
        program.chmod(0o755)
        if window:
            self.rig.start_tmux()
        flags = self.rig.tmux_flags if window else ()
        self.rig.must("spawn", "--name", "a", *flags, "--", str(program))
        self.records = next((self.rig.dir / "w").glob("a.*"))
        self.key = f"worker/a/{self.records.suffix[1:]}"

    def hook(self, event: str, command: str = "", waits: bool = False) -> subprocess.Popen:
        said = {"hook_event_name": event, "session_id": CONVERSATION, "cwd": str(self.rig.work)}
        said |= {"tool_name": "Bash", "tool_input": {"command": command}} if command else {}
        words = [self.rig.binary, "session", "hook", "--records", str(self.records), "--asks", self.key]
        env = self.rig.env | {"SWARM_WORKER": "a"}
        hook = procs.launch([*words, *(["--wait"] if waits else [])], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True)
        hook.stdin.write(json.dumps(said))
        hook.stdin.close()
        return hook

    def said(self, event: str, command: str = "", waits: bool = False) -> str:
        return ended(self.hook(event, command, waits))


def ended(hook: subprocess.Popen) -> str:
    text = hook.stdout.read()
    hook.wait()
    procs.forget(hook)
    return text


def passed(begun: int) -> float:
    return (time.perf_counter_ns() - begun) / 1e6


def slow(samples: list[float]) -> float:
    """The 95th of 100 samples in order."""
    return sorted(samples)[int(len(samples) * 0.95)]


def decisions(quick: bool) -> list[Row]:
    """Decisions of hooks that ask nobody: about a tool of claude in a run, and by a rule for an agent in a window."""
    rounds = 20 if quick else 200
    with Swarm() as ours:
        agent = Agent(ours)
        ours.rig.must("rules", "add", "--allow", "touch", "--everywhere")

        def ruled() -> float:
            begun = time.perf_counter_ns()
            text = agent.said("PermissionRequest", "touch a", waits=True)
            took = passed(begun)
            assert '"allow"' in text, text
            return took

        gate = {"root": str(ours.rig.dir), "cwd": str(ours.rig.work), "consent": "partial-access",
                "who": {"worker": "a"}, "dir": None}
        use = {"hook_event_name": "PreToolUse", "tool_name": "Write", "tool_use_id": "t", "session_id": CONVERSATION,
               "tool_input": {"file_path": str(ours.rig.work / "a"), "content": "x"}, "cwd": str(ours.rig.work)}

        def gated() -> float:
            begun = time.perf_counter_ns()
            said = subprocess.run([ours.rig.binary, "__gate", json.dumps(gate)], input=json.dumps(use), env=ours.rig.env,
                                  capture_output=True, text=True)
            took = passed(begun)
            assert '"allow"' in said.stdout, said
            return took

        rows = [("in a run", gated), ("in a window, by a rule", ruled)]
        taken = {name: slow([action() for _ in range(rounds)]) for name, action in rows}
    return [Row(f"a hook decides {name}, 95 % of them", took, floor={"20 ms": 20}, aim={"8 ms": 8}) for name, took in taken.items()]


def asking(quick: bool) -> list[Row]:
    """From the hook of a question to the command for notifications, and from the answer to the hook's word."""
    rounds = 3 if quick else 10
    with Swarm() as ours:
        told = ours.rig.root / "told"
        config = ours.rig.home / ".config" / "swarm"
        config.mkdir(parents=True)
        (config / "config.toml").write_text(f"[notify]\ncommand = \"echo $SWARM_EVENT_TYPE >> '{told}'\"\n")
        agent = Agent(ours)
        notices, answers = [], []
        numbers = iter(range(1, rounds + 1))

        def notified() -> int:
            return told.read_text().count("approval.requested") if told.exists() else 0

        for number in numbers:
            before, begun = notified(), time.perf_counter_ns()
            hook = agent.hook("PermissionRequest", f"touch {number}", waits=True)
            wait_until(lambda: notified() > before, LIMIT_S, "the person is told")
            notices.append(passed(begun))
            begun = time.perf_counter_ns()
            ours.rig.must("approve", str(number))
            text = ended(hook)
            answers.append(passed(begun))
            assert '"allow"' in text, text
            agent.said("PostToolUse", f"touch {number}")
            # Notifications about one worker are at least five seconds apart.
            time.sleep(5.5)
    middle = lambda samples: sorted(samples)[len(samples) // 2]
    return [Row("from a question to its notification", middle(notices), floor={"1.5 s": 1500}, aim={"500 ms": 500}),
            Row("from an answer to the hook's word", middle(answers), floor={"150 ms": 150}, aim={"50 ms": 50})]


def doing(quick: bool) -> list[Row]:
    """From the hook of an agent that waits, or whose turn is over, to the event that says so, and to `status`."""
    rounds = 5 if quick else 20
    with Swarm() as ours:
        follower = procs.launch([ours.rig.binary, "events", "--follow", "--json"], env=ours.rig.env, stdout=subprocess.PIPE,
                                text=True)

        def until(kind: str) -> None:
            next(event for event in map(json.loads, follower.stdout) if event["type"] == kind)

        agent = Agent(ours, window=True)
        until("worker.started")

        def shown(event: str, command: str, kind: str, word: str) -> float:
            begun = time.perf_counter_ns()
            hook = agent.hook(event, command)
            until(kind)
            took = passed(begun)
            ended(hook)
            view = json.loads(ours.rig.must("status", "a", "--json").out)
            assert view["activity"]["doing"] == word, view
            agent.said("UserPromptSubmit")
            until("worker.working")
            return took

        found = alternate({
            "waiting": lambda: shown("PermissionRequest", "make", "worker.waiting", "waiting"),
            "idle": lambda: shown("Stop", "", "worker.idle", "idle"),
        }, rounds)
        follower.terminate()
        follower.wait()
        procs.forget(follower)
    return [Row(f"from an agent's hook to '{word}'", took, floor={"1 s": 1000}, aim={"100 ms": 100}) for word, took in found.items()]


class Unrotated(Swarm):
    """swarm whose logs are not rotated."""

    def begin(self) -> None:
        self.rig.env["SWARM_LOG_MAX_BYTES"] = str(1 << 40)
        super().begin()


def long_window(quick: bool) -> list[Row]:
    """`swarm logs` of a window that printed 100 MB."""
    bytes_wanted = LOG_BYTES // 10 if quick else LOG_BYTES
    with Unrotated() as ours:
        ours.rig.start_tmux()
        ours.rig.must("spawn", "--name", "w", *ours.rig.tmux_flags, "--", "/bin/sleep", "100000")
        log = ours.rig.dir / "logs" / "w.tmux.log"
        wait_until(log.exists, LIMIT_S, "the window has a log")
        with log.open("a") as file:
            number = written = 0
            while written < bytes_wanted:
                text = "".join(FRAME.format(number + one) for one in range(10_000))
                number, written = number + 10_000, written + len(text.encode())
                file.write(text)
        begun, cpu = time.perf_counter_ns(), os.times()
        words = [ours.rig.binary, "logs", "w", "--history", "--lines", str(number)]
        said = subprocess.run(words, env=ours.rig.env, capture_output=True)
        took, used = passed(begun), os.times()
        busy_s = used.children_user + used.children_system - cpu.children_user - cpu.children_system
        lines = said.stdout.count(b"of the text of a window")
        assert said.returncode == 0 and lines > number * 0.9, (said.returncode, lines, number)
    limit = 3000 * bytes_wanted / LOG_BYTES
    return [Row(f"the text of a window that printed {bytes_wanted // 1_000_000} MB", took, floor={f"{limit:g} ms": limit},
                aim={f"{limit / 2:g} ms": limit / 2}, note=f"{lines:,} lines, {busy_s:.1f} s of CPU time")]


AGENTS = {"decisions": decisions, "asking": asking, "doing": doing, "long-window": long_window}
