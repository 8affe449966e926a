"""PostgreSQL by psycopg. To import this is to need the extra `postgres`, so import it where a store is built.

Read it in this order:

    store             the store: what the faces call; opening, closing, migrating, forking
    execution         one operation from BEGIN to COMMIT, again where that is safe: what the outcomes are
    block             a transaction that stays open around a user's code
    connections       what stores of several schemas share
    colours           async and blocking: the few things that they do differently
    pool              at most so many connections; how each colour connects, and waits for a place
    group             callers that wait share the next commit
    deadline          the end of waiting, enforced outside the driver, and what the server is then asked to end
    errors            what a driver's error means to us
    address           the connection parameters that we add, each with its reason
    tx                our SQL on a psycopg connection, ours or a caller's
    beginning         BEGIN and the first statement of a block, in one round trip
    async_connection  an async connection that does without a task for each wait
    listener          hints by LISTEN
"""

from importlib.util import find_spec

from holdfast.errors import MissingLibrary

if find_spec("psycopg") is None:
    raise MissingLibrary("PostgreSQL", "psycopg", ".[postgres]")

from holdfast.database.postgres.errors import translated
from holdfast.database.postgres.store import PostgresStore
from holdfast.database.postgres.tx import AsyncPostgresTx, PostgresTx

__all__ = ["AsyncPostgresTx", "PostgresStore", "PostgresTx", "translated"]
