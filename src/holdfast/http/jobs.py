"""`/api/jobs`: list, read and steer jobs; `starts` starts them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias, TypeVar
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, Field

from holdfast.access import Role
from holdfast.attempts import PastAttempt, attempts_of
from holdfast.errors import JobNotFound
from holdfast.filters import parse, read_scalar
from holdfast.http.endpoint import Inquiry, NoBody, NoQuery, PageLimit, PageQuery, Taken
from holdfast.http.problems import Forbidden, InvalidRequest, NoSuchRoute
from holdfast.models import RESERVED, Event, Job, Order, Page
from holdfast.store.reads import write_cursor
from holdfast.times import instant_text
from holdfast.wire.chain_json import ChainObject, chain_object
from holdfast.wire.explanation_json import ReasonObject, reason_object
from holdfast.wire.job_json import JobObject, event_object
from holdfast.wire.redaction import Redaction

T = TypeVar("T")

Words: TypeAlias = tuple[str, ...]
View: TypeAlias = Literal["brief", "full"]

MOST_FULL = 100
MOST_FULL_LENGTH = 4_000_000
"""How many characters the inputs and outputs of a page of whole jobs may have before it ends."""
MOST_EVENTS = 10_000
"""How much of a history is looked at for attempts."""
NOT_FILTERS = frozenset({"q", "view", "limit", "cursor"})


# what is taken


class JobsFilter(Taken):
    """Which jobs: single filters, and the same as one text in `q`."""

    q: str | None = None
    id: Words = ()
    chain: Words = ()
    chain_task: Words = ()
    task: Words = ()
    status: Words = ()
    queue: Words = ()
    lane: Words = ()
    tag: Words = ()
    worker: Words = ()
    error: Words = ()
    input: Annotated[dict[str, str], Field(alias="input.")] = {}  # noqa: RUF012 - nobody writes into it
    parent: str | None = None
    created_from: AwareDatetime | None = None
    created_to: AwareDatetime | None = None
    order: Order = "newest"
    internal: bool = False

    def wanted(self, now: datetime) -> dict[str, Any]:
        """Give the keywords of `hf.list_jobs`; `since:2h` means two hours before *now*."""
        alone = {name: getattr(self, name) for name in self.model_fields_set - NOT_FILTERS}
        if "input" in alone:
            alone["input"] = {path: read_scalar(text) for path, text in self.input.items()}
        return joined(alone, {} if self.q is None else parse(self.q, now))


def joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Put together filters that name different things."""
    for name in sorted(one.keys() & other.keys()):
        if name != "input" or one[name].keys() & other[name].keys():
            raise InvalidRequest(f"{name} is given in q and beside it; say it in one of them", errors=[(name, "twice")])
    found = {**one, **other}
    if "input" in one and "input" in other:
        found["input"] = {**one["input"], **other["input"]}
    return found


class JobsQuery(JobsFilter, PageQuery):
    """A page of a list of jobs; `view=full` shows all of each."""

    view: View = "brief"


class StepsQuery(PageQuery):
    """A page of the jobs of a chain; `view=full` shows all of each."""

    view: View = "brief"


class JournalQuery(Taken):
    """Which entries of a journal: those of a kind, and behind a number."""

    kind: str | None = None
    after: str = "0"
    limit: PageLimit = 50


class WhyBody(Taken):
    """Why something is done; the audit keeps it."""

    why: str | None = None


class SteerBody(WhyBody):
    """A verb for one job; *if_state* is the `state_tag` that it must still have."""

    if_state: str | None = None


class EditBody(SteerBody):
    """A verb that may change the input: *arguments* are merged into it, and null removes."""

    arguments: dict[str, Any] | None = None


class RescheduleBody(SteerBody):
    """When a job is to run: *at* a time with its zone, or *after* so many seconds."""

    at: AwareDatetime | None = None
    after: float | None = None


class CompleteBody(SteerBody):
    """The output that a job is completed with."""

    output: Any = None


# what is given


class SearchedObject(BaseModel):
    """How far a request has looked, by the numbers of jobs."""

    first: Annotated[int, Field(alias="from")]
    last: Annotated[int, Field(alias="to")]
    is_end: bool
    """Whether nothing that fits is left behind."""


class JobPage(BaseModel):
    """A page of jobs; it may be short, or empty, and have a next one."""

    items: list[JobObject]
    next_cursor: str | None
    searched: SearchedObject | None


