"""How each state is made: the verbs that are called, and the conditions that must hold before the capture."""

import json
from dataclasses import dataclass, field

from world import SOCKET, World, wait_until

SOON = 30
TMUX = ("--tmux", "--tmux-socket", SOCKET)
# Spec files and scripts name no absolute path, because their digests are captured.
HOLD = 'while [ ! -e "$HOME/{}" ]; do sleep 0.2; done'


@dataclass
class Scene:
    """A captured state. `derived` has the names that the program derives from paths: text and number of bytes."""

    about: str
    verbs: list[str] = field(default_factory=list)
    derived: dict[str, tuple[str, int]] = field(default_factory=dict)


def states(world: World) -> dict[str, str]:
    return {row["name"]: row["state"] for row in json.loads(world.swarm("ls", "--json"))["workers"]}


def await_states(world: World, wanted: dict[str, str]) -> None:
    def reached() -> bool:
        found = states(world)
        return all(found.get(name) == state for name, state in wanted.items())

    wait_until(reached, SOON, f"workers are {wanted}")


def session(world: World, scene: Scene) -> None:
    scene.derived["@SESSION@"] = (str(world.dir), 4)


def queue_of(world: World, scene: Scene, branch: str) -> None:
    scene.derived[f"@QUEUE-{branch.upper()}@"] = (f"{world.repo}/.git\0refs/heads/{branch}", 8)


def items(world: World) -> dict[str, str]:
    queues = json.loads(world.swarm("merge", "ls", "--all", "--json"))["queues"]
    return {item["name"]: item["state"] for queue in queues for item in queue["items"]}


def await_items(world: World, wanted: dict[str, str]) -> None:
    def reached() -> bool:
        found = items(world)
        return all(found.get(name) == state for name, state in wanted.items())

    wait_until(reached, SOON, f"items are {wanted}")


def workers(world: World) -> Scene:
    scene = Scene("20 workers: processes and windows, with and without worktrees, in every state that they come to",
                  ["spawn", "respawn", "kill"])
    session(world, scene)
    world.make_repo({"a.txt": "a\n", "b.txt": "b\n", ".gitignore": "target/\n"})
    (world.home / "seat").mkdir()
    (world.home / "secrets.env").write_text("TOKEN=only-an-example\n# a comment\nQUOTED=\"two words\"\n")

    def spawn(name: str, *words: str, command: tuple[str, ...] = ("sleep", "100000")) -> None:
        world.swarm("spawn", "--name", name, *words, "--", *command)

    spawn("flaky", "--restart", "on-failure", "--tag", "ci", command=("sh", "-c", "echo tries; exit 3"))
    spawn("web", "--tag", "ci", "--tag", "web", "--restart", "on-failure", "--env", "PORT=8080")
    spawn("always", "--restart", "always", command=("sh", "-c", "echo at work; exec sleep 100000"))
    spawn("build", "--tag", "ci", command=("sh", "-c", "echo built; echo a warning >&2"))
    spawn("test", "--tag", "ci", command=("sh", "-c", "echo 1 failed >&2; exit 7"))
    spawn("struck")
    spawn("stopped", "--restart", "always")
    spawn("again")
    spawn("limited", "--memory", "256M", "--pids", "64", "--max-output", "10M")
    spawn("secret", "--env-file", str(world.home / "secrets.env"), "--env", "MODE=test")
    spawn("timed", "--timeout", "10h")
    spawn("seated", "--session-dir", str(world.home / "seat"), "--issue", "ISSUE-7", "--work-type", "qa",
          "--prompt", "check the list")
    spawn("tree", "--worktree", "--tag", "trees")
    spawn("dirty", "--worktree", "--branch", "topic/dirty", "--tag", "trees",
          command=("sh", "-c", "echo more >> a.txt; echo new > new.txt; git add b.txt; exec sleep 100000"))
    spawn("ahead", "--worktree", "--tag", "trees",
          command=("sh", "-c", "echo c > c.txt; git add c.txt; git commit -q -m 'add c'"))
    spawn("lands", "--worktree", "--merge")
    spawn("window", *TMUX, command=("sh", "-c", "echo ready; exec cat"))
    spawn("pane", *TMUX, "--worktree", "--tag", "trees", "--restart", "on-failure", command=("cat",))
    spawn("side", *TMUX, "--session", "side", "--stuck-after", "2h", "--stuck-message", "go on", command=("cat",))
    spawn("closed", *TMUX, "--session", "side", command=("sh", "-c", "echo over; exit 0"))
    world.swarm("respawn", "again")
    world.swarm("kill", "stopped")
    rows = json.loads(world.swarm("ls", "--json"))["workers"]
    world.kill(next(row["pid"] for row in rows if row["name"] == "struck"))

    def backs_off() -> bool:
        row = next(row for row in json.loads(world.swarm("ls", "--json"))["workers"] if row["name"] == "flaky")
        # The fifth back-off lasts 16 seconds: long enough for the capture.
        return row["state"] == "backoff" and row["restarts"] >= 4

    wait_until(backs_off, 60, "flaky waits for its fifth restart")
    await_states(world, {
        **dict.fromkeys(("web", "always", "again", "limited", "secret", "timed", "seated", "tree", "dirty", "lands",
                         "window", "pane", "side"), "running"),
        **dict.fromkeys(("build", "test", "struck", "ahead", "closed"), "exited"), "stopped": "stopped"})
    return scene


