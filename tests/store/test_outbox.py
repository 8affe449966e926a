"""The outbox: one small row commits with each event that somebody may want, and becomes deliveries in bounded steps.

I-47, I-48, I-49, I-62; PQ-46 … PQ-50.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import psycopg
import pytest

from holdfast.database.tx import Tx
from holdfast.models import TRIGGERS
from holdfast.runtime import Runtime
from holdfast.store import outbox
from holdfast.store.jobs import settling
from holdfast.store.jobs.claiming import Want
from holdfast.store.jobs.settling import Settlement
from holdfast.store.outbox import OutboxBatch, Packed
from holdfast.wire.webhook_body import WebhookBody
from holdfast.worker.upkeep.outbox import LOOK_SECONDS, PASSED_SECONDS, OutboxMaker
from tests.store.engine import DONE, FAIL, LEASE_MS, RETRY, claim, make_deliveries, run, settle
from tests.store.test_history import QUIET, quiet
from tests.store.test_retention import EIGHT_DAYS, exists, mark_by_hand
from tests.store.test_webhooks import URL, Regretted, body_of, deliveries, webhooks
from tests.support.conditions import until
from tests.support.factories import change_job, counted, greet
from tests.support.ways import Way

on_postgres = pytest.mark.parametrize("way", ["postgres-async"], indirect=True)
LOCK = "SELECT 1 FROM contract.holdfast_outbox WHERE seq = %s FOR UPDATE"
LOCK_OLDEST = "SELECT 1 FROM contract.holdfast_outbox ORDER BY seq LIMIT %s FOR UPDATE"


async def waiting(way: Way) -> list[str]:
    """Name the events that wait in the outbox, the oldest first."""
    return [event for (event,) in await way.rows("SELECT event FROM holdfast_outbox ORDER BY seq")]


async def made(way: Way) -> int:
    """Count the deliveries that were made."""
    ((count,),) = await way.rows("SELECT count(*) FROM holdfast_delivery")
    return int(count)


async def pack(way: Way) -> Packed:
    """Take a step up to its commit."""
    return outbox.pack(await way.read(outbox.oldest))


async def subscribe(way: Way, count: int) -> None:
    """Subscribe *count* receivers to all events."""
    for n in range(count):
        await webhooks(way).subscribe(f"{URL}/{n}", events=TRIGGERS)


async def fail(way: Way, count: int, **options: Any) -> None:
    """Start *count* jobs and have all of them fail."""
    await way.face.start_many([greet(name="Ada").options(**options) for _ in range(count)])
    await settle(way, *[(job.token, FAIL) for job in await claim(way, count)])


# ---- with the event


async def test_a_wanted_event_commits_with_one_row_whatever_the_number_of_receivers(way: Way) -> None:
    """I-47."""
    await subscribe(way, 3)

    await fail(way, 2)

    assert (await waiting(way), await made(way)) == (["job:failed", "job:failed"], 0)
    assert await way.read(outbox.backlog) == 2


async def test_what_nobody_wants_is_not_put_into_the_outbox(way: Way) -> None:
    await webhooks(way).subscribe(URL, tasks=["gree", "gre_t", "greet.de"])
    await webhooks(way).subscribe(URL, events=["job:stale"])
    await webhooks(way).disable(await webhooks(way).subscribe(URL))

    await fail(way, 1)
    await way.face.start(greet(name="Ada"), webhook=None)
    await run(way, DONE)

    assert await waiting(way) == []


async def test_hundreds_of_cancelled_jobs_with_a_hundred_subscriptions_pass(way: Way) -> None:
    """A3: it was 30,000 inserts in one transaction, which PostgreSQL's deadline ended."""
    await subscribe(way, 100)
    chains = await way.face.start_many([greet(name="Ada")] * 300)

    await way.face.cancel_many(chains)

    assert await way.read(outbox.backlog) == 300


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["sqlite-async", "postgres-async"], indirect=True)
async def test_hundreds_of_jobs_become_deliveries_for_a_hundred_subscriptions(way: Way) -> None:
    """A3: 30,000 deliveries, 200 in each commit."""
    await subscribe(way, 100)
    await way.face.cancel_many(await way.face.start_many([greet(name="Ada")] * 300))

    assert await make_deliveries(way) == 150
    assert await made(way) == 30_000