class ExplanationObject(BaseModel):
    """Why a job does not run: all reasons that hold, in the order in which the engine would meet them."""

    job: JobObject | None
    reasons: list[ReasonObject]
    until: str | None
    """When time alone ends all of them; null if something else must happen."""


class HistoryEvent(BaseModel):
    """An event of a job; what the job is now, `/api/jobs/{id}` tells."""

    event: str
    at: str
    status: str | None
    version: int | None
    attempt: int | None
    facts: dict[str, Any]


class HistoryPage(BaseModel):
    """A page of the history of a job, oldest event first."""

    items: list[HistoryEvent]
    next_cursor: str | None


class AttemptPhaseObject(BaseModel):
    """A phase that an attempt has worked on."""

    name: str
    started_at: str | None
    finished_at: str | None


class AttemptObject(BaseModel):
    """One run of a job; *wait* and *run* are seconds."""

    number: int | None
    worker: str | None
    started_at: str
    ended_at: str | None
    wait: float | None
    run: float | None
    outcome: str | None
    reason: str | None
    error: Any
    phases: list[AttemptPhaseObject]


class AttemptList(BaseModel):
    """The attempts of a job; unless *is_whole*, the history is longer than what was looked at."""

    items: list[AttemptObject]
    is_whole: bool


class ChainList(BaseModel):
    """The chains that a job waits for, open or closed, in the order in which they were given."""

    items: list[ChainObject]


class EntryObject(BaseModel):
    """An entry of a journal."""

    number: int
    attempt: int
    kind: str
    at: str
    body: Any


class JournalPage(BaseModel):
    """A page of a journal, oldest entry first; its cursor is an *after*."""

    items: list[EntryObject]
    next_cursor: str | None


class PhaseResult(BaseModel):
    """What a phase gave; null until it has completed."""

    name: str
    status: str
    result: Any


class Steered(BaseModel):
    """What a verb came to, and the job that it was for as it is now; null if that is gone meanwhile."""

    answer: str
    job: JobObject | None


# lists and reads


def now_of(ask: Inquiry[Any, Any]) -> datetime:
    """Tell the time, as the runtime has it."""
    return datetime.fromtimestamp(ask.hf._runtime.wall_ms() / 1000, UTC)


def listed(ask: Inquiry[Any, Any], job: Job, view: View) -> dict[str, Any]:
    """Write a job of a list; a brief one has no phases."""
    written = ask.shown.job(job, brief=view == "brief")
    if view == "brief":
        written["phases"] = []
    return written


def page_object(page: Page[T], write: Callable[[T], Any]) -> dict[str, Any]:
    """Write a page of a list that takes no filter."""
    return {"items": [write(each) for each in page], "next_cursor": page.next_cursor}


def searched_object(page: Page[Any]) -> dict[str, Any] | None:
    """Write how far a request has looked."""
    found = page.searched
    return None if found is None else {"from": found.from_seq, "to": found.to_seq, "is_end": found.is_end}


def refuse_long(query: JobsQuery | StepsQuery) -> None:
    """Raise for a page of whole jobs that would be too large."""
    if query.view == "full" and query.limit > MOST_FULL:
        raise InvalidRequest(
            f"limit must be 1 to {MOST_FULL} with view=full, got {query.limit}; ask for less at a time",
            errors=[("limit", f"at most {MOST_FULL}")],
        )


def cut_short(page: Page[Job], kind: str, number_of: Callable[[Job], int]) -> Page[Job]:
    """End a page of whole jobs where it has become large; *kind* and *number_of* are those of its cursors.

    A client that reads slowly has the server keep what it has not read yet, and there may be many of them.
    """
    length = 0
    for at, job in enumerate(page):
        length += len(job.input) + len(job.output or "")
        if length > MOST_FULL_LENGTH and at:
            last = number_of(page[at - 1])
            searched = page.searched and page.searched._replace(to_seq=last, is_end=False)
            return Page(page[:at], write_cursor(kind, last), searched)
    return page


def wanted_of(ask: Inquiry[Any, Any]) -> dict[str, Any]:
    """Give the keywords of `hf.list_jobs` that a query says, unless they ask for what is hidden."""
    wanted: dict[str, Any] = ask.query.wanted(now_of(ask))
    refuse_hidden(ask, wanted)
    return wanted


