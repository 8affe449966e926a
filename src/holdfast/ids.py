"""Ids are UUIDs of version 7: made here, before any SQL, so that a start can be repeated without doubling."""

from __future__ import annotations

from collections.abc import Callable, Sized
from hashlib import sha256
from random import Random
from typing import Protocol, TypeAlias, TypeVar, cast
from uuid import UUID

from holdfast.errors import InvalidId, TooMany


class HasId(Protocol):
    """Whatever has an id: a chain, a job, a handle of one."""

    @property
    def id(self) -> UUID:
        """The id."""
        ...


Target: TypeAlias = HasId | UUID | str
"""Names a job or a chain: itself, its id, or the text of its id."""

T = TypeVar("T", bound=HasId | UUID | str)
Many: TypeAlias = list[T] | tuple[T, ...]
"""Names several of them, in an order."""


class IdMaker:
    """Makes UUIDv7s that grow within one process, also within a millisecond and when the clock steps back.

    Order in the database comes from `seq`; that ids grow only keeps their index writes close together.
    """

    def __init__(self, wall_ms: Callable[[], int], chance: Random) -> None:
        self._wall_ms = wall_ms
        self._chance = chance
        self._last = 0

    def __call__(self) -> UUID:
        """Make the next id."""
        # 48 bits of milliseconds and 12 of a counter are one number that only grows
        self._last = max(self._wall_ms() << 12, self._last + 1)
        time_and_version = (self._last >> 12) << 16 | 0x7000 | self._last & 0xFFF
        return UUID(int=time_and_version << 64 | 0x8 << 60 | self._chance.getrandbits(60))


def id_that_follows(milliseconds: int, *facts: object) -> UUID:
    """Make the id of what follows from *facts* at a time: they name it, so that it can be made but once.

    >>> id_that_follows(1_700_000_000_000, "job", 1) == id_that_follows(1_700_000_000_000, "job", 1)
    True
    """
    digest = int.from_bytes(sha256(repr(facts).encode()).digest())
    return UUID(int=milliseconds << 80 | 0x7 << 76 | (digest >> 64 & 0xFFF) << 64 | 0x2 << 62 | digest & (1 << 62) - 1)


MOST_AT_ONCE = 5_000
"""How many jobs one call takes.

`retry_many`, the slowest, took about 1 s for as many on either database, and less than 3 s on a machine that had four
times as much to do as it has cores: a call has 5 s. They are one transaction, which holds its locks as long.
"""


def refuse_too_many(given: Sized) -> None:
    """Raise `TooMany` for a list that is longer than one call takes."""
    if len(given) > MOST_AT_ONCE:
        raise TooMany(len(given), MOST_AT_ONCE)


def to_id(value: UUID | str) -> UUID:
    """Read *value* as an id, or raise `InvalidId`."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise InvalidId(value) from None


def target_id(target: Target) -> UUID:
    """Give the id of a job or a chain, however it is named."""
    return to_id(target if isinstance(target, UUID | str) else getattr(target, "id", cast("str", target)))
