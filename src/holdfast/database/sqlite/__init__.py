"""The store on one SQLite file: the right to write, group commit, read connections."""

from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.sqlite.tx import SqliteTx, translated

__all__ = ["SqliteStore", "SqliteTx", "translated"]
