"""Values of a task that is known by its recorded schemas only: what its types take is never refused.

Types are made up, from those that pydantic knows, and values that are nearly theirs; pydantic itself is the judge.
"""

# ruff: noqa: UP007, UP045 - unions of types that are made up as the tests run

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union
from uuid import UUID

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter
from typing_extensions import TypedDict

from holdfast.errors import MOST_PROBLEMS, InvalidInput, InvalidOutput
from holdfast.tasks.calls import check_arguments, check_output
from holdfast.tasks.schema_making import schema_of
from holdfast.tasks.schemas import problems

SCHEMA = json.dumps(
    {
        "properties": {
            "name": {"type": "string"},
            "count": {"type": "integer"},
            "rate": {"type": "number"},
            "extra": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["name"],
    }
)


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "a"},
        {"name": "a", "count": 3, "rate": 1},
        {"name": "a", "extra": None},
        {"name": "a", "count": 2.0},
        {"name": "a", "count": True},  # pydantic takes it for 1
    ],
)
def test_arguments_that_fit_pass(arguments: dict[str, object]) -> None:
    check_arguments(json.dumps(arguments), SCHEMA)


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({}, "arguments.name"),
        ({"name": "a", "cuont": 1}, "arguments.cuont"),
        ({"name": 1}, "arguments.name"),
        ({"name": "a", "count": "many"}, "arguments.count"),
        ({"name": "a", "count": 1.5}, "arguments.count"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_their_path(arguments: dict[str, object], path: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_arguments(json.dumps(arguments), SCHEMA)

    assert refusal.value.path == path


def test_a_schema_without_words_lets_everything_pass() -> None:
    check_arguments('{"anything":1}', "{}")


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Price(Enum):
    HALF = Decimal("0.5")


class Loose(Enum):
    YES = "yes"

    @classmethod
    def _missing_(cls, value: object) -> Loose | None:
        return cls.YES if str(value).lower() == "yes" else None


class Point(NamedTuple):
    x: int
    y: str = ""


class Titled(TypedDict, total=False):
    title: str


@dataclass
class Crate:
    weight: float
    label: str = ""
    parts: list[Crate] = field(default_factory=list)


class Tree(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: Annotated[int, Field(ge=0)]
    left: Optional[Tree] = None
    others: list[Tree] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog", "wolf"]
    name: str


class Named(BaseModel):
    model_config = ConfigDict(populate_by_name=True, extra="forbid")
    size: int = Field(alias="Size")


class Renamed(BaseModel):
    size: int = Field(validation_alias=AliasChoices("size", "width"), serialization_alias="size")


class Aliased(BaseModel):
    size: int = Field(alias="Size")


class Counting(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True, str_strip_whitespace=True)
    text: Annotated[str, Field(max_length=2)]


class Computing(BaseModel):
    size: int

    @pydantic.computed_field(return_type=int)
    def double(self) -> int:
        return 2 * self.size


class Filled(BaseModel):
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)
    size: int = 1
    parts: list[int] = Field(default_factory=list)


class Turned(BaseModel):
    size: int

    @pydantic.model_validator(mode="before")
    @classmethod
    def turn(cls, value: Any) -> Any:
        return {"size": value} if isinstance(value, int) else value


def _split(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


Values = st.SearchStrategy[Any]

TEXTS = (
    *("", "1", " 1 ", "1.0", "1e3", "abc", "true", "no", "inf", "-nan", "P1D", "2020-01-01", "2020-01-01T00:00:00Z"),
    *("10:00", "YES", "yes", "red", "1,2", "12 kB", "AAAA", "1+2j", "0.5", "10.0.0.1", "https://a.example", "/a"),
    *("12345678-1234-5678-1234-567812345678", "1/2", "é", "ab ", "[1]"),
)
NUMBERS = (True, False, 0, 1, -1, 2, 1.0, 1.5, 0.5, 10**20, 1e300, 2**53 + 1)
OBJECTS: tuple[dict[str, Any], ...] = (
    *({}, {"x": 1}, {"1": 1}, {"size": 1}, {"Size": 1}, {"width": "1"}, {"text": 12}, {"title": "a"}),
    *({"size": 1, "left": {"size": "2"}}, {"size": True, "double": 2}, {"weight": 1, "parts": [{"weight": "2"}]}),
    *({"kind": "cat"}, {"kind": "dog", "name": "Rex"}, {"kind": "wolf", "name": 1}),
)
LISTS: tuple[list[Any], ...] = ([], [1], [1, 1], ["1", 1], [None])
NEARLY = [None, *NUMBERS, *TEXTS, *OBJECTS, *LISTS]
JUNK: Values = st.sampled_from(NEARLY)
LEAVES: list[Any] = [
    *(int, str, float, bool, None, Any, bytes, complex, Decimal, datetime, date, time_of_day, timedelta, UUID),
    *(IPv4Address, Path, pydantic.ByteSize, pydantic.AnyUrl, pydantic.SecretStr, pydantic.Json[list[int]]),
    *(Colour, Level, Price, Loose, Point, Titled, Crate, Tree, Named, Renamed, Aliased, Counting, Computing, Filled),
    *(Turned, pydantic.Base64Bytes, Literal["red", 1], Literal[True, None], Mapping[str, int], Sequence[int]),
    Annotated[Union[Cat, Dog], Field(discriminator="kind")],
    Annotated[int, Field(ge=1, lt=3, multiple_of=2)],
    Annotated[float, Field(gt=0, le=1.5)],
    Annotated[Decimal, Field(gt=0, max_digits=3)],
    Annotated[str, Field(min_length=1, max_length=3)],
    Annotated[str, pydantic.StringConstraints(strip_whitespace=True, max_length=2, to_lower=True)],
    Annotated[str, Field(pattern="^a")],
    Annotated[bytes, Field(max_length=1)],
    Annotated[list[int], BeforeValidator(_split)],
    Annotated[int, PlainSerializer(str, return_type=str)],
    list[pydantic.OnErrorOmit[int]],
]


def of(generic: Any, *parameters: Any) -> Any:
    """Make a type of others, as `list[int]` does."""
    return generic[parameters if len(parameters) > 1 else parameters[0]]


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> tuple[Any, Values]:
    """Make up a type, and values that may be its own."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(LEAVES)), JUNK
    inner, values = draw(kinds(depth - 1))
    other, others = draw(kinds(depth - 1))
    lists = st.lists(values, max_size=3)
    fields = st.fixed_dictionaries({}, optional={"a": values, "b": others, "c": JUNK}) | st.builds(
        lambda a, b: {"a": a, "b": b}, values, others
    )
    config: Any = {"extra": draw(st.sampled_from(["forbid", "ignore", "allow"]))}
    model = pydantic.create_model("Made", __config__=config, a=inner, b=(other, None))
    choices: list[tuple[Any, Values]] = [
        (of(list, inner), lists),
        (of(Annotated, of(list, inner), Field(min_length=1, max_length=2)), lists),
        (of(deque, inner), lists),
        (of(tuple, inner, other), st.tuples(values, others).map(list)),
        (of(tuple, inner, ...), lists),
        (of(dict, str, inner), st.dictionaries(st.sampled_from(["a", "b"]), values)),
        (of(dict, int, inner), st.dictionaries(st.sampled_from(["1", " 1", "b"]), values)),
        (Annotated[set[int], Field(min_length=1, max_length=1)], st.lists(JUNK, max_size=3)),
        (of(Optional, inner), values | st.none()),
        (of(Union, inner, other), values | others),
        (model, fields),
    ]
    annotation, near = draw(st.sampled_from(choices))
    return annotation, near | JUNK


def refused_wrongly(annotation: Any, value: Any) -> list[Any]:
    """Give the problems that are told of a value that pydantic takes."""
    adapter = TypeAdapter(annotation)
    text = json.dumps(value)
    try:
        adapter.validate_json(text)
    except pydantic.ValidationError:
        return []
    schemas = [json.loads(schema_of(adapter, mode)) for mode in ("validation", "serialization")]
    return [each for schema in schemas for each in problems(json.loads(text), schema)]


@pytest.mark.parametrize("annotation", LEAVES, ids=[str(number) for number in range(len(LEAVES))])
def test_nothing_that_a_type_takes_is_refused(annotation: Any) -> None:
    assert [each for value in NEARLY for each in refused_wrongly(annotation, value)] == []


@settings(max_examples=60)
@given(st.data())
def test_nothing_that_pydantic_takes_is_refused(data: st.DataObject) -> None:
    annotation, values = data.draw(kinds())

    assert refused_wrongly(annotation, data.draw(values)) == []


@pytest.mark.long
@settings(max_examples=5_000)
@given(st.data())
def test_nothing_that_pydantic_takes_is_refused_however_long_one_looks(data: st.DataObject) -> None:
    annotation, values = data.draw(kinds(3))

    assert refused_wrongly(annotation, data.draw(values)) == []


@pytest.mark.parametrize(
    ("annotation", "value", "path", "message"),
    [
        (int, "many", "v", "it must be of type integer"),
        (int, 1.5, "v", "it must be of type integer"),
        (int, None, "v", "it must be of type integer"),
        (str, 1, "v", "it must be of type string"),
        (bool, 2, "v", "it must be of type boolean"),
        (float, "a", "v", "it must be of type number"),
        (datetime, [], "v", "it must be of type string"),
        (UUID, 7, "v", "it must be of type string"),
        (Optional[int], "many", "v", "it must be of type integer or null"),
        (Union[int, list[int]], ["a"], "v[0]", "it must be of type integer"),
        (Union[list[str], list[int]], [None], "v", "it fits none of the 2 forms that it may have"),
        (list[int], {"a": 1}, "v", "it must be of type array"),
        (dict[str, int], {"first name": "a"}, "v['first name']", "it must be of type integer"),
        (tuple[int, str], [1, 2], "v[1]", "it must be of type string"),
        (tuple[int, str], [1], "v", "it must have at least 2 items"),
        (Annotated[list[int], Field(max_length=1)], [1, 2], "v", "it must have at most 1 items"),
        (Annotated[dict[str, int], Field(min_length=1)], {}, "v", "it must have at least 1 entries"),
        (Annotated[str, Field(min_length=2)], "a", "v", "it must have at least 2 characters"),
        (Annotated[str, Field(max_length=2)], "abc", "v", "it must have at most 2 characters"),
        (Annotated[int, Field(ge=1)], 0, "v", "it must be at least 1"),
        (Annotated[int, Field(le=1)], 2, "v", "it must be at most 1"),
        (Annotated[int, Field(gt=1)], 1, "v", "it must be more than 1"),
        (Annotated[float, Field(lt=1)], 1, "v", "it must be less than 1"),
        (Annotated[int, Field(multiple_of=5)], 7, "v", "it must be a multiple of 5"),
        (Literal["a"], "b", "v", "it must be 'a'"),
        (Colour, "blue", "v", "it must be 'red'"),
        (Literal["a", "b"], "c", "v", "it must be one of 'a', 'b'"),
        (Tree, {}, "v.size", "it is missing"),
        (Tree, {"size": 1, "others": [{"size": -1}]}, "v.others[0].size", "it must be at least 0"),
        (Tree, {"size": 1, "lft": None}, "v.lft", "it is not known; did you mean left?"),
        (Tree, {"size": 1, "left": {"size": "x"}}, "v.left.size", "it must be of type integer"),
        (Union[Cat, Dog], {"kind": "cow"}, "v", "it fits none of the 2 forms that it may have"),
        (Annotated[Union[Cat, Dog], Field(discriminator="kind")], {"kind": "dog"}, "v.name", "it is missing"),
        (Annotated[Union[Cat, Dog], Field(discriminator="kind")], {}, "v.kind", "it is missing"),
        (Annotated[Union[Cat, Dog], Field(discriminator="kind")], {"kind": "cow"}, "v.kind", "it must be one of 'cat'"),
        (Crate, {"weight": 1, "parts": [{}]}, "v.parts[0].weight", "it is missing"),
        (Aliased, {"size": 1}, "v.Size", "it is missing"),
    ],
)
def test_what_is_plainly_wrong_is_told(annotation: Any, value: Any, path: str, message: str) -> None:
    schema = json.loads(schema_of(TypeAdapter(annotation), "validation"))

    (found,) = problems(value, schema, "v")

    assert found.path == path
    assert found.message.startswith(message)


def test_no_more_than_ten_problems_are_told() -> None:
    assert len(problems(["a"] * 20, {"type": "array", "items": {"type": "integer"}})) == MOST_PROBLEMS


def deep(levels: int, word: str) -> dict[str, Any]:
    """Make a schema of so many levels."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {word: [schema]} if word == "allOf" else {"type": "array", word: schema}
    return schema


def nested(levels: int) -> Any:
    """Make a list in a list, and so on."""
    value: Any = "no number"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"$ref": "#"}, 1),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A"}]}}}, 1),
        ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, 1),
        ({"type": "array", "items": {"$ref": "#"}}, nested(10_000)),
        (deep(10_000, "items"), nested(10_000)),
        (deep(10_000, "allOf"), "no number"),
        ({"type": "array", "items": {"anyOf": [{"type": "null"}] * 20 + [{"type": "integer"}]}}, [1] * 100_000),
    ],
    ids=["itself", "choices of itself", "all of itself", "deep value", "deep both", "deep schema", "long list"],
)
def test_loops_and_depths_are_left_to_the_worker(schema: dict[str, Any], value: Any) -> None:
    began = time.process_time()

    assert problems(value, schema) == []
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 7},
        {"type": "tuple"},
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.org"},
        {"anyOf": 1, "oneOf": {}, "allOf": "x", "enum": 3, "required": [None], "properties": []},
        {"minimum": "low", "maximum": True, "minLength": [], "maxItems": None, "multipleOf": 0, "type": "integer"},
        {"discriminator": 3, "additionalProperties": 3, "prefixItems": 7, "items": 9},
    ],
)
@pytest.mark.parametrize("value", [1, {"a": 1}, [1]])
def test_a_schema_that_says_nothing_sensible_lets_everything_pass(schema: dict[str, Any], value: Any) -> None:
    if schema.get("type") == "integer" and value != 1:
        return

    assert problems(value, schema) == []


