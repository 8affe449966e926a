"""`hf.acting(by=…)`: a face whose every act leaves a row in the audit, written in the commit of the act.

A runner stands before the one that the face had. `ACTS` says which operations of the store are acts; each of them it
runs together with the row, in one transaction, and so never where operations of several callers share a commit. What
has changed nothing leaves no row, and neither has what raises. The id of the row is made before any SQL: a commit that
is repeated writes it once. All else passes through, such as reads, and what the engine writes down for itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, Never, TypeAlias, TypeVar, cast
from uuid import UUID

from holdfast.access import Actor, AuditEntry
from holdfast.bulks import BulkAct
from holdfast.client.list_options import paging
from holdfast.client.verbs import asked_by
from holdfast.database.tx import ListOperation, Operation, P, R, Runner, Store, T, Tx, plain
from holdfast.errors import InvalidInput, Misuse, got
from holdfast.models import BULK, Asked, CancelAnswer, Page
from holdfast.store import access, audit, lanes, schedules, tenants, webhooks
from holdfast.store.audit import MOST_NAMED, AuditQuery, NewAuditEntry
from holdfast.store.chains import creation, deletes
from holdfast.store.jobs import bulk_pages, completing, steering
from holdfast.texts import word_of
from holdfast.times import milliseconds_of

if TYPE_CHECKING:
    from holdfast.ids import IdMaker

F = TypeVar("F")
Args: TypeAlias = tuple[Any, ...]
REQUEST_LENGTH = 200
OF_HF_ALONE = ("worker", "completing", "open", "close", "migrate", "retain")
"""What is nobody's act, or runs somebody's code in its transaction."""


class Deed(NamedTuple):
    """What an act was done to, and what else there is to say of it; *action* is another word for it."""

    subject: object
    facts: dict[str, Any] = {}  # noqa: RUF012 - nobody writes into it
    action: str | None = None


def _sign(actor: Actor, args: Args) -> tuple[Args, Asked]:
    """Put the actor where the caller has not said who asks, or why."""
    signed = tuple(actor.asked(each) if isinstance(each, Asked) else each for each in args)
    said = next((each for each in signed if isinstance(each, Asked)), None)
    return signed, said or actor.asked(Asked())


class Act(NamedTuple):
    """An operation that is somebody's act: its name, what is told of it by its answer and arguments, who has asked.

    What tells None has changed nothing.
    """

    action: str
    tell: Callable[..., Deed | None]
    sign: Callable[[Actor, Args], tuple[Args, Asked]] = _sign


# what is told


def _ids(ids: Sequence[UUID], **facts: Any) -> Deed:
    """Tell of one job or several."""
    named = list(dict.fromkeys(map(str, ids)))
    said = {name: value for name, value in facts.items() if value}
    if len(named) == 1:
        return Deed(named[0], said)
    return Deed(f"{len(named):,} jobs", {"ids": named[:MOST_NAMED], **said})


def _started(answer: Sequence[creation.Started], starts: Sequence[Any]) -> Deed | None:
    new = [start for start, each in zip(starts, answer, strict=True) if each.met is None or not each.met.deduplicated]
    if not new:
        return None
    met = len(starts) - len(new)
    tasks = list(dict.fromkeys(each.task for each in new))
    if tasks == [BULK]:
        return _ids([each.id for each in new], verb=_bulk(new)["verb"])._replace(action="bulk.start")
    return _ids([each.id for each in new], tasks=tasks[:MOST_NAMED], met=met)


def _bulk(starts: Sequence[Any]) -> dict[str, Any]:
    act: dict[str, Any] = json.loads(starts[0].input)["act"]
    return act


def _started_again(answer: Sequence[Any], wanted: Sequence[tuple[UUID, UUID]], _: object) -> Deed | None:
    new = [(str(old), each.id) for (old, _), each in zip(wanted, answer, strict=True) if not each.deduplicated]
    return _ids([each for _, each in new], of=[old for old, _ in new[:MOST_NAMED]]) if new else None


def _steered(_: object, ids: Sequence[UUID], *args: object) -> Deed:
    return _ids(ids, edited=len(args) > 1 and args[1] is not None)


def _cancelled(answer: Sequence[CancelAnswer], ids: Sequence[UUID], _: object) -> Deed | None:
    answers = Counter(map(str, answer))
    return None if answers.keys() == {CancelAnswer.ALREADY_TERMINAL} else _ids(ids, answers=answers)


def _paused(answer: Sequence[object], ids: Sequence[UUID], _: object) -> Deed:
    return _ids(ids, answers=Counter(map(str, answer)))


def _rescheduled(_: object, ids: Sequence[UUID], run_at_ms: int, delay_ms: int, asked: object) -> Deed:
    return _ids(ids, run_at=run_at_ms, delay=delay_ms)._replace(action=None if run_at_ms or delay_ms else "trigger")


def _deleted(answer: Sequence[UUID], _: object, cascade: bool, *args: object) -> Deed | None:
    return _ids(answer, cascade=cascade) if answer else None


def _page(answer: bulk_pages.Acted, act: BulkAct, *args: object) -> Deed:
    told = bulk_pages.told(answer)
    return Deed(told.subject, told.facts, f"bulk.{act.verb}")


def _named(_: object, name: str, *args: object) -> Deed:
    return Deed(name)


def _named_if_so(answer: object, name: str, *args: object) -> Deed | None:
    return Deed(name) if answer else None


def _skipped(answer: UUID | None, key: str, *args: object) -> Deed | None:
    return None if answer is None else Deed(key, {"job": str(answer)})


def _until(_: object, name: str, until_ms: int | None, *args: object) -> Deed:
    return Deed(name, {} if until_ms is None else {"until": until_ms})


def _subscribed(answer: Any, wanted: Any) -> Deed:
    return Deed(answer.name or answer.id, {"id": str(answer.id), "events": list(wanted.events)})


def _redelivered(answer: Any, delivery_id: UUID, *args: object) -> Deed:
    return Deed(delivery_id, {"again": str(answer.id)})


def _put(_: object, wanted: Sequence[Any], *args: object) -> Deed:
    (one,) = wanted
    return Deed(one.name, {"task": one.call.task})


def _ran(answer: Any, name: str, *args: object) -> Deed | None:
    return None if answer.deduplicated else Deed(name, {"chain": str(answer.id)})


def _of_token(answer: Any, *args: object) -> Deed:
    return Deed(answer.id, {"name": answer.name, "role": str(answer.role), "tenant": answer.tenant})


def _of_link(answer: Any, *args: object) -> Deed:
    return Deed(answer.id, {"chain": str(answer.chain), "tenant": answer.tenant})


# who has asked, where that is not an `Asked` among the arguments


def _sign_starts(actor: Actor, args: Args) -> tuple[Args, Asked]:
    """Sign nothing: a start keeps nobody's name, but for one that acts on many jobs, which has been signed."""
    (starts,) = args
    act = _bulk(starts) if starts and starts[0].task == BULK else {}
    return args, actor.asked(Asked(act.get("by"), act.get("why")))


