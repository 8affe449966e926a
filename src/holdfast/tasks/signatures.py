"""Reads the signature of a handler: what it takes and returns, and whether it can be a task at all.

Arguments are stored by name and read back by type, so every parameter needs both. Whatever could not be
stored, called or told from the context is refused where the task is defined, with what to write instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import field, is_dataclass, make_dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar, get_type_hints

from holdfast.errors import InvalidInput, Misuse, did_you_mean, shown
from holdfast.tasks.calls import StartOptions, last_part

UNKNOWN_FIRST = (Any, object)

Colour: TypeAlias = Literal["async", "blocking"]


class HandlerContext:
    """What a handler may take first: the base of the two contexts that a worker gives, told apart by their colour."""

    colour: ClassVar[Colour]


class AsyncHandlerContext(HandlerContext):
    """The base of `holdfast.Context`."""

    colour: ClassVar[Colour] = "async"


class BlockingHandlerContext(HandlerContext):
    """The base of `holdfast.sync.Context`."""

    colour: ClassVar[Colour] = "blocking"


AsyncContext = TypeVar("AsyncContext", bound=AsyncHandlerContext)
PlainContext = TypeVar("PlainContext", bound=BlockingHandlerContext)


class Binding(NamedTuple):
    """The parameters of a task, by which positional arguments get their names."""

    positional: tuple[str, ...]
    names: frozenset[str]
    takes_more: bool = False
    """The input is a model with `extra="allow"`."""
    described: str = ""
    """The parameters as they are written: `order_id: int, note: str = ''`."""
    takes_context: bool = False

    @classmethod
    def of(cls, parameters: list[inspect.Parameter], *, takes_context: bool = False) -> Binding:
        """Take the names from *parameters*."""
        known = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
        positional = tuple(each.name for each in known if each.kind is not each.KEYWORD_ONLY)
        names = frozenset(each.name for each in known)
        described = ", ".join(map(_described, known))
        return cls(positional, names, len(known) < len(parameters), described, takes_context)

    def bind(self, owner: str, positional: tuple[object, ...], named: dict[str, Any]) -> dict[str, Any]:
        """Give every argument its name; the types and what is missing are the validator's business."""
        given = dict(zip(self.positional, positional, strict=False)) | named if positional else named
        if len(given) != len(positional) + len(named):
            raise self._too_many(owner, positional, named)
        if not (self.takes_more or given.keys() <= self.names):
            raise self._unknown(owner, min(given.keys() - self.names), given)
        return given

    @property
    def example(self) -> str:
        """The arguments as a caller writes them, without values."""
        return ", ".join(f"{name}=…" for name in self.positional or sorted(self.names))

    def _unknown(self, owner: str, name: str, given: dict[str, Any]) -> InvalidInput:
        function = last_part(owner)
        if name in StartOptions.__optional_keys__:
            start = f"hf.start({function}({self.example}), {name}={shown(given[name])})"
            advice = f", but start() has this option; write `{start}`"
        else:
            near = did_you_mean(name, self.names)
            advice = f"{near} Its arguments are: {self}" if near else f"; its arguments are: {self}"
        return InvalidInput(f"{function}() has no argument {name!r}{advice}", f"arguments.{name}")

    def _too_many(self, owner: str, positional: tuple[object, ...], named: dict[str, Any]) -> InvalidInput:
        function = last_part(owner)
        if self.takes_context and len(positional) + len(named) > len(self.names):
            return InvalidInput(
                f"{function}() takes no ctx when you call it: the worker passes the context; write "
                f"`{function}({self.example})`",
                "arguments",
            )
        twice = [name for name in self.positional[: len(positional)] if name in named]
        if twice:
            return InvalidInput(
                f"{function}() got the argument {twice[0]} twice, by position and by name; give it once",
                f"arguments.{twice[0]}",
            )
        return InvalidInput(
            f"{function}() takes {len(self.positional)} positional arguments, got {len(positional)}; its arguments "
            f"are: {self}",
            "arguments",
        )

    def __str__(self) -> str:
        return self.described or ", ".join(sorted(self.names)) or "none"


class _Unsaid:
    """A default that no message says."""

    def __repr__(self) -> str:
        return "…"


def _described(parameter: inspect.Parameter) -> str:
    """Write *parameter* as it stands in a message, which others may read: without a password that is its default."""
    plain = parameter.replace(kind=parameter.POSITIONAL_OR_KEYWORD)
    if isinstance(plain.default, str) and plain.default:
        from holdfast.wire.redaction import is_secret  # few tasks have such a default

        plain = plain.replace(default=_Unsaid()) if is_secret(plain.name) else plain
    return f"{plain}"


class Signature(NamedTuple):
    """What a handler's annotations say."""

    is_async: bool
    takes_context: bool
    arguments: type[Any]
    """A dataclass with a field for each parameter but the context."""
    output: Any
    binding: Binding


def read_signature(function: Callable[..., object], local_names: Mapping[str, Any]) -> Signature:
    """Read what *function* says of itself, or raise `Misuse` that tells what to write instead.

    Annotations that are texts are looked up in its module, then in *local_names*.
    """
    _check_kind(function)
    parameters = list(inspect.signature(function).parameters.values())
    _check_method(function, parameters)
    hints = _hints(function, local_names)
    takes_context = _takes_context(function, parameters, hints)
    stored = parameters[1:] if takes_context else parameters
    for each in stored:
        _check_parameter(function, each, hints)
    return Signature(
        is_async=inspect.iscoroutinefunction(function),
        takes_context=takes_context,
        arguments=_arguments(function, stored, hints),
        output=hints.get("return", Any),
        binding=Binding.of([each.replace(annotation=hints[each.name]) for each in stored], takes_context=takes_context),
    )


