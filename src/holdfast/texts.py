"""Texts that both databases can store: without NUL and lone surrogates, and of a length that is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from holdfast.errors import InvalidInput, got

Words: TypeAlias = str | Sequence[str]

UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def clean_text(text: str, limit: int) -> str:
    """Make *text* storable: at most *limit* characters, NUL and lone surrogates as visible escapes.

    >>> clean_text("caf\\0", 100)
    'caf\\\\u0000'
    """
    cleaned = UNSTORABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text[: limit + 1])
    return cleaned if len(cleaned) <= limit else cleaned[: max(limit - 1, 0)] + "…"[:limit]


def path_step(key: object) -> str:
    """Write the last step of a path into a value.

    >>> path_step("name"), path_step("first name"), path_step(3)
    ('.name', "['first name']", '[3]')
    """
    if isinstance(key, int):
        return f"[{key}]" if abs(key) < 10**18 else "[int]"
    if not isinstance(key, str):
        return f"[{type(key).__name__}]"
    return f".{key}" if key.isidentifier() and len(key) <= 60 else f"[{clean_text(key, 60)!r}]"


def words_of(value: Any, name: str) -> tuple[str, ...]:
    """Read one text or several, given as *name*."""
    words = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if wrong := [word for word in words if not isinstance(word, str)]:
        raise InvalidInput(f"{name} must be a text or a list of texts, {got(wrong[0])}{_advice(wrong[0], name)}", name)
    if not all(map(_is_storable, words)):
        raise InvalidInput(f"{name} may have no NUL characters and no lone surrogates", name)
    return words


def word_of(value: Any, name: str) -> str:
    """Read one text, given as *name*."""
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be one text, {got(value)}{_advice(value, name)}", name)
    if not _is_storable(value):
        raise InvalidInput(f"{name} may have no NUL characters and no lone surrogates", name)
    return value


def _is_storable(value: str) -> bool:
    return not UNSTORABLE.search(value)


def _advice(value: object, name: str) -> str:
    if value is None:
        return f"; leave {name}= out if any will do"
    text = value.__name__ if isinstance(value, type) else getattr(value, "name", None)
    return f"; write {text!r}" if isinstance(text, str) else ""
