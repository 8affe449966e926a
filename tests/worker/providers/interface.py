"""What the contract of blocks asks of a library: to make a provider for the database of a test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

Url: TypeAlias = str
"""A `postgresql://` address, or the path of a SQLite file."""


class Often(StrEnum):
    """Where the contract runs over a stack, unless what takes minutes is asked for."""

    EVERYWHERE = "everywhere"
    CHEAP = "where it is cheap"
    """Without a worker only: another stack has its library, and others its database and colour."""
    LONG = "long"
    """Nowhere: another stack is much like it."""


@dataclass(frozen=True)
class Stack:
    """The transactions of one library, by one driver."""

    name: str
    database: str
    is_async: bool
    open: Callable[[Url], AbstractAsyncContextManager[Any]]
    """Makes what is given as `transactions=`, and lets go of it at the end."""
    often: Often = Often.EVERYWHERE

    def __str__(self) -> str:
        return f"{self.database}-{'async' if self.is_async else 'plain'}-{self.name}"
