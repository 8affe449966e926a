"""The parent of a job: by it the children of a fan-out are listed, followed and shown (FINDINGS C19)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from holdfast import InvalidId, Misuse
from holdfast.client.starter import take_continuation
from holdfast.models import Continuation
from holdfast.outcomes import Kind, Outcome
from tests.feed.streams import events
from tests.http.listening import listening
from tests.store.engine import claim_one, settle
from tests.support.factories import a_start, greet
from tests.support.ways import Way


async def children_of(way: Way, parent: Any, **options: Any) -> list[UUID]:
    """List the children of a job, oldest first."""
    return [job.id for job in await way.face.list_jobs(parent=parent, order="oldest", **options)]


async def test_a_job_has_the_parent_that_it_was_started_with(way: Way) -> None:
    report = await way.face.start(greet(name="report"))
    by_chain = await way.face.start(greet(name="a"), parent=report)
    by_job = await way.face.start(greet(name="b").options(parent=await way.face.get_job(report)))
    by_text = await way.face.start(greet(name="c"), parent=str(report.id), lane="vm-7", delay=60)
    alone = await way.face.start(greet(name="d").options(parent=report).options(parent=None))

    jobs = [await way.face.get_job(each) for each in (by_chain, by_job, by_text, alone, report)]
    assert [job.parent for job in jobs] == [report.id] * 3 + [None] * 2


async def test_the_children_of_a_job_are_listed_a_page_at_a_time(way: Way) -> None:
    first, second = await way.face.start_many([greet(name="first"), greet(name="second")])
    parents = [first, second] * 3
    chains = await way.face.start_many([greet(name=str(n)).options(parent=each) for n, each in enumerate(parents)])

    page = await way.face.list_jobs(parent=first, limit=2)
    rest = await way.face.list_jobs(parent=first, limit=2, cursor=page.next_cursor)

    assert [job.id for job in (*page, *rest)] == [each.id for each in chains[4::-2]]
    assert await children_of(way, second, status="pending", task="greet") == [each.id for each in chains[1::2]]
    assert await children_of(way, chains[0]) == []


async def test_what_continues_a_child_and_what_repeats_it_have_its_parent(way: Way) -> None:
    report = await way.face.start(greet(name="report"), paused=True)
    child = await way.face.start(greet(name="child"), parent=report)
    job = await claim_one(way)
    step = a_start()

    await settle(way, (job.token, Outcome(Kind.COMPLETE, successor=Continuation(step))))
    again = await way.face.start_again(child)

    assert await children_of(way, report) == [child.id, step.id, again.id]


async def test_a_continuation_has_no_parent_of_its_own(way: Way) -> None:
    report = await way.face.start(greet(name="report"))

    with pytest.raises(Misuse, match="belongs to its chain"):
        take_continuation(greet(name="next").options(parent=report))


async def test_what_is_no_id_is_no_parent(way: Way) -> None:
    with pytest.raises(InvalidId):
        greet(name="a").consume().options(parent="report")
    with pytest.raises(InvalidId):
        await way.face.list_jobs(parent="report")


async def test_the_children_of_a_job_can_be_followed_until_they_are_deleted(way: Way) -> None:
    report, other = await way.face.start_many([greet(name="report"), greet(name="other")])
    cursor = await way.face.cursor()
    child = await way.face.start(greet(name="child"), parent=report)
    await way.face.start(greet(name="not ours"), parent=other)

    async with events(way, cursor, parents=[report]) as followed:
        assert await followed.names(1) == ["job:enqueued"]
        await way.face.cancel_many([report, child])
        assert await followed.names(1) == ["job:cancelled"]
        await way.face.delete_many([report, child])
        (gone,) = await followed.take(1)

    assert (gone.name, gone.deleted_job_id, gone.facts["parent"]) == ("job:deleted", child.id, str(report.id))


async def test_a_stream_for_browsers_shows_the_children_of_one_job(way: Way) -> None:
    report, other = await way.face.start_many([greet(name="report"), greet(name="other")])
    child = await way.face.start(greet(name="child"), parent=report)
    await way.face.start(greet(name="not ours"), parent=other)
    await way.face.pause_many([report, other])

    async with listening(way, parents=report) as reader:
        (shown,) = (await reader.next()).json["jobs"]
        await way.face.cancel(child)
        message = await reader.next()

    assert (shown["id"], shown["parent"]) == (str(child.id), str(report.id))
    assert (message.event, message.json["job"]["parent"]) == ("job:cancelled", str(report.id))


async def test_a_start_that_meets_its_twin_leaves_its_parent_as_it_is(way: Way) -> None:
    first, second = await way.face.start_many([greet(name="first"), greet(name="second")])
    child = await way.face.start(greet(name="child"), parent=first, unique="child")

    twin = await way.face.start(greet(name="child"), parent=second, unique="child")

    assert (twin.id, twin.deduplicated) == (child.id, True)
    assert await children_of(way, first) == [child.id]
