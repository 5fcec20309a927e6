"""Flows under real conditions: commands that cannot be carried out, and invalid handoff blocks."""

import os
import threading

from .flow_held import artifact, environment, free, hold, is_held
from .flow_verdict import commits
from .flow_world import REPAIRS, World, three_nodes
from .inject import stop_everything
from .real_tools import refused
from .rig import Rig, wait_until

LIMIT = 20


def bytes_of(world: World) -> dict[str, bytes]:
    """Everything that a refused command must leave unchanged."""
    return {name: (world.dir / name).read_bytes() for name in ("flow.json", "swarm.json", "events.jsonl")}


def ends(world: World) -> list[str]:
    """Checks that the flow still reaches its end."""
    world.must("run", world.id, "--wait")
    while world.flow()["status"] == "running" and world.flow()["awaitingHumanNodes"]:
        world.must("answer", world.id, "go-on")
        world.must("run", world.id, "--wait")
    world.must("improve", world.id, "none")
    wait_until(lambda: not any((world.rig.dir / "flow").glob("*")), LIMIT, "the flow is unregistered")
    return world.when_over() + [f"litter: {path}" for path in world.temporaries()] + stop_everything(world.rig)


def refused_words() -> list[str]:
    with Rig() as rig:
        nodes = three_nodes()
        nodes[1].ask = False
        world = World(rig, nodes, git=False)
        hold(world)
        world.must("run", world.id)
        wait_until(lambda: is_held(world), LIMIT, "the node works")
        here = environment(world)
        mine, used = str(artifact(world)), world.flow()["historyHandoff"]["owner-intake=>build"][0]
        folder = str(world.dir / "record")
        wrong = {
            "nowhere": ["--to", "nowhere", "--artifact", mine],
            "itself": ["--to", "build", "--artifact", mine],
            "twice": ["--to", "owner-close", "--to", "owner-close", "--artifact", mine],
            "no file": ["--to", "owner-close", "--artifact", "/no/such/file"],
            "a folder": ["--to", "owner-close", "--artifact", folder],
            "used": ["--to", "owner-close", "--artifact", str(rig.repo / used)],
            "close": ["--close"], "await": ["--await"],
            "findings": ["--findings", mine], "feedback": ["--feedback", mine],
        }
        before, found = bytes_of(world), []
        others = {"another turn": {**here, "SWARM_TURN": "99"}, "another node": {**here, "SWARM_NODE": "owner-close"},
                  "another role": {**here, "SWARM_ROLE": "owner"}}
        tries = {name: (words, here) for name, words in wrong.items()}
        tries |= {name: (["--to", "owner-close", "--artifact", mine], env) for name, env in others.items()}
        for name, (words, env) in tries.items():
            result = world.swarm("emit", *words, env=env)
            found += [f"{name}: {finding}" for finding in refused(result)]
            now = bytes_of(world)
            found += [f"{name}: half-done: {key} has changed" for key in before if now[key] != before[key]]
            if os.path.exists(here["SWARM_HANDOFF"]):
                return [*found, f"{name}: half-done: the command left a trace"]
        taken = world.swarm("emit", "--to", "owner-close", "--artifact", mine, env=here)
        found += [] if taken.rc == 0 else [f"failed: {taken}"]
        free(world)
        return found + ends(world)


def refused_blocks() -> list[str]:
    """A turn that always ends with an invalid block is sent back, and finally waits for a person."""
    blocks = {"nowhere": "target_node_id: nowhere\\nartifact_path: play.sh", "no block": None,
              "close": "type: forward-pass-closed", "no artifact": "target_node_id: owner-close",
              "no YAML": "[", "nothing": "", "a null": "- null",
              "unknown": "type: go-home"}
    found = []
    for name, block in blocks.items():
        with Rig() as rig:
            nodes = three_nodes()
            nodes[1].ask = False
            world = World(rig, nodes, git=False)
            play = rig.root / "play.sh"
            said = "echo no" if block is None else f"printf '```handoff\\n{block}\\n```\\n'"
            # The person's answer makes the turn behave.
            bad = 'if [ "$SWARM_NODE" = build ] && [ -z "$SWARM_ANSWER" ]; then\n'
            bad += f'cp "$flow" "{rig.root}/seen.$$"; {said}; exit 0\nfi'
            play.write_text(play.read_text().replace('sleep "$REST"', bad, 1))
            world.must("run", world.id, "--wait")
            seen = [path.read_bytes() for path in rig.root.glob("seen.*")]
            flow = world.flow()
            if len(set(seen)) != 1:
                found.append(f"{name}: half-done: flow.json had {len(set(seen))} versions in {len(seen)} tries")
            if flow["awaitingHumanNodes"] != {"build": {"role": "dev", "reason": "autonomous-abort"}}:
                found.append(f"{name}: altered: {flow['awaitingHumanNodes']}")
            sent = [event for event in world.events() if event["kind"] == "repair.requested"]
            if (len(sent), len(seen)) != (REPAIRS, REPAIRS + 1):
                found.append(f"{name}: altered: sent back {len(sent)} times, asked {len(seen)} times")
            found += [f"{name}: {finding}" for finding in ends(world)]
    return found


