"""A pytest plugin: with `--pooled` everything that is sent to PostgreSQL goes through PgBouncer in transaction mode.

The database of a process is then known to its tests by PgBouncer's address alone, and `HOLDFAST_TRANSACTION_POOLER`
says so to every `Holdfast`, those of child processes included. What cannot make sense there is named below.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from holdfast.database import hints
from holdfast.worker.claiming import wakeups
from tests.support.databases.pgbouncer import PGBOUNCER, PgBouncer, running_pgbouncer
from tests.support.processes.debian import Program, ProgramUnavailable, describe, find

POLL_SECONDS = 0.1
OWN = "looks at its own connection to the server, of which there are many here"
HINTS = "is about hints, which nobody hears through a pooler"
WHO_WAITS = "asks the server by process number who waits for whom, and the numbers that PgBouncer tells are its own"
PREPARED = "prepares a statement in one transaction and runs it in another, as asyncpg does without BEGIN"
OPTIONS = "puts options into the address, or uses a face that was not told of the pooler; PgBouncer refuses both"
BEGINS = "is about one statement that commits by itself; behind a pooler each has a BEGIN, which carries the settings"
APART = {
    "tests/store/test_postgres_connections.py": OWN,
    "tests/store/test_plans.py": OWN,
    "tests/store/test_block_plans.py": OWN,
    "tests/store/test_line.py": OWN,
    "tests/store/test_chain_races.py": WHO_WAITS,
    "tests/store/test_interleavings.py": WHO_WAITS,
    "tests/store/test_interleavings_mutants.py": WHO_WAITS,
    "tests/store/test_migrations.py::test_who_comes_second_waits_for_the_step_that_is_under_way": WHO_WAITS,
    "tests/store/test_steering.py::test_a_verb_waits_for_the_row_that_it_names": WHO_WAITS,
    "tests/store/test_steering.py::test_a_retry_that_waits_for_a_twins_commit_meets_it": WHO_WAITS,
    "tests/store/test_steering.py::test_a_retry_has_the_key_if_the_twin_rolls_back": WHO_WAITS,
    "tests/store/test_claims_in_doubt.py::test_a_claim_is_in_doubt_if_the_statement_behind_it_fails": BEGINS,
    "tests/store/test_open_tx.py::test_what_a_statement_leaves_on_its_connection": "a pooler hands it on to others",
    "tests/store/test_open_tx_postgres.py::test_the_settings_of_a_block": OPTIONS,
    "tests/store/test_open_tx_postgres.py::test_a_block_begins_and_ends_in_a_round_trip_each": OPTIONS,
    "tests/store/test_open_tx_postgres.py::test_what_is_looked_at_first_goes_with_begin": OPTIONS,
    "tests/store/test_open_tx_postgres.py::test_an_opening_that_is_refused_keeps_its_connection": OWN,
    "tests/store/test_open_tx_postgres.py::test_a_connection_that_was_handed_out_is_not_used_again": OWN,
    "tests/store/test_open_tx_postgres.py::test_a_block_is_of_no_use_in_a_child_and_goes_on_in_its_parent": OPTIONS,
    "prepared_at_once": PREPARED,
    "tests/store/test_borrowed.py::test_a_worker_that_sleeps_is_woken_when_the_caller_commits_a_start": HINTS,
    "::test_a_transaction_block_on_an_autocommit_connection_will_do[sqlalchemy-async": PREPARED,
    "tests/store/test_borrowed.py::test_autocommit_is_no_transaction[sqlalchemy-async": PREPARED,
    "tests/store/test_borrowed_drivers.py::test_a_connection_of_a_pool_is_asked_once": PREPARED,
    "tests/store/test_borrowed_sqlalchemy.py::test_a_session_in_autocommit_is_refused_although_it_has_begun": PREPARED,
    "tests/store/test_borrowed_sqlalchemy.py::test_a_connection_with_autocommit_as_an_option_is_refused": PREPARED,
    "tests/store/test_borrowed_sqlalchemy.py::test_a_session_whose_server_has_gone_is_told_so_and_recovers": OWN,
    "tests/worker/test_worker_health.py::test_health_says_how_new_work_is_heard_of": HINTS,
    "tests/store/test_history.py::test_whoever_sleeps_is_woken_all_the_same": HINTS,
    "tests/worker/test_hints.py": HINTS,
    "tests/worker/test_waiting.py::test_a_thousand_who_wait_cost_one_read_for_a_hint": HINTS,
    "tests/worker/test_waiting.py::test_a_waiter_that_nobody_needs_any_more_strikes_itself_off": HINTS,
    "tests/worker/test_waiting.py::test_to_close_ends_every_wait_and_leaves_nothing_behind": HINTS,
    "tests/store/test_postgres.py::test_the_victim_of_a_deadlock_runs_again": OPTIONS,
    "tests/store/test_postgres.py::test_a_server_that_is_read_only_is_unavailable": OPTIONS,
    "tests/store/test_postgres.py::test_an_unknown_database_is_told_at_once": "PgBouncer tries on, for 15 s",
    "tests/store/test_postgres.py::test_round_trips_are_counted": BEGINS,
    "tests/store/test_postgres_inserts.py::test_a_plain_start_has_no_transaction_around_it": BEGINS,
    "tests/store/test_postgres_inserts.py::test_an_operation_of_one_write_has_none_either": BEGINS,
}
"""What is left out, by a part of its name, and why."""


def connect_options(driver: str) -> dict[str, Any]:
    """Say what a user of *driver* has to say behind a pooler: no statement is kept under a name."""
    if "HOLDFAST_TRANSACTION_POOLER" not in os.environ:
        return {}
    options: dict[str, dict[str, Any]] = {
        "asyncpg": {"statement_cache_size": 0},
        "psycopg": {"prepare_threshold": None},
    }
    return options.get(driver, {})


def engine_options(driver: str) -> dict[str, Any]:
    """Say the same for the `connect_args` of an engine of SQLAlchemy, which names statements itself."""
    options = connect_options(driver)
    if options and driver == "asyncpg":
        options |= {"prepared_statement_cache_size": 0, "prepared_statement_name_func": lambda: f"own_{uuid4().hex}"}
    return options


def polling_often(make: Callable[..., None]) -> Callable[..., None]:
    """Have nobody sleep for longer than POLL_SECONDS: every test that works waits for a poll here."""
    signature = inspect.signature(make)

    def made(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        given.arguments["poll"] = min(given.arguments["poll"], POLL_SECONDS)
        make(*given.args, **given.kwargs)

    return made


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run go through PgBouncer."""
    parser.addoption("--pooled", action="store_true", help="reach PostgreSQL through PgBouncer in transaction mode")


