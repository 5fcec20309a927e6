"""Scenarios of the power-loss replay: a script that acknowledges what it was told, and what must hold after the cut."""

import json
import shlex
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

from .flow_world import World as FlowWorld, three_nodes
from .real_runs import planned
from .rig import SOCKET, Rig, wait_until

RESTART_MAX = 10
"""Maximum number of seconds until a worker with a restart policy runs again."""


ROLL_BACK_MAX = 5
"""Maximum number of seconds until a half-made worktree is rolled back."""


class World:
    """The program on one image, and the questions to it."""

    def __init__(self, rig: Rig, disk: Path):
        self.rig = rig
        self.disk = disk
        self.flow: FlowWorld | None = None

    def swarm(self, *words: str):
        return self.rig.swarm(*words, cwd=str(self.rig.repo if self.rig.repo.exists() else self.disk))

    def git(self, *words: str, at: Path | None = None):
        return self.rig.run("git", "-C", str(at or self.rig.repo), *words)

    def start(self, end: int) -> list[str]:
        """Starts the supervisor, as the machine does after it came back."""
        started = self.swarm("supervisor", "start")
        return [] if started.rc == 0 else [f"wedge: the supervisor does not start: {started}"]

    def rows(self) -> dict[str, dict]:
        shown = self.swarm("ls", "--json")
        if shown.rc != 0:
            raise AssertionError(f"wedge: {shown}")
        return {row["name"]: row for row in json.loads(shown.out)["workers"]}

    def starts(self, name: str) -> int:
        return sum(1 for line in self.rig.ledger_lines() if line[0] == "start" and line[1] == name)

    def log(self) -> list[str]:
        try:
            return ["log: " + (self.rig.dir / "supervisor.log").read_text(errors="replace")[-3000:]]
        except OSError as error:
            return [f"no log: {error}"]

    def repository(self, acks: list[str], since: str | None) -> list[str]:
        """Checks that git can use the repository: no ref is broken, everything reachable is there. Commits of an agent
        are made by its own git, which syncs little, and are durable from the acknowledgement `since` on."""
        if not (self.rig.repo / ".git").exists() or (since and since not in acks):
            return []
        # The supervisor rolls back half-made worktrees beside its answers.
        found = self.git_findings()
        deadline = time.monotonic() + ROLL_BACK_MAX
        while found and time.monotonic() < deadline:
            time.sleep(0.1)
            found = self.git_findings()
        return found

    def git_findings(self) -> list[str]:
        found = []
        # A broken ref is only a warning of the first command, and makes every `git gc` fail.
        for words in (("for-each-ref", "--format=%(refname)"), ("fsck", "--connectivity-only", "--no-dangling")):
            done = self.git(*words)
            if done.rc != 0 or done.err.strip():
                found.append(f"damage: {done}")
        return found


@dataclass
class Scenario:
    """What is done while the recording runs, and what must hold on every image of it."""

    script: Callable[[World], str]
    check: Callable[[World, list[str]], list[str]]
    prepare: Callable[[World], None] = field(default=lambda world: None)
    commits_until: str | None = None
    """Acknowledgement after which all commits are durable; None if no agent commits."""


def line(world: World, *words: str) -> str:
    return shlex.join([world.rig.binary, *words]) + "\n"


def spawn(world: World, name: str, *what, flags: tuple = ()) -> str:
    return line(world, "spawn", "--name", name, *flags, "--", *world.rig.worker(*what)) + f"ack started {name}\n"


def present(rows: dict, name: str, acks: list[str], words: set[str]) -> list[str]:
    """Checks that an acknowledged worker is there, in one of these states."""
    row = rows.get(name)
    if row is None:
        return [f"lost: {name} was acknowledged and has no row"] if f"started {name}" in acks else []
    return [] if row["state"] in words else [f"wrong: {name} is shown as {row['state']}, not as {sorted(words)}"]


def not_started(world: World, name: str) -> list[str]:
    # Everything that the supervisor starts by itself, it starts before it has answered a verb about the worker.
    world.swarm("recover")
    count = world.starts(name)
    return [f"twice: {name} was executed {count} times by itself"] if count else []


