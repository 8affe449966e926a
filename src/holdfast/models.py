"""The values that people and the store hand to each other: starts, jobs, chains, pages, names of events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, get_args
from uuid import UUID

from holdfast.states import State, Status

R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)

JobEventName: TypeAlias = Literal[
    "job:enqueued",
    "job:started",
    "job:progress",
    "job:phase:completed",
    "job:completed",
    "job:failed",
    "job:retrying",
    "job:rescheduled",
    "job:pausing",
    "job:paused",
    "job:resumed",
    "job:cancelling",
    "job:cancelled",
    "job:blocked",
    "job:unblocked",
    "job:reaped",
    "job:stale",
    "job:webhook:delivered",
    "job:webhook:failed",
    "job:warning",
    "chain:completed",
]
"""The events of a job that exists, and so is given with them."""

EventName: TypeAlias = Literal[
    JobEventName, "job:deleted", "lane:halted", "lane:paused", "lane:resumed", "queue:paused", "queue:resumed"
]
Trigger: TypeAlias = Literal[
    "job:completed",
    "job:failed",
    "job:retrying",
    "job:cancelled",
    "job:stale",
    "job:paused",
    "job:reaped",
    "job:phase:completed",
    "chain:completed",
]
"""The events that a webhook may be for."""

TRIGGERS: tuple[Trigger, ...] = get_args(Trigger)

DEFAULT_TRIGGERS: tuple[Trigger, ...] = TRIGGERS[:5]
"""Those that it is for unless others are chosen; a job's own `webhook=` is for these."""

RESERVED = "holdfast."
"""What the names of the engine's own queues, lanes and tasks begin with; nobody else's may."""

INTERNAL_QUEUE = "holdfast.internal"
"""The queue of the engine's own jobs: they stay out of lists, listeners, SSE and subscriptions, unless asked for."""

DELIVER = "holdfast.deliver"
"""The task that posts a webhook."""

GONE = "gone"
"""The reason of a delivery that failed because its receiver is gone for good (410): its subscription is disabled."""

BlockerPolicy: TypeAlias = Literal["fail", "wait", "ignore"]
UniqueScope: TypeAlias = Literal["open", "any"]
Order: TypeAlias = Literal["newest", "oldest"]


@dataclass(frozen=True, slots=True)
class Unique:
    """A key that only one chain of a task holds at a time; a start that meets it is given that chain.

    *scope* `"open"` frees the key when the chain closes, `"any"` keeps it until the chain is deleted; *within*
    (seconds or a timedelta) frees it that long after the start at the latest.

    >>> Unique("order-7", within=3600).scope
    'open'
    """

    key: str
    scope: UniqueScope = "open"
    within: float | timedelta | None = None


class Start(NamedTuple):
    """One job to be inserted, as the store takes it: everything checked, nothing happened yet.

    It is a tuple because a thousand are made at once: calls with the same options differ in *id* and *input* only.
    """

    id: UUID
    input: str
    task: str
    queue: str
    priority: int = 0
    tags: tuple[str, ...] = ()
    webhook: str | None = None
    history: bool = True
    lane: str | None = None
    delay_ms: int = 0
    run_at_ms: int | None = None
    paused: bool = False
    blockers: tuple[UUID, ...] = ()
    on_blocker_failure: BlockerPolicy = "fail"
    unique: Unique | None = None
    trace: str | None = None
    named: bool = False  # the caller chose the id, so it may exist already
    from_chain: UUID | None = None  # it takes its key over from this chain, if that holds it
    facts: str | None = None  # what its first event says; canonical JSON

    def another(self, id_: UUID, input_: str) -> Start:
        """Give the start of another job with the same options."""
        return tuple.__new__(Start, (id_, input_, *self[2:]))

    @property
    def is_plain(self) -> bool:
        """Tell whether its job is ready at once, and has nothing but the fields up to *history*: most are so."""
        return self[8:] == PLAIN

    @property
    def size(self) -> int:
        """About how many bytes are sent for it."""
        return len(self.input)

    @property
    def may_wait(self) -> bool:
        """Tell whether inserting it may wait for a stranger's open transaction (the same key or id)."""
        return self.named or self.unique is not None

    @property
    def only_inserts(self) -> bool:
        """Tell whether starting it is two INSERTs and nothing else: it names no id, no key and no blockers."""
        return not (self.blockers or self.may_wait)


