"""Runs on other machines through a real sshd: the line of one host is cut in the middle, and supervisors are killed."""

import json
import signal

from . import procs
from .hosts import Site
from .rig import Rig, wait_until
from .ssh import same

JOBS = 12
CAP = 3
# Time for the whole run, on a loaded machine.
OVER = 240
CHECK = 'for file in *.txt; do [ "$(cat "$file")" = "${file%.txt}" ] || exit 1; done'


def repository(here: Rig, log) -> None:
    """Makes a repository with specs, of which the last three come after others."""
    repo = here.make_repo()
    (repo / "specs").mkdir()
    for number in range(JOBS):
        after = f"after: [j{number - 9}]\n" if number >= 9 else ""
        # Long enough that some are at work at any moment.
        script = f"echo j{number} >> {log}\nsleep 2\necho j{number} > j{number}.txt"
        text = f"---\nadapter: shell\n{after}---\n# Job {number}\n\n```sh\n{script}\n```\n"
        (repo / "specs" / f"j{number}.md").write_text(text)
    for words in (["add", "specs"], ["commit", "-q", "-m", "specs"]):
        here.run("git", *words, cwd=repo)


def status(site: Site) -> dict:
    return json.loads(site.here.run(str(site.here.binary), "run", "status", "--json", cwd=site.here.repo, limit=60).out)


def kill_supervisor(rig: Rig) -> None:
    """Kills the supervisor of a rig; its guard starts another one."""
    said = rig.run(str(rig.binary), "supervisor", "status", "--json", cwd=rig.home)
    pid = json.loads(said.out).get("pid") if said.out else None
    found = procs.read_stat(pid) if pid else None
    if found:
        procs.send(pid, found.start, signal.SIGKILL)


def base_is_green(here: Rig) -> list[str]:
    """Checks each commit that the base was at."""
    commits = here.run("git", "rev-list", "--first-parent", "main", cwd=here.repo).out.split()
    findings = []
    for commit in commits:
        tree = here.root / f"tree-{commit[:12]}"
        here.run("git", "worktree", "add", "-q", "--detach", str(tree), commit, cwd=here.repo)
        if list(tree.glob("*.txt")) and here.run("sh", "-c", CHECK, cwd=tree).rc != 0:
            findings.append(f"the base is not green at {commit}")
        here.run("git", "worktree", "remove", "--force", str(tree), cwd=here.repo)
    return findings


def lost_and_found(site: Site) -> list[str]:
    """Twelve specs over two hosts. One of them is out of reach for a while, and all supervisors are killed once."""
    here, log = site.here, site.here.root / "executed"
    repository(here, log)
    config = here.home / ".config" / "swarm" / "config.toml"
    text = config.read_text()
    for name, door in site.doors.items():
        text = text.replace(f"[hosts.{name}]\n", f"[hosts.{name}]\ncap = {CAP}\n")
        (door.rig.home / ".gitconfig").write_text("[user]\nname = x\nemail = x@example.com\n")
    config.write_text(text)
    for words in (["plan", "--specs", "specs", "-y"], ["trust", "--yes"],
                  ["run", "--on", ",".join(site.doors), "--verify", CHECK, "--detach"]):
        said = here.run(str(here.binary), *words, cwd=here.repo, limit=120)
        if said.rc != 0:
            return [f"{words}: {said.rc} {said.err[-400:]}"]
    most = dict.fromkeys(site.doors, 0)

    def looked() -> dict:
        now = status(site)
        for host in now.get("hosts", []):
            most[host["name"]] = max(most[host["name"]], host["working"])
        return now

    wait_until(lambda: log.exists() and len(log.read_text().split()) >= 2, 60, "work is done")
    known = (here.root / "ssh_config").read_text()
    lost = next(iter(site.doors))
    (here.root / "ssh_config").write_text(known.replace(f"Port {site.doors[lost].port}\n", f"Port {site.dead}\n"))
    site.close()
    wait_until(lambda: any(host["state"] == "away" for host in looked()["hosts"]), 60, "a host is out of reach", 0.05)
    for rig in [here] + [door.rig for door in site.doors.values()]:
        kill_supervisor(rig)
    (here.root / "ssh_config").write_text(known)
    wait_until(lambda: looked()["status"] != "running", OVER, "the run is over", 0.5)
    end = status(site)
    findings = same("status", end["status"], "completed")
    findings += same("stages", {job["stage"] for job in end["workstreams"]}, {"done"})
    findings += same("executed", sorted(log.read_text().split()), sorted(f"j{number}" for number in range(JOBS)))
    findings += [f"{most[name]} attempts at a time on {name}" for name in most if most[name] > CAP]
    findings += base_is_green(here)
    for name, door in site.doors.items():
        wait_until(lambda: json.loads(site.swarm("--host", name, "ls", "--json").out)["workers"] == [], 90,
                   f"the workers of {name} are forgotten", 0.5)
        clones = list(door.rig.home.glob("**/far/*/*/clone")) + list(door.rig.root.glob("**/far/*/*/clone"))
        for clone in set(clones):
            left = door.rig.run("git", "-C", str(clone), "for-each-ref", "refs/heads/arial").out
            findings += same(f"branches on {name}", left, "")
    return findings
