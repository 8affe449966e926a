"""The table of wrong engines: what each breaks, and which test turns red by it.

`python -m tests.mutants.table` prints it, as Markdown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from holdfast.states import MOVES
from tests.mutants import CORE, DRAWN, HOSTS, RACES, SIMULATED, load
from tests.simulation.test_scenarios import test_a_scene_ends_well
from tests.simulation.test_simulation import test_no_rule_is_broken_and_every_job_ends
from tests.store import test_guards, test_moves
from tests.store.rules import test_rule_machine

TO_COME: dict[str, str] = {}
"""The mutants of GUARANTEES §5.3 whose rule has no code yet."""


class Line(NamedTuple):
    """One mutant."""

    name: str
    breaks: str
    red: str


def lines() -> Iterator[Line]:
    """Go through all mutants."""
    load()
    for each in SIMULATED:
        by_chance = named(test_no_rule_is_broken_and_every_job_ends)
        red = by_chance if each.scene is None else named(test_a_scene_ends_well, each.scene.name)
        yield Line(each.name, each.breaks, red)
    for race in [*RACES, *CORE, *HOSTS]:
        yield Line(race.name, race.breaks, named(race.test, *race.given.values()))
    for drawn in DRAWN:
        yield Line(drawn.name, drawn.breaks, named(test_rule_machine.test_a_wrong_engine_is_caught, drawn.name))
    yield from guards()


def guards() -> Iterator[Line]:
    """Go through the guards of `states.py`, one by one, and the statements that carry them."""
    pairs = test_moves.test_a_change_happens_to_the_statuses_of_the_law_and_to_no_other
    further = test_moves.test_a_lawful_status_is_not_enough_where_the_law_asks_for_more
    statement = test_guards.test_a_statement_leaves_alone_what_no_look_has_kept_from_it
    for change, move in MOVES.items():
        if change in test_guards.HIDDEN:
            yield Line(f"law without the sources of “{change}”", "I-08", named(statement, change))
        elif change not in test_guards.LETS_ALL_PASS:
            yield Line(f"law without the sources of “{change}”", "I-08", named(pairs, change))
        for _ in move.also:
            yield Line(f"law without the further condition of “{change}”", "I-08", named(further, change))
    for name in test_guards.STATEMENTS:
        yield Line(f"statement “{name}” without its guard", "I-08", named(statement, name))


def named(test: Callable[..., Any], case: object = None) -> str:
    """Write a test as pytest does."""
    path = test.__module__.replace(".", "/") + ".py"
    return f"{path}::{test.__name__}" + (f"[{case}]" if case is not None else "")


def show() -> str:
    """Write the table."""
    head = ["| mutant | breaks | turns red |", "| --- | --- | --- |"]
    rows = [f"| {each.name} | {each.breaks} | `{each.red}` |" for each in lines()]
    coming = [f"| {name} | {breaks} | its rule has no code yet |" for name, breaks in TO_COME.items()]
    return "\n".join([*head, *rows, *coming])


if __name__ == "__main__":
    print(show())
