"""Scenarios of the power-loss replay about requests to people: what was asked, answered or ruled is never lost, and an
answer is used at most once."""

import json
import shlex
import time

from .asks_world import answer_of, listed, put, rules
from .power_scenarios import Scenario, World, line, present
from .real_runs import planned
from .rig import wait_until

ASKS_MAX = 20
"""Maximum number of seconds until a run asks or is over."""
# Number of a request, its kind, the verb that answers it, and the answer.
ANSWERS = [(1, "permission", ("approve", "1"), ("allow", None, [])),
           (2, "permission", ("deny", "2", "--reason", "use nextest"), ("deny", "use nextest", [])),
           (3, "question", ("answer", "3", "2"), ("answer", None, ["b"])),
           (4, "permission", ("approve", "4", "--always", "--everywhere"), ("allow", None, []))]


def acking(world: World, text: str) -> str:
    """What a worker writes so that it is acknowledged."""
    return f"echo {text} >> {shlex.quote(str(world.rig.root / 'acks'))}"


def prepare_answers(world: World) -> None:
    for number, kind, _, _ in ANSWERS:
        put(world.rig, number, kind)


def script_answers(world: World) -> str:
    return "".join(line(world, *words) + f"ack answered {number}\n" for number, _, words, _ in ANSWERS)


def check_answers(world: World, acks: list[str]) -> list[str]:
    found, shown = [], listed(world.rig)
    for number, _, _, answer in ANSWERS:
        given = answer_of(shown.get(str(number)))
        if str(number) not in shown:
            found.append(f"lost: request {number}")
        elif given is None and f"answered {number}" in acks:
            found.append(f"lost: the answer to request {number}: {shown[str(number)]}")
        elif given is not None and given != answer:
            found.append(f"altered: request {number} was answered {given}")
    made = [(effect, pattern) for _, effect, pattern in rules(world.rig)]
    if answer_of(shown.get("4")) and made != [("allow", "make")]:
        found.append(f"lost: request 4 was answered for always, and the rules are {made}")
    for number, _, words, answer in ANSWERS if not found else []:
        done = world.swarm(*words)
        if done.rc != 0 and "was already" not in done.err:
            found.append(f"wedge: {done}")
        if answer_of(listed(world.rig)[str(number)]) != answer:
            found.append(f"altered: request {number} was answered otherwise: {done}")
    return found + ([] if len(rules(world.rig)) == 1 else [f"twice: {rules(world.rig)}"])


def script_rules(world: World) -> str:
    add = ("rules", "add", "--everywhere")
    return (line(world, *add, "--allow", "make") + "ack added make\n" + line(world, *add, "--deny", "git push")
            + "ack added push\n" + line(world, "rules", "rm", "1") + "ack removed make\n"
            + line(world, *add, "--ask", "curl") + "ack added curl\n")


def check_rules(world: World, acks: list[str]) -> list[str]:
    made = rules(world.rig)
    allowed = {0: [], 1: [(1, "allow", "make")], 2: [(1, "allow", "make"), (2, "deny", "git push")],
               3: [(2, "deny", "git push")], 4: [(2, "deny", "git push"), (3, "ask", "curl")]}
    done = len(acks)
    if made not in [allowed[at] for at in (done, done + 1) if at in allowed]:
        return [f"{'lost' if done else 'altered'}: after {acks} the rules are {made}"]
    world.swarm("rules", "add", "--everywhere", "--ask", "wget")
    last = max([number for number, _, _ in allowed[done]] + [1 if done == 3 else 0])
    number = next((number for number, _, pattern in rules(world.rig) if pattern == "wget"), 0)
    return [] if number > last else [f"altered: the number {number} was used before"]


def asking(world: World) -> str:
    """A worker that asks, and acknowledges what it hears."""
    ask = shlex.join([world.rig.binary, "ask", "Which?", "--option", "a", "--option", "b", "--wait"])
    return f"heard=$({ask}) && {acking(world, 'heard $heard')}"


def script_ask(world: World) -> str:
    approvals = line(world, "approvals").strip()
    return (line(world, "spawn", "--name", "q", "--", "sh", "-c", asking(world)) + "ack started q\n"
            + f"until {approvals} | grep -q Which; do sleep 0.05; done\nack asked\n"
            + line(world, "answer", "1", "2") + "ack answered\n" + line(world, "wait", "q") + "ack ended\n")


def check_ask(world: World, acks: list[str]) -> list[str]:
    found, shown = present(world.rows(), "q", acks, {"interrupted", "exited"}), listed(world.rig)
    first = shown.get("1")
    if "asked" in acks and first is None:
        found.append("lost: the question was asked")
    if "answered" in acks and answer_of(first) != ("answer", None, ["b"]):
        found.append(f"lost: the answer: {first}")
    # The worker is gone, and its question with it, unless it was used before.
    states = {"taken", "over"} if "heard b" in acks else {"answered", "taken", "over"} if answer_of(first) else {"over"}
    if first is not None and first["state"] not in states:
        found.append(f"{'twice' if 'heard b' in acks else 'wrong'}: the question is {first['state']} after {acks}")
    world.swarm("spawn", "--name", "z", "--", world.rig.binary, "ask", "Next?", "--wait")
    is_open = lambda: [one for one in listed(world.rig).values() if one["worker"] == "z"]
    try:
        wait_until(is_open, 10, "the next question is asked", 0.05)
    except AssertionError:
        return [*found, f"wedge: the next question is not asked: {world.swarm('logs', 'z')}"]
    number = is_open()[0]["id"]
    if first is not None and number == "1":
        found.append("altered: the number was used before")
    world.swarm("answer", number, "yes")
    done = world.swarm("wait", "z", "--timeout", "10")
    said = world.swarm("logs", "z").out
    return found + ([] if "yes" in said else [f"wedge: the next answer is not heard: {done} {said}"])


