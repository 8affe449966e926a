"""Every error that Holdfast raises, as one tree; each says what is so and what to do.

    HoldfastError
      UsageError    before any SQL: the call itself is wrong            HTTP 400, exit code 2
      NotFound      what was named does not exist                       HTTP 404, exit code 3
      Conflict      it exists, but its state forbids what was asked     HTTP 409, exit code 4
      NoResult      a chain that was waited for has no result to give   HTTP 409, exit code 6
      StoreError    the database could not do it, this time or so far   HTTP 503, exit code 5

`code` is stable and meant for programs; the facts are attributes; the message is for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

if TYPE_CHECKING:
    from holdfast.bulks import BulkResult
    from holdfast.explanations import Explanation
    from holdfast.models import Job

SHOWN_LENGTH = 60
LISTED = 5
MOST_PROBLEMS = 10


def did_you_mean(word: str, known: Iterable[str], quote: str = "") -> str:
    """Name the one of *known* that is nearest to *word*, as a question; nothing if none is near.

    >>> did_you_mean("concurency", ["concurrency", "queues"])
    '; did you mean concurrency?'
    """
    from difflib import get_close_matches

    near = get_close_matches(word[:SHOWN_LENGTH], list(known), 1)
    return f"; did you mean {quote}{near[0]}{quote}?" if near else ""


def near_and_all(word: str, known: Iterable[str], title: str) -> str:
    """Name the one of *known* that is nearest to *word*, if one is near, and then all; *title* says what they are.

    >>> near_and_all("concurency", ["concurrency", "queues"], "the options are")
    '; did you mean concurrency? The options are: concurrency, queues'
    """
    everything = list(known)
    near = did_you_mean(word, everything)
    return (
        f"{near} {title[0].upper()}{title[1:]}: {', '.join(everything)}"
        if near
        else f"; {title}: {', '.join(everything)}"
    )


def got(value: object) -> str:
    """Say what was given where something else was expected; not for arguments of tasks, which may be secret.

    >>> got("tomorrow"), got(5), got(print)
    ("got the text 'tomorrow'", 'got 5', 'got the function print')
    """
    match value:
        case str():
            return f"got the text {shown(value)}"
        case None | bool() | int() | float():
            return f"got {shown(value)}"
        case datetime():
            return f"got {value}"
        case list() | tuple() | set():
            return f"got a {type(value).__name__} of {len(value)}"
    if callable(value) and hasattr(value, "__name__") and not isinstance(value, type):
        return f"got the function {value.__name__}"
    return f"got a {type(value).__name__}"


def pip_install(what: str) -> str:
    """Write what to run to install *what*, a library or an extra of Holdfast such as `.[http]`.

    There is no release yet: PyPI has another project under the name `holdfast`.

    >>> pip_install("alembic"), pip_install(".[http]")
    ("run `pip install 'alembic'`", "run `pip install '.[http]'` in a copy of Holdfast's repository")
    """
    where = " in a copy of Holdfast's repository" if what.startswith(".[") else ""
    return f"run `pip install '{what}'`{where}"


def shown(value: object) -> str:
    """Write *value* as in a program, but not at any length."""
    try:
        text = repr(value)
    except ValueError:  # a whole number that Python does not write: 4,300 digits are its limit
        return "a very long number"
    return text if len(text) <= SHOWN_LENGTH else f"{text[: SHOWN_LENGTH - 1]}…"


class HoldfastError(Exception):
    """The root of all errors that Holdfast raises on purpose."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1


class UsageError(HoldfastError):
    """The call is wrong and was refused before any SQL that writes."""

    code = "usage"
    http_status = 400
    exit_code = 2


