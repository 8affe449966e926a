"""The face of a tenant is the same face on another place, and on no other."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from holdfast import (
    ChainNotFound,
    Context,
    Holdfast,
    InvalidInput,
    JobNotFound,
    TenantNotFound,
    TenantSuspended,
    WrongConnection,
)
from holdfast.client import tenant_store
from holdfast.database.tx import Store
from holdfast.logging import JobFilter
from holdfast.sync import Context as BlockingContext
from tests.support.conditions import until
from tests.support.factories import add, greet, make_job
from tests.support.ways import Way
from tests.tenants import application
from tests.tenants.conftest import Control

VERBS: dict[str, Callable[[Way, Any], Any]] = {
    "start": lambda way, _: way.face.start(greet(name="Ada")),
    "start_many": lambda way, _: way.face.start_many([greet(name="Ada"), add(a=1, b=2)]),
    "start_again": lambda way, job: way.face.start_again(job),
    "start_again_many": lambda way, job: way.face.start_again_many([job]),
    "start_bulk": lambda way, _: way.face.start_bulk("cancel", task="greet"),
}


async def test_tenants_share_nothing(control: Control) -> None:
    """I-52."""
    for name in ("acme", "beta"):
        await control.tenants.create(name)
    acme, beta = control.way("acme"), control.way("beta")
    id_ = uuid4()
    one = await acme.face.start(greet(name="Ada"), id=id_, unique="key", lane="lane")
    await acme.face.start(greet(name="Bob"), lane="lane")

    assert (await beta.face.list_jobs()).items == ()
    with pytest.raises(JobNotFound):
        await beta.face.get_job(one)
    with pytest.raises(ChainNotFound):
        await beta.face.get_chain(one)
    other = await beta.face.start(greet(name="Cid"), id=id_, unique="key", lane="lane")
    assert not other.deduplicated
    await beta.face.cancel(other)
    assert (await acme.face.get_job(id_)).status == "pending"
    assert [len((await way.face.list_jobs()).items) for way in (acme, beta)] == [2, 1]
    plain = control.hf if control.is_async else None
    if plain is not None:
        assert (await plain.list_jobs()).items == ()


async def test_a_face_is_made_once_and_says_whose_it_is(control: Control) -> None:
    acme = control.hf.tenant("acme")

    assert control.hf.tenant("acme") is acme
    assert control.hf.sync.tenant("acme") is acme.sync
    assert acme.tasks is control.hf.tasks
    assert ", tenant acme, " in repr(acme)
    assert acme._starter.tenant.name == "acme"
    assert control.hf._starter.tenant.name is None
    for name in ("../x", 'a"b', "Acme", "", "a" * 32):
        with pytest.raises(InvalidInput, match="the name of a tenant"):
            control.hf.tenant(name)


@pytest.mark.parametrize("verb", ["start", "start_many", "start_bulk"])
async def test_a_tenant_that_is_not_there_is_found_by_no_verb(control: Control, verb: str) -> None:
    way = control.way("nobody")

    for call in (VERBS[verb](way, uuid4()), way.face.get_job(uuid4()), way.face.list_jobs(), way.face.open()):
        with pytest.raises(TenantNotFound, match="there is no tenant 'nobody'"):
            await call


@pytest.mark.parametrize("verb", VERBS)
async def test_nothing_is_started_in_a_suspended_tenant(control: Control, verb: str) -> None:
    await control.tenants.create("acme")
    way = control.way("acme")
    job = await make_job(way, "completed")
    await way.face.list_jobs()
    await control.tenants.suspend("acme", by="ada", why="unpaid")
    statements = Counted(way.hf.store.place, control.hf.store)  # type: ignore[attr-defined]

    with statements, pytest.raises(TenantSuspended, match=r"was suspended by ada \(unpaid\)") as raised:
        await VERBS[verb](way, job)

    assert statements.count == 0
    assert (raised.value.code, raised.value.http_status) == ("tenant_suspended", 409)
    assert (raised.value.by, raised.value.why) == ("ada", "unpaid")
    assert len((await way.face.list_jobs()).items) == 1
    await control.tenants.resume("acme")
    await VERBS[verb](way, job)


class Counted:
    """Counts what is asked of stores."""

    METHODS = ("run", "run_sync", "read", "read_sync", "gather", "gather_sync", "begin", "begin_sync")

    def __init__(self, *stores: Store) -> None:
        self._stores: tuple[Any, ...] = stores
        self.count = 0

    def __enter__(self) -> None:
        for store in self._stores:
            for name in self.METHODS:
                setattr(store, name, self._counting(getattr(store, name)))

    def __exit__(self, *_: object) -> None:
        for store in self._stores:
            for name in self.METHODS:
                delattr(store, name)

    def _counting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return method(*args, **kwargs)

        return call


async def test_what_waits_in_a_suspended_tenant_can_be_read_and_steered(control: Control) -> None:
    await control.tenants.create("acme")
    way = control.way("acme")
    jobs = await way.face.start_many([greet(name=name) for name in "abc"])
    await control.tenants.suspend("acme")

    await way.face.cancel(jobs[0])
    await way.face.pause(jobs[1])
    await way.face.complete(greet, jobs[2], "by hand")
    statuses = {str(each.id): str(each.status) for each in (await way.face.list_jobs()).items}
    assert [statuses[str(each.id)] for each in jobs] == ["cancelled", "paused", "completed"]


async def test_another_process_notices_within_five_seconds(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    await control.tenants.create("acme")
    way = control.way("acme")
    await way.face.start(greet(name="Ada"))
    control.again().sync.tenants.suspend("acme")
    await way.face.start(greet(name="Bob"))  # it is not known here yet
    registry = control.hf._tenant_faces.registry
    monotonic = registry._monotonic

    monkeypatch.setattr(registry, "_monotonic", lambda: monotonic() + tenant_store.KEPT_SECONDS)

    with pytest.raises(TenantSuspended):
        await way.face.start(greet(name="Cid"))


async def test_a_start_commits_with_the_callers_data(control: Control, request: pytest.FixtureRequest) -> None:
    for name in ("acme", "beta"):
        await control.tenants.create(name)
    way = control.way("acme")
    if control.database == "postgres":
        await start_over_postgres(control, way, request.getfixturevalue("control_url"))
    elif not control.is_async:
        start_over_sqlite(control, way)


async def start_over_postgres(control: Control, way: Way, url: str) -> None:
    """Use any connection to the database: the statements name the schema."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        with psycopg.connect(url) as blocking:
            mine: Any = connection if control.is_async else blocking
            await way.face.open()
            await begin(mine)
            one = await way.face.start(greet(name="Ada"), connection=mine)
            assert (await way.face.list_jobs()).items == ()
            await (connection.rollback() if control.is_async else asyncio.to_thread(blocking.rollback))
            await begin(mine)
            two = await way.face.start(greet(name="Ada"), connection=mine)
            await (connection.commit() if control.is_async else asyncio.to_thread(blocking.commit))
            assert [each.id for each in (await way.face.list_jobs()).items] == [two.id]
            assert one.id != two.id
            assert (await control.way("beta").face.list_jobs()).items == ()
            await control.tenants.suspend("acme")
            await begin(mine)
            with pytest.raises(TenantSuspended):
                await way.face.start(greet(name="Ada"), connection=mine)


