"""Hosts that are allocations of a real Slurm (docs/slurm.md): runs in them, their end, nodes and controllers that die."""

import re
import signal
import sys

from . import cases, procs
from .inject import panics
from .rig import Rig, wait_until
from .slurm_cluster import Cluster
from .ssh import same

SPEC = "---\nadapter: shell\n---\n# {name}\n\n```sh\n{script}\n```\n"
QUICK = "hostname > {name}.txt; git add {name}.txt; git commit -qm {name}"
# Commits a part, and the rest once the file is there.
SLOW = """echo part >> slow.txt; git add slow.txt; git commit -qm part
while [ ! -e {go} ]; do sleep 0.2; done
echo end >> slow.txt; git add slow.txt; git commit -qm end"""

# Argument of sleep by which a worker is found.
LONG = "600.125"


class Desk:
    """A person's rig on a login node, and a repository."""

    def __init__(self, rig: Rig, cluster: Cluster):
        self.rig, self.cluster = rig, cluster
        config = rig.home / ".config" / "swarm"
        config.mkdir(parents=True)
        (config / "config.toml").write_text(
            f'[hosts.cluster]\nengine = "slurm-pilot"\nswarm = "{rig.binary}"\ntime = "2h"\n')
        identity = "[user]\nname = Lab\nemail = lab@localhost\n"
        (rig.home / ".gitconfig").write_text(identity)
        (rig.home / ".profile").write_text(f"export TMUX_TMPDIR={rig.env['TMUX_TMPDIR']}\n")
        self.repo = rig.root / "project"
        (self.repo / "specs").mkdir(parents=True)

    def swarm(self, *words: str):
        return self.rig.run(str(self.rig.binary), *words, cwd=self.repo, limit=120)

    def on(self, *words: str):
        return self.swarm("--host", "cluster", *words)

    def git(self, *words: str) -> str:
        return self.rig.run("git", *words, cwd=self.repo, limit=30).out

    def start(self, *words: str) -> list[str]:
        said = self.swarm("hosts", "start", "cluster", "--wait", *words)
        return same("start", "cluster is up" in said.out, True) + ([said.err] if said.rc else [])

    def plan(self, specs: dict[str, str]) -> None:
        for name, script in specs.items():
            (self.repo / "specs" / f"{name}.md").write_text(SPEC.format(name=name, script=script))
        self.git("init", "-q", "-b", "main")
        self.git("add", ".")
        self.git("commit", "-qm", "base")
        self.swarm("plan", "--specs", "specs", "-y")
        self.swarm("trust", "--yes")

    def lines(self, name: str) -> str:
        return self.git("show", f"main:{name}")

    def works(self) -> bool:
        return "running" in self.on("ls").out

    def await_commit(self, subject: str, limit: int = 150) -> None:
        wait_until(lambda: subject in self.git("log", "--format=%s", "main").splitlines(), limit, f"'{subject}' landed",
                   step=0.5)


def at_a_desk(scene):
    def case() -> list[str]:
        with Rig(home_length=1) as rig, Cluster(rig) as cluster:
            return scene(Desk(rig, cluster)) + panics(rig)
    return case


def specs(desk: Desk) -> list[str]:
    """Specs are worked on in an allocation, and land here; the next allocation has the workers of the last one."""
    desk.plan({name: QUICK.format(name=name) for name in ("a", "b")})
    findings = desk.start()
    findings += same("run", desk.swarm("run", "--on", "cluster", "--headless").rc, 0)
    findings += same("landed", desk.lines("a.txt").strip() in ("n1", "n2"), True)
    desk.on("spawn", "--name", "w", "--", "sh", "-c", "exit 7")
    desk.on("wait", "w")
    desk.on("spawn", "--name", "long", "--", "sleep", "600")
    findings += same("stop", desk.swarm("hosts", "stop", "cluster").rc, 0)
    findings += desk.start()
    findings += same("code", desk.on("wait", "w", "--exit-code").rc, 7)
    return findings + same("ended", "long: stopped" in desk.on("status", "long").out, True)


