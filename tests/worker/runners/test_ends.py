"""How an attempt ends is the same in every runner: what it is given, returns, raises, and goes on with (Q-09)."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from holdfast import Fail, InvalidOutput, Pause, Reschedule
from tests.support.conditions import GLANCE_SECONDS
from tests.worker.runners.behaviours import SOON, behaviour, stopped
from tests.worker.runners.notes import gate_of, note
from tests.worker.runners.stage import Runner

pytestmark = pytest.mark.asyncio(loop_scope="package")

LAG = timedelta(seconds=5)
"""How much later than its claim a row may say that an attempt began."""


@dataclass
class Item:
    """What is ordered."""

    name: str
    price: Decimal


@dataclass
class Bill:
    """What is to be paid."""

    customer: UUID
    due: datetime
    total: Decimal
    items: list[Item]
    seal: list[int]


@behaviour()
async def bill(ctx: Any, customer: UUID, items: list[Item], due: datetime, seal: bytes, share: float = 0.5) -> Bill:
    """Give the arguments back in another shape."""
    total = sum((item.price for item in items), Decimal(0)) * Decimal(share)
    return Bill(customer, due, total, items, list(seal))


async def test_arguments_and_output_keep_their_types(runner: Runner) -> None:
    customer, due = UUID(int=7), datetime(2026, 11, 15, 12, tzinfo=UTC)
    items = [Item("née \U0001f600", Decimal("1.10")), Item("", Decimal("2.90"))]

    output = await runner.result(bill, customer=customer, items=items, due=due, seal=b"\x00\xff")

    assert output == Bill(customer, due, Decimal("2.00"), items, [0, 255])


@behaviour()
async def where(ctx: Any) -> list[int]:
    """Tell the process and the thread."""
    return [os.getpid(), threading.get_ident()]


async def test_a_handler_runs_where_it_should(runner: Runner) -> None:
    process, thread = await runner.result(where)

    assert (process != os.getpid()) is runner.is_child
    assert (thread == threading.get_ident()) is (runner.name == "loop")


@behaviour(retry=SOON)
async def facts(ctx: Any) -> str:
    """Tell what it knows of its job, in its second attempt."""
    note(ctx, ctx.job.attempt, ctx.idempotency_key)
    if ctx.job.attempt == 1:
        raise OSError("again")
    note(ctx, {name: str(value) for name, value in asdict(ctx.job).items()})
    return str(ctx.idempotency_key)


@pytest.mark.source("PQ-24", "JC-21")
async def test_a_handler_knows_its_job(runner: Runner) -> None:
    chain = await runner.hf.start(runner.call(facts), lane=f"{runner.name} of facts", queue="default")

    key = await runner.output(chain)

    first, second, (told,) = runner.notes(chain)
    assert (first, second) == ([1, key], [2, key])
    assert told == {
        "id": str(chain.id), "chain_id": str(chain.id), "chain_index": "0", "task": f"{runner.name}.facts",
        "queue": "default", "lane": f"{runner.name} of facts", "attempt": "2", "used": "2", "crashes": "0",
        "attempts": "3", "error": told["error"], "last_attempt_at": told["last_attempt_at"],
    }  # fmt: skip


@behaviour(retry=SOON)
async def remember(ctx: Any) -> None:
    """Tell what it knows of the attempts before."""
    error, at = ctx.job.error, ctx.job.last_attempt_at
    note(ctx, error and [error["message"], error["attempt"], error["attributes"]], at and at.isoformat())
    raise Unbuildable(code=ctx.job.attempt)


@pytest.mark.source("JC-17")
async def test_a_handler_knows_the_last_error_and_when_the_last_attempt_began(runner: Runner) -> None:
    chain = await runner.start(remember)

    ended = await runner.ended(chain)

    first, second, third = runner.notes(chain)
    started = [each.at for each in await runner.history(chain, "job:started")]
    assert first == [None, None]
    assert (second[0], third[0]) == (["code 1", 1, {"code": 1}], ["code 2", 2, {"code": 2}])
    assert [datetime.fromisoformat(each) for each in (second[1], third[1])] == pytest.approx(started[:2], abs=LAG)
    assert ended.error["attributes"] == {"code": 3}


@pytest.mark.source("PQ-69", "JC-28")
async def test_a_call_has_a_budget_of_attempts_of_its_own(runner: Runner) -> None:
    once, twice = await runner.hf.start_many(
        [runner.call(remember).options(attempts=1), runner.call(remember).options(attempts=2)]
    )

    ended = [await runner.ended(each) for each in (once, twice)]

    assert [(each.status, each.used, each.attempts, each.reason) for each in ended] == [
        ("failed", 1, 1, "attempts used up"),
        ("failed", 2, 2, "attempts used up"),
    ]


@behaviour(retry=replace(SOON, fail_on=lambda error, job: job.used == 2))
async def hopeless_by_job(ctx: Any) -> None:
    """Raise every time."""
    raise OSError("again")


@pytest.mark.source("PQ-29")
async def test_the_policy_of_a_task_reads_the_job_as_well(runner: Runner) -> None:
    ended = await runner.end(hopeless_by_job)

    assert (ended.status, ended.used, ended.reason) == ("failed", 2, "fatal error")


@behaviour(retry=SOON)
async def flaky(ctx: Any) -> str:
    """Raise in its first attempt."""
    if ctx.job.attempt == 1:
        raise LookupError("no such \x00 page \ud800")
    return "found"


async def test_an_error_is_kept_in_the_history_and_tried_again(runner: Runner) -> None:
    chain = await runner.start(flaky)

    assert await runner.output(chain) == "found"

    (retried,) = await runner.history(chain, "job:retrying")
    error = retried.facts["error"]
    assert (error["type"], error["attempt"]) == ("LookupError", 1)
    assert error["message"].startswith("no such ")
    assert error["message"].isprintable()
    assert 'raise LookupError("no such' in error["traceback"]
    assert (await runner.hf.get_job(chain)).attempt == 2


class Unbuildable(Exception):
    """An error that nobody can make again from its arguments, as a pickle would."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.lock = threading.Lock()


