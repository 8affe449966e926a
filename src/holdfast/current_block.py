"""Knows whether the code that asks runs inside a block, so that nothing meant for its commit is written beside it.

A verb without `connection=` writes by another transaction: what it does would stay if the block rolls back, and on
SQLite it would wait for the very right to write that the block holds. So it is refused, also in tasks and threads that
were begun inside the block and have its context, as long as the block is open.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from holdfast.errors import Misuse


@dataclass(slots=True, eq=False)
class Mark:
    """One open block, by the name that its user knows it by; tasks begun inside it may outlive it."""

    name: str
    is_open: bool = True


_INSIDE: ContextVar[Mark | None] = ContextVar("holdfast_open_block", default=None)


def enter(mark: Mark) -> None:
    """Mark what runs from here on in this context as inside the block of *mark*."""
    _INSIDE.set(mark)


def leave(mark: Mark) -> None:
    """Have the mark mean nothing any more, here and wherever it was inherited."""
    mark.is_open = False


def is_inside() -> bool:
    """Tell whether this is inside a block."""
    return _open() is not None


def refuse_start(tenant: str | None = None) -> None:
    """Raise `Misuse` inside a block: a start in *tenant* without connection= would not be part of it."""
    if (mark := _open()) is not None:
        other = "" if tenant is None else f"; if the block is not of tenant {tenant!r}, start it after the block"
        raise Misuse(
            f"inside {mark.name} write `tx.start(…)` or `tx.start_many(…)`: hf.start() commits by itself, whatever "
            f"becomes of the block{other}"
        )


def refuse_write(verb: str) -> None:
    """Raise `Misuse` inside a block: a verb that writes without connection= would not be part of it."""
    if (mark := _open()) is not None:
        raise Misuse(
            f"inside {mark.name} write `{verb}(…, connection=tx)`: without connection= it commits by itself, whatever "
            "becomes of the block"
        )


def refuse_alone(verb: str) -> None:
    """Raise `Misuse` inside a block, for a verb that takes no connection=."""
    if (mark := _open()) is not None:
        raise Misuse(f"{verb}() cannot be part of {mark.name}, for it takes no connection=; call it after the block")


def refuse_journal() -> None:
    """Raise `Misuse` inside a block, for an entry that would not be part of it."""
    if (mark := _open()) is not None:
        raise Misuse(
            f"inside {mark.name} write `tx.journal.append(…)`: ctx.journal commits by itself, whatever becomes of the "
            "block"
        )


def refuse_flush() -> None:
    """Raise `Misuse` inside a block, for who would wait there until another transaction has written something."""
    if (mark := _open()) is not None:
        raise Misuse(
            f"inside {mark.name} progress cannot be flushed, for it would wait for the block; leave flush= away there, "
            "or report before it"
        )


def _open() -> Mark | None:
    mark = _INSIDE.get()
    return mark if mark is not None and mark.is_open else None
