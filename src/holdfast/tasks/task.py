"""A task: a function, or the declaration of one that runs elsewhere, with the policy of its jobs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, update_wrapper
from hashlib import sha256
from typing import (
    Any,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    get_args,
)

from pydantic import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from holdfast.codec import Codec, make_codec
from holdfast.errors import InvalidInput, InvalidOutput, Misuse
from holdfast.models import TaskRecord
from holdfast.outcomes import Retry, is_number
from holdfast.retention import Retention
from holdfast.tasks.calls import Call, Options, check_priority, check_queue
from holdfast.tasks.phases import check_phases
from holdfast.tasks.signatures import Signature

P = ParamSpec("P")
R = TypeVar("R")

OnLost: TypeAlias = Literal["retry", "fail", "pause"]
OnInterrupt: TypeAlias = Literal["give_back", "pause"]
CancelRunning: TypeAlias = Literal["cancel", "pause"]
RunIn: TypeAlias = Literal["process"]
Middleware: TypeAlias = Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]

CHOICES = {"on_lost": OnLost, "on_interrupt": OnInterrupt, "cancel_running": CancelRunning}
PLACED = frozenset({"queue", "priority"})
"""The options of a task that say where its jobs stand, unless a call says otherwise."""
OWNERS = PLACED | {"history"}
"""What is written on every job of a task, and which its owner says if its code is elsewhere."""
NULL = "null"


class PolicyOptions(TypedDict, total=False):
    """The keywords that say something of all jobs of a task; the fields of `Policy`."""

    queue: str
    priority: int
    lease: float
    timeout: float | None
    retry: Retry
    on_lost: OnLost
    on_interrupt: OnInterrupt
    cancel_running: CancelRunning
    halts_lane: bool
    history: bool
    retention: Retention | None
    middleware: Sequence[Middleware]


class PipelineOptions(PolicyOptions, total=False):
    """The keywords of `hf.pipeline(…)`; *aliases* are former names, under which stored jobs still run."""

    aliases: Sequence[str]
    run_in: RunIn | None
    memory_megabytes: float | None


class TaskOptions(PipelineOptions, total=False):
    """The keywords of `@hf.task(…)`; *phases* are the steps that its handler runs by `ctx.phase`, in their order."""

    name: str
    phases: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a task says of all its jobs; a call's own option goes before it."""

    queue: str = "default"
    priority: int = 0
    lease: float = 30.0
    """Seconds for which a claim holds before it must be renewed."""
    timeout: float | None = None
    """Seconds after which an attempt is ended; None means never."""
    retry: Retry = field(default_factory=Retry)
    on_lost: OnLost = "retry"
    on_interrupt: OnInterrupt = "give_back"
    cancel_running: CancelRunning = "cancel"
    halts_lane: bool = True
    retention: Retention | None = None
    """How long what has ended is kept; None leaves it to the settings."""
    history: bool = True
    """Whether what happens to its jobs is kept in the log; without it they have no timeline, listeners or SSE."""
    phases: Sequence[str] = ()
    """The names of the steps that `ctx.phase` runs and remembers, in their order."""
    run_in: RunIn | None = None
    """`"process"` runs its handlers in child processes, which can be killed; None in the worker, by their colour."""
    memory_megabytes: float | None = None
    """How much memory a handler in a child process may take beyond what the child has when it begins; Linux only."""
    middleware: Sequence[Middleware] = ()

    def __post_init__(self) -> None:
        check_queue(self.queue)
        check_priority(self.priority)
        if not (is_number(self.lease) and 1 <= self.lease <= 86400):
            raise InvalidInput("a lease is a number of seconds, from 1 second to a day", "options.lease")
        if self.timeout is not None and not (is_number(self.timeout) and self.timeout > 0):
            raise InvalidInput("a time-out is a number of seconds above 0, or None", "options.timeout")
        if not isinstance(self.retry, Retry):
            raise InvalidInput("it is a Retry; write retry=Retry(attempts=3)", "options.retry")
        if not isinstance(self.history, bool):
            raise InvalidInput("it is True or False", "options.history")
        if not isinstance(self.retention, Retention | None):
            raise InvalidInput("it is a Retention; write retention=Retention(stale_after=3600)", "options.retention")
        for name, kind in CHOICES.items():
            _check_choice(name, getattr(self, name), get_args(kind))
        if self.run_in is not None:
            _check_choice("run_in", self.run_in, get_args(RunIn))
        self._check_memory()
        object.__setattr__(self, "phases", check_phases(self.phases))

    def _check_memory(self) -> None:
        if self.memory_megabytes is None:
            return
        if not (is_number(self.memory_megabytes) and self.memory_megabytes > 0):
            raise InvalidInput("it is a number of megabytes above 0, or None", "options.memory_megabytes")
        if self.run_in != "process":
            raise InvalidInput(
                'only a child process has a limit; write run_in="process", too', "options.memory_megabytes"
            )

    @property
    def is_in_child(self) -> bool:
        """Tell whether its handlers run in child processes."""
        return self.run_in == "process"

    def record(self) -> dict[str, object]:
        """Tell what those must know who do not have the code: callers, reapers, people."""
        known = ("queue", "priority", "lease", "timeout", "on_lost", "on_interrupt", "cancel_running", "halts_lane")
        more = {"history": self.history, "attempts": self.retry.attempts}
        kept = {} if self.retention is None else {"retention": self.retention.record()}
        steps = {"phases": list(self.phases)} if self.phases else {}
        return {name: getattr(self, name) for name in known} | more | kept | steps


