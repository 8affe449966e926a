"""`atomic()` as the transaction of blocks in plain handlers: what the ORM writes and the job's end are one commit.

Django's connections belong to threads, so a block opens, uses and ends `atomic()` in its handler's own. What happens
there is learnt as Django runs each statement: which savepoints are open, which statement has failed.
"""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from holdfast.database.borrowed.orm_transaction import Check, UserTransaction, ended_by_user
from holdfast.database.borrowed.transaction_watch import TransactionWatch
from holdfast.database.records import Record, records
from holdfast.database.statements import in_format
from holdfast.errors import Misuse, TransactionBroken
from holdfast.logging import reason_of, say

logger = logging.getLogger(__name__)


class Django:
    """Provides `atomic()` on one of Django's databases as the transaction of blocks in plain handlers.

    >>> Django("default")
    <Django on 'default', for plain handlers>
    """

    def __init__(self, alias: str = "default") -> None:
        self._alias = alias

    def serves(self, *, is_async: bool) -> bool:
        """Tell whether it has transactions for handlers of this colour: Django has none for async code."""
        return not is_async

    def transaction(self, *, is_async: bool) -> UserTransaction:
        """Make a transaction that has not begun yet."""
        return AtomicTransaction(self._alias)

    def refusal(self, *, is_async: bool) -> str:
        """Say what to write instead, in a handler that is async."""
        return (
            "Django's transactions are blocking, but the handler is async; make it a plain `def`, which runs in a "
            "thread, or leave out `using=` and call your ORM code with `await sync_to_async(…)` before the block"
        )

    def __repr__(self) -> str:
        return f"<Django on {self._alias!r}, for plain handlers>"


class Undone(Exception):
    """What an `atomic()` is left by that is to be rolled back."""


