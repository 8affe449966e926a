"""Rows of the log as the events that they stand for: the end of a chain is written with that of its last job."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def as_events(rows: Iterable[tuple[Any, ...]], columns: str) -> list[tuple[Any, ...]]:
    """Make events of *rows*, which have these *columns*, `name` and `facts` among them."""
    names = [each.strip() for each in columns.split(",")]
    name, facts = names.index("name"), names.index("facts")
    events = []
    for row in rows:
        said = json.loads(row[facts]) if row[name] == "job:completed" and row[facts] else {}
        if "closes" not in said:
            events.append(tuple(row))
            continue
        closes = said.pop("closes")
        events.append(tuple(_with(row, facts, json.dumps(said) if said else None)))
        events.append(tuple(_with(_with(row, facts, None), name, f"chain:{closes}")))
    return events


def _with(row: Iterable[Any], place: int, value: object) -> list[Any]:
    changed = list(row)
    changed[place] = value
    return changed
