"""A workflow of thirty nodes and six roles, its scripts, and the workspace in which a flow of it runs.

Each node is played by a script of the `shell` agent. The script records in the ledger that it started (with the answer
it was given) and that it ended. It names its artifacts so that no other turn uses the same name.
"""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from .rig import Rig

PROJECT = "shop"
ROLES = ("dev", "dev_2", "reviewer", "qa", "writer")
REPAIRS = 2

PLAY = """say() { printf '%s\\n' "$*" >> '@LEDGER@'; }
say "start $SWARM_NODE $SWARM_ROLE $SWARM_TURN $$ ${SWARM_ANSWER:--}"
flow=${SWARM_RECORD%/record}/flow.json
emit() { '@SWARM@' flow emit "$@"; }
# A line of a list is an edge that is done; a key with a list is what was ever handed over.
is_done() { grep -q "^    \\"$1\\",\\{0,1\\}\\$" "$flow"; }
was_sent() { grep -q "^    \\"$1\\": \\[" "$flow"; }
file() { printf '%s/%s-%s-%s.md' "$SWARM_RECORD" "$SWARM_NODE" "$SWARM_TURN" "$1"; }
hand() {
  for to in "$@"; do
    echo "of $SWARM_NODE in turn $SWARM_TURN for $to" > "$(file "$to")"
    [ -n "$BLOCK" ] || words="$words --to $to --artifact $(file "$to")"
    block="$block- {target_node_id: $to, artifact_path: '$(file "$to")'}\\n"
  done
  if [ -n "$BLOCK" ]; then printf 'Done.\\n```handoff\\n%b```\\n' "$block"; else emit $words; fi
}
words='' block='' open=''
sleep "$REST"
mkdir -p out
echo "$SWARM_NODE" > "out/$SWARM_NODE"
for to in $TO; do is_done "$SWARM_NODE=>$to" || open="$open $to"; done
if [ -z "$TO" ]; then emit --close
elif [ -n "$BACK" ] && ! was_sent "$SWARM_NODE=>$BACK"; then hand "$BACK"
elif [ -n "$ASK" ] && [ -z "$SWARM_ANSWER" ]; then emit --ask "how, says $SWARM_NODE in turn $SWARM_TURN"
else hand ${open:-$TO}; fi
say "end $SWARM_NODE $SWARM_ROLE $SWARM_TURN $$ -"
"""


@dataclass
class Node:
    """A node, and what its script does besides handing over to all forward targets."""

    id: str
    role: str
    to: list[str] = field(default_factory=list)
    back: str = ""
    ask: bool = False
    colab: bool = False
    join: bool = False
    block: bool = False
    rest: float = 0.0

    def yaml(self) -> dict:
        said = {"TO": " ".join(self.to), "BACK": self.back, "ASK": "yes" if self.ask else "",
                "BLOCK": "yes" if self.block else "", "REST": f"{self.rest:.2f}"}
        script = "".join(f"{name}='{value}'\n" for name, value in said.items()) + "mkdir -p out\n. '@PLAY@'\n"
        flags = {"human-colab": self.colab, "await-all-inputs": self.join}
        return {"id": self.id, "role": self.role, **{name: True for name, on in flags.items() if on},
                "work": [f"```sh\n{script}```\n"]}


def thirty_nodes(chance: random.Random) -> list[Node]:
    """Two lanes of two diamonds each, which join in a fifth diamond."""
    nodes = [Node("owner-intake", "owner", ["f0", "f1"])]
    after = {0: ["f2"], 1: ["f3"], 2: ["f4"], 3: ["f4"], 4: ["owner-close"]}
    for n in range(5):
        roles = chance.sample(ROLES, 5)
        made = {
            "f": Node(f"f{n}", roles[0], [f"a{n}", f"b{n}", f"c{n}"], join=n == 4),
            "a": Node(f"a{n}", roles[1], [f"d{n}"]),
            "b": Node(f"b{n}", roles[2], [f"j{n}"]),
            "c": Node(f"c{n}", roles[3], [f"j{n}"]),
            "d": Node(f"d{n}", roles[4], [f"j{n}"], back=f"a{n}" if n % 2 == 0 else ""),
            "j": Node(f"j{n}", chance.choice(roles), after[n], join=True, back=f"b{n}" if n % 2 else ""),
        }
        made[chance.choice("abc")].ask = True
        made["j"].colab = n == 2
        nodes += made.values()
    for node in nodes:
        node.block = chance.random() < 0.25
        node.rest = chance.choice([0, 0, 0.05, 0.2]) * chance.random()
    return nodes + [Node("owner-close", "owner")]


def three_nodes() -> list[Node]:
    """A workflow for sweeps: one handoff, followed by a question."""
    return [Node("owner-intake", "owner", ["build"]), Node("build", "dev", ["owner-close"], ask=True),
            Node("owner-close", "owner")]


