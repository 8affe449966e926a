"""A caller's own connection, known by its type and asked before the first statement.

We only run statements on it: no COMMIT, ROLLBACK or close, no retry. So it must already be in a transaction that can
go on, of the face's colour, on this store's database. The object itself is asked first, with nothing sent; then one
read that cannot fail asks which database it is. Every refusal says what to write, and leaves the connection usable.

Read it in this order:

    kinds      what there is to know about a driver's connection, and about an object that stands for one
    lender     makes a caller's connection a `Runner`, or refuses it
    known      the list of all that is known
    drivers    psycopg and sqlite3

No library is imported before a connection of its own has been given to us.
"""

from holdfast.store.borrowed.lender import Borrowed, Identity, Lender

__all__ = ["Borrowed", "Identity", "Lender"]
