"""Requests of real agents in windows: answered from outside, in their own dialog, and by nobody."""

import json
import os
import subprocess
import threading
import time

from .agents_windows import MODEL, known
from .rig import SESSION, wait_until

LIMIT = 60


def asks(site):
    return site.rig.dir / "asks"


def part(site, number: int, name: str) -> dict | None:
    """Contents of one file of a request; `None` if it does not exist."""
    try:
        return json.loads((asks(site) / f"{number}.{name}.json").read_text())
    except FileNotFoundError:
        return None


def asked(site, number: int) -> dict:
    """Waits until this request is recorded, and until swarm shows that the worker waits."""
    record = wait_until(lambda: part(site, number, "ask"), LIMIT, f"request {number} is recorded")
    wait_until(lambda: doing(site) == "waiting", LIMIT, f"the worker waits for request {number}")
    return record


def doing(site) -> str | None:
    return (json.loads(site.swarm("status", "w", "--json").out).get("activity") or {}).get("doing")


def answer(site, number: int, verdict: dict) -> None:
    """Answers as swarm does: by a file that appears complete."""
    by = {"uid": os.getuid(), "user": None, "pid": os.getpid(), "tty": None, "from": None, "via": "person"}
    record = verdict | {"digest": part(site, number, "ask")["digest"], "by": by, "at_ms": int(time.time() * 1000)}
    made = asks(site) / ".answer"
    made.write_text(json.dumps(record))
    os.link(made, asks(site) / f"{number}.answer.json")
    made.unlink()


def over(site, number: int, why: str) -> list[str]:
    record = wait_until(lambda: part(site, number, "over"), LIMIT, f"request {number} is over")
    return [] if record["why"] == why else [f"request {number} is over: {record['why']!r}, not {why!r}"]


def press(site, *keys: str) -> None:
    wait_until(lambda: site.swarm("keys", "w", *keys).rc == 0, LIMIT, "the dialog takes keys")


def spawn(site, *words: str) -> None:
    known(site, True)
    site.rig.start_tmux()
    site.rig.must("spawn", "--name", "w", *site.rig.tmux_flags, "--", *words, cwd=site.rig.repo)


SHOWN = "it was answered in the agent's own dialog"
CARRIED_OUT = "its answer was carried out"


def of_claude(site) -> list[str]:
    """claude in a window hears answers from outside next to its dialog: yes, no, and to a question. What is answered in the
    dialog, or dismissed there, is over."""
    steps = ("[[bash touch one.txt]] [[bash touch two.txt]] [[ask Which one?]] [[bash touch three.txt]] "
             "[[bash touch four.txt]]")
    spawn(site, "claude", "--model", MODEL, "--permission-mode", "manual", f"[[as task]] {steps} [[say never]]")
    wish = asked(site, 1)["wish"]
    findings = [] if wish == {"type": "command", "command": "touch one.txt"} else [f"it wants {wish}"]
    answer(site, 1, {"verdict": "allow"})
    wait_until(lambda: (site.rig.repo / "one.txt").exists(), LIMIT, "what was allowed is done")
    findings += over(site, 1, CARRIED_OUT)
    asked(site, 2)
    answer(site, 2, {"verdict": "deny", "reason": "not two"})
    findings += over(site, 2, "it was denied")
    questions = asked(site, 3)["wish"]["questions"]
    findings += [] if questions[0]["options"] == ["yes", "no"] else [f"it asks {questions}"]
    answer(site, 3, {"verdict": "answer", "answers": [["Which one?", "no"]]})
    findings += over(site, 3, CARRIED_OUT)
    asked(site, 4)
    press(site, "1")
    findings += over(site, 4, SHOWN)
    wait_until(lambda: (site.rig.repo / "three.txt").exists(), LIMIT, "what was allowed in the dialog is done")
    asked(site, 5)
    press(site, "Escape")
    findings += over(site, 5, "the dialog was dismissed, or the agent has ended")
    wait_until(lambda: doing(site) == "idle", LIMIT, "claude is idle after the interruption")
    screen = site.swarm("peek", "w", "-n", "0").out
    findings += [f"no {word!r} on the screen: {screen}" for word in ("not two", "Which one? → no") if word not in screen]
    for name in ("two.txt", "four.txt"):
        findings += [f"{name} was made"] if (site.rig.repo / name).exists() else []
    return findings


def not_in_a_window(site) -> list[str]:
    """A headless claude is denied at once what it may not do, and asks nobody."""
    known(site, True)
    words = ["claude", "-p", "--model", MODEL, "--permission-mode", "manual",
             "[[as task]] [[bash touch one.txt]] [[say done]]"]
    site.rig.must("spawn", "--name", "w", "--", *words, cwd=site.rig.repo)
    ended = site.swarm("wait", "w", "--timeout", str(LIMIT))
    findings = [] if ended.rc == 0 else [f"exit of w: {ended}"]
    findings += [] if not list(asks(site).glob("*.ask.json")) else ["it asked somebody"]
    return findings + (["the command was executed"] if (site.rig.repo / "one.txt").exists() else [])


