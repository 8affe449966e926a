"""By turns every contract still has both databases and both colours, and every way is somebody's turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.callers import STACKS
from tests.turns import FOUR, MANY, ON_CONNECTIONS, turns

NAMES = [f"test_{letter}" for letter in "abcdefgh"]
ELSEWHERE = Path("test_elsewhere.py")
all_fours = pytest.mark.parametrize("four", FOUR, ids=["ways", "colours"])


@all_fours
@pytest.mark.parametrize("name", NAMES)
def test_each_turn_has_both_databases_and_both_colours(four: frozenset[str], name: str) -> None:
    one, other = (way.split("-") for way in turns(ELSEWHERE, name, set(four)))

    assert one[0] != other[0]
    assert one[1] != other[1]


@all_fours
def test_every_way_has_its_turn(four: frozenset[str]) -> None:
    assert {way for name in NAMES for way in turns(ELSEWHERE, name, set(four))} == four


@all_fours
def test_what_is_not_run_all_four_ways_and_what_is_no_way_stays(four: frozenset[str]) -> None:
    _, *others = sorted(four)

    assert turns(ELSEWHERE, "test_a", {*others}) == {*others}
    assert "provided" in turns(ELSEWHERE, "test_a", {*four, "provided"})


def test_every_kind_of_connection_has_its_turn_and_few_have_it_always() -> None:
    kinds = {str(each) for each in STACKS}

    assert {kind for name in NAMES for kind in turns(ON_CONNECTIONS, name, kinds)} == kinds
    assert all(len(turns(ON_CONNECTIONS, name, kinds)) < len(kinds) for name in NAMES)
    few = set(sorted(kinds)[: MANY - 1])
    assert turns(ON_CONNECTIONS, "test_a", few) == few
