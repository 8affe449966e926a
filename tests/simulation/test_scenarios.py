"""What chance brings about too seldom: a scene set by hand, played under several seeds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.simulation.handlers import WORLD, elsewhere
from tests.simulation.world import World

# processes are killed in the middle of everything, and what they leave behind protests
pytestmark = pytest.mark.filterwarnings("ignore")


@contextmanager
def scene(seed: int, folder: Path, template: Path, processes: int = 3) -> Iterator[World]:
    """Set a world with some worker processes, in which nothing happens by itself."""
    world = World(seed, folder, template)
    world.most = processes
    WORLD[:] = [world]
    for _ in range(processes):
        world.give_birth()
    try:
        yield world
    finally:
        world.close()


async def start_long_job(world: World) -> None:
    """Start a job of half a minute, whose lease is twelve seconds."""
    job = world.new_id()
    world.fates[job] = ["long"]
    await world.people.hf.start(elsewhere(n=1).options(id=job))


@pytest.mark.parametrize("seed", range(5))
def test_a_write_lock_that_outlasts_the_leases_robs_nobody(seed: int, folder: Path, template: Path) -> None:
    with scene(seed, folder, template) as world:
        world.people.spawn(start_long_job(world))
        world.machine.run(3 + world.chance.random() * 4)
        world.fate_loop.spawn(world.hold_write_lock(11.5 + world.chance.random() * 2))
        world.machine.run(30)

        assert not world.machine.errors
        assert world.reached["reaped"] == 0
