"""Acting on all jobs that fit a filter: what is to be done, and what it has come to so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args
from uuid import UUID

from holdfast.access import Actor
from holdfast.models import Asked

BulkVerb: TypeAlias = Literal["cancel", "pause", "resume", "retry", "reschedule", "delete"]
VERBS: tuple[BulkVerb, ...] = get_args(BulkVerb)

MOST_EXAMPLES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAct:
    """One verb for all jobs that fit *filter*, in a form that is stored as the input of a job.

    *filter* has the fields of a `JobQuery` that narrow something, as JSON. *run_at_ms* and *delay_ms* are for
    `reschedule`, and *cascade* is for `delete`. With *audited* each page leaves a row in the audit, for the HTTP
    request *request*, if it was one.
    """

    verb: BulkVerb
    filter: dict[str, Any] = field(default_factory=dict)
    by: str | None = None
    why: str | None = None
    run_at_ms: int = 0
    delay_ms: int = 0
    cascade: bool = False
    audited: bool = False
    request: str | None = None

    def signed(self, actor: Actor) -> BulkAct:
        """Give what *actor* has asked for: in that name, as far as it says none, and with a row for each page."""
        asked = actor.asked(Asked(self.by, self.why))
        return replace(self, by=asked.by, why=asked.why, audited=True, request=actor.request)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """What acting on many jobs has come to."""

    matched: int = 0
    """How many jobs fitted the filter."""
    done: int = 0
    """On how many of them the verb has acted; 0 in a dry run."""
    passed_over: Mapping[str, int] = field(default_factory=dict)
    """How many were left as they are, by the code of the error that the verb would have raised for one of them."""
    examples: tuple[UUID, ...] = ()
    """The first ten that fitted."""
    upto: int
    """The highest `job.seq` that it looks at: what came later is never touched."""
    cursor: str | None = None
    """Where it goes on; None once it has looked at everything."""
    is_dry: bool = False
    """Whether it only counted."""

    def after(
        self, matched: Sequence[UUID], done: int, passed_over: Mapping[str, int], cursor: str | None
    ) -> BulkResult:
        """Give what it has come to after one more page, which ended at *cursor*."""
        return replace(
            self,
            matched=self.matched + len(matched),
            done=self.done + done,
            passed_over=dict(Counter(self.passed_over) + Counter(passed_over)),
            examples=(self.examples + tuple(matched[:MOST_EXAMPLES]))[:MOST_EXAMPLES],
            cursor=cursor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkCount:
    """How many jobs a verb would act on; unless *is_exact*, there may be more."""

    count: int
    is_exact: bool
    by_state: Mapping[str, int]
    sample: tuple[UUID, ...]
    """The first ten of them."""
    upto: int
    """The highest `job.seq` that was looked at."""
