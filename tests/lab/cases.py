"""Runs cases: prints one line per case and the counts at the end, and returns one exit code for all of them."""

import argparse
import multiprocessing
import re
import signal
import sys
import time
import traceback

from . import procs


def parser(doc: str) -> argparse.ArgumentParser:
    """Returns a parser with the options that every module has."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", metavar="PATTERN", help="run only the cases whose name matches this regular expression")
    made.add_argument("--allow-skips", action="store_true",
                      help="succeed even if cases were skipped for a reason other than a missing tool")
    return made


def chosen(names, only: str | None) -> list:
    """Returns the names that --only selects."""
    return [name for name in names if not only or re.search(only, name)]


class Skip(Exception):
    """Raised by a case that cannot run on this machine, with the reason."""


class Missing(Skip):
    """Raised by a case that needs a missing tool, with the name of the tool."""

    def __str__(self) -> str:
        return f"{MISSING}{super().__str__()}"


# Prefix of the skip reason of a case that lacks a tool, also in the output of a program that ran the case.
MISSING = "missing tool: "


def skip_for(why: str) -> Skip:
    """Returns the exception for a reason that another program printed."""
    return Missing(why.removeprefix(MISSING)) if why.startswith(MISSING) else Skip(why)


UNMET_SHARE_MAX = 0.05
"""Maximum share of cases whose fault never struck: the order of calls varies, and some calls depend on chance."""


class Tally:
    """Counts verdicts and prints each as one line."""

    def __init__(self, *, allow_skips: bool = False) -> None:
        self.passed = 0
        self.failed = 0
        self.skipped = 0
        self.unexplained = 0
        self.unmet = 0
        self.allow_skips = allow_skips

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
        self.unexplained += not why.startswith(MISSING)
        print(f"skip  {name}: {why}", flush=True)

    def miss(self, name: str) -> None:
        """Records a case whose fault never struck, which shows nothing."""
        self.unmet += 1
        print(f"unmet {name}", flush=True)

    def close(self) -> int:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        unmet = f", {self.unmet} not met" if self.unmet else ""
        print(f"{self.passed} passed, {self.failed} failed{skipped}{unmet}", flush=True)
        too_many = self.unmet > UNMET_SHARE_MAX * (self.passed + self.failed + self.unmet)
        return 1 if self.failed or too_many or (self.unexplained and not self.allow_skips) else 0


def attempt(case) -> tuple[list[str], float]:
    """Runs a case and returns findings and seconds; an exception counts as a finding."""
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


# Cases of the current `run_all`: functions cannot be sent to the jobs, so the jobs inherit this dictionary by fork.
_named: dict = {}


def _attempt_named(name: str) -> tuple[str, list[str], float, str | None]:
    """Runs one case and returns its name, findings, seconds, and the reason if it was skipped."""
    try:
        return (name, *attempt(_named[name]), None)
    except Skip as why:
        return name, [], 0.0, str(why)


def run_all(cases: dict, only: str | None, tally: Tally | None = None, *, allow_skips: bool = False, jobs: int = 1) -> Tally:
    """Runs named cases; with one job, in the given order."""
    tally = tally or Tally(allow_skips=allow_skips)
    _named.update(cases)
    for name, findings, seconds, why in in_parallel(_attempt_named, chosen(cases, only), jobs):
        if why is not None:
            tally.skip(name, why)
        else:
            tally.record(name, findings, seconds=seconds)
    return tally


def _prepare_job() -> None:
    # Each job adopts the orphans of its own rigs; the parent handles Ctrl-C.
    procs.become_subreaper()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def in_parallel(function, items: list, jobs: int):
    """Yields function(item) for all items, in order of completion."""
    if jobs <= 1:
        procs.become_subreaper()
        yield from map(function, items)
        return
    pool = multiprocessing.get_context("fork").Pool(jobs, initializer=_prepare_job)
    try:
        yield from pool.imap_unordered(function, items, chunksize=1)
        # Closed, not terminated: a job can miss a signal that arrives just before it waits for its next item.
        pool.close()
    except BaseException:
        pool.terminate()
        raise
    finally:
        pool.join()


def ends_on_term() -> None:
    """Turns SIGTERM into an orderly exit, which removes the rigs."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
