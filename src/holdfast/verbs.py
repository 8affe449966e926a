"""What both faces do, written once: calls become starts, rows become typed jobs and chains.

Every verb takes a `Runner` first: the store, its blocking twin or a caller's transaction. The async face awaits a
verb; over a blocking runner nothing suspends, so the blocking face finishes the same coroutine with `drive()`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypedDict, TypeVar, Unpack, get_args
from uuid import UUID

from holdfast.calls import Call, HasId, Unset, check_delay, milliseconds_of
from holdfast.codec import UNSTORABLE, clean_text
from holdfast.crashpoints import reach
from holdfast.errors import (
    ChainCancelled,
    ChainFailed,
    ChainNotFound,
    HoldfastError,
    InvalidInput,
    Misuse,
    TransactionRequired,
    UnknownTask,
)
from holdfast.ids import IdMaker, to_id
from holdfast.models import (
    CancelAnswer,
    Chain,
    ChainFilter,
    Job,
    JobFilter,
    Order,
    Page,
    PauseAnswer,
    Start,
    TaskRecord,
)
from holdfast.results import Seconds
from holdfast.schemas import check_arguments
from holdfast.settings import Settings
from holdfast.states import State, Status
from holdfast.store import chains, deletes, glances, reads, steering, task_rows
from holdfast.store.borrowed import Borrowed
from holdfast.store.reads import Paging
from holdfast.store.rows import SILENT
from holdfast.store.steering import Asked
from holdfast.store.tx import Operation, Runner
from holdfast.surroundings import Surroundings
from holdfast.tasks import Task, Tasks
from holdfast.waiting import Until, Waits

P = ParamSpec("P")
R = TypeVar("R")

Target: TypeAlias = HasId | UUID | str
"""Names a job or a chain: itself, its id, or the text of its id."""

T = TypeVar("T", bound=HasId | UUID | str)
Many: TypeAlias = list[T] | tuple[T, ...]
"""Names several of them, in an order."""

Targets: TypeAlias = Target | Many[Any]
When: TypeAlias = tuple[int, int]
"""A time in milliseconds since 1970, and how long from now it is instead if that is past."""

Words: TypeAlias = str | Sequence[str]

MOST_ITEMS = 500
WORDS_LENGTH = 2_000


class PageOptions(TypedDict, total=False):
    """Which page of a list: how many items, and where the page before ended."""

    limit: int
    cursor: str | None


class JobListOptions(PageOptions, total=False):
    """What a list of jobs is narrowed to; *status* also takes the derived words that are shown."""

    task: Words
    status: Words
    queue: Words
    lane: Words
    created_from: datetime | None
    created_to: datetime | None
    order: Order


class ChainListOptions(PageOptions, total=False):
    """What a list of chains is narrowed to; *status* is that of the last job, *roots_only* leaves out blockers."""

    task: Words
    status: Words
    is_open: bool | None
    roots_only: bool
    created_from: datetime | None
    created_to: datetime | None
    order: Order


class Verbs:
    """The verbs over one registry of tasks and one set of settings."""

    def __init__(self, tasks: Tasks, settings: Settings, surroundings: Surroundings) -> None:
        self.tasks = tasks
        self._settings = settings
        self._new_id = IdMaker(surroundings.wall_ms, surroundings.chance)
        self._recorded: set[str] = set()
        self._strangers: dict[str, TaskRecord] = {}

    async def record_tasks(self, at: Runner) -> None:
        """Write down what is new of the tasks whose code is here."""
        fresh = [task for task in self.tasks if not task.is_declared and task.name not in self._recorded]
        if fresh:
            records = [task.record() for task in fresh]
            if changed := await at.read(task_rows.changed, records):
                await at.run(task_rows.record, changed)
            self._recorded |= {task.name for task in fresh}

    def forget(self) -> None:
        """Forget what is written down: the database may be another when it is next used."""
        self._recorded, self._strangers = set(), {}

    async def start(self, at: Runner, calls: Sequence[Call[R]]) -> list[Chain[R]]:
        """Start a chain for each call, in order."""
        known = await self._records(at, calls)
        starts = [self._start_of(each, known.get(each.task)) for each in calls]
        if not starts:
            return []
        started = await at.gather(chains.start, starts)
        reach("start.after_commit")
        return [self._typed_chain(each) for each in started]

    def take(self, calls: Sequence[Call[R]], connection: object) -> list[Call[R]]:
        """Take *calls* as used, whatever comes of them, and hold the setting `require_connection`."""
        for each in calls:
            if not isinstance(each, Call):
                raise Misuse(f"{each!r} is not a call; call the task: `hf.start(task(argument=…))`")
        taken = [each.consume() for each in calls]
        if connection is None and self._settings.require_connection:
            raise TransactionRequired(
                "this Holdfast has require_connection=True; pass connection= with the transaction of the job's data"
            )
        return taken

    async def get_job(self, at: Runner, target: Target) -> Job:
        """Read one job."""
        return self._typed_job(await at.read(reads.get_job, target_id(target)))

    async def get_chain(self, at: Runner, target: Target) -> Chain[Any]:
        """Read one chain."""
        return self._typed_chain(await at.read(reads.get_chain, target_id(target)))

    async def result(self, at: Runner, waits: Waits, chain_id: UUID, timeout: Seconds | None) -> Any:
        """Wait until a chain closes and give its output; or raise why there is none."""
        seconds = _timeout(timeout)
        end = (await at.read(glances.ends, [chain_id])).get(chain_id)
        if end is None:
            raise ChainNotFound(chain_id)
        if end.closed_as is None:
            end = (await waits.wait([end.chain_id], "all", seconds))[end.chain_id]
        match end.closed_as:
            case Status.FAILED:
                raise ChainFailed(end.chain_id, end.job_id, end.reason, end.error)
            case Status.CANCELLED:
                raise ChainCancelled(end.chain_id, end.job_id, end.reason)
        task = self._known(end.task)
        return _read(end.output, task and task.decode_output)

    async def wait(
        self, at: Runner, waits: Waits, targets: Sequence[Target], until: Until, timeout: Seconds | None
    ) -> list[Chain[Any]]:
        """Wait until all, or any, of the chains have closed; give all of them as they are then."""
        if until not in get_args(Until):
            raise InvalidInput("one waits for 'all' or for 'any'", "until")
        seconds = _timeout(timeout)
        ids = [target_id(each) for each in targets]
        found = await at.read(glances.ends, ids) if ids else {}
        if missing := [each for each in ids if each not in found]:
            raise ChainNotFound(missing[0])
        still_open = list({each.chain_id: None for each in found.values() if each.closed_as is None})
        if still_open and (until == "all" or len(still_open) == len({each.chain_id for each in found.values()})):
            await waits.wait(still_open, until, seconds)
        chain_ids = [found[each].chain_id for each in ids]
        known = {each.id: self._typed_chain(each) for each in await at.read(reads.chains_by_id, chain_ids)}
        if gone := [each for each in chain_ids if each not in known]:
            raise ChainNotFound(gone[0])
        return [known[each] for each in chain_ids]

    async def list_jobs(self, at: Runner, options: JobListOptions) -> Page[Job]:
        """List jobs."""
        page = await at.read(reads.list_jobs, *_job_list(**options))
        return Page(tuple(map(self._typed_job, page.items)), page.next_cursor)

    async def list_chains(self, at: Runner, options: ChainListOptions) -> Page[Chain[Any]]:
        """List chains."""
        page = await at.read(reads.list_chains, *_chain_list(**options))
        return Page(tuple(map(self._typed_chain, page.items)), page.next_cursor)

    async def list_chain_jobs(self, at: Runner, target: Target, options: PageOptions) -> Page[Job]:
        """List the jobs of one chain."""
        page = await at.read(reads.list_chain_jobs, target_id(target), _paging(**options))
        return Page(tuple(map(self._typed_job, page.items)), page.next_cursor)

    async def delete(self, at: Runner, target: Target, cascade: bool) -> list[UUID]:
        """Delete one chain, which must be there."""
        deleted = await self.delete_many(at, [target], cascade)
        if not deleted:
            raise ChainNotFound(target_id(target))
        return deleted

    async def delete_many(self, at: Runner, targets: Sequence[Target], cascade: bool) -> list[UUID]:
        """Delete chains, as far as they are there."""
        return await at.run(deletes.delete, [target_id(each) for each in targets], cascade)

    async def cancel(self, at: Runner, jobs: Targets, asked: Asked) -> CancelAnswer | list[CancelAnswer]:
        """Cancel jobs."""
        return one_or_all(jobs, await _steer(at, steering.cancel, jobs, asked))

    async def pause(self, at: Runner, jobs: Targets, asked: Asked) -> PauseAnswer | list[PauseAnswer]:
        """Pause jobs."""
        return one_or_all(jobs, await _steer(at, steering.pause, jobs, asked))

    async def resume(self, at: Runner, jobs: Targets, asked: Asked) -> Job | list[Job]:
        """Let paused jobs go on."""
        return self._typed_jobs(jobs, await _steer(at, steering.resume, jobs, asked))

    async def retry(self, at: Runner, jobs: Targets, asked: Asked) -> Job | list[Job]:
        """Run failed or cancelled jobs again."""
        return self._typed_jobs(jobs, await _steer(at, steering.retry, jobs, asked))

    async def reschedule(self, at: Runner, jobs: Targets, when: When, asked: Asked) -> Job | list[Job]:
        """Have pending jobs run at another time."""
        return self._typed_jobs(jobs, await _steer(at, steering.reschedule, jobs, *when, asked))

    async def start_again(
        self, at: Runner, jobs: Targets, connection: object, asked: Asked
    ) -> Chain[Any] | list[Chain[Any]]:
        """Start new chains like those of *jobs*."""
        self.take([], connection)
        wanted = [(each, self._new_id()) for each in _target_ids(jobs)]
        started = await at.run(chains.start_again, wanted, asked.said()) if wanted else []
        return one_or_all(jobs, [self._typed_chain(each) for each in started])

    async def _records(self, at: Runner, calls: Sequence[Call[Any]]) -> dict[str, TaskRecord]:
        """Read what the code's owners wrote down of tasks whose code is not here; what was found is kept."""
        asked = {each.task for each in calls if each.chosen.queue is None or each.chosen.priority is None}
        known = self._strangers
        if missing := asked - known.keys():
            found = await at.read(task_rows.find, sorted(missing))
            known |= {each.name: each for each in found}
        return known

    def _start_of(self, call: Call[Any], record: TaskRecord | None) -> Start:
        if call.task not in self.tasks:
            _refuse_unknown(call, record)
        policy = json.loads(record.policy) if record is not None else {}
        options = call.chosen
        return Start(
            id=options.id or self._new_id(),
            named=options.id is not None,
            task=call.task,
            input=call.arguments,
            queue=options.queue if options.queue is not None else policy.get("queue", "default"),
            priority=options.priority if options.priority is not None else policy.get("priority", 0),
            lane=options.lane,
            tags=options.tags,
            delay_ms=options.delay_ms or 0,
            run_at_ms=options.run_at_ms,
            paused=options.paused,
            blockers=options.blockers,
            on_blocker_failure=options.on_blocker_failure,
            unique=options.unique,
            webhook=_webhook(options.webhook),
        )

    def _typed_jobs(self, named: Targets, jobs: Sequence[Job]) -> Job | list[Job]:
        return one_or_all(named, [self._typed_job(each) for each in jobs])

    def _typed_job(self, job: Job) -> Job:
        task = self._known(job.task)
        return replace(
            job,
            input=_read(job.input, task and task.decode_input),
            output=_read(job.output, task and task.decode_output),
        )

    def _typed_chain(self, chain: Chain[Any]) -> Chain[Any]:
        if chain.output is None:
            return chain
        task = self._known(chain.last_task)
        return replace(chain, output=_read(chain.output, task and task.decode_output))

    def _known(self, name: str) -> Task[..., Any] | None:
        return self.tasks.get(name) if name in self.tasks else None


