"""A pytest plugin: a contract that is run many ways has some of them by turns, and the others with what is `long`.

An operation is one text for both databases and both colours, and so is its test, and that of a handler. Each of these
has both databases and both colours, the one async and the other not: which, its place in its file decides, so that of
every file half is run either way and no new name changes it. What has to be run a certain way says so with
`@pytest.mark.ways("sqlite-async", "postgres-async")`. Where the databases have code of their own for the colours, all
four stay for a test of few cases. What is done on the connections of callers has every second of their kinds.

A test of many cases has one way for each case, the next one for the next case, so that every way has some of them: the
cases differ in what they say, and the ways in who says it. So have the tests of the worker, which stands on operations
that have tests of their own. With `--every-way` there are no turns; without, the summary says how many were left out.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.ways import WAYS
from tests.worker.colours import COLOURS

TESTS = Path(__file__).parents[1]
WORKER = TESTS / "worker"
PARAMETERS = ("way", "colour")
"""What the parameter is called that says which way a contract is run."""
ALL_STAY = ("test_borrowed", "test_open_tx", "test_left_behind")
FOUR = (frozenset(WAYS), frozenset(COLOURS))

ON_CONNECTIONS = TESTS / "store" / "test_borrowed.py"
MANY = 8
"""A test that needs something which fewer kinds of connection have is run on all of these. And what many cases are."""

LEFT_OUT = pytest.StashKey[int]()
"""How many tests had no turn in this run."""
KEY = "without_turn"
"""By what name a process of xdist tells it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run have no turns."""
    parser.addoption("--every-way", action="store_true", help="run every way of a contract, not some by turns")


def pytest_configure(config: pytest.Config) -> None:
    """Explain the marker."""
    config.addinivalue_line("markers", "ways(*names): which ways of a contract are run by default, instead of by turns")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as long what has no turn."""
    if config.getoption("every_way"):
        return
    tests: defaultdict[tuple[Any, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and way_of(item):
            tests[item.parent, item.originalname].append(item)
    leave_out(config, [item for ran in tests.values() for item in without_turn(ran) if not is_long(item)])


def leave_out(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Leave *items* to the long part, and count them."""
    for item in items:
        item.add_marker(pytest.mark.long)
    config.stash[LEFT_OUT] = config.stash.get(LEFT_OUT, 0) + len(items)
    if hasattr(config, "workeroutput"):
        config.workeroutput[KEY] = config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Hear from a process of xdist, each of which collects all tests, how many it left out."""
    if KEY in (said := getattr(node, "workeroutput", {})):
        node.config.stash[LEFT_OUT] = said[KEY]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out, and how it is run."""
    if (count := config.stash.get(LEFT_OUT, 0)) and "not long" in config.option.markexpr:
        terminalreporter.write_line(f"{count} ways of contracts had no turn; --every-way runs them, too")


def way_of(item: pytest.Function) -> str:
    """Name the way that *item* is run; nothing if that is no matter of turns."""
    return str(item.callspec.params[name]) if hasattr(item, "callspec") and (name := parameter_of(item)) else ""


def parameter_of(item: pytest.Function) -> str:
    """Name the parameter that says which way *item* is run; nothing if there is none."""
    names = ("stack",) if item.path == ON_CONNECTIONS else PARAMETERS
    return next((name for name in names if name in item.callspec.params), "")


def is_long(item: pytest.Item) -> bool:
    """Tell whether *item* is left to the long part anyway."""
    return item.get_closest_marker("long") is not None


def without_turn(ran: list[pytest.Function]) -> list[pytest.Function]:
    """Choose of all the items of one test those that are not run by default."""
    ways = {way_of(item) for item in ran}
    if len(ways) == 1:  # it has no other, or was asked for by its name
        return []
    path, place, pinned = ran[0].path, place_of(ran[0]), ran[0].get_closest_marker("ways")
    cases = list(dict.fromkeys(map(case_of, ran)))
    if pinned:
        chosen = [set(pinned.args)] * len(cases)
    elif len(cases) >= MANY or WORKER in path.parents:
        chosen = [turns_of_many(path, place + number, ways) for number in range(len(cases))]
    else:
        chosen = [turns(path, place, ways)] * len(cases)
    if not set.union(*chosen) & ways:
        raise pytest.UsageError(f"{ran[0].nodeid}: of its ways, {', '.join(sorted(ways))}, none is left")
    return [item for item in ran if way_of(item) not in chosen[cases.index(case_of(item))]]


def case_of(item: pytest.Function) -> tuple[tuple[str, int], ...]:
    """Tell the cases of one test apart: by every parameter but the way."""
    return tuple((name, index) for name, index in item.callspec.indices.items() if name != parameter_of(item))


def place_of(item: pytest.Function) -> int:
    """Count the tests above *item* in its file, which knows all, even where only some were asked for."""
    assert item.parent is not None
    return [name for name in vars(item.parent.obj) if name.startswith("test")].index(item.originalname)


def turns(path: Path, place: int, ways: set[str]) -> set[str]:
    """Choose of the *ways* of a test those that it is run by default."""
    if path == ON_CONNECTIONS:
        return {way for number, way in enumerate(sorted(ways)) if len(ways) < MANY or (place + number) % 2}
    if path.name.startswith(ALL_STAY):
        return ways
    four = next((each for each in FOUR if each <= ways), frozenset[str]())
    return {way for way in ways if way not in four or has_turn(place, way)}


def turns_of_many(path: Path, place: int, ways: set[str]) -> set[str]:
    """Choose of the *ways* of a test those that one of its many cases is run by default: every fourth."""
    four = ways if path == ON_CONNECTIONS else next((each for each in FOUR if each <= ways), frozenset[str]())
    every = min(len(WAYS), len(four))
    return {way for number, way in enumerate(sorted(four)) if (place + number) % every == 0} | (ways - four)


def has_turn(place: int, way: str) -> bool:
    """Tell whether the test at *place* has this *way*: async on SQLite and not on PostgreSQL, or just the opposite."""
    database, colour = way.split("-")
    is_first_pair = (database == "sqlite") == (colour == "async")
    return is_first_pair == bool(place % 2)
