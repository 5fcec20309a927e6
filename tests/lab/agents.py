"""The real claude, codex, gemini and opencode as agents of runs, with a stand-in for their model APIs on loopback.

Without --bin (or $LAB_AGENTS), npm installs the agents into a temporary directory. The specs contain the agents'
instructions, as directives of the stand-in. The stand-in records every request; the cases compare swarm's account with
those records.
"""

import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from . import (agents_asking, agents_dialogue, agents_flows, agents_hooks, agents_mcp, agents_parking,
               agents_person, agents_turns, agents_windows, cases, procs, real_sessions)
from .agents_configs import CODEX_CONFIG, GEMINI_SETTINGS, MARKS, QWEN_SETTINGS, opencode_config, program_of
from .inject import panics
from .rig import Result, Rig, wait_until
from .stand_in import StandIn

PACKAGES = {"claude": "@anthropic-ai/claude-code@2.1.328", "codex": "@openai/codex@0.169.0",
            "gemini": "@google/gemini-cli@0.61.0", "opencode": "opencode-ai@1.18.33",
            "qwen": "@qwen-code/qwen-code@0.15.10"}
INSTALL_LIMIT = 300
# The model that claude is told to use, and its price in claude's own accounting: US dollars per input and per output
# token.
MODEL = "claude-opus-5-5"
PRICES = (4e-6, 20e-6)
EACH = "[[usage 1000 200]]"
LIMIT = 60
# A loopback port without a listener: requests to the outside world are refused.
NOWHERE = "http://127.0.0.1:9"


class Tools:
    """Location of the agents' programs, which are installed when the first case needs them."""

    def __init__(self, given: str | None):
        self.given = given
        self.made: Path | None = None
        self.why = ""

    def find(self, agent: str) -> str:
        """Returns the directory that contains this agent's program, or raises the reason to skip."""
        if not self.given and not self.made and not self.why:
            self.install()
        place = Path(self.given) if self.given else (self.made or Path("/nonexistent")) / "node_modules" / ".bin"
        if not os.access(place / program_of(agent), os.X_OK):
            raise cases.Missing(self.why or f"no {program_of(agent)} in {place}")
        return str(place.resolve())

    def install(self) -> None:
        if not shutil.which("npm"):
            self.why = "needs npm (to install the agents) or --bin"
            return
        self.made = Path(tempfile.mkdtemp(prefix="lab-agents-"))
        words = ["npm", "install", "--prefix", str(self.made), "--no-audit", "--no-fund", "--loglevel=error"]
        words += PACKAGES.values()
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=INSTALL_LIMIT)
            self.why = "" if done.returncode == 0 else f"npm cannot install the agents: {done.stderr.strip()[:200]}"
        except subprocess.TimeoutExpired:
            self.why = f"npm did not install the agents within {INSTALL_LIMIT} s"

    def close(self) -> None:
        if self.made:
            shutil.rmtree(self.made, ignore_errors=True)


TOOLS = Tools(None)


