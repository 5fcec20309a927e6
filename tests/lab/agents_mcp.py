"""Real claude and codex with `swarm mcp` as a server of tools."""

import json

from .agents_windows import MODEL

LIMIT = 120
NAMES = ("one", "two", "three")


def tool(verb: str, **arguments) -> str:
    return f"[[tool swarm {verb} {json.dumps(arguments)}]]"


def results(out: str) -> list[dict]:
    """What claude's stream says of the results of tools, in order: `is_error`, and the text."""
    found = []
    for line in filter(None, out.splitlines()):
        content = json.loads(line).get("message", {}).get("content")
        for part in content if isinstance(content, list) else []:
            if part.get("type") == "tool_result":
                found.append({"failed": bool(part.get("is_error")), "text": json.dumps(part.get("content"))})
    return found


def claude(site, task: str, *flags: str):
    """Lets a headless claude carry out a task with the server and no other tool."""
    servers = {"mcpServers": {"swarm": {"command": site.rig.binary, "args": ["mcp", *flags]}}}
    config = site.rig.root / "mcp.json"
    config.write_text(json.dumps(servers))
    words = ["claude", "-p", task, "--model", MODEL, "--output-format", "stream-json", "--verbose",
             "--mcp-config", str(config), "--strict-mcp-config", "--allowedTools", "mcp__swarm"]
    return site.rig.run(*words, limit=LIMIT, cwd=site.rig.repo)


def lands(site) -> list[str]:
    """claude starts three workers, waits for them, reads their changes and lands them."""
    script = "echo {0} > {0}.txt && git add {0}.txt && git commit -qm {0}"
    steps = [tool("spawn", name=name, worktree=True, command=["sh", "-c", script.format(name)]) for name in NAMES]
    steps += [tool("wait", names=list(NAMES))] + [tool("diff", name=name) for name in NAMES]
    steps += [tool("merge_add", names=list(NAMES)), tool("wait", names=list(NAMES), **{"for": "landed"})]
    told = claude(site, f"[[as lead]] {' '.join(steps)} [[say all landed]]", "--allow", "act")
    seen = results(told.out)
    findings = [] if told.rc == 0 else [f"claude: {told}"]
    findings += [f"refused: {one['text'][:300]}" for one in seen if one["failed"]]
    if len(seen) != len(steps):
        findings.append(f"{len(seen)} results, not {len(steps)}: {told.out[-600:]}")
        return findings
    for name, one in zip(NAMES, seen[len(NAMES) + 1:]):
        findings += [] if f"+{name}" in one["text"] else [f"no change of {name} in {one['text'][:300]}"]
    for name in NAMES:
        landed = site.landed(f"{name}.txt")
        findings += [] if landed == name else [f"{name}.txt on main is {landed!r}"]
    return findings


def only_looks(site) -> list[str]:
    """Without --allow, claude is offered no tool that acts."""
    told = claude(site, f"[[as lead]] {tool('ls')} {tool('spawn', name='x', command=['true'])} [[say done]]")
    seen = results(told.out)
    if [one["failed"] for one in seen] != [False, True] or "counts" not in seen[0]["text"]:
        return [f"results: {seen} {told.out[-300:]}"]
    return [] if not site.rig.rows() else [f"rows: {site.rig.rows()}"]


def codex_calls(site) -> list[str]:
    """codex lists the tools and calls one that looks and one that acts."""
    config = site.rig.home / ".codex" / "config.toml"
    server = f'[mcp_servers.swarm]\ncommand = "{site.rig.binary}"\nargs = ["mcp", "--allow", "act"]\n'
    variables = {key: site.rig.env[key] for key in ("SWARM_DIR", "HOME", "PATH")}
    config.write_text(f"{config.read_text()}{server}env = {{ {', '.join(f'{key} = {json.dumps(value)}' for key, value in variables.items())} }}\n")
    steps = [tool("spawn", name="one", command=["true"]), tool("wait", names=["one"]), tool("ls")]
    words = ["codex", "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
             f"[[as lead]] {' '.join(steps)} [[say done]]"]
    told = site.rig.run(*words, limit=LIMIT, cwd=site.rig.repo)
    calls = [item for item in (json.loads(line).get("item", {}) for line in told.out.splitlines() if line.startswith("{"))
             if item.get("type") == "mcp_tool_call" and item.get("status") != "in_progress"]
    seen = [(call["tool"], call["status"]) for call in calls]
    if seen != [("spawn", "completed"), ("wait", "completed"), ("ls", "completed")]:
        return [f"calls: {seen} {told.out[-1500:]} {told.err[-500:]}"]
    row = site.rig.row("one")
    return [] if row else ["no worker was started"]


CLAUDE = {"lands through mcp": lands, "only looks through mcp": only_looks}
CODEX = {"calls through mcp": codex_calls}
