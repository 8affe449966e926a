"""What is Django's own in a borrowed connection: `atomic()` that we open, autocommit, hooks, aliases."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from django.utils.connection import ConnectionProxy

from holdfast import (
    Busy,
    Holdfast,
    Status,
    TransactionRequired,
    Unavailable,
    UnknownOutcome,
    WrongConnection,
    WrongTask,
)
from tests.support.databases import django_project
from tests.support.factories import TASKS, add, greet
from tests.support.faults.fault_proxy import FaultProxy

ALIAS = "shop"

on_postgres = pytest.mark.parametrize("hf", ["postgres"], indirect=True)
on_sqlite = pytest.mark.parametrize("hf", ["sqlite"], indirect=True)


@pytest.fixture(params=["sqlite", "postgres"])
def hf(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> Iterator[Holdfast]:
    """A Holdfast whose database is also Django's, under one alias, with a table of the user's own."""
    hf = new_holdfast(request.param, tasks=[TASKS])
    hf.sync.open()
    with django_project.databases(default={}, **{ALIAS: django_project.database(hf.settings.database)}):
        execute("DROP TABLE IF EXISTS shop_order")
        execute("CREATE TABLE shop_order (name text)")
        yield hf


def execute(statement: str) -> list[Any]:
    """Run a statement as Django's users do by hand."""
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


def insert(name: str) -> None:
    execute(f"INSERT INTO shop_order VALUES ('{name}')")


def orders() -> list[str]:
    return [name for (name,) in execute("SELECT name FROM shop_order")]


def jobs(hf: Holdfast) -> list[str]:
    return [job.input.name for job in hf.sync.list_jobs(order="oldest")]


# ---- no transaction is open: we open Django's own


@pytest.mark.parametrize("form", ["alias", "object", "proxy"])
def test_where_none_is_open_a_start_has_an_atomic_of_its_own(hf: Holdfast, form: str) -> None:
    forms = {"alias": ALIAS, "object": connections[ALIAS], "proxy": ConnectionProxy(connections, ALIAS)}

    hf.sync.start(greet(name="Ada"), unique="ada", connection=forms[form])

    assert jobs(hf) == ["Ada"]
    assert not connections[ALIAS].in_atomic_block
    assert transaction.get_autocommit(using=ALIAS)


def test_what_is_refused_in_an_atomic_of_ours_leaves_nothing_and_the_connection_usable(hf: Holdfast) -> None:
    known = hf.sync.start(greet(name="Ada"))

    with pytest.raises(WrongTask):
        hf.sync.start_many([add(a=1, b=2).options(unique="x"), add(a=1, b=2).options(id=known.id)], connection=ALIAS)

    assert jobs(hf) == ["Ada"]
    insert("next")
    assert orders() == ["next"]


def test_a_connection_that_django_has_closed_is_opened_anew(hf: Holdfast) -> None:
    connections[ALIAS].close()

    hf.sync.start(greet(name="Ada"), connection=ALIAS)

    assert jobs(hf) == ["Ada"]


@on_sqlite
def test_sqlite_is_begun_as_a_writer_by_who_writes_and_as_a_reader_by_who_reads(hf: Holdfast) -> None:
    chain = hf.sync.start(greet(name="Ada"), connection=ALIAS)
    sent: list[str] = []
    connections[ALIAS].connection.set_trace_callback(sent.append)

    hf.sync.get_job(chain, connection=ALIAS)
    hf.sync.start(greet(name="Bob"), unique="bob", connection=ALIAS)

    assert [each for each in sent if each.startswith(("BEGIN", "COMMIT"))] == [
        "BEGIN", "COMMIT", "BEGIN IMMEDIATE", "COMMIT",
    ]  # fmt: skip
    assert connections[ALIAS].transaction_mode is None


@on_sqlite
def test_who_cannot_begin_because_another_writes_is_told_busy(hf: Holdfast) -> None:
    connections.settings["writer"] = connections.settings[ALIAS]
    connections[ALIAS].close()
    connections.settings[ALIAS]["OPTIONS"] = {"timeout": 0.05}
    with transaction.atomic(using="writer"), connections["writer"].cursor() as cursor:
        cursor.execute("INSERT INTO shop_order VALUES ('writing')")

        with pytest.raises(Busy):
            hf.sync.start(greet(name="Ada"), connection=ALIAS)
    django_project.remove("writer")

    hf.sync.start(greet(name="Ada"), connection=ALIAS)
    assert jobs(hf) == ["Ada"]