PLAIN = tuple(Start._field_defaults.values())[4:]
"""What a plain start has in its fields after *history*."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """The job that follows one in its chain; what *inherits* names comes from that one, not from *start*."""

    start: Start
    inherits: frozenset[str] = frozenset()
    """Some of `queue`, `priority`, `tags`, `webhook` and `lane`: what was not chosen for it."""


@dataclass(frozen=True, slots=True)
class BlockerEnd:
    """How a chain that a job waited for stands, by its last job; *output* is a JSON text."""

    chain_id: UUID
    task: str
    """The task of its last job; empty if the chain has been deleted."""
    closed_as: Status | None
    """How it closed; None if it is open again."""
    output: str | None


RUN_PHASE = "run"
"""The one phase of a task that declares none; it is there once its handler has said how far it is."""


class PhaseStatus(StrEnum):
    """How a phase stands."""

    PENDING = "pending"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A named, remembered step inside a job, as it was when it was read."""

    name: str
    status: PhaseStatus
    progress: int = 0
    message: str | None = None
    result: Any = None
    """What it gave; None until it has completed."""
    error: Any = None
    """The last error that ended it."""
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One durable request to run a task, as it was when it was read."""

    id: UUID
    seq: int
    chain_id: UUID
    chain_index: int
    task: str
    queue: str
    lane: str | None
    priority: int
    tags: tuple[str, ...]
    status: Status
    state: State
    """What people are shown: *status*, or the derived word that says more (`scheduled`, `waiting`, …)."""
    run_at: datetime
    attempt: int
    used: int
    crashes: int
    interrupted: int
    worker: str | None
    lease_until: datetime | None
    reason: str | None
    input: Any
    output: Any
    error: Any
    current_phase: str | None
    progress: int | None
    message: str | None
    open_blockers: int
    on_blocker_failure: BlockerPolicy
    webhook: str | None
    completed_by: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    stale_at: datetime | None
    version: int
    webhook_sent: bool | None = None
    """Whether the last webhook that ended for it was delivered; None if none has ended yet."""
    phases: tuple[Phase, ...] = ()
    """Its phases, in order; empty until the first one has begun."""

    @property
    def outcome(self) -> Status | None:
        """How it ended, also once it is stale; None while it has not."""
        return self.status if self.status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A recorded fact about a job, a lane or a queue, as it was read from the log."""

    name: EventName
    at: datetime
    job: Job | None = None
    """The job as it stood when the event was read: as the event left it, or later. None unless it is of a job.

    All listeners and streams of a process may be given the same one: leave its input and output as they are.
    """
    status: Status | None = None
    """The job's, right after the event; so are *version* and *attempt*."""
    version: int | None = None
    attempt: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the event itself says; docs/reference/events.md has the words of each."""
    cursor: str = ""
    """What `hf.events(after=…)` takes to go on behind it; empty for one of a timeline, which is no stream."""
    deleted_job_id: UUID | None = None
    """The job that is no more; for `job:deleted`."""
    lane: str | None = None
    """The lane that was halted, paused or resumed; only for these."""
    queue: str | None = None
    """The queue that was paused or resumed; only for these."""
    _written: bytes | None = field(default=None, init=False, repr=False, compare=False)  # by the first stream, for all


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent(Event):
    """A recorded fact about a job that exists."""

    name: JobEventName
    job: Job
    """The job as it stood when the event was read: as the event left it, or later."""


class Filterable(Protocol):
    """What a filter looks at: an event, or what one is made of."""

    @property
    def name(self) -> str:
        """What the event is called."""

    @property
    def job(self) -> Job | None:
        """The job that it is about."""

    @property
    def deleted_job_id(self) -> UUID | None:
        """The job that is no more."""

    @property
    def lane(self) -> str | None:
        """The lane that it is about, if that is not a job's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events are wanted; an empty field narrows nothing."""

    names: frozenset[EventName] = frozenset()
    jobs: frozenset[UUID] = frozenset()
    chains: frozenset[UUID] = frozenset()
    tasks: frozenset[str] = frozenset()
    lanes: frozenset[str] = frozenset()

    def fits(self, event: Filterable) -> bool:
        """Tell whether *event* is wanted; of a deleted job nothing is known but its id."""
        if self.names and event.name not in self.names:
            return False
        if not (self.jobs or self.chains or self.tasks or self.lanes):
            return True
        if (job := event.job) is None:
            gone, lane = event.deleted_job_id, event.lane
            return not (
                self.tasks
                or (self.jobs and gone not in self.jobs)
                or (self.chains and gone not in self.chains)
                or (self.lanes and lane not in self.lanes)
            )
        return not (
            (self.jobs and job.id not in self.jobs)
            or (self.chains and job.chain_id not in self.chains)
            or (self.tasks and job.task not in self.tasks)
            or (self.lanes and job.lane not in self.lanes)
        )


@dataclass(frozen=True, slots=True)
class StoredChain(Generic[R_co]):
    """A job and all that continues it, as it was when it was read; *status* and *output* are its last job's."""

    id: UUID
    task: str
    status: Status
    created_at: datetime
    closed_at: datetime | None = None
    output: R_co | None = None
    last_task: str = ""
    """The task of its last job: other than *task* once it has continued with another."""
    deduplicated: bool = False
    """The start that gave this chain met its `unique` key or its id, and made nothing."""

    @property
    def is_open(self) -> bool:
        """Tell whether it can still change by itself."""
        return self.closed_at is None


