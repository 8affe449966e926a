"""Where claims begin to look: behind the last one, and never for long above what has become urgent."""

from __future__ import annotations

from holdfast.store.jobs.claiming import LOWEST, Claimed, Token
from holdfast.worker.claiming.slot_group import WHOLE_SECONDS, ScanPosition

URGENT, USUAL = 10, 1_000


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def claimed(sort_key: int, seq: int) -> list[Claimed]:
    return [Claimed(Token(seq, 1, "nonce"), "id", "id", 0, "task", "default", None, "{}", 1, 0, sort_key)]


def a_floor_at(clock: Clock, sort_key: int, seq: int) -> ScanPosition:
    """Make one that has just looked at everything, and got as much as it asked for."""
    floor = ScanPosition(clock)
    assert floor.place() == LOWEST
    floor.note(LOWEST, clock.now - WHOLE_SECONDS, claimed(sort_key, seq), most=1)
    return floor


def test_a_claim_begins_behind_the_last_one_while_there_is_more() -> None:
    floor = a_floor_at(Clock(), USUAL, 7)

    assert floor.place() == (USUAL, 7)
    floor.note((USUAL, 7), 100.0, claimed(USUAL, 8), most=1)

    assert floor.place() == (USUAL, 8)


def test_a_claim_that_did_not_fill_its_slots_is_followed_by_a_whole_look() -> None:
    floor = a_floor_at(Clock(), USUAL, 7)

    floor.note((USUAL, 7), 100.0, [], most=1)

    assert floor.place() == LOWEST


def test_everything_is_looked_at_once_a_second() -> None:
    clock = Clock()
    floor = a_floor_at(clock, USUAL, 7)

    clock.now += WHOLE_SECONDS

    assert floor.place() == LOWEST


def test_what_the_other_loop_claims_above_does_not_lift_the_floor_over_what_is_urgent() -> None:
    clock = Clock()
    floor = a_floor_at(clock, USUAL, 7)
    others = floor.place()

    clock.now += WHOLE_SECONDS
    floor.note(floor.place(), clock.now - WHOLE_SECONDS, claimed(URGENT, 8), most=1)
    floor.note(others, clock.now, claimed(USUAL, 9), most=1)

    assert floor.place() == (URGENT, 8)