def recovers(world: World, name: str) -> list[str]:
    done = world.swarm("recover", "--apply", "--settle", "0", name)
    try:
        wait_until(lambda: world.starts(name) > 0, 5, f"{name} runs again")
    except AssertionError:
        return [f"lost: recover does not start {name}: {done}"]
    return [] if world.starts(name) == 1 else [f"twice: {name} was recovered {world.starts(name)} times"]


def check_spawn(world: World, acks: list[str]) -> list[str]:
    found = present(world.rows(), "a", acks, {"interrupted"})
    found += not_started(world, "a")
    if not found and "a" in world.rows():
        found += recovers(world, "a")
    return found


def check_exit(world: World, acks: list[str]) -> list[str]:
    rows = world.rows()
    found = present(rows, "e", acks, {"interrupted", "exited"}) + not_started(world, "e")
    if "ended e" in acks:
        exit = rows.get("e", {}).get("exit")
        if not exit or exit["code"] != 3:
            found.append(f"lost: exit code 3 of e is shown as {exit}")
    return found


def without_slots(world: World) -> None:
    """Leaves no room for slots of exit records."""
    world.rig.dir.mkdir(mode=0o700, exist_ok=True)
    (world.rig.dir / "exit.slots").touch(mode=0o600)


def script_ends(world: World) -> str:
    """Ends of workers that get the slots of earlier ones, which were cleaned."""
    end = lambda name, code: spawn(world, name, "exit", code) + line(world, "wait", name) + f"ack ended {name} {code}\n"
    clean = lambda name: f"ack cleaning {name}\n" + line(world, "clean", name) + f"ack cleaned {name}\n"
    return (end("a", 3) + clean("a") + end("b", 4) + end("c", 5) + clean("b") + line(world, "supervisor", "stop")
            + end("b", 6) + end("d", 7))


def check_ends(world: World, acks: list[str]) -> list[str]:
    found, rows, last = [], world.rows(), {}
    for words in (ack.split() for ack in acks):
        last[words[1]] = words
    for name, (word, _, *code) in last.items():
        row = rows.get(name)
        if row is None and word == "started":
            found.append(f"lost: {name} was acknowledged and has no row")
        if row and word == "cleaned" and row["state"] not in ("interrupted", "exited"):
            # It may have been started again.
            found.append(f"ghost: {name} was cleaned and is {row['state']}")
        if word == "ended" and ((row or {}).get("exit") or {}).get("code") != int(code[0]):
            found.append(f"lost: exit code {code[0]} of {name} is shown as {row}")
        found += not_started(world, name)
    return found


def check_restart(world: World, acks: list[str]) -> list[str]:
    if "r" not in world.rows():
        return present({}, "r", acks, set())
    try:
        wait_until(lambda: world.starts("r") > 0, RESTART_MAX, "r runs again")
    except AssertionError:
        return [f"lost: r is not restarted by its policy: {world.rows()['r']}"]
    time.sleep(0.3)
    return [] if world.starts("r") == 1 else [f"twice: r runs {world.starts('r')} times"]


def check_kill(world: World, acks: list[str]) -> list[str]:
    rows = world.rows()
    found = present(rows, "k", acks, {"interrupted", "stopped"} if "killed k" not in acks else {"stopped"})
    found += not_started(world, "k")
    if "killed k" in acks:
        world.swarm("recover", "--apply", "--settle", "0", "k")
        found += [f"wrong: k came back after it was killed"] if world.starts("k") else []
    return found


def check_clean(world: World, acks: list[str]) -> list[str]:
    rows = world.rows()
    if "cleaned c" in acks:
        found = [f"ghost: c was cleaned and is {rows['c']['state']}"] if "c" in rows else []
    elif "c" in rows:
        found = present(rows, "c", acks, {"interrupted", "stopped"})
    else:
        found = [] if "killed c" in acks else present(rows, "c", acks, set())
    return found + not_started(world, "c")


def check_respawn(world: World, acks: list[str]) -> list[str]:
    rows = world.rows()
    found = present(rows, "p", acks, {"interrupted"} if "respawned p" in acks else {"interrupted", "stopped"})
    found += not_started(world, "p")
    if not found and "respawned p" in acks:
        found += recovers(world, "p")
    return found


