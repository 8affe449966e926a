"""One verb for all jobs that fit a filter, written once for both faces: here and now, or as a job of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, Unpack
from uuid import UUID

from holdfast import current_block
from holdfast.access import Actor
from holdfast.bulks import MOST_EXAMPLES, VERBS, BulkAct, BulkCount, BulkResult, BulkVerb
from holdfast.client.list_options import JobFilterOptions, flag, job_list
from holdfast.client.starter import take_calls
from holdfast.client.verbs import asked_by, when_of
from holdfast.database.tx import Runner
from holdfast.errors import BulkInterrupted, Busy, FilterRequired, InvalidInput, StoreError, got, near_and_all, shown
from holdfast.keywords import refuse_unknown
from holdfast.models import JobQuery
from holdfast.runtime import Runtime
from holdfast.store.jobs import bulk_pages
from holdfast.store.jobs.bulk_pages import Acted
from holdfast.store.reads import read_cursor
from holdfast.tasks.bulk_task import bulk_task, stored_filter

if TYPE_CHECKING:
    from holdfast.tasks.calls import Call

BUSY_TRIES = 3
MOST_COUNTED = 10_000
MOST_READS = 40
"""Of a count; where few jobs fit, each looks at 200,000 numbers at most."""


class BulkOptions(JobFilterOptions, total=False):
    """The keywords of `hf.bulk` and `hf.start_bulk`: which jobs, how far, and what the verb needs."""

    dry_run: bool
    upto: int | None
    cursor: str | None
    everything: bool
    by: str | None
    why: str | None
    at: datetime | None
    after: float | timedelta | None
    cascade: bool


class Clock(NamedTuple):
    """How a face measures and lets time pass; nothing suspends on the blocking side."""

    monotonic: Callable[[], float]
    rest: Callable[[float], Awaitable[None]]

    @classmethod
    def of(cls, runtime: Runtime, *, is_async: bool) -> Clock:
        """Make that of a face of this colour."""

        async def block(seconds: float) -> None:
            runtime.sleep_blocking(seconds)

        return cls(runtime.monotonic, runtime.sleep if is_async else block)


class _Settled(NamedTuple):
    act: BulkAct
    wanted: JobQuery
    so_far: BulkResult


async def bulk(runner: Runner, clock: Clock, verb: BulkVerb, options: BulkOptions) -> BulkResult:
    """Act on all jobs that fit, page by page, each in a transaction of its own; rest as long as each page took."""
    act, wanted, so_far = await _settle(runner, "bulk", verb, options)
    while True:
        began = clock.monotonic()
        try:
            so_far = await _turn(runner, clock, act, wanted, so_far)
        except StoreError as error:
            raise BulkInterrupted(so_far, error) from error
        if so_far.cursor is None:
            return so_far
        await clock.rest(clock.monotonic() - began)


async def _turn(runner: Runner, clock: Clock, act: BulkAct, wanted: JobQuery, so_far: BulkResult) -> BulkResult:
    """Find the next page and act on it; try again if somebody has just taken a key that it needs."""
    page = await runner.read(bulk_pages.find, wanted, so_far.upto, so_far.cursor, act.verb)
    acted = Acted()
    for tries_left in reversed(range(BUSY_TRIES if page.ids and not so_far.is_dry else 0)):
        try:
            acted = await runner.run(bulk_pages.act, act, wanted, page.ids)
            break
        except Busy:
            if not tries_left:
                raise
            await clock.rest(0.1)
    return so_far.after(page.ids, acted.done, acted.passed_over, page.cursor)


async def count(runner: Runner, verb: BulkVerb, options: BulkOptions) -> BulkCount:
    """Count the jobs that fit, up to 10,000 of them and over no more than some seconds' reads; nothing is changed."""
    act, wanted, so_far = await _settle(runner, "bulk", verb, options)
    states, sample, cursor = Counter[str](), tuple[UUID, ...](), so_far.cursor
    for _ in range(MOST_READS):
        page = await runner.read(bulk_pages.find, wanted, so_far.upto, cursor, act.verb)
        states.update(map(str, page.states))
        sample, cursor = (sample + page.ids)[:MOST_EXAMPLES], page.cursor
        if cursor is None or states.total() >= MOST_COUNTED:
            break
    return BulkCount(
        count=states.total(), is_exact=cursor is None, by_state=dict(states), sample=sample, upto=so_far.upto
    )


async def first_call(
    runner: Runner, verb: BulkVerb, options: BulkOptions, actor: Actor | None = None
) -> Call[BulkResult]:
    """Give the call of the job that acts on all jobs that fit; each of its pages is known to be *actor*'s."""
    act, _, so_far = await _settle(runner, "start_bulk", verb, options)
    if actor is not None:
        act = act.signed(actor)
    (call,) = take_calls([bulk_task()(act=act, so_far=so_far)])
    return call


async def _settle(runner: Runner, name: str, verb: BulkVerb, options: BulkOptions) -> _Settled:
    """Check what was asked for, and read up to which job it goes; nothing is written."""
    current_block.refuse_alone(f"hf.{name}")
    refuse_unknown(options, BulkOptions.__optional_keys__, f"hf.{name}()")
    asked = _Asked(name, verb, **options)
    highest = await runner.read(bulk_pages.highest_seq)
    upto = highest if asked.upto is None else min(asked.upto, highest)
    return _Settled(asked.act, asked.wanted, BulkResult(upto=upto, cursor=asked.cursor, is_dry=asked.is_dry))


class _Asked:
    """What a caller has asked for, checked."""

    def __init__(
        self,
        name: str,
        verb: BulkVerb,
        *,
        dry_run: bool = False,
        upto: int | None = None,
        cursor: str | None = None,
        everything: bool = False,
        by: str | None = None,
        why: str | None = None,
        at: datetime | None = None,
        after: float | timedelta | None = None,
        cascade: bool = False,
        **narrowed: Unpack[JobFilterOptions],
    ) -> None:
        if verb not in VERBS:
            near = near_and_all(str(verb), VERBS, "the verbs are")
            raise InvalidInput(f"hf.{name}() has no verb {shown(verb)}{near}", "verb")
        self.wanted, _ = job_list(**narrowed)
        if self.wanted._replace(internal=False) == JobQuery() and not flag(everything, "everything"):
            raise FilterRequired(name)
        if upto is not None and (type(upto) is not int or upto < 0):
            raise InvalidInput(f"upto must be the upto of a result, {got(upto)}; write upto=plan.upto", "upto")
        if cursor is not None:
            read_cursor(cursor, "oldest")
        if flag(cascade, "cascade") and verb != "delete":
            raise InvalidInput(f"cascade is for 'delete' only, not for {verb!r}; leave it out", "cascade")
        if (at is not None or after is not None) and verb != "reschedule":
            raise InvalidInput(f"at and after are for 'reschedule' only, not for {verb!r}; leave them out", "at")
        run_at_ms, delay_ms = when_of(at, after) if verb == "reschedule" else (0, 0)
        who, reason = asked_by(by, why)
        self.upto, self.cursor, self.is_dry = upto, cursor, flag(dry_run, "dry_run")
        self.act = BulkAct(
            verb=verb,
            filter=stored_filter(self.wanted),
            by=who,
            why=reason,
            run_at_ms=run_at_ms,
            delay_ms=delay_ms,
            cascade=cascade,
        )
