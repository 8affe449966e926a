"""Puts into requests what no document tells of: ids that are there, absurd dates, NUL, bodies that are no JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

TEXTS = (
    *("\0", "a\0b", "\ufffe", "💥", "'", '"', "%", "\\", "a,b", "null", "true", "-1", "0", "1e999", "NaN", "[]", "{}"),
    *("9" * 30, "9" * 400, "-" + "9" * 30, str(2**63), str(2**63 - 1), str(2**31), "x" * 10_000, "é" * 5_000),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999-23:59", "0000-00-00T00:00:00Z", "1970-01-01T00:00:00Z"),
    *("holdfast.internal", "01980f00-6e1c-7000-8000-5a1c2f9e0b77", "../..", "task:", "status:paused -", "status:,"),
)
VALUES: tuple[Any, ...] = (
    *(*TEXTS, "", "\ud800", {"\ud800": "\udfff"}, [], {}, [None], [""], {"": {"": {}}}, [[[[[]]]]], {"a\0": "\0"}),
    *(None, True, False, 0, -1, 1.5, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**400, 1e308, -1e308, 5e-324),
)
HEADERS = (
    *(("Accept", kind) for kind in ("", "text/html", "*/*;q=0", "application/*", ",", "x" * 10_000)),
    *(("Content-Type", kind) for kind in ("", "text/plain", "application/json; charset=utf-16", "application/JSON")),
    *(("Idempotency-Key", key) for key in ("", "a", "a b", "x" * 201, "\x7f", "é")),
    *(("Last-Event-ID", cursor) for cursor in ("", "0", "czE6MDowOjA", "%00", "é", "x" * 10_000)),
    *(("If-None-Match", tag) for tag in ("*", '""', "W/", 'W/"é"')),
    *(("Content-Length", length) for length in ("9" * 30, "-1", "1e9", "")),
    *(("Accept-Encoding", "gzip;q=0"), ("Range", "bytes=0-1"), ("Cookie", "holdfast=\xff; ="), ("Authorization", "x")),
    *(("Origin", "null"), ("Forwarded", "for=unknown"), ("X-Forwarded-Host", "x"), ("Host", "localhost:99999999")),
)
KNOWN_HEADERS = ("Idempotency-Key",)
BODIES = (
    *(
        b"",
        b"\0",
        b"null",
        b"[]",
        b"1",
        b'"x"',
        b"{",
        b"{}{}",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"why": NaN}',
        b'{"why": 1e999}',
    ),
    *(
        b'{"why": "a", "why": "b"}',
        b'{"why": "\xed\xa0\x80"}',
        b"[" * 100_000,
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b" " * 1_000_001,
    ),
    *(b'{"why": %s}' % (b"9" * 5_000), b'{"why": [%s]}' % b",".join([b"0"] * 100_001), "{}".encode("utf-16")),
)

Known = Mapping[str, Sequence[Any]]
"""Values that are there, by the names of parameters and keys: of all paths, or `"/api/jobs/ id"` of those that begin
so; and bodies that are taken, by their operation, such as `"POST /api/jobs"`."""


def known_to(path: str, known: Known) -> Known:
    """Give the values that are known to requests of *path*."""
    found = {key: values for key, values in known.items() if " " not in key}
    for key in known.keys() - found.keys():
        beginning, name = key.split(" ")
        found |= {name: known[key]} if path.startswith(beginning) else {}
    return found


class Change:
    """Changes what was drawn. A sensible request has mostly known values, few others, and now and then an odd one."""

    def __init__(self, known: Known, chosen: Random) -> None:
        self._known = known
        self._chosen = chosen
        self._is_sensible = chosen.random() < 0.5

    def path(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Change the parameters of a path."""
        return {name: self._value(name, value, TEXTS) for name, value in drawn.items()}

    def query(self, drawn: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Change a query that may have *names*."""
        query = self._object(drawn, TEXTS)
        for name in [each for each in names if each not in query]:
            query.update((name, value) for value in self._known_value(name, 0.3))
            query.update((name, value) for value in self._odd_value(TEXTS, 0.02))
        return query

    def body(self, drawn: object, examples: Sequence[Any] | None) -> object:
        """Change a body; a sensible one is an example with little of what was drawn."""
        changed = self._object(drawn, VALUES) if isinstance(drawn, dict) else drawn
        if examples is None or not self._is_sensible or not isinstance(changed, dict):
            return changed
        taken = {name: value for name, value in changed.items() if self._chosen.random() < 0.2}
        example = self._chosen.choice(examples)
        return {name: self._value(name, value, VALUES) for name, value in example.items()} | taken

    def raw(self, body: bytes) -> bytes:
        """Give a body that is no JSON, or too much of it, in place of a few."""
        return next(iter(self._odd_value(BODIES, 0.05)), body)

    def headers(self, given: Mapping[str, str]) -> dict[str, str]:
        """Add known ones, and an odd one to a few requests."""
        known = {name: value for name in KNOWN_HEADERS for value in self._known_value(name, 0.3)}
        return {**given, **known, **dict(self._odd_value(HEADERS, 0.1))}

    def _known_value(self, name: str, share: float) -> list[Any]:
        return [self._chosen.choice(self._known[name])] if name in self._known and self._chosen.random() < share else []

    def _odd_value(self, odd: Sequence[Any], share: float) -> list[Any]:
        return [self._chosen.choice(odd)] if self._chosen.random() < share else []

    def _object(self, drawn: Mapping[str, Any], odd: Sequence[Any]) -> dict[str, Any]:
        return {name: self._value(name, value, odd) for name, value in drawn.items() if self._is_kept(name, value)}

    def _is_kept(self, name: str, value: Any) -> bool:
        is_plain = name not in self._known and not isinstance(value, dict | list)
        return not (self._is_sensible and is_plain and self._chosen.random() < 0.7)

    def _value(self, name: str, value: Any, odd: Sequence[Any]) -> Any:
        if given := self._odd_value(odd, 0.08):
            return given[0]
        if given := self._known_value(name, 0.95 if self._is_sensible else 0.4):
            return given[0]
        if isinstance(value, dict):
            return self._object(value, odd)
        if isinstance(value, list) and odd is VALUES:
            return [self._value(name, each, odd) for each in value]
        return value
