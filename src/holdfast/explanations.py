"""Why a job does not run, or a queue does not move: what `hf.explain` and `hf.explain_queue` answer.

A reason is a value of the class that stands for its `code`. The fields are its facts, `text` says them as a sentence,
`remedy` is the call that ends it, and `ends_at` when time alone does. `store/insight/explain.py` finds out which hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias
from uuid import UUID

from holdfast.models import INTERNAL_QUEUE, Job, JobError
from holdfast.states import Status

MOST_COUNTED = 10_000
"""Where a count stops: it then means "at least so many"."""
MOST_LISTED = 10
"""How many blockers, or workers, a reason names."""
MOST_TASKS = 20
"""How many of the tasks that wait in a queue are looked at."""

Verb: TypeAlias = Literal[
    "resume", "retry", "trigger", "complete", "lane.resume", "queue.resume", "tenants.resume", "worker"
]


@dataclass(frozen=True, slots=True)
class Remedy:
    """The call that ends a reason: a *verb* of the API, whom it is for, and its other *arguments*.

    >>> Remedy("trigger", "0198c0de-0000-7000-8000-000000000001").python
    "hf.trigger('0198c0de-0000-7000-8000-000000000001')"
    """

    verb: Verb
    target: str | None
    """The id of a job, the key of a lane, or the name of a queue or a tenant."""
    arguments: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def python(self) -> str:
        """The line to write; `await` it on the async face."""
        return PYTHON[self.verb](self)

    @property
    def request(self) -> RemedyRequest | None:
        """The request of the HTTP API; None if there is none, such as for a worker that must be started."""
        make = REQUESTS.get(self.verb)
        return None if make is None else make(self)


class RemedyRequest(NamedTuple):
    """A request of the HTTP API; *path* is that below where it is mounted."""

    method: str
    path: str
    body: dict[str, object]


PYTHON: dict[Verb, Callable[[Remedy], str]] = {
    "resume": lambda it: f"hf.resume({it.target!r})",
    "retry": lambda it: f"hf.retry({it.target!r})",
    "trigger": lambda it: f"hf.trigger({it.target!r})",
    "complete": lambda it: f"hf.complete(hf.tasks.get({it.arguments['task']!r}), {it.target!r}, output)",
    "lane.resume": lambda it: f"hf.lane({it.target!r}).resume()",
    "queue.resume": lambda it: f"hf.queue({it.target!r}).resume()",
    "tenants.resume": lambda it: f"hf.tenants.resume({it.target!r})",
    "worker": lambda it: f"hf.worker({_worker_options(it)})",
}
"""How a remedy is written in Python; each other form of a remedy is one more table like this."""


def _to_job(word: str) -> Callable[[Remedy], RemedyRequest]:
    return lambda it: RemedyRequest("POST", f"/api/jobs/{it.target}/{word}", {})


REQUESTS: dict[Verb, Callable[[Remedy], RemedyRequest]] = {
    "resume": _to_job("resume"),
    "retry": _to_job("retry"),
    "trigger": _to_job("trigger"),
    "complete": lambda it: RemedyRequest("POST", f"/api/jobs/{it.target}/complete", {"output": None}),
    "lane.resume": lambda it: RemedyRequest("POST", f"/api/lane/resume?key={_quoted(it.target)}", {}),
    "queue.resume": lambda it: RemedyRequest("POST", f"/api/queue/resume?name={_quoted(it.target)}", {}),
    "tenants.resume": lambda it: RemedyRequest("POST", f"/api/tenants/{_quoted(it.target)}/resume", {}),
}
"""How a remedy is asked for over HTTP; that for a tenant is one of the control place."""


def _quoted(name: str | None) -> str:
    from urllib.parse import quote  # few ask for it

    return quote(name or "", safe="")


def _worker_options(remedy: Remedy) -> str:
    tenant = remedy.arguments.get("tenant")
    queues = [] if remedy.target is None else [f"queues=[{remedy.target!r}]"]
    return ", ".join([*queues, *([] if tenant is None else [f"tenants={{{tenant!r}: 1}}"])])


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job does not run: one class for each *code*, whose fields are the facts."""

    code: ClassVar[str]

    @property
    def text(self) -> str:
        """The reason as a sentence."""
        return self._sentence()

    def _sentence(self) -> str:
        raise NotImplementedError

    @property
    def remedy(self) -> Remedy | None:
        """The call that ends it; None if only time, or another job, does."""
        return None

    @property
    def ends_at(self) -> datetime | None:
        """When time alone ends it; if that is past, at any moment. None if time alone does not."""
        return None

    @property
    def facts(self) -> dict[str, Any]:
        """All of its fields by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class NotCommitted(Reason):
    """No job of this id is in the database."""

    code = "not_committed"
    id: UUID

    def _sentence(self) -> str:
        return (
            f"there is no job {self.id} in this database: its transaction is not committed yet or was rolled back, or "
            "the job was deleted"
        )


@dataclass(frozen=True, slots=True)
class Paused(Reason):
    """Somebody has paused the job, or its handler has."""

    code = "paused"
    job: UUID
    by: str | None
    why: str | None
    since: datetime | None

    def _sentence(self) -> str:
        return f"the job is paused{_by_and_why(self.by, self.why)}"

    @property
    def remedy(self) -> Remedy | None:
        """Resume the job."""
        return Remedy("resume", str(self.job))


class OpenBlocker(NamedTuple):
    """A chain that a job waits for; *status* is that of its last job, None if the chain was deleted."""

    chain_id: UUID
    task: str | None
    status: Status | None


@dataclass(frozen=True, slots=True)
class Blocked(Reason):
    """The job waits for other chains: the first of *blockers*, and how many there are (up to 10,000)."""

    code = "blocked"
    blockers: tuple[OpenBlocker, ...]
    count: int

    def _sentence(self) -> str:
        if not self.blockers:
            return "the chains that the job waits for have ended, and it has not been told yet"
        named = ", ".join(f"{each.chain_id} ({each.status or 'deleted'})" for each in self.blockers)
        more = f" and {_up_to(self.count - len(self.blockers))} more" if self.count > len(self.blockers) else ""
        return f"the job waits for {'chain' if self.count == 1 else 'chains'} {named}{more}"

    @property
    def remedy(self) -> Remedy | None:
        """Retry a chain that did not complete, if the job waits for that."""
        ended = (each for each in self.blockers if each.status in (Status.FAILED, Status.CANCELLED))
        return next((Remedy("retry", str(each.chain_id)) for each in ended), None)


@dataclass(frozen=True, slots=True)
class NotDue(Reason):
    """The job is to run later; *receiver* is that of a webhook delivery which was put off for it."""

    code = "not_due"
    job: UUID
    run_at: datetime
    receiver: str | None = None

    def _sentence(self) -> str:
        if self.receiver is not None:
            return f"the delivery was put off until {_shown(self.run_at)} for its receiver {self.receiver}"
        return f"the job is due at {_shown(self.run_at)}"

    @property
    def remedy(self) -> Remedy | None:
        """Run it now."""
        return Remedy("trigger", str(self.job))

    @property
    def ends_at(self) -> datetime | None:
        """When it is due."""
        return self.run_at


@dataclass(frozen=True, slots=True)
class BackingOff(Reason):
    """The last attempt failed, and the next one comes at *run_at*."""

    code = "backing_off"
    job: UUID
    run_at: datetime
    attempt: int
    error: JobError
    receiver: str | None = None

    def _sentence(self) -> str:
        receiver = "" if self.receiver is None else f" for receiver {self.receiver}"
        due = f"the next one is due at {_shown(self.run_at)}"
        return f"attempt {self.attempt}{receiver} failed ({in_short(self.error)}); {due}"

    @property
    def remedy(self) -> Remedy | None:
        """Run it now."""
        return Remedy("trigger", str(self.job))

    @property
    def ends_at(self) -> datetime | None:
        """When the next attempt is due."""
        return self.run_at


@dataclass(frozen=True, slots=True)
class LaneBehind(Reason):
    """Other jobs of its lane come first: *head* and those behind it; the job has *place* 2 if it is next."""

    code = "lane_behind"
    lane: str
    place: int
    """Its place in the line; the head has 1. It is counted up to 10,000."""
    head: UUID | None
    head_status: Status | None

    def _sentence(self) -> str:
        place = f"the job has place {_up_to(self.place)} in lane {self.lane!r}"
        if self.head is None:
            return f"{place}, which passes on to its next job in a moment"
        return f"{place}, behind job {self.head} ({self.head_status})"


@dataclass(frozen=True, slots=True)
class LaneHalted(Reason):
    """A failed or paused job at the head of its lane halts the lane."""

    code = "lane_halted"
    lane: str
    head: UUID
    head_status: Status
    why: str | None

    def _sentence(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"lane {self.lane!r} is halted by job {self.head}, which is {self.head_status}{why}"

    @property
    def remedy(self) -> Remedy | None:
        """Let the job that halts the lane go on; `hf.lane(key).skip()` sets it aside instead."""
        return Remedy("resume" if self.head_status is Status.PAUSED else "retry", str(self.head))


@dataclass(frozen=True, slots=True)
class LanePaused(Reason):
    """Somebody has paused its lane."""

    code = "lane_paused"
    lane: str
    by: str | None
    why: str | None
    since: datetime

    def _sentence(self) -> str:
        return f"lane {self.lane!r} is paused{_by_and_why(self.by, self.why)}"

    @property
    def remedy(self) -> Remedy | None:
        """Resume the lane."""
        return Remedy("lane.resume", self.lane)


@dataclass(frozen=True, slots=True)
class QueuePaused(Reason):
    """Somebody has paused its queue, for good or *until* some time."""

    code = "queue_paused"
    queue: str
    by: str | None
    why: str | None
    since: datetime
    until: datetime | None

    def _sentence(self) -> str:
        until = "" if self.until is None else f" until {_shown(self.until)}"
        return f"queue {self.queue!r} is paused{until}{_by_and_why(self.by, self.why)}"

    @property
    def remedy(self) -> Remedy | None:
        """Resume the queue."""
        return Remedy("queue.resume", self.queue)

    @property
    def ends_at(self) -> datetime | None:
        """Until when it is paused, if that was said."""
        return self.until


@dataclass(frozen=True, slots=True)
class Suspended(Reason):
    """Somebody has suspended the job's tenant; call the remedy on `hf`, not on `hf.tenant(name)`."""

    code = "tenant_suspended"
    tenant: str
    by: str | None
    why: str | None
    since: datetime

    def _sentence(self) -> str:
        return f"tenant {self.tenant!r} is suspended{_by_and_why(self.by, self.why)}"

    @property
    def remedy(self) -> Remedy | None:
        """Resume the tenant."""
        return Remedy("tenants.resume", self.tenant)


