"""The registry of tasks: how functions and declarations become tasks, and how a task is found by its name."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import cache, update_wrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, cast, overload

from holdfast.errors import DuplicateTask, InvalidInput, InvalidOutput, Misuse, UnknownTask, got, shown
from holdfast.keywords import refuse_unknown
from holdfast.models import RESERVED
from holdfast.outcomes import Retry
from holdfast.tasks.calls import Call, Options
from holdfast.tasks.pipelines import Pipeliner
from holdfast.tasks.signatures import AsyncContext, PlainContext, read_fields, read_signature
from holdfast.tasks.task import (
    OWNERS,
    PLACED,
    POLICY_KEYS,
    DefaultOptions,
    Middleware,
    PipelineOptions,
    Policy,
    PolicyOptions,
    Task,
    TaskOptions,
)

if TYPE_CHECKING:
    from holdfast.codec import Codec
    from holdfast.schedules import ScheduleOptions
    from holdfast.tasks.scheduled_calls import DeclaredSchedule

P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", bound=Mapping[str, Any])  # noqa: E741 - options

OF_SCHEDULE = frozenset({"cron", "every", "timezone", "jitter", "missed", "tenants"})
"""The options of a task that declare a schedule."""
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,200}")


class Registrar:
    """Turns functions into tasks of one registry: `@hf.task`, `@hf.task(queue="mail")`.

    With options it gives another registrar, so that a set of them can have a name of its own, such as
    `mail_task = hf.task(queue="mail")`. Without `name=` a task is called `module.function`, where a script
    goes by its file's name, and a function inside another without the outer one. Stored jobs find their task
    by this name: give `name=` before a function moves, or `aliases=` when it has.
    """

    def __init__(self, tasks: Tasks, options: TaskOptions) -> None:
        self._tasks = tasks
        self._options = options

    @overload
    def __call__(self, function: Callable[Concatenate[AsyncContext, P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[PlainContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: None = None, /, **options: Unpack[TaskOptions]) -> Registrar: ...
    def __call__(self, function: Any = None, /, **options: Any) -> Any:
        """Register *function*, or refuse it with what to write instead."""
        refuse_unknown(options, TaskOptions.__optional_keys__, "@hf.task")
        merged = cast("TaskOptions", {**self._options, **options})
        if function is None:
            return Registrar(self._tasks, merged)
        task = _from_function(function, self._tasks.filled(merged), sys._getframe(1), self._tasks.middleware)
        declared = _schedule_of(task, merged)
        self._tasks.add(task)
        if declared is not None:
            self._tasks.add_schedules(declared)
        return task


class Tasks:
    """A registry of tasks; an application of several modules has one in each and merges them.

    *retry* and *lease* are for those of its tasks that choose none; *middleware* is around them all.

    >>> tasks = Tasks()
    >>> charge = tasks.declare("billing.charge", dict, str)
    Traceback (most recent call last):
    holdfast.errors.Misuse: the input of a declared task is a pydantic model, a dataclass or a TypedDict
    """

    def __init__(
        self, *, middleware: Sequence[Middleware] = (), retry: Retry | None = None, lease: float | None = None
    ) -> None:
        self._by_name: dict[str, Task[..., Any]] = {}
        self._defaults: DefaultOptions = {}
        if retry is not None:
            self._defaults["retry"] = retry
        if lease is not None:
            self._defaults["lease"] = lease
        Policy(**self._defaults)  # refuses what no task can have
        self.middleware = tuple(middleware)
        """Wraps every attempt of the tasks registered here, inside the worker's and outside the task's own."""
        self.schedules: dict[str, DeclaredSchedule] = {}
        """The schedules that are declared here, by their names."""
        self.task = Registrar(self, {})
        self.pipeline = Pipeliner(self._add_pipeline, PipelineOptions.__optional_keys__)

    @overload
    def declare(
        self, name: str, input_type: Callable[P, Any], output_type: type[R], **options: Unpack[PolicyOptions]
    ) -> Task[P, R]: ...
    @overload
    def declare(
        self, name: str, input_type: Callable[P, Any], output_type: None, **options: Unpack[PolicyOptions]
    ) -> Task[P, None]: ...
    @overload  # for pyright, to which a TypedDict has two constructors; mypy takes the first overload
    def declare(
        self,
        name: str,
        input_type: type[Mapping[str, object]],
        output_type: type[R],
        **options: Unpack[PolicyOptions],
    ) -> Task[..., R]: ...
    def declare(self, name: str, input_type: Any, output_type: Any, **options: Any) -> Task[..., Any]:
        """Declare a task whose code lives elsewhere; the fields of *input_type* are its arguments.

        *input_type* is a pydantic model, a dataclass or a TypedDict. Without `queue=` and `priority=` its
        jobs get those that the code's owner chose. With `asks=` there is no code: a person completes its jobs.
        """
        refuse_unknown(options, PolicyOptions.__optional_keys__, "hf.declare()")
        options = _placed(options)
        said = {option: options[option] for option in OWNERS & options.keys()}
        task: Task[..., Any] = Task(
            _check_name(name),
            read_fields(input_type, output_type),
            policy=Policy(**options),
            chosen=Options(**said, given=PLACED & options.keys()),
            place=_place(sys._getframe(1)),
        )
        self.add(task)
        return task

    def _add_pipeline(
        self, handler: Callable[..., Any], phases: Sequence[str], options: Mapping[str, Any], frame: FrameType
    ) -> Task[..., Any]:
        merged = self.filled(cast("TaskOptions", {**options, "phases": phases}))
        task = _from_function(handler, merged, frame, self.middleware, _place(frame))
        self.add(task)
        return task

    def filled(self, options: TaskOptions) -> TaskOptions:
        """Give *options* of a task with what the registry chooses where they do not."""
        return cast("TaskOptions", {**self._defaults, **options})

    def call(self, name: str, arguments: Mapping[str, Any]) -> Call[Any]:
        """Build a call by name; *arguments* of a task not known here are only checked to be storable."""
        task = self._by_name.get(name)
        if task is not None:
            return task.call_with(arguments)
        if not NAME.fullmatch(name) or name.startswith(RESERVED):
            raise unknown_task(name, self._by_name)
        return Call(name, any_arguments().encode(any_arguments().check(arguments)))

    def get(self, name: str) -> Task[..., Any]:
        """Find a task by its name or an alias, or raise `UnknownTask` with the names that are near."""
        if name not in self._by_name:
            raise unknown_task(name, self._by_name)
        return self._by_name[name]

    def add(self, *tasks: Task[..., Any]) -> None:
        """Take *tasks* in, all or none; raise `DuplicateTask` for names that other tasks have.

        What they do not choose themselves, and this registry does, they have here and not elsewhere.
        """
        merged = dict(self._by_name)
        here = [task.with_defaults(self._defaults) for task in tasks]
        claims = [(name, task, merged.setdefault(name, task)) for task in here for name in task.names]
        clashes = {name: (holder, task) for name, task, holder in claims if not holder.is_same(task)}
        if clashes:
            places = [f"{name}: {holder.place}, {task.place}" for name, (holder, task) in clashes.items()]
            raise DuplicateTask(list(clashes), places)
        self._by_name = merged

    def schedule(
        self, name: str, call: Call[Any], *, tenants: bool = False, **options: Unpack[ScheduleOptions]
    ) -> None:
        """Declare a schedule: `hf.schedule("sync", sync(source="crm").options(unique="sync"), every=300)`.

        The options are those of `hf.schedules.put`. It is written down when the program first uses the database, and
        again when the declaration changes: until then edits by hand stay, and a pause always does. With *tenants* each
        tenant has it, and not the control place.
        """
        from holdfast.tasks.scheduled_calls import DeclaredSchedule, make_schedule  # few programs have schedules

        task = self._by_name.get(getattr(call, "task", ""))
        wanted = make_schedule(name, call, task, "hf.schedule()", options)
        self.add_schedules(DeclaredSchedule(wanted, tenants, _place(sys._getframe(1))))

    def add_schedules(self, *declared: DeclaredSchedule) -> None:
        """Take declared schedules in; raise `Misuse` for a name under which another one is declared."""
        for each in declared:
            name = each.schedule.name
            known = self.schedules.setdefault(name, each)
            if known[:2] != each[:2]:
                raise Misuse(
                    f"the schedule {name!r} is declared twice: {known.place}, {each.place}; rename one of them"
                )

    def merge(self, *others: Tasks) -> None:
        """Add all tasks and schedules of *others*; adding the same twice is no error."""
        self.add(*(task for other in others for task in other))
        self.add_schedules(*(each for other in others for each in other.schedules.values()))

    def __iter__(self) -> Iterator[Task[..., Any]]:
        return iter(dict.fromkeys(self._by_name.values()))

    def __len__(self) -> int:
        return len(set(self._by_name.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def names(self) -> Collection[str]:
        """The names of all tasks, former ones included."""
        return self._by_name.keys()


def _schedule_of(task: Task[..., Any], options: TaskOptions) -> DeclaredSchedule | None:
    """Give the schedule that the decorator of *task* declares, if it does."""
    said = {name: value for name, value in options.items() if name in OF_SCHEDULE and value is not None}
    for_tenants = bool(said.pop("tenants", False))
    if not said and not for_tenants:
        return None
    from holdfast.tasks.scheduled_calls import DeclaredSchedule, call_without_arguments, make_schedule

    chosen = cast("ScheduleOptions", said)
    wanted = make_schedule(task.name, call_without_arguments(task, chosen), task, "@hf.task()", chosen)
    return DeclaredSchedule(wanted, for_tenants, task.place)


def unknown_task(name: str, known: Collection[str]) -> UnknownTask:
    """Make the error for a *name* that no task has, with those of *known* that are near."""
    from difflib import get_close_matches

    return UnknownTask(name[:200], get_close_matches(name[:200], known))


def _from_function(
    function: Any, options: TaskOptions, frame: FrameType, middleware: Sequence[Middleware], place: str = ""
) -> Task[..., Any]:
    signature = read_signature(function, frame.f_locals)
    options = _placed(options)
    policy = Policy(**cast("dict[str, Any]", {key: value for key, value in options.items() if key in POLICY_KEYS}))
    if policy.is_in_child:
        _refuse_unreachable(function, frame, is_made_here=bool(place))
    if policy.asks is not None:
        _refuse_body(function)
    said = {option: getattr(policy, option) for option in OWNERS}
    task: Task[..., Any] = Task(
        _check_name(options.get("name") or _default_name(function)),
        signature,
        aliases=_check_aliases(options.get("aliases", ())),
        policy=policy,
        chosen=Options(**said, given=PLACED & options.keys()),
        place=place or f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}",
        function=None if policy.asks is not None else function,
        middleware=middleware,
        said=frozenset(options),
    )
    update_wrapper(task, function)
    return task


def _placed(options: O) -> O:
    """Give *options* with the queue of people for a task that asks one and chooses no queue."""
    if options.get("asks") is None:
        return options
    from holdfast.questions import PEOPLE  # whoever asks has imported it

    return cast("O", {"queue": PEOPLE, **options})


def _refuse_body(function: Any) -> None:
    """Raise `Misuse` for a function that does something: nobody would run it."""
    if _what_it_does(function) not in _nothing():
        raise Misuse(
            f"{function.__qualname__} asks a person, who completes its jobs, so nobody would run its body; write ... "
            "or raise NotImplementedError instead, or leave asks= out"
        )


def _what_it_does(function: Any) -> tuple[object, ...]:
    """Give what a function is compiled to, but for its arguments and the text of its docstring."""
    code = function.__code__
    return code.co_code, code.co_names, tuple(map(type, code.co_consts))


@cache
def _nothing() -> frozenset[tuple[object, ...]]:
    """Give what functions without a body are compiled to; a docstring is a constant, and moves the place of others."""

    def dots() -> None: ...

    def documented() -> None:
        """Do nothing."""

    def raising() -> None:
        raise NotImplementedError

    def documented_raising() -> None:
        """Do nothing."""
        raise NotImplementedError

    async def dots_later() -> None: ...

    async def documented_later() -> None:
        """Do nothing."""

    async def raising_later() -> None:
        raise NotImplementedError

    async def documented_raising_later() -> None:
        """Do nothing."""
        raise NotImplementedError

    blocking = (dots, documented, raising, documented_raising)
    later = (dots_later, documented_later, raising_later, documented_raising_later)
    return frozenset(map(_what_it_does, (*blocking, *later)))


def _refuse_unreachable(function: Any, frame: FrameType, *, is_made_here: bool) -> None:
    """Raise `Misuse` for a handler that a child process, which imports its module anew, would not find."""
    # a pipeline's handler is ours, and is there in the child if the line that makes it runs when its module is imported
    is_inside = frame.f_code.co_name != "<module>" if is_made_here else "<locals>" in function.__qualname__
    module = frame.f_globals.get("__name__") if is_made_here else function.__module__
    if is_inside:
        raise Misuse(
            f'{function.__qualname__} cannot run in a child process (run_in="process"): a child imports the module and '
            "finds only functions at module level; move it out of the function around it"
        )
    main = sys.modules["__main__"]
    if module == "__main__" and main.__spec__ is None and not Path(getattr(main, "__file__", None) or "").is_file():
        raise Misuse(
            'run_in="process" needs a file that a child process can import; put the task into a module: what you type '
            "into a prompt or give with -c is in no file"
        )


def _default_name(function: Callable[..., Any]) -> str:
    return f"{_module_name(function.__module__)}.{function.__qualname__.rpartition('<locals>.')[2]}"


def _module_name(module: str) -> str:
    if module not in ("__main__", "__mp_main__"):
        return module
    # the name by which a worker imports what was run as a script, or with -m
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return main.__spec__.name
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else module


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Misuse(f"a task cannot be called {shown(name)}; use letters, digits and . _ : - in name=")
    if name.startswith(RESERVED):
        raise Misuse(f"a task cannot be called {name!r}: Holdfast keeps {RESERVED!r} for itself; give another name=")
    return name


def _check_aliases(aliases: Iterable[str]) -> tuple[str, ...]:
    if isinstance(aliases, str):
        raise Misuse(f"aliases must be a list, {got(aliases)}; write aliases=[{shown(aliases)}]")
    return tuple(_check_name(each) for each in aliases)


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@cache
def any_arguments() -> Codec[dict[str, Any]]:
    """Make the codec of the arguments of tasks whose code is elsewhere."""
    from holdfast.codec import Codec

    return Codec(dict[str, Any], "arguments", InvalidInput)


@cache
def any_output() -> Codec[Any]:
    """Make the codec of the outputs of tasks whose code is elsewhere."""
    from holdfast.codec import Codec

    return Codec(Any, "output", InvalidOutput)