def refuse_hidden(ask: Inquiry[Any, Any], wanted: Mapping[str, Any]) -> None:
    """Raise `Forbidden` for a filter by a value that is hidden: whoever may guess at one finds it."""
    for path, value in (wanted.get("input") or {}).items():
        if not ask.shown.payloads:
            raise Forbidden("you are shown no inputs, so you cannot filter by them; leave out what begins with input.")
        if ask.shown.hides(path, value, wanted.get("task") or ()):
            raise Forbidden(f"input.{path} is hidden, so you cannot filter by it; leave it out")


async def refuse_restart(ask: Inquiry[Any, Any], ids: Sequence[UUID]) -> None:
    """Raise `Forbidden` if operators would have done once more what only admins may do, such as a bulk delete."""
    if ask.who.role.allows(Role.ADMIN):
        return
    for job in await ask.hf.list_jobs(id=ids, limit=max(1, len(ids)), internal=True):
        if job.task.startswith(RESERVED):
            raise Forbidden(f"job {job.id} is one of {job.task}; to run it again needs the role admin; ask an admin")


async def list_all(ask: Inquiry[JobsQuery, NoBody]) -> dict[str, Any]:
    """List jobs, newest first, narrowed by filters."""
    refuse_long(ask.query)
    wanted = wanted_of(ask)
    page = await ask.hf.list_jobs(**wanted, **ask.query.page)
    if ask.query.view == "full":
        page = cut_short(page, wanted.get("order", "newest"), lambda job: job.seq)
    written = page_object(page, lambda job: listed(ask, job, ask.query.view))
    return {**written, "searched": searched_object(page)}