def check_worktree(world: World, acks: list[str]) -> list[str]:
    rows = world.rows()
    found = present(rows, "w", acks, {"interrupted"}) + not_started(world, "w")
    if found or "w" not in rows:
        return found
    tree = Path(rows["w"]["worktree"]["path"])
    done = world.swarm("recover", "--apply", "--settle", "0", "w")
    if world.starts("w") != 1:
        return [f"lost: recover does not start w: {done}"]
    status = world.git("status", "--porcelain", at=tree)
    if status.rc != 0 or status.out.strip():
        return [f"wrong: w was started in a damaged worktree: {status}"]
    content = (tree / "d0" / "f0.txt").read_text()
    return [] if content == "0\n" * 20 else [f"wrong: w was started in empty files: {content!r}"]


LANDS = "echo landed >> d0/f0.txt; mkdir new; echo landed > new/landed; rm d0/f2.txt; git add -A; git commit -qm work"


def script_land(flags: tuple = ()):
    def script(world: World) -> str:
        cd = f"cd {shlex.quote(str(world.rig.repo))}\n"
        return (cd + line(world, "spawn", "--name", "x", "--worktree", "--", "sh", "-c", LANDS) + "ack started x\n"
                + line(world, "wait", "x", "--timeout", "60") + "ack ended x\n"
                + line(world, "merge", "add", "x", *flags) + "ack queued x\n"
                + line(world, "merge", "wait", "--timeout", "60") + "ack landed x\n")
    return script


def check_land(world: World, acks: list[str]) -> list[str]:
    if "queued x" not in acks:
        return present(world.rows(), "x", acks, {"interrupted", "exited"})
    waited = world.swarm("merge", "wait", "--timeout", "20")
    shown = world.git("show", "main:new/landed")
    if shown.rc != 0:
        listed = world.swarm("merge", "ls", "--json")
        return [f"lost: the queued work of x is not on main: {waited}; {listed.out[:600]}"]
    status = world.git("status", "--porcelain")
    found = [f"altered: the checkout of main: {status}"] if status.rc != 0 or status.out.strip() else []
    count = world.git("log", "--format=%H", "main", "--", "new/landed").out.split()
    return found + ([f"twice: the work of x is on main in {len(count)} commits"] if len(count) > 1 else [])


DIRTY = "written by hand, committed by nobody"


def script_removal(world: World) -> str:
    command = f"echo '{DIRTY}' > notes.txt; echo more >> d0/f0.txt"
    return (f"cd {shlex.quote(str(world.rig.repo))}\n"
            + line(world, "spawn", "--name", "d", "--worktree", "--", "sh", "-c", command) + "ack started d\n"
            + line(world, "wait", "d", "--timeout", "60") + "ack cleaning d\n"
            + line(world, "clean", "--force-dirty", "d") + "ack cleaned d\n"
            + line(world, "restore", "d") + "ack restored d\n")


def check_removal(world: World, acks: list[str]) -> list[str]:
    rows = world.rows()
    if "cleaned d" not in acks and ("d" in rows or "cleaning d" not in acks):
        return present(rows, "d", acks, {"interrupted", "exited"})
    notes = Path(f"{world.rig.repo}-worktrees") / "d" / "notes.txt"
    if notes.exists() and notes.read_text().strip() == DIRTY:
        return []
    target = world.disk / "restored"
    done = world.swarm("restore", "d", "--to", str(target))
    try:
        content = (target / "notes.txt").read_text().strip()
    except OSError as error:
        return [f"lost: the removed work of d: {error}; {done}"]
    return [] if content == DIRTY else [f"lost: the removed work of d is {content!r}"]


RUN_SPEC = """---
adapter: shell
---
# Write {n}

```sh
echo "start s{n} - -" >> {ledger}
echo {n} > new{n}.txt
```
"""


def prepare_run(world: World) -> None:
    planned(world.rig, {f"s{n}": RUN_SPEC.format(n=n, ledger=world.rig.ledger) for n in range(2)})


def script_run(world: World) -> str:
    cd = f"cd {shlex.quote(str(world.rig.repo))}\n"
    return cd + line(world, "run", "--headless", "-j", "2") + "ack ran\n"