class Site:
    """A repository with specs, the agent that carries them out, and the stand-in that the agent talks to."""

    def __init__(self, rig: Rig, agent: str, stand_in: StandIn):
        self.rig, self.agent, self.stand_in = rig, agent, stand_in
        rig.env.update(self.environment(TOOLS.find(agent)))
        (rig.root / "tmp").mkdir()
        (rig.home / ".codex").mkdir()
        (rig.home / ".codex" / "config.toml").write_text(CODEX_CONFIG.format(url=stand_in.url))
        for path, config in ((".gemini/settings.json", GEMINI_SETTINGS), (".qwen/settings.json", QWEN_SETTINGS),
                             (".config/opencode/opencode.json", opencode_config(stand_in.url))):
            (rig.home / path).parent.mkdir(parents=True, exist_ok=True)
            (rig.home / path).write_text(json.dumps(config))
        rig.make_repo()
        gemini = "".join(f"[agents.{name}]\nmodel = 'gemini-2.5-flash'\n" for name in ("gemini", "gemini-acp"))
        models = f"[agents.claude]\nmodel = '{MODEL}'\n{gemini}"
        (rig.repo / "swarm.toml").write_text(models)
        (rig.repo / "specs").mkdir()

    def environment(self, place: str) -> dict[str, str]:
        return {
            "PATH": f"{place}:{self.rig.env['PATH']}",
            "TMPDIR": str(self.rig.root / "tmp"),
            "HTTPS_PROXY": NOWHERE, "HTTP_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1",
            "ANTHROPIC_BASE_URL": self.stand_in.url, "ANTHROPIC_API_KEY": "sk-ant-stand-in-0000",
            "DISABLE_TELEMETRY": "1", "DISABLE_ERROR_REPORTING": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "STAND_IN_KEY": "sk-stand-in",
            "GEMINI_API_KEY": "stand-in", "GOOGLE_GEMINI_BASE_URL": self.stand_in.url,
            "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
            "OPENAI_API_KEY": "stand-in", "OPENAI_BASE_URL": f"{self.stand_in.url}/v1", "OPENAI_MODEL": "stand-in",
            # qwen heeds no NO_PROXY.
            **({"HTTPS_PROXY": "", "HTTP_PROXY": ""} if self.agent == "qwen" else {}),
        }

    def spec(self, name: str, directives: str, front: str = "") -> None:
        text = f"---\n{front}---\n# {name}\n\n[[as {name}]] {EACH} {directives}\n"
        (self.rig.repo / "specs" / f"{name}.md").write_text(text)

    def swarm(self, *words: str) -> Result:
        return self.rig.swarm(*words, cwd=self.rig.repo)

    def begin(self, *flags: str):
        """Plans and starts a run; the run is in progress when this returns."""
        self.rig.must("plan", "--specs", "specs", "-y", cwd=self.rig.repo)
        self.rig.must("trust", "--yes", cwd=self.rig.repo)
        words = [self.rig.binary, "run", "--headless", "--agent", self.agent, *flags]
        return self.rig.start(words, cwd=self.rig.repo)

    def finish(self, started, code: int = 0, first: bool = True) -> "Told":
        """Waits until the run is over and checks its exit code; the lines of a first run are numbered from 1."""
        result = self.rig.finish(started, LIMIT)
        findings = [] if result.rc == code else [f"the run exited with {result.rc}, not {code}: {result}"]
        lines = [json.loads(line) for line in result.out.splitlines()]
        status = self.swarm("run", "status", "--json")
        rows = {row["id"]: row for row in json.loads(status.out)["workstreams"]} if status.rc == 0 else {}
        told = Told(self, lines, rows, findings + ([] if rows else [f"no status: {status}"]), result.seconds)
        told.in_order(1 if first else lines[0]["seq"] if lines else 0)
        told.nobody_left()
        return told

    def landed(self, path: str) -> str:
        return self.rig.run("git", "-C", str(self.rig.repo), "show", f"main:{path}").out.strip()

    def conversation(self, name: str, attempt: int) -> str:
        """The id of the conversation that an attempt recorded."""
        path = self.rig.repo / ".arial" / "attempts" / f"{name}.{attempt}" / "session.json"
        return json.loads(path.read_text())["id"]


