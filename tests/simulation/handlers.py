"""The tasks of the simulation: handlers that take virtual time and end well, badly, or with their process.

Some continue their chain. Some complete in a block, and write into a table of the user's what the checker then looks
for: such a row is there exactly if that very attempt has completed its job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast import Tasks, Transaction
from holdfast.outcomes import Fail, Pause, Reschedule, Retry
from holdfast.tasks.calls import Call
from holdfast.worker.attempts.context import Context

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

TASKS = Tasks()
SECONDS = (0.0, 0.05, 0.3, 1.0, 3.0, 9.0, 20.0)
ENDS = (
    *["well"] * 62, *["error"] * 12, *["fatal"] * 4, *["pause"] * 3, *["later"] * 5, *["crash"] * 4, *["hang"] * 3,
    *["deaf"] * 6, *["told"] * 1,
)  # fmt: skip
BLOCKS = ("complete", "complete", "atomic", "prepare")
HELD_SECONDS = (0.0, 0.0, 0.0, 0.05, 0.3, 1.5, 6.0)
"""How long a block is open, beside its statements; the last is longer than one may be."""
MISHAPS = (*["none"] * 12, "error", "crash", "hang")
"""What may happen in an open block."""
LONGEST_CHAIN = 5
CALM = 100
"""How much faster handlers are once the faults have stopped: what is left over then is much, and its end is awaited."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What an attempt comes to, one of ENDS, and after how long; None leaves that to chance."""

    end: str
    seconds: float | None = None
    then: Callable[[Context], Call[int]] | None = None
    """What the chain goes on with; None leaves that to chance, unless the fate is that of a scene."""
    block: str | None = None
    """The block that it opens, one of BLOCKS; "prepare" is followed by another."""
    held: float | None = None
    """How long its block is open."""
    mishap: str = "none"


@dataclass(eq=False)
class Run:
    """A handler under way."""

    process: Process
    context: Context
    is_suspect: bool
    is_deaf: bool


PHASES = ("fetch", "cut", "send")
WELL = Fate("well")
End = Callable[[Context, "World", Fate], Awaitable[int]]
"""How a handler ends that ends well."""


async def work(ctx: Context, world: World, end_well: End) -> int:
    """Run as the seed decides; the output is the number of the attempt, so that a stale one can be told."""
    chance = world.machine.chance
    seconds = chance.choice(SECONDS)
    fate = Fate("well", seconds / CALM) if world.is_calm else world.fate(ctx.job) or world.fate_by_chance(ctx)
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
        return await end_well(ctx, world, fate)


async def simply(ctx: Context, world: World, fate: Fate) -> int:
    """Return, with the chain's next call or without."""
    return ctx.job.attempt if fate.then is None else ctx.continue_with(fate.then(ctx))


async def in_blocks(ctx: Context, world: World, fate: Fate) -> int:
    """Complete in a block, now and then after another."""
    kind = fate.block or world.machine.chance.choice(BLOCKS)
    try:
        if kind == "prepare":
            async with ctx.prepare() as tx:
                await write(tx, ctx, "prepared")
                await hold(ctx, world, fate)
        async with ctx.atomic() if kind == "atomic" else ctx.complete() as tx:
            await write(tx, ctx, "done")
            await hold(ctx, world, fate)
            output = tx.finish(ctx.job.attempt) if fate.then is None else tx.continue_with(fate.then(ctx))
    except Exception as error:
        world.left_block(ctx, error)
        raise
    world.left_block(ctx, None)
    return output


async def in_phases(ctx: Context, world: World, fate: Fate) -> int:
    """Run phases, in one of which something may go wrong; then return."""
    chance = world.machine.chance
    bad = chance.choice(PHASES)
    for name in PHASES:

        async def run(name: str = name) -> str:
            world.phase_begins(ctx, name)
            await hold(ctx, world, fate if name == bad else WELL)
            return f"{name} {ctx.job.attempt}"

        world.phase_gives(ctx, name, await ctx.phase(name, run))
    return await simply(ctx, world, fate)


async def write(tx: Transaction, ctx: Context, what: str) -> None:
    """Write a row of the user's."""
    await tx.execute(
        "INSERT INTO sim_ledger (job, attempt, what) VALUES (:job, :attempt, :what)",
        job=str(ctx.job.id),
        attempt=ctx.job.attempt,
        what=what,
    )


async def hold(ctx: Context, world: World, fate: Fate) -> None:
    """Keep a block open for a while, in which something may go wrong."""
    seconds = world.machine.chance.choice(HELD_SECONDS) if fate.held is None else fate.held
    if not world.is_calm and seconds:
        await asyncio.sleep(seconds)
    match "none" if world.is_calm else fate.mishap:
        case "error":
            raise OSError(f"attempt {ctx.job.attempt}, in its block")
        case "crash":
            world.crash(ctx)
            await asyncio.get_running_loop().create_future()
        case "hang":
            world.hang(ctx)
            await asyncio.sleep(world.machine.chance.random())


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
async def steady(ctx: Context, n: int, after: int = 0) -> int:
    """An ordinary task."""
    return await work(ctx, WORLD[0], simply)


@TASKS.task(name="fragile", lease=9, on_lost="fail", retry=Retry(attempts=2, first=1, maximum=1), priority=3)
async def fragile(ctx: Context, n: int, after: int = 0) -> int:
    """Not run again when it was lost."""
    return await work(ctx, WORLD[0], simply)


@TASKS.task(
    name="careful", lease=6, on_lost="pause", cancel_running="pause", halts_lane=False, retry=Retry(first=1, maximum=3)
)
async def careful(ctx: Context, n: int, after: int = 0) -> int:
    """Paused where others are cancelled or run again; sets itself aside in its lane."""
    return await work(ctx, WORLD[0], simply)


@TASKS.task(
    name="elsewhere", lease=12, queue="other", on_interrupt="pause", retry=Retry(attempts=None, first=0.2, maximum=2)
)
async def elsewhere(ctx: Context, n: int, after: int = 0) -> int:
    """Has a queue of its own."""
    return await work(ctx, WORLD[0], simply)


@TASKS.task(name="booking", lease=9, retry=Retry(attempts=5, first=0.5, maximum=4))
async def booking(ctx: Context, n: int, after: int = 0) -> int:
    """Completes in a block."""
    return await work(ctx, WORLD[0], in_blocks)


@TASKS.task(name="staged", lease=6, phases=PHASES, retry=Retry(attempts=6, first=0.5, maximum=4))
async def staged(ctx: Context, n: int, after: int = 0) -> int:
    """Goes on where it was interrupted."""
    return await work(ctx, WORLD[0], in_phases)


@TASKS.task(name="silent", lease=6, history=False, retry=Retry(attempts=4, first=0.5, maximum=4))
async def silent(ctx: Context, n: int, after: int = 0) -> int:
    """Keeps no history."""
    return await work(ctx, WORLD[0], simply)


ALL: tuple[Callable[..., Any], ...] = (
    steady, steady, steady, fragile, careful, elsewhere, booking, booking, staged, silent,
)  # fmt: skip
LONGEST_LEASE = 12.0
