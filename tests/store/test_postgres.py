"""What a call on a PostgreSQL store ends in, whatever happens on the way: a real server, real faults."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from holdfast.database.postgres.errors import Trouble, diagnose, failure
from holdfast.database.tx import Tx
from holdfast.errors import Busy, InvalidSettings, NotMigrated, StoreError, Unavailable, UnknownOutcome
from tests.store.conftest import MakeStore
from tests.store.samples import Caller, Stranger, add, add_once, ask, count, until
from tests.support.faults.fault_proxy import FaultProxy
from tests.support.log_lines import name_of

MakeCaller = Callable[..., Caller]


async def test_a_serialisation_failure_runs_the_operation_again(make_caller: MakeCaller, stranger: Stranger) -> None:
    """F-21."""
    runs: list[int] = []

    async def fail_twice(tx: Tx) -> int:
        await add(tx, "a")
        runs.append(len(runs))
        if len(runs) < 3:
            await tx.execute("SELECT fail_with('40001')")
        return len(runs)

    assert await make_caller().run(fail_twice) == 3
    assert stranger.rows() == {"a": 1}


async def test_an_operation_that_always_collides_is_given_up(make_caller: MakeCaller) -> None:
    """F-21."""
    runs: list[int] = []

    async def collide(tx: Tx) -> None:
        runs.append(1)
        await tx.execute("SELECT fail_with('40001')")

    with pytest.raises(Busy, match="collided"):
        await make_caller().run(collide)

    assert len(runs) == 5


async def test_the_victim_of_a_deadlock_runs_again(
    make_caller: MakeCaller, stranger: Stranger, samples_url: str
) -> None:
    """F-21."""
    caller = make_caller(f"{samples_url}?options=-c%20deadlock_timeout%3D10ms")
    stranger.do("INSERT INTO sample VALUES ('a', 0), ('b', 0)")
    runs: list[int] = []

    with psycopg.connect(samples_url) as other:
        other.execute("SET deadlock_timeout = '1min'")
        other.execute("UPDATE sample SET amount = amount + 10 WHERE id = 'b'")

        def finish() -> None:
            other.execute("UPDATE sample SET amount = amount + 10 WHERE id = 'a'")
            other.commit()

        crossing = threading.Thread(target=finish)

        async def cross(tx: Tx) -> None:
            runs.append(1)
            await tx.execute("UPDATE sample SET amount = amount + 1 WHERE id = 'a'")
            if len(runs) == 1:
                crossing.start()
                wait_for_lock_of(stranger, other)
            await tx.execute("UPDATE sample SET amount = amount + 1 WHERE id = 'b'")

        await caller.run(cross)
        crossing.join()

    assert len(runs) >= 2  # it may come again before the other one has what it waited for
    assert stranger.rows() == {"a": 11, "b": 11}


def wait_for_lock_of(stranger: Stranger, connection: psycopg.Connection[Any]) -> None:
    """Wait until *connection* waits for somebody's lock."""
    end = time.monotonic() + 5
    sql = f"SELECT count(*) FROM pg_locks WHERE pid = {connection.info.backend_pid} AND NOT granted"
    while not stranger.ask(sql):
        assert time.monotonic() < end, "the other connection never waited for a lock"


@pytest.mark.parametrize("is_connected", [True, False], ids=["connected", "connecting"])
async def test_a_silent_server_is_unavailable_by_the_deadline(
    make_caller: MakeCaller, proxy: FaultProxy, is_connected: bool
) -> None:
    """F-13."""
    caller = make_caller(proxy.url, deadline_seconds=0.7)
    if is_connected:
        await caller.open()
    proxy.fall_silent()

    started = time.monotonic()
    with pytest.raises(Unavailable):
        await caller.run(add, "a")
    assert time.monotonic() - started < 4  # by its own deadline, and not by the usual one of 5 s

    proxy.speak()
    await caller.run(add, "b")
    assert await caller.read(count) == 1


