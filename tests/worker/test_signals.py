"""Signals reach the main thread, whatever else runs in the process, and the processes that our threads start."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Event, Holdfast, Tasks
from holdfast.retention import Stage
from holdfast.runtime import Runtime
from holdfast.signals import BLOCKED, program_signals, with_signals_blocked
from holdfast.threads import SLICE_SECONDS, SlicedEvent, StepThread, Threads, in_slices
from holdfast.worker.upkeep.hooks import BlockingHooks, ChainHooks
from tests.support.conditions import until

OF_DATABASE = {"sqlite": "holdfast-call", "postgres": "holdfast-deadlines"}
UNSTOPPABLE = {signal.SIGKILL, signal.SIGSTOP}
PATIENCE = 10.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the masks of threads in /proc")

tasks = Tasks()
how: dict[str, Callable[[], Any]] = {}


@tasks.task(name="plain")
def plain() -> Any:
    """Do what the test wants, in the thread of a plain handler."""
    return how["plain"]()


@tasks.task(name="in-loop")
async def in_loop() -> None:
    """Run in the event loop."""


def masked(thread_id: int | None) -> set[int]:
    """Read which signals a thread of this process blocks."""
    status = Path(f"/proc/self/task/{thread_id}/status").read_text()
    (mask,) = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk")]
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def masks_of(threads: set[threading.Thread]) -> dict[str, set[int]]:
    return {each.name: masked(each.native_id) for each in threads if each.is_alive()}


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_every_thread_of_the_engine_blocks_signals(new_holdfast: Callable[..., Holdfast], database: str) -> None:
    how["plain"] = lambda: None
    before = set(threading.enumerate())
    hf = new_holdfast(database, tasks=[tasks])
    heard: list[str] = []
    hf.on("job:completed")(lambda event: heard.append(event.name))

    async with hf, hf.worker(), hf.events() as events:
        chains = await hf.start_many([plain(), in_loop()])
        await hf.wait(chains, timeout=PATIENCE)
        await asyncio.to_thread(hf.sync.wait, chains, timeout=PATIENCE)
        await anext(events)
        await until(lambda: len(heard) == 2, "the listener has heard of both jobs")
        ours = {each for each in set(threading.enumerate()) - before if each.name.startswith("holdfast")}
        quiet = {each for each in ours if not each.name.startswith("holdfast-handler")}

        await until(  # a listener's thread lets signals in while it calls
            lambda: all(mask >= BLOCKED - UNSTOPPABLE for mask in masks_of(quiet).values()),
            "all threads block signals",
        )

        names = {each.name.split("_")[0] for each in quiet}
        assert {"holdfast-leases", "holdfast-fence", "holdfast-hints", "holdfast-listener"} <= names
        assert OF_DATABASE[database] in names
        assert all(mask == masked(threading.main_thread().native_id) for mask in masks_of(ours - quiet).values())
        assert ours - quiet


def die_of(process: subprocess.Popen[bytes], number: int) -> int:
    """Send a signal, and tell how the process has ended."""
    with process:
        try:
            process.send_signal(number)
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def subprocesses() -> list[int]:
    """Start processes, and tell how each ends that is sent a signal."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    return [die_of(subprocess.Popen(["sleep", "60"]), each) for each in numbers]


def fork() -> list[int]:
    """The same by fork and exec."""
    codes = []
    for number in (signal.SIGTERM, signal.SIGQUIT):
        gone, here = os.pipe()  # both are closed by exec
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads are what this is about
            child = os.fork()
        if child == 0:
            os.execvp("sleep", ["sleep", "60"])
        os.close(here)
        assert os.read(gone, 1) == b"", "the end comes with exec: before it, a handler of this process would take it"
        os.close(gone)
        os.kill(child, number)
        codes.append(_exit_code(child))
    return codes


