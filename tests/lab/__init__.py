"""The fault laboratory and the benchmarks of swarm.

Every module tests the built binary from outside: it starts the binary in a private rig (temporary home, state
directory, tmux socket, repository), disturbs it, and judges by the files, the process table and the workers' own
ledger. Needs only the standard library; runs only on Linux on x86_64.

    python3 -m lab --help        (with PYTHONPATH=tests, from the repository)
"""
