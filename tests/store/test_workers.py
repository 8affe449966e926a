"""The rows of those who sleep: beats, marks, and that nobody's row outlives him for long."""

from __future__ import annotations

from typing import Any

from holdfast.store import workers
from holdfast.store.workers import Member
from tests.support.ways import Way

ADA = Member("ada-1", "ada", "host", 7, '{"queues": ["default"]}')
BOB = Member("bob-1", None, "host", 8)


async def row(way: Way, member: Member, *columns: str) -> tuple[Any, ...] | None:
    rows = await way.rows(f"SELECT {', '.join(columns)} FROM holdfast_worker WHERE id = :id", id=member.id)
    return rows[0] if rows else None


async def set_back(way: Way, member: Member, milliseconds: int) -> None:
    async def work(tx: Any) -> None:
        await tx.execute(
            "UPDATE holdfast_worker SET seen_at = seen_at - :ms, asleep_at = asleep_at - :ms WHERE id = :id",
            ms=milliseconds,
            id=member.id,
        )

    await way.call(work)


async def test_the_first_beat_makes_the_row_and_the_next_one_is_seen(way: Way) -> None:
    await way.call(workers.beat, ADA)
    await set_back(way, ADA, 5000)
    before = await row(way, ADA, "started_at", "seen_at")

    await way.call(workers.beat, ADA)

    assert await row(way, ADA, "name", "host", "pid", "facts") == ("ada", "host", 7, '{"queues": ["default"]}')
    after = await row(way, ADA, "started_at", "seen_at")
    assert before is not None
    assert after is not None
    assert after[0] == before[0]
    assert after[1] > before[1]


async def test_a_beat_leaves_the_mark_of_a_sleeper_alone(way: Way) -> None:
    await way.call(workers.mark_asleep, ADA)

    await way.call(workers.beat, ADA, is_asleep=False)

    assert await row(way, ADA, "asleep_at") != (None,)


async def test_a_beat_after_it_was_forgotten_brings_the_mark_back(way: Way) -> None:
    await way.call(workers.mark_asleep, ADA)
    await way.call(workers.forget, [ADA.id])

    await way.call(workers.beat, ADA, is_asleep=True)

    assert await row(way, ADA, "asleep_at") != (None,)


async def test_who_says_twice_that_he_sleeps_has_slept_since_the_first_time(way: Way) -> None:
    await way.call(workers.mark_asleep, ADA)
    await set_back(way, ADA, 5000)
    before = await row(way, ADA, "asleep_at")

    await way.call(workers.mark_asleep, ADA)

    assert await row(way, ADA, "asleep_at") == before


async def test_to_wake_and_to_forget_touch_only_the_one_that_is_named(way: Way) -> None:
    await way.call(workers.mark_asleep, ADA)
    await way.call(workers.mark_asleep, BOB)

    await way.call(workers.mark_awake, ADA.id)

    assert await row(way, ADA, "asleep_at") == (None,)
    assert await row(way, BOB, "asleep_at") != (None,)

    await way.call(workers.forget, [BOB.id])

    assert await row(way, ADA, "id") == (ADA.id,)
    assert await row(way, BOB, "id") is None


async def test_the_silent_are_forgotten_but_not_one_whose_lock_file_proves_his_death(way: Way) -> None:
    for member in (ADA, BOB):
        await way.call(workers.beat, member)
        await set_back(way, member, 400_000)
    await way.call(workers.beat, Member("eve-1", None, "host", 9))
    await way.call(_give_lock, BOB.id)

    assert await way.call(workers.forget_silent, 300_000) == [ADA.id]
    assert await way.rows("SELECT id FROM holdfast_worker ORDER BY id") == [("bob-1",), ("eve-1",)]


async def _give_lock(tx: Any, member_id: str) -> None:
    await tx.execute("UPDATE holdfast_worker SET lock_path = '/x' WHERE id = :id", id=member_id)
