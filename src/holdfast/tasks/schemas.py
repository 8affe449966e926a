"""Judges JSON by a stored JSON Schema, for a task whose code is elsewhere: what its types would surely refuse is told.

Never more than that. Where pydantic takes more than a schema says ("1" for an integer, a number for a time, a list with
doubles for a set), that is taken here, too. What cannot be judged here is left to the types themselves, where the code
is: patterns and formats (no regex from data runs here), what is very deep or very large, and what is marked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from holdfast.errors import LISTED, MOST_PROBLEMS, near_and_all, shown
from holdfast.texts import path_step

TAKES_MORE = "x-takes-more"
"""The mark of a schema whose type takes more than it says, such as one with a validator of the user's."""

DEPTH = 100
"""How many steps into a schema are taken; each level of a value is one to three of them."""
NODES = 50_000
"""How many steps are taken in all; they take a few tenths of a second."""
EXACT = 2**53
"""Beyond it neighbouring whole numbers are one and the same `float`."""

TRUTHS = frozenset({"0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes"})
NO_NUMBERS = frozenset({"inf", "infinity", "nan"})
TEXTS = frozenset({"base64", "base64url", "binary", "email", "password", "uri"})
"""Formats of types that take a text and no number, as times do."""


class Mismatch(NamedTuple):
    """What is wrong with the part of a value to which *path* leads; never the value, which may be secret."""

    path: str
    message: str


def problems(value: Any, schema: Mapping[str, Any], root: str = "", *, most: int = MOST_PROBLEMS) -> list[Mismatch]:
    """Tell what of *value*, as JSON gives it, its *schema* forbids; *root* is what paths begin with.

    >>> problems({"count": "many"}, {"properties": {"count": {"type": "integer"}}}, "input")
    [Mismatch(path='input.count', message='it must be of type integer')]
    """
    found: list[Mismatch] = []
    with suppress(_Enough, RecursionError):
        for each in _Judge(schema).judge(value, schema, root, 0):
            found.append(each)
            if len(found) >= most:
                break
    return found


def told(wrong: Sequence[Mismatch]) -> str:
    """Put into words what is *wrong*: the first, and how many more there are."""
    path, message = wrong[0]
    return f"{path}: {message}" + (f", and {len(wrong) - 1} more" if len(wrong) > 1 else "")


class _Enough(Exception):
    """So many steps were taken that the rest is left to the worker."""