def test_patterns_are_left_to_the_worker() -> None:
    assert problems("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", {"type": "string", "pattern": "^(a+)+$"}) == []


def test_the_error_has_all_problems_and_the_first_in_words() -> None:
    schema = schema_of(TypeAdapter(Tree), "validation")

    with pytest.raises(InvalidInput) as refusal:
        check_arguments('{"size":1,"left":{"size":"x","others":7}}', schema)

    assert str(refusal.value) == "arguments.left.size: it must be of type integer, and 1 more"
    assert refusal.value.problems == (
        ("arguments.left.size", "it must be of type integer"),
        ("arguments.left.others", "it must be of type array"),
    )


def test_a_secret_is_in_no_message() -> None:
    with pytest.raises(InvalidOutput) as refusal:
        check_output("pay", '{"key":"hunter2"}', '{"properties":{"key":{"enum":["a"]}}}')

    assert "hunter2" not in f"{refusal.value}{refusal.value.problems}"


def test_pydantic_tells_all_problems_as_well() -> None:
    from holdfast.codec import Codec

    with pytest.raises(InvalidInput) as refusal:
        Codec[Any](dict[str, list[int]], "arguments", InvalidInput, "count(numbers)").check({"a": ["x", 1, "hunter2"]})

    assert [path for path, _ in refusal.value.problems] == ["arguments.a[0]", "arguments.a[2]"]
    assert "hunter2" not in f"{refusal.value}{refusal.value.problems}"
