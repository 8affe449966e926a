"""Hostile values and huge numbers: both databases come to the same verdict, before any SQL, and lists stay paged."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.errors import InvalidInput, UsageError
from holdfast.outcomes import Retry
from holdfast.store.log import events
from holdfast.store.log.events import NewEvent
from tests.acceptance.hall import NewHoldfast, rows, until_counts


@pytest.fixture(params=["sqlite", "postgres"])
async def hf(request: pytest.FixtureRequest, new_holdfast: NewHoldfast) -> AsyncIterator[Holdfast]:
    """A face on each database."""
    made = new_holdfast(request.param)
    await made.open()
    yield made
    await made.close()


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def holding_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


REFUSED: dict[str, object] = {
    "NUL": "a\0b",
    "NUL in a key": {"a\0b": 1},
    "a lone surrogate": "\ud800",
    "two surrogates in the wrong order": "\udc00\ud800",
    "NaN": math.nan,
    "1e400": json.loads("1e400"),
    "an integer of 140,000 digits": 10**140_000,
    "5,000 deep": nested(5_000),
    "100,000 deep": nested(100_000),
    "what holds itself": holding_itself(),
    "two megabytes": "x" * 2_000_000,
    "200,000 parts": [0] * 200_000,
    "a set": {1},
    "keys that are no text": {1: 2},
}
TAKEN: dict[str, object] = {
    "a negative zero": -0.0,
    "the largest number": 1.7976931348623157e308,
    "the smallest number": 5e-324,
    "more than 64 bits": 2**64,
    "an integer of 400 digits": 10**400,
    "the last of two equal keys": json.loads('{"a": 1, "a": 2}'),
    "keys in their order": {"b": 1, "a": 2, "": 3},
    "odd characters": "\u2028\u2029\ufeff\ufffd\U0010ffff\x01\x7f",
    "quotes and escapes": "\\u0000 \"'\\ {} $1 %s :name ?",
    "60 deep": nested(60),
    "a megabyte, almost": "x" * 1_000_000,
}


def same(one: object, other: object) -> bool:
    """Tell whether two values are equal to the last sign, and in the order of their keys."""
    return repr(one) == repr(other)


@pytest.mark.source("DF-23")
async def test_a_hostile_argument_has_the_same_verdict_on_both_databases_before_any_sql(hf: Holdfast) -> None:
    """F-29, I-06: NUL, surrogates, NaN, huge numbers, depth, size; what is taken comes back to the last sign."""

    @hf.task(name="takes")
    async def takes(values: list[Any]) -> None: ...

    for name, value in REFUSED.items():
        with pytest.raises(InvalidInput):
            await hf.start(takes(values=[value, name]))
    refused = await rows(hf, "SELECT count(*) FROM holdfast_job")
    chains = {name: await hf.start(takes(values=[value])) for name, value in TAKEN.items()}
    found = {name: (await hf.get_job(chain)).input.values[0] for name, chain in chains.items()}

    assert refused == [(0,)]
    assert [name for name, value in TAKEN.items() if not same(found[name], value)] == []


async def test_a_hostile_output_fails_its_own_attempt_and_what_can_be_kept_comes_back(hf: Holdfast) -> None:
    """F-29, I-07: the output of a handler and the result of a phase alike."""

    @hf.task(name="gives", retry=Retry.never())
    async def gives(name: str) -> Any:
        return (REFUSED | TAKEN)[name]

    @hf.task(name="gives_in_a_phase", retry=Retry.never(), phases=["one"])
    async def gives_in_a_phase(ctx: Context, name: str) -> Any:
        async def result() -> Any:
            return (REFUSED | TAKEN)[name]

        return await ctx.phase("one", result)

    calls = [task(name=name) for task in (gives, gives_in_a_phase) for name in REFUSED | TAKEN]
    async with hf.worker(concurrency=20):
        chains = await hf.start_many(calls)
        await until_counts(hf, 30, completed=2 * len(TAKEN), failed=2 * len(REFUSED))

    names = [*REFUSED, *TAKEN] * 2
    found = {index: await hf.get_job(chain) for index, chain in enumerate(chains)}
    wrong = [
        name
        for index, name in enumerate(names)
        if (str(found[index].status) == "completed") is (name in REFUSED)
        or (name in TAKEN and not same(found[index].output, TAKEN[name]))
    ]
    assert wrong == []
    assert {job.error["type"] for job in found.values() if job.error is not None} == {"InvalidOutput"}


@pytest.mark.long
async def test_three_hundred_megabytes_are_refused(hf: Holdfast) -> None:
    """F-29."""

    @hf.task(name="takes")
    async def takes(text: str) -> None: ...

    with pytest.raises(InvalidInput, match="bytes"):
        await hf.start(takes(text="x" * 300_000_000))


def test_a_hundred_thousand_phases_are_refused_when_the_task_is_registered(tmp_path: Any) -> None:
    """F-30: with the number that is allowed."""
    hf = Holdfast(str(tmp_path / "jobs.db"))

    with pytest.raises(UsageError, match="at most 1000"):

        @hf.task(name="many", phases=[f"phase-{n}" for n in range(100_000)])
        async def many(ctx: Context) -> None: ...


@pytest.mark.long
async def test_a_chain_of_hundreds_of_jobs_and_a_job_of_many_events_are_read_by_pages_and_deleted(
    hf: Holdfast,
) -> None:
    """F-30: nothing that is read or shown grows with them."""
    length, told = 600, 100_000

    @hf.task(name="step")
    async def step(ctx: Context, n: int) -> int:
        return ctx.continue_with(step(n=n + 1)) if n < length else n

    async with hf.worker(concurrency=1):
        chain = await hf.start(step(n=1))
        assert await chain.result(timeout=60) == length
    ((seq,),) = await rows(hf, "SELECT seq FROM holdfast_job WHERE id = :id", id=str(chain.id))
    for _ in range(told // 1000):
        await hf.store.run(events.append, [NewEvent(seq, "job:progress")] * 1000)

    of_chain = await hf.list_chain_jobs(chain, limit=500)
    more = await hf.list_chain_jobs(chain, limit=500, cursor=of_chain.next_cursor)
    timeline = await hf.timeline(chain, limit=500)
    with pytest.raises(UsageError):
        await hf.timeline(chain, limit=501)
    await hf.delete(chain)

    assert [len(of_chain.items), len(more.items), len(timeline.items)] == [500, 100, 500]
    assert more.items[0].chain_index == 500
    assert timeline.next_cursor is not None
    assert await rows(hf, "SELECT count(*) FROM holdfast_job") == [(0,)]
    assert await rows(hf, "SELECT count(*) FROM holdfast_event WHERE name = 'job:progress'") == [(0,)]


@pytest.mark.parametrize("attempt", [10**9, 2**31 + 5, 2**52])
async def test_a_job_at_its_billionth_attempt_is_tried_again_as_ever(hf: Holdfast, attempt: int) -> None:
    """F-42, I-10, I-41: its number grows by one each time, and it waits no longer than any other."""
    ran: list[int] = []

    @hf.task(name="tries", retry=Retry(attempts=None, first=0.01, maximum=0.05))
    async def tries(ctx: Context) -> None:
        ran.append(ctx.job.attempt)
        if len(ran) == 1:
            raise ValueError("once")

    async def edit(tx: Any) -> None:
        await tx.execute("UPDATE holdfast_job SET attempt = :attempt, used = :attempt", attempt=attempt)

    chain = await hf.start(tries())
    await hf.store.run(edit)
    async with hf.worker(poll=0.05):
        await chain.result(timeout=10)

    job = await hf.get_job(chain)
    assert ran == [attempt + 1, attempt + 2]
    assert (job.attempt, job.used) == (attempt + 2, attempt + 2)
