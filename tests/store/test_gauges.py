"""Gauges: how many stand where, by a sample that one process takes for all; bounded, and honest about it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.client import insight
from holdfast.database.tx import Tx
from holdfast.errors import StoreError
from holdfast.figures import Figure, Overview, QueueFigures
from holdfast.models import INTERNAL_QUEUE
from holdfast.store import workers
from holdfast.store.insight import gauges
from holdfast.store.insight.gauges import Sample
from holdfast.store.workers import Member
from tests.support.factories import counted, make_job, now_ms, pause_queue
from tests.support.ways import Way


def figures(overview: Overview) -> dict[str, float]:
    return {name: figure.value for name, figure in overview._asdict().items() if isinstance(figure, Figure)}


def values(queue: QueueFigures) -> tuple[float, float, float]:
    return queue.ready.value, queue.scheduled.value, queue.running.value


async def samples(way: Way) -> list[Any]:
    return [gauge for (gauge,) in await way.rows("SELECT gauge FROM holdfast_tally WHERE width = -1 ORDER BY at")]


async def set_back(way: Way, seconds: int, **facts: int) -> None:
    """Let the sample that was taken be *seconds* older; *facts* are changed in it."""

    async def work(tx: Tx) -> None:
        for at, gauge in await tx.fetch_all("SELECT at, gauge FROM holdfast_tally WHERE width = -1"):
            taken = None if gauge is None else json.loads(gauge)
            text = taken and json.dumps(taken | {"at_ms": taken["at_ms"] - 1000 * seconds, "took_ms": 0} | facts)
            sql = "UPDATE holdfast_tally SET at = :then, gauge = :gauge WHERE width = -1 AND at = :at"
            await tx.execute(sql, at=at, then=at - 1000 * seconds, gauge=text)

    await way.call(work)


async def test_an_empty_database_has_nothing_waiting_and_nobody_working(way: Way) -> None:
    overview = await way.face.overview()

    assert overview.queues == ()
    assert set(figures(overview).values()) == {0}
    assert abs(datetime.now(UTC) - overview.at) < timedelta(seconds=60)


async def test_jobs_are_counted_where_they_stand(way: Way) -> None:
    for _ in range(3):
        await make_job(way, sort_key=now_ms() - 60_000)
    await make_job(way, task="bill", sort_key=now_ms() - 4 * 60_000 - 3 * 60_000, priority=3)
    await make_job(way, gate="arrival", sort_key=None, wake_at=now_ms() + 60_000, queue="later")
    await make_job(way, "running", queue="busy")
    await make_job(way, "failed")
    await make_job(way, "paused", lane="vm-7", head=1, place=1)
    await make_job(way, gate="lane", sort_key=None, lane="vm-7", place=2)

    overview = await way.face.overview()

    assert {each.name: values(each) for each in overview.queues} == {
        "busy": (0, 0, 1),
        "default": (4, 0, 0),
        "later": (0, 1, 0),
    }
    oldest = [each.oldest_ready for each in overview.queues]
    assert [each is None for each in oldest] == [True, False, True]
    assert oldest[1] is not None
    assert 240 <= oldest[1].value < 300
    told = {"in_lanes": 1, "stuck": 2, "halted_lanes": 1, "open_chains": 8, "workers": 0, "slots": 0}
    assert figures(overview) == told
    assert overview.stuck.is_exact
    assert overview.stuck.at == overview.at


async def test_jobs_of_the_engine_itself_are_left_out(way: Way) -> None:
    for status in ("pending", "running", "failed"):
        await make_job(way, status, queue=INTERNAL_QUEUE)
    await make_job(way, gate="lane", sort_key=None, lane="hook", place=2, queue=INTERNAL_QUEUE)

    overview = await way.face.overview()

    assert overview.queues == ()
    assert set(figures(overview).values()) == {0}


async def test_a_count_above_the_bound_says_that_it_is_at_least_so_much(way: Way) -> None:
    for status in ("pending", "running", "failed"):
        for _ in range(3):
            await make_job(way, status)
    at_bound, above = await way.read(gauges.sample, 3), await way.read(gauges.sample, 2)

    assert at_bound.queues["default"] == {
        "ready": (3, True),
        "oldest_ready": pytest.approx(0, abs=60_000),
        "scheduled": (0, True),
        "running": (3, True),
    }
    assert at_bound.in_all["stuck"] == (3, True)
    assert above.queues["default"]["ready"] == (2, False)
    assert above.queues["default"]["running"][1] is False
    assert above.in_all["stuck"] == (2, False)
    assert above.in_all["open_chains"] == (2, False)


async def test_queues_with_many_jobs_share_what_is_counted(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many queues there are, a sample reads about as many rows."""
    monkeypatch.setattr(gauges, "FEW", 2)
    for queue, jobs in (("long", 5), ("short", 1), ("later", 5)):
        for _ in range(jobs):
            await make_job(way, queue=queue, **({"gate": "arrival", "sort_key": None} if queue == "later" else {}))

    all_of_it, a_part = await way.read(gauges.sample, 10), await way.read(gauges.sample, 8)

    assert waiting_in(all_of_it) == {"long": (5, True), "short": (1, True), "later": (5, True)}
    assert waiting_in(a_part) == {"long": (4, False), "short": (1, True), "later": (4, False)}


