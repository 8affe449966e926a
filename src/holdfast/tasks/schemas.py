"""Checks arguments of a task whose code is elsewhere against the JSON Schema that its owner wrote down.

Names and kinds of the arguments themselves are checked, so that a misspelt or missing one is told to who starts the
job and not, later, to the worker. What is inside a value is left to the worker's own types.
"""

from __future__ import annotations

import json
from typing import Any

from holdfast.errors import InvalidInput

KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def check_arguments(arguments: str, schema: str) -> None:
    """Raise `InvalidInput` for the first argument that *schema* does not know, misses or has of another kind."""
    given: dict[str, Any] = json.loads(arguments)
    wanted: dict[str, Any] = json.loads(schema)
    known: dict[str, Any] = wanted.get("properties", {})
    for name in wanted.get("required", []):
        if name not in given:
            raise InvalidInput(f"it is missing; the task takes {', '.join(known)}", f"arguments.{name}")
    for name, value in given.items():
        if known and name not in known:
            raise InvalidInput(f"the task takes no such argument, but {', '.join(known)}", f"arguments.{name}")
        if not _fits(value, known.get(name, {}).get("type")):
            raise InvalidInput(f"it is to be of kind {known[name]['type']}", f"arguments.{name}")


def _fits(value: Any, kind: Any) -> bool:
    if not isinstance(kind, str) or kind not in KINDS:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, KINDS[kind]) or (kind == "integer" and isinstance(value, float) and value.is_integer())