async def test_a_store_closes_in_time_while_the_server_is_silent(make_caller: MakeCaller, proxy: FaultProxy) -> None:
    """F-13, P-11."""
    before = set(threading.enumerate())
    caller = make_caller(proxy.url, deadline_seconds=1)
    await caller.open()
    proxy.fall_silent()
    call = asyncio.create_task(caller.run(add, "a"))
    await asyncio.sleep(0)

    started = time.monotonic()
    await caller.close()
    with pytest.raises(Unavailable):
        await call

    assert time.monotonic() - started < 4
    assert not [each for each in set(threading.enumerate()) - before if each.name == "holdfast-deadlines"]


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_lost_commit_of_a_repeatable_operation_ends_in_one_row(
    make_caller: MakeCaller, proxy: FaultProxy, stranger: Stranger, cut: Any
) -> None:
    """F-16, I-04, I-55."""
    caller = make_caller(proxy.url)
    await caller.open()
    proxy.cut_at_commit = cut

    await caller.run(add_once, "a")

    assert proxy.cuts == 1
    assert stranger.rows() == {"a": 1}


@pytest.mark.parametrize(("cut", "rows"), [("before", {}), ("after", {"a": 1})])
async def test_a_lost_commit_of_any_other_operation_is_an_unknown_outcome(
    make_caller: MakeCaller, proxy: FaultProxy, stranger: Stranger, cut: Any, rows: dict[str, int]
) -> None:
    """F-16, I-55."""
    caller = make_caller(proxy.url)
    await caller.open()
    proxy.cut_at_commit = cut

    with pytest.raises(UnknownOutcome, match="wholly or not at all"):
        await caller.run(add, "a")

    await until(lambda: stranger.rows() == rows, f"the table holds {rows}")


async def test_a_lost_commit_stays_unknown_if_the_server_does_not_come_back(
    make_caller: MakeCaller, proxy: FaultProxy
) -> None:
    """F-16."""
    caller = make_caller(proxy.url, deadline_seconds=1)
    await caller.open()

    async def fall_silent_at_the_end(tx: Tx) -> None:
        await add_once(tx, "a")
        proxy.fall_silent()

    fall_silent_at_the_end.__dict__["repeatable"] = True
    with pytest.raises(UnknownOutcome):
        await caller.run(fall_silent_at_the_end)


async def test_a_read_whose_commit_is_lost_is_just_read_again(make_caller: MakeCaller, proxy: FaultProxy) -> None:
    """F-16."""

    async def count_twice(tx: Tx) -> int:
        return await count(tx) + await count(tx)

    caller = make_caller(proxy.url)
    await caller.run(add, "a")
    proxy.cut_at_commit = "after"

    assert await caller.read(count_twice) == 2
    assert proxy.cuts == 1


async def test_a_constraint_that_is_checked_at_commit_is_no_unknown_outcome(
    make_caller: MakeCaller, stranger: Stranger
) -> None:
    stranger.do("ALTER TABLE sample ADD UNIQUE (amount) DEFERRABLE INITIALLY DEFERRED")
    caller = make_caller()
    await caller.run(add, "a")

    with pytest.raises(StoreError, match="duplicate key") as caught:
        await caller.run(add, "b")

    assert not isinstance(caught.value, UnknownOutcome)
    assert stranger.rows() == {"a": 1}


async def test_idle_connections_that_were_killed_do_not_surface(make_caller: MakeCaller, stranger: Stranger) -> None:
    """F-15."""
    caller = make_caller()
    await asyncio.gather(*(caller.run(add, name) for name in "abcd"))
    kill_ours(stranger)

    await asyncio.gather(*(caller.run(add, name) for name in "efgh"))

    assert stranger.rows().keys() == set("abcdefgh")


def kill_ours(stranger: Stranger) -> None:
    stranger.ask(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'holdfast'"
    )


async def test_a_connection_killed_before_its_commit_runs_the_operation_again(
    make_caller: MakeCaller, stranger: Stranger
) -> None:
    """F-15."""
    runs: list[int] = []

    async def be_killed(tx: Tx) -> None:
        runs.append(1)
        await add(tx, "a")
        if len(runs) == 1:
            kill_ours(stranger)
        await tx.execute("UPDATE sample SET amount = 2")

    await make_caller().run(be_killed)

    assert stranger.rows() == {"a": 2}
    assert len(runs) == 2


async def test_all_connections_reset_at_once_do_not_surface(make_caller: MakeCaller, proxy: FaultProxy) -> None:
    """F-15."""
    caller = make_caller(proxy.url)
    await asyncio.gather(*(caller.run(add, name) for name in "abcd"))
    proxy.cut()

    await asyncio.gather(*(caller.run(add, name) for name in "efgh"))

    assert await caller.read(count) == 8


