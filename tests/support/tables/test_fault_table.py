"""Every fault of the catalogue has a test, or a reason why not; so has every line about others, and every sentence."""

from __future__ import annotations

from tests.support.tables.faults import FAULTS, LEFT, lines, show
from tests.support.tables.guarantees import claims
from tests.support.tables.numbered import find_by_number

SEEN_ELSEWHERE = [f"P-{number:02}" for number in range(1, 32)]
SENTENCES = [f"Q-{number:02}" for number in range(1, 10)]  # the others are about parts that are not built yet


def test_the_table_has_every_fault_once_and_in_order() -> None:
    assert list(FAULTS) == [f"F-{number:02}" for number in range(1, 55)]
    assert LEFT.keys() <= FAULTS.keys()


def test_a_fault_has_a_test_or_a_reason_why_not() -> None:
    assert [line.fault for line in lines() if not line.tests and not line.left] == []


def test_a_line_and_a_sentence_have_a_test_that_carries_their_number() -> None:
    assert [number for number in (*SEEN_ELSEWHERE, *SENTENCES) if number not in find_by_number()] == []


def test_every_number_that_a_test_carries_is_known() -> None:
    known = {*FAULTS, *SEEN_ELSEWHERE, *SENTENCES, *(claim.number for claim in claims())}

    assert find_by_number().keys() - known == set()


def test_the_table_can_be_shown() -> None:
    shown = show().splitlines()

    assert len(shown) == 2 + len(FAULTS)
    assert all(line.startswith("| ") and line.endswith(" |") for line in shown)