class Told:
    """The events and the final status of a run, compared with the records of the stand-in."""

    def __init__(self, site: Site, lines: list[dict], rows: dict[str, dict], findings: list[str], seconds: float):
        self.site, self.lines, self.rows, self.findings, self.seconds = site, lines, rows, findings, seconds

    def same(self, what: str, seen, expected) -> None:
        if seen != expected:
            self.findings.append(f"{what}: {seen!r}, not {expected!r}")

    def events(self, name: str, kind: str) -> list[dict]:
        return [line for line in self.lines if line.get("workstream") == name and line["event"] == f"workstream.{kind}"]

    def in_order(self, begin: int) -> None:
        numbers = [line["seq"] for line in self.lines]
        self.same("numbers of the lines", numbers, list(range(begin, begin + len(numbers))))

    def nobody_left(self) -> None:
        """Checks that no agent and no process that an agent started outlives the run."""
        ours = ("supervisor", "guard", "forkserver", "command")
        try:
            wait_until(lambda: all(one.role in ours for one in self.site.rig.census()), 5, "all agents have ended")
        except AssertionError:
            left = [str(one) for one in self.site.rig.census() if one.role not in ours]
            self.findings.append(f"orphan: {'; '.join(left)}")
        self.findings += panics(self.site.rig)

    def row(self, name: str, **expected) -> None:
        """Checks fields of a workstream's status row."""
        row = self.rows.get(name, {})
        self.same(name, {key: row.get(key) for key in expected}, expected)

    def landed(self, **texts: str) -> None:
        """Checks the content of files on the base branch."""
        for path, text in texts.items():
            self.same(f"{path}.txt on main", self.site.landed(f"{path}.txt"), text)

    def merges(self, count: int) -> None:
        words = ["git", "-C", str(self.site.rig.repo), "log", "--first-parent", "--merges", "--format=%s", "main"]
        self.same("merges on main", len(self.site.rig.run(*words).out.splitlines()), count)

    def spent(self, name: str, complete: bool = True) -> None:
        """Checks that every answered token is accounted for exactly once; with `complete`, also that `unpriced` is
        false."""
        row = self.rows.get(name, {})
        tokens = self.site.stand_in.usage(name)
        # In this protocol, opencode reports the tokens of its last step alone.
        if self.site.agent != "opencode-acp":
            self.same(f"tokens of {name}", (row.get("input_tokens"), row.get("output_tokens")), tokens)
        usd = row.get("usd")
        if self.site.agent in ("opencode", "opencode-acp"):
            # The price is that of its own table.
            self.same(f"{name} has a price", (usd is not None and usd > 0), True)
        elif self.site.agent != "claude":
            self.same(f"price of {name}", (usd, row.get("unpriced")), (None, True))
        else:
            expected = round(tokens[0] * PRICES[0] + tokens[1] * PRICES[1], 6)
            self.same(f"price of {name}", round(usd or 0.0, 6), expected)
            if complete:
                self.same(f"{name} is unpriced", row.get("unpriced"), False)

    def tools(self, name: str, *words: str) -> None:
        """Checks that each tool call is reported exactly once, in order."""
        mark = MARKS[self.site.agent]
        texts = [line["text"] for line in self.events(name, "activity") if line["text"].startswith(mark)]
        fits = len(texts) == len(words) and all(word in text for word, text in zip(words, texts))
        if not fits:
            self.findings.append(f"tools of {name}: {texts}, not {list(words)}")


def of_agent(agent: str, scene):
    """Makes a case of one agent in a private rig."""

    def case() -> list[str]:
        TOOLS.find(agent)
        # The rig's processes end first, so that an agent that still sends requests finds the stand-in.
        with StandIn() as stand_in, Rig() as rig:
            return scene(Site(rig, agent, stand_in))

    return case


def held(site: Site, gate: str, count: int = 1) -> None:
    wait_until(lambda: site.stand_in.waiting(gate) == count, LIMIT / 2, f"{count} requests wait at the gate '{gate}'")


def lands(site: Site) -> list[str]:
    """Two specs that conflict and one that hits a rate limit: all of them land and are accounted for."""
    for name in ("left", "right"):
        site.spec(name, f"[[read d0/f0.txt]] [[gate together]] [[write d0/f0.txt|{name}\\n]] [[say {name} is done]]")
    site.spec("free", "[[error 429 1 1]] [[bash echo free > free.txt]]")
    started = site.begin()
    held(site, "together", 2)
    site.stand_in.open("together")
    told = site.finish(started)
    asked = [name for name in ("left", "right") if len(site.stand_in.sessions(name)) > 1]
    told.same("conversations about a conflict", len(asked), 1)
    told.same("the file on main", [site.landed("d0/f0.txt")], asked)
    told.landed(free="free")
    told.merges(3)
    told.same("refusals", [record.answer.status for record in site.stand_in.answers("free", "error")], [429])
    told.tools("free", "echo free > free.txt")
    for name in ("left", "right", "free"):
        told.row(name, stage="done", attempt=1, failures=0)
        told.spent(name)
    for name in ("left", "right"):
        told.tools(name, *["f0.txt"] * (4 if name in asked else 2))
    return told.findings


def continued(site: Site) -> list[str]:
    """Work that the verification rejects is fixed in the same conversation."""
    site.spec("fix", "[[bash test -e fix.txt && echo good > fix.txt || echo bad > fix.txt]] [[say wrote it]]")
    told = site.finish(site.begin("--verify", "grep -q good fix.txt"))
    told.row("fix", stage="done", attempt=2, failures=1)
    told.landed(fix="good")
    told.merges(1)
    one, two = site.conversation("fix", 1), site.conversation("fix", 2)
    told.same("conversations on record", (two, site.stand_in.sessions("fix")), (one, {one}))
    told.same("prompts in the conversation", [record.prompts for record in site.stand_in.answers("fix")], [1, 1, 2, 2])
    told.spent("fix")
    return told.findings


