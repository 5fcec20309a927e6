"""The fault laboratory and the benchmarks of swarm.

Everything here looks at the built binary from outside: it starts it in a rig of
its own (temporary home, state directory, tmux socket, repository), disturbs it,
and judges by the files, the process table and the workers' own ledger. Standard
library only, Linux on x86_64 only.

    python3 -m lab --help        (with PYTHONPATH=tests, from the repository)
"""
