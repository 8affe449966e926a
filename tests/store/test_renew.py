"""Renewing: every lease that holds, each by its own length, in one statement, past locked rows (I-63, I-75, TQ-14)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.store.jobs import claiming, reaping
from holdfast.store.jobs.claiming import ClaimState, Want
from tests.store.engine import DONE, claim, claim_one, expire, settle
from tests.support.factories import TASKS, add, change_job, counted, greet, row_of, whole_store
from tests.support.ways import Way


@pytest.mark.source("JC-29", "JC-109")
async def test_a_lease_is_prolonged_by_its_own_length_from_now(way: Way) -> None:
    greeting, sum_ = await way.face.start_many([greet(name="x"), add(a=1, b=2)])
    claimed = await claim(way, wants=[Want("default", "greet", 10_000), Want("sums", "add", 60_000)])
    await expire(way, *[job.token for job in claimed])

    holds = await way.call(claiming.renew, [job.token for job in claimed])

    assert set(holds.values()) == {ClaimState.HELD}
    now = (await way.rows("SELECT $now"))[0][0]
    left = {chain.id: (await row_of(way, chain.id, "lease_until"))[0] - now for chain in (greeting, sum_)}
    assert 8_000 < left[greeting.id] <= 10_000
    assert 58_000 < left[sum_.id] <= 60_000


@pytest.mark.source("TQ-18")
async def test_a_renewed_lease_is_not_reaped(way: Way) -> None:
    await way.face.start(greet(name="x"))
    job = await claim_one(way)
    await expire(way, job.token)

    await way.call(claiming.renew, [job.token])

    assert (await way.call(reaping.reap, 2**53)).count == 0


@pytest.mark.source("JC-26")
async def test_renewal_tells_how_each_claim_stands(way: Way) -> None:
    chains = await way.face.start_many([greet(name=str(n)) for n in range(5)])
    claimed = await claim(way)
    held, cancelled, paused, done, gone = (job.token for job in claimed)
    await way.face.cancel(chains[1])
    await way.face.pause(chains[2])
    await settle(way, (done, DONE))
    await way.face.delete(chains[4])
    other = held._replace(nonce="zombie")

    holds = await way.call(claiming.renew, [held, cancelled, paused, done, gone, other])

    assert holds == {
        held: ClaimState.HELD, cancelled: ClaimState.CANCEL, paused: ClaimState.PAUSE,
        done: ClaimState.COMPLETED, gone: ClaimState.GONE,
        other: ClaimState.TAKEN,
    }  # fmt: skip


async def test_the_deleted_head_of_a_lane_is_gone_for_who_runs_it(way: Way) -> None:
    chain = await way.face.start(greet(name="x"), lane="vm-7")
    job = await claim_one(way)

    await way.face.delete(chain)

    assert await way.call(claiming.renew, [job.token]) == {job.token: ClaimState.GONE}


async def test_a_job_that_is_to_be_cancelled_is_renewed_until_its_handler_has_ended(way: Way) -> None:
    chain = await way.face.start(greet(name="x"))
    job = await claim_one(way)
    await way.face.cancel(chain)
    await expire(way, job.token)

    await way.call(claiming.renew, [job.token])

    assert (await way.call(reaping.reap, 2**53)).count == 0


@pytest.mark.parametrize("forged", [{"nonce": "other"}, {"attempt": 9}])
async def test_a_wrong_token_renews_nothing(way: Way, forged: dict[str, object]) -> None:
    await way.face.start(greet(name="x"))
    job = await claim_one(way)
    before = await whole_store(way)

    holds = await way.call(claiming.renew, [job.token._replace(**forged)])  # type: ignore[arg-type]

    assert list(holds.values()) == [ClaimState.TAKEN]
    assert await whole_store(way) == before


async def test_renewing_changes_neither_version_nor_log(way: Way) -> None:
    chain = await way.face.start(greet(name="x"))
    job = await claim_one(way)
    before = await row_of(way, chain.id, "version"), await way.rows("SELECT count(*) FROM holdfast_event")

    await way.call(claiming.renew, [job.token])

    assert (await row_of(way, chain.id, "version"), await way.rows("SELECT count(*) FROM holdfast_event")) == before


async def test_renewing_takes_the_same_statements_for_0_1_10_and_100(way: Way) -> None:
    """I-62."""
    await way.face.start_many([greet(name="x") for _ in range(100)])
    tokens = [job.token for job in await claim(way, 100)]

    counts = {count: len(await way.call(counted, claiming.renew, tokens[:count])) for count in (0, 1, 10, 100)}

    assert counts == {0: 0, 1: 2, 10: 2, 100: 2}


@pytest.fixture
async def postgres(new_holdfast: Callable[..., Holdfast]) -> Way:
    """PostgreSQL, for async code."""
    way = Way(new_holdfast("postgres", tasks=[TASKS]), is_async=True)
    await way.hf.open()
    return way


@pytest.mark.source("JC-34")
async def test_one_locked_row_of_fifty_costs_the_others_nothing(postgres: Way) -> None:
    await postgres.face.start_many([greet(name="x") for _ in range(50)])
    tokens = [job.token for job in await claim(postgres, 50)]
    await expire(postgres, *tokens, lease_ms=1000)

    with psycopg.connect(postgres.hf.settings.database) as stranger:
        stranger.execute("SELECT 1 FROM contract.holdfast_job WHERE seq = %s FOR UPDATE", [tokens[7].seq])
        holds = await asyncio.wait_for(postgres.call(claiming.renew, tokens), 5)
        reaped = await asyncio.wait_for(postgres.call(reaping.reap, 2**53), 5)

    assert holds[tokens[7]] is ClaimState.LOCKED
    assert {hold for token, hold in holds.items() if token is not tokens[7]} == {ClaimState.HELD}
    assert (reaped.count, list(reaped.locked)) == (0, [tokens[7].seq])


async def test_a_look_reads_the_requests_and_changes_nothing(way: Way) -> None:
    chain = await way.face.start(greet(name="x"))
    job = await claim_one(way)
    await change_job(way, chain.id, cancel_requested_at=1)
    before = await whole_store(way)

    assert await way.read(claiming.claim_states, [job.token]) == {job.token: ClaimState.CANCEL}
    assert await whole_store(way) == before
