"""One task runs many handlers as long as none of them waits, and no handler can tell."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import sys
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pydantic
import pytest

from holdfast import ChainFailed, Context, Holdfast, Retry
from holdfast.worker.attempts.attempt import Attempt
from tests.support.conditions import until

COUNT = 30
variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


@pytest.fixture(params=["sqlite", "postgres"])
async def hf(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    made = new_holdfast(request.param)
    await made.open()
    yield made
    await made.close()


async def run_all(hf: Holdfast, calls: list[Any], **options: Any) -> list[Any]:
    """Start *calls*, run a worker until all have ended, and give what they gave."""
    chains = await hf.start_many(calls)
    async with hf.worker(poll=0.1, **options):
        return [await chain.result(timeout=20) for chain in chains]


async def test_handlers_that_wait_for_nothing_share_a_task(hf: Holdfast) -> None:
    tasks: set[int] = set()

    @hf.task
    async def quick(n: int) -> int:
        tasks.add(id(asyncio.current_task()))
        return n

    assert await run_all(hf, [quick(n=n) for n in range(COUNT)]) == list(range(COUNT))

    assert len(tasks) < COUNT / 2


async def test_the_task_of_a_handler_is_the_same_before_and_after_it_waits_and_its_own(hf: Holdfast) -> None:
    seen: list[tuple[int, int]] = []

    @hf.task
    async def slow(n: int) -> None:
        before = asyncio.current_task()
        await asyncio.sleep(0.01)
        seen.append((id(before), id(asyncio.current_task())))
        await asyncio.sleep(0.05)  # all of them live at once, so that no number is used twice

    await run_all(hf, [slow(n=n) for n in range(COUNT)])

    assert all(before == after for before, after in seen)
    assert len({before for before, _ in seen}) == COUNT


async def test_what_a_handler_sets_in_context_variables_no_other_sees(hf: Holdfast) -> None:
    @hf.task
    async def sets(n: int, waits: bool) -> int:
        found = variable.get()
        variable.set(n)
        if waits:
            await asyncio.sleep(0)
            assert variable.get() == n
        return found

    variable.set(7)
    given = await run_all(hf, [sets(n=n + 10, waits=n % 3 == 0) for n in range(COUNT)])

    assert given == [7] * COUNT


async def test_a_task_that_somebody_has_kept_is_used_for_no_other_handler(hf: Holdfast) -> None:
    kept: list[asyncio.Task[Any]] = []
    shared: list[int] = []

    @hf.task
    async def keeps(n: int) -> int:
        me = asyncio.current_task()
        assert me is not None
        if n == 0:
            kept.append(me)
        elif me in kept:
            shared.append(n)
        for each in kept[: n == COUNT - 1]:
            each.cancel()
        return n

    assert await run_all(hf, [keeps(n=n) for n in range(COUNT)]) == list(range(COUNT))
    assert (len(kept), shared) == (1, [])


async def test_a_handler_that_cancels_its_own_task_and_returns_harms_no_other(hf: Holdfast) -> None:
    @hf.task
    async def cancels(n: int) -> int:
        if n % 2:
            me = asyncio.current_task()
            assert me is not None
            me.cancel()
        return n

    assert await run_all(hf, [cancels(n=n) for n in range(COUNT)]) == list(range(COUNT))


async def test_a_handler_that_cancels_its_own_task_and_waits_is_cancelled_alone(hf: Holdfast) -> None:
    caught: list[int] = []

    @hf.task
    async def cancels(n: int) -> int:
        if n == 3:
            me = asyncio.current_task()
            assert me is not None
            me.cancel()
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                caught.append(n)
                me.uncancel()
        return n

    assert await run_all(hf, [cancels(n=n) for n in range(COUNT)]) == list(range(COUNT))
    assert caught == [3]


async def test_a_cancel_reaches_a_handler_that_waits_since_its_first_step(hf: Holdfast) -> None:
    begun = asyncio.Event()
    ended: list[str] = []

    @hf.task
    async def waits() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("finally")

    chain = await hf.start(waits())
    async with hf.worker(poll=0.1):
        await begun.wait()
        await hf.cancel(chain)
        await until(lambda: bool(ended), "the handler was cancelled")

    assert (await hf.get_job(chain)).status == "cancelled"


async def test_a_time_out_counts_from_the_beginning(hf: Holdfast) -> None:
    @hf.task(timeout=0.2, retry=Retry.never())
    async def slow() -> None:
        await asyncio.sleep(20)

    @hf.task(timeout=0.2)
    async def quick() -> str:
        return "in time"

    failing, fine = await hf.start_many([slow(), quick()])
    async with hf.worker(poll=0.1):
        assert await fine.result(timeout=20) == "in time"
        with pytest.raises(ChainFailed, match=r"not done within 0\.2 s"):
            await failing.result(timeout=20)


async def test_errors_in_the_first_step_end_their_own_attempt_only(hf: Holdfast) -> None:
    @hf.task(retry=Retry.never())
    async def fails(n: int) -> int:
        if n == 5:
            raise ValueError("five")
        if n == 6:
            raise asyncio.CancelledError
        if n == 7:
            raise SystemExit(3)
        return n

    chains = await hf.start_many([fails(n=n) for n in range(10)])
    async with hf.worker(poll=0.1):
        for n, chain in enumerate(chains):
            if n in (5, 6, 7):
                with pytest.raises(ChainFailed):
                    await chain.result(timeout=20)
            else:
                assert await chain.result(timeout=20) == n


async def test_what_a_handler_leaves_behind_in_its_first_step_goes_on(hf: Holdfast) -> None:
    done: list[int] = []
    kept: set[asyncio.Task[None]] = set()

    async def later(n: int) -> None:
        await asyncio.sleep(0.01)
        done.append(n)

    @hf.task
    async def leaves(n: int) -> int:
        task = asyncio.create_task(later(n))
        kept.add(task)
        task.add_done_callback(kept.discard)
        return n

    await run_all(hf, [leaves(n=n) for n in range(COUNT)])
    await until(lambda: len(done) == COUNT, "all went on")


async def test_a_context_that_was_kept_says_that_it_is_over(hf: Holdfast) -> None:
    kept: list[Context] = []

    @hf.task
    async def keeps(ctx: Context) -> str:
        kept.append(ctx)
        return ctx.idempotency_key

    (key,) = await run_all(hf, [keeps()])

    assert kept[0].idempotency_key == key == str(kept[0].job.id)
    kept[0].progress(50)  # goes nowhere, and is kept by nobody
    assert kept[0].abort_reason is None


async def test_a_wrapped_handler_may_give_something_else_than_a_coroutine(hf: Holdfast) -> None:
    class Later:
        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            return 5

    async def wrapped() -> int:
        return 1

    task = hf.task(name="wrapped")(wrapped)
    object.__setattr__(task, "function", Later)

    assert await run_all(hf, [task()]) == [5]


async def test_handlers_of_the_first_step_leave_no_garbage_behind(hf: Holdfast) -> None:
    @hf.task
    async def quick(n: int) -> None:
        pass

    await run_all(hf, [quick(n=n) for n in range(COUNT)])

    gc.collect()
    # by type(): isinstance() would wake the lazy objects of libraries that other tests have imported
    attempts = [each for each in gc.get_objects() if issubclass(type(each), Attempt) and each.task is quick]
    assert attempts == []


async def test_an_output_that_cannot_be_stored_does_not_get_into_the_traceback(hf: Holdfast) -> None:
    @hf.task(retry=Retry.never())
    async def says_too_much() -> str:
        return "secret " * 200_000

    chain = await hf.start(says_too_much())
    async with hf.worker(poll=0.1):
        with pytest.raises(ChainFailed):
            await chain.result(timeout=20)

    error: Any = (await hf.get_job(chain)).error
    assert error["type"] == "InvalidOutput"
    assert "secret" not in error["traceback"]
    assert "InvalidOutput" in error["traceback"]


async def test_a_value_that_raises_when_it_is_looked_at_ends_its_own_attempt_only(hf: Holdfast) -> None:
    class Lazy:
        """As Django's SimpleLazyObject, whose set-up fails."""

        @property
        def __class__(self) -> Any:
            raise LookupError("it cannot be made")

    class Odd(Exception):
        @property
        def __class__(self) -> Any:
            raise LookupError("nor asked")

    @hf.task(retry=Retry.never())
    async def odd(n: int) -> Any:
        if n == 1:
            return Lazy()
        if n == 2:
            raise Odd
        return n

    chains = await hf.start_many([odd(n=n) for n in range(5)])
    async with hf.worker(poll=0.1) as worker:
        for n, chain in enumerate(chains):
            if n in (1, 2):
                with pytest.raises(ChainFailed):
                    await chain.result(timeout=20)
            else:
                assert await chain.result(timeout=20) == n
        assert not worker.ended.done()


