"""Listeners: called for what happens from `open()` on, in every process, each by itself; none harms another."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from holdfast import Event, Holdfast, InvalidInput, JobEvent
from holdfast.errors import Unavailable
from holdfast.events import listeners
from holdfast.events.feed import Follower
from holdfast.store.log import reading
from holdfast.tasks.decoder import Decoder
from tests.feed.streams import become_another, is_at_rest
from tests.feed.test_following import has_noticed
from tests.store import engine
from tests.support.conditions import until
from tests.support.factories import TASKS, greet
from tests.support.log_lines import name_of, named
from tests.support.ways import Way

NewHoldfast = Callable[..., Holdfast]


@pytest.fixture
def hf(database: str, new_holdfast: NewHoldfast) -> Holdfast:
    """A face that is not open yet."""
    return new_holdfast(database, tasks=[TASKS])


@pytest.mark.source("PQ-42")
async def test_plain_and_async_listeners_are_called_from_open_on(hf: Holdfast) -> None:
    called: list[tuple[str, str, str]] = []

    @hf.on("job:enqueued")
    def plainly(event: JobEvent) -> None:
        called.append(("plainly", event.job.input.name, threading.current_thread().name))

    @hf.on("job:enqueued", "job:cancelled")
    async def in_the_loop(event: JobEvent) -> None:
        called.append((event.name, event.job.input.name, threading.current_thread().name))

    hf.sync.start(greet(name="before"))
    async with hf:
        chain = await hf.start(greet(name="Ada"))
        await until(lambda: len(called) == 2, "both are called")
        await hf.cancel(chain)
        await until(lambda: len(called) == 3, "the one that wants it is called")

    assert sorted(called[:2]) == [
        ("job:enqueued", "Ada", "MainThread"),
        ("plainly", "Ada", "holdfast-listener"),
    ]
    assert called[2] == ("job:cancelled", "Ada", "MainThread")


async def test_a_function_is_still_what_it_was(hf: Holdfast) -> None:
    def listen(event: Event) -> str:
        return event.name

    assert hf.on("lane:paused")(listen) is listen


@pytest.mark.source("PQ-65")
async def test_a_name_that_no_event_has_is_refused(hf: Holdfast) -> None:
    with pytest.raises(InvalidInput, match="no event is called 'job:complete'; did you mean job:completed"):
        hf.on("job:complete")  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="is not a function"):
        hf.on("job:completed")("not a function")  # type: ignore[type-var]


@pytest.mark.source("JC-67")
async def test_an_error_of_a_listener_is_logged_by_its_name_and_ends_nothing(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []

    @hf.on("job:enqueued")
    def clumsy(event: JobEvent) -> None:
        called.append(f"clumsy {event.job.input.name}")
        raise ZeroDivisionError

    @hf.on("job:enqueued")
    async def leaving(event: JobEvent) -> None:
        called.append(f"leaving {event.job.input.name}")
        sys.exit(3)

    @hf.on("job:enqueued")
    async def giving_up(event: JobEvent) -> None:
        called.append(f"giving up {event.job.input.name}")
        raise asyncio.CancelledError

    class Unusual(BaseException):
        pass

    @hf.on("job:enqueued")
    def unusual(event: JobEvent) -> None:
        called.append(f"unusual {event.job.input.name}")
        raise Unusual

    @hf.on("job:enqueued")
    async def unusual_too(event: JobEvent) -> None:
        called.append(f"unusual too {event.job.input.name}")
        raise Unusual

    @hf.on("job:enqueued")
    async def sound(event: JobEvent) -> None:
        called.append(f"sound {event.job.input.name}")

    async with hf:
        for name in ("Ada", "Bob"):
            await hf.start(greet(name=name))
        await until(lambda: len(called) == 12, "all are called for both")

    failed = named(caplog, "listener_failed")
    names = {each.listener.rpartition(".")[2] for each in failed}  # type: ignore[attr-defined]
    assert names == {"clumsy", "giving_up", "leaving", "unusual", "unusual_too"}
    assert {each.heard for each in failed} == {"job:enqueued"}  # type: ignore[attr-defined]
    assert len(failed) == 10


async def test_a_slow_listener_delays_nobody(hf: Holdfast) -> None:
    go_on = threading.Event()
    called: list[str] = []

    @hf.on("job:enqueued")
    def slow(event: JobEvent) -> None:
        go_on.wait(20)
        called.append("slow")

    @hf.on("job:enqueued")
    async def asleep(event: JobEvent) -> None:
        await asyncio.to_thread(go_on.wait, 20)
        called.append("asleep")

    @hf.on("job:enqueued")
    def quick(event: JobEvent) -> None:
        called.append("quick")

    async with hf:
        await hf.start_many([greet(name="Ada")] * 3)
        await until(lambda: called == ["quick"] * 3, "the quick one is called for all")
        go_on.set()
        await until(lambda: len(called) == 9, "the others follow")


async def test_a_listener_that_comes_later_is_called_and_one_that_goes_is_not(hf: Holdfast) -> None:
    called: list[str] = []
    kinds: dict[str, Any] = {}

    async with hf:
        await hf.start(greet(name="before"))

        @hf.on("job:enqueued")
        def plainly(event: JobEvent) -> None:
            called.append(f"plainly {event.job.input.name}")

        @hf.sync.on("job:enqueued")
        async def in_the_loop(event: JobEvent) -> None:
            called.append(f"in the loop {event.job.input.name}")

        kinds |= {"plainly": plainly, "in the loop": in_the_loop}
        await until(lambda: have_joined(hf, 2), "both have joined")
        await hf.start(greet(name="Ada"))
        await until(lambda: sorted(called) == ["in the loop Ada", "plainly Ada"], "both are called")

        hf.off(plainly)
        await hf.start(greet(name="Bob"))
        await until(lambda: "in the loop Bob" in called, "the one that stays is called")
        hf.sync.off(in_the_loop)
        await hf.start(greet(name="Eve"))
        with pytest.raises(InvalidInput, match="is not a listener"):
            hf.off(plainly)

    assert "plainly Bob" not in called
    assert not [each for each in called if "Eve" in each]


def have_joined(hf: Holdfast, number: int) -> bool:
    found = followers(hf)
    return len(found) == number and all(each.has_joined for each in found)


def followers(hf: Holdfast) -> list[Follower]:
    return [each._follower for each in hf._listeners._calling.values()]  # type: ignore[attr-defined]


async def test_listeners_run_again_after_hf_was_closed_and_opened(hf: Holdfast) -> None:
    called: list[str] = []

    @hf.on("job:enqueued")
    async def listen(event: JobEvent) -> None:
        called.append(event.job.input.name)

    for name in ("Ada", "Bob"):
        async with hf:
            await hf.open()  # again changes nothing
            await hf.start(greet(name=name))
            await until(lambda: called[-1:] == [name], "it is called")  # noqa: B023 - called in the loop itself
        hf.sync.start(greet(name="in between"))
        hf.sync.close()

    assert called == ["Ada", "Bob"]


async def test_to_close_leaves_no_thread_and_no_task_behind(new_threads: Callable[[], set[str]], hf: Holdfast) -> None:
    @hf.on("job:enqueued")
    def plainly(event: JobEvent) -> None: ...

    @hf.on("job:enqueued")
    async def in_the_loop(event: JobEvent) -> None: ...

    async with hf:
        await until(lambda: is_at_rest(hf), "the feed is at rest")

    await until(lambda: "holdfast-listener" not in new_threads(), "no thread is left")
    assert not [task for task in asyncio.all_tasks() if "listener" in task.get_name()]


async def test_a_call_under_way_is_waited_for_when_hf_closes(hf: Holdfast) -> None:
    ended: list[str] = []
    begun = threading.Barrier(3)

    @hf.on("job:enqueued")
    def plainly(event: JobEvent) -> None:
        begun.wait(10)
        ended.append("plainly")

    @hf.on("job:enqueued")
    async def in_the_loop(event: JobEvent) -> None:
        await asyncio.to_thread(begun.wait, 10)
        ended.append("in the loop")

    async with hf:
        await hf.start(greet(name="Ada"))
        await until(lambda: begun.n_waiting == 2, "both are called")
        await asyncio.to_thread(begun.wait, 10)

    assert sorted(ended) == ["in the loop", "plainly"]


async def test_a_call_that_does_not_end_holds_up_a_close_for_a_while_only(
    new_threads: Callable[[], set[str]], hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listeners, "GRACE_SECONDS", 0.1)
    go_on, begun, begun_too, cancelled = threading.Event(), threading.Event(), asyncio.Event(), asyncio.Event()

    @hf.on("job:enqueued")
    def stuck(event: JobEvent) -> None:
        begun.set()
        go_on.wait(20)

    @hf.on("job:enqueued")
    async def stuck_too(event: JobEvent) -> None:
        begun_too.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with hf:
        await hf.start(greet(name="Ada"))
        await until(lambda: begun.is_set() and begun_too.is_set(), "both are called")

    assert cancelled.is_set()
    said = sorted(name_of(each) for each in caplog.records if each.name == "holdfast.events.listeners")
    assert said == ["listener_cancelled", "listener_still_runs"]
    go_on.set()
    await until(lambda: "holdfast-listener" not in new_threads(), "it ends by itself")


async def test_calls_that_do_not_end_hold_up_a_close_together_as_long_as_one(
    new_threads: Callable[[], set[str]], hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listeners, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(listeners, "CANCEL_SECONDS", 0.1)
    go_on, begun, begun_too = threading.Event(), threading.Barrier(11), asyncio.Event()

    def stuck(event: JobEvent) -> None:
        begun.wait(20)
        go_on.wait(20)

    for _ in range(10):
        hf.on("job:enqueued")(stuck)

    @hf.on("job:enqueued")
    async def stubborn(event: JobEvent) -> None:
        begun_too.set()
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    await hf.open()
    await hf.start(greet(name="Ada"))
    await asyncio.to_thread(begun.wait, 20)
    await until(begun_too.is_set, "the async one is called, too")
    began = time.monotonic()
    await hf.close()

    assert time.monotonic() - began < 3  # one after the other they would have taken 5 seconds, or for ever
    said = sorted(name_of(each) for each in caplog.records if each.name == "holdfast.events.listeners")
    assert said == ["listener_cancelled", *["listener_still_runs"] * 11]
    go_on.set()
    await until(lambda: "holdfast-listener" not in new_threads(), "they end by themselves")


@pytest.mark.parametrize("colour", ["plain", "async"])
async def test_a_listener_may_close_hf_itself(hf: Holdfast, colour: str) -> None:
    closed = threading.Event()

    def plainly(event: JobEvent) -> None:
        hf.sync.close()
        closed.set()

    async def in_the_loop(event: JobEvent) -> None:
        await hf.close()
        closed.set()

    hf.on("job:enqueued")(plainly if colour == "plain" else in_the_loop)
    await hf.open()
    await hf.start(greet(name="Ada"))

    await until(closed.is_set, "it has closed hf")


def test_without_a_loop_async_listeners_have_one_of_their_own(database: str, new_holdfast: NewHoldfast) -> None:
    hf = new_holdfast(database, tasks=[TASKS])
    loops: list[asyncio.AbstractEventLoop] = []
    done = threading.Event()

    @hf.on("job:enqueued")
    async def listen(event: JobEvent) -> None:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        if len(loops) == 2:
            done.set()

    with hf.sync:
        hf.sync.start(greet(name="Ada"))
        hf.sync.start(greet(name="Bob"))
        assert done.wait(10)

    assert loops[0] is loops[1]
    assert loops[0].is_closed()


async def test_a_listener_goes_on_when_the_database_has_failed_over(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []
    monkeypatch.setattr(listeners, "TROUBLE_SECONDS", 0.01)
    hf.on("job:enqueued")(lambda event: called.append(f"plainly {event.job.input.name}"))

    @hf.on("job:enqueued")
    async def in_the_loop(event: JobEvent) -> None:
        called.append(f"in the loop {event.job.input.name}")

    async with hf:
        await until(lambda: is_at_rest(hf), "the feed is at rest")
        before = followers(hf)
        await become_another(hf)
        await hf.start(greet(name="perhaps lost"))
        await until(lambda: len(missed(caplog)) == 2, "both have noticed")
        await until(lambda: not set(before) & set(followers(hf)) and have_joined(hf, 2), "both have joined anew")
        await hf.start(greet(name="Ada"))

        await until(lambda: {"in the loop Ada", "plainly Ada"} <= set(called), "both go on")


def missed(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return named(caplog, "listener_missed_events")


async def test_a_store_that_is_away_for_a_while_ends_no_listener(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    since = reading.since
    is_away = False

    async def sometimes(tx: Any, cursor: Any, most: int) -> Any:
        if is_away:
            raise Unavailable("the database cannot be reached; try again")
        return await since(tx, cursor, most)

    monkeypatch.setattr(reading, "since", sometimes)
    monkeypatch.setattr("holdfast.events.poller.TROUBLE_SECONDS", 0.02)
    hf.on("job:enqueued")(lambda event: called.append(event.job.input.name))
    async with hf:
        is_away = True
        await until(partial(has_noticed, Way(hf, is_async=True)), "the feed has noticed")
        is_away = False
        await hf.start(greet(name="Bob"))

        await until(lambda: called[-1:] == ["Bob"], "it is called")
    assert called.count("Ada") == len(called) - 1


async def test_an_open_that_fails_leaves_no_listener_behind_that_the_next_one_does_not_begin(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: set[str] = set()
    now, is_away = reading.now, True

    async def sometimes(tx: Any) -> Any:
        if is_away:
            raise Unavailable("the database cannot be reached; try again")
        return await now(tx)

    monkeypatch.setattr(reading, "now", sometimes)
    hf.on("job:enqueued")(lambda event: called.add("plainly"))

    @hf.on("job:enqueued")
    async def in_the_loop(event: JobEvent) -> None:
        called.add("in the loop")

    with pytest.raises(Unavailable):
        await hf.open()
    is_away = False
    async with hf:
        await hf.start(greet(name="Ada"))

        await until(lambda: called == {"plainly", "in the loop"}, "both are called")


async def test_an_event_that_cannot_be_read_is_passed_over(
    database: str, new_holdfast: NewHoldfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: set[str] = set()
    values_of = Decoder.values

    def picky(typed: Decoder, task: str, text: str, output: str | None) -> tuple[Any, Any]:
        assert "Ada" not in text
        return values_of(typed, task, text, output)

    monkeypatch.setattr(Decoder, "values", picky)
    monkeypatch.setattr(listeners, "TROUBLE_SECONDS", 0.02)
    hf = new_holdfast(database, tasks=[TASKS])
    hf.on("job:enqueued")(lambda event: called.add(f"plainly {event.job.input.name}"))

    @hf.on("job:enqueued")
    async def in_the_loop(event: JobEvent) -> None:
        called.add(f"in the loop {event.job.input.name}")

    async with hf:
        await hf.start(greet(name="Ada"))
        await hf.start(greet(name="Bob"))

        await until(lambda: called == {"plainly Bob", "in the loop Bob"}, "both are called for the next one")


@pytest.mark.source("PQ-42")
async def test_what_a_worker_elsewhere_does_is_heard_here(database: str, new_holdfast: NewHoldfast) -> None:
    here, there = new_holdfast(database, tasks=[TASKS]), new_holdfast(database, tasks=[TASKS])
    called: list[tuple[str, Any]] = []

    @here.on("job:completed")
    async def listen(event: JobEvent) -> None:
        called.append((event.name, event.job.output))

    async with here, there:
        await there.start(greet(name="Ada"))
        await engine.run(Way(there, is_async=True))

        await until(lambda: called == [("job:completed", "Hello")], "it is called")


async def test_objects_and_partials_can_listen(hf: Holdfast) -> None:
    called: list[str] = []

    class Counting:
        async def __call__(self, event: Event) -> None:
            called.append("object")

    async def note(word: str, event: Event) -> None:
        called.append(word)

    hf.on("job:enqueued")(Counting())
    hf.on("job:enqueued")(partial(note, "partial"))
    async with hf:
        await hf.start(greet(name="Ada"))

        await until(lambda: sorted(called) == ["object", "partial"], "both are called")


async def test_two_who_open_at_once_have_a_listener_called_once(hf: Holdfast) -> None:
    called: list[str] = []

    @hf.on("job:enqueued", "job:cancelled")
    def listen(event: JobEvent) -> None:
        called.append(event.name)

    await asyncio.gather(hf.open(), hf.open(), asyncio.to_thread(hf.sync.open))
    chain = await hf.start(greet(name="Ada"))
    await hf.cancel(chain)
    await until(lambda: "job:cancelled" in called, "it is called")
    await hf.close()

    assert called == ["job:enqueued", "job:cancelled"]


def test_a_loop_that_is_gone_is_followed_by_the_next_one(database: str, new_holdfast: NewHoldfast) -> None:
    hf = new_holdfast(database, tasks=[TASKS])
    called: list[str] = []

    @hf.on("job:enqueued")
    async def listen(event: JobEvent) -> None:
        called.append(event.job.input.name)

    async def open_and_leave() -> None:
        await hf.open()

    async def come_again() -> None:
        await hf.open()
        await hf.start(greet(name="Ada"))
        await until(lambda: bool(called), "it is called")
        await hf.close()

    asyncio.run(open_and_leave())
    asyncio.run(come_again())

    assert called == ["Ada"]