class Mute(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Chatty(Exception):
    """An error with far too much text."""

    def __str__(self) -> str:
        return "x" * 10_000_000


def recur() -> object:
    """Call itself for ever."""
    return recur()


def _raise(error: BaseException) -> Callable[[], object]:
    def act() -> object:
        raise error

    return act


ODD: dict[str, Callable[[], object]] = {
    "KeyboardInterrupt": _raise(KeyboardInterrupt()),
    "SystemExit": _raise(SystemExit(3)),
    "GeneratorExit": _raise(GeneratorExit()),
    "StopIteration": _raise(StopIteration(1)),
    "CancelledError": _raise(asyncio.CancelledError()),
    "MemoryError": _raise(MemoryError()),
    "RecursionError": recur,
    "Unbuildable": _raise(Unbuildable(code=7)),
    "Mute": _raise(Mute()),
    "Chatty": _raise(Chatty()),
}


@behaviour()
async def odd(ctx: Any, kind: str) -> None:
    """Raise what handlers should not."""
    ODD[kind]()


async def test_odd_exceptions_end_their_own_attempt_and_nothing_else(runner: Runner) -> None:
    """F-47."""
    chains = await runner.hf.start_many([runner.call(odd, kind=kind) for kind in ODD])
    await runner.hf.wait(chains, timeout=60)

    ended = [await runner.hf.get_job(chain) for chain in chains]

    raised_in_coroutines = {"StopIteration": "RuntimeError"}  # Python itself makes that of it
    assert [(each.status, each.error["type"]) for each in ended] == [
        ("failed", raised_in_coroutines.get(kind, kind)) for kind in ODD
    ]
    assert [each.crashes for each in ended] == [0] * len(ODD)
    assert max(len(str(each.error)) for each in ended) < 20_000


@behaviour()
async def steer(ctx: Any, way: str) -> None:
    """Raise what says what is to become of the job."""
    match way:
        case "fail":
            raise Fail("no good\x00")
        case "pause":
            raise Pause("look at it")
        case "limited":
            raise Reschedule(after=3600) from OSError("429: slow down")
        case "naive":
            raise Reschedule(at=datetime(2030, 1, 1))  # noqa: DTZ001 - that is the point
        case _:
            raise Reschedule(after=3600)


@pytest.mark.source("JC-38")
async def test_a_rescheduled_job_keeps_the_error_that_put_it_off(runner: Runner) -> None:
    chain = await runner.start(steer, way="limited")

    later = await runner.until_state(chain, "scheduled")

    (rescheduled,) = await runner.history(chain, "job:rescheduled")
    assert (later.error["type"], later.error["message"], later.used) == ("OSError", "429: slow down", 0)
    assert rescheduled.facts["error"] == later.error


@pytest.mark.source("DF-36", "JC-92")
async def test_a_handler_cannot_reschedule_to_a_time_without_a_time_zone(runner: Runner) -> None:
    failed = await runner.ended(await runner.start(steer, way="naive"))

    assert (failed.status, failed.error["type"]) == ("failed", "InvalidInput")
    assert "timezone-aware" in failed.error["message"]


@pytest.mark.source("TQ-15", "TQ-21")
async def test_a_handler_steers_its_job_by_what_it_raises(runner: Runner) -> None:
    failed, paused, later = await runner.hf.start_many(
        [runner.call(steer, way=way) for way in ("fail", "pause", "reschedule")]
    )

    ended = await runner.ended(failed)
    waiting = await runner.until_state(paused, "paused")
    again = await runner.until_state(later, "scheduled")

    assert (ended.status, ended.error["type"], ended.used) == ("failed", "Fail", 1)
    assert (ended.reason or "").startswith("no good")
    assert (waiting.reason, waiting.attempt) == ("look at it", 1)
    assert (again.attempt, again.used) == (1, 0)


def is_hopeless(error: BaseException) -> bool:
    """Tell by an attribute that is only there where the error was raised."""
    return bool(getattr(error, "lock", None))


@behaviour(retry=replace(SOON, fail_on=is_hopeless, pause_on=[LookupError]))
async def classified(ctx: Any, kind: str) -> None:
    """Raise what the task's own policy has words for."""
    raise LookupError("ask somebody") if kind == "lookup" else Unbuildable(code=7)


async def test_the_policy_of_a_task_reads_the_error_itself(runner: Runner) -> None:
    hopeless, lookup = await runner.hf.start_many(
        [runner.call(classified, kind=kind) for kind in ("hopeless", "lookup")]
    )

    failed, paused = await runner.ended(hopeless), await runner.until_state(lookup, "paused")

    assert (failed.status, failed.reason, failed.attempt) == ("failed", "fatal error", 1)
    assert (paused.reason, paused.error["type"], paused.attempt) == ("ask somebody", "LookupError", 1)


@behaviour()
async def give_up(ctx: Any, from_beside: bool) -> str:
    """Say that the job has failed, and go on as if nothing were."""
    if from_beside:
        watching = threading.Thread(target=ctx.fail, args=("over budget",))
        watching.start()
        try:
            await stopped(ctx)
        finally:
            watching.join()
            note(ctx, ctx.abort_reason)
    else:
        ctx.fail("over budget")
    return "all is well"


@pytest.mark.parametrize("from_beside", [False, True], ids=["itself", "beside"])
async def test_a_job_that_its_handler_fails_has_failed_whatever_it_returns(runner: Runner, from_beside: bool) -> None:
    ended = await runner.end(give_up, from_beside=from_beside)

    assert (ended.status, ended.reason, ended.error["type"]) == ("failed", "over budget", "Fail")
    assert runner.notes(ended) == ([["failed"]] if from_beside else [])


@behaviour()
async def last(ctx: Any, n: int) -> str:
    """Tell which job of its chain it is."""
    return f"{ctx.job.chain_index}: {n}"


@behaviour()
async def first(ctx: Any, n: int) -> str:
    """Go on with another job."""
    return ctx.continue_with(last.beside(ctx)(n=n + 1))  # type: ignore[no-any-return]


async def test_a_chain_goes_on(runner: Runner) -> None:
    assert await runner.result(first, n=1) == "1: 2"


@behaviour(retry=SOON)
async def ring(ctx: Any) -> str:
    """Go on with a job that would wait for this very chain, the first time."""
    blockers = [ctx.job.chain_id] if ctx.job.attempt == 1 else []
    return ctx.continue_with(last.beside(ctx)(n=7).options(blockers=blockers))  # type: ignore[no-any-return]


async def test_a_continuation_that_cannot_be_is_tried_again_as_an_error_is(runner: Runner) -> None:
    chain = await runner.start(ring)

    assert await runner.output(chain) == "1: 7"

    (retried,) = await runner.history(chain, "job:retrying")
    assert retried.facts["error"]["type"] == "BlockerCycle"


@behaviour()
async def unfit(ctx: Any, is_of_another_type: bool) -> int:
    """Return what is no output of this task."""
    return "seven" if is_of_another_type else object()  # type: ignore[return-value]


@pytest.mark.source("JC-95")
@pytest.mark.parametrize("is_of_another_type", [False, True])
async def test_an_output_that_cannot_be_stored_fails_the_attempt(runner: Runner, is_of_another_type: bool) -> None:
    ended = await runner.end(unfit, is_of_another_type=is_of_another_type)

    assert (ended.status, ended.error["type"]) == ("failed", InvalidOutput.__name__)


@behaviour()
async def echo(ctx: Any, text: str) -> str:
    """Give the text back."""
    return text[::-1]


async def test_a_megabyte_goes_in_and_comes_out(runner: Runner) -> None:
    text = '\U0001f600né"\\\n' * 80_000  # just below what is allowed

    assert await runner.result(echo, text=text) == text[::-1]


@behaviour()
async def loud(ctx: Any, n: int) -> int:
    """Write to standard output and standard error by every way there is, more than a pipe holds."""
    print("{}" * 50_000)
    print("a line of the handler's own", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os.write(1, b"\x00\xff\n" * 30_000)
    return n


async def test_what_a_handler_prints_is_in_nobodys_way(runner: Runner, number: int) -> None:
    assert await runner.result(loud, n=number) == number


@behaviour()
async def leave_a_thread(ctx: Any) -> str:
    """Return, and leave a thread behind that ends when the test says so."""
    gate, blocking = gate_of(ctx), threading.Event()

    def wait_and_note() -> None:
        while not gate.exists():
            blocking.wait(GLANCE_SECONDS)
        note(ctx, "the thread has ended")

    threading.Thread(target=wait_and_note, daemon=True).start()
    return "returned"


async def test_a_thread_that_a_handler_leaves_behind_holds_nothing_up(runner: Runner) -> None:
    chain = await runner.start(leave_a_thread)

    assert await runner.output(chain) == "returned"
    assert await runner.result(echo, text="next") == "txen"

    runner.open_gate(chain)
    await runner.until_noted(chain, "the thread has ended")


CUSTOMER = contextvars.ContextVar("CUSTOMER", default="nobody")


@behaviour()
async def change_variable(ctx: Any) -> str:
    """Tell who was there before, and set another."""
    before = CUSTOMER.get()
    CUSTOMER.set("Ada")
    return before


@pytest.mark.source("PQ-24")
async def test_a_context_variable_is_of_one_attempt(runner: Runner) -> None:
    assert [await runner.result(change_variable) for _ in range(2)] == ["nobody", "nobody"]


@behaviour()
async def gather(ctx: Any) -> list[str]:
    """Read what the chains gave that the job has waited for."""
    outputs = [f"{each.status} {each.output}" for each in ctx.blockers]
    return [*outputs, ctx.blocker(echo.beside(ctx), 1)]


async def test_the_outputs_of_blockers_are_there(runner: Runner) -> None:
    blockers = await runner.hf.start_many([runner.call(echo, text=text) for text in ("one", "two")])

    chain = await runner.hf.start(runner.call(gather), blockers=blockers)

    assert await runner.output(chain) == ["completed eno", "completed owt", "owt"]
