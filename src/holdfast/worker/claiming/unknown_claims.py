"""Claims whose answers were lost: COMMIT was sent, and nobody knows whether these jobs are ours.

They are found again by the nonce of the call. Such a COMMIT may still be under way for a while, so one look that finds
nothing is not enough; one that finds something has found all, for they were claimed in one transaction. A look of the
worker's other loop may be older than what became of an attempt since, so what was found once is not begun again.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import Claimed, Token
from holdfast.worker.claiming.core import WorkerCore

DOUBT_SECONDS = 10.0
AGAIN_SECONDS = 0.25
"""Until such a claim is looked for again."""


class UnknownClaims:
    """The claims in doubt of one worker."""

    def __init__(self, core: WorkerCore) -> None:
        self._core = core
        self._monotonic = core.runtime.monotonic
        self._open: dict[str, tuple[float, set[Token]]] = {}
        """By their nonces: when each was sent, and what of it was found and begun."""
        self._look_at = 0.0

    def add(self, nonce: str, sent: float) -> None:
        self._open[nonce] = (sent, set())
        self._look_at = self._monotonic()

    def seconds(self) -> float | None:
        """Say how long until it is time to look for them; None if there are none."""
        return self._look_at - self._monotonic() if self._open else None

    async def resolve(self, begin: Callable[[list[Claimed], float], None]) -> None:
        """Have *begin* take what was claimed after all; forget what was found, or cannot be under way any more."""
        self._look_at = self._monotonic() + AGAIN_SECONDS  # so that the worker's other loop does not look as well
        for nonce, (sent, begun) in list(self._open.items()):
            found = await self._core.store.read(claiming.claimed_by, self._core.id, nonce)
            new = [each for each in found if each.token not in begun]
            begun |= {each.token for each in new}
            begin(new, sent)
            if found or self._monotonic() - sent > DOUBT_SECONDS:
                self._open.pop(nonce, None)