# An agent that asks once for each of its turns, and executes what it may.
AGENT = """
import json, sys

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def hear():
    text = sys.stdin.readline()
    if not text:
        sys.exit(0)
    return json.loads(text)

def note(path, text):
    with open(path, "a") as file:
        file.write(text + "\\n")

hello = hear()
send(id=hello["id"], result={"protocolVersion": 1, "agentCapabilities": {"loadSession": True}})
opened = hear()
send(id=opened["id"], result={"sessionId": "s1"})
task = hear()
options = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
tool = {"toolCallId": "c1", "kind": "execute", "title": "make", "rawInput": {"command": "make"}}
send(id="c", method="session/request_permission", params={"sessionId": "s1", "toolCall": tool, "options": options})
outcome = hear()["result"]["outcome"]
if outcome.get("optionId") == "yes":
    note(sys.argv[1], "executed")
    note(sys.argv[2], "start executed - -")
    note("made.txt", "made")
send(method="session/update", params={"sessionId": "s1", "update": {"sessionUpdate": "agent_message_chunk",
                                                                    "content": {"type": "text", "text": "done"}}})
send(id=task["id"], result={"stopReason": "end_turn"})
hear()
"""
SPEC = "---\nadapter: mine\nretries: 3\n---\n# Make it\n\nMake it.\n"


def prepare_run(world: World) -> None:
    agent = world.disk / "agent.py"
    agent.write_text(AGENT)
    words = ["python3", str(agent), str(world.rig.root / "acks"), str(world.rig.ledger)]
    planned(world.rig, {"s": SPEC}, f"[agents.mine]\ncommand = {json.dumps(words)}\nevents = 'acp'\n")


def script_run(world: World) -> str:
    approvals, cd = line(world, "approvals").strip(), f"cd {shlex.quote(str(world.rig.repo))}\n"
    return (cd + f"{line(world, 'run', '--headless', '--consent', 'no-access').strip()} & run=$!\n"
            + f"until {approvals} | grep -q make; do sleep 0.05; done\nack asked\n"
            + line(world, "approve", "1") + "ack approved\nwait $run\nack ran\n")


def executions(world: World) -> int:
    """Number of executions since the power came back."""
    return world.starts("executed")


def attended(world: World, begun, free: int):
    """Waits for the end of a run, and allows what it asks. Returns the number of answers that are left for executions, and
    what the run said."""
    end = time.monotonic() + ASKS_MAX
    while begun[0].poll() is None and time.monotonic() < end:
        for number in [number for number, one in listed(world.rig).items() if one["state"] == "open"]:
            free += world.swarm("approve", number).rc == 0
        time.sleep(0.1)
    return free, world.rig.finish(begun, 1)


def check_run(world: World, acks: list[str]) -> list[str]:
    """The run goes on by itself. It asks again if the answer may have been used, and a person allows it then."""
    shown = listed(world.rig)
    found = ["lost: the request"] if "asked" in acks and "1" not in shown else []
    if "approved" in acks and answer_of(shown.get("1")) != ("allow", None, []):
        found.append(f"lost: the answer: {shown.get('1')}")
    if "executed" in acks and shown.get("1", {}).get("state") not in ("taken", "over"):
        found.append(f"twice: the answer was used, and its request is {shown.get('1')}")
    answers = 1 if "approved" in acks or answer_of(shown.get("1")) else 0
    free = answers if "executed" not in acks else 0
    begun = world.rig.start([world.rig.binary, "run", "--headless", "--consent", "no-access"], cwd=world.rig.repo)
    free, done = attended(world, begun, free)
    if "is in progress in" in done.err:
        # The supervisor has resumed it.
        begun = world.rig.start([world.rig.binary, "run", "attach", "--headless"], cwd=world.rig.repo)
        free, done = attended(world, begun, free)
    if executions(world) > free:
        found.append(f"twice: it was executed {executions(world)} times for {free} answers")
    if done.rc != 0:
        found.append(f"wedge: {done}")
    landed = world.git("log", "--format=%H", "main", "--", "made.txt").out.split()
    return found + ([] if len(landed) == 1 else [f"{'twice' if landed else 'lost'}: the work is on main {len(landed)} times"])


SCENARIOS = {
    "answers": Scenario(script_answers, check_answers, prepare_answers),
    "rules": Scenario(script_rules, check_rules),
    "ask": Scenario(script_ask, check_ask),
    "held": Scenario(script_run, check_run, prepare_run),
}
