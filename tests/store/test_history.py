"""`history=False`: no event rows, so no timeline; everything else is as it is (DESIGN §6, decision of the log)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import Holdfast, Tasks
from holdfast.database.dialect import channel
from holdfast.outcomes import Outcome
from holdfast.store.jobs import claiming, settling
from holdfast.store.jobs.claiming import Claimed, ProgressReport, Want
from holdfast.store.jobs.settling import Settlement
from holdfast.store.log import events
from tests.conftest import SCHEMA
from tests.store.engine import DONE, FAIL, LEASE_MS, RETRY, settle
from tests.store.test_continuations import then
from tests.store.test_webhooks import URL, told
from tests.support.factories import TASKS, counted, events_of, greet, row_of, seq_of
from tests.support.ways import Way

QUIET = Tasks()


@QUIET.task(name="quiet", history=False)
async def quiet(n: int) -> str:
    """Say nothing of itself."""
    return str(n)


WANTS = [Want("default", "quiet", LEASE_MS), Want("default", "greet", LEASE_MS)]


@pytest.fixture
def way(way: Way) -> Way:
    """One of the four ways, which knows the quiet task."""
    way.hf.tasks.merge(QUIET)
    return way


async def claim(way: Way) -> Claimed:
    """Claim the one job that may run."""
    (job,) = (await way.call(claiming.admit_and_claim, WANTS, 10, "worker-1", "nonce-1")).jobs
    return job


async def logged(way: Way) -> int:
    """Count the rows of the log."""
    ((count,),) = await way.rows("SELECT count(*) FROM holdfast_event")
    return int(count)


@pytest.mark.parametrize("outcome", [DONE, FAIL, RETRY])
async def test_a_job_without_history_writes_no_rows_in_the_log(way: Way, outcome: Outcome) -> None:
    chain = await way.face.start(quiet(n=1), unique="x")
    job = await claim(way)
    await way.call(claiming.progress, [ProgressReport(job.token, 50, None)])

    await settle(way, (job.token, outcome))
    await way.face.cancel(chain)

    assert await logged(way) == 0
    assert (await way.face.get_job(chain)).version > 3


async def test_neither_does_the_short_way(way: Way) -> None:
    await way.face.start(quiet(n=1))
    job = await claim(way)

    settled = await way.call(settling.settle, [Settlement(job.token, DONE, is_plain=True)])

    assert settled.done == [job.token]
    assert await logged(way) == 0


async def test_in_one_batch_only_those_with_a_history_are_written_down(way: Way) -> None:
    noted, _ = await way.face.start_many([greet(name="Ada"), quiet(n=1)])
    claimed = (await way.call(claiming.admit_and_claim, WANTS, 10, "worker-1", "nonce-1")).jobs

    await settle(way, *[(job.token, FAIL) for job in claimed])

    assert await logged(way) == 3
    assert await events_of(way, noted.id) == ["job:enqueued", "job:started", "job:failed"]


async def test_it_takes_no_statement_more_and_no_row(way: Way) -> None:
    noted = await statements_of(way, greet(name="Ada"))
    before = await logged(way)
    quietly = await statements_of(way, quiet(n=1))

    assert quietly == noted
    assert (before, await logged(way)) == (3, before)


async def statements_of(way: Way, call: Any) -> tuple[int, int]:
    """Tell how many statements a claim and a completion take."""
    await way.face.start(call)
    taken: list[Claimed] = []

    async def take(tx: Any) -> None:
        taken.extend(await claiming.claim(tx, WANTS, 10, "worker-1", "nonce-1"))

    claimed = await way.call(counted, take)
    ended = await way.call(counted, settling.settle, [Settlement(taken[0].token, DONE, is_plain=True)])
    return len(claimed), len(ended)


async def test_its_result_is_given_all_the_same(way: Way) -> None:
    chain = await way.face.start(quiet(n=1))
    job = await claim(way)
    await settle(way, (job.token, DONE))

    (ended,) = await way.face.wait([chain.id], timeout=5)

    assert (ended.status, ended.output) == ("completed", "Hello")


async def test_its_webhooks_go_out_all_the_same(way: Way) -> None:
    chain = await way.face.start(quiet(n=1), webhook=URL)
    job = await claim(way)
    await settle(way, (job.token, RETRY))
    await way.face.cancel(chain)

    assert await told(way) == ["job:retrying", "job:cancelled"]


async def test_a_continuation_has_what_its_own_task_says(way: Way) -> None:
    await way.face.start(quiet(n=1))
    job = await claim(way)
    step = then(task="greet", history=True)
    await settle(way, (job.token, step))
    noted = await claim(way)
    quieter = then(task="quiet", history=False)
    await settle(way, (noted.token, quieter))

    assert await events_of(way, UUID(noted.id)) == ["job:enqueued", "job:started", "job:completed"]
    assert await logged(way) == 3


async def test_a_chain_that_is_started_again_has_the_history_of_the_first(way: Way) -> None:
    chain = await way.face.start(quiet(n=1))

    again = await way.face.start_again(chain.id)

    assert await row_of(way, again.id, "history") == (0,)
    assert await logged(way) == 0


@pytest.mark.parametrize("options", [{}, {"queue": "default", "priority": 0}])
async def test_a_starter_that_does_not_know_the_code_takes_it_from_the_owner(
    way: Way, new_holdfast: Callable[..., Holdfast], options: dict[str, Any]
) -> None:
    await way.face.start(quiet(n=1))
    stranger = Way(new_holdfast(way.database), is_async=way.is_async)

    chain = await stranger.face.start(stranger.hf.call("quiet", {"n": 2}).options(**options))

    assert await row_of(way, chain.id, "history") == (0,)
    await stranger.close()


async def test_whoever_sleeps_is_woken_all_the_same(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("postgres", tasks=[TASKS, QUIET])
    way = Way(hf, is_async=True)
    await hf.open()
    chain = await hf.start(quiet(n=1))
    asleep = "INSERT INTO holdfast_worker (id, facts, started_at, seen_at, asleep_at) VALUES ('w', '{}', 0, 0, 1)"
    await way.call(_execute, asleep)
    fact = events.NewEvent(await seq_of(way, chain.id), "job:resumed", version=2)

    with psycopg.connect(hf.settings.database, autocommit=True) as listener:
        listener.execute(f"LISTEN {channel(SCHEMA)}")
        await hf.start(quiet(n=2))
        await way.call(events.append, [fact])
        heard = await asyncio.to_thread(lambda: list(listener.notifies(timeout=5, stop_after=2)))

    assert len(heard) == 2
    assert await logged(way) == 0


async def _execute(tx: Any, sql: str) -> None:
    await tx.execute(sql)
