"""A worker that is stopped inside the transaction of `complete()`, for longer than its lease, by the real clock (F-04).

On PostgreSQL its job's row is free while user code runs, and is taken from it when the lease ends. Behind the UPDATE
the row is its own: nobody waits for it, nobody takes it, and the server cuts the transaction before long. On SQLite it
has the right to write, so that nobody else can do anything but say who has it; that is free as soon as the process is
dead.
"""

from __future__ import annotations

import signal
from uuid import UUID

import psycopg
import pytest

from holdfast.database.tx import Tx
from holdfast.errors import Busy
from holdfast.fault_points import VARIABLE
from holdfast.worker.attempts.aborts import NO_LONGER_OURS, AbortReason
from tests.acceptance.conftest import SCHEMA
from tests.acceptance.jobs_of_tests import LEASE, gated, pays, quick
from tests.acceptance.play import tables
from tests.acceptance.processes import until
from tests.acceptance.scene import Scene, WorkerProcess, seconds_until

REAPER_SECONDS = 5.5
NOISE = 10.0
IN_USER_CODE, BEHIND_THE_UPDATE = "block_ends.finish.statement 1", "block_ends.finish.before_commit"
DROP = "DROP TABLE IF EXISTS shop_paid"
CREATE = "CREATE TABLE shop_paid (attempt integer NOT NULL)"
LEASED = "SELECT count(*) FROM holdfast_job WHERE id = :id AND lease_until > $now"


@pytest.fixture
def shop(stage: Scene) -> Scene:
    """A scene with a table of the user's."""
    stage.hf.store.run_sync(make_table)
    return stage


async def make_table(tx: Tx) -> None:
    for sql in (DROP, CREATE):
        await tx.execute(sql)


def stopped_at(shop: Scene, point: str) -> tuple[WorkerProcess, UUID]:
    """Have a worker stand still at *point*, in the block of a job, whose lane keeps its end and COMMIT apart."""
    (job,) = shop.start(pays().options(lane="till"))
    worker = shop.worker("--concurrency", "1", waits=False, **{VARIABLE: f"{point}:1:stop"})
    until(lambda: worker.is_stopped, f"{point} is reached", 30)
    return worker, job


def is_locked(url: str, job: UUID) -> bool:
    """Tell whether somebody has the row of *job* locked."""
    with psycopg.connect(url) as person:
        sql = f"SELECT 1 FROM {SCHEMA}.holdfast_job WHERE id = %s FOR NO KEY UPDATE SKIP LOCKED"
        return person.execute(sql, [str(job)]).fetchone() is None


def paid(shop: Scene) -> list[int]:
    """Name the attempts whose payments were committed."""
    return [attempt for (attempt,) in shop.rows("SELECT attempt FROM shop_paid")]


@pytest.mark.long
@pytest.mark.parametrize("point", [IN_USER_CODE, BEHIND_THE_UPDATE])
def test_a_zombie_in_its_block_is_robbed_when_its_lease_ends_and_changes_nothing_when_it_goes_on(
    shop: Scene, postgres_url: str, point: str
) -> None:
    """F-03, F-04, I-14, M11: the row is free in user code, and is not for longer than the lease behind the UPDATE."""
    zombie, job = stopped_at(shop, point)
    (beside,) = shop.start(gated())
    heir = shop.worker("--concurrency", "2")
    shop.until_running([beside])

    assert is_locked(postgres_url, job) is (point == BEHIND_THE_UPDATE)
    cut = seconds_until(lambda: not is_locked(postgres_url, job), "the row is free", LEASE + NOISE)
    until(
        lambda: shop.face.get_job(job).status == "completed", "another does the job", 2 * LEASE + REAPER_SECONDS + NOISE
    )
    before = tables(shop)
    zombie.send(signal.SIGCONT)
    until(lambda: shop.notes("unpaid"), "the zombie's handler is told", 2 * NOISE)

    assert cut < LEASE + NOISE / 2
    assert paid(shop) == [2]
    (unpaid,) = shop.notes("unpaid")
    assert unpaid["process"] == zombie.id
    # by its own clock, as it commits or at its next await, by the server's, or by the row
    cancelled = [f"cancelled: {reason}" for reason in (AbortReason.ERROR, *NO_LONGER_OURS)]
    assert unpaid["error"] in ("LeaseLost", "TransactionTimeout", *cancelled)
    assert {each["attempt"] for each in shop.notes("begin") if each["job"] == str(beside)} == {1}
    shop.open()
    shop.until_all("completed")
    shop.assert_each_completed_once()
    assert [row for row in tables(shop)["event"] if row in before["event"]] == before["event"]
    assert (zombie.is_alive, heir.is_alive) == (True, True)


@pytest.mark.long
@pytest.mark.parametrize("stage_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("point", [IN_USER_CODE, BEHIND_THE_UPDATE])
def test_who_stands_still_with_the_right_to_write_is_named_and_keeps_it_until_it_is_dead(
    shop: Scene, point: str
) -> None:
    """F-04, M11."""
    zombie, job = stopped_at(shop, point)
    had_it_last = f"process {zombie.id} had it last"
    heir = shop.worker(HOLDFAST_DEADLINE_SECONDS="0.5")

    with pytest.raises(Busy, match=had_it_last):
        shop.start(quick())
    until(lambda: "cannot use the database: Busy: the write lock was not free" in heir.said, "it says so", NOISE)
    until(lambda: shop.rows(LEASED, id=str(job)) == [(0,)], "the lease ends", LEASE + NOISE)
    assert had_it_last in heir.said
    assert "worker_store_answers" not in heir.said
    assert (paid(shop), shop.face.get_job(job).attempt) == ([], 1)

    zombie.kill()
    shop.start(quick())  # at once
    shop.until_all("completed")

    assert paid(shop) == [2]
    shop.assert_each_completed_once()
