"""A call: a task with its arguments and options, checked and ready to be stored; nothing has happened yet."""

from __future__ import annotations

import json
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypedDict, TypeGuard, Unpack, cast, get_args
from urllib.parse import urlsplit
from uuid import UUID

from holdfast.errors import SHOWN_LENGTH, InvalidInput, InvalidOutput, Misuse, got, near_and_all, shown
from holdfast.ids import HasId, Target, target_id, to_id
from holdfast.keywords import refuse_unknown
from holdfast.models import RESERVED, BlockerPolicy, Job, R_co, Unique, UniqueScope
from holdfast.texts import path_step
from holdfast.times import milliseconds_of
from holdfast.unreadable import object_of

NAME_LENGTH = 200
KEY_LENGTH = 500  # four bytes a character and the task's name beside it fit an index entry of PostgreSQL
WEBHOOK_LENGTH = 2_000
MOST_TAGS = 20
MOST_ATTEMPTS = 1_000_000_000
PRIORITIES = range(-100, 101)
LONGEST = timedelta(days=36_525)
# characters that could forge a line in a log or a header, or that a database cannot store
UNPRINTABLE = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Unset(Enum):
    """The mark of an option that was not given, where None means something."""

    UNSET = "unset"


Blocker: TypeAlias = HasId | UUID | str


class StartOptions(TypedDict, total=False):
    """The keywords of `start()` and of `Call.options()`; None takes back what an earlier `options()` gave."""

    delay: float | timedelta | None
    run_at: datetime | None
    priority: int
    queue: str
    lane: str | None
    blockers: Sequence[Blocker]
    on_blocker_failure: BlockerPolicy
    paused: bool
    unique: str | Unique | None
    webhook: str | None
    tags: Sequence[str]
    id: UUID | str | None
    attempts: int | None
    parent: Target | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a call, checked and in the store's units."""

    delay_ms: int | None = None
    run_at_ms: int | None = None
    priority: int | None = None
    """None leaves it to the task, whose code may live elsewhere; so do *queue* and *history*."""
    queue: str | None = None
    history: bool | None = None
    """The task says it, never the call."""
    lane: str | None = None
    blockers: tuple[UUID, ...] = ()
    on_blocker_failure: BlockerPolicy = "fail"
    paused: bool = False
    unique: Unique | None = None
    webhook: str | Unset | None = Unset.UNSET
    """None silences the job; unset leaves it to its queue."""
    tags: tuple[str, ...] = ()
    id: UUID | None = None
    attempts: int | None = None
    """None leaves it to the `Retry` of the task."""
    parent: UUID | Unset | None = Unset.UNSET
    """Unset leaves it to who starts it: the job whose handler does, if one does."""
    given: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """The names of what was said, by the call or by its task; a continuation inherits the rest."""

    @property
    def is_for_owner(self) -> bool:
        """Tell whether something is left to the task's owner, whose code may be elsewhere."""
        return None in (self.queue, self.priority, self.history)

    def but(self, given: StartOptions) -> Options:
        """Check what is *given* and put it in place of what was chosen before."""
        if not given:
            return self
        refuse_unknown(given, CHECKS, "start()")
        if given.get("delay") is not None and given.get("run_at") is not None:
            raise InvalidInput("delay and run_at cannot be combined; give only one of them", "options.delay")
        checked = {name: CHECKS[name](value) for name, value in given.items()}
        return replace(self, **_as_fields(checked), given=self.given | given.keys())


NO_OPTIONS = Options()


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A task with its validated arguments and options: a value that verbs take, such as `hf.start(call)`.

    *arguments* is the canonical JSON of an object, one key for each parameter.
    """

    task: str
    arguments: str = field(repr=False)  # may be long, or secret
    chosen: Options = NO_OPTIONS
    _is_used: bool = field(default=False, init=False, repr=False, compare=False)

    def options(self, **given: Unpack[StartOptions]) -> Call[R_co]:
        """Give a new call with these options in place of the old ones.

        *delay* is seconds or a timedelta, *run_at* an aware datetime; a larger *priority* runs first. A start
        that meets its *unique* key gives the chain that has it. `webhook=None` silences the job. *attempts*, the first
        run included, goes before those of the task's `Retry`. *parent* is the job that this one is listed under; what
        a handler starts has the handler's job, unless `parent=None` says otherwise.
        """
        self.consume()
        return Call(self.task, self.arguments, self.chosen.but(given))

    def consume(self) -> Self:
        """Mark the call as used, so that it does not warn; verbs do this."""
        object.__setattr__(self, "_is_used", True)
        return self

    if not TYPE_CHECKING:  # so that both type checkers refuse the await before it runs

        def __await__(self) -> None:
            self.consume()
            raise Misuse(
                f"{self.function}(…) only builds a call and starts no job; write `await hf.start({self.function}(…))`, "
                f"or `{self.function}.run(…)` to run the function here"
            )

    @property
    def function(self) -> str:
        """The last part of the task's name, as it is probably written."""
        return last_part(self.task)

    def __del__(self) -> None:
        if self._is_used or sys.is_finalizing():
            return
        warnings.warn(
            f"the call {self.function}(…) was never started, so no job exists; write "
            f"`await hf.start({self.function}(…))`, or `hf.sync.start({self.function}(…))` in blocking code; "
            f"`{self.function}.run(…)` runs the function here",
            RuntimeWarning,
            stacklevel=2,
            source=self,
        )


