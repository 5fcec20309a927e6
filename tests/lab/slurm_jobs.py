"""Workers that are jobs of a real Slurm (docs/slurm.md): nodes and controllers that die, cancels, and time limits."""

import json
import random
import signal
import sys

from . import cases, procs
from .inject import panics
from .rig import Rig, wait_until
from .slurm import SPEC
from .slurm_cluster import Cluster
from .ssh import same

# Commits a part, and the rest once its file is there.
STEPS = """echo part >> {name}.txt; git add {name}.txt; git commit -qm {name}
while [ ! -e {go}/{name} ]; do sleep 0.2; done
echo end >> {name}.txt; git add {name}.txt; git commit -qm {name}"""
NAMES = tuple("abcdef")


class Desk:
    """A person's rig on a login node whose state directory the nodes share."""

    def __init__(self, rig: Rig, cluster: Cluster):
        self.rig, self.cluster = rig, cluster
        # Argument of sleep by which the workers of this rig are found.
        self.long = f"600.{random.randrange(10**9):09}"
        config = rig.home / ".config" / "swarm"
        config.mkdir(parents=True)
        (config / "config.toml").write_text(f'[hosts.jobs]\nengine = "slurm"\nswarm = "{rig.binary}"\nask = "4s"\n')

    def swarm(self, *words: str):
        return self.rig.run(str(self.rig.binary), *words, limit=120)

    def slurm(self, *words: str) -> str:
        return self.rig.run(*words, limit=30).out

    def submit(self, name: str, script: str, *flags: str) -> list[str]:
        said = self.swarm("spawn", "--on", "jobs", "--name", name, *flags, "--", "sh", "-c", script)
        return same(f"spawn {name}", (said.rc, said.out.startswith(f"spawned {name} (job: {name}.")), (0, True))

    def status(self, name: str) -> dict:
        return json.loads(self.swarm("status", name, "--json").out)

    def await_state(self, name: str, state: str, limit: int = 90) -> None:
        wait_until(lambda: self.status(name)["state"] == state, limit, f"{name} is {state}", step=0.2)

    def end(self, name: str) -> tuple:
        """Returns state, code and signal of a worker."""
        status = self.status(name)
        exit = status["exit"] or {}
        return status["state"], exit.get("code"), exit.get("signal")

    def number(self, name: str) -> str:
        wait_until(lambda: self.status(name)["job"]["number"], 30, f"{name} has a number", step=0.2)
        return str(self.status(name)["job"]["number"])


def at_a_desk(scene):
    def case() -> list[str]:
        with Rig(home_length=1) as rig, Cluster(rig) as cluster:
            return scene(Desk(rig, cluster)) + panics(rig)
    return case


def left(desk: Desk) -> list[int]:
    return [pid for pid in procs.all_pids() if procs.read_argv(pid) == ("sleep", desk.long)]


def ends(desk: Desk) -> list[str]:
    """Workers are jobs, on both nodes, and end as their records say: by themselves, killed, cancelled by hand, at a limit."""
    findings = same("check", desk.swarm("hosts", "check", "jobs", "--job", "--agent", "sh").rc, 0)
    for number in range(4):
        findings += desk.submit(f"w{number}", f"hostname; env | grep -c ^SLURM_JOB_ID; exit {number}", "--cpu", "2")
    for number in range(4):
        findings += same("code", desk.swarm("wait", f"w{number}", "--exit-code").rc, number)
    places = {desk.swarm("logs", f"w{number}").out for number in range(4)}
    findings += same("nodes", places <= {"n1\n1\n", "n2\n1\n"}, True)
    # At work: by a verb, by hand, and at a limit that Slurm has.
    findings += desk.submit("killed", f"trap 'exit 3' TERM; sleep {desk.long} & wait")
    findings += desk.submit("cancelled", f"sleep {desk.long}")
    for name in ("killed", "cancelled"):
        desk.await_state(name, "running")
    findings += same("kill", desk.swarm("kill", "killed").rc, 0) + same("killed", desk.end("killed"), ("stopped", 3, None))
    desk.slurm("scancel", desk.number("cancelled"))
    desk.await_state("cancelled", "interrupted")
    findings += same("cancelled", desk.end("cancelled"), ("interrupted", None, "SIGTERM"))
    # In the queue: all CPUs are taken.
    for name in ("big1", "big2", "waits"):
        findings += desk.submit(name, f"sleep {desk.long}", "--cpu", "4")
    desk.await_state("waits", "queued")
    wait_until(lambda: desk.status("waits")["job"]["reason"], 30, "Slurm says why", step=0.2)
    findings += same("kill", desk.swarm("kill", "waits", "big1", "big2").rc, 0)
    findings += same("states", [desk.end(name)[0] for name in ("waits", "big1", "big2")], ["stopped"] * 3)
    findings += same("queue", desk.slurm("squeue", "--noheader").strip(), "")
    return findings + same("left", left(desk), [])


