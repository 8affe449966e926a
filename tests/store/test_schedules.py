"""Schedules: what people put, which ticks become jobs, and what clocks, pauses and troubles do to them. I-83, I-84."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast, Tasks, Unique
from holdfast.errors import (
    InvalidInput,
    InvalidRule,
    Misuse,
    ScheduleNotFound,
    TooMany,
    UnknownTask,
    Unreadable,
    UsageError,
)
from holdfast.schedule_rules import jitter_of
from holdfast.store import schedules as operations
from holdfast.store.schedules import Ticked
from tests.support.database_clock import DatabaseClock
from tests.support.factories import TASKS, add, greet
from tests.support.log_lines import named
from tests.support.ways import WAYS, Awaitable, Way

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
NOON_MS = round(NOON.timestamp() * 1000)
MINUTE, HOUR = 60, 3600


class Mute(Exception):
    """Somebody's own error, which cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


control_place = pytest.mark.parametrize("way", WAYS, indirect=True)
"""For what only the control place has: a task with `cron=` is no schedule of tenants."""


def schedules(way: Way) -> Any:
    """The handle, whose every method is awaited."""
    return way.hf.schedules if way.is_async else Awaitable(way.hf.sync.schedules)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.fixture
def clock(way: Way) -> DatabaseClock:
    """The clock of the way's database, at noon."""
    return DatabaseClock(way.hf, NOON_MS)


async def tick(way: Way, *held: str) -> Ticked:
    return await way.call(operations.tick, way.hf.__holdfast_engine__.starter, held)


async def ticks_of(way: Way, name: str) -> list[float]:
    """Give the times of its ticks, in seconds after noon, the oldest first."""
    return [(each.at - NOON).total_seconds() for each in reversed(await schedules(way).ticks(name, limit=500))]


async def jobs(way: Way) -> list[tuple[Any, ...]]:
    rows = await way.rows("SELECT task, input, scheduled_at FROM holdfast_job ORDER BY seq")
    return [(task, json.loads(given), None if when is None else (when - NOON_MS) / 1000) for task, given, when in rows]


async def count_jobs(way: Way) -> int:
    ((count,),) = await way.rows("SELECT count(*) FROM holdfast_job")
    return int(count)


async def repair(way: Way) -> int:
    """Compare all schedules with their rules, as a worker does."""
    found = await way.read(operations.standing)
    wrong = [each.name for each in found if each.is_wrong]
    return (await way.call(operations.repair, wrong)).many if wrong else 0


# what people do


async def test_a_schedule_is_shown_with_its_words_and_the_next_five_times(way: Way, clock: DatabaseClock) -> None:
    put = await schedules(way).put(
        "report", add(a=1, b=2), cron="30 14 * * *", timezone="Europe/Rome", jitter=5, missed="skip", by="Ada"
    )

    found = await schedules(way).get("report")
    assert found == put
    assert (found.name, found.task, found.input, found.options) == ("report", "add", {"a": 1, "b": 2}, {})
    assert (found.rule.cron, found.rule.timezone) == ("30 14 * * *", "Europe/Rome")
    assert found.words == "At 14:30 every day (Europe/Rome)"
    assert found.next_at == at(30 * MINUTE)
    assert found.next_times == tuple(at(30 * MINUTE + day * 24 * HOUR) for day in range(5))
    assert (found.missed, found.jitter, found.changed_by, found.created_at) == ("skip", 5.0, "Ada", NOON)
    assert (found.is_paused, found.is_declared, found.trouble, found.left_out) == (False, False, None, 0)


async def test_putting_again_changes_it_and_keeps_its_next_time_if_the_rule_is_the_same(
    way: Way, clock: DatabaseClock
) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60)
    clock.step(61)

    same = await schedules(way).put("sync", greet(name="Bob"), every=60, missed="all")
    other = await schedules(way).put("other", greet(name="Bob"), every=60)
    assert (same.next_at, same.input, same.missed) == (at(60), {"name": "Bob"}, "all")
    assert other.next_at == at(120)

    changed = await schedules(way).put("sync", greet(name="Bob"), every=90)
    assert changed.next_at == at(90)
    assert (changed.created_at, changed.changed_at) == (NOON, at(61))