class _Judge:
    """Goes through a value and its schema together; a problem is told only if it is certain."""

    def __init__(self, whole: Mapping[str, Any]) -> None:
        self._whole = whole
        self._left = NODES

    def judge(self, value: Any, schema: Any, path: str, depth: int) -> Iterator[Mismatch]:
        """Tell what is wrong with *value*."""
        self._spend(1)
        if depth > DEPTH or not isinstance(schema, Mapping) or TAKES_MORE in schema:
            return
        if isinstance(reference := schema.get("$ref"), str):
            yield from self.judge(value, self._find(reference), path, depth + 1)
        for each in _list(schema, "allOf"):
            yield from self.judge(value, each, path, depth + 1)
        for word in ("anyOf", "oneOf"):
            if choices := _list(schema, word):
                yield from self._choose(value, schema, choices, path, depth)
        if (wrong := _wrong_kind(value, schema) or _wrong_member(value, schema)) is not None:
            yield Mismatch(path, wrong)
            return
        yield from (Mismatch(path, each) for each in _out_of_bounds(value, schema))
        if isinstance(value, dict):
            yield from self._object(value, schema, path, depth)
        elif isinstance(value, list):
            yield from self._array(value, schema, path, depth)

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _Enough

    def _find(self, reference: str) -> Any:
        """Follow a pointer into the schema; what it does not find lets everything pass."""
        start, *parts = reference.split("/")
        found: Any = self._whole if start == "#" else None
        for each in parts:
            found = found.get(each.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        return found

    def _choose(
        self, value: Any, schema: Mapping[str, Any], choices: Sequence[Any], path: str, depth: int
    ) -> Iterator[Mismatch]:
        """Tell what is wrong if no choice takes *value*: with the choice that is meant, if that is clear."""
        if any(next(self.judge(value, each, path, depth + 1), None) is None for each in choices):
            return
        mapping = found if isinstance(found := _mapping(schema, "discriminator").get("mapping"), Mapping) else {}
        tag = _mapping(schema, "discriminator").get("propertyName")
        if mapping and isinstance(tag, str) and isinstance(value, dict):
            if tag not in value:
                yield Mismatch(path + path_step(tag), "it is missing")
            elif (meant := mapping.get(str(value[tag]))) is not None:
                yield from self.judge(value, {"$ref": meant}, path, depth + 1)
            else:
                yield Mismatch(path + path_step(tag), _one_of(list(mapping)))
            return
        meant = [each for each in choices if self._is_of_kind(value, each)]
        if len(meant) == 1:
            yield from self.judge(value, meant[0], path, depth + 1)
            return
        kinds = [self._kind(each) for each in choices]
        if not meant and all(kinds):
            yield Mismatch(path, f"it must be of type {' or '.join(dict.fromkeys(map(str, kinds)))}")
        else:
            yield Mismatch(path, f"it fits none of the {len(choices)} forms that it may have")

    def _aimed_at(self, schema: Any) -> Any:
        for _ in range(LISTED):  # a reference may lead to a reference
            if not (isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str)):
                break
            schema = self._find(schema["$ref"])
        return schema

    def _kind(self, schema: Any) -> str | None:
        aimed = self._aimed_at(schema)
        kind = aimed.get("type") if isinstance(aimed, Mapping) else None
        return kind if isinstance(kind, str) else None

    def _is_of_kind(self, value: Any, schema: Any) -> bool:
        aimed = self._aimed_at(schema)
        return isinstance(aimed, Mapping) and _wrong_kind(value, aimed) is None

    def _object(self, value: dict[str, Any], schema: Mapping[str, Any], path: str, depth: int) -> Iterator[Mismatch]:
        known, more = _mapping(schema, "properties"), schema.get("additionalProperties")
        for name in _list(schema, "required"):
            # what is only written is computed: who gives the value need not give it
            if isinstance(name, str) and name not in value and not _mapping(known, name).get("readOnly"):
                yield Mismatch(path + path_step(name), "it is missing")
        is_free = more is None or more is True or "patternProperties" in schema
        for name, item in value.items():
            if name in known:
                yield from self.judge(item, known[name], path + path_step(name), depth + 1)
            elif not is_free and more is False:
                self._spend(10 * len(known))
                yield Mismatch(path + path_step(name), f"it is not known{near_and_all(name, known, 'the names are')}")
            elif not is_free:
                yield from self.judge(item, more, path + path_step(name), depth + 1)

    def _array(self, value: list[Any], schema: Mapping[str, Any], path: str, depth: int) -> Iterator[Mismatch]:
        first, others = _list(schema, "prefixItems"), schema.get("items")
        given = value if isinstance(others, Mapping) else value[: len(first)]
        for number, item in enumerate(given):
            wanted = first[number] if number < len(first) else others
            yield from self.judge(item, wanted, f"{path}[{number}]", depth + 1)


def _wrong_kind(value: Any, schema: Mapping[str, Any]) -> str | None:
    kind = schema.get("type")
    kinds = [each for each in (kind if isinstance(kind, list) else [kind]) if isinstance(each, str)]
    if not kinds or any(_is_taken_as(each, value, schema) for each in kinds):
        return None
    return f"it must be of type {' or '.join(kinds)}"


def _is_taken_as(kind: str, value: Any, schema: Mapping[str, Any]) -> bool:
    """Tell whether pydantic might take *value* where *kind* is said, in the mode in which it converts."""
    match kind:
        case "string":
            return isinstance(value, str) or (isinstance(value, int | float) and _has_format_of_numbers(schema))
        case "integer":
            # sizes and durations have units, so that a text needs no more than a digit
            return isinstance(value, int) or _is_whole(value) or _has_digit(value)
        case "number":
            return isinstance(value, int | float) or _has_digit(value) or _is_word(value, NO_NUMBERS)
        case "boolean":
            return (isinstance(value, int | float) and value in (0, 1)) or _is_word(value, TRUTHS)
        case "array":  # a named tuple is also taken by its names
            return isinstance(value, list) or (isinstance(value, dict) and "prefixItems" in schema)
        case "object":
            return isinstance(value, dict)
        case "null":
            return value is None
    return True