async def test_a_server_that_became_read_only_is_unavailable(make_caller: MakeCaller) -> None:
    """F-20."""

    async def write_read_only(tx: Tx) -> None:
        await tx.execute("SET TRANSACTION READ ONLY")
        await add(tx, "a")

    with pytest.raises(Unavailable, match="read-only"):
        await make_caller(deadline_seconds=2.5).run(write_read_only)


async def test_a_server_that_is_read_only_is_unavailable(make_caller: MakeCaller, samples_url: str) -> None:
    """F-20."""
    caller = make_caller(f"{samples_url}?options=-c%20default_transaction_read_only%3Don", deadline_seconds=2.5)

    with pytest.raises(Unavailable, match="read-only"):
        await caller.run(add, "a")


async def test_a_row_that_somebody_holds_is_busy(make_caller: MakeCaller, samples_url: str) -> None:
    """F-26."""
    caller = make_caller(deadline_seconds=1)
    await caller.run(add, "a")

    with psycopg.connect(samples_url) as other:
        other.execute("SELECT 1 FROM sample FOR UPDATE")
        with pytest.raises(Busy, match="another transaction"):
            await caller.run(bump)


async def bump(tx: Tx) -> None:
    await tx.execute("UPDATE sample SET amount = amount + 1")


async def test_a_statement_that_takes_too_long_is_unavailable(make_caller: MakeCaller) -> None:
    """F-26."""
    caller = make_caller(deadline_seconds=1)
    await caller.open()

    with pytest.raises(Unavailable):
        await caller.run(ask, "SELECT 1 FROM pg_sleep(5)")


async def test_an_error_of_the_operation_rolls_back_and_is_passed_on(
    make_caller: MakeCaller, stranger: Stranger
) -> None:
    async def think_better_of_it(tx: Tx) -> None:
        await add(tx, "a")
        raise LookupError("no")

    caller = make_caller(pool_size=1)
    with pytest.raises(LookupError):
        await caller.run(think_better_of_it)

    assert stranger.rows() == {}
    await caller.run(add, "b")


async def test_an_operation_may_not_go_on_after_an_error(make_caller: MakeCaller, stranger: Stranger) -> None:
    async def swallow(tx: Tx) -> None:
        with pytest.raises(psycopg.Error):
            await tx.execute("INSERT INTO sample (id, amount) VALUES ('a', -1)")

    with pytest.raises(RuntimeError, match="may not go on"):
        await make_caller().run(swallow)

    assert stranger.rows() == {}


async def test_a_mistake_in_our_sql_is_shown_as_it_is(make_caller: MakeCaller) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        await make_caller().run(ask, "SELECT 1 FROM nowhere")


async def test_a_wrong_password_is_told_at_once_and_not_shown(make_caller: MakeCaller, samples_url: str) -> None:
    """F-25."""
    parts = urlsplit(samples_url)
    url = parts._replace(netloc=f"postgres:so-secret@{parts.hostname}:{parts.port}").geturl()
    caller = make_caller(url, deadline_seconds=100)

    started = time.monotonic()
    with pytest.raises(Unavailable, match="authentication failed") as caught:
        await caller.open()

    assert time.monotonic() - started < 50
    assert "so-secret" not in f"{caught.value} {caught.value.__cause__}"


async def test_an_unknown_database_is_told_at_once(make_caller: MakeCaller, samples_url: str) -> None:
    """F-25."""
    caller = make_caller(urlsplit(samples_url)._replace(path="/nowhere").geturl())

    with pytest.raises(Unavailable, match='"nowhere" does not exist'):
        await caller.open()


def test_an_address_that_cannot_be_read_is_not_shown(make_store: MakeStore) -> None:
    with pytest.raises(InvalidSettings, match="percent-encode") as caught:
        make_store("postgresql://me:so%zzsecret@localhost/app")

    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_a_database_without_our_schema_says_what_to_run(make_caller: MakeCaller) -> None:
    """F-25."""
    caller = make_caller(schema_name="not_migrated")

    with pytest.raises(NotMigrated, match="holdfast migrate"):
        await caller.run(add, "a")


