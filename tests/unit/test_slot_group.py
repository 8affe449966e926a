"""When a worker looks for what takes no slot of handlers: seldom, and at once where there is reason to."""

from __future__ import annotations

from typing import Any

from holdfast.store.jobs.claiming import LOWEST, Claims
from holdfast.worker.builtin.bulk import make_bulk
from holdfast.worker.claiming.slot_group import BULK_LOOK_SECONDS, SlotGroup, bulk_slot

ANY: Any = None


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def made(clock: Clock) -> SlotGroup:
    return bulk_slot(make_bulk(ANY, ANY), clock)


def test_a_busy_worker_looks_for_bulk_every_two_seconds_and_never_before_a_claim() -> None:
    clock = Clock()
    group, looks = made(clock), 0

    for _ in range(1_000):  # as often as a busy worker writes ends, in ten seconds
        clock.now += 0.01
        group.has_settled()
        if group.room(0):
            looks += 1
            group.begin(1)
            group.reserved -= 1
            group.note_look(found=FoundNothing)

    assert looks <= 10 / BULK_LOOK_SECONDS


def test_the_next_step_is_looked_for_when_it_is_due() -> None:
    clock = Clock()
    group = made(clock)
    group.begin(1)
    group.reserved -= 1
    group.note(Claims([], more=False, next_ms=300), 1, LOWEST, clock.now)

    assert group.room(0) == 0
    clock.now += 0.31
    assert group.room(0) == 1


def test_there_is_one_slot() -> None:
    clock = Clock()
    group = made(clock)
    clock.now += BULK_LOOK_SECONDS

    assert (group.room(0), group.room(1)) == (1, 0)


class FoundNothing:
    """What a look gives that has found nothing."""

    next_ms = None
