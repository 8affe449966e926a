"""Deliveries are made by a worker, out of the outbox: beside its event loop, in bounded steps, one bad row alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from holdfast.models import INTERNAL_QUEUE
from holdfast.store import outbox
from tests.support.conditions import until
from tests.webhooks.post_office import PostOffice
from tests.webhooks.receivers import answers, receiver

Office: TypeAlias = Callable[..., Awaitable[PostOffice]]
HOOK = "https://example.com/hook"
MEMORY = Path("/proc/self/statm")
PAGE_BYTES = 4096


async def test_bodies_are_encoded_outside_of_the_event_loop(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """A3."""
    threads: set[threading.Thread] = set()
    pack = outbox.pack

    def note_thread(batch: Any) -> Any:
        threads.add(threading.current_thread())
        return pack(batch)

    monkeypatch.setattr(outbox, "pack", note_thread)
    post = await office()
    async with receiver(answers()) as server, post.hf.worker():
        await post.hf.start(post.greet(), webhook=server.url)
        await post.until_ended(1)

    assert threads
    assert threading.current_thread() not in threads


async def test_an_event_that_cannot_be_read_keeps_no_other_from_being_posted(
    office: Office, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A5: it stays in the outbox for the release that has written it."""
    monkeypatch.setattr("holdfast.unreadable._told", set())
    post = await office()
    async with receiver(answers()) as server:
        async with post.hf.worker(webhooks=False):
            await (await post.hf.start(post.greet(name="Ada"), webhook=server.url)).result(timeout=10)
        await post.hf.store.run(_spoil)
        async with post.hf.worker():
            await post.hf.start(post.greet(name="Bob"), webhook=server.url)
            await post.until_ended(1)

    assert await post.backlog() == 1
    assert "holdfast_outbox" in caplog.text


async def _spoil(tx: Any) -> None:
    await tx.execute("UPDATE holdfast_outbox SET status = 'dreaming'")


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(not MEMORY.exists(), reason="the memory of a process is read from /proc")
async def test_large_jobs_with_many_subscriptions_cost_a_bounded_amount_of_memory(
    office: Office, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """A3: 5,000 deliveries of 60 kB are 300 MB; a worker has a few of them in its hands, and loses no lease."""
    post = await office()
    for n in range(50):
        await post.hf.webhooks.subscribe(f"{HOOK}/{n}")
    await post.hf.queue(INTERNAL_QUEUE).pause()  # what is posted is another matter

    async with _memory() as used, post.hf.worker(concurrency=20):
        chains = await post.hf.start_many([post.greet(name="A" * 60_000)] * 100)
        await post.hf.wait(chains, timeout=120)
        await until(post.is_outbox_empty, "all deliveries are made", 120)

    jobs = [await post.hf.get_job(each.id) for each in chains]
    assert await post.count_jobs() == 100 + 5_000
    assert {(str(job.status), job.attempt, job.crashes) for job in jobs} == {("completed", 1, 0)}
    assert "leases_were_lost" not in caplog.text
    with capsys.disabled():
        print(f"\n{post.hf.store.database}: 5,000 deliveries of 60 kB were made with {max(used) / 1e6:.0f} MB")
    assert max(used) < 200e6


@asynccontextmanager
async def _memory() -> Any:
    """Give how many bytes more than at first this process has had, looked at a hundred times a second."""
    before, used = _resident(), [0]

    async def watch() -> None:
        while True:
            used.append(_resident() - before)
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    try:
        yield used
    finally:
        watching.cancel()


def _resident() -> int:
    return int(MEMORY.read_text().split()[1]) * PAGE_BYTES