def limit(desk: Desk) -> list[str]:
    """At the time limit of Slurm a worker ends by its reason, also if it ignores signals, within a short KillWait."""
    config = desk.rig.home / ".config" / "swarm" / "config.toml"
    config.write_text(config.read_text() + 'time = "1m"\n')
    findings = desk.submit("late", f"trap '' TERM; sleep {desk.long}")
    desk.await_state("late", "exited", 150)
    status = desk.status("late")
    seen = (status["exit"]["reason"], status["exit"]["signal"], status["failed"])
    return findings + same("reason", seen, ("timeout", "SIGKILL", True)) + same("left", left(desk), [])


def node(desk: Desk) -> list[str]:
    """A node that fails: its worker is lost, with no code, and starts again only once the node answers."""
    config = desk.rig.home / ".config" / "swarm" / "config.toml"
    config.write_text(config.read_text() + 'arguments = ["--nodelist=n1"]\n')
    findings = desk.submit("w", f"echo begun; sleep {desk.long}")
    desk.await_state("w", "running")
    desk.cluster.kill("n1")
    desk.await_state("w", "lost", 150)
    status = desk.status("w")
    findings += same("lost", (status["exit"]["outcome"], status["job"]["unproven"]), ("unknown", True))
    refused = desk.swarm("recover", "w", "--apply")
    findings += same("refused", (refused.rc, "does not reach" in refused.err), (1, True))
    desk.cluster.start_node("n1")
    desk.cluster.await_node("n1")
    findings += same("recover", desk.swarm("recover", "w", "--apply").rc, 0)
    desk.await_state("w", "running")
    findings += same("twice", desk.swarm("logs", "w").out, "begun\nbegun\n")
    return findings + same("kill", desk.swarm("kill", "w").rc, 0)


def controller(desk: Desk) -> list[str]:
    """A controller that is gone ends nothing, also without a supervisor. One that was killed may execute a job again, which
    leaves."""
    findings = desk.submit("done", "echo once; exit 5") + desk.submit("works", f"echo once; sleep {desk.long}")
    desk.await_state("works", "running")
    desk.await_state("done", "exited")
    desk.cluster.kill("slurmctld")
    findings += same("works", desk.status("works")["state"], "running")
    said = desk.swarm("kill", "works")
    findings += same("kill", (said.rc, "cannot cancel job" in said.err), (1, True))
    findings += same("stop", desk.swarm("supervisor", "stop").rc, 0)
    findings += same("still", desk.status("works")["state"], "running")
    desk.cluster.start_controller()
    wait_until(lambda: desk.cluster.state_of("n1") in ("idle", "mixed", "allocated"), 90, "Slurm answers", step=0.5)
    # The next supervisor does what was asked.
    findings += same("next", desk.swarm("kill", "done").rc, 0)
    desk.await_state("works", "stopped")
    findings += same("stopped", desk.end("works")[0], "stopped") + same("done", desk.end("done"), ("exited", 5, None))
    findings += same("once", [desk.swarm("logs", name).out for name in ("done", "works")], ["once\n"] * 2)
    return findings + same("left", left(desk), [])


def frozen(desk: Desk) -> list[str]:
    """A node out of reach whose job goes on: the worker is lost and not proven, and its late end counts after all."""
    config = desk.rig.home / ".config" / "swarm" / "config.toml"
    config.write_text(config.read_text() + 'arguments = ["--nodelist=n1"]\n')
    go = desk.rig.root / "go"
    findings = desk.submit("w", f"while [ ! -e {go} ]; do sleep 0.2; done; exit 6")
    desk.await_state("w", "running")
    words = ("slurmd", "-D", "-N", "n1", "-f", str(desk.cluster.conf))
    daemons = [procs.read_stat(pid) for pid in procs.all_pids() if procs.read_argv(pid) == words]
    findings += same("daemons", len(daemons), 1)
    for daemon in daemons:
        procs.send(daemon.pid, daemon.start, signal.SIGSTOP)
    desk.await_state("w", "lost", 150)
    findings += same("unproven", desk.status("w")["job"]["unproven"], True)
    go.touch()
    desk.await_state("w", "exited")
    findings += same("late", desk.end("w"), ("exited", 6, None))
    for daemon in daemons:
        procs.send(daemon.pid, daemon.start, signal.SIGCONT)
    return findings


