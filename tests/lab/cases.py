"""Running cases: one line each, a closing count, an exit code that says it all."""

import argparse
import multiprocessing
import re
import signal
import sys
import time
import traceback

from . import procs


def parser(doc: str) -> argparse.ArgumentParser:
    """The options that every module has."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", metavar="PATTERN", help="run only the cases whose name matches this regular expression")
    return made


def chosen(names, only: str | None) -> list:
    """The names that --only selects."""
    return [name for name in names if not only or re.search(only, name)]


class Tally:
    """Counts verdicts and prints each as one line."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0
        self.skipped = 0

    def record(self, name: str, findings: list[str], *, seconds: float | None = None, repro: str = "") -> None:
        took = f" ({seconds:.1f} s)" if seconds is not None else ""
        if not findings:
            self.passed += 1
            print(f"ok    {name}{took}", flush=True)
            return
        self.failed += 1
        print(f"FAIL  {name}{took}: {'; '.join(findings)}", flush=True)
        if repro:
            print(f"      again: {repro}", flush=True)

    def skip(self, name: str, why: str) -> None:
        self.skipped += 1
        print(f"skip  {name}: {why}", flush=True)

    def close(self) -> int:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        print(f"{self.passed} passed, {self.failed} failed{skipped}", flush=True)
        return 1 if self.failed else 0


class Skip(Exception):
    """A case that cannot run on this machine, and why."""


def attempt(case) -> tuple[list[str], float]:
    """Runs a case that returns findings; an exception is a finding too."""
    begun = time.monotonic()
    try:
        findings = case() or []
    except Skip:
        raise
    except AssertionError as error:
        findings = [str(error) or "assertion failed"]
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        findings = [f"{type(error).__name__}: {error} ({last.name}:{last.lineno})"]
    return findings, time.monotonic() - begun


def run_all(cases: dict, only: str | None, tally: Tally | None = None) -> Tally:
    """Runs named cases in order."""
    tally = tally or Tally()
    procs.become_subreaper()
    for name in chosen(cases, only):
        try:
            findings, seconds = attempt(cases[name])
        except Skip as why:
            tally.skip(name, str(why))
            continue
        tally.record(name, findings, seconds=seconds)
    return tally


def _prepare_job() -> None:
    # Each job adopts the orphans of its own rigs; the terminal's Ctrl-C is the parent's affair.
    procs.become_subreaper()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def in_parallel(function, items: list, jobs: int):
    """Yields function(item) for all items, in the order in which they end."""
    if jobs <= 1:
        procs.become_subreaper()
        yield from map(function, items)
        return
    pool = multiprocessing.get_context("fork").Pool(jobs, initializer=_prepare_job)
    try:
        yield from pool.imap_unordered(function, items, chunksize=1)
        # Told to leave, not terminated: a signal that comes just before a job waits for
        # its next item is seen by nobody.
        pool.close()
    except BaseException:
        pool.terminate()
        raise
    finally:
        pool.join()


def ends_on_term() -> None:
    """SIGTERM ends the program in order, so that the rigs are cleared away."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
