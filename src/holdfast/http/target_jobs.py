"""What the target queue's own routes do: its jobs, words and answers, over `Holdfast`.

A target is a lane, and a job there is one of the task that `targets(hf, task=…)` names. The task is called with what a
client sends: `target`, `name` and `parameters`. A verb looks at the job, refuses it in the wrong state, and acts only
if it is still as it was; else it looks again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias, TypedDict, cast

from pydantic import BaseModel, ConfigDict, Field

from holdfast.errors import Busy, JobNotFound, NotFound, StateConflict, StatusConflict, shown
from holdfast.http.endpoint import Inquiry, NoBody, Taken
from holdfast.http.jobs import refuse_hidden
from holdfast.http.problems import HttpError
from holdfast.ids import target_id
from holdfast.journals import LOG, JournalEntry
from holdfast.models import RESERVED, Job, JobQuery
from holdfast.outcomes import why_it_halts
from holdfast.states import State, Status
from holdfast.store import target_lists
from holdfast.store.target_lists import TargetStatus, status_of
from holdfast.tasks.calls import check_lane
from holdfast.times import instant_text
from holdfast.worker.attempts.aborts import AbortReason

INTERRUPTED: Final = "Job was interrupted by user"
BY_A_USER = frozenset({INTERRUPTED, AbortReason.PAUSED, None})
"""The reasons of a job that somebody has paused without a word of their own."""
EXCHANGE = "http_exchange"
PAGE = 500
TRIES = 5

IsTarget: TypeAlias = Callable[[str | None, str], Awaitable[bool]]
"""Tells whether a tenant, or None where there are none, has a target."""


class TargetNotFound(NotFound):
    """There is no target of this name."""

    code = "target_not_found"


class WrongState(HttpError):
    """The job is in a state in which this cannot be done."""

    code = "wrong_state"


@dataclass(frozen=True, slots=True)
class TargetRules:
    """Whose jobs are served: those of *task*, which is also known as *names*, on the targets that there are."""

    task: str
    names: tuple[str, ...]
    is_target: IsTarget | None


class Lenient(Taken):
    """What a client of the target queue may say; what it says besides is passed over, as that service does."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class AnyQuery(Lenient):
    """A query that says nothing that is needed."""


class TargetJobsQuery(Lenient):
    """Which jobs, and which of them."""

    limit: Annotated[int, Field(ge=1, le=PAGE)] = 10
    offset: Annotated[int, Field(ge=0)] = 0
    status: tuple[TargetStatus, ...] = ()
    name: str | None = None


class AllTargetJobsQuery(TargetJobsQuery):
    """The same, of one target or of all."""

    target: str | None = None


class LogQuery(Lenient):
    """Which entries: those behind the one with this *id*."""

    after: Annotated[int, Field(ge=0)] = 0


class NewTargetJob(Lenient):
    """A job that is to run on a target; with *paused* it waits until somebody resumes it."""

    name: str
    parameters: Annotated[dict[str, Any], Field(default_factory=dict)]
    paused: bool = False


class TargetVerbBody(Lenient):
    """Why something is done; the audit keeps it."""

    why: str | None = None


class Resolution(TargetVerbBody):
    """What a person's work came to."""

    result: Any


class TargetJobObject(BaseModel):
    """A job, by the words of the target queue."""

    id: str
    target: str
    name: str | None
    parameters: Any
    status: TargetStatus
    result: Any
    error: str | None
    cancel_requested: bool
    lease_owner: str | None
    lease_expires_at: str | None
    created_at: str
    updated_at: str
    completed_at: str | None


class TargetJobList(BaseModel):
    """A page of jobs, newest first, and how many there are, counted to 10,000."""

    total: int
    jobs: list[TargetJobObject]


class TargetLogObject(BaseModel):
    """An entry of the job's journal; its *type* is the kind, and `system` for a line that was logged."""

    id: int
    type: str
    content: Any
    created_at: str


class DatabaseHealth(BaseModel):
    """How the database is."""

    status: str