def corrected(site: Site) -> list[str]:
    """A spec that conflicts with none lands; work that the verification rejects is fixed in the same conversation."""
    site.spec("fix", "[[bash test -e fix.txt && echo good > fix.txt || echo bad > fix.txt]] [[say wrote it]]")
    told = site.finish(site.begin("--verify", "grep -q good fix.txt"))
    told.row("fix", stage="done", attempt=2, failures=1, summary="wrote it")
    told.landed(fix="good")
    told.merges(1)
    told.same("conversations on record", site.conversation("fix", 2), site.conversation("fix", 1))
    told.same("prompts in the conversation", [record.prompts for record in site.stand_in.answers("fix")], [1, 1, 2, 2])
    told.tools("fix", "fix.txt", "fix.txt")
    told.spent("fix")
    return told.findings


def stopped_halfway(site: Site) -> list[str]:
    """A run that is stopped while its agent works goes on in the same conversation; steps before the stop count."""
    site.spec("task", "[[bash echo first >> first.txt]] [[gate stopped]] [[say it is there]]")
    started = site.begin()
    held(site, "stopped")
    record = site.rig.repo / ".arial" / "attempts" / "task.1" / "session.json"
    wait_until(lambda: '"input_tokens":1000' in record.read_text(), LIMIT, "the first step is recorded")
    site.rig.must("run", "stop", cwd=site.rig.repo)
    site.finish(started, code=130)
    site.stand_in.open("stopped")
    told = site.finish(site.begin(), first=False)
    told.row("task", stage="done", attempt=2, failures=0)
    told.same("conversations", site.conversation("task", 2), site.conversation("task", 1))
    told.same("prompts in the end", [record.prompts for record in site.stand_in.answers("task")][-1:], [2])
    told.spent("task", complete=False)
    return told.findings


def refused(site: Site) -> list[str]:
    """A refused key fails the workstream, whatever the exit code."""
    site.spec("key", "[[error 401 1000]] [[bash true]]")
    told = site.finish(site.begin(), code=1)
    told.row("key", stage="failed", attempt=1, failures=1)
    return told.findings


def told_meanwhile(site: Site) -> list[str]:
    """A user's message to a working agent reaches it at its next turn, in the same conversation."""
    site.spec("task", "[[gate listening]] [[bash echo first > first.txt]] [[say the first]]")
    started = site.begin()
    held(site, "listening")
    said = f"[[as task]] {EACH} [[bash echo second > second.txt]] [[say the second]]"
    site.rig.must("run", "context", "task", said, cwd=site.rig.repo)
    site.stand_in.open("listening")
    told = site.finish(started)
    told.same("deliveries", [(one["delivered"], one["text"]) for one in told.events("task", "context")], [(True, said)])
    told.row("task", stage="done", attempt=1, summary="the second")
    told.landed(first="first", second="second")
    told.same("conversations", site.stand_in.sessions("task"), {site.conversation("task", 1)})
    told.tools("task", "echo first", "echo second")
    told.spent("task")
    return told.findings


def stopped_meanwhile(site: Site) -> list[str]:
    """A stopped run resumes in the same conversation, and tokens used before the stop are counted too."""
    site.spec("task", "[[bash echo first >> first.txt]] [[gate stopped]] [[say it is there]]")
    started = site.begin()
    held(site, "stopped")
    site.rig.must("run", "stop", cwd=site.rig.repo)
    site.finish(started, code=130)
    site.stand_in.open("stopped")
    told = site.finish(site.begin(), first=False)
    told.row("task", stage="done", attempt=2, failures=0)
    known = {site.conversation("task", attempt) for attempt in (1, 2)}
    told.same("conversations", (len(known), site.stand_in.sessions("task")), (1, known))
    told.same("prompts in the end", [record.prompts for record in site.stand_in.answers("task")][-1:], [2])
    told.landed(first="first\nfirst")
    told.spent("task", complete=False)
    return told.findings


def wrong_key(site: Site) -> list[str]:
    """A permanently refused key fails the workstream without a second attempt and without minutes of retries."""
    site.spec("key", "[[error 401 1000]] [[bash true]]")
    told = site.finish(site.begin(), code=1)
    told.row("key", stage="failed", attempt=1, failures=1)
    error = str(told.rows.get("key", {}).get("error")).lower()
    if not any(word in error for word in ("authenti", "401")):
        told.findings.append(f"the error does not mention the key: {error!r}")
    if told.seconds > 45:
        told.findings.append(f"the run took {told.seconds:.1f} s")
    return told.findings