def run(world: World) -> Scene:
    scene = Scene("a run of six specs with the shell adapter: two landed, one at work, one in the paused merge queue, "
                  "one failed, one pending", ["plan", "run --detach", "run context", "merge pause"])

    def spec(title: str, script: str, front: str = "") -> str:
        return f"---\nadapter: shell\n{front}---\n# {title}\n\nSome words about it.\n\n```sh\n{script}\n```\n"

    specs = {
        "alpha": spec("Add alpha", "echo alpha > alpha.txt"),
        "beta": spec("Add beta", "echo beta > beta.txt", "priority: 2\n"),
        "gamma": spec("Work on gamma", "echo begun > gamma.txt; " + HOLD.format("end-gamma")),
        "delta": spec("Add delta", HOLD.format("go-delta") + "; echo delta > delta.txt"),
        "epsilon": spec("Fail at epsilon", "echo 'no such index' >&2; exit 3", "retries: 0\n"),
        "zeta": spec("Add zeta", "echo zeta > zeta.txt", "after: [gamma]\n"),
    }
    world.make_repo({"a.txt": "a\n", "specs/_context.md": "Keep it short.\n",
                     **{f"specs/{name}.md": text for name, text in specs.items()}})
    queue_of(world, scene, "main")
    world.swarm("plan", "--specs", "specs", "-y")
    if "  trust " in world.swarm("--help"):
        # Programs without the verb need no consent.
        world.swarm("trust", "--yes")
    world.swarm("run", "--detach", "--verify", "test -e a.txt", "-j", "6")

    def rows() -> dict[str, str]:
        said = json.loads(world.swarm("run", "status", "--json"))
        scene.derived["@RUN@"] = (f"{world.repo}/.arial\0" + created(world), 4)
        return {row["id"]: row["stage"] for row in said["workstreams"]}

    wait_until(lambda: rows()["alpha"] == rows()["beta"] == "done", SOON, "alpha and beta landed")
    wait_until(lambda: rows()["epsilon"] == "failed", SOON, "epsilon failed")
    world.swarm("run", "context", "gamma", "use the session table")
    world.swarm("merge", "pause", "--base", "main")
    (world.home / "go-delta").touch()
    wait_until(lambda: "queued" in items(world).values(), SOON, "delta waits in the queue")
    scene.derived["@RUNDIR@"] = (f"{world.repo}/.arial", 8)
    return scene


def created(world: World) -> str:
    return json.loads((world.repo / ".arial" / "state.json").read_text())["createdAt"]