Asked: TypeAlias = Inquiry[Any, Any]


class _TargetInput(TypedDict):
    target: str
    name: str
    parameters: dict[str, Any]


async def list_all(ask: Inquiry[AllTargetJobsQuery, NoBody]) -> dict[str, Any]:
    """List the jobs of all targets, newest first."""
    return await _listed(ask, ask.query.target)


async def list_of_target(ask: Inquiry[TargetJobsQuery, NoBody]) -> dict[str, Any]:
    """List the jobs of a target, newest first."""
    return await _listed(ask, await _target(ask))


async def create(ask: Inquiry[AnyQuery, NewTargetJob]) -> dict[str, Any]:
    """Make a job for a target, and queue it, in one commit."""
    target, body = await _target(ask), ask.body
    given = _TargetInput(target=target, name=body.name, parameters=body.parameters)
    call = ask.hf.call(_rules(ask).task, given).options(lane=target, paused=body.paused)
    return _shown(ask, await ask.hf.get_job((await ask.hf.start(call)).id))


async def read(ask: Inquiry[AnyQuery, NoBody]) -> dict[str, Any]:
    """Read a job."""
    return _shown(ask, await _job(ask))


async def resume(ask: Inquiry[AnyQuery, TargetVerbBody]) -> dict[str, Any]:
    """Queue a paused or failed job again, first in its target's line."""

    async def again(job: Job) -> object:
        verb = ask.hf.retry if job.status is Status.FAILED else ask.hf.resume
        return await verb(job.id, if_state=job.state_tag)

    return await _act(ask, "resumed", ("PENDING", "PAUSED", "ERROR"), again)


async def interrupt(ask: Inquiry[AnyQuery, TargetVerbBody]) -> dict[str, Any]:
    """Pause a running job, by request; one that does not run is cancelled."""

    async def stop(job: Job) -> object:
        verb = ask.hf.pause if job.status is Status.RUNNING else ask.hf.cancel
        return await verb(job.id, why=INTERRUPTED, if_state=job.state_tag)

    return await _act(ask, "interrupted", ("RUNNING", "PENDING", "QUEUED", "PAUSED"), stop)


async def cancel(ask: Inquiry[AnyQuery, TargetVerbBody]) -> dict[str, Any]:
    """Cancel a job that has not begun, or is queued again."""
    return await _act(
        ask, "cancelled", ("PENDING", "QUEUED"), lambda job: ask.hf.cancel(job.id, if_state=job.state_tag)
    )


async def resolve(ask: Inquiry[AnyQuery, Resolution]) -> dict[str, Any]:
    """Complete a paused or failed job with the result of a person's work."""

    async def complete(job: Job) -> object:
        return await ask.hf.complete(_rules(ask).task, job.id, ask.body.result, if_state=job.state_tag)

    return await _act(ask, "resolved", ("PAUSED", "ERROR"), complete)


async def logs(ask: Inquiry[LogQuery, NoBody]) -> list[dict[str, Any]]:
    """Read the job's log: what its handler has written into the journal."""
    return await _entries(ask, None)


async def http_exchanges(ask: Inquiry[LogQuery, NoBody]) -> list[dict[str, Any]]:
    """Read the HTTP exchanges in the job's log."""
    return await _entries(ask, EXCHANGE)


async def health(ask: Inquiry[AnyQuery, NoBody]) -> dict[str, Any]:
    """Say that the database answers."""
    await ask.service.hf.cursor()
    return {"status": "ok"}


def target_job_object(job: Job, written: dict[str, Any]) -> dict[str, Any]:
    """Write *job* by the words of the target queue; *written* is the same as who asks may see it."""
    status, given = status_of(job), written["input"]
    by_name = given if isinstance(given, dict) else {}
    times = [each for each in (job.created_at, job.started_at, job.finished_at) if each is not None]
    return {
        "id": written["id"],
        "target": written["lane"],
        "name": by_name.get("name"),
        "parameters": by_name.get("parameters"),
        "status": status,
        "result": written["output"],
        "error": _error(job, status, written),
        "cancel_requested": job.state in (State.CANCELLING, State.PAUSING),
        "lease_owner": written["worker"],
        "lease_expires_at": None if job.lease_until is None else instant_text(job.lease_until),
        "created_at": written["created_at"],
        "updated_at": instant_text(max(times)),
        "completed_at": written["finished_at"],
    }