def _sign_facts(actor: Actor, args: Args) -> tuple[Args, Asked]:
    """Sign what takes the words of an `Asked` as its last argument."""
    given = args[-1]
    asked = actor.asked(Asked(given.get("by"), given.get("reason")))
    return (*args[:-1], asked.said()), asked


def _sign_last(actor: Actor, args: Args) -> tuple[Args, Asked]:
    """Sign what takes an `Asked` behind what it was given."""
    return (*args[:2], asked := actor.asked(Asked())), asked


def _sign_page(actor: Actor, args: Args) -> tuple[Args, Asked]:
    act, *rest = args
    signed = act.signed(actor)
    return (signed, *rest), Asked(signed.by, signed.why)


def _sign_by(actor: Actor, args: Args) -> tuple[Args, Asked]:
    wanted, by = args
    asked = actor.asked(Asked(by))
    return (wanted, asked.by), asked


def _sign_why(actor: Actor, args: Args) -> tuple[Args, Asked]:
    key, why = args
    asked = actor.asked(Asked(None, why))
    return (key, asked.why), asked


def _sign_grant(actor: Actor, args: Args) -> tuple[Args, Asked]:
    (new,) = args
    asked = actor.asked(Asked(new.created_by))
    return (new._replace(created_by=asked.by),), asked