POLICY_KEYS = frozenset(each.name for each in fields(Policy))


def require_task(task: object, verb: str) -> None:
    """Raise `Misuse` unless *task*, which *verb* was given, is a task and not its name."""
    if not isinstance(task, Task):
        raise Misuse(
            f"{verb}() takes the task itself, whose output it checks, and not {str(task)[:60]!r}; "
            "write the decorated function, or what hf.declare(…) gave"
        )


def _check_choice(option: str, value: object, words: Sequence[str]) -> None:
    if value not in words:
        raise InvalidInput(f"it is {' or '.join(map(repr, words))}", f"options.{option}")


class Task(Generic[P, R]):
    """A registered function, or a declaration of one that runs elsewhere; calling it builds a `Call`.

    >>> from holdfast import Tasks
    >>> tasks = Tasks()
    >>> @tasks.task(name="greet")
    ... async def greet(name: str) -> str:
    ...     return f"Hello, {name}"
    >>> greet(name="Ada").consume().arguments
    '{"name":"Ada"}'
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        *,
        aliases: Sequence[str] = (),
        policy: Policy,
        chosen: Options,
        place: str,
        function: Callable[..., Any] | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self.name = name
        self.aliases = tuple(aliases)
        self.policy = policy
        self.place = place
        self.function = function
        self.signature = signature
        self.middleware = (*middleware, *policy.middleware)
        self._chosen = chosen
        self._input: Codec[Any] = make_codec(signature.arguments, "arguments", InvalidInput, name)
        self._output: Codec[R] = make_codec(signature.output, "output", InvalidOutput, name)
        if function is not None:
            update_wrapper(self, function)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Check the arguments and build a call; nothing runs until a verb takes it."""
        return self.call_with(self.signature.binding.bind(self.name, args, kwargs))

    def call_with(self, arguments: Mapping[str, Any]) -> Call[R]:
        """Build a call from *arguments* by name, as they come from outside the type checker's sight."""
        # measured for 180 bytes, in µs: bind 0.2, check 0.6, encode 2.8, the Call 0.7; in all 5.1
        return Call(self.name, self._input.encode(self._input.check(arguments)), self._chosen)

    def run(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the function here, as for a test; an async one gives its coroutine.

        A handler that takes a context gets it as the first argument.
        """
        if self.function is None:
            raise Misuse(f"task {self.name} is only declared here, its code is elsewhere; use hf.start()")
        return self.function(*args, **kwargs)

    @property
    def is_declared(self) -> bool:
        """Tell whether its code lives elsewhere."""
        return self.function is None

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its aliases."""
        return (self.name, *self.aliases)

    def decode_input(self, text: str) -> Any:
        """Read stored arguments: an object with an attribute for each, or a declared task's input."""
        return self._input.decode(text)

    def encode_output(self, value: object) -> str:
        """Write what the handler returned, or raise `InvalidOutput`."""
        if value is None and self._writes_null:
            return NULL
        return self._output.encode(self._output.check(value))

    @cached_property
    def _writes_null(self) -> bool:
        """Tell whether None is written as null: most handlers return it, and to check that each time took 3 µs."""
        try:
            return self._output.encode(self._output.check(None)) == NULL
        except InvalidOutput:
            return False

    def decode_output(self, text: str) -> R:
        """Read a stored output."""
        return self._output.decode(text)

    def record(self) -> TaskRecord:
        """Tell what a stranger to the code must know; takes milliseconds, the first time."""
        return self._record

    @cached_property
    def _record(self) -> TaskRecord:
        policy = _canonical(self.policy.record())
        inputs, outputs = _schema(self._input, "validation"), _schema(self._output, "serialization")
        version = sha256("\n".join((policy, inputs, outputs)).encode()).hexdigest()[:12]
        return TaskRecord(name=self.name, version=version, policy=policy, input_schema=inputs, output_schema=outputs)

    def __repr__(self) -> str:
        return f"<task {self.name}>"


class _QuietSchema(GenerateJsonSchema):
    # a default without JSON form is left out of the schema; nobody can act on a warning about it
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as the parent has it


def _schema(codec: Codec[Any], mode: Literal["validation", "serialization"]) -> str:
    try:
        return _canonical(codec.adapter.json_schema(mode=mode, schema_generator=_QuietSchema))
    except PydanticUserError:  # a type that JSON Schema has no words for
        return "{}"


def _canonical(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
