"""One canonical JSON rule, applied before any SQL, so that both databases take and give back the same.

A value is stored as compact JSON in UTF-8, its keys in the order they came. It is accepted only if what is
read back through the same type equals it; if not, it is refused with the path to the part that is to blame.
Refused too is what one of the databases cannot hold (NUL, lone surrogates, NaN, infinities), and what is too
large, too deep or of too many parts. Integers may have any length that reads back.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar, cast

import pydantic
from pydantic_core import PydanticSerializationError, ValidationError, to_json

from holdfast.errors import MOST_PROBLEMS, InvalidInput, InvalidOutput, Misuse
from holdfast.texts import UNSTORABLE, clean_text, path_step

T = TypeVar("T")
Refusal: TypeAlias = type[InvalidInput] | type[InvalidOutput]

# without it bytes are stored as UTF-8, and whether a call works would depend on its data
BYTES_AS_BASE64: pydantic.ConfigDict = {"ser_json_bytes": "base64", "val_json_bytes": "base64"}


@dataclass(frozen=True, slots=True)
class ValueLimits:
    """How large a stored value may be."""

    size_bytes: int = 1024 * 1024
    depth: int = 64
    nodes: int = 100_000

    @property
    def size(self) -> str:
        """The size for people."""
        mebibytes, rest = divmod(self.size_bytes, 1024 * 1024)
        return f"{self.size_bytes} bytes" if rest else f"{mebibytes} MiB"


LIMITS = ValueLimits()
STORED_BEFORE: dict[Refusal, str] = {
    InvalidInput: "; the job was stored with another signature: give new parameters a default and keep old names until "
    "such jobs are done, then call hf.retry(job)",
    InvalidOutput: "; the result was stored with another annotation: let the new one accept it",
}
"""What to do about stored values that the code of today cannot read."""


class Codec(Generic[T]):
    """Turns values of one type into canonical JSON and back, or raises *refusal*.

    *root* is what paths begin with, *owner* the task that messages name.

    >>> numbers = Codec[list[float]](list[float], "output", InvalidOutput)
    >>> numbers.encode([1.5, -0.0])
    '[1.5,-0.0]'
    >>> numbers.encode([1.5, float("nan")])
    Traceback (most recent call last):
    holdfast.errors.InvalidOutput: output[1]: nan is not a JSON number; use None or a text
    """

    def __init__(self, kind: Any, root: str, refusal: Refusal, owner: str = "", limits: ValueLimits = LIMITS) -> None:
        self.adapter = _adapter(kind)
        self._validator = self.adapter.validator
        self._serializer = self.adapter.serializer
        self._is_annotated = bool(owner)
        self._root = root
        self._refusal = refusal
        self._owner = owner
        self._limits = limits

    def check(self, value: object) -> T:
        """Validate *value*, and convert it where pydantic does so."""
        try:
            return cast("T", self._validator.validate_python(value))
        except ValidationError as error:
            raise self._invalid(error) from None

    def encode(self, value: T) -> str:
        """Write a checked *value* as canonical JSON."""
        # measured for 180 bytes, in µs: to_json 0.4 (warnings="none" would make it 1.3), the complaints 1.0,
        # validate_json 0.7, == 0.15; in all 2.8
        try:
            data = self._serializer.to_json(value, by_alias=True, warnings=False)
        except PydanticSerializationError as error:
            raise self._unwritable(value, error) from None
        if (too_large := _size_complaint(data, self._limits)) is not None:
            raise self._refuse(too_large)
        if (unstorable := _content_complaint(data)) is not None:
            raise self._blame(value, _leaf_complaint) or self._refuse(unstorable)
        self._compare(value, data)
        return data.decode()

    def decode(self, text: str) -> T:
        """Read *text* as the type; raise if it does not fit, as after a change of the code."""
        try:
            return cast("T", self._validator.validate_json(text))
        except ValidationError as error:
            raise self._invalid(error, STORED_BEFORE[self._refusal]) from None

    def rewrite(self, text: str) -> str:
        """Read JSON *text* of somebody's as the type, and write it as canonical JSON."""
        try:
            value = cast("T", self._validator.validate_json(text))
        except ValidationError as error:
            raise self._invalid(error) from None
        return self.encode(value)

    def _compare(self, value: T, data: bytes) -> None:
        try:
            back = self._validator.validate_json(data)
        except ValidationError as error:
            raise self._blame(value, _leaf_complaint) or self._invalid(error) from None
        if _is_equal(value, back):
            return
        found = _difference(value, back, self._root)
        if found is not None:
            raise self._refuse(
                _leaf_complaint(found.given) or found.message(is_annotated=self._is_annotated), found.path
            )

    def _refuse(
        self, message: str, path: str = "", problems: tuple[tuple[str, str], ...] = ()
    ) -> InvalidInput | InvalidOutput:
        where = path or self._root
        return self._refusal(f"{where}: {message}{self._whose}", where, problems)

    @property
    def _whose(self) -> str:
        if not self._owner:
            return ""
        if self._refusal is InvalidInput:
            return f" (task {self._owner})"
        return f" (task {self._owner}: compare what was returned, or given, with its return annotation)"

    def _invalid(self, error: ValidationError, advice: str = "") -> InvalidInput | InvalidOutput:
        # without its input, which may be large or secret
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        problems = tuple(
            (self._root + "".join(map(path_step, each["loc"])), self._words(each["type"], each["msg"], each["loc"]))
            for each in errors[:MOST_PROBLEMS]
        )
        path, words = problems[0]
        further = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
        return self._refuse(words + further + advice, path, problems)

    def _words(self, kind: str, message: str, place: tuple[int | str, ...]) -> str:
        """Say in our words what pydantic says most often."""
        if kind != "missing":
            return clean_text(message[:1].lower() + message[1:], 300)
        function = re.split(r"[.:]", self._owner.partition("(")[0])[-1]
        is_argument = self._refusal is InvalidInput and len(place) == 1 and function
        return f"it is missing; write {function}({place[0]}=…)" if is_argument else "it is missing"

    def _unwritable(self, value: object, error: PydanticSerializationError) -> InvalidInput | InvalidOutput:
        if "Circular reference" in str(error) or "depth exceeded" in str(error):
            return self._refuse(f"it contains itself, or is nested deeper than {self._limits.depth}; flatten it")
        found = self._blame(value, _leaf_complaint) or self._blame(value, _form_complaint)
        return found or self._refuse(f"it cannot be stored as JSON: {clean_text(str(error), 300)}")

    def _blame(self, value: object, complain: Callable[[object], str | None]) -> InvalidInput | InvalidOutput | None:
        """Find the first leaf of *value* that there is something to *complain* about."""
        leaves = islice(_leaves(value, self._root, self._limits.depth), self._limits.nodes)
        found = ((path, complain(leaf)) for path, leaf in leaves)
        return next((self._refuse(message, path) for path, message in found if message is not None), None)


