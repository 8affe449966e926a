"""`POST /api/bulk`: one verb for many jobs: named ones at once, those that fit a filter by a job of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, Field

from holdfast.access import Role
from holdfast.bulks import MOST_EXAMPLES, BulkVerb
from holdfast.client.bulk import count
from holdfast.errors import Busy, Conflict, HoldfastError, InvalidInput, JobNotFound, NotFound, StoreError
from holdfast.filters import parse
from holdfast.http.endpoint import Inquiry, NoQuery, Reply, Taken
from holdfast.http.jobs import WhyBody, now_of, refuse_hidden, refuse_restart
from holdfast.http.problems import Forbidden
from holdfast.ids import target_id
from holdfast.models import RESERVED, CancelAnswer, Job, Scalar

MOST_IDS = 500
AT_ONCE = 50
"""How many jobs share a transaction."""
DONE = "done"


class FilterBody(Taken):
    """Which jobs, as `GET /api/jobs` has it."""

    id: list[str] | None = None
    chain: list[str] | None = None
    chain_task: list[str] | None = None
    task: list[str] | None = None
    status: list[str] | None = None
    queue: list[str] | None = None
    lane: list[str] | None = None
    tag: list[str] | None = None
    worker: list[str] | None = None
    error: list[str] | None = None
    input: dict[str, Scalar] | None = None
    parent: str | None = None
    created_from: AwareDatetime | None = None
    created_to: AwareDatetime | None = None
    internal: bool | None = None


class BulkBody(WhyBody):
    """What to do, and to which jobs: to those of *ids*, or to those that fit *filter*, up to number *upto*."""

    verb: BulkVerb
    ids: list[str] | None = Field(default=None, max_length=MOST_IDS)
    filter: str | FilterBody | None = None
    """The text of the filter bar, such as `task:charge status:failed`, or the same as an object."""
    dry_run: bool = False
    upto: int | None = None
    everything: bool = False
    at: AwareDatetime | None = None
    after: float | None = None
    cascade: bool = False


class CountedJobs(BaseModel):
    """How many jobs the verb would act on; unless *is_exact*, there may be more."""

    count: int
    is_exact: bool
    by_state: dict[str, int]
    sample: list[str]
    """The first ten of them."""
    upto: int
    """Give it to the act, and it leaves alone whatever comes after this count."""


class BulkAnswer(BaseModel):
    """What became of one job: *code* is `done`, or that of the error which the verb raises for it."""

    id: str
    code: str
    detail: str | None


class BulkAnswers(BaseModel):
    """What became of each of the jobs that were named, in their order."""

    items: list[BulkAnswer]


class BulkStarted(BaseModel):
    """The job that acts on all that fit: follow, pause or cancel it like any other."""

    id: str


async def act(ask: Inquiry[NoQuery, BulkBody]) -> Reply:
    """Do one verb to up to 500 jobs by their ids, or to all that fit a filter; or count these."""
    body = ask.body
    if body.verb == "delete" and not ask.who.role.allows(Role.ADMIN):
        raise Forbidden("to delete many jobs needs the role admin; ask an admin, or delete the chains one by one")
    if (body.ids is None) == (body.filter is None and not body.everything):
        raise InvalidInput("give ids or filter, and only one of them; everything=true stands for no filter", "ids")
    if body.ids is not None:
        return await _by_ids(ask, list(dict.fromkeys(map(target_id, body.ids))))
    options = _options(ask)
    _refuse_filter(ask, options)
    if body.dry_run:
        found = await count(ask.hf.store, body.verb, options)
        written = {"count": found.count, "is_exact": found.is_exact, "by_state": dict(found.by_state)}
        return Reply({**written, "sample": list(map(str, found.sample)), "upto": found.upto})
    chain = await ask.hf.start_bulk(body.verb, **options)
    return Reply({"id": str(chain.id)}, 202)


def _refuse_filter(ask: Inquiry[NoQuery, BulkBody], options: Mapping[str, Any]) -> None:
    """Refuse a filter by what is hidden, and to have the engine's own jobs run again."""
    refuse_hidden(ask, options)
    named = (*(options.get("task") or ()), *(options.get("queue") or ()))
    is_ours = options.get("internal") or any(each.startswith(RESERVED) for each in named)
    if is_ours and ask.body.verb == "retry" and not ask.who.role.allows(Role.ADMIN):
        raise Forbidden("to have jobs of Holdfast's own run again needs the role admin; ask an admin")