class AtomicTransaction:
    """One `atomic()` as a `UserTransaction`; nothing suspends."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._thread = threading.get_ident()
        self._driver: Any = None
        self._is_open = False
        self.is_commit_sent = False
        self.session: Any = None
        """Django's connection object, as `connections[alias]` gives it in this thread."""

    async def begin(self, watch: TransactionWatch) -> None:
        """Enter `atomic()`, on SQLite as a writer."""
        from django.db import Error, transaction

        from holdfast.database.borrowed.django import beginning, connect, ours

        self._transaction_watch = watch
        wrapper = self.session = _connection(self._alias)
        connect(wrapper)
        _refuse_nested(wrapper)
        self._atomic = transaction.atomic(using=self._alias)
        try:
            with beginning(wrapper, "write"):
                self._atomic.__enter__()
        except Error as error:
            raise ours(error) from error
        self._is_open = True
        self._driver = wrapper.connection
        wrapper.execute_wrappers.append(self._run_watched)

    async def flush(self) -> None:
        """Do nothing: Django sends each change at once."""

    async def query(self, sql: str, values: Mapping[str, object]) -> list[Record]:
        """Run the user's *sql* by a cursor of Django's."""
        statement = in_format(sql, self._transaction_watch.database)
        with self.session.cursor() as cursor:
            cursor.execute(statement.text, statement.bind(values))
            return records((each[0] for each in cursor.description), cursor.fetchall()) if cursor.description else []

    async def begin_savepoint(self) -> Any:
        """Enter an `atomic()` inside."""
        from django.db import transaction

        inner = transaction.atomic(using=self._alias)
        inner.__enter__()
        return inner

    async def release(self, savepoint: Any) -> None:
        """Leave it."""
        savepoint.__exit__(None, None, None)

    async def roll_back_to(self, savepoint: Any) -> None:
        """Leave it as by an error."""
        savepoint.__exit__(Undone, Undone(), None)

    def refuse_ended(self) -> None:
        """Raise if Django has closed the connection, has left our `atomic()`, or is going to roll it back."""
        if self.session.closed_in_transaction or self._atomic not in self.session.atomic_blocks:
            raise ended_by_user()
        if self.session.needs_rollback:
            raise TransactionBroken(
                "Django has marked this block for rollback, after an error or because of `set_rollback(True)`; let "
                "the error leave the block, or write `with transaction.atomic():` around a statement that may fail"
            )

    def is_lost(self, error: BaseException) -> bool:
        """Tell whether the driver has given the connection up."""
        return bool(getattr(self._driver, "closed", False))  # sqlite3's have no such thing, and cannot be lost

    async def commit(self, check: Check) -> None:
        """Leave `atomic()`, which has no hooks before COMMIT, and then call what waits for it."""
        wrapper = self.session
        if wrapper.atomic_blocks[-1] is not self._atomic:
            raise TransactionBroken(
                "an `atomic()` inside this block is still open, perhaps in a generator; leave it before the block ends"
            )
        await check()
        hooks, wrapper.run_on_commit = wrapper.run_on_commit, []
        self._forget()
        self.is_commit_sent = True
        self._atomic.__exit__(None, None, None)
        for _, hook, _ in hooks:
            _call(hook)

    async def roll_back(self) -> None:
        """Leave `atomic()` as by an error; throw away a connection that cannot be brought back in order."""
        if not self._is_open:
            return
        self._forget()
        if self._thread != threading.get_ident():  # its handler has come back without leaving the block
            self._close()
            return
        if self.session.atomic_blocks and self.session.atomic_blocks[-1] is self._atomic:
            with suppress(Exception):
                self._atomic.__exit__(Undone, Undone(), None)
        if self.session.in_atomic_block:
            self._close()

    def break_off(self) -> None:
        """Make the driver's connection useless."""
        with suppress(Exception):  # it may be closed just now
            if isinstance(self._driver, sqlite3.Connection):
                self._driver.interrupt()
            else:
                with socket.socket(fileno=os.dup(self._driver.fileno())) as connected:
                    connected.shutdown(socket.SHUT_RDWR)

    def _run_watched(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        """Run a statement of the user's, and note it in the transaction watch."""
        self._transaction_watch.refuse_late()
        try:
            result = execute(sql, params, many, context)
        except Exception as error:
            self._transaction_watch.failed(error)
            raise
        self._transaction_watch.ran(str(sql))
        return result

    def _forget(self) -> None:
        """Note that it ends, and watch no longer."""
        self._is_open = False
        if self._run_watched in self.session.execute_wrappers:
            self.session.execute_wrappers.remove(self._run_watched)

    def _close(self) -> None:
        """Close the driver's connection, from any thread; Django's object is of no use any more."""
        with suppress(Exception):
            self._driver.close()
        self.session.closed_in_transaction = self.session.needs_rollback = True


def _connection(alias: str) -> Any:
    """Give this thread's connection object; another, if that of an earlier block could not be brought back in order."""
    from django.db import connections

    from holdfast.database.borrowed.django import why_no_alias

    if (why_not := why_no_alias(alias)) is not None:
        raise Misuse(f"{why_not}; pass the alias of the database that holds the jobs")
    if connections[alias].in_atomic_block and connections[alias].closed_in_transaction:
        del connections[alias]
    return connections[alias]


def _refuse_nested(wrapper: Any) -> None:
    if wrapper.in_atomic_block:
        raise Misuse(
            "this block commits by itself, but it is inside your `atomic()`, which may still roll back; open the "
            'block outside, or make hf.sync.completing() a part of your transaction: `connection="default"`'
        )
    if not wrapper.autocommit:
        raise Misuse(
            "Django's autocommit is off, but this block opens and commits an `atomic()` of its own; turn autocommit "
            "on first"
        )


def _call(hook: Callable[[], object]) -> None:
    """Call what waits for a commit; the job is completed by now, whatever it raises."""
    try:
        hook()
    except Exception as error:  # noqa: BLE001 - it is the user's
        say(logger, "on_commit_hook_failed", trace=error, error=reason_of(error))