class InvalidInput(UsageError):
    """An argument cannot be stored and read back as its type; *path* leads to it.

    *problems* are the first ten things that its type refuses, each with its path, as far as types were asked.
    """

    code = "invalid_input"

    def __init__(self, message: str, path: str = "", problems: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.path = path
        self.problems: tuple[tuple[str, str], ...] = tuple((where, what) for where, what in problems)


class InvalidFilter(UsageError):
    """The text of a filter cannot be read; *column*, from 1 on, says where, and *near* which word was meant."""

    code = "invalid_filter"

    def __init__(self, message: str, column: int, word: str = "", known: Sequence[str] = ()) -> None:
        from difflib import get_close_matches

        self.column = column
        self.near: str | None = next(iter(get_close_matches(word[:SHOWN_LENGTH], known, 1)), None)
        advice = near_and_all(word, known, "the words are") if known else ""
        super().__init__(f"column {column}: {message}{advice}")


class InvalidRule(UsageError):
    """The rule of a schedule cannot be read, or never comes; *column*, from 1 on, says where in its cron text."""

    code = "invalid_rule"

    def __init__(self, message: str, column: int | None = None) -> None:
        super().__init__(message if column is None else f"column {column}: {message}")
        self.column = column


class InvalidOutput(UsageError):
    """A handler's result cannot be stored and read back as its type; *path* leads to it.

    *problems* are the first ten things that its type refuses, each with its path, as far as types were asked.
    """

    code = "invalid_output"

    def __init__(self, message: str, path: str = "", problems: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.path = path
        self.problems: tuple[tuple[str, str], ...] = tuple((where, what) for where, what in problems)


class InvalidId(UsageError):
    """An id is not a UUID."""

    code = "invalid_id"

    def __init__(self, value: object) -> None:
        super().__init__(f"{shown(value)} is not an id; an id is a UUID, as in chain.id or job.id")
        self.value = value


class TooMany(UsageError):
    """One call takes or gives at most *most* items, and *count* were asked for."""

    code = "too_many"

    def __init__(self, count: int, most: int, message: str | None = None) -> None:
        super().__init__(
            message
            or f"the list has {count:,} items, and one call takes at most {most:,}; call it for {most:,} at a time, "
            "with the same connection= if all must happen together"
        )
        self.count = count
        self.most = most


class FilterRequired(UsageError):
    """A verb for many jobs was given no filter, so that it would act on every job."""

    code = "filter_required"

    def __init__(self, verb: str) -> None:
        super().__init__(
            f"hf.{verb}() has no filter and would act on every job; add one (task=, status=, queue=, …), or "
            "everything=True if you mean all of them"
        )
        self.verb = verb


class InvalidSettings(UsageError):
    """A setting has a value that cannot work."""

    code = "invalid_settings"


class InvalidSignature(UsageError):
    """A webhook has no valid signature, or an old one; *problem* says what is wrong.

    One of `missing`, `timestamp`, `signature`, `too old`, `too new`, `body`, `secret`; *header* is the one at fault.
    """

    code = "invalid_signature"

    def __init__(self, problem: str, header: str | None = None) -> None:
        what = {
            "missing": f"the header {header} is missing; refuse the request, unless a proxy removed the header",
            "timestamp": f"the header {header} is not a number of seconds; refuse the request",
            "signature": "no signature matches; check the secret, and pass the raw body, before any JSON parser",
            "too old": "the webhook was signed too long ago; refuse it, or correct the clock of this machine",
            "too new": "the webhook was signed in the future; correct the clock of this machine, or of the sender",
            "body": "the signature matches, but the body is not JSON; refuse the request",
            "secret": "a secret is `whsec_` and the base64 of 24 to 64 bytes; `holdfast webhooks secret` makes one",
        }[problem]
        super().__init__(what)
        self.problem = problem
        self.header = header


class InvalidAddress(UsageError):
    """Holdfast does not send webhooks to this address; *address* lacks its path, which may hold a secret."""

    code = "invalid_address"

    def __init__(self, why: str, address: str = "") -> None:
        super().__init__(f"webhooks are not sent to {address or 'this address'}: {why}")
        self.why = why
        self.address = address


class UnknownTask(UsageError):
    """No task of this name is registered here or recorded in the database."""

    code = "unknown_task"

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        near = f"; did you mean {' or '.join(map(repr, known))}? Use a task that is registered here or in the database"
        unknown = (
            f", neither here nor in the database; import the module that registers it with @hf.task, start its worker "
            f"once, which records it in the database, or declare a task of another service with "
            f"hf.declare({shown(name)}, …)"
        )
        super().__init__(f"no task is called {shown(name)}{near if known else unknown}")
        self.name = name
        self.known = tuple(known)


class DuplicateTask(UsageError):
    """Two tasks claim one name."""

    code = "duplicate_task"

    def __init__(self, names: Sequence[str], places: Sequence[str] = ()) -> None:
        where = f" ({'; '.join(places)})" if places else ""
        super().__init__(
            f"two tasks are called {', '.join(map(repr, names))}{where}; give one of them another name, with "
            '@hf.task(name="…")'
        )
        self.names = tuple(names)
        self.places = tuple(places)


class TransactionRequired(UsageError):
    """The connection has no usable transaction open, or none was given where one is required."""

    code = "transaction_required"


class WrongConnection(UsageError):
    """The connection is closed, async instead of blocking or the reverse, unknown, or leads to another database."""

    code = "wrong_connection"


class InvalidCursor(UsageError):
    """A text is not a cursor of an event log."""

    code = "invalid_cursor"

    def __init__(self) -> None:
        super().__init__(
            "this text is not a cursor, or a part of one is missing; pass the whole text that `event.cursor` or "
            "`hf.cursor()` returned"
        )


class Misuse(UsageError):
    """A program uses Holdfast in a way or in an order that does not work."""

    code = "misuse"


class UnknownMethod(UsageError, AttributeError):
    """A program calls a method that other job libraries have; also an `AttributeError`, so that `hasattr` works."""

    code = "unknown_method"


class MissingLibrary(UsageError, ImportError):
    """A library that this part of Holdfast needs is not installed; also an `ImportError`. *install* is for pip."""

    code = "missing_library"

    def __init__(self, needed_by: str, library: str, install: str) -> None:
        super().__init__(f"{needed_by} needs {library}, which is not installed; {pip_install(install)}")
        self.needed_by = needed_by
        self.library = library
        self.install = install


class NotFound(HoldfastError):
    """What was named does not exist (any more)."""

    code = "not_found"
    http_status = 404
    exit_code = 3


class JobNotFound(NotFound):
    """There is no job of this id."""

    code = "job_not_found"

    def __init__(self, job_id: UUID) -> None:
        super().__init__(
            f"there is no job {job_id}: it was deleted, or its transaction was rolled back or is not committed yet; to "
            "read a job before the commit, pass connection="
        )
        self.job_id = job_id


class ChainNotFound(NotFound):
    """There is no chain of this id."""

    code = "chain_not_found"

    def __init__(self, chain_id: UUID) -> None:
        super().__init__(
            f"there is no chain {chain_id}: it was deleted, or its transaction was rolled back or is not committed "
            "yet; to read a chain before the commit, pass connection="
        )
        self.chain_id = chain_id


class LaneNotFound(NotFound):
    """The lane with this key has no jobs and is not paused."""

    code = "lane_not_found"

    def __init__(self, key: str) -> None:
        super().__init__(f"there is no lane {key!r}; a lane exists only while it has jobs or is paused")
        self.key = key


class SubscriptionNotFound(NotFound):
    """There is no subscription of this id or name."""

    code = "subscription_not_found"

    def __init__(self, subscription_id: UUID | str) -> None:
        super().__init__(f"there is no subscription {subscription_id}; `hf.webhooks.list()` lists them")
        self.subscription_id = subscription_id


class DeliveryNotFound(NotFound):
    """There is no delivery of this id."""

    code = "delivery_not_found"

    def __init__(self, delivery_id: UUID) -> None:
        super().__init__(
            f"there is no delivery {delivery_id}; it was deleted, alone or with its job, or this is the id of another "
            "job: `hf.webhooks.deliveries()` lists them"
        )
        self.delivery_id = delivery_id


class ScheduleNotFound(NotFound):
    """No schedule has this name."""

    code = "schedule_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"there is no schedule {shown(name)}; list them with `holdfast schedules list` or hf.schedules.list(), or "
            "make one with hf.schedules.put()"
        )
        self.name = name


class TenantNotFound(NotFound):
    """There is no tenant of this name that could be used; *reason* says more of it."""

    code = "tenant_not_found"

    def __init__(self, name: str, reason: str = "list them with `holdfast tenants list` or hf.tenants.list()") -> None:
        super().__init__(f"there is no tenant {name!r}; {reason}")
        self.name = name


class TokenNotFound(NotFound):
    """There is no token of this id."""

    code = "token_not_found"

    def __init__(self, token_id: UUID) -> None:
        super().__init__(f"there is no token {token_id}; list them with `holdfast token list` or hf.tokens.list()")
        self.token_id = token_id


class LinkNotFound(NotFound):
    """There is no link of this id."""

    code = "link_not_found"

    def __init__(self, link_id: UUID) -> None:
        super().__init__(f"there is no link {link_id}; hf.links.list() lists them")
        self.link_id = link_id


class CursorExpired(NotFound):
    """The log can no longer be read on from this cursor without a gap; *reason* says why."""

    code = "cursor_expired"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}; call cursor = hf.cursor(), read your jobs again, and then read events with after=cursor"
        )
        self.reason = reason