def pytest_configure(config: pytest.Config) -> None:
    """Tell every Holdfast of this run that there is a pooler, and have it poll often."""
    if config.getoption("pooled"):
        os.environ["HOLDFAST_TRANSACTION_POOLER"] = "1"
        for each in (hints.SleepMark, wakeups.Wakeups):
            each.__init__ = polling_often(each.__init__)  # type: ignore[method-assign]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Have it fetched before an xdist worker starts, so that no test waits for that."""
    if not node.config.getoption("sqlite_only"):
        describe(PGBOUNCER)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out SQLite, and what cannot make sense through a pooler."""
    if not config.getoption("pooled"):
        return
    items[:] = [each for each in items if "sqlite" not in each.nodeid]
    for item in items:
        for name, reason in APART.items():
            if name in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def pgbouncer_program(postgres_server: str) -> Program:
    """Answer a PgBouncer that can be run in front of the run's server, or skip."""
    if urlsplit(postgres_server).hostname is None:
        pytest.skip("PgBouncer is told the server's host, and the address of this one has none")
    try:
        return find(PGBOUNCER)
    except ProgramUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def pgbouncer(pgbouncer_program: Program, postgres_server: str) -> Iterator[PgBouncer]:
    """A PgBouncer in front of the run's server, of this process alone."""
    with running_pgbouncer(postgres_server) as running:
        yield running
