"""Retention: what has ended becomes stale, then goes, and never while somebody still needs it (I-49)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import Holdfast, Retained, Retention, State, Status, Tasks, Unique
from holdfast.database.tx import Tx
from holdfast.models import DELIVER, INTERNAL_QUEUE
from holdfast.retention import Stage
from holdfast.states import OPEN, TERMINAL
from holdfast.store import retention, unique, webhooks
from holdfast.store.log import fan_out, pruning
from holdfast.store.log.fan_out import DeliveryRecord
from holdfast.store.retention import BEGINNING, RetentionGroup
from holdfast.store.webhooks import NewSubscription
from tests.store.engine import FAIL, admit, make_deliveries, run
from tests.support.factories import (
    TASKS,
    CountingTx,
    block,
    change_job,
    continue_chain,
    events_of,
    greet,
    make_job,
    make_phase,
    row_of,
    seq_of,
)
from tests.support.ways import Way

DAY_MS = 86_400_000
on_both_stores = pytest.mark.parametrize("way", ["sqlite-blocking", "postgres-async"], indirect=True)
# on SQLite one transaction writes at a time: nobody holds a row, or is half-way through a start
on_postgres = pytest.mark.parametrize("way", ["postgres-async", "postgres-blocking"], indirect=True)
EIGHT_DAYS, A_MONTH, LONG_AGO = 8 * DAY_MS, 31 * DAY_MS, 400 * DAY_MS


async def ended(way: Way, status: str = "completed", age_ms: int = EIGHT_DAYS, **columns: Any) -> UUID:
    """Make a chain of one job that ended *age_ms* ago."""
    job_id = await make_job(way, status, **columns)
    await way.call(_grow_older, str(job_id), age_ms)
    return job_id


async def stale(way: Way, status: str = "completed", age_ms: int = A_MONTH, **columns: Any) -> UUID:
    """Make a chain of one job that was marked stale *age_ms* ago."""
    job_id = await ended(way, status, age_ms + EIGHT_DAYS, **columns)
    await mark_by_hand(way, job_id, age_ms)
    return job_id


async def mark_by_hand(way: Way, chain_id: UUID, age_ms: int = A_MONTH) -> None:
    """Have all jobs of a chain be stale for *age_ms*."""
    await way.call(_mark, str(chain_id), age_ms)


async def _grow_older(tx: Tx, job_id: str, age_ms: int) -> None:
    await tx.execute("UPDATE holdfast_job SET closed_at = $now - :age WHERE id = :id", id=job_id, age=age_ms)


async def _mark(tx: Tx, chain_id: str, age_ms: int) -> None:
    await tx.execute("UPDATE holdfast_job SET stale_at = $now - :age WHERE chain_id = :id", id=chain_id, age=age_ms)


async def is_stale(way: Way, job_id: UUID) -> bool:
    return (await row_of(way, job_id, "stale_at")) != (None,)


async def exists(way: Way, job_id: UUID) -> bool:
    return bool(await way.rows("SELECT 1 FROM holdfast_job WHERE id = :id", id=str(job_id)))


def counted(done: Retained) -> dict[tuple[str, str], tuple[int, int, int, int]]:
    return {
        (each.task, str(each.outcome)): (each.stale, each.deleted, each.kept, each.postponed) for each in done.counts
    }


# ---- the two stages


@pytest.mark.source("PQ-7", "PQ-19")
@on_both_stores
@pytest.mark.parametrize("status", TERMINAL)
async def test_what_ended_a_week_ago_becomes_stale_and_keeps_its_outcome(way: Way, status: Status) -> None:
    job_id = await ended(way, status)

    done = await way.face.retain()

    job = await way.face.get_job(job_id)
    assert (job.state, job.status, job.outcome, job.version) == (State.STALE, status, status, 2)
    assert counted(done) == {("greet", str(status)): (1, 0, 0, 0)}


async def test_what_ended_yesterday_does_not(way: Way) -> None:
    job_id = await ended(way, age_ms=DAY_MS)

    done = await way.face.retain()

    assert not await is_stale(way, job_id)
    assert done == Retained()


async def test_a_chain_becomes_stale_whole_and_every_job_says_so(way: Way) -> None:
    first = await make_job(way)
    last = await continue_chain(way, first, "completed")
    await change_job(way, first, closed_as="completed", closed_at=1)

    await way.face.retain()

    assert (await is_stale(way, first), await is_stale(way, last)) == (True, True)
    assert await events_of(way, first) == await events_of(way, last) == ["job:stale"]


@pytest.mark.source("PQ-52")
@on_both_stores
@pytest.mark.parametrize("status", OPEN)
async def test_what_is_open_never_becomes_stale(way: Way, status: Status) -> None:
    job_id = await make_job(way, status, created_at=1)

    assert await way.face.retain() == Retained()

    assert not await is_stale(way, job_id)


@pytest.mark.source("PQ-20")
async def test_what_was_stale_for_a_month_is_deleted_with_everything_of_it(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique=Unique("ada", scope="any"), blockers=[await ended(way)])
    await admit(way)
    await run(way)
    await make_phase(way, chain.id, "download")
    await change_job(way, chain.id, closed_at=1)
    await mark_by_hand(way, chain.id)
    seq = await seq_of(way, chain.id)

    done = await way.face.retain()

    assert counted(done)["greet", "completed"][1] == 1
    assert not await exists(way, chain.id)
    tables = {"phase": "job", "blocker": "job", "event": "job", "delivery": "target"}
    left = {name: await way.rows(f"SELECT 1 FROM holdfast_{name} WHERE {by} = {seq}") for name, by in tables.items()}
    assert [name for name, rows in left.items() if rows] == []
    assert await way.rows("SELECT 1 FROM holdfast_unique") == []
    ((facts,),) = await way.rows("SELECT facts FROM holdfast_event WHERE name = 'job:deleted'")
    assert json.loads(facts) == {"id": str(chain.id), "seq": seq, "chain_id": str(chain.id), "task": "greet"}


@pytest.mark.source("PQ-59")
async def test_nothing_is_deleted_that_was_not_stale_for_the_whole_window(way: Way) -> None:
    young = await stale(way, age_ms=29 * DAY_MS)
    old_but_unmarked = await ended(way, age_ms=LONG_AGO)

    done = await way.face.retain()

    assert done.deleted == 0
    assert (await exists(way, young), await exists(way, old_but_unmarked)) == (True, True)


async def test_a_whole_chain_is_deleted_and_counted_once(way: Way) -> None:
    first = await make_job(way)
    last = await continue_chain(way, first, "failed")
    await change_job(way, first, closed_as="failed", closed_at=1)
    await mark_by_hand(way, first)

    done = await way.face.retain()

    assert counted(done) == {("greet", "failed"): (0, 1, 0, 0)}
    assert (await exists(way, first), await exists(way, last)) == (False, False)


async def test_the_engines_own_jobs_go_after_a_day_and_another_and_nobody_hears_of_it(way: Way) -> None:
    marked = await ended(way, task=DELIVER, queue=INTERNAL_QUEUE, age_ms=DAY_MS)
    gone = await stale(way, task=DELIVER, queue=INTERNAL_QUEUE, age_ms=DAY_MS)

    await way.face.retain()

    assert await is_stale(way, marked)
    assert not await exists(way, gone)
    assert await way.rows("SELECT 1 FROM holdfast_event WHERE name = 'job:deleted'") == []


async def test_a_job_without_history_goes_in_silence(way: Way) -> None:
    await stale(way, history=0)
    await ended(way, history=0)

    await way.face.retain()

    assert await way.rows("SELECT name FROM holdfast_event") == []


# ---- what still matters


async def test_a_failed_job_that_halts_its_lane_is_kept_until_it_is_skipped(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), lane="vm-7")
    await run(way, FAIL)
    await change_job(way, chain.id, closed_at=1)

    done = await way.face.retain()
    assert (counted(done), await is_stale(way, chain.id)) == ({("greet", "failed"): (0, 0, 1, 0)}, False)

    await (way.hf.lane("vm-7").skip() if way.is_async else _now(way.hf.sync.lane("vm-7").skip()))
    await way.face.retain()
    assert await is_stale(way, chain.id)


async def _now(value: object) -> object:
    return value


async def test_a_stale_job_that_came_to_halt_a_lane_is_not_deleted(way: Way) -> None:
    job_id = await stale(way, "failed", lane="vm-7", head=1, place=1)

    assert (await way.face.retain()).deleted == 0

    assert await exists(way, job_id)


async def test_a_later_job_of_a_chain_that_halts_its_lane_keeps_the_whole_chain(way: Way) -> None:
    first = await make_job(way)
    await continue_chain(way, first, "failed", lane="vm-7", head=1, place=1)
    await change_job(way, first, closed_as="failed", closed_at=1)

    done = await way.face.retain()

    assert (counted(done), await is_stale(way, first)) == ({("greet", "failed"): (0, 0, 1, 0)}, False)


async def test_what_has_left_something_to_admission_is_kept(way: Way) -> None:
    job_id = await ended(way, gate="arrival", wake_at=1)

    await way.face.retain()
    assert not await is_stale(way, job_id)

    await admit(way)
    await way.face.retain()
    assert await is_stale(way, job_id)


@on_both_stores
@pytest.mark.parametrize("status", OPEN)
async def test_what_an_open_job_waits_for_or_may_read_is_neither_marked_nor_deleted(way: Way, status: Status) -> None:
    marked, deleted = await ended(way), await stale(way)
    waiting = await make_job(way, status)
    await block(way, waiting, marked, deleted)

    done = await way.face.retain()

    assert counted(done) == {("greet", "completed"): (0, 0, 2, 0)}
    assert (await is_stale(way, marked), await exists(way, deleted)) == (False, True)


async def test_once_that_job_has_completed_it_goes(way: Way) -> None:
    marked, deleted = await ended(way), await stale(way)
    await block(way, await make_job(way, "completed"), marked, deleted)

    done = await way.face.retain()

    assert counted(done) == {("greet", "completed"): (1, 1, 0, 0)}


@on_both_stores
@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_a_blocker_stays_for_who_may_be_retried_until_that_one_is_stale_too(way: Way, status: str) -> None:
    blocker = await stale(way)
    dependent = await make_job(way, status)
    await block(way, dependent, blocker)

    await way.face.retain()
    assert await exists(way, blocker)

    await mark_by_hand(way, dependent, DAY_MS)
    await way.face.retain()
    assert not await exists(way, blocker)


async def test_chains_that_would_have_waited_for_themselves_keep_nobody(way: Way) -> None:
    one, other = await stale(way, "failed"), await stale(way, "failed")
    await block(way, one, other, one)
    await block(way, other, one)

    assert (await way.face.retain()).deleted == 2


async def deliver(way: Way, target: UUID, status: str = "pending") -> UUID:
    """Make a delivery of a webhook about *target*."""
    delivery = await make_job(way, status, task=DELIVER, queue=INTERNAL_QUEUE)
    seq, about = await seq_of(way, delivery), await seq_of(way, target)
    await way.call(fan_out.record, [DeliveryRecord(seq, about, "job:completed", None, "https://example.com/")])
    return delivery


@pytest.mark.source("PQ-52")
@on_both_stores
@pytest.mark.parametrize("status", OPEN)
async def test_an_undelivered_webhook_keeps_its_job_from_being_marked_and_deleted(way: Way, status: Status) -> None:
    marked, deleted = await ended(way), await stale(way)
    for each in (marked, deleted):
        await deliver(way, each, status)

    done = await way.face.retain()

    assert counted(done) == {("greet", "completed"): (0, 0, 2, 0)}


async def test_the_mark_itself_is_told_by_webhook_and_the_job_stays_until_that_is_delivered(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), webhook="https://example.com/hook")
    await change_job(way, chain.id, status="completed", gate=None, closed_as="completed", closed_at=1)

    await way.face.retain()
    await mark_by_hand(way, chain.id)
    assert await way.rows("SELECT event FROM holdfast_outbox") == [("job:stale",)]

    assert (await way.face.retain()).deleted == 0
    await make_deliveries(way)
    assert (await way.face.retain()).deleted == 0
    ((delivery,),) = await way.rows("SELECT id FROM holdfast_job WHERE task = :task", task=DELIVER)
    await way.face.cancel(delivery)
    assert (await way.face.retain()).deleted == 1


@on_both_stores
@pytest.mark.parametrize("status", TERMINAL)
async def test_a_webhook_that_has_ended_keeps_nobody_and_goes_on_to_its_own_end(way: Way, status: Status) -> None:
    target = await stale(way)
    delivery = await deliver(way, target, status)

    await way.face.retain()

    assert not await exists(way, target)
    assert await exists(way, delivery)
    assert await way.rows("SELECT 1 FROM holdfast_delivery") == []


async def test_what_is_retried_after_the_look_is_left_alone(way: Way) -> None:
    job_id = await ended(way, "failed")
    ((line,), batch) = await look(way, "stale")
    await way.face.retry(job_id)

    assert await way.call(retention.mark, line, 0, batch) == []

    assert not await is_stale(way, job_id)


async def test_what_is_retried_after_the_look_is_not_deleted(way: Way) -> None:
    job_id = await stale(way, "failed")
    ((line,), batch) = await look(way, "delete")
    await way.face.retry(job_id)

    assert await way.call(retention.delete, line, 0, batch) == []

    assert await exists(way, job_id)


async def look(way: Way, stage: Stage, age_ms: int = 0) -> tuple[list[RetentionGroup], list[int]]:
    """Find what is due, as a pass does."""
    lines = await way.read(retention.groups, stage)
    found = [each for line in lines for each in (await way.read(retention.find, stage, line, age_ms, BEGINNING))[0]]
    return lines, [each.seq for each in found]


async def test_a_delete_asks_for_the_whole_time_itself_whatever_was_looked_up(way: Way) -> None:
    job_id = await stale(way, age_ms=DAY_MS)
    ((line,), batch) = await look(way, "delete")

    assert await way.call(retention.delete, line, 30 * DAY_MS, batch) == []

    assert await exists(way, job_id)


@on_postgres
async def test_a_chain_that_somebody_holds_is_passed_over_and_nobody_is_waited_for(way: Way) -> None:
    marked, deleted, other = await ended(way), await stale(way), await ended(way)
    ((to_mark,), due), ((to_delete,), over) = await look(way, "stale"), await look(way, "delete")
    with psycopg.connect(way.hf.settings.database) as stranger:
        held = [str(marked), str(deleted)]
        stranger.execute("SELECT 1 FROM contract.holdfast_job WHERE id = ANY(%s) FOR UPDATE", (held,))

        assert await way.call(retention.mark, to_mark, 0, due) == [await seq_of(way, other)]
        assert await way.call(retention.delete, to_delete, 0, over) == []

    assert await way.call(retention.mark, to_mark, 0, due) == [await seq_of(way, marked)]


@on_postgres
async def test_a_chain_of_which_somebody_holds_a_later_job_is_passed_over(way: Way) -> None:
    first = await make_job(way)
    last = await continue_chain(way, first, "completed")
    await change_job(way, first, closed_as="completed", closed_at=1)
    ((line,), due) = await look(way, "stale")
    with psycopg.connect(way.hf.settings.database) as stranger:
        stranger.execute("SELECT 1 FROM contract.holdfast_job WHERE id = %s FOR UPDATE", (str(last),))

        assert await way.call(retention.mark, line, 0, due) == []

    assert not await is_stale(way, first)


@on_postgres
async def test_a_key_that_somebody_holds_keeps_its_chain(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique=Unique("ada", scope="any"))
    await run(way)
    await change_job(way, chain.id, closed_at=1)
    await mark_by_hand(way, chain.id)
    with psycopg.connect(way.hf.settings.database) as stranger:
        stranger.execute("SELECT 1 FROM contract.holdfast_unique FOR UPDATE")

        assert (await way.face.retain()).deleted == 0

    assert (await way.face.retain()).deleted == 1


# ---- retry from stale


@pytest.mark.source("PQ-21")
async def test_a_stale_job_can_be_retried_and_its_time_counts_anew(way: Way) -> None:
    job_id = await stale(way, "failed")

    job = await way.face.retry(job_id)
    assert (job.status, job.stale_at) == ("pending", None)

    await run(way)
    done = await way.face.retain()
    assert done == Retained()
    assert (await way.face.get_job(job_id)).state == "completed"


async def test_to_retry_the_last_job_of_a_stale_chain_takes_the_mark_off_all_of_it(way: Way) -> None:
    first = await make_job(way)
    last = await continue_chain(way, first, "failed")
    await change_job(way, first, closed_as="failed", closed_at=1)
    await mark_by_hand(way, first)

    await way.face.retry(last)
    assert (await is_stale(way, first), await is_stale(way, last)) == (False, False)

    await run(way)
    assert (await way.face.retain()).deleted == 0
    assert await exists(way, first)


@on_postgres
async def test_a_stale_chain_opens_again_although_somebody_holds_a_job_in_its_middle(way: Way) -> None:
    """I-63: the end of a blocker opens the chains that failed by it, in the transaction of whoever settles it."""
    first = await make_job(way)
    middle = await continue_chain(way, first, "pending")
    last = await continue_chain(way, first, "failed")
    await change_job(way, first, closed_as="failed", closed_at=1)
    await mark_by_hand(way, first)
    with psycopg.connect(way.hf.settings.database) as stranger:
        stranger.execute("SELECT 1 FROM contract.holdfast_job WHERE id = %s FOR UPDATE", (str(middle),))

        await way.face.retry(last)

    assert (await is_stale(way, first), await is_stale(way, last)) == (False, False)
    assert await way.face.retain() == Retained()


@on_both_stores
@pytest.mark.parametrize("is_continued", [False, True])
async def test_a_stale_job_that_is_cancelled_or_completed_by_hand_ends_anew(way: Way, is_continued: bool) -> None:
    ids = []
    for _ in range(2):
        first = await make_job(way, "failed")
        last = await continue_chain(way, first, "failed") if is_continued else first
        await change_job(way, first, closed_as="failed", closed_at=1)
        await mark_by_hand(way, first)
        ids += [first, last]

    await way.face.cancel(ids[0])
    await way.face.complete(greet, ids[2], "Hello")

    assert [await is_stale(way, each) for each in ids] == [False] * 4
    assert await way.face.retain() == Retained()


async def test_a_stale_dependent_that_is_put_back_is_no_longer_stale(way: Way) -> None:
    blocker = await make_job(way)
    dependent = await way.face.start(greet(name="Bob"), blockers=[blocker])
    await admit(way)
    await run(way, FAIL)
    await admit(way)
    await mark_by_hand(way, dependent.id)

    await way.face.retry(blocker)
    await admit(way)

    job = await way.face.get_job(dependent)
    assert (job.status, job.stale_at) == ("blocked", None)


# ---- times


TIMED = Tasks()


@TIMED.task(name="hourly", retention=Retention(stale_after=3600, delete_after=7200, failed=Retention(stale_after=60)))
async def hourly() -> None:
    """Is kept for hours."""


@TIMED.task(name="kept", retention=Retention.never())
async def kept() -> None:
    """Is kept for ever."""


HOUR_MS = 3_600_000


async def test_a_task_has_its_own_times_also_for_workers_that_do_not_know_it(way: Way) -> None:
    owner = Holdfast(way.hf.settings.database, schema_name=way.hf.settings.schema_name, tasks=[TIMED])
    owner.sync.open()
    owner.sync.close()
    due = [await ended(way, task="hourly", age_ms=HOUR_MS), await ended(way, "failed", task="hourly", age_ms=60_000)]
    not_due = [await ended(way, task="hourly", age_ms=HOUR_MS - 60_000), await ended(way, task="kept", age_ms=LONG_AGO)]
    gone, stays = await stale(way, task="hourly", age_ms=2 * HOUR_MS), await stale(way, task="kept", age_ms=LONG_AGO)

    await way.face.retain()

    assert [await is_stale(way, each) for each in due + not_due] == [True, True, False, False]
    assert (await exists(way, gone), await exists(way, stays)) == (False, True)


async def test_the_settings_have_the_times_of_all_others(way: Way, new_holdfast: Any) -> None:
    hf = new_holdfast(way.database, stale_after_seconds=60, delete_after_seconds=None)
    job_id = await ended(way, age_ms=60_000)
    forever = await stale(way, age_ms=LONG_AGO)

    hf.sync.retain()

    assert await is_stale(way, job_id)
    assert await exists(way, forever)


# ---- dry runs and batches


async def test_a_dry_run_tells_what_a_pass_would_do_and_changes_nothing(way: Way) -> None:
    await ended(way)
    await ended(way, "failed")
    await stale(way)
    kept_back = await ended(way)
    await block(way, await make_job(way, "blocked"), kept_back)
    before = await way.rows("SELECT * FROM holdfast_job ORDER BY seq")

    told = await way.face.retain(dry_run=True)

    assert counted(told) == {("greet", "completed"): (1, 1, 1, 0), ("greet", "failed"): (1, 0, 0, 0)}
    assert await way.rows("SELECT * FROM holdfast_job ORDER BY seq") == before
    assert counted(await way.face.retain()) == counted(told)


async def fill(way: Way, number: int, *, is_stale: bool = False, at: str = "n") -> None:
    """Make *number* chains that ended long ago, one after the other, or all at once."""
    await way.call(_fill, number, is_stale, at)


async def _fill(tx: Tx, number: int, is_stale: bool, at: str) -> None:
    sql = f"""
    INSERT INTO holdfast_job (id, chain_id, task, queue, status, run_at, input, created_at, finished_at, closed_as,
        closed_at, stale_at)
    WITH RECURSIVE series(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < :number)
    SELECT '00000000-0000-7000-8000-' || substr(CAST(1000000000000 + n AS text), 2),
        '00000000-0000-7000-8000-' || substr(CAST(1000000000000 + n AS text), 2), 'greet', 'default', 'completed', 1,
        '{{}}', 1, 1, 'completed', {at}, CASE WHEN :is_stale = 1 THEN {at} END
    FROM series"""
    await tx.execute(sql, number=number, is_stale=int(is_stale))


@pytest.mark.source("JC-103")
@on_both_stores
@pytest.mark.parametrize("at", ["n", "1"])
async def test_a_long_backlog_is_taken_batch_by_batch(way: Way, at: str) -> None:
    await fill(way, 250, at=at)

    done = await way.face.retain()

    assert counted(done) == {("greet", "completed"): (250, 0, 0, 0)}
    assert await way.rows("SELECT count(*) FROM holdfast_event WHERE name = 'job:stale'") == [(250,)]


@on_both_stores
@pytest.mark.parametrize("at", ["n", "1"])
async def test_chains_that_must_stay_do_not_keep_those_behind_them(way: Way, at: str) -> None:
    await fill(way, 250, at=at)
    await way.call(_let_halt)
    last = await ended(way)

    done = await way.face.retain()

    assert counted(done) == {("greet", "completed"): (1, 0, 250, 0)}
    assert await is_stale(way, last)


async def _let_halt(tx: Tx) -> None:
    await tx.execute("UPDATE holdfast_job SET head = 1, lane = 'vm-' || CAST(seq AS text)")


async def test_a_batch_takes_as_many_statements_for_a_hundred_chains_as_for_one(way: Way) -> None:
    numbers = {}
    for number in (1, 100):
        await fill(way, number)
        numbers[number] = await way.call(_through_both)

    assert numbers[1] == numbers[100]
    assert numbers[100] <= 35


async def _through_both(tx: Tx) -> int:
    counting = CountingTx(tx)
    for stage, act in (("stale", retention.mark), ("delete", retention.delete)):
        (line,) = await retention.groups(counting, stage)  # type: ignore[arg-type]
        found, _ = await retention.find(counting, stage, line, 0, BEGINNING)  # type: ignore[arg-type]
        assert len(await retention.at_rest(counting, stage, found)) == len(found)  # type: ignore[arg-type]
        assert len(await act(counting, line, 0, [each.seq for each in found])) == len(found)
    return len(counting.statements)


async def test_a_batch_has_a_thousand_jobs_at_most_unless_one_chain_has_more(way: Way) -> None:
    short = [await ended(way) for _ in range(3)]
    long = await make_job(way)
    for _ in range(3):
        await continue_chain(way, long, "completed")
    await change_job(way, long, closed_as="completed", closed_at=1)
    (line,) = await way.read(retention.groups, "stale")

    found, has_more = await way.read(_find_few, line, 2)

    assert ([each.jobs for each in found], has_more) == ([4], True)
    assert (await way.face.retain()).stale == len(short) + 1


async def test_a_job_that_is_marked_is_one_row_of_the_outbox_for_all_its_receivers(way: Way) -> None:
    for _ in range(5):
        await ended(way)
    for number in range(2):
        await way.call(webhooks.subscribe, NewSubscription(UUID(int=number), "https://example.com/", ("job:stale",)))

    assert (await way.face.retain()).stale == 5

    assert await way.rows("SELECT event FROM holdfast_outbox") == [("job:stale",)] * 5


async def _find_few(tx: Tx, line: RetentionGroup, most: int) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "MOST_JOBS", most)
        return await retention.find(tx, "stale", line, 0, BEGINNING)


@pytest.mark.long
async def test_ten_thousand_chains_are_deleted_in_bounded_batches(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(way, 10_000, is_stale=True)
    numbers: list[int] = []
    delete = retention.delete

    async def counted_delete(tx: Tx, line: RetentionGroup, age_ms: int, seqs: list[int]) -> list[int]:
        numbers.append(len(seqs))
        return await delete(tx, line, age_ms, seqs)

    monkeypatch.setattr(retention, "delete", counted_delete)
    done = await way.face.retain()

    assert done.deleted == 10_000
    assert numbers == [retention.MOST_CHAINS] * 100
    assert await way.rows("SELECT count(*) FROM holdfast_job") == [(0,)]


# ---- the log, keys and workers


async def log_rows(way: Way) -> list[tuple[int, str]]:
    return [(job, name) for job, name in await way.rows("SELECT job, name FROM holdfast_event ORDER BY seq")]


async def told(way: Way, job: int, name: str, age_ms: int) -> None:
    """Write an event of long ago."""
    await way.call(_tell, job, name, age_ms)


async def _tell(tx: Tx, job: int, name: str, age_ms: int) -> None:
    sql = "INSERT INTO holdfast_event (job, name, at) VALUES (:job, :name, $now - :age)"
    await tx.execute(sql, job=job, name=name, age=age_ms)


async def test_the_log_forgets_what_is_about_no_job_after_both_times(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await told(way, 0, "lane:paused", 38 * DAY_MS)
    await told(way, await seq_of(way, chain.id), "job:started", 38 * DAY_MS)
    await told(way, 0, "lane:resumed", 36 * DAY_MS)
    column = "xid" if way.database == "postgres" else "seq"
    ((highest,),) = await way.rows(f"SELECT {column} FROM holdfast_event WHERE name = 'lane:paused'")

    done = await way.face.retain()

    assert done.trimmed == 1
    assert [name for _, name in await log_rows(way)] == ["job:enqueued", "job:started", "lane:resumed"]
    assert await way.rows("SELECT value FROM holdfast_meta WHERE key = 'log_trimmed'") == [(str(highest),)]


@pytest.mark.parametrize("age_minutes", [59, 61])
@pytest.mark.source("PQ-39")
async def test_readers_have_an_hour_to_hear_of_a_delete_however_short_the_times_are(
    way: Way, age_minutes: int, new_holdfast: Callable[..., Holdfast]
) -> None:
    face = new_holdfast(way.database, tasks=[TASKS], stale_after_seconds=0, delete_after_seconds=0).sync
    face.open()
    cursor = face.cursor()
    chain = await way.face.start(greet(name="Ada"))
    await run(way)

    assert face.retain().deleted == 1
    await way.call(_age_log, age_minutes * 60_000)
    face.retain()

    kept = [("job:deleted", chain.id)] if age_minutes < 60 else []
    rows = await way.rows("SELECT name, facts FROM holdfast_event WHERE job = 0")
    assert [(name, UUID(json.loads(facts)["id"])) for name, facts in rows] == kept
    if kept:
        with face.events(after=cursor) as stream:
            assert next(stream).deleted_job_id == chain.id
    face.close()


async def _age_log(tx: Tx, milliseconds: int) -> None:
    await tx.execute("UPDATE holdfast_event SET at = at - :milliseconds", milliseconds=milliseconds)


async def test_what_was_trimmed_once_is_never_written_down_as_less(way: Way) -> None:
    await told(way, 0, "lane:paused", 38 * DAY_MS)
    await way.face.retain()
    await told(way, 0, "lane:resumed", 38 * DAY_MS)
    high = await way.call(_later_position)
    await way.call(_set_trimmed, high)

    await way.face.retain()

    assert await log_rows(way) == []
    assert await way.rows("SELECT value FROM holdfast_meta WHERE key = 'log_trimmed'") == [(str(high),)]


async def _later_position(tx: Tx) -> int:
    if tx.database == "sqlite":
        return 2**40
    ((number,),) = await tx.fetch_all("SELECT CAST(CAST(pg_current_xact_id() AS text) AS bigint)")
    return int(number)


async def _set_trimmed(tx: Tx, value: int) -> None:
    await tx.execute(pruning.RECORD, position=value)


async def test_the_log_is_trimmed_in_batches(way: Way) -> None:
    for _ in range(5):
        await told(way, 0, "lane:paused", 38 * DAY_MS)

    assert await way.call(pruning.prune, 37 * DAY_MS, 2) == 2
    assert len(await log_rows(way)) == 3


async def test_events_of_jobs_that_are_gone_are_removed(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await told(way, 987_654, "job:completed", 0)

    done = await way.face.retain()

    assert done.trimmed == 1
    assert await log_rows(way) == [(await seq_of(way, chain.id), "job:enqueued")]


async def test_a_whole_pass_goes_over_all_of_the_log_and_all_keys(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "MOST_JOBS", 2)
    monkeypatch.setattr(unique, "MOST_WALKED", 3)
    for n in range(7):
        await told(way, 987_000 + n, "job:completed", 0)
        await way.face.start(greet(name="Ada"), unique=Unique(f"ada-{n}", within=3600))
        await way.call(_expire, f"ada-{n}")

    done = await way.face.retain()

    assert done.trimmed == 7
    assert await way.rows("SELECT key FROM holdfast_unique") == []


async def test_a_key_whose_chain_is_gone_is_free_again(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")
    expiring = await way.face.start(greet(name="Bob"), unique=Unique("bob", within=3600))
    await way.call(_remove_rows, [str(chain.id), str(expiring.id)])

    await way.face.retain()

    assert not (await way.face.start(greet(name="Ada"), unique="ada")).deduplicated
    assert not (await way.face.start(greet(name="Bob"), unique="bob")).deduplicated


async def _remove_rows(tx: Tx, ids: list[str]) -> None:
    await tx.execute("DELETE FROM holdfast_job WHERE id $any(ids: text)", ids=ids)


async def test_keys_whose_time_has_passed_are_swept_and_those_that_are_held_stay(way: Way) -> None:
    await way.face.start(greet(name="Ada"), unique=Unique("ada", within=3600))
    await way.face.start(greet(name="Bob"), unique=Unique("bob", within=3600))
    await way.face.start(greet(name="Cid"), unique="cid")
    await way.call(_expire, "ada")

    await way.face.retain()

    assert await way.rows("SELECT key FROM holdfast_unique ORDER BY key") == [("bob",), ("cid",)]
    assert not (await way.face.start(greet(name="Ada"), unique="ada")).deduplicated


async def _expire(tx: Tx, key: str) -> None:
    await tx.execute("UPDATE holdfast_unique SET until = $now - 1 WHERE key = :key", key=key)


async def test_a_later_turn_is_not_swept_while_an_earlier_one_has_time_left(way: Way) -> None:
    await way.face.start(greet(name="Ada"), unique=Unique("ada", within=3600))
    await way.call(_retire_a_later_turn)

    await way.face.retain()

    assert await way.rows("SELECT turn FROM holdfast_unique ORDER BY turn") == [(0,), (1,)]


async def _retire_a_later_turn(tx: Tx) -> None:
    sql = """INSERT INTO holdfast_unique (task, key, turn, chain_id, scope, until)
        SELECT task, key, 1, chain_id, scope, 0 FROM holdfast_unique"""
    await tx.execute(sql)


@on_postgres
async def test_no_key_is_swept_while_somebody_is_half_way_through_a_start(way: Way) -> None:
    await way.face.start(greet(name="Ada"), unique=Unique("ada", within=3600))
    await way.call(_expire, "ada")
    with psycopg.connect(way.hf.settings.database) as caller:
        caller.execute("SELECT 1")
        again = way.hf.sync.start(greet(name="Ada"), unique="ada", connection=caller)
        await way.face.retain()
        assert await way.rows("SELECT turn FROM holdfast_unique") == [(0,)]  # else the next start would begin there
        caller.commit()

    assert (await way.face.start(greet(name="Ada"), unique="ada")).id == again.id


async def test_workers_that_nobody_has_seen_for_a_month_are_forgotten(way: Way) -> None:
    for name, age_ms in (("lost", 31 * DAY_MS), ("here", 0)):
        await way.call(_make_worker, name, age_ms)

    await way.face.retain()

    assert await way.rows("SELECT id FROM holdfast_worker") == [("here",)]


async def _make_worker(tx: Tx, name: str, age_ms: int) -> None:
    sql = """INSERT INTO holdfast_worker (id, facts, started_at, seen_at, lock_path)
        VALUES (:id, '{}', 0, $now - :age, '/nowhere')"""
    await tx.execute(sql, id=name, age=age_ms)
