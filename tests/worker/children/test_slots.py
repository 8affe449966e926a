"""Slots beside those of the handlers: when something is looked for, and how much."""

from __future__ import annotations

import pytest

from holdfast.database.hints import Horizon
from holdfast.store import polls
from holdfast.store.jobs.claiming import LOWEST, Claims, Want
from holdfast.worker.attempts.active import Slot
from holdfast.worker.claiming.slot_group import SlotGroup

NOTHING = Claims([], more=False)


class Pool:
    """So many children, at a time that stands still."""

    def __init__(self) -> None:
        self.children = 0
        self.slots = SlotGroup(Slot.CHILD, [Want("default", "render", 30_000)], lambda: self.children, lambda: 100.0)

    def claim(self, claims: Claims) -> None:
        """Claim for all that are free."""
        self.slots.begin(most := self.slots.room(0))
        self.slots.reserved -= most
        self.slots.note(claims, most, LOWEST, 0.0)


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_there_is_room_for_as_many_as_there_are_children(pool: Pool) -> None:
    assert pool.slots.room(0) == 0

    pool.children = 3

    assert pool.slots.room(1) == 2
    pool.slots.begin(1)
    assert pool.slots.free(1) == 1


def test_more_that_run_than_there_are_children_leave_no_room(pool: Pool) -> None:
    pool.children = 1

    assert pool.slots.free(2) == 0


def test_a_child_that_comes_free_where_nothing_waited_costs_no_claim(pool: Pool) -> None:
    pool.children = 1
    pool.claim(NOTHING)

    pool.slots.has_room()

    assert not pool.slots.is_wanted


def test_a_child_that_comes_free_after_a_look_that_was_not_for_it_is_looked_for_work_for(pool: Pool) -> None:
    pool.children = 1
    pool.claim(NOTHING)

    pool.slots.leave_out()
    pool.slots.has_room()

    assert pool.slots.is_wanted


def test_a_claim_that_left_something_behind_is_made_again_as_soon_as_there_is_room(pool: Pool) -> None:
    pool.children = 1
    pool.claim(Claims([], more=True))

    assert pool.slots.room(0) == 1
    assert pool.slots.room(1) == 0


def test_what_is_due_later_is_looked_for_then(pool: Pool) -> None:
    pool.slots.note_look(polls.WaitingWork(False, 400, Horizon(0, 0)))

    assert pool.slots.sooner(None) == 400
    assert pool.slots.sooner(100) == 100
