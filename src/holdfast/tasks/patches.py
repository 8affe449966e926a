"""Changing a stored input: a JSON merge patch (RFC 7396), checked as a new job's arguments would be.

Who edits an input as it was shown sends `REDACTED` back for what was hidden: that stays as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, NamedTuple

from holdfast.errors import InvalidInput, got
from holdfast.models import RESERVED
from holdfast.tasks.calls import check_arguments
from holdfast.tasks.registry import Tasks, any_arguments
from holdfast.texts import clean_text
from holdfast.unreadable import json_or_text
from holdfast.wire.redaction import REDACTED, Redaction

MOST_PATHS = 100
PATH_LENGTH = 200


class Edit(NamedTuple):
    """What becomes of a stored input: *before* and *after* are JSON texts, *changed* the paths where they differ."""

    before: str
    after: str
    changed: list[str]


def check_patch(arguments: object) -> dict[str, Any]:
    """Take what is to be changed, by name; None removes an argument."""
    if not isinstance(arguments, Mapping):
        raise InvalidInput(
            f"arguments must be a dict of what is to change, {got(arguments)}; write arguments={{'amount': 3}}",
            "arguments",
        )
    codec = any_arguments()
    patch: dict[str, Any] = json.loads(codec.encode(codec.check(dict(arguments))))
    return patch


def edit(
    tasks: Tasks,
    task: str,
    before: str,
    patch: Mapping[str, Any],
    schema: str | None,
    hidden: Redaction,
) -> Edit:
    """Apply *patch* to an input of *task*; raise `InvalidInput` if the task cannot take what comes of it.

    *hidden* is what the input was shown with: *patch* may repeat what stood for hidden values. A new value for one of
    these counts as a change in any case, or whoever may edit could find it by guessing.

    The task's own types judge that if its code is here, else *schema*, which its owner has written down.
    """
    stored = json_or_text(before)
    if task.startswith(RESERVED) or not isinstance(stored, dict):
        raise InvalidInput("only the arguments of a task of yours can be changed", "arguments")
    has_mark = REDACTED in json.dumps(patch, ensure_ascii=False)
    merged = merge(stored, hidden.kept(patch, stored) if has_mark else patch)
    text = json.dumps(merged, ensure_ascii=False, separators=(",", ":"))
    if task in tasks:
        after = tasks.get(task).check_input(text)
    else:
        after = any_arguments().encode(merged)
        if schema is not None:
            check_arguments(after, schema)
    paths = dict.fromkeys(chain(differences(stored, json.loads(after)), hidden.hidden_in(patch)))
    changed = [clean_text(each, PATH_LENGTH) for each in islice(paths, MOST_PATHS)]
    return Edit(before, after if changed else before, changed)


def merge(target: Any, patch: Any) -> Any:
    """Apply a merge patch: objects are merged, null removes, anything else takes the place of what was there.

    >>> merge({"a": {"b": 1, "c": 2}, "d": [1, 2]}, {"a": {"b": None, "e": 3}, "d": [9]})
    {'a': {'c': 2, 'e': 3}, 'd': [9]}
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Name the places where two JSON values differ, never what stands there.

    >>> list(differences({"a": {"b": 1, "c": 2}, "d": 1}, {"a": {"b": 1, "c": 3}, "e": 1}))
    ['a.c', 'd', 'e']
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            inner = f"{path}.{name}" if path else name
            if name not in before or name not in after:
                yield inner
            else:
                yield from differences(before[name], after[name], inner)
    elif _text(before) != _text(after):  # `[1] == [True]` and `[0.0] == [-0.0]` in Python, and not in JSON
        yield path


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
