"""A task: a function, or the declaration of one that runs elsewhere, with the policy of its jobs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cached_property
from hashlib import sha256
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    get_args,
)

from holdfast.errors import InvalidInput, InvalidOutput, InvalidSettings, Misuse, UnknownMethod, got
from holdfast.models import TaskRecord
from holdfast.outcomes import Retry, is_number
from holdfast.tasks.calls import Call, Options, check_priority, check_queue, last_part
from holdfast.tasks.phases import check_phases
from holdfast.tasks.signatures import Signature

if TYPE_CHECKING:
    from holdfast.codec import Codec
    from holdfast.questions import Question
    from holdfast.retention import Retention
    from holdfast.schedules import Missed

P = ParamSpec("P")
R = TypeVar("R")

OnLost: TypeAlias = Literal["retry", "fail", "pause"]
OnInterrupt: TypeAlias = Literal["give_back", "pause"]
CancelRunning: TypeAlias = Literal["cancel", "pause"]
RunIn: TypeAlias = Literal["process"]
LogLevel: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
Middleware: TypeAlias = Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]

CHOICES = {"on_lost": OnLost, "on_interrupt": OnInterrupt, "cancel_running": CancelRunning}
PLACED = frozenset({"queue", "priority"})
"""The options of a task that say where its jobs stand, unless a call says otherwise."""
OWNERS = PLACED | {"history"}
"""What is written on every job of a task, and which its owner says if its code is elsewhere."""
FOR_HANDLERS = ("timeout", "phases", "run_in", "middleware")
"""What a task without a handler cannot have."""
NULL = "null"
START_METHODS = frozenset(
    [
        "apply",
        "apply_async",
        "configure",
        "defer",
        "defer_async",
        "delay",
        "enqueue",
        "kick",
        "kiq",
        "push",
        "queue",
        "s",
        "schedule",
        "send",
        "send_with_options",
        "si",
        "signature",
        "submit",
    ]
)
"""By these other libraries start a job."""


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
    asks: Question | None
    redact: Sequence[str]
    middleware: Sequence[Middleware]


class DefaultOptions(TypedDict, total=False):
    """What a registry may choose for all its tasks that do not choose it themselves."""

    retry: Retry
    lease: float


class PipelineOptions(PolicyOptions, total=False):
    """The keywords of `hf.pipeline(…)`; *aliases* are former names, under which stored jobs still run."""

    aliases: Sequence[str]
    run_in: RunIn | None
    memory_megabytes: float | None
    keep_logs: LogLevel | None


class TaskOptions(PipelineOptions, total=False):
    """The keywords of `@hf.task(…)`; *phases* are the steps that its handler runs by `ctx.phase`, in their order.

    *cron* or *every* declare a schedule of the task's name, which starts it without arguments; *timezone*, *jitter* and
    *missed* belong to it. With *tenants* each tenant has the schedule, and not the control place.
    """

    name: str
    phases: Sequence[str]
    cron: str | None
    timezone: str | None
    every: float | timedelta | None
    jitter: float | timedelta
    missed: Missed
    tenants: bool


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
    asks: Question | None = None
    """What a person is asked, who completes its jobs; None for a task that a worker runs."""
    keep_logs: LogLevel | None = None
    """From which level on what its handlers log is kept in the journals of their jobs; None keeps none."""
    redact: Sequence[str] = ()
    """What of input and output nobody is shown by API, SSE, dashboard and CLI: paths such as `card.number`."""
    middleware: Sequence[Middleware] = ()

    def __post_init__(self) -> None:
        check_queue(self.queue)
        check_priority(self.priority)
        if not (is_number(self.lease) and 1 <= self.lease <= 86400):
            raise InvalidInput(f"lease must be 1 to 86400 seconds, {got(self.lease)}", "options.lease")
        if self.timeout is not None and not (is_number(self.timeout) and self.timeout > 0):
            raise InvalidInput(
                f"timeout must be seconds above 0, or None for no limit, {got(self.timeout)}; write timeout=5",
                "options.timeout",
            )
        if not isinstance(self.retry, Retry):
            raise InvalidInput(
                f"retry must be a Retry, {got(self.retry)}; write retry=Retry(attempts=3)", "options.retry"
            )
        if not isinstance(self.history, bool):
            raise InvalidInput(f"history must be True or False, {got(self.history)}", "options.history")
        self._check_retention()
        for name, kind in CHOICES.items():
            _check_choice(name, getattr(self, name), get_args(kind))
        for name, kind in {"run_in": RunIn, "keep_logs": LogLevel}.items():
            if (value := getattr(self, name)) is not None:
                _check_choice(name, value, get_args(kind))
        self._check_memory()
        self._check_asks()
        check_middleware(self.middleware, InvalidInput)
        object.__setattr__(self, "phases", check_phases(self.phases))
        if self.redact != ():
            from holdfast.wire.redaction import check_paths  # few tasks hide anything

            object.__setattr__(self, "redact", check_paths(self.redact))

    def _check_retention(self) -> None:
        if self.retention is None:
            return
        from holdfast.retention import Retention  # a task that chooses one has imported it

        if not isinstance(self.retention, Retention):
            raise InvalidInput(
                f"retention must be a Retention, {got(self.retention)}; write retention=Retention(stale_after=3600)",
                "options.retention",
            )

    def _check_memory(self) -> None:
        if self.memory_megabytes is None:
            return
        if not (is_number(self.memory_megabytes) and self.memory_megabytes > 0):
            raise InvalidInput(
                f"memory_megabytes must be a number above 0, or None for no limit, {got(self.memory_megabytes)}",
                "options.memory_megabytes",
            )
        if self.run_in != "process":
            raise InvalidInput(
                'memory_megabytes limits child processes only; add run_in="process"', "options.memory_megabytes"
            )

    def _check_asks(self) -> None:
        if self.asks is None:
            return
        from holdfast.questions import Question  # a task that asks has imported it

        if not isinstance(self.asks, Question):
            raise InvalidInput(
                f'asks must be a Question, {got(self.asks)}; write asks=Question("Approve the refund?")', "options.asks"
            )
        for option in FOR_HANDLERS:
            if getattr(self, option):
                raise InvalidInput(
                    f"{option} is for handlers, and a task with asks= has none, because a person completes its jobs; "
                    f"leave {option} out",
                    f"options.{option}",
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
        asks = {} if self.asks is None else {"asks": self.asks.record()}
        hidden = {"redact": list(self.redact)} if self.redact else {}
        return {name: getattr(self, name) for name in known} | more | kept | steps | asks | hidden


def check_middleware(value: object, refusal: type[InvalidInput] | type[InvalidSettings]) -> None:
    """Raise *refusal* unless *value* is a list of functions."""
    if callable(value):
        name = getattr(value, "__name__", "function")
        raise refusal(f"middleware must be a list of functions, {got(value)}; write middleware=[{name}]")
    if not isinstance(value, Sequence) or not all(map(callable, value)):
        raise refusal(f"middleware must be a list of functions (ctx, next), {got(value)}; write [], or leave it out")


POLICY_KEYS = frozenset(each.name for each in fields(Policy))


def require_task(task: object, verb: str) -> None:
    """Raise `Misuse` unless *task*, which *verb* was given, is a task and not its name."""
    if not isinstance(task, Task):
        raise Misuse(
            f"{verb}() takes the task itself, {got(task)}; pass the decorated function, or what hf.declare(…) returned"
        )


def _check_choice(option: str, value: object, words: Sequence[str]) -> None:
    if value not in words:
        raise InvalidInput(f"{option} must be {' or '.join(map(repr, words))}, {got(value)}", f"options.{option}")


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
        said: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.aliases = tuple(aliases)
        self.policy = policy
        self.place = place
        self.function = function
        self.signature = signature
        self.middleware = (*middleware, *policy.middleware)
        self._chosen = chosen
        self._said = said
        """The options that it, or its registry, has chosen; others may come from a registry that it is put into."""
        self._original: Task[P, R] = self
        from holdfast.codec import make_codec  # pydantic: imported by the first task, not by `import holdfast`

        self._input: Codec[Any] = make_codec(
            signature.arguments, "arguments", InvalidInput, f"{name}({signature.binding})"
        )
        self._output: Codec[R] = make_codec(signature.output, "output", InvalidOutput, name)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Check the arguments and build a call; nothing runs until a verb takes it."""
        return self.call_with(self.signature.binding.bind(self.name, args, kwargs))

    def call_with(self, arguments: Mapping[str, Any]) -> Call[R]:
        """Build a call from *arguments* by name, for values that no type checker has seen."""
        # measured for 180 bytes, in µs: bind 0.2, check 0.6, encode 2.8, the Call 0.7; in all 5.1
        return Call(self.name, self._input.encode(self._input.check(arguments)), self._chosen)

    def run(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the function here, as for a test; an async one gives its coroutine.

        A handler that takes a context gets it as the first argument.
        """
        if self.policy.asks is not None:
            raise Misuse(f"task {self.name!r} asks a person, so there is nothing to run; write hf.complete()")
        if self.function is None:
            raise Misuse(
                f"task {self.name!r} is only declared here and its code is in another program; write hf.start()"
            )
        return self.function(*args, **kwargs)

    def with_defaults(self, defaults: DefaultOptions) -> Task[P, R]:
        """Give this task with those of *defaults* that it does not choose itself: a copy, or itself if it needs none.

        Not in place, for it may be in several registries, each with its own.
        """
        missing: dict[str, Any] = {name: value for name, value in defaults.items() if name not in self._said}
        if not missing or self.is_declared:
            return self
        task = copy(self)
        task.policy = replace(self.policy, **missing)
        task._said = self._said | missing.keys()
        task.__dict__.pop("_record", None)
        return task

    def with_code(self, function: Callable[..., Any], policy: Policy) -> Task[P, R]:
        """Give this task with *policy* and another *function* of the same signature, which is not read anew: a copy."""
        task = copy(self)
        task.function, task.policy, task._original = function, policy, task
        task.__dict__.pop("_record", None)
        return task

    def is_same(self, other: Task[..., Any]) -> bool:
        """Tell whether both are one function, whatever defaults each was given."""
        return self._original is other._original

    @property
    def function_name(self) -> str:
        """The last part of its name, as it is probably written in a program."""
        return last_part(self.name)

    if not TYPE_CHECKING:  # so that type checkers still refuse what it does not have

        def __getattr__(self, name: str) -> Any:
            if name in START_METHODS:
                call = f"{self.function_name}(…)"
                raise UnknownMethod(
                    f"task {self.name!r} has no method {name}(); write `await hf.start({call})`, or "
                    f"`hf.sync.start({call})` in blocking code; its keywords are the options: delay=60, run_at=, lane="
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    @property
    def chosen(self) -> Options:
        """The options that its calls begin with."""
        return self._chosen

    @property
    def is_declared(self) -> bool:
        """Tell whether no worker of this program runs it: its code lives elsewhere, or a person completes its jobs."""
        return self.function is None

    @property
    def is_recorded_here(self) -> bool:
        """Tell whether this program writes down what strangers must know of it: it has the code, or nobody has."""
        return self.function is not None or self.policy.asks is not None

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its aliases."""
        return (self.name, *self.aliases)

    def decode_input(self, text: str) -> Any:
        """Read stored arguments: an object with an attribute for each, or a declared task's input."""
        return self._input.decode(text)

    def check_input(self, text: str) -> str:
        """Check arguments that came as JSON, and write them as they are stored; or raise `InvalidInput`."""
        return self._input.rewrite(text)

    def check_output(self, text: str) -> str:
        """Check an output that came as JSON, and write it as it is stored; or raise `InvalidOutput`."""
        return self._output.rewrite(text)

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
        """Describe the task for programs that do not import it: its policy and its JSON schemas."""
        return self._record

    @cached_property
    def _record(self) -> TaskRecord:
        from holdfast.tasks.schema_making import schema_of  # pydantic

        policy = _canonical(self.policy.record())
        inputs, outputs = schema_of(self._input.adapter, "validation"), schema_of(self._output.adapter, "serialization")
        version = sha256("\n".join((policy, inputs, outputs)).encode()).hexdigest()[:12]
        return TaskRecord(name=self.name, version=version, policy=policy, input_schema=inputs, output_schema=outputs)

    def __repr__(self) -> str:
        return f"<task {self.name}>"


def _canonical(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
