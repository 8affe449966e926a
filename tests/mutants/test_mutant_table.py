"""The table of wrong engines names each once, and for each a test that exists."""

from __future__ import annotations

import re
from collections import Counter

from tests.mutants import FILES
from tests.mutants.table import TO_COME, lines, show
from tests.support.tables.numbered import ROOT


def test_no_two_mutants_of_one_test_have_one_name() -> None:
    names = Counter([*((name, "") for name in TO_COME), *((each.name, each.red.partition("[")[0]) for each in lines())])

    assert [name for name, count in names.items() if count > 1] == []


def test_the_table_has_a_line_for_each_mutant() -> None:
    shown = show().splitlines()

    assert len(shown) == 2 + len(list(lines())) + len(TO_COME)
    assert all(line.startswith("| ") and line.endswith(" |") for line in shown)


def test_every_file_with_mutants_is_in_the_registry() -> None:
    files = [file for file in (ROOT / "tests").rglob("*.py") if MADE.search(file.read_text(encoding="utf-8"))]

    assert {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files} == set(FILES)


MADE = re.compile(r"^@(mutant|race|drawn|wrong_worker|wrong_host)\(", re.MULTILINE)
