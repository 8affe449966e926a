"""The tasks of the simulation: handlers that take virtual time and end well, badly, or with their process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast import Tasks
from holdfast.outcomes import Fail, Pause, Reschedule, Retry
from holdfast.worker.context import Context

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

TASKS = Tasks()
SECONDS = (0.0, 0.05, 0.3, 1.0, 3.0, 9.0, 20.0)
ENDS = (
    *["well"] * 62, *["error"] * 12, *["fatal"] * 4, *["pause"] * 3, *["later"] * 5, *["crash"] * 4, *["hang"] * 3,
    *["deaf"] * 6, *["told"] * 1,
)  # fmt: skip
CALM = 100
"""How much faster handlers are once the faults have stopped: what is left over then is much, and its end is awaited."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What an attempt comes to, one of ENDS, and after how long; None leaves that to chance."""

    end: str
    seconds: float | None = None


@dataclass(eq=False)
class Run:
    """A handler under way."""

    process: Process
    context: Context
    is_suspect: bool
    is_deaf: bool


async def work(ctx: Context, world: World) -> int:
    """Run as the seed decides; the output is the number of the attempt, so that a stale one can be told."""
    chance = world.machine.chance
    seconds = chance.choice(SECONDS)
    fate = Fate("well", seconds / CALM) if world.is_calm else world.fate(ctx.job.id) or Fate(chance.choice(ENDS))
    end, seconds = fate.end, seconds if fate.seconds is None else fate.seconds
    with world.running(ctx, is_deaf=end == "deaf"):
        await (deaf if end == "deaf" else asyncio.sleep)(seconds)
        match "well" if world.is_calm else end:
            case "error":
                raise OSError(f"attempt {ctx.job.attempt}")
            case "fatal":
                raise Fail("no use")
            case "pause":
                raise Pause("look at this")
            case "later":
                raise Reschedule(after=chance.random() * 4)
            case "told":
                ctx.fail("told from beside")
                await asyncio.sleep(10)
            case "crash":
                world.crash(ctx)
                await asyncio.get_running_loop().create_future()
            case "hang":
                world.hang(ctx)
                await asyncio.sleep(chance.random())
    return ctx.job.attempt


async def deaf(seconds: float) -> None:
    """Take no notice of being cancelled."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        try:
            await asyncio.sleep(until - loop.time())
        except asyncio.CancelledError:
            continue


WORLD: list[World] = []
"""The one that runs."""


@TASKS.task(name="steady", lease=6, retry=Retry(attempts=5, first=0.5, maximum=4))
async def steady(ctx: Context, n: int) -> int:
    """An ordinary task."""
    return await work(ctx, WORLD[0])


@TASKS.task(name="fragile", lease=9, on_lost="fail", retry=Retry(attempts=2, first=1, maximum=1), priority=3)
async def fragile(ctx: Context, n: int) -> int:
    """Not run again when it was lost."""
    return await work(ctx, WORLD[0])


@TASKS.task(
    name="careful", lease=6, on_lost="pause", cancel_running="pause", halts_lane=False, retry=Retry(first=1, maximum=3)
)
async def careful(ctx: Context, n: int) -> int:
    """Paused where others are cancelled or run again; sets itself aside in its lane."""
    return await work(ctx, WORLD[0])


@TASKS.task(
    name="elsewhere", lease=12, queue="other", on_interrupt="pause", retry=Retry(attempts=None, first=0.2, maximum=2)
)
async def elsewhere(ctx: Context, n: int) -> int:
    """Has a queue of its own."""
    return await work(ctx, WORLD[0])


ALL = (steady, steady, steady, fragile, careful, elsewhere)
LONGEST_LEASE = 12.0