async def test_the_backlog_is_counted_up_to_a_bound(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_COUNTED", 2)

    await fail(way, 3, webhook=URL)

    assert await way.read(outbox.backlog) == 2


# ---- the step


async def test_deliveries_are_made_and_the_row_deleted_in_one_commit(way: Way) -> None:
    """I-47."""
    await subscribe(way, 2)
    await fail(way, 1)
    packed = await pack(way)

    async def deliver_and_regret(tx: Tx) -> None:
        assert (await outbox.deliver(tx, packed.parcels)).taken == 1
        raise Regretted

    with pytest.raises(Regretted):
        await way.call(deliver_and_regret)
    assert (await waiting(way), await made(way)) == (["job:failed"], 0)

    await way.call(outbox.deliver, packed.parcels)
    assert (await waiting(way), await made(way)) == ([], 2)


async def test_a_step_that_was_taken_already_makes_nothing(way: Way) -> None:
    await fail(way, 2, webhook=URL)
    packed = await pack(way)

    assert await way.call(outbox.deliver, packed.parcels) == (2, set())
    assert await way.call(outbox.deliver, packed.parcels) == (0, set())
    assert await made(way) == 2


async def test_a_step_takes_the_oldest_events_and_not_more_than_its_bounds(way: Way) -> None:
    await subscribe(way, 90)
    await fail(way, 3)
    by_deliveries = await way.read(outbox.oldest)
    await make_deliveries(way)
    await fail(way, outbox.MOST_ROWS + 1, webhook=URL)
    by_rows = await way.read(outbox.oldest)

    assert [len(receivers) for _, receivers in by_deliveries.rows] == [90, 90]
    assert len(by_rows.rows) == outbox.MOST_ROWS
    assert await make_deliveries(way) == 2


async def test_a_step_is_bounded_by_the_bytes_of_its_bodies(way: Way) -> None:
    """A3: 50 bodies of 60 kB are 3 MB, so that two events are too much for one step."""
    await subscribe(way, 50)
    await way.face.start_many([greet(name="A" * 60_000)] * 2)
    await settle(way, *[(job.token, FAIL) for job in await claim(way)])

    batch = await way.read(outbox.oldest)

    assert [len(receivers) for _, receivers in batch.rows] == [50]
    assert await make_deliveries(way) == 2


async def test_an_event_that_is_too_much_for_one_step_is_made_whole(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_DELIVERIES", 2)
    await subscribe(way, 3)
    await fail(way, 2)

    assert await make_deliveries(way) == 2
    assert await made(way) == 6


async def test_a_step_takes_the_same_statements_for_any_number_of_events(way: Way) -> None:
    """I-62."""
    await subscribe(way, 2)
    counts = set()
    for count in (1, 10, 50):
        await fail(way, count)
        read = await way.read(counted, outbox.oldest)
        packed = await pack(way)
        counts.add((len(read), len(await way.call(counted, outbox.deliver, packed.parcels))))

    assert len(counts) == 1


async def test_an_event_that_cannot_be_read_is_passed_over_alone(way: Way) -> None:
    """A5: a newer release may have written it."""
    await fail(way, 1, webhook=URL)
    ((bad,),) = await way.rows("SELECT job FROM holdfast_outbox")
    await way.call(spoil, bad)
    await fail(way, 1, webhook=URL)

    packed = await pack(way)
    await way.call(outbox.deliver, packed.parcels)

    assert [row.job for row in packed.unreadable] == [bad]
    assert (await made(way), await way.read(outbox.backlog)) == (1, 1)
    assert (await way.read(outbox.oldest, [bad])).rows == []


@pytest.mark.parametrize("column", ["facts", "error"])
async def test_an_event_whose_json_is_too_deep_is_passed_over_alone(way: Way, column: str) -> None:
    """A5: no release writes it, but somebody's own SQL may."""
    await fail(way, 1, webhook=URL)
    await way.call(bury, column)
    await fail(way, 1, webhook=URL)

    packed = await pack(way)

    assert (len(packed.parcels), len(packed.unreadable)) == (1, 1)


async def spoil(tx: Tx, job: int) -> None:
    await tx.execute("UPDATE holdfast_outbox SET status = 'dreaming' WHERE job = :job", job=job)


async def bury(tx: Tx, column: str) -> None:
    await tx.execute(f"UPDATE holdfast_outbox SET {column} = :deep", deep="[" * 100_000 + "]" * 100_000)


# ---- who gets it


async def test_a_subscription_gets_nothing_that_happened_before_it(way: Way) -> None:
    early = await webhooks(way).subscribe(URL)
    await fail(way, 1)
    await webhooks(way).subscribe(URL)

    assert [each.subscription for each in await deliveries(way)] == [early.id]


async def test_a_subscription_that_is_enabled_gets_nothing_of_before(way: Way) -> None:
    """Not even if the clock was put back meanwhile."""
    other, disabled = await webhooks(way).subscribe(URL), await webhooks(way).subscribe(URL)
    await way.call(subscribe_in_the_future)
    await webhooks(way).disable(disabled)
    await fail(way, 1)
    await webhooks(way).enable(disabled)
    assert [each.subscription for each in await deliveries(way)] == [other.id]

    await fail(way, 1)
    await webhooks(way).enable(disabled)  # it is: what waits is not lost
    assert [each.subscription for each in await deliveries(way)][1:] == [other.id, disabled.id]


async def test_what_waits_goes_to_a_subscription_as_it_was_changed(way: Way) -> None:
    """A receiver that has moved loses nothing; to change the address of a disabled one enables it."""
    other, named = await webhooks(way).subscribe(URL), await webhooks(way).subscribe(URL, name="billing")
    await fail(way, 1)
    await webhooks(way).subscribe(f"{URL}/2", name="billing")
    assert [(each.subscription, each.url) for each in await deliveries(way)] == [
        (other.id, URL),
        (named.id, f"{URL}/2"),
    ]

    await webhooks(way).disable(named)
    await fail(way, 1)
    await webhooks(way).subscribe(f"{URL}/3", name="billing")
    assert [each.subscription for each in await deliveries(way)][2:] == [other.id]


async def test_a_subscription_of_before_this_column_gets_its_events(way: Way) -> None:
    """Step 4 leaves `active_since` empty."""
    await webhooks(way).subscribe(URL)
    await way.call(forget_since)
    await fail(way, 1)

    assert len(await deliveries(way)) == 1


async def forget_since(tx: Tx) -> None:
    await tx.execute("UPDATE holdfast_subscription SET active_since = NULL")


async def test_a_clock_that_was_put_back_loses_no_webhook(way: Way) -> None:
    """I-18."""
    await webhooks(way).subscribe(URL)
    await way.call(subscribe_in_the_future)
    await fail(way, 1)

    assert len(await deliveries(way)) == 1


async def subscribe_in_the_future(tx: Tx) -> None:
    await tx.execute("UPDATE holdfast_subscription SET active_since = active_since + 3600000")


async def test_a_subscription_that_was_removed_meanwhile_gets_nothing(way: Way) -> None:
    removed, disabled = [await webhooks(way).subscribe(URL) for _ in range(2)]
    await fail(way, 1)

    await webhooks(way).remove(removed)
    await webhooks(way).disable(disabled)

    assert await deliveries(way) == []
    assert await waiting(way) == []


async def test_a_task_without_history_has_its_webhooks_too(way: Way) -> None:
    way.hf.tasks.merge(QUIET)
    await webhooks(way).subscribe(URL)
    await way.face.start(quiet(n=1))

    (job,) = await claim(way, wants=[Want("default", "quiet", LEASE_MS)])
    await way.call(settling.settle, [Settlement(job.token, DONE, is_plain=True)])

    assert [each.event for each in await deliveries(way)] == ["job:completed"]


# ---- what it says


async def test_the_body_says_the_status_attempt_version_and_error_of_its_event(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), webhook=URL)
    await run(way, RETRY)
    await way.face.trigger(chain)
    await run(way, DONE)

    retrying, completed = [(await body_of(way, each.id))["data"] for each in await deliveries(way)]

    before, after = retrying["job"], completed["job"]
    assert (before["status"], before["state"], before["attempt"]) == ("pending", "scheduled", 1)
    assert before["run_at"] == retrying["facts"]["run_at"] > after["run_at"]  # the trigger came before that time
    assert (after["status"], after["state"], after["attempt"]) == ("completed", "completed", 2)
    assert (before["error"], after["error"]) == ({"type": "OSError"}, None)
    assert (retrying["status"], retrying["attempt"], retrying["version"]) == ("pending", 1, before["version"])
    assert before["output"] == after["output"] == "Hello"


async def test_a_job_that_was_deleted_meanwhile_is_told_without_input_and_output(way: Way) -> None:
    """I-47, PQ-50."""
    chain = await way.face.start(greet(name="Ada"), webhook=URL, tags=["ä"])
    await run(way, FAIL)
    await way.face.delete(chain)

    (delivery,) = await deliveries(way)

    posted = await body_of(way, delivery.id)
    data, job = posted["data"], posted["data"]["job"]
    assert (delivery.event, delivery.target, data["status"]) == ("job:failed", chain.id, "failed")
    assert (job["id"], job["task"], job["tags"], job["status"]) == (str(chain.id), "greet", ["ä"], "failed")
    assert (job["error"], job["input"], job["output"]) == ({"type": "OSError"}, None, None)
    assert data["omitted"] == ["input", "output", "phases"]
    assert WebhookBody.model_validate(posted, strict=True).model_dump() == posted


async def test_a_deleted_job_that_held_its_lane_is_told_as_well(way: Way) -> None:
    """A tombstone stays until its lane has gone on, and is nobody's job any more."""
    chain = await way.face.start(greet(name="Ada"), lane="a", webhook=URL)
    await run(way, FAIL)
    await way.face.delete(chain)

    (delivery,) = await deliveries(way)

    assert (await body_of(way, delivery.id))["data"]["job"]["id"] == str(chain.id)


# ---- order, and rows that somebody has locked


async def job_with_two_events(way: Way) -> list[int]:
    """Have two events of one job wait, and one of another; give their numbers."""
    first, second = await way.face.start_many([greet(name=name).options(webhook=URL) for name in "ab"])
    jobs = {job.id: job for job in await claim(way)}
    await settle(way, (jobs[str(first.id)].token, RETRY))
    await way.face.cancel(first)
    await settle(way, (jobs[str(second.id)].token, FAIL))
    assert await waiting(way) == ["job:retrying", "job:cancelled", "job:failed"]
    return [seq for (seq,) in await way.rows("SELECT seq FROM holdfast_outbox ORDER BY seq")]


@on_postgres
async def test_a_later_event_waits_for_an_earlier_one_that_another_worker_has_locked(way: Way) -> None:
    """I-48."""
    earlier, *_ = await job_with_two_events(way)
    packed = await pack(way)

    with psycopg.connect(way.hf.settings.database) as other:
        other.execute(LOCK, [earlier])
        taken, held = await way.call(outbox.deliver, packed.parcels)

    assert (taken, len(held), await waiting(way)) == (1, 1, ["job:retrying", "job:cancelled"])
    assert [each.event for each in await deliveries(way)] == ["job:failed", "job:retrying", "job:cancelled"]


@on_postgres
async def test_events_that_another_worker_has_locked_are_left_to_it(way: Way) -> None:
    """I-63."""
    *_, last = await job_with_two_events(way)
    packed = await pack(way)

    with psycopg.connect(way.hf.settings.database) as other:
        other.execute(LOCK, [last])
        taken, held = await way.call(outbox.deliver, packed.parcels)

    assert (taken, len(held), await waiting(way)) == (2, 1, ["job:failed"])


@on_postgres
async def test_a_worker_that_stands_still_delays_only_the_events_that_it_has_locked(way: Way) -> None:
    """I-63: it may hold a whole step until the server ends its transaction, which takes minutes."""
    await fail(way, outbox.MOST_ROWS + 10, webhook=URL)
    maker = OutboxMaker(way.hf.store, Runtime(), lambda: None)

    with psycopg.connect(way.hf.settings.database) as still:
        still.execute(LOCK_OLDEST, [outbox.MOST_ROWS])
        for _ in range(2):
            assert await maker.step()
        assert await made(way) == 10
        assert await maker.step()  # it comes back to the others

    async def are_all_made() -> bool:
        return not await maker.step()

    await until(are_all_made, "what was locked is made once it is free", 20)
    assert await made(way) == outbox.MOST_ROWS + 10


@pytest.mark.parametrize("way", ["sqlite-async", "postgres-async"], indirect=True)
async def test_a_job_is_passed_over_only_as_long_as_its_event_cannot_be_read(way: Way) -> None:
    """A5: once the release that has written it has made its deliveries, the next event of that job is anybody's."""
    now = [0.0]
    maker = OutboxMaker(way.hf.store, Runtime(monotonic=lambda: now[0]), lambda: None)
    await way.face.start(greet(name="Ada"), webhook=URL)
    id_ = await run(way, RETRY)
    await way.call(_spoil)
    assert await maker.step()
    assert not await maker.step()  # it is left to the other release

    await way.call(_take)
    await way.face.cancel(id_)
    assert not await maker.step()
    now[0] += PASSED_SECONDS
    assert await maker.step()

    assert [each.event for each in await deliveries(way)] == ["job:cancelled"]


async def _spoil(tx: Tx) -> None:
    await tx.execute("UPDATE holdfast_outbox SET status = 'dreaming'")


async def _take(tx: Tx) -> None:
    await tx.execute("DELETE FROM holdfast_outbox")


# ---- when a worker looks


@pytest.mark.parametrize("way", ["sqlite-async", "postgres-async"], indirect=True)
async def test_a_worker_that_takes_no_looks_finds_new_events(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """I-48: busy with handlers, and with the backlog of one receiver, it claims and settles, and nothing else."""
    empty: list[bool] = []
    oldest = outbox.oldest

    async def note(tx: Tx, passed: Sequence[int]) -> OutboxBatch:
        found = await oldest(tx, passed)
        empty.append(not found.rows)
        return found

    monkeypatch.setattr(outbox, "oldest", note)
    now = [0.0]
    maker = OutboxMaker(way.hf.store, Runtime(monotonic=lambda: now[0]), lambda: None)
    running = asyncio.create_task(maker.run())
    try:
        await until(lambda: True in empty, "what was left by others is looked for")
        await fail(way, 1, webhook=URL)
        now[0] += LOOK_SECONDS
        maker.has_settled()
        await until(partial(has_made, way, 1), "what came since is made", 10)
    finally:
        running.cancel()


async def has_made(way: Way, count: int) -> bool:
    """Tell whether so many deliveries were made."""
    return await made(way) == count


# ---- retention


@pytest.mark.parametrize("way", ["sqlite-blocking", "postgres-async"], indirect=True)
async def test_an_event_in_the_outbox_keeps_its_job_from_being_deleted(way: Way) -> None:
    """I-49."""
    chain = await way.face.start(greet(name="Ada"), webhook=URL)
    await run(way, DONE)
    await change_job(way, chain.id, closed_at=1)
    assert (await way.face.retain()).stale == 0
    await mark_by_hand(way, chain.id, 10 * EIGHT_DAYS)

    assert (await way.face.retain()).deleted == 0
    assert await exists(way, chain.id)

    (delivery,) = await deliveries(way)
    await way.face.cancel(delivery.id)
    assert (await way.face.retain()).deleted == 1