def make_codec(kind: Any, root: str, refusal: Refusal, owner: str) -> Codec[Any]:
    """Make the codec of what *owner*, a task, takes or gives, or raise `Misuse` if pydantic does not know its type."""
    try:
        return Codec(kind, root, refusal, owner)
    except (pydantic.PydanticUserError, pydantic.PydanticUndefinedAnnotation) as error:
        reason = str(error.message).split(". ")[0].splitlines()[0]
        raise Misuse(f"the {root} of task {owner} cannot be stored: {reason}; use types that pydantic knows") from None


def _adapter(kind: Any) -> pydantic.TypeAdapter[Any]:
    try:
        return pydantic.TypeAdapter(kind, config=BYTES_AS_BASE64)
    except pydantic.PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
        return pydantic.TypeAdapter(kind)  # models, dataclasses and TypedDicts bring a configuration of their own


LONGEST_INTEGER = (10**4300).bit_length()
ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
CONSTANT = re.compile(b"NaN|Infinity")
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
ONLY_SQUARE = bytes.maketrans(b"{}", b"[]")
NOT_A_BRACKET = bytes(sorted(set(range(256)) - set(b"[]{}")))


def _size_complaint(data: bytes, limits: ValueLimits) -> str | None:
    if len(data) > limits.size_bytes:
        return f"it has {len(data)} bytes as JSON, and the limit is {limits.size}; store it elsewhere and pass its key"
    # a text with few brackets is not deep, and a short one has not many nodes
    if data.count(b"[") + data.count(b"{") > limits.depth or len(data) > 2 * limits.nodes:
        return _structure_complaint(STRING.sub(b"0", data), limits)
    return None


