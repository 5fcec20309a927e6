"""Kill sweep of flows: SIGKILL before every call that changes state outside the process while a flow takes a step.

    flow-step      the supervisor claims and starts turns, their processes hand over; ends at a question
    flow-answer    a person answers
    flow-emit      an agent names the next node

After the kill the flow is resumed and must reach its end with each handoff made once, and the answer, if acknowledged,
given to one turn.

    python3 -m lab sweep_flows --sample 20 --seed 7
"""

import json
import sys
from dataclasses import dataclass

from . import sweep
from .flow_held import artifact, environment, free, hold, is_held
from .flow_verdict import ledger
from .flow_world import World, three_nodes
from .inject import COMMAND_LIMIT, Traced, complaint, panics, stop_everything
from .rig import Rig, Timeout, wait_until



@dataclass(frozen=True)
class Scenario:
    name: str
    git: bool = False
    large: bool = False

    def prepare(self, rig: Rig) -> World:
        nodes = three_nodes()
        if self.name == "flow-emit":
            nodes[1].ask = False
        world = World(rig, nodes, git=self.git)
        if self.name == "flow-emit":
            hold(world)
        rig.must("spawn", "--name", "keep", "--", *rig.worker("sleep", 1000))
        wait_until(lambda: len(rig.ledger_lines()) == 1, 10, "the bystander runs")
        wait_until(lambda: len(rig.of_role("supervisor")) == 1, 10, "one supervisor is left")
        if self.name == "flow-answer":
            world.must("run", world.id, "--wait")
        if self.name == "flow-emit":
            world.must("run", world.id)
            wait_until(lambda: is_held(world), 10, "the node works")
        return world

    def words(self, world: World) -> list[str]:
        if self.name == "flow-answer":
            return ["flow", "answer", world.id, "--node", "build", "yes-1"]
        if self.name == "flow-emit":
            return ["flow", "emit", "--to", "owner-close", "--artifact", str(artifact(world))]
        return ["flow", "run", world.id, "--wait"]

    def attach(self, rig: Rig) -> list[int]:
        if self.name != "flow-step":
            return []
        return [person.pid for person in rig.census() if person.role in ("guard", "supervisor", "forkserver")]

    def is_ours(self, point: dict) -> bool:
        """Reports whether the point belongs to this sweep; starting workers belongs to the sweep of commands."""
        if self.name != "flow-step":
            return point["role"] == "command"
        # git decides by itself when it maintains a repository, and how often it looks.
        if point["target"].endswith("/maintenance.lock"):
            return False
        if point["role"] in ("role", "role-child", "git"):
            return True
        return point["role"] == "supervisor" and ("/.a-society/" in point["target"] or "/s/flow/" in point["target"])


SCENARIOS = {scenario.name + ("-git" if scenario.git else ""): scenario for scenario in (
    Scenario("flow-step"), Scenario("flow-step", git=True), Scenario("flow-answer"), Scenario("flow-emit"))}


def trace(scenario: Scenario, world: World, point: dict | None) -> Traced:
    rig, person = world.rig, world.rig.env
    # The node hands over; what follows is done by a person.
    if scenario.name == "flow-emit":
        rig.env = {**person, **environment(world)}
    try:
        return Traced(rig, scenario.words(world), scenario.attach(rig), str(rig.repo), point)
    finally:
        rig.env = person


def enumerate_points(name: str) -> list[dict]:
    scenario = SCENARIOS[name]
    with Rig() as rig:
        world = scenario.prepare(rig)
        traced = trace(scenario, world, None)
        result = traced.wait(COMMAND_LIMIT)
        traced.close()
        if result.rc != 0:
            raise AssertionError(f"undisturbed, {result}")
        findings = to_the_end(scenario, world, True)
        if findings:
            raise AssertionError(f"undisturbed: {'; '.join(findings)}")
        points = [record for record in traced.records() if "call" in record]
        return [point for point in points if scenario.is_ours(point)]


def disturb(name: str, point: dict) -> tuple[list[str], bool]:
    scenario = SCENARIOS[name]
    with Rig() as rig:
        world = scenario.prepare(rig)
        before = world.path.read_bytes()
        traced = trace(scenario, world, point)
        result = traced.wait(COMMAND_LIMIT)
        hit = traced.hit
        traced.close()
        findings = complaint(result)
        text = world.path.read_bytes()
        try:
            findings += world.at_any_time(json.loads(text))
        except ValueError as error:
            findings.append(f"torn: {error}")
        refused = result.rc is not None and result.rc > 0
        if scenario.name != "flow-step" and refused and text != before:
            findings.append(f"half-done: it was refused, but flow.json has changed: {result}")
        findings += to_the_end(scenario, world, result.rc == 0)
        return findings + panics(rig) + stop_everything(rig), hit


def to_the_end(scenario: Scenario, world: World, done: bool) -> list[str]:
    """Runs the flow to its end, as a person would who does not know what was done."""
    if scenario.name == "flow-emit":
        free(world)
    said = {"yes-1": "build"} if scenario.name == "flow-answer" and done else {}
    findings = []
    for number in range(2, 12):
        # A person gives answers where the file says that a node waits.
        flow = world.flow()
        if flow["status"] != "running":
            break
        for node in set(flow["awaitingHumanNodes"]) - set(flow["pendingHumanInputs"]):
            told = world.swarm("answer", world.id, "--node", node, f"yes-{number}")
            if told.rc == 0:
                said[f"yes-{number}"] = node
            elif "not accepting" not in told.err and "already" not in told.err:
                findings.append(f"unclear: {told}")
        run = world.swarm("run", world.id, "--wait", limit=COMMAND_LIMIT)
        if run.rc != 0 and "is not running" not in run.err:
            findings.append(f"wedge: {run}")
    last = world.swarm("improve", world.id, "none")
    if last.rc != 0:
        findings.append(f"wedge: {last}: {world.doing(world.flow())}")
    try:
        wait_until(lambda: not list((world.rig.dir / "flow").glob("*")), 5, "the flow is unregistered")
    except Timeout:
        findings.append("litter: the flow is still registered")
    findings += world.when_over() + [f"litter: {path}" for path in world.temporaries()]
    for edge, paths in world.flow()["historyHandoff"].items():
        findings += [f"twice: {edge} handed over {paths}"] if len(paths) != 1 else []
    starts = [line for line in ledger(world) if line[0] == "start"]
    for text, node in said.items():
        # If the only turn was killed before its first output, the ledger has no line of the answer.
        orders = [order for order in world.orders() if order.get("answer") == text]
        if not orders or {order["turn"]["node"] for order in orders} != {node}:
            findings.append(f"lost: answer {text} for {node} is in the orders {[order['turn'] for order in orders]}")
        if not [line for line in starts if line[5] == text]:
            findings.append(f"lost: answer {text} for {node} reached no turn")
    return findings


def main(argv=None) -> int:
    return sweep.main(argv, doc=__doc__, kit=sys.modules[__name__], scenarios=SCENARIOS, module="sweep_flows")


if __name__ == "__main__":
    sys.exit(main())