async def test_what_the_call_says_is_stored_and_what_it_leaves_to_its_task_is_not(way: Way) -> None:
    call = add(a=1, b=2).options(
        unique=Unique("sums", within=60), lane="sums", tags=["a", "b"], attempts=3, webhook=None, delay=2
    )
    found = await schedules(way).put("sums", call, every=60)

    assert found.options == {
        "attempts": 3,
        "delay_ms": 2000,
        "lane": "sums",
        "tags": ["a", "b"],
        "unique": {"key": "sums", "scope": "open", "within": 60.0},
        "webhook": None,
    }
    assert (await schedules(way).put("sums", add(a=1, b=2).options(queue="else", priority=3), every=60)).options == {
        "queue": "else"
    }


@pytest.mark.parametrize(
    ("call", "options", "error"),
    [
        (lambda: greet(name="Ada"), {}, InvalidRule),
        (lambda: greet(name="Ada"), {"cron": "99 * * * *"}, InvalidRule),
        (lambda: greet(name="Ada"), {"every": 60, "missed": "some"}, InvalidInput),
        (lambda: greet(name="Ada"), {"every": 60, "jitter": -1}, InvalidInput),
        (lambda: greet(name="Ada"), {"evry": 60}, Misuse),
        (lambda: greet(name="Ada").options(id="01980f00-6e1c-7000-8000-5a1c2f9e0b77"), {"every": 60}, InvalidInput),
        (lambda: greet(name="Ada").options(run_at=NOON), {"every": 60}, InvalidInput),
        (lambda: greet(name="Ada").options(parent=None), {"every": 60}, InvalidInput),
        (lambda: greet, {"every": 60}, Misuse),
        (lambda: TASKS.call("nobody.knows", {}), {"every": 60}, UnknownTask),
    ],
)
async def test_what_cannot_be_started_is_not_put(
    way: Way, call: Callable[[], Any], options: dict[str, Any], error: type[UsageError]
) -> None:
    with pytest.raises(error):
        await schedules(way).put("x", call(), **options)

    assert len(await schedules(way).list()) == 0


@pytest.mark.parametrize("name", ["", "x" * 201, "holdfast.x", "a\nb", 5])
async def test_a_name_is_a_short_text_of_ones_own(way: Way, name: Any) -> None:
    with pytest.raises(InvalidInput):
        await schedules(way).put(name, greet(name="Ada"), every=60)


def test_what_is_wrong_with_a_declaration_is_told_with_what_to_write() -> None:
    tasks = Tasks()

    with pytest.raises(InvalidInput, match="give the schedule a name of 1 to 200 characters"):
        tasks.schedule("", greet(name="Ada"), every=60)
    with pytest.raises(InvalidInput, match="jitter must not be negative, got -50; leave it out for no jitter"):
        tasks.schedule("x", greet(name="Ada"), every=60, jitter=-50)
    with pytest.raises(InvalidInput, match="delay must not be negative, got -50; leave it out to run the job now"):
        greet(name="Ada").options(delay=-50)
    with pytest.raises(InvalidRule, match="give cron= or every="):

        @tasks.task(timezone="Europe/Rome")
        def report(day: int) -> None: ...


async def test_the_call_of_a_task_whose_code_is_elsewhere_is_checked_by_what_its_owner_wrote_down(
    way: Way, new_holdfast: Callable[..., Holdfast]
) -> None:
    stranger = new_holdfast(way.database)

    with pytest.raises(InvalidInput, match="name is missing"):
        stranger.sync.schedules.put("x", stranger.call("greet", {}), every=60)
    stranger.sync.schedules.put("x", stranger.call("add", {"a": 1, "b": 2}), every=60)
    chain = stranger.sync.schedules.run("x")

    assert stranger.sync.get_job(chain).queue == "sums"