ACTS: dict[Callable[..., Any], Act] = {
    creation.start: Act("start", _started, _sign_starts),
    creation.start_again: Act("start_again", _started_again, _sign_facts),
    steering.cancel: Act("cancel", _cancelled),
    steering.pause: Act("pause", _paused),
    steering.resume: Act("resume", _steered),
    steering.retry: Act("retry", _steered),
    steering.reschedule: Act("reschedule", _rescheduled),
    completing.complete: Act("complete", _named),
    completing.complete_at_once: Act("complete", _named),
    deletes.delete: Act("delete", _deleted, _sign_last),
    bulk_pages.act: Act("bulk", _page, _sign_page),
    lanes.pause_lane: Act("lane.pause", _named),
    lanes.resume_lane: Act("lane.resume", _named_if_so),
    lanes.skip: Act("lane.skip", _skipped),
    lanes.pause_queue: Act("queue.pause", _until),
    lanes.resume_queue: Act("queue.resume", _named_if_so),
    webhooks.subscribe: Act("webhook.subscribe", _subscribed),
    webhooks.unsubscribe: Act("webhook.remove", _named_if_so),
    webhooks.enable: Act("webhook.enable", _named),
    webhooks.disable: Act("webhook.disable", _named, _sign_why),
    webhooks.redeliver: Act("webhook.redeliver", _redelivered, _sign_facts),
    schedules.put: Act("schedule.put", _put, _sign_by),
    schedules.pause: Act("schedule.pause", _until),
    schedules.resume: Act("schedule.resume", _named_if_so),
    schedules.run: Act("schedule.run", _ran),
    schedules.delete: Act("schedule.delete", _named),
    tenants.end_creating: Act("tenant.create", _named),
    tenants.suspend: Act("tenant.suspend", _named),
    tenants.resume: Act("tenant.resume", _named),
    tenants.begin_dropping: Act("tenant.drop", _named),
    tenants.stop_dropping: Act("tenant.keep", lambda _, before: Deed(before.name)),
    access.add_token: Act("token.create", _of_token, _sign_grant),
    access.revoke_token: Act("token.revoke", _of_token),
    access.add_link: Act("link.create", _of_link, _sign_grant),
    access.revoke_link: Act("link.revoke", _of_link),
}
"""The operations of the store that are acts of somebody; all others are the engine's own affair."""


