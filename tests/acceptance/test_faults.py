"""Faults of the catalogue that a worker has to live through: what waits, goes on; nobody is blamed or robbed for it.

Each test carries the number of its fault. Workers run in this process where the fault allows it, for that is quicker;
signals and deaths take real ones.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, Tasks
from holdfast.database.postgres import pool
from holdfast.errors import StoreError, Unavailable
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import Want
from holdfast.worker.upkeep import reaper
from tests.acceptance.hall import (
    GATE_KEY,
    Crowd,
    Hall,
    NewHoldfast,
    counts,
    deadlocks,
    disconnect_all,
    messages,
    reaped,
    rows,
    sit,
    until_counts,
    until_past,
    waiting_for_gate,
)
from tests.acceptance.jobs_of_tests import TASKS, quick
from tests.acceptance.processes import until as wait_until
from tests.acceptance.scene import Scene
from tests.conftest import SCHEMA
from tests.support.conditions import until
from tests.support.faults.fault_proxy import FaultProxy
from tests.support.faults.taken_files import take_away

LEASE = 1.0

# an outage much shorter than the leases, and one so long that whoever reaps has seen it for what it was
OUTAGES = pytest.mark.parametrize(("lease", "seconds"), [(5.0, 0.6), pytest.param(1.0, 7.0, marks=pytest.mark.long)])


@pytest.mark.source("DF-20")
async def test_handlers_that_hold_every_connection_cost_no_lease_and_no_cancel(
    new_holdfast: NewHoldfast, empty_url: str
) -> None:
    """F-24, I-33, I-51: claims wait; renewal and cancel go on."""
    lease = 2.0
    hall = Hall(lease)

    @hall.tasks.task(name="sits", lease=lease)
    async def sits() -> None:
        await hf.store.run(sit)

    hf = new_holdfast("postgres", tasks=[hall.tasks], pool_size=2)
    beside = new_holdfast("postgres", tasks=[hall.tasks])
    with psycopg.connect(empty_url, autocommit=True) as person:
        person.execute("SELECT pg_advisory_lock(%s)", [GATE_KEY])
        async with beside, hf, hf.worker(poll=0.1):
            victim = await beside.start(hall.waits())
            await until(lambda: hall.begun == [victim.id], "the first handler runs")
            await beside.start_many([sits(), sits()])
            await until(lambda: waiting_for_gate(person) == 2, "handlers hold both connections")

            late = await beside.start(hall.waits())
            await beside.cancel(victim)
            await until(lambda: victim.id in hall.stopped, "the cancel was heard", 3)
            await until_past(1.2 * lease)
            leased = await rows(beside, "SELECT count(*) FROM holdfast_job WHERE lease_until > $now")
            begun = list(hall.begun)

            person.execute("SELECT pg_advisory_unlock(%s)", [GATE_KEY])
            hall.gate.set()
            await until_counts(beside, completed=3, cancelled=1)

    assert leased == [(3,)]
    assert late.id not in begun
    assert hall.begun == [victim.id, late.id]
    assert await reaped(beside) == 0


@pytest.mark.parametrize("name", ["", "-wal", "-shm"])
@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_nothing_is_written_when_a_file_of_the_database_is_not_the_one_that_was_opened(
    name: str, what: str, new_holdfast: NewHoldfast, tmp_path: Path
) -> None:
    """F-36: a typed error names the file; once it is put back, all goes on, and nothing is missing."""
    hall = Hall()
    hf = new_holdfast("sqlite", tasks=[hall.tasks])
    kept = hf.sync.start(hall.waits())
    file = tmp_path / f"jobs.db{name}"
    file.rename(tmp_path / "moved")
    if what == "replaced":
        file.write_bytes(b"")

    for _ in range(2):
        with pytest.raises(Unavailable, match=rf"{file.name} was removed or replaced while in use"):
            hf.sync.start(hall.waits())

    (tmp_path / "moved").replace(file)
    added = hf.sync.start(hall.waits())
    hf.sync.close()
    with sqlite3.connect(tmp_path / "jobs.db") as other:
        found = {id_ for (id_,) in other.execute("SELECT id FROM holdfast_job")}
        intact = other.execute("PRAGMA integrity_check").fetchall()
    other.close()
    assert found == {str(kept.id), str(added.id)}
    assert intact == [("ok",)]


def test_a_store_that_is_opened_anew_takes_the_files_as_they_are(new_holdfast: NewHoldfast, tmp_path: Path) -> None:
    """F-36: what was refused for a removed -wal is not refused for ever."""
    hall = Hall()
    hf = new_holdfast("sqlite", tasks=[hall.tasks])
    hf.sync.start(hall.waits())
    (tmp_path / "jobs.db-wal").unlink()
    with pytest.raises(Unavailable):
        hf.sync.start(hall.waits())
    hf.sync.close()

    hf.sync.start(hall.waits())

    assert len(hf.sync.list_jobs().items) == 2


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_lock_file_is_made_anew_and_proves_nothing(what: str, new_holdfast: NewHoldfast, tmp_path: Path) -> None:
    """F-36: two who write at once still do so one after the other."""
    hall = Hall()
    faces = [new_holdfast("sqlite", tasks=[hall.tasks]).sync for _ in range(2)]
    for face in faces:
        face.start(hall.waits())
    lock = tmp_path / "jobs.db-holdfast-lock"
    lock.unlink()
    if what == "replaced":
        lock.touch()

    for face in faces:
        face.start_many([hall.waits() for _ in range(10)])

    assert len(faces[0].list_jobs().items) == 22
    assert lock.read_text().strip() == str(os.getpid())


@pytest.mark.parametrize("name", ["", "-wal"])
async def test_a_worker_whose_files_are_gone_says_so_stops_writing_and_goes_on_when_they_are_back(
    name: str, new_holdfast: NewHoldfast, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F-36."""
    hall = Hall()
    hf = new_holdfast("sqlite", tasks=[hall.tasks])
    file = tmp_path / f"jobs.db{name}"
    async with hf, hf.worker(poll=0.1):
        chain = await hf.start(hall.waits())
        await until(lambda: hall.begun == [chain.id], "the handler runs")
        take_away(hf.store, file, tmp_path / "moved")
        hall.gate.set()
        await until(lambda: "worker_store_trouble" in messages(caplog), "the worker says that it cannot write")
        is_made_anew = file.exists()

        (tmp_path / "moved").replace(file)
        await until_counts(hf, completed=1)

    assert not is_made_anew


