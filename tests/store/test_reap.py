"""Reaping: only what is expired and unlocked, by policy, and never a completion (I-16, I-24, I-25, DF-8, DF-31)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, Tasks
from holdfast.store import workers
from holdfast.store.jobs import claiming, reaping
from holdfast.store.jobs.claiming import ClaimState, Token
from holdfast.store.workers import IN_CHILD, Machine, Member
from tests.store.engine import (
    DONE,
    admit,
    claim,
    claim_all,
    claim_one,
    drain,
    expire,
    facts_of,
    run,
    settle,
)
from tests.support.factories import TASKS, change_job, continue_chain, counted, events_of, greet, row_of, whole_store
from tests.support.ways import Way

FOR_EVER = 2**53


async def reap(way: Way, quiet_ms: int = FOR_EVER, spared: tuple[int, ...] = ()) -> int:
    """Reap what can be reaped; count it."""
    return (await way.call(reaping.reap, quiet_ms, spared)).count


async def lose(way: Way, *tokens: Token) -> None:
    """Let leases run out that are as short as the test server is young."""
    await expire(way, *tokens, lease_ms=1)


async def set_policy(way: Way, policy: str) -> None:
    """Let the task's row say something else."""
    await way.call(_policy, policy)


async def _policy(tx: Any, policy: str) -> None:
    await tx.execute("UPDATE holdfast_task SET policy = :policy WHERE name = 'greet'", policy=policy)


