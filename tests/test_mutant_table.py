"""The table of wrong engines names each once, and for each a test that exists."""

from __future__ import annotations

from collections import Counter

from tests.mutant_table import TO_COME, lines, show


def test_no_two_mutants_of_one_test_have_one_name() -> None:
    names = Counter([*((name, "") for name in TO_COME), *((each.name, each.red.partition("[")[0]) for each in lines())])

    assert [name for name, count in names.items() if count > 1] == []


def test_the_table_has_a_line_for_each_mutant() -> None:
    shown = show().splitlines()

    assert len(shown) == 2 + len(list(lines())) + len(TO_COME)
    assert all(line.startswith("| ") and line.endswith(" |") for line in shown)
