"""The one JSON rule: what it accepts comes back equal, what it refuses it refuses with the path."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr
from typing_extensions import TypedDict

from holdfast.codec import Codec, ValueLimits
from holdfast.errors import InvalidInput, InvalidOutput
from holdfast.texts import clean_text


class Colour(Enum):
    RED = "red"


class Size(StrEnum):
    LARGE = "large"


class Item(BaseModel):
    sku: str
    price: Decimal


class Order(BaseModel):
    items: list[Item]
    at: datetime | None = None


@dataclass
class Point:
    x: float
    y: float


@dataclass(eq=False)
class Identity:
    name: str


class Options(TypedDict, total=False):
    depth: int
    points: list[Point]


def codec_of(kind: Any, **limits: int) -> Codec[Any]:
    return Codec(kind, "arguments", InvalidInput, limits=ValueLimits(**limits))


def refusal_of(kind: Any, value: object, **limits: int) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        codec_of(kind, **limits).encode(value)
    return caught.value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (str, 'Grüße \U0001f600 \\u0000 " \x7f'),
        (int, 2**200),
        (int, -(2**63)),
        (float, 5e-324),
        (float, 1.7976931348623157e308),
        (bool, True),
        (None, None),
        (Any, {"a": [1, 2.5, None, True, {"b": "c"}]}),
        (datetime, datetime(2025, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)),
        (datetime, datetime(2025, 3, 1, 12, 0, tzinfo=ZoneInfo("Europe/Berlin"))),
        (datetime, datetime(2025, 3, 1, 12, 0)),  # noqa: DTZ001 - a naive one is stored too
        (date, date(2025, 3, 1)),
        (time, time(12, 30)),
        (timedelta, timedelta(days=-3, microseconds=7)),
        (UUID, UUID("0198c0de-0000-7000-8000-000000000000")),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (Size, Size.LARGE),
        (int | str, "5"),
        (list[int | str], [5, "5"]),
        (Item | Point, Point(1.0, 2.0)),
        (Order, Order(items=[Item(sku="a", price=Decimal("9.99"))], at=datetime.now(UTC))),
        (Point, Point(0.5, -1.5)),
        (Options, {"depth": 3, "points": [Point(1.0, 2.0)]}),
        (dict[int, str], {1: "a"}),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2, 3}),
        (frozenset[str], frozenset({"a"})),
        (bytes, b"\xff\x00"),
        (list[bytes], [b"\xff", b"plain"]),
    ],
)
def test_what_has_a_type_comes_back_equal(kind: Any, value: object) -> None:
    codec = codec_of(kind)

    back = codec.decode(codec.encode(value))

    assert (type(back), back) == (type(value), value)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), inner, max_size=5)
    ),
)


@given(JSON_VALUES)
def test_every_json_value_comes_back_equal_without_a_type(value: object) -> None:
    """I-06."""
    codec = codec_of(Any)

    assert codec.decode(codec.encode(value)) == value


@given(st.recursive(st.floats() | st.text(), lambda inner: st.lists(inner, max_size=4)))
def test_every_accepted_text_is_strict_json_that_python_reads_alike(value: object) -> None:
    try:
        text = codec_of(Any).encode(value)
    except InvalidInput:
        return

    assert json.loads(text, parse_constant=pytest.fail) == value


def test_the_text_is_compact_and_keeps_the_order_of_keys() -> None:
    assert codec_of(Any).encode({"b": 1, "a": ["é", 2]}) == '{"b":1,"a":["é",2]}'


def test_negative_zero_keeps_its_sign() -> None:
    """F-29, I-06."""
    codec = codec_of(float)

    assert math.copysign(1, codec.decode(codec.encode(-0.0))) == -1


def test_an_alias_is_written_and_read() -> None:
    class Camel(BaseModel):
        order_id: int = Field(alias="orderId")

    codec = codec_of(Camel)

    assert codec.decode(codec.encode(Camel(orderId=7))).order_id == 7


def test_a_time_in_the_hour_that_autumn_repeats_is_accepted() -> None:
    """F-41."""
    repeated = datetime(2025, 10, 26, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    codec = codec_of(list[datetime])

    (back,) = codec.decode(codec.encode([repeated]))

    assert back.timestamp() == repeated.timestamp()


def test_a_class_without_equality_is_compared_by_its_fields() -> None:
    codec = codec_of(list[Identity])

    (back,) = codec.decode(codec.encode([Identity("Ada")]))

    assert back.name == "Ada"


@pytest.mark.parametrize(
    ("kind", "value", "path"),
    [
        (Any, "a\0b", "arguments"),
        (Any, {"a": ["b", "\ud800"]}, "arguments.a[1]"),
        (Any, {"a": {"\0": 1}}, "arguments.a"),
        (Any, {"a": {"\ud800": 1}}, "arguments.a"),
        (Any, [1.0, math.nan], "arguments[1]"),
        (Any, {"x": math.inf}, "arguments.x"),
        (Point, Point(1.0, -math.inf), "arguments.y"),
        (list[float | None], [1.0, math.nan], "arguments[1]"),
        (Any, {"price": Decimal("1.5")}, "arguments.price"),
        (Any, [[(1, 2)]], "arguments[0][0]"),
        (Any, {"key with blanks": {1, 2}}, "arguments['key with blanks']"),
        (Any, {"when": datetime(2025, 1, 1, tzinfo=UTC)}, "arguments.when"),
        (Any, [Colour.RED], "arguments[0]"),
        (Any, {"a": {1: "x"}}, "arguments.a"),
        (Any, {"a": {1: "x", "1": "y"}}, "arguments.a"),
        (Any, {"a": [object()]}, "arguments.a[0]"),
        (Any, Order(items=[]), "arguments"),
        (Any, [b"\xff"], "arguments[0]"),
        (list[Any], [0, [1, Decimal("0.1")]], "arguments[1][1]"),
        (SecretStr, SecretStr("hush"), "arguments"),
        (Decimal, Decimal("NaN"), "arguments"),
        (UUID | str, "0198c0de-0000-7000-8000-000000000000", "arguments"),
        (list[int], [10**5000], "arguments[0]"),
    ],
)
def test_what_would_not_come_back_equal_is_refused_with_its_path(kind: Any, value: object, path: str) -> None:
    """I-06."""
    assert refusal_of(kind, value).path == path


def test_a_refusal_says_what_the_value_would_become() -> None:
    refusal = refusal_of(Any, {"items": [{"price": (1, 2)}]})

    assert str(refusal) == "arguments.items[0].price: a tuple would come back as a list; pass a list"


def test_a_refusal_for_a_task_speaks_of_its_annotation() -> None:
    with pytest.raises(InvalidInput, match="annotate it as tuple, or pass a list"):
        Codec[Any](Any, "arguments", InvalidInput, "charge").encode((1, 2))


def test_a_subclass_that_would_come_back_as_its_parent_is_refused() -> None:
    class Special(Item):
        secret: str

    order = Order.model_construct(items=[Special(sku="a", price=Decimal(1), secret="s")])

    assert refusal_of(Order, order).path == "arguments.items[0]"


def test_a_field_that_is_not_written_is_refused() -> None:
    class Hidden(BaseModel):
        token: str = Field(default="", exclude=True)

    assert refusal_of(Hidden, Hidden(token="t")).path == "arguments.token"


def test_private_state_that_would_be_lost_is_refused() -> None:
    class Stateful(BaseModel):
        _seen: int = PrivateAttr(default=0)

    value = Stateful()
    value._seen = 3

    assert refusal_of(Stateful, value).path == "arguments._seen"


def test_a_field_that_does_not_count_for_equality_may_be_lost() -> None:
    @dataclass
    class Cached:
        name: str
        cache: dict[str, int] = field(default_factory=dict, compare=False)

    codec = codec_of(Cached)

    assert codec.decode(codec.encode(Cached("a"))) == Cached("a")


def test_a_model_changed_to_what_its_type_forbids_is_refused() -> None:
    item = Item(sku="a", price=Decimal(1))
    item.sku = 5  # type: ignore[assignment]

    assert refusal_of(Item, item).path == "arguments.sku"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_model_that_writes_bare_constants_is_refused(number: float) -> None:
    class Loose(BaseModel):
        model_config = ConfigDict(ser_json_inf_nan="constants")
        x: float

    assert refusal_of(Loose, Loose(x=number)).path == "arguments.x"


def test_the_words_nan_and_infinity_in_a_text_are_accepted() -> None:
    assert codec_of(Any).encode(["NaN", 'to "Infinity"']) == '["NaN","to \\"Infinity\\""]'


def test_bytes_of_a_model_that_are_not_utf8_are_refused_with_what_to_set() -> None:
    class Raw(BaseModel):
        data: bytes

    refusal = refusal_of(list[Raw], [Raw(data=b"\xff")])

    assert refusal.path == "arguments[0].data"
    assert "base64" in str(refusal)


def test_equality_that_raises_counts_as_a_difference() -> None:
    class Odd(str):
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

    assert refusal_of(Any, [Odd("x")]).path == "arguments[0]"


def test_a_value_as_deep_as_allowed_is_accepted() -> None:
    codec = codec_of(Any)

    assert codec.decode(codec.encode(nested(64))) == nested(64)


@pytest.mark.parametrize("depth", [65, 190, 5_000])
def test_a_deeper_value_is_refused(depth: int) -> None:
    """F-29."""
    assert "deeper than 64" in str(refusal_of(Any, nested(depth)))


def test_brackets_in_a_text_are_not_depth() -> None:
    codec = codec_of(Any)

    assert codec.decode(codec.encode("[{" * 500)) == "[{" * 500


def test_many_flat_parts_are_not_depth() -> None:
    codec = codec_of(Any)

    assert codec.decode(codec.encode([[], {}] * 500)) == [[], {}] * 500


def test_a_value_that_holds_itself_is_refused() -> None:
    """F-29."""
    ring: list[Any] = []
    ring.extend((ring, ring))

    assert "it contains itself" in str(refusal_of(Any, ring))


@pytest.mark.parametrize(
    ("value", "parts"),
    [([1, 2], 3), ([], 1), ({"a": [], "b": {}}, 3), ([["a,b", {}], "[,,]"], 5), ({"a,[": 1}, 2)],
)
def test_parts_are_counted_exactly(value: object, parts: int) -> None:
    limits = {"nodes": parts - 1, "depth": 0}

    assert f"it has {parts} parts" in str(refusal_of(Any, value, **limits))


def test_as_many_parts_as_allowed_are_accepted() -> None:
    codec_of(Any).encode([1] * 99_999)


def test_one_part_more_is_refused() -> None:
    assert "100001 parts" in str(refusal_of(Any, [1] * 100_000))


def test_a_value_as_large_as_allowed_is_accepted() -> None:
    codec_of(str).encode("x" * (1024 * 1024 - 2))


def test_a_larger_value_is_refused_by_its_bytes() -> None:
    """F-29."""
    assert "1048577 bytes" in str(refusal_of(str, "é" * (512 * 1024 - 1) + "x"))


def test_outputs_are_refused_as_outputs() -> None:
    codec = Codec[Any](Any, "output", InvalidOutput, "billing.charge")

    with pytest.raises(
        InvalidOutput, match=r"^output\.a: nan is not a JSON number; .* \(task billing\.charge: compare what"
    ):
        codec.encode({"a": math.nan})


def test_a_value_of_the_wrong_type_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidInput) as caught:
        codec_of(Order).check({"items": [{"sku": "a", "price": "1"}, {"sku": "b", "price": "much"}]})

    assert caught.value.path == "arguments.items[1].price"


def test_several_wrong_values_are_counted() -> None:
    with pytest.raises(InvalidInput, match="and 2 more"):
        codec_of(list[int]).check(["a", "b", "c"])


def test_a_refusal_does_not_show_the_value() -> None:
    with pytest.raises(InvalidInput) as caught:
        codec_of(list[int]).check(["hush hush"])

    assert "hush" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "text", ['"\\ud800"', "[1", "", "[" * 5_000, '{"x":1}', '"a\x00"', "1" * 5_000, "nope", '"\udc80"']
)
def test_a_text_that_is_not_of_the_type_is_refused_when_read(text: str) -> None:
    with pytest.raises(InvalidInput):
        codec_of(list[int]).decode(text)


def test_clean_text_shows_what_cannot_be_stored() -> None:
    assert clean_text("a\0b\ud800c\n", 100) == "a\\u0000b\\ud800c\n"


@given(st.text(st.characters()), st.integers(min_value=0, max_value=50))
def test_clean_text_is_storable_and_within_its_limit(text: str, limit: int) -> None:
    """I-07."""
    cleaned = clean_text(text, limit)

    assert len(cleaned) <= limit
    assert "\0" not in cleaned
    assert cleaned.encode().decode() == cleaned


def test_clean_text_marks_what_it_cuts() -> None:
    assert clean_text("abcdef", 4) == "abc…"
