"""What readers may see of values: secrets and what a task names are masked, the same in API, SSE, dashboard and CLI.

Masked is what stands under a key like `password` or `api_key`, what the `redact=` of its task leads to, and passwords
in addresses and in the texts of errors. Instead of it everybody sees `REDACTED`. Who may not see payloads sees neither
input nor output, and of an error only its type.

All this is about JSON values, and changes none: what has nothing to mask is given back itself, behind one walk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

from holdfast.errors import InvalidInput, got, shown
from holdfast.journals import INPUT
from holdfast.outcomes import FATAL, POISON, USED_UP

REDACTED = "•••"
"""What stands in the place of a value that is hidden."""

MOST_PATHS, MOST_STEPS, LONGEST_PATH = 20, 8, 200
DEEPEST = 100
"""Below so many levels nothing is shown."""
LONGEST_KEPT_KEY = 100
BRIEF_ERROR = frozenset({"traceback", "attributes"})
"""What a brief error lacks."""
ENGINE_REASONS = frozenset({USED_UP, FATAL, POISON, "lost"})
"""Why a job has failed, in words of ours; other reasons are texts of handlers and of people."""

Step: TypeAlias = str
Path: TypeAlias = tuple[Step, ...]

SEAM = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
SECRET = re.compile(
    r"passw(?:or)?d|passphrase|passcode|secret(?!ar)|credential|authori[sz]ation|cookie"
    r"|(?:api|access|private|signing|encryption)_?key"
    r"|(?:^|_)(?:pwd|jwt|otp|cvv|cvc|dsn|token)(?:_|$)|(?:^|_)(?:auth|pass)$|(?:token|dsn)$"
)
VALUES_OF_SCHEMAS = frozenset({"default", "const", "enum", "example", "examples"})
PARTS_OF_SCHEMAS = frozenset({"items", "prefixItems", "additionalProperties"})
TOKENS = re.compile(r"tokens(?:_|$)")
"""Keys of tokens; a number there is how many, as of a language model."""
ADDRESS = re.compile(r"(://[^\s/:@]*:)[^\s/]+@")
ASSIGNED = re.compile(
    r"(?i)((?:passw(?:or)?d|pwd|secret|token|api_?key|signature|credential)\w{0,20}=)"
    r"""("[^"]*"|'[^']*'|[^\s&;,)"']+)"""
)
BEARER = re.compile(r"(?i)\b(bearer\s+)(?=\S{0,200}\d)[\w.~+/=-]{8,}")


@dataclass(frozen=True, slots=True)
class Redaction:
    """What a reader may see; *keys* and *paths* are hidden beside what is secret by its name."""

    payloads: bool = True
    """Whether input, output and the details of errors are shown at all."""
    keys: tuple[str, ...] = ()
    """Further keys, at any depth; case, dashes and underscores make no difference."""
    paths: tuple[str, ...] = ()
    """Paths into input and output, such as `card.number`, or `items.*.iban` for each of a list."""

    def __post_init__(self) -> None:
        for name in ("keys", "paths"):
            words: object = getattr(self, name)
            if not isinstance(words, list | tuple) or not all(isinstance(each, str) for each in words):
                raise InvalidInput(f'{name} must be a list of texts, {got(words)}; write {name}=["iban"]', name)
            object.__setattr__(self, name, tuple(words))  # it is looked up by its value

    def of_task(self, paths: Sequence[str]) -> Redaction:
        """Give what this reader may see of the jobs of a task whose `redact=` is *paths*."""
        return replace(self, paths=(*self.paths, *paths)) if paths else self

    def value(self, value: Any) -> Any:
        """Give an input or an output as it is shown, *value* itself if there is nothing to hide."""
        if not self.payloads:
            return None
        steps = [_steps(path) for path in self.paths]
        if ("*",) in steps and not isinstance(value, dict | list | None):
            return REDACTED
        return _masked(value, _folded(self.keys), steps, set())

    def error(self, error: Any) -> Any:
        """Give the error of an attempt as it is shown."""
        if not self.payloads:
            return {"type": error.get("type")} if isinstance(error, dict) else None
        return _masked_texts(_masked(error, _folded(self.keys), (), set()))

    def text(self, text: str | None) -> str | None:
        """Give a text that handlers or people wrote, such as a message, without the passwords in it."""
        return None if text is None else without_passwords(text)

    def reason(self, reason: str | None) -> str | None:
        """Give why a job stands as it does; in the words of a handler it may say what its error did."""
        return self.text(reason) if self.payloads or reason in ENGINE_REASONS else None

    def facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Give what an event says, as it is shown."""
        found = dict(facts)
        for name, show in (("error", self.error), ("reason", self.reason), ("message", self.text)):
            if found.get(name) is not None:
                found[name] = show(found[name])
        return found

    def journal(self, kind: str, body: Any) -> Any:
        """Give the body of an entry of a journal as it is shown; former inputs are among them."""
        if kind == INPUT and isinstance(body, dict):
            return {**body, "input": self.value(body.get("input"))}
        return replace(self, paths=()).value(body)

    def schema(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Give the JSON Schema of an input or an output without what it says of hidden values, such as defaults."""
        found: dict[str, Any] = _masked_schema(schema, _folded(self.keys), [_steps(path) for path in self.paths])
        return found

    def kept(self, patch: Mapping[str, Any], stored: Any) -> dict[str, Any]:
        """Give a merge patch for the input *stored* without what only repeats what is hidden: that stays as it was.

        A list takes the place of the whole list before it, so one that holds `REDACTED` must begin with all that this
        reader was shown; else raise `InvalidInput`.
        """
        return _kept(patch, stored, _folded(self.keys), [_steps(path) for path in self.paths], "")

    def hidden_in(self, patch: Mapping[str, Any]) -> Iterator[str]:
        """Name the places where *patch* has values that are hidden, and not only the marks for them."""
        return _hidden_in(patch, _folded(self.keys), [_steps(path) for path in self.paths], "")


