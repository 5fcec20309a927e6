"""Runs on other machines through a real sshd: the line of one host is cut in the middle, supervisors are killed, an attempt
is given up, and a host is restarted."""

import json
import signal
from pathlib import Path

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


def small_repository(here: Rig, scripts: dict[str, str]) -> None:
    """Makes a repository with a spec for each script."""
    repo = here.make_repo()
    (repo / "specs").mkdir()
    for name, script in scripts.items():
        text = f"---\nadapter: shell\n---\n# Spec {name}\n\n```sh\n{script}\n```\n"
        (repo / "specs" / f"{name}.md").write_text(text)
    for words in (["add", "specs"], ["commit", "-q", "-m", "specs"]):
        here.run("git", *words, cwd=repo)


def begin(site: Site, *words: str) -> list[str]:
    """Plans the specs, and starts the run."""
    here = site.here
    for door in site.doors.values():
        (door.rig.home / ".gitconfig").write_text("[user]\nname = x\nemail = x@example.com\n")
    for line in (["plan", "--specs", "specs", "-y"], ["trust", "--yes"], ["run", *words, "--detach"]):
        said = here.run(str(here.binary), *line, cwd=here.repo, limit=120)
        if said.rc != 0:
            return [f"{line}: {said.rc} {said.err[-400:]}"]
    return []


def lose(site: Site, name: str) -> None:
    """Keeps new connections from a host, and cuts those that there are."""
    config = site.here.root / "ssh_config"
    config.write_text(config.read_text().replace(f"Port {site.doors[name].port}\n", f"Port {site.dead}\n"))
    site.close()


def find(site: Site) -> None:
    site.configure()


def is_away(site: Site, name: str) -> bool:
    return any(host["name"] == name and host["state"] == "away" for host in status(site).get("hosts", []))


def job(site: Site) -> dict:
    return status(site)["workstreams"][0]


def merges(here: Rig) -> int:
    return len(here.run("git", "log", "--merges", "--format=%H", "main", cwd=here.repo).out.split())


def is_forgotten(site: Site, name: str) -> bool:
    return json.loads(site.swarm("--host", name, "ls", "--json").out)["workers"] == []


def given_up(site: Site) -> list[str]:
    """The host of an attempt is cut off, and the attempt given up: another host repeats it. Then the host is back."""
    here, log, go = site.here, site.here.root / "executed", site.here.root / "go"
    script = (f"echo $HOME >> {log}; git commit -q --allow-empty -m \"part $HOME\"; echo left > left.txt; "
              f"until [ -e {go} ]; do sleep 0.05; done; echo w > w.txt; rm left.txt")
    small_repository(here, {"w": script})
    findings = begin(site, "--on", "a,b")
    if findings:
        return findings
    wait_until(lambda: log.exists() and job(site).get("host") == "a", 60, "it works on a")
    lose(site, "a")
    wait_until(lambda: is_away(site, "a"), 60, "that is known", 0.05)
    said = here.run(str(here.binary), "run", "give-up", "w", cwd=here.repo, limit=60)
    findings += same("give-up", said.rc, 0)
    wait_until(lambda: len(log.read_text().splitlines()) == 2, 60, "it works on b")
    find(site)
    reference = "refs/swarm/from/a/w.1"
    listed = ["git", "for-each-ref", "--format=%(refname)", "refs/swarm/from"]
    wait_until(lambda: here.run(*listed, cwd=here.repo).out.strip() == reference, 90, "its work is here", 0.1)
    wait_until(lambda: is_forgotten(site, "a"), 60, "a has forgotten it", 0.2)
    go.write_text("")
    wait_until(lambda: status(site)["status"] != "running", OVER, "the run is over", 0.2)
    end = status(site)
    findings += same("status", (end["status"], end["workstreams"][0]["attempt"]), ("completed", 2))
    homes = [str(site.doors[name].rig.home) for name in ("a", "b")]
    findings += same("executed", log.read_text().splitlines(), homes)
    findings += same("merges", merges(here), 1)
    findings += same("landed", (here.repo / "w.txt").exists() and not (here.repo / "left.txt").exists(), True)
    kept = here.run("git", "log", "--format=%s", f"main..{reference}", cwd=here.repo).out
    findings += same("its commit is kept", f"part {homes[0]}" in kept.splitlines(), True)
    findings += same("what it left is kept", here.run("git", "show", f"{reference}:left.txt", cwd=here.repo).out, "left\n")
    findings += same("named", [one.get("reference") for one in end["given_up"]], [reference])
    wait_until(lambda: is_forgotten(site, "b"), 60, "b has forgotten it", 0.2)
    return findings


def reboot(rig: Rig) -> None:
    """Ends everything on a host at once, and makes its files look as if an earlier boot had written them."""
    def all_killed() -> bool:
        left = rig.census()
        # All stop before the first is killed: a shim that runs on would record how its worker ended.
        for send in (signal.SIGSTOP, signal.SIGKILL):
            for one in left:
                procs.send(one.pid, one.start, send)
        return not left
    wait_until(all_killed, 30, "everything on the host has ended")
    present = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for name in ("lease", "begun.json"):
        for file in rig.root.rglob(name):
            file.write_text(file.read_text().replace(present, "00000000-0000-0000-0000-000000000000"))


def restarted(site: Site) -> list[str]:
    """A host is restarted while attempts are at work: they are repeated there with what they had done, and land once."""
    here, door, log = site.here, site.doors["a"], site.here.root / "executed"
    names = ("v", "w")
    small_repository(here, {name: (
        f"echo part >> {name}.txt; echo {name} >> {log}; [ $(grep -c {name} {log}) -gt 1 ] || exec sleep 600"
    ) for name in names})
    findings = begin(site, "--on", "a")
    if findings:
        return findings
    wait_until(lambda: log.exists() and sorted(log.read_text().split()) == list(names), 60, "both are at work")
    lose(site, "a")
    reboot(door.rig)
    find(site)
    wait_until(lambda: status(site)["status"] != "running", OVER, "the run is over", 0.2)
    end = status(site)
    findings += same("status", end["status"], "completed")
    findings += same("attempts", [one["attempt"] for one in end["workstreams"]], [2, 2])
    findings += same("executed", sorted(log.read_text().split()), sorted(names * 2))
    findings += same("merges", merges(here), len(names))
    for name in names:
        findings += same(f"{name}.txt", (here.repo / f"{name}.txt").read_text(), "part\npart\n")
    wait_until(lambda: is_forgotten(site, "a"), 60, "the host has forgotten them", 0.2)
    return findings


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
