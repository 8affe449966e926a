"""Two workers at the same schedules, over PostgreSQL: whoever comes second passes over what the first has taken up."""

from __future__ import annotations

from typing import Any

from holdfast.store import schedules
from tests.support.factories import greet
from tests.support.ways import Way


async def make_due(way: Way, *names: str) -> None:
    """Put schedules whose time came a second ago."""
    for name in names:
        await way.hf.schedules.put(name, greet(name="Ada"), every=3_600, missed="all")
    await way.call(_let_it_be_time)


async def _let_it_be_time(tx: Any) -> None:
    await tx.execute("UPDATE holdfast_schedule SET next_at = ($now / 3600000) * 3600000")


async def test_a_schedule_that_another_worker_has_taken_up_is_passed_over(way_pg: Way, begin: Any) -> None:
    """I-83: nobody waits, and nothing is started or counted twice."""
    await make_due(way_pg, "one")
    calls = way_pg.hf.__holdfast_engine__.starter
    first, second = await begin(), await begin()

    taken = await first.run(schedules.tick, calls)
    passed_over = await second.run(schedules.tick, calls)
    await first.commit()
    await second.commit()

    assert taken.names == ["one"]
    assert passed_over.names == [], "two workers have taken up one schedule"
    ((ticks, jobs),) = await way_pg.rows(
        "SELECT (SELECT count(*) FROM holdfast_tick), (SELECT count(*) FROM holdfast_job)"
    )
    assert (ticks, jobs) == (1, 1)


async def test_a_schedule_that_a_person_has_locked_holds_up_no_other(way_pg: Way, begin: Any) -> None:
    """I-84."""
    await make_due(way_pg, "held", "other")
    person = await begin()
    await person.lock("holdfast_schedule", "name", "held")

    ticked = await way_pg.call(schedules.tick, way_pg.hf.__holdfast_engine__.starter)

    assert ticked.names == ["other"]