def watched(site) -> subprocess.Popen:
    """Attaches a terminal to the window."""
    theirs, ours = os.openpty()
    env = site.rig.env | {"TERM": "xterm"}
    words = [site.rig.binary, "attach", "w"]
    client = subprocess.Popen(words, env=env, cwd=site.rig.repo, stdin=ours, stdout=ours, stderr=ours, start_new_session=True)
    os.close(ours)
    # What tmux draws must be read, or it waits.
    threading.Thread(target=drain, args=(theirs,), daemon=True).start()
    return client


def drain(terminal: int) -> None:
    try:
        while os.read(terminal, 1 << 16):
            pass
    except OSError:
        os.close(terminal)


def shows(site, word: str) -> None:
    wait_until(lambda: word in site.swarm("peek", "w", "-n", "0").out, LIMIT, f"the window shows {word!r}")


def of_codex(site) -> list[str]:
    """codex in a window hears answers from outside while nobody looks at the window, and shows its dialog otherwise. It
    reports when it works and when its turn is over. No file of its user is changed."""
    config = site.rig.home / ".codex" / "config.toml"
    names = ("one", "two", "three", "four", "five")
    steps = " ".join(f"[[escalate touch {name}.txt]]" for name in names[:4])
    spawn(site, "codex", f"[[as task]] {steps} [[gate end]] [[say Push it?]]")
    wish = asked(site, 1)["wish"]
    findings = [] if wish == {"type": "command", "command": "touch one.txt"} else [f"it wants {wish}"]
    answer(site, 1, {"verdict": "allow"})
    findings += over(site, 1, CARRIED_OUT)
    asked(site, 2)
    answer(site, 2, {"verdict": "deny", "reason": "not two"})
    findings += over(site, 2, "it was denied")
    asked(site, 3)
    client = watched(site)
    findings += over(site, 3, "somebody looks at the window, where its dialog asks")
    shows(site, "$ touch three.txt")
    press(site, "y")
    # While somebody looks, the dialog asks at once.
    shows(site, "$ touch four.txt")
    press(site, "y")
    # codex may ask the provider for something else in the same conversation at the same time.
    wait_until(lambda: site.stand_in.waiting("end") >= 1, LIMIT, "the last step is done")
    wait_until(lambda: doing(site) == "working", LIMIT, "codex works")
    site.stand_in.open("end")
    wait_until(lambda: doing(site) == "idle", LIMIT, "codex is idle")
    findings += [] if "it asks: Push it?" in site.swarm("explain", "w").out else ["its question is not shown"]
    client.kill()
    client.wait()
    site.rig.tmux("detach-client", "-s", SESSION)
    wait_until(lambda: not site.rig.tmux("list-clients").out, LIMIT, "nobody looks")
    site.rig.must("send", "w", "[[as task]] [[escalate touch five.txt]]", cwd=site.rig.repo)
    asked(site, 4)
    press(site, "Escape")
    findings += over(site, 4, "the dialog was dismissed, or the agent has ended")
    made = [name for name in names if (site.rig.repo / f"{name}.txt").exists()]
    findings += [] if made == ["one", "three", "four"] else [f"made: {made}"]
    return findings + ([] if "hooks" not in config.read_text() else [f"hooks in {config}"])


def ruled(site, *words: str) -> list[str]:
    """A rule of a person answers the agent in a window at once: yes to what it allows, no to what it denies. What no rule
    decides is asked."""
    spawn(site, *words)
    findings = [] if asked(site, 1)["wish"]["command"] == "touch three.txt" else ["something else was asked first"]
    answer(site, 1, {"verdict": "allow"})
    wait_until(lambda: (site.rig.repo / "three.txt").exists(), LIMIT, "what was allowed is done")
    wait_until(lambda: doing(site) == "idle", LIMIT, "the agent is idle")
    made = [name for name in ("one", "two", "three") if (site.rig.repo / f"{name}.txt").exists()]
    findings += [] if made == ["one", "three"] else [f"made: {made}"]
    findings += [] if part(site, 2, "ask") is None else ["it was asked about what a rule decides"]
    screen = site.swarm("peek", "w", "-n", "0").out
    return findings + ([] if "not two" in screen else [f"the reason is not on the screen: {screen}"])


def with_rules(site) -> None:
    site.rig.must("rules", "add", "--allow", "touch one.txt", cwd=site.rig.repo)
    site.rig.must("rules", "add", "--deny", "touch two.txt", "--reason", "not two", cwd=site.rig.repo)


def rules_of_claude(site) -> list[str]:
    with_rules(site)
    steps = "[[bash touch one.txt]] [[bash touch two.txt]] [[bash touch three.txt]] [[say done]]"
    return ruled(site, "claude", "--model", MODEL, "--permission-mode", "manual", f"[[as task]] {steps}")


def rules_of_codex(site) -> list[str]:
    with_rules(site)
    steps = " ".join(f"[[escalate touch {name}.txt]]" for name in ("one", "two", "three"))
    return ruled(site, "codex", f"[[as task]] {steps} [[say done]]")


CLAUDE = {"answered from outside": of_claude, "headless, asks nobody": not_in_a_window,
          "answered by a rule in a window": rules_of_claude}
CODEX = {"answered from outside": of_codex, "answered by a rule in a window": rules_of_codex}
