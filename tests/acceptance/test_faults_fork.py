"""Forks after connecting: in handlers, inside their blocks, and as servers do that load the application first.

What crosses a fork is shown where it belongs: connections, the right to write, lock files, listeners and blocks each
have a test of their own (F-11).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.hall import NewHoldfast, counts, rows
from tests.support.processes.scripts import run_script

BEGINNING = """
import asyncio, os, sys, warnings
from holdfast import Context, Holdfast, sync

warnings.simplefilter("ignore", DeprecationWarning)  # there are threads: that is the point
hf = Holdfast(sys.argv[1], schema_name=sys.argv[2])

@hf.task(name="note")
async def note(n: int) -> int:
    return n

def fork(work):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child

def await_end(child):
    assert os.waitpid(child, 0)[1] == 0, "the child has failed"
"""

IN_HANDLERS = """
@hf.task(name="forks_in_the_loop")
async def forks_in_the_loop() -> str:
    await_end(fork(lambda: hf.sync.start(note(n=1))))
    return "done"

@hf.task(name="forks_in_a_thread")
def forks_in_a_thread() -> str:
    await_end(fork(lambda: hf.sync.start(note(n=2))))
    return "done"

@hf.task(name="forks_in_a_block")
def forks_in_a_block(ctx: sync.Context) -> str:
    with ctx.complete() as tx:
        tx.start(note(n=3))
        await_end(fork(lambda: None))
        return tx.finish("done")

@hf.task(name="forks_in_an_async_block")
async def forks_in_an_async_block(ctx: Context) -> str:
    async with ctx.complete() as tx:
        await tx.start(note(n=4))
        await_end(fork(lambda: None))
        return tx.finish("done")

async def main():
    async with hf, hf.worker():
        for task in (forks_in_the_loop, forks_in_a_thread, forks_in_a_block, forks_in_an_async_block):
            chain = await hf.start(task())
            assert await chain.result(timeout=20) == "done"
        while (await hf.list_jobs(status="pending")).items or (await hf.list_jobs(status="running")).items:
            await asyncio.sleep(0.01)

asyncio.run(main())
print("done")
"""

PRELOADED = """
async def serve(child):
    async with hf, hf.worker():
        chains = await hf.start_many([note(n=child * 100 + n) for n in range(20)])
        assert [await chain.result(timeout=20) for chain in chains] == [child * 100 + n for n in range(20)]

hf.sync.open()
hf.sync.start(note(n=0))
children = [fork(lambda: asyncio.run(serve(child))) for child in range(1, 5)]
hf.sync.start(note(n=1))
for child in children:
    await_end(child)
hf.sync.start(note(n=2))
asyncio.run(serve(5))
hf.sync.close()
print("done")
"""


@pytest.mark.parametrize(
    ("name", "completed"), [("handlers", 8), pytest.param("preloaded", 103, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
async def test_a_fork_after_connecting_harms_neither_side(
    name: str, completed: int, database: str, new_holdfast: NewHoldfast, tmp_path: Path
) -> None:
    """F-11: in a handler of any kind, inside its block, or of a server that has loaded the application before."""
    hf = new_holdfast(database)
    await hf.open()
    script = BEGINNING + (IN_HANDLERS if name == "handlers" else PRELOADED)

    assert await run_script(script, tmp_path, hf) == (["done"], "")

    assert await counts(hf) == {"completed": completed}
    assert await rows(hf, "SELECT max(used), max(crashes) FROM holdfast_job") == [(1, 0)]
    await hf.close()
