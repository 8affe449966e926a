"""Pipelines: a task made of functions `f(ctx, input)`, each a phase that is named by it and is given what came before.

The handler is async if one of the functions is, or takes the async context; plain ones then run in threads, with that
context. If all are plain and take `holdfast.sync.Context`, so is the handler.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from types import FrameType, FunctionType
from typing import (
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    get_type_hints,
    overload,
)

from holdfast.errors import Misuse
from holdfast.keywords import refuse_unknown
from holdfast.tasks.phases import result_codec, returned_type
from holdfast.tasks.signatures import AsyncContext, PlainContext, context_colour
from holdfast.tasks.task import PipelineOptions, Task

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
R = TypeVar("R")

Function: TypeAlias = Callable[..., Any]
EXAMPLE = "`async def download(ctx: Context, url: str) -> str`"


class Register(Protocol):
    """Makes a task of a handler that runs *phases*, and adds it to a registry."""

    def __call__(
        self, handler: Function, phases: Sequence[str], options: Mapping[str, Any], frame: FrameType
    ) -> Task[..., Any]: ...


class Pipeliner:
    """Makes tasks of functions: `hf.pipeline("transcode", download, encode, upload)`.

    The first function takes the task's arguments behind its context, each later one what the one before has returned;
    the task's output is the last one's. Each is a phase, named by its function. The options are those of `@hf.task`.
    The types are followed through up to five functions.
    """

    def __init__(self, register: Register, options: frozenset[str]) -> None:
        self._register = register
        self._options = options

    @overload
    def __call__(
        self,
        name: str,
        first: Callable[Concatenate[AsyncContext, P], Coroutine[Any, Any, R]],
        /,
        **options: Unpack[PipelineOptions],
    ) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        first: Callable[Concatenate[AsyncContext, P], R],
        /,
        **options: Unpack[PipelineOptions],
    ) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        first: Callable[Concatenate[PlainContext, P], R],
        /,
        **options: Unpack[PipelineOptions],
    ) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        first: Callable[Concatenate[AsyncContext, P], Awaitable[A] | A],
        second: Callable[[AsyncContext, A], Coroutine[Any, Any, R]],
        /,
        **options: Unpack[PipelineOptions],
    ) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        first: Callable[Concatenate[AsyncContext, P], Awaitable[A] | A],
        second: Callable[[AsyncContext, A], R],
        /,
        **options: Unpack[PipelineOptions],
    ) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        first: Callable[Concatenate[PlainContext, P], A],
        second: Callable[[PlainContext, A], R],
        /,
        **options: Unpack[PipelineOptions],
    ) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        first: Callable[Concatenate[AsyncContext, P], Awaitable[A] | A],
        second: Callable[[AsyncContext, A], Awaitable[B] | B],
        third: Callable[[AsyncContext, B], Coroutine[Any, Any, R]],
        /,
        **options: Unpack[PipelineOptions],
    ) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        first: Callable[Concatenate[AsyncContext, P], Awaitable[A] | A],
        second: Callable[[AsyncContext, A], Awaitable[B] | B],
        third: Callable[[AsyncContext, B], R],
        /,
        **options: Unpack[PipelineOptions],
    ) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        first: Callable[Concatenate[PlainContext, P], A],
        second: Callable[[PlainContext, A], B],
        third: Callable[[PlainContext, B], R],
        /,
        **options: Unpack[PipelineOptions],
    ) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        first: Callable[Concatenate[AsyncContext, P], Awaitable[A] | A],
        second: Callable[[AsyncContext, A], Awaitable[B] | B],
        third: Callable[[AsyncContext, B], Awaitable[C] | C],
        fourth: Callable[[AsyncContext, C], Coroutine[Any, Any, R]],
        /,
        **options: Unpack[PipelineOptions],
    ) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        first: Callable[Concatenate[AsyncContext, P], Awaitable[A] | A],
        second: Callable[[AsyncContext, A], Awaitable[B] | B],
        third: Callable[[AsyncContext, B], Awaitable[C] | C],
        fourth: Callable[[AsyncContext, C], R],
        /,
        **options: Unpack[PipelineOptions],
    ) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        first: Callable[Concatenate[PlainContext, P], A],
        second: Callable[[PlainContext, A], B],
        third: Callable[[PlainContext, B], C],
        fourth: Callable[[PlainContext, C], R],
        /,
        **options: Unpack[PipelineOptions],
    ) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        first: Callable[Concatenate[AsyncContext, P], Awaitable[A] | A],
        second: Callable[[AsyncContext, A], Awaitable[B] | B],
        third: Callable[[AsyncContext, B], Awaitable[C] | C],
        fourth: Callable[[AsyncContext, C], Awaitable[D] | D],
        fifth: Callable[[AsyncContext, D], Coroutine[Any, Any, R]],
        /,
        **options: Unpack[PipelineOptions],
    ) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        first: Callable[Concatenate[AsyncContext, P], Awaitable[A] | A],
        second: Callable[[AsyncContext, A], Awaitable[B] | B],
        third: Callable[[AsyncContext, B], Awaitable[C] | C],
        fourth: Callable[[AsyncContext, C], Awaitable[D] | D],
        fifth: Callable[[AsyncContext, D], R],
        /,
        **options: Unpack[PipelineOptions],
    ) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        first: Callable[Concatenate[PlainContext, P], A],
        second: Callable[[PlainContext, A], B],
        third: Callable[[PlainContext, B], C],
        fourth: Callable[[PlainContext, C], D],
        fifth: Callable[[PlainContext, D], R],
        /,
        **options: Unpack[PipelineOptions],
    ) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        first: Function,
        second: Function,
        third: Function,
        fourth: Function,
        fifth: Function,
        sixth: Function,
        /,
        *more: Function,
        **options: Unpack[PipelineOptions],
    ) -> Task[..., Any]: ...
    def __call__(self, name: str, /, *functions: Function, **options: Any) -> Task[..., Any]:
        """Make a task of *functions* and register it as *name*, or refuse it with what to write instead."""
        refuse_unknown(options, self._options, "a pipeline")
        frame = sys._getframe(1)
        handler = make_handler(name, functions, frame.f_locals)
        return self._register(handler, [each.__name__ for each in functions], {**options, "name": name}, frame)


def make_handler(name: str, functions: Sequence[Function], local_names: Mapping[str, Any]) -> Function:
    """Make the handler that runs *functions* one after the other, as phases of task *name*."""
    if not functions:
        raise Misuse(f"pipeline {name!r} has no function; write hf.pipeline({name!r}, download, encode)")
    for each in functions:
        _check_function(each)
    for each in functions[1:]:
        _check_takes_two(each)
    for each in functions:
        result_codec(each, each.__name__, name)  # what cannot be stored is refused here, and not in the middle of a job
    hints = _hints(functions[0], local_names)
    handler = _async_handler(functions) if _is_async(functions, local_names) else _plain_handler(functions)
    return _dressed(handler, functions, hints)


def _async_handler(functions: Sequence[Function]) -> Function:
    first, *later = functions

    async def handler(ctx: Any, /, *args: Any, **kwargs: Any) -> Any:
        value = await ctx.phase(first.__name__, first, ctx, *args, **kwargs)
        for each in later:
            value = await ctx.phase(each.__name__, each, ctx, value)
        return value

    return handler


def _plain_handler(functions: Sequence[Function]) -> Function:
    first, *later = functions

    def handler(ctx: Any, /, *args: Any, **kwargs: Any) -> Any:
        value = ctx.phase(first.__name__, first, ctx, *args, **kwargs)
        for each in later:
            value = ctx.phase(each.__name__, each, ctx, value)
        return value

    return handler


def _dressed(handler: Function, functions: Sequence[Function], hints: Mapping[str, Any]) -> Function:
    """Give the handler the parameters of the first function and the output of the last."""
    first, last = functions[0], functions[-1]
    output = returned_type(last, last.__name__)
    handler.__dict__["__signature__"] = inspect.signature(first).replace(return_annotation=output)
    handler.__annotations__ = {**hints, "return": output}
    handler.__module__, handler.__name__, handler.__qualname__ = first.__module__, first.__name__, first.__qualname__
    handler.__doc__ = f"Run {', '.join(each.__name__ for each in functions)}, one after the other."
    return handler


def _check_function(function: object) -> None:
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        raise Misuse(f"{str(function)[:60]} cannot be a phase of a pipeline; give functions such as {EXAMPLE}")


def _check_takes_two(function: Function) -> None:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        raise Misuse(
            f"{function.__name__} must take two arguments: the context, and the result of the function before it; "
            f"write `def {function.__name__}(ctx, input)`"
        ) from None


def _is_async(functions: Sequence[Function], local_names: Mapping[str, Any]) -> bool:
    """Tell the colour of the handler, or refuse functions whose contexts do not go together."""
    colours = {each: _colour(each, local_names) for each in functions}
    if colours[functions[0]] is None:
        raise Misuse(
            f"the first parameter of {functions[0].__name__} is not annotated as a context; write it as {EXAMPLE}"
        )
    is_async = "async" in colours.values() or any(map(inspect.iscoroutinefunction, functions))
    wrong = next((each for each in functions if is_async and colours[each] == "blocking"), None)
    if wrong is not None:
        raise Misuse(
            f"{wrong.__name__} takes the blocking context, but other functions of the pipeline are async, so every "
            "function gets the async context; write `ctx: holdfast.Context` (a plain function runs in a thread)"
        )
    return is_async


def _colour(function: Function, local_names: Mapping[str, Any]) -> str | None:
    first = next(iter(inspect.signature(function).parameters), None)
    hint = None if first is None else _hints(function, local_names).get(first)
    return context_colour(hint)


def _hints(function: Function, local_names: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, localns=dict(local_names), include_extras=True)
    except Exception as error:  # noqa: BLE001 - an annotation is an expression of the user's
        raise Misuse(
            f"an annotation of {function.__name__} cannot be resolved ({error}); define or import the name above the "
            "pipeline, not under `if TYPE_CHECKING`"
        ) from None
