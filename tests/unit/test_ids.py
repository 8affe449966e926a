"""Ids are UUIDs of version 7 that grow, whatever the clock does."""

from __future__ import annotations

from random import Random
from uuid import RFC_4122, UUID

import pytest

from holdfast.errors import InvalidId
from holdfast.ids import IdMaker, to_id


def test_an_id_is_a_uuid_of_version_7_with_its_time_in_front() -> None:
    made = IdMaker(lambda: 1_700_000_000_123, Random(1))()

    assert made.version == 7
    assert made.variant == RFC_4122
    assert made.int >> 80 == 1_700_000_000_123


def test_ids_grow_within_one_millisecond() -> None:
    new_id = IdMaker(lambda: 5, Random(1))
    made = [new_id() for _ in range(10_000)]

    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_grow_when_the_clock_steps_back() -> None:
    """F-41."""
    times = iter([1_000, 10, 10])
    new_id = IdMaker(lambda: next(times), Random(1))

    first, second, third = new_id(), new_id(), new_id()

    assert first < second < third


@pytest.mark.parametrize("value", ["", "nonsense", "123", None, 7, b"x"])
def test_what_is_no_uuid_is_refused(value: object) -> None:
    with pytest.raises(InvalidId, match="UUID"):
        to_id(value)  # type: ignore[arg-type]


def test_text_and_uuid_name_the_same_id() -> None:
    made = UUID("0198c0de-0000-7000-8000-000000000001")

    assert to_id(str(made)) == to_id(made) == made