class Conflict(HoldfastError):
    """The state of what was named forbids what was asked."""

    code = "conflict"
    http_status = 409
    exit_code = 4


PASSIVE = {
    "pause": "be paused",
    "resume": "be resumed",
    "retry": "be retried",
    "reschedule": "be rescheduled",
    "cancel": "be cancelled",
}


class StatusConflict(Conflict):
    """The job's status does not allow the change that was asked for."""

    code = "status_conflict"

    def __init__(self, job_id: UUID, status: str, change: str, allowed: Sequence[str], advice: str = "") -> None:
        hint = f": {advice}" if advice else ""
        verb = PASSIVE.get(change, change)
        super().__init__(f"job {job_id} is {status}; only {' or '.join(allowed)} jobs can {verb}{hint}")
        self.job_id = job_id
        self.status = status
        self.change = change
        self.allowed = tuple(allowed)


class StateConflict(Conflict):
    """The job is no longer in the state that `if_state=` names; *job* is the job as it is now."""

    code = "state_conflict"
    http_status = 412

    def __init__(self, expected: str, job: Job) -> None:
        super().__init__(
            f"job {job.id} has changed: its state_tag is {job.state_tag!r} now, not {shown(expected)}; look at it "
            "again (error.job), and repeat the call with its new state_tag if you still want it"
        )
        self.expected = expected
        self.job = job