def _refuse_unknown(call: Call[Any], record: TaskRecord | None) -> None:
    if record is None:
        raise UnknownTask(call.task)
    check_arguments(call.arguments, record.input_schema)


def _webhook(chosen: str | Unset | None) -> str | None:
    if isinstance(chosen, Unset):
        return None
    return SILENT if chosen is None else chosen


def _read(text: str | None, decode: Callable[[str], Any] | None) -> Any:
    """Read a stored value by its type; a value that no longer fits its type is given as plain JSON, not lost."""
    if text is None:
        return None
    if decode is None:
        return json.loads(text)
    try:
        return decode(text)
    except HoldfastError:
        return json.loads(text)


def _timeout(timeout: Seconds | None) -> float | None:
    if timeout is None:
        return None
    seconds: object = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise InvalidInput("it is seconds or a timedelta, 0 or more; None waits for ever", "timeout")
    return seconds


def target_id(target: Target) -> UUID:
    """Give the id of a job or a chain, however it is named."""
    return to_id(target if isinstance(target, UUID | str) else getattr(target, "id", str(target)))


def _target_ids(targets: Targets) -> list[UUID]:
    return [target_id(each) for each in (targets if isinstance(targets, list | tuple) else [targets])]


def one_or_all(targets: Targets, answers: list[R]) -> R | list[R]:
    """Give a list for a list, and its one answer for one target."""
    return answers if isinstance(targets, list | tuple) else answers[0]


