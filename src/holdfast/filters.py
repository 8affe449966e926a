r"""Filters of jobs as one text, as a person types them: `task:charge status:failed,paused input.user_id:42 since:2h`.

    text    terms, with blanks between them; all of them must fit
    term    name:value,value…   one of the values must fit; a term that is only an id means `id:`
    name    id, chain, chain_task, task, status, queue, lane, tag, worker, error, parent, order, internal, since, until,
            and input.<path> with the keys that lead to a value, such as input.order.id
    value   a word, or "words in quotes" with \" and \\ inside; name and value may be quoted
    since, until    30s, 5m, 2h, 7d or 1w before now, or a time with its zone: 2026-05-04T12:00Z
    input   a number, true, false or null as JSON writes them; anything else, and what is in quotes, is a text

`parse` gives the keywords of `hf.list_jobs`, and `write` makes a text of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, get_args
from uuid import UUID

from holdfast.errors import InvalidFilter, InvalidId, InvalidInput, got, shown
from holdfast.ids import target_id, to_id
from holdfast.keywords import refuse_unknown
from holdfast.models import Order, Scalar
from holdfast.states import State
from holdfast.texts import UNSTORABLE, words_of
from holdfast.times import milliseconds_of

LONGEST = 1_000
"""How many characters a text may have."""

MOST_TERMS = 20
MOST_STEPS = 8
"""How many keys may lead to a value of the input."""

BEYOND_INTEGERS = 10**4300
"""What a whole number must be less than: Python neither reads nor writes one of more digits."""

LISTED = ("task", "status", "queue", "lane", "tag", "worker", "error", "chain_task")
"""The names that take several words."""

TARGETS = ("id", "chain", "parent")
TIMES = {"since": "created_from", "until": "created_to"}
NAMES = (*TARGETS, *LISTED, "order", "internal", *TIMES, "input.<path>")
INPUT = "input."
UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
AGO = re.compile(r"([0-9]{1,9})([smhdw])")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
WORDS: Final[dict[str, Scalar]] = {"true": True, "false": False, "null": None}
PLAIN = re.compile(r'[^\s",:\\]+')
"""What needs no quotes."""


def parse(text: str, now: datetime) -> dict[str, Any]:
    """Read *text* as the keywords of `hf.list_jobs`; `since:2h` means two hours before *now*.

    Raises `InvalidFilter`, whose *column* says where.

    >>> from datetime import UTC
    >>> parse('task:charge status:failed,paused input.user_id:42', datetime.now(UTC))
    {'task': ('charge',), 'status': ('failed', 'paused'), 'input': {'user_id': 42}}
    """
    if not isinstance(text, str):
        raise InvalidInput(f"a filter must be a text, {got(text)}; write 'task:charge status:failed'", "text")
    milliseconds_of(now, "now")
    if len(text) > LONGEST:
        raise InvalidFilter(f"the filter has {len(text)} characters; the limit is {LONGEST}", LONGEST + 1)
    if found := UNSTORABLE.search(text):
        raise InvalidFilter("a filter may have no NUL characters and no lone surrogates", found.start() + 1)
    wanted: dict[str, Any] = {}
    for number, term in enumerate(_terms(text)):
        if number == MOST_TERMS:
            raise InvalidFilter(f"the filter has more than {MOST_TERMS} terms", term.column)
        _add(wanted, term, now)
    return wanted


def write(**wanted: Any) -> str:
    """Write the keywords of `hf.list_jobs`, without `limit` and `cursor`, as a text that `parse` reads.

    >>> write(task="charge", tag=["big customer"], input={"user_id": 42, "zip": "42"})
    'task:charge tag:"big customer" input.user_id:42 input.zip:"42"'
    """
    refuse_unknown(wanted, (*TARGETS, *LISTED, "order", "internal", *TIMES.values(), "input"), "write()", "filter")
    terms = list(_written(wanted))
    if len(terms) > MOST_TERMS:
        raise InvalidFilter(f"the filter has more than {MOST_TERMS} terms", 1)
    text = " ".join(terms)
    if len(text) > LONGEST:
        raise InvalidFilter(f"the filter has {len(text)} characters; the limit is {LONGEST}", LONGEST + 1)
    return text


def input_path(path: object) -> tuple[str, ...]:
    """Read the keys that lead to a value of the input, with dots between them; or raise `InvalidInput`.

    >>> input_path("order.id")
    ('order', 'id')
    """
    steps = path.split(".") if isinstance(path, str) and not UNSTORABLE.search(path) else []
    if not all(steps) or not 1 <= len(steps) <= MOST_STEPS:
        raise InvalidInput(
            f"a path of input must be 1 to {MOST_STEPS} keys with dots between them, {got(path)}; "
            'write input={"order.id": 7}',
            "input",
        )
    return tuple(steps)


def input_value(path: str, value: object) -> Scalar:
    """Give what a value of the input is compared with, without what an enum adds to it; or raise `InvalidInput`."""
    match value:
        case None | bool():
            return value
        case str() if not UNSTORABLE.search(value):
            return str.__str__(value)
        case int() if abs(value) < BEYOND_INTEGERS:
            return int(value)
        case float() if math.isfinite(value):
            return float(value)
    raise InvalidInput(f"input.{path} must be a text, a number, True, False or None, {got(value)}", "input")


def read_scalar(text: str) -> Scalar:
    """Read what stands behind `input.<path>:` in a filter, and nothing else.

    >>> read_scalar("42"), read_scalar('"42"'), read_scalar("null"), read_scalar("Ada: 7")
    (42, '42', None, 'Ada: 7')
    """
    if text.startswith('"'):
        word, end = _quoted(text, 0)
        if end < len(text):
            raise InvalidFilter("nothing may follow the quotes", end + 1)
        return _scalar(word)
    return _scalar(_Word(text, 1, is_quoted=False))


class _Word(NamedTuple):
    text: str
    column: int
    is_quoted: bool


class _Term(NamedTuple):
    name: str
    column: int
    values: tuple[_Word, ...]


def _terms(text: str) -> Iterator[_Term]:
    at = 0
    while (at := _behind_blanks(text, at)) < len(text):
        start = at
        name, at = _word(text, at, ',":', "a term must begin with a name")
        if text[at : at + 1] != ":":
            yield _bare(name, text, at)
            continue
        values = []
        while True:
            value, at = _word(text, at + 1, ',"', f"{name.text} needs a value")
            values.append(value)
            if text[at : at + 1] != ",":
                break
        if at < len(text) and not text[at].isspace():
            raise InvalidFilter(f"a blank or a comma must follow the value of {name.text}", at + 1)
        yield _Term(name.text, start + 1, tuple(values))


def _behind_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _bare(word: _Word, text: str, at: int) -> _Term:
    """Read a term that has no name: an id, and nothing else."""
    if at < len(text) and not text[at].isspace():
        raise InvalidFilter(f"{shown(text[at])} stands where a blank or a colon must", at + 1)
    try:
        to_id(word.text)
    except InvalidId:
        raise InvalidFilter(
            f"{shown(word.text)} is no term; write name:value, such as task:{word.text or 'charge'}", word.column
        ) from None
    return _Term("id", word.column, (word,))


def _word(text: str, at: int, stops: str, missing: str) -> tuple[_Word, int]:
    """Read a word at *at*, in quotes, or up to a blank or one of *stops*; give where it ends."""
    if text[at : at + 1] == '"':
        return _quoted(text, at)
    end = at
    while end < len(text) and not text[end].isspace() and text[end] not in stops:
        end += 1
    if end == at:
        raise InvalidFilter(missing, at + 1)
    return _Word(text[at:end], at + 1, is_quoted=False), end


def _quoted(text: str, at: int) -> tuple[_Word, int]:
    column, read = at + 1, []
    at += 1
    while at < len(text) and text[at] != '"':
        if text[at] == "\\":
            at += 1
            if text[at : at + 1] not in ("\\", '"'):
                raise InvalidFilter('a backslash in quotes must stand before " or another backslash', at)
        read.append(text[at])
        at += 1
    if at >= len(text):
        raise InvalidFilter("these quotes are not closed", column)
    return _Word("".join(read), column, is_quoted=True), at + 1


def _add(wanted: dict[str, Any], term: _Term, now: datetime) -> None:
    """Add a term to the keywords that were read before it."""
    if term.name.startswith(INPUT):
        _add_input(wanted.setdefault("input", {}), term)
    elif term.name in LISTED:
        words = (
            [_status(each) for each in term.values] if term.name == "status" else [each.text for each in term.values]
        )
        wanted[term.name] = tuple(dict.fromkeys((*wanted.get(term.name, ()), *words)))
    elif term.name in ("id", "chain"):
        wanted[term.name] = tuple(dict.fromkeys((*wanted.get(term.name, ()), *map(_id, term.values))))
    elif term.name in SINGLE:
        keyword, read = SINGLE[term.name]
        if keyword in wanted:
            raise InvalidFilter(f"{term.name} stands here twice", term.column)
        wanted[keyword] = read(_only(term), now)
    else:
        raise InvalidFilter(f"there is no filter {shown(term.name)}", term.column, term.name, NAMES)


def _add_input(wanted: dict[str, Scalar], term: _Term) -> None:
    path = term.name.removeprefix(INPUT)
    try:
        input_path(path)
    except InvalidInput as error:
        raise InvalidFilter(str(error), term.column) from None
    if path in wanted:
        raise InvalidFilter(f"{term.name} stands here twice", term.column)
    wanted[path] = _scalar(_only(term))


def _only(term: _Term) -> _Word:
    if len(term.values) > 1:
        raise InvalidFilter(f"{term.name} takes one value", term.values[1].column)
    return term.values[0]


def _scalar(word: _Word) -> Scalar:
    if word.is_quoted:
        return word.text
    if word.text in WORDS:
        return WORDS[word.text]
    if (number := NUMBER.fullmatch(word.text)) is None:
        return word.text
    if number[1] is None and number[2] is None and len(word.text) <= LONGEST:
        return int(word.text)
    if len(word.text) > LONGEST or not math.isfinite(value := float(word.text)):
        raise InvalidFilter(f"{shown(word.text)} is too large for a number; put a text into quotes", word.column)
    return value


def _status(word: _Word) -> str:
    if word.text in list(State):
        return word.text
    raise InvalidFilter(f"there is no status {shown(word.text)}", word.column, word.text, list(State))


def _id(word: _Word, _: datetime | None = None) -> UUID:
    try:
        return to_id(word.text)
    except InvalidId:
        raise InvalidFilter(f"{shown(word.text)} is no id", word.column) from None


def _order(word: _Word, _: datetime) -> str:
    return _choice(word, get_args(Order))


def _internal(word: _Word, _: datetime) -> bool:
    return _choice(word, ("true", "false")) == "true"


def _choice(word: _Word, known: Sequence[str]) -> str:
    if word.text not in known:
        raise InvalidFilter(f"there is no such word here: {shown(word.text)}", word.column, word.text, known)
    return word.text


def _time(word: _Word, now: datetime) -> datetime:
    if ago := AGO.fullmatch(word.text):
        try:
            return now - timedelta(seconds=int(ago[1]) * UNITS[ago[2]])
        except OverflowError:
            raise InvalidFilter(f"{shown(word.text)} is too long ago", word.column) from None
    try:
        at = datetime.fromisoformat(word.text)
    except ValueError:
        at = None
    if at is None or at.utcoffset() is None:
        raise InvalidFilter(
            f"{shown(word.text)} is no time; write 2h for two hours ago, or 2026-05-04T12:00Z with its zone",
            word.column,
        )
    return at


SINGLE: dict[str, tuple[str, Callable[[_Word, datetime], object]]] = {
    "parent": ("parent", _id),
    "order": ("order", _order),
    "internal": ("internal", _internal),
    "since": ("created_from", _time),
    "until": ("created_to", _time),
}
"""The names that take one value: the keyword that each gives, and how its value is read."""


def _written(wanted: Mapping[str, Any]) -> Iterator[str]:
    for name, value in wanted.items():
        if name == "input":
            for path, each in value.items():
                steps = ".".join(input_path(path))
                yield f"{_quote(INPUT + steps)}:{_json(input_value(path, each))}"
        elif name in ("id", "chain"):
            several = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
            yield _listed(name, [str(target_id(each)) for each in several])
        elif name in LISTED:
            yield _listed(name, words_of(value, name))
        elif value is not None:
            yield f"{_name_of(name)}:{_single(value)}"


def fits_nothing(name: str) -> InvalidInput:
    """Make the error for a filter without a word: to leave it out would let any job fit."""
    return InvalidInput(f"{name} is empty, which fits no job; leave it out if any will do", name)


def _listed(name: str, words: Sequence[str]) -> str:
    if not words:
        raise fits_nothing(name)
    return f"{name}:{','.join(map(_quote, words))}"


def _name_of(keyword: str) -> str:
    return next(name for name, (known, _) in SINGLE.items() if known == keyword)


def _single(value: object) -> str:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidInput(f"a time must be timezone-aware, {got(value)}; add a tzinfo", "created_from")
        return value.isoformat().replace("+00:00", "Z")  # in UTC it may be before the year 1, or behind 9999
    if isinstance(value, bool):
        return str(value).lower()
    return _quote(value) if isinstance(value, str) else str(target_id(value))  # type: ignore[arg-type]


def _json(value: Scalar) -> str:
    if isinstance(value, str):
        return _quote(value, is_text=True)
    return next((word for word, each in WORDS.items() if each is value), repr(value))


def _quote(word: str, *, is_text: bool = False) -> str:
    """Put *word* into quotes if it needs them; one that *is_text* also if it would be read as something else."""
    is_other = is_text and (word in WORDS or NUMBER.fullmatch(word))
    if PLAIN.fullmatch(word) and not is_other:
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
