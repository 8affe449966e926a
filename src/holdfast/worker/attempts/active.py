"""The attempts that run here: who they are, how they are told to stop, and which of them will not."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from enum import IntEnum, auto
from typing import ClassVar

from holdfast.models import BULK_QUEUE, INTERNAL_QUEUE
from holdfast.outcomes import Outcome
from holdfast.store.jobs.claiming import Claimed, Token
from holdfast.worker.attempts.aborts import AbortReason

STUBBORN_SECONDS = 10.0


class Slot(IntEnum):
    """Whose slots an attempt takes one of: a worker counts each kind by itself."""

    HANDLER = auto()
    DELIVERY = auto()
    BULK = auto()
    CHILD = auto()
    SUSPECT = auto()
    """None of those that jobs are claimed for: a suspect in a child of its own takes no slot from the others."""


OWN_SLOTS = {INTERNAL_QUEUE: Slot.DELIVERY, BULK_QUEUE: Slot.BULK}
"""The queues of built-in tasks, which take no slot of handlers."""


class Run(ABC):
    """An attempt under way, in this process or in a child."""

    is_remote: ClassVar[bool] = False
    """Whether it runs in a child process."""
    job: Claimed
    abort_reason: AbortReason | None = None
    """Why the handler was told to stop, if it was."""
    is_stubborn = False
    """Whether it was told so long ago, and has not."""
    error: BaseException | None = None
    """What the handler raised, until the log has it."""
    runs_in: asyncio.Task[None] | None = None
    """The task that it runs in, once it waits for something."""
    warning: str | None = None
    """What was raised after a block had completed the job, as JSON text for the history."""
    began: float | None = None
    """When the handler began, by the loop's clock; None for jobs that are not counted, as of the engine itself."""

    @property
    @abstractmethod
    def is_completed(self) -> bool:
        """Tell whether a block has completed the job, so that nothing is left to write."""

    @abstractmethod
    async def run(self) -> Outcome | None:
        """Run the handler to its end and say what the attempt came to."""

    @abstractmethod
    def abort(self, reason: AbortReason) -> None:
        """Tell the handler to stop; the first reason counts."""

    @abstractmethod
    def aborted(self, reason: AbortReason) -> Outcome | None:
        """Say what an attempt comes to that was stopped for *reason*."""

    @abstractmethod
    def judge(self, error: BaseException) -> Outcome:
        """Say what the attempt comes to that ends in *error*."""

    def kill(self) -> None:  # noqa: B027 - one in this process cannot
        """End the handler by force, if that can be done: nobody waits for it any longer."""


def slot_of(run: Run) -> Slot:
    """Say whose slot *run* takes."""
    if run.is_remote:
        return Slot.SUSPECT if run.job.is_suspect else Slot.CHILD
    return OWN_SLOTS.get(run.job.queue, Slot.HANDLER)


class Active:
    """The attempts under way, each by its token; touched in the worker's loop only."""

    def __init__(self) -> None:
        self._attempts: dict[Token, Run] = {}
        self._taken = dict.fromkeys(Slot, 0)

    def add(self, attempt: Run) -> None:
        self._attempts[attempt.job.token] = attempt
        self._taken[slot_of(attempt)] += 1

    def remove(self, attempt: Run) -> bool:
        """Count *attempt* out; tell whether it was here, and not abandoned before."""
        was_here = self._attempts.pop(attempt.job.token, None) is not None
        self._taken[slot_of(attempt)] -= was_here
        return was_here

    def taken(self, slot: Slot) -> int:
        return self._taken[slot]

    def abort(self, reasons: Mapping[Token, AbortReason]) -> None:
        """Tell these attempts to stop, as far as they run."""
        for token, reason in reasons.items():
            if (attempt := self._attempts.get(token)) is not None:
                attempt.abort(reason)

    def abort_all(self, reason: AbortReason) -> None:
        for attempt in list(self._attempts.values()):
            attempt.abort(reason)

    def by_seq(self) -> dict[int, Run]:
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
