"""Callers that share a commit: each hears its own outcome, and nobody disturbs the others."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

import psycopg
import pytest

from holdfast.database.postgres.deadline import Deadline
from holdfast.database.postgres.group import MOST_BYTES, MOST_FLIGHTS, MOST_ITEMS, BlockingGroup, Part, Queue
from holdfast.database.tx import Tx, repeatable
from holdfast.errors import Busy, Unavailable, UnknownOutcome, WrongTask
from tests.store.conftest import MakeStore
from tests.store.samples import Caller, Item, Stranger, add_items, until
from tests.support.faults.fault_proxy import FaultProxy

MakeCaller = Callable[..., Caller]


class Counting:
    """Adds items, and remembers the lists that it was given."""

    def __init__(self) -> None:
        self.lists: list[Sequence[Item]] = []

    @repeatable
    async def add(self, tx: Tx, items: Sequence[Item]) -> list[str]:
        self.lists.append(items)
        return await add_items(tx, items)


async def test_callers_that_wait_share_a_commit(
    make_caller: MakeCaller, stranger: Stranger, samples_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = make_caller()
    counting = Counting()
    add = counting.add
    await caller.gather(add, [Item("first")])
    arrived: list[object] = []
    queue_up = Queue.add
    monkeypatch.setattr(Queue, "add", lambda queue, part: (queue_up(queue, part), arrived.append(part)))
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64))

    with psycopg.connect(samples_url) as other:
        other.execute("LOCK TABLE sample")
        calls = (caller.gather(add, [Item(f"{number} a"), Item(f"{number} b")]) for number in range(64))
        sharing = asyncio.gather(*calls)
        waiting = 63 if caller.is_async else 64  # the first has come by itself
        await until(lambda: len(arrived) == waiting, "all have come, and none has got through")
    results = await sharing

    assert results == [[f"{number} a", f"{number} b"] for number in range(64)]
    assert len(stranger.rows()) == 129
    before, under_way, after = 1, MOST_FLIGHTS, MOST_FLIGHTS
    assert len(counting.lists) <= before + under_way + after


async def test_one_bad_item_among_sixty_four_callers_fails_alone(make_caller: MakeCaller, stranger: Stranger) -> None:
    """Q-04, I-64."""
    caller = make_caller()

    calls = (caller.gather(add_items, [Item(str(number), -1 if number == 17 else 1)]) for number in range(64))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)

    failed = {number: type(each).__name__ for number, each in enumerate(outcomes) if isinstance(each, Exception)}
    assert failed == {17: "StoreError"}
    assert stranger.rows().keys() == {str(number) for number in range(64) if number != 17}


async def test_an_error_of_the_operation_reaches_its_caller_as_it_is(
    make_caller: MakeCaller, stranger: Stranger
) -> None:
    error = WrongTask(UUID(int=7), asked="a", found="b")

    async def refuse_seven(tx: Tx, items: Sequence[Item]) -> list[str]:
        if Item("7") in items:
            raise error
        return await add_items(tx, items)

    caller = make_caller()
    calls = (caller.gather(refuse_seven, [Item(str(number))]) for number in range(20))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)

    assert outcomes[7] is error
    assert len(stranger.rows()) == 19


async def test_a_lost_commit_of_a_group_makes_every_row_once(
    make_caller: MakeCaller, proxy: FaultProxy, stranger: Stranger
) -> None:
    """F-16, I-04, I-55."""
    caller = make_caller(proxy.url)
    await caller.gather(add_items, [Item("first")])
    proxy.cut_at_commit = "after"

    await asyncio.gather(*(caller.gather(add_items, [Item(str(number))]) for number in range(20)))

    assert proxy.cuts == 1
    assert len(stranger.rows()) == 21


async def test_a_lost_commit_of_a_group_that_cannot_be_repeated_is_unknown_to_each_of_it(
    make_caller: MakeCaller, proxy: FaultProxy, stranger: Stranger
) -> None:
    """F-16, I-64."""

    async def add_and_forget(tx: Tx, items: Sequence[Item]) -> list[str]:
        return await add_items(tx, items)

    caller = make_caller(proxy.url)
    await caller.gather(add_and_forget, [Item("first")])
    proxy.cut_at_commit = "before"

    calls = (caller.gather(add_and_forget, [Item(str(number))]) for number in range(20))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)

    unknown = {str(number) for number, each in enumerate(outcomes) if isinstance(each, UnknownOutcome)}
    assert unknown
    assert stranger.rows().keys() == {"first", *(str(number) for number in range(20))} - unknown


async def test_every_caller_is_answered_by_its_deadline_when_the_server_is_silent(
    make_caller: MakeCaller, proxy: FaultProxy
) -> None:
    """F-13."""
    caller = make_caller(proxy.url, deadline_seconds=0.7)
    await caller.gather(add_items, [Item("first")])
    proxy.fall_silent()

    async def call(number: int) -> float:
        await asyncio.sleep(number * 0.05)
        started = time.monotonic()
        with pytest.raises((Unavailable, UnknownOutcome)):
            await caller.gather(add_items, [Item(str(number))])
        return time.monotonic() - started

    waited = await asyncio.gather(*(call(number) for number in range(10)))
    assert max(waited) < 1.7


async def test_those_that_have_time_left_are_served_when_the_server_is_back(
    make_store: MakeStore, proxy: FaultProxy, stranger: Stranger
) -> None:
    """F-13."""
    store = make_store(proxy.url, deadline_seconds=1, pool_size=2)
    await store.gather(add_items, [Item("first")])
    proxy.fall_silent()
    early = [asyncio.create_task(store.gather(add_items, [Item(f"early {number}")])) for number in range(3)]
    await asyncio.sleep(0.6)
    late = [asyncio.create_task(store.gather(add_items, [Item(f"late {number}")])) for number in range(3)]
    await asyncio.wait(early)

    proxy.speak()
    await asyncio.gather(*late)

    assert {f"late {number}" for number in range(3)} <= stranger.rows().keys()
    assert all(isinstance(each.exception(), Unavailable | UnknownOutcome) for each in early)


async def test_a_cancelled_caller_disturbs_nobody(make_store: MakeStore, stranger: Stranger) -> None:
    store = make_store()
    await store.gather(add_items, [Item("first")])

    tasks = [asyncio.create_task(store.gather(add_items, [Item(str(number))])) for number in range(60)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    kept = {str(number) for number in range(60) if number % 3}
    assert kept <= stranger.rows().keys()
    assert [number for number, each in enumerate(outcomes) if isinstance(each, BaseException)] == list(range(0, 60, 3))


async def test_an_item_that_may_wait_for_a_stranger_keeps_nobody(
    make_caller: MakeCaller, stranger: Stranger, samples_url: str
) -> None:
    """I-60."""
    caller = make_caller(deadline_seconds=20)
    await caller.gather(add_items, [Item("first")])

    with psycopg.connect(samples_url) as other:
        other.execute("INSERT INTO sample VALUES ('held', 1)")
        waiting = asyncio.create_task(caller.gather(add_items, [Item("held", may_wait=True)]))
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
        await until(lambda: stranger.ask(held), "the item waits for the stranger")

        await asyncio.gather(*(caller.gather(add_items, [Item(str(number))]) for number in range(20)))

        assert not waiting.done()
        other.rollback()
    assert await waiting == ["held"]


async def test_an_item_that_waits_too_long_is_busy(make_caller: MakeCaller, samples_url: str) -> None:
    caller = make_caller(deadline_seconds=2.0)
    await caller.gather(add_items, [Item("first")])

    with psycopg.connect(samples_url) as other:
        other.execute("INSERT INTO sample VALUES ('held', 1)")
        with pytest.raises(Busy):
            await caller.gather(add_items, [Item("held", may_wait=True)])


async def test_a_group_is_bounded(make_caller: MakeCaller, stranger: Stranger) -> None:
    caller = make_caller()
    counting = Counting()
    add = counting.add

    sizes = [MOST_ITEMS // 2, MOST_ITEMS // 2, MOST_ITEMS, MOST_ITEMS + 1, 1, 1]
    calls = (caller.gather(add, [Item(f"{n} {m}") for m in range(size)]) for n, size in enumerate(sizes))
    results = await asyncio.gather(*calls)

    assert [len(each) for each in results] == sizes
    assert max(len(each) for each in counting.lists if len(each) != MOST_ITEMS + 1) <= MOST_ITEMS
    assert len(stranger.rows()) == sum(sizes)


@dataclass(frozen=True)
class Load:
    """An item that holds *size* bytes."""

    size: int = 0


def waiting(queue: Queue[Load, Load], *loads: int, seconds: float = 5) -> list[Part[Load, Load]]:
    """Have parts wait in *queue*, with one item of each size."""
    parts = [Part[Load, Load]([Load(size)], Deadline(time.monotonic, seconds), lambda: None) for size in loads]
    for part in parts:
        queue.add(part)
    return parts


async def land(items: Sequence[Load], deadline: Deadline) -> Sequence[Load]:
    return items


@pytest.mark.parametrize(
    ("loads", "taken"),
    [
        ([MOST_BYTES // 4] * 6, 4),
        ([2 * MOST_BYTES, 1], 1),
        ([1, 2 * MOST_BYTES], 1),
        ([0] * (MOST_ITEMS + 1), MOST_ITEMS),
    ],
    ids=["four fit", "one that is too large", "before a large one", "too many"],
)
def test_a_flight_is_bounded_by_bytes_and_items(loads: list[int], taken: int) -> None:
    queue = Queue(land)
    parts = waiting(queue, *loads)

    assert queue.take() == parts[:taken]
    assert queue.take()[0] is parts[taken]


async def test_after_a_deadline_the_next_flights_are_half_as_large_until_they_land() -> None:
    async def miss(items: Sequence[Load], deadline: Deadline) -> Sequence[Load]:
        if len(items) > 2:
            raise Unavailable("no answer")
        return items

    queue = Queue(miss)
    waiting(queue, *[1000] * 8, seconds=0)
    sizes = []
    while parts := queue.take():
        sizes.append(len(parts))
        await queue.fly(parts)
        waiting(queue, *[1000] * (8 if len(sizes) < 3 else 0), seconds=0)

    assert sizes[:3] == [8, 4, 2]
    assert sizes[3] == 4  # it has grown again


async def test_who_finds_nothing_under_way_runs_in_its_own_task(make_store: MakeStore) -> None:
    store = make_store()
    tasks: list[object] = []

    async def look(tx: Tx, items: Sequence[Item]) -> list[str]:
        tasks.append(asyncio.current_task())
        return await add_items(tx, items)

    await store.gather(look, [Item("alone")])
    assert tasks == [asyncio.current_task()]

    await asyncio.gather(*(store.gather(look, [Item(str(number))]) for number in range(10)))
    assert len(tasks) < 10


async def test_who_is_cancelled_in_a_flight_of_its_own_hears_so_when_it_is_over(
    make_store: MakeStore, proxy: FaultProxy, stranger: Stranger
) -> None:
    store = make_store(proxy.url)
    await store.gather(add_items, [Item("first")])
    proxy.latency = 0.05
    proxy.sent.clear()

    task = asyncio.create_task(store.gather(add_items, [Item("cancelled")]))
    await until(lambda: b"COMMIT\0" in proxy.sent, "COMMIT is on its way")
    task.cancel()
    beside = asyncio.create_task(store.gather(add_items, [Item("beside")]))
    with pytest.raises(asyncio.CancelledError):
        await task
    await beside

    assert stranger.rows().keys() == {"first", "cancelled", "beside"}


async def test_nothing_given_is_nothing_returned(make_caller: MakeCaller) -> None:
    assert await make_caller().gather(add_items, []) == []


def test_no_leader_serves_the_others_for_ever(make_store: MakeStore, stranger: Stranger) -> None:
    store = make_store()
    stop = threading.Event()

    def keep_calling(number: int) -> None:
        turn = 0
        while not stop.is_set():
            store.gather_sync(add_items, [Item(f"{number} {turn}")])
            turn += 1

    threads = [threading.Thread(target=keep_calling, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(50):
            store.gather_sync(add_items, [Item(f"patient {turn}")])
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    assert "patient 49" in stranger.rows()


class Interrupted(Exception):
    """What a signal's handler raises, as Python's own does at Ctrl-C."""


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Let SIGUSR1 raise in the main thread."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("interrupts")
def test_a_caller_that_a_signal_takes_away_keeps_nobody_waiting() -> None:
    flying, landing = threading.Semaphore(0), threading.Event()

    async def fly(items: Sequence[str], deadline: Deadline) -> Sequence[str]:
        flying.release()
        landing.wait()
        return items

    group = BlockingGroup(fly)
    told: list[str] = []

    def call(name: str) -> None:
        told.extend(group.call([name], Deadline(time.monotonic, 5)))

    def call_behind_the_one_who_leaves() -> None:
        wait_for_parts(1)
        waiting.start()
        wait_for_parts(2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def wait_for_parts(number: int) -> None:
        while len(group._queue._waiting) < number:
            time.sleep(0.001)

    threads = [threading.Thread(target=call, args=(f"flight {n}",), daemon=True) for n in range(MOST_FLIGHTS)]
    waiting = threading.Thread(target=call, args=("behind",), daemon=True)
    for thread in (*threads, threading.Thread(target=call_behind_the_one_who_leaves, daemon=True)):
        thread.start()
    for _ in threads:
        flying.acquire()
    with pytest.raises(Interrupted):
        group.call(["gone"], Deadline(time.monotonic, 5))
    landing.set()

    for thread in (*threads, waiting):
        thread.join(5)
    assert sorted(told) == ["behind", "flight 0", "flight 1"]


def test_who_leaves_before_the_flight_that_he_leads_hands_it_on() -> None:
    async def fly(items: Sequence[str], deadline: Deadline) -> Sequence[str]:
        return items

    group = BlockingGroup(fly)
    leader, other = (Part[str, str]([name], Deadline(time.monotonic, 5), lambda: None) for name in ("a", "b"))
    group._flights = 1
    leader.lead([leader, other])

    group._leave(leader)

    assert (leader.flight, other.flight) == ((), [other])