@dataclass(frozen=True, slots=True)
class TenantBroken(Reason):
    """Workers leave the tenant out, because they cannot read its tables; or they cannot be read just now."""

    code = "tenant_broken"
    tenant: str
    error: str
    since: datetime | None
    """Since when workers leave it out; None if none of them has said so."""

    def _sentence(self) -> str:
        since = "" if self.since is None else f" since {_shown(self.since)}"
        return f"the place of tenant {self.tenant!r} cannot be used{since}: {self.error}"


@dataclass(frozen=True, slots=True)
class AsksAPerson(Reason):
    """The job asks a person; who answers completes it. *job* and *since* are None where a queue is explained."""

    code = "asks_a_person"
    job: UUID | None
    task: str
    title: str
    since: datetime | None

    def _sentence(self) -> str:
        return f"task {self.task!r} asks a person: {self.title}"

    @property
    def remedy(self) -> Remedy | None:
        """Complete the job with the answer."""
        if self.job is None:
            return None
        return Remedy("complete", str(self.job), MappingProxyType({"task": self.task}))


class ServingWorker(NamedTuple):
    """A worker that was alive just now, and the queues that it serves."""

    id: str
    name: str | None
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoWorker(Reason):
    """No living worker serves the queue; *workers* are the first of those that live, *nearest* a queue of theirs.

    Of a job of a tenant, *tenant* is its name; call the remedy on `hf` then, not on `hf.tenant(name)`.
    """

    code = "no_worker"
    queue: str
    nearest: str | None
    workers: tuple[ServingWorker, ...]
    is_internal: bool = False
    """Whether it is the queue of the engine's own jobs, which workers serve without being told."""
    tenant: str | None = None
    beside_hosts: bool = False
    """Whether it is the control place, and the workers that live serve tenants alone."""

    def _sentence(self) -> str:
        command = "holdfast worker APP" + ("" if self.tenant is None else f" --tenant {self.tenant}=1")
        if self.beside_hosts:
            return (
                f"no worker serves queue {self.queue!r} of the control place, for those that live serve tenants alone; "
                f"start the job in its tenant with hf.tenant(name).start(…), or start a worker with `{command}`"
            )
        if self.is_internal:
            extra = ", with the extra holdfast[webhooks] installed" if self.queue == INTERNAL_QUEUE else ""
            start = f"start one with `{command}`{extra}"
            return f"no worker runs the engine's own jobs in queue {self.queue!r}{self._of_tenant}; {start}"
        start = f"start a worker with `{command} --queues {self.queue}`"
        if self.nearest is not None:
            return f"no worker serves queue {self.queue!r}{self._of_tenant}; did you mean {self.nearest!r}? Or {start}"
        served = sorted({queue for each in self.workers for queue in each.queues})
        if not served:
            also = "" if self.queue == "default" else f" (with `--queues {self.queue}`, if no task of APP names it)"
            where = " on this database" if self.tenant is None else ""
            start = f"start a worker{where} with `{command}`{also}"
        others = f" (workers serve {', '.join(map(repr, served[:MOST_LISTED]))})" if served else ""
        return f"no worker serves queue {self.queue!r}{self._of_tenant}{others}; {start}"

    @property
    def _of_tenant(self) -> str:
        return "" if self.tenant is None else f" of tenant {self.tenant!r}"

    @property
    def remedy(self) -> Remedy | None:
        """Run a worker that serves the queue, or the tenant."""
        if self.tenant is None:
            return Remedy("worker", None if self.is_internal else self.queue)
        is_usual = self.is_internal or self.queue == "default"
        return Remedy("worker", None if is_usual else self.queue, MappingProxyType({"tenant": self.tenant}))