def _error(job: Job, status: TargetStatus, written: dict[str, Any]) -> str | None:
    """Say why a job stopped; who paused one without a word has interrupted it."""
    if status in ("PENDING", "QUEUED", "RUNNING", "SUCCESS"):
        return None
    if status == "PAUSED" and job.reason in BY_A_USER:
        return INTERRUPTED
    return why_it_halts(written["reason"], written["error"])


async def _listed(ask: Asked, target: str | None) -> dict[str, Any]:
    query: TargetJobsQuery = ask.query
    if query.name is not None:
        refuse_hidden(ask, {"input": {"name": query.name}, "task": _rules(ask).names})
    wanted = JobQuery(
        tasks=_rules(ask).names,
        lanes=() if target is None else (check_lane(target),),
        inputs=() if query.name is None else ((("name",), query.name),),
    )
    found = await ask.hf.store.read(target_lists.list_page, wanted, query.status, query.limit, query.offset)
    return {"total": found.total, "jobs": [_shown(ask, job) for job in found.jobs]}


async def _entries(ask: Inquiry[LogQuery, NoBody], kind: str | None) -> list[dict[str, Any]]:
    """Read the whole journal, which is bounded; the engine's own entries are left out."""
    job = await _job(ask)
    show = ask.shown.of(job.task).journal
    found: list[dict[str, Any]] = []
    after: int | str | None = ask.query.after
    while after is not None:
        page = await ask.hf.journal(job.id, kind=kind, after=after, limit=PAGE)
        found += [_entry(each, show) for each in page if not each.kind.startswith(RESERVED)]
        after = page.next_cursor
    return found


def _entry(entry: JournalEntry, show: Callable[[str, Any], Any]) -> dict[str, Any]:
    return {
        "id": entry.number,
        "type": "system" if entry.kind == LOG else entry.kind,
        "content": show(entry.kind, entry.body),
        "created_at": instant_text(entry.at),
    }


async def _act(
    ask: Asked, done: str, allowed: Collection[TargetStatus], act: Callable[[Job], Awaitable[object]]
) -> dict[str, Any]:
    """Act on the job of the path if its state allows that, and look again if it has just changed."""
    for _ in range(TRIES):
        job = await _job(ask)
        if (status := status_of(job)) not in allowed:
            raise WrongState(f"job {job.id} is {status}; only {' or '.join(allowed)} jobs can be {done}")
        try:
            await act(job)
        except (StateConflict, StatusConflict):
            continue
        return _shown(ask, await ask.hf.get_job(job.id))
    raise Busy("others change this job all the time; try again")


async def _target(ask: Asked) -> str:
    """Give the target of the path, or raise `TargetNotFound`."""
    target, is_target = ask.path["target"], _rules(ask).is_target
    if is_target is not None and not await is_target(ask.tenant, target):
        raise TargetNotFound(f"there is no target {shown(target)}; it is misspelt, or of another tenant")
    return target


async def _job(ask: Asked) -> Job:
    """Read the job of the path; one of another target, or of another task, is not there."""
    target = await _target(ask) if "target" in ask.path else None
    job = await ask.hf.get_job(id_ := target_id(ask.path["id"]))
    if job.task not in _rules(ask).names or job.lane is None or target not in (None, job.lane):
        raise JobNotFound(id_)
    return job


def _rules(ask: Asked) -> TargetRules:
    return cast(TargetRules, ask.service.rules)  # type: ignore[attr-defined]


def _shown(ask: Asked, job: Job) -> dict[str, Any]:
    return target_job_object(job, ask.shown.job(job))
