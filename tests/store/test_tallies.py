"""Tallies: what workers have counted is written as often as they like, folded once, and kept for its time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import InvalidInput, TooMany
from holdfast.database.tx import Tx
from holdfast.figures import KEPT_SECONDS, Counts, Histogram, Tallied
from holdfast.store.insight import tallies
from holdfast.store.insight.tallies import FOR_EVER, OPEN, JobKind, OpenTally, Wanted
from tests.support.factories import counted
from tests.support.ways import Way

MAIL = JobKind("default", "mail")
HOUR_MS = 3_600_000


async def now_ms(way: Way) -> int:
    ((now,),) = await way.rows("SELECT $now")
    return int(now)


async def interval(way: Way, seconds_ago: float = 0) -> int:
    """Say when the interval of 10 s begins that was *seconds_ago*."""
    at = await now_ms(way) - round(1000 * seconds_ago)
    return at - at % 10_000


def tally(at: int, completed: int, kind: JobKind = MAIL, waited_ms: float = 50) -> OpenTally:
    waits, runs = Histogram.of([waited_ms] * completed), Histogram.of([200] * completed)
    return OpenTally(at, kind, Tallied(Counts(started=completed, completed=completed), waits, runs))


async def age(way: Way, seconds: float, width: int = OPEN) -> None:
    """Let time pass for all rows of *width*, in whole intervals of 10 s."""

    async def work(tx: Tx) -> None:
        sql = "UPDATE holdfast_tally SET at = at - CAST(:ms AS bigint) WHERE width = :width"
        await tx.execute(sql, ms=round(seconds * 1000), width=width)

    await way.call(work)


async def rows(way: Way) -> list[tuple[Any, ...]]:
    found = await way.rows("SELECT width, source, started, completed FROM holdfast_tally")
    return sorted(found)


async def completed(way: Way, width: int) -> int:
    sql = "SELECT coalesce(sum(completed), 0) FROM holdfast_tally WHERE width = :width AND source = ''"
    ((count,),) = await way.rows(sql, width=width)
    return int(count)


async def total(way: Way) -> int:
    found = await way.read(tallies.totals)
    return sum(each.counts.completed for each in found.values())


async def test_what_is_written_again_counts_once(way: Way) -> None:
    at = await interval(way)

    assert await way.call(tallies.write, "worker-1", [tally(at, 5)]) == {at}
    assert await way.call(tallies.write, "worker-1", [tally(at, 5)]) == {at}
    assert await way.call(tallies.write, "worker-1", [tally(at, 7)]) == {at}

    assert await rows(way) == [(OPEN, "worker-1", 7, 7)]
    assert await total(way) == 7


async def test_an_interval_is_written_until_it_is_40_seconds_old(way: Way) -> None:
    young, old = await interval(way, 20), await interval(way, 50)

    assert await way.call(tallies.write, "worker-1", [tally(young, 1), tally(old, 2)]) == {young}
    assert await total(way) == 1


async def test_workers_are_folded_into_one_and_added_to_minute_hour_and_all_time(way: Way) -> None:
    at = await interval(way)
    other = JobKind("default", "bill")
    await way.call(tallies.write, "worker-1", [tally(at, 5), tally(at, 1, other)])
    await way.call(tallies.write, "worker-2", [tally(at, 2, waited_ms=5_000)])
    await age(way, 70)

    assert await way.read(tallies.due) == [OPEN]
    assert not await way.call(tallies.fold)

    assert [await completed(way, width) for width in (10, 60, 3600, FOR_EVER)] == [8, 8, 8, 8]
    assert len(await rows(way)) == 8
    assert await total(way) == 8
    found = await way.read(tallies.totals)
    assert found[MAIL].wait == Histogram.of([50] * 5 + [5_000] * 2)
    assert found[other].run == Histogram.of([200])
    assert await way.read(tallies.due) == []


async def test_what_is_folded_again_is_added(way: Way) -> None:
    at = await interval(way)
    for source in ("worker-1", "worker-2"):
        await way.call(tallies.write, source, [tally(at, 5)])
        await age(way, 70)
        await way.call(tallies.fold)

    assert [await completed(way, width) for width in (60, 3600, FOR_EVER)] == [10, 10, 10]


async def test_folding_leaves_what_a_worker_may_still_write(way: Way) -> None:
    at = await interval(way)
    await way.call(tallies.write, "worker-1", [tally(at, 5)])
    await age(way, 40)

    assert await way.read(tallies.due) == []
    assert not await way.call(tallies.fold)
    assert await rows(way) == [(OPEN, "worker-1", 5, 5)]


async def test_folding_is_done_a_part_at_a_time_and_doubles_nothing(way: Way) -> None:
    at = await interval(way)
    kinds = [JobKind("default", f"task-{number}") for number in range(7)]
    await way.call(tallies.write, "worker-1", [tally(at, 1, kind) for kind in kinds])
    await age(way, 70)

    steps = 0
    while await way.call(tallies.fold, 3):
        steps += 1
        assert await total(way) == 7

    assert steps == 2
    assert await completed(way, FOR_EVER) == 7


async def test_who_folds_beside_another_waits_for_nobody_and_doubles_nothing(way_pg: Way) -> None:
    at = await interval(way_pg)
    await way_pg.call(tallies.write, "worker-1", [tally(at, 5)])
    await age(way_pg, 70)

    first = await way_pg.hf.store.begin(30)
    try:
        await first.run(tallies.fold)
        assert not await way_pg.call(tallies.fold)
        assert await total(way_pg) == 5
    finally:
        await first.commit()

    assert await total(way_pg) == 5
    assert await completed(way_pg, FOR_EVER) == 5


async def test_folding_takes_the_same_statements_for_one_and_for_a_hundred_rows(way: Way) -> None:
    used = []
    for number in (1, 100):
        at = await interval(way)
        kinds = [JobKind("default", f"task-{each}") for each in range(number)]
        await way.call(tallies.write, "worker-1", [tally(at, 1, kind) for kind in kinds])
        await age(way, 70)
        used.append(len(await way.call(counted, tallies.fold)))

    assert used == [8, 8]


@pytest.mark.parametrize("width", KEPT_SECONDS)
async def test_rows_are_deleted_when_they_are_older_than_they_are_kept(way: Way, width: int) -> None:
    at = await interval(way)
    await way.call(tallies.write, "worker-1", [tally(at, 5)])
    await age(way, 70)
    await way.call(tallies.fold)
    await age(way, KEPT_SECONDS[width] - 3700, width)

    assert await way.read(tallies.due) == []

    await age(way, 3700, width)

    assert await way.read(tallies.due) == [width]
    assert not await way.call(tallies.expire, width)
    assert [each for each, *_ in await rows(way) if each == width] == []
    assert await completed(way, FOR_EVER) == 5


async def test_deleting_is_done_a_part_at_a_time(way: Way) -> None:
    at = await interval(way)
    await way.call(tallies.write, "worker-1", [tally(at, 1, JobKind("default", f"task-{n}")) for n in range(5)])
    await age(way, 70)
    await way.call(tallies.fold)
    await age(way, KEPT_SECONDS[10], 10)

    assert await way.call(tallies.expire, 10, 2)
    assert await completed(way, 10) == 3


async def test_a_series_has_what_is_folded_and_what_is_not(way: Way) -> None:
    at = await interval(way)
    await way.call(tallies.write, "worker-1", [tally(at, 5, waited_ms=50)])
    await age(way, 70)
    await way.call(tallies.fold)
    await way.call(tallies.write, "worker-1", [tally(at, 2, waited_ms=50), tally(at, 4, JobKind("slow", "mail"))])

    for width in KEPT_SECONDS:
        series = await way.face.stats(width=width)

        assert series.width == width
        assert series.total.counts.completed == 11
        assert sum(each.completed for each in series.counts) == 11
        assert series.total.wait.p50 == pytest.approx(0.05, rel=0.19)
        assert series.total.run.p99 == pytest.approx(0.2, rel=0.19)
    assert (await way.face.stats(queue="slow")).total.counts == Counts(4, 4)
    assert (await way.face.stats(queue="slow", task="bill")).total.counts == Counts()


async def test_a_series_without_a_range_is_the_last_hour_and_marks_what_may_still_grow(way: Way) -> None:
    series = await way.face.stats()

    assert series.width == 10
    assert len(series.at) in (360, 361)
    assert series.at[1] - series.at[0] == timedelta(seconds=10)
    assert series.open_from in series.at[-5:]
    assert {len(each) for each in (series.counts, series.wait, series.run)} == {len(series.at)}
    assert set(series.wait) == {(None, None, None)}


async def test_a_range_that_is_over_does_not_grow(way: Way) -> None:
    until = datetime.now(UTC) - timedelta(hours=3)

    series = await way.face.stats(since=until - timedelta(hours=1), until=until)

    assert series.width == 60
    assert series.open_from is None


async def test_a_series_begins_no_earlier_than_its_figures_are_kept(way: Way) -> None:
    series = await way.face.stats(since=datetime.now(UTC) - timedelta(days=900), width=10)

    assert timedelta(hours=2) <= datetime.now(UTC) - series.at[0] <= timedelta(hours=2, minutes=1)


async def test_a_series_of_more_than_2000_points_is_refused(way: Way) -> None:
    """At most 2,000."""
    now = await now_ms(way)
    until = now - now % HOUR_MS
    most = Wanted(since_ms=until - 2_000 * HOUR_MS, until_ms=until, width=3600)

    assert len((await way.read(tallies.series, most)).at) == 2_000
    with pytest.raises(
        TooMany, match=r"at most 2,000 intervals.* 2,001; ask for at most 83 days with since= and until="
    ) as error:
        await way.read(tallies.series, most._replace(since_ms=until - 2_001 * HOUR_MS))
    assert (error.value.count, error.value.most) == (2_001, 2_000)


async def test_a_series_of_too_many_rows_is_refused(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    at = await interval(way)
    await way.call(tallies.write, "worker-1", [tally(at, 1, JobKind("default", f"task-{n}")) for n in range(3)])

    monkeypatch.setattr(tallies, "MOST_ROWS", 3)
    assert (await way.face.stats()).total.counts.completed == 3
    monkeypatch.setattr(tallies, "MOST_ROWS", 2)
    with pytest.raises(TooMany, match="name a queue or a task"):
        await way.face.stats()


async def test_an_unknown_width_is_refused(way: Way) -> None:
    widths: list[Any] = [30, 10.0, True, "60", []]
    for width in widths:
        with pytest.raises(InvalidInput, match="width must be 10, 60 or 3600 seconds"):
            await way.face.stats(width=width)
    with pytest.raises(InvalidInput, match="since must be a timezone-aware datetime"):
        await way.face.stats(since=datetime(2026, 1, 1))  # noqa: DTZ001


async def test_names_that_are_no_texts_are_refused_before_the_database_sees_them(way: Way) -> None:
    names: list[Any] = ["a\0", "\ud800", 5, [], {}]
    for name in names:
        for asked in (way.face.stats(queue=name), way.face.stats(task=name)):
            with pytest.raises(InvalidInput, match=r"must be one text|may have no NUL"):
                await asked
    with pytest.raises(InvalidInput, match="must be a text"):
        await way.face.list_jobs(queue=5)


async def test_a_series_ends_after_it_begins(way: Way) -> None:
    now = datetime.now(UTC)

    with pytest.raises(InvalidInput, match="since must be before until"):
        await way.face.stats(since=now, until=now - timedelta(hours=1))
