"""`atomic()` as the transaction of a block, by the ORM: what is Django's own beside the contract of all providers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, connections, transaction

from holdfast import Context as AsyncContext
from holdfast import Holdfast, Job, Misuse, Retry, Status
from holdfast.integrations.django import Django, tidy_connections
from holdfast.sync import Context
from tests.integrations.django_site import greet, on_postgres, on_sqlite
from tests.support.log_lines import lines

Handler = Callable[[Context], str]


def run(hf: Holdfast, *handlers: Callable[..., Any]) -> list[Job]:
    """Run jobs of *handlers*, one after the other, in one and the same thread; give them as they ended."""
    calls = [hf.task(name=f"handler-{number}", retry=Retry.never())(each)() for number, each in enumerate(handlers)]
    chains = hf.sync.start_many(calls)
    asyncio.run(_work(hf, [chain.id for chain in chains]))
    return [hf.sync.get_job(chain.id) for chain in chains]


async def _work(hf: Holdfast, ids: list[Any]) -> None:
    options: Any = {"concurrency": 1, "middleware": [tidy_connections]}
    async with hf, hf.worker(**options):
        await hf.wait(ids, timeout=20)


def groups() -> list[str]:
    return [each.name for each in Group.objects.order_by("name")]


def test_what_the_orm_writes_commits_with_the_job(site: Holdfast) -> None:
    def handler(ctx: Context) -> str:
        with ctx.complete() as tx:
            assert tx.session is connections["default"]
            assert connection.in_atomic_block
            Group.objects.create(name="paid")
            return tx.finish("done")

    (job,) = run(site, handler)

    assert (job.status, job.output, groups()) == (Status.COMPLETED, "done", ["paid"])


def test_what_raises_undoes_both(site: Holdfast) -> None:
    def handler(ctx: Context) -> str:
        with ctx.complete() as tx:
            Group.objects.create(name="paid")
            tx.finish("done")
            raise LookupError

    (job,) = run(site, handler)

    assert (job.status, groups()) == (Status.FAILED, [])


def test_an_error_in_an_atomic_inside_is_undone_with_it(site: Holdfast) -> None:
    def handler(ctx: Context) -> str:
        with ctx.complete() as tx:
            Group.objects.create(name="paid")
            with pytest.raises(IntegrityError), transaction.atomic():
                Group.objects.create(name="paid")
            with pytest.raises(IntegrityError), tx.savepoint():
                Group.objects.create(name="paid")
            Group.objects.create(name="shipped")
            return tx.finish("done")

    (job,) = run(site, handler)

    assert (job.status, groups()) == (Status.COMPLETED, ["paid", "shipped"])


@pytest.mark.parametrize("by", ["orm", "cursor", "set_rollback"])
def test_an_error_that_was_swallowed_cannot_be_committed(site: Holdfast, by: str) -> None:
    def break_it() -> None:
        if by == "set_rollback":
            transaction.set_rollback(True)
        elif by == "orm":
            Group.objects.create(name="paid")
        else:
            connection.cursor().execute("SELECT * FROM nothing_of_this_name")

    def handler(ctx: Context) -> str:
        with ctx.complete() as tx:
            Group.objects.create(name="paid")
            try:
                break_it()
            except Exception as error:
                logging.getLogger(__name__).debug("swallowed", exc_info=error)
            return tx.finish("done")

    (job,) = run(site, handler)

    assert (job.status, groups()) == (Status.FAILED, [])
    assert job.error is not None
    assert job.error["type"].endswith("TransactionBroken")


def test_an_atomic_inside_that_was_never_left_cannot_be_committed(site: Holdfast) -> None:
    def handler(ctx: Context) -> str:
        with ctx.complete() as tx:
            Group.objects.create(name="lost")
            transaction.atomic().__enter__()
            return tx.finish("done")

    def after(ctx: Context) -> str:
        with ctx.complete() as tx:
            Group.objects.create(name="kept")
            return tx.finish("done")

    refused, next_one = run(site, handler, after)

    assert refused.error is not None
    assert "inside this block is still open" in refused.error["message"]
    assert (next_one.status, groups()) == (Status.COMPLETED, ["kept"])


def test_a_block_inside_an_atomic_of_the_users_is_refused(site: Holdfast) -> None:
    def handler(ctx: Context) -> str:
        with transaction.atomic(), ctx.complete() as tx:
            return tx.finish("done")

    (job,) = run(site, handler)

    assert job.error is not None
    assert "it is inside your `atomic()`" in job.error["message"]
    with pytest.raises(Misuse, match='`connection="default"`'), transaction.atomic():
        with site.sync.completing(greet, site.sync.start(greet(name="Ada"))):
            pass
    assert not connection.in_atomic_block


def test_a_block_with_autocommit_off_is_refused(site: Holdfast) -> None:
    def handler(ctx: Context) -> str:
        transaction.set_autocommit(False)
        with ctx.complete() as tx:
            return tx.finish("done")

    def after(ctx: Context) -> str:
        with ctx.complete() as tx:
            return tx.finish("done")

    refused, next_one = run(site, handler, after)

    assert refused.error is not None
    assert "autocommit is off" in refused.error["message"]
    assert next_one.status is Status.COMPLETED


def test_what_is_no_alias_is_refused_and_not_quoted(site: Holdfast) -> None:
    chain = site.sync.start(greet(name="Ada"))

    with pytest.raises(Misuse, match="not an alias in Django's DATABASES, which has 'default'") as refused:
        with site.sync.completing(greet, chain, using="postgresql://app:secret@db/shop"):
            pass

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("raises", [False, True])
def test_a_start_by_alias_is_part_of_the_block_around_it(site: Holdfast, raises: bool) -> None:
    def handler(ctx: Context) -> str:
        with ctx.complete() as tx:
            site.sync.start(greet(name="Ada"), queue="unserved", connection="default")
            if raises:
                raise LookupError
            return tx.finish("done")

    run(site, handler)

    assert len(site.sync.list_jobs(queue="unserved")) == (0 if raises else 1)


def test_an_async_handler_is_told_what_to_write(site: Holdfast) -> None:
    async def handler(ctx: AsyncContext) -> str:
        async with ctx.complete(using="default") as tx:
            return tx.finish("done")

    async def without(ctx: AsyncContext) -> str:
        async with ctx.complete() as tx:
            return tx.finish("ours")

    refused, ours = run(site, handler, without)

    assert refused.error is not None
    assert "make it a plain `def`" in refused.error["message"]
    assert ours.output == "ours"


def test_hooks_are_called_after_the_commit_and_what_they_raise_is_logged(
    site: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Status] = []

    def handler(ctx: Context) -> str:
        def fail() -> None:
            raise LookupError

        with ctx.complete() as tx:
            transaction.on_commit(fail)
            transaction.on_commit(lambda: seen.append(site.sync.get_job(ctx.job.id).status))
            return tx.finish("done")

    (job,) = run(site, handler)

    assert (job.status, seen) == (Status.COMPLETED, [Status.COMPLETED])
    assert "on_commit_hook_failed" in lines(caplog)


def test_hooks_of_a_block_that_is_rolled_back_are_not_called(site: Holdfast) -> None:
    seen: list[str] = []

    def handler(ctx: Context) -> str:
        with ctx.complete():
            transaction.on_commit(lambda: seen.append("called"))
            raise LookupError

    def after(ctx: Context) -> str:
        with ctx.complete() as tx:
            return tx.finish("done")

    run(site, handler, after)

    assert seen == []


@pytest.mark.parametrize("inner", [False, True], ids=["block", "atomic inside"])
def test_a_block_that_was_never_left_is_undone_and_its_thread_goes_on(site: Holdfast, inner: bool) -> None:
    kept: list[Generator[None, None, None]] = []
    threads: list[int] = []

    def never_left(ctx: Context) -> Generator[None, None, None]:
        with ctx.complete() as tx:
            Group.objects.create(name="lost")
            if inner:
                transaction.atomic().__enter__()
            tx.finish("done")
            yield

    def handler(ctx: Context) -> str:
        threads.append(threading.get_ident())
        kept.append(never_left(ctx))
        next(kept[0])
        return "done"

    def after(ctx: Context) -> str:
        threads.append(threading.get_ident())
        with ctx.complete() as tx:
            Group.objects.create(name="kept")
            return tx.finish("done")

    left, next_one = run(site, handler, after)

    assert len(set(threads)) == 1
    assert (left.status, next_one.status, groups()) == (Status.FAILED, Status.COMPLETED, ["kept"])
    kept.pop().close()


def test_a_connection_that_was_closed_inside_cannot_commit(site: Holdfast) -> None:
    def handler(ctx: Context) -> str:
        with ctx.complete() as tx:
            Group.objects.create(name="lost")
            connection.close()
            return tx.finish("done")

    def after(ctx: Context) -> str:
        with ctx.complete() as tx:
            Group.objects.create(name="kept")
            return tx.finish("done")

    closed, next_one = run(site, handler, after)

    assert (closed.status, next_one.status, groups()) == (Status.FAILED, Status.COMPLETED, ["kept"])


def test_prepare_and_complete_are_two_commits(site: Holdfast) -> None:
    def handler(ctx: Context) -> str:
        with ctx.prepare():
            Group.objects.create(name="prepared")
        assert not connection.in_atomic_block
        with ctx.complete() as tx:
            Group.objects.create(name="completed")
            return tx.finish("done")

    (job,) = run(site, handler)

    assert (job.status, groups()) == (Status.COMPLETED, ["completed", "prepared"])


def test_completing_without_a_worker_can_use_django_too(site: Holdfast) -> None:
    chain = site.sync.start(greet(name="Ada"))

    with site.sync.completing(greet, chain, using="default") as job:
        Group.objects.create(name="approved")
        job.finish("done")

    assert (site.sync.get_job(chain).status, groups()) == (Status.COMPLETED, ["approved"])
    assert not connection.in_atomic_block


def test_a_statement_by_the_block_itself_goes_through_django(site: Holdfast) -> None:
    def handler(ctx: Context) -> str:
        with ctx.complete() as tx:
            tx.execute("INSERT INTO auth_group (name) VALUES (:name)", name="100%")
            found = tx.fetch_one("SELECT name, '50%' AS part FROM auth_group WHERE name LIKE '100%'")
            assert found is not None
            return tx.finish(f"{found.name} {found.part}")

    (job,) = run(site, handler)

    assert (job.output, groups()) == ("100% 50%", ["100%"])


# ---- connections around jobs


@pytest.mark.parametrize(("age", "is_open"), [(0, False), (60, True)])
def test_a_connection_lives_as_long_as_django_says(site: Holdfast, age: int, is_open: bool) -> None:
    connections.settings["default"]["CONN_MAX_AGE"] = age
    seen: list[Any] = []

    def handler(ctx: Context) -> str:
        Group.objects.count()
        seen.append(connection.connection)
        return "done"

    def after(ctx: Context) -> str:
        seen.append(connection.connection)
        connection.close()
        return "done"

    run(site, handler, after)

    assert (seen[1] is seen[0]) is is_open
    assert is_open or seen[1] is None


@on_postgres
def test_a_thread_that_waits_for_its_next_job_keeps_no_connection(site: Holdfast) -> None:
    seen: list[Any] = []

    def handler(ctx: Context) -> str:
        Group.objects.count()
        seen.append(connection.connection)
        return "done"

    run(site, handler)

    assert seen[0].closed


def test_a_transaction_that_a_handler_left_open_is_dropped(site: Holdfast) -> None:
    def handler(ctx: Context) -> str:
        transaction.atomic().__enter__()
        Group.objects.create(name="lost")
        return "done"

    def after(ctx: Context) -> str:
        Group.objects.create(name="kept")
        return "done"

    run(site, handler, after)

    assert groups() == ["kept"]


@on_sqlite
def test_it_says_what_it_is(site: Holdfast) -> None:
    assert repr(Django()) == "<Django on 'default', for plain handlers>"


@on_postgres
def test_a_level_in_which_no_renewed_lease_can_be_completed_is_refused(site: Holdfast) -> None:
    def handler(ctx: Context) -> str:
        connection.cursor().execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with ctx.complete() as tx:
            return tx.finish("done")

    (job,) = run(site, handler)

    assert job.error is not None
    assert job.error["message"].startswith("this transaction has the isolation level REPEATABLE READ")


@on_postgres
def test_a_block_whose_connection_the_server_ends_is_undone(site: Holdfast) -> None:
    def handler(ctx: Context) -> str:
        with ctx.complete() as tx:
            Group.objects.create(name="lost")
            pid = connection.connection.info.backend_pid
            site.store.run_sync(_terminate, pid)
            return tx.finish("done")

    def after(ctx: Context) -> str:
        with ctx.complete() as tx:
            Group.objects.create(name="kept")
            return tx.finish("done")

    _, next_one = run(site, handler, after)

    assert (next_one.status, groups()) == (Status.COMPLETED, ["kept"])


async def _terminate(tx: Any, pid: int) -> None:
    await tx.fetch_all("SELECT pg_terminate_backend(CAST(:pid AS int))", pid=pid)
