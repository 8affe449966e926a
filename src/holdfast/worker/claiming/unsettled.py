"""What has ended here and is to be written down: kept until that is done, whatever goes wrong on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from holdfast.database.tx import Store
from holdfast.errors import Busy, HoldfastError, Unavailable, UnknownOutcome
from holdfast.outcomes import Facts, Kind, Outcome, describe
from holdfast.store.jobs import settling
from holdfast.store.jobs.claiming import Token
from holdfast.store.jobs.settling import Settled, Settlement
from holdfast.worker.attempts.progress import Progress
from holdfast.worker.leases import LeaseKeeper

UNWRITABLE = "its outcome could not be written"

logger = logging.getLogger(__name__)


class Ended:
    """The ends that nobody has written down yet."""

    def __init__(self) -> None:
        self._settlements: list[Settlement] = []
        self._judges: dict[Token, Callable[[BaseException], Outcome]] = {}

    def add(self, *settlements: Settlement) -> None:
        """Keep what is to be written down, or could not be and is tried again."""
        self._settlements += settlements

    def may_be_refused(self, token: Token, judge: Callable[[BaseException], Outcome]) -> None:
        """Keep how to judge an attempt whose continuation may turn out to be impossible when it is written."""
        self._judges[token] = judge

    def forget(self, token: Token) -> None:
        """Forget what was written down, or is somebody else's by now."""
        self._judges.pop(token, None)

    def refused(self, settlement: Settlement, error: HoldfastError) -> None:
        """Settle the attempt as if its handler had raised *error*."""
        judge = self._judges.pop(settlement.token)
        self.add(replace(settlement, outcome=judge(error)))

    def take(self, leases: LeaseKeeper) -> list[Settlement]:
        """Take what may be written now; a completion whose lease may be over waits for a renewal that succeeds."""
        ended, self._settlements = self._settlements, []
        batch: list[Settlement] = []
        for each in ended:  # asked once: the leases' thread may change the answer at any moment
            (batch if _may_settle(each, leases) else self._settlements).append(each)
        return batch

    def __len__(self) -> int:
        return len(self._settlements)


def _may_settle(settlement: Settlement, leases: LeaseKeeper) -> bool:
    return settlement.outcome.kind is not Kind.COMPLETE or leases.may_complete(settlement.token)


class Settler:
    """Takes in what the store says of a batch."""

    def __init__(self, store: Store, ended: Ended, leases: LeaseKeeper, progress: Progress, worker: str) -> None:
        self._store = store
        self._ended = ended
        self._leases = leases
        self._progress = progress
        self._worker = worker

    def note(self, batch: Sequence[Settlement], settled: Settled) -> None:
        """Forget what was written or is lost; keep what somebody has locked, and what cannot be as it was to be."""
        for token in (*settled.done, *settled.lost):
            self._leases.drop(token)
            self._ended.forget(token)
        self._progress.forget((*settled.done, *settled.lost))
        self._ended.add(*settled.busy)
        if settled.refused:
            for each in batch:
                if (error := settled.refused.get(each.token)) is not None:
                    self._ended.refused(each, error)

    async def settle_alone(self, batch: Iterable[Settlement]) -> None:
        """Settle each of a batch that cannot be written by itself, so that only the guilty one fails."""
        for each in batch:
            try:
                self.note([each], await self._store.run(settling.settle, [each]))
            except (Unavailable, Busy, UnknownOutcome):
                self._ended.add(each)
            except Exception as error:
                logger.exception("outcome_cannot_be_written")
                self._give_up(each, error)

    def _give_up(self, settlement: Settlement, error: Exception) -> None:
        """Fail the job instead; if not even that can be written, its lease will end."""
        token = settlement.token
        if settlement.outcome.reason == UNWRITABLE:
            self._leases.drop(token)
            self._progress.forget([token])
            return
        failed = Outcome(Kind.FAIL, error=describe(error, Facts(token.attempt, 0, self._worker)), reason=UNWRITABLE)
        self._ended.add(Settlement(token, failed, settlement.halts_lane))
