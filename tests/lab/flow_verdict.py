"""What must hold when a flow is over: its file, its turns, its answers, its commits, its processes."""

import re
from collections import Counter

from .flow_strikes import Striker
from .flow_world import World
from .inject import panics
from .oracle import Oracle
from .rig import Timeout, wait_until

# Reasons for which a struck turn may end without a result.
CAUSES = re.compile(r"the turn ended unexpectedly|\bkilled by signal 9|the turn was stopped|\bexited with code 137")


def verdict(world: World, acknowledged: dict[str, str], striker: Striker) -> list[str]:
    rig = world.rig
    found = world.when_over() + turns(world, striker) + answers(world, acknowledged, striker) + commits(world)
    found += at_work(world) + registered(world) + [f"litter: {path}" for path in world.temporaries()]
    found += Oracle(rig).litter(rig.rows()) + panics(rig)
    return found + stopped(world)


def stopped(world: World) -> list[str]:
    """Checks that `supervisor stop` ends the supervisor and every other process."""
    # A supervisor that was just killed is restarted by its guard; requests sent meanwhile are lost.
    for _ in range(3):
        told = world.rig.swarm("supervisor", "stop", limit=60)
        try:
            wait_until(lambda: not world.rig.census(), 5, "all processes have ended")
            return [] if told.rc == 0 else [f"wedge: {told}"]
        except Timeout:
            continue
    return [f"orphan: left at the end: {', '.join(map(str, world.rig.census()))}"]


def at_work(world: World) -> list[str]:
    """Checks that no turn of a completed flow still runs or is about to end."""
    def left():
        return [person for person in world.rig.census() if person.role in ("role", "shim") or person.env.get("SWARM_TURN")]

    try:
        # A process that the fork server keeps ready looks like a shim.
        wait_until(lambda: not [person for person in left() if person.role != "shim"], 5, "no turn is running")
        return []
    except Timeout:
        return [f"orphan: alive after the end of the flow: {person}" for person in left()]


def registered(world: World) -> list[str]:
    """Checks that a completed flow is no longer registered; if all processes that do this were killed, the next command
    does."""
    left = world.rig.dir / "flow"
    if world.flow()["status"] != "completed":
        return []
    again = world.swarm("resume", world.id)
    try:
        wait_until(lambda: not any(left.glob("*")), 5, "the flow is unregistered")
    except Timeout:
        return [f"litter: {left.name}/ has {[path.name for path in left.glob('*/*')]} at the end, after {again}"]
    return []


def ledger(world: World) -> list[tuple[str, str, str, int, str, str]]:
    """Ledger lines of the flow's scripts; lines of other workers have a different length."""
    lines = [line for line in world.rig.ledger_lines() if len(line) == 6]
    return [(what, node, role, int(turn), pid, answer) for what, node, role, turn, pid, answer in lines]


def turns(world: World, striker: Striker) -> list[str]:
    """Checks that a role has one turn at a time, and that only struck turns are repeated."""
    found, latest = [], {}
    lines = ledger(world)
    for what, node, role, turn, pid, _ in lines:
        if what == "start":
            if turn < latest.get(role, (0, ""))[0]:
                found.append(f"twice: turn {turn} of {role} started after turn {latest[role][0]}")
            latest[role] = (turn, pid)
        elif latest.get(role) != (turn, pid):
            found.append(f"twice: turn {turn} of {role} ({pid}) ran beside {latest.get(role)}")
    ran = Counter((role, turn) for what, _, role, turn, _, _ in lines if what == "start")
    for key, count in ran.items():
        # A turn starts a second agent only if its agent was killed.
        if count > 1 and "agent" not in striker.wounds.get(key, set()):
            found.append(f"twice: turn {key[1]} of {key[0]} ran {count} times, struck {striker.wounds.get(key)}")
    wounded = Counter(role for role, _ in striker.wounds)
    events = world.events()
    again = Counter(event["role"] for event in events if event["kind"] == "turn.again")
    found += [f"altered: {role} repeated {count} turns, but {wounded[role]} were struck"
              for role, count in again.items() if count > wounded[role]]
    for event in events:
        if event["kind"] == "human.awaiting_input" and event["reason"] == "autonomous-abort":
            if not wounded[event["role"]]:
                found.append(f"altered: {event['role']} gave up unstruck: {event['text'][:200]}")
            elif not CAUSES.search(event["text"]):
                found.append(f"altered: {event['role']} gave up: {event['text'][:300]}")
    return found


def answers(world: World, acknowledged: dict[str, str], striker: Striker) -> list[str]:
    """Checks that each answer reached one turn, or the repetitions of a killed turn."""
    found = []
    lines = [line for line in ledger(world) if line[0] == "start" and line[5] != "-"]
    for text in {line[5] for line in lines} | set(acknowledged):
        mine = [line for line in lines if line[5] == text]
        nodes = {node for _, node, *_ in mine}
        if len(nodes) > 1 or (text in acknowledged and nodes - {acknowledged[text]}):
            found.append(f"twice: answer {text} for {acknowledged.get(text)} reached {nodes}")
        began = sorted({(role, turn) for _, _, role, turn, _, _ in mine})
        for key in began[:-1]:
            if not striker.wounds.get(key):
                found.append(f"twice: answer {text} reached {began}, but {key} was not struck")
        if text in acknowledged and not mine:
            found += lost(world, text, acknowledged[text], striker)
        elif mine:
            found += forgotten(world, text, began[-1])
    return found


def forgotten(world: World, text: str, key: tuple[str, int]) -> list[str]:
    """Reports an answer whose turn came to nothing, if the next turn of the node does not have the answer."""
    lines = ledger(world)
    at = max(index for index, line in enumerate(lines) if line[5] == text and (line[2], line[3]) == key)
    node, pid = lines[at][1], lines[at][4]
    after = [line for line in lines[at + 1:] if line[1] == node]
    ended = any(line[0] == "end" and (line[2], line[3]) == key for line in after)
    handed = any(f"/{node}-{key[1]}-" in path for paths in world.flow()["historyHandoff"].values() for path in paths)
    begun = [line for line in after if line[0] == "start" and line[4] != pid]
    if ended or handed or not begun or begun[0][5] != "-":
        return []
    return [f"lost: answer {text} was given to turn {key[1]} of {key[0]}, which was cut off, but turn {begun[0][3]} "
            f"of {node} started without it"]


def lost(world: World, text: str, node: str, striker: Striker) -> list[str]:
    """Reports an answer that no turn received, unless each turn that had it was killed before its first output."""
    orders = [order["turn"] for order in world.orders() if order.get("answer") == text]
    # Roles in a backward pass run no script.
    if node not in world.role:
        return [] if orders else [f"lost: answer {text} for {node}"]
    unstruck = [turn for turn in orders if not striker.wounds.get((turn["role"], turn["number"]))]
    if not orders or unstruck:
        return [f"lost: answer {text} for {node}, although it is in the orders of {orders}"]
    return []


def commits(world: World) -> list[str]:
    """Checks that the work of all roles has reached the last role, along the edges."""
    if not (world.rig.repo / ".git").exists():
        return []
    branch = f"swarm/{world.id}/owner"
    names = world.rig.run("git", "-C", str(world.rig.repo), "ls-tree", "-r", "--name-only", branch, "out").out.split()
    missing = sorted(set(world.role) - {name.removeprefix("out/") for name in names} - {"owner-close"})
    return [f"lost: the files of {missing} did not reach the owner"] if missing else []
