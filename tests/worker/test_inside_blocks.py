"""Inside a block nothing is written beside it by mistake: verbs without connection= are refused (I-65)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Misuse, Retry
from tests.support.conditions import until
from tests.worker.colours import Colour, Witness

ONCE = Retry.never()

VERBS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "start": (lambda hf, task: hf.start(task()), "tx.start"),
    "start_many": (lambda hf, task: hf.start_many([task()]), "tx.start"),
    "cancel": (lambda hf, task: hf.cancel("0198c0de-0000-7000-8000-000000000000"), "connection=tx"),
    "pause": (lambda hf, task: hf.pause("0198c0de-0000-7000-8000-000000000000"), "connection=tx"),
    "resume": (lambda hf, task: hf.resume("0198c0de-0000-7000-8000-000000000000"), "connection=tx"),
    "retry": (lambda hf, task: hf.retry("0198c0de-0000-7000-8000-000000000000"), "connection=tx"),
    "trigger": (lambda hf, task: hf.trigger("0198c0de-0000-7000-8000-000000000000"), "hf.trigger(…, connection=tx)"),
    "delete": (lambda hf, task: hf.delete("0198c0de-0000-7000-8000-000000000000"), "connection=tx"),
    "start_again": (lambda hf, task: hf.start_again("0198c0de-0000-7000-8000-000000000000"), "connection=tx"),
    **{
        f"{verb}_many": (
            lambda hf, task, verb=verb: getattr(hf, f"{verb}_many")(["0198c0de-0000-7000-8000-000000000000"]),
            f"write `hf.{verb}_many(…, connection=tx)`",
        )
        for verb in ("cancel", "pause", "resume", "retry", "trigger", "delete", "start_again")
    },
    "complete": (lambda hf, task: hf.complete(task, "0198c0de-0000-7000-8000-000000000000", 1), "connection=tx"),
    "pause of a lane": (lambda hf, task: hf.lane("a").pause(), "after the block"),
    "pause of a queue": (lambda hf, task: hf.queue("a").pause(), "after the block"),
    "a subscription": (lambda hf, task: hf.webhooks.subscribe("https://example.com"), "after the block"),
}


async def refused(verb: Callable[[], Any]) -> str:
    """Give what a verb says that is refused; async or not."""

    async def call() -> None:
        answer = verb()
        if hasattr(answer, "__await__"):
            await answer

    with pytest.raises(Misuse) as found:
        await call()
    return str(found.value)


@pytest.mark.parametrize("kind", ["prepare", "complete"])
async def test_every_verb_that_writes_is_refused_on_both_faces_and_says_what_to_write(
    colour: Colour, kind: str
) -> None:
    said: dict[str, str] = {}

    async def handler(ctx: Any, n: int) -> Any:
        async with getattr(ctx, kind)() as tx:
            for name, (verb, _) in VERBS.items():
                said[f"blocking {name}"] = await refused(lambda verb=verb: verb(colour.hf.sync, task))  # type: ignore[misc]
                if colour.is_async:
                    said[name] = await refused(lambda verb=verb: verb(colour.hf, task))  # type: ignore[misc]
            if kind == "complete":
                tx.finish(1)
        return 1

    task = colour.task(handler, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        assert await chain.result(timeout=15) == 1

    assert len(said) == len(VERBS) * (2 if colour.is_async else 1)
    for name, text in said.items():
        assert VERBS[name.removeprefix("blocking ")][1] in text
        assert f"ctx.{kind}()" in text
    assert len((await colour.hf.list_jobs()).items) == 1


async def test_reading_is_allowed_and_so_is_everything_after_the_block(colour: Colour) -> None:
    async def handler(ctx: Any, n: int) -> Any:
        async with ctx.prepare():
            colour.hf.sync.get_job(ctx.job.id)
        return str(colour.hf.sync.start(other(), delay=60).id)

    async def nothing(ctx: Any, n: int) -> Any:
        return 1

    other = colour.task(nothing, int)
    task = colour.task(handler, str, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        started = await chain.result(timeout=15)

    assert (await colour.hf.get_job(started)).status == "pending"


async def test_an_act_with_the_blocks_own_transaction_leaves_its_row_with_the_block(colour: Colour) -> None:
    async def handler(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            own, ann = getattr(tx, "_inner", tx), colour.hf.acting(by="ann")
            if colour.is_async:
                await ann.cancel(victim, connection=own)
            else:
                ann.sync.cancel(victim, connection=own)
            if n == 0:
                raise OSError("all of it is undone")
            return tx.finish(1)

    async def nothing(ctx: Any, n: int) -> Any:
        return 1

    task, other = colour.task(handler, int, retry=ONCE), colour.task(nothing, int)
    victim = await colour.hf.start(other(), delay=60)
    async with colour.hf.worker():
        await colour.until_status(await colour.hf.start(task(n=0)), "failed")
        assert (await colour.hf.audit()).items == ()
        assert await (await colour.hf.start(task(n=1))).result(timeout=15) == 1

    (entry,) = (await colour.hf.audit()).items
    assert (entry.who, entry.action, entry.subject) == ("ann", "cancel", str(victim.id))


async def test_a_verb_with_the_blocks_own_transaction_is_part_of_it(colour: Colour) -> None:
    async def handler(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            own = getattr(tx, "_inner", tx)
            if colour.is_async:
                await colour.hf.cancel(victim, connection=own)
                await colour.hf.start(other(), delay=60, connection=own)
            else:
                colour.hf.sync.cancel(victim, connection=own)
                colour.hf.sync.start(other(), delay=60, connection=own)
            if n == 0:
                raise OSError("all of it is undone")
            return tx.finish(1)

    async def nothing(ctx: Any, n: int) -> Any:
        return 1

    other = colour.task(nothing, int)
    task = colour.task(handler, int, retry=ONCE)
    victim = await colour.hf.start(other(), delay=60)
    async with colour.hf.worker():
        failed = await colour.hf.start(task(n=0))
        await colour.until_status(failed, "failed")
        undone = await colour.status(victim), len((await colour.hf.list_jobs()).items)
        chain = await colour.hf.start(task(n=1))
        await chain.result(timeout=15)

    assert undone == ("pending", 2)
    assert await colour.status(victim) == "cancelled"
    assert len((await colour.hf.list_jobs()).items) == 4


@pytest.mark.parametrize("colour", ["sqlite-async", "postgres-async"], indirect=True)
async def test_tasks_and_threads_begun_inside_are_inside_until_the_block_ends(colour: Colour) -> None:
    witness = Witness()
    inside: list[str] = []
    later: list[str] = []

    async def handler(ctx: Any, n: int) -> Any:
        async def beside() -> None:
            inside.append(await refused(lambda: colour.hf.start(other())))
            witness.reached.set()
            await colour.wait(witness.gate)
            later.append(str((await colour.hf.start(other(), delay=60)).id))

        async with ctx.complete() as tx:
            running = asyncio.create_task(beside())
            text = await asyncio.to_thread(lambda: asyncio.run(refused(lambda: colour.hf.sync.start(other()))))
            inside.append(text)
            await until(witness.reached.is_set, "the task was refused")
            tx.finish(1)
        witness.gate.set()
        await running
        return 1

    async def nothing(ctx: Any, n: int) -> Any:
        return 1

    other = colour.task(nothing, int)
    task = colour.task(handler, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await chain.result(timeout=15)
        await until(lambda: bool(later), "the task has started another, after the block")

    assert ["tx.start" in each for each in inside] == [True, True]


async def test_a_block_of_one_handler_does_not_concern_another(colour: Colour) -> None:
    witness = Witness()
    started: list[Any] = []

    async def sits(ctx: Any, n: int) -> Any:
        async with ctx.prepare():
            witness.reached.set()
            await colour.wait(witness.gate)
        return 1

    async def starts(ctx: Any, n: int) -> Any:
        await colour.wait(witness.reached)
        threading.Timer(0.2, witness.gate.set).start()  # on SQLite the other one must leave first
        call = sits_task().options(delay=60)
        started.append(await colour.hf.start(call) if colour.is_async else colour.hf.sync.start(call))
        return 1

    sits_task, starts_task = colour.task(sits, int), colour.task(starts, int)
    async with colour.hf.worker(concurrency=2):
        chains = await colour.hf.start_many([sits_task(), starts_task()])
        await colour.hf.wait(chains, timeout=15)

    assert len(started) == 1


async def test_completing_is_a_block_too(colour: Colour) -> None:
    async def nothing(ctx: Any, n: int) -> Any:
        return 1

    task = colour.task(nothing, int)
    chain = await colour.hf.start(task(), delay=60)

    async with colour.hf.completing(task, chain) as job:
        text = await refused(lambda: colour.hf.start(task()))
        nested = await refused(lambda: colour.hf.completing(task, chain).__aenter__())
        await job.finish(3)

    assert "hf.completing()" in text
    assert "connection=tx" in nested
    assert (await colour.hf.get_chain(chain)).output == 3