async def begin(connection: Any) -> None:
    begun = connection.execute("SELECT 1")
    if inspect.isawaitable(begun):
        await begun


def start_over_sqlite(control: Control, way: Way) -> None:
    """Use a connection to the tenant's own file."""
    face = way.hf.sync
    face.open()
    control.hf.tenant("beta").sync.open()
    with closing(sqlite3.connect(face.database, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        chain = face.start(greet(name="Ada"), connection=connection)
        connection.execute("COMMIT")
        assert [each.id for each in face.list_jobs().items] == [chain.id]
    for other in (control.hf.settings.database, control.hf.tenant("beta").database):
        with closing(sqlite3.connect(other, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(WrongConnection, match=rf"connect to the file {re.escape(face.database)} "):
                face.start(greet(name="Ada"), connection=connection)
            connection.execute("ROLLBACK")


@pytest.fixture(params=["sqlite", "postgres"])
async def hf(request: pytest.FixtureRequest, new_control: Callable[..., Holdfast]) -> Any:
    """A control place with the tenants acme and beta."""
    made = new_control(request.param)
    await made.migrate()
    for name in ("acme", "beta"):
        await made.tenants.create(name)
    yield made
    await made.close()


async def test_a_worker_of_a_tenant_runs_its_jobs_and_no_others(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    @hf.task
    async def whose(ctx: Context) -> str | None:
        logging.getLogger("app").warning("here")
        return ctx.tenant

    @hf.task
    def whose_in_thread(ctx: BlockingContext) -> str | None:
        logging.getLogger("app").warning("here")
        return str(ctx.tenant)

    caplog.handler.addFilter(JobFilter())
    acme, beta = hf.tenant("acme"), hf.tenant("beta")
    left = await beta.start(whose())
    async with acme.worker(poll=0.1):
        assert await (await acme.start(whose())).result(timeout=20) == "acme"
        assert await (await acme.start(whose_in_thread())).result(timeout=20) == "acme"
    told = [each for each in caplog.records if each.name == "app"]
    assert [each.tenant for each in told] == ["acme", "acme"]  # type: ignore[attr-defined]
    assert (await beta.get_job(left)).status == "pending"
    async with hf.worker(poll=0.1):
        assert await (await hf.start(whose())).result(timeout=20) is None
    told = [each for each in caplog.records if each.name == "app"]
    assert told[-1].tenant is None  # type: ignore[attr-defined]


async def test_what_a_handler_starts_in_another_tenant_has_no_parent_there(hf: Holdfast) -> None:
    """The id of the handler's job is nobody's in that tenant's place."""
    acme, beta = hf.tenant("acme"), hf.tenant("beta")

    @hf.task
    async def start_in_both() -> list[str]:
        return [str((await face.start(greet(name="Ada"), paused=True)).id) for face in (acme, beta)]

    async with acme.worker(poll=0.1):
        parent = await acme.start(start_in_both())
        here, there = await parent.result(timeout=20)

    assert (await acme.get_job(here)).parent == parent.id
    assert (await beta.get_job(there)).parent is None


async def test_nothing_is_claimed_in_a_suspended_tenant_and_what_runs_ends(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    refused: list[str] = []

    @hf.task
    async def slow(ctx: Context) -> str:
        begun.set()
        await go_on.wait()
        async with ctx.complete() as tx:
            await tx.start(greet(name="from a block"))
            return tx.finish("done")

    for operation, instead in tenant_store.HELD.items():
        monkeypatch.setitem(tenant_store.HELD, operation, noted(instead, refused))
    acme = hf.tenant("acme")
    async with acme.worker(concurrency=3, poll=0.05):
        runs = await acme.start(slow())
        await begun.wait()
        waits = await acme.start(greet(name="Ada"), paused=True)
        await hf.tenants.suspend("acme")
        await acme.resume(waits)
        go_on.set()
        assert await runs.result(timeout=20) == "done"
        before = len(refused)
        await until(lambda: len(refused) >= before + 3, "the worker has asked for jobs")
        assert (await acme.get_job(waits)).status == "pending"

        await hf.tenants.resume("acme")
        assert await waits.result(timeout=20) == "Hello, Ada"
        after = len(refused)
        await (await acme.start(greet(name="Bob"))).result(timeout=20)
        assert len(refused) == after


def noted(operation: Callable[..., Any], notes: list[str]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        notes.append(operation.__name__)
        return await operation(*args, **kwargs)

    return call


async def test_a_worker_that_sleeps_hears_that_its_tenant_is_resumed(
    hf: Holdfast, new_control: Callable[..., Holdfast]
) -> None:
    """It would look by itself in half a minute; the one who resumes is another process."""
    acme, other = hf.tenant("acme"), new_control(hf.store.database)
    chain = await acme.start(greet(name="Ada"))
    await hf.tenants.suspend("acme")
    async with acme.worker(poll=30) as worker:
        await until(lambda: worker.health().is_alive if hasattr(worker.health(), "is_alive") else True, "it lives")
        await until(lambda: asleep(acme), "it sleeps")
        await other.tenants.resume("acme")
        assert await chain.result(timeout=20) == "Hello, Ada"
    await other.close()


async def asleep(hf: Holdfast) -> bool:
    async def read(tx: Any) -> bool:
        rows = await tx.fetch_all("SELECT 1 FROM holdfast_worker WHERE asleep_at IS NOT NULL")
        return bool(rows) or tx.database == "sqlite"

    return await hf.store.read(read)


@pytest.fixture(params=["sqlite", "postgres"])
async def in_children(
    request: pytest.FixtureRequest, new_control: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """An application that child processes find again, with the tenant acme."""
    made = new_control(request.param, tasks=[application.tasks])
    await made.migrate()
    await made.tenants.create("acme")
    monkeypatch.setenv("HOLDFAST_DATABASE", made.settings.database)
    monkeypatch.setenv("HOLDFAST_SCHEMA_NAME", made.settings.schema_name)
    monkeypatch.setattr(application, "hf", made, raising=False)
    yield made
    await made.close()


async def test_child_processes_are_told_whose_jobs_they_run(in_children: Holdfast) -> None:
    acme = in_children.tenant("acme")
    async with acme.worker(children=1, poll=0.1):
        whose, pid = await (await acme.start(application.whose())).result(timeout=60)
        chain = await acme.start(application.whose_async())
        assert await chain.result(timeout=60) == ("acme", pid)

    assert whose == "acme"
    assert pid != os.getpid()
    (entry,) = (await acme.journal(chain)).items
    assert entry.body == {"tenant": "acme"}


async def test_closing_closes_what_tenants_have(
    hf: Holdfast, new_threads: Callable[[], set[str]], request: pytest.FixtureRequest
) -> None:
    for name in ("acme", "beta"):
        face = hf.tenant(name)
        await face.start(greet(name="Ada"))
        face.sync.start(greet(name="Bob"))
        async with face.events(after=None):
            pass
    if hf.store.database == "postgres":
        assert count_connections(request) <= 2 * hf.settings.pool_size + 1

    await hf.close()
    hf.sync.close()

    if hf.store.database == "postgres":
        await until(lambda: count_connections(request) == 0, "every connection is closed")
    await until(lambda: not new_threads(), "no thread is left")
    assert len((await hf.tenant("acme").list_jobs()).items) == 2


def count_connections(request: pytest.FixtureRequest) -> int:
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast' AND datname = current_database()"
    with psycopg.connect(request.getfixturevalue("control_url")) as connection:
        row = connection.execute(sql).fetchone()
    assert row is not None
    return int(row[0])


async def test_a_worker_outlives_its_tenant_and_serves_it_when_it_is_made_again(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    acme = hf.tenant("acme")
    async with acme.worker(poll=0.05) as worker:
        await (await acme.start(greet(name="Ada"))).result(timeout=20)
        await hf.tenants.suspend("acme")
        await hf.tenants.drop("acme", confirm="acme")
        await until(lambda: "there is no tenant 'acme'" in caplog.text, "the worker says so")
        assert not worker.ended.done()
        await hf.tenants.create("acme")
        assert await (await acme.start(greet(name="Bob"))).result(timeout=30) == "Hello, Bob"
