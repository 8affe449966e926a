"""Where a claim begins to look: behind what was claimed last, as long as there is more than the slots can take.

What was claimed leaves dead entries at the front of the index, which every later claim would walk over until the
database has cleaned up; while anybody keeps an old snapshot open, that is never (28.2k jobs/s with a floor, 22.6k
without). But what becomes ready with a higher priority, is given back or is tried again sorts below the floor. So the
whole index is looked at whenever twenty times as long has passed as the last such look took, and once a second at
least; and always when a claim from the floor did not fill its slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.store.jobs.claiming import LOWEST, Claimed, Place

SHARE = 20
MOST_SECONDS = 1.0


class Floor:
    """The place in the order of claims from which one worker looks."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._place = LOWEST
        self._whole_at = 0.0

    def place(self) -> Place:
        """Say where the next claim begins; the lowest place of all, if it is time for that."""
        now = self._monotonic()
        if now >= self._whole_at:
            self._whole_at = now + MOST_SECONDS  # so that the other loop does not do the same
            return LOWEST
        return self._place

    def note(self, place: Place, sent: float, claimed: Sequence[Claimed], most: int) -> None:
        """Learn from a claim of up to *most*, which began at *place* and was sent at *sent*."""
        now = self._monotonic()
        if place == LOWEST:
            self._whole_at = now + min(MOST_SECONDS, SHARE * (now - sent))
        if len(claimed) < most:
            self._place = LOWEST
        elif place in (LOWEST, self._place):  # else the other loop has moved it, perhaps down to what is urgent
            self._place = (claimed[-1].sort_key, claimed[-1].token.seq)