@dataclass(frozen=True, slots=True)
class TaskUnknown(Reason):
    """Workers serve the queue, but none of them has the task; *nearest* are names of theirs that look alike."""

    code = "unknown_task"
    task: str
    queue: str
    nearest: tuple[str, ...]

    def _sentence(self) -> str:
        near = f"; did you mean {' or '.join(map(repr, self.nearest))}?" if self.nearest else ""
        advice = "" if near else "; import the module of the task in the application of a worker, or correct the name"
        return f"no worker of queue {self.queue!r} has task {self.task!r}{near}{advice}"

    @property
    def remedy(self) -> Remedy | None:
        """Run a worker that has the task."""
        return Remedy("worker", self.queue)


@dataclass(frozen=True, slots=True)
class WorkersBusy(Reason):
    """All slots of the workers that would run the job are taken; *oldest* says since when the oldest attempt runs."""

    code = "workers_busy"
    queue: str
    slots: int
    taken: int
    oldest: datetime | None
    in_children: bool = False
    """Whether these are the slots of tasks that run in child processes; those of others may be free."""

    def _sentence(self) -> str:
        since = "" if self.oldest is None else f", the oldest attempt since {_shown(self.oldest)}"
        children = " for child processes" if self.in_children else ""
        workers = f"{children} of the workers of queue {self.queue!r}"
        if self.slots == 1:
            return f"the only slot{workers} is taken{since}"
        return f"all {self.slots} slots{workers} are taken{since}"


