"""A pytest plugin that provides a real PostgreSQL: one server for a run, a database for each process of it.

With xdist the controller starts the server before its workers and tells them where it is; without, the first
test that wants it does. Either way it belongs to the process that the run begins and ends with.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from holdfast.testing import PostgresFailed, PostgresUnavailable, temporary_postgres


@dataclass(frozen=True)
class Offer:
    """A server to test on, or why there is none."""

    url: str = ""
    description: str = "PostgreSQL not used"
    missing: str = ""


class ServerOfRun:
    """The server of this run, started when it is first asked for."""

    def __init__(self, offer: Offer | None = None) -> None:
        self._offer = offer
        self._resources = ExitStack()

    def get(self) -> Offer:
        """Answer the server, or why there is none; the same each time."""
        if self._offer is None:
            try:
                server = self._resources.enter_context(temporary_postgres(max_connections=200))
                self._offer = Offer(server.url, f"PostgreSQL {server.version} ({server.origin})")
            except (PostgresUnavailable, PostgresFailed) as error:
                self._offer = Offer(description=f"PostgreSQL left out: {error}", missing=str(error))
        return self._offer

    def describe(self) -> str:
        """Say which server it was, without starting one now."""
        return (self._offer or Offer()).description

    def close(self) -> None:
        """End the server."""
        self._resources.close()


SERVER = pytest.StashKey[ServerOfRun]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run do without PostgreSQL."""
    parser.addoption("--sqlite-only", action="store_true", help="start no PostgreSQL and skip what needs it")


def pytest_configure(config: pytest.Config) -> None:
    """Take the server from the controller if there is one."""
    offer = None
    if config.getoption("sqlite_only"):
        reason = "--sqlite-only was asked for"
        offer = Offer(description=f"PostgreSQL left out: {reason}", missing=reason)
    elif workerinput := getattr(config, "workerinput", None):
        offer = Offer(**workerinput["postgres"])
    config.stash[SERVER] = ServerOfRun(offer)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker, which is about to start, about the server."""
    node.workerinput["postgres"] = asdict(node.config.stash[SERVER].get())


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the server with the run."""
    if SERVER in config.stash:
        config.stash[SERVER].close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the databases that the tests ran on."""
    databases = f"{config.stash[SERVER].describe()}, SQLite {sqlite3.sqlite_version}"
    terminalreporter.write_line(databases)


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> str:
    """Answer the URL of the run's server, or skip; fail where a missing server must not go unseen."""
    offer = pytestconfig.stash[SERVER].get()
    if offer.missing and not pytestconfig.getoption("sqlite_only") and is_required():
        pytest.fail(offer.missing, pytrace=False)
    if offer.missing:
        pytest.skip(offer.missing)
    return offer.url


def is_required() -> bool:
    """Say whether the tests fail, and are not skipped, without PostgreSQL."""
    return os.environ.get("CI") == "true" or os.environ.get("HOLDFAST_REQUIRE_POSTGRES") == "1"


@pytest.fixture(scope="session")
def postgres_url(request: pytest.FixtureRequest, direct_url: str) -> str:
    """Answer the URL of a database that only this process uses; with --pooled it leads through PgBouncer."""
    if not request.config.getoption("pooled"):
        return direct_url
    return str(request.getfixturevalue("pgbouncer").url_of(direct_url))


@pytest.fixture(scope="session")
def direct_url(postgres_server: str) -> Iterator[str]:
    """Answer the URL by which that database is reached without a pooler."""
    name = f"holdfast_test_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield urlsplit(postgres_server)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
