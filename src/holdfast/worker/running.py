"""The attempts that run here: who they are, how they are told to stop, and which of them will not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping

from holdfast.models import INTERNAL_QUEUE
from holdfast.store.jobs import Token
from holdfast.worker.aborts import AbortReason
from holdfast.worker.attempt import Attempt

STUBBORN_SECONDS = 10.0

logger = logging.getLogger(__name__)


class Running:
    """The attempts under way, each by its token; touched in the worker's loop only."""

    def __init__(self) -> None:
        self._attempts: dict[Token, Attempt] = {}
        self.internal = 0
        """How many of them are the engine's own, which take no slot of a handler."""

    def add(self, attempt: Attempt) -> None:
        """Count *attempt* in."""
        self._attempts[attempt.job.token] = attempt
        self.internal += attempt.job.queue == INTERNAL_QUEUE

    def remove(self, attempt: Attempt) -> bool:
        """Count *attempt* out; tell whether it was here, and not abandoned before."""
        was_here = self._attempts.pop(attempt.job.token, None) is not None
        self.internal -= was_here and attempt.job.queue == INTERNAL_QUEUE
        return was_here

    def abort(self, reasons: Mapping[Token, AbortReason]) -> None:
        """Tell these attempts to stop, as far as they run and have not been told; say so if they do not."""
        loop = asyncio.get_running_loop()
        for token, reason in reasons.items():
            if (attempt := self._attempts.get(token)) is not None and attempt.context.abort_reason is None:
                attempt.abort(reason)
                loop.call_later(STUBBORN_SECONDS, self._tell_stubborn, token)

    def abort_all(self, reason: AbortReason) -> None:
        """Tell every attempt to stop."""
        for attempt in list(self._attempts.values()):
            attempt.abort(reason)

    def by_seq(self) -> dict[int, Attempt]:
        """Give the attempts by the job that they are of."""
        return {each.job.token.seq: each for each in self._attempts.values()}

    @property
    def stubborn(self) -> list[str]:
        """The jobs whose handlers were told to stop long ago and have not."""
        return [each.job.id for each in list(self._attempts.values()) if each.is_stubborn]

    def __contains__(self, token: Token) -> bool:
        return token in self._attempts

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self._attempts.values())

    def __len__(self) -> int:
        return len(self._attempts)

    def _tell_stubborn(self, token: Token) -> None:
        if (attempt := self._attempts.get(token)) is not None:
            attempt.is_stubborn = True
            facts = {"job": attempt.job.id, "task": attempt.job.task, "reason": attempt.context.abort_reason}
            logger.warning("handler_does_not_stop", extra=facts)
