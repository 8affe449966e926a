"""What both faces do, written once: reading, waiting and steering; `client/starter` has the starts.

Every verb takes a `Runner` first: the store, its blocking twin or a caller's transaction. The async face awaits a
verb; over a blocking runner nothing suspends, so the blocking face finishes the same coroutine with `drive()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, get_args
from uuid import UUID

from holdfast import current_block
from holdfast.client.chain_handle import Seconds
from holdfast.client.list_options import (
    ChainListOptions,
    JobListOptions,
    PageOptions,
    chain_list,
    job_list,
    page_of,
    paging,
)
from holdfast.client.starter import Starter
from holdfast.client.transactions import is_callers
from holdfast.client.waiter import Until, Waits
from holdfast.database.tx import Blocking, Operation, Runner
from holdfast.errors import (
    LISTED,
    Busy,
    ChainCancelled,
    ChainFailed,
    ChainNotFound,
    InvalidInput,
    StateConflict,
    StoreError,
    TenantNotFound,
    WaitTimeout,
    WrongTask,
    got,
)
from holdfast.ids import Target, refuse_too_many, target_id
from holdfast.journals import JournalEntry, check_wanted_kind
from holdfast.models import Asked, CancelAnswer, Event, EventFilter, EventPage, Job, Page, PauseAnswer, StoredChain
from holdfast.states import Status
from holdfast.store import lists, polls, reads
from holdfast.store.chains import creation, deletes
from holdfast.store.jobs import steering
from holdfast.store.jobs.steering import InputEdit
from holdfast.store.log import reading
from holdfast.store.polls import ChainResult
from holdfast.tasks.calls import check_milliseconds, check_output
from holdfast.tasks.registry import any_output
from holdfast.tasks.task import Task, require_task
from holdfast.texts import clean_text
from holdfast.times import milliseconds_of
from holdfast.unreadable import readable
from holdfast.wire.cursors import read_cursor

P = ParamSpec("P")
R = TypeVar("R")

When: TypeAlias = tuple[int, int]
"""A time in milliseconds since 1970, and how long from now it is instead if that is past."""

BY_LENGTH, WHY_LENGTH = 200, 500
TRIES = 5


class Verbs:
    """The verbs over one registry of tasks and one set of settings, those of *starter*."""

    def __init__(self, starter: Starter) -> None:
        self._starter = starter
        self._decoder = starter.decoder

    async def get_job(self, runner: Runner, target: Target) -> Job:
        """Read one job."""
        return self._decoder.job(await runner.read(reads.get_job, target_id(target)))

    async def get_chain(self, runner: Runner, target: Target, task: Task[..., Any] | None) -> StoredChain[Any]:
        """Read one chain, which *task* has begun if that is given."""
        if task is not None:
            require_task(task, "hf.get_chain")
        chain = self._decoder.chain(await runner.read(reads.get_chain, target_id(target)))
        if task is not None and chain.task not in task.names:
            raise WrongTask(chain.id, asked=task.name, found=chain.task)
        return chain

    async def result(self, runner: Runner, waits: Waits, chain_id: UUID, timeout: Seconds | None) -> Any:
        """Wait until a chain closes and give its output; or raise why there is none."""
        seconds = _timeout(timeout)
        end = (await runner.read(polls.chain_results, [chain_id])).get(chain_id)
        if end is None:
            await runner.read(reads.get_chain, chain_id)  # says that it cannot be read, if it is there
            raise ChainNotFound(chain_id)
        if end.closed_as is None:
            end = (await self._wait(runner, waits, [end.chain_id], "all", seconds))[end.chain_id]
        match end.closed_as:
            case Status.FAILED:
                raise ChainFailed(end.chain_id, end.job_id, end.reason, end.error)
            case Status.CANCELLED:
                raise ChainCancelled(end.chain_id, end.job_id, end.reason)
        return self._decoder.output(end.task, end.output)

    async def wait(
        self, runner: Runner, waits: Waits, targets: Sequence[Target], until: Until, timeout: Seconds | None
    ) -> list[StoredChain[Any]]:
        """Wait until all, or any, of the chains have closed; give all of them as they are then."""
        if until not in get_args(Until):
            raise InvalidInput(f"until must be 'all' or 'any', {got(until)}", "until")
        seconds = _timeout(timeout)
        ids = _ids_in_any_order(targets)
        found = await runner.read(polls.chain_results, ids) if ids else {}
        if missing := [each for each in ids if each not in found]:
            await runner.read(reads.get_chain, missing[0])  # says that it cannot be read, if it is there
            raise ChainNotFound(missing[0])
        still_open = list({each.chain_id: None for each in found.values() if each.closed_as is None})
        if still_open and (until == "all" or len(still_open) == len({each.chain_id for each in found.values()})):
            await self._wait(runner, waits, still_open, until, seconds)
        chain_ids = [found[each].chain_id for each in ids]
        known = {each.id: self._decoder.chain(each) for each in await runner.read(reads.chains_by_id, chain_ids)}
        if gone := [each for each in chain_ids if each not in known]:
            raise ChainNotFound(gone[0])
        return [known[each] for each in chain_ids]

    async def list_jobs(self, runner: Runner, options: JobListOptions) -> Page[Job]:
        """List jobs."""
        return (await runner.read(lists.list_jobs, *job_list(**options))).map(self._decoder.job)

    async def list_chains(self, runner: Runner, options: ChainListOptions) -> Page[StoredChain[Any]]:
        """List chains."""
        return (await runner.read(lists.list_chains, *chain_list(**options))).map(self._decoder.chain)

    async def list_chain_jobs(self, runner: Runner, target: Target, options: PageOptions) -> Page[Job]:
        """List the jobs of one chain."""
        page = await runner.read(reads.list_chain_jobs, target_id(target), page_of(options, "list_chain_jobs()"))
        return Page(tuple(map(self._decoder.job, page.items)), page.next_cursor)

    async def delete(self, runner: Runner, target: Target, cascade: bool) -> list[UUID]:
        """Delete one chain, which must be there."""
        deleted = await self.delete_many(runner, only_one(target, "delete"), cascade)
        if not deleted:
            raise ChainNotFound(target_id(target))
        return deleted

    async def delete_many(self, runner: Runner, targets: Sequence[Target], cascade: bool) -> list[UUID]:
        """Delete chains, as far as they are there."""
        ids = _ids_in_any_order(targets)
        self._refuse_alone(runner, _verb("delete", targets))
        return await runner.run(deletes.delete, ids, cascade)

    async def cancel(self, runner: Runner, jobs: Sequence[Target], asked: Asked) -> list[CancelAnswer]:
        """Cancel jobs."""
        return await self._steer(runner, "cancel", steering.cancel, jobs, asked)

    async def pause(self, runner: Runner, jobs: Sequence[Target], asked: Asked) -> list[PauseAnswer]:
        """Pause jobs."""
        return await self._steer(runner, "pause", steering.pause, jobs, asked)

    async def resume(
        self, runner: Runner, jobs: Sequence[Target], asked: Asked, arguments: Mapping[str, Any] | None = None
    ) -> list[Job]:
        """Let paused jobs go on; *arguments* change the input of one."""
        return await self._again(runner, "resume", steering.resume, jobs, asked, arguments)

    async def retry(
        self, runner: Runner, jobs: Sequence[Target], asked: Asked, arguments: Mapping[str, Any] | None = None
    ) -> list[Job]:
        """Run failed or cancelled jobs again; *arguments* change the input of one."""
        return await self._again(runner, "retry", steering.retry, jobs, asked, arguments)

    async def _again(
        self,
        runner: Runner,
        verb: str,
        operation: Operation[[Sequence[UUID], Asked, InputEdit | None], list[Job]],
        jobs: Sequence[Target],
        asked: Asked,
        arguments: Mapping[str, Any] | None,
    ) -> list[Job]:
        """Run *operation*; what *arguments* make of the input is decided before it, and compared under its lock.

        The types of a task are the user's code, which has no place in a transaction of ours.
        """
        if arguments is None:
            return [self._decoder.job(each) for each in await self._steer(runner, verb, operation, jobs, asked, None)]
        from holdfast.tasks import patches  # few programs do

        patch, (job_id,) = patches.check_patch(arguments), _target_ids(jobs)
        for _ in range(TRIES):
            task, input_, schema = await runner.read(steering.find_input, job_id)
            hidden = await self._starter.redactions.read(runner, task, self._starter.hidden_keys)
            edit = patches.edit(self._starter.tasks, task, input_, patch, schema, hidden)
            with suppress(steering.InputChanged):
                return [self._decoder.job(job) for job in await self._steer(runner, verb, operation, jobs, asked, edit)]
        raise Busy("others change the input of this job all the time; try again")

    async def reschedule(self, runner: Runner, jobs: Sequence[Target], when: When, asked: Asked) -> list[Job]:
        """Have pending jobs run at another time, or at once."""
        verb = "trigger" if when is NOW else "reschedule"
        moved = await self._steer(runner, verb, steering.reschedule, jobs, *when, asked)
        return [self._decoder.job(each) for each in moved]

    async def complete(
        self,
        runner: Runner,
        task: Task[..., Any] | str,
        target: Target,
        output: object,
        asked: Asked,
        if_state: str | None = None,
    ) -> Job:
        """Complete a job without a worker; *task* may be a name, and *output* is then as JSON gives it."""
        from holdfast.store.jobs import completing  # few programs do

        if not isinstance(task, str):
            require_task(task, "hf.complete")
        self._refuse_alone(runner, "complete")
        operation = completing.complete if is_callers(runner) else completing.complete_at_once
        job_id = target_id(target)
        names, text = await self._output_of(runner, task, output)
        one = only_one(job_id, "complete", if_state)
        job = await self._run(runner, one, operation, job_id, names, text, asked)
        return self._decoder.job(job)

    async def _output_of(self, runner: Runner, task: Task[..., Any] | str, output: object) -> tuple[Sequence[str], str]:
        """Give the names of *task*, and *output* as it is stored; the types judge that, or what was written of them."""
        if isinstance(task, Task):
            return task.names, task.encode_output(output)
        text = any_output().encode(output)
        if task in self._starter.tasks:
            known = self._starter.tasks.get(task)
            return known.names, known.check_output(text)
        check_output(task, text, (await self._starter.record_of(runner, task)).output_schema)
        return (task,), text

    async def get_blockers(self, runner: Runner, target: Target) -> list[StoredChain[Any]]:
        """Read the chains that a job waits for."""
        return [self._decoder.chain(each) for each in await runner.read(reads.get_blockers, target_id(target))]

    async def list_blocked_by(self, runner: Runner, target: Target, options: PageOptions) -> Page[Job]:
        """List the jobs that wait for a chain."""
        page = await runner.read(reads.list_blocked_by, target_id(target), page_of(options, "list_blocked_by()"))
        return Page(tuple(map(self._decoder.job, page.items)), page.next_cursor)

    async def cursor(self, runner: Runner) -> str:
        """Give the cursor of now."""
        return (await runner.read(reading.now)).text

    async def list_events(self, runner: Runner, after: str | None, limit: int, wanted: EventFilter) -> EventPage:
        """List the events behind a cursor."""
        cursor = None if after is None else read_cursor(after)
        found, end = await runner.read(
            reading.page_of_events, cursor, paging(limit, more="after=page.cursor").limit, wanted
        )
        return EventPage(tuple(readable(found, lambda each: each.read(self._decoder.values))), end.text)

    async def timeline(self, runner: Runner, target: Target, options: PageOptions) -> Page[Event]:
        """List the events of one job."""
        wanted = page_of(options, "timeline()")
        page = await runner.read(reading.timeline, target_id(target), wanted.limit, wanted.cursor)
        return Page(tuple(map(self._decoder.event, page.items)), page.next_cursor)

    async def journal(
        self, runner: Runner, target: Target, kind: str | None, after: int | str, limit: int
    ) -> Page[JournalEntry]:
        """List the entries of one job's journal."""
        from holdfast.store.jobs import journaling  # few programs read them

        wanted, number = check_wanted_kind(kind), _number(after)
        page = paging(limit, more="after=page.next_cursor")
        return await runner.read(journaling.list_entries, target_id(target), wanted, number, page.limit)

    async def start_again(self, runner: Runner, jobs: Sequence[Target], asked: Asked) -> list[StoredChain[Any]]:
        """Start new chains like those of *jobs*."""
        self._refuse_alone(runner, _verb("start_again", jobs))
        wanted = [(each, self._starter.new_id()) for each in _target_ids(jobs)]
        started = await self._run(runner, jobs, creation.start_again, wanted, asked.said()) if wanted else []
        return [self._decoder.chain(each) for each in started]

    async def _steer(
        self,
        runner: Runner,
        verb: str,
        operation: Operation[Concatenate[Sequence[UUID], P], list[R]],
        targets: Sequence[Target],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]:
        """Run *operation*; on a caller's connection what it leaves to admission stays left until the commit."""
        ids = _target_ids(targets)
        if not ids:
            return []
        self._refuse_alone(runner, _verb(verb, targets))
        if is_callers(runner):
            return await self._run(runner, targets, operation, ids, *args, **kwargs)
        return await self._run(runner, targets, steering.at_once, operation, ids, *args, **kwargs)

    async def _run(
        self, runner: Runner, targets: object, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run *operation*; if *targets* is one job of which a state is required, only if it is in that state."""
        if not isinstance(targets, OnlyOne) or targets.if_state is None:
            return await runner.run(operation, *args, **kwargs)
        checked = steering.in_state(operation, target_id(targets[0]), targets.if_state)
        try:
            return await runner.run(checked, *args, **kwargs)
        except StateConflict as error:
            raise StateConflict(error.expected, self._decoder.job(error.job)) from None

    def _refuse_alone(self, runner: Runner, verb: str) -> None:
        """Raise if *verb* would write in a transaction of our own where it may not: in a block, or ever."""
        if not is_callers(runner):
            current_block.refuse_write(f"hf.{verb}")
            self._starter.require_connection()

    async def _wait(
        self, runner: Runner, waits: Waits, chain_ids: Sequence[UUID], until: Until, seconds: float | None
    ) -> dict[UUID, ChainResult]:
        """Wait; if that takes too long, say in the error how the jobs stand, as far as one read can tell."""
        try:
            return await waits.wait(chain_ids, until, seconds)
        except WaitTimeout as late:
            from holdfast.client import insight  # what explains is read by those who need it

            whose = self._starter.tenant
            try:
                tenant = whose.view_sync() if isinstance(runner, Blocking) else await whose.view()
                found = await insight.explain_many(runner, late.chain_ids[:LISTED], tenant)
            except (StoreError, TenantNotFound):
                raise late from None
            raise WaitTimeout(late.chain_ids, late.seconds, found) from None


def _timeout(timeout: Seconds | None) -> float | None:
    if timeout is None:
        return None
    seconds: object = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise InvalidInput(
            f"timeout must be seconds or a timedelta, or None to wait for ever, {got(timeout)}", "timeout"
        )
    return seconds


def _number(after: int | str) -> int:
    if isinstance(after, str) and after.isascii() and after.isdigit():
        return int(after[:18])
    if isinstance(after, bool) or not isinstance(after, int) or not 0 <= after < 2**62:
        raise InvalidInput(f"after must be the number of an entry, or page.next_cursor, {got(after)}", "after")
    return after


class OnlyOne(list[Target]):
    """What a verb for one job was given, as the verb for many takes it; *if_state*: its `state_tag` must be this."""

    if_state: str | None = None


def only_one(target: Target, verb: str, if_state: str | None = None) -> OnlyOne:
    """Take the one job that *verb* is given; refuse several of them with the line to write."""
    if _are_several(target):
        raise InvalidInput(f"hf.{verb}() takes one job, chain or id, but {got(target)}; write hf.{verb}_many([…])")
    if not (if_state is None or isinstance(if_state, str)):
        raise InvalidInput(f"if_state must be the state_tag of a job, {got(if_state)}; write job.state_tag", "if_state")
    one = OnlyOne([target])
    one.if_state = if_state
    return one


def _verb(name: str, targets: object) -> str:
    """Give the name by which the caller has asked for it: that for one, or that for many."""
    return name if isinstance(targets, OnlyOne) else f"{name}_many"


def _ids_in_any_order(targets: object) -> list[UUID]:
    if isinstance(targets, Iterable) and _are_several(targets):
        given = list(targets)
        refuse_too_many(given)
        return [target_id(each) for each in given]
    raise InvalidInput(f"chains must be a list of jobs, chains or ids, {got(targets)}; write [chain]", "chains")


def _target_ids(targets: object) -> list[UUID]:
    if isinstance(targets, Sequence) and not isinstance(targets, str | bytes):
        refuse_too_many(targets)
        return [target_id(each) for each in targets]
    if _are_several(targets):
        raise InvalidInput(
            f"jobs must be a list or a tuple, because the answers have the same order, {got(targets)}; write list(…)"
        )
    raise InvalidInput(f"jobs must be a list of jobs, chains or ids, {got(targets)}; write [job]", "jobs")


def _are_several(targets: object) -> bool:
    return isinstance(targets, Iterable) and not isinstance(targets, str | bytes) and not hasattr(targets, "id")


def asked_by(by: str | None, why: str | None) -> Asked:
    """Say who asks and why, in texts that can be stored."""
    return Asked(_words(by, "by", BY_LENGTH), _words(why, "why", WHY_LENGTH))


def _words(value: object, name: str, most: int) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{name} must be a text, {got(value)}; write {name}=str(…)", name)
    if value and len(value) > most:
        raise InvalidInput(f"{name} has {len(value):,} characters, and at most {most} are kept; make it shorter", name)
    return value and clean_text(value, 6 * most)  # each may become an escape of six


def when_of(at: datetime | None, after: float | timedelta | None) -> When:
    """Read `at=` or `after=`, just one of them, as the store takes it."""
    if (at is None) == (after is None):
        raise InvalidInput("give at= or after=, and only one of them", "at")
    if after is not None:
        return 0, check_milliseconds("after", after)
    return milliseconds_of(at, "at", "use after="), 0


NOW: When = (0, 0)
