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

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from uuid import UUID


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
    """An argument cannot be stored and read back as its type; *path* leads to it."""

    code = "invalid_input"

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class InvalidOutput(UsageError):
    """A handler's result cannot be stored and read back as its type; *path* leads to it."""

    code = "invalid_output"

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class InvalidId(UsageError):
    """An id is not a UUID."""

    code = "invalid_id"

    def __init__(self, value: object) -> None:
        super().__init__(f"{str(value)[:60]!r} is not an id; ids are UUIDs, as `chain.id` and `job.id` give them")
        self.value = value


class InvalidSettings(UsageError):
    """A setting has a value that cannot work."""

    code = "invalid_settings"


class InvalidSignature(UsageError):
    """A webhook was not signed by who knows the secret, or not lately; *problem* says what is wrong.

    One of `missing`, `timestamp`, `signature`, `too old`, `too new`, `body`, `secret`; *header* is the one at fault.
    """

    code = "invalid_signature"

    def __init__(self, problem: str, header: str | None = None) -> None:
        what = {
            "missing": f"the header {header} is missing; only what Holdfast has sent is signed",
            "timestamp": f"the header {header} is no time in seconds",
            "signature": "no signature fits; check the secret, and that the body is as it came over the wire",
            "too old": "it was signed too long ago; refuse it, or set the clock here",
            "too new": "it was signed in the future; set the clock here, or there",
            "body": "the signature fits, but the body is no JSON",
            "secret": "a secret is `whsec_` and the base64 of 24 to 64 bytes; `holdfast webhooks secret` makes one",
        }[problem]
        super().__init__(what)
        self.problem = problem
        self.header = header


class InvalidAddress(UsageError):
    """An address is not one that webhooks may be sent to; *address* is without its path, which may hold a secret."""

    code = "invalid_address"

    def __init__(self, why: str, address: str = "") -> None:
        super().__init__(f"webhooks are not sent to {address or 'this address'}: {why}")
        self.why = why
        self.address = address


class UnknownTask(UsageError):
    """No task of this name is registered here or recorded in the database."""

    code = "unknown_task"

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        near = f"; did you mean {', '.join(known)}?" if known else ""
        super().__init__(
            f"no task is called {name!r}{near}; register it with @hf.task, or hf.declare() one that runs elsewhere"
        )
        self.name = name
        self.known = tuple(known)


class DuplicateTask(UsageError):
    """Two tasks claim one name."""

    code = "duplicate_task"

    def __init__(self, names: Sequence[str], places: Sequence[str] = ()) -> None:
        where = f" ({'; '.join(places)})" if places else ""
        super().__init__(f"more than one task is called {', '.join(names)}{where}; give each a name= of its own")
        self.names = tuple(names)
        self.places = tuple(places)


class TransactionRequired(UsageError):
    """The connection has no usable transaction open, or none was given where one is required."""

    code = "transaction_required"


class WrongConnection(UsageError):
    """The connection is closed, of the other colour, of an unknown kind, or leads to another database."""

    code = "wrong_connection"


class InvalidCursor(UsageError):
    """A text is not a cursor of an event log."""

    code = "invalid_cursor"

    def __init__(self) -> None:
        super().__init__("this is no cursor; `event.cursor` and `hf.cursor()` give one, to be kept to the last letter")


class Misuse(UsageError):
    """Something was used in a way or in an order that it does not have."""

    code = "misuse"


class NotFound(HoldfastError):
    """What was named does not exist (any more)."""

    code = "not_found"
    http_status = 404
    exit_code = 3


class JobNotFound(NotFound):
    """There is no job of this id."""

    code = "job_not_found"

    def __init__(self, job_id: UUID) -> None:
        super().__init__(f"there is no job {job_id}; it was never committed, or it has been deleted")
        self.job_id = job_id


class ChainNotFound(NotFound):
    """There is no chain of this id."""

    code = "chain_not_found"

    def __init__(self, chain_id: UUID) -> None:
        super().__init__(f"there is no chain {chain_id}; it was never committed, or it has been deleted")
        self.chain_id = chain_id


class LaneNotFound(NotFound):
    """No job stands in a lane of this key, and nobody has paused it."""

    code = "lane_not_found"

    def __init__(self, key: str) -> None:
        super().__init__(f"there is no lane {key!r}; a lane exists while jobs stand in it, or it is paused")
        self.key = key


class SubscriptionNotFound(NotFound):
    """There is no subscription of this id."""

    code = "subscription_not_found"

    def __init__(self, subscription_id: UUID) -> None:
        super().__init__(f"there is no subscription {subscription_id}; `hf.webhooks.list()` names those that there are")
        self.subscription_id = subscription_id


class DeliveryNotFound(NotFound):
    """There is no delivery of this id."""

    code = "delivery_not_found"

    def __init__(self, delivery_id: UUID) -> None:
        super().__init__(
            f"there is no delivery {delivery_id}; it, or the job that it was about, has been deleted, "
            "or this is the id of another job"
        )
        self.delivery_id = delivery_id


class CursorExpired(NotFound):
    """The log can no longer be read on from this cursor without a gap; *reason* says why."""

    code = "cursor_expired"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}; take cursor = hf.cursor(), read anew what you know of your jobs, and go on with after=cursor"
        )
        self.reason = reason


class Conflict(HoldfastError):
    """The state of what was named forbids what was asked."""

    code = "conflict"
    http_status = 409
    exit_code = 4


