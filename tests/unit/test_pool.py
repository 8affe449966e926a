"""The pool of threads: a free thread is used again, no call is lost, and threads end with the pool or with Python."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from concurrent.futures import Future
from pathlib import Path

import pytest

from holdfast.threads import ThreadPool, Threads
from tests.support.processes import forked

CALLS = 3_000
SECONDS = 30.0


def threads_of(pool: ThreadPool) -> list[threading.Thread]:
    """Find the threads of *pool* by its name."""
    return [each for each in threading.enumerate() if each.name.startswith(f"{pool._name}_")]


def test_calls_one_after_the_other_need_one_thread() -> None:
    with ThreadPool(50, "pool-one") as pool:
        results = [pool.submit(abs, -number).result(SECONDS) for number in range(CALLS)]

        assert len(threads_of(pool)) == 1
    assert results == list(range(CALLS))


async def test_awaited_calls_one_after_the_other_need_one_thread() -> None:
    """On Python 3.12 a worker's threads grew with its jobs: 40, 62, 85 after 2,300, 4,400, 6,500 of them."""
    with ThreadPool(50, "pool-awaited") as pool:
        loop = asyncio.get_running_loop()
        results = [await loop.run_in_executor(pool, abs, -number) for number in range(CALLS)]

        assert len(threads_of(pool)) == 1
    assert results == list(range(CALLS))


async def test_calls_beside_a_loop_need_as_many_threads_as_there_are_at_once() -> None:
    threads = Threads(50)

    async def call_often() -> None:
        for _ in range(CALLS // 3):
            await threads.call(int)

    await asyncio.gather(*(call_often() for _ in range(3)))

    assert threads._pool is not None
    assert len(threads_of(threads._pool)) <= 3
    threads.close()


def test_there_are_never_more_threads_than_allowed_and_each_call_runs_once() -> None:
    let_go, ran = threading.Event(), threading.Semaphore(0)

    def call() -> None:
        ran.release()
        assert let_go.wait(SECONDS)

    with ThreadPool(3, "pool-most") as pool:
        futures = [pool.submit(call) for _ in range(20)]
        assert all(ran.acquire(timeout=SECONDS) for _ in range(3))
        assert len(threads_of(pool)) == 3
        assert not ran.acquire(blocking=False)
        let_go.set()
        assert [each.result(SECONDS) for each in futures] == [None] * 20

    assert sum(ran.acquire(blocking=False) for _ in range(100)) == 17
    assert threads_of(pool) == []


def test_what_a_call_raises_is_raised_by_its_future_and_the_thread_goes_on() -> None:
    with ThreadPool(1, "pool-raises") as pool:
        with pytest.raises(SystemExit, match="7"):
            pool.submit(sys.exit, 7).result(SECONDS)
        assert pool.submit(int, "7").result(SECONDS) == 7


class Thing:
    """Something that a call refers to."""


def test_a_thread_that_waits_keeps_nothing_of_its_last_call() -> None:
    thing = Thing()
    gone = threading.Event()
    weakref.finalize(thing, gone.set)

    def fail(_: Thing) -> None:
        raise ZeroDivisionError

    gc.disable()  # what refers to itself in a circle would stay
    try:
        with ThreadPool(1, "pool-keeps") as pool:
            error = pool.submit(fail, thing).exception(SECONDS)
            assert isinstance(error, ZeroDivisionError)
            del error, thing
            assert gone.wait(SECONDS)
    finally:
        gc.enable()


def test_a_shutdown_cancels_what_waits_if_asked_to_and_lets_what_runs_end() -> None:
    begun, let_go = threading.Event(), threading.Event()

    def call() -> bool:
        begun.set()
        return let_go.wait(SECONDS)

    pool = ThreadPool(1, "pool-shut")
    runs, waits = pool.submit(call), pool.submit(int)
    assert begun.wait(SECONDS)
    pool.shutdown(wait=False, cancel_futures=True)
    let_go.set()
    pool.shutdown()

    assert runs.result(0)
    assert waits.cancelled()
    assert threads_of(pool) == []
    with pytest.raises(RuntimeError, match="after the shutdown"):
        pool.submit(int)


def test_a_call_that_was_cancelled_before_a_thread_was_free_never_runs() -> None:
    begun, let_go, ran = threading.Event(), threading.Event(), threading.Event()

    def call() -> bool:
        begun.set()
        return let_go.wait(SECONDS)

    with ThreadPool(1, "pool-cancelled") as pool:
        pool.submit(call)
        assert begun.wait(SECONDS)
        waits: Future[None] = pool.submit(ran.set)
        assert waits.cancel()
        let_go.set()
        assert pool.submit(int, "7").result(SECONDS) == 7

    assert not ran.is_set()


def test_a_pool_that_nobody_refers_to_takes_its_threads_along() -> None:
    pool = ThreadPool(2, "pool-forgotten")
    pool.make_ready()
    (thread,) = threads_of(pool)

    del pool
    gc.collect()
    thread.join(SECONDS)

    assert not thread.is_alive()


AT_EXIT = """
import sys, threading, time
from holdfast.threads import ThreadPool

pool, begun = ThreadPool(1, "at-exit"), threading.Event()

def call() -> None:
    begun.set()
    time.sleep(0.2)
    print("ended", flush=True)

pool.submit(call)
pool.submit(print, "waited", flush=True)
assert begun.wait(10)
ThreadPool(1, "idle").make_ready()
print("exits", flush=True)
"""


def test_python_waits_at_its_exit_for_what_was_submitted_and_for_no_idle_thread(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(AT_EXIT)

    ran = forked.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=60, check=True
    )

    assert (ran.stdout.split(), ran.stderr) == (["exits", "ended", "waited"], "")


AFTER_FORK = """
import asyncio, os, signal, sys, warnings
from holdfast.threads import Threads

warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, on a fork beside threads
threads = Threads()

async def call() -> int:
    return await threads.call(os.getpid)

assert asyncio.run(call()) == os.getpid()
with threads._pool._state.lock:  # as a thread has it for a moment after each call
    child = os.fork()
if child == 0:
    other = Threads()
    other._pool, other._process = threads._pool, threads._process
    threads._pool._state.lock.acquire(blocking=False)
    signal.alarm(20)
    other.close()
    signal.alarm(0)
    assert asyncio.run(call()) == os.getpid()
    print("child", flush=True)
    sys.exit()  # with all that Python does at an exit
assert os.waitpid(child, 0)[1] == 0
assert asyncio.run(call()) == os.getpid()
print("parent", flush=True)
"""


def test_after_a_fork_a_child_calls_in_threads_of_its_own_and_ends_as_any_other(tmp_path: Path) -> None:
    """F-11."""
    (tmp_path / "script.py").write_text(AFTER_FORK)

    ran = forked.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=60, check=True
    )

    assert (ran.stdout.split(), ran.stderr) == (["child", "parent"], "")
