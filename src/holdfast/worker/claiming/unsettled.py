"""What has ended here and is to be written down: kept until that is done, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from holdfast.database.tx import Store
from holdfast.errors import Busy, StoreError, Unavailable, UnknownOutcome
from holdfast.logging import reason_of, say
from holdfast.outcomes import Facts, Kind, Outcome, describe
from holdfast.store.jobs import reaping, settling
from holdfast.store.jobs.claiming import Claimed, ClaimState, Token
from holdfast.store.jobs.settling import Settled, Settlement
from holdfast.worker.attempts.progress import Progress
from holdfast.worker.claiming.batch_size import BatchSize
from holdfast.worker.leases import LeaseKeeper
from holdfast.worker.tally import Tally
from holdfast.worker.upkeep.reaper import LostLeases

PUT_OFF_SECONDS = 1.0
UNWRITABLE = "its outcome could not be written"

JudgesError: TypeAlias = Callable[[BaseException], Outcome]

logger = logging.getLogger(__name__)


class Unsettled:
    """The ends that nobody has written down yet."""

    def __init__(
        self,
        store: Store,
        worker: str,
        leases: LeaseKeeper,
        progress: Progress,
        lost_leases: LostLeases,
        tally: Tally,
    ) -> None:
        self._store = store
        self._worker = worker
        self._leases = leases
        self._progress = progress
        self._lost_leases = lost_leases
        self._tally = tally
        self._settlements: list[Settlement] = []
        self._judges: dict[Token, JudgesError] = {}
        self.batch_size = BatchSize()

    def add(self, *settlements: Settlement) -> None:
        """Keep what is to be written down, or could not be and is tried again."""
        self._settlements += settlements

    def give_back(self, job: Claimed, reason: str, seconds: float = 0.0) -> None:
        """Give back a job that has not begun; nobody claims it for *seconds*."""
        self.add(Settlement(job.token, Outcome(Kind.GIVE_BACK, reason=reason, delay_ms=round(seconds * 1000))))

    def put_off(self, job: Claimed, reason: str) -> None:
        """Give a job back for a moment, which cannot begin here now."""
        self.give_back(job, reason, PUT_OFF_SECONDS)

    def may_be_refused(self, token: Token, judge: JudgesError) -> None:
        """Keep how to judge an attempt whose continuation may turn out to be impossible when it is written."""
        self._judges[token] = judge

    def take(self) -> list[Settlement]:
        """Take a batch of what may be written now; a completion whose lease may be over waits for a good renewal."""
        ended, self._settlements = self._settlements, []
        may_complete = self._leases.completable()  # asked once: the leases' thread may change the answer at any moment
        batch: list[Settlement] = []
        for each in ended:
            may_settle = each.outcome.kind is not Kind.COMPLETE or may_complete(each.token)
            (batch if may_settle else self._settlements).append(each)
        if (most := self.batch_size.fit(batch)) < len(batch):
            self._settlements[:0] = batch[most:]
            del batch[most:]
        return batch

    def has_some(self) -> bool:
        """Tell whether `take` would give some."""
        if not self._settlements:
            return False
        may_complete = self._leases.completable()
        return any(each.outcome.kind is not Kind.COMPLETE or may_complete(each.token) for each in self._settlements)

    def __len__(self) -> int:
        return len(self._settlements)

    def note(self, batch: Sequence[Settlement], settled: Settled) -> None:
        """Forget what was written or is lost; keep what somebody has locked, and what cannot be as it was to be."""
        self._tally.settled(batch, settled)
        over = [*settled.done, *settled.lost]
        self._leases.drop(*over)
        self._progress.forget(over)
        if settled.lost:
            self._lost_leases.note(token for token, state in settled.lost.items() if state is ClaimState.TAKEN)
        if self._judges:
            for token in over:
                self._judges.pop(token, None)
        self.add(*settled.busy)
        if settled.refused:
            for each in batch:
                if (error := settled.refused.get(each.token)) is not None:  # as if its handler had raised it
                    self.add(each._replace(outcome=self._judges.pop(each.token)(error)))

    async def settle_alone(self, batch: Iterable[Settlement]) -> None:
        """Settle each of a batch that cannot be written by itself, so that only the guilty one fails."""
        for each in batch:
            try:
                self.note([each], await self._store.run(settling.settle, [each]))
            except (Unavailable, Busy, UnknownOutcome):
                self.add(each)
            except Exception as error:  # noqa: BLE001 - such as a value that the database cannot store
                facts: dict[str, Any] = {"attempt": each.token.attempt, "reason": reason_of(error)}
                say(logger, "outcome_cannot_be_written", trace=error, **facts)
                self._give_up(each, error)

    async def give_back_all(self, seconds: float) -> int:
        """Give back what could not be written down, if at least that can be; else its leases end; say how many."""
        try:
            async with asyncio.timeout(seconds):
                return await self._store.run(reaping.give_back_unwritten, [each.token for each in self._settlements])
        except (StoreError, TimeoutError):
            return 0

    def _give_up(self, settlement: Settlement, error: Exception) -> None:
        """Fail the job instead; if not even that can be written, its lease will end."""
        token = settlement.token
        if settlement.outcome.reason == UNWRITABLE:
            self._leases.drop(token)
            self._progress.forget([token])
            return
        failed = Outcome(Kind.FAIL, error=describe(error, Facts(token.attempt, 0, self._worker)), reason=UNWRITABLE)
        self.add(settlement._replace(outcome=failed, is_plain=False))
