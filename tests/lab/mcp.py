"""`swarm mcp` with the official client in Python (package `mcp`), over standard input and output.

    python3 -m lab mcp

If the package is missing, pip installs it into a temporary directory.
"""

import asyncio
import atexit
import functools
import importlib.util
import shutil
import subprocess
import sys
import tempfile

from . import cases
from .rig import Rig

LIMIT = 30
INSTALL_LIMIT = 300
LOOKS = ["ls", "explain", "logs", "diff", "merge_ls", "run_status", "approvals", "events", "wait"]


@functools.cache
def unavailable() -> str:
    """Returns why the client cannot be imported, or an empty text."""
    if importlib.util.find_spec("mcp"):
        return ""
    made = tempfile.mkdtemp(prefix="lab-mcp-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", made, "mcp"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_LIMIT)
    except subprocess.TimeoutExpired:
        return f"pip did not install the package mcp within {INSTALL_LIMIT} s"
    if done.returncode != 0:
        return f"pip cannot install the package mcp: {done.stderr.strip()[-200:]}"
    sys.path.insert(0, made)
    importlib.invalidate_caches()
    return ""


def client(scene):
    """Returns the case in which `scene` has a session, with the rig, and its findings are those of the case."""
    def case() -> list[str]:
        if why := unavailable():
            raise cases.Missing(why)
        from mcp import ClientSession, StdioServerParameters
        from mcp.client.stdio import stdio_client

        async def run(rig: Rig) -> list[str]:
            server = StdioServerParameters(command=rig.binary, args=["mcp", *scene.flags], env=dict(rig.env),
                                           cwd=str(rig.repo))
            async with stdio_client(server) as (reading, writing), ClientSession(reading, writing) as session:
                await session.initialize()
                return await scene.carry_out(rig, session)

        with Rig() as rig:
            rig.make_repo()
            return asyncio.run(asyncio.wait_for(run(rig), LIMIT))
    return case


def text(result) -> str:
    return result.content[0].text


def data(result):
    """The data of a result, as either version of the client names it."""
    return getattr(result, "structured_content", None) or getattr(result, "structuredContent", None)


def failed(result) -> bool:
    return bool(getattr(result, "is_error", None) or getattr(result, "isError", None))


class Looks:
    """The tools that look, and a refusal in one sentence."""

    flags: tuple = ()

    async def carry_out(self, rig: Rig, session) -> list[str]:
        names = [tool.name for tool in (await session.list_tools()).tools]
        findings = [] if names == LOOKS else [f"tools: {names}"]
        listed = await session.call_tool("ls", {})
        findings += [] if data(listed)["counts"]["all"] == 0 else [f"ls: {listed}"]
        refused = await session.call_tool("logs", {"name": "none"})
        findings += [] if failed(refused) and "no worker named" in text(refused) else [f"logs: {refused}"]
        return findings


class Acts:
    """A worker is started, awaited, read and landed."""

    flags = ("--allow", "act")

    async def carry_out(self, rig: Rig, session) -> list[str]:
        script = "echo new > new.txt && git add . && git commit -qm new"
        started = await session.call_tool("spawn", {"name": "w", "worktree": True, "command": ["sh", "-c", script]})
        findings = [f"spawn: {started}"] if failed(started) else []
        waited = await session.call_tool("wait", {"names": ["w"]})
        findings += [] if data(waited)["done"] else [f"wait: {waited}"]
        shown = await session.call_tool("diff", {"name": "w"})
        findings += [] if "+new" in data(shown)["patch"] else [f"diff: {shown}"]
        await session.call_tool("merge_add", {"names": ["w"]})
        landed = await session.call_tool("wait", {"names": ["w"], "for": "landed"})
        findings += [] if data(landed)["items"][0]["state"] == "landed" else [f"landing: {landed}"]
        return findings


class Hears:
    """A wait reports after ten seconds that it goes on, and ends at its limit."""

    flags = ("--allow", "act")

    async def carry_out(self, rig: Rig, session) -> list[str]:
        reports = []

        async def report(progress, total, message) -> None:
            reports.append(message)

        await session.call_tool("spawn", {"name": "w", "command": ["sleep", "600"]})
        waited = await session.call_tool("wait", {"names": ["w"], "seconds": 12}, progress_callback=report)
        findings = [f"wait: {waited}"] if data(waited)["done"] else []
        return findings if reports == ["0 of 1 are done"] else findings + [f"reports: {reports}"]


class Cancels:
    """A wait that its client gives up is over, and the session goes on."""

    flags = ("--allow", "act")

    async def carry_out(self, rig: Rig, session) -> list[str]:
        await session.call_tool("spawn", {"name": "w", "command": ["sleep", "600"]})
        call = asyncio.create_task(session.call_tool("wait", {"names": ["w"], "seconds": 600}))
        done, _ = await asyncio.wait([call], timeout=1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        killed = await session.call_tool("kill", {"names": ["w"]})
        return [f"the wait is over: {call}" for _ in done] + ([f"kill: {killed}"] if failed(killed) else [])


CASES = {"python looks": client(Looks()), "python acts": client(Acts()), "python hears": client(Hears()),
         "python cancels": client(Cancels())}


def main(argv=None) -> int:
    args = cases.parser(__doc__).parse_args(argv)
    cases.ends_on_term()
    return cases.run_all(CASES, args.only, allow_skips=args.allow_skips).close()


if __name__ == "__main__":
    sys.exit(main())
