"""Django's connections: by alias, or as the objects that `django.db` gives.

Inside `atomic()` our statements run in it. Where no transaction is open we open `atomic()` ourselves: Django's users
write none around a single save either. With autocommit turned off by hand the transaction is the user's. Ours pass
Django's cursors by, so Django is told if one of them has broken the transaction: it then lets nothing more be done, and
rolls back at the end of the block, where PostgreSQL would take the COMMIT for a ROLLBACK and say nothing.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

from holdfast.database.borrowed.adapters import DriverConnection, Intent, Library
from holdfast.errors import TransactionRequired, Unavailable, UnknownOutcome, WrongConnection

IDLE, FAILED = 0, 3  # libpq's words for the state of a transaction

IN_ASYNC_CODE = (
    'this connection is blocking; write `hf.sync.start(…, connection="default")`, or in an async view `await '
    'sync_to_async(hf.sync.start)(…, connection="default")`'
)


def why_no_alias(text: str) -> str | None:
    """Say why *text* is no alias; Django is not imported to find out that it is not in use."""
    if "django" not in sys.modules:
        return 'got a text: open a connection, e.g. psycopg.connect(…); only a Django alias such as "default" is a text'
    from django.core.exceptions import ImproperlyConfigured
    from django.db import connections

    try:
        aliases = list(connections)
    except ImproperlyConfigured:
        return (
            "got a text, and Django is not configured yet, so it cannot be an alias in DATABASES: call "
            "`django.setup()` first"
        )
    if text in aliases:
        return None
    # what was given is not quoted: it may be an address with a password
    return f"this text is not an alias in Django's DATABASES, which has {', '.join(map(repr, aliases))}"


async def _lend_alias(alias: str) -> DriverConnection:
    from django.db import connections

    return _lend(connections[alias])


async def _lend_proxy(proxy: Any) -> DriverConnection:
    return _lend(proxy._connections[proxy._alias])


async def _lend_wrapper(wrapper: Any) -> DriverConnection:
    return _lend(wrapper)


def _lend(wrapper: Any) -> DriverConnection:
    _refuse_wrapper(wrapper)
    connect(wrapper)
    driver = wrapper.connection
    if _is_begun(driver):
        return DriverConnection(driver, watches=partial(_watched, wrapper))
    if wrapper.autocommit:
        return DriverConnection(driver, opens=partial(_opened, wrapper))
    if wrapper.vendor == "sqlite":  # it would begin with some of our statements, and not with others
        raise TransactionRequired(
            "no transaction is open on this connection, and autocommit is off; write `with transaction.atomic():` "
            "around your statements and this call"
        )
    # Django has opened it, and the driver begins it with our first statement
    return DriverConnection(driver, opens=_already, watches=partial(_watched, wrapper))


def _refuse_wrapper(wrapper: Any) -> None:
    from django.db import connections

    if wrapper.alias not in connections.settings or connections[wrapper.alias] is not wrapper:
        raise WrongConnection(
            "this connection belongs to another thread, or `atomic()` does not know this copy of it; pass the alias "
            'instead: `connection="default"`'
        )
    if wrapper.vendor not in ("postgresql", "sqlite"):
        raise WrongConnection(
            f"this connection leads to another database than hf: {wrapper.display_name}; pass the alias of the "
            "database of hf"
        )
    if wrapper.in_atomic_block and wrapper.needs_rollback:
        raise TransactionRequired(
            "the transaction on this connection has failed; roll it back: leave the `atomic()` block in which it "
            "failed, and start the job again"
        )


def connect(wrapper: Any) -> None:
    """Have Django connect, if it is not connected, as it does before each statement of its own."""
    from django.core.exceptions import SynchronousOnlyOperation
    from django.db import Error

    try:
        wrapper.close_if_health_check_failed()
        wrapper.ensure_connection()
    except SynchronousOnlyOperation as error:
        raise WrongConnection(IN_ASYNC_CODE) from error
    except Error as error:
        raise ours(error) from error


def _is_begun(driver: Any) -> bool:
    """Tell whether the driver is in a transaction; nothing is sent."""
    if isinstance(driver, sqlite3.Connection):
        return driver.in_transaction
    return bool(driver.info.transaction_status != IDLE)


def _already(intent: Intent) -> AbstractContextManager[object]:
    return nullcontext()


@contextmanager
def _watched(wrapper: Any) -> Iterator[None]:
    """Tell Django of an error that has broken its transaction at the server."""
    try:
        yield
    except Exception as error:
        if wrapper.in_atomic_block and _is_failed(wrapper.connection):
            wrapper.needs_rollback = True
            wrapper.rollback_exc = error
        raise


def _is_failed(driver: Any) -> bool:
    return not isinstance(driver, sqlite3.Connection) and driver.info.transaction_status == FAILED


@contextmanager
def _opened(wrapper: Any, intent: Intent) -> Iterator[None]:
    """Open `atomic()` around work of ours; then commit it, or roll it back."""
    from django.db import Error, transaction

    is_ending = False
    try:
        with ExitStack() as stack:
            with beginning(wrapper, intent):
                stack.enter_context(transaction.atomic(using=wrapper.alias))
            yield
            is_ending = True
    except Error as error:
        raise (_unknown(error) if is_ending and _is_unanswered(error.__cause__) else ours(error)) from error


@contextmanager
def beginning(wrapper: Any, intent: Intent) -> Iterator[None]:
    """Have SQLite begin as a writer who is going to write: a reader cannot always become one."""
    mode = getattr(wrapper, "transaction_mode", "EXCLUSIVE")  # PostgreSQL and old Djangos know no modes
    if intent == "read" or mode == "EXCLUSIVE":
        yield
        return
    wrapper.transaction_mode = "IMMEDIATE"
    try:
        yield
    finally:
        wrapper.transaction_mode = mode


def _is_unanswered(error: BaseException | None) -> bool:
    """Tell whether it was not the database that refused COMMIT, so that nobody knows what became of it."""
    return not any(getattr(error, name, None) for name in ("sqlstate", "pgcode", "sqlite_errorcode"))


def _unknown(error: Exception) -> UnknownOutcome:
    return UnknownOutcome(
        f"the connection was lost during COMMIT ({_first_line(error)}); the job may be saved or not: read it before "
        "you start it again"
    )


def ours(error: Exception) -> Exception:
    """Make an error of ours of one that Django's connection has raised."""
    from django.db import InterfaceError, OperationalError

    from holdfast.database.sqlite.tx import ours_for

    if isinstance(error.__cause__, sqlite3.Error):
        return ours_for(error.__cause__) or error
    if isinstance(error, OperationalError | InterfaceError):
        return Unavailable(f"the database cannot be reached ({_first_line(error)}); try again when it is back")
    return error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


ALIAS = Library("builtins.str", False, _lend_alias, is_none=why_no_alias, in_async_code=IN_ASYNC_CODE)
PROXY = Library("django.utils.connection.ConnectionProxy", False, _lend_proxy, in_async_code=IN_ASYNC_CODE)
WRAPPER = Library("django.db.backends.base.base.BaseDatabaseWrapper", False, _lend_wrapper, in_async_code=IN_ASYNC_CODE)
