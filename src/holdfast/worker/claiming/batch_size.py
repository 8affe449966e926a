"""How much of what has ended is written down in one transaction.

A transaction that misses its deadline would miss it again: on a slow network, or beside a busy database, the same batch
never gets through. So a batch is bounded, by number and by bytes, and is half as large after each that was not answered
in time, until what gets through is known; then it grows again, if it gets through quickly: twice as much is to get
through, too. A single job is as small as a batch can be: it is given more time instead (`PATIENT_SECONDS` of the
database).
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.jobs.settling import Settlement

MOST = 500
MOST_BYTES = 4_000_000
QUICK_SECONDS = 1.0
"""In which a batch was answered that may be twice as large the next time."""


class BatchSize:
    """How large the batches of one worker are at this moment."""

    def __init__(self) -> None:
        self._most = MOST
        self._most_bytes = MOST_BYTES

    def fit(self, settlements: Sequence[Settlement]) -> int:
        """Say how many of the first *settlements* make a batch; at least one."""
        left = self._most_bytes
        for number, each in enumerate(settlements[: self._most]):
            left -= size_of(each)
            if left < 0 and number:
                return number
        return min(len(settlements), self._most)

    @property
    def is_least(self) -> bool:
        """Tell whether not even two were answered in time."""
        return self._most == 1

    def note_missed(self, batch: Sequence[Settlement]) -> None:
        if batch:
            self._most = max(1, len(batch) // 2)
            self._most_bytes = max(1, sum(map(size_of, batch)) // 2)

    def note_answered(self, seconds: float) -> None:
        if seconds < QUICK_SECONDS:
            self._most = min(MOST, 2 * self._most)
            self._most_bytes = min(MOST_BYTES, 2 * self._most_bytes)


def size_of(settlement: Settlement) -> int:
    """Say about how many bytes are sent for a settlement."""
    outcome = settlement.outcome
    size = 100 + len(outcome.output or "") + len(outcome.error or "") + len(outcome.reason or "")
    return size if outcome.successor is None else size + len(outcome.successor.start.input)