def _structure_complaint(bare: bytes, limits: ValueLimits) -> str | None:
    """Measure a JSON text whose strings have been taken out."""
    openings = bare.count(b"[") + bare.count(b"{")
    empty = bare.count(b"[]") + bare.count(b"{}")
    nodes = 1 + bare.count(b",") + openings - empty
    if nodes > limits.nodes:
        return f"it has {nodes} parts, and the limit is {limits.nodes}; store it elsewhere and pass its key"
    brackets = bare.translate(ONLY_SQUARE, NOT_A_BRACKET)
    for _ in range(limits.depth):  # each round takes off the innermost level; 10 ms for 800 kB of brackets
        brackets = brackets.replace(b"[]", b"")
    return f"it is nested deeper than {limits.depth}; flatten it" if brackets else None


def _content_complaint(data: bytes) -> str | None:
    if b"\\u0000" in data and ESCAPED_NUL.search(data):
        return "it contains a NUL character, which PostgreSQL cannot store; remove it"
    if (b"NaN" in data or b"Infinity" in data) and CONSTANT.search(STRING.sub(b"", data)):
        return "it contains NaN or an infinity, which JSON does not have; use None or a text"
    return None


@dataclass(frozen=True, slots=True)
class _Difference:
    path: str
    given: object
    back: object

    def message(self, *, is_annotated: bool) -> str:
        given, back = type(self.given).__name__, type(self.back).__name__
        advice = f"annotate it as {given}, or " if is_annotated else ""
        if given == back:
            return f"a {given} does not come back equal from JSON; use a type that does, or plain data"
        return f"a {given} would come back as a {back}; {advice}pass a {back}"


def _is_equal(given: object, back: object) -> bool:
    try:
        if given == back:
            return True
        # in the hour that autumn repeats a time equals none of another zone (PEP 495), also at one instant
        return isinstance(given, datetime) and isinstance(back, datetime) and given - back == timedelta(0)
    except Exception:  # noqa: BLE001 - a user's __eq__ may raise anything
        return False


def _difference(given: object, back: object, path: str) -> _Difference | None:
    if _is_equal(given, back):
        return None
    ours, theirs = _parts(given), _parts(back)
    if type(given) is not type(back) or ours is None or theirs is None or ours.keys() != theirs.keys():
        return _Difference(path, given, back)
    pairs = ((key, ours[key], theirs[key]) for key in ours)
    found = (_difference(mine, yours, path + _step(given, key)) for key, mine, yours in pairs)
    return next((each for each in found if each is not None), None)


def _leaves(value: object, path: str, depth: int) -> Iterator[tuple[str, object]]:
    parts = _parts(value)
    if parts is None or depth == 0:
        yield path, value
        return
    for key, part in parts.items():
        yield path, key
        yield from _leaves(part, path + _step(value, key), depth - 1)


def _leaf_complaint(leaf: object) -> str | None:
    """Say what forbids to store *leaf*, whatever its type is."""
    if isinstance(leaf, str) and UNSTORABLE.search(leaf):
        return "it contains a NUL character or a lone surrogate, which the databases cannot store; remove it"
    if isinstance(leaf, int) and leaf.bit_length() > LONGEST_INTEGER:
        return "it has more than 4300 digits, which Python does not read back; pass it as a text"
    if isinstance(leaf, float) and not math.isfinite(leaf):
        return f"{leaf} is not a JSON number; use None or a text"
    return None


def _form_complaint(leaf: object) -> str | None:
    """Say why *leaf* cannot be written, as far as that can be told without its type."""
    try:
        to_json(leaf)
    except PydanticSerializationError:
        if isinstance(leaf, bytes):
            return "these bytes are not UTF-8; set ser_json_bytes and val_json_bytes to 'base64' in the model's config"
        return f"a {type(leaf).__name__} cannot be stored as JSON; use a type that pydantic can write and read"
    return None


def _parts(value: object) -> dict[Any, object] | None:
    """Take a value apart; None for what has no parts that a path could name."""
    match value:
        case pydantic.BaseModel():
            return value.__dict__ | (value.__pydantic_extra__ or {}) | (value.__pydantic_private__ or {})
        case Mapping():
            return dict(value)
        case list() | tuple() | deque():
            return dict(enumerate(value))
    if is_dataclass(value):
        return {each.name: getattr(value, each.name, None) for each in fields(value) if each.compare}
    return None


def _step(whole: object, key: object) -> str:
    return f".{key}" if isinstance(whole, pydantic.BaseModel) or is_dataclass(whole) else path_step(key)