def _options(ask: Inquiry[NoQuery, BulkBody]) -> Any:
    """Give the keywords of `hf.bulk`."""
    body = ask.body
    given: dict[str, Any] = {"upto": body.upto, "everything": body.everything, "cascade": body.cascade}
    given |= {name: value for name in ("at", "after") if (value := getattr(body, name)) is not None}
    if isinstance(body.filter, str):
        return {**given, **parse(body.filter, now_of(ask))}
    narrowed = body.filter or FilterBody()
    named = ((name, getattr(narrowed, name)) for name in narrowed.model_fields_set)
    return {**given, **{name: value for name, value in named if value is not None}}


# jobs that are named


async def _by_ids(ask: Inquiry[NoQuery, BulkBody], ids: Sequence[UUID]) -> Reply:
    verb = _verb(ask)
    if ask.body.dry_run:
        return Reply(await _counted(ask, ids))
    if ask.body.verb == "retry":
        await refuse_restart(ask, ids)
    answers: list[dict[str, Any]] = []
    for at in range(0, len(ids), AT_ONCE):
        some = ids[at : at + AT_ONCE]
        try:
            answers += await _all_or_each(verb, some)
        except StoreError as error:  # what was done before it stays done, and is told
            answers += [_answer(each, error) for each in ids[at:]]
            break
    return Reply({"items": answers})


async def _counted(ask: Inquiry[NoQuery, BulkBody], ids: Sequence[UUID]) -> dict[str, Any]:
    found: Sequence[Job] = await ask.hf.list_jobs(id=ids, limit=MOST_IDS, internal=True) if ids else ()
    states = [str(job.state) for job in found]
    return {
        "count": len(found),
        "is_exact": True,
        "by_state": {state: states.count(state) for state in dict.fromkeys(states)},
        "sample": [str(job.id) for job in found][:MOST_EXAMPLES],
        "upto": max((job.seq for job in found), default=0),
    }


Verb: TypeAlias = Callable[[Sequence[UUID]], Awaitable[Sequence[object]]]
OF_ONE_JOB = (Conflict, NotFound, Busy)
"""What a verb raises for one of several jobs; all else holds for all of them."""


async def _all_or_each(verb: Verb, ids: Sequence[UUID]) -> list[dict[str, Any]]:
    """Act on *ids* in one transaction; if one of them does not allow it, on each by itself."""
    try:
        return _told(ids, await verb(ids))
    except OF_ONE_JOB:
        return [await _alone(verb, each) for each in ids]


async def _alone(verb: Verb, id_: UUID) -> dict[str, Any]:
    try:
        (answer,) = await verb([id_])
    except OF_ONE_JOB as error:
        return _answer(id_, error)
    return _answer(id_, answer)


def _told(ids: Sequence[UUID], given: Sequence[object]) -> list[dict[str, Any]]:
    return [_answer(each, answer) for each, answer in zip(ids, given, strict=True)]


def _answer(id_: UUID, answer: object) -> dict[str, Any]:
    if isinstance(answer, HoldfastError):
        return {"id": str(id_), "code": answer.code, "detail": str(answer)}
    if answer is CancelAnswer.ALREADY_TERMINAL:
        return {"id": str(id_), "code": "already_terminal", "detail": "it had completed or been cancelled before"}
    return {"id": str(id_), "code": DONE, "detail": None}


def _verb(ask: Inquiry[NoQuery, BulkBody]) -> Verb:
    """Give what does the verb to several jobs, all or none; refuse what it does not take."""
    hf, body = ask.hf, ask.body
    if body.verb != "reschedule" and (body.at is not None or body.after is not None):
        raise InvalidInput(f"at and after are for 'reschedule' only, not for {body.verb!r}; leave them out", "at")
    if body.cascade and body.verb != "delete":
        raise InvalidInput(f"cascade is for 'delete' only, not for {body.verb!r}; leave it out", "cascade")
    if body.upto is not None or body.everything:
        raise InvalidInput("upto and everything are for a filter; leave them out with ids", "upto")
    match body.verb:
        case "cancel":
            return hf.cancel_many
        case "pause":
            return hf.pause_many
        case "resume":
            return hf.resume_many
        case "retry":
            return hf.retry_many
        case "reschedule":
            return lambda ids: hf.reschedule_many(ids, at=body.at, after=body.after)
        case "delete":
            return lambda ids: _delete(ask, ids)


async def _delete(ask: Inquiry[NoQuery, BulkBody], ids: Sequence[UUID]) -> Sequence[object]:
    """Delete the chains of jobs; answer for each whether it was there."""
    found = await ask.hf.list_jobs(id=ids, limit=MOST_IDS, internal=True)
    chains = {job.id: job.chain_id for job in found}
    gone = {*await ask.hf.delete_many(list(dict.fromkeys(chains.values())), cascade=ask.body.cascade)}
    return [each if chains.get(each) in gone else JobNotFound(each) for each in ids]