async def read(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """Read a job, with its phases."""
    return ask.shown.job(await ask.hf.get_job(ask.id))


async def explain(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """Say why a job does not run: every reason that holds, and what ends it."""
    found = await ask.hf.explain(ask.id)
    shown = ask.shown.reader if found.job is None else ask.shown.of(found.job.task)
    return {
        "job": None if found.job is None else ask.shown.job(found.job),
        "reasons": [reason_object(each, shown) for each in found.reasons],
        "until": instant_text(found.until),
    }


async def timeline(ask: Inquiry[PageQuery, NoBody]) -> dict[str, Any]:
    """List the events of a job, oldest first."""
    return page_object(await ask.hf.timeline(ask.id, **ask.query.page), lambda each: history_event(ask, each))


def history_event(ask: Inquiry[Any, Any], event: Event) -> dict[str, Any]:
    """Write an event of one job, without the job."""
    task = "" if event.job is None else event.job.task
    written = event_object(replace(event, job=None), ask.shown.of(task))
    del written["job"]
    return written


async def attempts(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """List the attempts of a job, as its history tells them."""
    events, page = list[Event](), await ask.hf.timeline(ask.id, limit=500)
    events += page
    while page.next_cursor is not None and len(events) < MOST_EVENTS:
        page = await ask.hf.timeline(ask.id, limit=500, cursor=page.next_cursor)
        events += page
    task = next((each.job.task for each in events if each.job is not None), "")
    shown = ask.shown.of(task)
    return {
        "items": [_attempt_object(each, shown) for each in attempts_of(events)],
        "is_whole": page.next_cursor is None,
    }


def _attempt_object(attempt: PastAttempt, shown: Redaction) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "worker": attempt.worker,
        "started_at": instant_text(attempt.started_at),
        "ended_at": instant_text(attempt.ended_at),
        "wait": attempt.wait,
        "run": attempt.run,
        "outcome": attempt.outcome,
        "reason": shown.reason(attempt.reason),
        "error": None if attempt.error is None else shown.error(dict(attempt.error)),
        "phases": [
            {"name": name, "started_at": instant_text(began), "finished_at": instant_text(ended)}
            for name, began, ended in attempt.phases
        ],
    }


async def blockers(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """List the chains that a job waits for."""
    found = await ask.hf.get_blockers(ask.id)
    return {"items": [chain_object(each, ask.shown.of(each.last_task)) for each in found]}


async def journal(ask: Inquiry[JournalQuery, NoBody]) -> dict[str, Any]:
    """List the journal of a job, oldest entry first."""
    query = ask.query
    page = await ask.hf.journal(ask.id, kind=query.kind, after=query.after, limit=query.limit)
    shown = ask.shown.of((await ask.hf.get_job(ask.id)).task)
    return page_object(
        page,
        lambda each: {
            "number": each.number,
            "attempt": each.attempt,
            "kind": each.kind,
            "at": instant_text(each.at),
            "body": shown.journal(each.kind, each.body),
        },
    )


async def phase_result(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """Read the stored result of a phase."""
    if not ask.shown.payloads:
        raise Forbidden("you are shown no inputs, outputs and results; ask an admin for a token with payloads")
    job, name = await ask.hf.get_job(ask.id), ask.path["name"]
    phase = next((each for each in job.phases if each.name == name), None)
    if phase is None:
        known = ", ".join(each.name for each in job.phases) or "none"
        raise NoSuchRoute(f"job {job.id} has no phase {name!r}; its phases are: {known}")
    return {"name": name, "status": str(phase.status), "result": ask.shown.of(job.task).value(phase.result)}


# verbs


async def current_job(ask: Inquiry[Any, Any]) -> Job:
    """Read the job that a verb under the id in the path acts on: the last one of a chain that has continued."""
    job = await ask.hf.get_job(ask.id)
    if job.state != "continued":
        return job
    newest = await ask.hf.list_jobs(chain=job.chain_id, internal=True, limit=1)
    return await ask.hf.get_job(newest[0]) if newest else job


async def _steered(ask: Inquiry[Any, Any], answer: Awaitable[object]) -> dict[str, Any]:
    """Wait for what a verb answers, and read the job; what was done stays done if that is gone by then."""
    word = str(await answer)
    try:
        return {"answer": word, "job": ask.shown.job(await current_job(ask))}
    except JobNotFound:
        return {"answer": word, "job": None}


async def _done(word: str, job: Awaitable[Job]) -> str:
    await job
    return word


async def cancel(ask: Inquiry[NoQuery, SteerBody]) -> dict[str, Any]:
    """Cancel a job: at once if it does not run, by request if it does."""
    return await _steered(ask, ask.hf.cancel(ask.id, if_state=ask.body.if_state))


async def pause(ask: Inquiry[NoQuery, SteerBody]) -> dict[str, Any]:
    """Pause a job: at once if it does not run, by request if it does."""
    return await _steered(ask, ask.hf.pause(ask.id, if_state=ask.body.if_state))


async def resume(ask: Inquiry[NoQuery, EditBody]) -> dict[str, Any]:
    """Resume a paused job, with a changed input if arguments are given."""
    resumed = ask.hf.resume(ask.id, arguments=_edited(ask), if_state=ask.body.if_state)
    return await _steered(ask, _done("resumed", resumed))


async def retry(ask: Inquiry[NoQuery, EditBody]) -> dict[str, Any]:
    """Run a failed or cancelled job again, with a changed input if arguments are given."""
    arguments = _edited(ask)
    await refuse_restart(ask, [ask.id])
    return await _steered(ask, _done("retried", ask.hf.retry(ask.id, arguments=arguments, if_state=ask.body.if_state)))


def _edited(ask: Inquiry[NoQuery, EditBody]) -> dict[str, Any] | None:
    """Give what a body changes, unless who asks is shown no inputs: whether anything changes tells what is there."""
    if ask.body.arguments is not None and not ask.shown.payloads:
        raise Forbidden("you are shown no inputs, so you cannot change them; leave out arguments")
    return ask.body.arguments


async def trigger(ask: Inquiry[NoQuery, SteerBody]) -> dict[str, Any]:
    """Run a pending job now."""
    return await _steered(ask, _done("triggered", ask.hf.trigger(ask.id, if_state=ask.body.if_state)))


async def reschedule(ask: Inquiry[NoQuery, RescheduleBody]) -> dict[str, Any]:
    """Have a pending job run at another time."""
    body = ask.body
    moved = ask.hf.reschedule(ask.id, at=body.at, after=body.after, if_state=body.if_state)
    return await _steered(ask, _done("rescheduled", moved))


async def complete(ask: Inquiry[NoQuery, CompleteBody]) -> dict[str, Any]:
    """Complete a job with an output, without a worker; its task's types judge the output."""
    task = (await current_job(ask)).task
    done = ask.hf.complete(task, ask.id, ask.body.output, if_state=ask.body.if_state)
    return await _steered(ask, _done("completed", done))