async def test_two_that_migrate_at_once_both_succeed(make_store: MakeStore, stranger: Stranger) -> None:
    """F-25."""
    stranger.do("DROP SCHEMA IF EXISTS twice CASCADE")
    stores = [make_store(schema_name="twice") for _ in range(4)]

    taken = await asyncio.gather(
        *(store.migrate() for store in stores[:2]),
        *(asyncio.to_thread(store.migrate_sync) for store in stores[2:]),
    )

    steps = [name for each in taken for name in each]
    assert steps
    assert len(set(steps)) == len(steps)
    await stores[0].open()


async def test_a_pool_that_stays_empty_says_so(make_caller: MakeCaller) -> None:
    """F-24."""
    caller = make_caller(pool_size=1, deadline_seconds=1)
    holding, released = threading.Event(), threading.Event()

    async def hold(tx: Tx) -> None:
        holding.set()
        while caller.is_async and not released.is_set():
            await asyncio.sleep(0.01)
        released.wait(10)

    holder = asyncio.create_task(caller.run(hold))
    await until(holding.is_set, "the only connection is in use")
    with pytest.raises(Unavailable, match=r"all 1 connections were in use for 1 s; raise pool_size"):
        await caller.run(add, "a")

    released.set()
    await asyncio.wait((holder,))
    assert isinstance(holder.exception(), StoreError)
    await caller.run(add, "b")


async def test_round_trips_are_counted(make_caller: MakeCaller, proxy: FaultProxy) -> None:
    caller = make_caller(proxy.url, pool_size=1)
    await caller.open()

    proxy.round_trips = 0
    await caller.run(add, "a")
    assert proxy.round_trips == 4  # BEGIN, two statements, COMMIT

    proxy.round_trips = 0
    await caller.read(count)
    assert proxy.round_trips == 1


async def test_a_read_of_two_statements_has_one_view(make_caller: MakeCaller, stranger: Stranger) -> None:
    async def count_twice(tx: Tx) -> tuple[int, int]:
        before = await count(tx)
        stranger.do(f"INSERT INTO sample VALUES ('{len(stranger.rows())}', 1)")
        return before, await count(tx)

    caller = make_caller()
    for _ in range(2):
        before, after = await caller.read(count_twice)
        assert before == after


async def test_a_read_may_not_write_over_a_view(make_caller: MakeCaller, stranger: Stranger) -> None:
    async def write_second(tx: Tx) -> None:
        await count(tx)
        await add(tx, "a")

    with pytest.raises(Unavailable, match="read-only"):
        await make_caller(deadline_seconds=2.5).read(write_second)

    assert stranger.rows() == {}


async def test_an_outage_is_logged_once_and_so_is_its_end(
    make_store: MakeStore, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """F-18."""
    store = make_store(proxy.url, deadline_seconds=1)
    await store.open()
    proxy.fall_silent()
    for name in "ab":
        with pytest.raises(Unavailable):
            await store.run(add, name)
    proxy.speak()
    await store.run(add, "d")
    await store.run(add, "e")

    events = [name_of(record) for record in caplog.records if record.name.startswith("holdfast")]
    assert events == ["database_unavailable", "database_available"]


@pytest.fixture
def latin_url(samples_url: str) -> Iterator[str]:
    """A database that has only some characters."""
    with psycopg.connect(samples_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        yield urlsplit(samples_url)._replace(path="/latin").geturl()
        connection.execute("DROP DATABASE latin WITH (FORCE)")


async def test_a_database_that_cannot_hold_every_text_is_refused(make_caller: MakeCaller, latin_url: str) -> None:
    with pytest.raises(StoreError, match="LATIN1"):
        await make_caller(latin_url).open()


def test_a_pooler_that_is_not_told_of_is_named() -> None:
    trouble = diagnose(psycopg.OperationalError("FATAL:  unsupported startup parameter: options"))

    assert "transaction_pooler=True" in str(failure(trouble, "unsupported startup parameter"))


@pytest.mark.parametrize("text", ["FATAL:  SASL authentication failed", "FATAL:  no such user: app"])
def test_a_pooler_that_refuses_us_is_not_asked_again(text: str) -> None:
    assert diagnose(psycopg.OperationalError(f"connection failed: {text}")) is Trouble.REFUSED


def test_two_answers_to_one_commit_are_a_connection_that_is_lost() -> None:
    """F-16."""
    assert diagnose(psycopg.InternalError("received 2 results from command 'COMMIT'")) is Trouble.LOST
