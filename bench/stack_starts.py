"""How fast jobs are started inside a transaction of each library, beside the same INSERTs by hand in that library.

Both sides of a line use the same connection or engine, take turns, and begin and commit alike. What differs is what
Holdfast adds: it checks the argument, looks at the connection, and builds the chain that it gives back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from typing import Any, TypeAlias, TypeVar

from bench.places import Places
from bench.report import Comparison, table
from bench.rounds import Entrant, awaited, take_turns
from bench.stacks import STACKS, AnyStack, AsyncMeans, AsyncStack, Means, Stack
from bench.start import COUNTS, INPUT, TASK, TASKS, TEXT, Sizes, check_counts, work
from holdfast import Holdfast

TARGET = 0.8
LIBRARIES = ("psycopg", "psycopg2-binary", "asyncpg", "aiosqlite", "sqlalchemy", "django")

R = TypeVar("R")

Run: TypeAlias = Callable[[int], object]
Do: TypeAlias = Callable[[Any], object]
AsyncDo: TypeAlias = Callable[[Any], Awaitable[object]]


def measure(places: Places, sizes: Sizes, names: Sequence[str]) -> str:
    """Measure the stacks of these *names*; answer a table for each store."""
    chosen = [STACKS[name] for name in names]
    stores = list(dict.fromkeys(each.store for each in chosen))
    tables = [measure_store(places, store, sizes, [each for each in chosen if each.store == store]) for store in stores]
    return "\n\n".join([", ".join(f"{name} {version(name)}" for name in LIBRARIES), *tables])


def measure_store(places: Places, store: str, sizes: Sizes, stacks: Sequence[AnyStack]) -> str:
    """Measure *stacks*, all on one database; answer their table."""
    with ExitStack() as resources:
        address = resources.enter_context(places.address(store, "stacks_bench"))
        runner = resources.enter_context(asyncio.Runner())
        hf = Holdfast(address, tasks=[TASKS])
        runner.run(hf.migrate())
        runner.run(hf.open())
        resources.callback(lambda: runner.run(hf.close()))
        entrants = [each for stack in stacks for each in entrants_of(stack, address, hf, sizes, runner, resources)]
        costs = take_turns(entrants, sizes.rounds, places.meter(store))
        counted = dict(runner.run(hf.store.read(count_rows)))
    each_side = sum(each.count for each in entrants) // 2 * (sizes.rounds + 1)
    lines = [each for stack in stacks for each in comparisons_of(stack)]
    return f"{table(lines, costs)}\n{check_counts({TASK: each_side, 'by hand': each_side}, counted)}"


async def count_rows(tx: Any) -> list[tuple[str, int]]:
    """Count what both sides have stored."""
    return [(task, number) for task, number in await tx.fetch_all(COUNTS)]


def comparisons_of(stack: AnyStack) -> list[Comparison]:
    """Name the lines of a stack."""
    return [
        Comparison(f"{stack.name}: one", f"{stack.name} by hand, one", TARGET),
        Comparison(f"{stack.name}: 100 in one", f"{stack.name} by hand, 100 in one", TARGET),
    ]


def entrants_of(
    stack: AnyStack, address: str, hf: Holdfast, sizes: Sizes, runner: asyncio.Runner, resources: ExitStack
) -> list[Entrant]:
    """Open *stack* on *address*; give both sides of its lines, those of a line beside each other."""
    if isinstance(stack, AsyncStack):
        runs = async_runs(stack, address, hf, runner, resources)
    else:
        runs = blocking_runs(stack, address, hf, resources)
    names = [name for each in comparisons_of(stack) for name in (each.other, each.ours)]
    counts = (sizes.singles, sizes.singles, sizes.together, sizes.together)
    return [Entrant(name, count, run) for name, count, run in zip(names, counts, runs, strict=True)]


def blocking_runs(stack: Stack, address: str, hf: Holdfast, resources: ExitStack) -> list[Run]:
    """Give the work of a blocking stack: by hand and ours, one in a transaction, then many."""
    means = resources.enter_context(stack.open(address))

    def by_hand(connection: Any) -> None:
        means.insert(connection, INPUT)

    def ours(connection: Any) -> None:
        hf.sync.start(work(text=TEXT), connection=connection)

    return [partial(loop, means, do) for loop in (one_each, all_in_one) for do in (by_hand, ours)]


def async_runs(
    stack: AsyncStack, address: str, hf: Holdfast, runner: asyncio.Runner, resources: ExitStack
) -> list[Run]:
    """Give the work of an async stack, in the same order."""
    opening = stack.open(address)
    means = runner.run(_entered(opening.__aenter__()))
    resources.callback(lambda: runner.run(_entered(opening.__aexit__(None, None, None))))

    async def by_hand(connection: Any) -> None:
        await means.insert(connection, INPUT)

    async def ours(connection: Any) -> None:
        await hf.start(work(text=TEXT), connection=connection)

    loops = (one_each_async, all_in_one_async)
    return [awaited(partial(loop, means, do), runner) for loop in loops for do in (by_hand, ours)]


def one_each(means: Means, do: Do, count: int) -> None:
    """Do it *count* times, each in a transaction of its own."""
    for _ in range(count):
        with means.transaction() as connection:
            do(connection)


def all_in_one(means: Means, do: Do, count: int) -> None:
    """Do it *count* times in one transaction."""
    with means.transaction() as connection:
        for _ in range(count):
            do(connection)


async def one_each_async(means: AsyncMeans, do: AsyncDo, count: int) -> None:
    """Do it *count* times, each in a transaction of its own."""
    for _ in range(count):
        async with means.transaction() as connection:
            await do(connection)


async def all_in_one_async(means: AsyncMeans, do: AsyncDo, count: int) -> None:
    """Do it *count* times in one transaction."""
    async with means.transaction() as connection:
        for _ in range(count):
            await do(connection)


async def _entered(step: Awaitable[R]) -> R:
    """Make a coroutine, which a runner asks for, of entering or leaving."""
    return await step