@dataclass(frozen=True, slots=True)
class Suspect(Reason):
    """The process of the job died *crashes* times, so that it waits to run alone."""

    code = "suspect"
    crashes: int

    def _sentence(self) -> str:
        return f"the job took its worker down {self.crashes} times, so it waits until it can run alone"


@dataclass(frozen=True, slots=True)
class Arriving(Reason):
    """Nothing stands in its way: the next worker that looks, from *wake_at* on, takes it up.

    If it *is_overdue*, none has looked for a while, and those that count as alive may be dead.
    """

    code = "arriving"
    wake_at: datetime
    is_overdue: bool = False

    def _sentence(self) -> str:
        if self.is_overdue:
            since = f"nothing keeps the job since {_shown(self.wake_at)}, and no worker has taken it up"
            return f"{since}; one that was killed counts as alive for 150 s, so look at hf.list_workers(), or start one"
        return "the job waits for nothing but the next look of a worker with a free slot"

    @property
    def ends_at(self) -> datetime | None:
        """When the engine looks at it; None if that should have been."""
        return None if self.is_overdue else self.wake_at


@dataclass(frozen=True, slots=True)
class Locked(Reason):
    """An open transaction holds the job's row; *since* is when that began, and None if the server does not tell."""

    code = "locked"
    since: datetime | None
    pid: int | None

    def _sentence(self) -> str:
        whose = "" if self.pid is None else f" of server process {self.pid}"
        since = "" if self.since is None else f" since {_shown(self.since)}"
        return f"an open transaction{whose} holds the job's row{since}; the job can start when that transaction ends"