class ActingRunner:
    """Runs the acts of *actor* on *inner*, each with its row in the audit; *inner* may be a caller's transaction."""

    def __init__(self, inner: Runner, actor: Actor, new_id: IdMaker) -> None:
        self.plain = inner
        self._actor = actor
        self._new_id = new_id

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in a write transaction; if it is an act, with its row."""
        acted, signed = self._acted(operation, args)
        return await self.plain.run(acted, *signed, **kwargs)

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation*, which only reads, over one consistent view."""
        return await self.plain.read(operation, *args, **kwargs)

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation; if it is an act, in a transaction of its own, with its row."""
        if operation in ACTS:
            return await self.run(operation, items)
        return await self.plain.gather(operation, items)

    def _acted(self, operation: Callable[..., Any], args: Args) -> tuple[Callable[..., Any], Args]:
        """Give *operation* as it is to be run, and its arguments, signed."""
        of, before = getattr(operation, "verb", operation), ()
        if of is steering.at_once:
            of, before, args = args[0], args[:1], args[1:]
        act = ACTS.get(of)
        if act is None:
            return operation, (*before, *args)
        signed, asked = act.sign(self._actor, args)
        return self._with_row(operation, act, asked, signed), (*before, *signed)

    def _with_row(self, operation: Callable[..., Any], act: Act, asked: Asked, given: Args) -> Callable[..., Any]:
        id_, request = str(self._new_id()), self._actor.request

        @wraps(operation)  # with its marks: it is repeated as it would be alone, and waits as long
        async def with_row(tx: Tx, /, *args: Any, **kwargs: Any) -> Any:
            answer = await operation(tx, *args, **kwargs)
            if (told := act.tell(answer, *given)) is not None:
                action, who = told.action or act.action, asked.by or ""
                entry = NewAuditEntry(id_, who, action, str(told.subject), asked.why, request, told.facts)
                await audit.write(tx, entry)
            return answer

        for mark in ("one_write", "brief"):  # it is neither any more
            with_row.__dict__.pop(mark, None)
        return with_row


class ActingStore(ActingRunner):
    """The same before a store, in both colours; all else the store does itself."""

    plain: Store

    def run_sync(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in a write transaction, blocking; if it is an act, with its row."""
        acted, signed = self._acted(operation, args)
        return cast("R", self.plain.run_sync(acted, *signed, **kwargs))

    def gather_sync(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation, blocking; if it is an act, in a transaction of its own, with its row."""
        if operation in ACTS:
            return self.run_sync(operation, items)
        return self.plain.gather_sync(operation, items)

    @property
    def control(self) -> Store:
        """The store of the control place, as the same actor uses it."""
        made: Any = ActingStore(getattr(self.plain, "control", self.plain), self._actor, self._new_id)
        return cast("Store", made)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)


def make_actor(by: str, why: str | None, request: str | None) -> Actor:
    """Check in whose name something is to be done."""
    said = asked_by(by, why)
    if not said.by or not said.by.strip():
        raise InvalidInput(f"by must say who acts, {got(by)}; write hf.acting(by=…)", "by")
    if request is not None and len(word_of(request, "request")) > REQUEST_LENGTH:
        raise InvalidInput(
            f"request has {len(request):,} characters, and at most {REQUEST_LENGTH} are kept; make it shorter",
            "request",
        )
    return Actor(said.by, said.why, request)


def acting_store(store: Store, actor: Actor, new_id: IdMaker) -> Store:
    """Give *store* as *actor* uses it."""
    made: Any = ActingStore(cast("Store", plain(store)), actor, new_id)
    return cast("Store", made)


def copied(face: F) -> F:
    """Make a face like *face*, which shares all with it, and has no handles yet; it neither opens nor works."""
    other = object.__new__(type(face))
    kept = {name: value for name, value in vars(face).items() if name not in MADE_LATER}
    other.__dict__.update(kept, **REFUSALS)
    return other


MADE_LATER = ("schedules", "tenants", "tokens", "links", "_retention")
"""The handles that a face makes when they are asked for, over its store."""


def _refusal(name: str) -> Callable[..., Never]:
    def refuse(*args: object, **kwargs: object) -> Never:
        raise Misuse(f"hf.acting(…) acts in somebody's name, and has no {name}(); call hf.{name}() itself")

    return refuse


REFUSALS = {name: _refusal(name) for name in OF_HF_ALONE}


async def list_audit(
    runner: Runner,
    who: str | None,
    action: str | None,
    subject: object,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    cursor: str | None,
) -> Page[AuditEntry]:
    """List what was done, the newest first."""
    wanted = AuditQuery(
        None if who is None else word_of(who, "who"),
        None if action is None else word_of(action, "action"),
        None if subject is None else word_of(str(getattr(subject, "id", subject)), "subject"),
        None if since is None else milliseconds_of(since, "since"),
        None if until is None else milliseconds_of(until, "until"),
    )
    return await runner.read(audit.list_entries, wanted, paging(limit, cursor))
