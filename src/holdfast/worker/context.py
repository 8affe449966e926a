"""What a handler is given: its job and, as the engine grows, everything it may do to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.models import Job


@dataclass(frozen=True, slots=True)
class Context:
    """The first parameter of an `async def` handler that wants one.

    Annotate it, and leave it out when you call the task: `async def charge(ctx: Context, order_id: int) -> str`.
    """

    __holdfast_context__: ClassVar[str] = "async"

    job: Job

    @property
    def idempotency_key(self) -> str:
        """The same text in every attempt of this job, for services that take such a key."""
        return str(self.job.id)


@dataclass(frozen=True, slots=True)
class BlockingContext:
    """The first parameter of a plain `def` handler that wants one; public as `holdfast.sync.Context`."""

    __holdfast_context__: ClassVar[str] = "blocking"

    job: Job

    @property
    def idempotency_key(self) -> str:
        """The same text in every attempt of this job, for services that take such a key."""
        return str(self.job.id)