class StatusConflict(Conflict):
    """The job's status does not allow the change that was asked for."""

    code = "status_conflict"

    def __init__(self, job_id: UUID, status: str, change: str, allowed: Sequence[str], advice: str = "") -> None:
        hint = f": {advice}" if advice else ""
        super().__init__(f"job {job_id} is {status}; only {' or '.join(allowed)} jobs can {change}{hint}")
        self.job_id = job_id
        self.status = status
        self.change = change
        self.allowed = tuple(allowed)


class UniqueConflict(Conflict):
    """Another open chain holds the unique key that the job would need again."""

    code = "unique_conflict"

    def __init__(self, job_id: UUID, key: str, twin: UUID) -> None:
        super().__init__(f"job {job_id} cannot open again: chain {twin} holds its key {key!r}; end that one first")
        self.job_id = job_id
        self.key = key
        self.twin = twin


class WrongTask(Conflict):
    """The id belongs to a job of another task."""

    code = "wrong_task"

    def __init__(self, job_id: UUID, asked: str, found: str) -> None:
        super().__init__(f"job {job_id} is of task {found!r}, not {asked!r}; use another id, or that task")
        self.job_id = job_id
        self.asked = asked
        self.found = found


class LeaseLost(Conflict):
    """The job is no longer this attempt's, or may not be; *reason* says why, as `ctx.abort_reason` does."""

    code = "lease_lost"

    def __init__(self, job_id: UUID, reason: str) -> None:
        super().__init__(f"job {job_id} is no longer this attempt's ({reason}); let this pass, nothing is written")
        self.job_id = job_id
        self.reason = reason


class StillReferenced(Conflict):
    """Jobs outside the set that is to be deleted wait for a chain in it."""

    code = "still_referenced"

    def __init__(self, references: Sequence[tuple[UUID, UUID]]) -> None:
        shown = ", ".join(f"{chain} (for job {job})" for chain, job in references[:5])
        more = f" and {len(references) - 5} more" if len(references) > 5 else ""
        super().__init__(
            f"still waited for: {shown}{more}; delete the waiting chains in the same call, or end them first"
        )
        self.references = tuple(references)


class BlockerCycle(Conflict):
    """A job would wait, directly or through others, for its own chain."""

    code = "blocker_cycle"

    def __init__(self, chain_id: UUID) -> None:
        super().__init__(f"chain {chain_id} would wait for itself; take it out of blockers=")
        self.chain_id = chain_id


class NoResult(HoldfastError):
    """A chain that was waited for has no result to give, or not yet."""

    code = "no_result"
    http_status = 409
    exit_code = 6


class ChainFailed(NoResult):
    """The chain ended in a job that failed."""

    code = "chain_failed"

    def __init__(
        self, chain_id: UUID, job_id: UUID, reason: str | None = None, error: Mapping[str, Any] | None = None
    ) -> None:
        known = error or {}
        what = ": ".join(str(known[key]) for key in ("type", "message") if known.get(key))
        why = "; ".join(each for each in (reason, what) if each) or "no reason is given"
        super().__init__(f"chain {chain_id} has failed ({why}); look at job {job_id}, mend it, and retry()")
        self.chain_id = chain_id
        self.job_id = job_id
        self.reason = reason
        self.error = error


class ChainCancelled(NoResult):
    """The chain was cancelled."""

    code = "chain_cancelled"

    def __init__(self, chain_id: UUID, job_id: UUID, reason: str | None = None) -> None:
        why = f" ({reason})" if reason else ""
        super().__init__(f"chain {chain_id} was cancelled{why}; retry() its job {job_id} if it shall run after all")
        self.chain_id = chain_id
        self.job_id = job_id
        self.reason = reason


class WaitTimeout(NoResult):
    """The chains did not close in time; they go on."""

    code = "wait_timeout"

    def __init__(self, chain_ids: Sequence[UUID], seconds: float) -> None:
        shown = ", ".join(map(str, chain_ids[:5]))
        more = f" and {len(chain_ids) - 5} more" if len(chain_ids) > 5 else ""
        super().__init__(f"still open after {seconds:g} s: {shown}{more}; they go on, so wait longer or ask again")
        self.chain_ids = tuple(chain_ids)
        self.seconds = seconds


class StoreError(HoldfastError):
    """The database could not do it; nothing of the operation is left behind unless the class says so."""

    code = "store"
    http_status = 503
    exit_code = 5


class Unavailable(StoreError):
    """The database cannot be reached, is read-only, is full or did not answer in time; again may help."""

    code = "unavailable"


class Busy(StoreError):
    """Somebody else holds what the operation needs; again may help."""

    code = "busy"


class NotMigrated(StoreError):
    """The schema in the database and this release do not fit together."""

    code = "not_migrated"

    def __init__(self, message: str, found: int | None, needed: int) -> None:
        super().__init__(message)
        self.found = found
        self.needed = needed


class UnknownOutcome(StoreError):
    """COMMIT was sent and its answer was lost: the operation happened wholly or not at all."""

    code = "unknown_outcome"


class TransactionTimeout(StoreError):
    """A block's transaction was open for too long; it was rolled back, and all that was done in it is undone."""

    code = "transaction_timeout"


class TransactionBroken(StoreError):
    """A block's transaction cannot be committed any more; it is rolled back, with all that was done in it."""

    code = "transaction_broken"