@contextmanager
def read_only(url: str) -> Iterator[None]:
    """Make the database refuse to be written, as a server does that has become a standby."""
    with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as person:
        name = person.info.dbname
        person.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        disconnect_all(person)
        try:
            yield
        finally:
            person.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
            disconnect_all(person)


async def test_a_server_that_is_read_only_for_a_while_costs_no_job_an_attempt(
    new_holdfast: NewHoldfast, empty_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F-20, P-25: it is as if it were down; nothing is the job's fault, nothing stays half locked."""
    hall = Hall()
    hf = new_holdfast("postgres", tasks=[hall.tasks], deadline_seconds=1)
    async with hf, hf.worker(poll=0.1):
        early = await hf.start_many([hall.waits() for _ in range(5)])
        await until(lambda: len(hall.begun) == 5, "the handlers run")
        with read_only(empty_url):
            hall.gate.set()
            with pytest.raises(StoreError):  # what had been sent on a connection that was cut is in doubt
                await hf.start(hall.waits())
            with pytest.raises(Unavailable, match="read-only"):
                await hf.start(hall.waits())
            await until(lambda: "worker_store_trouble" in messages(caplog), "the worker says that it cannot write")
        late = await hf.start(hall.waits())
        await until_counts(hf, completed=6)

    found = [await hf.get_job(chain) for chain in (*early, late)]
    assert {(job.error, job.used) for job in found} == {(None, 1)}
    await hf.close()


@contextmanager
def role(url: str) -> Iterator[tuple[psycopg.Connection[Any], str]]:
    """Make a user with the rights of ours whose connections can be limited; give a person and the user's name."""
    name = f"limited_{secrets.token_hex(4)}"  # users belong to the whole server, on which other tests run too
    with psycopg.connect(url, autocommit=True) as person:
        person.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'limited' IN ROLE {person.info.user}")
        try:
            yield person, name
        finally:
            disconnect_all(person)
            person.execute(f"DROP ROLE {name}")


def url_of(name: str, proxy: FaultProxy, person: psycopg.Connection[Any]) -> str:
    """Give the address by which user *name* comes through *proxy*."""
    return proxy.url.replace(f"//{person.info.user}:{person.info.password}@", f"//{name}:limited@")


async def test_too_many_connections_are_told_and_not_tried_without_pause(empty_url: str) -> None:
    """F-25: a clear error, no tight loop; when there is room again, work goes on."""
    hall = Hall()
    with role(empty_url) as (person, name), FaultProxy(empty_url) as proxy:
        hf = Holdfast(url_of(name, proxy, person), schema_name=SCHEMA, tasks=[hall.tasks], deadline_seconds=1)
        async with hf, hf.worker(poll=0.1):
            await hf.start(hall.waits())
            await until(lambda: len(hall.begun) == 1, "the handler runs")
            person.execute(f"ALTER ROLE {name} CONNECTION LIMIT 0")
            disconnect_all(person)
            proxy.accepted = 0
            hall.gate.set()

            with pytest.raises(StoreError):  # what had been sent on a connection that was cut is in doubt
                await hf.start(hall.waits())
            with pytest.raises(Unavailable, match="too many connections"):
                await hf.start(hall.waits())
            tried = proxy.accepted

            person.execute(f"ALTER ROLE {name} CONNECTION LIMIT -1")
            await hf.start(hall.waits())
            await until_counts(hf, completed=2)

    assert 0 < tried < 200


async def test_a_password_that_is_changed_under_a_worker_is_told_and_not_tried_without_pause(empty_url: str) -> None:
    """F-25: to try again would not help, and still the worker goes on once the password is the right one again."""
    hall = Hall()
    with role(empty_url) as (person, name), FaultProxy(empty_url) as proxy:
        hf = Holdfast(url_of(name, proxy, person), schema_name=SCHEMA, tasks=[hall.tasks], deadline_seconds=1)
        async with hf, hf.worker(poll=0.1):
            await hf.start(hall.waits())
            await until(lambda: len(hall.begun) == 1, "the handler runs")
            person.execute(f"ALTER ROLE {name} PASSWORD 'another'")
            disconnect_all(person)
            proxy.accepted = 0
            hall.gate.set()

            with pytest.raises(StoreError):  # what had been sent on a connection that was cut is in doubt
                await hf.start(hall.waits())
            with pytest.raises(Unavailable, match="password") as refused:
                await hf.start(hall.waits())
            await until_past(1)
            tried = proxy.accepted

            person.execute(f"ALTER ROLE {name} PASSWORD 'limited'")
            await hf.start(hall.waits())
            await until_counts(hf, completed=2)

    assert ":limited" not in str(refused.value)
    assert 0 < tried < 200


@OUTAGES
async def test_a_person_who_locks_the_whole_table_robs_nobody(
    lease: float, seconds: float, new_holdfast: NewHoldfast, empty_url: str
) -> None:
    """F-26, I-22: claims stop, renewals repeat; no mass failure, no mass reap, even if it outlasts the leases."""
    hall = Hall(lease)
    faces = [new_holdfast("postgres", tasks=[hall.tasks], deadline_seconds=1) for _ in range(2)]
    async with faces[0], faces[1], faces[0].worker(poll=0.1), faces[1].worker(poll=0.1):
        await faces[0].start_many([hall.waits() for _ in range(10)])
        await until(lambda: len(hall.begun) == 10, "the handlers run")

        async with await psycopg.AsyncConnection.connect(empty_url) as person:
            await person.execute(f"LOCK TABLE {SCHEMA}.holdfast_job IN ACCESS EXCLUSIVE MODE")
            await until_past(seconds)
        hall.gate.set()
        await until_counts(faces[0], completed=10)

    assert await reaped(faces[0]) == 0
    assert await rows(faces[0], "SELECT max(crashes), max(used) FROM holdfast_job") == [(0, 1)]
    assert set(hall.stopped.values()) <= ({"error"} if seconds > lease else set())
    await faces[0].close()


@OUTAGES
async def test_a_program_that_sits_on_the_write_lock_past_the_leases_robs_nobody(
    lease: float, seconds: float, new_holdfast: NewHoldfast, tmp_path: Path
) -> None:
    """F-31, I-20, I-22: it is an outage for all; no handler is stopped, and no lease is stolen after it."""
    hall = Hall(lease)
    faces = [new_holdfast("sqlite", tasks=[hall.tasks], deadline_seconds=0.5) for _ in range(2)]
    async with faces[0], faces[1], faces[0].worker(poll=0.1), faces[1].worker(poll=0.1):
        await faces[0].start_many([hall.waits() for _ in range(5)])
        await until(lambda: len(hall.begun) == 5, "the handlers run")

        stranger = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        stranger.execute("BEGIN IMMEDIATE")
        await until_past(seconds)
        readable = await counts(faces[0])
        stranger.close()
        hall.gate.set()
        await until_counts(faces[0], completed=5)

    assert readable == {"running": 5}
    assert hall.stopped == {}
    assert len(hall.begun) == 5
    assert await reaped(faces[0]) == 0
    await faces[0].close()


@pytest.mark.long
async def test_a_herd_of_workers_runs_a_thousand_jobs_that_are_due_at_once(
    new_holdfast: NewHoldfast, empty_url: str
) -> None:
    """F-43, small; P-24: nothing is claimed beyond the free slots; P-26: nobody deadlocks."""
    before = deadlocks(empty_url)
    tasks = Tasks()
    ran: list[int] = []

    @tasks.task(name="one_of_many")
    async def one_of_many(n: int) -> None:
        await asyncio.sleep(0)
        ran.append(n)

    faces = [new_holdfast("postgres", tasks=[tasks], pool_size=2) for _ in range(12)]
    for face in faces:
        await face.open()
    await faces[0].start_many([one_of_many(n=n).options(delay=1) for n in range(1000)])
    crowds = [Crowd() for _ in faces]
    herd = [face.worker(concurrency=5, poll=0.2, middleware=[crowd]) for face, crowd in zip(faces, crowds, strict=True)]
    for worker in herd:
        await worker.__aenter__()
    await until_counts(faces[0], 60, completed=1000)
    await asyncio.gather(*(worker.stop() for worker in herd))

    assert sorted(ran) == list(range(1000))
    assert {crowd.most for crowd in crowds} <= {0, 1, 2, 3, 4, 5}
    for face in faces:
        await face.close()
    assert deadlocks(empty_url) == before


@pytest.mark.long
async def test_connections_that_are_replaced_all_the_time_hold_up_neither_recovery_nor_hints(
    new_holdfast: NewHoldfast, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-54, I-22, I-25: no call finds an old connection, LISTEN is cut each second; a dead worker's job still moves."""
    monkeypatch.setattr(pool, "LIFETIME_SECONDS", 0.0)
    monkeypatch.setattr(reaper, "PERIOD_SECONDS", 0.5)
    hall = Hall(LEASE)
    hall.gate.set()
    hf = new_holdfast("postgres", tasks=[hall.tasks])
    async with hf:
        lost = await hf.start(hall.waits())
        claims = await hf.store.run(
            claiming.admit_and_claim, [Want("default", "waits", round(LEASE * 1000))], 1, "dead", "nonce"
        )
        assert [each.id for each in claims.jobs] == [str(lost.id)]
        async with hf.worker(poll=30):
            with psycopg.connect(empty_url, autocommit=True) as person:
                for _ in range(3):
                    person.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
                    )
                    await until_past(1)
            await lost.result(timeout=5)
            fresh = await hf.start(hall.waits())
            await fresh.result(timeout=5)

    assert hall.begun == [lost.id, fresh.id]
    assert await reaped(hf) == 1
    await hf.close()


POINTS_OF_SIGNALS = [
    "exchanging.exchange.before_commit:1",
    "exchanging.exchange.after_commit:1",
    "claim.before_handler:1",
    "exchanging.exchange.before_commit:2",
    "exchanging.exchange.after_commit:2",
]


def signalled_at(always: str) -> list[object]:
    return [pytest.param(each, marks=[] if each == always else pytest.mark.long) for each in POINTS_OF_SIGNALS]


@pytest.mark.parametrize("stage_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("point", signalled_at("exchanging.exchange.after_commit:1"))
def test_a_signal_at_any_step_of_claim_and_dispatch_leaves_no_running_row(stage: Scene, point: str) -> None:
    """F-06, P-17, I-50."""
    stage.start(*[quick(n=n) for n in range(5)])
    worker = stage.worker("--grace", "5", waits=False, HOLDFAST_CRASH=f"{point}:delay=0.5")
    wait_until(lambda: "crash_point_reached" in worker.said, f"{point} is reached")

    worker.send(signal.SIGTERM)

    assert worker.exit_code(10) == 0, worker.said
    assert set(stage.statuses()) <= {"pending", "completed"}
    stage.worker()
    stage.until_all("completed")
    stage.assert_each_completed_once()


@pytest.mark.parametrize("stage_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("point", signalled_at("exchanging.exchange.before_commit:2"))
def test_a_second_signal_at_any_step_ends_the_process_at_once_and_loses_nothing(stage: Scene, point: str) -> None:
    """F-06."""
    stage.start(*[quick(n=n) for n in range(5)])
    worker = stage.worker("--grace", "60", waits=False, HOLDFAST_CRASH=f"{point}:stop=0.5")
    wait_until(lambda: "crash_point_reached" in worker.said, f"{point} is reached")

    worker.send(signal.SIGTERM)
    wait_until(lambda: "worker_drains" in worker.said or not worker.is_alive, "the worker drains")
    worker.send(signal.SIGTERM)

    assert worker.exit_code(5) in (0, 143, -signal.SIGTERM), worker.said
    stage.worker()
    stage.until_all("completed")
    stage.assert_each_completed_once()


def test_a_start_while_the_database_cannot_be_had_is_a_store_error(tmp_path: Path) -> None:
    """F-18: the caller is told within the deadline, and by a type that he can act on."""
    hf = Holdfast("postgresql://nobody:nothing@127.0.0.1:9/none", tasks=[TASKS], deadline_seconds=0.5)
    began = time.monotonic()

    with pytest.raises(StoreError):
        hf.sync.start(quick())

    assert time.monotonic() - began < 4.5  # and not by the usual deadline
    hf.sync.close()


async def test_an_outage_shorter_than_the_longest_margin_robs_no_short_lease(
    new_holdfast: NewHoldfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-31, I-22: the margin of a lease of 1 s is a sixth of it, so 3 s are an outage for its reaper."""
    monkeypatch.setattr(reaper, "PERIOD_SECONDS", 0.05)
    hall = Hall(1.0)
    faces = [new_holdfast("sqlite", tasks=[hall.tasks], deadline_seconds=0.3) for _ in range(2)]
    async with faces[0], faces[1], faces[0].worker(poll=0.1), faces[1].worker(poll=0.1):
        await faces[0].start_many([hall.waits() for _ in range(5)])
        await until(lambda: len(hall.begun) == 5, "the handlers run")

        stranger = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        stranger.execute("BEGIN IMMEDIATE")
        await until_past(3)
        stranger.close()
        await until_past(0.5)
        hall.gate.set()
        await until_counts(faces[0], completed=5)

    assert await reaped(faces[0]) == 0
    assert hall.stopped == {}
    await faces[0].close()