def ended(desk: Desk) -> list[str]:
    """An allocation that is cancelled by hand loses no work: the run goes on in the next one."""
    go = desk.rig.root / "go"
    desk.plan({"slow": SLOW.format(go=go)})
    findings = desk.start()
    findings += same("run", desk.swarm("run", "--on", "cluster", "--headless", "--detach").rc, 0)
    wait_until(desk.works, 30, "the attempt works")
    job = re.search(r'"job":(\d+)', desk.swarm("hosts", "--json").out)[1]
    desk.rig.run("scancel", job, limit=30)
    wait_until(lambda: '"state":"ended"' in desk.swarm("hosts", "--json").out, 60, "it has ended", step=0.5)
    go.touch()
    findings += desk.start()
    desk.await_commit("end")
    return findings + same("once", desk.lines("slow.txt").count("end"), 1)


def node(desk: Desk) -> list[str]:
    """A node that fails: the next allocation waits for the proof that nothing works there, and the work lands once."""
    go = desk.rig.root / "go"
    desk.plan({"slow": SLOW.format(go=go)})
    findings = desk.start("--", "--nodelist=n1")
    findings += same("run", desk.swarm("run", "--on", "cluster", "--headless", "--detach").rc, 0)
    wait_until(desk.works, 30, "the attempt works")
    desk.cluster.kill("n1")
    wait_until(lambda: desk.cluster.state_of("n1").startswith("down"), 120, "Slurm notices", step=0.5)
    refused = desk.swarm("hosts", "start", "cluster", "--wait")
    findings += same("held", (refused.rc, "does not answer" in refused.err), (1, True))
    desk.cluster.start_node("n1")
    desk.cluster.await_node("n1")
    go.touch()
    findings += desk.start("--", "--nodelist=n2")
    desk.await_commit("end")
    return findings + same("once", desk.lines("slow.txt").count("end"), 1)


def controller(desk: Desk) -> list[str]:
    """A controller that is gone ends nothing."""
    findings = desk.start()
    desk.on("spawn", "--name", "w", "--", "sleep", "600")
    # It saves what it knows.
    desk.cluster.kill("slurmctld", signal.SIGTERM)
    away = desk.swarm("hosts")
    findings += same("unknown", ("away" in away.out, "cannot ask Slurm" in away.err), (True, True))
    desk.cluster.start_controller()
    wait_until(lambda: desk.swarm("hosts", "--json").rc == 0, 90, "the host answers", step=0.5)
    return findings + same("worker", "w: running" in desk.on("status", "w").out, True)


def forgotten(desk: Desk) -> list[str]:
    """A controller that is killed forgets that the job has begun. A second execution leaves, and the next allocation begins
    once nothing of the first one is left."""
    findings = desk.start()
    desk.on("spawn", "--name", "w", "--", "sleep", LONG)
    desk.cluster.kill("slurmctld")
    desk.cluster.start_controller()
    wait_until(lambda: '"state":"ended"' in desk.swarm("hosts", "--json").out, 90, "Slurm has ended it", step=0.5)
    findings += desk.start()
    findings += same("left", [pid for pid in procs.all_pids() if procs.read_argv(pid) == ("sleep", LONG)], [])
    return findings + same("worker", "w: running" in desk.on("status", "w").out, False)


SCENES = {"specs": at_a_desk(specs), "ended": at_a_desk(ended), "node": at_a_desk(node), "controller": at_a_desk(controller),
          "forgotten": at_a_desk(forgotten)}


def main(argv=None) -> int:
    parser = cases.parser(__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="number of clusters at the same time")
    args = parser.parse_args(argv)
    cases.ends_on_term()
    return cases.run_all(SCENES, args.only, allow_skips=args.allow_skips, jobs=args.jobs).close()


if __name__ == "__main__":
    sys.exit(main())
