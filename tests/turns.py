"""A pytest plugin: a contract that is run many ways has some of them by turns, and the others with what is `long`.

An operation is one text for both databases and both colours, and so is its test, and that of a handler. Each of these
has both databases and both colours, the one async and the other not: which, its name decides, so that of every file
about half is run either way. Where the databases have code of their own for the colours, all four stay. What is done on
the connections of callers has about half of their kinds, by lot. With `--every-way` there are no turns.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from zlib import crc32

import pytest

from tests.ways import WAYS
from tests.worker.colours import COLOURS

TESTS = Path(__file__).parent
CONTRACTS = {TESTS / "store": "way", TESTS / "worker": "colour"}
"""Where they are, and what the parameter is called there that says which way one is run."""
ALL_STAY = ("test_borrowed", "test_open_tx", "test_left_behind")
FOUR = (frozenset(WAYS), frozenset(COLOURS))

ON_CONNECTIONS = TESTS / "store" / "test_borrowed.py"
MANY = 8
"""A test that needs something which fewer kinds of connection have is run on all of these."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run have no turns."""
    parser.addoption("--every-way", action="store_true", help="run every way of a contract, not some by turns")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as long what has no turn."""
    if config.getoption("every_way"):
        return
    tests: defaultdict[tuple[Path, str], list[tuple[str, pytest.Function]]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and (way := way_of(item)):
            tests[item.path, item.originalname].append((way, item))
    for (path, name), ran in tests.items():
        chosen = turns(path, name, {way for way, _ in ran})
        for way, item in ran:
            if way not in chosen:
                item.add_marker(pytest.mark.long)


def way_of(item: pytest.Function) -> str:
    """Name the way that *item* is run; nothing if that is no matter of turns."""
    parameter = "stack" if item.path == ON_CONNECTIONS else CONTRACTS.get(item.path.parent, "")
    if not hasattr(item, "callspec") or (item.path.name.startswith(ALL_STAY) and item.path != ON_CONNECTIONS):
        return ""
    return str(item.callspec.params.get(parameter, ""))


def turns(path: Path, test: str, ways: set[str]) -> set[str]:
    """Choose of the *ways* of a test those that it is run by default."""
    if path == ON_CONNECTIONS:
        return {way for way in ways if len(ways) < MANY or crc32(f"{test} {way}".encode()) % 2}
    four = next((each for each in FOUR if each <= ways), frozenset[str]())
    return {way for way in ways if way not in four or has_turn(test, way)}


def has_turn(test: str, way: str) -> bool:
    """Tell whether *test* is run this *way* by default: async on SQLite and not on PostgreSQL, or just the opposite."""
    database, colour = way.split("-")
    is_first_pair = (database == "sqlite") == (colour == "async")
    return is_first_pair == bool(crc32(test.encode()) % 2)