class World:
    """A workspace in a rig, with a flow in it."""

    def __init__(self, rig: Rig, nodes: list[Node], *, git: bool = True, settings: str = ""):
        self.rig, self.nodes = rig, nodes
        self.edges = [f"{node.id}=>{to}" for node in nodes for to in node.to]
        self.role = {node.id: node.role for node in nodes}
        if git:
            rig.make_repo()
        else:
            rig.repo.mkdir()
        play = rig.root / "play.sh"
        play.write_text(PLAY.replace("@LEDGER@", str(rig.ledger)).replace("@SWARM@", rig.binary))
        edges = [dict(zip(("from", "to"), edge.split("=>"))) for edge in self.edges]
        workflow = {"name": "Thirty", "summary": "All that there is.", "nodes": [node.yaml() for node in nodes],
                    "edges": edges}
        # JSON is valid YAML, so no library is needed to write it.
        text = json.dumps({"workflow": workflow}).replace("@PLAY@", str(play))
        (rig.root / "workflow.yaml").write_text(text)
        (rig.repo / "swarm.toml").write_text(f'[flow]\nagent = "shell"\nrepairs = {REPAIRS}\n{settings}')
        if git:
            for words in (["add", "-A"], ["commit", "-q", "-m", "settings"]):
                rig.run("git", "-C", str(rig.repo), *words)
        rig.must("trust", "--yes", cwd=rig.repo)
        made = self.must("new", PROJECT, "--workflow", str(rig.root / "workflow.yaml"), "--task", "all of it")
        self.id = made.out.strip().rsplit("/", 1)[-1]
        self.dir = rig.repo / ".a-society" / "state" / PROJECT / self.id
        self.path = self.dir / "flow.json"
        self.must("consent", self.id, "full-access")

    def swarm(self, *words: str, **kwargs):
        return self.rig.swarm("flow", *words, cwd=self.rig.repo, **kwargs)

    def must(self, *words: str):
        return self.rig.must("flow", *words, cwd=self.rig.repo)

    def flow(self) -> dict:
        return json.loads(self.path.read_bytes())

    def events(self) -> list[dict]:
        """Events of the flow; skips a line that was cut off."""
        found = []
        for line in (self.dir / "events.jsonl").read_text(errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def orders(self) -> list[dict]:
        """Orders of all turns, by role and number."""
        found = [json.loads(path.read_text()) for path in self.dir.glob("turns/*/*/order.json")]
        return sorted(found, key=lambda order: (order["turn"]["role"], order["turn"]["number"]))

    def temporaries(self) -> list[str]:
        return sorted(str(path.relative_to(self.dir)) for path in self.dir.rglob(".*.tmp-*"))

    # What always holds.

    def at_any_time(self, flow: dict) -> list[str]:
        """Returns violations of what must hold in every version of the file."""
        running, waits = flow["runningNodes"], list(flow["awaitingHumanNodes"])
        found = [f"twice: {node} both runs and waits" for node in set(running) & set(waits)]
        roles = [self.role[node] for node in dict.fromkeys(running + waits)]
        found += [f"twice: {role} has more than one of {running + waits}" for role in set(roles) if roles.count(role) > 1]
        # A path may also be written as absolute.
        paths = [str(self.rig.repo / path) for paths in flow["historyHandoff"].values() for path in paths]
        found += [f"twice: {path} was handed over twice" for path in set(paths) if paths.count(path) > 1]
        strange = set(flow["completedHandoffs"]) - set(self.edges)
        return found + [f"altered: no such edge: {edge}" for edge in strange]

    def after(self, before: dict, now: dict) -> list[str]:
        """Checks that the handoff history only grows and keeps its order."""
        history = now["historyHandoff"]
        return [f"lost: history of {edge}: {paths} became {history.get(edge)}"
                for edge, paths in before["historyHandoff"].items() if history.get(edge, [])[:len(paths)] != paths]

    def when_over(self) -> list[str]:
        """Checks that the flow is completed and that all its parts are."""
        flow = self.flow()
        found = [] if flow["status"] == "completed" else [f"wedge: the flow is {flow['status']}: {self.doing(flow)}"]
        found += [f"lost: {edge} is not completed" for edge in self.edges if edge not in flow["completedHandoffs"]]
        for paths in flow["historyHandoff"].values():
            found += [f"lost: artifact {path}" for path in paths if not (self.rig.repo / path).is_file()]
        left = {name: flow[name] for name in ("runningNodes", "awaitingHumanNodes", "pendingHumanInputs",
                                              "pendingHandoffApprovals", "receivingHandoff", "awaitingHandoff")}
        found += [f"altered: {name} is {value} at the end" for name, value in left.items() if value]
        sidecar = json.loads((self.dir / "swarm.json").read_text())
        found += [f"altered: {role} is still working at the end: {side['at_work']}"
                  for role, side in sidecar["roles"].items() if side["at_work"]]
        return found + self.at_any_time(flow)

    def doing(self, flow: dict) -> str:
        names = ("runningNodes", "awaitingHumanNodes", "pendingHumanInputs", "receivingHandoff", "awaitingHandoff")
        return ", ".join(f"{name} {flow[name]}" for name in names if flow[name])