async def _steer(
    at: Runner,
    verb: Operation[Concatenate[Sequence[UUID], P], list[R]],
    targets: Targets,
    *args: P.args,
    **kwargs: P.kwargs,
) -> list[R]:
    """Run *verb*; on a caller's connection what it leaves to admission stays left until the commit."""
    ids = _target_ids(targets)
    if not ids:
        return []
    if isinstance(at, Borrowed):
        return await at.run(verb, ids, *args, **kwargs)
    return await at.run(steering.at_once, verb, ids, *args, **kwargs)


def asked_by(by: str | None, why: str | None) -> Asked:
    """Say who asks and why, in texts that can be stored."""
    return Asked(by and clean_text(by, WORDS_LENGTH), why and clean_text(why, WORDS_LENGTH))


def when_of(at: datetime | None, after: float | timedelta | None) -> When:
    """Read `at=` or `after=`, just one of them, as the store takes it."""
    if (at is None) == (after is None):
        raise InvalidInput("give at= or after=, and just one of them", "at")
    return milliseconds_of(at, "at") or 0, 0 if after is None else check_delay(after)


NOW: When = (0, 0)


def _job_list(
    task: Words = (),
    status: Words = (),
    queue: Words = (),
    lane: Words = (),
    created_from: datetime | None = None,
    created_to: datetime | None = None,
    order: Order = "newest",
    **page: Unpack[PageOptions],
) -> tuple[JobFilter, Paging]:
    wanted = JobFilter(
        tasks=_words(task, "task"),
        states=_members(State, status),
        queues=_words(queue, "queue"),
        lanes=_words(lane, "lane"),
        created_from=_aware(created_from, "created_from"),
        created_to=_aware(created_to, "created_to"),
    )
    return wanted, _paging(order=order, **page)