async def test_schedules_are_listed_by_name_a_page_at_a_time(way: Way) -> None:
    for name in ("c", "a", "b"):
        await schedules(way).put(name, greet(name=name), every=60)

    first = await schedules(way).list(limit=2)
    second = await schedules(way).list(limit=2, cursor=first.next_cursor)

    assert [each.name for each in (*first, *second)] == ["a", "b", "c"]
    assert second.next_cursor is None
    with pytest.raises(UsageError, match="next_cursor"):
        await schedules(way).list(cursor="nonsense")


async def test_what_is_not_there_is_told(way: Way) -> None:
    for verb in ("get", "pause", "resume", "run", "delete", "ticks"):
        with pytest.raises(ScheduleNotFound) as missing:
            await getattr(schedules(way), verb)("nobody")
        assert missing.value.name == "nobody"


async def test_a_deleted_schedule_starts_nothing_and_a_new_one_of_its_name_repeats_no_tick(
    way: Way, clock: DatabaseClock
) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60)
    clock.step(60)
    await tick(way)
    await schedules(way).delete("sync")
    clock.step(-30)
    await schedules(way).put("sync", greet(name="Ada"), every=60)
    clock.step(30)

    assert (await tick(way)).started == 0
    assert await ticks_of(way, "sync") == [60]


