"""A fork takes neither the feed nor its followers with it: the child has its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast import Holdfast
from tests.support.processes.scripts import run_script


async def test_a_child_has_followers_and_listeners_of_its_own_and_the_parent_keeps_its(
    database: str, new_holdfast: Callable[..., Holdfast], tmp_path: Path
) -> None:
    """F-11."""
    hf = new_holdfast(database)
    await hf.open()

    assert await run_script(FORK_SCRIPT, tmp_path, hf) == (["child", "parent"], "")
    await hf.close()


async def test_a_child_whose_parent_had_a_worker_has_one_of_its_own_that_ends(
    database: str, new_holdfast: Callable[..., Holdfast], tmp_path: Path
) -> None:
    """F-11: on PostgreSQL the end of the worker waited for threads that are in the parent only, for ever."""
    hf = new_holdfast(database)
    await hf.open()

    assert await run_script(WORKER_SCRIPT, tmp_path, hf) == (["parent", "1", "child", "1", "closed"], "")
    await hf.close()


WORKER_SCRIPT = """
import asyncio, os, sys, warnings
from holdfast import Holdfast

warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, on a fork beside threads
hf = Holdfast(sys.argv[1], schema_name=sys.argv[2])

@hf.task(name="one")
async def one() -> int:
    return 1

async def work(name: str) -> None:
    async with hf.worker():
        print(name, await (await hf.start(one())).result(timeout=30), flush=True)

async def all_of_it() -> None:
    await work("child")
    await hf.close()

asyncio.run(work("parent"))
child = os.fork()
if child == 0:
    asyncio.run(asyncio.wait_for(all_of_it(), 60))
    print("closed", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
hf.sync.close()
"""


FORK_SCRIPT = """
import os, sys, threading
from holdfast import Holdfast, Misuse

hf = Holdfast(sys.argv[1], schema_name=sys.argv[2])
called = threading.Semaphore(0)

@hf.task(name="note")
def note() -> None: ...

@hf.on("job:enqueued")
def listen(event):
    called.release()

hf.sync.open()
with hf.sync.events() as events:
    chain = hf.sync.start(note())
    assert next(events).job.id == chain.id
    assert called.acquire(timeout=10)
    child = os.fork()
    if child == 0:
        try:
            next(events)
        except Misuse:
            pass
        else:
            raise AssertionError("a stream of the parent goes on in the child")
        hf.sync.open()
        with hf.sync.events() as own:
            chain = hf.sync.start(note())
            assert next(own).job.id == chain.id
        assert called.acquire(timeout=10)
        hf.sync.close()
        print("child", flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    of_the_child = next(events)
    assert called.acquire(timeout=10)
    chain = hf.sync.start(note())
    assert next(events).job.id == chain.id
hf.sync.close()
print("parent", flush=True)
"""
