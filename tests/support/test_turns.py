"""By turns every contract still has both databases and both colours, and every way is somebody's turn."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.store.callers import STACKS
from tests.support.turns import (
    FOUR,
    KEY,
    MANY,
    ON_CONNECTIONS,
    place_of,
    pytest_terminal_summary,
    pytest_testnodedown,
    turns,
    turns_of_many,
)  # fmt: skip

PLACES = range(8)
ELSEWHERE = Path("test_elsewhere.py")
all_fours = pytest.mark.parametrize("four", FOUR, ids=["ways", "colours"])


@all_fours
@pytest.mark.parametrize("place", PLACES)
def test_each_turn_has_both_databases_and_both_colours(four: frozenset[str], place: int) -> None:
    one, other = (way.split("-") for way in turns(ELSEWHERE, place, set(four)))

    assert one[0] != other[0]
    assert one[1] != other[1]


@all_fours
def test_every_way_has_its_turn(four: frozenset[str]) -> None:
    assert {way for place in PLACES for way in turns(ELSEWHERE, place, set(four))} == four


@all_fours
def test_of_many_cases_each_has_one_way_and_every_way_is_that_of_some(four: frozenset[str]) -> None:
    chosen = [turns_of_many(ELSEWHERE, place, set(four)) for place in PLACES]

    assert {len(each) for each in chosen} == {1}
    assert set.union(*chosen) == four
    assert turns_of_many(ELSEWHERE, 0, {*four, "provided"}) == {*chosen[0], "provided"}
    assert {len(turns_of_many(ON_CONNECTIONS, place, {"sqlite", "postgres"})) for place in PLACES} == {1}
    assert turns_of_many(ELSEWHERE, 0, {"north", "south"}) == {"north", "south"}


@all_fours
def test_what_is_not_run_all_four_ways_and_what_is_no_way_stays(four: frozenset[str]) -> None:
    _, *others = sorted(four)

    assert turns(ELSEWHERE, 0, {*others}) == {*others}
    assert "provided" in turns(ELSEWHERE, 0, {*four, "provided"})


def test_every_kind_of_connection_has_its_turn_and_few_have_it_always() -> None:
    kinds = {str(each) for each in STACKS}

    assert {kind for place in PLACES for kind in turns(ON_CONNECTIONS, place, kinds)} == kinds
    assert all(len(turns(ON_CONNECTIONS, place, kinds)) < len(kinds) for place in PLACES)
    few = set(sorted(kinds)[: MANY - 1])
    assert turns(ON_CONNECTIONS, 0, few) == few


@pytest.mark.parametrize("number", [1, 2])
def test_the_place_of_a_test_is_that_in_its_file_whatever_is_run(request: pytest.FixtureRequest, number: int) -> None:
    names = re.findall(r"^def (test_\w+)", Path(__file__).read_text(encoding="utf-8"), re.MULTILINE)

    assert place_of(request.node) == names.index(request.node.originalname)


@pytest.mark.parametrize(
    ("expression", "said"),
    [("not long", ["24 ways of contracts had no turn; --every-way runs them, too"]), ("long", [])],
)
def test_a_run_says_how_many_ways_had_no_turn_and_how_they_are_run(expression: str, said: list[str]) -> None:
    config: Any = SimpleNamespace(stash=pytest.Stash(), option=SimpleNamespace(markexpr=expression))
    lines: list[str] = []

    pytest_testnodedown(SimpleNamespace(config=config, workeroutput={KEY: 24}), None)
    pytest_terminal_summary(SimpleNamespace(write_line=lines.append), config)  # type: ignore[arg-type]

    assert lines == said
