"""Rows that this release cannot read: they are left out and told once, so that each of them harms nobody but itself.

A newer release may have written a word that this one does not know, or somebody's own SQL what is no JSON. Whoever asks
for one row by its id is told by `Unreadable`. Whoever reads many (a list, a follower of the log, a reaper) goes on with
the others: this is the one place below the edges that logs, because no caller would hear of it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast.errors import Unreadable
from holdfast.logging import say

R = TypeVar("R")
T = TypeVar("T")

CANNOT_READ = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading raises if a row is not what this release writes: an unknown word, no JSON, another shape, too deep."""

MOST_TOLD = 100
"""How many rows a process tells of: a newer release may write thousands that this one cannot read."""

logger = logging.getLogger(__name__)

_told: set[tuple[str, object]] = set()


@contextmanager
def reading(table: str, row: object) -> Iterator[None]:
    """Raise `Unreadable` of a row if what is read inside is not what this release writes."""
    try:
        yield
    except CANNOT_READ as error:
        raise Unreadable(table, row, repr(error)) from error


def readable(rows: Iterable[R], read: Callable[[R], T]) -> list[T]:
    """Read *rows* one by one, and leave out those of which *read* raises `Unreadable`."""
    found: list[T] = []
    for row in rows:
        try:
            found.append(read(row))
        except Unreadable as error:
            tell(error)
    return found


def tell(error: Unreadable) -> None:
    """Log that a row was left out; once for each row, and of 100 rows at most."""
    if (error.table, error.row) in _told or len(_told) >= MOST_TOLD:
        return
    _told.add((error.table, error.row))
    say(logger, "row_unreadable", table=error.table, row=error.row, reason=error.why)


def object_of(text: str | None) -> dict[str, Any]:
    """Read a JSON object that nothing depends on; empty if it is none, or not there."""
    return found if isinstance(found := json_or_text(text), dict) else {}


def json_or_text(text: str | None) -> Any:
    """Read a stored value; what is no JSON is given as the text that it is, and not lost."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text