def read_fields(input_type: Any, output_type: Any) -> Signature:
    """Read what a declared task takes from the fields of *input_type*."""
    return Signature(
        is_async=False,
        takes_context=False,
        arguments=input_type,
        output=output_type,
        binding=_fields(input_type),
    )


def _fields(kind: Any) -> Binding:
    from pydantic import BaseModel

    # typing and typing_extensions each know only their own TypedDicts; both give them these two sets
    if hasattr(kind, "__required_keys__"):
        return Binding((), kind.__required_keys__ | kind.__optional_keys__)
    is_model = isinstance(kind, type) and issubclass(kind, BaseModel) and not kind.__pydantic_root_model__
    if not is_model and not (isinstance(kind, type) and is_dataclass(kind)):
        raise Misuse("the input of a declared task must be a pydantic model, a dataclass or a TypedDict")
    return Binding.of(list(inspect.signature(kind).parameters.values()))


def _refuse(function: object, reason: str) -> Misuse:
    return Misuse(f"{getattr(function, '__qualname__', type(function).__name__)} cannot be a task: {reason}")


def _check_kind(function: object) -> None:
    if isinstance(function, str):
        raise Misuse(f"@hf.task takes the name as a keyword; write @hf.task(name={function[:60]!r})")
    if isinstance(function, MethodType | staticmethod | classmethod):
        raise _refuse(
            function, "it is a method, and a worker has no object for it; make it a function outside the class"
        )
    if not isinstance(function, FunctionType):
        raise _refuse(function, "it is not a function; put `@hf.task` above a `def`")
    if function.__name__ == "<lambda>":
        raise _refuse(function, "a lambda has no name and no annotations; write a `def` at module level")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _refuse(function, "it is a generator (it has a yield); return a list, or start a job for each item")


def _check_method(function: Callable[..., object], parameters: list[inspect.Parameter]) -> None:
    holder = function.__qualname__.rpartition("<locals>.")[2].rpartition(".")[0]
    if holder and parameters and parameters[0].name in ("self", "cls"):
        raise _refuse(
            function, f"it is a method, and a worker has no {holder} for it; make it a function outside the class"
        )


def _hints(function: Callable[..., object], local_names: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, localns=dict(local_names), include_extras=True)
    except Exception as error:  # noqa: BLE001 - an annotation is an expression of the user's
        raise _refuse(
            function,
            f"an annotation cannot be resolved ({error}); define or import what it names above the task, "
            "and not under `if TYPE_CHECKING`",
        ) from None


def _takes_context(function: Callable[..., object], parameters: list[inspect.Parameter], hints: dict[str, Any]) -> bool:
    if not parameters:
        return False
    first = parameters[0]
    if hints.get(first.name, Any) in UNKNOWN_FIRST:
        raise _refuse(
            function,
            f"its first parameter {first.name!r} has no type, so it could be the context or an argument; write "
            f"`ctx: Context` with `from holdfast import Context`, or `{first.name}: str`, or another type",
        )
    colour = context_colour(hints.get(first.name))
    if colour is None:
        return False
    if first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise _refuse(function, f"the worker passes the context by position; remove the star before {first.name!r}")
    _check_colour(function, colour)
    return True


def context_colour(annotation: object) -> Colour | None:
    """Give the colour of the context that *annotation* names; None if it names something else."""
    return annotation.colour if isinstance(annotation, type) and issubclass(annotation, HandlerContext) else None


def _check_colour(function: Callable[..., object], colour: str) -> None:
    is_async = inspect.iscoroutinefunction(function)
    if is_async and colour == "blocking":
        raise _refuse(
            function, "it is an `async def` and takes the blocking context; write `from holdfast import Context`"
        )
    if not is_async and colour == "async":
        raise _refuse(
            function,
            "it is a plain `def` and takes the async context; write `from holdfast.sync import Context`, or make it "
            "an `async def`",
        )


def _check_parameter(function: Callable[..., object], parameter: inspect.Parameter, hints: dict[str, Any]) -> None:
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise _refuse(
            function,
            f"arguments are stored by name, and *{name} has none; write `{name}: list[…]`, or one parameter for each",
        )
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise _refuse(function, f"arguments are passed by name, and {name!r} is positional only; remove the `/`")
    if name not in hints:
        raise _refuse(function, f"parameter {name!r} has no annotation; write `{name}: str`, or another type")
    if context_colour(hints[name]) is not None:
        raise _refuse(function, f"the context must be the first parameter; move {name!r} to the front")


def _arguments(
    function: Callable[..., object], parameters: list[inspect.Parameter], hints: dict[str, Any]
) -> type[Any]:
    from holdfast.codec import BYTES_AS_BASE64

    # what a default leaves out is checked like what a caller gives; an argument that nobody takes is an error
    config = {**BYTES_AS_BASE64, "extra": "forbid", "validate_default": True}
    return make_dataclass(
        function.__name__,
        [(each.name, hints[each.name], field(**_default(each))) for each in parameters],
        namespace={"__pydantic_config__": config, "__module__": function.__module__},
        frozen=True,
        slots=True,
        kw_only=True,
    )


def _default(parameter: inspect.Parameter) -> dict[str, Any]:
    default = parameter.default
    if default is parameter.empty:
        return {}
    if default.__class__.__hash__:
        return {"default": default}
    return {"default_factory": partial(deepcopy, default)}  # it can change, so each call gets a copy
