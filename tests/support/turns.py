"""A pytest plugin: what can be run many ways is run one way by default, and the other ways by turns elsewhere.

One text of a test is often run four ways, on either database in either colour, and some texts on every kind of
connection or over every object mapper. Each case of such a test has one of the four, and every third of the kinds, for
its first turn: its place in its file decides which, so that no new name changes it. The next is on the other database.

`python3 dev.py test` runs the first turn, which is number 0. `--turns 1` runs the second one instead, as CI does on its
second Python, and what `--turns` does not name is `long`: CI's long part says `--turns 0,1`, and so has the rest. With
`--every-way` there are no turns. What has to be run a certain way by default says so with
`@pytest.mark.ways("sqlite-async", "postgres-async")`; what is written for fewer than all four ways has no turns.

Other tests are run on both databases in one colour, such as those of a whole worker. These take turns, too: each case
is run on one database by default, and on the other one by CI's second Python.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.ways import TENANT_WAYS, WAYS
from tests.worker.colours import COLOURS

PARAMETERS = ("stack", "way", "control", "colour")
"""What the parameter is called that says which way a test is run."""
DATABASES = frozenset({"sqlite", "postgres"})
"""The two ways of a test that is no contract, such as one of a whole worker; its parameter may have any name."""
FOURS = (frozenset(WAYS), frozenset(COLOURS), DATABASES)
KINDS = 3
"""Of how many kinds of connection or object mapper a case has one for each turn."""

TENANTS = 24
"""Of how many tests of a file one is run inside a tenant by default; all others are, too, in the long part."""

LEFT_OUT = pytest.StashKey[int]()
"""How many tests had no turn in this run."""
KEY = "without_turn"
"""By what name a process of xdist tells it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run have other turns, or none."""
    parser.addoption("--every-way", action="store_true", help="run every way of a contract, not some by turns")
    parser.addoption("--turns", default="0", metavar="N[,N]", help="which turns are run by default, or not if --long")


def pytest_configure(config: pytest.Config) -> None:
    """Explain the marker."""
    config.addinivalue_line("markers", "ways(*names): which ways of a contract are run by default, instead of by turns")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as long what has no turn."""
    wanted = wanted_turns(config.getoption("turns"))
    if config.getoption("every_way"):
        return
    tests: defaultdict[tuple[Any, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and way_of(item):
            tests[item.parent, item.originalname].append(item)
    leave_out(config, [item for ran in tests.values() for item in without_turn(ran, wanted) if not is_long(item)])


def wanted_turns(text: str) -> frozenset[int]:
    """Read what was given to `--turns`."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) < len(WAYS) for word in words):
        raise pytest.UsageError(f"--turns takes numbers from 0 to {len(WAYS) - 1}, as in --turns 0,1, and not {text!r}")
    return frozenset(map(int, words))


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
    params = item.callspec.params
    if name := next((name for name in PARAMETERS if name in params), ""):
        return name
    return next((name for name, value in params.items() if isinstance(value, str) and value in DATABASES), "")


def is_long(item: pytest.Item) -> bool:
    """Tell whether *item* is left to the long part anyway."""
    return item.get_closest_marker("long") is not None


def without_turn(ran: list[pytest.Function], wanted: Iterable[int]) -> list[pytest.Function]:
    """Choose of all the items of one test those that are not run by default: each case has its own turns."""
    cases: defaultdict[object, list[pytest.Function]] = defaultdict(list)
    for item in ran:
        cases[case_of(item)].append(item)
    place, pinned = place_of(ran[0]), ran[0].get_closest_marker("ways")
    left_out = [item for item in ran if way_of(item) in TENANT_WAYS and (place % TENANTS or pinned) and len(ran) > 1]
    for number, case in enumerate([each for each in without_tenants(cases.values()) if each]):
        if len(case) == 1:  # it has no other, or was asked for by its name
            continue
        ways = [way_of(item) for item in case]
        chosen = set(pinned.args) if pinned else {way for turn in wanted for way in turn_of(ways, place + number, turn)}
        if not chosen.intersection(ways):
            raise pytest.UsageError(f"{case[0].nodeid}: of its ways, {', '.join(ways)}, none is left")
        left_out += [item for item in case if way_of(item) not in chosen]
    return left_out


def without_tenants(cases: Iterable[list[pytest.Function]]) -> list[list[pytest.Function]]:
    """Leave the ways inside a tenant out of *cases*: these have no turns."""
    return [[item for item in case if way_of(item) not in TENANT_WAYS] for case in cases]


def case_of(item: pytest.Function) -> object:
    """Tell the cases of one test apart: by the value of every parameter but the way.

    By the very value, which need not be hashable. Its index among the values says nothing: that counts the ways in.
    """
    return tuple((name, id(value)) for name, value in item.callspec.params.items() if name != parameter_of(item))


def place_of(item: pytest.Function) -> int:
    """Count the tests above *item* in its file, which knows all, even where only some were asked for."""
    assert item.parent is not None
    return [name for name in vars(item.parent.obj) if name.startswith("test")].index(item.originalname)


def turn_of(ways: Iterable[str], place: int, turn: int) -> set[str]:
    """Choose of the *ways* of a case those that it is run at its *turn*: of the four one, and every third kind."""
    ways = sorted(ways, key=in_turn)
    four = next((each for each in FOURS if each.issubset(ways)), frozenset[str]())
    one_of_four = [way for way in ways if way in four][(place + turn) % len(four) :][:1] if four else []
    others = [way for way in ways if way not in four]
    few = [way for way in others if any(way in each for each in FOURS)]  # somebody chose these: they have no turns
    kinds = [way for way in others if way not in few]
    every = min(KINDS, len(kinds))
    return {*one_of_four, *few, *(way for n, way in enumerate(kinds) if (place + turn + n) % every == 0)}


def in_turn(way: str) -> tuple[bool, str]:
    """Sort ways so that the database changes each time: SQLite async, PostgreSQL blocking, and the other two."""
    database, _, colour = way.partition("-")
    return (database == "sqlite") != (colour == "async"), "" if database == "sqlite" else way
