"""The table of guarantees is whole: every claim has its tests, and every number that is named is a claim."""

from __future__ import annotations

from tests.support.tables.guarantees import claims, found, layer_of, layers, mutants


def test_every_claim_is_tested_unless_its_part_is_not_built() -> None:
    tested = found().keys() | mutants().keys()

    assert [claim.number for claim in claims() if claim.comes_with is None and claim.number not in tested] == []


def test_every_number_that_is_named_is_a_claim() -> None:
    numbers = [claim.number for claim in claims()]

    assert len(numbers) == len(set(numbers))
    assert found().keys() | mutants().keys() <= set(numbers)


def test_a_file_belongs_to_the_layer_of_its_folder() -> None:
    assert layer_of("tests/store/rules/test_rule_machine.py") == "R"
    assert layer_of("tests/acceptance/test_crash_points.py") == "C"
    assert layer_of("tests/acceptance/test_faults.py") == "P"
    assert layer_of("tests/store/test_settle.py") == "U"
    assert all(words for _, words in layers())