def _chain_list(
    task: Words = (),
    status: Words = (),
    is_open: bool | None = None,
    roots_only: bool = False,
    created_from: datetime | None = None,
    created_to: datetime | None = None,
    order: Order = "newest",
    **page: Unpack[PageOptions],
) -> tuple[ChainFilter, Paging]:
    wanted = ChainFilter(
        tasks=_words(task, "task"),
        statuses=_members(Status, status),
        is_open=is_open,
        roots_only=roots_only,
        created_from=_aware(created_from, "created_from"),
        created_to=_aware(created_to, "created_to"),
    )
    return wanted, _paging(order=order, **page)


def _paging(limit: object = 50, cursor: str | None = None, order: Order = "newest") -> Paging:
    if not isinstance(limit, int) or not 1 <= limit <= MOST_ITEMS:
        raise InvalidInput(f"a page has 1 to {MOST_ITEMS} items; go on with cursor=page.next_cursor", "limit")
    if order not in get_args(Order):
        raise InvalidInput("a list goes by 'newest' or 'oldest' first", "order")
    return Paging(limit, order, cursor)


def _words(value: Any, name: str) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(word, str) and not UNSTORABLE.search(word) for word in words):
        raise InvalidInput("it is a text or several, without NUL characters and lone surrogates", name)
    return words


E = TypeVar("E", State, Status)


def _members(kind: type[E], value: Words) -> tuple[E, ...]:
    try:
        return tuple(kind(word) for word in _words(value, "status"))
    except ValueError as error:
        raise InvalidInput(f"{error}; there are {', '.join(kind)}", "status") from None


def _aware(at: datetime | None, name: str) -> datetime | None:
    if at is not None and at.utcoffset() is None:
        raise InvalidInput("it is an aware datetime; write datetime.now(UTC), or give it a tzinfo", name)
    return at