def limited(site: Site) -> list[str]:
    """The run waits until the account's dated limit has passed, and does not count the limit as a failure."""
    site.rig.env.pop("ANTHROPIC_API_KEY")
    site.rig.env["CLAUDE_CODE_OAUTH_TOKEN"] = "sk-ant-oat01-stand-in"
    site.spec("late", "[[limit 4]] [[bash echo late > late.txt]]")
    told = site.finish(site.begin("--retries", "0"))
    told.row("late", stage="done", attempt=2, failures=0)
    told.landed(late="late")
    refused = site.stand_in.answers("late", "error")
    told.same("refusals", len(refused), 1)
    until = max((int(one.answer.headers["anthropic-ratelimit-unified-reset"]) for one in refused), default=0)
    after = [record.at - until for record in site.stand_in.answers("late") if record.answer.kind != "error"]
    if not after or not 0 <= after[0] <= 8:
        told.findings.append(f"asked again {after[:1]} s after the limit's end")
    told.same("retries told", [0 < one["in_ms"] <= 4000 for one in told.events("late", "retrying")], [True])
    told.spent("late")
    return told.findings


def supervisor_killed(site: Site) -> list[str]:
    """The supervisor dies twice while two agents work: the run continues, and no work is done twice."""
    for name in ("one", "two"):
        steps = f"[[gate first]] [[bash echo {name} > {name}.txt]] [[gate second]] [[bash echo more >> {name}.txt]]"
        site.spec(name, steps)
    started = site.begin()
    for gate in ("first", "second"):
        held(site, gate, 2)
        before = wait_until(site.rig.supervisor, 10, "a supervisor runs")
        procs.send(before.pid, before.start, signal.SIGKILL)
        procs.wait_gone(before.pid, 5)
        site.stand_in.open(gate)
    told = site.finish(started)
    told.merges(2)
    numbers = [line["number"] for line in told.lines if "number" in line]
    told.same("numbers of the run's messages", numbers, list(range(len(numbers))))
    for name in ("one", "two"):
        told.row(name, stage="done", attempt=1, failures=0)
        told.landed(**{name: f"{name}\nmore"})
        told.tools(name, f"echo {name}", "echo more")
        told.same(f"requests of {name}", len(site.stand_in.answers(name)), 3)
        told.same(f"conversations of {name}", site.stand_in.sessions(name), {site.conversation(name, 1)})
        kinds = collections.Counter(line["event"] for line in told.lines if line.get("workstream") == name)
        kinds.pop("workstream.activity", None)
        told.same(f"event counts of {name}", sorted(kinds.values()), [1] * 5)
        told.spent(name)
    return told.findings


def not_allowed(site: Site) -> list[str]:
    """A tool call that no user is there to allow is reported once; the time limit ends an agent that then hangs."""
    outside = site.rig.root / "outside.txt"
    site.spec("stuck", f"[[write {outside}|x]] [[gate never]] [[bash true]]", "timeout: 6\nretries: 0\n")
    site.spec("goes", f"[[write {outside}|x]] [[bash echo goes > goes.txt]]")
    told = site.finish(site.begin(), code=1)
    # The usage of an agent that was killed is unknown, which is not the same as zero.
    told.row("stuck", stage="failed", attempt=1, error="timed out after 6 s", usd=None, unpriced=True)
    told.row("goes", stage="done", attempt=1)
    told.landed(goes="goes")
    told.same("the file outside", outside.exists(), False)
    for name in ("stuck", "goes"):
        causes = [one["cause"] for one in told.events(name, "waiting")]
        told.same(f"waits of {name}", causes, [f"nobody could be asked to allow Write: {outside}"])
    return told.findings


def asks(site: Site) -> list[str]:
    """A question that no user is there to answer is reported once; the time limit ends an agent that then hangs."""
    site.spec("asks", "[[ask Which database?]] [[gate never]] [[bash true]]", "timeout: 6\nretries: 0\n")
    told = site.finish(site.begin(), code=1)
    told.row("asks", stage="failed", attempt=1, error="timed out after 6 s")
    causes = [one["cause"] for one in told.events("asks", "waiting")]
    told.same("what it waits for", causes, ["nobody could be asked to answer: Which database? (yes | no)"])
    return told.findings


