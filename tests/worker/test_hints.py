"""Hints: who listens is told that something grew, at once; with every hint lost the poll finds it."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, Tasks
from holdfast.database import hints
from holdfast.database.dialect import READER, READERS_ONLY, channel
from holdfast.database.hints import Hints, Horizon, SleepMark
from holdfast.database.postgres import listener
from holdfast.database.postgres.listener import NoListener
from holdfast.runtime import Runtime
from holdfast.settings import SCHEMA_NAME
from holdfast.store import polls as glances
from holdfast.store import workers
from holdfast.store.log import events
from holdfast.store.log.events import NewEvent
from holdfast.store.workers import Member
from holdfast.worker.claiming import wakeups
from holdfast.worker.options import WorkerOptions
from holdfast.worker.upkeep import reaper, retention
from tests.conftest import SCHEMA
from tests.store import engine
from tests.support.conditions import until
from tests.support.factories import TASKS, greet
from tests.support.faults.fault_proxy import FaultProxy
from tests.support.log_lines import lines
from tests.support.processes.scripts import run_script
from tests.support.ways import Way

SLEEPER = Member("sleeper-1", None, "host", 7)
CHANNEL = f"holdfast_{SCHEMA}"

NewHoldfast = Callable[..., Holdfast]


class Ear:
    """Counts the hints that a store gives."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self.heard = 0

    def __call__(self) -> None:
        self.heard += 1

    @property
    def is_listening(self) -> bool:
        return self.watch.is_listening

    def __enter__(self) -> Ear:
        self.watch = self._hf.store.watch(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.stop()

    async def settle_down(self) -> None:
        """Wait until the line works and its own beginning has been told."""
        if self._hf.store.database == "postgres":
            await until(lambda: self.is_listening and self.heard > 0, "the listener hears itself")
        self.heard = 0


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    """Run on both databases."""
    return str(request.param)


OLDEST_HERE = """
    coalesce((SELECT min(CAST(CAST(backend_xid AS text) AS bigint)) FROM pg_stat_activity
        WHERE datname = current_database()), $newest)"""


@pytest.fixture
def own_horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out of the horizon what is open in other databases of the server, by tests that run beside this one."""
    monkeypatch.setattr(glances, "WAITING_WORK", glances.WAITING_WORK.replace("$oldest", OLDEST_HERE))


@contextmanager
def stranger(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def listeners(connection: psycopg.Connection[Any]) -> list[int]:
    """Give the server processes that listen for our hints."""
    sql = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query ~ '^(LISTEN|NOTIFY)'"
    return [pid for (pid,) in connection.execute(sql)]


async def test_a_commit_is_heard_by_whoever_listens_in_this_process_and_in_others(
    database: str, new_holdfast: NewHoldfast
) -> None:
    here, there = new_holdfast(database, tasks=[TASKS]), new_holdfast(database, tasks=[TASKS])
    async with here, there:
        with Ear(here) as near, Ear(there) as far:
            await near.settle_down()
            await far.settle_down()
            await here.store.run(workers.mark_asleep, SLEEPER)
            before = near.heard, far.heard

            await here.start(greet(name="Ada"))

            await until(lambda: near.heard > before[0], "its own process hears it", timeout=20)
            await until(lambda: far.heard > before[1], "the other process hears it", timeout=20)


async def test_a_callers_transaction_is_heard_when_it_commits(database: str, new_holdfast: NewHoldfast) -> None:
    hf = new_holdfast(database, tasks=[TASKS])
    async with hf:
        connection: Any = (
            psycopg.connect(hf.settings.database)
            if database == "postgres"
            else sqlite3.connect(hf.settings.database, isolation_level=None)
        )
        with Ear(hf) as ear:
            await hf.store.run(workers.mark_asleep, SLEEPER)
            await ear.settle_down()
            connection.execute("BEGIN")
            hf.sync.start(greet(name="Ada"), connection=connection)
            before = ear.heard

            connection.commit()

            await until(lambda: ear.heard > before, "the commit is heard", timeout=20)
        connection.close()


@pytest.mark.source("JC-66")
async def test_nothing_is_sent_while_nobody_sleeps(empty_url: str, new_holdfast: NewHoldfast) -> None:
    """F-23."""
    hf = new_holdfast("postgres", tasks=[TASKS])
    with stranger(empty_url) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        async with hf:
            await hf.start(greet(name="Ada"))
            await hf.store.run(workers.mark_asleep, SLEEPER)
            await hf.store.run(workers.mark_awake, SLEEPER.id)
            await hf.start(greet(name="Bob"))

            assert list(connection.notifies(timeout=0.1)) == []

            await hf.store.run(workers.mark_asleep, SLEEPER)
            await hf.start(greet(name="Eve"))

            (heard,) = connection.notifies(timeout=5, stop_after=1)
    assert (heard.channel, heard.payload) == (CHANNEL, "")


@pytest.mark.parametrize(
    ("name", "is_asleep", "is_heard"),
    [
        ("job:enqueued", True, True),
        ("job:completed", True, True),
        ("job:completed", False, False),
        ("job:started", True, False),
        ("job:cancelling", False, True),
        ("job:pausing", False, True),
    ],
)
async def test_what_grows_is_told_to_sleepers_and_what_is_asked_to_all(
    name: Any, is_asleep: bool, is_heard: bool, empty_url: str, new_holdfast: NewHoldfast
) -> None:
    store = new_holdfast("postgres").store
    with stranger(empty_url) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        if is_asleep:
            await store.run(workers.mark_asleep, SLEEPER)

        await store.run(events.append, [NewEvent(1, name), NewEvent(2, "job:started")])
        await store.close()

        assert bool(list(connection.notifies(timeout=0.1))) is is_heard
        assert connection.execute(f"SELECT count(*) FROM {SCHEMA}.holdfast_event").fetchone() == (2,)


@pytest.mark.source("DF-14")
@pytest.mark.parametrize(
    ("options", "is_heard"),
    [
        ({}, True),
        ({"delay": 60}, True),
        ({"delay": 3600}, False),
        ({"run_at": datetime.now(UTC) + timedelta(hours=1)}, False),
        ({"paused": True}, False),
    ],
    ids=["now", "in a minute", "in an hour", "at a time", "paused"],
)
async def test_a_start_wakes_sleeping_workers_only_if_it_can_run_soon(
    options: dict[str, Any], is_heard: bool, empty_url: str, new_holdfast: NewHoldfast
) -> None:
    hf = new_holdfast("postgres", tasks=[TASKS])
    with stranger(empty_url) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        async with hf:
            await hf.store.run(workers.mark_asleep, SLEEPER)
            await hf.start_many([greet(name="Ada").options(**options) for _ in range(2)])
            connection.execute(f"NOTIFY {CHANNEL}, 'last'")

            heard = [each.payload for each in connection.notifies(timeout=5, stop_after=1 + is_heard)]
    assert heard == ([""] if is_heard else []) + ["last"]


async def test_a_start_that_is_due_later_wakes_those_who_follow_the_log(
    empty_url: str, new_holdfast: NewHoldfast
) -> None:
    hf = new_holdfast("postgres", tasks=[TASKS])
    with stranger(empty_url) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        async with hf:
            await hf.store.run(workers.mark_asleep, SLEEPER._replace(id=f"{READER}1"))
            await hf.start(greet(name="Ada"), delay=3600)

            (heard,) = connection.notifies(timeout=5, stop_after=1)
    assert heard.payload == READERS_ONLY


async def test_to_send_a_hint_takes_no_statement_and_no_lock(empty_url: str, new_holdfast: NewHoldfast) -> None:
    """F-23, I-60."""
    hf = new_holdfast("postgres", tasks=[TASKS])
    with FaultProxy(empty_url) as proxy, stranger(empty_url) as other:
        counted = Holdfast(proxy.url, schema_name=SCHEMA, tasks=[TASKS])
        counted.sync.open()
        counted.sync.start(greet(name="Ada"))
        proxy.round_trips = 0
        counted.sync.start(greet(name="Ada"))
        without = proxy.round_trips
        hf.store.run_sync(workers.mark_asleep, SLEEPER)
        proxy.round_trips = 0
        counted.sync.start(greet(name="Ada"))
        assert proxy.round_trips == without
        counted.sync.close()

        with psycopg.connect(empty_url) as caller:
            caller.execute("SELECT 1")
            hf.sync.start(greet(name="Bob"), connection=caller)
            other.execute("SET lock_timeout = '1s'")
            other.execute(f"UPDATE {SCHEMA}.holdfast_worker SET asleep_at = NULL")
            other.execute("SELECT pg_notify('anything', '')")
            caller.rollback()


async def test_a_terminated_listener_listens_again_before_it_is_read_again(
    empty_url: str, new_holdfast: NewHoldfast, caplog: pytest.LogCaptureFixture
) -> None:
    """P-10, F-22, I-45."""
    hf = new_holdfast("postgres", tasks=[TASKS])
    async with hf:
        with Ear(hf) as ear, stranger(empty_url) as connection:
            await ear.settle_down()
            await hf.store.run(workers.mark_asleep, SLEEPER)
            (pid,) = listeners(connection)

            connection.execute("SELECT pg_terminate_backend(%s)", [pid])

            await until(lambda: ear.heard >= 2, "its end and its return are told as hints")
            assert ear.is_listening
            before = ear.heard
            await hf.start(greet(name="Ada"))
            await until(lambda: ear.heard > before, "a hint after the return", timeout=20)
    assert lines(caplog) == ["hints_lost", "hints_again"]


async def test_a_line_that_falls_silent_is_known_and_replaced(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-22, I-45."""
    monkeypatch.setattr("holdfast.database.postgres.listener.BEAT_SECONDS", 0.2)
    monkeypatch.setattr("holdfast.database.postgres.listener.DEAF_SECONDS", 0.3)
    monkeypatch.setattr("holdfast.database.postgres.listener.CONNECT_SECONDS", 0.5)
    monkeypatch.setattr("holdfast.database.postgres.listener.DEAF_PAUSE", 0.2)
    with FaultProxy(empty_url) as proxy:
        hf = Holdfast(empty_url, schema_name=SCHEMA, listen_url=proxy.url)
        with Ear(hf) as ear:
            await ear.settle_down()

            proxy.fall_silent()

            await until(lambda: not ear.is_listening, "the silence is noticed")
            proxy.speak()
            await until(lambda: ear.is_listening, "the line is back")
        await hf.close()


async def test_a_listener_that_cannot_hear_itself_says_so_once_and_all_poll(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F-22, I-45."""
    from holdfast.database.postgres import listener

    monkeypatch.setattr(listener, "DEAF_SECONDS", 0.1)
    monkeypatch.setattr(listener, "DEAF_PAUSE", 0.1)
    tried = []
    send = listener.ListenSocket._send

    def as_a_pooler_does(line: Any, *statements: str) -> None:
        tried.append(statements)
        send(line, *(each.replace("LISTEN", "SELECT 1 --") for each in statements))  # it succeeds, nothing ever comes

    monkeypatch.setattr(listener.ListenSocket, "_send", as_a_pooler_does)
    hf = Holdfast(empty_url, schema_name=SCHEMA)
    with Ear(hf) as ear:
        await until(lambda: len(tried) >= 3, "it is tried again")

        assert not ear.is_listening
        assert ear.heard == 0
    await hf.close()
    assert lines(caplog) == ["hints_lost"]


async def test_behind_a_known_pooler_nobody_listens_unless_there_is_a_direct_line(
    empty_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    polls = Holdfast(empty_url, schema_name=SCHEMA, transaction_pooler=True)
    direct = Holdfast(empty_url, schema_name=SCHEMA, transaction_pooler=True, listen_url=empty_url)

    with Ear(polls) as deaf, Ear(direct) as ear, stranger(empty_url) as connection:
        await until(lambda: ear.is_listening, "the direct line works")
        assert not deaf.is_listening
        assert len(listeners(connection)) == 1
    with Ear(polls):
        pass

    assert lines(caplog) == ["hints_lost"]
    assert empty_url.rpartition("@")[0] not in caplog.text


@pytest.mark.source("JC-67")
async def test_all_who_listen_share_one_line_and_the_last_one_ends_it(
    new_threads: Callable[[], set[str]], empty_url: str, new_holdfast: NewHoldfast
) -> None:
    hf = new_holdfast("postgres")
    with stranger(empty_url) as connection:
        with Ear(hf) as first, Ear(hf):
            await until(lambda: first.is_listening, "the line works")
            assert len(listeners(connection)) == 1
        await until(lambda: listeners(connection) == [], "the line is closed")
    assert "holdfast-hints" not in new_threads()


async def test_two_commits_in_one_tick_of_the_files_clock_give_two_hints(tmp_path: Any) -> None:
    frozen = Runtime(file_mark=lambda path: "the same mark")
    hf = Holdfast(str(tmp_path / "jobs.db"), tasks=[TASKS], runtime=frozen)
    hf.sync.start(greet(name="Ada"))
    with Ear(hf) as ear:
        hf.sync.start(greet(name="Bob"))
        assert ear.heard == 1
        await until(lambda: ear.heard == 2, "the echo, for what the clock could not show")
    hf.sync.close()


async def test_what_another_process_wrote_is_hinted_at_until_its_disk_has_surely_taken_it(tmp_path: Any) -> None:
    marks = ["before"]
    hf = Holdfast(str(tmp_path / "jobs.db"), runtime=Runtime(file_mark=lambda path: marks[0]))
    hf.sync.open()
    with Ear(hf) as ear:
        marks[0] = "written, and not yet to be read: its fsync takes a while"
        await until(lambda: ear.heard >= 1, "the hint")
        early = ear.heard
        await asyncio.sleep(0.1)
        await until(lambda: ear.heard >= early + 2, "hints that come later")
    hf.sync.close()


async def test_to_claim_in_vain_on_sqlite_is_no_hint(new_holdfast: NewHoldfast) -> None:
    hf = new_holdfast("sqlite", tasks=[TASKS])
    way = Way(hf, is_async=True)
    async with hf:
        with Ear(hf) as ear:
            await engine.claim(way)
            await engine.claim(way)

            assert ear.heard == 0


def test_the_longest_schema_name_makes_a_channel_that_the_server_takes() -> None:
    """F-23."""
    longest = "a" * 41

    assert SCHEMA_NAME.fullmatch(longest)
    assert not SCHEMA_NAME.fullmatch(longest + "a")
    assert len(channel(longest)) < 64


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Line:
    """A source of hints that works, or does not."""

    is_listening = True

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


def a_rest(line: Line, clock: Clock) -> SleepMark:
    return SleepMark(Hints(lambda tell: line).watch(lambda: None), clock, poll=2)


def test_a_sleeper_sleeps_long_only_when_every_transaction_has_seen_its_mark() -> None:
    clock = Clock()
    rest = a_rest(Line(), clock)
    assert rest.wants_to_sleep
    assert rest.seconds() == 2

    rest.has_marked()
    rest.has_looked(Horizon(oldest=90, newest=95))
    clock.now += hints.STATEMENT_SECONDS
    assert rest.wants_to_sleep  # again: by now whatever had not seen the first mark has a number
    rest.has_marked()
    rest.has_looked(Horizon(oldest=90, newest=100))
    assert rest.seconds() == 2
    rest.has_looked(Horizon(oldest=99, newest=120))
    assert rest.seconds() == 2
    rest.has_looked(Horizon(oldest=100, newest=130))

    assert rest.seconds() == hints.SELDOM_SECONDS


def test_a_sleeper_looks_for_what_statements_wrote_that_began_before_its_mark() -> None:
    """Such a statement has seen no mark, and has no number by which it could be told."""
    clock = Clock()
    rest = a_rest(Line(), clock)
    rest.has_marked()
    waits = []

    while (seconds := rest.seconds()) < hints.SELDOM_SECONDS:
        waits.append(seconds)
        clock.now += seconds
        if rest.wants_to_sleep:
            rest.has_marked()
        rest.has_looked(Horizon(oldest=100, newest=100))

    assert waits[0] == hints.GLANCE_SECONDS
    assert all(later <= 2 * earlier + 0.001 for earlier, later in itertools.pairwise(waits))
    assert sum(waits) >= hints.STATEMENT_SECONDS


def test_a_sleeper_without_a_line_looks_often_and_says_nothing() -> None:
    """I-45."""
    line = Line()
    rest = a_rest(line, Clock())
    rest.has_marked()
    rest.has_looked(Horizon(100, 100))

    line.is_listening = False

    assert rest.seconds() == 2
    assert not a_rest(line, Clock()).wants_to_sleep


def test_a_sleeper_that_is_woken_too_often_looks_for_itself_for_a_second() -> None:
    clock = Clock()
    rest = a_rest(Line(), clock)
    rest.has_marked()
    rest.has_looked(Horizon(100, 100))

    for _ in range(hints.MOST_HINTS):
        rest.count_hint()
    assert not rest.wants_to_wake
    rest.count_hint()

    assert rest.wants_to_wake
    rest.has_unmarked()
    assert not rest.wants_to_sleep
    assert rest.seconds() == hints.GLANCE_SECONDS
    clock.now += 1.01
    assert rest.wants_to_sleep


def handlers(ran: list[int]) -> Tasks:
    tasks = Tasks()

    @tasks.task(name="note")
    async def note(number: int) -> None:
        ran.append(number)

    return tasks


@pytest.mark.source("PQ-23", "JC-33")
async def test_an_idle_worker_is_woken_by_a_start_in_another_process(database: str, new_holdfast: NewHoldfast) -> None:
    ran: list[int] = []
    tasks = handlers(ran)
    here, there = new_holdfast(database, tasks=[tasks]), new_holdfast(database, tasks=[tasks])
    async with here, there, there.worker(poll=60) as worker:
        await until(lambda: is_asleep(worker), "the worker sleeps")

        await here.start(tasks.get("note")(number=1))

        await until(lambda: ran == [1], "the first start was hinted at", timeout=20)
        await until(lambda: is_asleep(worker), "the worker sleeps again")

        await here.start(tasks.get("note")(number=2))

        await until(lambda: ran == [1, 2], "the second start was hinted at", timeout=20)


def is_asleep(worker: Any) -> bool:
    """Tell whether a worker has nothing to do, and whoever makes something will hint at it."""
    wakeups = getattr(worker, "_wakeups", None)
    if wakeups is None:  # its task has not begun
        return False
    has_said = wakeups._rest.is_marked or worker._core.store.database == "sqlite"
    return has_said and has_claimed(worker) and not wakeups.is_due


def has_claimed(worker: Any) -> bool:
    """Tell whether a worker has looked for work, and does not mean to look again of itself."""
    return worker._claimer is not None and worker._claimer._is_quiet(1)


@pytest.mark.source("PQ-23", "JC-33", "JC-65", "TQ-39")
async def test_without_hints_the_poll_finds_a_job(database: str, new_holdfast: NewHoldfast) -> None:
    """I-45."""
    ran: list[int] = []
    tasks = handlers(ran)
    deaf = Runtime(file_mark=lambda path: None)
    here = new_holdfast(database, tasks=[tasks])
    there = new_holdfast(database, tasks=[tasks], runtime=deaf, transaction_pooler=True)
    async with here, there, there.worker(poll=0.3) as worker:
        await until(lambda: has_claimed(worker), "the worker has looked")

        await here.start(tasks.get("note")(number=1))

        await until(lambda: ran == [1], "the poll found it", timeout=20)


@pytest.mark.usefixtures("own_horizon")
async def test_a_job_whose_caller_commits_after_the_worker_fell_asleep_is_found_within_the_short_poll(
    empty_url: str, new_holdfast: NewHoldfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-45, I-61."""
    monkeypatch.setattr(hints, "STATEMENT_SECONDS", 0.2)
    ran: list[int] = []
    tasks = handlers(ran)
    hf = new_holdfast("postgres", tasks=[tasks])
    async with hf:
        with psycopg.connect(empty_url) as caller:
            caller.execute("SELECT 1")
            hf.sync.start(tasks.get("note")(number=1), connection=caller)  # before there is a mark: no hint
            async with hf.worker(poll=0.3) as worker:
                await until(lambda: is_asleep(worker), "the worker sleeps")

                caller.commit()

                await until(lambda: ran == [1], "it was found", timeout=20)
                await until(lambda: worker._wakeups._rest.seconds() == 30, "nothing old is open any more")


@pytest.mark.source("PQ-22")
async def test_a_delayed_job_starts_when_it_is_due_and_not_at_the_next_poll(
    database: str, new_holdfast: NewHoldfast
) -> None:
    ran: list[int] = []
    tasks = handlers(ran)
    hf = new_holdfast(database, tasks=[tasks])
    async with hf, hf.worker(poll=60) as worker:
        await until(lambda: is_asleep(worker), "the worker sleeps")

        await hf.start(tasks.get("note")(number=1), delay=0.3)

        await until(lambda: ran == [1], "the job ran", timeout=20)


@pytest.mark.source("JC-35", "TQ-14")
@pytest.mark.parametrize("has_hints", [True, False])
async def test_a_running_handler_learns_of_a_cancel_within_a_second_and_without_hints_within_three(
    has_hints: bool, database: str, new_holdfast: NewHoldfast
) -> None:
    """P-03, I-33."""
    tasks = Tasks()
    stopped: list[float] = []
    running = asyncio.Event()

    @tasks.task(name="endless")
    async def endless() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(time.monotonic())

    here = new_holdfast(database, tasks=[tasks])
    deaf = {} if has_hints else {"runtime": Runtime(file_mark=lambda path: None), "transaction_pooler": True}
    there = new_holdfast(database, tasks=[tasks], **deaf)
    async with here, there, there.worker():
        chain = await here.start(endless())
        await asyncio.wait_for(running.wait(), 10)
        if has_hints and database == "postgres":
            await until(lambda: there.store._hints.is_listening, "the line works")  # type: ignore[attr-defined]

        asked = time.monotonic()
        await here.cancel(chain)

        await until(lambda: bool(stopped), "the handler was told")
        assert stopped[0] - asked < (1 if has_hints else 3)
        with pytest.raises(Exception, match="cancelled"):
            await chain.result(timeout=10)


@pytest.mark.source("TQ-12")
@pytest.mark.usefixtures("own_horizon")
@pytest.mark.parametrize("pace", [4, pytest.param(1, marks=pytest.mark.long)], ids=["four times as fast", "as it is"])
async def test_an_idle_process_issues_less_than_one_statement_a_second(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, pace: int
) -> None:
    """I-59: with a line to hear hints by and without, two processes' worth, watched in the same seconds.

    Without, 12 seconds have 10 or 11, and one more poll or look at their edge made 12; so it is three times as long.
    """
    seconds = 36
    monkeypatch.setattr(hints, "STATEMENT_SECONDS", 0.2)
    for module, name in ((hints, "SELDOM"), (wakeups, "BEAT"), (listener, "BEAT"), (reaper, "PERIOD")):
        monkeypatch.setattr(module, f"{name}_SECONDS", getattr(module, f"{name}_SECONDS") / pace)
    # 13 statements: a worker makes its first pass of retention soon, and then one every ten minutes
    monkeypatch.setattr(retention, "FIRST_SECONDS", retention.IDLE_SECONDS)
    poll = WorkerOptions().poll / pace
    with FaultProxy(empty_url) as on_line, FaultProxy(empty_url) as off_line:
        hears, polls = (Holdfast(proxy.url, schema_name=SCHEMA, tasks=[TASKS]) for proxy in (on_line, off_line))
        polls.store._hints._source = NoListener()  # type: ignore[attr-defined]
        async with hears, polls, hears.worker(poll=poll) as one, polls.worker(poll=poll) as other:
            await until(
                lambda: has_looked(one, has_line=True) and has_looked(other, has_line=False),
                "the workers sleep",
                timeout=30,
            )
            await asyncio.sleep(0.5)  # what belongs to the beginning
            on_line.round_trips = off_line.round_trips = 0
            since = time.monotonic()
            await asyncio.sleep(seconds / pace)
            watched = (time.monotonic() - since) * pace
            assert on_line.round_trips < watched
            assert off_line.round_trips < watched


def has_looked(worker: Any, has_line: bool) -> bool:
    if has_line:
        return is_asleep(worker) and bool(worker._wakeups._rest.seconds() == hints.SELDOM_SECONDS)
    return has_claimed(worker)


async def test_a_worker_leaves_no_row_no_thread_and_no_line_behind(
    new_threads: Callable[[], set[str]], database: str, new_holdfast: NewHoldfast, empty_url: str
) -> None:
    """I-51."""
    hf = new_holdfast(database, tasks=[TASKS])
    async with hf:
        async with hf.worker(name="ada") as worker:
            await until(lambda: is_asleep(worker), "the worker sleeps")
            rows = await hf.store.read(_names)
        assert rows == ["ada"]
        assert await hf.store.read(_names) == []
    assert not {"holdfast-hints", "holdfast-leases", "holdfast-waiter"} & new_threads()
    with stranger(empty_url) as connection:
        await until(lambda: listeners(connection) == [], "no line is open")


async def _names(tx: Any) -> list[str]:
    return [name for (name,) in await tx.fetch_all("SELECT name FROM holdfast_worker")]


async def test_a_fork_takes_neither_the_line_nor_the_waiter_with_it(
    database: str, new_holdfast: NewHoldfast, tmp_path: Any
) -> None:
    """F-11."""
    hf = new_holdfast(database)
    await hf.open()

    assert await run_script(FORK_SCRIPT, tmp_path, hf) == (["child", "parent"], "")
    await hf.close()


FORK_SCRIPT = """
import os, sys, time, warnings
from holdfast import Holdfast, Tasks, WaitTimeout
from holdfast.store import workers
from holdfast.store.workers import Member

hf = Holdfast(sys.argv[1], schema_name=sys.argv[2])

@hf.task(name="note")
def note() -> None: ...

def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)

def does_not_end(chain):
    try:
        chain.result(timeout=0.2)
    except WaitTimeout:
        return True

heard = []
watch = hf.store.watch(lambda: heard.append(os.getpid()))
if hf.store.database == "postgres":
    wait_for(lambda: watch.is_listening)
hf.store.run_sync(workers.mark_asleep, Member("sleeper", None, "host", 1))
chain = hf.sync.start(note())
assert does_not_end(chain)
child = os.fork()
if child == 0:
    own = hf.sync.start(note())
    assert does_not_end(own)
    hf.sync.close()
    print("child", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
wait_for(lambda: heard)
heard.clear()
hf.sync.start(note())
wait_for(lambda: heard)
assert does_not_end(chain)
watch.stop()
hf.sync.close()
print("parent", flush=True)
"""
