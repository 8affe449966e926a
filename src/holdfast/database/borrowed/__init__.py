"""A caller's own connection, known by its type and asked before the first statement.

We only run statements on it: no COMMIT, ROLLBACK or close, no retry; on SQLite a savepoint around what we write. So it
must already be in a transaction that can go on, of the face's colour, on this store's database. The object itself is
asked first, with nothing sent; then one read that cannot fail asks which database it is. Every refusal says what to
write, and leaves the connection usable. Around a block of the caller's it is asked again before each operation.

Read it in this order:

    adapters           what there is to know about a driver's connection, and about an object that stands for one
    borrow             makes a caller's connection a `Runner`, or refuses it
    known              the list of all that a caller may lend
    orm_transaction    a block in a transaction of the user's own kind, which a provider opens and ends
    transaction_watch  what happens to such a transaction while it is open: savepoints, errors, time
    drivers            psycopg, sqlite3 and aiosqlite; what is said of a connection that is refused
    asyncpg            its connections, and what its pools hand out
    psycopg2           its connections
    atomicity          of an operation that breaks off half-way nothing can be committed
    sqlalchemy         its sessions and connections, in both colours
    django             an alias, or a connection of `django.db`

No library is imported before a connection of its own has been given to us, and no adapter before the first connection.
"""

from holdfast.database.borrowed.borrow import Borrowed, Borrower, Identity

__all__ = ["Borrowed", "Borrower", "Identity"]
