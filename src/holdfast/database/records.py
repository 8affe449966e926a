"""What the user's own SQL gives in a block: rows that know their columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, overload

MOST_REMEMBERED = 1024


class Record(tuple[Any, ...]):
    """A row: a tuple whose values are also reached by `record["name"]` and `record.name`.

    >>> record_type(("id", "count"))((7, 2)).count
    2
    """

    __slots__ = ()
    _names: ClassVar[tuple[str, ...]] = ()
    _places: ClassVar[Mapping[str, int]] = {}

    @overload  # type: ignore[override]
    def __getitem__(self, key: int | str) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, key: int | str | slice) -> Any:
        """Give the value in a place or of a column."""
        return tuple.__getitem__(self, self._places[key] if isinstance(key, str) else key)

    def __repr__(self) -> str:
        """Show the columns' names."""
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(self._names, self, strict=True))
        return f"Record({shown})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by the names, for each set of them has a class of its own."""
        return _record, (self._names, tuple(self))

    if TYPE_CHECKING:
        count: Any  # a column's name, too
        index: Any

        def __getattr__(self, name: str) -> Any: ...


@lru_cache(MOST_REMEMBERED)
def record_type(names: tuple[str, ...]) -> type[Record]:
    """Make the class of rows with the columns *names*; of two of one name the first is found by it."""
    places = {name: place for place, name in reversed(list(enumerate(names)))}
    columns = {name: property(itemgetter(place)) for name, place in places.items() if not name.startswith("_")}
    return type("Record", (Record,), {"__slots__": (), **columns, "_names": names, "_places": places})


def records(names: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> list[Record]:
    """Make records of *rows* with the columns *names*."""
    return [*map(record_type(tuple(names)), rows)]


def _record(names: tuple[str, ...], values: tuple[Any, ...]) -> Record:
    return record_type(names)(values)
