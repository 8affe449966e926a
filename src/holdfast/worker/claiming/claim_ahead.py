"""How many jobs a worker claims before it has a slot for them.

Its two loops are to overlap: while one batch is written down and the next is claimed, handlers run. Where jobs are so
short that all slots come free several times during one exchange, that needs more jobs at hand than there are slots: as
many as end while an exchange is under way, by the rate at which they have ended until now. Where it takes longer than a
moment until all slots come free, nothing is claimed ahead: another worker may have a slot for it now. The rate is that
of whole moments, so that some long jobs which happen to end together are not taken for short ones.

The next jobs may be longer than the last ones, or wait for those behind them. So what has waited for a while and found
all slots taken is given back, for whoever has one. It is claimed ahead only once. Where that has happened, short and
long jobs are mixed, and it would happen again: so for some seconds nothing is claimed ahead. (Of 2,800 short jobs among
24 of 1.5 s in five slots, half were given back without that.)

Some jobs may not be claimed ahead, and would wait as long as others come that may. So a claim that did not get all that
it asked for, as one that passes over such a job, is the last one ahead for now: slots come free, and it gets the first.
"""

from __future__ import annotations

from collections.abc import Callable

MOMENT_SECONDS = 0.05
EXCHANGES = 4
SHORTEST_WAIT, LONGEST_WAIT = 0.25, 1.0
HOLD_OFF_SECONDS = 10.0
MOST_AHEAD = 1_000
MOST_CLAIMED = 400
"""In one call: a larger batch costs no less for each job, and the others wait longer for their answer."""
DECAY = 0.75
"""How much of the rate of a while ago counts where fewer have ended since."""


class ClaimAhead:
    """The measured rate of one worker with so many *slots*, and what follows from it."""

    def __init__(self, slots: Callable[[], int], monotonic: Callable[[], float]) -> None:
        self._slots = slots
        self._monotonic = monotonic
        self._since = monotonic()
        self._ended = 0
        self._rate = 0.0
        self._exchange_seconds = 0.0
        self._is_short = False
        self._none_until = monotonic()

    def note_exchange(self, seconds: float, ended: int) -> None:
        """Learn that an exchange took *seconds*; *ended* attempts have ended here so far."""
        self._exchange_seconds = seconds
        now = self._monotonic()
        if (passed := now - self._since) >= MOMENT_SECONDS:
            self._rate = max((ended - self._ended) / passed, self._faded(now))
            self._since, self._ended = now, ended

    def note_claim(self, claimed: int, most: int) -> None:
        self._is_short = claimed < most

    def note_given_back(self) -> None:
        """Learn that no slot came free in time for what was claimed ahead."""
        self._none_until = self._monotonic() + HOLD_OFF_SECONDS

    @property
    def most(self) -> int:
        """How many may wait for a slot."""
        now = self._monotonic()
        rate = self._faded(now)
        if self._is_short or now < self._none_until or rate * MOMENT_SECONDS <= self._slots():
            return 0
        return min(MOST_AHEAD, int(rate * self._while_seconds))

    @property
    def longest_wait(self) -> float:
        """How many seconds something may wait for a slot: more than it takes where all goes on as before."""
        return min(LONGEST_WAIT, max(SHORTEST_WAIT, 2 * self._while_seconds))

    @property
    def _while_seconds(self) -> float:
        return max(MOMENT_SECONDS, EXCHANGES * self._exchange_seconds)

    def _faded(self, now: float) -> float:
        """Give the rate as it counts after some time in which nothing was measured."""
        return self._rate * float(DECAY ** ((now - self._since) / self._while_seconds))