def check_paths(paths: object) -> tuple[str, ...]:
    """Read the `redact=` of a task, or raise `InvalidInput` and say what is wrong with it."""
    if isinstance(paths, str) or not isinstance(paths, list | tuple):
        entry = f'"{paths}"' if isinstance(paths, str) else '"card.number"'
        raise InvalidInput(f"redact must be a list of paths, {got(paths)}; write redact=({entry},)", "options.redact")
    if len(paths) > MOST_PATHS:
        raise InvalidInput(
            f"redact may have at most {MOST_PATHS} paths, got {len(paths)}; name what holds several of them, or `*`",
            "options.redact",
        )
    for path in paths:
        _check_path(path)
    return tuple(dict.fromkeys(paths))


def _check_path(path: object) -> None:
    if not isinstance(path, str) or not path.isprintable() or len(path) > LONGEST_PATH or not all(path.split(".")):
        raise InvalidInput(
            f"redact has no path like {shown(path)}; write the names from the outside in with a dot between them, such "
            'as "card.number", or "items.*.iban" for each of a list',
            "options.redact",
        )
    if len(path.split(".")) > MOST_STEPS:
        raise InvalidInput(
            f"a path of redact has at most {MOST_STEPS} steps, and {path!r} has more; hide what stands above it",
            "options.redact",
        )


def is_secret(key: str, value: object = "") -> bool:
    """Tell whether *value* is to be hidden for the name of its *key*; yes, no and nothing are no secrets.

    >>> [is_secret(key) for key in ("X-Api-Key", "userPassword", "access_token", "key", "tokenizer")]
    [True, True, True, False, False]
    """
    if value is None or isinstance(value, bool):
        return False
    found = _secret(key) if len(key) <= LONGEST_KEPT_KEY else _secret.__wrapped__(key)
    return found if found is not None else not isinstance(value, int | float)


@lru_cache(maxsize=4096)
def _secret(key: str) -> bool | None:
    """Tell whether *key* is one of a secret; None if it is unless its value is a number."""
    folded = SEAM.sub("_", key).lower()
    if SECRET.search(folded):
        return True
    return None if TOKENS.search(folded) else False


def without_passwords(text: str) -> str:
    """Mask the passwords in a text: those in addresses, those behind `password=` and its like, and bearer tokens.

    >>> without_passwords("cannot reach postgres://ada:hunter2@db/shop?token=7")
    'cannot reach postgres://ada:•••@db/shop?token=•••'
    """
    masked = ASSIGNED.sub(rf"\1{REDACTED}", _without_userinfo(text))
    masked = BEARER.sub(rf"\1{REDACTED}", masked)
    return text if masked == text else masked


def _without_userinfo(text: str) -> str:
    if "@" not in text or "://" not in text:
        return text
    masked = ADDRESS.sub(rf"\1{REDACTED}@", text)
    return text if masked == text else masked


@lru_cache(maxsize=1024)
def _steps(path: str) -> Path:
    return tuple(path.split("."))


@lru_cache(maxsize=64)
def _folded(keys: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(_fold, keys))


def _fold(key: str) -> str:
    return re.sub(r"[\W_]+", "", key).lower()


def _hides(key: str, value: object, keys: frozenset[str]) -> bool:
    return is_secret(key, value) or (bool(keys) and value is not None and _fold(key) in keys)


def _below(paths: Iterable[Path], name: str) -> list[Path]:
    """Give what is left of *paths* below *name*; one that ends there is empty."""
    return [path[1:] for path in paths if path[0] in (name, "*")]