def queue(world: World) -> Scene:
    scene = Scene("two merge queues: items that landed, brought nothing, were rejected, dropped, in conflict, in wait "
                  "of a person, being verified, queued; the queue of the branch release is paused",
                  ["spawn --worktree", "merge add", "merge drop", "merge pause"])
    for branch in ("main", "release"):
        queue_of(world, scene, branch)
    world.make_repo({"a.txt": "a\n", "b.txt": "b\n", "c.txt": "c\n"})
    world.git("branch", "release")

    def work(name: str, script: str, *words: str) -> None:
        world.swarm("spawn", "--name", name, "--worktree", *words, "--", "sh", "-c", script)

    work("first", "echo first > a.txt; echo 1 > first.txt")
    work("clash", "echo clash > a.txt")
    work("empty", "true")
    work("red", "echo red > red.txt")
    work("out", "echo out > out.txt")
    work("held", "echo held > b.txt")
    work("proving", "echo proving > proving.txt")
    work("behind", "echo behind > behind.txt", "--tag", "later")
    work("early", "echo early > early.txt", "--base", "release")
    work("port", "echo port > port.txt", "--base", "release")
    work("port2", "echo port2 > port2.txt", "--base", "release")
    names = ("first", "clash", "empty", "red", "out", "held", "proving", "behind", "early", "port", "port2")
    await_states(world, dict.fromkeys(names, "exited"))
    # The user's edit blocks `held`.
    (world.repo / "b.txt").write_text("edited by hand\n")

    def add(name: str, *words: str) -> None:
        world.swarm("merge", "add", name, *words)

    add("first", "--verify", "test -e first.txt")
    await_items(world, {"first": "landed"})
    for name, words in (("clash", ()), ("empty", ()), ("red", ("--verify", "echo 1 failed; exit 1")), ("held", ())):
        add(name, *words)
    await_items(world, {"clash": "conflict", "empty": "noop", "red": "rejected", "held": "waiting"})
    # A queue exists once something was added.
    add("early", "--base", "release")
    await_items(world, {"early": "landed"})
    world.swarm("merge", "pause", "--base", "release")
    add("port", "--base", "release", "--priority", "5")
    add("port2", "--base", "release", "--strategy", "squash")
    add("proving", "--batch", "1", "--verify", HOLD.format("end-proving"))
    await_items(world, {"proving": "verifying"})
    add("out", "--verify", "true")
    world.swarm("merge", "drop", "out")
    add("behind", "--batch", "1", "--verify", "true", "--priority", "-1")
    await_items(world, {"proving": "verifying", "out": "dropped", "behind": "queued", "port": "queued",
                        "port2": "queued"})
    return scene


AGENT = """# An agent that ends its first iteration by itself, and is at work in the second one.
printf 'agent\\n> '
read -r prompt
count=$(cat .agent-turns 2>/dev/null || echo 0)
echo $((count + 1)) > .agent-turns
echo "working at: $prompt"
[ "$count" -ge "$1" ] || exit 0
exec sleep 100000
"""


def loop(world: World) -> Scene:
    scene = Scene("three loops: one in its second iteration, one paused in its first, one that is over",
                  ["ralph spawn", "ralph pause"])
    session(world, scene)
    world.make_repo({"PROMPT.md": "Do the next task of the list.\n", "agent.sh": AGENT, ".gitignore": ".agent-turns\n"})

    def spawn(name: str, turns: int, *words: str) -> None:
        world.swarm("ralph", "spawn", "--name", name, "--prompt-file", "PROMPT.md", "--tmux-socket", SOCKET, *words,
                    "--", "sh", "agent.sh", str(turns))

    def loops() -> dict[str, tuple[str, int]]:
        said = json.loads(world.swarm("ralph", "list", "--json"))["loops"]
        return {row["name"]: (row["status"], row["iteration"]) for row in said}

    spawn("dev", 1, "--max-iterations", "5", "--done-pattern", "^ALL TASKS DONE")
    spawn("paused", 0, "--inactivity-timeout", "600")
    spawn("over", 9, "--max-iterations", "1", "--no-worktree")

    def works(name: str) -> bool:
        # Between two iterations there is no window.
        return "working at" in world.run(world.binary, "peek", name).stdout

    wait_until(lambda: works("paused"), SOON, "the agent of paused is at work")
    world.swarm("ralph", "pause", "paused")
    wait_until(lambda: loops()["dev"] == ("running", 2) and works("dev"), SOON, "dev is in its second iteration")
    wait_until(lambda: loops()["over"][0] == "stopped", SOON, "over is over")
    return scene


