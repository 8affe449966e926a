"""The attempts that run here: who they are, how they are told to stop, and which of them will not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Any, Protocol

from holdfast.models import INTERNAL_QUEUE
from holdfast.outcomes import Outcome
from holdfast.store.jobs.claiming import Claimed, Token
from holdfast.tasks.task import Task
from holdfast.worker.attempts.aborts import AbortReason

STUBBORN_SECONDS = 10.0

logger = logging.getLogger(__name__)


class Slot(Enum):
    """Whose slots an attempt takes one of: a worker counts each kind by itself."""

    HANDLER = auto()
    DELIVERY = auto()
    CHILD = auto()


class Run(Protocol):
    """An attempt under way, in this process or in a child."""

    is_stubborn: bool

    @property
    def job(self) -> Claimed:
        """The job as it was claimed."""

    @property
    def task(self) -> Task[..., Any]:
        """Its task."""

    @property
    def warning(self) -> str | None:
        """What was raised after a block had completed the job, as JSON text for the history."""

    @property
    def abort_reason(self) -> AbortReason | None:
        """Why the handler was told to stop, if it was."""

    async def run(self) -> Outcome | None:
        """Run the handler to its end and say what the attempt came to."""

    def abort(self, reason: AbortReason) -> None:
        """Tell the handler to stop; the first reason counts."""

    def aborted(self, reason: AbortReason) -> Outcome | None:
        """Say what an attempt comes to that was stopped for *reason*."""

    def judge(self, error: BaseException) -> Outcome:
        """Say what the attempt comes to that ends in *error*."""

    def leave_behind(self) -> None:
        """End the handler by force, if that can be done: nobody waits for it any longer."""


def slot_of(run: Run) -> Slot:
    """Say whose slot *run* takes."""
    if run.task.policy.is_in_child:
        return Slot.CHILD
    return Slot.DELIVERY if run.job.queue == INTERNAL_QUEUE else Slot.HANDLER


class Running:
    """The attempts under way, each by its token; touched in the worker's loop only."""

    def __init__(self) -> None:
        self._attempts: dict[Token, Run] = {}
        self._taken = dict.fromkeys(Slot, 0)

    def add(self, attempt: Run) -> None:
        """Count *attempt* in."""
        self._attempts[attempt.job.token] = attempt
        self._taken[slot_of(attempt)] += 1

    def remove(self, attempt: Run) -> bool:
        """Count *attempt* out; tell whether it was here, and not abandoned before."""
        was_here = self._attempts.pop(attempt.job.token, None) is not None
        self._taken[slot_of(attempt)] -= was_here
        return was_here

    def taken(self, slot: Slot) -> int:
        """Say how many slots of a kind are taken."""
        return self._taken[slot]

    def abort(self, reasons: Mapping[Token, AbortReason]) -> None:
        """Tell these attempts to stop, as far as they run and have not been told; say so if they do not."""
        loop = asyncio.get_running_loop()
        for token, reason in reasons.items():
            if (attempt := self._attempts.get(token)) is not None and attempt.abort_reason is None:
                attempt.abort(reason)
                loop.call_later(STUBBORN_SECONDS, self._tell_stubborn, token)

    def abort_all(self, reason: AbortReason) -> None:
        """Tell every attempt to stop."""
        for attempt in list(self._attempts.values()):
            attempt.abort(reason)

    def by_seq(self) -> dict[int, Run]:
        """Give the attempts by the job that they are of."""
        return {each.job.token.seq: each for each in self._attempts.values()}

    @property
    def stubborn(self) -> list[str]:
        """The jobs whose handlers were told to stop long ago and have not."""
        return [each.job.id for each in list(self._attempts.values()) if each.is_stubborn]

    def __contains__(self, token: Token) -> bool:
        return token in self._attempts

    def __iter__(self) -> Iterator[Run]:
        return iter(self._attempts.values())

    def __len__(self) -> int:
        return len(self._attempts)

    def _tell_stubborn(self, token: Token) -> None:
        if (attempt := self._attempts.get(token)) is not None:
            attempt.is_stubborn = True
            facts = {"job": attempt.job.id, "task": attempt.job.task, "reason": attempt.abort_reason}
            logger.warning("handler_does_not_stop", extra=facts)
