"""Reads the signature of a handler: what it takes and returns, and whether it can be a task at all.

Arguments are stored by name and read back by type, so every parameter needs both. Whatever could not be
stored, called or told from the context is refused where the task is defined, with what to write instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, is_dataclass, make_dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict

from holdfast.codec import BYTES_AS_BASE64
from holdfast.errors import InvalidInput, Misuse

# what a default leaves out is checked like what a caller gives; an argument that nobody takes is an error
ARGUMENTS: ConfigDict = {**BYTES_AS_BASE64, "extra": "forbid", "validate_default": True}
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


@dataclass(frozen=True, slots=True)
class Binding:
    """The parameters of a task, by which positional arguments get their names."""

    positional: tuple[str, ...]
    names: frozenset[str]
    takes_more: bool = False
    """The input is a model with `extra="allow"`."""

    @classmethod
    def of(cls, parameters: list[inspect.Parameter]) -> Binding:
        """Take the names from *parameters*."""
        known = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
        positional = tuple(each.name for each in known if each.kind is not each.KEYWORD_ONLY)
        return cls(positional, frozenset(each.name for each in known), len(known) < len(parameters))

    def bind(self, owner: str, positional: tuple[object, ...], named: dict[str, Any]) -> dict[str, Any]:
        """Give every argument its name; the types and what is missing are the validator's business."""
        given = dict(zip(self.positional, positional, strict=False)) | named if positional else named
        if len(given) != len(positional) + len(named):
            raise self._too_many(owner, positional, named)
        if not (self.takes_more or given.keys() <= self.names):
            unknown = min(given.keys() - self.names)
            raise InvalidInput(f"task {owner} takes {self}, and not this", f"arguments.{unknown}")
        return given

    def _too_many(self, owner: str, positional: tuple[object, ...], named: dict[str, Any]) -> InvalidInput:
        twice = [name for name in self.positional[: len(positional)] if name in named]
        if twice:
            return InvalidInput(f"task {owner} gets it by place and by name; give one", f"arguments.{twice[0]}")
        return InvalidInput(
            f"task {owner} takes {len(self.positional)} by place, not {len(positional)}; it takes {self}",
            "arguments",
        )

    def __str__(self) -> str:
        return ", ".join(sorted(self.names)) or "none"


@dataclass(frozen=True, slots=True)
class Signature:
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
        binding=Binding.of(stored),
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
    # typing and typing_extensions each know only their own TypedDicts; both give them these two sets
    if hasattr(kind, "__required_keys__"):
        return Binding((), kind.__required_keys__ | kind.__optional_keys__)
    is_model = isinstance(kind, type) and issubclass(kind, BaseModel) and not kind.__pydantic_root_model__
    if not is_model and not (isinstance(kind, type) and is_dataclass(kind)):
        raise Misuse("the input of a declared task is a pydantic model, a dataclass or a TypedDict")
    return Binding.of(list(inspect.signature(kind).parameters.values()))


def _refuse(function: object, reason: str) -> Misuse:
    return Misuse(f"{getattr(function, '__qualname__', type(function).__name__)} cannot be a task: {reason}")


def _check_kind(function: object) -> None:
    if isinstance(function, str):
        raise Misuse(f"a task is named by keyword: write @hf.task(name={function[:60]!r})")
    if isinstance(function, MethodType | staticmethod | classmethod):
        raise _refuse(function, "it is a method, and a worker has no object for it; move it out of its class")
    if not isinstance(function, FunctionType):
        raise _refuse(function, "it is not a function; wrap it: `def name(argument: str) -> str: …`")
    if function.__name__ == "<lambda>":
        raise _refuse(function, "a lambda has neither name nor annotations; write a `def`")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _refuse(function, "it yields; return a list, or start a job for each item")


def _check_method(function: Callable[..., object], parameters: list[inspect.Parameter]) -> None:
    holder = function.__qualname__.rpartition("<locals>.")[2].rpartition(".")[0]
    if holder and parameters and parameters[0].name in ("self", "cls"):
        raise _refuse(function, f"it is a method, and a worker has no {holder} for it; move it out of the class")


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
            f"its first parameter, {first.name!r}, could be a context or an argument; "
            "write `ctx: Context`, or the type of the argument",
        )
    colour = context_colour(hints.get(first.name))
    if colour is None:
        return False
    if first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise _refuse(function, f"its context is passed by place; take away the star before {first.name!r}")
    _check_colour(function, colour)
    return True


def context_colour(annotation: object) -> Colour | None:
    """Give the colour of the context that *annotation* names; None if it names something else."""
    return annotation.colour if isinstance(annotation, type) and issubclass(annotation, HandlerContext) else None


def _check_colour(function: Callable[..., object], colour: str) -> None:
    is_async = inspect.iscoroutinefunction(function)
    if is_async and colour == "blocking":
        raise _refuse(function, "an async one gets the async context; write `ctx: holdfast.Context`")
    if not is_async and colour == "async":
        raise _refuse(function, "a plain one gets the blocking context; write `ctx: holdfast.sync.Context`")


def _check_parameter(function: Callable[..., object], parameter: inspect.Parameter, hints: dict[str, Any]) -> None:
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise _refuse(function, f"arguments are stored by name, which *{name} has not; write one parameter each")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise _refuse(function, f"arguments are passed by name, and {name!r} has none; take the `/` away")
    if name not in hints:
        raise _refuse(function, f"parameter {name!r} has no annotation; write `{name}: str`, or what it is")
    if context_colour(hints[name]) is not None:
        raise _refuse(function, f"the context comes first; move {name!r} to the front")


def _arguments(
    function: Callable[..., object], parameters: list[inspect.Parameter], hints: dict[str, Any]
) -> type[Any]:
    return make_dataclass(
        function.__name__,
        [(each.name, hints[each.name], field(**_default(each))) for each in parameters],
        namespace={"__pydantic_config__": ARGUMENTS, "__module__": function.__module__},
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
