"""A pytest plugin that fails a test for the connections to SQLite that it opened and that nobody closed.

From Python 3.13 on the collector of garbage complains of each, in whichever test it comes round next. Here every one
is kept until its test has ended, and looked at then: in the test's own name, with the line that opened it, and on a
Python that would not complain, too.

What a fixture that outlives the test opens is not looked at, nor what such a fixture's threads open during the test.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

_FRAMES = 12
PATIENCE_SECONDS = 10.0
"""How long another thread may take to close what it uses: it may be at the last read of a task that was cancelled."""


@dataclass
class _Opened:
    """The connections opened by the test that is running, each with the calls that led there."""

    by_test: list[tuple[sqlite3.Connection, list[traceback.FrameSummary]]] = field(default_factory=list)
    shared_fixtures: list[str] = field(default_factory=list)
    """Those that are being set up now."""
    sharing: set[str] = field(default_factory=set)
    """Those that have opened connections."""
    is_sharing: bool = False
    """Whether the test that is running uses one of them."""

    def connect(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = _connect(*arguments, **options)
        self.sharing.update(self.shared_fixtures)
        is_own = threading.current_thread() is threading.main_thread() or not self.is_sharing
        if is_own and not self.shared_fixtures:
            self.by_test.append((connection, traceback.extract_stack(limit=_FRAMES)[:-1]))
        return connection

    def take(self) -> list[tuple[sqlite3.Connection, list[traceback.FrameSummary]]]:
        taken, self.by_test = self.by_test, []
        return taken


_connect = sqlite3.connect
_opened = _Opened()


def pytest_configure() -> None:
    """Look on where connections are made: by us, by aiosqlite, SQLAlchemy and Django."""
    sqlite3.connect = sqlite3.dbapi2.connect = _opened.connect  # type: ignore[assignment]


def pytest_unconfigure() -> None:
    """Look on no longer."""
    sqlite3.connect = sqlite3.dbapi2.connect = _connect


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    """Leave out what lives longer than a test."""
    if fixturedef.scope == "function":
        return (yield)
    _opened.shared_fixtures.append(fixturedef.argname)
    try:
        return (yield)
    finally:
        _opened.shared_fixtures.pop()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Note whether the test works with something that lives longer than it."""
    _opened.is_sharing = not _opened.sharing.isdisjoint(getattr(item, "fixturenames", ()))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Fail the test whose fixtures have ended by now, and with them all that it should have closed."""
    opened = _opened.take()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(is_in_use(connection) for connection, _ in opened) and time.monotonic() < deadline:
        time.sleep(0.005)
    unclosed = [(connection, stack) for connection, stack in opened if is_open(connection)]
    for connection, _ in unclosed:
        with suppress(sqlite3.ProgrammingError):  # one of another thread's, which the collector will find
            connection.close()
    if unclosed:
        places = "\n".join("".join(traceback.format_list(stack)) for _, stack in unclosed)
        pytest.fail(f"connections to SQLite left open: {len(unclosed)}, opened here:\n{places}", pytrace=False)


def is_in_use(connection: sqlite3.Connection) -> bool:
    """Tell whether *connection* is open, and other threads of ours may yet close it."""
    return threading.active_count() > 1 and is_open(connection)


def is_open(connection: sqlite3.Connection) -> bool:
    """Tell whether *connection* was not closed, from whichever thread."""
    try:
        return connection.total_changes >= 0
    except sqlite3.ProgrammingError:
        return False
