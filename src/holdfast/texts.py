"""Texts that both databases can store: without NUL and lone surrogates, and of a length that is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

from holdfast.errors import InvalidInput

Words: TypeAlias = str | Sequence[str]

UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def clean_text(text: str, limit: int) -> str:
    """Make *text* storable: at most *limit* characters, NUL and lone surrogates as visible escapes.

    >>> clean_text("caf\\0", 100)
    'caf\\\\u0000'
    """
    cleaned = UNSTORABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text[: limit + 1])
    return cleaned if len(cleaned) <= limit else cleaned[: max(limit - 1, 0)] + "…"[:limit]


def words_of(value: Any, name: str) -> tuple[str, ...]:
    """Read one text or several, given as *name*."""
    words = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not all(map(_is_storable, words)):
        raise InvalidInput(
            f"{name} must be a text or a list of texts, without NUL characters and lone surrogates", name
        )
    return words


def word_of(value: Any, name: str) -> str:
    """Read one text, given as *name*."""
    if not _is_storable(value):
        raise InvalidInput(f"{name} must be a text, without NUL characters and lone surrogates", name)
    return cast("str", value)


def _is_storable(value: object) -> bool:
    return isinstance(value, str) and not UNSTORABLE.search(value)