@dataclass(frozen=True, slots=True)
class Running(Reason):
    """A worker has the job; *since* is when its handler began, and None if it has not.

    If it *is_overdue*, the worker has not renewed its lease in time, and is probably dead.
    """

    code = "running"
    worker: str
    since: datetime | None
    lease_until: datetime | None
    seen_at: datetime | None
    """The last sign of life of the worker; they come about once a minute. None if the worker is gone."""
    is_overdue: bool = False

    def _sentence(self) -> str:
        if self.is_overdue and self.lease_until is not None:
            over = (
                f"worker {self.worker} has the job and is probably dead: its lease ended at {_shown(self.lease_until)}"
            )
            return f"{over}; another worker takes the job back within some seconds, so start one if none runs"
        if self.since is None:
            return f"worker {self.worker} has claimed the job, and has not begun it yet"
        signs = [f"last sign of life {_shown(self.seen_at)}"] if self.seen_at is not None else []
        signs += [f"lease until {_shown(self.lease_until)}"] if self.lease_until is not None else []
        return f"worker {self.worker} runs the job since {_shown(self.since)} ({', '.join(signs)})"


@dataclass(frozen=True, slots=True)
class Stopping(Reason):
    """The job runs, and somebody has asked to cancel or to pause it."""

    code = "stopping"
    request: Literal["cancel", "pause"]
    by: str | None
    why: str | None
    since: datetime
    worker: str

    def _sentence(self) -> str:
        asked = f"to {self.request} the job since {_shown(self.since)}"
        return f"worker {self.worker} is asked {asked}{_by_and_why(self.by, self.why)}"


