"""Overhead of flows, without the work that is done in them."""

import json
import statistics

from .bench_rows import Row, against, alternate
from .rig import Rig

FLOWS, TURNS, NODES = 1000, 30, 1000
# One turn: writes an artifact and names the next node. It runs no swarm command, so that a plain shell can do the same.
SCRIPT = """\
echo work > "$SWARM_RECORD/$SWARM_NODE.md"
printf '```handoff\\ntarget_node_id: %s\\nartifact_path: %s\\n```\\n' {to} "$SWARM_RECORD/$SWARM_NODE.md"
"""
CLOSE = "printf '```handoff\\ntype: forward-pass-closed\\n```\\n'\n"


def node(name: str, role: str, script: str) -> dict:
    return {"id": name, "role": role, "work": [f"~~~sh\n{script}\n~~~"]}


def workflow(nodes: list[dict], edges: list[tuple[str, str]]) -> str:
    # JSON is YAML.
    return json.dumps({"workflow": {"name": "Work", "nodes": nodes,
                                    "edges": [{"from": one, "to": other} for one, other in edges]}})


def line(count: int) -> str:
    """Returns a workflow of `count` nodes in a line, with four roles."""
    names = ["owner-intake", *(f"n{number}" for number in range(1, count - 1)), "owner-close"]
    edges = list(zip(names, names[1:]))
    roles = ["owner", *(f"dev_{number % 3 + 1}" for number in range(1, count - 1)), "owner"]
    scripts = [SCRIPT.format(to=other) for _, other in edges] + [CLOSE]
    return workflow([node(*one) for one in zip(names, roles, scripts)], edges)


def begin(rig: Rig, text: str) -> str:
    rig.make_repo()
    (rig.repo / "swarm.toml").write_text("[flow]\nagent = 'shell'\n")
    rig.must("trust", "--yes", cwd=rig.repo)
    (rig.root / "w.yaml").write_text(text)
    words = ["flow", "new", "demo", "--workflow", str(rig.root / "w.yaml"), "--consent", "full-access"]
    return rig.must(*words, cwd=rig.repo).out.strip()


def turns(quick: bool) -> list[Row]:
    """Time per turn of a flow whose turns do almost nothing, minus the time a shell takes for the same scripts."""
    samples = []
    for _ in range(2 if quick else 5):
        with Rig() as rig:
            flow = begin(rig, line(TURNS))
            took = rig.must("flow", "run", flow, "--wait", cwd=rig.repo).seconds
            status = json.loads(rig.must("flow", "status", flow, "--json", cwd=rig.repo).out)["status"]
            if status != "awaiting_improvement_choice":
                raise AssertionError(f"the flow's status is {status}")
            record = rig.root / "record"
            record.mkdir()
            rig.env |= {"SWARM_RECORD": str(record), "SWARM_NODE": "n"}
            plain = [rig.run("sh", "-e", "-c", SCRIPT.format(to="n")).seconds for _ in range(TURNS)]
        samples.append((took - sum(plain)) / TURNS * 1000)
    return [Row(f"a turn's own time, flow of {TURNS} in worktrees", statistics.median(samples),
                floor={"30 ms": 30}, aim={"20 ms": 20})]


def listing(quick: bool) -> list[Row]:
    """`flow ls` in a workspace with many flows."""
    with Rig() as rig:
        flow = begin(rig, line(4))
        place = rig.repo / ".a-society" / "state" / "demo"
        text = (place / flow / "flow.json").read_text()
        # In the order of creation: the record is created after the workflow.
        files = sorted((place / flow / "record").iterdir(), reverse=True)
        record = {file.name: file.read_text() for file in files}
        for number in range(1, FLOWS):
            name = f"{flow[:-6]}{number:06x}"
            (place / name / "record").mkdir(parents=True)
            (place / name / "flow.json").write_text(text.replace(flow, name))
            for file, content in record.items():
                (place / name / "record" / file).write_text(content)
        found = alternate({"swarm": lambda: rig.must("flow", "ls", cwd=rig.repo).seconds * 1000}, 5 if quick else 15)
        shown = rig.must("flow", "ls", cwd=rig.repo).out.count("\n") - 1
    if shown != FLOWS:
        raise AssertionError(f"{shown} flows are listed, not {FLOWS}")
    return [Row(f"flow ls, {FLOWS:,} flows", found["swarm"], floor={"100 ms": 100}, aim={"100 ms": 100})]


def claim(quick: bool) -> list[Row]:
    """Time of a whole `flow status` command with a graph of a thousand nodes, compared with one of two."""
    found = {}
    for name, count in (("swarm", NODES), ("2 nodes", 2)):
        with Rig() as rig:
            flow = begin(rig, line(count))
            words = ["flow", "status", flow, "--json"]
            took = alternate({"it": lambda: rig.must(*words, cwd=rig.repo).seconds * 1000}, 5 if quick else 15)
            found[name] = took["it"]
    row = Row(f"flow status, {NODES:,} nodes", found.pop("swarm"), peers=found, note="includes reading the workflow")
    against(row, "2 nodes", 40, 20)
    return [row]


FLOWS_ROWS = {"flow-turns": turns, "flow-ls": listing, "flow-claim": claim}
