"""The exchange of a worker with its store: write down what has ended, and claim what comes next, in one commit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.database.tx import Tx, patient
from holdfast.store.jobs import claiming, settling
from holdfast.store.jobs.claiming import Claims, Place, ProgressReport, Token, Want
from holdfast.store.jobs.settling import Settled, Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one exchange asks of the store."""

    settlements: Sequence[Settlement]
    reports: Sequence[ProgressReport]
    """The last ones of those that are settled."""
    begun: Sequence[Token]
    """What was claimed ahead, and has begun."""
    wants: Sequence[Want]
    free: int
    ahead: int
    worker: str
    nonce: str
    place: Place
    is_crowded: bool

    @property
    def claim(self) -> tuple[Sequence[Want], int, str, str, Place, int]:
        """What the operations are given that claim."""
        return self.wants, self.free, self.worker, self.nonce, self.place, self.ahead


class Exchanged(NamedTuple):
    """What became of it; *marked* are those whose rows say now that they have begun."""

    settled: Settled
    claims: Claims
    marked: Collection[Token]


async def exchange(tx: Tx, request: Request) -> Exchanged:
    """Write down the last reports, what has begun and what has ended, then claim, in one transaction."""
    passed_over = await claiming.report(tx, request.reports)
    marked = await claiming.mark_begun(tx, request.begun)
    settled = await settling.settle(tx, [each for each in request.settlements if each.token not in passed_over])
    settled.busy.extend(each for each in request.settlements if each.token in passed_over)  # or a report would be lost
    claims = Claims([], more=False)
    if request.free + request.ahead:
        claims = await claiming.admit_and_claim(tx, *request.claim, is_crowded=request.is_crowded)
    return Exchanged(settled, claims, marked)


@patient
async def exchange_patiently(tx: Tx, request: Request) -> Exchanged:
    """Do the same with one settlement: there is no smaller batch to try."""
    return await exchange(tx, request)
