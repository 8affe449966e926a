"""Connections and transactions, on SQLite, PostgreSQL and callers' own connections; knows no job.

`make_store` chooses the store that a database address asks for.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from holdfast.database.tx import Store
from holdfast.errors import Misuse
from holdfast.runtime import Runtime

if TYPE_CHECKING:
    from holdfast.database.tx import Operation, RemovePlace
    from holdfast.settings import Settings
    from holdfast.tenancy import TenantInfo

SHORTEST_DEADLINE = 0.5


class PlaceMaker(Protocol):
    """Makes and removes the places of tenants; blocking."""

    def make(self, name: str, *, anew: bool = True) -> list[str]:
        """Make the place of a tenant, or bring it up to date; return the names of the steps taken.

        Unless *anew* it must be there: one that was dropped just now is not made again.
        """

    def migrate_control(self) -> list[str]:
        """Bring the control place up to date; return the names of the steps taken."""

    def strangers(self, name: str) -> list[str]:
        """Name what is in the place of a tenant and not ours, and so forbids to remove it."""

    def is_taken(self, name: str) -> bool:
        """Tell whether something is there already where the place of a tenant would be."""

    def remove(self, name: str, end_dropping: Operation[[TenantInfo, RemovePlace], None], dropped: TenantInfo) -> None:
        """Have *end_dropping*, in the control place, remove the place of a tenant; raise `TenantInUse` if jobs run."""


class TenantPlaces(Protocol):
    """Where the tenants of one control place are: a schema each, or a file."""

    def place(self, name: str) -> str:
        """Say which is the place of the tenant *name*: by a rule, so that a row that says another is never followed."""

    def settings(self, name: str) -> Settings:
        """Give the settings of its face."""

    def store(self, name: str) -> Store:
        """Make a store there, which makes and changes no table until `migrate` is called."""

    def maker(self) -> AbstractContextManager[PlaceMaker]:
        """Have what makes and removes places, for as long as the block lasts."""


def make_store(settings: Settings, runtime: Runtime) -> Store:
    """Make the store for `settings.database`; a driver is imported only where it is needed."""
    settings.require_database()
    if settings.is_postgres:
        from holdfast.database.postgres import PostgresStore

        return PostgresStore(settings, runtime)
    from holdfast.database.sqlite.store import SqliteStore

    return SqliteStore(settings.database, settings=settings, runtime=runtime)


def make_places(store: Store, settings: Settings, runtime: Runtime) -> TenantPlaces:
    """Make what knows the places of the tenants whose control place is *store*."""
    if settings.is_postgres:
        from holdfast.database.postgres import PostgresStore
        from holdfast.database.postgres.places import PostgresPlaces

        if isinstance(store, PostgresStore):
            return PostgresPlaces(store, settings, runtime)
    from holdfast.database.sqlite.places import SqlitePlaces
    from holdfast.database.sqlite.store import SqliteStore

    if isinstance(store, SqliteStore):
        return SqlitePlaces(store, settings, runtime)
    raise Misuse("tenants=True needs a store of Holdfast's own; leave store= out")


def make_glance_store(settings: Settings, runtime: Runtime) -> Store:
    """Make what looks at many schemas of a PostgreSQL server at once: a connection of its own."""
    from holdfast.database.postgres import PostgresStore
    from holdfast.database.postgres.address import Address

    settings = settings.model_copy(update={"pool_size": 1})
    return PostgresStore(settings, runtime, address=Address.for_glances(settings))


def make_lease_store(store: Store, settings: Settings, runtime: Runtime, seconds: float, size: int = 1) -> Store:
    """Make what renews leases: a connection of its own on PostgreSQL, so that a busy pool costs no lease.

    It gives up after *seconds*, for whoever waits longer cannot see that a lease is nearly over. If the schemas of many
    tenants share it, it has *size* connections: one whose tables are locked keeps one of them.
    """
    if store.database == "sqlite":  # one writer at a time: another connection would only wait as well
        return store
    deadline = min(settings.deadline_seconds, max(seconds, SHORTEST_DEADLINE))
    return make_store(settings.model_copy(update={"pool_size": size, "deadline_seconds": deadline}), runtime)
