"""Settling on PostgreSQL, on the wire: one number of round trips, however many jobs end together and however (Q-03)."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.store.jobs import settling
from holdfast.store.jobs.settling import Settlement
from tests.conftest import SCHEMA
from tests.store.engine import CANCEL, DONE, FAIL, PAUSE, RETRY, admit, claim, drain
from tests.store.test_continuations import then
from tests.support.factories import TASKS, greet
from tests.support.faults.fault_proxy import FaultProxy
from tests.support.ways import Way

WARM = 6
"""How often it is done before it counts: by then the driver has prepared what it prepares."""


@pytest.mark.parametrize("is_async", [True, pytest.param(False, marks=pytest.mark.long)], ids=["async", "blocking"])
async def test_a_batch_is_settled_in_as_many_round_trips_whether_it_has_one_of_each_kind_or_a_hundred(
    empty_url: str, is_async: bool
) -> None:
    """Q-03, I-62: with lanes, keys, blockers, continuations and webhooks among them."""
    with FaultProxy(empty_url) as proxy:
        way = Way(Holdfast(proxy.url, schema_name=SCHEMA, tasks=[TASKS]), is_async)
        await way.face.open()
        for _ in range(WARM):
            await settled_in(way, proxy, 1)
        counts = {count: await settled_in(way, proxy, count) for count in (1, 10, 100)}
        await way.close()

    assert len(set(counts.values())) == 1, counts


async def settled_in(way: Way, proxy: FaultProxy, count: int) -> int:
    """Settle *count* jobs of each kind in one batch; tell how many round trips that took."""
    told = greet(name="x").options(webhook="https://example.com")
    in_lanes = [told.options(lane=f"{count}-{n}", unique=f"{count}-{n}") for n in range(count)]
    first = await way.face.start_many([*in_lanes, *[told for _ in range(5 * count)]])
    await admit(way)
    await way.face.start_many([greet(name="x").options(lane=f"{count}-{n}") for n in range(count)])
    await way.face.start_many([greet(name="x").options(blockers=[each]) for each in first[:count]])
    await admit(way)
    by_id = {job.id: job.token for job in await claim(way, 6 * count)}
    assert len(by_id) == 6 * count
    others = (RETRY, FAIL, PAUSE, CANCEL)
    ends = [
        Settlement(by_id[str(each.id)], DONE if n < count else then() if n < 2 * count else others[n % 4])
        for n, each in enumerate(first)
    ]

    proxy.round_trips = 0
    settled = await way.call(settling.settle, ends)
    spent = proxy.round_trips

    assert len(settled.done) == 6 * count
    await drain(way)
    return spent