class Incomparable:
    """As an array of numpy's."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("make", [dict, Incomparable], ids=["equal values", "values that cannot be compared"])
async def test_context_variables_are_told_apart_by_identity(hf: Holdfast, make: Callable[[], object]) -> None:
    found: contextvars.ContextVar[object] = contextvars.ContextVar("found")
    first = make()
    found.set(first)

    @hf.task
    async def sets(n: int) -> bool:
        is_first = found.get() is first
        found.set(make())
        return is_first

    assert await run_all(hf, [sets(n=n) for n in range(COUNT)]) == [True] * COUNT


async def test_what_a_handler_leaves_on_its_task_reaches_no_other(hf: Holdfast) -> None:
    left: list[int] = []
    called: list[int] = []
    known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    @hf.task
    async def leaves(n: int) -> list[Any]:
        me: Any = asyncio.current_task()
        found = [known.get(me), me.get_name() == "mine"]
        match n % 4:
            case 0:
                left.append(n)
                me.add_done_callback(lambda _: called.append(n))
            case 1:
                me.cancel()
                me.uncancel()
            case 2:
                known[me] = n
            case 3:
                me.set_name("mine")
        return found

    @hf.task(retry=Retry.never())
    async def waits() -> None:
        await asyncio.sleep(0)
        await until(lambda: called == left, "what was to be called at the end of a handler was", 5)

    chains = await hf.start_many([call for n in range(COUNT) for call in (leaves(n=n), waits())])
    async with hf.worker(poll=0.1, concurrency=1):
        given = [await chain.result(timeout=20) for chain in chains]

    assert given[::2] == [[None, False]] * COUNT
    assert all([(await hf.get_job(chain)).attempt == 1 for chain in chains])


@pytest.mark.parametrize("kind", ["async", "plain", "middleware"])
async def test_a_task_that_cannot_be_made_holds_no_job_and_no_slot(hf: Holdfast, kind: str) -> None:
    loop, broken = asyncio.get_running_loop(), list[str]()

    def make(loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        if coroutine.__qualname__ in ("Executor._run", "Executor._run_queues") and len(broken) < 2:
            broken.append(kind)
            raise TypeError("got an unexpected keyword argument 'context'")
        return asyncio.Task(coroutine, loop=loop, **options)

    async def quick(n: int) -> int:
        return n

    def plain(n: int) -> int:
        return n

    task = hf.task(name="begins", middleware=[passes] if kind == "middleware" else [])
    begins: Any = task(plain if kind == "plain" else quick)
    loop.set_task_factory(make)
    try:
        assert await run_all(hf, [begins(n=n) for n in range(5)], concurrency=2) == list(range(5))
    finally:
        loop.set_task_factory(None)
    assert len(broken) == 2


async def passes(ctx: Any, call: Any) -> Any:
    return await call()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_tasks_that_begin_at_once_make_no_difference(hf: Holdfast) -> None:
    depth: list[int] = []

    @hf.task
    async def quick(n: int) -> int:
        depth.append(len(inspect.stack(0)))
        return n

    @hf.task
    async def slow(n: int) -> int:
        depth.append(len(inspect.stack(0)))
        await asyncio.sleep(0.01)
        return n

    @hf.task
    def plain(n: int) -> int:
        return n

    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
    try:
        calls = [call for n in range(COUNT) for call in (quick(n=n), slow(n=n), plain(n=n))]
        assert await run_all(hf, calls) == [n for n in range(COUNT) for _ in range(3)]
    finally:
        loop.set_task_factory(None)
    assert max(depth) < min(depth) + COUNT  # runners are not nested, one for each handler that waits


async def test_what_raises_stop_iteration_before_the_handler_has_not_completed_the_job(hf: Holdfast) -> None:
    known, ran = [1], list[int]()

    def must_be_known(value: int) -> int:
        return next(each for each in known if each == value)

    @hf.task(retry=Retry.never())
    async def checks(n: Annotated[int, pydantic.AfterValidator(must_be_known)]) -> None:
        ran.append(n)

    chain = await hf.start(checks(n=1))
    known.clear()
    async with hf.worker(poll=0.1):
        with pytest.raises(ChainFailed):
            await chain.result(timeout=20)

    job = await hf.get_job(chain)
    assert (job.status, job.error["type"], ran) == ("failed", "StopIteration", [])


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, KeyboardInterrupt])
async def test_whatever_a_retry_policy_raises_fails_its_own_job_only(
    hf: Holdfast, error: type[BaseException], waits: bool
) -> None:
    def predicate(_: BaseException) -> bool:
        raise error

    @hf.task(retry=Retry(retry_on=predicate))
    async def raises() -> None:
        if waits:
            await asyncio.sleep(0)
        raise OSError

    @hf.task
    async def quick(n: int) -> int:
        return n

    chain = await hf.start(raises())
    async with hf.worker(poll=0.1, concurrency=1):
        with pytest.raises(ChainFailed):
            await chain.result(timeout=20)
        assert await (await hf.start(quick(n=1))).result(timeout=20) == 1

    assert (await hf.get_job(chain)).reason == "the retry policy itself raised"


async def test_a_block_that_is_never_left_keeps_no_slot_of_a_handler_that_is_cancelled(hf: Holdfast) -> None:
    kept: list[Any] = []

    @hf.task(retry=Retry.never())
    async def leaves_open(ctx: Context) -> None:
        async def opened() -> AsyncIterator[Any]:
            async with ctx.complete() as tx:
                yield tx

        kept.append(opened())
        await anext(kept[0])
        me = asyncio.current_task()
        assert me is not None
        me.cancel()

    @hf.task
    async def quick(n: int) -> int:
        return n

    chain = await hf.start(leaves_open())
    async with hf.worker(poll=0.1, concurrency=1, grace=1):
        with pytest.raises(ChainFailed):
            await chain.result(timeout=20)
        assert await (await hf.start(quick(n=1))).result(timeout=20) == 1