def _masked(value: Any, keys: frozenset[str], paths: Sequence[Path], above: set[int]) -> Any:
    """Give *value* as it is shown; *above* are the objects and lists around it."""
    kind = type(value)
    if kind is str:
        return _without_userinfo(value)
    if kind is not dict and kind is not list:
        return value
    if id(value) in above or len(above) >= DEEPEST:
        return REDACTED
    above.add(id(value))
    found: Any = None
    items: Iterable[tuple[Any, Any]] = value.items() if kind is dict else enumerate(value)
    for name, each in items:
        below = _below(paths, str(name)) if paths else ()
        if (() in below and each is not None) or (kind is dict and _hides(name, each, keys)):
            seen: Any = REDACTED
        else:
            seen = _masked(each, keys, below, above)
        if seen is not each:
            if found is None:
                found = value.copy()
            found[name] = seen
    above.remove(id(value))
    return value if found is None else found


def _masked_schema(schema: Any, keys: frozenset[str], paths: Sequence[Path], *, is_hidden: bool = False) -> Any:
    """Give *schema* as it is shown; *paths* lead on from the value that it describes, which may be hidden itself."""
    if isinstance(schema, list):
        return [_masked_schema(each, keys, paths, is_hidden=is_hidden) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for word, each in schema.items():
        if word in VALUES_OF_SCHEMAS:
            if not is_hidden:
                found[word] = _masked(each, keys, paths, set())
        elif word == "properties" and isinstance(each, Mapping):
            found[word] = {
                name: _masked_schema(
                    inner, keys, below := _below(paths, name), is_hidden=() in below or _hides(name, "", keys)
                )
                for name, inner in each.items()
            }
        elif word == "$defs" and isinstance(each, Mapping):  # wherever it is that one of these is meant
            ends = [path[at:] for path in paths for at in range(len(path))]
            found[word] = {name: _masked_schema(inner, keys, ends) for name, inner in each.items()}
        else:
            inside = _below(paths, "*") if word in PARTS_OF_SCHEMAS else paths
            found[word] = _masked_schema(each, keys, inside, is_hidden=is_hidden)
    return found


def _masked_texts(error: Any) -> Any:
    """Mask the passwords in the texts of an error, and in those of its attributes."""
    if not isinstance(error, dict):
        return without_passwords(error) if isinstance(error, str) else error
    return {
        name: _masked_texts(each) if isinstance(each, str) or name == "attributes" else each
        for name, each in error.items()
    }


def _kept(
    patch: Mapping[str, Any], stored: Any, keys: frozenset[str], paths: Sequence[Path], place: str
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, each in patch.items():
        below, here = _below(paths, name), f"{place}.{name}" if place else name
        was = stored.get(name) if isinstance(stored, dict) else None
        if each == REDACTED and (() in below or _hides(name, each, keys)):
            continue
        if isinstance(each, dict):
            found[name] = _kept(each, was, keys, below, here)
        elif isinstance(each, list):
            found[name] = _kept_list(each, was, keys, below, here)
        elif not isinstance(each, str) or (masked := _masked(was, keys, (), set())) is was or each != masked:
            _refuse_marks(each, keys, below, here)
            found[name] = each
    return found


def _kept_list(given: list[Any], was: Any, keys: frozenset[str], paths: Sequence[Path], place: str) -> list[Any]:
    is_as_shown = isinstance(was, list) and given[: len(was)] == _masked(was, keys, paths, set())
    if is_as_shown:
        _refuse_marks(rest := given[len(was) :], keys, paths, place)
        return [*was, *rest]
    _refuse_marks(given, keys, paths, place)
    return given


def _hidden_in(patch: Mapping[str, Any], keys: frozenset[str], paths: Sequence[Path], place: str) -> Iterator[str]:
    for name, each in patch.items():
        below, here = _below(paths, name), f"{place}.{name}" if place else name
        if () in below or _hides(name, each, keys):
            if each != REDACTED:
                yield here
        elif isinstance(each, dict):
            yield from _hidden_in(each, keys, below, here)
        elif _masked(each, keys, below, set()) != each:
            yield here


def _refuse_marks(value: Any, keys: frozenset[str], paths: Sequence[Path], place: str) -> None:
    """Raise `InvalidInput` if in *value* the mark stands where something is hidden: what is meant cannot be told."""
    if isinstance(value, str):
        if REDACTED in value and ADDRESS.search(value):
            raise _marked(place)
    elif isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            below = _below(paths, str(name))
            if each == REDACTED and (() in below or (isinstance(name, str) and _hides(name, each, keys))):
                raise _marked(place)
            _refuse_marks(each, keys, below, place)


def _marked(place: str) -> InvalidInput:
    return InvalidInput(
        f"{shown(place)} has {REDACTED} for a value that is hidden, and what belongs there cannot be told; write the "
        f"value itself, or leave {shown(place)} out and it stays as it is",
        "arguments",
    )
