"""How much one request, and who sends many, may ask for.

Rates and streams are counted in this process alone: two processes of a server let twice as much through.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidSettings, got
from holdfast.http.problems import InvalidRequest, TooLarge, TooManyRequests

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_KEYS = 10_000
STRANGERS_BYTES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of an application; those that count are for each process."""

    body_bytes: int = 1_000_000
    depth: int = 64
    """How deep a body may be nested."""
    nodes: int = 100_000
    """How many values a body may have."""
    body_seconds: int = 15
    """How long a body may take to arrive."""
    requests_per_second: int = 50
    """For each identity, and for each address that has none."""
    streams: int = 8
    """How many streams one identity may have open."""
    all_streams: int = 1_000
    logins_per_minute: int = 10
    """For each address."""

    @property
    def of_strangers(self) -> Limits:
        """The limits of a body that anybody may send."""
        return replace(self, body_bytes=min(self.body_bytes, STRANGERS_BYTES))

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if type(value) is not int or value < 1:
                raise InvalidSettings(f"limits: {each.name} must be a whole number from 1 on, {got(value)}")

    def read_json(self, body: bytes) -> Any:
        """Read a body whose size is checked; refuse what is no JSON, or too deep or too much of it."""
        try:
            value = json.loads(body.decode(), parse_constant=_refuse_constant)
        except RecursionError:
            raise self._too_deep() from None
        except UnicodeDecodeError:
            raise InvalidRequest("the body cannot be read: it is no UTF-8; send JSON in UTF-8") from None
        except ValueError as error:
            reason = str(error).partition(";")[0]  # of a number with too many digits it says how to allow them
            raise InvalidRequest(f"the body cannot be read: {reason}; send JSON in UTF-8") from None
        self._refuse_nested(value)
        return value

    def _refuse_nested(self, value: Any) -> None:
        level, nodes, depth = [value], 0, 0
        while level:
            nodes += len(level)
            if nodes > self.nodes:
                raise TooLarge(f"the body has more than {self.nodes:,} values; send less at a time")
            below: list[Any] = []
            for each in level:
                if isinstance(each, dict):
                    below += each.values()
                elif isinstance(each, list):
                    below += each
            # a scalar is no level of its own
            depth += any(isinstance(each, dict | list) for each in level)
            if depth > self.depth:
                raise self._too_deep()
            level = below

    def _too_deep(self) -> TooLarge:
        return TooLarge(f"the body is nested deeper than {self.depth} levels; send it flatter")


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a JSON value")


class Rate:
    """Lets each key through *count* times in *seconds*, and then as often as that allows; it knows 10,000 keys."""

    def __init__(self, count: int, seconds: float, monotonic: Callable[[], float]) -> None:
        self._count = count
        self._seconds = seconds
        self._monotonic = monotonic
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def spend(self, key: str, what: str) -> None:
        """Count one more; raise `TooManyRequests` if there were too many. *what* says of what."""
        spent = self.look(key, what)
        self._spent.pop(key, None)
        self._spent[key] = spent + 1, self._monotonic()
        if len(self._spent) > MOST_KEYS:
            self._spent.popitem(last=False)

    def look(self, key: str, what: str) -> float:
        """Raise `TooManyRequests` if one more would be too many, without counting it; else give how many there were."""
        now = self._monotonic()
        spent, at = self._spent.get(key, (0.0, now))
        spent = max(0.0, spent - (now - at) * self._count / self._seconds)
        if spent + 1 > self._count:
            wait = (spent + 1 - self._count) * self._seconds / self._count
            raise TooManyRequests(f"there were too many {what}; wait {wait:.1f} s, and try again", wait)
        return spent


class OpenStreams:
    """Counts open streams, by identity and in all."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[str, int] = {}
        self.total = 0

    @contextmanager
    def one_more(self, key: str) -> Iterator[None]:
        """Count a stream as open; raise `TooManyRequests` if there are too many."""
        mine = self._open.get(key, 0)
        if mine >= self._limits.streams:
            raise TooManyRequests(
                f"you have {mine} streams open, which is the limit; close one, or read /api/events.json", 5
            )
        if self.total >= self._limits.all_streams:
            raise TooManyRequests(f"{self.total} streams are open here, which is the limit; ask again later", 5)
        self._open[key] = mine + 1
        self.total += 1
        try:
            yield
        finally:
            self.total -= 1
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]
