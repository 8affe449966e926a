"""What can be a task, and what a function that cannot is told."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel
from typing_extensions import TypedDict

from holdfast.errors import InvalidInput, Misuse
from holdfast.tasks.signatures import Signature, read_fields, read_signature
from holdfast.worker.attempts.context import BlockingContext, Context

if TYPE_CHECKING:
    from decimal import Decimal


class Greeter:
    def greet(self, name: str) -> str:
        return name

    @classmethod
    def meet(cls, name: str) -> str:
        return name


class Shouter:
    def __call__(self, name: str) -> str:
        return name


def read(function: Any) -> Signature:
    return read_signature(function, {})


def plain(name: str, times: int = 1) -> str:
    return name * times


async def asynchronous(name: str) -> None: ...


def with_blocking_context(ctx: BlockingContext, name: str) -> None: ...


async def with_context(ctx: Context, name: str) -> None: ...


async def with_context_by_place(ctx: Context, /, name: str) -> None: ...


async def with_context_alone(ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("function", "is_async", "takes_context", "names"),
    [
        (plain, False, False, {"name", "times"}),
        (asynchronous, True, False, {"name"}),
        (with_blocking_context, False, True, {"name"}),
        (with_context, True, True, {"name"}),
        (with_context_by_place, True, True, {"name"}),
        (with_context_alone, True, True, set()),
    ],
)
def test_a_function_says_what_it_is_by_its_annotations(
    function: Callable[..., object],
    is_async: bool,
    takes_context: bool,
    names: set[str],
) -> None:
    signature = read(function)

    assert (signature.is_async, signature.takes_context, set(signature.binding.names)) == (
        is_async,
        takes_context,
        names,
    )


def test_a_missing_return_annotation_means_any_json() -> None:
    def silent(name: str):  # type: ignore[no-untyped-def]
        return name

    assert read(silent).output is Any


def test_a_wrapped_function_is_read_through_its_wrapper() -> None:
    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    assert read(wrapper).binding.names == {"name", "times"}


def test_annotations_name_what_is_local_to_the_definition() -> None:
    @dataclass
    class Local:
        x: int

    def local(value: Local) -> Local:
        return value

    assert read_signature(local, locals()).output is Local


def unannotated(name):  # type: ignore[no-untyped-def]
    return name


def any_first(name: Any) -> None: ...


def object_first(name: object) -> None: ...


def second_unannotated(name: str, times) -> None: ...  # type: ignore[no-untyped-def]


def star(*names: str) -> None: ...


def stars(**names: str) -> None: ...


def by_place(name: str, /) -> None: ...


def generator(name: str) -> Iterator[str]:
    yield name


async def async_generator(name: str) -> AsyncIterator[str]:
    yield name


def type_checking_only(price: Decimal) -> None: ...


async def wrong_colour(ctx: BlockingContext) -> None: ...


def wrong_colour_too(ctx: Context) -> None: ...


async def context_second(name: str, ctx: Context) -> None: ...


async def context_by_name(*, ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (unannotated, "write `ctx: Context`"),
        (any_first, "write `ctx: Context`"),
        (object_first, "write `ctx: Context`"),
        (second_unannotated, "parameter 'times' has no annotation; write `times: str`"),
        (star, "list[…]"),
        (stars, "list[…]"),
        (by_place, "remove the `/`"),
        (generator, "generator"),
        (async_generator, "generator"),
        (type_checking_only, "not under `if TYPE_CHECKING`"),
        (wrong_colour, "from holdfast import Context"),
        (wrong_colour_too, "from holdfast.sync import Context"),
        (context_second, "the context must be the first"),
        (context_by_name, "passes the context by position"),
        (Greeter.greet, "a worker has no Greeter for it"),
        (Greeter().greet, "it is a method"),
        (Greeter.meet, "it is a method"),
        (staticmethod(plain), "it is a method"),
        (lambda name: name, "write a `def`"),
        (functools.partial(plain, "Ada"), "it is not a function"),
        (Shouter(), "it is not a function"),
        (Greeter, "it is not a function"),
        (len, "it is not a function"),
        ("mail.greet", r"write @hf.task(name='mail.greet')"),
    ],
)
def test_what_cannot_be_a_task_is_told_what_to_write(function: object, told: str) -> None:
    with pytest.raises(Misuse) as caught:
        read(function)

    assert told in str(caught.value)


def test_positional_arguments_get_their_names() -> None:
    assert read(plain).binding.bind("plain", ("Ada",), {"times": 2}) == {"name": "Ada", "times": 2}


@pytest.mark.parametrize(
    ("positional", "named", "path", "told"),
    [
        (("Ada", 1, 2), {}, "arguments", "takes 2 positional arguments, got 3; its arguments are: name: "),
        (("Ada",), {"name": "Bob"}, "arguments.name", "by position and by name"),
        ((), {"nmae": "Ada"}, "arguments.nmae", "greet() has no argument 'nmae'"),
    ],
)
def test_arguments_that_do_not_fit_are_named(
    positional: tuple[object, ...], named: dict[str, object], path: str, told: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(plain).binding.bind("mail.greet", positional, named)

    assert caught.value.path == path
    assert told in str(caught.value)


class Model(BaseModel):
    order_id: int = Field(alias="orderId")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    order_id: int


@dataclass
class Data:
    order_id: int
    note: Annotated[str, Field(max_length=10)] = ""


class Keys(TypedDict):
    order_id: int


@pytest.mark.parametrize(
    ("kind", "positional", "names", "takes_more"),
    [
        (Model, (), {"orderId"}, False),
        (Open, (), {"order_id"}, True),
        (Data, ("order_id", "note"), {"order_id", "note"}, False),
        (Keys, (), {"order_id"}, False),
    ],
)
def test_the_fields_of_an_input_are_the_arguments(
    kind: Any,
    positional: tuple[str, ...],
    names: set[str],
    takes_more: bool,
) -> None:
    binding = read_fields(kind, str).binding

    assert (binding.positional, set(binding.names), binding.takes_more) == (positional, names, takes_more)


@pytest.mark.parametrize("kind", [dict, int, RootModel[list[int]], dict[str, int], Data(1), plain, None])
def test_an_input_without_named_fields_is_refused(kind: object) -> None:
    with pytest.raises(Misuse, match="a pydantic model, a dataclass or a TypedDict"):
        read_fields(kind, str)