def recovered(site: Site) -> list[str]:
    """The machine goes down while the agent works: the agent resumes its own conversation and does the rest exactly
    once."""
    task = f"[[as task]] {EACH} [[bash echo first >> first.txt]] [[gate middle]] [[bash echo second > second.txt]]"
    alone = {"claude": ["-p", "--model", MODEL, "--permission-mode", "acceptEdits", "--allowedTools", "Bash(*)"],
             "codex": ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]}[site.agent]
    words = [site.agent, task, *alone] if site.agent == "claude" else [site.agent, *alone, task]
    site.rig.must("spawn", "--name", "w", "--worktree", "--", *words, cwd=site.rig.repo)
    held(site, "middle")
    real_sessions.reboot(site.rig)
    site.stand_in.open("middle")
    before = site.stand_in.sessions("task")
    result = site.swarm("recover", "--apply", "--settle", "0", "--json")
    findings = [] if result.rc == 0 else [f"recover: {result}"]
    case = json.loads(result.out)["workers"][0]
    findings += [] if {case["conversation"]} == before else [f"resumed conversation {case['conversation']}, not {before}"]
    ended = site.swarm("wait", "w", "--timeout", str(LIMIT))
    findings += [] if ended.rc == 0 else [f"exit of w: {ended} {site.swarm('logs', 'w', '--stderr').out[-300:]}"]
    tree = Path(f"{site.rig.repo}-worktrees") / "w"
    if not (tree / "second.txt").exists():
        findings.append(f"the second step was not done: {site.swarm('logs', 'w').out[-300:]}")
    prompts = max(record.prompts for record in site.stand_in.answers("task"))
    findings += [] if prompts == 2 else [f"{prompts} prompts in the conversation, not 2"]
    state = json.loads((tree / ".agent" / "state.json").read_text())
    seen = (state["status"], state["attemptCount"])
    return findings + ([] if seen == ("completed", 2) else [f"status and attempt count of the session are {seen}"])


SCENES = {"lands": lands, "a rejected attempt is continued": continued, "told meanwhile": told_meanwhile,
          "stopped meanwhile": stopped_meanwhile, "wrong key": wrong_key, "recovered": recovered,
          "plays a role": agents_flows.plays, **agents_windows.SCENES, **agents_turns.SCENES}
CLAUDE = {"limit with a date": limited, "supervisor killed": supervisor_killed, "not allowed": not_allowed, "asks": asks,
          "in a window": agents_hooks.in_a_window, "asks in a flow": agents_flows.asks, **agents_windows.CLAUDE,
          **agents_asking.CLAUDE, **agents_mcp.CLAUDE, **agents_parking.CLAUDE}
HALFWAY = {"stopped halfway": stopped_halfway}
CODEX = {"hooks by hand": agents_hooks.by_hand, **agents_asking.CODEX, **agents_dialogue.ASKING, **agents_mcp.CODEX}
OTHERS = {"corrected": corrected, "refused": refused}


def every() -> dict:
    both = {f"{agent}: {name}": of_agent(agent, scene) for agent in ("claude", "codex") for name, scene in SCENES.items()}
    acp = {agent: agents_dialogue.SCENES for agent in ("gemini-acp", "opencode-acp", "qwen")}
    each = acp | {"claude": CLAUDE, "codex": CODEX | HALFWAY, **dict.fromkeys(("gemini", "opencode"), OTHERS | HALFWAY)}
    each["gemini"] = each["gemini"] | agents_turns.GEMINI
    both["claude: one person over ssh"] = agents_person.case(Site)
    return both | {f"{agent}: {name}": of_agent(agent, scene) for agent in each for name, scene in each[agent].items()}


def main(argv=None) -> int:
    parser = cases.parser(__doc__)
    parser.add_argument("--bin", metavar="DIR", default=os.environ.get("LAB_AGENTS"), help="directory of the agents' programs")
    agents_person.options(parser)
    args = parser.parse_args(argv)
    agents_person.take(args)
    cases.ends_on_term()
    TOOLS.given = args.bin
    try:
        return cases.run_all(every(), args.only, allow_skips=args.allow_skips).close()
    finally:
        TOOLS.close()


if __name__ == "__main__":
    sys.exit(main())