def _exit_code(child: int) -> int:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        threading.Event().wait(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child does not heed the signal")


KILLED = [-signal.SIGTERM, -signal.SIGINT]


@pytest.mark.parametrize(("start", "codes"), [(subprocesses, KILLED), (fork, [-signal.SIGTERM, -signal.SIGQUIT])])
async def test_a_process_that_a_handler_starts_heeds_signals(
    new_holdfast: Callable[..., Holdfast], start: Callable[[], list[int]], codes: list[int]
) -> None:
    how["plain"] = start

    async with new_holdfast("sqlite", tasks=[tasks]) as hf, hf.worker():
        chain = await hf.start(plain())

        assert await chain.result(timeout=30) == codes


async def test_a_process_that_a_listener_starts_heeds_signals(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("sqlite", tasks=[tasks])
    codes: list[list[int]] = []

    @hf.on("job:enqueued")
    def listen(event: Event) -> None:
        codes.append(subprocesses())

    async with hf:
        await hf.start(in_loop())
        await until(lambda: bool(codes), "the listener has started them", 30)

    assert codes == [KILLED]


def test_a_process_that_a_retention_hook_starts_heeds_signals(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("sqlite", tasks=[tasks]).sync
    job = hf.get_job(hf.start(in_loop()))
    codes: list[list[int]] = []
    stage: Stage = "stale"
    chain = ChainHooks(1, stage, [(lambda job: codes.append(subprocesses()), job)])

    running = BlockingHooks(Runtime()).run([chain])
    with pytest.raises(StopIteration):
        running.send(None)

    assert codes == [KILLED]


@pytest.fixture
def in_shell() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Call a function in a thread of the engine."""
    shells: list[StepThread] = []

    def call(function: Callable[[], Any]) -> Any:
        answers: list[Any] = []
        called = threading.Event()

        def step() -> None:
            try:
                answers.append(function())
            finally:
                called.set()

        shells.append(StepThread(step, "holdfast-test"))
        shells[-1].wake()
        assert called.wait(30)
        (answer,) = answers
        return answer

    yield call
    for each in shells:
        each.stop()


def test_a_process_that_the_engine_forks_in_a_thread_heeds_signals(in_shell: Callable[..., Any]) -> None:
    assert in_shell(fork) == [-signal.SIGTERM, -signal.SIGQUIT]


def test_a_child_process_of_a_worker_heeds_signals_whichever_thread_starts_it(in_shell: Callable[..., Any]) -> None:
    reading, writing = os.pipe()

    child = in_shell(lambda: Runtime().spawn("tests.worker.mask_of_child", (writing,)))
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        mask = said.read()

    assert (child.wait(PATIENCE), mask) == (0, b"0")


def test_a_thread_lets_in_what_its_program_lets_in(in_shell: Callable[..., Any]) -> None:
    def mask_within() -> set[int]:
        with program_signals():
            return masked(threading.get_native_id())

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        assert in_shell(mask_within) == {signal.SIGUSR2}
        assert in_shell(lambda: masked(threading.get_native_id())) >= BLOCKED - UNSTOPPABLE
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})


async def test_threads_for_blocking_calls_block_signals_from_their_start() -> None:
    threads = Threads(2)
    both = threading.Barrier(2, timeout=PATIENCE)

    def mask() -> set[int]:
        both.wait()
        return masked(threading.get_native_id())

    with closing(threads):
        masks = await asyncio.gather(threads.call(mask), threads.call(mask))

    assert all(each >= BLOCKED - UNSTOPPABLE for each in masks)
    assert masked(threading.get_native_id()) == set()


def test_who_starts_a_thread_hears_signals_again_whatever_happens() -> None:
    def fail() -> None:
        assert masked(threading.get_native_id()) >= BLOCKED - UNSTOPPABLE
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        with_signals_blocked(fail)

    assert masked(threading.get_native_id()) == set()


class Interrupted(Exception):
    """What the handler of the signal raises, as that of Ctrl-C raises `KeyboardInterrupt`."""


@pytest.fixture
def interrupted() -> Iterator[Callable[[Callable[[], Any]], bool]]:
    """Call a function that waits; have another thread take a signal then; tell whether the signal ended the wait."""

    def raise_it(*_: object) -> None:
        raise Interrupted

    def call(function: Callable[[], Any]) -> bool:
        over, was_late = threading.Event(), threading.Event()

        def take_signal() -> None:
            while not _waits(threading.main_thread()):
                if over.wait(0.005):
                    return
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
            if not over.wait(PATIENCE):
                was_late.set()
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)

        other = threading.Thread(target=take_signal)
        other.start()
        try:
            with pytest.raises(Interrupted):
                function()
        finally:
            over.set()
            other.join()
        return not was_late.is_set()

    before = signal.signal(signal.SIGUSR2, raise_it)
    yield call
    signal.signal(signal.SIGUSR2, before)


def _waits(thread: threading.Thread) -> bool:
    """Tell whether *thread* waits for something else than the start of another thread."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None or frame.f_code is not threading.Condition.wait.__code__:
        return False
    callers = set()
    while frame is not None:
        callers.add(frame.f_code)
        frame = frame.f_back
    return threading.Thread.start.__code__ not in callers


WAITS: dict[str, Callable[[Any, Any], Any]] = {
    "result": lambda hf, chain: chain.result(),
    "result in a minute": lambda hf, chain: chain.result(timeout=60),
    "wait": lambda hf, chain: hf.wait([chain]),
    "events": lambda hf, chain: [next(hf.events()) for _ in range(2)],
    "watch": lambda hf, chain: list(hf.watch(chain)),
    "event stream": lambda hf, chain: list(hf.event_stream(chains=chain.id, ping_seconds=60)),
}


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_ends_by_a_signal_that_another_thread_takes(
    new_holdfast: Callable[..., Holdfast],
    interrupted: Callable[[Callable[[], Any]], bool],
    database: str,
    wait: str,
) -> None:
    hf = new_holdfast(database, tasks=[tasks]).sync
    chain = hf.start(in_loop(), paused=True)

    assert interrupted(lambda: WAITS[wait](hf, chain))


def test_a_wait_for_the_right_to_write_ends_by_such_a_signal(
    new_holdfast: Callable[..., Holdfast], interrupted: Callable[[Callable[[], Any]], bool]
) -> None:
    hf = new_holdfast("sqlite", tasks=[tasks], transaction_seconds=60).sync
    chain = hf.start(in_loop(), paused=True)
    opened, over = threading.Event(), threading.Event()

    def hold() -> None:
        with hf.completing(in_loop, chain):
            opened.set()
            over.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert opened.wait(PATIENCE)

    try:
        assert interrupted(lambda: hf.completing(in_loop, chain).__enter__())
    finally:
        over.set()
        holder.join()


def test_an_event_is_waited_for_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    now = 100.0

    def wait(seconds: float) -> bool:
        nonlocal now
        waited.append(seconds)
        now += seconds
        return len(waited) == 5

    monkeypatch.setattr(time, "monotonic", lambda: now)

    assert in_slices(wait, 2.5) is False
    assert waited == [SLICE_SECONDS, SLICE_SECONDS, 0.5]
    assert in_slices(wait, None) is True
    assert waited[3:] == [SLICE_SECONDS, SLICE_SECONDS]


def test_an_event_that_is_set_ends_a_wait_at_once() -> None:
    event = SlicedEvent()
    assert event.wait(0) is False

    threading.Timer(0.01, event.set).start()

    assert event.wait() is True
    assert event.wait(0) is True
