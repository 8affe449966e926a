"""Jobs with transactions of the user's, by hand on SQLite: one connection, and statements in a row.

It claims 200 jobs, as the drain by hand does, with a row of the log for each, and then does one after the other by the
statements of a handler with blocks. There is one writer at a time, so a second connection would only wait.
"""

from __future__ import annotations

import json
from uuid import uuid4

from bench.limits.sqlite_drain import CLAIM, COMPLETE, SqliteDrain
from bench.shapes import LOOK, PAY, TASK, Shape


class SqliteTransactions(SqliteDrain):
    """A connection of its own to a file that has our tables."""

    def drain_by(self, shape: Shape) -> None:
        """Claim and complete until nothing is ready."""
        while True:
            nonce = uuid4().hex[:16]
            self._connection.execute("BEGIN IMMEDIATE")
            rows = self._connection.execute(CLAIM, (nonce, TASK)).fetchall()
            self._note("job:started", "running", rows)
            self._connection.execute("COMMIT")
            if not rows:
                return
            for row in rows:
                self._do(shape, row, nonce)

    def _do(self, shape: Shape, row: tuple[int, int, int, str, str], nonce: str) -> None:
        seq, attempt, version, _, text = row
        values = {"account": json.loads(text)["account"]}
        if shape is not Shape.COMPLETE:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(LOOK, values).fetchall()
        if shape is Shape.PREPARE:
            self._connection.execute("COMMIT")
        if shape is not Shape.ATOMIC:
            self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute(PAY, values)
        self._connection.execute(COMPLETE, (seq, attempt, nonce))
        self._note("job:completed", "completed", [(seq, attempt, version + 1)])
        self._connection.execute("COMMIT")