class CancelAnswer(StrEnum):
    """What `cancel` came to."""

    CANCELLED = "cancelled"
    """It did not run and is cancelled."""
    REQUESTED = "requested"
    """It runs; its handler is told to stop. This run can no longer complete it."""
    ALREADY_TERMINAL = "already terminal"
    """It had completed or been cancelled before; nothing was changed."""


class PauseAnswer(StrEnum):
    """What `pause` came to."""

    PAUSED = "paused"
    """It did not run and is paused."""
    REQUESTED = "requested"
    """It runs; its handler is told to stop, and the job is paused when it has, unless it completes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneInfo:
    """How a lane stands; without jobs and not paused, it does not exist, and all fields are empty."""

    key: str
    depth: int
    """How many jobs stand in it: its head, and those behind, which are counted up to 10,000."""
    head: UUID | None
    """The job whose turn it is: it runs, is next, or halts the lane."""
    head_status: Status | None
    halted_by: UUID | None
    """The failed or paused job that everything behind it waits for."""
    halted_because: str | None
    paused_at: datetime | None
    paused_by: str | None
    reason: str | None
    """Why it was paused."""

    @property
    def is_moving(self) -> bool:
        """Tell whether its jobs run: nobody has paused it, and no job halts it."""
        return self.halted_by is None and self.paused_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A receiver of webhooks, which is told of events of all jobs, or of those of some tasks."""

    id: UUID
    url: str = field(repr=False)  # it may hold what only the receiver may know
    events: tuple[Trigger, ...]
    tasks: tuple[str, ...] | None
    """The tasks whose jobs it is told of; None means all."""
    secrets: tuple[str, ...]
    """The names of the secrets that sign for it; none leaves it to the setting `webhook_secret`."""
    created_at: datetime
    disabled_at: datetime | None = None
    reason: str | None = None
    """Why it was disabled."""

    @property
    def is_enabled(self) -> bool:
        """Tell whether it is told of what happens now."""
        return self.disabled_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A webhook that was or is to be posted: one event, for one receiver. It is a job, and *id* is that job's."""

    id: UUID
    message_id: UUID
    """What the receiver sees as `webhook-id`: the same for every try, and for whatever delivers it again."""
    event: Trigger
    target: UUID
    """The job that it is about."""
    subscription: UUID | None
    """None if the job names its receiver itself."""
    url: str = field(repr=False)
    status: Status
    attempts: int
    """How often it has been tried."""
    reason: str | None
    """Why it has failed."""
    error: Any
    """What the last try that failed came to."""
    answer: Any
    """What the receiver answered when it took it."""
    created_at: datetime
    next_at: datetime | None
    """When it is tried next, unless it waits for an earlier one; None once it has ended."""
    finished_at: datetime | None

    @property
    def is_delivered(self) -> bool:
        """Tell whether the receiver has taken it."""
        return self.status is Status.COMPLETED


@dataclass(frozen=True, slots=True)
class Page(Generic[T_co]):
    """Some items of a list, and the cursor that leads to the next ones; None means that there are none."""

    items: tuple[T_co, ...]
    next_cursor: str | None = None

    def map(self, function: Callable[[T_co], T]) -> Page[T]:
        """Make a page of what *function* makes of each item."""
        return Page(tuple(map(function, self.items)), self.next_cursor)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """What a list of jobs is narrowed to; an empty field narrows nothing."""

    tasks: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    queues: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    created_from: datetime | None = None
    created_to: datetime | None = None
    internal: bool = False
    """Whether the engine's own jobs are wanted as well; to name their queue is to want them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFilter:
    """What a list of chains is narrowed to; an empty field narrows nothing."""

    tasks: tuple[str, ...] = ()
    statuses: tuple[Status, ...] = ()
    is_open: bool | None = None
    roots_only: bool = False
    created_from: datetime | None = None
    created_to: datetime | None = None
    internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """What a stranger to the code must know of a task: the `task` row."""

    name: str
    version: str
    policy: str = field(default="{}")
    input_schema: str = field(default="{}")
    output_schema: str = field(default="{}")


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks for a change, and why; kept in the log."""

    by: str | None = None
    why: str | None = None

    def said(self) -> dict[str, str]:
        """Give what was said of it."""
        return {key: value for key, value in (("by", self.by), ("reason", self.why)) if value is not None}

    def facts(self, **more: object) -> str | None:
        """Write it down, with what else is to be said."""
        known = self.said() | {key: value for key, value in more.items() if value is not None}
        return json.dumps(known) if known else None
