"""The values that people and the store hand to each other: starts, jobs, chains, pages, names of events."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    NotRequired,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    get_args,
    overload,
)
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
    "job:journal",
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

BULK = BULK_QUEUE = "holdfast.bulk"
"""The task that acts on many jobs, a page at a time, and its queue; its jobs are shown and steered like a user's."""

BUILT_IN = (DELIVER, BULK)
"""The tasks that every worker brings itself."""

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
    attempts: int | None = None  # its own budget; None leaves it to its task
    parent: UUID | None = None  # the job that starts it

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
        """Tell whether starting it is one INSERT with an event that says nothing: it can run at once, or in its lane.

        It names no id, no key and no blockers, and nobody has said anything about it.
        """
        return not (self.blockers or self.may_wait or self.facts or self.delay_ms or self.run_at_ms or self.paused)


PLAIN = tuple(Start._field_defaults.values())[4:]
"""What a plain start has in its fields after *history*."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """The job that follows one in its chain; what *inherits* names comes from that one, not from *start*."""

    start: Start
    inherits: frozenset[str] = frozenset()
    """Some of `queue`, `priority`, `tags`, `webhook` and `lane`: what was not chosen for it."""


class BlockerEnd(NamedTuple):
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
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobError(TypedDict):
    """The error of an attempt, as `job.error` has it and the history keeps it."""

    type: str
    """The name of the exception's class."""
    message: str
    attempt: int
    worker: str
    traceback: NotRequired[str]
    """Missing if no code of yours raised it, as when a worker died."""
    attributes: NotRequired[dict[str, str | int | float | bool | None]]
    """The exception's own plain attributes, if it has some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A named, remembered step inside a job, as it was when it was read."""

    name: str
    status: PhaseStatus
    progress: int = 0
    message: str | None = None
    result: Any = None
    """What it gave; None until it has completed."""
    error: JobError | None = None
    """The last error that ended it."""
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True, repr=False)
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
    error: JobError | None
    """The last error of an attempt; None if there was none, or the job has completed since."""
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
    attempts: int | None = None
    """Its own budget of attempts, by `attempts=`; None leaves it to the `Retry` of its task."""
    parent: UUID | None = None
    """The job whose handler started its chain, or the one that `parent=` named; None if there is none."""
    scheduled_at: datetime | None = None
    """The time of the schedule that started it; None if none has, or somebody ran the schedule by hand."""
    phases: tuple[Phase, ...] = ()
    """Its phases, in order: `pending` from its start on, as its task declares them; that of a task that declares none,
    `run`, is there once its handler has said how far it is."""
    state_tag: str = ""
    """Its status, attempt, open requests and a checksum, as a text to compare: every move and every edit of its input
    changes it, progress does not. Verbs take it as `if_state=`."""

    @property
    def outcome(self) -> Status | None:
        """How it ended, also once it is stale; None while it has not."""
        return self.status if self.status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED) else None

    def __repr__(self) -> str:  # without what it was given, which may be long and private
        failed = f", {self.error.get('type')}" if isinstance(self.error, dict) else ""
        return f"<Job {self.id} {self.task} {self.state}, attempt {self.attempt}{failed}>"


class EventFacts(TypedDict, total=False):
    """What an event itself says; docs/reference/events.md has the words of each. A newer release may write others."""

    id: str
    seq: int
    chain_id: str
    task: str
    lane: str
    parent: str
    queue: str
    job: str
    again: str
    blockers: list[str]
    run_at: str
    worker: str
    progress: int
    message: str | None
    phase: str | None
    phase_progress: int
    continued: str
    reason: str | None
    error: JobError
    by: str
    until: int
    delivery: str
    event: str
    subscription: str
    kind: str
    number: int
    changed: list[str]
    schedule: str


@dataclass(frozen=True, slots=True)
class RunningJob:
    """What a handler, and its retry policy, may know of its job: the facts of this attempt."""

    id: UUID
    chain_id: UUID
    chain_index: int
    task: str
    queue: str
    lane: str | None
    attempt: int
    """The number of this run; it only grows."""
    used: int
    """How many attempts of its budget are used, this one included."""
    crashes: int
    attempts: int | None = None
    """Its budget: its own, or that of its task; None means no limit."""
    error: JobError | None = None
    """The last error of an earlier attempt, as `job.error` has it; None if there is none."""
    last_attempt_at: datetime | None = None
    """When the attempt before this one began; None in the first."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
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
    facts: EventFacts = field(default_factory=EventFacts)
    """What the event itself says; docs/reference/events.md has the words of each."""
    cursor: str = ""
    """What `hf.events(after=…)` takes to go on behind it; empty for one of a timeline, which is no stream."""
    deleted_job_id: UUID | None = None
    """The job that is no more; for `job:deleted`."""
    lane: str | None = None
    """The lane that was halted, paused or resumed; only for these."""
    queue: str | None = None
    """The queue that was paused or resumed; only for these."""
    _written: dict[Hashable, bytes] | None = field(default=None, init=False, repr=False, compare=False)
    # by the first stream, for all that show the same of it

    def __repr__(self) -> str:
        about = self.job or self.deleted_job_id or self.lane or self.queue
        return f"<{type(self).__name__} {self.name} of {about}>"


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events of the log in their order, and the *cursor* behind all that was looked at for them."""

    items: tuple[Event, ...]
    cursor: str

    def __iter__(self) -> Iterator[Event]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
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
    def facts(self) -> EventFacts:
        """What the event itself says."""


