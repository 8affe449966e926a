"""Wrong engines: each is ours with one rule taken away, and some test must catch it. This is the list of all of them.

A mutant is a name, the invariant of GUARANTEES that it breaks, and what is put in place of ours. Nothing of it is in
the package: a test applies it to the modules of this process and takes it back. Who catches it decides its list:

- `SIMULATED`: the simulation, by a scene or by chance;
- `RACES`: a stepped test of two transactions, on PostgreSQL alone;
- `DRAWN`: the rule machine, which draws steps at random;
- `CORE`: a test of the worker, on SQLite;
- `HOSTS`: a test of a worker for many tenants, on PostgreSQL.

A guard in a statement cannot be told from the look that the same transaction took before it, under the row's lock:
alone it would be an equal engine. Such a guard is taken away together with the look beside it (`and the look before
it`); alone it is met in `tests/store/test_guards.py`. `python -m tests.mutants.table` prints which test catches which.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.states import MOVES, Change, Move, Status, guard

if TYPE_CHECKING:
    from tests.simulation.scenes import Scene

FILES = (
    "tests.mutants.simulation",
    "tests.mutants.simulation_chains",
    "tests.mutants.schedules",
    "tests.mutants.races",
    "tests.mutants.rule_machine",
    "tests.mutants.rule_machine_chains",
    "tests.mutants.rule_machine_retention",
    "tests.mutants.core",
    "tests.mutants.audit",
    "tests.mutants.bulk",
    "tests.mutants.figures",
    "tests.mutants.hosts",
)
"""Where they are written; a new file is named here, and the tests and the table find it."""

Apply = Callable[[pytest.MonkeyPatch], None]
Test = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A wrong engine."""

    name: str
    breaks: str
    apply: Apply
    faults: Sequence[str] = ()
    """The faults under which the simulation shows it soonest; none stands for all, which show it later."""
    scene: Scene | None = None
    """The scene that catches it; None leaves it to a run of chance, which shows it within a few seeds."""


@dataclass(frozen=True, slots=True)
class Race:
    """A wrong engine, the test that catches it, and what that test says then."""

    name: str
    breaks: str
    apply: Apply
    test: Test
    says: str
    given: Mapping[str, object] = field(default_factory=dict)
    """The case of the test."""


SIMULATED: list[Mutant] = []
RACES: list[Race] = []
DRAWN: list[Mutant] = []
CORE: list[Race] = []
HOSTS: list[Race] = []


def load() -> None:
    """Import all files of mutants, so that the lists are whole."""
    for each in FILES:
        importlib.import_module(each)


def mutant(name: str, breaks: str, *faults: str, scene: Scene | None = None) -> Callable[[Apply], Apply]:
    """Name the function below: it makes the engine wrong, and the simulation catches it."""

    def keep(apply: Apply) -> Apply:
        SIMULATED.append(Mutant(name, breaks, apply, faults, scene))
        return apply

    return keep


def race(name: str, breaks: str, test: Test, says: str, **given: object) -> Callable[[Apply], Apply]:
    """Name the function below: it makes the engine wrong, and *test* says so."""
    return _kept(RACES, name, breaks, test, says, given)


def wrong_worker(name: str, breaks: str, test: Test, says: str, **given: object) -> Callable[[Apply], Apply]:
    """Name the function below: it makes the worker wrong, and *test* says so."""
    return _kept(CORE, name, breaks, test, says, given)


def wrong_host(name: str, breaks: str, test: Test, says: str, **given: object) -> Callable[[Apply], Apply]:
    """Name the function below: it makes the host of tenants wrong, and *test* says so."""
    return _kept(HOSTS, name, breaks, test, says, given)


def _kept(
    kept: list[Race], name: str, breaks: str, test: Test, says: str, given: Mapping[str, object]
) -> Callable[[Apply], Apply]:
    def keep(apply: Apply) -> Apply:
        kept.append(Race(name, breaks, apply, test, says, given))
        return apply

    return keep


def drawn(name: str, breaks: str) -> Callable[[Apply], Apply]:
    """Name the function below: it makes the engine wrong, and the rule machine catches it."""

    def keep(apply: Apply) -> Apply:
        DRAWN.append(Mutant(name, breaks, apply))
        return apply

    return keep


def change_sql(patch: pytest.MonkeyPatch, module: Any, name: str, old: str, new: str, database: str = "sqlite") -> None:
    """Put *new* in place of *old* in a statement; where each database has a text of its own, in that of *database*."""
    sql = getattr(module, name)
    text = sql[database] if isinstance(sql, dict) else sql
    assert old in text, f"{module.__name__}.{name} no longer says {old!r}"
    changed = text.replace(old, new)
    patch.setattr(module, name, {**sql, database: changed} if isinstance(sql, dict) else changed)


def without_guard(patch: pytest.MonkeyPatch, change: Change, module: Any, name: str, yes: str = "1") -> None:
    """Take a change's rule out of the law, and out of the statement that was made from it; *yes* is true in SQL."""
    change_sql(patch, module, name, guard(change), yes)
    patch.setitem(MOVES, change, Move(tuple(Status), MOVES[change].targets))
