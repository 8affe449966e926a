"""A fork takes neither the feed nor its followers with it: the child has its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from holdfast import Holdfast


async def test_a_child_has_followers_and_listeners_of_its_own_and_the_parent_keeps_its(
    database: str, new_holdfast: Callable[..., Holdfast], tmp_path: Path
) -> None:
    script = tmp_path / "forking.py"
    script.write_text(FORK_SCRIPT)
    hf = new_holdfast(database)
    await hf.open()

    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(script), hf.settings.database, hf.settings.schema_name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ran.stdout.split(), ran.stderr) == (["child", "parent"], "")
    await hf.close()


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