class EventFilter(NamedTuple):
    """Which events are wanted; an empty field narrows nothing."""

    names: frozenset[EventName] = frozenset()
    jobs: frozenset[UUID] = frozenset()
    chains: frozenset[UUID] = frozenset()
    tasks: frozenset[str] = frozenset()
    lanes: frozenset[str] = frozenset()
    parents: frozenset[UUID] = frozenset()

    def fits(self, event: Filterable) -> bool:
        """Tell whether *event* is wanted; a deleted job is known by what its event says of it."""
        if self.names and event.name not in self.names:
            return False
        if not (self.jobs or self.chains or self.tasks or self.lanes or self.parents):
            return True
        if (job := event.job) is None:
            said = event.facts
            gone = said.get("id")
            return not (
                (self.jobs and not _names(gone, self.jobs))
                or (self.chains and not _names(said.get("chain_id", gone), self.chains))
                or (self.tasks and said.get("task") not in self.tasks)
                or (self.lanes and said.get("lane") not in self.lanes)
                or (self.parents and not _names(said.get("parent"), self.parents))
            )
        return not (
            (self.jobs and job.id not in self.jobs)
            or (self.chains and job.chain_id not in self.chains)
            or (self.tasks and job.task not in self.tasks)
            or (self.lanes and job.lane not in self.lanes)
            or (self.parents and job.parent not in self.parents)
        )


def _names(id_: str | None, wanted: frozenset[UUID]) -> bool:
    return id_ is not None and UUID(id_) in wanted


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
    """How many jobs stand in it: its head, and those behind, which are counted up to 10,000; in lists up to 100."""
    head: UUID | None
    """The job whose turn it is: it runs, is next, or halts the lane."""
    head_status: Status | None
    halted_by: UUID | None
    """The failed or paused job that everything behind it waits for."""
    halted_because: str | None
    halted_since: datetime | None
    """When that job failed; None for a paused one, which may have been paused before its turn came."""
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
    """A receiver of webhooks, subscribed to the events of all jobs or of some tasks."""

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
    name: str | None = None
    """The name under which it was made; whoever subscribes under it again changes this subscription."""

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


class Searched(NamedTuple):
    """How far a request has looked for jobs that fit; both numbers are 0 if there was nothing to look at."""

    from_seq: int
    """The first number (`job.seq`) that it looked at."""
    to_seq: int
    """The last one: whatever fits between the two is on this page."""
    is_end: bool
    """Whether nothing that fits is left behind *to_seq*."""


@dataclass(frozen=True, slots=True)
class Page(Sequence[T_co]):
    """Some items of a list, and the cursor that leads to the next ones; None means that there are none.

    A request looks at a bounded number of jobs, so a page may be short, or empty, and have a *next_cursor*.
    """

    items: tuple[T_co, ...]
    next_cursor: str | None = None
    searched: Searched | None = None
    """How far it has looked; None for lists that take no filter."""

    def map(self, function: Callable[[T_co], T]) -> Page[T]:
        """Make a page of what *function* makes of each item."""
        return Page(tuple(map(function, self.items)), self.next_cursor, self.searched)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T_co, ...]: ...
    def __getitem__(self, index: int | slice) -> T_co | tuple[T_co, ...]:
        return self.items[index]


Scalar: TypeAlias = str | int | float | bool | None
"""What `input=` compares with: a JSON value that has no parts."""


class JobQuery(NamedTuple):
    """What a list of jobs is narrowed to; an empty field narrows nothing."""

    tasks: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    queues: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    parent: UUID | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
    internal: bool = False
    """Whether the engine's own jobs are wanted as well; to name their queue is to want them."""
    ids: tuple[UUID, ...] = ()
    chains: tuple[UUID, ...] = ()
    """Chains, by their ids or by those of any of their jobs."""
    chain_tasks: tuple[str, ...] = ()
    """The tasks of the first jobs of their chains."""
    tags: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    """The types of their last errors."""
    inputs: tuple[tuple[tuple[str, ...], Scalar], ...] = ()
    """Paths into the input, and what is there; all of them fit."""


class ChainQuery(NamedTuple):
    """What a list of chains is narrowed to; an empty field narrows nothing."""

    tasks: tuple[str, ...] = ()
    statuses: tuple[Status, ...] = ()
    is_open: bool | None = None
    roots_only: bool = False
    created_from: datetime | None = None
    created_to: datetime | None = None
    internal: bool = False
    ids: tuple[UUID, ...] = ()
    """Chains, by their ids or by those of any of their jobs."""


class TaskRecord(NamedTuple):
    """What a stranger to the code must know of a task: the `task` row."""

    name: str
    version: str
    policy: str = "{}"
    input_schema: str = "{}"
    output_schema: str = "{}"


class Asked(NamedTuple):
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
