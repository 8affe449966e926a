"""Connections and transactions, on SQLite, PostgreSQL and callers' own connections; knows no job.

`make_store` chooses the store that a database address asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.database.tx import Store
from holdfast.runtime import Runtime

if TYPE_CHECKING:
    from holdfast.settings import Settings

SHORTEST_DEADLINE = 0.5


def make_store(settings: Settings, runtime: Runtime) -> Store:
    """Make the store for `settings.database`; a driver is imported only where it is needed."""
    settings.require_database()
    if settings.is_postgres:
        from holdfast.database.postgres import PostgresStore

        return PostgresStore(settings, runtime)
    from holdfast.database.sqlite.store import SqliteStore

    return SqliteStore(settings.database, settings=settings, runtime=runtime)


def make_lease_store(store: Store, settings: Settings, runtime: Runtime, seconds: float) -> Store:
    """Make what renews leases: a connection of its own on PostgreSQL, so that a busy pool costs no lease.

    It gives up after *seconds*, for whoever waits longer cannot see that a lease is nearly over.
    """
    if store.database == "sqlite":  # one writer at a time: another connection would only wait as well
        return store
    deadline = min(settings.deadline_seconds, max(seconds, SHORTEST_DEADLINE))
    return make_store(settings.model_copy(update={"pool_size": 1, "deadline_seconds": deadline}), runtime)