@on_postgres
@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_commit_of_ours_whose_answer_is_lost_is_of_unknown_outcome(hf: Holdfast, cut: Any) -> None:
    with FaultProxy(hf.settings.database) as proxy:
        django_project.add("far", django_project.database(proxy.url))
        proxy.cut_at_commit = cut

        with pytest.raises(UnknownOutcome, match="COMMIT"):
            hf.sync.start(greet(name="Ada"), connection="far")

        assert jobs(hf) == ([] if cut == "before" else ["Ada"])
        hf.sync.start(greet(name="Bob"), connection="far")
        django_project.remove("far")
    assert jobs(hf)[-1:] == ["Bob"]


@on_postgres
def test_a_server_that_django_cannot_reach_is_unavailable(hf: Holdfast) -> None:
    django_project.add("gone", django_project.database("postgresql://postgres@127.0.0.1:1/none"))

    with pytest.raises(Unavailable, match="cannot be reached"):
        hf.sync.start(greet(name="Ada"), connection="gone")

    django_project.remove("gone")


# ---- completing spans several statements


def test_completing_is_one_atomic_with_what_the_user_writes(hf: Holdfast) -> None:
    chain = hf.sync.start(greet(name="Ada"))

    with hf.sync.completing(greet, chain, connection=ALIAS) as job:
        insert("paid")
        job.finish("done")
        assert hf.sync.get_job(chain).status is Status.PENDING

    assert hf.sync.get_job(chain).status is Status.COMPLETED
    assert orders() == ["paid"]
    assert transaction.get_autocommit(using=ALIAS)


def test_an_error_inside_completing_undoes_all_of_it(hf: Holdfast) -> None:
    chain = hf.sync.start(greet(name="Ada"))

    with suppress(LookupError), hf.sync.completing(greet, chain, connection=ALIAS) as job:
        insert("paid")
        job.finish("done")
        raise LookupError

    assert hf.sync.get_job(chain).status is Status.PENDING
    assert orders() == []


def test_a_completion_that_is_refused_leaves_no_atomic_open(hf: Holdfast) -> None:
    chain = hf.sync.start(greet(name="Ada"))

    with pytest.raises(WrongTask), hf.sync.completing(add, chain, connection=ALIAS):
        pass

    assert not connections[ALIAS].in_atomic_block
    insert("next")
    assert orders() == ["next"]


def test_completing_in_the_users_own_atomic_is_part_of_it(hf: Holdfast) -> None:
    chain = hf.sync.start(greet(name="Ada"))

    with transaction.atomic(using=ALIAS):
        with hf.sync.completing(greet, chain, connection=ALIAS) as job:
            job.finish("done")
        transaction.set_rollback(True, using=ALIAS)

    assert hf.sync.get_job(chain).status is Status.PENDING


# ---- the user's own transaction


def test_hooks_of_a_commit_are_called_and_see_the_job(hf: Holdfast) -> None:
    seen: list[list[str]] = []

    with transaction.atomic(using=ALIAS, durable=True):
        transaction.on_commit(lambda: seen.append(jobs(hf)), using=ALIAS)
        hf.sync.start(greet(name="Ada"), connection=ALIAS)
        assert seen == []

    assert seen == [["Ada"]]


def test_a_nested_atomic_that_is_rolled_back_leaves_nothing_of_itself(hf: Holdfast) -> None:
    with transaction.atomic(using=ALIAS):
        hf.sync.start(greet(name="kept"), connection=ALIAS)
        with suppress(LookupError), transaction.atomic(using=ALIAS):
            hf.sync.start(greet(name="gone"), unique="gone", connection=ALIAS)
            raise LookupError

    assert jobs(hf) == ["kept"]


def test_an_atomic_that_is_marked_to_be_rolled_back_is_refused(hf: Holdfast) -> None:
    with transaction.atomic(using=ALIAS):
        transaction.set_rollback(True, using=ALIAS)

        with pytest.raises(TransactionRequired, match=r"has failed; roll it back: leave the `atomic\(\)`"):
            hf.sync.start(greet(name="Ada"), connection=ALIAS)

    assert jobs(hf) == []


@pytest.mark.parametrize("ends", [transaction.commit, transaction.rollback])
def test_with_autocommit_off_the_transaction_is_the_users(hf: Holdfast, ends: Callable[..., None]) -> None:
    transaction.set_autocommit(False, using=ALIAS)
    insert("order")
    hf.sync.start(greet(name="Ada"), connection=ALIAS)
    ends(using=ALIAS)
    transaction.set_autocommit(True, using=ALIAS)

    assert (orders(), jobs(hf)) == ((["order"], ["Ada"]) if ends is transaction.commit else ([], []))


@on_postgres
def test_with_autocommit_off_a_start_may_be_the_first_statement(hf: Holdfast) -> None:
    transaction.set_autocommit(False, using=ALIAS)
    hf.sync.start(greet(name="Ada"), connection=ALIAS)
    transaction.rollback(using=ALIAS)
    transaction.set_autocommit(True, using=ALIAS)

    assert jobs(hf) == []


