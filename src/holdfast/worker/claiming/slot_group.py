"""Slots beside those of the handlers in this process, for jobs that take none of these: webhooks, and child processes.

To claim for them is a transaction more, which must cost nothing to speak of where there is nothing for them to do: a
busy worker reads twice a second whether there is something, for an idle one the look that it takes anyway tells. Only
where some was found it claims, and then as soon as there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from holdfast.store import polls
from holdfast.store.jobs.claiming import Claims, Want
from holdfast.worker.attempts.active import Slot

LOOK_SECONDS = 0.5


class Beside:
    """The slots of one kind: what they are for, *wants*, and *most*, which says how many there are at this moment."""

    shares_queues: ClassVar[bool] = True
    """Whether handlers of the worker itself have jobs in the same queues: then a claim for either takes up for both."""

    def __init__(
        self, slot: Slot, wants: Sequence[Want], most: Callable[[], int], monotonic: Callable[[], float]
    ) -> None:
        self.slot = slot
        self.wants = wants
        self._most = most
        self._monotonic = monotonic
        self._look_at = 0.0
        self._next_at: float | None = None
        self._is_active = False
        self.is_unseen = False
        """Whether something may have come for them that nobody has looked for yet."""
        self.is_wanted = False
        """Whether there is reason to believe that something is there."""
        self.reserved = 0

    def room(self, running: int) -> int:
        """Say how many may be claimed, beside *running* ones; none before it is time to look."""
        is_due = self.is_wanted or self._monotonic() >= self._look_at
        return self.free(running) if is_due else 0

    def free(self, running: int) -> int:
        """Say how many slots are free, beside *running* ones."""
        return max(0, self._most() - running - self.reserved)

    def look_soon(self) -> None:
        """Claim as soon as there is room: something may be there."""
        self.is_wanted = True

    def leave_out(self) -> None:
        """Take note that a look was not for these slots, all of which are taken."""
        self.is_unseen = self.shares_queues

    def has_room(self) -> None:
        """Take note that a slot has come free: look for what came meanwhile, if there may be something."""
        if self._is_active or self.is_unseen:
            self.look_soon()

    def has_settled(self) -> None:
        """Take note that ends were written down, and arrivals taken up: both may let run what is for these slots."""
        self.is_unseen = self.shares_queues
        if self._is_active:
            self.look_soon()

    def begin(self, most: int) -> None:
        """Take note of a look, or a claim, for up to *most* that is under way."""
        self.reserved += most
        self.is_wanted = self.is_unseen = False
        self._look_at = self._monotonic() + LOOK_SECONDS

    def end(self, most: int) -> None:
        """Take note that it is over, whatever it came to."""
        self.reserved -= most

    def note_look(self, found: polls.WaitingWork) -> None:
        """Learn from a look, before any claim."""
        self._is_active = False
        self._plan(found.next_ms)

    def note(self, claims: Claims) -> None:
        """Learn from what a claim has found."""
        self._is_active = bool(claims.jobs)
        self.is_wanted |= claims.more
        self._plan(claims.next_ms)

    def _plan(self, next_ms: int | None) -> None:
        self._next_at = None if next_ms is None else self._monotonic() + next_ms / 1000

    def sooner(self, next_ms: int | None) -> int | None:
        """Give what comes first: *next_ms*, in which something else is due, or the next delivery that is."""
        if self._next_at is None:
            return next_ms
        own_ms = round((self._next_at - self._monotonic()) * 1000)
        if own_ms <= 0:
            self._next_at = None
            self.look_soon()
            return next_ms
        return own_ms if next_ms is None else min(next_ms, own_ms)
