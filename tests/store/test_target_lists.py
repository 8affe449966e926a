"""Lists by the words of a target queue: each status, a stale one too, an offset, and a total that is bounded."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.models import JobQuery
from holdfast.states import Status
from holdfast.store import target_lists
from holdfast.store.target_lists import TargetStatus, status_of
from tests.support.factories import make_job, now_ms
from tests.support.ways import Way

WORDS: list[TargetStatus] = list(get_args(TargetStatus))
EVERY = JobQuery()


async def test_each_job_is_found_by_its_own_word_and_by_no_other(way: Way) -> None:
    made = [(status, attempt) for status in Status for attempt in (0, 1) if attempt or status is not Status.RUNNING]
    for status, attempt in made:
        await make_job(way, status, lane=f"{status}-{attempt}", attempt=attempt)

    found = {word: await way.call(target_lists.list_page, EVERY, [word], 50, 0) for word in WORDS}

    assert sum(page.total for page in found.values()) == len(made)
    assert {word: {status_of(job) for job in page.jobs} for word, page in found.items()} == {
        word: {word} for word in WORDS
    }


async def test_what_has_become_stale_is_still_listed_by_what_it_was(way: Way) -> None:
    job_id = await make_job(way, Status.COMPLETED, lane="vm-7", stale_at=now_ms())

    page = await way.call(target_lists.list_page, EVERY, ["SUCCESS"], 50, 0)

    assert [job.id for job in page.jobs] == [job_id]


async def test_what_is_in_no_lane_is_not_listed(way: Way) -> None:
    await make_job(way, Status.COMPLETED)

    assert await way.call(target_lists.list_page, EVERY, [], 50, 0) == (0, ())


async def test_the_total_is_counted_up_to_a_bound(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_lists, "MOST", 3)
    ids = [await make_job(way, Status.COMPLETED, lane="vm-7") for _ in range(5)]

    page = await way.call(target_lists.list_page, EVERY, [], 2, 1)

    assert (page.total, [job.id for job in page.jobs]) == (3, [ids[3], ids[2]])
