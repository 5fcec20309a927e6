"""A real Slurm of two nodes on this machine, in a private directory: munged, slurmctld and a slurmd per node. A node has
namespaces of its own for names, processes and mounts, so that its end is that of all its processes. Nothing in /etc is used."""

import os
import shutil
import signal
import socket
import subprocess

from . import cases, procs
from .rig import wait_until
from .ssh import free_port

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scancel", "srun", "sinfo", "unshare")
# Without a daemon of munge of its own, a cluster would need that of the machine.
CONF = """ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={place}/munge/munge.sock
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool/%n
SlurmctldPidFile={place}/run/slurmctld.pid
SlurmdPidFile={place}/run/slurmd.%n.pid
SlurmctldLogFile={place}/log/slurmctld.log
SlurmdLogFile={place}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SchedulerParameters=sched_min_interval=100000,bf_interval=5,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=5
SlurmdTimeout=10
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs=4 State=UNKNOWN\n"
NODES = ("n1", "n2")
START = 'hostname "$1"; exec slurmd -D -N "$1" -f "$2"'


class Cluster:
    """Context manager; on exit, all daemons and nodes are ended, each by its own pid."""

    def __init__(self, rig):
        lacking = [program for program in PROGRAMS if not shutil.which(program)]
        if lacking:
            raise cases.Missing(lacking[0])
        if os.geteuid() != 0:
            raise cases.Skip("needs root for a Slurm of its own")
        self.rig, self.place = rig, rig.root / "slurm"
        self.conf, self.daemons = self.place / "slurm.conf", {}

    def __enter__(self) -> "Cluster":
        for leaf in ("munge", "log", "state", "spool", "run"):
            (self.place / leaf).mkdir(parents=True)
        for node in NODES:
            (self.place / "spool" / node).mkdir()
        self.place.chmod(0o755)
        key = self.place / "munge" / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        nodes = "".join(NODE.format(name=node, port=free_port()) for node in NODES)
        host = socket.gethostname().split(".")[0]
        self.conf.write_text(CONF.format(host=host, port=free_port(), place=self.place) + nodes)
        self.rig.env["SLURM_CONF"] = str(self.conf)
        try:
            self.start("munged", "munged", "--foreground", "--force", f"--key-file={key}",
                       f"--socket={self.place}/munge/munge.sock", f"--pid-file={self.place}/munge/pid",
                       f"--log-file={self.place}/log/munged.log", f"--seed-file={self.place}/munge/seed")
            wait_until((self.place / "munge" / "munge.sock").exists, 20, "munged listens")
            self.start_controller()
            for node in NODES:
                self.start_node(node)
            for node in NODES:
                self.await_node(node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, name: str, *words: str) -> None:
        with open(self.place / "log" / f"{name}.out", "ab") as out:
            self.daemons[name] = subprocess.Popen(words, env=self.rig.env, stdin=subprocess.DEVNULL, stdout=out,
                                                  stderr=out, start_new_session=True)

    def start_controller(self) -> None:
        self.start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))

    def start_node(self, node: str) -> None:
        self.start(node, "unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc",
                   "bash", "-c", START, "_", node, str(self.conf))

    def kill(self, name: str, by: signal.Signals = signal.SIGKILL) -> None:
        """Kills a daemon, or a node with all of its processes."""
        daemon = self.daemons.pop(name)
        daemon.send_signal(by)
        daemon.wait()
        procs.forget(daemon)

    def state_of(self, node: str) -> str:
        return self.rig.run("sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T", limit=30).out.strip()

    def await_node(self, node: str) -> None:
        wait_until(lambda: self.state_of(node) in ("idle", "mixed", "allocated"), 60, f"{node} answers", step=0.2)

    def __exit__(self, *_) -> None:
        for name in [*reversed(self.daemons)]:
            self.kill(name)
