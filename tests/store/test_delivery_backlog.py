"""Deliveries for receivers in trouble are put off before they are claimed, at no attempt. I-48."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from uuid import UUID, uuid4

from holdfast.database.tx import Tx
from holdfast.models import DELIVER, INTERNAL_QUEUE
from holdfast.store import rows
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import Claims, Want
from holdfast.store.log import fan_out
from holdfast.store.log.fan_out import DeliveryInput, DeliveryRecord
from holdfast.webhooks.receivers import ReceiverTrouble
from tests.store.engine import LEASE_MS, admit
from tests.support.factories import change_job, events_of, make_job, row_of, seq_of
from tests.support.ways import Way

DELIVERIES = [Want(INTERNAL_QUEUE, DELIVER, LEASE_MS)]
BAD, OTHER, GOOD = "https://bad.example/hook", "https://bad.example/other", "https://good.example/hook"
HOUR_MS = 3_600_000
SILENT = ReceiverTrouble("bad.example:443/hook", turns=0, delay_ms=15_000, spread_ms=60_000, give_up_ms=HOUR_MS)
COLUMNS = ("status", "gate", "attempt", "used", "version", "interrupted")


async def deliveries(way: Way, urls: Sequence[str], target: UUID | None = None) -> list[UUID]:
    """Make a delivery to each of *urls*, each about a job of its own unless *target* is given; admit them."""
    about = [target or await make_job(way, "completed") for _ in urls]
    made = [uuid4() for _ in urls]

    async def insert(tx: Tx) -> None:
        jobs = {str(each): await fan_seq(tx, each) for each in set(about)}
        given = [
            (DeliveryInput(url, "{}", "job:completed", str(job), None, (), 0), str(job), id_)
            for url, job, id_ in zip(urls, about, made, strict=True)
        ]
        inserted = await rows.insert(tx, [parcel.start(id_) for parcel, _, id_ in given])
        seqs = {each.id: each.seq for each in inserted}
        await fan_out.record(
            tx, [DeliveryRecord(seqs[id_], jobs[job], "job:completed", None, parcel.url) for parcel, job, id_ in given]
        )

    await way.call(insert)
    await admit(way, INTERNAL_QUEUE)
    return made


async def fan_seq(tx: Tx, job_id: UUID) -> int:
    ((seq,),) = await tx.fetch_all("SELECT seq FROM holdfast_job WHERE id = :id", id=str(job_id))
    return int(seq)


async def claim(way: Way, *troubles: ReceiverTrouble, most: int = 10) -> tuple[list[UUID], Claims]:
    claims = await way.call(claiming.admit_and_claim, DELIVERIES, most, "worker-1", "nonce-1", troubles=troubles)
    return [UUID(each.id) for each in claims.jobs], claims


async def test_deliveries_to_a_silent_receiver_give_way_to_those_behind_them(way: Way) -> None:
    bad = await deliveries(way, [BAD] * 450)
    (good,) = await deliveries(way, [GOOD])

    claimed, claims = await claim(way, SILENT)

    assert claimed == [good]
    assert len(claims.put_off) == 450
    assert not claims.more
    assert claims.next_ms is not None
    # each of its statements reads the clock anew, so that the last step may seem a little longer
    assert 14_000 < claims.next_ms < 15_000 + 6_000 + 1_000
    assert await row_of(way, bad[0], *COLUMNS) == ("pending", "arrival", 0, 0, 1, 0)
    assert await events_of(way, bad[0]) == []


async def test_what_is_put_off_comes_back_in_about_ten_groups(way: Way) -> None:
    await deliveries(way, [BAD] * 60)
    ((before,),) = await way.rows("SELECT max(run_at) FROM holdfast_job WHERE task = :task", task=DELIVER)
    await claim(way, SILENT)

    counted = await way.rows(
        "SELECT run_at, count(*) FROM holdfast_job WHERE task = :task GROUP BY run_at ORDER BY run_at", task=DELIVER
    )

    assert len(counted) in (9, 10, 11)  # they need not begin at a whole step
    assert all(later - earlier == 6_000 for (earlier, _), (later, _) in pairwise(counted))
    assert counted[0][0] - before >= 15_000
    assert max(count for _, count in counted) <= 12


async def test_as_many_as_there_are_turns_are_claimed(way: Way) -> None:
    bad = await deliveries(way, [BAD, BAD, OTHER, BAD, OTHER])

    host = ReceiverTrouble("bad.example:443", turns=3, delay_ms=0, spread_ms=1_000)
    claimed, claims = await claim(way, host, ReceiverTrouble(SILENT.key, 2, 0, 1_000))

    assert claimed == bad[:3]
    assert len(claims.put_off) == 2


async def test_what_was_put_off_keeps_its_place_before_later_ones_of_its_job(way: Way) -> None:
    job = await make_job(way, "completed")
    first, second = await deliveries(way, [BAD, BAD], job)
    await claim(way, SILENT)
    while_put_off, _ = await claim(way)
    await change_job(way, first, run_at=0, wake_at=0)

    claimed, _ = await claim(way)

    assert while_put_off == []
    assert claimed == [first]
    assert await row_of(way, second, "gate") == ("lane",)


async def test_what_is_older_than_all_its_attempts_take_is_claimed_to_fail(way: Way) -> None:
    old, young = await deliveries(way, [BAD, BAD])
    await change_job(way, old, created_at=0)

    claimed, claims = await claim(way, SILENT)

    assert claimed == [old]
    assert [seq for seq, _ in claims.put_off] == [await seq_of(way, young)]


async def test_a_delivery_of_an_older_release_is_claimed_as_before(way: Way) -> None:
    (made,) = await deliveries(way, [BAD])

    async def forget_receiver(tx: Tx) -> None:
        await tx.execute("UPDATE holdfast_delivery SET receiver = NULL")

    await way.call(forget_receiver)

    assert (await claim(way, SILENT))[0] == [made]
