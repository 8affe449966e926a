"""Claims whose answers were lost: COMMIT was sent, and nobody knows whether these jobs are ours.

They are found again by the nonce of the call. Such a COMMIT may still be under way for a while, so one look that finds
nothing is not enough; one that finds something has found all, for they were claimed in one transaction. A look of the
worker's other loop may be older than what became of an attempt since, so what was found once is not begun again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.database.tx import Store
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import Claimed, Token

DOUBT_SECONDS = 10.0

Begin: TypeAlias = Callable[[list[Claimed], float], None]


@dataclass(slots=True)
class Doubt:
    """A claim call whose answer was lost: when it was sent, and what of it was found and begun."""

    sent: float
    begun: set[Token] = field(default_factory=set)


class Doubts:
    """The claims in doubt of one worker."""

    def __init__(self, store: Store, worker: str, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._worker = worker
        self._monotonic = monotonic
        self._open: dict[str, Doubt] = {}

    def add(self, nonce: str, sent: float) -> None:
        """Doubt the claim call of *nonce*, which was sent at *sent*."""
        self._open[nonce] = Doubt(sent)

    async def resolve(self, begin: Begin) -> None:
        """Have *begin* take what was claimed after all; forget what was found, or cannot be under way any more."""
        for nonce, doubt in list(self._open.items()):
            found = await self._store.read(claiming.claimed_by, self._worker, nonce)
            new = [each for each in found if each.token not in doubt.begun]
            doubt.begun |= {each.token for each in new}
            begin(new, doubt.sent)
            if found or self._monotonic() - doubt.sent > DOUBT_SECONDS:
                self._open.pop(nonce, None)

    def __len__(self) -> int:
        return len(self._open)
