"""Every case of a contract is run one way by default, and every way, on either database, is the turn of some."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.store.callers import STACKS
from tests.support.turns import (
    FOURS,
    KEY,
    KINDS,
    TENANTS,
    place_of,
    pytest_terminal_summary,
    pytest_testnodedown,
    turn_of,
    wanted_turns,
    without_turn,
)  # fmt: skip
from tests.support.ways import TENANT_WAYS

PLACES = range(8)
MANY = {str(each) for each in STACKS}
all_fours = pytest.mark.parametrize("four", FOURS, ids=["ways", "colours", "databases"])


@all_fours
@pytest.mark.parametrize("place", PLACES)
def test_the_turns_of_a_case_are_its_four_ways_and_the_database_changes_each_time(
    four: frozenset[str], place: int
) -> None:
    turns = [turn_of(four, place, turn) for turn in range(4)]

    assert {len(each) for each in turns} == {1}
    assert set.union(*turns) == four
    databases = [way.split("-")[0] for (way,) in turns]
    assert databases[0] != databases[1]
    assert databases[:2] == databases[2:]


@all_fours
@pytest.mark.parametrize("turn", range(4))
def test_every_way_is_the_turn_of_some_place(four: frozenset[str], turn: int) -> None:
    assert {way for place in PLACES for way in turn_of(four, place, turn)} == four


@all_fours
def test_what_is_written_for_fewer_ways_has_them_at_every_turn(four: frozenset[str]) -> None:
    _, *few = sorted(four)

    assert all(turn_of(few, place, 0) == set(few) for place in PLACES)


@pytest.mark.parametrize("kinds", [MANY, {"north", "south"}], ids=["many", "two"])
def test_of_kinds_a_turn_has_every_third_and_never_none(kinds: set[str]) -> None:
    turns = [turn_of(kinds, 1, turn) for turn in range(KINDS)]

    assert set.union(*turns) == kinds
    assert all(0 < len(each) <= len(kinds) / min(KINDS, len(kinds)) + 1 for each in turns)
    assert len(turn_of({*FOURS[0], *kinds}, 1, 0)) == 1 + len(turns[0])


class Item:
    """As much of a test as its turns depend on."""

    def __init__(self, way: str, *pinned: str, **case: object) -> None:
        params = {"way": way, **case}
        self.callspec = SimpleNamespace(params=params, indices=dict.fromkeys(params, 0))
        self.nodeid, self.originalname = f"test_this[{way}]", "test_this"
        self.parent = SimpleNamespace(obj=SimpleNamespace(test_this=None))
        self.pinned = pinned

    def get_closest_marker(self, name: str) -> Any:
        return SimpleNamespace(args=self.pinned) if self.pinned and name == "ways" else None


def run_by_default(items: list[Any], *turns: int) -> list[Any]:
    left_out = without_turn(items, turns or [0])
    return [item for item in items if item not in left_out]


def test_each_case_has_its_own_turns_whatever_pytest_counts_with_the_ways() -> None:
    cases: list[Any] = [["unhashable"], ["unhashable"], None]
    items = [Item(way, case=case) for way in sorted(FOURS[0]) for case in cases]

    ran = run_by_default(items)

    assert [sum(item.callspec.params["case"] is case for item in ran) for case in cases] == [1, 1, 1]
    assert len({item.callspec.params["way"] for item in ran}) == 3
    assert len(run_by_default(items, 0, 1)) == 6
    assert len(run_by_default(items, 0, 1, 2, 3)) == 12


def test_one_that_was_asked_for_by_its_name_is_run() -> None:
    for way in FOURS[0]:
        assert len(run_by_default([Item(way)])) == 1


def test_the_marker_decides_instead_and_must_leave_something() -> None:
    ran = run_by_default([Item(way, "sqlite-async", "postgres-async") for way in FOURS[0]])

    assert {item.callspec.params["way"] for item in ran} == {"sqlite-async", "postgres-async"}
    with pytest.raises(pytest.UsageError, match="none is left"):
        run_by_default([Item(way, "sqlite-both") for way in FOURS[0]])


@pytest.mark.parametrize("place", range(2 * TENANTS))
def test_one_test_of_several_is_run_inside_a_tenant_too(place: int) -> None:
    items: list[Any] = [Item(way) for way in (*sorted(FOURS[0]), *TENANT_WAYS)]
    for item in items:
        names = [f"test_{number}" for number in range(place)]
        item.parent = SimpleNamespace(obj=SimpleNamespace(**dict.fromkeys(names), test_this=None))

    ran = {item.callspec.params["way"] for item in run_by_default(items)}

    assert len(ran & FOURS[0]) == 1
    assert ran - FOURS[0] == ({*TENANT_WAYS} if place % TENANTS == 0 else set())


@pytest.mark.parametrize("text", ["", "x", "-1", "0;1", "4"])
def test_turns_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="--turns takes numbers"):
        wanted_turns(text)


def test_turns_are_numbers_with_commas_between() -> None:
    assert wanted_turns("0, 1") == {0, 1}


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
