"""Watching one job: as it is, and whenever something is told of it, until it has ended."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast, JobNotFound
from holdfast.events import job_watch
from tests.feed.streams import become_another, is_at_rest, watch
from tests.store import engine
from tests.support.conditions import until
from tests.support.factories import change_job, greet, make_job
from tests.support.ways import Way


async def test_a_job_is_seen_as_it_is_and_whenever_it_changes_until_it_has_ended(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    async with watch(way, chain) as watched:
        states = [(await watched.next()).state]
        job = await engine.claim_one(way)
        states.append((await watched.next()).state)
        await engine.settle(way, (job.token, engine.DONE))
        rest = await watched.rest()

    assert [*states, *(each.state for each in rest)] == ["pending", "running", "completed"]
    assert rest[-1].output == "Hello"


async def test_a_job_that_has_ended_is_seen_once(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await engine.run(way)

    assert [each.state for each in await watch(way, chain.id).rest()] == ["completed"]
    assert not way.hf._feed.here.is_wanted


async def test_a_job_that_is_not_there_is_told(way: Way) -> None:
    with pytest.raises(JobNotFound):
        await watch(way, uuid4()).next()

    assert not way.hf._feed.here.is_wanted


async def test_a_job_that_is_deleted_is_seen_no_more(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    async with watch(way, chain) as watched:
        await watched.next()

        await way.face.delete(chain)

        assert await watched.rest() == []


async def test_what_is_told_of_others_is_not_seen(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    async with watch(way, chain) as watched:
        await watched.next()
        await way.face.start(greet(name="Bob"))
        await way.face.pause(chain)

        assert (await watched.next()).state == "paused"


async def test_a_failover_is_not_noticed(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    async with watch(way, chain) as watched:
        await watched.next()
        await until(lambda: is_at_rest(way.hf), "the feed is at rest")

        await become_another(way.hf)
        await way.face.pause(chain)

        assert (await watched.next()).state == "paused"


async def test_a_job_without_history_is_looked_at_now_and_then(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_watch, "POLL_SECONDS", 0.02)
    job_id = await make_job(way, history=0)
    async with watch(way, job_id) as watched:
        assert (await watched.next()).state == "pending"
        next_one = asyncio.create_task(watched.next())
        await change_job(way, job_id, status="paused", gate=None, sort_key=None, version=2)

        assert (await next_one).state == "paused"
        await way.face.cancel(job_id)
        assert [each.state for each in await watched.rest()] == ["cancelled"]


async def test_whoever_waits_is_told_when_hf_is_closed(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    watched = watch(way, chain)
    await watched.next()
    rest = asyncio.create_task(watched.rest())
    await until(lambda: way.hf._feed.here.is_wanted, "it is watched")

    await way.face.close()

    assert await asyncio.wait_for(rest, 10) == []


async def test_a_watch_is_typed_by_the_tasks_of_its_face(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    async with watch(way, chain) as watched:
        job: Any = await watched.next()

    assert job.input.name == "Ada"
    assert isinstance(way.hf, Holdfast)