class HeadConflict(Conflict):
    """Another job than `if_head=` names halts the lane, or none does; *head* is the one that does now."""

    code = "head_conflict"
    http_status = 412

    def __init__(self, key: str, expected: UUID, head: UUID | None) -> None:
        now = "no job halts it now" if head is None else f"job {head} halts it now"
        super().__init__(
            f"lane {key!r} has changed: {now}, not job {expected}; look at the lane again, and repeat the call with "
            "if_head= of the job that you want to skip"
        )
        self.key = key
        self.expected = expected
        self.head = head


class UniqueConflict(Conflict):
    """Another open chain holds the unique key that the job would need again."""

    code = "unique_conflict"

    def __init__(self, job_id: UUID, key: str, twin: UUID) -> None:
        super().__init__(
            f"job {job_id} cannot run again: chain {twin} has its unique key {key!r}; complete, cancel or delete that "
            "chain first"
        )
        self.job_id = job_id
        self.key = key
        self.twin = twin


class WrongTask(Conflict):
    """The id belongs to a job of another task."""

    code = "wrong_task"

    def __init__(self, job_id: UUID, asked: str, found: str) -> None:
        super().__init__(f"job {job_id} belongs to task {found!r}, not {asked!r}; pass that task, or another id")
        self.job_id = job_id
        self.asked = asked
        self.found = found