def _has_format_of_numbers(schema: Mapping[str, Any]) -> bool:
    found = schema.get("format")
    return isinstance(found, str) and found not in TEXTS and not found.startswith("uuid")


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _has_digit(value: Any) -> bool:
    return isinstance(value, str) and any(map(str.isdigit, value))


def _is_word(value: Any, words: frozenset[str]) -> bool:
    return isinstance(value, str) and len(value) < 100 and value.strip().lstrip("+-").lower() in words


def _wrong_member(value: Any, schema: Mapping[str, Any]) -> str | None:
    members = [schema["const"]] if "const" in schema else _list(schema, "enum")
    if not members or value in members:  # 1, 1.0 and true are one: pydantic takes each of them for the others
        return None
    if _has_digit(value) and any(isinstance(each, int | float) for each in members):
        return None
    return _one_of(members)


def _one_of(members: Sequence[Any]) -> str:
    listed = ", ".join(map(shown, members[:LISTED])) + (", …" if len(members) > LISTED else "")
    return f"it must be {listed}" if len(members) == 1 else f"it must be one of {listed}"


def _out_of_bounds(value: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    """Tell which bounds *value* breaks, whatever it is converted to."""
    match value:
        case bool():
            pass
        case int() | float():
            yield from _out_of_range(value, schema)
        case str() if "format" not in schema:  # else they are bytes, or a type of its own, whose length is another
            yield from _wrong_length(len(value), len(value.strip()), schema, "Length", "characters")
        case list():
            # doubles are dropped before a set is measured
            fewest = 0 if schema.get("uniqueItems") else len(value)
            yield from _wrong_length(len(value), fewest, schema, "Items", "items")
        case dict():  # keys may become equal when they are converted
            yield from _wrong_length(len(value), 0, schema, "Properties", "entries")


def _wrong_length(most: int, fewest: int, schema: Mapping[str, Any], word: str, what: str) -> Iterator[str]:
    """Judge a length of which is known only that it is from *fewest* to *most* once the value is converted."""
    if (bound := _number(schema, f"min{word}")) is not None and most < bound:
        yield f"it must have at least {bound} {what}"
    if (bound := _number(schema, f"max{word}")) is not None and fewest > bound:
        yield f"it must have at most {bound} {what}"


def _out_of_range(value: float, schema: Mapping[str, Any]) -> Iterator[str]:
    is_whole = schema.get("type") == "integer"
    if schema.get("type") not in ("integer", "number"):
        return
    given = int(value) if is_whole else _as_float(value)
    for word, sign, ends in (("minimum", 1, "at least"), ("maximum", -1, "at most")):
        bound = _number(schema, word)
        if bound is not None and sign * given < sign * (bound if is_whole else _as_float(bound)):
            yield f"it must be {ends} {bound}"
    for word, sign, ends in (("exclusiveMinimum", 1, "more than"), ("exclusiveMaximum", -1, "less than")):
        bound = _number(schema, word)
        if bound is None:
            continue
        edge = bound if is_whole else _as_float(bound)
        # beyond EXACT a number may differ from its neighbour and be equal to it as a `float`
        if sign * given < sign * edge or (given == edge and (is_whole or abs(given) < EXACT)):
            yield f"it must be {ends} {bound}"
    step = _number(schema, "multipleOf")
    if is_whole and isinstance(step, int) and step > 0 and given % step:
        yield f"it must be a multiple of {step}"


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _number(schema: Mapping[str, Any], word: str) -> int | float | None:
    found = schema.get(word)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _list(schema: Mapping[str, Any], word: str) -> list[Any]:
    found = schema.get(word)
    return found if isinstance(found, list) else []


def _mapping(schema: Mapping[str, Any], word: str) -> Mapping[str, Any]:
    found = schema.get(word)
    return found if isinstance(found, Mapping) else {}