WORKFLOW = """workflow:
  name: Add rate limiting
  summary: Plan, review, close.
  nodes:
    - id: owner-intake
      role: owner
      work:
        - Write plan.md with the limits to enforce.
        - |
          ~~~sh
          echo "100 requests a minute" > $SWARM_RECORD/plan-$SWARM_TURN.md
          "$SWARM" flow emit --to review --artifact $SWARM_RECORD/plan-$SWARM_TURN.md
          ~~~
    - id: review
      role: reviewer
      work:
        - Read the plan.
        - |
          ~~~sh
          if [ -z "$SWARM_ANSWER" ]; then
            "$SWARM" flow emit --ask "Is a minute right?"
          else
            echo "$SWARM_ANSWER" > $SWARM_RECORD/review-$SWARM_TURN.md
            "$SWARM" flow emit --to owner-close --artifact $SWARM_RECORD/review-$SWARM_TURN.md
          fi
          ~~~
    - id: owner-close
      role: owner
      work:
        - |
          ~~~sh
          "$SWARM" flow emit --close
          ~~~
  edges: [{from: owner-intake, to: review}, {from: review, to: owner-close}]
"""


def flow(world: World) -> Scene:
    scene = Scene("a flow of three nodes, run by the supervisor, whose reviewer asks a person",
                  ["flow new", "flow run"])
    # The scripts of the flow call the program by this variable; in a restored state it names another program.
    world.env["SWARM"] = world.binary
    world.make_repo({"a.txt": "a\n", "workflow.yaml": WORKFLOW, "swarm.toml": '[flow]\nagent = "shell"\n'})
    said = json.loads(world.swarm("flow", "new", "shop", "--workflow", "workflow.yaml", "--task", "add rate limiting",
                                  "--consent", "full-access", "--json"))
    scene.derived["@FLOWDIR@"] = (f"{world.repo}\0shop\0{said['flow']}", 8)
    world.swarm("flow", "run", said["flow"], "--wait")
    asked = json.loads(world.swarm("flow", "requests", said["flow"], "--json"))["requests"]
    if [one["node"] for one in asked] != ["review"]:
        raise AssertionError(f"the flow asks something else: {asked}")
    return scene


def nudge(world: World) -> Scene:
    scene = Scene("four nudges: by interval, by date with jitter, one paused after its first beat, one stopped",
                  ["spawn --tmux", "heartbeat start", "heartbeat pause", "heartbeat stop"])
    session(world, scene)
    world.repo.mkdir()
    for name in ("fix", "dated", "paused", "ended"):
        world.swarm("spawn", "--name", name, *TMUX, "--", "cat")
    world.swarm("heartbeat", "start", "fix", "--interval", "4h", "--expire", "24h", "--message", "go on")
    world.swarm("heartbeat", "start", "dated", "--cron", "0 9 * * 1-5", "--jitter", "5m")
    world.swarm("heartbeat", "start", "paused", "--interval", "2s")
    world.swarm("heartbeat", "start", "ended", "--interval", "1h")

    def beats() -> dict[str, int]:
        said = json.loads(world.swarm("heartbeat", "list", "--json"))
        return {row["worker"]: row["beats"] for row in said["heartbeats"]}

    wait_until(lambda: beats()["paused"] >= 1, SOON, "the first beat is typed")
    world.swarm("heartbeat", "pause", "paused")
    world.swarm("heartbeat", "stop", "ended")
    return scene


def trash(world: World) -> Scene:
    scene = Scene("two worktrees that were removed by force and saved: one with changes in index and files, one in "
                  "the middle of a merge with a conflict", ["spawn --worktree", "clean --force-dirty"])
    world.make_repo({"a.txt": "a\n", "b.txt": "b\n", "tool": "#!/bin/sh\n", ".gitignore": "target/\n"})
    (world.repo / "tool").chmod(0o755)
    world.git("add", "-A")
    world.git("commit", "-q", "-m", "make tool executable")
    world.git("branch", "other")
    dirty = ("echo staged >> a.txt; git add a.txt; echo more >> a.txt; echo new > new.txt; rm b.txt; mkdir empty; "
             "ln -s a.txt link; mkdir target; echo built > target/out")
    merge = ("echo ours > a.txt; git commit -q -am ours; git switch -q --detach other; echo theirs > a.txt; "
             "git commit -q -am theirs; git branch theirs; git switch -q mid; git merge -q theirs; true")
    for name, script in (("fix", dirty), ("mid", merge)):
        world.swarm("spawn", "--name", name, "--worktree", "--", "sh", "-c", script)
    world.swarm("spawn", "--name", "keep", "--worktree", "--", "sleep", "100000")
    await_states(world, {"fix": "exited", "mid": "exited", "keep": "running"})
    world.swarm("clean", "fix", "mid", "--force-dirty")
    return scene


SCENES = {scene.__name__: scene for scene in (workers, run, queue, loop, flow, nudge, trash)}
