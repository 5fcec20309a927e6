"""Real conditions: full disks, bad registry files, wrong pids, hostile names, misbehaving processes, odd repositories,
flows.

Cases about disks run in a private mount namespace and those about pids in a private PID namespace; both need root and
are skipped without it.
"""

import os
import subprocess
import sys
from pathlib import Path

from . import cases, procs, real_compat, real_disk, real_flows, real_landing, real_pids, real_process, real_runs, real_sessions, real_state, real_tmux, real_trees

TESTS = Path(__file__).resolve().parents[1]
LAUNCH = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from lab.real import main; sys.exit(main())"
NAMESPACES = {"disk": ["unshare", "-m"], "pids": ["unshare", "-f", "-p", "-m", "--mount-proc", "--kill-child=KILL"]}
INSIDE = {**real_disk.CASES, **real_landing.INSIDE, **real_pids.CASES}
PLAIN = {**real_state.CASES, **real_tmux.CASES, **real_process.CASES, **real_compat.CASES, **real_landing.CASES, **real_runs.CASES, **real_sessions.CASES, **real_flows.CASES, **real_trees.CASES}
LIMIT = 180


def inside(name: str):
    """Runs the case as a separate program in its own namespace; its one line of output becomes the verdict."""

    def case() -> list[str]:
        if os.geteuid() != 0:
            raise cases.Skip("needs root for a private namespace")
        argv = [*NAMESPACES[name.split(":")[0]], sys.executable, "-c", LAUNCH, "--inside", name]
        process = procs.launch(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            out, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return [f"wedge: still running after {LIMIT} s"]
        finally:
            procs.forget(process)
        verdicts = [line for line in out.splitlines() if line.startswith(("ok ", "FAIL ", "skip "))]
        if not verdicts:
            return [f"no verdict: {out.strip()[-400:]}"]
        if verdicts[0].startswith("skip "):
            raise cases.skip_for(verdicts[0].removeprefix(f"skip  {name}: "))
        return [] if verdicts[0].startswith("ok ") else [verdicts[0].split("): ", 1)[-1]]

    return case


def run_inside(name: str) -> int:
    tally = cases.Tally()
    procs.become_subreaper()
    try:
        findings, seconds = cases.attempt(INSIDE[name])
        tally.record(name, findings, seconds=seconds)
    except cases.Skip as why:
        tally.skip(name, str(why))
    return tally.close()


def main(argv=None) -> int:
    parser = cases.parser(__doc__)
    parser.add_argument("--inside", help="run one case in the namespaces of this process")
    parser.add_argument("--list", action="store_true", help="list the cases and exit")
    parser.add_argument("--jobs", type=int, default=1, help="number of cases to run in parallel")
    args = parser.parse_args(argv)
    if args.inside:
        return run_inside(args.inside)
    every = {**PLAIN, **{name: inside(name) for name in INSIDE}}
    if args.list:
        print("\n".join(every))
        return 0
    cases.ends_on_term()
    return cases.run_all(every, args.only, allow_skips=args.allow_skips, jobs=args.jobs).close()


if __name__ == "__main__":
    sys.exit(main())
