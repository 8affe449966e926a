"""What waits for a person: the question that a task asks, and the entries of `hf.inbox()`.

A task with `asks=` has no handler: its jobs wait until somebody completes them. The inbox shows these jobs beside all
that the engine cannot decide by itself: failed and paused jobs, halted lanes, webhooks that were given up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal, TypeAlias, get_args
from uuid import UUID

from holdfast.errors import InvalidInput, got
from holdfast.models import Job
from holdfast.texts import UNSTORABLE

PEOPLE = "people"
"""The queue of jobs that a person completes, unless another is chosen."""

TITLE_LENGTH, HELP_LENGTH = 200, 2_000
LINE_BREAK = re.compile("[\n\r\u2028\u2029]")

InboxKind: TypeAlias = Literal["asked", "failed", "paused", "halted", "dead_letter"]
KINDS: tuple[InboxKind, ...] = get_args(InboxKind)
"""In the order in which the inbox shows them."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a task asks a person, who completes its jobs: a *title* of one line, and *help* for whoever decides.

    >>> Question("Approve the refund?", help="Compare the amount with the invoice.").title
    'Approve the refund?'
    """

    title: str
    help: str | None = None

    def __post_init__(self) -> None:
        if not _is_text(self.title, TITLE_LENGTH) or not self.title.strip() or LINE_BREAK.search(self.title):
            raise InvalidInput(
                f"the title of a Question must be one line of 1 to {TITLE_LENGTH} characters, {got(self.title)}; put "
                "the rest into help=",
                "asks.title",
            )
        if self.help is not None and not _is_text(self.help, HELP_LENGTH):
            raise InvalidInput(
                f"the help of a Question must be a text of at most {HELP_LENGTH:,} characters, {got(self.help)}; put "
                "what differs from job to job into the task's arguments",
                "asks.help",
            )

    def record(self) -> dict[str, str | None]:
        """Give it as the policy of its task has it."""
        return {"title": self.title, "help": self.help}

    @classmethod
    def of_policy(cls, policy: Any) -> Question | None:
        """Read what the stored *policy* of a task asks; None if it asks nothing that this release can read."""
        asks = policy.get("asks") if isinstance(policy, dict) else None
        if not isinstance(asks, dict):
            return None
        try:
            return cls(asks.get("title"), asks.get("help"))  # type: ignore[arg-type]  # it checks them itself
        except InvalidInput:
            return None


def _is_text(value: object, most: int) -> bool:
    return isinstance(value, str) and len(value) <= most and not UNSTORABLE.search(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question that waits for its answer: `hf.complete(task, ask, output)` gives it."""

    kind: ClassVar[InboxKind] = "asked"
    job: Job
    """The job; its arguments are `job.input`."""
    title: str
    help: str | None
    output_schema: dict[str, Any]
    """The answer's JSON Schema."""
    since: datetime
    """When it could first be answered."""

    @property
    def id(self) -> UUID:
        """The id of the job."""
        return self.job.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Failed jobs of one task with the same error: `hf.retry(failure.example)` runs the newest of them again."""

    kind: ClassVar[InboxKind] = "failed"
    task: str
    error_type: str | None
    """The name of the exception's class; None if no exception ended them."""
    message: str
    """The first line of the error's message, or of the reason."""
    count: int
    is_exact: bool
    """Whether these are all; otherwise they are those among the newest 2,000 failed jobs and deliveries."""
    example: UUID
    """The newest of these jobs."""
    since: datetime
    """When the oldest of these jobs failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedJob:
    """A paused job, in no lane that it halts: `hf.resume(paused)` lets it go on. `job.reason` says why it is paused."""

    kind: ClassVar[InboxKind] = "paused"
    job: Job
    since: datetime
    """When it was paused; when it was started, if its task keeps no history."""

    @property
    def id(self) -> UUID:
        """The id of the job."""
        return self.job.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """A lane that a failed or paused job halts: retry, resume or complete the job, or `hf.lane(key).skip()` it."""

    kind: ClassVar[InboxKind] = "halted"
    lane: str
    job: Job
    """The job that halts it; `job.error` and `job.reason` say why."""
    behind: int
    """How many jobs wait behind it, counted up to 100."""
    since: datetime
    """When the job failed or was paused."""

    @property
    def id(self) -> UUID:
        """The id of the job."""
        return self.job.id


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Webhook deliveries to one receiver that were given up: `hf.webhooks.redeliver(letter.example)` tries again."""

    kind: ClassVar[InboxKind] = "dead_letter"
    receiver: str | None = field(repr=False)  # its path may be a secret
    """The host, port and path; None if a former release made them."""
    subscription: UUID | None
    """None if the jobs named the receiver themselves."""
    message: str
    """What the newest of them came to."""
    count: int
    is_exact: bool
    """Whether these are all; otherwise they are those among the newest 2,000 failed jobs and deliveries."""
    example: UUID
    """The newest of these deliveries."""
    since: datetime
    """When the oldest of them was given up."""


InboxEntry: TypeAlias = Ask | Failure | PausedJob | Halt | DeadLetter
