"""Slots that the workers of one host share: everybody gets what it wants while there is enough, else by turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.worker.claiming.slot_share import GRANT_SECONDS, Share, SlotShare


class Clock:
    """A clock that is moved by hand, and what was asked to be called later."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, Callable[[], None]]] = []

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._planned.append((self.now + seconds, call))

    def move(self, seconds: float) -> None:
        self.now += seconds
        due = [call for at, call in self._planned if at <= self.now]
        self._planned = [each for each in self._planned if each[0] > self.now]
        for call in due:
            call()


class Tenant:
    """A worker with *cap* slots that always has work, unless it is told otherwise."""

    def __init__(self, slots: SlotShare, cap: int = 100) -> None:
        self.cap = cap
        self.used = 0
        self.wakes = 0
        self.share: Share = slots.join(self._wake)

    def _wake(self) -> None:
        self.wakes += 1

    def claim(self, wanted: int | None = None) -> int:
        """Take as many as it gets."""
        most = self.cap - self.used if wanted is None else wanted
        taken = self.share.ask(self.used, most)
        self.share.take(taken)
        self.used += taken
        return taken

    def end(self, number: int = 1) -> None:
        """End some of what it runs."""
        self.used -= number
        self.share.report(self.used)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def share_of(slots: int, clock: Clock) -> SlotShare:
    return SlotShare(slots, lambda: clock.now, clock.later)


def test_while_there_is_enough_everybody_gets_what_it_wants(clock: Clock) -> None:
    slots = share_of(10, clock)
    one, other = Tenant(slots, cap=4), Tenant(slots, cap=6)

    assert (one.claim(), other.claim()) == (4, 6)
    assert not slots.has_hungry
    assert slots.free == 0


def test_a_slot_that_comes_free_goes_to_who_waits(clock: Clock) -> None:
    slots = share_of(2, clock)
    greedy, late = Tenant(slots, cap=2), Tenant(slots)
    greedy.claim()
    assert late.claim() == 0

    greedy.end()

    assert late.wakes == 1
    assert greedy.claim() == 0, "it waits behind the one that was there first"
    assert late.claim() == 1


def test_all_that_comes_free_at_once_is_dealt_out_one_by_one(clock: Clock) -> None:
    slots = share_of(9, clock)
    tenants = [Tenant(slots) for _ in range(3)]
    tenants[0].claim()
    for each in tenants[1:]:
        each.claim()

    tenants[0].used = 0
    for each in tenants:  # the first one asks first, for all nine
        each.claim()

    assert [each.used for each in tenants] == [3, 3, 3]


def test_three_flooded_tenants_get_equal_shares(clock: Clock) -> None:
    slots = share_of(4, clock)
    tenants = [Tenant(slots) for _ in range(3)]
    ran = [0, 0, 0]
    for each in tenants:
        each.claim()

    for turn in range(3_000):
        running = [number for number, each in enumerate(tenants) if each.used]
        ends = running[turn % len(running)]
        tenants[ends].end()
        ran[ends] += 1
        for each in tenants:
            each.claim()

    assert sum(each.used for each in tenants) == 4
    assert max(ran) - min(ran) <= 6, ran


def test_a_grant_that_nobody_takes_goes_to_the_next(clock: Clock) -> None:
    slots = share_of(1, clock)
    first, stuck, third = (Tenant(slots) for _ in range(3))
    for each in (first, stuck, third):
        each.claim()

    first.used = 0
    first.claim(0)
    assert (stuck.wakes, third.wakes) == (1, 0)
    clock.move(GRANT_SECONDS)

    assert third.wakes == 1
    assert third.claim() == 1
    third.end()
    assert stuck.claim() == 1, "it has kept its place behind the others"


def test_nobody_can_keep_the_ring_by_never_answering(clock: Clock) -> None:
    slots = share_of(1, clock)
    busy, *stuck, alive = (Tenant(slots) for _ in range(6))
    for each in (busy, *stuck, alive):
        each.claim()
    busy.used = 0
    busy.claim(0)

    for _ in stuck:
        assert alive.wakes == 0
        clock.move(GRANT_SECONDS)

    assert alive.wakes == 1
    assert alive.claim() == 1


def test_who_wants_nothing_any_more_leaves_the_ring(clock: Clock) -> None:
    slots = share_of(1, clock)
    busy, one, other = (Tenant(slots) for _ in range(3))
    for each in (busy, one, other):
        each.claim()

    one.claim(0)
    busy.used = 0
    busy.claim(0)

    assert (one.wakes, other.wakes) == (0, 1)


def test_who_closes_gives_back_what_it_has_and_what_it_was_granted(clock: Clock) -> None:
    slots = share_of(2, clock)
    busy, one, other = (Tenant(slots, cap=2) for _ in range(3))
    busy.claim()
    one.claim()
    other.claim()
    busy.end()
    assert one.wakes == 1

    one.share.close()
    assert other.wakes == 1
    busy.share.close()

    assert other.claim() == 2
    assert slots.free == 0


def test_nothing_is_claimed_ahead_while_somebody_waits(clock: Clock) -> None:
    slots = share_of(6, clock)
    quick, other = Tenant(slots, cap=4), Tenant(slots, cap=4)
    quick.claim()
    assert quick.share.spare(100) == 100

    other.claim()

    assert slots.has_hungry
    assert quick.share.spare(100) == 0


def test_what_was_claimed_ahead_counts_for_the_host(clock: Clock) -> None:
    slots = share_of(6, clock)
    quick, other = Tenant(slots, cap=4), Tenant(slots, cap=4)
    quick.claim()
    quick.share.take(quick.share.spare(100))

    assert slots.free < 0
    assert other.claim() == 0
