"""How values are written for those outside: one model describes the JSON of a kind, and makes its writer.

    class ShelfObject(BaseModel):
        key: str
        head: MaybeText
        paused_at: MaybeInstant

    shelf_object = writer_of(ShelfObject)      # shelf_object(info) -> dict

What the JSON says of a field differently than the value does, stands with its type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel

from holdfast.times import instant_text


@dataclass(frozen=True, slots=True)
class Written:
    """How a value that is not None is written, and the attribute that it is *of* if that is called differently.

    What has no such way is written as it is.
    """

    by: Callable[[Any], object]
    of: str | None = None


_decode = json.JSONDecoder().decode  # json.loads, without the look at its arguments: half a µs for each job


def _from_json(text: str) -> object:
    """Read a stored value; what is no JSON is written as the text that it is."""
    try:
        return _decode(text)
    except ValueError:
        return text


Text: TypeAlias = Annotated[str, Written(str)]
MaybeText: TypeAlias = Annotated[str | None, Written(str)]
Instant: TypeAlias = Annotated[str, Written(instant_text)]
MaybeInstant: TypeAlias = Annotated[str | None, Written(instant_text)]
Json: TypeAlias = Annotated[Any, Written(_from_json)]


def writer_of(kind: type[BaseModel], without: Sequence[str] = ()) -> Callable[[object], dict[str, Any]]:
    """Make the function that writes a value as *kind* describes it, with null for the fields of *without*."""
    fields = kind.model_fields
    names = tuple(fields)
    found = [(at, way) for at, name in enumerate(names) for way in fields[name].metadata if isinstance(way, Written)]
    called = {names[at]: way.of for at, way in found if way.of is not None}
    ways, read = [(at, way.by) for at, way in found], attrgetter(*(called.get(each, each) for each in names))
    left_out = [names.index(name) for name in without]

    def write(value: object) -> dict[str, Any]:
        values = [*read(value)]
        for at in left_out:
            values[at] = None
        for at, by in ways:
            if (given := values[at]) is not None:
                values[at] = by(given)
        return dict(zip(names, values, strict=True))

    return write
