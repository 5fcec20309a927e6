"""Real agents that play a role in a flow."""

import json
from pathlib import Path

from .rig import wait_until

LIMIT = 60
SWARM_TOML = """[agents.claude]
model = 'claude-opus-5-5'
[flow]
agent = 'shell'
[flow.roles.owner]
unsafe = true
[flow.roles.reviewer]
unsafe = true
[flow.roles.dev]
agent = '{agent}'
"""
# A review that sends the work back once, with instructions; the agent continues in the same conversation.
REVIEW = """\
if [ "$(wc -l < code.txt)" = 1 ]; then
  printf '%s\\n' '[[as dev]] [[usage 1000 200]] [[bash echo two >> code.txt]] [[say Done as asked.' \
    '' '```handoff' 'target_node_id: review' 'artifact_path: code.txt' '```' ']]' > "$SWARM_RECORD/back.md"
  swarm flow emit --to build --artifact "$SWARM_RECORD/back.md"
else
  swarm flow emit --to owner-close --artifact code.txt
fi"""
INTAKE = """\
echo plan > "$SWARM_RECORD/plan.md"
swarm flow emit --to build --artifact "$SWARM_RECORD/plan.md\""""


def node(name: str, role: str, *work: str) -> dict:
    return {"id": name, "role": role, "work": list(work)}


def script(text: str) -> str:
    return f"```sh\n{text}\n```"


class Flow:
    """A flow whose role `dev` is the agent; `directives` are the agent's instructions."""

    def __init__(self, site, directives: str, *words: str):
        self.site = site
        repo = site.rig.repo
        (repo / "swarm.toml").write_text(SWARM_TOML.format(agent=site.agent))
        # codex runs login shells, which set their own search path: swarm must be found on that path too.
        (site.rig.home / ".bash_profile").write_text(f'PATH="{site.rig.env["PATH"]}:{Path(site.rig.binary).parent}"\n')
        nodes = [node("owner-intake", "owner", script(INTAKE)), node("build", "dev", f"[[as dev]] {directives}"),
                 node("review", "reviewer", script(REVIEW)),
                 node("owner-close", "owner", script("swarm flow emit --close"))]
        names = [one["id"] for one in nodes]
        edges = [{"from": one, "to": other} for one, other in zip(names, names[1:])]
        # JSON is YAML.
        workflow = {"workflow": {"name": "Work", "nodes": nodes, "edges": edges}}
        file = site.rig.root / "w.yaml"
        file.write_text(json.dumps(workflow))
        site.rig.must("trust", "--yes", cwd=repo)
        made = site.rig.must("flow", "new", "demo", "--workflow", str(file), *words, cwd=repo)
        self.id = made.out.strip()
        self.dir = repo / ".a-society" / "state" / "demo" / self.id

    def say(self, verb: str, *words: str):
        return self.site.swarm("flow", verb, self.id, *words)

    def state(self) -> dict:
        return json.loads((self.dir / "flow.json").read_text())

    def request(self, what: str) -> int:
        """Waits for the open question about `what` and returns its number."""
        def found():
            listed = self.say("requests", "--json")
            return next((one["request"] for one in json.loads(listed.out)["requests"] if one["text"] == what), None)
        return wait_until(found, LIMIT, f"the agent asks for {what}")

    def status(self) -> str:
        return self.state()["status"]

    def worktree(self) -> Path:
        return Path(f"{self.site.rig.repo}-worktrees") / f"{self.id[-6:]}-dev"


EMIT = "[[bash echo one > code.txt]] [[bash swarm flow emit --to review --artifact code.txt]] [[say handed over]]"


def plays(site) -> list[str]:
    """The agent hands over by command, gets its work back, and hands over by a block, all in one conversation."""
    flow = Flow(site, EMIT, "--consent", "full-access")
    done = flow.say("run", "--wait")
    findings = [] if (done.rc, flow.status()) == (0, "awaiting_improvement_choice") else [f"{done}: {flow.state()}"]
    history = flow.state()["historyHandoff"]
    texts = [(site.rig.repo / path).read_text() for path in history.get("build=>review", [])]
    findings += [] if texts == ["one\n", "one\ntwo\n"] else [f"handed over: {texts}"]
    sessions = site.stand_in.sessions("dev")
    findings += [] if len(sessions) == 1 else [f"{len(sessions)} conversations, not one"]
    prompts = max(record.prompts for record in site.stand_in.answers("dev"))
    findings += [] if prompts == 2 else [f"{prompts} prompts, not 2"]
    feed = flow.say("feed", "--role", "dev").out
    words = ("Activation: build (dev) is active.", "Tool Call: ", "Handoff: build (dev) handed off to review (reviewer).")
    return findings + [f"no {word!r} in {feed}" for word in words if word not in feed]


def asks(site) -> list[str]:
    """claude asks before each command that is not granted; the user allows two (one flow-wide) and denies one."""
    steps = "[[bash make one]] [[bash echo one > code.txt]] [[bash make one]] [[write more.txt|x]] [[bash make two]]"
    flow = Flow(site, f"{steps} [[say never]]", "--consent", "partial-access")
    flow.say("run")
    flow.say("allow", str(flow.request("make one")), "--flow-wide")
    flow.say("allow", str(flow.request("echo one > code.txt")))
    last = flow.request("make two")
    findings = [] if (flow.worktree() / "code.txt").exists() else ["the allowed command did not run"]
    findings += [] if (flow.worktree() / "more.txt").exists() else ["writing a file needs approval with partial access"]
    wait = flow.state()["awaitingHumanNodes"].get("build")
    findings += [] if wait == {"role": "dev", "reason": "consent"} else [f"dev waits for {wait}"]
    flow.say("deny", str(last))
    rests = flow.say("run", "--wait")
    wait = flow.state()["awaitingHumanNodes"].get("build")
    findings += [] if wait == {"role": "dev", "reason": "consent-denied"} else [f"{rests}: dev waits for {wait}"]
    # A message from the user makes the agent continue in the same conversation.
    flow.say("answer", f"[[as dev]] [[usage 1 1]] {EMIT.replace('> code', '>> code')}")
    for what in ("echo one >> code.txt",):
        flow.say("allow", str(flow.request(what)))
    flow.say("run", "--wait")
    findings += [] if flow.status() == "awaiting_improvement_choice" else [f"final state: {flow.state()}"]
    sessions = site.stand_in.sessions("dev")
    return findings + ([] if len(sessions) == 1 else [f"{len(sessions)} conversations, not one"])
