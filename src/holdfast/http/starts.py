"""`POST /api/jobs`: start chains, one or up to 500 together; with an `Idempotency-Key` each request but once.

The id of a job *is* made of the key, so the database itself refuses a twin, whoever sends the request again and to
whichever server. A key holds as long as its job is there: once that is deleted, the key starts another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic import AwareDatetime, BaseModel, Field

from holdfast.access import Role
from holdfast.app import Holdfast
from holdfast.client.chain_handle import Chain
from holdfast.errors import InvalidInput, JobNotFound
from holdfast.http.endpoint import KEY, Inquiry, NoQuery, Reply, Taken
from holdfast.http.jobs import SteerBody, WhyBody, refuse_restart
from holdfast.http.problems import Forbidden, IdempotencyConflict, InvalidRequest
from holdfast.journals import INPUT
from holdfast.models import Job, Unique
from holdfast.tasks.calls import Call, is_name
from holdfast.wire.chain_json import ChainObject, chain_object
from holdfast.wire.job_json import JobObject

MOST_STARTS = 500
KEY_LENGTH = 200


class UniqueBody(Taken):
    """A key that only one chain of a task holds at a time."""

    key: str
    scope: Literal["open", "any"] = "open"
    within: float | None = None


class OptionsBody(Taken):
    """The options of a start."""

    queue: str | None = None
    lane: str | None = None
    priority: int | None = None
    delay: float | None = None
    run_at: AwareDatetime | None = None
    unique: str | UniqueBody | None = None
    tags: list[str] | None = None
    paused: bool | None = None
    blockers: list[str] | None = None
    attempts: int | None = None
    webhook: str | None = None
    """An address for this job alone; null silences it. Operators may name the hosts that the server allows."""

    def given(self) -> dict[str, Any]:
        """Give the keywords of a start; null says the same as nothing, but for the webhook."""
        found = {name: getattr(self, name) for name in self.model_fields_set}
        if isinstance(self.unique, UniqueBody):
            found["unique"] = Unique(self.unique.key, self.unique.scope, self.unique.within)
        return {name: value for name, value in found.items() if value is not None or name == "webhook"}


class CallBody(Taken):
    """A call of a task."""

    task: str
    arguments: dict[str, Any] = {}  # noqa: RUF012 - nobody writes into it
    options: OptionsBody = OptionsBody()


class StartBody(CallBody, WhyBody):
    """A call that is to be started, and why."""


class StartManyBody(WhyBody):
    """Calls that are to be started, all or none."""

    jobs: Annotated[list[CallBody], Field(max_length=MOST_STARTS)]


class StartedObject(BaseModel):
    """The chain that a start has made, or met, and its first job; that is null if it is gone meanwhile."""

    chain: ChainObject
    job: JobObject | None
    deduplicated: bool
    """Whether nothing was made, for another chain holds the unique key, or the same request came before."""


class StartedList(BaseModel):
    """What each of several starts has made, or met, in their order."""

    items: list[StartedObject]


class StartedAgain(BaseModel):
    """What `start-again` came to: `started`, or `deduplicated` if another chain holds the unique key."""

    answer: str
    chain: ChainObject
    job: JobObject | None


async def start(ask: Inquiry[NoQuery, StartBody]) -> Reply:
    """Start a chain; the same `Idempotency-Key` gives the same chain."""
    key = await _key(ask)
    call = call_of(ask, ask.body, None if key is None else key.id())
    for job in () if key is None else (await _by_id(ask.hf, [key.id()])).values():
        await _refuse_other(ask.hf, call, job)
    (chain,) = await ask.hf.start_many([call])
    (written,) = await _written(ask, [call], [chain])
    headers = {"Location": f"{ask.root}/api/jobs/{chain.id}"}
    return Reply(written, 200 if chain.deduplicated else 201, headers)


async def start_many(ask: Inquiry[NoQuery, StartManyBody]) -> Reply:
    """Start up to 500 chains, all or none; the same `Idempotency-Key` gives the same chains."""
    key = await _key(ask)
    bodies = ask.body.jobs
    ids = [None if key is None else key.id(at) for at in range(len(bodies))]
    calls = [_call_at(ask, at, body, id_) for at, (body, id_) in enumerate(zip(bodies, ids, strict=True))]
    if key is not None:
        await _refuse_other_list(ask, key, calls)
    chains = await ask.hf.start_many(calls)
    written = await _written(ask, calls, chains)
    is_new = not all(each.deduplicated for each in chains) or not chains
    return Reply({"items": written}, 201 if is_new else 200)


async def start_again(ask: Inquiry[NoQuery, SteerBody]) -> dict[str, Any]:
    """Start a new chain like that of a job."""
    await refuse_restart(ask, [ask.id])
    chain = await ask.hf.start_again(ask.id, if_state=ask.body.if_state)
    try:
        job = ask.shown.job(await ask.hf.get_job(chain))
    except JobNotFound:
        job = None
    answer = "deduplicated" if chain.deduplicated else "started"
    return {"answer": answer, "chain": chain_object(chain, ask.shown.of(chain.last_task)), "job": job}


def call_of(ask: Inquiry[Any, Any], body: CallBody, id_: UUID | None = None) -> Call[Any]:
    """Make the call that a body says, as who asks may."""
    given = body.options.given()
    if given.get("webhook") is not None:
        _refuse_webhook(ask, given["webhook"])
    if id_ is not None:
        given["id"] = id_
    # used from the start: whoever refuses it later tells of it
    return ask.hf.call(body.task, body.arguments).options(**given).consume()


def _call_at(ask: Inquiry[Any, Any], at: int, body: CallBody, id_: UUID | None) -> Call[Any]:
    """Make the call at a place of a list, and name that place in what is wrong with it."""
    try:
        return call_of(ask, body, id_)
    except InvalidInput as error:
        parts = [(f"jobs.{at}.{path}", text) for path, text in error.problems]
        raise InvalidInput(f"jobs.{at}: {error}", f"jobs.{at}.{error.path}", parts) from None


def _refuse_webhook(ask: Inquiry[Any, Any], address: str) -> None:
    """Have operators post to the hosts alone that the server allows; what is no address is refused as such later."""
    try:
        host = urlsplit(address).hostname
    except ValueError:
        return
    if ask.who.role.allows(Role.ADMIN) or host is None or host in ask.service.webhook_hosts:
        return
    raise Forbidden(
        f"an operator may not have webhooks posted to {host!r}; ask an admin, or have the host added to webhook_hosts= "
        "of asgi()"
    )


# what is sent again


class _Key:
    """An `Idempotency-Key` of somebody, in one database."""

    def __init__(self, identity: str, who: str, text: str) -> None:
        self._namespace = uuid5(NAMESPACE_URL, f"urn:holdfast:{identity}")
        self._names = [who, text]

    def id(self, at: int | None = None) -> UUID:
        """Give the id of the job, or of that at a place of a list."""
        return uuid5(self._namespace, json.dumps([*self._names, *([] if at is None else [at])]))


async def _key(ask: Inquiry[Any, Any]) -> _Key | None:
    text = ask.request.headers.get(KEY)
    if text is None:
        return None
    if not is_name(text, KEY_LENGTH):
        raise InvalidRequest(f"{KEY} must have 1 to {KEY_LENGTH} printable characters; send a UUID of your own")
    return _Key(await ask.hf._identity() or "", ask.who.name, text)


async def _refuse_other_list(ask: Inquiry[Any, Any], key: _Key, calls: Sequence[Call[Any]]) -> None:
    """Raise if the key has started another list, before anything is started."""
    ids = [key.id(at) for at in range(min(len(calls) + 1, MOST_STARTS))]
    found = await _by_id(ask.hf, ids)
    if not found:
        return
    if len(found) != len(calls) or (ids[-1] in found and len(ids) > len(calls)):
        raise IdempotencyConflict(
            f"this {KEY} has started a list of other length, or some of its jobs were deleted; send another key"
        )
    for call in calls:
        await _refuse_other(ask.hf, call, found[call.chosen.id])


async def _refuse_other(hf: Holdfast, call: Call[Any], job: Job) -> None:
    """Raise if the job that the key has started is of another request than *call*."""
    names = hf.tasks.get(call.task).names if call.task in hf.tasks else (call.task,)
    if job.task in names and (job.input == call.arguments or await _first_input(hf, job) == json.loads(call.arguments)):
        return
    raise IdempotencyConflict(
        f"this {KEY} has started job {job.id}, of another task or with other arguments; send another key, or the same "
        "request"
    )


async def _first_input(hf: Holdfast, job: Job) -> object:
    """Give the input that a job was started with: somebody may have edited it since."""
    edits = await hf.journal(job, kind=INPUT, limit=1)
    return edits[0].body["input"] if edits else json.loads(job.input)


# what is answered


async def _written(
    ask: Inquiry[Any, Any], calls: Sequence[Call[Any]], chains: Sequence[Chain[Any]]
) -> list[Mapping[str, Any]]:
    jobs = await _by_id(ask.hf, [each.id for each in chains])
    for call, chain in zip(calls, chains, strict=True):
        if chain.deduplicated and chain.id == call.chosen.id and chain.id in jobs:
            await _refuse_other(ask.hf, call, jobs[chain.id])
    return [
        {
            "chain": chain_object(each, ask.shown.of(each.last_task)),
            "job": ask.shown.job(jobs[each.id]) if each.id in jobs else None,
            "deduplicated": each.deduplicated,
        }
        for each in chains
    ]


async def _by_id(hf: Holdfast, ids: Sequence[UUID]) -> dict[UUID | None, Job]:
    """Read first jobs of chains, as far as they are there."""
    wanted = list(dict.fromkeys(ids))
    if len(wanted) == 1:  # by the shortest way, for most starts are of one
        with suppress(JobNotFound):
            return {wanted[0]: await hf.get_job(wanted[0])}
        return {}
    found = await hf.list_jobs(id=wanted, limit=MOST_STARTS, internal=True) if wanted else ()
    return {each.id: each for each in found}