def last_part(task: str) -> str:
    """Give the last part of a task's name."""
    return re.split(r"[.:]", task)[-1]


def check_priority(value: object) -> int:
    """Take a whole number from -100 to 100."""
    if not isinstance(value, int) or isinstance(value, bool) or value not in PRIORITIES:
        raise InvalidInput(
            f"priority must be a whole number from -100 to 100, {got(value)}; a larger priority runs first",
            "options.priority",
        )
    return value


def check_lane(value: object) -> str:
    """Take a key of 1 to 200 printable characters that is not one of the engine's own."""
    return _refuse_reserved("lane", check_any("lane", value))


def check_milliseconds(option: str, value: object, without: str = "to run the job now") -> int:
    """Take seconds or a timedelta, given as *option*; give milliseconds. *without* says why to leave it out."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= cast("float", seconds) <= LONGEST.total_seconds():
        negative = is_number and cast("float", seconds) < 0
        limits = "must not be negative" if negative else "must be seconds or a timedelta, up to 100 years"
        instead = f"leave it out {without}" if is_number else f"write {option}=60 for a minute"
        raise InvalidInput(f"{option} {limits}, {got(value)}; {instead}", f"options.{option}")
    return math.ceil(cast("float", seconds) * 1000)


def check_queue(value: object) -> str:
    """Take a name of 1 to 200 printable characters that is not one of the engine's own."""
    return check_own("queue", value)


def check_own(option: str, value: object) -> str:
    """Take a name for something of the user's: none of the engine's own."""
    return _refuse_reserved(option, check_any(option, value))


def check_any(option: str, value: object) -> str:
    """Take the name of any lane or queue that there may be, the engine's own included."""
    return _check_text(option, value, NAME_LENGTH)


def _refuse_reserved(option: str, name: str) -> str:
    if name.startswith(RESERVED):
        raise InvalidInput(
            f"{option} cannot be {shown(name)}: Holdfast keeps {RESERVED!r} for itself; choose another",
            f"options.{option}",
        )
    return name


def is_name(value: object, limit: int = NAME_LENGTH) -> TypeGuard[str]:
    """Tell whether *value* is a text of 1 to *limit* printable characters."""
    return isinstance(value, str) and 1 <= len(value) <= limit and not UNPRINTABLE.search(value)


def _check_text(option: str, value: object, limit: int) -> str:
    if not is_name(value, limit):
        raise InvalidInput(f"{option} {_text_complaint(value, limit)}", f"options.{option}")
    return value


def _text_complaint(value: object, limit: int) -> str:
    if not isinstance(value, str):
        return f"must be a text, {got(value)}"
    if not value:
        return f"must not be empty; give it 1 to {limit} characters, or leave it out"
    if len(value) > limit:
        return f"must have at most {limit} characters, got {len(value)}; use a shorter one, e.g. a hash"
    return f"must have printable characters only, {got(value)}"


def _check_lane(value: object) -> str | None:
    return None if value is None else check_lane(value)


def _check_delay(value: object) -> int | None:
    return None if value is None else check_milliseconds("delay", value)


def _check_run_at(value: object) -> int | None:
    return None if value is None else milliseconds_of(value, "options.run_at", "use delay=")


