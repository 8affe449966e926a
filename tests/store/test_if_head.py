"""A lane that is steered by somebody who has seen which job halts it: it acts while that job does, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import HeadConflict, Job
from holdfast.ids import to_id
from tests.store.engine import admit
from tests.support.factories import greet, whole_store
from tests.support.ways import Awaitable, Way

VERBS: dict[str, Callable[..., Any]] = {
    "skip": lambda lane, head: lane.skip(if_head=head),
    "pause": lambda lane, head: lane.pause(if_head=head),
    "resume": lambda lane, head: lane.resume(if_head=head),
}


def lane_of(way: Way) -> Any:
    """The lane, whose every method is awaited."""
    return way.hf.lane("till") if way.is_async else Awaitable(way.hf.sync.lane("till"))


async def halted(way: Way) -> tuple[Job, Job]:
    """Have a lane that its first job halts; give both of its jobs."""
    chains = await way.face.start_many([greet(name=name).options(lane="till") for name in ("Ada", "Bob")])
    await admit(way)
    await way.face.pause(chains[0])
    first, second = [await way.face.get_job(each) for each in chains]
    return first, second


@pytest.mark.parametrize("verb", VERBS)
async def test_the_lane_is_steered_while_the_job_that_was_seen_halts_it(way: Way, verb: str) -> None:
    first, _ = await halted(way)
    before = await whole_store(way)

    await VERBS[verb](lane_of(way), first)

    assert (await whole_store(way) != before) is (verb != "resume")


@pytest.mark.parametrize("verb", VERBS)
async def test_nothing_is_done_if_another_job_halts_it(way: Way, verb: str) -> None:
    first, second = await halted(way)
    before = await whole_store(way)

    with pytest.raises(HeadConflict, match=f"job {first.id} halts it now") as refused:
        await VERBS[verb](lane_of(way), second)

    assert (refused.value.expected, refused.value.head, refused.value.http_status) == (second.id, first.id, 412)
    assert await whole_store(way) == before


@pytest.mark.parametrize("verb", VERBS)
async def test_nothing_is_done_if_no_job_halts_it_any_more(way: Way, verb: str) -> None:
    first, _ = await halted(way)
    await way.face.resume(first)
    before = await whole_store(way)

    with pytest.raises(HeadConflict, match="no job halts it now") as refused:
        await VERBS[verb](lane_of(way), str(first.id))

    assert (refused.value.expected, refused.value.head) == (to_id(first.id), None)
    assert await whole_store(way) == before


async def test_of_two_who_skip_the_same_job_one_is_told(way: Way) -> None:
    first, second = await halted(way)
    await way.face.pause(second)
    await lane_of(way).skip(if_head=first)

    with pytest.raises(HeadConflict, match=f"job {second.id} halts it now"):
        await lane_of(way).skip(if_head=first)