def waiting_in(sample: Sample) -> dict[str, tuple[int, bool]]:
    """Give how many jobs are ready in each queue, or scheduled in the one that is for later."""
    return {name: each["scheduled" if name == "later" else "ready"] for name, each in sample.queues.items()}


async def test_workers_slots_and_pauses_are_those_of_now(way: Way) -> None:
    await way.face.overview()
    for number, queues in enumerate((["default"], ["default", "mail"])):
        facts = json.dumps({"queues": queues, "concurrency": 10})
        await way.call(workers.beat, Member(f"worker-{number}", None, "host", 7, facts))
    await way.call(workers.beat, Member("waiter-1", None, "host", 7))
    await pause_queue(way, "mail")

    overview = await way.face.overview()

    assert (overview.workers.value, overview.slots.value) == (2, 20)
    assert [(each.name, each.slots.value, each.is_paused) for each in overview.queues] == [
        ("default", 20, False),
        ("mail", 10, True),
    ]


async def test_those_who_look_within_ten_seconds_share_a_sample(way: Way) -> None:
    first = await way.face.overview()
    await make_job(way)

    second = await way.face.overview()

    assert second.at == first.at
    assert second.queues == ()
    assert len(await samples(way)) == 1

    await set_back(way, 10)
    third = await way.face.overview()

    assert third.queues[0].ready.value == 1
    assert len(await samples(way)) == 2


async def test_the_next_sample_comes_no_sooner_than_after_a_hundred_times_its_own_time(way: Way) -> None:
    await way.face.overview()
    await set_back(way, 50, took_ms=510)

    await way.face.overview()

    assert len(await samples(way)) == 1

    await set_back(way, 1)
    await way.face.overview()

    assert len(await samples(way)) == 2


async def test_who_finds_that_another_takes_the_sample_reads_the_last_one(way: Way) -> None:
    first = await way.face.overview()
    await set_back(way, 20)
    await make_job(way)
    assert await way.call(gauges.own) is not None
    assert await way.call(gauges.own) is None

    second = await way.face.overview()

    assert second.at == first.at - timedelta(seconds=20)


async def test_a_sample_whose_process_died_is_followed_by_another(way: Way) -> None:
    await way.call(gauges.own)
    await set_back(way, 10)
    await make_job(way)

    assert (await way.face.overview()).queues[0].ready.value == 1


async def test_a_sample_of_before_the_clock_was_put_back_hides_no_later_one(way: Way) -> None:
    await way.face.overview()
    await set_back(way, -3600)
    await make_job(way)

    looks = [await way.face.overview() for _ in range(2)]

    assert [values(each.queues[0]) for each in looks if each.queues] == [(1, 0, 0)] * 2


class ReadOnly:
    """A runner that may not write."""

    def __init__(self, way: Way) -> None:
        self.read = way.read

    async def run(self, *_: object) -> None:
        raise StoreError("the user of the database lacks a right")

    async def gather(self, *_: object) -> None:
        raise AssertionError


async def test_who_may_not_write_gets_the_last_sample_or_one_of_its_own(way: Way) -> None:
    await make_job(way)
    runner: Any = ReadOnly(way)

    own = await insight.overview(runner)

    assert own.queues[0].ready.value == 1
    assert await samples(way) == []

    kept = await way.face.overview()
    await set_back(way, 3600)
    await make_job(way)
    last = await insight.overview(runner)

    assert last.at == kept.at - timedelta(seconds=3600)
    assert last.queues[0].ready.value == 1


async def test_a_sample_that_nobody_can_read_is_as_none(way: Way) -> None:
    assert Sample.read("no JSON") is None
    assert Sample.read('{"another": "release"}') is None


async def test_a_sample_takes_a_few_statements_whatever_there_is(way: Way) -> None:
    few = len(await way.read(counted, gauges.sample))
    for number in range(20):
        await make_job(way, queue=f"queue-{number}", task=f"task-{number}")

    assert few == 6
    assert len(await way.read(counted, gauges.sample)) == 7
    assert len(await way.read(counted, gauges.staff)) == 3
    assert len(await way.read(counted, gauges.latest, 10_000)) == 1