def check_run(world: World, acks: list[str]) -> list[str]:
    done = world.swarm("run", "--headless", "-j", "2")
    if "is in progress in" in done.err:
        done = world.swarm("run", "attach", "--headless")
    found = [] if done.rc == 0 else [f"wedge: the run does not continue: rc {done.rc} {done.err[-300:]} {done.out[-600:]}"]
    for n in range(2):
        shown = world.git("log", "--format=%H", "main", "--", f"new{n}.txt").out.split()
        found += [] if len(shown) == 1 else [f"{'twice' if shown else 'lost'}: s{n} is on main {len(shown)} times"]
    if "ran" in acks and world.rig.ledger_lines():
        found.append(f"twice: the run was completed, and {world.rig.ledger_lines()} ran again")
    return found


def prepare_flow(world: World) -> None:
    world.flow = FlowWorld(world.rig, three_nodes())


def script_flow(world: World) -> str:
    id = world.flow.id
    return (f"cd {shlex.quote(str(world.rig.repo))}\n"
            + line(world, "flow", "run", id, "--wait") + "ack asked\n"
            + line(world, "flow", "answer", id, "--node", "build", "yes-1") + "ack answered\n"
            + line(world, "flow", "run", id, "--wait")
            + line(world, "flow", "improve", id, "none") + "ack closed\n")


def carry_on(flow: FlowWorld):
    """Runs the flow until it is completed or waits for an answer."""
    done = flow.swarm("run", flow.id, "--wait")
    if flow.flow()["status"] == "awaiting_improvement_choice":
        flow.swarm("improve", flow.id, "none")
        done = flow.swarm("run", flow.id, "--wait")
    return done


def check_flow(world: World, acks: list[str]) -> list[str]:
    flow = world.flow
    done = carry_on(flow)
    state = flow.flow()
    if "answered" in acks and "build" in state["awaitingHumanNodes"]:
        return [f"lost: the answer was acknowledged, and the node asks again: {done}"]
    if "build" in state["awaitingHumanNodes"]:
        answered = flow.swarm("answer", flow.id, "--node", "build", "yes-1")
        if answered.rc != 0:
            return [f"wedge: the question cannot be answered: {answered}"]
        done = carry_on(flow)
    found = flow.when_over()
    if "closed" in acks and world.rig.ledger_lines():
        found.append(f"twice: the flow was closed, and {world.rig.ledger_lines()} ran again")
    return [f"{one}; {done}" for one in found]


def tmux(world: World) -> str:
    """Starts the server below the recorder, as the windows are below the server."""
    return shlex.join(["tmux", "-L", SOCKET, "-f", "/dev/null", "new-session", "-d", "-s", "holder", "sleep", "1000"]) + "\n"


def prepare_loop(world: World) -> None:
    (world.disk / "PROMPT.md").write_text("go on\n")


def script_loop(world: World) -> str:
    status = line(world, "ralph", "status", "l", "--json").strip()
    return (tmux(world)
            + line(world, "ralph", "spawn", "--name", "l", "--prompt-file", str(world.disk / "PROMPT.md"), "--max-iterations",
                   "2", "--no-worktree", "--tmux-socket", SOCKET, "--", *world.rig.worker("exit", 0))
            + "ack started l\n"
            + f"until {status} | grep -q '\"status\":\"stopped\"'; do sleep 0.1; done\nack looped l\n")


def check_loop(world: World, acks: list[str]) -> list[str]:
    if "started l" not in acks:
        return []
    world.rig.start_tmux()
    shown = world.swarm("ralph", "status", "l", "--json")
    if shown.rc != 0:
        return [f"lost: the loop was acknowledged: {shown}"]
    if "looped l" in acks:
        time.sleep(0.3)
        return [f"twice: the loop was over, and its agent ran again"] if world.starts("l") else []
    if json.loads(shown.out)["status"] != "stopped":
        world.swarm("ralph", "resume", "l")
    over = lambda: json.loads(world.swarm("ralph", "status", "l", "--json").out)
    try:
        wait_until(lambda: over()["status"] == "stopped", 20, "the loop ends", step=0.1)
    except AssertionError:
        return [f"wedge: the loop does not end: {over()}"]
    return [] if over()["iteration"] == 2 else [f"lost: iterations: {over()}"]


