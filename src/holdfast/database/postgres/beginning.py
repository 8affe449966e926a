"""How a block begins and ends, in one round trip each: a statement of ours, which the server keeps prepared, with BEGIN
and its settings before it, or COMMIT behind it.

No driver prepares a text of several statements. By EXECUTE the look at the job costs the server 15 µs instead of 60,
and sent past the cursor, which is made for what users write, our process 30 instead of 80. COMMIT in the round trip of
the last statement saves the server 75 µs, and our process 50.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg import errors, generators
from psycopg.adapt import Transformer
from psycopg.pq import Escaping, ExecStatus

from holdfast.database.tx import Row

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

AnyCursor: TypeAlias = psycopg.AsyncCursor[Row] | psycopg.Cursor[Row]

PARAMETER = re.compile(r"%\((?P<name>\w+)\)s|%%")

MOST_PREPARED = 100
# psycopg has the server forget all that is prepared when tables change, and when a transaction is rolled back
KEEPS_PREPARED = ("SELECT", "INSERT", "UPDATE", "DELETE", "MERGE")


class Beginnings:
    """The statements that are prepared on one connection, each by a name that is used once; *cursor* is ours there."""

    def __init__(self, cursor: AnyCursor) -> None:
        self._connection = cursor.connection
        self._reader = Transformer(cursor)
        self._quoting = Escaping(self._connection.pgconn)
        self._names: dict[str, str] = {}
        self._count = 0
        self.most = MOST_PREPARED

    def write(self, begin: str, text: str, values: Mapping[str, object], end: str = "") -> str | None:
        """Write *text*, as psycopg reads it, with *values*, between *begin* and *end*; None to leave that to psycopg.

        So it is behind a transaction pooler, where nothing can be prepared, and on a connection that was made to forget
        so often that its names would add up.
        """
        if self._connection.prepare_threshold is None or self._count >= self.most:
            return None
        numbered, names = number(text)
        prepare = ""
        if (prepared := self._names.get(text)) is None:
            self._count += 1
            prepared = self._names[text] = f"holdfast_{self._count}"
            prepare = f"PREPARE {prepared} AS {numbered}; "  # behind BEGIN: nothing may come before its isolation
        given = f"({', '.join(self._literal(values[name]) for name in names)})" if names else ""
        return f"{begin}; {prepare}EXECUTE {prepared}{given}{end}"

    def _literal(self, value: object) -> str:
        if value is None:
            return "NULL"
        if type(value) is int:
            return str(value)
        return self._quoting.escape_literal(str(value).encode()).decode()

    def read(self, result: PGresult) -> list[Row]:
        """Read the rows of *result*."""
        self._reader.set_pgresult(result)
        return self._reader.load_rows(0, result.ntuples, tuple)

    def forget(self) -> None:
        """Prepare them anew, by other names: those that the connection had may be gone."""
        self._names.clear()


@cache
def number(text: str) -> tuple[str, tuple[str, ...]]:
    """Number the parameters of *text*, which are written as psycopg reads them; name them in that order."""
    numbers: dict[str, int] = {}

    def written(match: re.Match[str]) -> str:
        return f"${numbers.setdefault(match['name'], len(numbers) + 1)}" if match["name"] else "%"

    return PARAMETER.sub(written, text), tuple(numbers)


def sent(pgconn: PGconn, text: str) -> Generator[Any, Any, PGresult]:
    """Send *text*, which may be several statements, and give what the last of them gives; a driver's generator."""
    pgconn.send_query(text.encode())
    results: list[PGresult] = yield from generators.execute(pgconn)
    if results[-1].status == ExecStatus.FATAL_ERROR:
        raise errors.error_from_result(results[-1])
    return results[-1]