class Project(Desk):
    """A desk in a repository with six specs, and no more room than for four of them."""

    def __init__(self, rig: Rig, cluster: Cluster):
        super().__init__(rig, cluster)
        config = rig.home / ".config" / "swarm" / "config.toml"
        config.write_text(config.read_text() + "cpus = 2\n")
        (rig.home / ".gitconfig").write_text("[user]\nname = Lab\nemail = lab@localhost\n")
        self.repo, self.go = rig.root / "project", rig.root / "go"
        self.go.mkdir()
        (self.repo / "specs").mkdir(parents=True)
        for name in NAMES:
            (self.repo / "specs" / f"{name}.md").write_text(
                SPEC.format(name=name, script=STEPS.format(name=name, go=self.go)))
        for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-qm", "base")):
            rig.run("git", *words, cwd=self.repo, limit=30)
        self.swarm("plan", "--specs", "specs", "-y")
        self.swarm("trust", "--yes")

    def swarm(self, *words: str):
        return self.rig.run(str(self.rig.binary), *words, cwd=self.repo, limit=120)

    def workstreams(self) -> dict[str, dict]:
        run = json.loads(self.swarm("run", "status", "--json").out)
        return {row["id"]: {**row, "run": run["status"]} for row in run["workstreams"]}

    def at_work(self) -> dict[str, dict]:
        """Returns the jobs of attempts that execute their commands, by the names of specs."""
        views = json.loads(self.swarm("ls", "--json").out)["workers"]
        running = [view for view in views if view["state"] == "running" and view["job"]["node"]]
        return {view["name"].rsplit(".", 1)[-1]: view["job"] for view in running}

    def await_stage(self, names, stage: str, limit: int = 150) -> None:
        wait_until(lambda: all(self.workstreams()[name]["stage"] == stage for name in names), limit,
                   f"{names} are {stage}: {self.workstreams()}", step=0.5)


def runs(desk: Project) -> list[str]:
    """Six specs as jobs: one is cancelled by hand, a node and the controller are killed. Each lands once, and none of them has
    used up a retry."""
    findings = same("mix", desk.swarm("run", "--on", "jobs,local", "--detach").rc, 1)
    findings += same("run", desk.swarm("run", "--on", "jobs", "--verify", "true", "--retries", "0", "--detach").rc, 0)
    wait_until(lambda: len(desk.at_work()) == 4, 60, "four jobs work", step=0.5)
    wait_until(lambda: desk.swarm("run", "status").out.count("queued: ") == 2, 60, "two wait in the queue", step=0.5)
    first = desk.at_work()
    cancelled = next(name for name, job in first.items() if job["node"] == "n2")
    desk.slurm("scancel", str(first[cancelled]["number"]))
    wait_until(lambda: desk.workstreams()[cancelled]["attempt"] == 2, 90, "the cancelled one is repeated", step=0.5)
    findings += same("why", "Slurm says CANCELLED" in desk.workstreams()[cancelled]["error"], True)
    # The others of that node end, and all that can work do.
    for name in [name for name, job in first.items() if job["node"] == "n2"]:
        (desk.go / name).touch()
    wait_until(lambda: len(desk.at_work()) == 4, 90, "all others work", step=0.5)
    second = desk.at_work()
    lost = [name for name, job in second.items() if job["node"] == "n1"]
    findings += same("on n1", len(lost), 2)
    desk.cluster.kill("n1")
    # It saves what it knows: with what it knew before the cancel, it would drain the other node.
    desk.cluster.kill("slurmctld", signal.SIGTERM)
    findings += same("unknown", {desk.workstreams()[name]["stage"] for name in lost}, {"working"})
    desk.cluster.start_controller()
    for name in set(NAMES) - set(lost):
        (desk.go / name).touch()
    desk.await_stage(sorted(set(NAMES) - set(lost)), "done")
    wait_until(lambda: desk.swarm("run", "status").out.count("may still work") == 2, 150, "two may still work", step=0.5)
    findings += same("not twice", {desk.workstreams()[name]["attempt"] for name in lost}, {1})
    desk.cluster.start_node("n1")
    desk.cluster.await_node("n1")
    for name in lost:
        (desk.go / name).touch()
    desk.await_stage(NAMES, "done")
    rows = desk.workstreams()
    findings += same("failures", {row["failures"] for row in rows.values()}, {0})
    findings += same("repeated", [name for name in NAMES if rows[name]["attempt"] > 1], sorted([cancelled, *lost]))
    for name in NAMES:
        landed = desk.rig.run("git", "show", f"main:{name}.txt", cwd=desk.repo, limit=30).out.split()
        findings += same(f"{name} lands once", (landed[0], landed.count("end")), ("part", 1))
    wait_until(lambda: rows and desk.workstreams()[NAMES[0]]["run"] == "completed", 60, "the run is over", step=0.5)
    return findings + same("queue", desk.slurm("squeue", "--noheader").strip(), "")


def in_a_project(scene):
    def case() -> list[str]:
        with Rig(home_length=1) as rig, Cluster(rig) as cluster:
            return scene(Project(rig, cluster)) + panics(rig)
    return case


SCENES = {"jobs-runs": in_a_project(runs), "jobs-ends": at_a_desk(ends), "jobs-limit": at_a_desk(limit), "jobs-node": at_a_desk(node),
          "jobs-controller": at_a_desk(controller), "jobs-frozen": at_a_desk(frozen)}


def main(argv=None) -> int:
    parser = cases.parser(__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="number of clusters at the same time")
    args = parser.parse_args(argv)
    cases.ends_on_term()
    return cases.run_all(SCENES, args.only, allow_skips=args.allow_skips, jobs=args.jobs).close()


if __name__ == "__main__":
    sys.exit(main())