@dataclass(frozen=True, slots=True)
class Ended(Reason):
    """The job has ended; *by* is who cancelled it, or the worker that completed it.

    *blocker* is the chain that it failed by, if it waited for one.
    """

    code = "ended"
    job: UUID
    outcome: Status
    by: str | None
    why: str | None
    error: JobError | None
    at: datetime | None
    blocker: UUID | None = None

    def _sentence(self) -> str:
        error = f": {in_short(self.error)}" if self.error else ""
        at = "" if self.at is None else f" at {_shown(self.at)}"
        blocker = "" if self.blocker is None else f": it waited for chain {self.blocker}"
        return f"the job has {ENDINGS[self.outcome]}{at}{_by_and_why(self.by, self.why)}{error}{blocker}"

    @property
    def remedy(self) -> Remedy | None:
        """Retry it, or the chain that it failed by, unless it has completed."""
        return None if self.outcome is Status.COMPLETED else Remedy("retry", str(self.blocker or self.job))


ENDINGS = {Status.COMPLETED: "completed", Status.FAILED: "failed", Status.CANCELLED: "been cancelled"}


@dataclass(frozen=True, slots=True)
class Moving(Reason):
    """Nothing holds the queue up; only of queues."""

    code = "moving"
    queue: str
    is_empty: bool
    """Whether no job waits to be claimed."""

    def _sentence(self) -> str:
        waits = "no job in it can be claimed now" if self.is_empty else "workers take its jobs"
        return f"nothing holds queue {self.queue!r} up: {waits}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job does not run: all *reasons* that hold, in the order in which the engine would meet them.

    *job* is None if there is none of that id; for a chain, or a job that has continued, it is the chain's current job.
    """

    job: Job | None
    reasons: tuple[Reason, ...]

    @property
    def until(self) -> datetime | None:
        """When time alone ends all of them, if it does; None if something else must happen."""
        return _until(self.reasons)

    def __str__(self) -> str:
        return "; ".join(each.text for each in self.reasons)


@dataclass(frozen=True, slots=True)
class QueueExplanation:
    """Why the jobs of a queue do not run: all *reasons* that hold, or that it is moving."""

    queue: str
    reasons: tuple[Reason, ...]

    @property
    def until(self) -> datetime | None:
        """When time alone ends all of them, if it does; None if something else must happen."""
        return _until(self.reasons)

    def __str__(self) -> str:
        return "; ".join(each.text for each in self.reasons)


def in_tenant(reasons: Sequence[Reason], tenant: str) -> tuple[Reason, ...]:
    """Let *reasons* advise a worker that serves the *tenant*: one that serves `hf` itself runs none of its jobs."""
    return tuple(replace(each, tenant=tenant) if isinstance(each, NoWorker) else each for each in reasons)


def _until(reasons: Sequence[Reason]) -> datetime | None:
    times = [each.ends_at for each in reasons]
    known = [each for each in times if each is not None]
    return max(known) if known and len(known) == len(times) else None


def in_short(error: Mapping[str, Any]) -> str:
    """Say the type and the message of an error."""
    return ": ".join(str(error[key]) for key in ("type", "message") if error.get(key))


def _by_and_why(by: str | None, why: str | None) -> str:
    return f"{f' by {by}' if by else ''}{f' ({why})' if why else ''}"


def _shown(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _up_to(count: int) -> str:
    return f"{MOST_COUNTED} or more" if count >= MOST_COUNTED else str(count)


CODES: dict[str, type[Reason]] = {
    each.code: each
    for each in (
        *(Paused, Blocked, NotDue, BackingOff, LaneBehind, LaneHalted, LanePaused, QueuePaused),
        *(Suspended, TenantBroken, AsksAPerson),
        *(NoWorker, TaskUnknown, WorkersBusy, Suspect, Arriving, Locked, NotCommitted, Running, Stopping, Ended),
        Moving,
    )
}
"""Every code, in the order in which the engine would meet them, and then those that stand alone."""