@pytest.mark.source("JC-9")
async def test_a_lease_that_is_over_is_taken_back_and_the_job_runs_again(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    lost = await claim_one(way, "lost")
    await lose(way, lost.token)

    assert await reap(way) == 1
    assert await row_of(way, chain.id, "status", "crashes", "used", "worker") == ("pending", 1, 1, None)
    assert "job:reaped" in await events_of(way, chain.id)
    assert re.search(LEASE_ENDED, str(await row_of(way, chain.id, "error")))
    assert (await claim_one(way, "heir")).token.attempt == 2


LEASE_ENDED = r"the worker was gone; its lease ended at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


async def test_a_lease_that_holds_is_left_alone(way: Way) -> None:
    await way.face.start(greet(name="Ada"))
    await claim_one(way)
    before = await whole_store(way)

    assert await reap(way) == 0
    assert await whole_store(way) == before


async def test_the_lost_worker_can_settle_no_more(way: Way) -> None:
    await way.face.start(greet(name="Ada"))
    lost = await claim_one(way, "lost")
    await lose(way, lost.token)
    await reap(way)
    await claim_one(way, "heir")

    settled = await settle(way, (lost.token, DONE))

    assert settled.lost == {lost.token: ClaimState.TAKEN}


@pytest.mark.source("PQ-2", "PQ-18", "JC-40", "TQ-23")
@pytest.mark.parametrize(
    ("policy", "status", "reason"),
    [
        ('{"on_lost":"retry","attempts":20}', "pending", "lost"),
        ('{"on_lost":"fail","attempts":20}', "failed", "lost"),
        ('{"on_lost":"pause","attempts":20}', "paused", "lost"),
        ('{"on_lost":"retry","attempts":1}', "failed", "attempts used up"),
        ('{"on_lost":"retry","attempts":null}', "pending", "lost"),
    ],
)
async def test_what_a_loss_means_is_the_tasks_policy(way: Way, policy: str, status: str, reason: str) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await set_policy(way, policy)
    await lose(way, (await claim_one(way)).token)

    await reap(way)

    assert await row_of(way, chain.id, "status", "reason") == (status, reason)


@pytest.mark.source("JC-28")
@pytest.mark.parametrize(("attempts", "status", "reason"), [(1, "failed", "attempts used up"), (2, "pending", "lost")])
async def test_a_lost_job_with_a_budget_of_its_own_fails_by_that(
    way: Way, attempts: int, status: str, reason: str
) -> None:
    chain = await way.face.start(greet(name="Ada"), attempts=attempts)
    await set_policy(way, f'{{"on_lost":"retry","attempts":{3 - attempts}}}')
    await lose(way, (await claim_one(way)).token)

    await reap(way)

    assert await row_of(way, chain.id, "status", "reason") == (status, reason)


async def test_a_lost_job_that_is_paused_has_used_an_attempt(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await set_policy(way, '{"on_lost":"pause"}')
    await lose(way, (await claim_one(way)).token)

    await reap(way)

    assert await row_of(way, chain.id, "status", "used") == ("paused", 1)


@pytest.mark.parametrize("policy", ['{"on_lost":"retry"}', '{"on_lost":"fail"}', '{"on_lost":"pause"}'])
@pytest.mark.parametrize(
    ("requested", "status"),
    [
        ({"cancel_requested_at": 1}, "cancelled"),
        ({"pause_requested_at": 1}, "paused"),
        ({"cancel_requested_at": 1, "pause_requested_at": 1}, "cancelled"),
    ],
)
async def test_a_request_comes_before_the_policy(way: Way, policy: str, requested: dict[str, int], status: str) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await set_policy(way, policy)
    await lose(way, (await claim_one(way)).token)
    await change_job(way, chain.id, **requested)

    await reap(way)

    assert await row_of(way, chain.id, "status") == (status,)


@pytest.mark.source("JC-9")
async def test_the_third_crash_is_poison(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    for nonce in ("one", "two", "three"):
        token = (await claim_one(way, nonce)).token
        await way.call(claiming.begin, token)
        await lose(way, token)
        await reap(way)

    assert await row_of(way, chain.id, "status", "reason", "crashes") == ("failed", "poison", 3)
    assert await claim_all(way) == []
    await way.face.retry(chain)
    assert (await claim_one(way)).crashes == 0


async def test_a_suspect_that_was_lost_before_it_began_is_given_back(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await change_job(way, chain.id, crashes=2)
    await lose(way, (await claim_one(way)).token)

    await reap(way)

    assert await row_of(way, chain.id, "status", "crashes", "used") == ("pending", 2, 0)


@pytest.mark.parametrize(
    ("policy", "status", "used"),
    [('{"on_lost":"retry"}', "pending", 1), ('{"on_lost":"fail"}', "failed", 1), ('{"on_lost":"pause"}', "paused", 0)],
)
async def test_a_suspect_in_a_child_is_lost_with_its_worker_and_has_not_crashed(
    way: Way, policy: str, status: str, used: int
) -> None:
    """I-24: a worker does not die of what runs in another process."""
    chain = await way.face.start(greet(name="Ada"))
    await set_policy(way, policy)
    await change_job(way, chain.id, crashes=2)
    token = (await claim_one(way)).token
    await way.call(claiming.begin, token, "worker-1" + IN_CHILD)
    await lose(way, token)

    await reap(way)

    found = await row_of(way, chain.id, "status", "reason", "crashes", "used")
    assert found == (status, "lost", 2, used)


async def test_a_suspect_in_a_child_of_a_dead_worker_is_taken_back(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await change_job(way, chain.id, crashes=2)
    await way.call(claiming.begin, (await claim_one(way)).token, "worker-1" + IN_CHILD)

    assert len(await way.call(reaping.reap_dead, ["worker-1"])) == 1
    assert await row_of(way, chain.id, "status", "crashes") == ("pending", 2)
    assert "its process has ended" in str(await row_of(way, chain.id, "error"))


async def test_a_reaped_job_comes_back_behind_those_that_were_ready(way: Way) -> None:
    await way.face.start(greet(name="poison"))
    await lose(way, (await claim_one(way)).token)
    other = await way.face.start(greet(name="other"))
    await way.call(_age, other.id)

    await reap(way)

    assert (await claim_all(way))[0].id == str(other.id)


async def _age(tx: Any, job_id: Any) -> None:
    await tx.execute("UPDATE holdfast_job SET sort_key = sort_key - 1000 WHERE id = :id", id=str(job_id))


async def test_a_lost_job_keeps_its_lane(way: Way) -> None:
    first, second = await way.face.start_many([greet(name=str(n)).options(lane="vm-7") for n in range(2)])
    await lose(way, (await claim_one(way)).token)
    await reap(way)

    assert [await run(way) for _ in range(2)] == [first.id, second.id]


async def test_a_poisoned_job_halts_its_lane_and_says_so(way: Way) -> None:
    first, _ = await way.face.start_many([greet(name=str(n)).options(lane="vm-7") for n in range(2)])
    await lose(way, (await claim_one(way)).token)
    await change_job(way, first.id, crashes=2)

    await reap(way)

    assert await claim_all(way) == []
    assert await facts_of(way, "lane:halted") == [{"lane": "vm-7", "job": str(first.id), "reason": "poison"}]


async def test_a_failed_loss_tells_who_waits(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    waiting = await way.face.start(greet(name="waits"), blockers=[chain])
    await set_policy(way, '{"on_lost":"fail"}')
    await admit(way)
    await lose(way, (await claim_one(way)).token)

    await reap(way)

    assert await row_of(way, waiting.id, "status") == ("failed",)


async def test_the_last_job_of_a_continued_chain_is_reaped_with_its_chain(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await continue_chain(way, chain.id)
    await set_policy(way, '{"on_lost":"fail"}')
    await lose(way, (await claim_one(way)).token)

    await reap(way)

    assert await row_of(way, chain.id, "closed_as") == ("failed",)


async def test_a_lease_longer_than_the_quiet_since_an_outage_is_spared(way: Way) -> None:
    await way.face.start(greet(name="Ada"))
    await expire(way, (await claim_one(way)).token, lease_ms=100)

    assert await reap(way, quiet_ms=99) == 0
    assert await reap(way, quiet_ms=100) == 1


@pytest.mark.parametrize(("uptime_ms", "count"), [(99, 0), (100, 1), (-7_200_000, 1)])
@pytest.mark.parametrize("way", ["postgres-blocking"], indirect=True)
async def test_a_server_whose_clock_was_put_back_behind_its_own_start_still_reaps(
    way: Way, uptime_ms: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-28, I-18, I-22: it has not been up for less than no time; a lease longer than it has been up is not judged."""
    monkeypatch.setitem(reaping.NOW, "postgres", f"SELECT $now, {uptime_ms}")
    await way.face.start(greet(name="Ada"))
    await expire(way, (await claim_one(way)).token, lease_ms=100)

    assert await reap(way) == count


@pytest.mark.source("JC-84")
async def test_who_is_spared_is_not_reaped(way: Way) -> None:
    await way.face.start(greet(name="Ada"))
    token = (await claim_one(way)).token
    await lose(way, token)

    assert await reap(way, spared=(token.seq,)) == 0
    assert await reap(way) == 1


async def test_the_jobs_of_a_worker_that_is_proved_dead_are_taken_at_once(way: Way) -> None:
    await way.face.start_many([greet(name="x") for _ in range(3)])
    await claim(way, 2)
    await way.call(claiming.admit_and_claim, [claiming.Want("default", "greet", 1000)], 1, "worker-2", "n")

    assert len(await way.call(reaping.reap_dead, ["worker-1"])) == 2
    assert await way.rows("SELECT worker FROM holdfast_job WHERE status = 'running'") == [("worker-2",)]


@pytest.mark.source("JC-40")
async def test_reaping_takes_the_same_statements_for_1_10_and_50(way: Way) -> None:
    """I-62."""
    counts = {}
    for count in (1, 10, 50):
        await way.face.start_many([greet(name="x").options(lane=f"{count}-{n}") for n in range(count)])
        await admit(way)
        await lose(way, *[job.token for job in await claim(way, 100)])
        counts[count] = len(await way.call(counted, reaping.reap, FOR_EVER))
        await drain(way)

    assert len(set(counts.values())) == 1, counts


# ---- against others


@pytest.fixture
async def postgres(new_holdfast: Callable[..., Holdfast]) -> Way:
    """PostgreSQL, for async code."""
    way = Way(new_holdfast("postgres", tasks=[TASKS]), is_async=True)
    await way.hf.open()
    return way


async def test_a_locked_row_is_passed_over_and_told(postgres: Way) -> None:
    """I-63."""
    await postgres.face.start_many([greet(name="x") for _ in range(3)])
    jobs_ = await claim(postgres)
    await lose(postgres, *[job.token for job in jobs_])

    with psycopg.connect(postgres.hf.settings.database) as stranger:
        stranger.execute("SELECT 1 FROM contract.holdfast_job WHERE seq = %s FOR UPDATE", [jobs_[1].token.seq])
        reaped = await asyncio.wait_for(postgres.call(reaping.reap, FOR_EVER), 5)

    assert (reaped.count, list(reaped.locked)) == (2, [jobs_[1].token.seq])


async def test_a_completion_in_flight_is_never_reaped(postgres: Way) -> None:
    """P-01."""
    chain = await postgres.face.start(greet(name="Ada"))
    job = await claim_one(postgres)
    await lose(postgres, job.token)

    async with await psycopg.AsyncConnection.connect(postgres.hf.settings.database) as worker:
        await worker.execute(
            "UPDATE contract.holdfast_job SET status = 'completed', worker = NULL, lease_until = NULL WHERE seq = %s",
            [job.token.seq],
        )
        during = await asyncio.wait_for(reap(postgres), 5)
        await worker.commit()

    assert (during, await reap(postgres)) == (0, 0)
    assert await row_of(postgres, chain.id, "status") == ("completed",)


async def test_a_look_of_who_is_idle_tells_whether_any_queue_has_arrivals(way: Way) -> None:
    nothing = await way.read(reaping.peek)
    await way.face.start(greet(name="Ada"), queue="nobody's", delay=3600)
    something = await way.read(reaping.peek)

    assert nothing is not None
    assert something is not None
    assert (nothing.has_arrivals, something.has_arrivals) == (False, True)


@pytest.mark.source("TQ-23", "DF-31")
async def test_a_renewal_between_the_look_and_the_reap_saves_the_job(postgres: Way) -> None:
    chain = await postgres.face.start(greet(name="Ada"))
    job = await claim_one(postgres)
    await expire(postgres, job.token, lease_ms=2000)

    async def renew_after_the_look(tx: Any) -> int:
        return (await reaping.reap(Renewing(tx, postgres, job.token), FOR_EVER)).count

    assert await postgres.hf.store.run(renew_after_the_look) == 0
    assert await row_of(postgres, chain.id, "status", "nonce") == ("running", "nonce-1")


class Renewing:
    """A transaction in which, right after the reaper's look, the worker renews its lease on its own connection."""

    def __init__(self, tx: Any, way: Way, token: Token) -> None:
        self._tx, self._way, self._token = tx, way, token
        self.database = tx.database

    async def execute(self, sql: str, /, **values: object) -> None:
        """Run *sql*."""
        await self._tx.execute(sql, **values)

    async def fetch_all(self, sql: str, /, **values: object) -> Any:
        """Run *sql*, and renew behind the look."""
        rows = await self._tx.fetch_all(sql, **values)
        if sql == reaping.FIND:
            assert rows
            await self._way.hf.store.run(claiming.renew, [self._token])
        return rows


async def test_what_could_not_be_written_is_given_back(way: Way) -> None:
    """I-50."""
    chain = await way.face.start(greet(name="Ada"))
    token = (await claim_one(way)).token

    assert await way.call(reaping.give_back_unwritten, [token]) == 1
    assert await row_of(way, chain.id, "status", "used", "crashes") == ("pending", 0, 0)


@pytest.mark.source("JC-39")
@pytest.mark.parametrize("policy", ['{"on_lost":"fail"}', '{"on_lost":"pause"}'])
async def test_what_could_not_be_written_and_may_not_run_again_is_left_to_be_lost(way: Way, policy: str) -> None:
    """I-25."""
    chain = await way.face.start(greet(name="Ada"))
    await set_policy(way, policy)
    token = (await claim_one(way)).token

    assert await way.call(reaping.give_back_unwritten, [token]) == 0
    assert await row_of(way, chain.id, "status", "used", "crashes") == ("running", 1, 0)


async def test_what_is_somebody_elses_by_now_is_not_given_back(way: Way) -> None:
    """I-13."""
    chain = await way.face.start(greet(name="Ada"))
    lost = await claim_one(way, "lost")
    await lose(way, lost.token)
    await reap(way)
    await claim_one(way, "heir")

    assert await way.call(reaping.give_back_unwritten, [lost.token]) == 0
    assert await row_of(way, chain.id, "status") == ("running",)


async def test_a_worker_that_lives_takes_back_the_crash_of_what_it_lost_once(way: Way) -> None:
    """I-24: the job may run elsewhere by then."""
    chain = await way.face.start(greet(name="Ada"))
    lost = await claim_one(way, "lost")
    await lose(way, lost.token)
    await reap(way)

    by_another = await way.call(reaping.absolve, [lost.token], "another")
    await claim_one(way, "heir")
    by_itself = [await way.call(reaping.absolve, [lost.token], "worker-1") for _ in range(2)]

    assert (by_another, by_itself) == (0, [1, 0])
    assert await row_of(way, chain.id, "crashes", "status") == (0, "running")


async def test_a_crash_that_was_counted_for_a_later_attempt_stays(way: Way) -> None:
    """I-24."""
    chain = await way.face.start(greet(name="Ada"))
    tokens = []
    for nonce in ("first", "second"):
        tokens.append((await claim_one(way, nonce)).token)
        await lose(way, tokens[-1])
        await reap(way)

    assert await way.call(reaping.absolve, tokens[:1], "worker-1") == 0
    assert await row_of(way, chain.id, "crashes") == (2,)


HERE = Machine("here", "second start")


@pytest.mark.parametrize(
    ("host", "boot", "crashes"),
    [
        ("here", "first start", 0),
        ("here", "second start", 1),
        ("there", "first start", 1),
        ("here", None, 1),
    ],
    ids=["started anew", "not started since", "another machine", "nobody knows"],
)
async def test_a_job_has_not_crashed_if_its_machine_was_started_anew(
    way: Way, host: str, boot: str | None, crashes: int
) -> None:
    """I-24: it takes all its workers with it, whatever they do."""
    chain = await way.face.start(greet(name="Ada"))
    await way.call(workers.beat, Member("worker-1", None, host, 7, json.dumps({"boot": boot})))
    await lose(way, (await claim_one(way)).token)

    await way.call(reaping.reap, FOR_EVER, machine=HERE)

    assert await row_of(way, chain.id, "status", "crashes", "used") == ("pending", crashes, 1)


async def test_who_still_has_jobs_is_not_forgotten(way: Way) -> None:
    """I-24: its row tells whether its machine was started anew."""
    await way.face.start(greet(name="Ada"))
    for name in ("worker-1", "worker-2"):
        await way.call(workers.beat, Member(name, None, "here", 7))
    token = (await claim_one(way)).token

    before = await way.call(workers.forget_silent, -60_000)
    await settle(way, (token, DONE))

    assert before == ["worker-2"]
    assert await way.call(workers.forget_silent, -60_000) == ["worker-1"]


@pytest.mark.parametrize("what", ["reap", "cancel"])
async def test_a_job_under_a_former_name_follows_the_task_as_it_is_now(
    way: Way, what: str, new_holdfast: Callable[..., Holdfast]
) -> None:
    """C5: the policy that the release before wrote under that name does not count any more."""
    chain = await way.face.start(greet(name="Ada"))
    await set_policy(way, '{"on_lost":"fail","cancel_running":"cancel"}')
    lost = await claim_one(way)
    tasks = Tasks()

    @tasks.task(name="welcome", aliases=["greet"], on_lost="pause", cancel_running="pause")
    async def welcome(name: str) -> str:
        return name

    face = new_holdfast(way.database, tasks=[tasks]).sync
    face.open()
    if what == "cancel":
        face.cancel(chain.id)
    else:
        await lose(way, lost.token)
        await reap(way)
    face.close()

    assert (await way.face.get_job(chain.id)).state == ("pausing" if what == "cancel" else "paused")