@on_sqlite
def test_with_autocommit_off_and_nothing_begun_sqlite_is_refused(hf: Holdfast) -> None:
    transaction.set_autocommit(False, using=ALIAS)

    with pytest.raises(TransactionRequired, match=r"write `with transaction\.atomic\(\):`"):
        hf.sync.start(greet(name="Ada"), connection=ALIAS)

    transaction.set_autocommit(True, using=ALIAS)
    assert jobs(hf) == []


@on_postgres
def test_a_transaction_that_was_begun_by_hand_is_the_users(hf: Holdfast) -> None:
    execute("BEGIN")
    hf.sync.start(greet(name="Ada"), connection=ALIAS)
    execute("ROLLBACK")

    assert jobs(hf) == []


@on_postgres
def test_django_is_told_when_a_statement_of_ours_has_broken_its_transaction(hf: Holdfast) -> None:
    with transaction.atomic(using=ALIAS):
        execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        insert("order")
        hf.sync.start(greet(name="Bob"), unique="same")

        with pytest.raises(Busy):
            hf.sync.start(greet(name="Ada"), unique="same", connection=ALIAS)

        with pytest.raises(TransactionManagementError) as refused:
            insert("another")
        assert isinstance(refused.value.__cause__, Busy)

    assert orders() == []
    assert jobs(hf) == ["Bob"]


@on_postgres
def test_what_breaks_a_nested_atomic_leaves_the_outer_one_whole(hf: Holdfast) -> None:
    with transaction.atomic(using=ALIAS):
        execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        insert("order")
        hf.sync.start(greet(name="Bob"), unique="same")
        with pytest.raises(Busy), transaction.atomic(using=ALIAS):
            hf.sync.start(greet(name="Ada"), unique="same", connection=ALIAS)
        hf.sync.start(greet(name="Cid"), connection=ALIAS)

    assert orders() == ["order"]
    assert jobs(hf) == ["Bob", "Cid"]


# ---- refusals


@on_sqlite
def test_an_unknown_alias_is_refused_with_those_that_there_are_and_not_quoted(hf: Holdfast) -> None:
    with pytest.raises(
        WrongConnection, match=r"not an alias in Django's DATABASES, which has 'default', 'shop'"
    ) as refused:
        hf.sync.start(greet(name="Ada"), connection="postgresql://app:secret@db/shop")

    assert "secret" not in str(refused.value)


@on_sqlite
def test_an_alias_of_another_kind_of_database_is_refused(hf: Holdfast) -> None:
    with pytest.raises(WrongConnection, match="another database than hf: "):
        hf.sync.start(greet(name="Ada"), connection="default")


@on_sqlite
def test_a_copy_of_a_connection_is_refused(hf: Holdfast) -> None:
    copy = connections[ALIAS].copy()

    with pytest.raises(WrongConnection, match=r"`atomic\(\)` does not know this copy"):
        hf.sync.start(greet(name="Ada"), connection=copy)


@on_sqlite
async def test_the_async_face_says_how_an_async_view_starts_a_job(hf: Holdfast) -> None:
    with pytest.raises(WrongConnection, match=r"await sync_to_async\(hf\.sync\.start\)"):
        await hf.start(greet(name="Ada"), connection=ALIAS)


@on_sqlite
async def test_the_blocking_face_in_an_event_loop_says_the_same(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    connections[ALIAS].close()
    monkeypatch.delenv("DJANGO_ALLOW_ASYNC_UNSAFE")

    with pytest.raises(WrongConnection, match=r"await sync_to_async\(hf\.sync\.start\)"):
        hf.sync.start(greet(name="Ada"), connection=ALIAS)


@on_sqlite
async def test_what_the_refusal_says_works(hf: Holdfast) -> None:
    from asgiref.sync import sync_to_async

    def close() -> None:
        connections[ALIAS].close()

    await sync_to_async(hf.sync.start)(greet(name="Ada"), connection=ALIAS)
    await sync_to_async(close)()

    assert await asyncio.to_thread(jobs, hf) == ["Ada"]


UNUSED = """
import sys
from holdfast import Holdfast, WrongConnection
{before}
try:
    Holdfast("x.db").sync.cancel("0198c0de-0000-7000-8000-000000000000", connection="default")
except WrongConnection as error:
    print(error, "django" in sys.modules)
"""


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("", "*got a text: open a connection*psycopg.Connection*sqlite3.Connection*False"),
        ("import django.conf", "*and Django is not configured yet, so *True"),
    ],
    ids=["not in use", "not configured"],
)
def test_without_django_a_text_is_no_connection_and_django_is_not_imported(
    before: str, told: str, tmp_path: Any
) -> None:
    from fnmatch import fnmatch

    program = UNUSED.format(before=before)
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, cwd=tmp_path, capture_output=True, text=True, timeout=30
    )

    assert fnmatch(done.stdout.strip(), told), done.stdout
