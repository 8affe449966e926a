"""All that a caller may lend us, by the name of its type."""

from __future__ import annotations

from holdfast.store.borrowed import drivers
from holdfast.store.borrowed.kinds import Driver, Library

KNOWN: dict[str, Driver | Library] = {
    each.type_name: each for each in (drivers.ASYNC_PSYCOPG, drivers.PSYCOPG, drivers.SQLITE)
}