async def test_there_are_ten_thousand_schedules_at_most(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MOST_SCHEDULES", 2)
    for name in ("a", "b", "a"):
        await schedules(way).put(name, greet(name=name), every=60)

    with pytest.raises(TooMany, match="which is the limit"):
        await schedules(way).put("c", greet(name="c"), every=60)


async def test_run_starts_the_call_now_beside_the_rule(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("sync", greet(name="Ada").options(unique="sync"), every=60)
    await schedules(way).pause("sync")

    chain = await schedules(way).run("sync", by="Bob", why="at once")
    again = await schedules(way).run("sync")

    assert (again.id, again.deduplicated, chain.deduplicated) == (chain.id, True, False)
    assert await jobs(way) == [("greet", {"name": "Ada"}, None)]
    assert await ticks_of(way, "sync") == []
    ((facts,),) = await way.rows("SELECT facts FROM holdfast_event")
    assert json.loads(facts) == {"schedule": "sync", "by": "Bob", "reason": "at once"}


@pytest.mark.parametrize("options", ["no JSON", "[1]", "7", '{"tags": 7}', '{"unique": {"colour": "red"}}'])
async def test_run_says_of_a_spoilt_row_that_it_is_unreadable(way: Way, options: str) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60)
    await way.call(spoil, "sync", "options", options)

    with pytest.raises(Unreadable):
        await schedules(way).run("sync")


# ticks


async def test_each_tick_starts_one_job_and_says_when_it_was_due(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60)

    assert (await tick(way)).names == []
    clock.step(60)
    done = await tick(way)
    assert (done.names, done.started) == (["sync"], 1)
    assert (await tick(way)).names == []
    clock.step(65)
    await tick(way)

    assert await jobs(way) == [("greet", {"name": "Ada"}, 60.0), ("greet", {"name": "Ada"}, 120.0)]
    found = await schedules(way).ticks("sync")
    assert [(each.at, each.outcome, each.done_at) for each in found] == [
        (at(120), "started", at(125)),
        (at(60), "started", at(60)),
    ]
    chains = await way.rows("SELECT id FROM holdfast_job ORDER BY seq DESC")
    assert [str(each.chain_id) for each in found] == [id_ for (id_,) in chains]
    assert (await schedules(way).get("sync")).next_at == at(180)
    job = await way.face.get_job(found[0].chain_id)
    assert job.scheduled_at == at(120)


async def test_the_event_of_the_start_names_the_schedule(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60)
    clock.step(60)
    await tick(way)

    ((facts,),) = await way.rows("SELECT facts FROM holdfast_event WHERE name = 'job:enqueued'")
    assert json.loads(facts) == {"schedule": "sync"}


async def test_a_tick_whose_key_is_held_meets_the_chain_that_has_it(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("sync", greet(name="Ada").options(unique="sync"), every=60, missed="all")
    clock.step(300)

    assert (await tick(way)).started == 1

    found = await schedules(way).ticks("sync")
    assert [each.outcome for each in reversed(found)] == ["started", "met", "met", "met", "met"]
    assert len({each.chain_id for each in found}) == 1
    assert await jobs(way) == [("greet", {"name": "Ada"}, 60.0)]


@pytest.mark.parametrize(
    ("missed", "expected", "left_out"),
    [("one", [240, 300, 360], 3), ("skip", [300, 360], 4), ("all", [60, 120, 180, 240, 300, 360], 0)],
)
async def test_late_ticks_are_as_the_schedule_says(
    way: Way, clock: DatabaseClock, missed: str, expected: list[int], left_out: int
) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60, missed=missed)
    clock.step(360)

    done = await tick(way)

    assert await ticks_of(way, "sync") == expected
    found = await schedules(way).get("sync")
    assert (found.left_out, found.left_out_at) == (left_out, at(360) if left_out else None)
    assert [tuple(each) for each in done.left_out] == ([("sync", left_out)] if left_out else [])
    assert found.next_at == at(420)


async def test_of_late_ticks_the_last_thousand_start_at_most(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60, missed="all")
    clock.step(60 * 1_500)

    assert (await tick(way)).started == 1_002  # the two of the last minute are on time

    assert (await schedules(way).get("sync")).left_out == 1_500 - 1_002
    assert await count_jobs(way) == 1_002


async def test_jitter_and_delay_put_the_job_off_and_not_the_tick(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("sync", greet(name="Ada").options(delay=5), every=60, jitter=30)
    clock.step(60)
    await tick(way)

    ((run_at, scheduled_at),) = await way.rows("SELECT run_at, scheduled_at FROM holdfast_job")
    assert scheduled_at == NOON_MS + 60_000
    assert run_at - scheduled_at == 5_000 + jitter_of("sync", scheduled_at, 30_000)


async def test_a_paused_schedule_starts_nothing_and_counts_nothing(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60, missed="all")
    paused = await schedules(way).pause("sync", by="Ada", why="audit")
    assert (paused.paused_at, paused.paused_by, paused.reason, paused.next_at) == (NOON, "Ada", "audit", None)
    clock.step(300)
    assert (await tick(way)).names == []
    assert await repair(way) == 0

    assert await schedules(way).resume("sync", by="Bob") is True
    assert await schedules(way).resume("sync") is False
    assert (await tick(way)).names == []
    clock.step(60)
    await tick(way)

    found = await schedules(way).get("sync")
    assert await ticks_of(way, "sync") == [360]
    assert (found.left_out, found.is_paused, found.changed_by) == (0, False, "Bob")


async def test_a_pause_ends_by_itself(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60, missed="all")
    await schedules(way).pause("sync", until=at(120))
    clock.step(119)
    assert await repair(way) == 0
    clock.step(31)

    assert await repair(way) == 1
    assert (await schedules(way).get("sync")).next_at == at(120)
    await tick(way)

    assert await ticks_of(way, "sync") == [120]


@pytest.mark.parametrize("seconds", [-HOUR, 0])
async def test_a_pause_until_a_time_that_is_over_is_refused(way: Way, clock: DatabaseClock, seconds: int) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60)

    with pytest.raises(InvalidInput, match=r"not in the future.*12:00:00"):
        await schedules(way).pause("sync", until=at(seconds))

    assert not (await schedules(way).get("sync")).is_paused


async def test_a_rule_that_is_put_after_a_pause_was_over_has_no_times_before(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=HOUR, missed="all")
    await schedules(way).pause("sync", until=at(30))
    clock.step(605)
    await schedules(way).put("sync", greet(name="Ada"), every=60, missed="all")
    clock.step(60)

    assert await repair(way) == 1
    await tick(way)

    assert await ticks_of(way, "sync") == [660]


async def test_the_same_rule_that_is_put_after_a_pause_was_over_loses_no_time(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60, missed="all")
    await schedules(way).pause("sync", until=at(30))
    clock.step(125)
    await schedules(way).put("sync", greet(name="Bob"), every=60, missed="all")

    assert await repair(way) == 1
    await tick(way)

    assert await ticks_of(way, "sync") == [60, 120]


async def test_a_pause_outlives_a_put(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60)
    await schedules(way).pause("sync", why="audit")

    assert (await schedules(way).put("sync", greet(name="Bob"), every=30)).reason == "audit"


# trouble


async def test_a_call_that_cannot_start_is_in_trouble_and_delays_no_other(way: Way, clock: DatabaseClock) -> None:
    for name in ("a", "b", "c", "d", "e"):
        await schedules(way).put(name, greet(name=name), every=60)
    await way.call(spoil, "a", "task", "nobody.knows")
    await way.call(spoil, "b", "input", '{"nam": 1}')
    await way.call(spoil, "c", "rule", '{"moon": "full"}')
    await way.call(spoil, "d", "options", '{"colour": "red"}')
    clock.step(60)

    done = await tick(way)

    assert (sorted(done.names), done.started) == (["a", "b", "c", "d", "e"], 1)
    assert [each.schedule for each in sorted(done.troubles)] == ["a", "b", "c", "d"]
    assert await jobs(way) == [("greet", {"name": "e"}, 60.0)]
    found = {each.name: each for each in await schedules(way).list()}
    assert found.keys() == {"a", "b", "d", "e"}  # what this release cannot read is left out
    assert "nobody.knows" in (found["a"].trouble or "")
    assert "colour" in (found["d"].trouble or "")
    assert found["e"].trouble is None
    assert found["a"].next_at == at(120)


@pytest.mark.parametrize("error", [RuntimeError("a\0b"), ValueError("\ud800"), RuntimeError("x" * 9_000), Mute()])
async def test_whatever_a_users_type_raises_is_trouble_that_can_be_stored(
    way: Way, clock: DatabaseClock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """I-84."""
    for name in ("a", "b"):
        await schedules(way).put(name, greet(name=name), every=60)
    starter = way.hf.__holdfast_engine__.starter
    stored_start = starter.stored_start

    def refuse(call: Any, record: Any) -> Any:
        if '"a"' in call.input:
            raise error
        return stored_start(call, record)

    monkeypatch.setattr(starter, "stored_start", refuse)
    clock.step(60)

    done = await tick(way)

    assert (done.started, [each.schedule for each in done.troubles]) == (1, ["a"])
    trouble = (await schedules(way).get("a")).trouble or ""
    assert type(error).__name__ in trouble
    assert len(trouble) <= operations.TROUBLE_LENGTH


async def test_trouble_is_over_with_the_next_tick_that_starts(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("a", greet(name="a"), every=60)
    await way.call(spoil, "a", "task", "nobody.knows")
    clock.step(60)
    await tick(way)
    await way.call(spoil, "a", "task", "greet")
    clock.step(60)
    await tick(way)

    assert (await schedules(way).get("a")).trouble is None
    assert await ticks_of(way, "a") == [120]


async def test_what_the_database_refuses_is_given_up_until_its_next_time(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("a", greet(name="a"), every=60)
    clock.step(60)

    trouble = await way.call(operations.give_up, "a", "no room")
    again = await way.call(operations.give_up, "a", "no room")

    assert (trouble, again) == (("a", "greet", "no room"), None)
    found = await schedules(way).get("a")
    assert (found.trouble, found.next_at) == ("no room", at(120))


async def test_a_reason_that_no_database_can_store_is_written_with_escapes(way: Way, clock: DatabaseClock) -> None:
    """I-84."""
    await schedules(way).put("a", greet(name="a"), every=60)
    clock.step(60)

    await way.call(operations.give_up, "a", "no\0room \ud800")

    assert (await schedules(way).get("a")).trouble == "no\\u0000room \\ud800"


async def spoil(tx: Any, name: str, column: str, value: str) -> None:
    """Write what another release, or somebody's own SQL, may have written."""
    await tx.execute(f"UPDATE holdfast_schedule SET {column} = :value WHERE name = :name", name=name, value=value)


async def test_the_schedules_that_are_held_are_left_out(way: Way, clock: DatabaseClock) -> None:
    for name in ("a", "b"):
        await schedules(way).put(name, greet(name=name), every=60)
    clock.step(60)

    assert await way.read(operations.due_names, ["a"]) == ["b"]
    assert (await tick(way, "a")).names == ["b"]
    assert (await way.call(operations.tick_one, "a", way.hf.__holdfast_engine__.starter)).started == 1


async def test_many_that_are_due_are_taken_up_in_few_statements(way: Way, clock: DatabaseClock) -> None:
    for nr in range(60):
        await schedules(way).put(f"s{nr:02}", greet(name="x"), every=60)
    clock.step(60)

    first, second, third = [(await tick(way)).started for _ in range(3)]

    assert (first, second, third) == (50, 10, 0)
    assert await way.read(operations.earliest) == (60_000,)


async def test_with_many_jobs_a_transaction_takes_up_no_further_schedule(
    way: Way, clock: DatabaseClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MOST_STARTED", 5)
    for name in ("a", "b", "c"):
        await schedules(way).put(name, greet(name=name), every=60, missed="all")
    clock.step(240)

    assert [len((await tick(way)).names) for _ in range(3)] == [2, 1, 0]
    assert await count_jobs(way) == 12


# clocks


async def test_a_clock_that_is_put_back_repeats_nothing_and_goes_on(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60, missed="all")
    clock.step(180)
    await tick(way)
    clock.step(-150)

    assert await repair(way) == 0  # the times up to there have had their jobs
    for _ in range(5):
        clock.step(60)
        await tick(way)

    assert await ticks_of(way, "sync") == [60, 120, 180, 240, 300]
    assert await count_jobs(way) == 5


async def test_after_a_visit_to_another_year_ticks_go_on(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60)
    clock.step(60)
    await tick(way)
    clock.step(4 * 365 * 24 * HOUR)
    await tick(way)
    clock.set(NOON_MS + 130_000)
    assert (await tick(way)).names == []

    assert await repair(way) == 1
    assert (await schedules(way).get("sync")).next_at == at(120)  # it has come meanwhile, and is on time
    await tick(way)
    clock.step(60)
    await tick(way)

    assert (await ticks_of(way, "sync"))[:3] == [60, 120, 180]


async def test_a_next_time_goes_back_to_the_first_that_has_no_tick(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60, missed="skip")
    clock.step(600)
    await tick(way)  # it has the ticks 540 and 600, and left the others out
    clock.step(-30)

    assert await repair(way) == 0
    clock.step(-450)
    assert await repair(way) == 1
    assert (await schedules(way).get("sync")).next_at == at(120)  # the others are late, and left out

    for _ in range(10):
        clock.step(60)
        await tick(way)
    assert await ticks_of(way, "sync") == [120, 180, 240, 300, 360, 420, 480, 540, 600, 660, 720]
    assert await count_jobs(way) == 11


async def test_a_next_time_that_was_lost_is_found_again(way: Way, clock: DatabaseClock) -> None:
    await schedules(way).put("sync", greet(name="Ada"), every=60)
    await way.call(forget_next)

    assert await repair(way) == 1
    assert (await schedules(way).get("sync")).next_at == at(60)


async def forget_next(tx: Any) -> None:
    await tx.execute("UPDATE holdfast_schedule SET next_at = NULL")


@control_place
async def test_fixed_times_come_once_in_the_nights_of_the_shift(way: Way, clock: DatabaseClock) -> None:
    spring = datetime(2026, 3, 28, 12, tzinfo=UTC)
    clock.set(round(spring.timestamp() * 1000))
    await schedules(way).put("night", greet(name="Ada"), cron="30 2 * * *", timezone="Europe/Rome", missed="all")
    for _ in range(2 * 24 * 4):
        clock.step(900)
        await tick(way)

    found = [each.at for each in await schedules(way).ticks("night")]
    assert found == [datetime(2026, 3, 30, 0, 30, tzinfo=UTC), datetime(2026, 3, 29, 1, tzinfo=UTC)]


# declarations


def declaring(**options: Any) -> Tasks:
    tasks = Tasks()

    @tasks.task(name="nightly", **options)
    async def nightly(name: str = "Ada") -> None: ...

    return tasks


@control_place
async def test_a_declaration_is_written_once_and_again_when_it_changes(
    way: Way, new_holdfast: Callable[..., Holdfast]
) -> None:
    hf = new_holdfast(way.database, tasks=[declaring(cron="0 3 * * *", timezone="Europe/Rome")])
    hf.sync.open()
    found = hf.sync.schedules.get("nightly")
    assert (found.task, found.input, str(found.rule), found.is_declared) == (
        "nightly",
        {"name": "Ada"},
        "0 3 * * * Europe/Rome",
        True,
    )

    hf.sync.schedules.put("nightly", hf.call("nightly", {"name": "Bob"}), cron="0 4 * * *", by="Bob")
    hf.sync.schedules.pause("nightly", why="audit")
    same = new_holdfast(way.database, tasks=[declaring(cron="0 3 * * *", timezone="Europe/Rome")])
    same.sync.open()
    edited = same.sync.schedules.get("nightly")
    assert (edited.input, edited.rule.cron, edited.is_declared) == ({"name": "Bob"}, "0 4 * * *", True)

    changed = new_holdfast(way.database, tasks=[declaring(cron="0 5 * * *", missed="all")])
    changed.sync.open()
    found = changed.sync.schedules.get("nightly")
    assert (found.input, found.rule.cron, found.missed, found.reason) == ({"name": "Ada"}, "0 5 * * *", "all", "audit")


@control_place
async def test_a_declaration_whose_task_nobody_knows_is_written_in_trouble(
    way: Way, new_holdfast: Callable[..., Holdfast]
) -> None:
    tasks = Tasks()
    tasks.schedule("sync", tasks.call("nobody.knows", {}), every=300)
    hf = new_holdfast(way.database, tasks=[tasks])

    hf.sync.open()

    assert "nobody.knows" in (hf.sync.schedules.get("sync").trouble or "")


@control_place
async def test_declarations_that_are_too_many_stop_no_program(
    way: Way, new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(operations, "MOST_SCHEDULES", 2)
    hf = new_holdfast(way.database, tasks=[TASKS])
    for name in ("a", "b", "c"):
        hf.schedule(name, greet(name=name), every=60)

    hf.sync.open()
    hf.sync.start(greet(name="Ada"))

    assert [each.name for each in hf.sync.schedules.list().items] == ["a", "b"]
    (left_out,) = named(caplog, "schedule_in_trouble")
    assert left_out.getMessage().startswith("Schedule c ")
    assert "which is the limit" in left_out.getMessage()


# retention


async def test_ticks_are_kept_for_a_week_and_the_last_hundred_for_longer(way: Way, clock: DatabaseClock) -> None:
    day = 24 * HOUR
    await schedules(way).put("often", greet(name="Ada"), every=6 * HOUR, missed="all")
    await schedules(way).put("gone", greet(name="Ada"), every=day, missed="all")
    clock.step(40 * day)
    await tick(way)
    await schedules(way).delete("gone")
    assert len(await ticks_of(way, "often")) == 160

    await way.face.retain()

    assert len(await ticks_of(way, "often")) == 100
    ((left,),) = await way.rows("SELECT count(*) FROM holdfast_tick WHERE schedule = 'gone'")
    assert left == 7
    clock.step(-30 * day)
    assert (await way.read(operations.old_ticks)) == ([], None)
