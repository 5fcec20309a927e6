"""Workers that are jobs of a real Slurm (docs/slurm.md): nodes and controllers that die, cancels, and time limits."""

import json
import random
import signal
import sys

from . import cases, procs
from .inject import panics
from .rig import Rig, wait_until
from .slurm_cluster import Cluster
from .ssh import same


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


SCENES = {"jobs-ends": at_a_desk(ends), "jobs-limit": at_a_desk(limit), "jobs-node": at_a_desk(node),
          "jobs-controller": at_a_desk(controller), "jobs-frozen": at_a_desk(frozen)}


def main(argv=None) -> int:
    parser = cases.parser(__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="number of clusters at the same time")
    args = parser.parse_args(argv)
    cases.ends_on_term()
    return cases.run_all(SCENES, args.only, allow_skips=args.allow_skips, jobs=args.jobs).close()


if __name__ == "__main__":
    sys.exit(main())