def script_heartbeat(world: World) -> str:
    return (tmux(world) + spawn(world, "h", "sleep", 1000, flags=("--tmux", "--session", "lab", "--tmux-socket", SOCKET))
            + line(world, "heartbeat", "start", "h", "--interval", "4h", "--message", "go on") + "ack beats h\n")


def check_heartbeat(world: World, acks: list[str]) -> list[str]:
    world.rig.start_tmux()
    found = present(world.rows(), "h", acks, {"interrupted"}) + not_started(world, "h")
    if found or "h" not in world.rows():
        return found
    found = recovers(world, "h")
    if "beats h" in acks:
        shown = world.swarm("heartbeat", "list", "--json")
        found += [] if '"h"' in shown.out else [f"lost: the heartbeat of h: {shown}"]
    return found


def script_supervisors(world: World) -> str:
    """Workers of three supervisors: the first is stopped, the second is killed."""
    kill = f"kill -9 $(cat {shlex.quote(str(world.rig.dir))}/supervisor.lock)\n"
    return (spawn(world, "a", "sleep", 1000) + spawn(world, "b", "sleep", 1000) + line(world, "kill", "b")
            + line(world, "clean", "b") + "ack cleaned b\n" + line(world, "supervisor", "stop")
            + spawn(world, "c", "sleep", 1000) + kill + spawn(world, "d", "sleep", 1000)
            + spawn(world, "e", "sleep", 1000))


def check_supervisors(world: World, acks: list[str]) -> list[str]:
    rows = world.rows()
    found = [text for name in "acde" for text in present(rows, name, acks, {"interrupted"}) + not_started(world, name)]
    if "cleaned b" in acks and "b" in rows:
        found.append(f"ghost: b was cleaned and is {rows['b']['state']}")
    for name in "ace":
        found += recovers(world, name) if not found and name in rows else []
    return found


def repo(world: World) -> None:
    world.rig.make_repo()


SCENARIOS = {
    "spawn": Scenario(lambda w: spawn(w, "a", "sleep", 1000), check_spawn),
    "exit": Scenario(lambda w: spawn(w, "e", "exit", 3) + line(w, "wait", "e") + "ack ended e\n", check_exit),
    "exit-alone": Scenario(lambda w: spawn(w, "e", "exit", 3) + line(w, "wait", "e") + "ack ended e\n", check_exit, without_slots),
    "ends": Scenario(script_ends, check_ends),
    "restart": Scenario(lambda w: spawn(w, "r", "sleep", 1000, flags=("--restart", "always")), check_restart),
    "kill": Scenario(lambda w: spawn(w, "k", "sleep", 1000) + line(w, "kill", "k") + "ack killed k\n", check_kill),
    "kill-alone": Scenario(lambda w: spawn(w, "k", "sleep", 1000) + line(w, "kill", "k") + "ack killed k\n", check_kill, without_slots),
    "clean": Scenario(lambda w: spawn(w, "c", "sleep", 1000) + line(w, "kill", "c") + "ack killed c\n"
                      + line(w, "clean", "c") + "ack cleaned c\n", check_clean),
    "respawn": Scenario(lambda w: spawn(w, "p", "sleep", 1000) + line(w, "kill", "p") + "ack killed p\n"
                        + line(w, "respawn", "p") + "ack respawned p\n", check_respawn),
    "supervisors": Scenario(script_supervisors, check_supervisors),
    "worktree": Scenario(lambda w: f"cd {shlex.quote(str(w.rig.repo))}\n"
                         + spawn(w, "w", "sleep", 1000, flags=("--worktree",)), check_worktree, repo),
    "land-merge": Scenario(script_land(), check_land, repo, "queued x"),
    "land-squash": Scenario(script_land(("--strategy", "squash")), check_land, repo, "queued x"),
    "removal": Scenario(script_removal, check_removal, repo),
    "run": Scenario(script_run, check_run, prepare_run),
    "flow": Scenario(script_flow, check_flow, prepare_flow),
    "loop": Scenario(script_loop, check_loop, prepare_loop),
    "heartbeat": Scenario(script_heartbeat, check_heartbeat),
    "land-rebase": Scenario(script_land(("--strategy", "rebase")), check_land, repo, "queued x"),
}
