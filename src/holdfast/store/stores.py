"""Chooses the store that a database address asks for."""

from __future__ import annotations

from holdfast.settings import Settings
from holdfast.store.tx import Store
from holdfast.surroundings import Surroundings


def make_store(settings: Settings, surroundings: Surroundings) -> Store:
    """Make the store for `settings.database`; a driver is imported only where it is needed."""
    if settings.is_postgres:
        from holdfast.store.postgres import PostgresStore

        return PostgresStore(settings, surroundings)
    from holdfast.store.sqlite import SqliteStore

    return SqliteStore(settings.database, settings=settings, surroundings=surroundings)
