"""Waiting for chains: `chain.result()` and `hf.wait()`, on both databases and both faces, one reader for all."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from holdfast import (
    ChainCancelled,
    ChainFailed,
    ChainNotFound,
    Holdfast,
    InvalidInput,
    Misuse,
    Tasks,
    Unavailable,
    WaitTimeout,
)
from holdfast.database import hints
from holdfast.database.hints import SleepMark
from holdfast.outcomes import Kind, Outcome
from holdfast.runtime import Runtime
from holdfast.store import polls, workers
from holdfast.store.insight import explain
from tests.store import engine
from tests.support.conditions import until
from tests.support.factories import TASKS, add, continue_chain, greet
from tests.support.ways import Way

R = TypeVar("R")


@pytest.fixture(autouse=True)
def quick_to_fall_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sleepers trust their mark soon: no statement takes that long here."""
    monkeypatch.setattr(hints, "STATEMENT_SECONDS", 0.2)


async def in_its_colour(way: Way, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a method of a face or a chain as its users do: awaited, or in a thread."""
    if way.is_async:
        return await function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


def face_of(way: Way) -> Any:
    return way.hf if way.is_async else way.hf.sync


async def result(way: Way, chain: Any, timeout: Any = 10) -> Any:
    return await in_its_colour(way, chain.result, timeout)


async def wait(way: Way, chains: Sequence[Any], **options: Any) -> Any:
    return await in_its_colour(way, face_of(way).wait, chains, **{"timeout": 10, **options})


@asynccontextmanager
async def waiting(way: Way, work: Awaitable[R], number: int = 1) -> AsyncIterator[asyncio.Task[R]]:
    """Have *work*, a wait, under way inside the block."""
    task = asyncio.ensure_future(work)
    await until(lambda: number_of_waits(way.hf) == number, f"{number} wait under way")
    yield task
    await asyncio.wait([task], timeout=10)
    assert task.done(), "the wait went on"


def number_of_waits(hf: Holdfast) -> int:
    return len(hf._waiter._here._waits)


@pytest.mark.source("JC-15")
async def test_a_result_is_the_output_read_by_its_type(way: Way) -> None:
    chain = await way.face.start(add(a=1, b=2))
    async with waiting(way, result(way, chain)) as task:
        await engine.run(way, Outcome(Kind.COMPLETE, output="3"))

    assert await task == 3
    assert await result(way, chain) == 3
    assert (await way.face.get_chain(chain)).output == 3


async def test_the_result_of_a_chain_is_that_of_its_last_job(way: Way) -> None:
    chain = await way.face.start(add(a=1, b=2))
    successor = await continue_chain(way, chain.id, status="completed", output='"Hello"', task="greet")

    assert await result(way, chain) == "Hello"
    ((only,)) = await wait(way, [successor])
    assert only.id == chain.id


async def test_a_job_that_continues_a_chain_stands_for_the_chain_in_a_wait(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    successor = await continue_chain(way, chain.id)
    async with waiting(way, wait(way, [successor])) as task:
        await engine.run(way)

    (closed,) = await task
    assert (closed.id, closed.is_open, closed.output) == (chain.id, False, "Hello")


async def test_a_chain_that_fails_while_it_is_waited_for_says_why(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    error = '{"type":"OSError","message":"no space left"}'
    async with waiting(way, result(way, chain)) as task:
        await engine.run(way, Outcome(Kind.FAIL, error=error, reason="fatal error"))

    with pytest.raises(ChainFailed, match=r"failed: OSError: no space left \(fatal error\).*hf\.retry\(") as caught:
        await task
    assert (caught.value.chain_id, caught.value.job_id) == (chain.id, chain.id)
    assert caught.value.reason == "fatal error"
    assert caught.value.error is not None
    assert caught.value.error["type"] == "OSError"


async def test_a_chain_that_is_cancelled_while_it_is_waited_for_says_so(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    async with waiting(way, result(way, chain)) as task:
        await way.face.cancel(chain, why="not needed")

    with pytest.raises(ChainCancelled, match="not needed") as caught:
        await task
    assert caught.value.chain_id == chain.id


async def test_a_chain_that_is_deleted_while_it_is_waited_for_ends_the_wait(way: Way) -> None:
    chain, other = await way.face.start_many([greet(name="Ada"), greet(name="Bob")])
    async with waiting(way, wait(way, [chain, other])) as task:
        await way.face.delete(chain)

    with pytest.raises(ChainNotFound) as caught:
        await task
    assert caught.value.chain_id == chain.id


async def test_a_chain_that_is_not_there_is_no_reason_to_wait(way: Way) -> None:
    missing = uuid4()
    chain = await way.face.start(greet(name="Ada"))

    with pytest.raises(ChainNotFound):
        await wait(way, [chain, missing], timeout=None)

    await way.face.delete(chain)
    with pytest.raises(ChainNotFound):
        await result(way, chain, timeout=None)


@pytest.mark.parametrize("seconds", [0, 0.01, timedelta(milliseconds=10)])
async def test_what_does_not_close_in_time_is_named_and_goes_on(way: Way, seconds: Any) -> None:
    done, still_open = await way.face.start_many([greet(name="Ada"), greet(name="Bob")])
    job = (await engine.claim_all(way))[0]
    await engine.settle(way, (job.token, engine.DONE))

    with pytest.raises(WaitTimeout, match="not been cancelled") as caught:
        await wait(way, [done, still_open], timeout=seconds)
    with pytest.raises(WaitTimeout):
        await result(way, still_open, seconds)

    assert caught.value.chain_ids == (still_open.id,)
    assert caught.value.seconds == (0 if seconds == 0 else 0.01)
    (found,) = caught.value.explanations
    assert (found.job and found.job.id, [each.code for each in found.reasons]) == (still_open.id, ["running"])
    assert number_of_waits(way.hf) == 0


async def test_a_wait_that_is_too_long_says_which_queues_are_served(way: Way) -> None:
    await way.call(workers.beat, workers.Member.here("w", queues=["mail", "default"]))
    served = await way.face.start(greet(name="Ada"))
    unserved = await way.face.start(greet(name="Bob"), queue="mial")

    with pytest.raises(WaitTimeout) as caught:
        await wait(way, [served, unserved], timeout=0)

    assert [[each.code for each in found.reasons] for found in caught.value.explanations] == [
        ["arriving"],
        ["no_worker"],
    ]
    assert "(no worker serves queue 'mial'; did you mean 'mail'?" in str(caught.value)


async def test_a_wait_for_a_task_that_no_worker_of_the_queue_has_names_the_task(way: Way) -> None:
    await way.call(workers.beat, workers.Member.here("w", queues=["default"], tasks=["send_receipt"]))
    chain = await way.face.start(greet(name="Ada"))

    with pytest.raises(WaitTimeout) as caught:
        await result(way, chain, 0)

    assert "(no worker of queue 'default' has task 'greet'; import the module of the task" in str(caught.value)
    assert "did you mean" not in str(caught.value)


async def test_a_wait_for_a_job_that_is_retried_says_its_error_and_when_it_runs(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    (job,) = await engine.claim_all(way)
    failed = Outcome(Kind.RETRY, delay_ms=3_600_000, error='{"type": "ValueError", "message": "no such order"}')
    await engine.settle(way, (job.token, failed))
    due = (await way.face.get_job(chain.id)).run_at.astimezone(UTC)

    with pytest.raises(WaitTimeout) as caught:
        await result(way, chain, 0)

    assert "still scheduled after 0 s" in str(caught.value)
    said = f"attempt 1 failed (ValueError: no such order); the next one is due at {due:%Y-%m-%d %H:%M:%S} UTC"
    assert f"({said}: hf.trigger('{chain.id}')" in str(caught.value)


async def test_a_wait_for_a_paused_job_says_how_to_resume_it(way: Way) -> None:
    await way.call(workers.beat, workers.Member.here("w", queues=["default"], tasks=["greet"]))
    chain = await way.face.start(greet(name="Ada"))
    await way.face.pause(chain)

    with pytest.raises(WaitTimeout) as caught:
        await result(way, chain, 0)

    assert f"is still paused after 0 s (the job is paused: hf.resume('{chain.id}')); it has not" in str(caught.value)


async def test_a_worker_without_a_beat_for_minutes_serves_nothing(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    await way.call(workers.beat, workers.Member.here("w", queues=["default"]))
    monkeypatch.setattr(workers, "ALIVE_MS", -1)  # as if the beat were older
    chain = await way.face.start(greet(name="Ada"))

    with pytest.raises(WaitTimeout, match="start a worker on this database with `holdfast worker APP`") as caught:
        await result(way, chain, 0)

    assert [each.code for each in caught.value.explanations[0].reasons] == ["no_worker"]


async def test_a_wait_that_is_too_long_says_so_even_if_nothing_can_be_read(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise Unavailable("the database went away")

    monkeypatch.setattr(explain, "explain_many", fail)
    chain = await way.face.start(greet(name="Ada"))

    with pytest.raises(WaitTimeout, match=f"chain {chain.id} is still open after 0 s; it has not been") as caught:
        await result(way, chain, 0)

    assert caught.value.explanations == ()


@pytest.mark.parametrize("timeout", [-1, "soon", True, float("nan")])
async def test_a_timeout_is_a_length_of_time(way: Way, timeout: Any) -> None:
    chain = await way.face.start(greet(name="Ada"))

    with pytest.raises(InvalidInput, match="timeout"):
        await result(way, chain, timeout)


async def test_one_waits_for_all_or_for_any(way: Way) -> None:
    chains = await way.face.start_many([greet(name="Ada"), greet(name="Bob")])
    first, second = await engine.claim_all(way)
    async with waiting(way, wait(way, chains, until="any")) as any_of_them:
        await engine.settle(way, (first.token, engine.FAIL))
    async with waiting(way, wait(way, chains)) as all_of_them:
        await engine.settle(way, (second.token, engine.DONE))

    assert [each.is_open for each in await any_of_them] == [False, True]
    assert [str(each.status) for each in await all_of_them] == ["failed", "completed"]
    assert [each.id for each in await wait(way, [*chains, chains[0]])] == [chains[0].id, chains[1].id, chains[0].id]
    assert [each.is_open for each in await wait(way, chains, until="any")] == [False, False]
    assert await wait(way, []) == []
    with pytest.raises(InvalidInput, match="until"):
        await wait(way, chains, until="both")


async def test_a_thousand_who_wait_cost_one_read_for_a_hint(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    chains = await way.face.start_many([greet(name=str(number)) for number in range(1000)])
    reads: list[int] = []
    ended = polls.closed_chains

    async def counting(tx: Any, chain_ids: Any) -> Any:
        reads.append(len(chain_ids))
        return await ended(tx, chain_ids)

    waits = way.hf._waiter
    tasks = [asyncio.ensure_future(waits.wait([chain.id], "all", 30)) for chain in chains]
    await until(lambda: number_of_waits(way.hf) == 1000, "all wait")
    await until(lambda: is_at_rest(way.hf), "the waiter has read for all of them")
    monkeypatch.setattr(polls, "closed_chains", counting)
    claimed = await engine.claim(way, 1000)

    await engine.settle(way, *((each.token, engine.DONE) for each in claimed[:400]))
    await until(lambda: sum(task.done() for task in tasks) == 400, "400 are told")
    assert 1 <= len(reads) <= 8
    await engine.settle(way, *((each.token, engine.DONE) for each in claimed[400:]))
    await asyncio.wait_for(asyncio.gather(*tasks), 10)


def is_at_rest(hf: Holdfast) -> bool:
    rest = hf._waiter._here.poller.sleep_mark
    return rest is not None and (hf.store.database == "sqlite" or rest._is_sure)


async def test_a_wait_that_is_given_up_is_forgotten(way: Way) -> None:
    if not way.is_async:
        return
    chain = await way.hf.start(greet(name="Ada"))
    task = asyncio.ensure_future(chain.result())
    await until(lambda: number_of_waits(way.hf) == 1, "a wait under way")

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert number_of_waits(way.hf) == 0


async def test_to_close_ends_every_wait_and_leaves_nothing_behind(
    new_threads: Callable[[], set[str]], way: Way
) -> None:
    chain = await way.face.start(greet(name="Ada"))
    async with waiting(way, result(way, chain)) as task:
        await until(lambda: is_at_rest(way.hf), "the waiter is at rest")
        await way.face.close()

    with pytest.raises(Misuse, match="closed while this waited"):
        await task
    assert not {"holdfast-waiter", "holdfast-hints"} & new_threads()
    assert await way.rows("SELECT id FROM holdfast_worker") == []

    async with waiting(way, result(way, chain)) as again:
        await engine.run(way)
    assert await again == "Hello"


async def test_a_waiter_that_nobody_needs_any_more_strikes_itself_off(
    new_threads: Callable[[], set[str]], way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.events.poller.LINGER_SECONDS", 0.05)
    chain = await way.face.start(greet(name="Ada"))
    async with waiting(way, result(way, chain)):
        await until(lambda: is_at_rest(way.hf), "the waiter is at rest")
        await engine.run(way)

    await until(lambda: way.hf._waiter._here.poller.sleep_mark is None, "the waiter listens no more")

    async def is_empty() -> bool:
        return await way.rows("SELECT id FROM holdfast_worker") == []

    await until(is_empty, "its row is gone")
    await until(lambda: "holdfast-hints" not in new_threads(), "its line is closed")


async def test_a_copy_of_a_chain_has_no_face_to_ask(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    for each in (replace(chain, deduplicated=True), copy.copy(chain)):
        with pytest.raises(Misuse, match="get_chain"):
            await result(way, each)
    assert copy.copy(chain) == chain


async def test_chains_from_every_verb_can_be_waited_for(way: Way) -> None:
    started = await way.face.start(greet(name="Ada"))
    await engine.run(way)

    for chain in (started, await way.face.get_chain(started), *(await way.face.list_chains())):
        assert await result(way, chain) == "Hello"
    again = await way.face.start_again(started)
    with pytest.raises(WaitTimeout):
        await result(way, again, 0)


async def test_a_chain_that_runs_again_after_it_failed_is_waited_for_anew(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await engine.run(way, engine.FAIL)
    with pytest.raises(ChainFailed):
        await result(way, chain)

    await way.face.retry(chain)
    async with waiting(way, result(way, chain)) as task:
        await engine.run(way)

    assert await task == "Hello"


@pytest.mark.source("JC-13")
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_a_result_comes_from_a_worker_of_another_face(
    database: str, new_holdfast: Callable[..., Holdfast]
) -> None:
    here, there = new_holdfast(database, tasks=[TASKS]), new_holdfast(database, tasks=[TASKS])
    async with here, there, there.worker():
        chains = await here.start_many([add(a=number, b=1) for number in range(20)])

        assert [await chain.result(timeout=10) for chain in chains] == list(range(1, 21))
        assert await asyncio.to_thread(here.sync.start(greet(name="Ada")).result, 10) == "Hello, Ada"


@pytest.mark.source("JC-15")
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_without_a_hint_the_poll_finds_the_end(
    database: str, new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.events.poller.SleepMark", partial(SleepMark, poll=0.2))
    deaf = Runtime(file_mark=lambda path: None)
    waits = new_holdfast(database, tasks=[TASKS], runtime=deaf, transaction_pooler=True)
    works = new_holdfast(database, tasks=[TASKS])
    async with waits, works:
        chain = await works.start(greet(name="Ada"))
        task = asyncio.ensure_future(waits.wait([chain.id], timeout=10))
        await until(lambda: number_of_waits(waits) == 1, "a wait under way")
        await engine.run(Way(works, is_async=True))

        (closed,) = await task
    assert closed.output == "Hello"


async def test_a_store_that_is_away_for_a_while_ends_no_wait(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.errors import Unavailable

    chain = await way.face.start(greet(name="Ada"))
    ended = polls.closed_chains
    is_away = True

    async def sometimes(tx: Any, chain_ids: Any) -> Any:
        if is_away:
            raise Unavailable("the database cannot be reached; try again")
        return await ended(tx, chain_ids)

    monkeypatch.setattr(polls, "closed_chains", sometimes)
    async with waiting(way, result(way, chain)) as task:
        await until(lambda: way.hf._waiter._here.poller.is_failing, "the waiter has noticed")
        await engine.run(way)
        is_away = False

    assert await task == "Hello"


def test_a_handler_that_returns_nothing_has_none_as_its_result(tmp_path: Any) -> None:
    tasks = Tasks()

    @tasks.task(name="note")
    def note() -> None:
        pass

    hf = Holdfast(str(tmp_path / "jobs.db"), tasks=[tasks])

    async def main() -> None:
        async with hf, hf.worker():
            assert await (await hf.start(note())).result(timeout=10) is None

    asyncio.run(main())
