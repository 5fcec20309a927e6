"""Holds a turn in the middle of its work, so that a test can act in its place."""

from pathlib import Path

from .flow_world import World
from .rig import wait_until

HELD = """case $SWARM_NODE in build)
  [ -e '@ROOT@/go' ] || mkfifo '@ROOT@/go' 2>/dev/null || :
  env > '@ROOT@/env.new'; mv '@ROOT@/env.new' '@ROOT@/env'
  [ -e '@ROOT@/free' ] || read -r _ < '@ROOT@/go' || :
  if [ -e "$SWARM_HANDOFF" ]; then exit 0; fi;;
esac"""


def hold(world: World) -> None:
    """Makes the turn of `build` wait until `free` is called; must be called before the flow runs."""
    play = world.rig.root / "play.sh"
    play.write_text(play.read_text().replace('sleep "$REST"', HELD.replace("@ROOT@", str(world.rig.root)), 1))


def is_held(world: World) -> bool:
    return (world.rig.root / "env").exists()


def artifact(world: World) -> Path:
    """Returns an artifact that the held agent could hand over."""
    path = world.dir / "record" / "build-by-hand.md"
    path.write_text("by hand\n")
    return path


def environment(world: World) -> dict[str, str]:
    """Environment of the held agent, as the agent recorded it."""
    lines = (world.rig.root / "env").read_text().splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines) if name.startswith("SWARM_")}


def free(world: World) -> None:
    """Releases the held turn and all later ones."""
    (world.rig.root / "free").touch()
    fifo = world.rig.root / "go"
    # Opened for reading and writing, so that the open does not block until there is a reader.
    with open(fifo, "r+b", buffering=0) as gate:
        gate.write(b"\n" * 8)
        wait_until(lambda: not still_held(world), 10, "the turn continues")


def still_held(world: World) -> bool:
    return any(person.env.get("SWARM_NODE") == "build" and person.role == "other" for person in world.rig.census())
