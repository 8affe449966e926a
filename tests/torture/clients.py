"""What callers of a run write down of what they ask for: a line when they ask, and one when they have an answer.

An answer is `ok`; `fail`, which says that nothing has happened; or `unknown`. A call whose caller was killed has no
answer, and so is unknown as well.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from holdfast.errors import Conflict, NotFound, StoreError, UnknownOutcome
from tests.torture.notes import Notes, place


class Client:
    """Writes down what one process asks for."""

    def __init__(self, name: str) -> None:
        self._notes = Notes(place() / f"client-{name}-{os.getpid()}.jsonl")
        self._number = 0
        self.is_in_doubt = False
        """Whether it does not know what became of its last call."""

    @contextmanager
    def asking(self, what: str, **facts: object) -> Iterator[dict[str, object]]:
        """Write down a call and its answer; what is put into the given dictionary goes with an `ok`.

        What was refused, or could not be done, is no error of the caller's: the next call may fare better.
        """
        self._number += 1
        number, answer = self._number, dict[str, object]()
        self._notes.write(call=number, what=what, **facts)
        self.is_in_doubt = False
        try:
            yield answer
        except (UnknownOutcome, LostCommit) as error:
            self.is_in_doubt = True
            self._notes.write(answer=number, end="unknown", error=type(error).__name__)
        except (StoreError, NotFound, Conflict, psycopg.Error, sqlite3.Error) as error:
            self._notes.write(answer=number, end="fail", error=f"{type(error).__name__}: {error}"[:200])
        else:
            self._notes.write(answer=number, end="ok", **answer)


class LostCommit(Exception):
    """COMMIT was sent on a connection of the caller's own, and its answer lost."""
