"""A turn that is held at work, so that somebody may speak in its place."""

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
    """Before the flow is run: the turn of `build` is at work until it is told to go on."""
    play = world.rig.root / "play.sh"
    play.write_text(play.read_text().replace('sleep "$REST"', HELD.replace("@ROOT@", str(world.rig.root)), 1))


def is_held(world: World) -> bool:
    return (world.rig.root / "env").exists()


def artifact(world: World) -> Path:
    """What the agent at work would hand over."""
    path = world.dir / "record" / "build-by-hand.md"
    path.write_text("by hand\n")
    return path


def environment(world: World) -> dict[str, str]:
    """Of the agent that is at work, as it wrote it down."""
    lines = (world.rig.root / "env").read_text().splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines) if name.startswith("SWARM_")}


def free(world: World) -> None:
    """The turn that is held goes on, and whatever comes after it."""
    (world.rig.root / "free").touch()
    fifo = world.rig.root / "go"
    # Opened for both, so that nobody has to wait for a reader.
    with open(fifo, "r+b", buffering=0) as gate:
        gate.write(b"\n" * 8)
        wait_until(lambda: not still_held(world), 10, "the turn goes on")


def still_held(world: World) -> bool:
    return any(person.env.get("SWARM_NODE") == "build" and person.role == "other" for person in world.rig.census())