def _check_list(option: str, value: object) -> Iterable[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        entry = json.dumps(value[:SHOWN_LENGTH]) if isinstance(value, str) else "…"
        raise InvalidInput(f"{option} must be a list, {got(value)}; write {option}=[{entry}]", f"options.{option}")
    return value


def _check_blockers(value: object) -> tuple[UUID, ...]:
    return tuple(_blocker_id(each) for each in _check_list("blockers", value))


def _blocker_id(blocker: Blocker) -> UUID:
    if isinstance(blocker, Job):
        return blocker.chain_id
    return to_id(blocker if isinstance(blocker, UUID | str) else getattr(blocker, "id", cast("str", blocker)))


def _check_on_blocker_failure(value: object) -> BlockerPolicy:
    if value not in get_args(BlockerPolicy):
        raise InvalidInput(
            f"on_blocker_failure must be 'fail', 'wait' or 'ignore', {got(value)}", "options.on_blocker_failure"
        )
    return cast("BlockerPolicy", value)


def _check_paused(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"paused must be True or False, {got(value)}", "options.paused")
    return value


def _check_unique(value: object) -> Unique | None:
    unique = Unique(value) if isinstance(value, str) else value
    if unique is None:
        return None
    if not isinstance(unique, Unique) or unique.scope not in get_args(UniqueScope):
        raise InvalidInput(
            f"unique must be a text or Unique(key, …), {got(value)}; give the key that makes the job unique, e.g. "
            'unique="order-7"',
            "options.unique",
        )
    _check_text("unique", unique.key, KEY_LENGTH)
    if unique.within is None:
        return unique
    return replace(unique, within=check_milliseconds("unique.within", unique.within) / 1000)


def _check_webhook(value: object) -> str | None:
    if value is None:
        return None
    try:
        address = urlsplit(_check_text("webhook", value, WEBHOOK_LENGTH))
        is_address = address.scheme in ("http", "https") and bool(address.hostname)
    except ValueError:
        is_address = False
    if not is_address:
        raise InvalidInput("webhook must be an https:// address, or None for no webhook", "options.webhook")
    return cast("str", value)


def _check_tags(value: object) -> tuple[str, ...]:
    tags = tuple(dict.fromkeys(_check_text("tags", each, NAME_LENGTH) for each in _check_list("tags", value)))
    if len(tags) > MOST_TAGS:
        raise InvalidInput(f"tags may be at most {MOST_TAGS}, got {len(tags)}", "options.tags")
    return tags


def _check_parent(value: object) -> UUID | None:
    return None if value is None else target_id(cast("Target", value))


def _check_attempts(value: object) -> int | None:
    if value is not None and not (type(value) is int and 1 <= value <= MOST_ATTEMPTS):
        raise InvalidInput(
            f"attempts must be a whole number from 1 to {MOST_ATTEMPTS:,}, {got(value)}; the first run counts, and "
            "None takes the task's own",
            "options.attempts",
        )
    return value


def _check_id(value: object) -> UUID | None:
    return None if value is None else to_id(cast("str", value))


CHECKS: dict[str, Callable[[object], Any]] = {
    "delay": _check_delay,
    "run_at": _check_run_at,
    "priority": check_priority,
    "queue": check_queue,
    "lane": _check_lane,
    "blockers": _check_blockers,
    "on_blocker_failure": _check_on_blocker_failure,
    "paused": _check_paused,
    "unique": _check_unique,
    "webhook": _check_webhook,
    "tags": _check_tags,
    "id": _check_id,
    "attempts": _check_attempts,
    "parent": _check_parent,
}


def _as_fields(checked: dict[str, Any]) -> dict[str, Any]:
    if "delay" not in checked and "run_at" not in checked:
        return checked
    # one of them takes the other's place
    times = {"delay_ms": checked.pop("delay", None), "run_at_ms": checked.pop("run_at", None)}
    return checked | times


def check_arguments(arguments: str, schema: str) -> None:
    """Raise `InvalidInput` for what *schema* does not know, misses or forbids of *arguments*.

    For a task whose code is elsewhere: a misspelt or missing argument is refused where the job is started and not,
    later, by the worker. What a schema cannot tell is left to the worker's own types.
    """
    from holdfast.tasks.schemas import problems, told  # only strangers judge by them

    given: dict[str, Any] = json.loads(arguments)
    wanted: dict[str, Any] = object_of(schema)
    # a newer release may write what this one cannot read: that is left to the worker, too
    known: dict[str, Any] = found if isinstance(found := wanted.get("properties"), dict) else {}
    # an argument that nobody takes is a mistake, even if the type would drop it
    strict = {"additionalProperties": False} | wanted if known else wanted
    if not (wrong := problems(given, strict, "arguments")):
        return
    path = wrong[0].path
    at = {f"arguments{path_step(name)}": name for name in (*known, *given)}.get(path, "")
    text = told(wrong)
    if at in known and at not in given:
        text = f"the argument {at} is missing; the task takes {', '.join(known)}"
    elif at in given and at not in known:
        text = f"the task has no argument {at!r}{near_and_all(at, known, 'its arguments are')}"
    raise InvalidInput(text, path, wrong)


def check_output(task: str, output: str, schema: str) -> None:
    """Raise `InvalidOutput` for what *schema* forbids of *output*, for a *task* whose code is elsewhere."""
    from holdfast.tasks.schemas import problems, told  # only strangers judge by them

    if wrong := problems(json.loads(output), object_of(schema), "output"):
        raise InvalidOutput(f"{told(wrong)} (task {task})", wrong[0].path, wrong)
