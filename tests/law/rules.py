"""What all rules of the law have at hand: whom to tell what is wrong, and a count of what they have seen."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

CLOCK_SLACK_MS = 5
"""A trigger reads the clock a moment after the statement did."""


class Say(Protocol):
    """Hears which invariant is broken, and how: the simulation raises, torture writes it down and goes on."""

    def __call__(self, invariant: str, what: str, /) -> None:
        """Hear it."""


class LawRules:
    """The rules about one thing, over a stream of rows."""

    def __init__(self, say: Say, reached: Counter[str]) -> None:
        self._say = say
        self._reached = reached