class IdTaken(Conflict):
    """The id that a continuation was given belongs to another job."""

    code = "id_taken"

    def __init__(self, job_id: UUID) -> None:
        super().__init__(f"job {job_id} exists already; give the continuation another id, or leave id= out")
        self.job_id = job_id


class LeaseLost(Conflict):
    """This attempt no longer has the job, or may have lost it; *reason* says why, as `ctx.abort_reason` does."""

    code = "lease_lost"

    def __init__(self, job_id: UUID, reason: str) -> None:
        super().__init__(
            f"this attempt has lost job {job_id} ({reason}); do not catch this error: the attempt stores nothing more"
        )
        self.job_id = job_id
        self.reason = reason


class JournalFull(Conflict):
    """A journal takes no more: *limit* is `entry` (one is too large), or `entries` or `bytes` of a job, at *most*."""

    code = "journal_full"

    def __init__(self, limit: str, most: int) -> None:
        what = {
            "entry": f"the entry has more than {most:,} bytes as JSON; store it elsewhere and append its key",
            "entries": f"the journal of this job has {most:,} entries; put more into each, or go on in another job",
            "bytes": f"the journal of this job would have more than {most:,} bytes; go on in another job",
        }[limit]
        super().__init__(what)
        self.limit = limit
        self.most = most


class StillReferenced(Conflict):
    """Other jobs wait for a chain that should be deleted, or would if they were retried."""

    code = "still_referenced"

    def __init__(self, references: Sequence[tuple[UUID, UUID]]) -> None:
        listed = ", ".join(f"chain {chain} (job {job} waits for it)" for chain, job in references[:5])
        more = f" and {len(references) - 5} more" if len(references) > 5 else ""
        super().__init__(
            f"other jobs wait for {listed}{more}, or would if they were retried; delete their chains in the same call, "
            "or let them complete first"
        )
        self.references = tuple(references)


class BlockerCycle(Conflict):
    """A job would wait, directly or through others, for its own chain."""

    code = "blocker_cycle"

    def __init__(self, chain_id: UUID) -> None:
        super().__init__(f"chain {chain_id} would wait for itself; remove it from blockers=")
        self.chain_id = chain_id


class TenantExists(Conflict):
    """Another tenant has this name, or this host."""

    code = "tenant_exists"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


class TenantSuspended(Conflict):
    """The tenant is suspended: its jobs can be read, and none can be started."""

    code = "tenant_suspended"

    def __init__(self, name: str, by: str | None, why: str | None) -> None:
        said = "".join((f" by {by}" if by else "", f" ({why})" if why else ""))
        super().__init__(
            f"tenant {name!r} was suspended{said}, so nothing is started there; resume it with "
            f"`hf.tenants.resume({name!r})`"
        )
        self.name = name
        self.by = by
        self.why = why


class TenantInUse(Conflict):
    """The tenant cannot be dropped as it is: it is not suspended, jobs run in it, or it holds what is not ours."""

    code = "tenant_in_use"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"tenant {name!r} was not dropped: {reason}")
        self.name = name
        self.reason = reason


class NoResult(HoldfastError):
    """The chain has no result, or not yet."""

    code = "no_result"
    http_status = 409
    exit_code = 6


class ChainFailed(NoResult):
    """The chain ended in a job that failed."""

    code = "chain_failed"

    def __init__(
        self, chain_id: UUID, job_id: UUID, reason: str | None = None, error: Mapping[str, Any] | None = None
    ) -> None:
        what = _type_and_message(error)
        why = f": {what}" if what else ""
        because = f" ({reason})" if reason else ""
        super().__init__(
            f"chain {chain_id} failed{why}{because}; hf.get_job({str(job_id)!r}).error has the traceback, and "
            f"hf.retry({str(job_id)!r}) runs the job again"
        )
        self.chain_id = chain_id
        self.job_id = job_id
        self.reason = reason
        self.error = error


def _type_and_message(error: Mapping[str, Any] | None) -> str:
    known = error or {}
    return ": ".join(str(known[key]) for key in ("type", "message") if known.get(key))


