"""The model: jobs, lanes, keys and time as plain Python, and the few laws that every move obeys.

A job is in one of seven states. A lane is a list of jobs; its head alone may run. A unique key has one holder. What the
engine does not do in the transaction that makes it necessary is left to admission, as a time on the job: `wake`. A
rule that is refused raises `Refused` before it has changed anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from tests.law.moves import OPEN

MINUTE = 60_000
BEGIN = 2_000_000_000_000
"""When every example begins, in milliseconds: later than the start of any server that the tests run on."""


@dataclass(frozen=True)
class Policy:
    """What a task says of all its jobs, as the design names it."""

    queue: str
    lease_ms: int = 30_000
    attempts: int = 2
    on_lost: Literal["retry", "fail", "pause"] = "retry"
    cancels_by_pausing: bool = False
    halts_lane: bool = True


POLICIES = {
    "print": Policy("default"),
    "mail": Policy("default", lease_ms=45_000, attempts=1, on_lost="fail", halts_lane=False),
    "build": Policy("other", lease_ms=90_000, attempts=3, on_lost="pause", cancels_by_pausing=True),
}
USUAL_QUEUE = "default"
QUEUES = (USUAL_QUEUE, "other")


class Refused(Exception):
    """The rule is not allowed here; *code* is that of the error that a user gets, *about* what it names."""

    def __init__(self, code: str, about: object = None) -> None:
        super().__init__(code, about)
        self.code = code
        self.about = about


@dataclass(frozen=True)
class Token:
    """The right to run a job: one claim of it; *number* tells the job from one that had its id before."""

    job: UUID
    number: int
    attempt: int
    nonce: str


@dataclass(eq=False)
class Job:
    """One job; the first of a chain also knows how the chain has ended, and its key."""

    id: UUID
    number: int
    task: str
    lane: str | None
    priority: int
    input: str
    status: str
    run_at: int
    chain: UUID
    queue: str
    index: int = 0
    tags: tuple[str, ...] = ()
    successor: UUID | None = None
    blockers: tuple[UUID, ...] = ()
    on_blocker_failure: str = "fail"
    key: str | None = None
    attempt: int = 0
    used: int = 0
    crashes: int = 0
    interrupted: int = 0
    token: Token | None = None
    worker: str | None = None
    lease_until: int | None = None
    has_begun: bool = False
    wants_cancel: bool = False
    wants_pause: bool = False
    output: str | None = None
    progress: tuple[int, str | None] | None = None
    closed_as: str | None = None
    closed_at: int | None = None
    stale_at: int | None = None
    phases: list[str] = field(default_factory=list)
    results: dict[int, str] = field(default_factory=dict)
    """What its phases gave that have completed, by their places."""
    has_run_phase: bool = False
    """Its one phase is that of a task which declares none."""

    wake: int | None = None
    """When admission has something to do for it; None if it has not."""
    owes_turn: bool = False
    """It was the head of its lane, and nobody has been given the turn since."""
    is_ready: bool = False
    order: int = 0
    """What ready jobs are sorted by: when it became ready or joined its lane, a minute earlier for each priority."""
    is_watched: bool = False
    """Somebody has counted it among the blockers that were open, or that it failed by."""
    is_counted: bool = False
    """Its blockers have been looked at since it was last blocked."""
    waits_for: list[UUID] = field(default_factory=list)
    failed_by: set[UUID] = field(default_factory=set)
    watching: set[UUID] = field(default_factory=set)
    """The blockers that were open, or were to be tried again, when it last counted; they will tell it of their end."""
    let_off: set[UUID] = field(default_factory=set)
    """The blockers that it no longer waits for, until it counts again."""

    @property
    def policy(self) -> Policy:
        """What its task says."""
        return POLICIES[self.task]

    @property
    def is_open(self) -> bool:
        """Tell whether it can still change by itself."""
        return self.status in OPEN


@dataclass(eq=False)
class Lane:
    """Jobs that run one at a time, in the order in which they became runnable; the head has been given its turn."""

    line: list[Job] = field(default_factory=list)
    head: Job | None = None
    is_paused: bool = False

    @property
    def is_empty_and_paused(self) -> bool:
        """Tell whether it is kept only because it is paused."""
        return self.is_paused and not self.line


@dataclass
class Key:
    """Who holds a unique key, and for how long."""

    holder: UUID
    scope: str
    within: int | None
    until: int | None


@dataclass(frozen=True)
class Said:
    """An event that a move must append, just once; one without a job is *about* a lane, a queue or a deleted job."""

    job: UUID | None
    name: str
    status: str | None = None
    attempt: int | None = None
    about: tuple[object, ...] = ()
    continued: UUID | None = None


@dataclass(eq=False)
class Grave:
    """What is left of a deleted job until its lane has been passed on."""

    queue: str
    lane: str
    wake: int


@dataclass
class World:
    """Everything there is."""

    now: int = BEGIN
    count: int = 0
    jobs: dict[UUID, Job] = field(default_factory=dict)
    lanes: dict[str, Lane] = field(default_factory=dict)
    keys: dict[tuple[str, str], Key] = field(default_factory=dict)
    paused_queues: dict[str, int | None] = field(default_factory=dict)
    graves: list[Grave] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    unread: list[tuple[int, Said]] = field(default_factory=list)
    """What a reader of the log has still to be told, and when it happened."""
    is_reader_lost: bool = False
    """Something was removed from the log for its age that the reader had not been told."""

    # ---- events

    def say(self, job: Job, name: str) -> None:
        """Note an event of *job* as it is now."""
        continued = job.successor if name == "job:completed" else None
        self._append(Said(job.id, name, job.status, job.attempt, continued=continued))

    def say_of(self, name: str, *about: object) -> None:
        """Note an event of a lane, a queue or a job that is gone."""
        self._append(Said(None, name, about=about))

    def _append(self, said: Said) -> None:
        self.said.append(said)
        self.unread.append((self.now, said))

    # ---- finding

    def named(self, ids: Iterable[UUID]) -> list[Job]:
        """Find the current jobs of the chains of *ids*, each once; refuse one that is not there."""
        wanted = list(ids)
        for each in wanted:
            if each not in self.jobs:
                raise Refused("job_not_found", each)
        return list(dict.fromkeys(self.current(each) for each in wanted))

    def first(self, job: Job) -> Job:
        """Give the first job of a chain, on which its end and its key stand."""
        return self.jobs[job.chain]

    def current(self, id_: UUID) -> Job:
        """Give the last job of the chain that a job belongs to: whoever names another one means it."""
        job = self.jobs[id_]
        while job.successor is not None:
            job = self.jobs[job.successor]
        return job

    def chains(self) -> list[UUID]:
        """Name all chains."""
        return [job.id for job in self.jobs.values() if job.index == 0]

    def steps(self, chain: UUID) -> list[Job]:
        """Give the jobs of a chain, its first one first."""
        return sorted((job for job in self.jobs.values() if job.chain == chain), key=lambda job: job.index)

    def in_order(self, jobs: Iterable[Job] | None = None) -> list[Job]:
        """Give jobs in the order in which they were started."""
        return sorted(self.jobs.values() if jobs is None else jobs, key=lambda job: job.number)

    def is_paused(self, queue: str) -> bool:
        """Tell whether nothing is claimed from *queue* now."""
        until = self.paused_queues.get(queue, 0)
        return until is None or until > self.now

    def is_at_rest(self) -> bool:
        """Tell whether admission has nothing to do now."""
        return not self.graves and all(job.wake is None or job.wake > self.now for job in self.jobs.values())

    def shown(self, job: Job) -> str:
        """Say which word people are shown for a job's state."""
        if job.stale_at is not None:
            return "stale"
        if job.status == "running":
            return "cancelling" if job.wants_cancel else "pausing" if job.wants_pause else "running"
        if job.status != "pending":
            return "continued" if job.successor is not None else job.status
        if job.run_at > self.now:
            return "scheduled"
        lane = self.lanes.get(job.lane or "")
        is_behind = lane is not None and job in lane.line and job is not lane.head
        is_held = self.is_paused(job.queue) or (lane is not None and lane.is_paused)
        return "waiting" if is_behind or is_held else "pending"

    # ---- lanes

    def has_place(self, job: Job) -> bool:
        """Tell whether a job stands in its lane."""
        return job.lane is not None and job.lane in self.lanes and job in self.lanes[job.lane].line

    def is_head(self, job: Job) -> bool:
        """Tell whether it is a job's turn in its lane."""
        return job.lane is not None and job.lane in self.lanes and self.lanes[job.lane].head is job

    def make_ready(self, job: Job) -> None:
        """Let a job without a lane be claimed; its order is fixed by now."""
        job.is_ready, job.order = True, self.now - MINUTE * job.priority

    def join(self, job: Job) -> None:
        """Give a job, which has become runnable, the last place of its lane; its order is fixed by now."""
        assert job.lane is not None
        self.lanes.setdefault(job.lane, Lane()).line.append(job)
        job.order = self.now - MINUTE * job.priority

    def step_out(self, job: Job) -> None:
        """Take a job out of its lane; who comes next is for `pass_on` to say."""
        if self.has_place(job):
            lane = self.lanes[job.lane or ""]
            lane.line.remove(job)
            job.owes_turn = lane.head is job
            lane.head = None if lane.head is job else lane.head

    def pass_on(self, key: str) -> None:
        """Give a lane without a head its next one; a lane in which nobody stands goes, unless it is paused."""
        lane = self.lanes.setdefault(key, Lane())
        for job in self.jobs.values():
            job.owes_turn = job.owes_turn and job.lane != key
        if lane.head is None and lane.line:
            lane.head = lane.line[0]
            self.wake_head(lane)
            if lane.head.status == "paused":
                self.say_of("lane:halted", key, lane.head.id)
        if not lane.line and not lane.is_paused:
            del self.lanes[key]

    def is_between_heads(self, key: str) -> bool:
        """Tell whether a lane is still to be passed on by admission; whoever has to do with it may do so before."""
        return key in self.lanes and self.lanes[key].head is None and not self.lanes[key].is_empty_and_paused

    def wake_head(self, lane: Lane) -> None:
        """Let the head run if it may: now, or when it is due; not in a paused lane."""
        head = lane.head
        if head is not None and head.status == "pending" and not lane.is_paused:
            head.is_ready = head.run_at <= self.now
            head.wake = None if head.is_ready else head.run_at

    # ---- keys

    def holder(self, task: str, key: str) -> UUID | None:
        """Tell who holds a key now."""
        held = self.keys.get((task, key))
        return None if held is None or (held.until is not None and held.until <= self.now) else held.holder

    def key_of(self, job: Job) -> tuple[str, str] | None:
        """Name the key of a chain: the one that it was started with, whichever step it is at."""
        first = self.first(job)
        return None if first.key is None else (first.task, first.key)

    def has_its_key(self, job: Job) -> bool:
        """Tell whether a chain holds its key, or needs none."""
        key = self.key_of(job)
        return key is None or self.holder(*key) == job.chain

    def take_key(self, job: Job, scope: str = "open", within: int | None = None) -> None:
        """Let a chain hold its key, if it has one, unless somebody does."""
        key = self.key_of(job)
        if key is not None and self.holder(*key) is None:
            until = None if within is None else self.now + within
            self.keys[key] = Key(job.chain, scope, within, until)

    def free_key(self, job: Job, *scopes: str) -> None:
        """Let go of a chain's key if it holds it in one of *scopes*."""
        key = self.key_of(job)
        held = None if key is None else self.keys.get(key)
        if key is not None and held is not None and held.holder == job.chain and held.scope in scopes:
            del self.keys[key]

    # ---- ends

    def close(self, job: Job) -> None:
        """Close a chain by the end of its last job: its key is free in the same commit."""
        self.first(job).closed_as, self.first(job).closed_at = job.status, self.now
        self.unmark(job)
        self.free_key(job, "open")

    def unmark(self, job: Job) -> None:
        """Take the mark of retention off a whole chain: something has become of it since."""
        for step in self.steps(job.chain):
            step.stale_at = None

    def open_again(self, job: Job) -> None:
        """Let a job that had stopped go on, asked for nothing: blocked if it has blockers but no place, or pending."""
        job.status = "pending" if self.has_place(job) or not job.blockers else "blocked"
        job.is_counted, self.first(job).closed_as, self.first(job).closed_at = False, None, None
        self.unmark(job)
        job.wants_cancel = job.wants_pause = False