def orders_of(world: World, node: str) -> list[dict]:
    return [order for order in world.orders() if order["turn"]["node"] == node]


def gave_up() -> list[str]:
    """Turns that end before they took in what was handed over, because nothing is allowed yet."""
    with Rig() as rig:
        world = World(rig, three_nodes())
        world.must("consent", world.id, "no-access")
        # The consent that was given to a turn alone is revoked at its end, before the next turn starts.
        nodes, ending, revoked = ("owner-intake", "build", "owner-close"), rig.root / "ending", rig.root / "revoked"
        for pipe in (ending, revoked):
            os.mkfifo(pipe)
        play = rig.root / "play.sh"
        forbid = f": >'{ending}'\n: <'{revoked}'\nsay \"end"
        play.write_text(play.read_text().replace('say "end', forbid))

        def revoke() -> None:
            for _ in nodes:
                ending.read_bytes()
                world.must("consent", world.id, "no-access")
                revoked.write_bytes(b"")

        threading.Thread(target=revoke, daemon=True).start()
        for node in nodes:
            world.must("run", world.id, "--wait")
            waits = world.flow()["awaitingHumanNodes"]
            if waits.get(node, {}).get("reason") != "autonomous-abort":
                return [f"altered: {node} should have given up: {waits}"]
            world.must("consent", world.id, "full-access")
            world.must("answer", world.id, "--node", node, "go-on")
        world.must("run", world.id, "--wait")
        world.must("improve", world.id, "none")
        return commits(world) + world.when_over() + stop_everything(rig)


def stopped_and_resumed() -> list[str]:
    """A turn that was stopped starts again with the answer that it was given."""
    with Rig() as rig:
        world = World(rig, three_nodes())
        world.must("run", world.id, "--wait")
        hold(world)
        world.must("answer", world.id, "yes-1")
        wait_until(lambda: is_held(world), LIMIT, "the answered turn runs")
        world.must("stop", world.id)
        (rig.root / "env").unlink()
        world.must("run", world.id)
        wait_until(lambda: is_held(world), LIMIT, "the turn runs again")
        given = environment(world).get("SWARM_ANSWER")
        found = [] if given == "yes-1" else [f"lost: the answer: the turn has {given}"]
        free(world)
        return found + ends(world)


def stopped_before_it_took_in() -> list[str]:
    """A turn's order names the commits that the turn must take in; the order of its replacement names the same."""
    with Rig() as rig:
        world = World(rig, three_nodes())
        hold(world)
        world.must("run", world.id)
        wait_until(lambda: is_held(world), LIMIT, "the turn runs")
        begun = orders_of(world, "build")[-1]["commits"]
        world.must("stop", world.id)
        (rig.root / "env").unlink()
        world.must("run", world.id)
        wait_until(lambda: is_held(world), LIMIT, "the turn runs again")
        again = orders_of(world, "build")[-1]["commits"]
        found = [] if again == begun else [f"lost: the turn started with the commits {begun}, then with {again}"]
        free(world)
        return found + ends(world)


CASES = {
    "flows: a turn that gave up keeps its handoffs": gave_up,
    "flows: a stopped turn keeps its answer": stopped_and_resumed,
    "flows: a stopped turn keeps its handoffs": stopped_before_it_took_in,
    "flows: a refused command changes nothing": refused_words,
    "flows: a refused block changes nothing and is sent back up to the limit": refused_blocks,
}