class ChainCancelled(NoResult):
    """The chain was cancelled."""

    code = "chain_cancelled"

    def __init__(self, chain_id: UUID, job_id: UUID, reason: str | None = None) -> None:
        why = f" ({reason})" if reason else ""
        super().__init__(f"chain {chain_id} was cancelled{why}; hf.retry({str(job_id)!r}) runs its job after all")
        self.chain_id = chain_id
        self.job_id = job_id
        self.reason = reason


class WaitTimeout(NoResult):
    """The chains did not close in time; they have not been cancelled. *explanations* say why, of the first five chains.

    They are empty if the database could not tell.
    """

    code = "wait_timeout"

    def __init__(self, chain_ids: Sequence[UUID], seconds: float, explanations: Sequence[Explanation] = ()) -> None:
        shown = [_still_open(each, seconds) for each in explanations] or [
            f"chain {each} is still open after {seconds:g} s" for each in chain_ids[:LISTED]
        ]
        more = [f"{len(chain_ids) - len(shown)} more chains are open"] if len(chain_ids) > len(shown) else []
        ending = "it has not been cancelled" if len(chain_ids) == 1 else "they have not been cancelled"
        super().__init__(f"{', '.join([*shown, *more])}; {ending}: wait longer with timeout=, or ask again")
        self.chain_ids = tuple(chain_ids)
        self.seconds = seconds
        self.explanations = tuple(explanations)


def _still_open(found: Explanation, seconds: float) -> str:
    """Say how the last job of a chain stands, and why, each reason with the line that ends it, if there is one."""
    if found.job is None:
        return str(found)
    lines = [
        None if each.remedy is None or each.remedy.verb == "worker" else each.remedy.python for each in found.reasons
    ]
    why = "; ".join(f"{each}: {line}" if line else str(each) for each, line in zip(found.reasons, lines, strict=True))
    return f"job {found.job.id} (task {found.job.task!r}) is still {found.job.state} after {seconds:g} s ({why})"


class StoreError(HoldfastError):
    """The database could not do it; the operation has changed nothing, unless the class says otherwise."""

    code = "store"
    http_status = 503
    exit_code = 5


class Unavailable(StoreError):
    """The database cannot be reached, is read-only, is full or did not answer in time; a retry may help."""

    code = "unavailable"


class Busy(StoreError):
    """Another transaction holds a lock that the operation needs; a retry may help."""

    code = "busy"


class BulkInterrupted(StoreError):
    """`hf.bulk()` ended half-way, because the database could not go on; *result* is what it has come to until then."""

    code = "bulk_interrupted"

    def __init__(self, result: BulkResult, reason: object) -> None:
        go_on = "" if result.cursor is None else f", cursor={result.cursor!r}"
        super().__init__(
            f"after {result.matched:,} jobs the database could not go on ({reason}); repeat the call with "
            f"upto={result.upto}{go_on} to do the rest"
        )
        self.result = result


class NotMigrated(StoreError):
    """The schema in the database and this release do not fit together."""

    code = "not_migrated"

    def __init__(self, message: str, found: int | None, needed: int) -> None:
        super().__init__(message)
        self.found = found
        self.needed = needed


class MissingRight(StoreError):
    """The role of the database lacks a right, as to make schemas or to use our tables."""

    code = "missing_right"


class Unreadable(StoreError):
    """This release cannot read a row: a newer release has written it, or somebody's own SQL."""

    code = "unreadable"

    def __init__(self, table: str, row: object, why: str) -> None:
        super().__init__(
            f"row {row} of {table} cannot be read ({why}); a newer release or other SQL has written it: "
            "upgrade this program, or mend the row"
        )
        self.table = table
        self.row = row
        self.why = why


class UnknownOutcome(StoreError):
    """COMMIT was sent and its answer was lost: the operation happened wholly or not at all."""

    code = "unknown_outcome"


class TransactionTimeout(StoreError):
    """A block's transaction was open for too long and was rolled back."""

    code = "transaction_timeout"


class TransactionBroken(StoreError):
    """A block's transaction can no longer commit; it is rolled back."""

    code = "transaction_broken"
